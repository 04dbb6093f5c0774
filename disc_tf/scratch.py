"""Temporary directories that the next process removes where their own was killed.

    with scratch() as directory: ...                     # below the system's directory for temporary files
    with scratch(".model.", target.parent) as directory: ...

A directory is locked as long as its process lives; what is not locked is left over.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from disc_tf.publish import is_at, remove_left, remove_tree, try_lock

_MARK = "disc_tf_scratch."


@contextlib.contextmanager
def scratch(prefix: str = "", root: str | Path | None = None) -> Iterator[Path]:
    """An empty directory in ``root``, its name starting with ``prefix``; removed at the end. OSError if it cannot be made."""
    directory, lock = claim(prefix, root)
    try:
        yield directory
    finally:
        remove_tree(directory)
        os.close(lock)


def claim(prefix: str = "", root: str | Path | None = None) -> tuple[Path, int]:
    """The same for as long as the caller likes: a directory and a descriptor, whose lock ends with the process. OSError."""
    parent = Path(root if root is not None else tempfile.gettempdir())
    _sweep(parent, prefix)
    while True:
        directory = Path(tempfile.mkdtemp(prefix=prefix + _MARK, dir=parent))
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if try_lock(lock) is not False and is_at(directory, lock):
                return directory, lock
            os.close(lock)  # another process took it for a left one, in the moment before the lock


def _sweep(parent: Path, prefix: str) -> None:
    """Remove what killed processes left. Directories of other users are none of our business."""
    try:
        names = os.listdir(parent)
    except OSError:
        return
    for name in names:
        if not name.startswith(prefix + _MARK):
            continue
        path = parent / name
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                remove_left(path)
