"""What the RPCs of ContentStore do, on messages; a transport carries them and says who the caller is. Everything raises `ServiceError`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from disc_tf.remote.messages import new
from disc_tf_server.blobs import check_compressor, check_digest
from disc_tf_server.gate import Quota
from disc_tf_server.interfaces import BlobStore, Digest, ServiceError, Upload

_EMPTY_MESSAGES = 64


@dataclass(frozen=True)
class ContentLimits:
    """max_digests: of one FindMissingBlobs. max_streams: open reads and writes of a principal. idle_s: an upload that sends nothing is
    ended (what it sent stays). stream_s: longest life of a stream. chunk: bytes of a message that is sent."""

    max_digests: int = 4096
    max_streams: int = 32
    idle_s: float = 60.0
    stream_s: float = 3600.0
    chunk: int = 256 << 10


def of_message(message: Any, field: str = "digest") -> Digest:
    """The digest in a message. ServiceError INVALID_ARGUMENT."""
    digest = Digest(message.hash, message.size_bytes)
    check_digest(digest, field)
    return digest


def to_message(digest: Digest) -> Any:
    """A disc_tf.v1.Digest."""
    return new("Digest", hash=digest.hash, size_bytes=digest.size)


class ContentService:
    """The RPCs of disc_tf.v1.ContentStore for a principal."""

    def __init__(self, store: BlobStore, limits: ContentLimits | None = None) -> None:
        self._store, self.limits = store, limits or ContentLimits()
        most = self.limits.max_streams
        self._streams = Quota(most, "QUOTA_STREAMS", f"{most} streams are open, more are not allowed", retry_after=2.0)

    async def find_missing(self, principal: str, request: Any) -> Any:
        """FindMissingBlobs."""
        if len(request.digests) > self.limits.max_digests:
            message = f"{len(request.digests)} digests: ask for at most {self.limits.max_digests} at a time"
            metadata = {"limit": str(self.limits.max_digests)}
            raise ServiceError("INVALID_ARGUMENT", "TOO_MANY_DIGESTS", message, metadata=metadata, field="digests")
        digests = [of_message(d, f"digests[{i}]") for i, d in enumerate(request.digests)]
        return new("FindMissingBlobsResponse", missing=[to_message(d) for d in await self._store.missing(principal, digests)])

    async def query_write_status(self, principal: str, request: Any) -> Any:
        """QueryWriteStatus."""
        committed, complete = await self._store.upload_status(principal, of_message(request.digest), request.upload_id)
        return new("WriteBlobResponse", committed_size=committed, complete=complete)

    async def write(self, principal: str, requests: AsyncIterator[Any]) -> Any:
        """WriteBlob. What was sent stays when the stream breaks off, to be resumed."""
        with self._streams.hold(principal):
            async with _limit(self.limits.stream_s, "STREAM_TOO_LONG", "an upload's stream was open for too long"):
                return await self._write(principal, requests)

    async def _write(self, principal: str, requests: AsyncIterator[Any]) -> Any:
        upload: Upload | None = None
        first: tuple[Digest, str, str] | None = None
        empty = 0
        try:
            while True:
                async with _limit(self.limits.idle_s, "STREAM_IDLE", f"nothing was sent for {self.limits.idle_s:g} s"):
                    request = await anext(requests, None)
                if request is None:
                    break
                if upload is None or first is None:
                    first = (of_message(request.digest), request.upload_id, request.compressor)
                    upload = await self._store.upload(principal, *first)
                else:
                    self._same(first, request)
                if upload.complete:
                    break
                empty = empty + 1 if not request.data else 0
                if empty > _EMPTY_MESSAGES:
                    raise ServiceError("INVALID_ARGUMENT", "NO_DATA", "an upload of messages without data", field="data")
                await upload.write(request.write_offset, request.data)
                if request.finish:
                    await upload.finish()
                    break
            if upload is None:
                raise ServiceError("INVALID_ARGUMENT", "NO_DATA", "an upload without a message", field="digest")
            return new("WriteBlobResponse", committed_size=upload.committed, complete=upload.complete)
        finally:
            if upload is not None:
                await asyncio.shield(upload.release())

    @staticmethod
    def _same(first: tuple[Digest, str, str], request: Any) -> None:
        """Later messages may leave out what the first said, but say nothing else."""
        digest, upload_id, compressor = first
        said = request.digest.hash, request.digest.size_bytes
        if said not in (("", 0), (digest.hash, digest.size)) or request.upload_id not in ("", upload_id):
            raise ServiceError("INVALID_ARGUMENT", "UPLOAD_CHANGED", "a stream is one upload: digest and upload_id stay", field="digest")
        if request.compressor not in ("", compressor):
            raise ServiceError("INVALID_ARGUMENT", "UPLOAD_CHANGED", "a stream is one upload: its compressor stays", field="compressor")

    async def read(self, principal: str, request: Any) -> AsyncIterator[Any]:
        """ReadBlob. A blob that turns out to be damaged ends in DATA_LOSS; its last bytes are not sent then."""
        digest = of_message(request.digest)
        compressor = check_compressor(request.compressor)
        with self._streams.hold(principal):
            parts = self._store.read(principal, digest, request.read_offset, request.read_limit)
            async for data in _compressed(parts) if compressor else parts:
                for at in range(0, len(data), self.limits.chunk):
                    yield new("ReadBlobResponse", data=data[at : at + self.limits.chunk])


@contextlib.asynccontextmanager
async def _limit(seconds: float, reason: str, message: str) -> AsyncIterator[None]:
    """ServiceError ABORTED when the block takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as e:
        raise ServiceError("ABORTED", reason, message + ": query its status and go on") from e


async def _compressed(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    import zstandard

    stream = zstandard.ZstdCompressor(level=3).compressobj()
    async for part in parts:
        if data := await asyncio.to_thread(stream.compress, part):
            yield data
    yield stream.flush()
