"""Fuzzes the parser of every RPC of a front end in this process, on the real stores:

    PYTHONPATH=.:server python -m tests.server.fuzz --seconds 3600

Messages are well-formed ones with odd values, and such with bytes changed. An answer is a result or a documented error; anything else
(INTERNAL, UNKNOWN, a call that does not end) is a finding: it ends the run with the message and the seed that gives it again.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
from disc_tf_server.content import ContentService
from disc_tf_server.content_rpcs import SERVICE as CONTENT
from disc_tf_server.content_rpcs import content_methods
from disc_tf_server.interfaces import Digest
from disc_tf_server.stores import open_stores
from google.longrunning import operations_pb2

from disc_tf.frontend.tfproto import message_class as graph_message
from disc_tf.remote.messages import message_class
from tests.server.harness import failure_of, front, graph, request

#: service/method -> class of its requests
METHODS: dict[str, Any] = {
    "disc_tf.v1.Optimizer/GetCapabilities": message_class("GetCapabilitiesRequest"),
    "disc_tf.v1.Optimizer/Optimize": message_class("OptimizeRequest"),
    "disc_tf.v1.Optimizer/Watch": message_class("WatchRequest"),
    "disc_tf.v1.Optimizer/Inspect": message_class("InspectRequest"),
    "google.longrunning.Operations/GetOperation": operations_pb2.GetOperationRequest,
    "google.longrunning.Operations/ListOperations": operations_pb2.ListOperationsRequest,
    "google.longrunning.Operations/WaitOperation": operations_pb2.WaitOperationRequest,
    "google.longrunning.Operations/CancelOperation": operations_pb2.CancelOperationRequest,
    "google.longrunning.Operations/DeleteOperation": operations_pb2.DeleteOperationRequest,
    "disc_tf.v1.ContentStore/FindMissingBlobs": message_class("FindMissingBlobsRequest"),
    "disc_tf.v1.ContentStore/WriteBlob": message_class("WriteBlobRequest"),
    "disc_tf.v1.ContentStore/QueryWriteStatus": message_class("QueryWriteStatusRequest"),
    "disc_tf.v1.ContentStore/ReadBlob": message_class("ReadBlobRequest"),
}
#: no answer to bytes is one of these
WRONG = {"INTERNAL", "UNKNOWN", "UNIMPLEMENTED", "UNAUTHENTICATED", "DATA_LOSS"}
_NUMBERS = (0, 1, -1, 2, 7, 255, 1 << 31, (1 << 31) - 1, 1 << 62, (1 << 63) - 1, -(1 << 63))
_TEXTS = (
    "",
    "x",
    "y:0",
    "^y",
    "a" * 300,
    "\0",
    "../../etc/passwd",
    "n.0",
    "é\u202e",
    "operations/" + "0" * 32,
    "operations",
    "zstd",
    "identity",
)


def odd_value(rng: random.Random, field: Any) -> Any:
    """A value of a field's type, likely at the edge of what is meant."""
    kind = field.cpp_type
    if kind in (field.CPPTYPE_INT32, field.CPPTYPE_INT64, field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        low, high = {
            field.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1), field.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
            field.CPPTYPE_UINT32: (0, (1 << 32) - 1), field.CPPTYPE_UINT64: (0, (1 << 64) - 1),
        }[kind]  # fmt: skip
        return min(max(rng.choice(_NUMBERS), low), high)
    if kind in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return rng.choice((0.0, 1.5, -1.0, float("nan"), float("inf"), 1e30))
    if kind == field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == field.CPPTYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    text = rng.choice(_TEXTS)
    if field.type == field.TYPE_BYTES:
        return rng.choice((b"", graph("y"), b"\0" * 50, rng.randbytes(rng.randint(1, 200)), text.encode()))
    return text


