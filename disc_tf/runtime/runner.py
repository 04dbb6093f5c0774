"""`Runner`: a stand-alone model by the names of its inputs and outputs. Needs numpy only.

    model = disc_tf.runtime.load("model.disc")
    model.run({"x": x})["y"]                        # all at once
    job = model.run_async({"x": x, "late": future})  # each input an array or a future of one
    job.outputs["early"].result()                   # a future for each output, done when that output exists
    job.result()                                    # all of them

Inputs of the model that nothing in it reads are not in ``inputs``; values of them are taken, and left alone (``unused``).

A run starts each of the program's segments as soon as its inputs are there. Arrays of a run that is not complete are read-only: what comes
after may still read them.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from disc_tf.runtime.arrays import numpy_dtype
from disc_tf.runtime.artifact import ArgSpec, Artifact, ArtifactError, ResultSpec
from disc_tf.runtime.artifact_file import verify_file
from disc_tf.runtime.executable import Executable, Run, num_threads
from disc_tf.runtime.forks import reset_when_forked


@dataclass(frozen=True)
class Tensor:
    """An input or output: name, dtype name ("f32", "bf16" ...; `numpy_dtype` gives numpy's) and dims, None where any extent goes."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    @property
    def numpy_dtype(self) -> np.dtype:
        return numpy_dtype(self.dtype)

    @staticmethod
    def of(spec: ArgSpec | ResultSpec) -> Tensor:
        return Tensor(spec.name, spec.dtype, tuple(None if d < 0 else d for d in spec.dims))


def load(path: str | Path, *, verify: bool = False) -> Runner:
    """The model of a stand-alone file (``.disc``), its weights mapped. ``verify``: read them all and compare with their digests first.

    Raises DiscError (no code for this machine, a corrupt file, no such file), ArtifactError with ``verify``.
    """
    if verify:
        verify_file(path)
    return Runner(Executable.from_file(path), os.fspath(path))


def segment_names(artifact: Artifact) -> list[tuple[list[str], list[str]]]:
    """(inputs that it waits for, constants apart, and outputs that it makes) of each segment, in order."""
    needs: list[set[int]] = []
    out = []
    for s in artifact.segments:
        own = {i for i in s.inputs if artifact.args[i].kind != "const"}
        needs.append(own.union(*(needs[d] for d in s.dependences)))
        out.append(([artifact.args[i].name for i in sorted(needs[-1])], [artifact.results[i].name for i in s.outputs]))
    return out


class Runner:
    """A loaded model. Thread-safe: any number of runs at a time. ``inputs`` and ``outputs``: `Tensor` by name, in order.

    ``input_names``, ``output_names``: other names than the artefact's, of all arguments and results by position. With the former, constants
    whose values the file lacks are inputs like others; arrays of them must not be changed between runs.
    """

    def __init__(
        self,
        executable: Executable,
        name: str = "",
        *,
        input_names: Mapping[int, str] | None = None,
        output_names: Mapping[int, str] | None = None,
    ) -> None:
        missing = [x.name for i, x in enumerate(executable.args) if x.kind == "const" and i not in executable.bound]
        if missing and input_names is None:
            shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            raise ArtifactError(f"{name or 'the artefact'} is not stand-alone: it lacks the values of {len(missing)} constants ({shown})")
        self.executable = executable
        called = input_names if input_names is not None else {i: x.name for i, x in enumerate(executable.args)}
        results = output_names if output_names is not None else {i: x.name for i, x in enumerate(executable.results)}
        self.inputs = {called[i]: Tensor.of(x) for i, x in enumerate(executable.args) if i not in executable.bound}
        self.outputs = {results[i]: Tensor.of(x) for i, x in enumerate(executable.results)}
        #: inputs of the model that its file does not need
        self.unused = frozenset(executable.artifact.unused) - self.inputs.keys()
        self._index = {called[i]: i for i in range(len(executable.args))}
        self.reset_locks()
        reset_when_forked(self)

    def reset_locks(self) -> None:
        """Also in a forked process, where neither the pool's threads are nor those that held the lock."""
        self._lock = threading.Lock()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    @property
    def segments(self) -> list[tuple[list[str], list[str]]]:
        """(inputs that it waits for, outputs that it makes) of each segment, in order."""
        return segment_names(self.executable.artifact)

    def run(self, inputs: Mapping[str, np.ndarray], *, max_threads: int = 0) -> dict[str, np.ndarray]:
        """All outputs by name. Raises DiscError with TensorFlow's status code and the original node, TypeError for a dtype, ValueError for
        a name that is missing or unknown."""
        self._check_names(inputs)
        values = [inputs[name] for name in self.inputs]
        return dict(zip(self.outputs, self.executable.run(values, max_threads=max_threads), strict=True))

    def run_async(
        self,
        inputs: Mapping[str, np.ndarray | Future[np.ndarray]],
        *,
        max_threads: int = 0,
        on_output: Callable[[str, np.ndarray], None] | None = None,
    ) -> Job:
        """Start a run in the background. Each input is an array or a future of one, which may be done at any time and in any order.

        ``on_output`` is told of each output when it is complete, in the thread that made it; it should be short. Names are checked here;
        all else comes from the job: a failure of the run or of an input is that of every output that is not there yet.
        """
        self._check_names(inputs)
        job = Job(self, max_threads, on_output)
        for name, value in inputs.items():
            if name in self.unused:
                continue
            if isinstance(value, Future):
                value.add_done_callback(lambda f, name=name: job._arrived(name, f))
            else:
                job.feed(name, value)
        job._pump()
        return job

    def start(self, *, max_threads: int = 0, on_output: Callable[[str, np.ndarray], None] | None = None) -> Job:
        """A run whose inputs are given one by one, by `Job.feed`."""
        job = Job(self, max_threads, on_output)
        job._pump()
        return job

    def close(self) -> None:
        """Drop the code; runs under way end well."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)
        self.executable.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_names(self, given: Mapping[str, Any]) -> None:
        if unknown := [n for n in given if n not in self.inputs and n not in self.unused]:
            raise self._unknown(unknown)
        if missing := [n for n in self.inputs if n not in given]:
            raise ValueError(f"no value for input {', '.join(missing)}; the inputs are {', '.join(self.inputs) or 'none'}")

    def _unknown(self, names: Sequence[str]) -> ValueError:
        from disc_tf.spelling import close_to, did_you_mean

        hint = did_you_mean(c for n in names for c in close_to(str(n), [*self.inputs, *self.unused]))
        unused = f" (and, unused, {', '.join(sorted(self.unused))})" if self.unused else ""
        there = f"the inputs are {', '.join(self.inputs) or 'none'}{unused}"
        return ValueError(f"unknown input {', '.join(map(str, names))}; {there}{hint}")

    def _submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(max(2, num_threads()), "disc_tf_run")
            self._pool.submit(work)


class Job:
    """A run under way. ``outputs``: a future of each output. Use `feed` for what `Runner.run_async` was not given.

    Thread-safe. A driver is a thread that may call the run; `_driving` is set from before it is asked for until it has let go. Who finds
    the job over and not driven takes the run out of it, and ends it; all that is decided under the lock.
    """

    def __init__(self, runner: Runner, max_threads: int, on_output: Callable[[str, np.ndarray], None] | None) -> None:
        self._runner = runner
        self._names = list(runner.outputs)
        self.outputs: dict[str, Future[np.ndarray]] = {name: Future() for name in self._names}
        self._all: Future[dict[str, np.ndarray]] = Future()
        self._tell = on_output
        self._lock = threading.Lock()  # of the queue, the flags and who has the run; nothing is called under it
        self._queue: deque[tuple[str, np.ndarray]] = deque()
        self._given: set[str] = set()
        self._driving = self._over = False
        self._run: Run | None = None
        me = weakref.ref(self)  # a job that nobody can feed or ask any more is abandoned

        def came(index: int, array: np.ndarray) -> None:
            job = me()
            if job is not None:
                job._came(index, array)

        self._run = runner.executable.start(max_threads=max_threads, on_output=came)

    def feed(self, name: str, value: np.ndarray) -> None:
        """Give an input; never waits. ValueError for an unknown name or one that was given before. What is wrong with its dtype or shape is
        the failure of the run."""
        if name in self._runner.unused:
            return
        if name not in self._runner.inputs:
            raise self._runner._unknown([name])
        value = np.asarray(value)
        with self._lock:
            if name in self._given:
                raise ValueError(f"input {name} was given twice")
            self._given.add(name)
            if not self._over:
                self._queue.append((name, value))
        self._pump()

    def result(self, timeout: float | None = None) -> dict[str, np.ndarray]:
        """All outputs, once they are there. Raises what the run raised, CancelledError after `cancel`, TimeoutError."""
        return self._all.result(timeout)

    def done(self) -> bool:
        """Whether the run has ended, well or not."""
        return self._all.done()

    def on_failure(self, action: Callable[[BaseException], object]) -> None:
        """Call ``action`` with what the run raises, once it has (at once if that has been); CancelledError after `cancel`."""

        def ended(run: Future[dict[str, np.ndarray]]) -> None:
            error = concurrent.futures.CancelledError() if run.cancelled() else run.exception()
            if error is not None:
                action(error)

        self._all.add_done_callback(ended)

    def cancel(self) -> None:
        """Abandon the run; outputs that are not there are cancelled. What runs now goes on until its next output is complete, at most to
        the end of its segment."""
        self._end(concurrent.futures.CancelledError())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_run") and not sys.is_finalizing():
            self.cancel()

    # -- the driver

    def _arrived(self, name: str, value: Future[np.ndarray]) -> None:
        if value.cancelled():
            self._end(concurrent.futures.CancelledError(f"input {name} was cancelled"))
        elif (error := value.exception()) is not None:
            self._end(error)
        else:
            try:
                self.feed(name, value.result())
            except Exception as error:
                self._end(error)

    def _pump(self) -> None:
        """See to it that what is in the queue gets to the run."""
        with self._lock:
            if self._driving or self._over:
                return
            self._driving = True
        try:
            self._runner._submit(self._drive)
        except RuntimeError as error:  # no thread to be had
            self._end(error)  # if `_drive` is called all the same it finds the job over; else the run goes with the job

    def _drive(self) -> None:
        run = self._run
        assert run is not None, "nobody takes the run of a driver"
        try:
            while True:
                with self._lock:
                    fresh, self._queue = self._queue, deque()
                    if self._over or (not fresh and run.remaining >= 0):
                        mine = self._let_go()
                        break
                for name, value in fresh:
                    run.set_input(self._runner._index[name], value)
                run.advance()
                if run.remaining == 0:
                    self._finish(run.finish())
        except BaseException as error:
            self._end(error)
            with self._lock:
                mine = self._let_go()
        if mine is not None:
            mine.abandon()

    def _let_go(self) -> Run | None:
        """The driver stops; the run if that is its to end. The lock is held."""
        self._driving = False
        return self._taken()

    def _taken(self) -> Run | None:
        """The run, for the caller to end: nobody else gets it. None if it is gone, needed or driven. The lock is held."""
        if self._driving or not self._over:
            return None
        run, self._run = self._run, None
        return run

    def _came(self, index: int, array: np.ndarray) -> None:
        """An output is complete: called by the runtime in the driving thread."""
        if self._over:
            raise concurrent.futures.CancelledError("nobody waits for the rest")  # the program stops here
        view = array.view()
        view.flags.writeable = False
        name = self._names[index]
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # cancelled just now
            self.outputs[name].set_result(view)
        if self._tell is not None:
            self._tell(name, view)

    def _finish(self, results: Sequence[np.ndarray]) -> None:
        with self._lock:
            self._over = True
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self._all.set_result(dict(zip(self._names, results, strict=True)))

    def _end(self, error: BaseException) -> None:
        """The run fails, or is given up."""
        with self._lock:
            if self._over:
                return
            self._over = True
            self._queue.clear()
            mine = self._taken()
        if mine is not None:
            mine.abandon()
        for future in (*self.outputs.values(), self._all):
            if not isinstance(error, concurrent.futures.CancelledError):
                with contextlib.suppress(concurrent.futures.InvalidStateError):  # there already
                    future.set_exception(error)
            elif future.cancel():
                future.set_running_or_notify_cancel()  # `concurrent.futures.wait` wakes up


__all__ = ["Job", "Runner", "Tensor", "load", "segment_names"]
