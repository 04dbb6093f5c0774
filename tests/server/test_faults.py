"""Faults with the real command, real stores and real compile children: each ends in a right result or a clear error, and nothing stays."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.longrunning import operations_pb2

from disc_tf.frontend.tfproto import message_class as graph_message
from disc_tf.frontend.tfproto import serialized
from disc_tf.remote.messages import message_class
from tests.server.harness import request, run, until
from tests.server.test_end_to_end import product, server

pytestmark = pytest.mark.slow
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


def long_work(blocks: int = 60) -> bytes:
    """Many products of different kinds in a row: some seconds of compiling."""
    graph = graph_message("GraphDef")()
    for name, dims in (("x", (-1, 64)), ("w", (64, 64))):
        node = graph.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = 1
        for size in dims:
            node.attr["shape"].shape.dim.add(size=size)
    last = "x"
    for i in range(blocks):
        for op in ("MatMul", "Softmax", "Tanh", "Relu", "Exp", "Sigmoid")[: 2 + i % 5]:
            node = graph.node.add(name=f"{op}{i}", op=op, input=[last, "w"] if op == "MatMul" else [last])
            node.attr["T"].type = 1
            last = node.name
    graph.node[-1].name = "y"
    return serialized(graph)


def descendants(pid: int) -> Iterator[int]:
    """Processes below a process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    work = [pid]
    while work:
        for child in parents.get(work.pop(), ()):
            yield child
            work.append(child)


def compiling(process: Any) -> list[int]:
    """The compile children, waiting ones too: what is below the template, the only child of the server."""
    below = list(descendants(process.pid))
    return below[1:]


def alive(pid: int) -> bool:
    """Whether a process runs (one that waits to be reaped does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def started(call: Any) -> list[Any]:
    """Events until the compile reports its first phase."""
    events = []
    async with asyncio.timeout(60):
        while not events or events[-1].WhichOneof("event") != "progress":
            events.append(await call.read())
            assert events[-1] is not EOF
    return events


async def last(call: Any) -> Any:
    found = None
    async with asyncio.timeout(120):
        while (event := await call.read()) is not EOF:
            found = event
    return found


def test_faults_of_children(tmp_path: Path) -> None:
    async def check() -> None:
        async with server(tmp_path / "data", "--child-memory", "1G") as (process, client):
            # killed: tried once more, and the result is right
            call = client.stream("Optimize", request(long_work()), timeout=200)
            await started(call)
            for pid in compiling(process):
                os.kill(pid, signal.SIGKILL)
            event = await last(call)
            assert event.WhichOneof("event") == "result", event
            assert message_class("CompileResult").FromString(event.result.inline).clusters
            # hung: stopped, and its time is over
            call = client.stream("Optimize", request(long_work(61), timeout=4.0), timeout=200)
            await started(call)
            for pid in compiling(process):
                os.kill(pid, signal.SIGSTOP)
            stopped = compiling(process)
            assert (await last(call)).error.code == 4
            await until(lambda: not set(stopped) <= set(compiling(process)))
            for pid in set(stopped) & set(compiling(process)):  # the one that waited for work was stopped as well
                os.kill(pid, signal.SIGKILL)
            # cancelled: its process ends at once
            call = client.stream("Optimize", request(long_work(62)), timeout=200)
            name = (await started(call))[-1].operation
            before = set(compiling(process))
            await client.call("CancelOperation", operations_pb2.CancelOperationRequest(name=name))
            assert (await last(call)).error.code == 1
            await until(lambda: not before <= set(compiling(process)), 5)
            # the template killed: a new one is started
            os.kill(next(descendants(process.pid)), signal.SIGKILL)
            call = client.stream("Optimize", request(product()), timeout=200)
            assert (await last(call)).WhichOneof("event") == "result"
            everything = list(descendants(process.pid))
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 60) == 0
            await until(lambda: not any(alive(pid) for pid in everything), 5)
        async with server(tmp_path / "small", "--child-memory", "64M") as (process, client):
            event = await last(client.stream("Optimize", request(long_work(300)), timeout=200))
            if event.WhichOneof("event") == "error":
                assert event.error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], event
            event = await last(client.stream("Optimize", request(product()), timeout=200))
            assert event.WhichOneof("event") == "result"

    run(check(), 500)


def test_a_damaged_cache_is_a_miss(tmp_path: Path) -> None:
    async def check() -> None:
        async with server(tmp_path / "data") as (process, client):
            first, _ = await client.result(request(product()))
            process.send_signal(signal.SIGTERM)
            await process.wait()
        objects = [f for f in (tmp_path / "data" / "blobs" / "objects").rglob("*") if f.is_file()]
        assert objects
        for file in objects:
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
        async with server(tmp_path / "data") as (_, client):
            again, cached = await client.result(request(product()))
            assert not cached and [list(c.nodes) for c in again.clusters] == [list(c.nodes) for c in first.clusters]

    run(check(), 200)