def odd_message(rng: random.Random, message: Any, depth: int = 0) -> None:
    """Fills some fields of a message."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.45:
            continue
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry or depth > 5:
                continue
            inner = getattr(message, field.name)
            for _ in range(rng.randint(1, 3) if field.is_repeated else 1):
                odd_message(rng, inner.add() if field.is_repeated else inner, depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend(odd_value(rng, field) for _ in range(rng.randint(0, 3)))
        else:
            setattr(message, field.name, odd_value(rng, field))


def mutated_graph(rng: random.Random) -> bytes:
    """A small graph with a function, with something wrong in it."""
    message = graph_message("GraphDef").FromString(graph("a", "b", "y"))
    for _ in range(rng.randint(0, 3)):
        node = rng.choice(message.node)
        what = rng.randrange(6)
        if what == 0:
            node.input.append(rng.choice(("x", "y", "a:7", "^b", "nothing", "")))
        elif what == 1:
            node.op = rng.choice(("Const", "PartitionedCall", "While", "NoOp", "", "Softmax", "ReadFile"))
        elif what == 2:
            node.name = rng.choice(("y", "a", "", "../x", "b\n"))
        elif what == 3:
            odd_message(rng, node.attr[rng.choice(("T", "value", "f", "shape"))])
        elif what == 4:
            odd_message(rng, message.library.function.add(), 3)
        else:
            odd_message(rng, node, 3)
    data = bytearray(message.SerializeToString())
    if rng.random() < 0.3 and data:
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def sample(rng: random.Random, cls: Any, name: str) -> bytes:
    """A request's bytes."""
    message = cls()
    if cls is METHODS["disc_tf.v1.Optimizer/Optimize"] and rng.random() < 0.7:
        message.CopyFrom(
            request(
                mutated_graph(rng),
                rng.choice(("y", "y:0", "a:0", "y:9")),
                request_id=rng.choice(("", "r", str(uuid.UUID(int=rng.getrandbits(128))))),
            )
        )
        if rng.random() < 0.3:
            odd_message(rng, message.options)
        message.timeout.seconds = 5
    else:
        odd_message(rng, message)
        if rng.random() < 0.5:
            for field in ("name", "operation"):
                if field in message.DESCRIPTOR.fields_by_name:
                    setattr(message, field, name)
        if "digest" in message.DESCRIPTOR.fields_by_name and rng.random() < 0.7:
            digest = Digest.of(rng.choice((b"", b"x", b"abc" * 50)))
            message.digest.hash, message.digest.size_bytes = digest.hash, digest.size
    data = bytearray(message.SerializeToString())
    if rng.random() < 0.4 and data:
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.randint(0, len(data))] if rng.random() < 0.1 else data)


async def fuzz(directory: Path, seconds: float, seed: int) -> Counter[str]:
    """Runs for so long; how often each code was answered. AssertionError for a finding."""
    stores = await open_stores(directory / "stores")
    content = {CONTENT: content_methods(ContentService(stores.blobs))}
    tally: Counter[str] = Counter()
    async with front(directory / "front", store=stores.operations, blobs=stores.blobs, content=content, max_duration=20.0) as f:
        name = (await f.client.events("Optimize", request()))[-1].operation
        end, number = time.monotonic() + seconds, seed

        async def one(number: int) -> None:
            rng = random.Random(number)
            method = rng.choice(list(METHODS))
            messages = [
                sample(rng, METHODS[method], name) for _ in range(rng.choice((1, 1, 1, 2, 4)) if method.endswith("WriteBlob") else 1)
            ]

            async def requests():
                for message in messages:
                    yield message

            code = "OK"
            try:
                call = f.client.channel.stream_stream(f"/{method}", None, None)(requests(), timeout=120)
                async for _ in call:
                    pass
            except grpc.aio.AioRpcError as e:
                failure = failure_of(e)
                # the server answered while the client was still sending: the client's own library says so
                code = "answered early" if failure.message == "Internal error from Core" else failure.code
                assert code not in WRONG | {"DEADLINE_EXCEEDED"}, f"seed {number}: {method} {messages!r}: {failure}"
            tally[code] += 1

        while time.monotonic() < end:
            await asyncio.gather(*(one(number + i) for i in range(16)))
            number += 16
        assert (await f.client.result(request(graph("still", "alive", "y"))))[0].compiled
    await stores.database.close()
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the RPCs of the service.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        tally = asyncio.run(fuzz(Path(directory), args.seconds, args.seed))
    print(f"{sum(tally.values())} calls, no finding: {dict(tally)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
