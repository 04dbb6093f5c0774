"""One small face for SQLite and PostgreSQL: transactions, run one after the other, in threads beside the event loop.

Statements use ``?`` and what both know (`INSERT ... ON CONFLICT`); column types are ``{int}``, ``{real}``, ``{blob}``, ``{text}``.
A writing transaction holds the lock of its store (PostgreSQL: an advisory lock; SQLite: the file's): they are short, and what they read
does not change under them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from disc_tf.extras import missing_packages
from disc_tf_server.interfaces import ServiceError

T = TypeVar("T")
Row = tuple[Any, ...]

#: seconds that a transaction waits for another one
BUSY_S = 10.0
RETRY_S = 2.0


class Transaction(Protocol):
    """now: seconds since 1970. tick: seconds of a clock that all processes of this database share and that nobody sets (SQLite: since the
    machine started; PostgreSQL: the server's clock)."""

    now: float
    tick: float

    def rows(self, sql: str, *values: Any) -> list[Row]:
        """All rows of a statement."""
        ...

    def run(self, sql: str, *values: Any) -> int:
        """Runs a statement; how many rows it changed."""
        ...


class Database(Protocol):
    """A database. ``restarted`` is told by `prepare`: ticks of before do not count any more."""

    async def prepare(self, name: str, version: int, schema: Sequence[str]) -> bool:
        """Makes the tables of a store (``name``) unless they are there. True: the machine was started again since they were last used.

        ServiceError FAILED_PRECONDITION (SCHEMA_VERSION) for tables of another version.
        """
        ...

    async def run(self, lock: str, work: Callable[[Transaction], T]) -> T:
        """``work`` in a transaction that holds ``lock``; without one ("") it may only read.

        It runs in another thread and may be run twice, so it changes nothing else.

        ServiceError UNAVAILABLE (STORE_UNAVAILABLE), RESOURCE_EXHAUSTED (STORE_FULL).
        """
        ...

    async def close(self) -> None: ...


def unavailable(why: object) -> ServiceError:
    """The error for a database that does not answer."""
    return ServiceError("UNAVAILABLE", "STORE_UNAVAILABLE", f"the server's store does not answer: {why}", retry_after=RETRY_S)


def full(why: object) -> ServiceError:
    """The error for a disk without room."""
    return ServiceError("RESOURCE_EXHAUSTED", "STORE_FULL", f"the server's store has no room left: {why}", retry_after=30.0)


def _prepare(tx: Transaction, name: str, version: int, schema: Sequence[str], types: dict[str, str], boot: str) -> bool:
    tx.run("CREATE TABLE IF NOT EXISTS meta (name {text} PRIMARY KEY, value {text} NOT NULL)".format(**types))
    known = dict(tx.rows("SELECT name, value FROM meta"))
    if (found := known.get(f"{name}.version")) not in (None, str(version)):
        message = f"the tables of {name} have version {found}, not {version}: use the server that made them, or another database"
        raise ServiceError("FAILED_PRECONDITION", "SCHEMA_VERSION", message)
    if found is None:
        for statement in schema:
            tx.run(statement.format(**types))
        tx.run("INSERT INTO meta VALUES (?, ?)", f"{name}.version", str(version))
    before = known.get(f"{name}.boot")
    tx.run("INSERT INTO meta VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", f"{name}.boot", boot)
    return before is not None and before != boot


# ---- SQLite ----


class _SqliteTransaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.now, self.tick = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)

    def rows(self, sql: str, *values: Any) -> list[Row]:
        return self._connection.execute(sql, values).fetchall()

    def run(self, sql: str, *values: Any) -> int:
        return self._connection.execute(sql, values).rowcount


