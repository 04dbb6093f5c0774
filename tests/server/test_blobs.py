"""Blobs and the RPCs of ContentStore: namespaces, resuming, compression, quotas, eviction, what processes that died left, damage."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from disc_tf_server.blobs import BlobLimits, IndexedBlobStore, open_blobs
from disc_tf_server.content import ContentLimits, ContentService
from disc_tf_server.database import SqliteDatabase
from disc_tf_server.interfaces import Digest, ServiceError

from disc_tf.remote.messages import new
from tests.server.harness import failing

KB = 1 << 10
MB = 1 << 20


class Clock(SqliteDatabase):
    """A database whose time is `ahead` seconds ahead."""

    ahead = 0.0

    async def run(self, lock: str, work: Callable[[Any], Any]) -> Any:
        def later(tx: Any) -> Any:
            tx.now += self.ahead
            return work(tx)

        return await super().run(lock, later)


class World:
    """A store of one test, its clock and its files."""

    def __init__(self, root: Path, url: str, limits: BlobLimits) -> None:
        self.root, self.database = root, Clock(root / "db")
        self.store: IndexedBlobStore = open_blobs(url or str(root / "blobs"), self.database, root / "blobs", limits)
        self.service = ContentService(self.store, ContentLimits(max_digests=5, max_streams=2, idle_s=0.2, chunk=100 * KB))

    def objects(self) -> list[Path]:
        return [p for p in (self.root / "blobs" / "objects").rglob("*") if p.is_file()]

    def uploads(self) -> list[Path]:
        return [p for p in (self.root / "blobs" / "uploads").iterdir() if p.is_file()]


def test(scenario: Callable[[World], Coroutine[Any, Any, None]], root: Path, url: str = "", **limits: Any) -> None:
    async def run() -> None:
        world = World(root, url, BlobLimits(**{"min_free_bytes": 0, "grace_s": 10.0, **limits}))
        await world.store.prepare()
        try:
            await scenario(world)
        finally:
            await world.store.close()
            await world.database.close()

    asyncio.run(run())


test.__test__ = False  # type: ignore[attr-defined]


async def stream(messages: Iterable[Any]) -> AsyncIterator[Any]:
    for m in messages:
        yield m


def digest_of(data: bytes) -> Any:
    return new("Digest", hash=Digest.of(data).hash, size_bytes=len(data))


def writes(data: bytes, compressor: str = "", id: str = "u1", at: int = 0, to: int | None = None, of: Any = None) -> list[Any]:
    """The messages of an upload of ``data`` from ``at`` to ``to`` of its (compressed) stream; ``finish`` if that is the end."""
    sent = zstandard.compress(data) if compressor == "zstd" else data
    end = len(sent) if to is None else to
    pieces = [(p, sent[p : min(p + 64 * KB, end)]) for p in range(at, end, 64 * KB)] or [(end, b"")]
    made = [new("WriteBlobRequest", write_offset=p, data=d) for p, d in pieces]
    made[0].digest.CopyFrom(of or digest_of(data))
    made[0].upload_id, made[0].compressor = id, compressor
    made[-1].finish = end == len(sent)
    return made


async def read(world: World, principal: str, data: bytes, **fields: Any) -> bytes:
    request = new("ReadBlobRequest", digest=digest_of(data), **fields)
    parts = [m.data async for m in world.service.read(principal, request)]
    assert all(len(p) <= 100 * KB for p in parts)
    return b"".join(parts)


@pytest.mark.parametrize("where", ["", "memory://disc-tf-test"])
@pytest.mark.parametrize("compressor", ["", "zstd"])
def test_there_and_back(tmp_path: Path, where: str, compressor: str) -> None:
    data = os.urandom(3 * MB + 17) + bytes(MB)

    async def scenario(world: World) -> None:
        asked = new("FindMissingBlobsRequest", digests=[digest_of(data), digest_of(b""), digest_of(data)])
        missing = await world.service.find_missing("a", asked)
        assert list(missing.missing) == [digest_of(data)]
        done = await world.service.write("a", stream(writes(data, compressor)))
        assert done.complete and done.committed_size == len(data)
        assert world.uploads() == []
        assert not (await world.service.find_missing("a", new("FindMissingBlobsRequest", digests=[digest_of(data)]))).missing
        assert await read(world, "a", data) == data
        assert zstandard.ZstdDecompressor().decompressobj().decompress(await read(world, "a", data, compressor="zstd")) == data
        assert await read(world, "a", data, read_offset=100, read_limit=MB) == data[100 : 100 + MB]
        assert await read(world, "a", data, read_offset=len(data)) == b""
        assert await world.store.get("a", Digest.of(data)) == data
        # what is there is not sent again
        again = await world.service.write("a", stream(writes(data, compressor, id="u2", to=10)))
        assert again.complete and again.committed_size == len(data)
        usage = await world.store.usage("a")
        assert (usage.bytes, usage.blobs, usage.uploads, usage.reserved) == (len(data), 1, 0, 0)
        assert await world.store.get("a", Digest.of(b"")) == b"" and await read(world, "a", b"") == b""

    test(scenario, tmp_path, where)


def test_namespaces_are_apart(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        digest = await world.store.put("a", b"content")
        absent = await failing(world.store.get("b", Digest.of(b"never was")))
        foreign = await failing(world.store.get("b", digest))
        assert (foreign.code, foreign.reason) == (absent.code, absent.reason) == ("NOT_FOUND", "BLOB_NOT_FOUND")
        assert await world.store.missing("b", [digest]) == [digest]
        assert (await failing(world.store.pin("b", digest, "o", 1))).code == "NOT_FOUND"
        assert (await failing(world.store.link("b", digest, "c"))).code == "NOT_FOUND"
        await world.store.link("a", digest, "b")
        assert await world.store.get("b", digest) == b"content" and len(world.objects()) == 1
        assert (await world.store.usage()).bytes == 7 and (await world.store.usage("b")).bytes == 7
        # the same upload id of two principals is two uploads
        other = os.urandom(200)
        await world.service.write("a", stream(writes(other, id="same", to=100)))
        assert (await world.store.upload_status("b", Digest.of(other), "same")) == (0, False)

    test(scenario, tmp_path)


@pytest.mark.parametrize("compressor", ["", "zstd"])
def test_a_broken_upload_goes_on(tmp_path: Path, compressor: str) -> None:
    data = os.urandom(MB)

    async def scenario(world: World) -> None:
        half = await world.service.write("a", stream(writes(data, compressor, to=500 * KB)))
        assert (half.complete, half.committed_size) == (False, 500 * KB)
        gap = await failing(world.service.write("a", stream(writes(data, compressor, at=600 * KB))))
        assert (gap.code, gap.metadata["committed_size"]) == ("OUT_OF_RANGE", str(500 * KB))
        # a server that was started again knows it still
        second = IndexedBlobStore(world.database, world.root / "blobs", world.store.limits)
        asked = new("QueryWriteStatusRequest", upload_id="u1", digest=digest_of(data))
        status = await ContentService(second).query_write_status("a", asked)
        assert (status.committed_size, status.complete) == (500 * KB, False)
        # what is there already may be sent again
        done = await ContentService(second).write("a", stream(writes(data, compressor, at=450 * KB)))
        assert done.complete and await second.get("a", Digest.of(data)) == data
        await second.close()

    test(scenario, tmp_path)


def test_a_newer_connection_takes_an_upload_over(tmp_path: Path) -> None:
    data = os.urandom(300)

    async def scenario(world: World) -> None:
        first = await world.store.upload("a", Digest.of(data), "u")
        await first.write(0, data[:100])
        second = await world.store.upload("a", Digest.of(data), "u")
        assert second.committed == 100
        assert (await failing(first.write(100, data[100:]))).reason == "UPLOAD_TAKEN_OVER"
        assert (await failing(first.finish())).reason == "UPLOAD_TAKEN_OVER"
        await first.release()
        await second.write(100, data[100:])
        await second.finish()
        await second.release()
        assert await world.store.get("a", Digest.of(data)) == data

    test(scenario, tmp_path)


def changed(messages: list[Any], index: int, **fields: Any) -> list[Any]:
    for name, value in fields.items():
        if name == "digest":
            messages[index].digest.CopyFrom(value)
        else:
            setattr(messages[index], name, value)
    return messages


def digest(hash: str, size: int) -> Any:
    return new("Digest", hash=hash, size_bytes=size)


DATA = os.urandom(200 * KB)
BOMB = bytes(50 * MB)
BAD_WRITES: dict[str, tuple[Callable[[], list[Any]], str, str]] = {
    "no message": (lambda: [], "INVALID_ARGUMENT", "NO_DATA"),
    "empty messages": (lambda: [*writes(DATA, to=1), *[new("WriteBlobRequest", write_offset=1)] * 70], "INVALID_ARGUMENT", "NO_DATA"),
    "other content": (lambda: writes(DATA, of=digest_of(os.urandom(200 * KB))), "INVALID_ARGUMENT", "BLOB_DIGEST"),
    "too long": (lambda: writes(DATA, of=digest_of(DATA[:-1])), "INVALID_ARGUMENT", "BLOB_SIZE"),
    "too short": (lambda: writes(DATA, of=digest_of(DATA + b"x")), "INVALID_ARGUMENT", "BLOB_SIZE"),
    "negative offset": (lambda: changed(writes(DATA), 1, write_offset=-1), "OUT_OF_RANGE", "BAD_OFFSET"),
    "not zstd": (lambda: changed(writes(DATA), 0, compressor="zstd"), "INVALID_ARGUMENT", "BAD_COMPRESSION"),
    "cut off zstd": (lambda: changed(writes(DATA, "zstd", to=100 * KB), -1, finish=True), "INVALID_ARGUMENT", ""),
    "more than declared": (lambda: writes(BOMB, "zstd", of=digest_of(DATA)), "INVALID_ARGUMENT", "BLOB_SIZE"),
    "bomb": (lambda: writes(BOMB, "zstd"), "INVALID_ARGUMENT", "COMPRESSION_RATIO"),
    "unknown compressor": (lambda: changed(writes(DATA), 0, compressor="lzma"), "INVALID_ARGUMENT", "BAD_COMPRESSOR"),
    "path as id": (lambda: changed(writes(DATA), 0, upload_id="../../x"), "INVALID_ARGUMENT", "BAD_UPLOAD_ID"),
    "no id": (lambda: changed(writes(DATA), 0, upload_id=""), "INVALID_ARGUMENT", "BAD_UPLOAD_ID"),
    "path as hash": (lambda: changed(writes(DATA), 0, digest=digest("../x", 3)), "INVALID_ARGUMENT", "BAD_DIGEST"),
    "negative size": (lambda: changed(writes(DATA), 0, digest=digest("a" * 64, -1)), "INVALID_ARGUMENT", "BAD_DIGEST"),
    "giant": (lambda: changed(writes(DATA), 0, digest=digest("a" * 64, 1 << 60)), "RESOURCE_EXHAUSTED", "BLOB_TOO_LARGE"),
    "other digest": (lambda: changed(writes(DATA), 1, digest=digest_of(b"x")), "INVALID_ARGUMENT", "UPLOAD_CHANGED"),
    "other compressor": (lambda: changed(writes(DATA), 1, compressor="zstd"), "INVALID_ARGUMENT", "UPLOAD_CHANGED"),
}


def test_uploads_that_are_refused_leave_nothing(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        for i, (name, (messages, code, reason)) in enumerate(BAD_WRITES.items()):
            made = messages()
            if made and made[0].upload_id == "u1":
                made[0].upload_id = f"bad{i}"
            error = await failing(world.service.write("a", stream(made)))
            assert error.code == code and error.reason == (reason or error.reason), (name, error, error.reason)
        assert world.objects() == []
        world.database.ahead = 4000
        os.utime(world.root / "blobs" / "uploads")
        for path in world.uploads():
            os.utime(path, (1, 1))
        await world.store.sweep()
        assert world.uploads() == [] and (await world.store.usage()).reserved == 0

    test(scenario, tmp_path)


def test_an_idle_stream_is_ended_and_can_go_on(tmp_path: Path) -> None:
    async def slow() -> AsyncIterator[Any]:
        yield writes(DATA, to=1000)[0]
        await asyncio.sleep(10)

    async def scenario(world: World) -> None:
        error = await failing(world.service.write("a", slow()))
        assert (error.code, error.reason) == ("ABORTED", "STREAM_IDLE")
        assert await world.store.upload_status("a", Digest.of(DATA), "u1") == (1000, False)
        assert (await world.service.write("a", stream(writes(DATA, at=1000)))).complete

    test(scenario, tmp_path)


def test_streams_and_digests_are_bounded(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        error = await failing(world.service.find_missing("a", new("FindMissingBlobsRequest", digests=[digest_of(b"x")] * 6)))
        assert error.reason == "TOO_MANY_DIGESTS"
        data = os.urandom(MB)
        await world.store.put("a", data)
        request = new("ReadBlobRequest", digest=digest_of(data))
        readers = [world.service.read("a", request) for _ in range(3)]
        await anext(readers[0])
        await anext(readers[1])
        error = await failing(anext(readers[2]))
        assert error.reason == "QUOTA_STREAMS" and error.retry_after
        for reader in readers:
            await reader.aclose()  # type: ignore[attr-defined]
        assert await read(world, "a", data) == data
        for fields in ({"read_offset": -1}, {"read_offset": MB + 1}, {"read_limit": -1}):
            assert (await failing(read(world, "a", data, **fields))).code == "OUT_OF_RANGE"

    test(scenario, tmp_path)


def test_quotas(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        error = await failing(world.store.put("a", os.urandom(1001)))
        assert error.reason == "BLOB_TOO_LARGE" and error.metadata == {"limit": "1000"}
        first = await world.store.put("a", os.urandom(900))
        await world.store.put("b", os.urandom(900))
        await world.store.put("a", os.urandom(900))
        # in use a moment ago: nothing is evicted
        error = await failing(world.store.put("a", os.urandom(900)))
        assert error.reason == "QUOTA_BYTES" and error.retry_after == 10.0
        held = await world.store.upload("b", Digest("a" * 64, 1000), "u1")
        held2 = await failing(world.store.upload("b", Digest("b" * 64, 1000), "u2"))
        assert held2.reason == "QUOTA_BYTES"
        await held.release()
        await world.store.upload("c", Digest("b" * 64, 1), "u3")
        await world.store.upload("c", Digest("c" * 64, 1), "u4")
        assert (await failing(world.store.upload("c", Digest("d" * 64, 1), "u5"))).reason == "QUOTA_UPLOADS"
        world.database.ahead = 20
        await world.store.missing("a", [first])
        third = await world.store.put("a", os.urandom(900))
        # the oldest use went, not the oldest blob
        assert await world.store.missing("a", [first, third]) == []
        assert (await world.store.usage("a")).blobs == 2 and len(world.objects()) == 3

    test(scenario, tmp_path, max_blob_bytes=1000, quota_bytes=2000, max_uploads=2)


def test_a_full_store_evicts_of_whoever_holds_the_most(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        small = await world.store.put("small", os.urandom(100))
        pinned = await world.store.put("large", os.urandom(100), owner="operation", seconds=1000)
        others = [await world.store.put("large", os.urandom(100)) for _ in range(8)]
        assert (await failing(world.store.put("new", os.urandom(200)))).reason == "STORE_FULL"
        world.database.ahead = 20
        made = await world.store.put("new", os.urandom(200))
        assert await world.store.missing("small", [small]) == [] and await world.store.missing("new", [made]) == []
        gone = await world.store.missing("large", [pinned, *others])
        # what was needed, and a little more
        assert gone == others[:3]
        assert len(world.objects()) == 8

    test(scenario, tmp_path, total_bytes=1000)


def test_retention_and_pins(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        kept, dropped, short = [await world.store.put("a", bytes([i])) for i in range(3)]
        await world.store.pin("a", kept, "o1", 5000)
        await world.store.pin("a", short, "o2", 10)
        world.database.ahead = 2000
        await world.store.sweep()
        assert len(world.objects()) == 1
        assert await world.store.missing("a", [kept, dropped, short]) == [dropped, short]
        await world.store.unpin("o1")
        world.database.ahead = 4000
        await world.store.sweep()
        assert world.objects() == [] and (await world.store.usage()).blobs == 0

    test(scenario, tmp_path, retention_s=1000.0)


def test_damage_is_found_and_removed(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        data = os.urandom(2 * MB + 5)
        digest = await world.store.put("a", data)
        await world.store.link("a", digest, "b")

        def hurt(change: Callable[[bytearray], object]) -> None:
            (path,) = world.objects()
            content = bytearray(path.read_bytes())
            change(content)
            path.write_bytes(content)

        for change in (lambda c: c.__setitem__(5, c[5] ^ 1), lambda c: c.__delitem__(slice(MB, None)), lambda c: c.clear()):
            hurt(change)
            got: list[bytes] = []
            with pytest.raises(ServiceError) as e:
                async for part in world.store.read("a", digest):
                    got.append(part)
            assert e.value.code == "DATA_LOSS" and len(b"".join(got)) < len(data)
            assert world.objects() == [] and await world.store.missing("b", [digest]) == [digest]
            assert (await failing(world.store.get("b", digest))).code == "NOT_FOUND"
            await world.store.put("a", data)
        hurt(lambda c: c.__setitem__(5, c[5] ^ 1))
        assert (await failing(world.store.get("a", digest))).code == "NOT_FOUND"
        await world.store.put("a", data)
        world.objects()[0].unlink()
        assert (await failing(world.store.get("a", digest))).code == "NOT_FOUND"
        assert (await world.store.usage()).bytes == 0

    test(scenario, tmp_path)


def test_what_a_killed_server_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        class Killed(BaseException):
            pass

        def die(*_: object, **__: object) -> None:
            raise Killed

        # between the bytes and the index, and between the index and the removal
        with monkeypatch.context() as m:
            m.setattr(world.store._index, "commit", die)
            m.setattr(world.store._index, "abandon", die)
            with pytest.raises(Killed):
                await world.store.put("a", b"lost")
        digest = await world.store.put("a", b"old")
        with monkeypatch.context() as m:
            m.setattr(world.store._objects, "delete", die)
            world.database.ahead = 2000
            with pytest.raises(Killed):
                await world.store.sweep()
        assert await world.store.missing("a", [digest]) == [digest] and len(world.objects()) == 2
        world.database.ahead = 7 * 3600
        await world.store.sweep()
        assert world.objects() == [] and (await world.store.usage()).bytes == 0

    test(scenario, tmp_path, retention_s=1000.0)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        error = await failing(world.store.put("a", b"x"))
        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "STORE_FULL") and error.retry_after
        assert (await failing(world.store.upload("a", Digest.of(b"x"), "u"))).reason == "STORE_FULL"

    test(scenario, tmp_path / "1", min_free_bytes=1 << 60)

    async def during(world: World) -> None:
        upload = await world.store.upload("a", Digest.of(DATA), "u")
        await upload.write(0, DATA[:1000])

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as m:
            m.setattr(os, "pwrite", full)
            assert (await failing(upload.write(1000, DATA[1000:]))).reason == "STORE_FULL"
        assert upload.committed == 1000
        await upload.write(1000, DATA[1000:])
        with monkeypatch.context() as m:
            m.setattr(os, "replace", full)
            assert (await failing(upload.finish())).reason == "STORE_FULL"
        assert world.objects() == []
        await upload.finish()
        assert await world.store.get("a", Digest.of(DATA)) == DATA

    test(during, tmp_path / "2")


def test_many_at_once(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        blobs = [os.urandom(1000 + i) for i in range(20)]
        await asyncio.gather(*(world.store.put(f"p{i % 4}", blobs[i % 20]) for i in range(60)))
        for i, b in enumerate(blobs):
            assert await world.store.get(f"p{i % 4}", Digest.of(b)) == b
        # the bytes of those who came second were removed
        assert len(world.objects()) == (await world.store.usage()).blobs == 20

    test(scenario, tmp_path)


def test_unknown_urls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        open_blobs("nosuch://bucket", SqliteDatabase(tmp_path / "db"), tmp_path, BlobLimits())
