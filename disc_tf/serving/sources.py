"""Where the versions of a served model come from: a directory, or an object store, from which a version is copied before it is loaded."""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from disc_tf.publish import remove_tree
from disc_tf.scratch import claim
from disc_tf.serving.errors import ServingError
from disc_tf.serving.stores import LocalStore, ObjectStore, StoreError, local_path
from disc_tf.serving.versions import version_directories

log = logging.getLogger("disc_tf.serving")
T = TypeVar("T")

_CACHE = "serve."


class VersionChanged(StoreError):
    """A version is not any more what it was a moment ago; the store itself answers."""


class Source(Protocol):
    """The versions below a base path."""

    def versions(self) -> dict[int, Any]:
        """Version -> where it is (`Hashable`), complete or not. `StoreError` if that cannot be told."""
        ...

    def files(self, where: Any) -> tuple[object | None, float | None]:
        """What is there (comparable; None while it is no SavedModel), and when it last changed, if that is known. `StoreError`."""
        ...

    def fetch(self, where: Any) -> tuple[Path, Callable[[], None]]:
        """A version as a local directory, and what to call when it is not needed any more. `StoreError`, `ServingError`."""
        ...


class LocalSource:
    """A directory of version directories."""

    def __init__(self, base: str) -> None:
        self._store = LocalStore(local_path(base))

    def versions(self) -> dict[int, Path]:
        return version_directories(self._store.root)

    def files(self, where: Path) -> tuple[object | None, float | None]:
        return self._store.files(where.name) or (None, None)

    def fetch(self, where: Path) -> tuple[Path, Callable[[], None]]:
        return where, lambda: None


@dataclasses.dataclass(frozen=True)
class Retries:
    """How often a call to a store is tried, with which pauses between (seconds, doubled each time), and how long a store that is down is
    left alone before the next look (doubled up to ``most``)."""

    tries: int = 3
    first: float = 0.2
    most: float = 60.0


DEFAULT_RETRIES = Retries()


class StoreSource:
    """A base path in an object store. Used by one thread at a time.

    ``up``: whether the latest call succeeded; ``errors``: calls that failed.
    """

    def __init__(self, url: str, cache: Cache, retries: Retries = DEFAULT_RETRIES) -> None:
        self._store, self._url, self._cache, self._retries = ObjectStore(url), url.rstrip("/"), cache, retries
        self.up, self.errors = True, 0
        self._failures, self._not_before = 0, 0.0

    def versions(self) -> dict[int, str]:
        return {v: f"{self._url}/{name}" for v, name in self._tried(self._store.versions).items()}

    def files(self, where: str) -> tuple[object | None, float | None]:
        return self._tried(lambda: self._store.files(self._name(where))) or (None, None)

    def fetch(self, where: str) -> tuple[Path, Callable[[], None]]:
        return self._tried(lambda: self._cache.fetch(self._store, self._name(where)))

    def _name(self, where: str) -> str:
        return where.rsplit("/", 1)[1]

    def _tried(self, call: Callable[[], T]) -> T:
        """The call's result, after some tries; a store that is down is not asked before its time."""
        if time.monotonic() < self._not_before:
            raise StoreError(f"{self._url} could not be read a moment ago")
        pause = self._retries.first
        left = self._retries.tries
        while True:
            try:
                found = call()
            except VersionChanged:
                raise
            except StoreError as e:
                self.errors += 1
                left -= 1
                if left <= 0:
                    self._failed(e)
                    raise
                time.sleep(pause * random.uniform(0.5, 1.0))  # many servers must not come back at once
                pause *= 2
            else:
                self._answered()
                return found

    def _answered(self) -> None:
        if not self.up:
            log.warning("%s answers again", self._url)
        self.up, self._failures = True, 0

    def _failed(self, error: StoreError) -> None:
        if self.up:
            log.error("%s; versions that are loaded go on answering", error)
        self.up = False
        self._failures += 1
        self._not_before = time.monotonic() + min(self._retries.most, self._retries.first * 2**self._failures)


class Cache:
    """Copies of versions of object stores, in a directory of this process below ``root`` (None: the system's for temporary files).

    At most ``limit`` bytes at a time. What a process that was killed left is removed when the next one starts. `StoreError`.
    """

    def __init__(self, root: str | Path | None, limit: int) -> None:
        self._root, self._limit = Path(root or tempfile.gettempdir()), limit
        self._lock = threading.Lock()
        self._used = self._count = 0
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self.directory, self._held = claim(_CACHE, self._root)
        except OSError as e:
            raise StoreError(f"cannot keep copies in {self._root}: {e.strerror or e}; name another directory (--cache-dir)") from e

    def fetch(self, store: ObjectStore, name: str) -> tuple[Path, Callable[[], None]]:
        """A whole copy of a version and what removes it. RESOURCE_EXHAUSTED if there is no room."""
        before = store.files(name)
        if before is None:
            raise VersionChanged(f"{store}/{name} is gone")
        size = sum(bytes_ or 0 for _, bytes_, _ in before[0])
        place = self._reserve(f"{store}/{name}", size)
        try:
            stage = place / "stage"
            store.download(name, stage)
            if store.files(name) != before:
                raise VersionChanged(f"{store}/{name} changed while it was copied")
            stage.rename(place / name)
        except BaseException as e:
            self._release(place, size)
            if isinstance(e, OSError):
                raise StoreError(f"cannot copy {store}/{name} to {place}: {e.strerror or e}") from e
            raise
        return place / name, lambda: self._release(place, size)

    def _reserve(self, what: str, size: int) -> Path:
        with self._lock:
            if self._used + size > self._limit:
                raise ServingError(
                    "RESOURCE_EXHAUSTED",
                    f"no room for {what}: it has {size} bytes, copies may have {self._limit} (--cache-mb) and have {self._used}",
                )
            free = shutil.disk_usage(self.directory).free
            if size > free:
                raise ServingError("RESOURCE_EXHAUSTED", f"no room for {what}: it has {size} bytes, {self.directory} has {free} left")
            self._used += size
            self._count += 1
            place = self.directory / str(self._count)
        place.mkdir()
        return place

    def _release(self, place: Path, size: int) -> None:
        remove_tree(place)
        with self._lock:
            self._used -= size

    def close(self) -> None:
        """Remove all copies."""
        remove_tree(self.directory)
        os.close(self._held)


def below(base_path: str, root: str) -> bool:
    """Whether the URL of an object store lies at or below another one."""
    base, root = base_path.rstrip("/"), root.rstrip("/")
    return {"..", "."}.isdisjoint(base.split("/")) and (base == root or base.startswith(root + "/"))


__all__ = ["DEFAULT_RETRIES", "Cache", "LocalSource", "Retries", "Source", "StoreSource", "VersionChanged", "below"]
