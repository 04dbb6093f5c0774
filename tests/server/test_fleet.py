"""Two front ends as processes on one PostgreSQL database and one store of blobs: one ends in the middle of a stream, the client goes on
at the other."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.longrunning import operations_pb2

from disc_tf.frontend.tfproto import graph_from_bytes
from disc_tf.remote import Client
from disc_tf.remote.connection import Retries
from disc_tf.remote.messages import message_class, new
from tests.server.harness import request, run
from tests.server.processes import EOF, alive, descendants, last, long_work, product, server, started

pytestmark = pytest.mark.slow


class OneAddress:
    """A TCP proxy before several servers, as a load balancer is: new connections go to the first one that takes them."""

    def __init__(self) -> None:
        self.behind: list[str] = []
        self.address = ""
        self._links: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[OneAddress]:
        listening = await asyncio.start_server(self._link, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            listening.close()
            for writer in self._links:
                writer.close()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._links.add(writer)
        for address in self.behind:
            host, _, port = address.rpartition(":")
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection(host, int(port))
                self._links.add(back)
                await asyncio.gather(self._copy(reader, back), self._copy(there, writer))
                return
        writer.close()

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()


def test_one_of_two_front_ends_is_killed(postgres: str, tmp_path: Path) -> None:
    flags = ["--operations", postgres, "--blobs", str(tmp_path / "blobs"), "--lease", "2s"]

    async def check() -> None:
        async with OneAddress().open() as balancer, server(tmp_path / "first", *flags) as (first, at_first):
            balancer.behind.append(at_first.address)
            # a plain client that re-attaches by itself, and the project's own behind the common address
            call = at_first.stream("Optimize", request(long_work()), timeout=300)
            events = await started(call)
            lines: list[str] = []
            client = Client(balancer.address, retries=Retries(attempts=30, longest=1.0))
            own = asyncio.ensure_future(
                asyncio.to_thread(
                    client.optimize_graph_def, graph_from_bytes(long_work(70)), ["y:0"], {"min_cluster_size": 1}, progress=lines.append
                )
            )
            async with server(tmp_path / "second", *flags) as (second, at_second):
                balancer.behind.append(at_second.address)
                while not any("waiting" in line for line in lines):
                    await asyncio.sleep(0.05)
                children = list(descendants(first.pid))
                first.kill()
                await first.wait()
                with pytest.raises(grpc.aio.AioRpcError) as e:
                    await last(call)
                assert e.value.code() is grpc.StatusCode.UNAVAILABLE
                name, sequence = events[-1].operation, max(event.sequence for event in events)
                watch = at_second.stream("Watch", new("WatchRequest", operation=name, after_sequence=sequence), timeout=300)
                event: Any = None
                seen = []
                while (found := await watch.read()) is not EOF:
                    event = found
                    seen.append(event.sequence)
                assert event.WhichOneof("event") == "result", event
                assert all(n >= sequence for n in seen) and seen == sorted(seen)
                assert message_class("CompileResult").FromString(event.result.inline).clusters
                result = await asyncio.wait_for(own, 300)
                assert [n.op for n in result.graph_def.node].count("DiscLaunch") == 1
                client.close()
                # what the first one made before it was killed, and what both know, is here
                assert (await at_second.call("GetOperation", operations_pb2.GetOperationRequest(name=name))).done
                listed = await at_second.call("ListOperations", operations_pb2.ListOperationsRequest(name="operations"))
                assert len(listed.operations) == 2 and all(o.done for o in listed.operations)
                assert not any(alive(pid) for pid in children)
                # a third one on the same stores answers from the cache
                async with server(tmp_path / "third", *flags) as (_, at_third):
                    _, cached = await at_third.result(request(long_work()))
                    assert cached
                    assert not (await at_third.result(request(product())))[1]
                    assert (await at_second.result(request(product("p/"), "p/y:0")))[1]
                second.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(second.wait(), 60) == 0

    run(check(), 500)


def test_handed_over_at_the_end(postgres: str, tmp_path: Path) -> None:
    """SIGTERM with no time to drain: the work that runs goes on at the other front end at once, not when a lease runs out."""
    flags = ["--operations", postgres, "--blobs", str(tmp_path / "blobs"), "--lease", "60s"]

    async def check() -> None:
        async with server(tmp_path / "first", *flags, "--drain", "0") as (first, at_first):
            call: Any = at_first.stream("Optimize", request(long_work()), timeout=300)
            name = (await started(call))[-1].operation
            async with server(tmp_path / "second", *flags) as (_, at_second):
                first.send_signal(signal.SIGTERM)
                with pytest.raises(grpc.aio.AioRpcError):
                    await last(call)
                assert await asyncio.wait_for(first.wait(), 60) == 0
                async with asyncio.timeout(50):
                    event = await last(at_second.stream("Watch", new("WatchRequest", operation=name), timeout=300))
                assert event.WhichOneof("event") == "result", event

    run(check(), 300)
