"""The tables of operations, and what is done to them inside a transaction.

An *operation* is what a caller asked for; *work* is what is computed, once for all operations of the same key; the *log* is the work's.
Fair share is start-time fair queueing: a principal's ``served`` grows by the cost of what it is given, and whoever comes back after a pause
starts at the present (``virtual``), neither behind nor ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from disc_tf_server.database import Row, Transaction
from disc_tf_server.interfaces import Operation, Outcome, State

VERSION = 1
SCHEMA = [
    "CREATE TABLE works (id {text} PRIMARY KEY, key {blob} NOT NULL, principal {text} NOT NULL, work {blob} NOT NULL,"
    " cost {real} NOT NULL, state {text} NOT NULL, created {real} NOT NULL, started {real}, deadline {real} NOT NULL,"
    " fence {int} NOT NULL, worker {text} NOT NULL, lease_until {real} NOT NULL, attempt {int} NOT NULL, last_sequence {int} NOT NULL,"
    " changed {int} NOT NULL)",
    "CREATE INDEX works_by_key ON works (key)",
    "CREATE INDEX works_by_state ON works (state, principal, created)",
    "CREATE INDEX works_by_change ON works (changed)",
    "CREATE TABLE operations (id {text} PRIMARY KEY, principal {text} NOT NULL, request_id {text} NOT NULL, work {text} NOT NULL,"
    " private {blob} NOT NULL, cancel_on_disconnect {int} NOT NULL, state {text} NOT NULL, created {real} NOT NULL, started {real},"
    " ended {real}, expires {real}, deadline {real} NOT NULL, timeout {real} NOT NULL, end_sequence {int} NOT NULL, result {blob} NOT NULL,"
    " error {blob} NOT NULL)",
    "CREATE INDEX operations_by_work ON operations (work, state)",
    "CREATE INDEX operations_by_principal ON operations (principal, created, id)",
    "CREATE INDEX operations_by_expiry ON operations (expires)",
    "CREATE TABLE requests (principal {text} NOT NULL, request_id {text} NOT NULL, body {blob} NOT NULL, operation {text} NOT NULL,"
    " created {real} NOT NULL, PRIMARY KEY (principal, request_id))",
    "CREATE TABLE events (work {text} NOT NULL, sequence {int} NOT NULL, time {real} NOT NULL, kind {text} NOT NULL, data {blob} NOT NULL,"
    " PRIMARY KEY (work, sequence))",
    "CREATE TABLE shares (principal {text} PRIMARY KEY, served {real} NOT NULL)",
    "CREATE TABLE counters (name {text} PRIMARY KEY, value {real} NOT NULL)",
]
#: state of work that is over; of an operation that is not: it is its work's then
DONE, WAITING = "DONE", "WAITING"


@dataclass(frozen=True)
class OperationLimits:
    """max_queue: works that wait. max_operations: of a principal, not ended. retention_s: of an ended operation. lease_s: of a lease that
    is not renewed. max_attempts: leases that may run out. max_events: kept in a log; event_bytes: of one. busy_retry_s: what callers are
    told."""

    max_queue: int = 1000
    max_operations: int = 200
    retention_s: float = 7 * 86400.0
    request_id_s: float = 86400.0
    lease_s: float = 30.0
    max_attempts: int = 3
    max_events: int = 1000
    event_bytes: int = 64 << 10
    message_bytes: int = 1 << 20
    result_bytes: int = 4 << 20
    busy_retry_s: float = 10.0


def counter(tx: Transaction, name: str) -> float:
    """A counter's value; 0 if it never was set."""
    found = tx.rows("SELECT value FROM counters WHERE name = ?", name)
    return found[0][0] if found else 0.0


def set_counter(tx: Transaction, name: str, value: float) -> None:
    """Sets a counter."""
    tx.run("INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", name, value)


