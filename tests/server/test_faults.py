"""Faults with the real command, real stores and real compile children: each ends in a right result or a clear error, and nothing stays."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import grpc
import pytest
from google.longrunning import operations_pb2

from disc_tf.remote.messages import message_class
from tests.server.harness import request, run, until
from tests.server.processes import alive, compiling, descendants, last, long_work, product, server, started

pytestmark = pytest.mark.slow


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
