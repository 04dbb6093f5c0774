"""One compile, from the canonical request to a checked result in the blob store."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from disc_tf.frontend.tfproto import serialized
from disc_tf.remote.messages import message_class, new
from disc_tf_server import errors, logs
from disc_tf_server.config import ServerConfig
from disc_tf_server.delivery import Made, Rename, Work
from disc_tf_server.intake import Prepared, Threads, result_key
from disc_tf_server.interfaces import ChildFailed, ChildPool, Job, OnProgress, Reason, ServiceError
from disc_tf_server.metrics import Metrics
from disc_tf_server.results import Entry, ResultCache

log = logging.getLogger("disc_tf_server.compile")
#: bytes of what a child returned -> CompileResult; ValueError for what is not one
Check = Callable[[bytes], Any]
#: (severity, code, message): a diagnostic for all that wait
OnDiagnostic = Callable[[str, str, str], None]
#: a child that dies is replaced this often: it may have been somebody else's fault (the kernel's out-of-memory killer)
CRASHES = 2
#: what killed one child may be busy killing others (seconds)
CRASH_PAUSE = 0.5
#: how long a result is kept from eviction for those that wait for it (seconds)
KEEP = 600.0


class Compiler:
    """check: of what a child returned, parsed as hostile. rename: see `delivery.Rename`. fingerprint: of the compiler here."""

    def __init__(
        self,
        config: ServerConfig,
        pool: ChildPool,
        results: ResultCache,
        threads: Threads,
        check: Check,
        rename: Rename,
        metrics: Metrics,
        fingerprint: bytes,
    ) -> None:
        self._config, self._pool, self._results, self._threads = config, pool, results, threads
        self._check, self._rename, self._metrics, self._fingerprint = check, rename, metrics, fingerprint

    @property
    def size(self) -> int:
        """Compiles at a time."""
        return self._pool.size

    async def compile(self, work: Work, on_progress: OnProgress, on_diagnostic: OnDiagnostic) -> Made:
        """Compiles, checks, stores. ServiceError for everything that callers are told; cancelling kills the child."""
        try:
            content = await self._results.content(work.space, work.request)
        except ServiceError as e:
            if e.code == "NOT_FOUND":
                raise ServiceError("UNAVAILABLE", "REQUEST_EVICTED", "the request was not kept: ask again", retry_after=1.0) from e
            raise
        request = message_class("OptimizeRequest").FromString(content)
        start = time.monotonic()
        data = await self._run(self._job(request, self._config.max_duration), on_progress, on_diagnostic)
        try:
            result = await self._threads.run(self._check, data)
        except ValueError as e:
            logs.event(log, logging.ERROR, "a child's result was refused", reason=str(e)[:500])
            raise ServiceError("INTERNAL", "RESULT_REFUSED", "what the compiler returned did not pass the checks") from e
        digest = await self._results.store(work.space, serialized(result), f"result:{work.owner}", KEEP)
        # with a budget of time a result depends on the machine's load; while a fleet is renewed the work may be that of a front end with
        # another compiler, under whose key nothing of this one may be kept
        if not request.options.time_budget and work.key == result_key(work.digest, self._fingerprint):
            await self._results.add(work.space, work.key, Entry(work.request, digest))
        self._metrics.compile_seconds.observe(time.monotonic() - start)
        return Made(work.space, digest, work.digest, tuple(request.options.targets))

    async def forget(self, work: Work) -> None:
        """The work is over: its request needs not be kept for it any more."""
        await self._results.unpin(work.owner)

    async def inspect(self, prepared: Prepared, seconds: float) -> bytes:
        """The report of a dry run (JSON), with the request's names. ServiceError."""
        request = message_class("OptimizeRequest").FromString(prepared.request)
        data = await self._run(self._job(request, seconds, dry_run=True), lambda *_: None, lambda *_: None)
        return await self._threads.run(self._report, data, prepared.names)

    def _report(self, data: bytes, names: dict[str, str]) -> bytes:
        try:
            child = message_class("CompileResult").FromString(data)
            json.loads(child.report_json)
        except (DecodeError, ValueError, RecursionError) as e:
            raise ServiceError("INTERNAL", "RESULT_REFUSED", "what the compiler returned did not pass the checks") from e
        return self._rename(new("CompileResult", report_json=child.report_json), names).report_json

    def _job(self, request: Any, seconds: float, dry_run: bool = False) -> Job:
        return Job(
            graph=request.graph.inline,
            outputs=tuple(request.graph.outputs),
            feeds=tuple(request.graph.feeds),
            options=serialized(request.options),
            dry_run=dry_run,
            wall_s=seconds,
            cpu_s=self._config.child_cpu,
            memory_bytes=self._config.child_memory,
        )

    async def _run(self, job: Job, on_progress: OnProgress, on_diagnostic: OnDiagnostic) -> bytes:
        for attempt in range(1, CRASHES + 1):
            try:
                data = await self._pool.run(job, on_progress)
            except ChildFailed as e:
                self._metrics.compiles.labels(e.reason.value).inc()
                logs.event(log, logging.WARNING, "a compile gave no result", reason=e.reason.value, text=e.message[:500])
                if e.reason in (Reason.CRASHED, Reason.UNAVAILABLE) and attempt < CRASHES:
                    on_diagnostic("WARNING", "COMPILE_CRASHED", "the compile's process ended and it is tried once more")
                    await asyncio.sleep(CRASH_PAUSE)
                    continue
                message = "a defect of the compiler (please report it)" if e.reason is Reason.DEFECT else e.message
                raise errors.from_child(e.reason, message) from e
            self._metrics.compiles.labels("OK").inc()
            return data
        raise AssertionError("unreachable")