def touch(tx: Transaction, work: str) -> None:
    """Marks work as changed, for whoever watches it from another process."""
    value = counter(tx, "changes") + 1
    set_counter(tx, "changes", value)
    tx.run("UPDATE works SET changed = ? WHERE id = ?", int(value), work)


# ---- operations ----

_FIELDS = (
    "o.id, o.principal, o.request_id, o.state, o.created, o.started, o.ended, o.expires, o.end_sequence, o.private, o.cancel_on_disconnect,"
    " o.work, o.result, o.error, w.state, w.started, w.last_sequence"
)
_FROM = "FROM operations o LEFT JOIN works w ON w.id = o.work"


def _operation(row: Row, shared: int, outcome: bool = True) -> Operation:
    (id, principal, request_id, state, created, started, ended, expires, end_sequence, private, cancel, work, result, error,
     work_state, work_started, last_sequence) = row  # fmt: skip
    if state == WAITING:
        state, started, end_sequence = work_state, work_started, last_sequence
    over = State(state).ended
    return Operation(
        id, principal, request_id, State(state), created, started, ended, expires, int(end_sequence), bytes(private), bool(cancel), work,
        shared, Outcome(bytes(result), bytes(error)) if over and outcome else None,
    )  # fmt: skip


def find(tx: Transaction, principal: str, id: str) -> Operation | None:
    """An operation of a principal."""
    rows = tx.rows(f"SELECT {_FIELDS} {_FROM} WHERE o.id = ? AND o.principal = ?", id, principal)
    if not rows:
        return None
    return _operation(rows[0], waiters(tx, rows[0][11]))


def listed(tx: Transaction, principal: str, limit: int, before: tuple[float, str] | None) -> list[Operation]:
    """Operations of a principal, newest first, without outcomes, after the place of the last page's end."""
    where, values = "o.principal = ?", [principal]
    if before is not None:
        where += " AND (o.created < ? OR (o.created = ? AND o.id < ?))"
        values += [before[0], before[0], before[1]]  # type: ignore[list-item]
    rows = tx.rows(f"SELECT {_FIELDS} {_FROM} WHERE {where} ORDER BY o.created DESC, o.id DESC LIMIT ?", *values, limit)
    return [_operation(r, 1, outcome=False) for r in rows]


def waiters(tx: Transaction, work: str) -> int:
    """How many operations wait for a work."""
    return int(tx.rows("SELECT count(*) FROM operations WHERE work = ? AND state = ?", work, WAITING)[0][0]) if work else 0


def end(tx: Transaction, where: str, values: tuple[Any, ...], state: State, outcome: Outcome, sequence: int, retention: float) -> None:
    """Ends operations that have not ended, with the next sequence number of their log."""
    started = "(SELECT started FROM works WHERE works.id = operations.work)"
    sql = (
        f"UPDATE operations SET state = ?, started = {started}, ended = ?, expires = ?, end_sequence = ?, result = ?, error = ?"
        f" WHERE state = '{WAITING}' AND {where}"
    )
    tx.run(sql, state.value, tx.now, tx.now + retention, sequence, outcome.result, outcome.error, *values)


def settle(tx: Transaction, work: str) -> bool:
    """Ends work that nobody waits for any more, else sets its deadline to its latest waiter's; whether it ended. Its lease is lost then."""
    ((deadline,),) = tx.rows("SELECT max(deadline) FROM operations WHERE work = ? AND state = ?", work, WAITING)
    if deadline is not None:
        tx.run("UPDATE works SET deadline = ? WHERE id = ?", deadline, work)
        return False
    finish(tx, work)
    return True


def finish(tx: Transaction, work: str) -> None:
    """Work is over: whoever holds a lease has lost it, and what a worker needs is dropped."""
    tx.run("UPDATE works SET state = ?, fence = fence + 1, work = ? WHERE id = ?", DONE, b"", work)
    touch(tx, work)


# ---- fair share ----


