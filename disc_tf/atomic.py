"""Files that are written whole: a reader, or a process that is killed, sees the old file or the new one, never a half."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(target: str | os.PathLike[str], *, mode: int = 0o666, prefix: str | None = None) -> Iterator[BinaryIO]:
    """A file to write beside ``target``, synced and renamed to it when the block ends, removed if it raises. Links are replaced.

    mode: less the process's umask, as for any new file. prefix: how its name starts until then, a hidden form of the target's if None.
    OSError.
    """
    target = Path(target)
    temp = target.with_name(f"{f'.{target.name}.' if prefix is None else prefix}{secrets.token_hex(8)}")
    # The kernel applies the umask: asking for it means setting it, for all threads.
    handle = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(handle)
        os.replace(temp, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temp.unlink()
        raise
