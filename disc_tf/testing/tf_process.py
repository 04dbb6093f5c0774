"""Run a GraphDef file or a SavedModel in TensorFlow in a process of its own: the reference, or TensorFlow as users run it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

import numpy as np

from disc_tf.quiet import without_noise
from disc_tf.testing.fork_server import ForkedChild, Server, ServerFailed
from disc_tf.testing.tf_worker import read_message, write_message

ChildType = TypeVar("ChildType", bound="Child")
#: the module that a child runs
WORKER = "disc_tf.testing.tf_worker"


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
    hosts: who forks the child; without any it is a new process that imports TensorFlow itself.
    """

    reference: bool
    ops: bool
    threads: int
    python: str
    env: Mapping[str, str] | None
    timeout: float
    hosts: Hosts | None


#: read by TensorFlow while it is imported
ONEDNN = "TF_ENABLEONEDNN_OPTS"


class Hosts:
    """Processes that have imported TensorFlow, from which children are forked: one without oneDNN, where results are compared, and one
    as users have it, where they are timed. Each is started when it is first needed, or earlier by `start`."""

    def __init__(self) -> None:
        self._servers: dict[bool, Server] = {}
        self._lock = threading.Lock()

    def start(self, *, timing: bool) -> None:
        """Begin to import TensorFlow; returns at once."""
        self.server(True)
        if timing:
            self.server(False)

    def server(self, quiet: bool) -> Server:
        """The server without oneDNN (``quiet``), or as users have it."""
        with self._lock:
            if quiet not in self._servers:
                self._servers[quiet] = Server({**_environment(), **({ONEDNN: "0"} if quiet else {})})
            return self._servers[quiet]

    def close(self) -> None:
        with self._lock:
            for server in self._servers.values():
                server.close()
            self._servers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _environment() -> dict[str, str]:
    """That of all children."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": path}


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
        module: str = WORKER,
        hosts: Hosts | None = None,
    ) -> None:
        self._timeout = timeout
        #: whether it ended, or was ended, while it was asked something
        self.dead = False
        own = {**({"DISC_TF_NUM_THREADS": str(threads)} if threads else {}), **(env or {}), **({ONEDNN: "0"} if reference else {})}
        # A file, not a pipe: nobody reads what the child writes while it works, and a full pipe would stop it.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._child: subprocess.Popen[bytes] | ForkedChild
        if hosts is not None and python == sys.executable and module == WORKER:
            try:
                self._child = hosts.server(own.get(ONEDNN) == "0").start(own, self._stderr.fileno())
            except ServerFailed as e:
                self._stderr.close()
                raise ProcessFailed(str(e)) from e
        else:
            self._child = subprocess.Popen(
                # -P: what lies in the working directory is not a module
                [python, "-P", "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env={**_environment(), **own},
            )
        self._settings = {"reference": reference, "ops": ops, "threads": threads}
        try:
            self.info: dict[str, Any] = {}
            self.load(config)
        except BaseException:
            self.close()
            raise

    def load(self, config: Mapping[str, Any]) -> None:
        """Load in place of what is loaded. `ProcessFailed` or `TfError` with the reason."""
        self.info = self._ask("load", {**config, **self._settings})

    def _ask(self, command: str, argument: Any = None) -> Any:
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            write_message(self._child.stdin, (command, argument))
            ready, _, _ = select.select([self._child.stdout], [], [], self._timeout)
            if not ready:
                self.dead = True
                self._child.kill()
                raise ProcessFailed(f"the TensorFlow process did not answer {command!r} within {self._timeout:.0f} s")
            reply = read_message(self._child.stdout)
        except BrokenPipeError:
            reply = None
        if reply is None:
            self.dead = True
            code = self._child.wait()
            self._stderr.seek(0)
            tail = without_noise(self._stderr.read().decode(errors="replace"))[-2000:]
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

    loader: ``tf2`` (`tf.saved_model.load`, signatures are functions), ``session`` (TensorFlow 1's loader, as TensorFlow Serving does) or
    ``serve`` (as `disc-tf serve` does). tags: of the graph to load; None for the only one.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        tags: Sequence[str] | None = None,
        loader: str = "tf2",
        **settings: Unpack[Settings],
    ) -> None:
        self._model = {"saved_model": str(directory), "tags": None if tags is None else list(tags)}
        super().__init__({**self._model, "loader": loader}, **settings)

    def load_by(self, loader: str) -> None:
        """Load the model anew, in the same process. `ProcessFailed` or `TfError` with the reason."""
        self.load({**self._model, "loader": loader})

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
