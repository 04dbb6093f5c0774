"""Prometheus metrics of the service, in a registry of its own. Labels are bounded: names of ours, never a caller's words."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
#: how the phases that a compile reports begin -> label; another one counts as "other"
PHASES = {"analysing": "analysis", "compiling": "lowering", "HLO passes": "passes", "fusion": "fusion", "code for": "code"}


class Metrics:
    """Counts and times since the start."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.rpcs = Counter("disc_server_rpcs", "RPCs by their status", ["method", "code"], registry=r)
        self.rpc_seconds = Histogram("disc_server_rpc_seconds", "Time of an RPC", ["method"], buckets=_LATENCY, registry=r)
        self.running_rpcs = Gauge("disc_server_running_rpcs", "RPCs that run now", ["method"], registry=r)
        self.failures = Counter("disc_server_failures", "Errors that callers were told, by reason", ["reason"], registry=r)
        self.received = Counter("disc_server_received_bytes", "Bytes of requests", registry=r)
        self.sent = Counter("disc_server_sent_bytes", "Bytes of responses", registry=r)
        self.waiting = Gauge("disc_server_queue_waiting", "Compiles that wait (of all front ends)", registry=r)
        self.running = Gauge("disc_server_queue_running", "Compiles that run (of all front ends)", registry=r)
        self.principals = Gauge("disc_server_queue_principals", "Principals with a compile that waits", registry=r)
        self.operations = Gauge("disc_server_operations", "Operations that have not ended", registry=r)
        self.children = Gauge("disc_server_running_compiles", "Compiles that run at this front end", registry=r)
        self.compiles = Counter("disc_server_compiles", "Compiles that ended here, by how", ["outcome"], registry=r)
        self.compile_seconds = Histogram("disc_server_compile_seconds", "Time of a compile", buckets=_LATENCY, registry=r)
        self.phase_seconds = Histogram("disc_server_phase_seconds", "Time of a phase", ["phase"], buckets=_LATENCY, registry=r)
        self.cache = Counter("disc_server_cache_lookups", "Lookups of results", ["outcome"], registry=r)
        self.cache_bytes = Gauge("disc_server_cache_bytes", "Bytes of the results that are kept", registry=r)
        self.cache_entries = Gauge("disc_server_cache_entries", "Results that are kept", registry=r)
        self.blob_bytes = Gauge("disc_server_blob_bytes", "Bytes of all content", registry=r)
        self.blobs = Gauge("disc_server_blobs", "Blobs that are kept", registry=r)

    def phase(self, name: str, seconds: float) -> None:
        """A phase of a compile has ended."""
        label = next((known for start, known in PHASES.items() if name.startswith(start)), "other")
        self.phase_seconds.labels(label).observe(seconds)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
