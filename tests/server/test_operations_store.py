"""The operation store on SQLite and on PostgreSQL: sharing, fair share, leases and fences, the log, deadlines, two front ends."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from disc_tf_server.database import Database, PostgresDatabase, SqliteDatabase, open_database
from disc_tf_server.interfaces import Operation, Outcome, State, Submission
from disc_tf_server.operations_store import OperationLimits, SqlOperationStore

from tests.server.harness import failing

LIMITS = OperationLimits(max_queue=30, max_operations=10, lease_s=30.0, max_attempts=2, max_events=5, retention_s=1000.0)
BOTH = pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])


def submission(principal: str = "a", key: bytes | None = None, id: str = "", **fields: Any) -> Submission:
    key = key or secrets.token_bytes(8)
    fields = {"body": b"b" * 32, "work": b"work " + key, **fields}
    return Submission(principal, id or secrets.token_hex(8), key=key, **fields)


class Shifted:
    """A database whose clocks are `ahead` seconds ahead (``now``, ``tick``)."""

    def __init__(self, inner: Database) -> None:
        self.inner, self.ahead = inner, [0.0, 0.0]

    async def prepare(self, *arguments: Any) -> bool:
        return await self.inner.prepare(*arguments)

    async def run(self, lock: str, work: Callable[[Any], Any]) -> Any:
        def later(tx: Any) -> Any:
            tx.now += self.ahead[0]
            tx.tick += self.ahead[1]
            return work(tx)

        return await self.inner.run(lock, later)

    async def close(self) -> None:
        await self.inner.close()


class World:
    """Stores of a test: `store`, and others on the same database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.opened: list[tuple[SqlOperationStore, Database]] = []

    async def open(self, limits: OperationLimits = LIMITS) -> SqlOperationStore:
        self.database = Shifted(open_database(self.url))
        store = SqlOperationStore(self.database, limits, poll_s=0.02)
        await store.prepare()
        self.opened.append((store, self.database))
        return store


@pytest.fixture
def world(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[Callable[[World], Coroutine[Any, Any, None]]], None]:
    url = request.getfixturevalue("postgres") if kind == "postgres" else str(tmp_path / "db")

    def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        async def go() -> None:
            made = World(url)
            try:
                await asyncio.wait_for(scenario(made), 60)
            finally:
                for store, database in made.opened:
                    await store.close()
                    await database.close()

        asyncio.run(go())

    return run


async def done(store: SqlOperationStore, operation: Operation) -> Operation:
    return await store.get(operation.principal, operation.id)


@BOTH
def test_from_submission_to_result(world: Any) -> None:
    async def scenario(w: World) -> None:
        store = await w.open()
        asked = submission(private=b"names", queued=b"q", timeout=100)
        made, fresh = await store.submit(asked)
        assert fresh and made.state is State.QUEUED and made.private == b"names" and len(made.id) == 32 and made.outcome is None
        assert (await store.watch("a", made.id, 0, 0))[0][0].data == b"q"
        lease = await store.lease("w")
        assert lease is not None and (lease.work, lease.key, lease.attempt) == (asked.work, asked.key, 1) and 95 < lease.deadline_in <= 100
        assert await store.lease("w") is None
        assert (await done(store, made)).state is State.RUNNING
        beat = await store.heartbeat(lease.work_id, lease.fence)
        assert not beat.lost and 95 < beat.deadline_in <= 100
        assert await store.append(lease.work_id, lease.fence, [("progress", b"1"), ("", b"d"), ("progress", b"2")])
        assert await store.commit(lease.work_id, lease.fence, Outcome(result=b"r"))
        ended = await done(store, made)
        assert ended.state is State.SUCCEEDED and ended.outcome == Outcome(result=b"r") and ended.last_sequence == 5
        assert ended.started and ended.ended and ended.created <= ended.started <= ended.ended and ended.expires == ended.ended + 1000
        events, _ = await store.watch("a", made.id, 0, 10)
        assert [(e.sequence, e.kind, e.data) for e in events] == [(1, "queued", b"q"), (3, "", b"d"), (4, "progress", b"2")]
        # asked again: the same operation, its result
        again, fresh = await store.submit(asked)
        assert not fresh and again == ended
        assert not await store.commit(lease.work_id, lease.fence, Outcome(result=b"other"))
        assert (await store.heartbeat(lease.work_id, lease.fence)).lost

    world(scenario)