def join_queue(tx: Transaction, principal: str) -> None:
    """A principal has new work: after a pause it starts at the present."""
    if not tx.rows("SELECT 1 FROM works WHERE principal = ? AND state IN ('QUEUED', 'RUNNING') LIMIT 1", principal):
        virtual = counter(tx, "virtual")
        add = (
            "INSERT INTO shares VALUES (?, ?) ON CONFLICT (principal) DO UPDATE SET served ="
            " CASE WHEN shares.served < excluded.served THEN excluded.served ELSE shares.served END"
        )
        tx.run(add, principal, virtual)


def next_work(tx: Transaction) -> tuple[str, float] | None:
    """The work to be begun next and its principal's start: of the principal with the least running, then the least served."""
    waiting = dict(tx.rows("SELECT principal, min(created) FROM works WHERE state = 'QUEUED' GROUP BY principal"))
    if not waiting:
        return None
    running = dict(tx.rows("SELECT principal, sum(cost) FROM works WHERE state = 'RUNNING' GROUP BY principal"))
    served = dict(tx.rows("SELECT principal, served FROM shares"))
    chosen = min(waiting, key=lambda p: (running.get(p, 0.0), served.get(p, 0.0), waiting[p], p))
    sql = "SELECT id FROM works WHERE state = 'QUEUED' AND principal = ? ORDER BY created, id LIMIT 1"
    return tx.rows(sql, chosen)[0][0], served.get(chosen, 0.0)


def charge(tx: Transaction, principal: str, start: float, cost: float) -> None:
    """A principal was given work."""
    add = "INSERT INTO shares VALUES (?, ?) ON CONFLICT (principal) DO UPDATE SET served = excluded.served"
    tx.run(add, principal, start + cost)
    set_counter(tx, "virtual", max(counter(tx, "virtual"), start))


# ---- the log ----


def append(tx: Transaction, work: str, kind: str, data: bytes, limits: OperationLimits) -> None:
    """Adds an event; see `interfaces.Event`. What is in the log word for word (of an attempt that was lost) is not added again."""
    if len(data) > limits.event_bytes:
        raise ValueError(f"an event of {len(data)} bytes: at most {limits.event_bytes} are kept")
    if kind:
        tx.run("DELETE FROM events WHERE work = ? AND kind = ?", work, kind)
    else:
        ((count, same),) = tx.rows("SELECT count(*), sum(CASE WHEN data = ? THEN 1 ELSE 0 END) FROM events WHERE work = ?", data, work)
        if same or count >= limits.max_events:
            return
    tx.run("UPDATE works SET last_sequence = last_sequence + 1 WHERE id = ?", work)
    tx.run("INSERT INTO events SELECT id, last_sequence, ?, ?, ? FROM works WHERE id = ?", tx.now, kind, data, work)


def log(tx: Transaction, operation: Operation, after: int, limit: int) -> list[Row]:
    """(sequence, time, kind, data) of an operation's events behind ``after``; what came after its end is not its."""
    last = operation.last_sequence - 1 if operation.state.ended else operation.last_sequence
    sql = "SELECT sequence, time, kind, data FROM events WHERE work = ? AND sequence > ? AND sequence <= ? ORDER BY sequence LIMIT ?"
    return tx.rows(sql, operation.work_id, after, last, limit)


# ---- sweeping ----


def expire(tx: Transaction, limits: OperationLimits) -> None:
    """Forgets what is past its time."""
    tx.run("DELETE FROM operations WHERE expires < ?", tx.now)
    gone = "(SELECT id FROM works WHERE state = 'DONE' AND NOT EXISTS (SELECT 1 FROM operations WHERE operations.work = works.id))"
    tx.run(f"DELETE FROM events WHERE work IN {gone}")
    tx.run(f"DELETE FROM works WHERE id IN {gone}")
    tx.run("DELETE FROM requests WHERE created < ?", tx.now - limits.request_id_s)
    idle = "NOT EXISTS (SELECT 1 FROM works WHERE works.principal = shares.principal)"
    tx.run(f"DELETE FROM shares WHERE {idle} AND served <= ?", counter(tx, "virtual"))
