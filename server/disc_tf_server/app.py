"""The service put together: its parts, its start, its end."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from disc_tf_server import logs, operations, optimizer
from disc_tf_server.compiling import Check, Compiler
from disc_tf_server.config import ServerConfig, split_address
from disc_tf_server.database import Database
from disc_tf_server.delivery import Delivery, Identify, Rename
from disc_tf_server.gate import FairGate, Quota
from disc_tf_server.intake import Canonicalize, Intake, Threads
from disc_tf_server.interfaces import BlobStore, ChildPool, OperationStore, ServiceError, Signer
from disc_tf_server.listening import Certificates, Health, add_reflection, bind, make_server
from disc_tf_server.metrics import Metrics
from disc_tf_server.operations import Drain, Operations
from disc_tf_server.optimizer import Optimizer, Parts
from disc_tf_server.principals import Authenticator
from disc_tf_server.results import ResultCache
from disc_tf_server.rpc import Method, Rpcs
from disc_tf_server.tracing import Tracing
from disc_tf_server.worker import Worker, late_status, lost_status

log = logging.getLogger("disc_tf_server")

#: largest result inside a message: what a client of gRPC takes by default, with some room for what is around it
MAX_RESULT = 4_000_000
_SWEEP_WORK, _SWEEP_BLOBS = 3.0, 60.0


@dataclasses.dataclass
class Backends:
    """What the front end is given. database: of the result cache's index. content: the methods of the ContentStore service, by its name."""

    database: Database
    store: OperationStore
    blobs: BlobStore
    pool: ChildPool
    canonicalize: Canonicalize
    rename: Rename
    check: Check
    identify: Identify
    fingerprint: bytes
    signer: Signer | None = None
    content: Mapping[str, list[Method]] = dataclasses.field(default_factory=dict)
    tracing: Tracing = dataclasses.field(default_factory=Tracing)

    async def close(self) -> None:
        """Ends the stores; what they hold stays."""
        await self.store.close()
        await self.blobs.close()
        await self.database.close()