@BOTH
def test_operations_belong_to_their_principal(world: Any) -> None:
    async def scenario(w: World) -> None:
        store = await w.open()
        made, _ = await store.submit(submission("a", id="r"))
        absent = await failing(store.get("b", "0" * 32))
        for call, *more in ((store.get,), (store.watch, 0, 0), (store.cancel, b""), (store.delete,), (store.position,)):
            error = await failing(call("b", made.id, *more))  # type: ignore[operator]
            assert (error.code, error.reason) == (absent.code, absent.reason) == ("NOT_FOUND", "OPERATION_NOT_FOUND")
        for wrong in ("", "x", "0" * 33, "' OR 1=1 --", "\0" * 32):
            assert (await failing(store.get("a", wrong))).code == "NOT_FOUND"
        assert await store.list("b") == ([], "")
        other, fresh = await store.submit(submission("b", id="r"))
        assert fresh and other.id != made.id
        error = await failing(store.submit(submission("a", id="r", body=b"c" * 32)))
        assert (error.code, error.reason, error.field) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED", "request_id")
        assert (await failing(store.submit(submission("a", id="a\0b")))).reason == "BAD_REQUEST_ID"
        # a day later the id is free, before it stays with its operation even if that is forgotten
        await store.cancel("a", made.id, b"e")
        await store.delete("a", made.id)
        assert (await failing(store.submit(submission("a", id="r", body=b"c" * 32)))).reason == "REQUEST_ID_REUSED"
        w.database.ahead[0] = 86401
        assert (await store.submit(submission("a", id="r", body=b"c" * 32)))[1]

    world(scenario)


@BOTH
def test_equal_work_is_shared_until_its_last_waiter_cancels(world: Any) -> None:
    async def scenario(w: World) -> None:
        store = await w.open()
        first, _ = await store.submit(submission("a", b"key", timeout=10))
        second, fresh = await store.submit(submission("b", b"key", timeout=50))
        assert fresh and second.work_id == first.work_id and second.shared == 2
        lease = await store.lease("w")
        assert lease is not None and lease.deadline_in > 45 and await store.lease("w") is None
        await store.append(lease.work_id, lease.fence, [("", b"1")])
        cancelled = await store.cancel("b", second.id, b"gone")
        assert cancelled.state is State.CANCELLED and cancelled.outcome == Outcome(error=b"gone")
        beat = await store.heartbeat(lease.work_id, lease.fence)
        assert not beat.lost and beat.deadline_in <= 10
        await store.append(lease.work_id, lease.fence, [("", b"2")])
        # an ended operation's log has ended
        assert [e.data for e in (await store.watch("b", second.id, 0, 0))[0]] == [b"1"]
        assert (await store.cancel("b", second.id, b"again")).outcome == Outcome(error=b"gone")
        await store.cancel("a", first.id, b"gone")
        assert (await store.heartbeat(lease.work_id, lease.fence)).lost
        assert not await store.append(lease.work_id, lease.fence, [("", b"3")])
        assert not await store.commit(lease.work_id, lease.fence, Outcome(result=b"r"))
        # the same key begins anew
        third, _ = await store.submit(submission("a", b"key"))
        assert third.work_id != first.work_id and await store.lease("w") is not None

    world(scenario)


