"""The fair gate, and quotas."""

from __future__ import annotations

import asyncio
import random

import pytest
from disc_tf_server.gate import FairGate, Quota
from disc_tf_server.interfaces import ServiceError

from tests.server.harness import run


async def hold(gate: FairGate, principal: str, entered: list[str], leave: asyncio.Event, weight: int = 0) -> None:
    async with gate.enter(principal, weight):
        entered.append(principal)
        await leave.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_principals_take_turns() -> None:
    async def check() -> None:
        gate, order, leave = FairGate(1, 1, 100), [], asyncio.Event()
        tasks = [asyncio.ensure_future(hold(gate, p, order, leave)) for p in ("a", "a", "a", "a", "b", "c")]
        await settle()
        assert order == ["a"]
        leave.set()
        await asyncio.gather(*tasks)
        assert order == ["a", "a", "b", "c", "a", "a"] and gate.inside == gate.waiting == 0

    run(check())


def test_weight() -> None:
    async def check() -> None:
        gate, order, leaves = FairGate(10, 10, 10), [], [asyncio.Event() for _ in range(4)]
        weights = {"heavy": 100, "a": 6, "b": 6, "c": 4}
        tasks = [asyncio.ensure_future(hold(gate, p, order, e, w)) for (p, w), e in zip(weights.items(), leaves, strict=True)]
        await settle()
        assert order == ["heavy"]  # alone, though it is heavier than all there is
        leaves[0].set()
        await settle()
        assert order == ["heavy", "a"]  # c would fit, but b is next
        leaves[1].set()
        await settle()
        assert order == ["heavy", "a", "b", "c"]
        for e in leaves:
            e.set()
        await asyncio.gather(*tasks)

    run(check())


def test_a_principal_has_a_bound() -> None:
    async def check() -> None:
        gate, order, leave = FairGate(1, 1, 2), [], asyncio.Event()
        tasks = [asyncio.ensure_future(hold(gate, "a", order, leave)) for _ in range(2)]
        await settle()
        with pytest.raises(ServiceError) as caught:
            async with gate.enter("a"):
                raise AssertionError
        assert (caught.value.code, caught.value.reason, caught.value.retry_after) == ("RESOURCE_EXHAUSTED", "QUOTA_REQUESTS", 1.0)
        other = asyncio.ensure_future(hold(gate, "b", order, leave))
        leave.set()
        await asyncio.gather(*tasks, other)
        async with gate.enter("a"):
            assert gate.inside == 1

    run(check())


def test_cancel_before_and_after_it_was_let_in() -> None:
    async def check() -> None:
        gate, order, leave = FairGate(1, 1, 10), [], asyncio.Event()
        holder = asyncio.ensure_future(hold(gate, "a", order, leave))
        await settle()
        waiting = [asyncio.ensure_future(hold(gate, p, order, leave)) for p in ("b", "c", "d")]
        await settle()
        waiting[0].cancel()  # while it waits
        leave.set()
        holder_done = asyncio.ensure_future(holder)
        await asyncio.sleep(0)
        waiting[1].cancel()  # in the moment in which it is let in
        await asyncio.gather(holder_done, *waiting, return_exceptions=True)
        assert order[-1] == "d" and gate.inside == gate.waiting == 0

    run(check())


def test_nothing_is_lost_whatever_is_cancelled_when() -> None:
    async def check() -> None:
        rng = random.Random(7)
        for _ in range(150):
            gate, order, leave = FairGate(rng.randint(1, 3), 10, 50, rng.randint(0, 2)), [], asyncio.Event()
            tasks = [
                asyncio.ensure_future(hold(gate, rng.choice("abc"), order, leave, rng.choice([0, 1, 5, 20])))
                for _ in range(rng.randint(1, 12))
            ]
            for task in rng.sample(tasks, len(tasks) // 2):
                for _ in range(rng.randint(0, 3)):
                    await asyncio.sleep(0)
                if rng.random() < 0.2:
                    leave.set()
                task.cancel()
            leave.set()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert (gate.inside, gate.waiting, gate._weight, len(gate._quota._held), len(gate._within)) == (0, 0, 0, 0, 0)

    run(check())


def test_nobody_takes_all_the_room() -> None:
    async def check() -> None:
        gate, order, leave = FairGate(4, 1, 10, share=2), [], asyncio.Event()
        tasks = [asyncio.ensure_future(hold(gate, p, order, leave)) for p in "aaaab"]
        await settle()
        assert order == ["a", "a", "b"] and gate.waiting == 2
        leave.set()
        await asyncio.gather(*tasks)
        assert order == ["a", "a", "b", "a", "a"]

    run(check())


def test_quota() -> None:
    quota = Quota(2, "QUOTA_CALLS", "open streams")
    with quota.hold("a"), quota.hold("a"), quota.hold("b"):
        with pytest.raises(ServiceError) as caught, quota.hold("a"):
            raise AssertionError
        assert caught.value.metadata == {"limit": "2"}
    with quota.hold("a"):
        pass
