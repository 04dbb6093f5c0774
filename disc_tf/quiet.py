"""TensorFlow's start-up lines (oneDNN, CUDA, absl) kept off standard error; what it says of a failure stays.

`TF_CPP_MIN_LOG_LEVEL` does not reach what absl logs while the libraries are loaded, so the lines are filtered, by a process of its own:
what TensorFlow says before it aborts (instructions that the CPU lacks, for instance) must still arrive. Imports the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

#: how much TensorFlow logs: 0 is everything
LEVEL = "TF_CPP_MIN_LOG_LEVEL"
#: lines below an error, and errors of CUDA libraries that are registered twice (TensorFlow 2.16-2.19, on every machine)
_NOISE = (
    r"WARNING: All log messages before absl::InitializeLog"
    r"|[IW]\d{4} \d\d:\d\d:\d\d[.]\d+ +\d+ \S+:\d+\]|[IW]0000 00:00:\d+[.]\d+ +\d+ \S+:\d+\]"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.]\d+: [IW] \S+:\d+\]"
    r"|(E0000|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.]\d+: E) .*Unable to register cu\w+ factory"
    r"|To enable the following instructions: .* rebuild TensorFlow"
)
_FILTER = "import os, re, sys\n"
_FILTER += "n = re.compile(sys.argv[1].encode())\nfor line in sys.stdin.buffer:\n    n.match(line) or os.write(2, line)\n"


def without_noise(text: str) -> str:
    """``text``, a child's standard error, without TensorFlow's start-up lines."""
    return "".join(line for line in text.splitlines(keepends=True) if not re.match(_NOISE, line))


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Drop start-up lines that anything in this process writes to standard error meanwhile."""
    try:
        kept = os.dup(2)
    except OSError:  # there is no standard error
        yield
        return
    try:
        sifting = subprocess.Popen([sys.executable, "-I", "-S", "-c", _FILTER, _NOISE], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    except OSError:  # a line more is better than no run
        os.close(kept)
        yield
        return
    assert sifting.stdin is not None
    if sys.stderr is not None:
        sys.stderr.flush()
    os.dup2(sifting.stdin.fileno(), 2)
    sifting.stdin.close()
    try:
        yield
    finally:
        if sys.stderr is not None:
            sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that was started meanwhile may hold the pipe
            sifting.wait(timeout=2)


class _Finder(MetaPathFinder):
    """Finds what the others find, and has it loaded in `quiet_start`."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        if fullname != "tensorflow":
            return None
        finders = [f for f in sys.meta_path if f is not self]
        spec = next(filter(None, (f.find_spec(fullname, path, target) for f in finders)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Quiet(spec.loader)
        return spec


class _Quiet(Loader):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def create_module(self, spec: Any) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        with quiet_start():
            self._inner.exec_module(module)


@contextlib.contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """TensorFlow, if it is imported in here, starts without its lines; not if the user asked for them (`LEVEL` below 3)."""
    os.environ.setdefault(LEVEL, "3")
    if os.environ[LEVEL] != "3" or "tensorflow" in sys.modules:
        yield
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


__all__ = ["LEVEL", "quiet_start", "quiet_tensorflow", "without_noise"]
