"""Traces: one from the caller through the queue into the phases of the compile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from disc_tf_server import tracing

from disc_tf.extras import MissingPackages
from tests.server.harness import front, request, run

trace_sdk = pytest.importorskip("opentelemetry.sdk.trace")


def test_a_trace_goes_through(tmp_path: Path) -> None:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    spans: list[Any] = []

    class Memory(SpanExporter):
        def export(self, batch: Sequence[Any]) -> SpanExportResult:
            spans.extend(batch)
            return SpanExportResult.SUCCESS

    provider = trace_sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Memory()))

    async def check() -> None:
        async with front(tmp_path, tracing=tracing.OpenTelemetry(provider)) as f:
            trace = "0af7651916cd43dd8448eb211c80319c"
            await f.another(traceparent=f"00-{trace}-b7ad6b7169203331-01").result(request())
            names = {s.name: s for s in spans}
            assert {"Optimize", "compile", "analysing"} <= names.keys()
            assert all(format(s.context.trace_id, "032x") == trace for s in spans)
            assert names["compile"].parent.span_id == names["Optimize"].context.span_id
            assert names["analysing"].parent.span_id == names["compile"].context.span_id

    run(check())


def test_an_endpoint_needs_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    with pytest.raises(MissingPackages, match=r"pip install .*\[server,telemetry\]"):
        tracing.tracing("http://127.0.0.1:4317")
    assert tracing.tracing("").context() == ""
