"""The index of blobs: which objects are in whose namespace, when they were last used, who pins them, and what may be evicted.

All of it is in the database, so that quotas and eviction are the same for all front ends. An *object* is bytes under a unique name; a
*blob* is an entry (principal, digest) that refers to one. An object is ``writing`` before its bytes are there, ``live`` while an entry
refers to it, ``dead`` when its bytes may be removed: whatever dies at any moment, the row says what is left to do.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from disc_tf_server.database import Database, Transaction
from disc_tf_server.interfaces import Digest, ServiceError, Usage

SCHEMA = [
    "CREATE TABLE objects (name {text} PRIMARY KEY, state {text} NOT NULL, size {int} NOT NULL, touched {real} NOT NULL)",
    "CREATE TABLE blobs (principal {text} NOT NULL, hash {text} NOT NULL, size {int} NOT NULL, object {text} NOT NULL,"
    " used {real} NOT NULL, PRIMARY KEY (principal, hash, size))",
    "CREATE INDEX blobs_by_object ON blobs (object)",
    "CREATE INDEX blobs_by_use ON blobs (principal, used)",
    "CREATE TABLE pins (owner {text} NOT NULL, principal {text} NOT NULL, hash {text} NOT NULL, size {int} NOT NULL, until {real} NOT NULL,"
    " PRIMARY KEY (owner, principal, hash, size))",
    "CREATE INDEX pins_by_blob ON pins (principal, hash, size)",
    "CREATE TABLE uploads (principal {text} NOT NULL, id {text} NOT NULL, hash {text} NOT NULL, size {int} NOT NULL,"
    " compressor {text} NOT NULL, touched {real} NOT NULL, PRIMARY KEY (principal, id))",
]
VERSION = 1
#: how long an object may be ``writing`` before it is taken for a leaving
_WRITING_S = 6 * 3600.0
_LOCK = "blobs"


@dataclass(frozen=True)
class BlobLimits:
    """Bytes are of plain content.

    quota_bytes, max_uploads: of a principal. total_bytes: of all. retention_s: of a blob that nobody uses. grace_s: for so long after its
    last use a blob is not evicted to make room. upload_idle_s: an upload that nobody continues. max_ratio: plain to compressed bytes.
    min_free_bytes: of a local disk.
    """

    max_blob_bytes: int = 2 << 30
    quota_bytes: int = 16 << 30
    total_bytes: int = 64 << 30
    max_uploads: int = 16
    retention_s: float = 7 * 86400.0
    grace_s: float = 60.0
    upload_idle_s: float = 3600.0
    max_ratio: float = 256.0
    min_free_bytes: int = 256 << 20


def not_found(digest: Digest) -> ServiceError:
    """The error for a blob that is not in the namespace."""
    return ServiceError("NOT_FOUND", "BLOB_NOT_FOUND", f"there is no blob {digest}", missing=[digest])


class BlobIndex:
    """The index. Methods that free objects return their names: their bytes are to be removed, then `forget` is to be called."""

    def __init__(self, database: Database, limits: BlobLimits) -> None:
        self._db, self._limits = database, limits

    async def prepare(self) -> None:
        """Makes the tables."""
        await self._db.prepare("blobs", VERSION, SCHEMA)

    async def touch(self, principal: str, digests: Sequence[Digest]) -> set[Digest]:
        """Those that are there; they count as used now."""

        def work(tx: Transaction) -> set[Digest]:
            sql = "UPDATE blobs SET used = ? WHERE principal = ? AND hash = ? AND size = ?"
            return {d for d in digests if tx.run(sql, tx.now, principal, d.hash, d.size)}

        return await self._db.run(_LOCK, work)

    async def find(self, principal: str, digest: Digest) -> str:
        """The object of a blob, used now. ServiceError NOT_FOUND."""

        def work(tx: Transaction) -> str:
            tx.run("UPDATE blobs SET used = ? WHERE principal = ? AND hash = ? AND size = ?", tx.now, principal, digest.hash, digest.size)
            return self._object(tx, principal, digest)

        return await self._db.run(_LOCK, work)

    async def begin(self, principal: str, digest: Digest, reserved: bool = False) -> tuple[str, list[str]]:
        """A name for an object that will be written, and objects that were evicted to make room for it. reserved: its upload has room.

        ServiceError QUOTA_BYTES, STORE_FULL.
        """

        def work(tx: Transaction) -> tuple[str, list[str]]:
            freed = [] if reserved else self._make_room(tx, principal, digest.size)
            name = f"{digest.hash[:40]}-{secrets.token_hex(8)}"
            tx.run("INSERT INTO objects VALUES (?, 'writing', ?, ?)", name, digest.size, tx.now)
            return name, freed

        return await self._db.run(_LOCK, work)

    async def commit(self, principal: str, digest: Digest, name: str, upload: str = "", owner: str = "", seconds: float = 0) -> list[str]:
        """The object is written: makes it a blob, unless there is one already. Ends the upload; pins for ``owner``."""

        def work(tx: Transaction) -> list[str]:
            if upload:
                tx.run("DELETE FROM uploads WHERE principal = ? AND id = ?", principal, upload)
            alive = tx.run("UPDATE objects SET state = 'live', touched = ? WHERE name = ? AND state = 'writing'", tx.now, name)
            if not alive:
                raise ServiceError("ABORTED", "UPLOAD_TOO_SLOW", "the blob was thrown away while it was written", retry_after=1.0)
            add = "INSERT INTO blobs VALUES (?, ?, ?, ?, ?) ON CONFLICT (principal, hash, size) DO NOTHING"
            added = tx.run(add, principal, digest.hash, digest.size, name, tx.now)
            if owner:
                self._pin(tx, principal, digest, owner, seconds)
            return [] if added else self._free(tx, [name])

        return await self._db.run(_LOCK, work)

    async def abandon(self, name: str) -> list[str]:
        """The object will not be written."""
        return await self._db.run(_LOCK, lambda tx: self._free(tx, [name]))

    async def forget(self, names: Sequence[str]) -> None:
        """The bytes of dead objects are removed."""

        def work(tx: Transaction) -> None:
            for name in names:
                tx.run("DELETE FROM objects WHERE name = ? AND state = 'dead'", name)

        if names:
            await self._db.run(_LOCK, work)

    async def link(self, source: str, digest: Digest, principal: str) -> list[str]:
        """Another entry for the object of ``source``'s blob."""

        def work(tx: Transaction) -> list[str]:
            object = self._object(tx, source, digest)
            add = "INSERT INTO blobs VALUES (?, ?, ?, ?, ?) ON CONFLICT (principal, hash, size) DO UPDATE SET used = excluded.used"
            if tx.rows("SELECT 1 FROM blobs WHERE principal = ? AND hash = ? AND size = ?", principal, digest.hash, digest.size):
                freed = []
            else:
                freed = self._make_room(tx, principal, digest.size, new_bytes=0, keep=object)
            tx.run(add, principal, digest.hash, digest.size, object, tx.now)
            return freed

        return await self._db.run(_LOCK, work)

    async def pin(self, principal: str, digest: Digest, owner: str, seconds: float) -> None:
        """See `BlobStore.pin`."""

        def work(tx: Transaction) -> None:
            self._object(tx, principal, digest)
            self._pin(tx, principal, digest, owner, seconds)

        await self._db.run(_LOCK, work)

    @staticmethod
    def _pin(tx: Transaction, principal: str, digest: Digest, owner: str, seconds: float) -> None:
        add = "INSERT INTO pins VALUES (?, ?, ?, ?, ?) ON CONFLICT (owner, principal, hash, size) DO UPDATE SET until = excluded.until"
        tx.run(add, owner, principal, digest.hash, digest.size, tx.now + seconds)

    async def unpin(self, owner: str) -> None:
        """See `BlobStore.unpin`."""
        await self._db.run(_LOCK, lambda tx: tx.run("DELETE FROM pins WHERE owner = ?", owner))

    async def drop_object(self, name: str) -> list[str]:
        """Removes every blob of an object that was found corrupt."""

        def work(tx: Transaction) -> list[str]:
            tx.run("DELETE FROM blobs WHERE object = ?", name)
            return self._free(tx, [name])

        return await self._db.run(_LOCK, work)

    async def upload(self, principal: str, id: str, digest: Digest, compressor: str) -> list[str]:
        """Begins or goes on with an upload: its size is reserved. ServiceError as of `BlobStore.upload`."""

        def work(tx: Transaction) -> list[str]:
            found = tx.rows("SELECT hash, size, compressor FROM uploads WHERE principal = ? AND id = ?", principal, id)
            if found and found[0] != (digest.hash, digest.size, compressor):
                message = "this upload_id began with another digest or compressor: take a new one"
                raise ServiceError("INVALID_ARGUMENT", "UPLOAD_ID_REUSED", message, field="upload_id")
            if found:
                tx.run("UPDATE uploads SET touched = ? WHERE principal = ? AND id = ?", tx.now, principal, id)
                return []
            ((count,),) = tx.rows("SELECT count(*) FROM uploads WHERE principal = ?", principal)
            if count >= self._limits.max_uploads:
                message = f"{count} uploads are open, {self._limits.max_uploads} are allowed: finish one first"
                metadata = {"limit": str(self._limits.max_uploads)}
                raise ServiceError("RESOURCE_EXHAUSTED", "QUOTA_UPLOADS", message, metadata=metadata, retry_after=5.0)
            freed = self._make_room(tx, principal, digest.size)
            tx.run("INSERT INTO uploads VALUES (?, ?, ?, ?, ?, ?)", principal, id, digest.hash, digest.size, compressor, tx.now)
            return freed

        return await self._db.run(_LOCK, work)

    async def end_upload(self, principal: str, id: str) -> None:
        """Gives up what an upload reserved."""
        await self._db.run(_LOCK, lambda tx: tx.run("DELETE FROM uploads WHERE principal = ? AND id = ?", principal, id))

    async def usage(self, principal: str | None) -> Usage:
        """See `BlobStore.usage`."""

        def work(tx: Transaction) -> Usage:
            if principal is None:
                held = tx.rows("SELECT coalesce(sum(size), 0), count(*) FROM objects WHERE state <> 'dead'")[0]
                open_ = tx.rows("SELECT count(*), coalesce(sum(size), 0) FROM uploads")[0]
            else:
                held = tx.rows("SELECT coalesce(sum(size), 0), count(*) FROM blobs WHERE principal = ?", principal)[0]
                open_ = tx.rows("SELECT count(*), coalesce(sum(size), 0) FROM uploads WHERE principal = ?", principal)[0]
            return Usage(int(held[0]), int(held[1]), int(open_[0]), int(open_[1]))

        return await self._db.run("", work)

    async def expire(self) -> list[str]:
        """Drops what is past its time, and names all dead objects, also those of processes that died."""

        def work(tx: Transaction) -> list[str]:
            limits = self._limits
            tx.run("DELETE FROM pins WHERE until < ?", tx.now)
            tx.run("DELETE FROM uploads WHERE touched < ?", tx.now - limits.upload_idle_s)
            sql = f"SELECT principal, hash, size, object FROM blobs WHERE {_EVICTABLE}"
            for row in tx.rows(sql, tx.now - limits.retention_s, tx.now):
                self._evict(tx, *row)
            tx.run("UPDATE objects SET state = 'dead' WHERE state = 'writing' AND touched < ?", tx.now - _WRITING_S)
            return [name for (name,) in tx.rows("SELECT name FROM objects WHERE state = 'dead'")]

        return await self._db.run(_LOCK, work)

    # ---- inside transactions ----

    @staticmethod
    def _object(tx: Transaction, principal: str, digest: Digest) -> str:
        """The object of a blob. ServiceError NOT_FOUND."""
        found = tx.rows("SELECT object FROM blobs WHERE principal = ? AND hash = ? AND size = ?", principal, digest.hash, digest.size)
        if not found:
            raise not_found(digest)
        return found[0][0]

    @staticmethod
    def _free(tx: Transaction, names: Sequence[str]) -> list[str]:
        """Marks objects dead that no blob refers to."""
        sql = "UPDATE objects SET state = 'dead' WHERE name = ? AND NOT EXISTS (SELECT 1 FROM blobs WHERE object = ?)"
        return [name for name in dict.fromkeys(names) if tx.run(sql, name, name)]

    def _make_room(self, tx: Transaction, principal: str, size: int, new_bytes: int | None = None, keep: str = "") -> list[str]:
        """Evicts until ``size`` more bytes fit the principal's quota, and ``new_bytes`` the store (None: the same; less: it is shared)."""
        limits, new_bytes = self._limits, size if new_bytes is None else new_bytes
        if size > limits.max_blob_bytes:
            message = f"a blob of {size} bytes: at most {limits.max_blob_bytes} are taken"
            metadata = {"limit": str(limits.max_blob_bytes)}
            raise ServiceError("RESOURCE_EXHAUSTED", "BLOB_TOO_LARGE", message, metadata=metadata, field="digest")
        freed: list[str] = []
        at = (tx.now - limits.grace_s, tx.now)
        sql = "SELECT coalesce(sum(size), 0) FROM {} WHERE principal = ?"
        held = sum(int(tx.rows(sql.format(table), principal)[0][0]) for table in ("blobs", "uploads"))
        over = held + size - limits.quota_bytes
        if over > 0:
            rows = tx.rows(f"SELECT hash, size, object FROM blobs WHERE principal = ? AND {_EVICTABLE} ORDER BY used", principal, *at)
            for hash, bytes, object in rows:
                if over > 0 and object != keep:
                    over -= bytes
                    freed += self._evict(tx, principal, hash, bytes, object)
        if over > 0:
            message = f"{size} bytes more than the quota of {limits.quota_bytes} bytes has room for"
            metadata = {"limit": str(limits.quota_bytes)}
            raise ServiceError("RESOURCE_EXHAUSTED", "QUOTA_BYTES", message, metadata=metadata, retry_after=limits.grace_s)
        sql = "SELECT (SELECT coalesce(sum(size), 0) FROM objects WHERE state <> 'dead') + (SELECT coalesce(sum(size), 0) FROM uploads)"
        over = int(tx.rows(sql)[0][0]) + new_bytes - limits.total_bytes
        if over > 0:
            # a little more than is needed, so that a full store does not look for room at every blob
            wanted = over + limits.total_bytes // 100
            freed += self._evict_of_all(tx, wanted, at, keep)
            if int(tx.rows(sql)[0][0]) + new_bytes > limits.total_bytes:
                message = "the server's store is full of content in use"
                raise ServiceError("RESOURCE_EXHAUSTED", "STORE_FULL", message, retry_after=limits.grace_s)
        return freed

    def _evict_of_all(self, tx: Transaction, wanted: int, at: tuple[float, float], keep: str) -> list[str]:
        """Evicts of whoever holds the most at each step, oldest use first, so that nobody pushes others out by filling the store."""
        freed: list[str] = []
        held = {principal: int(size) for principal, size in tx.rows("SELECT principal, sum(size) FROM blobs GROUP BY principal")}
        oldest: dict[str, list[tuple[str, int, str]]] = {}
        for principal, *row in tx.rows(f"SELECT principal, hash, size, object FROM blobs WHERE {_EVICTABLE} ORDER BY used DESC", *at):
            oldest.setdefault(principal, []).append((row[0], row[1], row[2]))
        while wanted > 0 and oldest:
            most = max(oldest, key=lambda p: (held[p], p))
            hash, size, object = oldest[most].pop()
            if not oldest[most]:
                del oldest[most]
            if object != keep:
                gone = self._evict(tx, most, hash, size, object)
                held[most] -= size
                wanted -= size if gone else 0
                freed += gone
        return freed

    def _evict(self, tx: Transaction, principal: str, hash: str, size: int, object: str) -> list[str]:
        tx.run("DELETE FROM blobs WHERE principal = ? AND hash = ? AND size = ?", principal, hash, size)
        return self._free(tx, [object])


#: conditions on a row of blobs; values: now; the latest use, now
_UNPINNED = (
    "NOT EXISTS (SELECT 1 FROM pins WHERE pins.principal = blobs.principal AND pins.hash = blobs.hash AND pins.size = blobs.size"
    " AND pins.until >= ?)"
)
_EVICTABLE = f"used <= ? AND {_UNPINNED}"
