"""Compiles on a Ray cluster of this machine: progress, errors, the sandbox, workers that are killed, cancelled jobs."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disc_tf_server import sandbox
from disc_tf_server.interfaces import ChildFailed, Job, Reason

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


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


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
