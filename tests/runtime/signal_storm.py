"""Runs under a timer whose handler raises: `test_signals.py` starts it as a process of its own, which must live and give right answers.

    python -m tests.runtime.signal_storm SECONDS
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

from disc_tf.runtime import Executable, counters
from tests.runtime import toy

RNG = np.random.default_rng(11)
X = RNG.standard_normal((64, 33)).astype(np.float32)
W = RNG.standard_normal(33).astype(np.float32)
N = np.array(7, np.int64)


class Interrupt(Exception):
    """What the handler raises."""


def right(found: list[np.ndarray], w: np.ndarray) -> None:
    for a, b in zip(found, toy.expected(w, X, 7), strict=True):
        if not np.allclose(a, b, rtol=1e-6):
            raise SystemExit("a wrong answer")


def plain(exe: Executable) -> None:
    right(exe.run([W, X, N]), W)


def new_weights(exe: Executable) -> None:
    """Each run packs other weights, which the runtime keeps."""
    w = RNG.standard_normal(33).astype(np.float32)
    right(exe.run([w, X, N]), w)


def given_outputs(exe: Executable) -> None:
    outputs = [np.empty_like(X), np.empty(X.size, np.float32), None]
    found = exe.run([W, X, N], outputs)
    if found[0] is not outputs[0]:
        raise SystemExit("another array")
    right(found, W)


def refused(exe: Executable) -> None:
    """A check fails, with its status."""
    try:
        exe.run([W[:3], X, N])
    except Interrupt:
        raise
    except RuntimeError as error:
        if "w and x do not fit" not in str(error):
            raise SystemExit(f"another error: {error}") from error
    else:
        raise SystemExit("no error")


def staged(exe: Executable) -> None:
    told: list[int] = []
    with exe.start(on_output=lambda i, _array: told.append(i)) as run:
        run.set_input(0, W)
        run.set_input(1, X)
        run.advance()
        run.set_input(2, N)
        run.advance()
        right(run.finish(), W)
    if told != [0, 1, 2]:
        raise SystemExit(f"told of {told}")


KINDS: list[tuple[Callable[[Executable], None], bool]] = [
    (plain, True), (plain, False), (new_weights, False), (given_outputs, True), (refused, True), (staged, True), (staged, False),
]  # fmt: skip


def storm(call: Callable[[Executable], None], digest: bool, seconds: float) -> tuple[int, int]:
    """(runs that ended well, interrupts) of one kind; other threads run meanwhile."""
    exe = Executable.from_artifact(toy.artifact(W if digest else None))
    done = interrupts = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            armed[0] = True
            while time.monotonic() < end:
                call(exe)
                done += 1
            armed[0] = False
        except Interrupt:
            interrupts += 1
    call(exe)  # it is as usable as before
    return done, interrupts


#: whether the handler raises; it does so once
armed = [False]


def raise_interrupt(*_: object) -> None:
    if armed[0]:
        armed[0] = False
        raise Interrupt


def main() -> int:
    seconds = float(sys.argv[1]) / len(KINDS)
    signal.signal(signal.SIGALRM, raise_interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
    stop = threading.Event()
    other = Executable.from_artifact(toy.artifact(W))

    def beside() -> None:
        while not stop.is_set():
            plain(other)

    thread = threading.Thread(target=beside)
    thread.start()
    found = {}
    try:
        for i, (call, digest) in enumerate(KINDS):
            found[f"{i} {call.__name__}"] = storm(call, digest, seconds)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        stop.set()
        thread.join()
    other.close()
    gc.collect()  # frames and what was raised in them refer to each other
    if counters()["images_live"] or counters()["prepared_live_bytes"]:
        raise SystemExit("a run was never ended, or an input never released")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
