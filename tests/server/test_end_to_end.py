"""The command with real stores and real compile children."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.longrunning import operations_pb2

from disc_tf.frontend.tfproto import message_class as graph_message
from disc_tf.remote.messages import message_class, new
from tests.server.harness import request, run
from tests.server.processes import environment, product, server


def test_compile_and_cache(tmp_path: Path) -> None:
    """A real compile, a hit of the cache under other names, a dry run, a clean end."""

    async def check() -> None:
        async with server(tmp_path / "data") as (process, client):
            result, cached = await client.result(request(product()))
            assert not cached and len(result.clusters) == 1 and sorted(result.clusters[0].nodes) == ["m", "r", "y"]
            result, cached = await client.result(request(product("p/"), "p/y:0"))
            assert cached and sorted(result.clusters[0].args) == ["p/a", "p/b"]
            failure = await client.failure("Inspect", new("InspectRequest"))
            assert failure.reason == "GRAPH_WANTED"
            inspected = await client.call("Inspect", new("InspectRequest", graph=request(product("q/"), "q/y:0").graph))
            assert b"q/m" in inspected.report_json
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 30) == 0

    run(check(), 200)


@pytest.mark.slow
def test_killed_and_started_again(tmp_path: Path) -> None:
    """Killed in the middle of a request: the next server on the same stores ends it well. Its cache is there again, too."""

    async def check() -> None:
        async with server(tmp_path / "data") as (process, client):
            assert not (await client.result(request(product())))[1]
            message = request(product())
            message.options.min_cluster_size = 1
            call = client.stream("Optimize", message, timeout=120)
            event = await call.read()
            process.kill()
            await process.wait()
            with pytest.raises(grpc.aio.AioRpcError):
                while await call.read() is not grpc.aio.EOF:
                    pass
        async with server(tmp_path / "data", "--lease", "2s") as (process, client):
            assert (await client.result(request(product("other/"), "other/y:0")))[1]
            again = await client.events("Watch", new("WatchRequest", operation=event.operation), timeout=120)
            assert again[-1].WhichOneof("event") == "result", again
            assert len(message_class("CompileResult").FromString(again[-1].result.inline).clusters) == 1

    run(check(), 300)


@pytest.mark.slow
def test_one_of_two_front_ends_is_killed(postgres: str, tmp_path: Path) -> None:
    """Two on one PostgreSQL database, behind one address: the one that the client talks to is killed in the middle of the stream, and
    the client takes the stream up at the other, which does the work."""
    from disc_tf.remote import Client as Remote

    fleet = ("--operations", postgres, "--blobs", f"file://{tmp_path}/blobs", "--lease", "2s")

    async def check() -> None:
        async with server(tmp_path / "a", *fleet) as (first, a), server(tmp_path / "b", *fleet) as (second, b):
            seen: list[str] = []

            def progress(text: str) -> None:
                seen.append(text)
                if len(seen) == 1:
                    first.kill()

            with Remote(f"ipv4:{a.address},{b.address}") as client:
                graph = graph_message("GraphDef").FromString(product())
                done = await asyncio.to_thread(client.optimize_graph_def, graph, ["y"], targets=("x86-64-v3",), progress=progress)
                assert await first.wait() == -signal.SIGKILL and second.returncode is None
                assert len(done.report.compiled_clusters) == 1 and len(seen) > 1
            operations = (await b.call("ListOperations", operations_pb2.ListOperationsRequest())).operations
            assert len(operations) == 1 and operations[0].done, "the request was made anew, not taken up"

    run(check(), 300)


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--address", "0.0.0.0:0"], 2, "can be reached from other machines"),
        (["--tokens", "/nowhere/tokens"], 2, "cannot read /nowhere/tokens"),
        (["--executor", "elsewhere"], 2, "executor"),
        (["--data-dir", "/proc/nothing"], 3, "cannot start"),
        (["--address", "127.0.0.1:{port}"], 3, "cannot listen on"),
    ],
)
def test_errors_at_the_start(tmp_path: Path, flags: list[str], code: int, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    import socket

    from disc_tf_server.cli import main

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        flags = [f.format(port=taken.getsockname()[1]) for f in flags]
        defaults = [] if "--data-dir" in flags else ["--data-dir", str(tmp_path)]
        assert main([*defaults, *flags], {}) == code
    error = capfd.readouterr().err
    assert message in error and "Traceback" not in error


def test_the_front_end_imports_no_compiler_and_no_tensorflow(tmp_path: Path) -> None:
    script = """
import sys
import disc_tf_server.cli, disc_tf_server.app, disc_tf_server.backends
from disc_tf_server.fingerprint import fingerprint
from disc_tf_server.optimizer import op_types
fingerprint(), op_types()
print(sorted({m.partition(".")[0] for m in sys.modules} & {"tensorflow", "jax", "jaxlib", "keras"}))
"""
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
