"""The queue of compilations of this process: one at a time, on a thread that ends when there is nothing to do.

The compiler runs in a process of its own (`child`): in a thread of this one it would hold the interpreter lock most of the time and slow
down the program that it works for (docs/jit.md has the measurement). Where no process can be started it runs here.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable

from disc_tf.just_in_time.child import Child, CompilerGone
from disc_tf.just_in_time.work import Request, Result, compile_request

#: seconds without work after which the thread and the process end
IDLE = 20.0
#: seconds that the end of the program waits for the thread
AT_EXIT = 5.0

#: a compiler: request in, result out
Compile = Callable[[Request], Result]
#: a piece of work: is given the compiler to use
Job = Callable[[Compile], None]


class Stopped(RuntimeError):
    """The program ends."""


class Background:
    """See the module's docstring. ``submit`` never blocks; a job must not raise."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[Job, str]] = queue.SimpleQueue()
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._child: Child | None = None
        self._stopping = False

    def submit(self, job: Job, worker: str) -> None:
        """``worker``: "process" or "thread"."""
        with self._lock:
            if self._stopping:
                return
            self._waiting += 1
            self._jobs.put((job, worker))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="disc_tf.jit", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                job, worker = self._jobs.get(timeout=IDLE)
            except queue.Empty:
                with self._lock:
                    if self._waiting:
                        continue
                    self._thread = None
                    child, self._child = self._child, None
                if child is not None:
                    child.close()
                return
            try:
                if not self._stopping:
                    job(self._in_process if worker == "process" else self._here)
            finally:
                with self._lock:
                    self._waiting -= 1

    def _here(self, request: Request) -> Result:
        def progress(_text: str) -> None:
            if self._stopping:
                raise Stopped("the program ends")

        return compile_request(request, progress)

    def _in_process(self, request: Request) -> Result:
        try:
            with self._lock:
                if self._stopping:
                    raise Stopped("the program ends")
                if self._child is None:
                    self._child = Child()
                child = self._child
        except CompilerGone:
            return self._here(request)
        try:
            return child.compile(request)
        except CompilerGone:
            with self._lock:
                self._child = None
            child.kill()
            if self._stopping:
                raise Stopped("the program ends") from None
            raise

    def shutdown(self) -> None:
        """Stop what runs, forget what waits; returns within `AT_EXIT` seconds."""
        with self._lock:
            self._stopping = True
            thread, child = self._thread, self._child
        if child is not None:
            child.kill()
        if thread is not None and thread is not threading.current_thread():
            deadline = time.monotonic() + AT_EXIT
            while thread.is_alive() and self._waiting and time.monotonic() < deadline:
                thread.join(0.02)

    def after_fork(self) -> None:
        """In a forked child: the thread is not here, the compiler process is the parent's."""
        child = self._child
        self._reset()
        if child is not None:
            with contextlib.suppress(Exception):
                child.disown()


_background = Background()


def background() -> Background:
    """The process's queue."""
    return _background


atexit.register(_background.shutdown)
os.register_at_fork(after_in_child=_background.after_fork)
