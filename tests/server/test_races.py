"""Cancel, disconnect, deadline, finish and drain in every order that matters: orders are forced by what the stand-ins wait for, never by
sleeping. A `Gate` lets a test hold a call of the store and look at what happens meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from disc_tf_server.interfaces import ChildFailed, Reason
from google.longrunning import operations_pb2

from disc_tf.remote.messages import message_class, new
from tests.server.harness import Front, failure_of, front, graph, request, run, until
from tests.server.standins import MemoryStore, StandInPool


class Gate:
    """Holds a method of `MemoryStore` until it is opened; `reached`: once it was called."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

        async def before() -> None:
            self.reached.set()
            await self.opened.wait()

        store.before[name] = before


async def first(call: Any) -> Any:
    """The first event of a stream."""
    async with asyncio.timeout(10):
        return await call.read()


async def rest(call: Any) -> list[Any]:
    """All events of a stream from here on."""
    found = []
    async with asyncio.timeout(10):
        while (event := await call.read()) is not grpc.aio.EOF:
            found.append(event)
    return found


async def last(call: Any) -> Any:
    """The last event of a stream."""
    return (await rest(call))[-1]


def cancel(operation: str) -> Any:
    return operations_pb2.CancelOperationRequest(name=operation)


def states(f: Front) -> list[str]:
    return [o.state.value for o in f.store.operations.values()]


def test_a_dropped_connection_does_not_cancel(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path, pool=StandInPool(auto=False)) as f:
            call = f.client.stream("Optimize", request())
            job = await f.pool.nth(0)
            job.on_progress("analysing", 0.1, "analysing")
            event = await first(call)
            call.cancel()
            await until(lambda: not f.service.operations._connections._open)
            assert not job.killed and states(f) == ["RUNNING"]
            again = f.client.stream("Watch", new("WatchRequest", operation=event.operation, after_sequence=event.sequence))
            job.finish()
            assert (await last(again)).WhichOneof("event") == "result"

    run(check())


def test_cancel_on_disconnect_ends_with_the_last_connection(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path, pool=StandInPool(auto=False)) as f:
            call = f.client.stream("Optimize", request(cancel_on_disconnect=True))
            job = await f.pool.nth(0)
            job.on_progress("analysing", 0.1, "")
            event = await first(call)
            second = f.client.stream("Watch", new("WatchRequest", operation=event.operation))
            await first(second)
            call.cancel()
            await until(lambda: sum(f.service.operations._connections._open.values()) == 1)
            assert not job.killed
            second.cancel()
            await until(lambda: job.killed)
            await until(lambda: states(f) == ["CANCELLED"])

    run(check())


@pytest.mark.parametrize("wanted", [False, True])
def test_a_caller_that_goes_away_while_its_operation_is_made(tmp_path: Path, wanted: bool) -> None:
    """The submission goes on: the operation exists, and is cancelled only if its request says so."""

    async def check() -> None:
        store = MemoryStore()
        async with front(tmp_path, store=store, pool=StandInPool(auto=False)) as f:
            gate = Gate(store, "submit")
            call = f.client.stream("Optimize", request(cancel_on_disconnect=wanted))
            asyncio.ensure_future(call.read()).add_done_callback(lambda t: t.cancelled() or t.exception())
            await gate.reached.wait()
            call.cancel()
            await until(lambda: not f.service.operations._connections._open)
            gate.opened.set()
            await until(lambda: bool(states(f)))
            if wanted:
                await until(lambda: states(f) == ["CANCELLED"])
            else:
                job = await f.pool.nth(0)
                job.finish()
                await until(lambda: states(f) == ["SUCCEEDED"])

    run(check())


def test_somebody_else_of_the_same_request_id_keeps_it_alive(tmp_path: Path) -> None:
    async def check() -> None:
        store = MemoryStore()
        async with front(tmp_path, store=store, pool=StandInPool(auto=False)) as f:
            gate = Gate(store, "submit")
            message = request(cancel_on_disconnect=True)
            calls = [f.client.stream("Optimize", message) for _ in range(2)]
            waiting = [asyncio.ensure_future(c.read()) for c in calls]
            await until(lambda: sum(f.service.operations._connections._open.values()) == 2)
            await gate.reached.wait()
            calls[0].cancel()
            await until(lambda: sum(f.service.operations._connections._open.values()) == 1)
            gate.opened.set()
            job = await f.pool.nth(0)
            job.finish()
            first_event = await waiting[1]
            assert first_event.WhichOneof("event") in ("queued", "result")
            await until(lambda: states(f) == ["SUCCEEDED"])
            waiting[0].cancel()

    run(check())


