"""The gRPC server itself: addresses, TLS, limits, health, reflection."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from disc_tf_server.config import ConfigError, ServerConfig
from disc_tf_server.principals import read_pem

#: bytes of a request besides the graph in it
_SLACK = 1 << 20
#: health checks at a time, at the address that is for them alone
_CHECKS = 16


def make_server(config: ServerConfig) -> grpc.aio.Server:
    """A server without services and addresses."""
    return grpc.aio.server(
        options=[
            # a little more than the limit, so that whoever is over it gets an error with the limit in it
            ("grpc.max_receive_message_length", config.max_inline_bytes + max(_SLACK, config.max_inline_bytes // 4)),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", 16 << 10),
            ("grpc.so_reuseport", 0),
            # a connection whose other end is gone is noticed, though nothing is sent
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ],
        maximum_concurrent_rpcs=2 * config.max_rpcs,  # the limit itself is `rpc`'s, whose errors say when to come back
    )


class Certificates:
    """TLS files, read again for new connections once they have changed; a set that cannot be read leaves the old one in force."""

    def __init__(self, config: ServerConfig) -> None:
        self._paths = (config.tls_key, config.tls_cert, config.tls_client_ca)
        self._stamps: tuple[Any, ...] = ()
        self._first = self._read()

    def _stamp(self) -> tuple[Any, ...]:
        found = (os.stat(p) for p in self._paths if p)
        return tuple((s.st_mtime_ns, s.st_ino, s.st_size) for s in found)

    def _read(self) -> Any:
        key, cert, ca = self._paths
        stamps = self._stamp_or_error()
        pair = (read_pem(key, "a private key"), read_pem(cert, "a certificate"))
        root = read_pem(ca, "a certificate of an authority") if ca else None
        _check_pair(*pair, key, cert)
        self._stamps = stamps
        return grpc.ssl_server_certificate_configuration([pair], root)

    def _stamp_or_error(self) -> tuple[Any, ...]:
        try:
            return self._stamp()
        except OSError as e:
            raise ConfigError(f"cannot read {e.filename}: {e.strerror or e}") from e

    def _fetch(self) -> Any:
        try:
            return self._read() if self._stamp() != self._stamps else None
        except (OSError, ConfigError):
            return None

    def credentials(self) -> grpc.ServerCredentials:
        """For `add_secure_port`."""
        return grpc.dynamic_ssl_server_credentials(self._first, self._fetch, bool(self._paths[2]))


def _check_pair(key: bytes, cert: bytes, key_path: str, cert_path: str) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    try:
        public = load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError) as e:
        raise ConfigError(f"{key_path}: not a private key without a password: {e}") from e
    try:
        known = x509.load_pem_x509_certificate(cert).public_key()
    except ValueError as e:
        raise ConfigError(f"{cert_path}: not a certificate: {e}") from e
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if known.public_bytes(*form) != public.public_bytes(*form):
        raise ConfigError(f"{key_path} is not the key of {cert_path}")


def bind(server: grpc.aio.Server, addresses: Sequence[str], credentials: grpc.ServerCredentials | None) -> list[str]:
    """Adds the addresses; returns them with the ports that were taken. OSError for one that cannot be bound."""
    bound = []
    for address in addresses:
        try:
            if credentials is not None and not address.startswith("unix:"):
                port = server.add_secure_port(address, credentials)
            else:
                port = server.add_insecure_port(address)
        except RuntimeError as e:
            raise OSError(f"cannot listen on {address}: it is in use, or may not be opened ({str(e).splitlines()[0][:200]})") from e
        if not port:
            raise OSError(f"cannot listen on {address}: it is in use, or may not be opened")
        bound.append(address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}")
    return bound


class Health:
    """grpc.health.v1, for the whole server ("") and for each service."""

    def __init__(self, server: grpc.aio.Server, services: Iterable[str]) -> None:
        self._servicer: Any = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue]
        self._services = ("", *services)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        self._alone: grpc.aio.Server | None = None

    async def serve_alone(self, address: str) -> str:
        """Answers health checks there, too, and nothing else, without TLS; returns the address. OSError."""
        self._alone = grpc.aio.server(options=[("grpc.so_reuseport", 0)], maximum_concurrent_rpcs=_CHECKS)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, self._alone)
        (bound,) = bind(self._alone, [address], None)
        await self._alone.start()
        return bound

    async def set(self, serving: bool) -> None:
        """What health checks are told from now on."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._services:
            await self._servicer.set(name, status)

    async def end(self) -> None:
        """NOT_SERVING for good."""
        await self._servicer.enter_graceful_shutdown()

    async def close(self) -> None:
        """Nobody is answered there any more."""
        if self._alone is not None:
            await self._alone.stop(0.0)


def add_reflection(server: grpc.aio.Server, services: Sequence[str]) -> None:
    """Serves gRPC reflection of the services: their declarations come from several descriptor pools."""
    from google.longrunning import operations_pb2
    from grpc_reflection.v1alpha import reflection

    from disc_tf.remote.messages import pool as own_pool

    known = descriptor_pool.DescriptorPool()
    done: set[str] = set()

    def add(file: Any) -> None:
        if file.name in done:
            return
        done.add(file.name)
        for needed in file.dependencies:
            add(needed)
        proto = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(proto)
        known.AddSerializedFile(proto.SerializeToString())

    add(own_pool().FindMessageTypeByName("disc_tf.v1.OptimizeRequest").file)
    add(operations_pb2.DESCRIPTOR)
    add(health_pb2.DESCRIPTOR)
    reflection.enable_server_reflection([*services, health.SERVICE_NAME, reflection.SERVICE_NAME], server, known)
