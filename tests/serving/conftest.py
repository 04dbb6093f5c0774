"""One server for all tests of this directory that need one: a tiny model, in this process."""

from __future__ import annotations

import dataclasses
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@dataclasses.dataclass
class Running:
    """A running server and how to ask it."""

    server: Any
    base: Path
    channel: Any

    def call(self, method: str, request: Any, service: str = "PredictionService", timeout: float | None = 30.0, **options: Any) -> Any:
        """The response of an RPC; grpc.RpcError as grpc raises it."""
        from disc_tf.serving.handlers import SERVICES
        from disc_tf.serving.protos import message_class

        name = f"tensorflow.serving.{service}"
        response = message_class(f"serving.{SERVICES[name][method][1]}")
        stub = self.channel.unary_unary(f"/{name}/{method}", lambda m: m.SerializeToString(), response.FromString)
        return stub(request, timeout=timeout, **options)

    def rest(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """(status, parsed JSON) of GET, or POST if there is a body."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.server.rest_port}{path}", data, headers or {})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            status, text = e.code, e.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text


def start(models: list[Any], **settings: Any) -> Running:
    import grpc

    from disc_tf.serving.server import ModelServer, ServerSettings

    defaults: dict[str, Any] = {"port": 0, "rest_port": 0, "poll_seconds": 0.05, "quiet_seconds": 0.1}
    server = ModelServer(models, ServerSettings(**{**defaults, **settings}))
    server.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{server.port}", [("grpc.max_receive_message_length", -1)])
    return Running(server, Path(models[0].base_path), channel)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Model `m`: version 1 of TF1 with all signatures."""
    pytest.importorskip("grpc")
    from disc_tf.serving.config import ModelSettings, VersionPolicy
    from tests.serving.models import save_tf1

    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    base = tmp_path_factory.mktemp("served") / "m"
    save_tf1(base / "1")
    found = start([ModelSettings("m", str(base), VersionPolicy("all"), {"stable": 1})], max_message_bytes=1 << 20)
    yield found
    found.channel.close()
    assert found.server.stop(5.0)
