"""A signal whose handler raises, at any moment of a run: the process lives, answers are right, the exception arrives after the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from disc_tf.runtime import Executable
from tests.runtime import toy

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_a_storm_of_signals(seconds):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.runtime.signal_storm", str(seconds)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
    found = json.loads(done.stdout)
    assert all(interrupts > 10 for _, interrupts in found.values()), found
    assert sum(runs for runs, _ in found.values()) > 100, found  # on a busy machine few of one kind end between two signals
    assert not done.stderr


class Interrupt(Exception):
    pass


def test_what_a_handler_raises_arrives_when_the_run_has_ended():
    """Also where Python is told of results during the run."""
    w, x = np.ones(4, np.float32), np.ones((3, 4), np.float32)
    exe = Executable.from_artifact(toy.artifact(w))
    told = []

    def on_output(index: int, _array: np.ndarray) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.05)
        told.append(index)

    def handler(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with exe.start(on_output=on_output) as run:
            run.set_input(0, w)
            run.set_input(1, x)
            with pytest.raises(Interrupt):
                run.advance()
            assert told == [0, 1]
            run.set_input(2, np.array(2, np.int64))
            with pytest.raises(Interrupt):
                run.advance()
            np.testing.assert_array_equal(run.finish()[0], toy.expected(w, x, 2)[0])
    finally:
        signal.signal(signal.SIGUSR1, before)
