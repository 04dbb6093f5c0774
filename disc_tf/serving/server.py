"""`disc-tf serve`: the models, the two protocols, health and metrics put together."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import ssl
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from disc_tf.serving.batching import Batcher, BatchSettings
from disc_tf.serving.config import ConfigError, ModelSettings
from disc_tf.serving.errors import ServingError
from disc_tf.serving.handlers import Handlers, Runner, run_directly
from disc_tf.serving.manager import ModelManager, Watcher
from disc_tf.serving.metrics import Metrics
from disc_tf.serving.servable import Servable
from disc_tf.serving.sources import DEFAULT_RETRIES, Cache, LocalSource, Retries, Source, StoreSource
from disc_tf.serving.stores import is_remote, local_path
from disc_tf.serving.versions import not_a_base
from disc_tf.serving.warmup import replay

log = logging.getLogger("disc_tf.serving")


@dataclasses.dataclass(frozen=True)
class Tls:
    """Files in PEM: the server's certificate chain and key; ``client_ca``: clients must show a certificate signed by one of these."""

    certificate: str
    key: str
    client_ca: str = ""


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """What a server listens on and what it allows.

    ``port``, ``rest_port``: 0 picks a free one, None leaves that protocol out. ``poll_seconds``: 0 looks for versions at the start and on
    reload requests only. ``threads``: requests that run at once, of each protocol. ``tf_threads``: intra-op and inter-op (0: TensorFlow's
    choice). ``reload_roots``: below which reload requests may name base paths (empty: the base paths of ``models``). ``cache_dir``,
    ``cache_bytes``: where copies of an object store's versions are kept (empty: the system's directory for temporary files), and how many
    bytes of them at most.
    """

    host: str = "127.0.0.1"
    port: int | None = 8500
    rest_port: int | None = 8501
    socket: str = ""
    tls: Tls | None = None
    token: str | None = None
    poll_seconds: float = 1.0
    quiet_seconds: float = 1.0
    threads: int = 16
    tf_threads: tuple[int, int] = (0, 0)
    max_message_bytes: int = 256 << 20
    max_concurrent: int | None = 2000
    rest_timeout: float = 30.0
    warmup: bool = True
    batching: BatchSettings | None = None
    allow_unavailable_labels: bool = False
    reload_roots: tuple[str, ...] = ()
    cache_dir: str = ""
    cache_bytes: int = 20 << 30
    store_retries: Retries = DEFAULT_RETRIES


