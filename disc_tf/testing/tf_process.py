"""Run a GraphDef file in TensorFlow in a process of its own: the reference, or TensorFlow as users run it."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from disc_tf.testing.tf_worker import read_message, write_message


class TfError(RuntimeError):
    """TensorFlow answered with a status. ``code`` is TensorFlow's number."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class ProcessFailed(RuntimeError):
    """The child did not answer with a result or a status: it ended, or what it was given cannot be run. The message has its last words."""


class TfProcess:
    """A child process with one graph loaded.

    reference=True: grappler's meta optimizer and oneDNN off (what results are compared with); False: as users run it.
    ops=True loads our op library first. threads: intra-op, inter-op and our own pool. python: another interpreter (compatibility tests).
    """

    def __init__(
        self,
        path: str | Path,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        reference: bool = False,
        ops: bool = False,
        threads: int = 0,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
        timeout: float = 900.0,
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
            [python, "-m", "disc_tf.testing.tf_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
        )
        config = {
            "path": str(path),
            "inputs": list(inputs),
            "outputs": list(outputs),
            "reference": reference,
            "ops": ops,
            "threads": threads,
        }
        try:
            self.info: dict[str, int] = self._ask("load", config)
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

    def run(self, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Outputs for the feeds (in the order of ``inputs``). Raises `TfError` with TensorFlow's code."""
        return self._ask("run", list(feeds))

    def time(self, feeds: Sequence[np.ndarray], repeats: int = 5, warmup: int = 1) -> list[float]:
        """Seconds of ``repeats`` runs after ``warmup`` ones. Raises `TfError` with TensorFlow's code."""
        return self._ask("time", (list(feeds), repeats, warmup))

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

    def __enter__(self) -> TfProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
