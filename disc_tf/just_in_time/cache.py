"""Compiled results on disk.

An entry is native code that this process will run, so it is read only from files that belong to this user and that nobody else may
write, in a directory of which the same holds. Files are written whole under another name and renamed; a digest over everything is
checked on reading: an entry that is cut short, changed or of another format is taken for missing. Weights are not stored: large
constants are taken from the graph that is asked for, which is known to have the same.

    magic, sha256 of the rest, u64 length of the report, report (JSON), GraphDef (zlib)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from disc_tf.atomic import replacing
from disc_tf.frontend.functions import every_node
from disc_tf.just_in_time.work import Request, Result

MAGIC = b"DISCJIT\x01"
SUFFIX = ".discjit"
#: constants of at least this many bytes are not stored
WEIGHT_BYTES = 1 << 10
_LENGTH = struct.Struct("<Q")
_STRIPPED = "_disc_weight"


class CacheError(OSError):
    """The directory cannot be used; the message says why and what to do."""


def cache_key(graph_digest: str, request: Request) -> str:
    """Of everything that the result depends on: the graph's content, what is fetched, options, compiler, machine."""
    import platform

    parts = {
        "graph": graph_digest,
        "fetches": list(request.fetches),
        "options": dict(request.options),
        "any_size": request.any_size,
        "compiler": compiler_identity(),
        "machine": platform.machine(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def compiler_identity() -> str:
    """The compiler's version and that of its sources: their sizes and times, so that an edited checkout is another compiler."""
    from importlib import metadata

    import disc_tf
    from disc_tf.version import __version__

    digest = hashlib.sha256(__version__.encode())
    root = Path(disc_tf.__file__).parent
    for path in sorted([*root.rglob("*.py"), *(root / "tuning").glob("*.json")]):
        with contextlib.suppress(OSError):
            info = path.stat()
            digest.update(f"{path.relative_to(root)}:{info.st_size}:{info.st_mtime_ns}\n".encode())
    for package in ("llvmlite", "tensorflow"):
        try:
            digest.update(f"{package}={metadata.version(package)}\n".encode())
        except metadata.PackageNotFoundError:
            digest.update(f"{package}\n".encode())
    return f"{__version__}-{digest.hexdigest()[:16]}"


class DiskCache:
    """Entries in ``directory``, at most ``limit`` bytes in all. Safe for several threads and processes at a time."""

    def __init__(self, directory: str | Path, limit: int) -> None:
        self.directory = Path(directory)
        self.limit = limit

    def prepare(self) -> None:
        """Make the directory. `CacheError` if others may write to it or it is not this user's."""
        where, way_out = f"the cache directory {self.directory}", "give another cache_dir, or None"
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            info = os.stat(self.directory)
        except OSError as e:
            raise CacheError(f"{where} cannot be made: {e.strerror or e}; {way_out}") from e
        if info.st_uid != os.geteuid():
            raise CacheError(f"{where} belongs to user {info.st_uid}; {way_out}")
        if info.st_mode & 0o022:
            raise CacheError(f"others may write to {where}, which holds code that is run: chmod 700 it, or {way_out}")

    def get(self, key: str, graph_def: Any) -> Result | None:
        """The entry, with weights from ``graph_def`` (the graph that the key was made of); None if there is none that can be trusted."""
        path = self._path(key)
        data = _read_own(path)
        if data is None:
            return None
        try:
            result = _decode(data, graph_def)
        except Exception:  # whatever the bytes are: an entry that does not read is no entry
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now: goes last
        return result

    def put(self, key: str, result: Result) -> bool:
        """Store; False if it does not fit or cannot be written (a full disk is no reason to fail)."""
        data = _encode(result)
        if len(data) > self.limit:
            return False
        try:
            with replacing(self._path(key), mode=0o600, prefix=".entry.") as f:
                f.write(data)
        except OSError:
            return False
        self.evict()
        return True

    def evict(self) -> None:
        """Delete the least recently used entries beyond the limit, and what a killed process left half-written an hour ago."""
        entries: list[tuple[float, int, Path]] = []
        for path in self._files():
            with contextlib.suppress(OSError):
                info = path.stat()
                entries.append((info.st_mtime, info.st_size, path))
        newest = max((e[0] for e in entries), default=0.0)
        total = sum(size for _, size, _ in entries)
        for used, size, path in sorted(entries):
            stale = path.name.startswith(".entry.") and used < newest - 3600
            if total > self.limit or stale:
                with contextlib.suppress(OSError):
                    path.unlink()
                total -= size

    def _files(self) -> list[Path]:
        try:
            return [p for p in self.directory.iterdir() if p.suffix == SUFFIX or p.name.startswith(".entry.")]
        except OSError:
            return []

    def _path(self, key: str) -> Path:
        return self.directory / (key + SUFFIX)


def _read_own(path: Path) -> bytes | None:
    """The content of a regular file of this user that nobody else may write; None otherwise."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as f:
        info = os.fstat(f.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
            return None
        try:
            return f.read()
        except OSError:
            return None


def _encode(result: Result) -> bytes:
    from disc_tf.frontend.tfproto import graph_from_bytes

    report = result.head()
    graph = b""
    if result.graph:
        graph_def = graph_from_bytes(result.graph)
        for node in _constants(graph_def):
            tensor = node.attr["value"].tensor
            if len(tensor.tensor_content) >= WEIGHT_BYTES:
                node.attr[_STRIPPED].s = hashlib.sha256(tensor.tensor_content).digest()
                tensor.tensor_content = b""
        graph = zlib.compress(graph_def.SerializeToString(), 1)
    rest = _LENGTH.pack(len(report)) + report + graph
    return MAGIC + hashlib.sha256(rest).digest() + rest


def _decode(data: bytes, graph_def: Any) -> Result:
    head, digest, rest = data[: len(MAGIC)], data[len(MAGIC) : len(MAGIC) + 32], data[len(MAGIC) + 32 :]
    if head != MAGIC or hashlib.sha256(rest).digest() != digest:
        raise ValueError("not an entry of the cache")
    (size,) = _LENGTH.unpack_from(rest)
    report, graph = rest[_LENGTH.size : _LENGTH.size + size], rest[_LENGTH.size + size :]
    if not graph:
        return Result.of(report, b"")
    from disc_tf.frontend.tfproto import graph_from_bytes

    optimized = graph_from_bytes(zlib.decompress(graph))
    weights: Mapping[bytes, bytes] | None = None
    for node in _constants(optimized):
        if _STRIPPED not in node.attr:
            continue
        if weights is None:
            weights = _weights(graph_def)
        node.attr["value"].tensor.tensor_content = weights[node.attr[_STRIPPED].s]
        del node.attr[_STRIPPED]
    return Result.of(report, optimized.SerializeToString())


def _constants(graph_def: Any) -> list[Any]:
    return [n for n in every_node(graph_def) if n.op == "Const"]


def _weights(graph_def: Any) -> dict[bytes, bytes]:
    contents = (n.attr["value"].tensor.tensor_content for n in _constants(graph_def))
    return {hashlib.sha256(c).digest(): c for c in contents if len(c) >= WEIGHT_BYTES}
