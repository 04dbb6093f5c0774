"""The gRPC side: PredictionService, ModelService and health, without generated code."""

from __future__ import annotations

import contextlib
import hmac
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from disc_tf.serving.errors import CODES, ServingError, from_exception
from disc_tf.serving.handlers import SERVICES, STREAMS, Handlers, request_class
from disc_tf.serving.metrics import Metrics
from disc_tf.serving.streaming import Cancellation

log = logging.getLogger("disc_tf.serving")

_STATUS = {code.value[0]: code for code in grpc.StatusCode}
_HEALTH = "/grpc.health.v1.Health/"
#: seconds that a client may take to read an output of a stream: until then it holds a thread and the version
_SLOW_READER = 120.0


def model_of(request: Any) -> str:
    """The model that a request names, for the metrics."""
    if request.DESCRIPTOR.name == "MultiInferenceRequest":
        return request.tasks[0].model_spec.name if request.tasks else ""
    return request.model_spec.name if "model_spec" in request.DESCRIPTOR.fields_by_name else ""


def _serialize(message: Any) -> bytes:
    return message.SerializeToString()


@contextlib.contextmanager
def _answering(request: Any, context: grpc.ServicerContext, api: str, metrics: Metrics) -> Iterator[tuple[float, float | None]]:
    """A call from start to end: counted and measured, what is raised aborts it. Gives its start and its deadline (`time.monotonic`)."""
    start = time.monotonic()
    left = context.time_remaining()
    status = "CANCELLED"  # unless it ends otherwise: a stream is closed where it is when its client is gone
    try:
        with metrics.running.track_inprogress():
            if left is not None and left <= 0:
                raise ServingError("DEADLINE_EXCEEDED", "the deadline passed while the request waited for a thread")
            yield start, None if left is None else start + left
        status = "OK"
    except Exception as e:
        error = from_exception(e)
        status = error.code
        if status == "INTERNAL":
            log.exception("%s failed", api)
        context.abort(_STATUS[CODES[status]], error.message)
    finally:
        metrics.finish(model_of(request), api, "gRPC", status, time.monotonic() - start)


def _method(handler: Callable[..., Any], api: str, metrics: Metrics) -> Callable[[Any, grpc.ServicerContext], Any]:
    def call(request: Any, context: grpc.ServicerContext) -> Any:
        with _answering(request, context, api, metrics) as (_, deadline):
            return handler(request, deadline)

    return call


def _stream(
    handler: Callable[..., Any], api: str, metrics: Metrics, patience: float = _SLOW_READER
) -> Callable[[Any, grpc.ServicerContext], Any]:
    def call(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        cancellation = Cancellation()
        with _answering(request, context, api, metrics) as (start, deadline):
            if not context.add_callback(cancellation.set):
                cancellation.set()
            with contextlib.closing(handler(request, deadline, cancellation)) as responses:
                first = True
                for response in responses:
                    if first:
                        metrics.first_output(model_of(request), time.monotonic() - start)
                    first = False
                    # resumed once the response is on its way: a client without a deadline that does not read would be waited for for ever
                    timer = threading.Timer(patience, context.cancel)
                    timer.daemon = True
                    timer.start()
                    try:
                        yield response
                    finally:
                        timer.cancel()

    return call


class _Token(grpc.ServerInterceptor):
    """Asks for a bearer token, except for health checks."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

        def refuse(request: Any, context: grpc.ServicerContext) -> Any:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "a bearer token is needed: metadata `authorization: Bearer TOKEN`")

        self._refuse = grpc.unary_unary_rpc_method_handler(refuse)

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        given = next((v for k, v in handler_call_details.invocation_metadata if k == "authorization"), "")
        given = given if isinstance(given, bytes) else given.encode("utf-8", "replace")
        if handler_call_details.method.startswith(_HEALTH) or hmac.compare_digest(given, self._expected):
            return continuation(handler_call_details)
        return self._refuse


class GrpcServer:
    """Serves `Handlers` on ``addresses`` (``host:port`` or ``unix:path``).

    ``credentials``: of TLS. ``max_message_bytes``: of a request; responses have no limit. ``max_concurrent``: requests beyond are refused
    (RESOURCE_EXHAUSTED). Raises OSError for an address that cannot be bound.
    """

    def __init__(
        self,
        handlers: Handlers,
        metrics: Metrics,
        addresses: Sequence[str],
        *,
        threads: int,
        credentials: grpc.ServerCredentials | None = None,
        token: str | None = None,
        max_message_bytes: int,
        max_concurrent: int | None = None,
    ) -> None:
        self._server = grpc.server(
            futures.ThreadPoolExecutor(threads, thread_name_prefix="grpc"),
            interceptors=[_Token(token)] if token else [],
            options=[
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=max_concurrent,
        )
        kinds = (
            (SERVICES, _method, grpc.unary_unary_rpc_method_handler),
            (STREAMS, _stream, grpc.unary_stream_rpc_method_handler),
        )
        for services, answer, method_handler in kinds:
            for service, methods in services.items():
                table = {
                    method: method_handler(
                        answer(getattr(handlers, attribute), method, metrics),
                        request_deserializer=request_class(service, method).FromString,
                        response_serializer=_serialize,
                    )
                    for method, (_, _, attribute) in methods.items()
                }
                self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, table),))
        self._health = health.HealthServicer(experimental_non_blocking=True, experimental_thread_pool=futures.ThreadPoolExecutor(2))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.set_ready(False)
        self.ports = [self._bind(address, credentials) for address in addresses]

    def _bind(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        try:
            if credentials is not None and not address.startswith("unix:"):
                port = self._server.add_secure_port(address, credentials)
            else:
                port = self._server.add_insecure_port(address)
        except RuntimeError as e:
            raise OSError(f"cannot listen on {address}: {e}") from e
        if not port:
            raise OSError(f"cannot listen on {address}")
        return port

    def set_ready(self, ready: bool) -> None:
        """What health checks are told, of the server and of both services."""
        status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *SERVICES, *STREAMS):
            self._health.set(name, status)

    def start(self) -> None:
        self._server.start()

    def begin_shutdown(self) -> None:
        """Health checks say NOT_SERVING from now on, whatever `set_ready` is told."""
        self._health.enter_graceful_shutdown()

    def stop(self, grace: float) -> threading.Event:
        """No new requests from now on. Set once those that run have ended, or were cancelled after ``grace`` seconds."""
        return self._server.stop(grace)
