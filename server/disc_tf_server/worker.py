"""The worker of a front end: takes leases of work from the store, has it compiled, commits what came out.

Each lease is served by one task. It starts the compile and a heartbeat; only the heartbeat (lease lost, deadline) and the drain stop a
compile early. The store decides what is committed: it takes nothing from whoever lost the lease, so no race can end an operation twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from disc_tf.remote.messages import message_class, new
from disc_tf_server import errors, logs
from disc_tf_server.compiling import Compiler
from disc_tf_server.delivery import Work
from disc_tf_server.interfaces import Lease, OperationStore, Outcome, ServiceError
from disc_tf_server.metrics import Metrics
from disc_tf_server.tasks import unless
from disc_tf_server.tracing import Tracing

T = TypeVar("T")
log = logging.getLogger("disc_tf_server.worker")
#: shortest time between two entries of progress in a log (seconds)
PROGRESS_EVERY = 0.2
_BACKOFF = (0.5, 15.0)
_PENDING_DIAGNOSTICS = 200


class Stop(enum.Enum):
    """Why a compile was stopped before it ended."""

    LOST = "lost"
    LATE = "late"
    DRAIN = "drain"


@dataclasses.dataclass
class _Run:
    """One lease that is served. stop: why the compile is to end, the first reason counts."""

    lease: Lease
    job: asyncio.Task[Outcome] | None = None
    stop: Stop | None = None
    beat: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    news: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    progress: bytes = b""
    diagnostics: list[bytes] = dataclasses.field(default_factory=list)
    phase: str = ""
    phase_start: float = 0.0
    #: held while events are on their way: what was taken must be in the log before the work is committed
    flushing: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)

    def end(self, why: Stop) -> None:
        """Stop the compile, if it runs."""
        if self.job is not None and not self.job.done() and self.stop is None:
            self.stop = why
            self.job.cancel()


class Worker:
    """name: of this front end in the store. lease_seconds: as the store has it."""

    def __init__(
        self, store: OperationStore, compiler: Compiler, name: str, lease_seconds: float, metrics: Metrics, tracing: Tracing
    ) -> None:
        self._store, self._compiler, self._name, self._lease_seconds = store, compiler, name, lease_seconds
        self._metrics, self._tracing = metrics, tracing
        self._runs: dict[str, _Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._freed, self._hurried = asyncio.Event(), asyncio.Event()

    def runs_here(self, work_id: str) -> bool:
        """Whether the work is being compiled by this worker."""
        return work_id in self._runs

    def nudge(self, work_id: str) -> None:
        """Look at once whether the work is still wanted."""
        run = self._runs.get(work_id)
        if run is not None:
            run.beat.set()

    async def run(self) -> None:
        """Takes and serves leases until `drain`."""
        pause = _BACKOFF[0]
        while not self._stopping.is_set():
            if len(self._tasks) >= self._compiler.size:
                self._freed.clear()
                await self._or_stop(self._freed.wait())
                continue
            try:
                lease = await self._store.lease(self._name)
                pause = _BACKOFF[0]
                if lease is None:
                    await self._or_stop(self._store.wait_for_work(5.0))
                    continue
            except Exception as e:
                if not isinstance(e, ServiceError):
                    log.exception("no lease")
                else:
                    logs.event(log, logging.WARNING, "no lease", reason=e.reason, text=e.message)
                await self._or_stop(asyncio.sleep(pause))
                pause = min(2 * pause, _BACKOFF[1])
                continue
            task = asyncio.get_running_loop().create_task(self._serve(lease))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def _or_stop(self, waited: Awaitable[object]) -> None:
        """Waits for it, or until the drain begins."""
        await unless(self._stopping.wait(), waited)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._freed.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("serving a lease failed", exc_info=task.exception())

    async def drain(self, seconds: float) -> None:
        """Takes nothing more. What runs may go on for so long, then it is handed back. Returns when nothing runs."""
        self._stopping.set()
        if self._tasks and seconds > 0:
            hurry = asyncio.ensure_future(self._hurried.wait())
            done = asyncio.ensure_future(asyncio.wait(self._tasks))
            await asyncio.wait({hurry, done}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            done.cancel()
        for run in self._runs.values():
            run.end(Stop.DRAIN)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._lease_seconds)

    def hurry(self) -> None:
        """A drain that is waiting waits no longer."""
        self._hurried.set()

    # ---- one lease

    async def _serve(self, lease: Lease) -> None:
        run = _Run(lease)
        logs.request_id.set(lease.work_id)
        self._runs[lease.work_id] = run
        loop = asyncio.get_running_loop()
        start = time.monotonic()
        job = run.job = loop.create_task(self._compile(run))
        helpers = [loop.create_task(self._heartbeats(run)), loop.create_task(self._pump(run))]
        try:
            if self._stopping.is_set():  # the lease came while the drain began
                run.end(Stop.DRAIN)
            await asyncio.wait({job})
            ended = run.stop.value if job.cancelled() and run.stop else "done"
            if job.cancelled():
                await self._give_up(run)
            else:
                await self._flush(run)
                if not await self._persist(lambda: self._store.commit(lease.work_id, lease.fence, job.result())):
                    ended = "not wanted any more"
            if run.stop in (None, Stop.LOST):
                await self._compiler.forget(Work.unpack(lease.work))
            logs.event(log, logging.INFO, "work", work=lease.work_id, attempt=lease.attempt, end=ended, seconds=time.monotonic() - start)
        finally:
            del self._runs[lease.work_id]
            for task in (job, *helpers):
                task.cancel()
            await asyncio.gather(job, *helpers, return_exceptions=True)

    async def _compile(self, run: _Run) -> Outcome:
        with self._metrics.children.track_inprogress():
            try:
                work = Work.unpack(run.lease.work)
                with self._tracing.span("compile", work.trace, {"attempt": run.lease.attempt}):
                    try:
                        told = (lambda *p: self._on_progress(run, *p), lambda *d: self._on_diagnostic(run, *d))
                        made = await self._compiler.compile(work, *told)
                    finally:
                        self._end_phase(run)
                return Outcome(result=made.pack())
            except Exception as e:
                error = errors.from_exception(e)
                self._metrics.failures.labels(error.reason).inc()
                if error.reason == "INTERNAL":
                    log.exception("a compile failed")
                return Outcome(error=errors.status_of(error).SerializeToString())

    async def _give_up(self, run: _Run) -> None:
        """Nothing to commit: hand back what others may still wait for."""
        lease = run.lease
        if run.stop is Stop.LATE:  # ends those whose time is over; of those that came meanwhile the work is not lost
            await self._persist(lambda: self._store.sweep(lost_status(), late_status()))
        if run.stop is not Stop.LOST:
            await self._persist(lambda: self._store.release(lease.work_id, lease.fence))

    async def _persist(self, step: Callable[[], Awaitable[T]]) -> T | None:
        """A step at the store, tried again while the lease may last; then another worker repeats the work."""
        end, pause = time.monotonic() + self._lease_seconds, _BACKOFF[0]
        while True:
            try:
                return await step()
            except ServiceError as e:
                if e.code != "UNAVAILABLE" or time.monotonic() + pause > end:
                    logs.event(log, logging.ERROR, "a result could not be stored", reason=e.reason, text=e.message)
                    return None
            await asyncio.sleep(pause)
            pause = min(2 * pause, _BACKOFF[1])

    async def _heartbeats(self, run: _Run) -> None:
        lease, left, renewed = run.lease, run.lease.deadline_in, time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.02, min(self._lease_seconds / 3, left + 0.02))):
                    await run.beat.wait()
            run.beat.clear()
            try:
                beat = await self._store.heartbeat(lease.work_id, lease.fence)
            except ServiceError as e:
                logs.event(log, logging.WARNING, "no heartbeat", work=lease.work_id, reason=e.reason)
                left = max(1.0, left - self._lease_seconds / 3)
                if time.monotonic() - renewed > self._lease_seconds:
                    run.end(Stop.LOST)
                    return
                continue
            renewed, left = time.monotonic(), beat.deadline_in
            if beat.lost:
                run.end(Stop.LOST)
                return
            if left <= 0:
                run.end(Stop.LATE)
                left = self._lease_seconds

    # ---- events

    def _on_progress(self, run: _Run, phase: str, fraction: float, text: str) -> None:
        if phase != run.phase:
            self._end_phase(run)
            run.phase, run.phase_start = phase, time.time()
        event = new("OptimizeEvent")
        event.progress.phase, event.progress.fraction, event.progress.text = phase[:64], fraction, text[:500]
        run.progress = event.SerializeToString()
        run.news.set()

    def _on_diagnostic(self, run: _Run, severity: str, code: str, text: str) -> None:
        if len(run.diagnostics) >= _PENDING_DIAGNOSTICS:
            return
        event = new("OptimizeEvent")
        event.diagnostic.severity = message_class("Diagnostic").Severity.Value(severity)
        event.diagnostic.code, event.diagnostic.message = code, text[:2000]
        run.diagnostics.append(event.SerializeToString())
        run.news.set()

    def _end_phase(self, run: _Run) -> None:
        if run.phase:
            now = time.time()
            self._metrics.phase(run.phase, now - run.phase_start)
            self._tracing.past(run.phase, run.phase_start, now)
            run.phase = ""

    async def _pump(self, run: _Run) -> None:
        """Brings events into the log, in order, progress at most every `PROGRESS_EVERY`."""
        while True:
            await run.news.wait()
            run.news.clear()
            await self._flush(run)
            await asyncio.sleep(PROGRESS_EVERY)

    async def _flush(self, run: _Run) -> None:
        async with run.flushing:
            await self._append(run)

    async def _append(self, run: _Run) -> None:
        events = [("", d) for d in run.diagnostics] + ([("progress", run.progress)] if run.progress else [])
        run.diagnostics, run.progress = [], b""
        if events:
            try:
                await self._store.append(run.lease.work_id, run.lease.fence, events)
            except ServiceError as e:
                logs.event(log, logging.WARNING, "events were lost", work=run.lease.work_id, reason=e.reason)


def lost_status() -> bytes:
    """Of an operation whose workers died again and again."""
    message = "the compile was lost with its server more than once; ask again with another request_id"
    return errors.status_of(ServiceError("UNAVAILABLE", "WORK_LOST", message, retry_after=10.0)).SerializeToString()


def late_status() -> bytes:
    """Of an operation whose time is over."""
    message = "the operation took longer than its timeout"
    return errors.status_of(ServiceError("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", message)).SerializeToString()
