"""How a server is reached: address, credentials, calls without generated code, retries."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from disc_tf.remote.messages import PACKAGE, message_class

#: of one message; larger content goes through the content store
MAX_MESSAGE = 64 << 20
_CHANNEL = [
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
]

#: method -> (service, request, response, requests are a stream, responses are)
METHODS = {
    "GetCapabilities": ("Optimizer", "GetCapabilitiesRequest", "Capabilities", False, False),
    "Optimize": ("Optimizer", "OptimizeRequest", "OptimizeEvent", False, True),
    "Watch": ("Optimizer", "WatchRequest", "OptimizeEvent", False, True),
    "Inspect": ("Optimizer", "InspectRequest", "InspectResponse", False, False),
    "FindMissingBlobs": ("ContentStore", "FindMissingBlobsRequest", "FindMissingBlobsResponse", False, False),
    "WriteBlob": ("ContentStore", "WriteBlobRequest", "WriteBlobResponse", True, False),
    "QueryWriteStatus": ("ContentStore", "QueryWriteStatusRequest", "WriteBlobResponse", False, False),
    "ReadBlob": ("ContentStore", "ReadBlobRequest", "ReadBlobResponse", False, True),
}


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a server is and how it is talked to.

    target: ``host:port`` or ``unix:/path``. ca, certificate, key: PEM files; one of them switches TLS on, as ``tls`` does. token: a bearer
    token, or ``token_file`` that holds it.
    """

    target: str
    tls: bool = False
    ca: str = ""
    certificate: str = ""
    key: str = ""
    token: str = ""
    token_file: str = ""

    @property
    def secure(self) -> bool:
        return self.tls or bool(self.ca or self.certificate)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """None without TLS. OSError for files that cannot be read, ValueError for a certificate without a key."""
        if not self.secure:
            return None
        if bool(self.certificate) != bool(self.key):
            raise ValueError("a client certificate needs its key, and a key its certificate")
        read = [Path(p).read_bytes() if p else None for p in (self.ca, self.key, self.certificate)]
        return grpc.ssl_channel_credentials(*read)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with each call. OSError for a token file that cannot be read, ValueError for a token in the clear to elsewhere."""
        token = self.token or (Path(self.token_file).read_text().strip() if self.token_file else "")
        if not token:
            return ()
        if not self.secure and not _is_local(self.target):
            raise ValueError(f"a token goes to {self.target} over TLS only: give the server's certificate authority")
        return (("authorization", f"Bearer {token}"),)


def _is_local(target: str) -> bool:
    host = target.rpartition(":")[0].strip("[]") or target
    return target.startswith("unix:") or host in ("localhost", "::1") or host.startswith("127.")


def options() -> list[tuple[str, int]]:
    """Options of a channel."""
    return list(_CHANNEL)


def method(name: str) -> tuple[str, Any, Any]:
    """(full method name, serializer, deserializer) of a method of the service."""
    service, request, response, _, _ = METHODS[name]
    return f"/{PACKAGE}.{service}/{name}", message_class(request).SerializeToString, message_class(response).FromString


@dataclasses.dataclass(frozen=True)
class Retries:
    """Waits between attempts: exponential with jitter, ``attempts`` in all, none longer than ``longest`` seconds."""

    attempts: int = 6
    first: float = 0.25
    longest: float = 15.0

    def waits(self) -> Iterator[float]:
        """Seconds to wait after each failed attempt; ends when there is to be none."""
        at = self.first
        for _ in range(self.attempts - 1):
            yield random.uniform(at / 2, at)
            at = min(at * 2, self.longest)
