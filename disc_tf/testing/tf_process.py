"""Run a GraphDef file or a SavedModel in TensorFlow in a process of its own: the reference, or TensorFlow as users run it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

import numpy as np

from disc_tf.testing.tf_worker import read_message, write_message

ChildType = TypeVar("ChildType", bound="Child")


class TfError(RuntimeError):
    """TensorFlow answered with a status. ``code`` is TensorFlow's number."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class ProcessFailed(RuntimeError):
    """The child did not answer with a result or a status: it ended, or what it was given cannot be run. The message has its last words."""


def start_all(jobs: Sequence[tuple[Callable[[], ChildType], contextlib.ExitStack]]) -> list[ChildType | ProcessFailed | TfError]:
    """Start processes side by side, each closed with its stack: the processes, or what they ended with."""

    def start(job: tuple[Callable[[], ChildType], contextlib.ExitStack]) -> ChildType | ProcessFailed | TfError:
        make, stack = job
        try:
            return stack.enter_context(make())
        except (ProcessFailed, TfError) as e:
            return e

    with concurrent.futures.ThreadPoolExecutor(max(len(jobs), 1)) as pool:
        return list(pool.map(start, jobs))


class Settings(TypedDict, total=False):
    """How a child runs TensorFlow.

    reference=True: grappler's meta optimizer and oneDNN off (what results are compared with); False: as users run it.
    ops=True loads our op library first. threads: intra-op, inter-op and our own pool. python: another interpreter (compatibility tests).
    """

    reference: bool
    ops: bool
    threads: int
    python: str
    env: Mapping[str, str] | None
    timeout: float


class Child:
    """A child process that answers over a pipe; ``config`` is what it loads first, ``module`` whose `main` it runs. The others are
    `Settings`."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        reference: bool = False,
        ops: bool = False,
        threads: int = 0,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        timeout: float = 900.0,
        module: str = "disc_tf.testing.tf_worker",
    ) -> None:
        self._timeout = timeout
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", **(env or {})}
        if reference:
            environment["TF_ENABLE_ONEDNN_OPTS"] = "0"
        if threads:
            environment["DISC_TF_NUM_THREADS"] = str(threads)
        root = str(Path(__file__).parents[2])
        environment["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        # A file, not a pipe: nobody reads what the child writes while it works, and a full pipe would stop it.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._child = subprocess.Popen(
            # -P: what lies in the working directory is not a module
            [python, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
        )
        try:
            self.info: dict[str, int] = self._ask("load", {**config, "reference": reference, "ops": ops, "threads": threads})
        except BaseException:
            self.close()
            raise

    def _ask(self, command: str, argument: Any = None) -> Any:
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            write_message(self._child.stdin, (command, argument))
            ready, _, _ = select.select([self._child.stdout], [], [], self._timeout)
            if not ready:
                self._child.kill()
                raise ProcessFailed(f"the TensorFlow process did not answer {command!r} within {self._timeout:.0f} s")
            reply = read_message(self._child.stdout)
        except BrokenPipeError:
            reply = None
        if reply is None:
            code = self._child.wait()
            self._stderr.seek(0)
            tail = self._stderr.read().decode(errors="replace")[-2000:]
            raise ProcessFailed(f"the TensorFlow process ended with status {code} during {command!r}\n{tail}")
        status, value = reply
        if status == "error":
            raise TfError(*value)
        if status == "exception":
            raise ProcessFailed(value)
        return value

    def memory(self) -> dict[str, int]:
        """Resident and peak bytes of the child."""
        return self._ask("memory")

    def close(self) -> None:
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        try:
            self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class TfProcess(Child):
    """A child process with one graph loaded."""

    def __init__(self, path: str | Path, inputs: Sequence[str], outputs: Sequence[str], **settings: Unpack[Settings]) -> None:
        config = {"path": str(path), "inputs": list(inputs), "outputs": list(outputs)}
        super().__init__(config, **settings)

    def run(self, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Outputs for the feeds (in the order of ``inputs``). Raises `TfError` with TensorFlow's code."""
        return self._ask("run", list(feeds))

    def time(self, feeds: Sequence[np.ndarray], repeats: int = 5, warmup: int = 1) -> list[float]:
        """Seconds of ``repeats`` runs after ``warmup`` ones. Raises `TfError` with TensorFlow's code."""
        return self._ask("time", (list(feeds), repeats, warmup))


class SavedModelProcess(Child):
    """A child process with a SavedModel loaded.

    loader: ``tf2`` (`tf.saved_model.load`, signatures are functions) or ``session`` (TensorFlow 1's loader, as TensorFlow Serving does).
    tags: of the graph to load; None for the only one.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        tags: Sequence[str] | None = None,
        loader: str = "tf2",
        **settings: Unpack[Settings],
    ) -> None:
        config = {"saved_model": str(directory), "tags": None if tags is None else list(tags), "loader": loader}
        super().__init__(config, **settings)

    def run(self, signature: str, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name. Raises `TfError` with TensorFlow's code."""
        return self._ask("run", (signature, dict(feeds)))

    def time(self, signature: str, feeds: Mapping[str, np.ndarray], repeats: int = 5, warmup: int = 1) -> list[float]:
        """Seconds of ``repeats`` runs after ``warmup`` ones. Raises `TfError` with TensorFlow's code."""
        return self._ask("time", ((signature, dict(feeds)), repeats, warmup))


class SignatureSide:
    """One signature of a process, with feeds and results in the order of ``inputs`` and ``outputs``."""

    def __init__(self, process: SavedModelProcess, signature: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self.process, self.signature, self.inputs, self.outputs = process, signature, list(inputs), list(outputs)
        self.info = process.info

    def run(self, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Raises `TfError` with TensorFlow's code; `ProcessFailed` where an output is missing."""
        found = self.process.run(self.signature, self._named(feeds))
        if missing := [name for name in self.outputs if name not in found]:
            raise ProcessFailed(f"signature {self.signature} gives no output {', '.join(missing)}")
        return [found[name] for name in self.outputs]

    def time(self, feeds: Sequence[np.ndarray], repeats: int = 5, warmup: int = 1) -> list[float]:
        """Seconds of each run. Raises `TfError` with TensorFlow's code."""
        return self.process.time(self.signature, self._named(feeds), repeats, warmup)

    def memory(self) -> dict[str, int]:
        """Of the whole process."""
        return self.process.memory()

    def _named(self, feeds: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(self.inputs, feeds, strict=True))
