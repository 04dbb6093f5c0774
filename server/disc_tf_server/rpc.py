"""What every RPC has around it: who calls, parsing, errors with details, metrics, a log line, a span. No generated code."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from disc_tf_server import errors, logs
from disc_tf_server.gate import Quota
from disc_tf_server.interfaces import ServiceError
from disc_tf_server.metrics import Metrics
from disc_tf_server.principals import Authenticator, Principal
from disc_tf_server.tracing import Tracing

log = logging.getLogger("disc_tf_server.rpc")

#: a message that the other side does not take in this time ends its stream (seconds)
WRITE_TIMEOUT = 600.0


@dataclasses.dataclass
class Call:
    """One RPC. ``fields`` go into its log line."""

    principal: Principal
    context: grpc.aio.ServicerContext
    metrics: Metrics
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)

    def time_left(self, longest: float) -> float:
        """Seconds until the caller's deadline, at most ``longest``."""
        left = self.context.time_remaining()
        return longest if left is None else max(0.0, min(left, longest))

    async def write(self, message: Any) -> None:
        """Sends one message of a stream; waits while the other side does not read. ServiceError if it takes too long."""
        data = message.SerializeToString()
        try:
            async with asyncio.timeout(WRITE_TIMEOUT):
                await self.context.write(data)
        except TimeoutError:
            raise ServiceError("ABORTED", "SLOW_READER", f"a message was not read within {WRITE_TIMEOUT:.0f} s") from None
        self.metrics.sent.inc(len(data))


#: one request or an iterator of requests -> a response, or None where the handler has written a stream
Handler = Callable[[Call, Any], Awaitable[Any]]


@dataclasses.dataclass(frozen=True)
class Method:
    """An RPC. request: class of its messages. client_stream, server_stream: which side sends many (a handler writes with `Call.write`)."""

    name: str
    request: Any
    handler: Handler
    client_stream: bool = False
    server_stream: bool = False


class Rpcs:
    """Makes gRPC handlers of methods. streams: open streams of each principal."""

    def __init__(self, authenticator: Authenticator, metrics: Metrics, tracing: Tracing, streams: Quota) -> None:
        self._authenticator, self._metrics, self._tracing, self._streams = authenticator, metrics, tracing, streams

    def service(self, name: str, methods: Iterable[Method]) -> grpc.GenericRpcHandler:
        """The handler of a service, for `grpc.aio.Server.add_generic_rpc_handlers`."""
        return grpc.method_handlers_generic_handler(name, {m.name: self._handler(m) for m in methods})

    def _handler(self, method: Method) -> grpc.RpcMethodHandler:
        if method.client_stream:

            async def many(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> Any:
                return await self._run(method, self._parsed(method, requests), context)

            make = grpc.stream_stream_rpc_method_handler if method.server_stream else grpc.stream_unary_rpc_method_handler
            return make(many)

        async def one(request: bytes, context: grpc.aio.ServicerContext) -> Any:
            return await self._run(method, request, context)

        make = grpc.unary_stream_rpc_method_handler if method.server_stream else grpc.unary_unary_rpc_method_handler
        return make(one)

    async def _run(self, method: Method, request: Any, context: grpc.aio.ServicerContext) -> bytes | None:
        metadata = metadata_of(context)
        logs.request_id.set(logs.clean_id(metadata.get("x-request-id")))
        fields: dict[str, Any] = {"method": method.name, "peer": context.peer()}
        start = time.monotonic()
        code, level = "OK", logging.INFO
        error: ServiceError | None = None
        try:
            with self._metrics.running_rpcs.labels(method.name).track_inprogress():
                parent = metadata.get("traceparent", "")
                with self._tracing.span(method.name, parent if isinstance(parent, str) else ""):
                    return await self._answered(method, request, context, metadata, fields)
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        except Exception as e:
            error = errors.from_exception(e)
            code = error.code
            if error.reason == "INTERNAL":
                level = logging.ERROR
                log.exception("%s failed", method.name)
        finally:
            seconds = time.monotonic() - start
            self._metrics.rpcs.labels(method.name, code).inc()
            self._metrics.rpc_seconds.labels(method.name).observe(seconds)
            if error is not None:
                self._metrics.failures.labels(error.reason).inc()
                fields["reason"] = error.reason
            logs.event(log, level, "rpc", **fields, code=code, seconds=round(seconds, 4))
        assert error is not None
        error.metadata.setdefault("request", logs.request_id.get())
        await errors.abort(context, error)

    async def _answered(
        self, method: Method, request: Any, context: grpc.aio.ServicerContext, metadata: Mapping[str, Any], fields: dict[str, Any]
    ) -> bytes | None:
        principal = self._authenticator.principal(metadata, context.auth_context(), context.peer())
        fields["principal"] = principal.id
        call = Call(principal, context, self._metrics, fields)
        if not method.client_stream:
            request = self._message(method, request)
        streams = method.client_stream or method.server_stream
        with self._streams.hold(principal.id) if streams else contextlib.nullcontext():
            response = await method.handler(call, request)
        if response is None:
            return None
        data = response.SerializeToString()
        self._metrics.sent.inc(len(data))
        return data

    def _message(self, method: Method, data: bytes) -> Any:
        self._metrics.received.inc(len(data))
        try:
            return method.request.FromString(data)
        except DecodeError as e:
            raise errors.invalid("NOT_A_MESSAGE", f"not a {method.request.DESCRIPTOR.full_name}: {e}") from None

    async def _parsed(self, method: Method, requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for data in requests:
            yield self._message(method, data)


def metadata_of(context: grpc.aio.ServicerContext) -> dict[str, Any]:
    """The metadata of a call; the first of each name counts."""
    found: dict[str, Any] = {}
    for key, value in context.invocation_metadata() or ():
        found.setdefault(key, value)
    return found
