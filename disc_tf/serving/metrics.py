"""Prometheus metrics of a server, in a registry of its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from disc_tf.serving.manager import ModelManager

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCY = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counts and times. Labels are bounded: a model name that is not served counts under the empty name."""

    def __init__(self, manager: ModelManager) -> None:
        self.registry = CollectorRegistry()
        self._manager = manager
        self.requests = Counter(
            "disc_serve_requests", "Requests by their status", ["model", "api", "entry", "status"], registry=self.registry
        )
        self.latency = Histogram(
            "disc_serve_request_seconds", "Time in the server", ["model", "api", "entry"], buckets=_LATENCY, registry=self.registry
        )
        self.runtime = Histogram("disc_serve_runtime_seconds", "Time in TensorFlow", ["model"], buckets=_LATENCY, registry=self.registry)
        self._first_output = Histogram(
            "disc_serve_first_output_seconds",
            "Time to the first output of a streamed request",
            ["model"],
            buckets=_LATENCY,
            registry=self.registry,
        )
        self.running = Gauge("disc_serve_running_requests", "Requests that run now", registry=self.registry)
        self.batch_rows = Histogram(
            "disc_serve_batch_rows", "Rows of a batch", ["model"], buckets=[2**i for i in range(11)], registry=self.registry
        )
        self.registry.register(_States(manager))
        self.registry.register(_Runtime())

    def first_output(self, model: str, seconds: float) -> None:
        """The first outputs of a streamed request are there."""
        self._first_output.labels(model if self._manager.has(model) else "").observe(seconds)

    def finish(self, model: str, api: str, entry: str, status: str, seconds: float) -> None:
        """A request has ended. ``entry``: gRPC or REST."""
        known = model if self._manager.has(model) else ""
        self.requests.labels(known, api, entry, status).inc()
        self.latency.labels(known, api, entry).observe(seconds)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)


class _States:
    """Which version of which model is in which state, read when asked for."""

    def __init__(self, manager: ModelManager) -> None:
        self._manager = manager

    def collect(self):
        family = GaugeMetricFamily("disc_serve_version_state", "1 for the state that a version is in", labels=["model", "version", "state"])
        for model, versions in self._manager.states().items():
            for version, state in versions.items():
                family.add_metric([model, str(version), state], 1)
        yield family
        up = GaugeMetricFamily("disc_serve_store_up", "1 if the object store of a base path answered the latest call", labels=["model"])
        errors = CounterMetricFamily("disc_serve_store_errors", "Calls to the object store of a base path that failed", labels=["model"])
        for model, (answers, failed) in self._manager.stores().items():
            up.add_metric([model], int(answers))
            errors.add_metric([model], failed)
        yield up
        yield errors


class _Runtime:
    """What became of packed weights that processes share, and of signatures; nothing where none are shared, or no policy is in force."""

    def describe(self):
        return []  # registering asks, and must not load the runtime

    def collect(self):
        from disc_tf.runtime import counters, packs_directory, trust_file

        now = counters()
        if trust_file():
            signed = CounterMetricFamily("disc_serve_signatures", "Loads of code under a trust policy", labels=["result"])
            for result in ("accepted", "refused"):
                signed.add_metric([result], now[f"signatures_{result}"])
            yield signed
        if not packs_directory():
            return
        family = CounterMetricFamily("disc_serve_packs", "Packed weights by what became of their files", labels=["result"])
        for result in ("loaded", "written", "refused", "unwritten"):
            family.add_metric([result], now[f"packs_{result}"])
        yield family
        yield GaugeMetricFamily("disc_serve_packs_mapped_bytes", "Packed weights mapped from files", value=now["packs_mapped_bytes"])