@BOTH
def test_fair_share(world: Any) -> None:
    async def scenario(w: World) -> None:
        store = await w.open()
        for i in range(8):
            await store.submit(submission("many", f"m{i}".encode()))
        for i in range(2):
            await store.submit(submission("few", f"f{i}".encode()))
        ids = [o.id for o in (await store.list("few"))[0]]
        assert [await store.position("few", i) for i in reversed(ids)] == [0, 2]

        async def begin() -> str:
            lease = await store.lease("w")
            assert lease is not None
            running.append(lease)
            return lease.key.decode()[0]

        running: list[Any] = []
        # both run one, then two
        assert sorted([await begin(), await begin()]) == ["f", "m"]
        assert sorted([await begin(), await begin()]) == ["f", "m"]
        assert [await begin(), await begin()] == ["m", "m"]
        for lease in running:
            await store.commit(lease.work_id, lease.fence, Outcome(result=b"r"))
        # who comes back after a pause has no credit for it, and a newcomer is not behind
        for i in range(4):
            await store.submit(submission("few", f"g{i}".encode()))
            await store.submit(submission("new", f"n{i}".encode()))
        order = []
        for _ in range(9):
            order.append(await begin())
            await store.commit(running[-1].work_id, running[-1].fence, Outcome(result=b"r"))
        assert all(set(order[i : i + 3]) == {"g", "n", "m"} for i in (0, 3, 6))

    world(scenario)


@BOTH
def test_leases_run_out_and_are_fenced(world: Any) -> None:
    async def scenario(w: World) -> None:
        store = await w.open()
        made, _ = await store.submit(submission(timeout=10_000))
        old = await store.lease("first")
        assert old is not None
        assert await store.append(old.work_id, old.fence, [("", b"same"), ("", b"once")])
        assert await store.sweep(b"lost", b"late") == 0
        w.database.ahead[1] = 31
        assert await store.sweep(b"lost", b"late") == 1
        assert (await done(store, made)).state is State.QUEUED
        # the first worker wakes up: it can do nothing any more
        assert (await store.heartbeat(old.work_id, old.fence)).lost
        new = await store.lease("second")
        assert new is not None and new.work_id == old.work_id and new.fence > old.fence and new.attempt == 2
        for late in (store.append(old.work_id, old.fence, [("", b"x")]), store.commit(old.work_id, old.fence, Outcome(result=b"x")),
                     store.release(old.work_id, old.fence)):  # fmt: skip
            assert await late is False
        # what the second attempt says again is not in the log twice
        assert await store.append(new.work_id, new.fence, [("", b"same"), ("", b"more")])
        assert [e.data for e in (await store.watch("a", made.id, 0, 0))[0]] == [b"same", b"once", b"more"]
        # handing back does not count as an attempt; running out twice is the end
        assert await store.release(new.work_id, new.fence)
        again = await store.lease("third")
        assert again is not None and again.attempt == 2
        w.database.ahead[1] = 62
        assert await store.sweep(b"lost", b"late") == 0
        ended = await done(store, made)
        assert ended.state is State.FAILED and ended.outcome == Outcome(error=b"lost")

    world(scenario)


@BOTH
def test_deadlines_retention_and_clocks(world: Any) -> None:
    async def scenario(w: World) -> None:
        store = await w.open()
        short, _ = await store.submit(submission("a", b"key", timeout=5))
        long, _ = await store.submit(submission("b", b"key", timeout=500))
        # somebody sets the clock: nothing ends before its time
        w.database.ahead[0] = 900
        await store.sweep(b"lost", b"late")
        assert (await done(store, short)).state is State.QUEUED
        w.database.ahead[:] = [0, 6]
        await store.sweep(b"lost", b"late")
        assert (await done(store, short)).outcome == Outcome(error=b"late")
        assert (await done(store, long)).state is State.QUEUED
        w.database.ahead[:] = [0, 501]
        await store.sweep(b"lost", b"late")
        assert (await done(store, long)).state is State.FAILED and await store.lease("w") is None
        error = await failing(store.delete("a", (await store.submit(submission("a")))[0].id))
        assert (error.code, error.reason) == ("FAILED_PRECONDITION", "OPERATION_RUNNING")
        w.database.ahead[:] = [1001, 501]
        await store.sweep(b"lost", b"late")
        assert (await failing(done(store, short))).code == "NOT_FOUND"
        assert len((await store.list("a"))[0]) == 1 and (await store.queue()).operations == {"a": 1}

    world(scenario)


