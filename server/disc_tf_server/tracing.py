"""OpenTelemetry traces where its packages are there and an endpoint is set; nothing otherwise.

A trace that a caller began (metadata ``traceparent``) goes on through the queue into the compile: the work carries the context, and the
phases that a child reports become spans, made here: a child has no network.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from disc_tf.extras import missing_packages


class Tracing:
    """No traces."""

    def context(self) -> str:
        """The current trace context, as a W3C traceparent; "" if there is none."""
        return ""

    @contextlib.contextmanager
    def span(self, name: str, parent: str = "", attributes: Mapping[str, Any] | None = None) -> Iterator[None]:
        """A span around the block. parent: a traceparent, else the current span."""
        yield

    def past(self, name: str, start: float, end: float) -> None:
        """A span that is over already, below the current one. Seconds since 1970."""

    def close(self) -> None:
        """Sends what was not sent yet."""


class OpenTelemetry(Tracing):
    """Spans of a tracer provider of the OpenTelemetry SDK."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("disc_tf_server")
        self._propagator = TraceContextTextMapPropagator()

    def context(self) -> str:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier.get("traceparent", "")

    @contextlib.contextmanager
    def span(self, name: str, parent: str = "", attributes: Mapping[str, Any] | None = None) -> Iterator[None]:
        context = self._propagator.extract({"traceparent": parent}) if parent else None
        with self._tracer.start_as_current_span(name, context=context, attributes=dict(attributes or {})):
            yield

    def past(self, name: str, start: float, end: float) -> None:
        self._tracer.start_span(name, start_time=int(start * 1e9)).end(end_time=int(end * 1e9))

    def close(self) -> None:
        self._provider.shutdown()


def tracing(endpoint: str) -> Tracing:
    """Traces to an OTLP/gRPC endpoint (``http://collector:4317``); "" for none. `MissingPackages` where they are absent."""
    if not endpoint:
        return Tracing()
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # pyright: ignore[reportMissingImports]
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as e:
        raise missing_packages("trace_endpoint", "server,telemetry", ["opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-grpc"]) from e
    provider = TracerProvider(resource=Resource.create({"service.name": "disc-tf-server"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https:"))))
    return OpenTelemetry(provider)
