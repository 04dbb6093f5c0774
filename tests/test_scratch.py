"""Temporary directories: gone at the end, and gone after a kill."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from disc_tf.scratch import claim, scratch


def test_gone_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(KeyError), scratch("a.", tmp_path) as directory:
        assert directory.parent == tmp_path and directory.name.startswith("a.")
        (directory / "deep").mkdir(mode=0o500)
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_goes(tmp_path: Path) -> None:
    script = f"from disc_tf.scratch import claim; print(claim(root={str(tmp_path)!r})[0], flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    assert child.stdout is not None
    left = Path(child.stdout.readline().decode().strip())
    (tmp_path / f"{left.name}.other").touch()  # no directory
    (tmp_path / "disc_tf_scratch.link").symlink_to(tmp_path)
    try:
        with scratch(root=tmp_path):
            assert left.is_dir()  # its process lives
    finally:
        child.kill()
        child.communicate()
    with scratch("other.", tmp_path):
        assert left.is_dir()  # of another prefix
    with scratch(root=tmp_path) as directory:
        assert not left.exists()
        own, lock = claim(root=tmp_path)
        assert directory.is_dir() and own.is_dir()
        own.rmdir()
        os.close(lock)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f"{left.name}.other", "disc_tf_scratch.link"])
