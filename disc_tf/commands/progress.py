"""Progress on standard error: a bar that stays on its line on a terminal, plain lines anywhere else."""

from __future__ import annotations

import re
import shutil
import sys
import time
from typing import TextIO

#: how a step among many is said: "(3 of 12)"
_STEP = re.compile(r"\((\d+) of (\d+)\)")
_BAR = 24


class Say:
    """``say(text)`` prints a line with the seconds since the start. On a terminal a text with "(3 of 12)" in it is a bar, which the next
    text replaces. ``quiet``: nothing is printed."""

    def __init__(self, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._start = time.perf_counter()
        self._drawn = False

    def __call__(self, text: str) -> None:
        if self._quiet:
            return
        line = f"[{time.perf_counter() - self._start:6.1f} s] {text}"
        self.clear()
        step = _STEP.search(text) if self._terminal else None
        if step is None:
            print(line, file=self._stream, flush=True)
            return
        done, total = int(step[1]), max(int(step[2]), 1)
        full = min(_BAR * done // total, _BAR)
        width = shutil.get_terminal_size().columns
        print(f"[{'#' * full}{'.' * (_BAR - full)}] {line}"[: max(width - 1, 1)], end="", file=self._stream, flush=True)
        self._drawn = True

    def clear(self) -> None:
        """Take the bar away, before something else is printed."""
        if self._drawn:
            print("\r\x1b[K", end="", file=self._stream, flush=True)
            self._drawn = False
