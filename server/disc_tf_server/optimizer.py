"""The Optimizer service."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable
from typing import Any

from disc_tf.frontend.tfproto import serialized
from disc_tf.options import TARGETS
from disc_tf.remote.messages import message_class, new
from disc_tf.version import __version__
from disc_tf_server.compiling import Compiler
from disc_tf_server.config import ServerConfig
from disc_tf_server.delivery import Delivery, Made, Work, shared_key, work_owner
from disc_tf_server.errors import invalid
from disc_tf_server.gate import FairGate
from disc_tf_server.intake import Intake, Prepared, Threads
from disc_tf_server.interfaces import Operation, OperationStore, Outcome, Signer, Submission
from disc_tf_server.metrics import Metrics
from disc_tf_server.operations import Operations, draining, operation_id
from disc_tf_server.results import ResultCache
from disc_tf_server.rpc import Call, Method
from disc_tf_server.tasks import Background

SERVICE = "disc_tf.v1.Optimizer"
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
#: the first event of new work, so that a caller knows its operation at once
_QUEUED = new("OptimizeEvent", queued=new("Queued")).SerializeToString()
#: longest time of a dry run (seconds)
INSPECT_SECONDS = 300.0


@dataclasses.dataclass
class Parts:
    """What the service is made of."""

    config: ServerConfig
    store: OperationStore
    intake: Intake
    results: ResultCache
    delivery: Delivery
    operations: Operations
    compiler: Compiler
    threads: Threads
    metrics: Metrics
    signer: Signer | None
    trace: Callable[[], str]


class Optimizer:
    """GetCapabilities, Optimize, Watch, Inspect."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        # dry runs share the children with the compiles: few at a time, in turn for each principal
        self._inspections = FairGate(max(1, parts.compiler.size), 1, 4)
        self._submissions = Background()

    def methods(self) -> list[Method]:
        """The table of the service."""
        return [
            Method("GetCapabilities", message_class("GetCapabilitiesRequest"), self.capabilities),
            Method("Optimize", message_class("OptimizeRequest"), self.optimize, server_stream=True),
            Method("Watch", message_class("WatchRequest"), self.watch, server_stream=True),
            Method("Inspect", message_class("InspectRequest"), self.inspect),
        ]

    async def capabilities(self, call: Call, request: Any) -> Any:
        p, config = self._parts, self._parts.config
        message = new("Capabilities", compiler_version=__version__, protocols=["disc_tf.v1"], targets=TARGETS)
        message.ops.extend(await p.threads.run(op_types))
        limits = message.limits
        limits.max_inline_bytes, limits.max_blob_bytes = config.max_inline_bytes, config.max_blob_bytes
        limits.max_nodes, limits.max_functions, limits.max_digests = config.max_nodes, config.max_functions, config.max_digests
        limits.max_duration.FromNanoseconds(int(config.max_duration * 1e9))
        message.operation_retention.FromNanoseconds(int(config.operation_retention * 1e9))
        message.blob_retention.FromNanoseconds(int(config.blob_retention * 1e9))
        message.key_ids.extend(p.signer.key_ids if p.signer else ())
        message.compressors.extend(["identity", "zstd"])
        return message

    async def optimize(self, call: Call, request: Any) -> None:
        p = self._parts
        timeout = self._checked(request)
        if p.operations.drain.level:
            raise draining()
        principal, request_id = call.principal.id, request.request_id
        async with p.operations.connected(principal, request_id, request.cancel_on_disconnect) as connected:
            prepared = await p.intake.prepare(call.principal, request.graph, request.options)
            # a caller that goes away now does not leave it half done: the operation exists or it does not
            submitted = self._submissions.start(self._submit(principal, request, prepared, timeout))
            try:
                operation = await asyncio.shield(submitted)
            except asyncio.CancelledError:
                submitted.add_done_callback(functools.partial(self._abandoned, principal, request_id))
                raise
            del request, prepared, submitted  # the stream may be open for long
            await call.release()
            connected.id = operation.id
            call.fields["operation"] = operation.id
            await p.operations.follow(operation, 0, call.write)

    def _abandoned(self, principal: str, request_id: str, submitted: asyncio.Task[Operation]) -> None:
        """The caller went away while its operation was made."""
        if submitted.cancelled() or submitted.exception() is not None:
            return
        operation = submitted.result()
        if operation.cancel_on_disconnect and not operation.state.ended:
            self._parts.operations.left_alone(principal, request_id, operation.id)

    def _checked(self, request: Any) -> float:
        """The time that the request may take."""
        if not _REQUEST_ID.fullmatch(request.request_id):
            raise invalid("REQUEST_ID_WANTED", "request_id is a UUID (1 to 64 letters, digits and . _ : -)", "request_id")
        longest = self._parts.config.max_duration
        if not request.HasField("timeout"):
            return longest
        try:
            timeout = request.timeout.ToNanoseconds() / 1e9
        except (ValueError, OverflowError):
            timeout = -1.0
        if timeout < 0:
            raise invalid("BAD_TIMEOUT", "timeout is not a duration", "timeout")
        return min(timeout, longest) or longest

    async def _submit(self, principal: str, request: Any, prepared: Prepared, timeout: float) -> Operation:
        p = self._parts
        keep = p.config.max_duration + 3600.0
        entry = await p.results.find(prepared.space, prepared.key, prepared.request)
        if entry is not None:
            outcome = Outcome(Made(prepared.space, entry.result, prepared.digest, prepared.targets, cached=True).pack())
            work = b""
        else:
            outcome = None
            digest = await p.results.store(prepared.space, prepared.request, work_owner(prepared.space, prepared.key), keep)
            work = Work(prepared.space, digest, prepared.digest, prepared.key, p.trace()).pack()
        operation, created = await p.store.submit(
            Submission(
                principal=principal,
                request_id=request.request_id,
                body=body_digest(request),
                key=shared_key(prepared.space, prepared.key),
                work=work,
                private=await p.delivery.pack_names(prepared, keep + p.config.operation_retention),
                timeout=timeout,
                cost=1.0 + len(prepared.request) / (4 << 20),
                cancel_on_disconnect=request.cancel_on_disconnect,
                outcome=outcome,
                queued=_QUEUED,
            )
        )
        if created and outcome is None and operation.shared > 1:
            p.metrics.cache.labels("shared").inc()
        return operation

    async def watch(self, call: Call, request: Any) -> None:
        p = self._parts
        id = operation_id(request.operation)
        if request.after_sequence < 0:
            raise invalid("BAD_SEQUENCE", "after_sequence is negative", "after_sequence")
        await call.release()
        operation = await p.store.get(call.principal.id, id)
        call.fields["operation"] = operation.id
        async with p.operations.connected(operation.principal, operation.request_id, operation.cancel_on_disconnect, operation.id):
            await p.operations.follow(operation, request.after_sequence, call.write)

    async def inspect(self, call: Call, request: Any) -> Any:
        p = self._parts
        if p.operations.drain.level:
            raise draining()
        prepared = await p.intake.prepare(call.principal, request.graph, request.options)
        async with self._inspections.enter(call.principal.id):
            report = await p.compiler.inspect(prepared, call.time_left(INSPECT_SECONDS))
        return new("InspectResponse", report_json=report)

    async def close(self) -> None:
        """Waits for what was begun."""
        await self._submissions.close()


def body_digest(request: Any) -> bytes:
    """Of all that a request says but its id."""
    copy = message_class("OptimizeRequest")()
    copy.CopyFrom(request)
    copy.ClearField("request_id")
    return hashlib.sha256(serialized(copy)).digest()


@functools.cache
def op_types() -> tuple[str, ...]:
    """TensorFlow op types with a lowering rule."""
    from disc_tf.lowering import all_rules
    from disc_tf.lowering.registry import RULES

    all_rules()
    return tuple(sorted(RULES))
