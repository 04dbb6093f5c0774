"""Where the bytes of blobs lie: files of unique names in a local directory, or objects of any fsspec file system.

A name is written once and never changed, so nothing needs to be atomic here: what is half written is in no index (`blob_index`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from disc_tf_server.database import full
from disc_tf_server.interfaces import ServiceError


class Objects(Protocol):
    """All calls block: they are made in threads. OSError for what fails, FileNotFoundError for what is not there."""

    def put_file(self, name: str, file: Path) -> None:
        """Takes over a local file (it is gone afterwards)."""
        ...

    def put(self, name: str, data: bytes) -> None: ...

    def open(self, name: str) -> BinaryIO: ...

    def delete(self, name: str) -> None:
        """Removes an object; nothing to do if it is not there."""
        ...

    def check_room(self, size: int) -> None:
        """ServiceError STORE_FULL if ``size`` bytes would leave less free than wanted."""
        ...


class LocalObjects:
    """Files under ``root``. min_free: bytes of the disk that stay free."""

    def __init__(self, root: Path, min_free: int) -> None:
        self._root, self._min_free = root, min_free
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _path(self, name: str) -> Path:
        return self._root / name[:2] / name

    def put_file(self, name: str, file: Path) -> None:
        path = self._path(name)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        with file.open("rb") as data:
            os.fsync(data.fileno())
        try:
            os.replace(file, path)
        except OSError as e:
            if e.errno != errno.EXDEV:
                raise
            shutil.copyfile(file, path)
            file.unlink()

    def put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        try:
            with path.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def open(self, name: str) -> BinaryIO:
        return self._path(name).open("rb")

    def delete(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def check_room(self, size: int) -> None:
        there = os.statvfs(self._root)
        if there.f_bavail * there.f_frsize - size < self._min_free:
            raise full(f"less than {self._min_free >> 20} MiB of its disk would stay free")


class FsspecObjects:
    """Objects below an fsspec URL (``s3://bucket/prefix``, ``gs://``, ``file://``, ``memory://``)."""

    def __init__(self, url: str) -> None:
        import fsspec

        self._fs: Any
        self._fs, root = fsspec.core.url_to_fs(url)
        self._root = str(root).rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name[:2]}/{name}"

    def put_file(self, name: str, file: Path) -> None:
        self._make(name, lambda path: self._fs.put_file(str(file), path))
        file.unlink(missing_ok=True)

    def put(self, name: str, data: bytes) -> None:
        self._make(name, lambda path: self._fs.pipe_file(path, data))

    def _make(self, name: str, write: Callable[[str], object]) -> None:
        path = self._path(name)
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            write(path)
        except Exception:
            with contextlib.suppress(Exception):
                self._fs.rm_file(path)
            raise

    def open(self, name: str) -> BinaryIO:
        return self._fs.open(self._path(name), "rb")

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def check_room(self, size: int) -> None:
        """An object store has no such end."""


def failed(e: OSError) -> ServiceError:
    """The error for an object that cannot be written or read now."""
    if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return full(os.strerror(e.errno))
    why = f"the server cannot reach its blobs: {e.strerror or type(e).__name__}"
    return ServiceError("UNAVAILABLE", "STORE_UNAVAILABLE", why, retry_after=5.0)
