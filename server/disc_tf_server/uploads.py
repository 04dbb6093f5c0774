"""Uploads that are under way: a local file each, kept over dropped connections and restarts until it is finished or forgotten."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from disc_tf_server.blob_index import BlobLimits
from disc_tf_server.interfaces import Digest, ServiceError

T = TypeVar("T")

COMPRESSORS = ("", "zstd")
CHUNK = 1 << 20
#: largest window of a zstd frame: the default of every level up to 19
_WINDOW = 8 << 20
#: plain bytes that need no ratio
_FREE_BYTES = 1 << 20
_TOUCH_S = 300.0


@dataclass
class Hold:
    """Who writes an upload now; a newer hold ends it. name: of the upload's file."""

    name: str
    lost: bool = False


@dataclass
class StagedFile:
    """The file of an upload, open. size: bytes that are in it."""

    path: Path
    file: BinaryIO
    size: int


class Staging:
    """The directory of unfinished uploads of this front end. Names are digests of principal and upload id, never a caller's text."""

    def __init__(self, root: Path, limits: BlobLimits) -> None:
        self._root, self.limits = root, limits
        self._holds: dict[str, Hold] = {}
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _name(self, principal: str, upload_id: str) -> str:
        return hashlib.sha256(f"{len(principal)}:{principal}:{upload_id}".encode()).hexdigest()

    def hold(self, principal: str, upload_id: str) -> Hold:
        """A new hold; the one before is lost."""
        name = self._name(principal, upload_id)
        if (before := self._holds.get(name)) is not None:
            before.lost = True
        made = self._holds[name] = Hold(name)
        return made

    def release(self, hold: Hold) -> None:
        """Ends a hold."""
        if self._holds.get(hold.name) is hold:
            del self._holds[hold.name]
        hold.lost = True

    def open(self, hold: Hold) -> StagedFile:
        """The file, made if it is not there. ServiceError ABORTED if the hold was lost meanwhile."""
        path = self._root / hold.name
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if hold.lost:
            os.close(handle)
            raise taken_over()
        return StagedFile(path, os.fdopen(handle, "r+b", buffering=0), os.fstat(handle).st_size)

    def size(self, principal: str, upload_id: str) -> int:
        """Bytes of an upload that are here."""
        try:
            return (self._root / self._name(principal, upload_id)).stat().st_size
        except FileNotFoundError:
            return 0

    def sweep(self, now: float) -> None:
        """Removes files that nobody holds and nobody has written to for long."""
        for path in list(self._root.iterdir()):
            with contextlib.suppress(OSError):
                # also what a clock that was set has put into the future
                if path.name.partition(".")[0] not in self._holds and abs(now - path.stat().st_mtime) > self.limits.upload_idle_s:
                    path.unlink()


def taken_over() -> ServiceError:
    """The error for whoever lost the hold."""
    return ServiceError("ABORTED", "UPLOAD_TAKEN_OVER", "another connection goes on with this upload")


class Home(Protocol):
    """What an upload asks of its store."""

    staging: Staging

    async def do(self, work: Callable[..., T], *arguments: object) -> T:
        """Runs it in a thread."""
        ...

    async def publish(self, principal: str, upload_id: str, digest: Digest, plain: Path) -> None:
        """Makes a file of verified content a blob, and ends the reservation."""
        ...

    async def renew(self, principal: str, upload_id: str, digest: Digest, compressor: str) -> None:
        """Keeps the reservation."""
        ...

    async def give_up(self, principal: str, upload_id: str) -> None:
        """Ends the reservation."""
        ...


class CompleteUpload:
    """An `Upload` of a blob that is there already."""

    complete = True

    def __init__(self, digest: Digest) -> None:
        self.committed = digest.size

    async def write(self, offset: int, data: bytes) -> None:
        """Ignores it."""

    async def finish(self) -> None: ...

    async def release(self) -> None: ...


