"""The stores as a whole: random walks against a model, on SQLite and PostgreSQL; processes that are killed while they use them."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from disc_tf_server.blobs import BlobLimits
from disc_tf_server.database import Transaction
from disc_tf_server.interfaces import Digest, Outcome, ServiceError, State, Submission
from disc_tf_server.operations_store import OperationLimits
from disc_tf_server.stores import Stores, open_stores

ROOT = Path(__file__).parents[2]
LIMITS = BlobLimits(max_blob_bytes=400, quota_bytes=1500, total_bytes=4000, max_uploads=3, grace_s=0.0, min_free_bytes=0)
PRINCIPALS = ["a", "b", "c", "d"]

REFUSED = {"BLOB_NOT_FOUND", "BLOB_TOO_LARGE", "QUOTA_BYTES", "STORE_FULL", "QUOTA_UPLOADS", "UPLOAD_ID_REUSED", "BLOB_SIZE"}


async def walk(stores: Stores, root: Path, rng: random.Random, steps: int) -> None:
    """Random calls; what the store says is held against what was done."""
    contents = [bytes([i]) * rng.randrange(1, 500) for i in range(30)]
    given: dict[str, set[bytes]] = {p: set() for p in PRINCIPALS}
    pinned: dict[tuple[str, bytes], bool] = {}
    refused = evicted = 0
    for step in range(steps):
        principal, data = rng.choice(PRINCIPALS), rng.choice(contents)
        digest = Digest.of(data)
        try:
            match rng.randrange(8):
                case 0 | 1:
                    await stores.blobs.put(principal, data)
                    given[principal].add(data)
                case 2 | 3:
                    assert await stores.blobs.get(principal, digest) == data and data in given[principal]
                case 4:
                    other = rng.choice(PRINCIPALS)
                    await stores.blobs.link(other, digest, principal)
                    assert data in given[other]
                    given[principal].add(data)
                case 5:
                    upload = await stores.blobs.upload(principal, digest, f"u{rng.randrange(6)}")
                    try:
                        await upload.write(0, data[: rng.choice((10, len(data)))])
                        await upload.finish()
                        given[principal].add(data)
                    finally:
                        await upload.release()
                case 6:
                    await stores.blobs.pin(principal, digest, f"o{step}", 1000)
                    pinned[principal, data] = True
                case 7:
                    await stores.blobs.sweep()
                    on_disk = sorted(p.stat().st_size for p in (root / "blobs" / "objects").rglob("*") if p.is_file())
                    assert sum(on_disk) == (await stores.blobs.usage()).bytes
        except ServiceError as e:
            assert e.reason in REFUSED
            refused += 1
            evicted += e.reason == "BLOB_NOT_FOUND" and data in given[principal]
            # what is pinned does not go, what was never given is not there
            assert not (e.reason == "BLOB_NOT_FOUND" and pinned.get((principal, data)) and len(data) <= 400)
        for p in PRINCIPALS:
            usage = await stores.blobs.usage(p)
            assert usage.bytes + usage.reserved <= LIMITS.quota_bytes and usage.uploads <= 3
        whole = await stores.blobs.usage()
        assert whole.bytes + whole.reserved <= LIMITS.total_bytes
    assert refused and evicted


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_walks(kind: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("postgres") if kind == "postgres" else ""

    async def scenario() -> None:
        stores = await open_stores(tmp_path, operations=url, blob_limits=LIMITS)
        try:
            await walk(stores, tmp_path, random.Random(seed), 250)
        finally:
            await stores.close()

    asyncio.run(scenario())


async def use(root: Path, name: str) -> None:
    """What a server does, over and over, until it is killed. It prints what was promised to callers."""
    limits = OperationLimits(lease_s=0.3, max_attempts=1000, max_operations=10_000, max_queue=10_000)
    stores = await open_stores(root, blob_limits=BlobLimits(min_free_bytes=0, max_uploads=10**6), operation_limits=limits)

    def promise(*words: str) -> None:
        sys.stdout.write(" ".join(words) + "\n")
        sys.stdout.flush()

    while True:
        data = secrets.token_bytes(5000)
        digest = await stores.blobs.put("p", data, owner="test", seconds=1000)
        promise("blob", digest.hash)
        operation, _ = await stores.operations.submit(Submission("p", secrets.token_hex(8), b"b" * 32, secrets.token_bytes(8), b"work"))
        promise("operation", operation.id)
        await stores.operations.sweep(b"lost", b"late")
        while (lease := await stores.operations.lease(name)) is not None:
            await stores.operations.append(lease.work_id, lease.fence, [("", secrets.token_bytes(8))])
            if random.random() < 0.8 and await stores.operations.commit(lease.work_id, lease.fence, Outcome(result=lease.work_id.encode())):
                promise("done", lease.work_id)
        upload = await stores.blobs.upload("p", Digest(secrets.token_hex(32), 5000), secrets.token_hex(8))
        await upload.write(0, data[:1000])
        await upload.release()


@pytest.mark.slow
def test_servers_that_are_killed_lose_nothing_that_they_promised(tmp_path: Path) -> None:
    promised: dict[str, set[str]] = {"blob": set(), "operation": set(), "done": set()}
    code = "import asyncio, sys; from pathlib import Path; import test_stores; asyncio.run(test_stores.use(Path(sys.argv[1]), sys.argv[2]))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "server"), str(ROOT / "tests" / "server")])}
    rng = random.Random(0)
    for round in range(6):
        processes = [
            subprocess.Popen([sys.executable, "-c", code, str(tmp_path), f"w{i}"], stdout=subprocess.PIPE, env=environment, text=True)
            for i in range(2)
        ]
        time.sleep(1.5 + rng.random())
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            assert process.stdout is not None
            lines = process.stdout.read().split("\n")
            assert process.wait() == -signal.SIGKILL, f"round {round}: it ended by itself"
            for words in (line.split() for line in lines[:-1]):  # the last line may be cut off
                assert words[0] != "done" or words[1] not in promised["done"], "committed twice"
                promised[words[0]].add(words[1])

    async def look() -> None:
        stores = await open_stores(tmp_path, operation_limits=OperationLimits(lease_s=0.3, max_attempts=1000))
        held = {d.hash for d in (Digest(h, 5000) for h in promised["blob"])}
        missing = await stores.blobs.missing("p", [Digest(h, 5000) for h in held])
        assert not missing and len(held) > 20
        for hash in list(held)[:20]:
            await stores.blobs.get("p", Digest(hash, 5000))
        await asyncio.sleep(0.4)
        await stores.operations.sweep(b"lost", b"late")
        while (lease := await stores.operations.lease("last")) is not None:
            assert lease.work_id not in promised["done"]
            assert await stores.operations.commit(lease.work_id, lease.fence, Outcome(result=lease.work_id.encode()))
        for id in promised["operation"]:
            found = await stores.operations.get("p", id)
            assert found.state is State.SUCCEEDED and found.outcome is not None and found.outcome.result == found.work_id.encode()
        # nothing is left behind of what was half written
        await stores.database.run("blobs", lambda tx: tx.run("UPDATE objects SET touched = 0 WHERE state = 'writing'"))
        await stores.blobs.sweep()
        files = [p for p in (tmp_path / "blobs" / "objects").rglob("*") if p.is_file()]
        assert len(files) == (await stores.blobs.usage()).blobs
        await stores.close()

    asyncio.run(look())


def test_a_database_without_room(tmp_path: Path) -> None:
    def limit(pages: int) -> Callable[[Transaction], object]:
        return lambda tx: tx.rows(f"PRAGMA max_page_count = {pages}")

    async def scenario() -> None:
        stores = await open_stores(tmp_path)
        await stores.database.run("operations", limit(1))  # what it has, and no more
        before = 0
        with pytest.raises(ServiceError) as e:
            for before in range(1000):
                await stores.operations.submit(Submission("p", f"r{before}", b"b" * 32, secrets.token_bytes(8), bytes(3000)))
        assert (e.value.code, e.value.reason) == ("RESOURCE_EXHAUSTED", "STORE_FULL") and e.value.retry_after
        await stores.database.run("operations", limit(1 << 30))
        # nothing of the failed one is there, and what was there is
        found, _ = await stores.operations.list("p", 1000)
        assert sorted(o.request_id for o in found) == sorted(f"r{i}" for i in range(before))
        assert (await stores.operations.submit(Submission("p", f"r{before}", b"b" * 32, b"key", bytes(3000))))[1]
        await stores.close()

    asyncio.run(scenario())


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    async def scenario() -> None:
        with pytest.raises(OSError):
            await open_stores(tmp_path / "file" / "data")
        with pytest.raises(ValueError, match="redis:// is not known"):
            await open_stores(tmp_path / "a", operations="redis://x")
        with pytest.raises(ValueError):
            await open_stores(tmp_path / "b", blobs="nosuch://x")
        stores = await open_stores(tmp_path / "c")
        assert (tmp_path / "c").stat().st_mode & 0o777 == 0o700
        await stores.close()

    asyncio.run(scenario())
