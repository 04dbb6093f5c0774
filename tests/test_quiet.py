"""TensorFlow's start-up lines are dropped, everything else on standard error arrives, also from a process that aborts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from disc_tf.quiet import LEVEL, without_noise

ROOT = Path(__file__).parents[1]
NOISE = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n",
    "I0000 00:00:1796125616.310623   29964 port.cc:153] oneDNN custom operations are on. You may see ...\n",
    "I0000 00:00:1796125616.312293   29964 cudart_stub.cc:31] Could not find cuda drivers on your machine\n",
    "W0000 00:00:1796125616.3 7 computation_placer.cc:177] computation placer already registered.\n",
    "E0000 00:00:1796125616.3 7 cuda_dnn.cc:8579] Unable to register cuDNN factory: Attempting to register\n",
    "2024-03-01 10:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.\n",
    "2024-03-01 10:00:00.123456: E external/local_xla/xla/cuda_fft.cc:477] Unable to register cuFFT factory: Attempting\n",
]
SAID = [
    "F0000 00:00:1796125616.3 7 cpu_feature_guard.cc:1] The TensorFlow library was compiled to use AVX instructions\n",
    "E0000 00:00:1796125616.3 7 loader.cc:1] cannot open a library\n",
    "2024-03-01 10:00:00.123456: E tensorflow/core/x.cc:1] it failed\n",
    "UserWarning: something of Python's\n",
    "INFO of somebody else\n",
    "no end of line",
]


def test_lines_are_told_apart() -> None:
    assert without_noise("".join(NOISE + SAID)) == "".join(SAID)


def tensorflow(directory: Path, end: str) -> Path:
    """A package of the name that says all of this, to the descriptor and through Python, when it is imported."""
    (directory / "tensorflow").mkdir()
    text = f"import os, sys\nos.write(2, {''.join(NOISE + SAID[:3]).encode()!r})\nsys.stderr.write({''.join(SAID[3:])!r})\n{end}\n"
    (directory / "tensorflow" / "__init__.py").write_text(text)
    return directory


@pytest.mark.parametrize(
    ("end", "level", "code"),
    [("", None, 0), ("", "0", 0), ("sys.stderr.flush(); os.abort()", None, -6), ("sys.stderr.flush(); raise ImportError('x')", None, 1)],
    ids=["quiet", "asked for", "aborts", "fails"],
)
def test_a_start(end: str, level: str | None, code: int, tmp_path: Path) -> None:
    program = (
        "from disc_tf.quiet import quiet_tensorflow\nimport os\nwith quiet_tensorflow():\n    import tensorflow\n"
        "    assert 'Quiet' not in repr(tensorflow.__spec__.loader)\nos.write(2, b'\\nI0000 00:00:1.1 1 later.cc:1] later\\n')"
    )
    environment = {k: v for k, v in os.environ.items() if k != LEVEL} | ({LEVEL: level} if level else {})
    environment["PYTHONPATH"] = f"{tensorflow(tmp_path, end)}:{ROOT}"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    assert all(line in done.stderr for line in SAID)
    assert any(line in done.stderr for line in NOISE) == (level == "0")
    assert ("later.cc" in done.stderr) == (code == 0)  # only the start is sifted
