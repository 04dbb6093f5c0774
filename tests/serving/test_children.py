"""The processes that work on one version: their limits, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import disc_tf
from disc_tf.serving.children import Children
from disc_tf.serving.prepare import OptimizeFailed
from disc_tf.serving.warmup import WARMUP_FILE

ROOT = Path(disc_tf.__file__).parents[1]


def test_time_is_limited(tmp_path: Path) -> None:
    """Optimising fails; without warm-up records a model is still a model, but not with half a file of them."""
    children = Children([], timeout=0.01)
    with pytest.raises(OptimizeFailed, match="longer than"):
        children.optimize(tmp_path, tmp_path / "out")
    file = tmp_path / WARMUP_FILE
    file.parent.mkdir()
    kill = children._kill

    def half() -> None:
        file.write_bytes(b"half a rec")
        kill()

    children._kill = half
    assert "no warm-up records were written: it took longer" in children.warm_up(tmp_path, tmp_path)
    assert not file.exists()
    file.write_bytes(b"the original's")
    children._kill = kill
    assert "no warm-up records" in children.warm_up(tmp_path, tmp_path)
    assert file.read_bytes() == b"the original's"


SLEEPERS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys
command = [sys.executable, "-m", "disc_tf.with_parent", str(os.getpid()), "sleepers", sys.argv[1]]
subprocess.Popen(command, start_new_session=True).wait()
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_children_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "sleepers.py").write_text(SLEEPERS)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    file = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(file)], env=environment)
    try:
        end = time.monotonic() + 30.0
        while not (file.exists() and file.read_text()):
            assert time.monotonic() < end and parent.poll() is None
            time.sleep(0.05)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    pid, end = int(file.read_text()), time.monotonic() + 10.0
    while not gone(pid):
        assert time.monotonic() < end, "it outlived the process that started it"
        time.sleep(0.05)