class Service:
    """One front end. `start` it, `end` it; `Service.addresses` are where it listens."""

    def __init__(self, config: ServerConfig, backends: Backends) -> None:
        self.config, self._backends = config, backends
        b = backends
        self.metrics, self.signer = Metrics(), b.signer
        self.authenticator = Authenticator(config.tokens, bool(config.tls_client_ca), config.trusted_group)
        self._certificates = Certificates(config) if config.tls_cert else None
        # what is heavy must not hold up what is ready
        self._reading, self._light = Threads(max(2, len(os.sched_getaffinity(0)))), Threads(4)
        self.drain = Drain()
        self.results = ResultCache(b.blobs, b.database, config.cache_bytes, config.cache_memory, self.metrics)
        self.compiler = Compiler(config, b.pool, self.results, self._light, b.check, b.rename, self.metrics, b.fingerprint)
        name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.worker = Worker(b.store, self.compiler, name, config.lease, self.metrics, b.tracing)
        delivery = Delivery(self.results, b.blobs, self._light, b.rename, b.identify, b.signer, min(config.max_inline_bytes, MAX_RESULT))
        self.operations = Operations(b.store, delivery, self.drain, self.worker.nudge, self.worker.runs_here)
        intake = Intake(config, b.blobs, b.canonicalize, b.fingerprint, self._reading)
        parts = Parts(
            config, b.store, intake, self.results, delivery, self.operations, self.compiler, self._light, self.metrics, b.signer,
            b.tracing.context,
        )  # fmt: skip
        self.optimizer = Optimizer(parts)
        self.addresses: list[str] = []
        self.health_address = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._metrics_server: Any = None
        self._server: grpc.aio.Server | None = None
        self._health: Health | None = None

    async def start(self) -> None:
        """Listens, and serves once a compile child is ready. OSError for an address, ChildFailed for children that do not start."""
        config, b = self.config, self._backends
        await self.results.prepare()
        server = self._server = make_server(config)
        quota = Quota(config.max_calls, "QUOTA_CALLS", f"more than {config.max_calls} open calls of one caller")
        room = max(4, config.graph_memory // (2 * config.max_inline_bytes))
        reading = FairGate(room, 1, config.max_calls, share=room // 4)  # whoever sends slowly holds up himself
        rpcs = Rpcs(self.authenticator, self.metrics, b.tracing, quota, reading, config.max_rpcs)
        services = {optimizer.SERVICE: self.optimizer.methods(), operations.SERVICE: self.operations.methods(), **b.content}
        for service, methods in services.items():
            server.add_generic_rpc_handlers((rpcs.service(service, methods),))
        health = self._health = Health(server, services)
        await health.set(False)
        if config.reflection:
            add_reflection(server, list(services))
        self.addresses = bind(server, config.address, self._certificates.credentials() if self._certificates else None)
        if config.health_address:
            self.health_address = await health.serve_alone(config.health_address)
        if config.metrics_address:
            self._metrics_server = _serve_metrics(self.metrics, config.metrics_address)
        await server.start()
        await b.pool.start()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self.worker.run()),
            loop.create_task(_every(_SWEEP_WORK, self._sweep_work)),
            loop.create_task(_every(_SWEEP_BLOBS, self._sweep_blobs)),
        ]
        await health.set(True)
        logs.event(log, logging.INFO, "serving", addresses=" ".join(self.addresses), compiles=b.pool.size)

    async def end(self, drain_seconds: float) -> None:
        """Ends it: health NOT_SERVING first, running compiles finished in the time or handed back, streams told to go on elsewhere."""
        b = self._backends
        logs.event(log, logging.INFO, "draining", seconds=drain_seconds)
        if self._health is not None:
            await self._health.end()
        self.drain.advance(1)
        await self.worker.drain(drain_seconds)
        self.drain.advance(2)
        if self._server is not None:
            await self._server.stop(2.0)
        if self._health is not None:
            await self._health.close()
        await self.optimizer.close()
        await self.operations.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await b.pool.close()
        await b.close()
        for threads in (self._reading, self._light):
            threads.close()
        if self._metrics_server is not None:
            server, thread = self._metrics_server
            await asyncio.to_thread(server.shutdown)
            server.server_close()
            thread.join(5)
        b.tracing.close()
        logs.event(log, logging.INFO, "ended")

    async def _sweep_work(self) -> None:
        store = self._backends.store
        again = await store.sweep(lost_status(), late_status())
        if again:
            logs.event(log, logging.WARNING, "work of servers that ended was put back", works=again)
        queue = await store.queue()
        self.metrics.waiting.set(sum(queue.waiting.values()))
        self.metrics.principals.set(len(queue.waiting))
        self.metrics.running.set(queue.running)
        self.metrics.operations.set(sum(queue.operations.values()))

    async def _sweep_blobs(self) -> None:
        await self._backends.blobs.sweep()
        usage = await self._backends.blobs.usage()
        self.metrics.blob_bytes.set(usage.bytes)
        self.metrics.blobs.set(usage.blobs)


async def _every(seconds: float, step: Callable[[], Awaitable[None]]) -> None:
    """Runs a step again and again; a failure is logged and does not end it."""
    while True:
        try:
            await step()
        except ServiceError as e:
            logs.event(log, logging.WARNING, "upkeep failed", reason=e.reason, text=e.message)
        except Exception:
            log.exception("upkeep failed")
        await asyncio.sleep(seconds)


def _serve_metrics(metrics: Metrics, address: str) -> Any:
    """(server, thread). OSError."""
    from prometheus_client import start_http_server

    host, port = split_address(address)
    try:
        return start_http_server(port, host, metrics.registry)
    except OSError as e:
        raise OSError(f"cannot serve metrics on {address}: {e.strerror or e}") from e


def rename_texts(result: Any, names: Mapping[str, str]) -> Any:
    """`disc_tf.remote.result.rename_result` with names in the form of `Canonical.names`."""
    from disc_tf.remote.canonical import renamed_text
    from disc_tf.remote.result import rename_result

    return rename_result(result, functools.partial(renamed_text, names=names))
