"""Many threads, shapes and executables at once: the same bits whatever the number of threads; fork, exit and closing while others run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from disc_tf.compiler import compile_module
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module
from disc_tf.ir.types import DType, TensorType
from disc_tf.runtime.executable import Executable, counters, num_threads, set_num_threads

ROOT = Path(__file__).parents[2]
SHAPES = [(1, 1), (3, 5), (0, 4), (4, 0), (1, 257), (33, 7), (64, 64), (130, 31)]


def block() -> bytes:
    """A product with a weight, softmax over rows, a product with itself: gemm, rows and loop kernels, prepared constants."""
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    w = fn.add_arg(TensorType.of(DType.F32, (48, 96)), ArgInfo("w", "const", digest=b"w" * 32))
    x = fn.add_arg(TensorType.of(DType.F32, ("m", "s", 48)), ArgInfo("x"))
    h = b.dot_general(x, w, (2,), (0,))
    top = b.broadcast_in_dim(b.reduce(h, (2,), "maximum"), h.dims, (0, 1))
    e = b.exponential(b.subtract(h, top))
    p = b.divide(e, b.broadcast_in_dim(b.reduce(e, (2,), "add"), h.dims, (0, 1)))
    q = b.dot_general(p, h, (2,), (2,), (0,), (0,))
    b.return_([b.tanh(q), b.reduce(p, (0,), "add")])
    fn.result_names = ["q", "total"]
    module = Module()
    module.add(fn)
    return compile_module(module, ["x86-64-v2", "x86-64-v3", "x86-64-v4"], host_results=[False, False]).executable


@pytest.fixture(scope="module")
def data() -> bytes:
    return block()


@pytest.fixture(scope="module")
def weight() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((48, 96)).astype(np.float32)


def inputs(shape: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal((*shape, 48)).astype(np.float32)


def in_threads(n: int, work: Callable[[int], None]) -> None:
    """Run ``work(i)`` in n threads; the first problem is raised."""
    problems: list[BaseException] = []

    def guarded(i: int) -> None:
        try:
            work(i)
        except BaseException as e:
            problems.append(e)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
        assert not t.is_alive(), "a run hangs"
    if problems:
        raise problems[0]


@pytest.fixture
def keep_threads():
    yield
    set_num_threads(0)


def test_same_bits_at_any_number_of_threads(data: bytes, weight: np.ndarray, keep_threads: None) -> None:
    with Executable.from_bytes(data) as run:
        want: dict[tuple[int, int], list[np.ndarray]] = {}
        for n in (1, 2, 7):
            set_num_threads(n)
            assert num_threads() == n

            def work(i: int) -> None:
                for k in range(len(SHAPES) * 2):
                    shape = SHAPES[(i + k) % len(SHAPES)]
                    got = [np.array(r) for r in run.run([weight, inputs(shape)])]
                    first = want.setdefault(shape, got)
                    assert all(np.array_equal(a, b) for a, b in zip(first, got, strict=True)), (shape, n)  # noqa: B023

            in_threads(3, work)  # under load: more runs than cores


def test_a_thousand_runs_of_eight_threads(data: bytes, weight: np.ndarray, keep_threads: None) -> None:
    set_num_threads(4)
    before = counters()
    with Executable.from_bytes(data) as run:
        want = {shape: [np.array(r) for r in run.run([weight, inputs(shape)])] for shape in SHAPES}

        def work(i: int) -> None:
            for k in range(125):
                shape = SHAPES[(i * 3 + k) % len(SHAPES)]
                got = run.run([weight, inputs(shape)], max_threads=k % 3)
                assert all(np.array_equal(a, b) for a, b in zip(want[shape], got, strict=True)), shape

        in_threads(8, work)
    after = counters()
    assert after["runs"] - before["runs"] == 1000 + len(SHAPES)
    assert after["arena_in_use_bytes"] <= after["worker_threads"] * (4 << 20)  # idle workers keep some scratch
    assert after["prepared_built"] - before["prepared_built"] <= 2  # packed once, not once per thread


def test_executables_share_packed_constants(data: bytes, weight: np.ndarray) -> None:
    with Executable.from_bytes(data) as first:
        first.run([weight, inputs((3, 5))])
        before = counters()["prepared_built"]
        with Executable.from_bytes(data) as second:
            second.run([weight, inputs((3, 5))])
        assert counters()["prepared_built"] == before


def test_load_and_close_while_others_run(data: bytes, weight: np.ndarray) -> None:
    with Executable.from_bytes(data) as keep:
        want = keep.run([weight, inputs((33, 7))])[0]

        def work(i: int) -> None:
            for _ in range(25):
                with Executable.from_bytes(data) as run:
                    assert np.array_equal(run.run([weight, inputs((33, 7))])[0], want)

        in_threads(4, work)
    before = counters()["images_live"]
    for _ in range(200):
        Executable.from_bytes(data).close()
    assert counters()["images_live"] <= before


_CHILD = """
import os, sys, threading, time
import numpy as np
from disc_tf.runtime.executable import Executable, set_num_threads
set_num_threads(4)
run = Executable.from_bytes(open(sys.argv[1], "rb").read())
w = np.ones((48, 96), np.float32)
x = np.ones((130, 31, 48), np.float32)
want = np.array(run.run([w, x])[0])
how = sys.argv[2]
if how == "fork":
    for _ in range(5):
        pid = os.fork()
        if pid == 0:
            ok = np.array_equal(run.run([w, x])[0], want)
            os._exit(0 if ok else 1)
        assert os.waitpid(pid, 0)[1] == 0
    assert np.array_equal(run.run([w, x])[0], want)
elif how == "daemon":  # threads are inside runs when the process ends
    def forever():
        while True:
            run.run([w, x])
    for _ in range(3):
        threading.Thread(target=forever, daemon=True).start()
    time.sleep(0.3)
elif how == "exit":
    os._exit(0)
elif how == "open":  # workers still spin, nothing is closed
    run.run([w, x])
print("END", flush=True)
"""


@pytest.mark.parametrize("how", ["fork", "daemon", "exit", "open"])
def test_end_of_a_process(data: bytes, tmp_path: Path, how: str) -> None:
    path = tmp_path / "block.bin"
    path.write_bytes(data)
    for _ in range(3):
        command = [sys.executable, "-c", _CHILD, str(path), how]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        assert done.returncode == 0, (done.returncode, done.stderr[-1500:])


def test_environment_sets_the_threads(data: bytes, tmp_path: Path) -> None:
    script = "from disc_tf.runtime.executable import num_threads; print(num_threads())"
    env = {**os.environ, "DISC_TF_NUM_THREADS": "3", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=env, check=True)
    assert done.stdout.split() == ["3"]