class ModelServer:
    """A server over ``models``. `start`, then `stop`; `wait` runs until a signal. Raises OSError and `ConfigError`."""

    def __init__(self, models: Sequence[ModelSettings], settings: ServerSettings) -> None:
        for m in models:
            if not is_remote(m.base_path) and not local_path(m.base_path).is_dir():
                raise ConfigError(f"model {m.name}: {m.base_path} is not a directory")
            if not is_remote(m.base_path) and (why := not_a_base(local_path(m.base_path))):
                raise ConfigError(f"model {m.name}: {m.base_path} {why}")
        self._models, self.settings = models, settings
        self._cache: Cache | None = None
        self.manager = ModelManager(
            self._load,
            source=self._source,
            quiet=settings.quiet_seconds,
            allow_unavailable_labels=settings.allow_unavailable_labels,
            on_change=self._changed,
        )
        self.metrics = Metrics(self.manager)
        run: Runner = run_directly
        if settings.batching is not None:
            run = Batcher(settings.batching, observe=lambda model, rows: self.metrics.batch_rows.labels(model).observe(rows))
        self.handlers = Handlers(
            self.manager,
            run=run,
            reload_roots=_reload_roots(models, settings),
            max_tensor_bytes=max(settings.max_message_bytes, 1 << 20),
            observe=lambda model, seconds: self.metrics.runtime.labels(model).observe(seconds),
        )
        self._open_ports()
        self._watcher = Watcher(self.manager, settings.poll_seconds) if settings.poll_seconds > 0 else None

    def _open_ports(self) -> None:
        from disc_tf.serving.grpc_server import GrpcServer
        from disc_tf.serving.http_server import HttpServer, RestApi

        s = self.settings
        host = f"[{s.host}]" if ":" in s.host else s.host
        addresses = ([f"{host}:{s.port}"] if s.port is not None else []) + ([f"unix:{s.socket}"] if s.socket else [])
        limits = {"threads": s.threads, "max_message_bytes": s.max_message_bytes, "max_concurrent": s.max_concurrent, "token": s.token}
        self._grpc_server = GrpcServer(self.handlers, self.metrics, addresses, credentials=_grpc_credentials(s.tls), **limits)
        self._http = None
        if s.rest_port is not None:
            self._http = HttpServer(
                RestApi(self.handlers),
                self.metrics,
                s.host,
                s.rest_port,
                timeout=s.rest_timeout,
                ready=self.manager.ready,
                tls=_context(s.tls),
                **limits,
            )

    @property
    def port(self) -> int | None:
        """Where gRPC listens."""
        return self._grpc_server.ports[0] if self.settings.port is not None else None

    @property
    def rest_port(self) -> int | None:
        """Where REST listens."""
        return self._http.port if self._http is not None else None

    def start(self) -> None:
        """Listen, then load: health checks answer NOT_SERVING meanwhile.

        Raises `ServingError` for labels that name no version, OSError if a protocol cannot be served.
        """
        try:
            self._grpc_server.start()
            if self._http is not None:
                self._http.start()
            self.manager.configure(self._models)
        except BaseException:
            self.stop(0.0)
            raise
        if self._watcher is not None:
            self._watcher.start()

    def stop(self, grace: float = 30.0) -> bool:
        """Drain: health says NOT_SERVING, no new requests, those that run get ``grace`` seconds. False if some did not end."""
        end = time.monotonic() + grace
        self.manager.stopping = True
        self._grpc_server.begin_shutdown()
        # both protocols refuse what is new at once, then both drain
        ended = self._grpc_server.stop(grace)
        if self._http is not None:
            self._http.stop(grace)
        ended.wait()
        if self._watcher is not None:
            self._watcher.stop()
        ended_all = self.manager.close(max(1.0, end - time.monotonic()))
        if self._cache is not None:
            self._cache.close()
        return ended_all

    def wait(self, grace: float = 30.0, delay: float = 0.0) -> bool:
        """Until SIGTERM or SIGINT; then `stop`, ``delay`` seconds after health checks began to say NOT_SERVING."""
        asked = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: asked.set())
        asked.wait()
        log.info("stopping")
        self.manager.stopping = True
        self._grpc_server.begin_shutdown()
        time.sleep(delay)
        return self.stop(grace)

    # ---- models ----

    def _source(self, base_path: str) -> Source:
        if not is_remote(base_path):
            return LocalSource(base_path)
        if self._cache is None:
            self._cache = Cache(self.settings.cache_dir or None, self.settings.cache_bytes)
        return StoreSource(base_path, self._cache, self.settings.store_retries)

    def _load(self, name: str, version: int, path: Path) -> Servable:
        servable = Servable(name, version, path, threads=self.settings.tf_threads)
        try:
            if self.settings.warmup and (count := replay(servable)):
                log.info("model %s version %d: %d warm-up records", name, version, count)
            if self.settings.batching is not None:
                servable.not_batched = self._judge(servable)
        except BaseException:
            servable.close()
            raise
        return servable

    def _judge(self, servable: Servable) -> dict[str, str]:
        from disc_tf.serving.rows import rows_independent

        found: dict[str, str] = {}
        for name in servable.signatures:
            verdict = rows_independent(servable.path, name)
            found[name] = "" if verdict else verdict.reason
            if not verdict:
                log.warning("model %s signature %s is not batched: %s", servable.name, name, verdict.reason)
        return found

    def _changed(self) -> None:
        self._grpc_server.set_ready(self.manager.ready())


def _reload_roots(models: Sequence[ModelSettings], settings: ServerSettings) -> tuple[Path | str, ...]:
    """Where reload requests may load from: what was said, or the base paths themselves, but never the whole disk unasked."""
    named = settings.reload_roots or tuple(m.base_path for m in models)
    roots = [r if is_remote(r) else local_path(r).resolve() for r in named]
    return tuple(r for r in roots if settings.reload_roots or isinstance(r, str) or r != r.parent)


def _grpc_credentials(tls: Tls | None) -> Any:
    if tls is None:
        return None
    import grpc

    certificate, key = _read(tls.certificate), _read(tls.key)
    roots = _read(tls.client_ca) if tls.client_ca else None
    return grpc.ssl_server_credentials([(key, certificate)], root_certificates=roots, require_client_auth=roots is not None)


def _context(tls: Tls | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate, tls.key)
        if tls.client_ca:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as e:
        raise ConfigError(f"TLS files {tls.certificate}, {tls.key}: {e}") from e
    return context


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror or e}") from e


def read_token(path: str) -> str:
    """The bearer token in a file. `ConfigError` for a file that does not hold one word; a warning for one that others may read."""
    text = _read(path).decode("utf-8", "replace").strip()
    if not text or any(c.isspace() for c in text):
        raise ConfigError(f"{path}: write the token, one word, into the file")
    if os.stat(path).st_mode & 0o077:
        log.warning("%s can be read by others: chmod 600", path)
    return text


__all__ = ["ModelServer", "ServerSettings", "ServingError", "Tls", "read_token"]