def test_a_shared_compile_dies_with_its_last_waiter(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path, pool=StandInPool(auto=False)) as f:
            calls = [f.client.stream("Optimize", request(graph(name, "y"))) for name in ("a", "b", "c")]
            job = await f.pool.nth(0)
            await until(lambda: len(f.store.operations) == 3)
            job.on_progress("analysing", 0.1, "")
            names = [(await first(c)).operation for c in calls]
            assert len(set(names)) == 3
            for name in names[:2]:
                await f.client.call("CancelOperation", cancel(name))
            for call in calls[:2]:
                assert (await last(call)).error.code == 1
            assert not job.killed and len(f.pool.runs) == 1
            await f.client.call("CancelOperation", cancel(names[2]))
            await until(lambda: job.killed)
            # an equal request afterwards is new work
            again = f.client.stream("Optimize", request(graph("d", "y")))
            (await f.pool.nth(1)).finish()
            assert (await last(again)).WhichOneof("event") == "result"

    run(check())


def test_the_rest_get_the_result_under_their_own_names(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path, pool=StandInPool(auto=False)) as f:
            calls = [f.client.stream("Optimize", request(graph(name, "y"))) for name in ("a", "b")]
            job = await f.pool.nth(0)
            await until(lambda: len(f.store.operations) == 2)
            job.finish()
            for call, name in zip(calls, ("a", "b"), strict=True):
                event = await last(call)
                assert sorted(message_class("CompileResult").FromString(event.result.inline).compiled) == [name, "x", "y"]
            assert len(f.pool.runs) == 1

    run(check())


@pytest.mark.parametrize("held", ["commit", "append"])
def test_cancel_while_the_result_is_stored(tmp_path: Path, held: str) -> None:
    """The compile has ended, its result is on the way into the store: the cancel wins, and nobody sees both."""

    async def check() -> None:
        store = MemoryStore()
        async with front(tmp_path, store=store, pool=StandInPool(auto=False)) as f:
            call = f.client.stream("Optimize", request())
            job = await f.pool.nth(0)
            gate = Gate(store, held)
            job.on_progress("analysing", 0.1, "")
            await until(lambda: bool(store.operations))
            name = f"operations/{next(iter(store.operations))}"
            job.finish()
            await gate.reached.wait()
            await f.client.call("CancelOperation", cancel(name))
            gate.opened.set()
            event = await last(call)
            assert event.WhichOneof("event") == "error" and event.error.code == 1
            await until(lambda: not f.service.worker._runs)
            assert states(f) == ["CANCELLED"]
            # a result that had come to the commit is found by the next request; one that had not may have been given up
            f.pool.auto = True
            assert (await f.client.result(request()))[1] or held == "append"

    run(check())


def test_cancel_after_the_end_changes_nothing(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path) as f:
            name = (await f.client.events("Optimize", request()))[-1].operation
            await f.client.call("CancelOperation", cancel(name))
            operation = await f.client.call("GetOperation", operations_pb2.GetOperationRequest(name=name))
            assert operation.done and operation.WhichOneof("result") == "response"

    run(check())


def test_a_deadline_ends_the_operation_and_its_compile(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path, pool=StandInPool(auto=False)) as f:
            call = f.client.stream("Optimize", request(timeout=0.2))
            job = await f.pool.nth(0)
            event = await last(call)
            assert event.error.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
            await until(lambda: job.killed)

    run(check())


def test_the_deadline_of_shared_work_is_the_latest(tmp_path: Path) -> None:
    async def check() -> None:
        store = MemoryStore(lease_seconds=0.3)
        async with front(tmp_path, store=store, pool=StandInPool(auto=False)) as f:
            short, long = (f.client.stream("Optimize", request(graph("y"), timeout=t)) for t in (0.3, 30.0))
            job = await f.pool.nth(0)
            await until(lambda: len(store.operations) == 2)
            ended = asyncio.ensure_future(last(short))
            while not ended.done():
                await f.service._sweep_work()
                await asyncio.sleep(0.02)
            assert (await ended).error.code == 4
            assert not job.killed
            job.finish()
            assert (await last(long)).WhichOneof("event") == "result"

    run(check())


