"""A front end in this process on a loopback port, its clients, and graphs to send."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from disc_tf_server.app import Backends, Service, rename_texts
from disc_tf_server.config import ServerConfig
from disc_tf_server.database import SqliteDatabase
from disc_tf_server.interfaces import ServiceError
from disc_tf_server.tracing import Tracing
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2
from google.rpc import error_details_pb2, status_pb2

from disc_tf.frontend.tfproto import message_class as graph_message
from disc_tf.frontend.tfproto import serialized
from disc_tf.remote.canonical import canonical
from disc_tf.remote.check import check_result
from disc_tf.remote.messages import message_class, new
from tests.server.standins import MemoryBlobs, MemoryStore, StandInPool

_OPTIMIZER = {
    "GetCapabilities": ("Capabilities", False),
    "Optimize": ("OptimizeEvent", True),
    "Watch": ("OptimizeEvent", True),
    "Inspect": ("InspectResponse", False),
}
_OPERATIONS = {
    "GetOperation": operations_pb2.Operation,
    "WaitOperation": operations_pb2.Operation,
    "ListOperations": operations_pb2.ListOperationsResponse,
    "CancelOperation": empty_pb2.Empty,
    "DeleteOperation": empty_pb2.Empty,
}


def graph(*names: str, op: str = "Relu", prefix: str = "") -> bytes:
    """A chain of unary ops behind a placeholder."""
    graph_def = graph_message("GraphDef")()
    x = graph_def.node.add(name=f"{prefix}x", op="Placeholder")
    x.attr["dtype"].type = 1
    last = x.name
    for name in names:
        node = graph_def.node.add(name=f"{prefix}{name}", op=op, input=[last])
        node.attr["T"].type = 1
        last = node.name
    return serialized(graph_def)


def request(content: bytes | None = None, output: str = "y:0", request_id: str = "", **fields: Any) -> Any:
    """An OptimizeRequest."""
    message = new("OptimizeRequest", request_id=request_id or str(uuid.uuid4()))
    message.graph.inline = graph("y") if content is None else content
    message.graph.outputs.append(output)
    for name, value in fields.items():
        if name == "timeout":
            message.timeout.FromNanoseconds(int(value * 1e9))
        else:
            setattr(message, name, value)
    return message


@dataclasses.dataclass
class Failure:
    """An RPC's error. details: by the name of their message."""

    code: str
    message: str
    reason: str
    details: dict[str, Any]


def failure_of(error: grpc.aio.AioRpcError) -> Failure:
    """The error with its details read."""
    found: dict[str, Any] = {}
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            assert isinstance(value, bytes)
            for detail in status_pb2.Status.FromString(value).details:
                kind = getattr(error_details_pb2, detail.type_url.rpartition(".")[2])
                found[kind.DESCRIPTOR.name] = kind.FromString(detail.value)
    info = found.get("ErrorInfo")
    return Failure(error.code().name, error.details() or "", info.reason if info else "", found)


class Client:
    """Plain stubs, as any language has them."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Mapping[str, str] | None = None, address: str = "") -> None:
        self.address = address
        self.channel, self._metadata = channel, tuple((metadata or {}).items())

    async def call(self, method: str, message: Any, timeout: float = 20.0) -> Any:
        """The response of a unary RPC."""
        if method in _OPERATIONS:
            path, parse = f"/google.longrunning.Operations/{method}", _OPERATIONS[method].FromString
        else:
            path, parse = f"/disc_tf.v1.Optimizer/{method}", message_class(_OPTIMIZER[method][0]).FromString
        data = message if isinstance(message, bytes) else message.SerializeToString()
        return await self.channel.unary_unary(path, None, parse)(data, timeout=timeout, metadata=self._metadata)

    def stream(self, method: str, message: Any, timeout: float = 20.0) -> Any:
        """The call of Optimize or Watch: an iterator of events that can be cancelled."""
        data = message if isinstance(message, bytes) else message.SerializeToString()
        make = self.channel.unary_stream(f"/disc_tf.v1.Optimizer/{method}", None, message_class("OptimizeEvent").FromString)
        return make(data, timeout=timeout, metadata=self._metadata)

    async def events(self, method: str, message: Any, timeout: float = 20.0) -> list[Any]:
        """All events of a stream."""
        return [e async for e in self.stream(method, message, timeout)]

    async def result(self, message: Any) -> tuple[Any, bool]:
        """(CompileResult, cached) of an Optimize that succeeds with its result inside."""
        last = (await self.events("Optimize", message))[-1]
        assert last.WhichOneof("event") == "result", last
        return message_class("CompileResult").FromString(last.result.inline), last.result.cached

    async def failure(self, method: str, message: Any) -> Failure:
        """The error that an RPC ends with."""
        try:
            if method in ("Optimize", "Watch"):
                answer: Any = await self.events(method, message)
            else:
                answer = await self.call(method, message)
        except grpc.aio.AioRpcError as e:
            return failure_of(e)
        raise AssertionError(f"no error but {answer}")


def connect(address: str, **metadata: str) -> Client:
    """A client with its own connection and metadata."""
    return Client(grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]), metadata, address)


@dataclasses.dataclass
class Front:
    """A running front end."""

    service: Service
    client: Client
    store: Any
    blobs: Any
    pool: Any

    def another(self, **metadata: str) -> Client:
        """A client with its own connection and metadata."""
        return connect(self.service.addresses[0], **metadata)

    def as_(self, name: str) -> Client:
        """A client with the token of a principal (`tokens_file`)."""
        return self.another(authorization=f"Bearer {token_of(name)}")


def token_of(name: str) -> str:
    return f"secret-of-{name}-0123456789"


def tokens_file(directory: Path, *names: str) -> str:
    """A file with a token of each name."""
    file = directory / "tokens"
    file.touch(mode=0o600)
    file.write_text("".join(f"{n} {token_of(n)}\n" for n in names))
    return str(file)


@contextlib.asynccontextmanager
async def front(
    tmp_path: Path,
    *,
    store: Any = None,
    blobs: Any = None,
    pool: Any = None,
    signer: Any = None,
    tracing: Any = None,
    content: Any = None,
    **settings: Any,
) -> AsyncIterator[Front]:
    """A front end with stand-ins for what is not given."""
    store, blobs, pool = store or MemoryStore(), blobs or MemoryBlobs(), pool or StandInPool()
    lease = getattr(store, "lease_seconds", 15.0)
    config = ServerConfig(**{"address": ("127.0.0.1:0",), "data_dir": str(tmp_path), "lease": lease, **settings})
    backends = Backends(
        SqliteDatabase(tmp_path / "index.sqlite"),
        store,
        blobs,
        pool,
        canonical,
        rename_texts,
        check_result,
        lambda data: data[:32],
        b"f" * 32,
        signer=signer,
        tracing=tracing or Tracing(),
        content=content or {},
    )
    service = Service(config, backends)
    await service.start()
    client = connect(service.addresses[0])
    try:
        yield Front(service, client, store, blobs, pool)
    finally:
        await client.channel.close()
        await service.end(0.0)


async def failing(what: Any) -> ServiceError:
    """The error that a call of a store or a service ends with."""
    with pytest.raises(ServiceError) as e:
        await what
    return e.value


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Lets the loop run until it holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def run(coroutine: Any, seconds: float = 60) -> Any:
    """A test's coroutine, to its end; it may not hang."""

    async def bounded() -> Any:
        async with asyncio.timeout(seconds):
            return await coroutine

    return asyncio.run(bounded())