class SqliteDatabase:
    """A file. Several processes of one machine may use it (not over a network file system)."""

    _TYPES: dict[str, str] = {"int": "INTEGER", "real": "REAL", "blob": "BLOB", "text": "TEXT"}  # noqa: RUF012

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._thread = ThreadPoolExecutor(1, "disc-tf-sqlite")
        self._connection: sqlite3.Connection | None = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # requests and results lie in it
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            connection = sqlite3.connect(self._path, isolation_level=None, timeout=BUSY_S, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            self._connection = connection
        return self._connection

    def _run(self, lock: str, work: Callable[[Transaction], T]) -> T:
        try:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE" if lock else "BEGIN")
            try:
                result = work(_SqliteTransaction(connection))
                connection.execute("COMMIT")
                return result
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
        except (sqlite3.OperationalError, sqlite3.DatabaseError, OSError) as e:
            if isinstance(e, sqlite3.IntegrityError | sqlite3.ProgrammingError):
                raise
            raise full(e) if "full" in str(e) or getattr(e, "errno", 0) == 28 else unavailable(e) from e

    async def prepare(self, name: str, version: int, schema: Sequence[str]) -> bool:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return await self.run(name, lambda tx: _prepare(tx, name, version, schema, self._TYPES, boot))

    async def run(self, lock: str, work: Callable[[Transaction], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, lock, work)

    async def close(self) -> None:
        def end() -> None:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

        await asyncio.get_running_loop().run_in_executor(self._thread, end)
        self._thread.shutdown()


# ---- PostgreSQL ----

_PARALLEL = 4


class _PostgresTransaction:
    def __init__(self, cursor: Any, now: float) -> None:
        self._cursor, self.now, self.tick = cursor, now, now

    def rows(self, sql: str, *values: Any) -> list[Row]:
        self._cursor.execute(sql.replace("?", "%s"), values)
        return self._cursor.fetchall()

    def run(self, sql: str, *values: Any) -> int:
        self._cursor.execute(sql.replace("?", "%s"), values)
        return self._cursor.rowcount


class PostgresDatabase:
    """A PostgreSQL database, by psycopg 3 (extra ``postgres``). Every front end of a fleet uses the same one."""

    _TYPES: dict[str, str] = {"int": "BIGINT", "real": "DOUBLE PRECISION", "blob": "BYTEA", "text": "TEXT"}  # noqa: RUF012

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError as e:
            raise missing_packages("a postgresql:// store", "postgres", ["psycopg"]) from e
        self._psycopg, self._url = psycopg, url
        self._threads = ThreadPoolExecutor(_PARALLEL, "disc-tf-postgres")
        self._local = threading.local()
        self._all: list[Any] = []

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Any]:
        """This thread's connection; thrown away where it broke."""
        connection = getattr(self._local, "connection", None)
        if connection is None or connection.closed:
            options = f"-c lock_timeout={int(BUSY_S * 1e3)} -c statement_timeout={int(3 * BUSY_S * 1e3)}"
            connection = self._psycopg.connect(self._url, autocommit=True, connect_timeout=int(BUSY_S), options=options)
            self._local.connection = connection
            self._all.append(connection)
        try:
            yield connection
        except self._psycopg.Error:
            if connection.closed:
                self._all.remove(connection)
                self._local.connection = None
            raise

    def _run(self, lock: str, work: Callable[[Transaction], T]) -> T:
        errors = self._psycopg.errors
        for attempt in range(3):
            committing = False
            try:
                with self._connection() as connection, connection.cursor() as cursor:
                    cursor.execute("BEGIN" if lock else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    try:
                        if lock:
                            cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"disc_tf.{lock}",))
                        cursor.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
                        result = work(_PostgresTransaction(cursor, cursor.fetchone()[0]))
                    except BaseException:
                        if not connection.closed:
                            cursor.execute("ROLLBACK")
                        raise
                    committing = True
                    cursor.execute("COMMIT")
                    return result
            except (errors.DiskFull, errors.OutOfMemory) as e:
                raise full(e) from e
            except self._psycopg.OperationalError as e:
                # a connection that died while it was idle, or with its server; a commit that may have happened is not done twice
                if committing or attempt == 2 or isinstance(e, errors.LockNotAvailable | errors.QueryCanceled):
                    raise unavailable(type(e).__name__) from e
        raise AssertionError

    async def prepare(self, name: str, version: int, schema: Sequence[str]) -> bool:
        return await self.run("meta", lambda tx: _prepare(tx, name, version, schema, self._TYPES, "postgres"))

    async def run(self, lock: str, work: Callable[[Transaction], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, lock, work)

    async def close(self) -> None:
        self._threads.shutdown()
        for connection in self._all:
            connection.close()


def open_database(url: str) -> Database:
    """``postgresql://...``, ``sqlite:PATH`` (``sqlite:///PATH``) or a path. ValueError for another scheme."""
    scheme, _, rest = url.partition(":")
    if scheme in ("postgresql", "postgres"):
        return PostgresDatabase(url)
    if scheme == "sqlite" and rest:
        return SqliteDatabase(rest.removeprefix("//"))
    if "://" in url:
        raise ValueError(f"a store {scheme}:// is not known: use a path, sqlite:PATH or postgresql://user@host/database")
    return SqliteDatabase(url)