def test_whoever_comes_when_the_time_of_the_others_is_over_is_not_lost(tmp_path: Path) -> None:
    """The heartbeat saw a deadline that had passed; before its compile is given up an equal request comes: it gets a result."""

    async def check() -> None:
        store = MemoryStore()
        async with front(tmp_path, store=store, pool=StandInPool(auto=False)) as f:
            call = f.client.stream("Optimize", request(timeout=0.2))
            job = await f.pool.nth(0)
            gate = Gate(store, "release")
            sweeps = asyncio.Event()
            original = store.sweep

            async def sweep(lost: bytes, late: bytes) -> int:
                await sweeps.wait()
                return await original(lost, late)

            store.sweep = sweep  # type: ignore[method-assign]
            await until(lambda: job.killed)
            second = f.client.stream("Optimize", request(timeout=30.0))
            await until(lambda: len(store.operations) == 2)
            sweeps.set()
            await gate.reached.wait()
            gate.opened.set()
            assert (await last(call)).error.code == 4
            (await f.pool.nth(1)).finish()
            assert (await last(second)).WhichOneof("event") == "result"

    run(check())


def test_a_lease_that_was_lost_commits_nothing(tmp_path: Path) -> None:
    """Another front end took the work over: the result of this one is dropped, watchers see the other one's."""

    async def check() -> None:
        store = MemoryStore()
        async with front(tmp_path, store=store, pool=StandInPool(auto=False)) as f:
            call = f.client.stream("Optimize", request())
            job = await f.pool.nth(0)
            work = next(iter(store.works.values()))
            store._requeue(work)
            (lease,) = [await store.lease("another")]
            assert lease is not None
            f.service.worker.nudge(work.id)
            await until(lambda: job.killed)
            from disc_tf_server.errors import status_of
            from disc_tf_server.interfaces import Outcome, ServiceError

            status = status_of(ServiceError("INTERNAL", "OTHER", "of the other")).SerializeToString()
            assert await store.commit(work.id, lease.fence, Outcome(error=status))
            assert (await last(call)).error.message == "of the other"

    run(check())


@pytest.mark.parametrize(
    ("reason", "code", "told"),
    [
        (Reason.REFUSED, "INVALID_ARGUMENT", "node 'mine' is bad"),
        (Reason.OUT_OF_MEMORY, "RESOURCE_EXHAUSTED", "node 'mine' is bad"),
        (Reason.OUT_OF_TIME, "DEADLINE_EXCEEDED", "node 'mine' is bad"),
        (Reason.OUT_OF_CPU, "RESOURCE_EXHAUSTED", "node 'mine' is bad"),
        (Reason.DEFECT, "INTERNAL", "a defect of the compiler (please report it)"),
    ],
)
def test_failures_of_a_child(tmp_path: Path, reason: Reason, code: str, told: str) -> None:
    async def check() -> None:
        async with front(tmp_path, pool=StandInPool(auto=False)) as f:
            call = f.client.stream("Optimize", request(graph("mine", "y")))
            job = await f.pool.nth(0)
            job.result.set_exception(ChildFailed(reason, "node 'n.1' is bad"))
            error = (await last(call)).error
            assert (error.code, error.message) == (getattr(grpc.StatusCode, code).value[0], told)
            assert len(f.pool.runs) == 1

    run(check())


