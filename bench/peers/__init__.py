"""Engines that the benchmark runs a model in, each in a process and, where it needs to, an interpreter of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

WORKER = Path(__file__).with_name("worker.py")


class PeerFailed(RuntimeError):
    """The engine does not take the model, or not this shape; its words are the message."""


class Peer:
    """An engine with a model loaded. ``python`` is the interpreter that has the engine. `PeerFailed` if it does not load."""

    def __init__(self, engine: str, model: Path, description: Path, threads: int, python: str) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        root = str(Path(__file__).parents[2])
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "DISC_TF_NUM_THREADS": str(threads)}
        env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        env["OMP_NUM_THREADS"] = str(threads)
        self._child = subprocess.Popen(
            [python, "-P", str(WORKER), engine, str(model), str(description), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            text=True,
        )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise PeerFailed(f"the process ended with status {self._child.wait()}")
        reply = json.loads(line)
        if "error" in reply:
            raise PeerFailed(reply["error"])
        return reply

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(command) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed(f"the process ended with status {self._child.wait()}") from None
        return self._answer()

    def first(self, feeds: Mapping[str, np.ndarray]) -> tuple[float, list[np.ndarray]]:
        """Seconds of the first call with ``feeds``, and its outputs. What follows runs with the same feeds."""
        path = Path(self._scratch.name) / "feeds.npz"
        np.savez(path, allow_pickle=False, **{f"x{i}": v for i, v in enumerate(feeds.values())})
        reply = self._ask({"feeds": str(path), "names": list(feeds)})
        with np.load(reply["outputs"]) as found:
            return reply["seconds"], [found[f"x{i}"] for i in range(len(found.files))]

    def runs(self, count: int) -> list[float]:
        """Seconds of each of ``count`` calls."""
        return self._ask({"runs": count})["seconds"]

    def peak(self) -> int:
        """Peak bytes above what the process had when the engine's code was loaded."""
        return self._ask({"memory": True})["peak"]

    def close(self) -> None:
        if self._child.stdin is not None:
            self._child.stdin.close()
        try:
            self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
