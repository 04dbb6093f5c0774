"""What the package shows of itself: names, the module that is the command, the version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import disc_tf
from disc_tf.version import __version__

ROOT = Path(__file__).parents[1]


def test_public_names_are_listed_without_importing_them() -> None:
    program = "import disc_tf, sys; print(*dir(disc_tf)); assert 'disc_tf.optimizer' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60)
    assert set(disc_tf.__all__) <= set(done.stdout.split())
    assert not {"Any", "TYPE_CHECKING", "annotations"} & set(dir(disc_tf))
    assert all(getattr(disc_tf, name) is not None for name in disc_tf.__all__)


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_module_is_the_command(flag: str) -> None:
    done = subprocess.run([sys.executable, "-m", "disc_tf", flag], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60)
    assert done.stdout == f"disc-tf {__version__}\n" and not done.stderr


def test_its_exit_code_is_the_commands() -> None:
    done = subprocess.run([sys.executable, "-m", "disc_tf", "optimise"], capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("disc-tf: there is no verb 'optimise'; did you mean optimize?")