class StagedUpload:
    """An `Upload` into a file."""

    def __init__(self, home: Home, principal: str, upload_id: str, digest: Digest, compressor: str, hold: Hold, staged: StagedFile) -> None:
        self.complete = False
        self._home, self._principal, self._id, self._digest, self._compressor = home, principal, upload_id, digest, compressor
        self._hold, self._limits = hold, home.staging.limits
        self._staged: StagedFile | None = staged
        self._touched = time.monotonic()

    @property
    def committed(self) -> int:
        if self.complete:
            return self._digest.size
        return self._staged.size if self._staged is not None else 0

    @property
    def _most(self) -> int:
        """Bytes that the stream may have: compressing what cannot be compressed makes it a little longer."""
        size = self._digest.size
        return size if not self._compressor else size + size // 64 + (64 << 10)

    def _file(self) -> StagedFile:
        if self._hold.lost or self._staged is None:
            raise taken_over()
        return self._staged

    async def write(self, offset: int, data: bytes) -> None:
        if self.complete:
            return
        staged = self._file()
        if offset > staged.size or offset < 0:
            message = f"write_offset {offset}: {staged.size} bytes are here; go on from there"
            raise ServiceError("OUT_OF_RANGE", "BAD_OFFSET", message, metadata={"committed_size": str(staged.size)}, field="write_offset")
        fresh = memoryview(data)[staged.size - offset :]
        if staged.size + len(fresh) > self._most:
            await self._throw_away()
            message = f"more data than the {self._digest.size} bytes that the digest says"
            raise ServiceError("INVALID_ARGUMENT", "BLOB_SIZE", message, field="data")
        if time.monotonic() - self._touched > _TOUCH_S:
            self._touched = time.monotonic()
            await self._home.renew(self._principal, self._id, self._digest, self._compressor)

        def work() -> None:
            view = fresh
            try:
                while view:
                    n = os.pwrite(staged.file.fileno(), view, staged.size)
                    staged.size += n
                    view = view[n:]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(staged.file.fileno(), staged.size)
                raise

        if fresh:
            await self._home.do(work)

    async def finish(self) -> None:
        if self.complete:
            return
        staged = self._file()
        plain = staged.path if not self._compressor else staged.path.with_name(f"{staged.path.name}.plain")
        try:
            await self._home.do(self._verify, staged, plain)
            if self._hold.lost:
                raise taken_over()
            await self._home.publish(self._principal, self._id, self._digest, plain)
            self.complete = True
        except ServiceError as e:
            if e.code == "INVALID_ARGUMENT":
                await self._throw_away()
            raise
        finally:
            if self._compressor:
                plain.unlink(missing_ok=True)
        staged.path.unlink(missing_ok=True)

    def _verify(self, staged: StagedFile, plain: Path) -> None:
        """Checks the content; what was compressed lies in ``plain`` afterwards."""
        os.ftruncate(staged.file.fileno(), staged.size)  # whoever held it before may have written behind our end
        staged.file.seek(0)
        if self._compressor:
            with plain.open("wb") as out:
                self._compare(*self._decompress(staged, out))
            return
        if staged.size < self._digest.size:
            message = f"finished after {staged.size} of {self._digest.size} bytes"
            raise ServiceError("INVALID_ARGUMENT", "BLOB_SIZE", message, field="finish")
        check = hashlib.sha256()
        while part := staged.file.read(CHUNK):
            check.update(part)
        self._compare(check.hexdigest(), staged.size)

    def _decompress(self, staged: StagedFile, out: BinaryIO) -> tuple[str, int]:
        """Plain content into ``out``: at most the declared size, at most the ratio. (digest, size)."""
        import zstandard

        most = min(self._digest.size, int(_FREE_BYTES + self._limits.max_ratio * staged.size))
        check, size = hashlib.sha256(), 0
        reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(staged.file, read_across_frames=True, closefd=False)
        try:
            while part := reader.read(min(CHUNK, most - size + 1)):
                size += len(part)
                if size > most:
                    if size > self._digest.size:
                        message = f"decompresses to more than the {self._digest.size} bytes that the digest says"
                        raise ServiceError("INVALID_ARGUMENT", "BLOB_SIZE", message, field="data")
                    message = f"compressed more than {self._limits.max_ratio:g} times: send it without compression"
                    raise ServiceError("INVALID_ARGUMENT", "COMPRESSION_RATIO", message, field="data")
                check.update(part)
                out.write(part)
        except zstandard.ZstdError as e:
            message = f"not zstd data, cut off, or of a window over {_WINDOW >> 20} MiB ({e})"
            raise ServiceError("INVALID_ARGUMENT", "BAD_COMPRESSION", message, field="data") from e
        return check.hexdigest(), size

    def _compare(self, hash: str, size: int) -> None:
        if (hash, size) != (self._digest.hash, self._digest.size):
            message = f"the content is {hash}/{size}, not {self._digest} as was said"
            raise ServiceError("INVALID_ARGUMENT", "BLOB_DIGEST", message, field="digest")

    async def _throw_away(self) -> None:
        """Forgets the upload."""
        if self._staged is not None and not self._hold.lost:
            self._staged.path.unlink(missing_ok=True)
            await self._home.give_up(self._principal, self._id)
        await self.release()

    async def release(self) -> None:
        if self._staged is not None:
            self._staged.file.close()
            self._staged = None
        self._home.staging.release(self._hold)
