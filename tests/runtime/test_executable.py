"""The stand-alone runner and the RAL below it, on the toy executable."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from disc_tf.runtime import DiscError, Executable, counters, num_threads, pack, set_num_threads, set_trust, share_packs
from disc_tf.runtime.executable import host_isa, set_loader, set_target, trim
from tests.runtime import toy

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _defaults():
    yield
    set_num_threads(0)
    set_loader(None)
    set_target(None)


def _inputs(rows: int, columns: int, general: bool = False):
    x = RNG.standard_normal((rows, columns)).astype(np.float32)
    return RNG.standard_normal(1 if general else columns).astype(np.float32), x


def _n(n: int) -> np.ndarray:
    return np.array(n, np.int64)


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (0, 4), (4, 0), (1000, 7), (17, 257)])
def test_results(rows, columns, general):
    w, x = _inputs(rows, columns, general)
    with Executable.from_artifact(toy.artifact(w)) as exe:
        results = exe.run([w, x, _n(6)])
    for got, want in zip(results, toy.expected(w, x, 6), strict=True):
        np.testing.assert_array_equal(got, want)
    if x.size:
        assert np.shares_memory(results[1], x), "a view of an input must not be a copy"


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_bitwise_equal_at_any_thread_count(threads):
    w, x = _inputs(3000, 33)
    exe = Executable.from_artifact(toy.artifact(w))
    set_num_threads(1)
    want = exe.run([w, x, _n(2)])[0].tobytes()
    set_num_threads(threads)
    assert num_threads() == threads
    for _ in range(20):
        assert exe.run([w, x, _n(2)])[0].tobytes() == want
    assert counters()["worker_threads"] >= threads - 1


def test_max_threads_keeps_a_run_on_its_caller():
    w, x = _inputs(4000, 8)
    exe = Executable.from_artifact(toy.artifact(w))
    set_num_threads(4)
    before = counters()
    exe.run([w, x, _n(0)], max_threads=1)
    after = counters()
    assert after["parallel_launches"] == before["parallel_launches"] and after["kernels"] > before["kernels"]


def test_small_kernels_never_reach_the_pool():
    w, x = _inputs(4, 8)  # 4 rows = the kernel's grain
    exe = Executable.from_artifact(toy.artifact(w))
    set_num_threads(4)
    before = counters()["parallel_launches"]
    exe.run([w, x, _n(0)])
    assert counters()["parallel_launches"] == before


def test_given_outputs_are_written():
    w, x = _inputs(4, 5)
    given = [np.zeros((4, 5), np.float32), np.zeros(20, np.float32), None]
    results = Executable.from_artifact(toy.artifact(w)).run([w, x, _n(1)], given)
    assert results[0] is given[0] and results[1] is given[1]
    np.testing.assert_array_equal(given[0], x * (2 * w))
    np.testing.assert_array_equal(given[1], x.reshape(-1))
    with pytest.raises(ValueError, match="result y: the given array has shape"):
        Executable.from_artifact(toy.artifact(w)).run([w, x, _n(1)], [np.zeros((5, 4), np.float32), None, None])


def _bad_x(rows: int, **at: float) -> np.ndarray:
    x = np.zeros((rows, 3), np.float32)
    for row, value in at.items():
        x[int(row[1:]), 1] = value
    return x


CHECKS = [
    (np.ones(2, np.float32), _bad_x(3), 1, 3, "w and x do not fit", "scale/Mul"),
    (np.ones(3, np.float32), _bad_x(500, r499=666), 1, 11, "666 is not allowed", "scale/Assert"),
    (np.ones(3, np.float32), _bad_x(500, r2=777), 1, 3, "777 is not allowed", "scale/Assert_1"),
    (np.ones(3, np.float32), _bad_x(500, r2=777, r480=666), 1, 11, "666 is not allowed", "scale/Assert"),
    (np.ones(3, np.float32), _bad_x(3), -1, 3, "n must not be negative", "fill/Fill"),
    (np.ones(3, np.float32), _bad_x(3), 2**62, 8, "size of the intermediate results overflows", ""),
    (np.ones(3, np.float32), _bad_x(3), 2**60, 8, "no memory for intermediate results", ""),
]


@pytest.mark.parametrize(("w", "x", "n", "code", "message", "node"), CHECKS)
@pytest.mark.parametrize("threads", [1, 3])
def test_errors_have_code_message_and_node(w, x, n, code, message, node, threads):
    set_num_threads(threads)
    exe = Executable.from_artifact(toy.artifact())
    for _ in range(5):  # the lowest check wins whatever thread comes first
        with pytest.raises(DiscError) as error:
            exe.run([w, x, _n(n)])
        assert (error.value.code, error.value.node) == (code, node) and message in error.value.message
    good = np.ones((2, w.size), np.float32)
    np.testing.assert_array_equal(exe.run([w, good, _n(1)])[0], 2 * good)  # a failed run leaves nothing behind
    assert counters()["arena_in_use_bytes"] >= 0


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ([np.ones(3, np.float64), np.ones((2, 3), np.float32), _n(1)], TypeError, "argument w: f32 is needed"),
        ([np.ones(3, np.float32), np.ones(3, np.float32), _n(1)], DiscError, r"input x \(1 of 2\) has shape \[3\], \[\?,\?\]"),
        ([np.ones(3, np.float32), np.ones((2, 3), np.float32)], TypeError, "3 arguments are needed"),
    ],
)
def test_bad_arguments(args, error, message):
    with pytest.raises(error, match=message):
        Executable.from_artifact(toy.artifact()).run(args)


def test_non_contiguous_arguments():
    w, x = _inputs(6, 8)
    got = Executable.from_artifact(toy.artifact()).run([w[::2], x[:, ::2], _n(1)])
    np.testing.assert_array_equal(got[0], x[:, ::2] * (2 * w[::2]))


def test_denormals_are_flushed_and_the_callers_mode_is_kept():
    x = np.full((1, 1), 1.2e-38, np.float32)
    got = Executable.from_artifact(toy.artifact()).run([np.ones(1, np.float32), x, _n(3)])
    np.testing.assert_array_equal(got[2], np.zeros(3, np.float32))
    assert (x * np.float32(0.1))[0, 0] != 0


# ------------------------------------------------------------------------------------------------- packed constants


def test_digest_entries_are_packed_once_for_all_sessions():
    w, x = _inputs(3, 5)
    before = counters()["prepared_built"]
    for name in ("one", "two"):  # different executables, same code hash and content: one entry while the first lives
        globals()["_kept_" + name] = exe = Executable.from_artifact(toy.artifact(w, name=name, code_hash=b"h1"))
        for _ in range(3):
            exe.run([w.copy(), x, _n(1)])
    assert counters()["prepared_built"] == before + 1


def test_buffer_entries_follow_the_buffer():
    exe = Executable.from_artifact(toy.artifact(name="by-buffer"))
    x = np.ones((1, 4), np.float32)
    for value in (1.0, 2.0, 3.0):
        w = np.full(4, value, np.float32)
        np.testing.assert_array_equal(exe.run([w, x, _n(1)])[0], 2 * x * value)
    live = counters()["prepared_live_bytes"]
    exe.close()
    assert counters()["prepared_live_bytes"] == live - 3 * 16


def test_buffer_entries_are_bounded():
    exe = Executable.from_artifact(toy.artifact(name="bounded"))
    before = counters()["prepared_live_bytes"]
    x = np.ones((1, 4), np.float32)
    for value in range(50):
        w = np.full(4, value, np.float32)
        np.testing.assert_array_equal(exe.run([w, x, _n(1)])[0], 2 * x * value)
    assert counters()["prepared_live_bytes"] <= before + 5 * 16


def test_one_builder_for_many_threads():
    w, x = _inputs(8, 64)
    exe = Executable.from_artifact(toy.artifact(w, name="one-builder"))
    before, wrong = counters()["prepared_built"], []

    def work():
        for _ in range(20):
            if not np.array_equal(exe.run([w, x, _n(1)])[0], x * (2 * w)):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and counters()["prepared_built"] == before + 1


# ------------------------------------------------------------------------------------------------------ staged runs


def test_staged_run_sends_results_as_they_come():
    w, x = _inputs(3, 4)
    exe = Executable.from_artifact(toy.artifact())
    with exe.start() as run:
        assert run.advance() == {}
        run.set_input(1, x)
        assert run.advance() == {}
        run.set_input(0, w)
        first = run.advance()
        assert sorted(first) == [0, 1]
        np.testing.assert_array_equal(first[0], x * (2 * w))
        run.set_input(2, _n(2))
        assert sorted(run.advance()) == [2]
        assert len(run.finish()) == 3


def test_staged_run_without_all_inputs():
    w, x = _inputs(3, 4)
    run = Executable.from_artifact(toy.artifact()).start()
    run.set_input(0, w)
    run.set_input(1, x)
    run.advance()
    with pytest.raises(DiscError, match="before segment 1 had its inputs"):
        run.finish()


def test_input_given_twice():
    run = Executable.from_artifact(toy.artifact()).start()
    run.set_input(2, _n(1))
    with pytest.raises(DiscError, match=r"input n \(2 of 2\) was given twice"):
        run.set_input(2, _n(1))
    with pytest.raises(DiscError):
        run.finish()


# ---------------------------------------------------------------------------------------------------------- loading


@pytest.mark.parametrize("loader", ["memfd", "file", "mmap"])
def test_every_way_to_load(loader, tmp_path):
    w, x = _inputs(3, 4)
    set_loader(loader)
    exe = Executable.from_artifact(toy.artifact(w))
    assert exe.loader == loader
    np.testing.assert_array_equal(exe.run([w, x, _n(1)])[0], x * (2 * w))


def test_loader_setting_is_checked():
    with pytest.raises(DiscError, match="unknown loader 'x'; expected auto, memfd, file or mmap"):
        set_loader("x")


def test_a_thousand_loads_with_interleaved_closes():
    gc.collect()  # what earlier tests left
    x = np.ones((1, 2), np.float32)
    live: list[tuple[Executable, float]] = []
    fds = len(os.listdir("/proc/self/fd"))
    before = counters()["images_live"]
    for i in range(1000):
        w = np.full(2, i, np.float32)
        live.append((Executable.from_artifact(toy.artifact(w, name=f"load {i}")), float(i)))
        if len(live) > 7:
            exe, value = live.pop((i * 5) % 7)
            assert exe.run([np.full(2, value, np.float32), x, _n(0)])[0][0, 0] == 2 * value
            exe.close()
    assert counters()["images_live"] == before + len(live)
    for exe, _ in live:
        exe.close()
    assert counters()["images_live"] == before and len(os.listdir("/proc/self/fd")) == fds


def test_equal_artefacts_share_an_image():
    data = pack(toy.artifact(name="shared"))
    first = Executable.from_bytes(data)
    before = counters()["images_loaded"]
    second = Executable.from_bytes(data)
    assert counters()["images_loaded"] == before
    first.close()
    assert second.run([np.ones(1, np.float32), np.ones((1, 1), np.float32), _n(1)])[0][0, 0] == 2
    with pytest.raises(ValueError, match="closed"):
        first.run([np.ones(1, np.float32), np.ones((1, 1), np.float32), _n(1)])


def test_the_best_target_is_picked_and_can_be_capped():
    order = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-vnni-bf16")
    data = pack(toy.artifact(name="targets", isas=(*order[1::-1], *order[2:])))
    assert Executable.from_bytes(data).isa == host_isa()
    for isa in order[: order.index(host_isa()) + 1]:
        set_target(isa)
        assert Executable.from_bytes(data).isa == isa


def test_without_code_for_an_extension_the_next_best_is_picked():
    data = pack(toy.artifact(name="no extension", isas=("x86-64-v2",)))
    for isa in ("x86-64-v4-vnni-bf16", "x86-64-v4-vnni", "native", None):
        set_target(isa)
        assert Executable.from_bytes(data).isa == "x86-64-v2"


def test_no_usable_target_is_said_at_load():
    with pytest.raises(DiscError, match=r"no code for this machine: .*needs avx10000"):
        Executable.from_artifact(toy.artifact(features=("sse2", "avx10000")))
    set_target("x86-64-v2")
    with pytest.raises(DiscError, match="allows at most x86-64-v2"):
        Executable.from_artifact(toy.artifact(isas=("x86-64-v3",)))


# ------------------------------------------------------------------------------------------- processes, environment


def test_fork_with_a_running_pool():
    w, x = _inputs(2000, 16)
    exe = Executable.from_artifact(toy.artifact(w))
    set_num_threads(3)
    want = exe.run([w, x, _n(1)])[0]
    pid = os.fork()
    if pid == 0:  # the child has no workers: it must start its own
        ok = all(np.array_equal(exe.run([w, x, _n(1)])[0], want) for _ in range(5))
        os._exit(0 if ok and counters()["worker_threads"] == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    np.testing.assert_array_equal(exe.run([w, x, _n(1)])[0], want)


def test_fork_while_another_thread_is_in_a_run():
    w, x = _inputs(3, 5)
    exe = Executable.from_artifact(toy.artifact(w))
    want = exe.run([w, x, _n(1)])[0]
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            exe.run([w, x, _n(1)])

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)
                os._exit(0 if np.array_equal(exe.run([w, x, _n(1)])[0], want) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        stop.set()
        thread.join()


def _child(code: str, **env: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, **env, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"DISC_TF_NUM_THREADS": "5"}, "5"),
        ({"DISC_TF_NUM_THREADS": "many"}, "DISC_TF_NUM_THREADS=many: expected a number of threads"),
        ({"DISC_TF_TARGET": "sparc"}, "DISC_TF_TARGET: unknown target 'sparc'; expected native, x86-64-v2"),
        ({"DISC_TF_LOADER": "magic"}, "DISC_TF_LOADER: unknown loader 'magic'"),
        ({"DISC_TF_LOADER": "file", "DISC_TF_CACHE_DIR": "/proc/nothing"}, "set DISC_TF_CACHE_DIR to a directory"),
    ],
)
def test_environment(env, expected):
    code = (
        "from tests.runtime import toy\nfrom disc_tf.runtime import *\n"
        "try:\n    Executable.from_artifact(toy.artifact()); print(num_threads())\nexcept DiscError as e: print(e)"
    )
    done = _child(code, **env)
    assert expected in done.stdout, done.stdout + done.stderr


def test_world_writable_cache_directory_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    code = (
        "from tests.runtime import toy\nfrom disc_tf.runtime import *\n"
        "try: Executable.from_artifact(toy.artifact())\nexcept DiscError as e: print(e)"
    )
    assert "only this user can write to" in _child(code, DISC_TF_LOADER="file", DISC_TF_CACHE_DIR=str(tmp_path)).stdout


def test_arena_is_given_back():
    exe = Executable.from_artifact(toy.artifact())
    exe.run([np.ones(1, np.float32), np.ones((1, 1), np.float32), _n(1_000_000)])
    assert counters()["arena_kept_bytes"] >= 4_000_000
    trim()
    assert counters()["arena_kept_bytes"] == 0


def test_contents_other_than_the_digest_are_followed():
    w, x = _inputs(3, 5)
    exe = Executable.from_artifact(toy.artifact(w, name="contents", code_hash=b"contents"))
    for k in (1, 2, 1, 3):
        for _ in range(2):
            np.testing.assert_array_equal(exe.run([w * k, x, _n(1)])[0], toy.expected(w * k, x, 1)[0])


@pytest.mark.parametrize("use", [Executable.from_file, set_trust, share_packs])
def test_a_path_is_not_cut_off(use):
    with pytest.raises(ValueError, match="zero byte"):
        use("a\0b")