@pytest.mark.parametrize("reason", [Reason.CRASHED, Reason.UNAVAILABLE])
def test_a_crash_is_tried_once_more(tmp_path: Path, reason: Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disc_tf_server.compiling.CRASH_PAUSE", 0.0)

    async def check() -> None:
        async with front(tmp_path, pool=StandInPool(auto=False)) as f:
            call = f.client.stream("Optimize", request())
            (await f.pool.nth(0)).result.set_exception(ChildFailed(reason, "killed"))
            (await f.pool.nth(1)).finish()
            events = await rest(call)
            assert [e.diagnostic.code for e in events if e.WhichOneof("event") == "diagnostic"] == ["COMPILE_CRASHED"]
            assert events[-1].WhichOneof("event") == "result"
            call = f.client.stream("Optimize", request(graph("a", "y")))
            for n in (2, 3):
                (await f.pool.nth(n)).result.set_exception(ChildFailed(reason, "killed"))
            error = (await last(call)).error
            assert (error.code, error.message) == (grpc.StatusCode.UNAVAILABLE.value[0], "killed") and len(f.pool.runs) == 4

    run(check())


def test_drain_hands_back_what_does_not_end_in_time(tmp_path: Path) -> None:
    """The next front end on the same store goes on with it, and with what waited; streams are told to come back."""

    async def check() -> None:
        store = MemoryStore()
        pool = StandInPool(size=1, auto=False)
        async with front(tmp_path / "1", store=store, pool=pool) as f:
            running = f.client.stream("Optimize", request(graph("a", "y"), cancel_on_disconnect=True))
            job = await pool.nth(0)
            waiting = f.client.stream("Optimize", request(graph("a", "b", "y")))
            assert (await first(waiting)).queued.position == 1
            blobs = f.blobs
            job.on_progress("analysing", 0.1, "")
            names = [(await first(running)).operation]
            ending = asyncio.ensure_future(f.service.end(0.0))
            for call in (running, waiting):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await last(call)
                failure = failure_of(caught.value)
                assert (failure.code, failure.reason) == ("UNAVAILABLE", "DRAINING") and "RetryInfo" in failure.details
            await ending
            assert job.killed
            assert states(f) == ["QUEUED", "QUEUED"]
            f.service.end = lambda _seconds: asyncio.sleep(0)  # type: ignore[method-assign,assignment]
        async with front(tmp_path / "2", store=store, blobs=blobs) as f:
            event = await last(f.client.stream("Watch", new("WatchRequest", operation=names[0])))
            assert event.WhichOneof("event") == "result"
            await until(lambda: states(f) == ["SUCCEEDED", "SUCCEEDED"])

    run(check())


def test_drain_lets_end_what_ends_in_time(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path, pool=StandInPool(auto=False)) as f:
            call = f.client.stream("Optimize", request())
            job = await f.pool.nth(0)
            ending = asyncio.ensure_future(f.service.end(20.0))
            await until(lambda: f.service.drain.level == 1)
            failure = await f.client.failure("Optimize", request(graph("a", "y")))
            assert (failure.code, failure.reason) == ("UNAVAILABLE", "DRAINING")
            job.finish()
            assert (await last(call)).WhichOneof("event") == "result"
            await ending
            f.service.end = lambda _seconds: asyncio.sleep(0)  # type: ignore[method-assign,assignment]

    run(check())


def test_the_store_fails_for_a_while(tmp_path: Path) -> None:
    """A commit that the store cannot take at once is tried again: nothing is lost."""

    async def check() -> None:
        from disc_tf_server.interfaces import ServiceError

        store = MemoryStore()
        async with front(tmp_path, store=store, pool=StandInPool(auto=False)) as f:
            call = f.client.stream("Optimize", request())
            job = await f.pool.nth(0)
            failures = iter([True, False])

            async def busy() -> None:
                if next(failures):
                    raise ServiceError("UNAVAILABLE", "STORE_UNAVAILABLE", "busy", retry_after=1.0)

            store.before["commit"] = busy
            job.finish()
            assert (await last(call)).WhichOneof("event") == "result"

    run(check())


def test_a_signature_speaks_of_the_canonical_request(tmp_path: Path) -> None:
    """Made, shared or cached: it is the digest that a client computes from its own graph."""

    async def check() -> None:
        from disc_tf_server.signing import FileSigner, add_key

        from disc_tf.options import TARGETS
        from disc_tf.remote.canonical import canonical
        from disc_tf.runtime.cpu import with_extensions

        add_key(tmp_path / "keys.toml", "k1", 0.0, 1e5)
        async with front(tmp_path, signer=FileSigner(tmp_path / "keys.toml")) as f:
            assert list((await f.client.call("GetCapabilities", new("GetCapabilitiesRequest"))).key_ids) == ["k1"]
            for prefix, targets, cached in (("", [], False), ("p/", list(TARGETS)[::-1] * 2, True), ("", ["x86-64-v3"], False)):
                message = request(graph("a", "y", prefix=prefix), f"{prefix}y")
                message.options.targets.extend(targets)
                event = await last(f.client.stream("Optimize", message))
                statement = message_class("Statement").FromString(event.result.signature.statement)
                message.options.targets[:] = targets or TARGETS
                expected = canonical(message.graph.inline, message.graph.outputs, (), message.options)
                assert (statement.request, event.result.cached) == (expected.digest, cached)
                signed = sorted(with_extensions(set(targets or TARGETS)))
                assert list(statement.targets) == signed and statement.key_id == "k1"
                assert ("x86-64-v4-vnni" in signed) == ("x86-64-v4" in (targets or TARGETS))

    run(check())


def test_a_full_disk_is_a_clear_error(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path, pool=StandInPool(auto=False)) as f:
            call = f.client.stream("Optimize", request())
            job = await f.pool.nth(0)
            f.blobs.full = True
            job.finish()
            assert (await last(call)).error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
            failure = await f.client.failure("Optimize", request(graph("a", "y")))
            assert (failure.reason, failure.details["RetryInfo"].retry_delay.seconds) == ("STORE_FULL", 30)
            f.blobs.full = False
            f.pool.auto = True
            assert (await f.client.result(request()))[1] is False

    run(check())
