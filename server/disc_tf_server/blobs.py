"""The `BlobStore`: an index in the database, bytes in a local directory or on any fsspec file system. Digests are checked on every way."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, TypeVar

from disc_tf_server.blob_index import BlobIndex, BlobLimits, not_found
from disc_tf_server.database import Database
from disc_tf_server.interfaces import Digest, ServiceError, Usage
from disc_tf_server.objects import FsspecObjects, LocalObjects, Objects, failed
from disc_tf_server.uploads import CHUNK, COMPRESSORS, CompleteUpload, StagedUpload, Staging

T = TypeVar("T")
_HASH = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9A-Za-z_.-]{1,64}")
_EMPTY = Digest.of(b"")
_PARALLEL = 8


def check_digest(digest: Digest, field: str = "digest") -> None:
    """ServiceError INVALID_ARGUMENT for what is no digest."""
    if not _HASH.fullmatch(digest.hash) or digest.size < 0 or (digest.size == 0) != (digest.hash == _EMPTY.hash):
        message = f"{field}: a SHA-256 in 64 lower-case hexadecimal digits and the size in bytes are wanted"
        raise ServiceError("INVALID_ARGUMENT", "BAD_DIGEST", message, field=field)


def check_compressor(compressor: str) -> str:
    """A compressor of `COMPRESSORS`; ServiceError INVALID_ARGUMENT for a name that is not known."""
    compressor = "" if compressor == "identity" else compressor
    if compressor not in COMPRESSORS:
        message = f"compressor {compressor[:32]!r} is not known: identity or zstd"
        raise ServiceError("INVALID_ARGUMENT", "BAD_COMPRESSOR", message, field="compressor")
    return compressor


def _check_upload_id(upload_id: str) -> None:
    if not _ID.fullmatch(upload_id):
        raise ServiceError("INVALID_ARGUMENT", "BAD_UPLOAD_ID", "upload_id: a UUID is wanted", field="upload_id")


class IndexedBlobStore:
    """See `BlobStore`. root: a directory of the server's own. objects: where the bytes lie; None: in ``root``."""

    def __init__(self, database: Database, root: Path, limits: BlobLimits, objects: Objects | None = None) -> None:
        self.limits = limits
        self._index = BlobIndex(database, limits)
        self._objects = objects or LocalObjects(root / "objects", limits.min_free_bytes)
        self.staging = Staging(root / "uploads", limits)
        self._threads = ThreadPoolExecutor(_PARALLEL, "disc-tf-blobs")

    async def prepare(self) -> None:
        """Makes the tables."""
        await self._index.prepare()

    async def do(self, work: Callable[..., T], *arguments: object) -> T:
        """Runs it in a thread. ServiceError for OSError."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        except OSError as e:
            raise failed(e) from e

    async def _remove(self, names: Sequence[str]) -> None:
        """Removes the bytes of dead objects; what fails stays dead in the index, for `sweep`."""

        def work() -> list[str]:
            gone = []
            for name in names:
                with contextlib.suppress(Exception):
                    self._objects.delete(name)
                    gone.append(name)
            return gone

        if names:
            await self._index.forget(await self.do(work))

    # ---- reading ----

    async def missing(self, principal: str, digests: Sequence[Digest]) -> list[Digest]:
        for d in digests:
            check_digest(d, "digests")
        asked = [d for d in dict.fromkeys(digests) if d.size]
        there = await self._index.touch(principal, asked)
        return [d for d in asked if d not in there]

    async def get(self, principal: str, digest: Digest) -> bytes:
        parts = []
        try:
            async for part in self.read(principal, digest):
                parts.append(part)
        except ServiceError as e:
            if e.code == "DATA_LOSS":
                raise not_found(digest) from e
            raise
        return b"".join(parts)

    async def read(self, principal: str, digest: Digest, offset: int = 0, limit: int = 0) -> AsyncIterator[bytes]:
        check_digest(digest)
        if not 0 <= offset <= digest.size or limit < 0:
            message = f"read_offset {offset}, read_limit {limit}: the blob has {digest.size} bytes"
            raise ServiceError("OUT_OF_RANGE", "BAD_RANGE", message, field="read_offset")
        if not digest.size:
            return
        name = await self._index.find(principal, digest)
        file = await self._open(name, digest)
        end = min(digest.size, offset + limit) if limit else digest.size
        check = hashlib.sha256() if (offset, end) == (0, digest.size) else None

        def next_part(at: int) -> bytes:
            part = file.read(min(CHUNK, end - at))
            if check is not None:
                check.update(part)
            return part

        try:
            await self.do(file.seek, offset)
            at = offset
            while at < end:
                part = await self.do(next_part, at)
                at += len(part)
                if not part or (at == end and check is not None and check.hexdigest() != digest.hash):
                    await self._corrupt(name)
                    message = f"blob {digest} was damaged in the server's store and is removed: send it again"
                    raise ServiceError("DATA_LOSS", "BLOB_CORRUPT", message)
                yield part
        finally:
            file.close()

    async def _open(self, name: str, digest: Digest) -> BinaryIO:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._objects.open, name)
        except FileNotFoundError:
            await self._corrupt(name)
            raise not_found(digest) from None
        except OSError as e:
            raise failed(e) from e

    async def _corrupt(self, name: str) -> None:
        await self._remove(await self._index.drop_object(name))

    # ---- writing ----

    async def put(self, principal: str, data: bytes, *, owner: str = "", seconds: float = 0) -> Digest:
        digest = await self.do(Digest.of, data)
        if not digest.size:
            return digest
        if await self._index.touch(principal, [digest]):
            if owner:
                await self._index.pin(principal, digest, owner, seconds)
            return digest
        await self.do(self._objects.check_room, digest.size)
        await self._store(principal, digest, lambda name: self._objects.put(name, data), owner=owner, seconds=seconds)
        return digest

    async def _store(
        self, principal: str, digest: Digest, write: Callable[[str], None], *, upload: str = "", owner: str = "", seconds: float = 0
    ) -> None:
        """Makes a blob of what ``write`` puts into the object of a name. upload: has reserved room for it, and ends."""
        name, freed = await self._index.begin(principal, digest, reserved=bool(upload))
        await self._remove(freed)
        try:
            await self.do(write, name)
        except BaseException:
            await self._remove(await self._index.abandon(name))
            raise
        await self._remove(await self._index.commit(principal, digest, name, upload, owner, seconds))

    async def upload(self, principal: str, digest: Digest, upload_id: str, compressor: str = "") -> StagedUpload | CompleteUpload:
        check_digest(digest)
        compressor = check_compressor(compressor)
        _check_upload_id(upload_id)
        if not digest.size or await self._index.touch(principal, [digest]):
            return CompleteUpload(digest)
        await self._remove(await self._index.upload(principal, upload_id, digest, compressor))
        await self.do(self._objects.check_room, digest.size)
        hold = self.staging.hold(principal, upload_id)
        staged = await self.do(self.staging.open, hold)
        return StagedUpload(self, principal, upload_id, digest, compressor, hold, staged)

    async def renew(self, principal: str, upload_id: str, digest: Digest, compressor: str) -> None:
        """Keeps an upload's reservation."""
        await self._index.upload(principal, upload_id, digest, compressor)

    async def give_up(self, principal: str, upload_id: str) -> None:
        """Ends an upload's reservation."""
        await self._index.end_upload(principal, upload_id)

    async def publish(self, principal: str, upload_id: str, digest: Digest, plain: Path) -> None:
        """Makes a file of verified content a blob."""
        await self._store(principal, digest, lambda name: self._objects.put_file(name, plain), upload=upload_id)

    async def upload_status(self, principal: str, digest: Digest, upload_id: str) -> tuple[int, bool]:
        check_digest(digest)
        if not digest.size or await self._index.touch(principal, [digest]):
            return digest.size, True
        _check_upload_id(upload_id)
        return await self.do(self.staging.size, principal, upload_id), False

    async def link(self, source: str, digest: Digest, principal: str) -> None:
        if digest.size:
            await self._remove(await self._index.link(source, digest, principal))

    async def pin(self, principal: str, digest: Digest, owner: str, seconds: float) -> None:
        if digest.size:
            await self._index.pin(principal, digest, owner, seconds)

    async def unpin(self, owner: str) -> None:
        await self._index.unpin(owner)

    async def usage(self, principal: str | None = None) -> Usage:
        return await self._index.usage(principal)

    async def sweep(self) -> None:
        await self._remove(await self._index.expire())
        await self.do(self.staging.sweep, time.time())

    async def close(self) -> None:
        self._threads.shutdown()


def open_blobs(url: str, database: Database, root: Path, limits: BlobLimits) -> IndexedBlobStore:
    """The store for ``url``: a directory, or an fsspec URL; then ``root`` keeps uploads that are not finished.

    ValueError for a URL that fsspec does not know, or whose package is missing.
    """
    if "://" not in url:
        return IndexedBlobStore(database, Path(url), limits)
    try:
        return IndexedBlobStore(database, root, limits, FsspecObjects(url))
    except ImportError as e:
        raise ValueError(f"blobs on {url.partition('://')[0]}:// need a package that is missing: {e}") from e


