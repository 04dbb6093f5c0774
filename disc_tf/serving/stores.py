"""Base paths that are read from and published to: local directories, and object stores by fsspec.

A version appears in one step: a local directory is renamed into place; in an object store, where nothing can be renamed, `saved_model.pb`
is uploaded last and deleted first, and without it a directory is no model.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from disc_tf.extras import advice
from disc_tf.publish import SAVED_MODEL_FILES, PublishError, remove_tree, staged
from disc_tf.scratch import scratch
from disc_tf.serving.versions import fingerprint, not_a_base, version_directories, version_number

#: what `disc-tf serving prepare` puts into every version that it publishes
MARKER = "assets.extra/disc_tf/prepared.json"
LOCK = ".disc_tf_prepare.lock"
_WORK = ".disc_tf_work."
#: a lock object that was not renewed for so long belongs to a process that is gone
LOCK_SECONDS = 600.0


class StoreError(Exception):
    """A base path cannot be read, written or locked. The message says which and the way out."""


class LocalStore:
    """A base path on this machine's filesystems."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def __str__(self) -> str:
        return str(self.root)

    def make(self) -> None:
        """Make the directory if it is not there."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise StoreError(f"cannot make {self.root}: {e.strerror or e}") from e

    def versions(self) -> dict[int, str]:
        """Version -> directory name. `StoreError` if there is no such base path."""
        try:
            there = self.root.is_dir()
        except OSError as e:
            raise StoreError(f"cannot read {self.root}: {e.strerror or e}") from e
        if not there:
            raise StoreError(f"{self.root} is not a directory")
        if why := not_a_base(self.root):
            raise StoreError(f"{self.root} {why}")
        return {v: p.name for v, p in version_directories(self.root).items()}

    def files(self, name: str) -> tuple[Any, float] | None:
        """What is in a version's directory (comparable) and when it last changed; None while it is no SavedModel."""
        found = fingerprint(self.root / name)
        return None if found is None else (found, max(changed for _, _, changed in found) / 1e9)

    def read(self, name: str, file: str) -> bytes | None:
        """A file of a version, None if it is not there."""
        try:
            return (self.root / name / file).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as e:
            raise StoreError(f"cannot read {self.root / name / file}: {e.strerror or e}") from e

    def empty(self, name: str) -> bool:
        """Whether a version's directory has nothing in it."""
        try:
            return not any((self.root / name).iterdir())
        except OSError as e:
            raise StoreError(f"cannot read {self.root / name}: {e.strerror or e}") from e

    @contextlib.contextmanager
    def fetched(self, name: str) -> Iterator[Path]:
        """A version as a local directory."""
        yield self.root / name

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """A directory on the same filesystem, removed afterwards. Nobody takes it for a version."""
        try:
            path = Path(tempfile.mkdtemp(prefix=_WORK, dir=self.root))
        except OSError as e:
            raise StoreError(f"cannot write into {self.root}: {e.strerror or e}") from e
        try:
            yield path
        finally:
            remove_tree(path)

    def publish(self, name: str, directory: Path) -> None:
        """Move the files of ``directory`` into version ``name``, in one step; what was there is replaced in one step too."""
        target = self.root / name
        try:
            with staged(target, overwrite=target.is_dir(), replaces=()) as stage:
                for entry in list(directory.iterdir()):
                    shutil.move(str(entry), stage / entry.name)
        except (PublishError, OSError) as e:
            raise StoreError(f"cannot publish {target}: {e}") from e

    def remove(self, name: str) -> None:
        """Remove a version: renamed out of sight first."""
        target, hidden = self.root / name, self.root / f"{_WORK}{uuid.uuid4().hex}"
        try:
            target.rename(hidden)
        except OSError as e:
            raise StoreError(f"cannot remove {target}: {e.strerror or e}") from e
        remove_tree(hidden)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else publishes here meanwhile. `StoreError` if somebody does. What a killed process left is removed."""
        if (self.root / LOCK).is_symlink():
            raise StoreError(f"{self.root / LOCK} is a symbolic link: remove it")
        try:
            handle = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise StoreError(f"cannot write into {self.root}: {e.strerror or e}") from e
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as e:
                raise StoreError(f"another `disc-tf serving prepare` works on {self.root}") from e
            except OSError as e:  # a network filesystem without locks
                raise StoreError(f"cannot lock {self.root}: {e.strerror or e}") from e
            for left in self.root.glob(f"{_WORK}*"):
                remove_tree(left)
            yield
        finally:
            os.close(handle)

    def renew(self) -> None:
        """Nothing to do: the lock ends with the process."""


class ObjectStore:
    """A base path in an object store. The lock is an object that is renewed; clocks of the writers may differ by minutes, not more."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ModuleNotFoundError as e:
            raise StoreError(f"{url}: needs fsspec: {advice('serve')}") from e
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as e:
            raise StoreError(f"{url}: {e}") from e
        self._url = url.rstrip("/")
        self._owner = uuid.uuid4().hex

    def __str__(self) -> str:
        return self._url

    def _path(self, *parts: str) -> str:
        return "/".join([self._root.rstrip("/"), *parts])

    def make(self) -> None:
        with self._errors("make"):
            self._fs.makedirs(self._root, exist_ok=True)

    def versions(self) -> dict[int, str]:
        with self._errors("list"):
            self._fs.invalidate_cache()
            try:
                entries = self._fs.ls(self._root, detail=True)
            except FileNotFoundError as e:
                raise StoreError(f"{self._url} is not there") from e
        found: dict[int, str] = {}
        for entry in sorted(entries, key=lambda e: e["name"]):
            name = entry["name"].rstrip("/").rsplit("/", 1)[-1]
            number = version_number(name)
            if number is not None and entry["type"] == "directory":
                found.setdefault(number, name)
        return found

    def files(self, name: str) -> tuple[Any, float | None] | None:
        with self._errors("list"):
            self._fs.invalidate_cache()
            try:
                entries = self._fs.find(self._path(name), detail=True)
            except FileNotFoundError:
                return None
        prefix = self._path(name) + "/"
        stamps = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "updated", "created")
        found = sorted(
            (path.removeprefix(prefix), info.get("size"), str(next((info[s] for s in stamps if info.get(s)), "")))
            for path, info in entries.items()
        )
        return (tuple(found), None) if any(path in SAVED_MODEL_FILES for path, _, _ in found) else None

    def read(self, name: str, file: str) -> bytes | None:
        with self._errors("read"):
            try:
                return self._fs.cat_file(self._path(name, file))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def empty(self, name: str) -> bool:
        with self._errors("list"):
            return not self._fs.find(self._path(name))

    @contextlib.contextmanager
    def fetched(self, name: str) -> Iterator[Path]:
        with scratch() as directory:
            target = directory / name
            self.download(name, target)
            yield target

    def download(self, name: str, target: Path) -> None:
        """Copy a version to a local directory; what makes it a model comes last. `StoreError`."""
        with self._errors("read"):
            prefix = self._path(name) + "/"
            found: dict[str, str] = {}
            for path in self._fs.find(self._path(name)):
                if not path.startswith(prefix) or path.endswith("/"):
                    continue  # an object that stands for a directory
                file = path.removeprefix(prefix)
                # a key is any text: as a path it must not lead out of the directory
                if not {"", ".", ".."}.isdisjoint(file.split("/")):
                    raise StoreError(f"{self._url}/{name} has an object named {file!r}, which is no path of a file: remove it")
                found[file] = path
            for file in sorted(found, key=lambda f: (f in SAVED_MODEL_FILES, f)):
                local = target / file
                local.parent.mkdir(parents=True, exist_ok=True)
                self._fs.get_file(found[file], str(local))

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        with scratch() as directory:
            yield directory

    def publish(self, name: str, directory: Path) -> None:
        files = {p.relative_to(directory).as_posix(): p for p in directory.rglob("*") if p.is_file()}
        # the marker first: half an upload must be known as ours; what makes it a model last
        order = sorted(files, key=lambda f: (f in SAVED_MODEL_FILES, f != MARKER, f))
        with self._errors("write"):
            if self._fs.exists(self._path(name)):
                self._remove(name)
            for file in order:
                key = self._path(name, file)
                self._fs.makedirs(key.rsplit("/", 1)[0], exist_ok=True)
                self._fs.put_file(str(files[file]), key)
                self.renew()
            self._fs.invalidate_cache()

    def remove(self, name: str) -> None:
        with self._errors("remove"):
            self._remove(name)

    def _remove(self, name: str) -> None:
        for file in SAVED_MODEL_FILES:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name, file))
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._path(name), recursive=True)
        self._fs.invalidate_cache()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        with self._errors("lock"):
            holder = self._holder()
            if holder is not None and holder["owner"] != self._owner and time.time() - holder["time"] < LOCK_SECONDS:
                raise StoreError(f"another `disc-tf serving prepare` works on {self._url} (if it is gone: delete {LOCK} there)")
            self._write_lock()
            # no store has an atomic create that all of fsspec offers: the last writer wins, and the others see it
            time.sleep(0.2)
            if not self._is_held():
                raise StoreError(f"another `disc-tf serving prepare` began to work on {self._url}")
        stop = threading.Event()
        heart = threading.Thread(target=self._beat, args=(stop,), name="renew-lock", daemon=True)
        heart.start()
        try:
            yield
        finally:
            stop.set()
            heart.join()
            with contextlib.suppress(Exception):
                if self._is_held():
                    self._fs.rm_file(self._path(LOCK))

    def _beat(self, stop: threading.Event) -> None:
        while not stop.wait(LOCK_SECONDS / 10):
            with contextlib.suppress(Exception):  # `renew` says it, before anything is published
                if self._is_held():
                    self._write_lock()

    def _holder(self) -> dict[str, Any] | None:
        self._fs.invalidate_cache()
        try:
            found = json.loads(self._fs.cat_file(self._path(LOCK)))
            return {"owner": str(found["owner"]), "time": float(found["time"])}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return {"owner": "", "time": 0.0}

    def _is_held(self) -> bool:
        """Whether the lock is ours now."""
        holder = self._holder()
        return holder is not None and holder["owner"] == self._owner

    def _write_lock(self) -> None:
        self._fs.pipe_file(self._path(LOCK), json.dumps({"owner": self._owner, "time": time.time()}).encode())

    def renew(self) -> None:
        """`StoreError` if the lock is not ours any more."""
        with self._errors("lock"):
            if not self._is_held():
                raise StoreError(f"the lock of {self._url} was taken by another process")

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except Exception as e:  # every store raises its own
            raise StoreError(f"cannot {doing} {self._url}: {type(e).__name__}: {e}") from e


Store = LocalStore | ObjectStore


def is_remote(where: str) -> bool:
    """Whether a base path is the URL of an object store."""
    return "://" in where and not where.startswith("file://")


def local_path(where: str) -> Path:
    """The path of a base path that is not remote."""
    return Path(where.removeprefix("file://"))


def open_store(where: str) -> Store:
    """The store of a path or URL. `StoreError`."""
    return ObjectStore(where) if is_remote(where) else LocalStore(local_path(where))


def same_place(a: Store, b: Store) -> bool:
    """Whether two base paths are one."""
    if isinstance(a, LocalStore) and isinstance(b, LocalStore):
        return os.path.realpath(a.root) == os.path.realpath(b.root)
    return str(a) == str(b)
