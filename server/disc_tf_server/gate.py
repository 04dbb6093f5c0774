"""A fair gate: so much at a time, given to principals in turn."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator

from disc_tf_server.interfaces import ServiceError


class FairGate:
    """Lets in at most ``slots`` holders of together at most ``capacity`` units of weight. Those that wait are let in principal by
    principal, in turn; a principal has at most ``per_principal`` in it and waiting, and at most ``share`` in it (0: as many as
    fit). One that is heavier than the capacity goes in alone."""

    def __init__(self, slots: int, capacity: int, per_principal: int, share: int = 0) -> None:
        self._slots, self._capacity, self._share = slots, capacity, share or slots
        self._quota = Quota(per_principal, "QUOTA_REQUESTS", f"more than {per_principal} requests of one caller at a time", retry_after=1.0)
        self._within: collections.Counter[str] = collections.Counter()
        self._lanes: collections.OrderedDict[str, collections.deque[tuple[asyncio.Future[None], int]]] = collections.OrderedDict()
        self._inside = self._weight = 0

    @property
    def inside(self) -> int:
        """How many hold it."""
        return self._inside

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(lane) for lane in self._lanes.values())

    @contextlib.asynccontextmanager
    async def enter(self, principal: str, weight: int = 0) -> AsyncIterator[None]:
        """Holds the gate. ServiceError RESOURCE_EXHAUSTED if the principal has too many here already."""
        with self._quota.hold(principal):
            await self._wait(principal, weight)
            try:
                yield
            finally:
                self._leave(principal, weight)

    async def _wait(self, principal: str, weight: int) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lanes.setdefault(principal, collections.deque()).append((granted, weight))
        self._admit()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():  # let in, and cancelled before it ran
                self._leave(principal, weight)
            else:
                self._forget(principal, granted)
                self._admit()  # what was too heavy to go before others may have gone
            raise

    def _forget(self, principal: str, granted: asyncio.Future[None]) -> None:
        lane = self._lanes.get(principal)
        if lane is None:
            return
        kept = collections.deque(item for item in lane if item[0] is not granted)
        if kept:
            self._lanes[principal] = kept
        else:
            del self._lanes[principal]

    def _leave(self, principal: str, weight: int) -> None:
        self._within[principal] -= 1
        if not self._within[principal]:
            del self._within[principal]
        self._inside -= 1
        self._weight -= weight
        self._admit()

    def _admit(self) -> None:
        while self._inside < self._slots:
            principal = next((p for p in self._lanes if self._within[p] < self._share), None)
            if principal is None:
                return
            lane = self._lanes[principal]
            granted, weight = lane[0]
            if self._inside and self._weight + weight > self._capacity:
                return  # it is its turn: nobody lighter overtakes it for ever
            lane.popleft()
            if lane:
                self._lanes.move_to_end(principal)
            else:
                del self._lanes[principal]
            if granted.cancelled():
                continue
            self._inside += 1
            self._within[principal] += 1
            self._weight += weight
            granted.set_result(None)


class Quota:
    """Counts what principals hold open."""

    def __init__(self, limit: int, reason: str, message: str, retry_after: float = 5.0) -> None:
        self._limit, self._reason, self._message, self._retry_after = limit, reason, message, retry_after
        self._held: collections.Counter[str] = collections.Counter()

    @contextlib.contextmanager
    def hold(self, principal: str):
        """One more, for the block. ServiceError RESOURCE_EXHAUSTED."""
        if self._held[principal] >= self._limit:
            metadata = {"limit": str(self._limit)}
            raise ServiceError("RESOURCE_EXHAUSTED", self._reason, self._message, metadata=metadata, retry_after=self._retry_after)
        self._held[principal] += 1
        try:
            yield
        finally:
            self._held[principal] -= 1
            if not self._held[principal]:
                del self._held[principal]
