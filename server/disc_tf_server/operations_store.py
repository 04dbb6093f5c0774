"""The `OperationStore`: operations, their work and its log in SQLite or PostgreSQL, shared by any number of front ends."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from disc_tf_server import operation_tables as tables
from disc_tf_server.database import Database, Transaction
from disc_tf_server.interfaces import Event, Heartbeat, Lease, Operation, Outcome, QueueState, ServiceError, State, Submission
from disc_tf_server.operation_tables import OperationLimits

T = TypeVar("T")
_LOCK = "operations"
_PAGE = 1000
_EVENTS = 256


_NAME = re.compile(r"[0-9A-Za-z_.:/-]{1,128}")
_ID = re.compile(r"[0-9a-f]{32}")


def _found(tx: Transaction, principal: str, id: str) -> Operation:
    """An operation of a principal. ServiceError NOT_FOUND."""
    found = tables.find(tx, principal, id) if _ID.fullmatch(id) else None
    if found is None:
        raise ServiceError("NOT_FOUND", "OPERATION_NOT_FOUND", f"there is no operation {id[:64]!r}")
    return found


class SqlOperationStore:
    """See `OperationStore`. poll_s: how often changes of other processes are looked for."""

    def __init__(self, database: Database, limits: OperationLimits | None = None, poll_s: float = 0.25) -> None:
        self._db, self.limits, self._poll_s = database, limits or OperationLimits(), poll_s
        #: work -> an event of each of its watchers, set when it changes
        self._watched: dict[str, set[asyncio.Event]] = {}
        self._waiting_work = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._seen = 0

    async def prepare(self) -> None:
        """Makes the tables. Leases and deadlines of before a restart of the machine mean nothing: time starts anew for them."""
        if await self._db.prepare("operations", tables.VERSION, tables.SCHEMA):

            def work(tx: Transaction) -> None:
                tx.run("UPDATE operations SET deadline = ? + timeout WHERE state = ?", tx.tick, tables.WAITING)
                latest = "(SELECT max(deadline) FROM operations WHERE operations.work = works.id)"
                tx.run(f"UPDATE works SET lease_until = ?, deadline = coalesce({latest}, ?)", tx.tick, tx.tick)

            await self._db.run(_LOCK, work)

    # ---- waking those who wait ----

    async def _change(self, work: Callable[[Transaction], T], *changed: str) -> T:
        result = await self._db.run(_LOCK, work)
        for id in changed:
            self._wake(id)
        return result

    def _wake(self, id: str) -> None:
        for event in self._watched.get(id, ()):
            event.set()

    async def _look(self) -> None:
        """Looks for what other processes changed."""

        def work(tx: Transaction) -> tuple[int, list[str], bool]:
            rows = tx.rows("SELECT id, changed FROM works WHERE changed > ?", self._seen)
            waiting = bool(tx.rows("SELECT 1 FROM works WHERE state = 'QUEUED' LIMIT 1"))
            return max([self._seen, *(int(r[1]) for r in rows)]), [r[0] for r in rows], waiting

        while True:
            await asyncio.sleep(self._poll_s)
            with contextlib.suppress(ServiceError):  # whoever waits asks for itself in the end
                self._seen, changed, waiting = await self._db.run("", work)
                for id in changed:
                    self._wake(id)
                if waiting:
                    self._waiting_work.set()

    def _poll(self) -> None:
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._look())

    @contextlib.contextmanager
    def _watching(self, id: str) -> Iterator[asyncio.Event]:
        """An event that is set when a work changes."""
        event = asyncio.Event()
        self._watched.setdefault(id, set()).add(event)
        try:
            yield event
        finally:
            self._watched[id].discard(event)
            if not self._watched[id]:
                del self._watched[id]

    # ---- callers ----

    async def submit(self, s: Submission) -> tuple[Operation, bool]:
        limits = self.limits
        for what, size, most in (("work", len(s.work), limits.message_bytes), ("private", len(s.private), limits.message_bytes)):
            if size > most:
                raise ValueError(f"{what} of {size} bytes: at most {most}; what is larger belongs into the blob store")
        if not _NAME.fullmatch(s.request_id):
            message = "request_id: 1 to 128 letters, digits, '-', '_', '.', ':' or '/' are wanted (a UUID is best)"
            raise ServiceError("INVALID_ARGUMENT", "BAD_REQUEST_ID", message, field="request_id")
        if s.outcome is not None:
            self._check(s.outcome)
        id, work_id = secrets.token_hex(16), secrets.token_hex(16)

        def work(tx: Transaction) -> tuple[Operation, bool]:
            sql = "SELECT body, operation FROM requests WHERE principal = ? AND request_id = ? AND created >= ?"
            for body, known in tx.rows(sql, s.principal, s.request_id, tx.now - limits.request_id_s):
                if bytes(body) != s.body:
                    message = f"request_id {s.request_id[:64]!r} was used for another request: take a new one"
                    raise ServiceError("ALREADY_EXISTS", "REQUEST_ID_REUSED", message, field="request_id")
                if (found := tables.find(tx, s.principal, known)) is not None:
                    return found, False
            shared = self._join(tx, s, work_id) if s.outcome is None else ""
            over = s.outcome is not None
            state = (State.FAILED if s.outcome.error else State.SUCCEEDED).value if s.outcome is not None else tables.WAITING
            times = (tx.now, tx.now, tx.now + limits.retention_s) if over else (None, None, None)
            outcome = s.outcome or Outcome()
            tx.run(
                "INSERT INTO operations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                id, s.principal, s.request_id, shared, s.private, int(s.cancel_on_disconnect), state, tx.now, *times,
                tx.tick + s.timeout, s.timeout, int(over), outcome.result, outcome.error,
            )  # fmt: skip
            tx.run(
                "INSERT INTO requests VALUES (?, ?, ?, ?, ?) ON CONFLICT (principal, request_id) DO UPDATE SET body = excluded.body,"
                " operation = excluded.operation, created = excluded.created",
                s.principal, s.request_id, s.body, id, tx.now,
            )  # fmt: skip
            if shared:
                tables.settle(tx, shared)
            made = tables.find(tx, s.principal, id)
            assert made is not None
            return made, True

        made, fresh = await self._change(work)
        if fresh and made.work_id:
            self._wake(made.work_id)
            self._waiting_work.set()
        return made, fresh

    def _join(self, tx: Transaction, s: Submission, new_id: str) -> str:
        """The work that the submission waits for: one of its key that is not over, or new work. ServiceError for full queues."""
        limits = self.limits
        ((live,),) = tx.rows("SELECT count(*) FROM operations WHERE principal = ? AND state = ?", s.principal, tables.WAITING)
        if live >= limits.max_operations:
            message = f"{live} operations have not ended, {limits.max_operations} are allowed: wait for one or cancel one"
            metadata = {"limit": str(limits.max_operations)}
            raise ServiceError("RESOURCE_EXHAUSTED", "QUOTA_OPERATIONS", message, metadata=metadata, retry_after=limits.busy_retry_s)
        if same := tx.rows("SELECT id FROM works WHERE key = ? AND state <> ? LIMIT 1", s.key, tables.DONE):
            return same[0][0]
        ((waiting,),) = tx.rows("SELECT count(*) FROM works WHERE state = 'QUEUED'")
        if waiting >= limits.max_queue:
            message = f"{waiting} requests wait already: try again later"
            raise ServiceError("RESOURCE_EXHAUSTED", "QUEUE_FULL", message, retry_after=limits.busy_retry_s)
        tables.join_queue(tx, s.principal)
        tx.run(
            "INSERT INTO works VALUES (?, ?, ?, ?, ?, 'QUEUED', ?, NULL, ?, 0, '', 0, 0, 0, 0)",
            new_id, s.key, s.principal, s.work, s.cost, tx.now, tx.tick + s.timeout,
        )  # fmt: skip
        if s.queued:
            tables.append(tx, new_id, "queued", s.queued, limits)
        tables.touch(tx, new_id)
        return new_id

    def _check(self, outcome: Outcome) -> None:
        size = len(outcome.result) + len(outcome.error)
        if size > self.limits.result_bytes:
            raise ValueError(f"an outcome of {size} bytes: at most {self.limits.result_bytes}; what is larger belongs into the blob store")

    async def get(self, principal: str, id: str) -> Operation:
        def work(tx: Transaction) -> Operation:
            return _found(tx, principal, id)

        return await self._db.run("", work)

    async def list(self, principal: str, limit: int = 100, page: str = "") -> tuple[list[Operation], str]:
        limit = min(max(limit, 1), _PAGE)
        before = _read_page(page) if page else None
        found = await self._db.run("", lambda tx: tables.listed(tx, principal, limit + 1, before))
        return found[:limit], _page(found[limit - 1]) if len(found) > limit else ""

    async def delete(self, principal: str, id: str) -> None:
        def work(tx: Transaction) -> None:
            found = _found(tx, principal, id)
            if not found.state.ended:
                message = f"operation {id} has not ended: cancel it first"
                raise ServiceError("FAILED_PRECONDITION", "OPERATION_RUNNING", message)
            tx.run("DELETE FROM operations WHERE id = ?", id)

        await self._change(work)

    async def cancel(self, principal: str, id: str, error: bytes) -> Operation:
        def work(tx: Transaction) -> Operation:
            found = _found(tx, principal, id)
            if found.state.ended:
                return found
            self._end_one(tx, id, found.work_id, State.CANCELLED, Outcome(error=error))
            ended = tables.find(tx, principal, id)
            assert ended is not None
            return ended

        ended = await self._change(work)
        self._wake(ended.work_id)
        return ended

    def _end(self, tx: Transaction, where: str, values: tuple[object, ...], state: State, outcome: Outcome, work: str) -> None:
        ((last,),) = tx.rows("SELECT last_sequence FROM works WHERE id = ?", work)
        tables.end(tx, where, values, state, outcome, int(last) + 1, self.limits.retention_s)

    def _end_one(self, tx: Transaction, id: str, work: str, state: State, outcome: Outcome) -> None:
        """Ends an operation, and its work if nobody else waits for that."""
        self._end(tx, "id = ?", (id,), state, outcome, work)
        if not tables.settle(tx, work):
            tables.touch(tx, work)

    def _end_all(self, tx: Transaction, work: str, state: State, outcome: Outcome) -> None:
        """Ends work and all operations that wait for it."""
        self._end(tx, "work = ?", (work,), state, outcome, work)
        tables.finish(tx, work)

    async def watch(self, principal: str, id: str, after: int, seconds: float) -> tuple[list[Event], Operation]:
        def work(tx: Transaction) -> tuple[list[Event], Operation]:
            found = _found(tx, principal, id)
            rows = tables.log(tx, found, after, _EVENTS)
            return [Event(int(r[0]), r[1], r[2], bytes(r[3])) for r in rows], found

        events, operation = await self._db.run("", work)
        if events or operation.state.ended or seconds <= 0:
            return events, operation
        self._poll()
        end = asyncio.get_running_loop().time() + seconds
        with self._watching(operation.work_id) as changed:
            while True:
                changed.clear()
                events, operation = await self._db.run("", work)
                left = end - asyncio.get_running_loop().time()
                if events or operation.state.ended or left <= 0:
                    return events, operation
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await changed.wait()

    async def position(self, principal: str, id: str) -> int:
        def work(tx: Transaction) -> int:
            found = _found(tx, principal, id)
            if found.state is not State.QUEUED:
                return 0
            ((payer, created),) = tx.rows("SELECT principal, created FROM works WHERE id = ?", found.work_id)
            before = "SELECT count(*) FROM works WHERE state = 'QUEUED' AND principal = ? AND (created < ? OR (created = ? AND id < ?))"
            mine = int(tx.rows(before, payer, created, created, found.work_id)[0][0])
            others = tx.rows("SELECT count(*) FROM works WHERE state = 'QUEUED' AND principal <> ? GROUP BY principal", payer)
            # of each of the others about as many come first
            return mine + sum(min(int(count), mine) for (count,) in others)

        return await self._db.run("", work)

    async def queue(self) -> QueueState:
        def work(tx: Transaction) -> QueueState:
            waiting = tx.rows("SELECT principal, count(*) FROM works WHERE state = 'QUEUED' GROUP BY principal")
            ((running,),) = tx.rows("SELECT count(*) FROM works WHERE state = 'RUNNING'")
            operations = tx.rows("SELECT principal, count(*) FROM operations WHERE state = ? GROUP BY principal", tables.WAITING)
            return QueueState({p: int(n) for p, n in waiting}, int(running), {p: int(n) for p, n in operations})

        return await self._db.run("", work)

    # ---- workers ----

    async def lease(self, worker: str) -> Lease | None:
        def work(tx: Transaction) -> Lease | None:
            chosen = tables.next_work(tx)
            if chosen is None:
                return None
            id, start = chosen
            sql = "SELECT fence, key, work, attempt, deadline, principal, cost FROM works WHERE id = ?"
            ((fence, key, content, attempt, deadline, principal, cost),) = tx.rows(sql, id)
            tx.run(
                "UPDATE works SET state = 'RUNNING', started = coalesce(started, ?), fence = ?, worker = ?, lease_until = ?, attempt = ?"
                " WHERE id = ?",
                tx.now, fence + 1, worker, tx.tick + self.limits.lease_s, attempt + 1, id,
            )  # fmt: skip
            tables.charge(tx, principal, start, cost)
            tables.touch(tx, id)
            return Lease(id, int(fence) + 1, bytes(key), bytes(content), int(attempt) + 1, deadline - tx.tick)

        lease = await self._change(work)
        if lease is not None:
            self._wake(lease.work_id)
        return lease

    async def wait_for_work(self, seconds: float) -> None:
        self._poll()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._waiting_work.wait()
        self._waiting_work.clear()

    async def heartbeat(self, work_id: str, fence: int) -> Heartbeat:
        def work(tx: Transaction) -> Heartbeat:
            sql = "UPDATE works SET lease_until = ? WHERE id = ? AND fence = ? AND state = 'RUNNING'"
            if not tx.run(sql, tx.tick + self.limits.lease_s, work_id, fence):
                return Heartbeat(True, 0.0)
            ((deadline,),) = tx.rows("SELECT deadline FROM works WHERE id = ?", work_id)
            return Heartbeat(False, deadline - tx.tick)

        return await self._db.run(_LOCK, work)

    @staticmethod
    def _holds(tx: Transaction, work_id: str, fence: int) -> bool:
        return bool(tx.rows("SELECT 1 FROM works WHERE id = ? AND fence = ? AND state = 'RUNNING'", work_id, fence))

    async def append(self, work_id: str, fence: int, events: Sequence[tuple[str, bytes]]) -> bool:
        def work(tx: Transaction) -> bool:
            if not self._holds(tx, work_id, fence):
                return False
            for kind, data in events:
                tables.append(tx, work_id, kind, data, self.limits)
            tables.touch(tx, work_id)
            return True

        return await self._change(work, work_id)

    async def commit(self, work_id: str, fence: int, outcome: Outcome) -> bool:
        self._check(outcome)

        def work(tx: Transaction) -> bool:
            if not self._holds(tx, work_id, fence):
                return False
            self._end_all(tx, work_id, State.FAILED if outcome.error else State.SUCCEEDED, outcome)
            return True

        return await self._change(work, work_id)

    async def release(self, work_id: str, fence: int) -> bool:
        def work(tx: Transaction) -> bool:
            if not self._holds(tx, work_id, fence):
                return False
            tx.run("UPDATE works SET state = 'QUEUED', attempt = attempt - 1, worker = '', fence = fence + 1 WHERE id = ?", work_id)
            tables.touch(tx, work_id)
            return True

        done = await self._change(work, work_id)
        self._waiting_work.set()
        return done

    async def sweep(self, lost_error: bytes, late_error: bytes) -> int:
        def work(tx: Transaction) -> tuple[int, list[str]]:
            changed = []
            late = tx.rows("SELECT id, work FROM operations WHERE state = ? AND deadline < ?", tables.WAITING, tx.tick)
            for id, work_id in late:
                self._end_one(tx, id, work_id, State.FAILED, Outcome(error=late_error))
                changed.append(work_id)
            back = 0
            for work_id, attempt in tx.rows("SELECT id, attempt FROM works WHERE state = 'RUNNING' AND lease_until < ?", tx.tick):
                if attempt >= self.limits.max_attempts:
                    self._end_all(tx, work_id, State.FAILED, Outcome(error=lost_error))
                else:
                    # the fence moves now: who was late must not end what another one may begin
                    tx.run("UPDATE works SET state = 'QUEUED', worker = '', fence = fence + 1 WHERE id = ?", work_id)
                    tables.touch(tx, work_id)
                    back += 1
                changed.append(work_id)
            tables.expire(tx, self.limits)
            return back, changed

        back, changed = await self._change(work)
        for id in changed:
            self._wake(id)
        if back:
            self._waiting_work.set()
        return back

    async def close(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait([self._poller])


def _page(last: Operation) -> str:
    return base64.urlsafe_b64encode(f"{last.created!r}:{last.id}".encode()).decode()


def _read_page(page: str) -> tuple[float, str]:
    try:
        created, _, id = base64.urlsafe_b64decode(page.encode()).decode().partition(":")
        if not _ID.fullmatch(id):
            raise ValueError
        return float(created), id
    except ValueError as e:
        message = "page_token: not one that a list gave"
        raise ServiceError("INVALID_ARGUMENT", "BAD_PAGE_TOKEN", message, field="page_token") from e