@BOTH
def test_bounds(world: Any) -> None:
    async def scenario(w: World) -> None:
        store = await w.open()
        for _ in range(10):
            await store.submit(submission("a"))
        error = await failing(store.submit(submission("a")))
        assert error.reason == "QUOTA_OPERATIONS" and error.retry_after
        for i in range(20):
            await store.submit(submission(f"p{i % 4}"))
        error = await failing(store.submit(submission("z")))
        assert error.reason == "QUEUE_FULL" and error.retry_after
        # a hit in the cache needs no place
        hit, _ = await store.submit(submission("z", outcome=Outcome(result=b"r")))
        assert hit.state is State.SUCCEEDED and hit.last_sequence == 1 and hit.outcome == Outcome(result=b"r")
        assert await store.watch("z", hit.id, 0, 10) == ([], hit)
        queue = await store.queue()
        assert queue.waiting == {"a": 10, **{f"p{i}": 5 for i in range(4)}} and queue.running == 0
        lease = await store.lease("w")
        assert lease is not None
        for i in range(20):
            await store.append(lease.work_id, lease.fence, [("", f"diagnostic {i}".encode()), ("progress", str(i).encode())])
        everyone = [o for p in ("a", "p0", "p1", "p2", "p3") for o in (await store.list(p))[0]]
        (mine,) = (o for o in everyone if o.work_id == lease.work_id)
        kept = [e.data for e in (await store.watch(mine.principal, mine.id, 0, 0))[0]]
        assert kept == [b"diagnostic 0", b"diagnostic 1", b"diagnostic 2", b"diagnostic 3", b"19"]
        for wrong in (submission(work=bytes(2 << 20)), submission(private=bytes(2 << 20)), submission(outcome=Outcome(bytes(5 << 20)))):
            with pytest.raises(ValueError, match="blob store"):
                await store.submit(wrong)

    world(scenario)


@BOTH
def test_pages(world: Any) -> None:
    async def scenario(w: World) -> None:
        store = await w.open()
        made = [(await store.submit(submission("a")))[0].id for _ in range(7)]
        seen, page, pages = [], "", 0
        while True:
            found, page = await store.list("a", 3, page)
            seen += [o.id for o in found]
            pages += 1
            if not page:
                break
        assert sorted(seen) == sorted(made) and pages == 3
        for wrong in ("x", "MQ==", "bmFuOg=="):
            assert (await failing(store.list("a", 3, wrong))).reason == "BAD_PAGE_TOKEN"

    world(scenario)


@BOTH
def test_watchers_are_woken(world: Any) -> None:
    async def scenario(w: World) -> None:
        store = await w.open()
        made, _ = await store.submit(submission())
        start = time.monotonic()
        assert (await store.watch("a", made.id, 0, 0.1))[0] == [] and time.monotonic() - start > 0.09
        lease = await store.lease("w")
        assert lease is not None

        async def follow() -> tuple[list[bytes], Operation]:
            seen, after = [], 0
            while True:
                events, operation = await store.watch("a", made.id, after, 30)
                seen += [e.data for e in events]
                after = events[-1].sequence if events else after
                if operation.state.ended and not events:
                    return seen, operation

        watchers = [asyncio.create_task(follow()) for _ in range(20)]
        for i in range(4):
            await asyncio.sleep(0.01)
            await store.append(lease.work_id, lease.fence, [("", str(i).encode())])
        await store.commit(lease.work_id, lease.fence, Outcome(result=b"r"))
        for seen, operation in await asyncio.gather(*watchers):
            assert seen == [b"0", b"1", b"2", b"3"] and operation.outcome == Outcome(result=b"r")
        assert not store._watched and time.monotonic() - start < 20

        await store.wait_for_work(30)  # told of the work that was taken since
        idle = asyncio.create_task(store.wait_for_work(30))
        await asyncio.sleep(0.05)
        assert not idle.done()
        await store.submit(submission())
        await asyncio.wait_for(idle, 10)

    world(scenario)


