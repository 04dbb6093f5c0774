"""Compiles on a Ray cluster of this machine: progress, errors, the sandbox, workers that are killed, cancelled jobs."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disc_tf_server import sandbox
from disc_tf_server.children import COMPILE
from disc_tf_server.interfaces import ChildFailed, Job, Reason

from disc_tf.remote.messages import message_class
from tests.server.harness import request, run, until
from tests.server.processes import alive, command, descendants, environment, last, long_work, parent, product, server, started  # fmt: skip

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MB = 1 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Address of a cluster with two processors."""
    ray = pytest.importorskip("ray")
    before = os.environ.get("PYTHONPATH")
    paths = [str(ROOT), str(ROOT / "server"), str(Path(__file__).parent)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    yield "local"
    ray.shutdown()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


def templates() -> list[int]:
    """Processes that compile children are forked from."""
    found = []
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdigit() and b"stand_in:compile" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def test_a_cluster(cluster: str, tmp_path: Path) -> None:
    from disc_tf_server.ray_pool import RayChildPool

    (tmp_path / "secret").write_text("key")

    async def scenario() -> None:
        pool = RayChildPool(cluster, 2, function="stand_in:compile", warm_up="")
        await pool.start()

        def job(*outputs: str, **fields: Any) -> Job:
            fields = {"graph": b"abc", "memory_bytes": 200 * MB, "wall_s": 60.0, **fields}
            return Job(outputs=outputs, feeds=(), options=b"", **fields)

        try:
            seen: list[tuple[str, float, str]] = []
            assert await pool.run(job("echo"), lambda *p: seen.append(p)) == b"cba"
            assert seen and seen[0][0] == "begin"
            for outputs, fields, reason in (
                (("refuse",), {}, Reason.REFUSED), (("crash",), {}, Reason.CRASHED), (("defect",), {}, Reason.DEFECT),
                (("hang",), {"wall_s": 0.3}, Reason.OUT_OF_TIME), (("hog",), {}, Reason.OUT_OF_MEMORY),
            ):  # fmt: skip
                with pytest.raises(ChildFailed) as e:
                    await pool.run(job(*outputs, **fields))
                assert e.value.reason is reason
            if sandbox.available().whole:
                tried = ast.literal_eval((await pool.run(job("forbidden", str(tmp_path)))).decode())
                assert {name for name, how in tried.items() if how == "done"} == set()
            graphs = [b"graph %d" % i for i in range(6)]
            assert await asyncio.gather(*(pool.run(job("echo", graph=g)) for g in graphs)) == [g[::-1] for g in graphs]

            # a worker is killed in the middle of a job: another one does it
            began = asyncio.Event()
            task = asyncio.create_task(pool.run(job("slow"), lambda *_: began.set()))
            await began.wait()
            workers = {parent(t) for t in templates()}
            assert workers
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
            assert await asyncio.wait_for(task, 60) == b"done"

            # a cancelled job's child is gone
            began.clear()
            task = asyncio.create_task(pool.run(job("hang"), lambda *_: began.set()))
            await began.wait()
            before = set(templates())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await pool.run(job("echo")) == b"cba"
            assert len(before & set(templates())) < len(before)
        finally:
            await pool.close()
        end = time.monotonic() + 20
        while templates() and time.monotonic() < end:
            await asyncio.sleep(0.1)
        assert not templates()

    asyncio.run(asyncio.wait_for(scenario(), 200))


def test_a_cluster_that_is_not_there() -> None:
    pytest.importorskip("ray")
    from disc_tf_server.ray_pool import RayChildPool

    async def scenario() -> None:
        pool = RayChildPool("ray://127.0.0.1:1", 1)
        with pytest.raises(ChildFailed, match="cannot be reached"):
            await pool.start()
        await pool.close()

    asyncio.run(scenario())


@contextlib.contextmanager
def existing_cluster(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A cluster of its own, started as its operators do: (its head, ray://HOST:PORT)."""
    pytest.importorskip("ray")
    with socket.socket() as one, socket.socket() as two:
        ports = []
        for s in (one, two):
            s.bind(("127.0.0.1", 0))
            ports.append(s.getsockname()[1])
    command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--head", "--block", "--num-cpus=2"]
    command += [f"--port={ports[0]}", f"--ray-client-server-port={ports[1]}", "--min-worker-port=0", "--max-worker-port=0"]
    command += ["--node-ip-address=127.0.0.1", "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={directory}"]
    with (directory / "head.log").open("wb") as log:
        head = subprocess.Popen(command, env=environment(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 90
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", ports[1]), 1).close()
                break
            assert head.poll() is None and time.monotonic() < end, (directory / "head.log").read_text()
            time.sleep(0.3)
        yield head, f"ray://127.0.0.1:{ports[1]}"
    finally:
        everything = [head.pid, *descendants(head.pid)]
        head.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            head.wait(30)
        for pid in everything:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        head.wait()


def test_the_command_on_an_existing_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real compiles for a real server; the worker is killed in the middle of one; nothing stays in the cluster afterwards."""
    import tempfile

    def compilers(head: int) -> set[int]:
        """Templates below the cluster."""
        found = set()
        for pid in descendants(head):
            with contextlib.suppress(OSError):
                if COMPILE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes() and parent(pid) not in found:
                    found.add(pid)
        return {pid for pid in found if parent(pid) not in found}

    async def check(directory: Path) -> None:
        (directory / "ray").mkdir()
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        with existing_cluster(directory / "ray") as (head, address):
            async with server(directory / "data", "--executor", address) as (process, client):
                call = client.stream("Optimize", request(long_work()), timeout=300)
                await started(call)
                workers = {parent(pid) for pid in compilers(head.pid)}
                assert workers and not any(COMPILE.encode() in Path(f"/proc/{p}/cmdline").read_bytes() for p in descendants(process.pid))
                for pid in workers:
                    os.kill(pid, signal.SIGKILL)
                event = await last(call)
                assert event.WhichOneof("event") == "result", event
                assert message_class("CompileResult").FromString(event.result.inline).clusters
                assert workers.isdisjoint({parent(pid) for pid in compilers(head.pid)})
                assert (await client.result(request(long_work())))[1]
                assert len((await client.result(request(product())))[0].clusters) == 1
                process.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(process.wait(), 60) == 0
                await until(lambda: not compilers(head.pid), 30)
            monkeypatch.delenv("RAY_AUTH_MODE")
            other = command(directory / "other", "--executor", address)
            done = subprocess.run(other, env=environment(), capture_output=True, text=True, timeout=120)
            assert done.returncode == 3 and "RAY_AUTH_MODE=token" in done.stderr and "Traceback" not in done.stderr
            everything = [head.pid, *descendants(head.pid)]
        await until(lambda: not any(alive(pid) for pid in everything), 20)

    # the paths of Ray's sockets must be short
    with tempfile.TemporaryDirectory(prefix="dt-ray-") as directory:
        run(check(Path(directory)), 400)
