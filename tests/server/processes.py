"""The command in a process of its own, graphs that keep it at work, and what runs below a process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc

from disc_tf.frontend.tfproto import message_class as graph_message
from disc_tf.frontend.tfproto import serialized
from tests.server.harness import Client, connect

ROOT = Path(__file__).parents[2]
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


def product(prefix: str = "", dtype: int = 1) -> bytes:
    """softmax(relu(a @ b)) of a TensorFlow dtype, f32 if not said."""
    graph = graph_message("GraphDef")()
    for name in ("a", "b"):
        node = graph.node.add(name=prefix + name, op="Placeholder")
        node.attr["dtype"].type = dtype
        for _ in range(2):
            node.attr["shape"].shape.dim.add(size=-1)
    for name, op, inputs in (("m", "MatMul", ("a", "b")), ("r", "Relu", ("m",)), ("y", "Softmax", ("r",))):
        node = graph.node.add(name=prefix + name, op=op, input=[prefix + i for i in inputs])
        node.attr["T"].type = dtype
    return serialized(graph)


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


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'server'}"}


def command(directory: Path, *flags: str) -> list[str]:
    """How it is started: on a free port, which its first line names, with one compile child."""
    return [sys.executable, "-m", "disc_tf_server", "--address", "127.0.0.1:0", "--data-dir", str(directory), "--children", "1", *flags]


@contextlib.asynccontextmanager
async def server(directory: Path, *flags: str) -> AsyncIterator[tuple[Any, Client]]:
    """The command in a process of its own: (process, client)."""
    log = directory.parent / f"{directory.name}.log"
    process = await asyncio.create_subprocess_exec(
        *command(directory, *flags), env=environment(), stdout=asyncio.subprocess.PIPE, stderr=log.open("ab")
    )
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 120)  # type: ignore[union-attr]
        address = line.decode().strip().rpartition(" ")[2]
        assert address.startswith("127.0.0.1:"), log.read_text()
        client = connect(address)
        yield process, client
        await client.channel.close()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


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


def stat(pid: int) -> list[str]:
    """The fields of a process's stat behind its name: state, parent, ... OSError if there is none."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def descendants(pid: int) -> Iterator[int]:
    """Processes below a process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = stat(int(entry.name))
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


def parent(pid: int) -> int:
    return int(stat(pid)[1])


def alive(pid: int) -> bool:
    """Whether a process runs (one that waits to be reaped does not)."""
    try:
        return stat(pid)[0] not in "ZX"
    except OSError:
        return False
