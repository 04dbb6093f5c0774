"""Compile children: limits, the sandbox, and that nothing of them stays."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disc_tf_server import sandbox
from disc_tf_server.children import ForkedChildPool
from disc_tf_server.interfaces import ChildFailed, Job, Reason

from disc_tf.remote.messages import new
from tests.server.processes import alive

HERE = str(Path(__file__).parent)
MB = 1 << 20


class Pool:
    """A pool in an event loop of its own, for tests that are not asynchronous."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pool: ForkedChildPool

    def do(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def run(self, *outputs: str, **fields: Any) -> bytes:
        fields = {"graph": b"abc", "feeds": ("f",), "options": new("CompileOptions", targets=["t"]).SerializeToString(), **fields}
        job = Job(outputs=outputs, **{"wall_s": 20.0, "cpu_s": 20.0, "memory_bytes": 200 * MB, **fields})
        return self.do(self.pool.run(job, fields.pop("on_progress", None)))

    def template(self) -> int:
        assert self.pool._template is not None and self.pool._template._process is not None
        return self.pool._template._process.pid


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    sys.path.insert(0, HERE)
    made = Pool()

    async def start() -> ForkedChildPool:
        pool = ForkedChildPool(2, function="stand_in:compile", warm_up="", max_result=64 * MB)
        await pool.start()
        return pool

    os.environ["SECRET_TOKEN"] = "must not be seen"
    made.pool = made.do(start())
    yield made
    made.do(made.pool.close())
    made.loop.close()
    sys.path.remove(HERE)
    del os.environ["SECRET_TOKEN"]


def descendants(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        children = [int(c) for t in Path(f"/proc/{pid}/task").iterdir() for c in (t / "children").read_text().split()]
        return children + [d for c in children for d in descendants(c)]
    return []


def test_a_job_there_and_back(pool: Pool) -> None:
    seen: list[tuple[str, float, str]] = []
    graph = os.urandom(3 * MB)
    options = new("CompileOptions", targets=["a", "b"]).SerializeToString()
    job = Job(graph, ("echo",), ("f:0",), options, dry_run=True, memory_bytes=200 * MB)
    assert pool.do(pool.pool.run(job, lambda *p: seen.append(p))) == graph[::-1]
    assert seen == [("begin", 0.5, f"{3 * MB} bytes, 2 targets, dry True, feeds ['f:0']")]


def test_every_job_has_a_process_of_its_own_with_an_empty_environment(pool: Pool) -> None:
    (a, group, names), (b, _, _) = (pool.run("pid").decode().split(" ", 2) for _ in range(2))
    assert a != b and a == group
    assert "SECRET_TOKEN" not in names and "HOME" not in names and "PATH" not in names


def test_the_sandbox(pool: Pool, tmp_path: Path) -> None:
    if not sandbox.available().whole:
        pytest.skip("this kernel has no whole sandbox")
    (tmp_path / "secret").write_text("key")
    tried = ast.literal_eval(pool.run("forbidden", str(tmp_path)).decode())
    assert {name for name, how in tried.items() if how == "done"} == set()
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]


def test_what_a_child_prints_gets_between_nothing(pool: Pool) -> None:
    assert pool.run("chatter") == b"done"


def test_threads_and_imports_work_in_the_sandbox(pool: Pool) -> None:
    assert pool.run("threads") == b"[0, 1, 2, 3, 4, 5, 6, 7] json.tool"


@pytest.mark.parametrize(
    ("outputs", "limits", "reason", "says"),
    [
        (("refuse",), {}, Reason.REFUSED, "the graph [31mis wrong here"),
        (("nested",), {}, Reason.REFUSED, "nested too deeply"),
        (("defect",), {}, Reason.DEFECT, "KeyError: 'something' (at "),
        (("hang",), {"wall_s": 0.3}, Reason.OUT_OF_TIME, "not compiled within 0.3 s"),
        (("burn",), {"cpu_s": 0.3}, Reason.OUT_OF_CPU, "0.3 s of CPU time"),
        (("hog",), {"memory_bytes": 100 * MB}, Reason.OUT_OF_MEMORY, "100 MiB"),
        (("one_big",), {}, Reason.OUT_OF_MEMORY, "no memory left"),
        (("crash",), {}, Reason.CRASHED, "(signal SIGABRT): LLVM ERROR: that was wrong"),
        (("crash", "hard"), {}, Reason.CRASHED, "(signal SIGSEGV)"),
        (("exit",), {}, Reason.CRASHED, "(exit 3)"),
        (("garbage",), {}, Reason.CRASHED, "is not well-formed"),
        (("bad_progress",), {}, Reason.CRASHED, "is not well-formed"),
        (("huge",), {}, Reason.CRASHED, "is too large"),
        (("flood",), {}, Reason.CRASHED, "has no end"),
    ],
    ids=lambda v: v[0] if isinstance(v, tuple) else "",
)
def test_what_goes_wrong_is_told(pool: Pool, outputs: tuple[str, ...], limits: dict[str, Any], reason: Reason, says: str) -> None:
    with pytest.raises(ChildFailed) as failed:
        pool.run(*outputs, **limits)
    assert failed.value.reason is reason
    assert says in failed.value.message
    assert pool.run("echo") == b"cba"


def test_cancelling_kills_the_child(pool: Pool) -> None:
    async def scenario() -> tuple[int, list[int], list[int]]:
        job = Job(b"", ("burn",), (), b"", wall_s=60, memory_bytes=200 * MB)
        began = asyncio.Event()
        task = asyncio.create_task(pool.pool.run(job, lambda *_: began.set()))
        await began.wait()
        during = descendants(pool.template())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.1)
        return len(during), during, descendants(pool.template())

    count, during, after = pool.do(scenario())
    assert count >= 2 and len(set(during) & set(after)) < len(during) and len(after) <= 2


