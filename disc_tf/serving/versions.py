"""Version directories below a base path, and when one of them is complete.

A version is a directory named by a number. It may be copied in file by file, so it counts only once its `saved_model.pb` is there and
nothing in it has changed for a while.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Hashable
from pathlib import Path

from disc_tf.frontend.saved_model import is_saved_model, version_number
from disc_tf.publish import SAVED_MODEL_FILES

#: files whose last change lies this many seconds back are taken to be complete at once
_OLD = 10.0


def version_directories(base: str | Path) -> dict[int, Path]:
    """Version -> directory, complete or not; empty if ``base`` cannot be listed. Of two spellings (`1`, `001`) the first by name counts."""
    found: dict[int, Path] = {}
    try:
        entries = sorted(os.scandir(base), key=lambda e: e.name)
    except OSError:
        return found
    for entry in entries:
        number = version_number(entry.name)
        try:
            if number is not None and entry.is_dir():
                found.setdefault(number, Path(entry.path))
        except OSError:
            continue
    return found


def not_a_base(base: str | Path) -> str:
    """Why a directory is no base path: it is a model itself. The way out comes with it; nothing for what is one, or may become one."""
    here = Path(base)
    if not is_saved_model(here) or version_directories(base):
        return ""
    inside = "is a SavedModel itself, and a base path holds numbered directories of them"
    absolute = Path(os.path.abspath(base))
    if version_number(absolute.name) is None:
        return f"{inside}: move it to {here / '1'}"
    return f"{inside}: give the parent, {here.parent if len(here.parts) > 1 else absolute.parent}"


def fingerprint(directory: Path) -> tuple[tuple[str, int, int], ...] | None:
    """(path, size, change time in ns) of the directory (`.`) and all below; None while it cannot be read or has no SavedModel in it."""
    out = []
    try:
        # copied files may keep their old times: the directory's own tells that they have just come
        out.append((".", 0, os.stat(directory).st_mtime_ns))
        for root, directories, files in os.walk(directory, onerror=_raise):
            for name in (*directories, *files):
                path = os.path.join(root, name)
                status = os.stat(path)
                size = 0 if name in directories else status.st_size
                out.append((os.path.relpath(path, directory), size, status.st_mtime_ns))
    except OSError:
        return None
    names = {path for path, _, _ in out}
    return tuple(sorted(out)) if any(f in names for f in SAVED_MODEL_FILES) else None


def _raise(error: OSError) -> None:
    raise error


class Settled:
    """Knows which directories have stopped changing. ``quiet``: for how many seconds nothing may change."""

    def __init__(self, quiet: float, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._quiet, self._clock, self._now = quiet, clock, now
        self._seen: dict[Hashable, tuple[object, float]] = {}

    def observe(self, key: Hashable, found: object, changed: float | None = None) -> bool:
        """Whether ``key`` is complete, as far as can be seen from outside.

        ``found`` is what is seen of it now (None: incomplete), ``changed`` when it last changed, if that is known.
        """
        if found is None:
            self._seen.pop(key, None)
            return False
        if self._quiet <= 0 or (changed is not None and self._now() - changed > max(_OLD, self._quiet)):
            return True
        before = self._seen.get(key)
        if before is None or before[0] != found:
            self._seen[key] = (found, self._clock())
            return False
        return self._clock() - before[1] >= self._quiet

    def forget(self, keep: Collection[Hashable]) -> None:
        """Drop what is remembered of all others."""
        self._seen = {d: s for d, s in self._seen.items() if d in keep}
