"""The result cache: which result belongs to which canonical request.

The contents lie in the blob store, in a namespace of each *space* (a principal, or the trusted group), which no caller can write to. Here
is the index, a SQLite file: (space, key) -> digests of the request and of the result. It is a hit only if the request's bytes are equal.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from disc_tf_server.interfaces import BlobStore, Digest, ServiceError
from disc_tf_server.lru import Lru
from disc_tf_server.metrics import Metrics

T = TypeVar("T")
_SCHEMA = """
create table if not exists results (
  space text not null, key blob not null, request_hash text not null, request_size integer not null,
  result_hash text not null, result_size integer not null, used real not null, primary key (space, key)) without rowid;
create index if not exists results_used on results (used);
"""


def namespace(space: str) -> str:
    """The blob namespace of a space's results."""
    return f"results:{space}"


@dataclasses.dataclass(frozen=True)
class Entry:
    """request: the canonical request; result: the CompileResult that it gave, with canonical names."""

    request: Digest
    result: Digest


class ResultCache:
    """At most ``max_bytes`` of requests and results; what was used least lately goes first. memory: bytes of contents kept in this process.

    A file that is damaged is begun anew: it holds nothing that cannot be made again.
    """

    def __init__(self, blobs: BlobStore, path: Path, max_bytes: int, memory: int, metrics: Metrics) -> None:
        self._blobs, self._path, self._max_bytes, self._metrics = blobs, path, max_bytes, metrics
        self._contents: Lru[Digest, bytes] = Lru(memory)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="disc-tf-results")
        self._db: sqlite3.Connection | None = None
        self._recent: Lru[tuple[str, bytes], Entry] = Lru(4 << 20)

    async def _in_thread(self, f: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, f, *args)

    async def open(self) -> None:
        """Opens the index."""
        await self._in_thread(self._open)

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._connect()
        except sqlite3.DatabaseError:
            for suffix in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            self._connect()
        self._count()

    def _connect(self) -> None:
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=10)
        try:
            db.execute("pragma journal_mode=wal")
            db.execute("pragma synchronous=normal")
            db.executescript(_SCHEMA)
            db.execute("select count(*) from results").fetchone()
        except sqlite3.DatabaseError:
            db.close()
            raise
        self._db = db

    async def find(self, space: str, key: bytes, request: bytes) -> Entry | None:
        """The entry for exactly this request, if its contents are still there."""
        entry = self._recent.get((space, key))
        if entry is None and self._max_bytes:
            entry = await self._in_thread(self._get, space, key)
        outcome = "miss"
        if entry is not None:
            known = await self._content_or_none(space, entry.request)
            if known is None or await self._content_or_none(space, entry.result) is None:
                await self._forget(space, key)
                outcome, entry = "evicted", None
            elif known != request:
                outcome, entry = "collision", None
            else:
                outcome = "hit"
                self._recent.put((space, key), entry, 500)
        self._metrics.cache.labels(outcome).inc()
        return entry

    async def add(self, space: str, key: bytes, entry: Entry) -> None:
        """Remembers a result whose contents are in the blob store. What cannot be remembered is none of the caller's errors."""
        if not self._max_bytes:
            return
        with contextlib.suppress(sqlite3.Error):
            for gone in await self._in_thread(self._put, space, key, entry):
                self._recent.pop(gone)

    async def content(self, space: str, digest: Digest) -> bytes:
        """A content of a space, from memory if it is there. ServiceError NOT_FOUND."""
        data = self._contents.get(digest)
        if data is None:
            data = await self._blobs.get(namespace(space), digest)
            self._contents.put(digest, data, len(data))
        return data

    async def store(self, space: str, data: bytes, owner: str, seconds: float) -> Digest:
        """Adds a content, pinned for a while."""
        digest = await self._blobs.put(namespace(space), data, owner=owner, seconds=seconds)
        self._contents.put(digest, data, len(data))
        return digest

    async def _content_or_none(self, space: str, digest: Digest) -> bytes | None:
        try:
            return await self.content(space, digest)
        except ServiceError as e:
            if e.code in ("NOT_FOUND", "DATA_LOSS"):
                return None
            raise

    async def _forget(self, space: str, key: bytes) -> None:
        self._recent.pop((space, key))
        with contextlib.suppress(sqlite3.Error):
            await self._in_thread(self._delete, space, key)

    async def close(self) -> None:
        """Ends it; what was added stays."""
        await self._in_thread(self._close)
        self._thread.shutdown()

    # ---- in the thread

    @property
    def _open_db(self) -> sqlite3.Connection:
        if self._db is None:
            raise sqlite3.ProgrammingError("the index is not open")
        return self._db

    def _get(self, space: str, key: bytes) -> Entry | None:
        try:
            sql = "update results set used=? where space=? and key=? returning request_hash, request_size, result_hash, result_size"
            rows = self._open_db.execute(sql, (time.time(), space, key)).fetchall()
        except sqlite3.Error:
            return None
        return Entry(Digest(*rows[0][:2]), Digest(*rows[0][2:])) if rows else None

    def _put(self, space: str, key: bytes, entry: Entry) -> list[tuple[str, bytes]]:
        row = (space, key, entry.request.hash, entry.request.size, entry.result.hash, entry.result.size, time.time())
        self._open_db.execute("insert or replace into results values (?,?,?,?,?,?,?)", row)
        evicted: list[tuple[str, bytes]] = []
        while self._count() > self._max_bytes:
            oldest = "delete from results where (space, key) in (select space, key from results order by used limit 1) returning space, key"
            evicted += [(space, bytes(key)) for space, key in self._open_db.execute(oldest).fetchall()]
        return evicted

    def _delete(self, space: str, key: bytes) -> None:
        self._open_db.execute("delete from results where space=? and key=?", (space, key))
        self._count()

    def _count(self) -> int:
        sql = "select coalesce(sum(request_size + result_size), 0), count(*) from results"
        total, entries = self._open_db.execute(sql).fetchone()
        self._metrics.cache_bytes.set(total)
        self._metrics.cache_entries.set(entries)
        return total

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