def test_more_jobs_than_children_wait(pool: Pool) -> None:
    async def scenario() -> list[bytes]:
        jobs = [Job(str(i).encode(), ("echo",), (), b"", memory_bytes=200 * MB) for i in range(12)]
        return list(await asyncio.gather(*(pool.pool.run(job) for job in jobs)))

    assert pool.do(scenario()) == [str(i).encode()[::-1] for i in range(12)]


def test_a_killed_child_and_a_killed_template(pool: Pool) -> None:
    async def during(kill: Any) -> ChildFailed:
        began = asyncio.Event()
        task = asyncio.create_task(pool.pool.run(Job(b"", ("hang",), (), b"", memory_bytes=200 * MB), lambda *_: began.set()))
        await began.wait()
        kill()
        with pytest.raises(ChildFailed) as failed:
            await task
        return failed.value

    def kill_children() -> None:
        for pid in descendants(pool.template()):
            os.kill(pid, signal.SIGKILL)

    assert pool.do(during(kill_children)).reason is Reason.CRASHED
    try:
        assert pool.run("echo") == b"cba"
    except ChildFailed:  # a child that waited was killed as well, and it may have been taken before that was noticed
        assert pool.run("echo") == b"cba"
    before = descendants(pool.template())
    assert before
    assert pool.do(during(lambda: os.kill(pool.template(), signal.SIGKILL))).reason is Reason.UNAVAILABLE
    assert pool.run("echo") == b"cba"
    end = time.monotonic() + 2
    while time.monotonic() < end and any(alive(pid) for pid in before):
        time.sleep(0.02)
    assert not any(alive(pid) for pid in before)


FRONT_END = """
import asyncio, sys
from disc_tf_server.children import ForkedChildPool
from disc_tf_server.interfaces import Job
async def main():
    pool = ForkedChildPool(2, function="stand_in:compile", warm_up="")
    await pool.start()
    print(pool._template._process.pid, flush=True)
    await pool.run(Job(b"", ("hang",), (), b""), lambda *_: print("runs", flush=True))
asyncio.run(main())
"""


def test_nothing_is_left_of_a_killed_front_end() -> None:
    root = Path(HERE).parents[1]
    environment = {"PYTHONPATH": os.pathsep.join([str(root), str(root / "server"), HERE])}
    process = subprocess.Popen([sys.executable, "-c", FRONT_END], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    template = int(process.stdout.readline())
    assert process.stdout.readline() == "runs\n"
    all_of_it = [template, *descendants(template)]
    assert len(all_of_it) >= 2
    process.kill()
    process.wait()
    process.stdout.close()
    end = time.monotonic() + 5
    while time.monotonic() < end and any(alive(pid) for pid in all_of_it):
        time.sleep(0.02)
    assert not any(alive(pid) for pid in all_of_it)


def test_a_pool_that_cannot_start_says_so() -> None:
    async def scenario() -> None:
        pool = ForkedChildPool(1, function="no_such_module:compile", warm_up="")
        with pytest.raises(ChildFailed, match="ended while it started"):
            await pool.start()
        await pool.close()
        with pytest.raises(ChildFailed, match="shutting down"):
            await pool.run(Job(b"", ("echo",), (), b""))

    asyncio.run(scenario())
    with pytest.raises(ValueError, match="at least 1"):
        ForkedChildPool(0)
