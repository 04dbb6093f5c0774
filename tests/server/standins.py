"""Stand-ins in memory for the stores and the compile children: what `disc_tf_server.interfaces` says, in one process, without disks."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from disc_tf_server.interfaces import (
    Digest,
    Event,
    Heartbeat,
    Job,
    Lease,
    OnProgress,
    Operation,
    Outcome,
    QueueState,
    ServiceError,
    State,
    Submission,
    Usage,
)

from disc_tf.remote.messages import new


@dataclasses.dataclass
class Work:
    id: str
    key: bytes
    principal: str
    work: bytes
    waiters: dict[str, float] = dataclasses.field(default_factory=dict)  # operation -> deadline
    log: list[Event] = dataclasses.field(default_factory=list)
    sequence: int = 0
    fence: int = 0
    expires: float = 0.0
    attempt: int = 0
    leased: bool = False
    ended: bool = False


class MemoryStore:
    """An `OperationStore`. `before` is awaited with the name of each method that it has an entry for: tests order races with it."""

    def __init__(self, lease_seconds: float = 15.0, max_waiting: int = 1000) -> None:
        self.lease_seconds, self.max_waiting = lease_seconds, max_waiting
        self.operations: dict[str, Operation] = {}
        self.bodies: dict[tuple[str, str], tuple[bytes, str]] = {}
        self.works: dict[str, Work] = {}
        self.by_key: dict[bytes, str] = {}
        self.queue_order: list[str] = []
        self.served: collections.Counter[str] = collections.Counter()
        self.before: dict[str, Callable[[], Awaitable[None]]] = {}
        self._changed = asyncio.Event()

    def change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _before(self, name: str) -> None:
        if name in self.before:
            await self.before[name]()

    async def submit(self, s: Submission) -> tuple[Operation, bool]:
        await self._before("submit")
        if known := self.bodies.get((s.principal, s.request_id)):
            if known[0] != s.body:
                raise ServiceError("ALREADY_EXISTS", "REQUEST_ID_REUSED", "this request_id had another body")
            return self.operations[known[1]], False
        if s.outcome is None and len(self.queue_order) >= self.max_waiting:
            raise ServiceError("RESOURCE_EXHAUSTED", "QUEUE_FULL", "the queue is full", retry_after=3.0)
        id, now = secrets.token_hex(16), time.time()
        work_id = ""
        shared = 1
        if s.outcome is None:
            work = self.works.get(self.by_key.get(s.key, ""))
            if work is None:
                work = Work(secrets.token_hex(8), s.key, s.principal, s.work)
                self.works[work.id] = work
                self.by_key[s.key] = work.id
                self.queue_order.append(work.id)
                if s.queued:
                    work.sequence = 1
                    work.log.append(Event(1, now, "queued", s.queued))
            work.waiters[id] = now + s.timeout
            work_id, shared = work.id, len(work.waiters)
        operation = Operation(
            id, s.principal, s.request_id, State.QUEUED, now, None, None, None, 0, s.private, s.cancel_on_disconnect, work_id, shared
        )
        self.operations[id] = operation
        self.bodies[s.principal, s.request_id] = (s.body, id)
        if s.outcome is not None:
            self._end(id, s.outcome, 1)
        elif self.works[work_id].leased:
            self.operations[id] = dataclasses.replace(operation, state=State.RUNNING, started=now)
        self.change()
        return self._seen(id), True

    def _end(self, id: str, outcome: Outcome, sequence: int, state: State | None = None) -> None:
        state = state or (State.FAILED if outcome.error else State.SUCCEEDED)
        now = time.time()
        old = self.operations[id]
        self.operations[id] = dataclasses.replace(
            old, state=state, outcome=outcome, ended=now, expires=now + 86400, last_sequence=max(sequence, 1)
        )

    def _seen(self, id: str) -> Operation:
        operation = self.operations[id]
        work = self.works.get(operation.work_id)
        return operation if work is None or operation.state.ended else dataclasses.replace(operation, last_sequence=work.sequence)

    async def get(self, principal: str, id: str) -> Operation:
        await self._before("get")
        operation = self.operations.get(id)
        if operation is None or operation.principal != principal:
            raise ServiceError("NOT_FOUND", "OPERATION_NOT_FOUND", "there is no such operation")
        return self._seen(id)

    async def list(self, principal: str, limit: int = 100, page: str = "") -> tuple[list[Operation], str]:
        mine = [o for o in reversed(self.operations.values()) if o.principal == principal]
        start = int(page or 0)
        rest = str(start + limit) if start + limit < len(mine) else ""
        return [dataclasses.replace(o, outcome=None) for o in mine[start : start + limit]], rest

    async def delete(self, principal: str, id: str) -> None:
        if not (await self.get(principal, id)).state.ended:
            raise ServiceError("FAILED_PRECONDITION", "OPERATION_RUNNING", "the operation has not ended")
        del self.operations[id]

    async def cancel(self, principal: str, id: str, error: bytes) -> Operation:
        operation = await self.get(principal, id)
        await self._before("cancel")
        if not self.operations[id].state.ended:
            self._leave(operation, Outcome(error=error), State.CANCELLED)
        return self._seen(id)

    def _leave(self, operation: Operation, outcome: Outcome, state: State) -> None:
        work = self.works[operation.work_id]
        self._end(operation.id, outcome, work.sequence + 1, state)
        del work.waiters[operation.id]
        if not work.waiters:
            self._finish(work)
        self.change()

    def _finish(self, work: Work) -> None:
        work.ended = True
        if self.by_key.get(work.key) == work.id:
            del self.by_key[work.key]
        if work.id in self.queue_order:
            self.queue_order.remove(work.id)

    async def watch(self, principal: str, id: str, after: int, seconds: float) -> tuple[list[Event], Operation]:
        end = time.monotonic() + seconds
        while True:
            await self._before("watch")
            operation = await self.get(principal, id)
            work = self.works.get(operation.work_id)
            events = [e for e in (work.log if work else []) if after < e.sequence <= operation.last_sequence]
            if operation.state.ended:
                events = [e for e in events if e.sequence < operation.last_sequence]
            if events or operation.state.ended or time.monotonic() >= end:
                return events, operation
            try:
                async with asyncio.timeout(max(0.0, end - time.monotonic())):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def position(self, principal: str, id: str) -> int:
        operation = await self.get(principal, id)
        return self.queue_order.index(operation.work_id) + 1 if operation.work_id in self.queue_order else 0

    async def queue(self) -> QueueState:
        waiting = collections.Counter(self.works[w].principal for w in self.queue_order)
        running = sum(1 for w in self.works.values() if w.leased and not w.ended)
        live = collections.Counter(o.principal for o in self.operations.values() if not o.state.ended)
        return QueueState(dict(waiting), running, dict(live))

    async def lease(self, worker: str) -> Lease | None:
        await self._before("lease")
        if not self.queue_order:
            return None
        id = min(self.queue_order, key=lambda w: self.served[self.works[w].principal])
        self.queue_order.remove(id)
        work = self.works[id]
        self.served[work.principal] += 1
        work.leased, work.fence, work.attempt = True, work.fence + 1, work.attempt + 1
        work.expires = time.time() + self.lease_seconds
        for waiter in work.waiters:
            self.operations[waiter] = dataclasses.replace(self.operations[waiter], state=State.RUNNING, started=time.time())
        self.change()
        return Lease(id, work.fence, work.key, work.work, work.attempt, max(work.waiters.values()) - time.time())

    async def wait_for_work(self, seconds: float) -> None:
        if not self.queue_order:
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                return

    def _held(self, work_id: str, fence: int) -> Work | None:
        work = self.works[work_id]
        return work if work.leased and work.fence == fence and not work.ended else None

    async def heartbeat(self, work_id: str, fence: int) -> Heartbeat:
        await self._before("heartbeat")
        work = self._held(work_id, fence)
        if work is None:
            return Heartbeat(True, 0.0)
        work.expires = time.time() + self.lease_seconds
        return Heartbeat(False, max(work.waiters.values()) - time.time())

    async def append(self, work_id: str, fence: int, events: Sequence[tuple[str, bytes]]) -> bool:
        await self._before("append")
        work = self._held(work_id, fence)
        if work is None:
            return False
        for kind, data in events:
            work.sequence += 1
            if kind:
                work.log = [e for e in work.log if e.kind != kind]
            work.log.append(Event(work.sequence, time.time(), kind, data))
        self.change()
        return True

    async def commit(self, work_id: str, fence: int, outcome: Outcome) -> bool:
        await self._before("commit")
        work = self._held(work_id, fence)
        if work is None:
            return False
        for waiter in work.waiters:
            self._end(waiter, outcome, work.sequence + 1)
        work.waiters.clear()
        self._finish(work)
        self.change()
        return True

    async def release(self, work_id: str, fence: int) -> bool:
        await self._before("release")
        work = self._held(work_id, fence)
        if work is None:
            return False
        work.attempt -= 1
        self._requeue(work)
        return True

    def _requeue(self, work: Work) -> None:
        work.leased = False
        for waiter in work.waiters:
            self.operations[waiter] = dataclasses.replace(self.operations[waiter], state=State.QUEUED)
        self.queue_order.insert(0, work.id)
        self.change()

    async def sweep(self, lost_error: bytes, late_error: bytes) -> int:
        now, again = time.time(), 0
        for work in [w for w in self.works.values() if not w.ended]:
            for waiter in [w for w, deadline in work.waiters.items() if deadline <= now]:
                self._leave(self.operations[waiter], Outcome(error=late_error), State.FAILED)
            if not work.ended and work.leased and work.expires < now:
                self._requeue(work)
                again += 1
        return again

    async def close(self) -> None:
        return None


class MemoryBlobs:
    """A `BlobStore` without bounds; uploads are left out."""

    def __init__(self) -> None:
        self.content: dict[tuple[str, str], bytes] = {}
        self.pins: collections.Counter[str] = collections.Counter()
        self.full = False

    async def missing(self, principal: str, digests: Sequence[Digest]) -> list[Digest]:
        return [d for d in dict.fromkeys(digests) if (principal, d.hash) not in self.content]

    async def put(self, principal: str, data: bytes, *, owner: str = "", seconds: float = 0) -> Digest:
        if self.full:
            raise ServiceError("RESOURCE_EXHAUSTED", "STORE_FULL", "the store is full", retry_after=30.0)
        digest = Digest.of(data)
        self.content[principal, digest.hash] = data
        if owner:
            self.pins[owner] += 1
        return digest

    async def get(self, principal: str, digest: Digest) -> bytes:
        data = self.content.get((principal, digest.hash))
        if data is None or Digest.of(data) != digest:
            self.content.pop((principal, digest.hash), None)
            raise ServiceError("NOT_FOUND", "BLOB_NOT_FOUND", "there is no such blob")
        return data

    async def read(self, principal: str, digest: Digest, offset: int = 0, limit: int = 0) -> AsyncIterator[bytes]:
        yield (await self.get(principal, digest))[offset:]

    async def upload(self, principal: str, digest: Digest, upload_id: str, compressor: str = "") -> Any:
        raise NotImplementedError

    async def upload_status(self, principal: str, digest: Digest, upload_id: str) -> tuple[int, bool]:
        raise NotImplementedError

    async def link(self, source: str, digest: Digest, principal: str) -> None:
        self.content[principal, digest.hash] = await self.get(source, digest)

    async def pin(self, principal: str, digest: Digest, owner: str, seconds: float) -> None:
        self.pins[owner] += 1

    async def unpin(self, owner: str) -> None:
        self.pins.pop(owner, None)

    async def usage(self, principal: str | None = None) -> Usage:
        sizes = [len(d) for (p, _), d in self.content.items() if principal in (None, p)]
        return Usage(sum(sizes), len(sizes), 0, 0)

    async def sweep(self) -> None:
        return None

    async def close(self) -> None:
        return None


def echo_result(job: Job) -> bytes:
    """A result that shows which graph it is of: one cluster that names all nodes."""
    from disc_tf.frontend.tfproto import graph_from_bytes

    graph = graph_from_bytes(job.graph)
    result = new("CompileResult", compiler_version="test", report_json=b'{"nodes": %d}' % len(graph.node))
    result.compiled.extend(n.name for n in graph.node)
    return result.SerializeToString()


class StandInPool:
    """A `ChildPool` whose compiles end when a test says so. Each run is in `runs`; `auto`: they end at once with `echo_result`."""

    def __init__(self, size: int = 2, auto: bool = True) -> None:
        self._size, self.auto = size, auto
        self.runs: list[Running] = []
        self.started = asyncio.Condition()
        self.running = self.most = 0

    @property
    def size(self) -> int:
        return self._size

    async def start(self) -> None:
        return None

    async def run(self, job: Job, on_progress: OnProgress | None = None) -> bytes:
        run = Running(job, on_progress or (lambda *_: None), asyncio.get_running_loop().create_future())
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            self.runs.append(run)
            async with self.started:
                self.started.notify_all()
            if self.auto:
                run.on_progress("analysing", 0.5, "analysing")
                return echo_result(job)
            return await run.result
        except asyncio.CancelledError:
            run.killed = True
            raise
        finally:
            self.running -= 1

    async def nth(self, n: int) -> Running:
        """The n-th run (from 0), once it has begun."""
        async with asyncio.timeout(10), self.started:
            await self.started.wait_for(lambda: len(self.runs) > n)
        return self.runs[n]

    async def close(self) -> None:
        return None


@dataclasses.dataclass
class Running:
    job: Job
    on_progress: OnProgress
    result: asyncio.Future[bytes]
    killed: bool = False

    def finish(self) -> None:
        """Ends it well."""
        self.result.set_result(echo_result(self.job))
