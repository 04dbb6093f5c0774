"""The result cache: which result belongs to which canonical request.

The contents lie in the blob store, in a namespace of each *space* (a principal, or the trusted group), which no caller can write to.
Here is the index, a table: (space, key) -> digests of the request and of the result. It is a hit only if the request's bytes are equal.
"""

from __future__ import annotations

import dataclasses
import logging
import time

from disc_tf_server import logs
from disc_tf_server.database import Database, Transaction
from disc_tf_server.interfaces import BlobStore, Digest, ServiceError
from disc_tf_server.lru import Lru
from disc_tf_server.metrics import Metrics

log = logging.getLogger("disc_tf_server.results")
VERSION = 1
SCHEMA = [
    "CREATE TABLE results (space {text} NOT NULL, key {text} NOT NULL, request_hash {text} NOT NULL, request_size {int} NOT NULL,"
    " result_hash {text} NOT NULL, result_size {int} NOT NULL, used {real} NOT NULL, PRIMARY KEY (space, key))",
    "CREATE INDEX results_by_use ON results (used)",
]
_LOCK = "results"
#: how often a use of an entry is written down (seconds), and what an entry takes in memory (bytes)
_TOUCH_EVERY, _ENTRY_BYTES = 60.0, 600


def namespace(space: str) -> str:
    """The blob namespace of a space's results."""
    return f"results:{space}"


@dataclasses.dataclass(frozen=True)
class Entry:
    """request: the canonical request; result: the CompileResult that it gave, with canonical names."""

    request: Digest
    result: Digest


class ResultCache:
    """At most ``max_bytes`` of requests and results; what was used least lately goes first. memory: bytes kept in this process."""

    def __init__(self, blobs: BlobStore, database: Database, max_bytes: int, memory: int, metrics: Metrics) -> None:
        self._blobs, self._db, self._max_bytes, self._metrics = blobs, database, max_bytes, metrics
        self._contents: Lru[Digest, bytes] = Lru(memory)
        self._recent: Lru[tuple[str, bytes], tuple[Entry, float]] = Lru(4 << 20)

    async def prepare(self) -> None:
        """Makes the table."""
        await self._db.prepare("results", VERSION, SCHEMA)

    async def find(self, space: str, key: bytes, request: bytes) -> Entry | None:
        """The entry for exactly this request, if its contents are still there."""
        entry = await self._entry(space, key) if self._max_bytes else None
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
        self._metrics.cache.labels(outcome).inc()
        return entry

    async def _entry(self, space: str, key: bytes) -> Entry | None:
        now = time.monotonic()
        if (known := self._recent.get((space, key))) and now - known[1] < _TOUCH_EVERY:
            return known[0]

        def work(tx: Transaction) -> Entry | None:
            if not tx.run("UPDATE results SET used = ? WHERE space = ? AND key = ?", tx.now, space, key.hex()):
                return None
            sql = "SELECT request_hash, request_size, result_hash, result_size FROM results WHERE space = ? AND key = ?"
            row = tx.rows(sql, space, key.hex())[0]
            return Entry(Digest(*row[:2]), Digest(*row[2:]))

        entry = await self._db.run(_LOCK, work)
        if entry is not None:
            self._recent.put((space, key), (entry, now), _ENTRY_BYTES)
        return entry

    async def add(self, space: str, key: bytes, entry: Entry) -> None:
        """Remembers a result whose contents are in the blob store. That it cannot be remembered is none of the caller's errors."""
        if not self._max_bytes:
            return
        digests = (entry.request.hash, entry.request.size, entry.result.hash, entry.result.size)

        def work(tx: Transaction) -> tuple[int, int]:
            tx.run("DELETE FROM results WHERE space = ? AND key = ?", space, key.hex())
            tx.run("INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?)", space, key.hex(), *digests, tx.now)
            while (count := _count(tx))[0] > self._max_bytes:
                oldest = tx.rows("SELECT space, key FROM results ORDER BY used, key LIMIT 1")[0]
                tx.run("DELETE FROM results WHERE space = ? AND key = ?", *oldest)
            return count

        try:
            total, entries = await self._db.run(_LOCK, work)
        except ServiceError as e:
            logs.event(log, logging.WARNING, "a result is not remembered", reason=e.reason, text=e.message)
            return
        self._metrics.cache_bytes.set(total)
        self._metrics.cache_entries.set(entries)

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

    async def unpin(self, owner: str) -> None:
        """Ends the pins of `store`; never raises for a store that does not answer: pins end by themselves."""
        try:
            await self._blobs.unpin(owner)
        except ServiceError as e:
            logs.event(log, logging.WARNING, "a pin stays until its time is over", owner=owner, reason=e.reason)

    async def _content_or_none(self, space: str, digest: Digest) -> bytes | None:
        try:
            return await self.content(space, digest)
        except ServiceError as e:
            if e.code in ("NOT_FOUND", "DATA_LOSS"):
                return None
            raise

    async def _forget(self, space: str, key: bytes) -> None:
        self._recent.pop((space, key))
        await self._db.run(_LOCK, lambda tx: tx.run("DELETE FROM results WHERE space = ? AND key = ?", space, key.hex()))


def _count(tx: Transaction) -> tuple[int, int]:
    """(bytes, entries)."""
    total, entries = tx.rows("SELECT COALESCE(SUM(request_size + result_size), 0), COUNT(*) FROM results")[0]
    return int(total), int(entries)
