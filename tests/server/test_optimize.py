"""The Optimizer RPCs as a client sees them, against stand-ins for stores and children."""

from __future__ import annotations

import uuid
from pathlib import Path

from disc_tf.remote.messages import new
from tests.server.harness import front, graph, request, run


def test_capabilities(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path, max_inline_bytes=12345) as f:
            found = await f.client.call("GetCapabilities", new("GetCapabilitiesRequest"))
            assert list(found.protocols) == ["disc_tf.v1"] and "x86-64-v3" in found.targets
            assert {"MatMul", "Softmax"} <= set(found.ops) and len(found.ops) > 300
            assert found.limits.max_inline_bytes == 12345
            assert found.limits.max_duration.seconds == 1800

    run(check())


def test_a_result_has_the_names_of_its_own_request(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path) as f:
            result, cached = await f.client.result(request(graph("a", "y")))
            assert sorted(result.compiled) == ["a", "x", "y"] and not cached
            # the same graph under other names, its nodes in another order
            result, cached = await f.client.result(request(graph("b", "z", prefix="p/"), "p/z:0"))
            assert sorted(result.compiled) == ["p/b", "p/x", "p/z"] and cached
            assert len(f.pool.runs) == 1
            _, cached = await f.client.result(request(graph("a", "y", op="Tanh")))
            assert not cached

    run(check())


def test_what_another_compiler_made_is_not_kept(tmp_path: Path) -> None:
    """While a fleet is renewed, one compiles what was asked of another compiler's: the caller gets it, the cache does not."""

    async def check() -> None:
        async with front(tmp_path) as f:
            f.service.compiler._fingerprint = b"g" * 32
            for _ in range(2):
                result, cached = await f.client.result(request(graph("a", "y")))
                assert sorted(result.compiled) == ["a", "x", "y"] and not cached
            f.service.compiler._fingerprint = b"f" * 32
            assert [(await f.client.result(request(graph("a", "y"))))[1] for _ in range(2)] == [False, True]
            assert len(f.pool.runs) == 3

    run(check())


def test_events_are_numbered_and_end_with_the_result(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path) as f:
            events = await f.client.events("Optimize", request())
            numbers = [e.sequence for e in events if e.WhichOneof("event") != "queued"]
            assert numbers == sorted(set(numbers)) and numbers[0] >= 1
            assert events[-1].WhichOneof("event") == "result"
            assert len({e.operation for e in events}) == 1
            again = await f.client.events("Watch", new("WatchRequest", operation=events[0].operation, after_sequence=numbers[-1] - 1))
            assert again == events[-1:]
            assert await f.client.events("Watch", new("WatchRequest", operation=events[0].operation, after_sequence=numbers[-1])) == []

    run(check())


def test_request_id(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path) as f:
            id = str(uuid.uuid4())
            first = await f.client.events("Optimize", request(graph("y"), request_id=id))
            again = await f.client.events("Optimize", request(graph("y"), request_id=id))
            assert again[-1].operation == first[-1].operation
            failure = await f.client.failure("Optimize", request(graph("a", "y"), request_id=id))
            assert (failure.code, failure.reason) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")

    run(check())