@BOTH
def test_two_front_ends_on_one_database(world: Any) -> None:
    async def scenario(w: World) -> None:
        one, two = await w.open(), await w.open()
        made, _ = await one.submit(submission("a", b"key", id="r"))
        # the same request through the other one
        again, fresh = await two.submit(submission("a", b"key", id="r"))
        assert not fresh and again.id == made.id
        await asyncio.wait_for(two.wait_for_work(30), 10)
        lease = await two.lease("two")
        assert lease is not None and await one.lease("one") is None
        watching = asyncio.create_task(one.watch("a", made.id, 0, 30))
        await asyncio.sleep(0.05)
        await two.append(lease.work_id, lease.fence, [("", b"from two")])
        assert (await asyncio.wait_for(watching, 10))[0][0].data == b"from two"
        watching = asyncio.create_task(one.watch("a", made.id, 1, 30))
        await asyncio.sleep(0.05)
        await two.commit(lease.work_id, lease.fence, Outcome(result=b"r"))
        assert (await asyncio.wait_for(watching, 10))[1].outcome == Outcome(result=b"r")

        # each piece of work is given to exactly one of many
        for i in range(20):
            await one.submit(submission(f"p{i % 5}"))
        leases = await asyncio.gather(*(store.lease("w") for store in (one, two) for _ in range(12)))
        given = [lease.work_id for lease in leases if lease is not None]
        assert len(given) == len(set(given)) == 20

    world(scenario)


def test_a_restart_of_the_machine_gives_time_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        database = Shifted(SqliteDatabase(tmp_path / "db"))
        store = SqlOperationStore(database, LIMITS)
        await store.prepare()
        made, _ = await store.submit(submission(timeout=100))
        lease = await store.lease("w")
        assert lease is not None
        # the clock of the machine begins anew
        database.ahead[1] = -1e9
        await database.run("operations", lambda tx: tx.run("UPDATE meta SET value = 'other' WHERE name = 'operations.boot'"))
        await store.prepare()
        database.ahead[1] += 1
        assert await store.sweep(b"lost", b"late") == 1
        again = await store.lease("w")
        assert again is not None and again.work_id == made.work_id and 98 < again.deadline_in <= 100
        await database.close()

    asyncio.run(scenario())


def test_what_is_wrong_with_a_database(tmp_path: Path) -> None:
    async def scenario() -> None:
        database = SqliteDatabase(tmp_path / "db")
        await database.prepare("operations", 99, [])
        error = await failing(SqlOperationStore(database).prepare())
        assert error.reason == "SCHEMA_VERSION" and "version 99" in error.message
        await database.close()
        (tmp_path / "junk").write_bytes(b"this is no database at all, but long enough to be read as one" * 100)
        assert (await failing(SqlOperationStore(SqliteDatabase(tmp_path / "junk")).prepare())).reason == "STORE_UNAVAILABLE"
        assert (tmp_path / "db").stat().st_mode & 0o777 == 0o600

    asyncio.run(scenario())
    with pytest.raises(ValueError, match="mysql:// is not known"):
        open_database("mysql://x")


@pytest.mark.slow
def test_a_postgres_server_that_goes_away(postgres: str) -> None:
    import psycopg

    async def scenario() -> None:
        database = PostgresDatabase(postgres)
        with psycopg.connect(postgres, autocommit=True) as connection:
            store = SqlOperationStore(database, replace(LIMITS))
            await store.prepare()
            made, _ = await store.submit(submission())
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            # its connections are made again
            assert (await store.get("a", made.id)).id == made.id
        await database.close()
        nowhere = SqlOperationStore(PostgresDatabase("postgresql://test@/postgres?host=/nonexistent"))
        error = await failing(nowhere.prepare())
        assert error.reason == "STORE_UNAVAILABLE" and error.retry_after and "test@" not in error.message

    asyncio.run(scenario())
