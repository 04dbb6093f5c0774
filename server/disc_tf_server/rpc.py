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
from disc_tf_server.gate import FairGate, Quota
from disc_tf_server.interfaces import ServiceError
from disc_tf_server.metrics import Metrics
from disc_tf_server.principals import Authenticator, Principal
from disc_tf_server.tracing import Tracing

log = logging.getLogger("disc_tf_server.rpc")

#: a message that the other side does not take in this time ends its stream (seconds)
WRITE_TIMEOUT = 600.0
#: a request that is not sent in this time ends its call (seconds)
READ_TIMEOUT = 120.0


class Disconnected(ServiceError):
    """The other side has ended the call: nobody can be told anything."""

    def __init__(self) -> None:
        super().__init__("CANCELLED", "DISCONNECTED", "the caller is gone")


@dataclasses.dataclass
class Call:
    """One RPC. ``fields`` go into its log line. room: what it holds of the memory for requests."""

    principal: Principal
    context: grpc.aio.ServicerContext
    metrics: Metrics
    fields: dict[str, Any]
    room: contextlib.AsyncExitStack

    async def release(self) -> None:
        """The handler has let go of the request: another one may be read."""
        await self.room.aclose()

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
        except grpc.aio.BaseError as e:
            raise Disconnected() from e
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
    """Makes gRPC handlers of methods. most: open calls of all principals. calls: of each. reading: requests that are in memory at a time;
    the others wait before they are read."""

    def __init__(
        self, authenticator: Authenticator, metrics: Metrics, tracing: Tracing, calls: Quota, reading: FairGate, most: int
    ) -> None:
        self._authenticator, self._metrics, self._tracing, self._calls, self._reading = authenticator, metrics, tracing, calls, reading
        self._all = Quota(most, "TOO_MANY_CALLS", f"more than {most} open calls of all callers")

    def service(self, name: str, methods: Iterable[Method]) -> grpc.GenericRpcHandler:
        """The handler of a service, for `grpc.aio.Server.add_generic_rpc_handlers`."""
        return grpc.method_handlers_generic_handler(name, {m.name: self._handler(m) for m in methods})

    def _handler(self, method: Method) -> grpc.RpcMethodHandler:
        # Every method is served as one that receives a stream: on the wire it is the same, and nothing of a message is read before we
        # know whose it is and have room for it.
        async def serve(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> Any:
            return await self._run(method, requests, context)

        make = grpc.stream_stream_rpc_method_handler if method.server_stream else grpc.stream_unary_rpc_method_handler
        return make(serve)

    async def _run(self, method: Method, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes | None:
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
                    return await self._answered(method, requests, context, metadata, fields)
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
            if error is not None and not isinstance(error, Disconnected):
                self._metrics.failures.labels(error.reason).inc()
                fields["reason"] = error.reason
            logs.event(log, level, "rpc", **fields, code=code, seconds=round(seconds, 4))
        assert error is not None
        error.metadata.setdefault("request", logs.request_id.get())
        try:
            await errors.abort(context, error)
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError:  # the call has ended already
            raise asyncio.CancelledError from error

    async def _answered(
        self,
        method: Method,
        requests: AsyncIterator[bytes],
        context: grpc.aio.ServicerContext,
        metadata: Mapping[str, Any],
        fields: dict[str, Any],
    ) -> bytes | None:
        principal = self._authenticator.principal(metadata, context.auth_context(), context.peer())
        fields["principal"] = principal.id
        with self._all.hold("all"), self._calls.hold(principal.id):
            async with contextlib.AsyncExitStack() as room:
                call = Call(principal, context, self._metrics, fields, room)
                if method.client_stream:
                    response = await method.handler(call, self._parsed(method, requests))
                else:
                    await room.enter_async_context(self._reading.enter(principal.id))
                    # only the handler holds the message: it may let go of it
                    response = await method.handler(call, await self._single(method, requests))
        if response is None:
            return None
        data = response.SerializeToString()
        self._metrics.sent.inc(len(data))
        return data

    async def _single(self, method: Method, requests: AsyncIterator[bytes]) -> Any:
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                data = await anext(aiter(requests), None)
        except TimeoutError:
            raise ServiceError("ABORTED", "SLOW_WRITER", f"no request came within {READ_TIMEOUT:.0f} s") from None
        if data is None:
            raise errors.invalid("NOT_A_MESSAGE", f"a {method.request.DESCRIPTOR.full_name} is wanted, nothing was sent")
        return self._message(method, data)

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
