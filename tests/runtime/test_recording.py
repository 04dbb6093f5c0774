"""What is recorded of a run: which thread did which tasks of which kernel, memory, packed constants, results; and nothing of other runs."""

from __future__ import annotations

import itertools
import os
import signal
import threading

import numpy as np
import pytest

from disc_tf.compiler import compile_module
from disc_tf.runtime.executable import Executable, set_loader, set_num_threads
from disc_tf.runtime.recording import Event, profile, record
from tests.runtime import toy
from tests.runtime.test_profile import K, N, _module


@pytest.fixture(scope="module")
def code() -> bytes:
    return compile_module(_module(), ["x86-64-v2"], name="model", profile=True).executable


def _arguments(m: int) -> list[np.ndarray]:
    rng = np.random.default_rng(m)
    return [rng.standard_normal((m, K)).astype(np.float32), rng.standard_normal((K, N)).astype(np.float32)]


def _inside(inner: Event, outer: Event) -> bool:
    return outer.begin_ns <= inner.begin_ns <= inner.end_ns <= outer.end_ns


def _of(events: list[Event], kind: str) -> list[Event]:
    return [e for e in events if e.kind == kind]


def test_all_that_a_run_does(code: bytes) -> None:
    arguments = _arguments(7)
    with Executable.from_bytes(code) as executable:
        with record() as first:
            executable.run(arguments)
        with record() as second:
            executable.run(arguments)
    assert first.dropped == second.dropped == 0 and first.threads
    for events in (first.events, second.events):
        extents = [e for e in events if e.kind == "extent"]
        assert [(e.name, e.first, e.axis, e.second) for e in extents] == [("x", 0, 0, 7), ("x", 0, 1, K)]
        events = [e for e in events if e.kind != "extent"]
        (run,), (segment,) = _of(events, "run"), _of(events, "segment")
        assert (run.executable, segment.first, run.first) == ("model", 0, 0)
        assert len({e.run for e in events}) == 1 and all(_inside(e, run) and e.executable == "model" for e in events)
        assert all(_inside(e, segment) for e in events if e is not run)
        assert [e.name for e in _of(events, "output")] == [e.name for e in _of(events, "send")] == ["result0", "result1"]
        assert {e.second for e in _of(events, "arena")} <= {e.second for e in _of(first.events, "arena")}
    assert [e.second for e in _of(first.events, "prepare")] == [1] and [e.second for e in _of(second.events, "prepare")] == [0]
    assert len(_of(first.events, "kernel")) == 3 and len(_of(second.events, "kernel")) == 2  # the first packs the weight
    packing = min(_of(first.events, "kernel"), key=lambda e: e.begin_ns)
    assert _inside(packing, _of(first.events, "prepare")[0]) and packing.name.startswith("k_pack")
    assert first.events[0].run < second.events[0].run


def test_threads_and_their_parts(code: bytes) -> None:
    """Every task of a launch on two threads is some thread's, once; a launch on one has no parts."""
    arguments = _arguments(5000)
    set_num_threads(2)
    try:
        with Executable.from_bytes(code) as executable:
            executable.run(arguments)
            with record() as found:
                for _ in range(20):
                    executable.run(arguments)
    finally:
        set_num_threads(0)
    launches = [e for e in _of(found.events, "kernel") if e.second > 1]
    assert launches and all(e.processor_ns == 0 for e in launches)
    for launch in launches:
        parts = [e for e in _of(found.events, "chunk") if _inside(e, launch) and e.name == launch.name]
        tasks = sorted((e.first, e.second) for e in parts)
        assert tasks[0][0] == 0 and tasks[-1][1] == launch.first
        assert all(a[1] == b[0] for a, b in itertools.pairwise(tasks))
    threads = {e.thread for e in _of(found.events, "chunk")}
    assert len(threads) == 2 and sum(found.threads.get(t, "").startswith("disc_tf/") for t in threads) == 1


@pytest.mark.parametrize("loader", ["memfd", "file", "mmap"])
def test_names_however_code_was_loaded(code: bytes, loader: str) -> None:
    set_loader(loader)
    try:
        executable = Executable.from_bytes(code)
    finally:
        set_loader(None)
    arguments = _arguments(3)
    with executable, profile() as launches:
        executable.run(arguments)
    assert [x.kernel for x in launches[-2:]] == [n for n in executable.artifact.kernels if not n.startswith("k_pack")][:2]


def test_other_runs_are_not_recorded(code: bytes) -> None:
    arguments = _arguments(3)
    with Executable.from_bytes(code) as executable:
        executable.run(arguments)
        with profile() as launches:
            pass
        with record() as found:
            pass
        executable.run(arguments)
        with record() as again:
            pass
        assert launches == [] and found.events == again.events == []
        run = executable.start()
        run.set_input(0, arguments[0])
        run.set_input(1, arguments[1])
        with record() as staged:
            run.advance()
        run.finish()
    assert len(_of(staged.events, "run")) == 1 and len(_of(staged.events, "kernel")) == 2


def test_library_functions_and_code_without_names() -> None:
    """The toy is no code of the compiler's; what it calls is known all the same."""
    w, x, n = np.ones(3, np.float32), np.ones((4, 3), np.float32), np.array(2, np.int64)
    with Executable.from_artifact(toy.artifact()) as executable, record() as found:
        executable.run([w, x, n])
    assert _of(found.events, "run") and {e.name for e in _of(found.events, "output")} == {"y", "filled"}
    assert _of(found.events, "kernel")


def test_runs_of_many_threads(code: bytes) -> None:
    """Four clients at a time: every event belongs to its run, inside its time."""
    arguments = _arguments(300)
    with Executable.from_bytes(code) as executable:
        executable.run(arguments)
        with record() as found:
            clients = [threading.Thread(target=lambda: [executable.run(arguments) for _ in range(5)]) for _ in range(4)]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
    runs = {e.run: e for e in _of(found.events, "run")}
    assert len(runs) == 20
    assert all(_inside(e, runs[e.run]) for e in found.events if e.kind != "extent")
    assert all(len([e for e in found.events if e.run == r and e.kind == "kernel"]) == 2 for r in runs)


@pytest.mark.slow
def test_more_than_there_is_room_for(code: bytes) -> None:
    """What does not fit is counted, what fits is whole."""
    arguments = _arguments(1)
    with Executable.from_bytes(code) as executable:
        executable.run(arguments)
        with record() as one:
            executable.run(arguments)
        runs = (1 << 20) // len(one.events) + 100
        with record() as found:
            for _ in range(runs):
                executable.run(arguments)
    assert len(found.events) == 1 << 20 and found.dropped == runs * len(one.events) - (1 << 20)
    assert all(e.begin_ns <= e.end_ns for e in found.events)


def test_a_forked_process_records_nothing_of_its_parents(code: bytes) -> None:
    arguments = _arguments(2)
    with Executable.from_bytes(code) as executable, record() as found:
        executable.run(arguments)
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            executable.run(arguments)
            with record() as own:
                executable.run(arguments)
            mine = len(_of(own.events, "run")) == 1 and {e.thread for e in own.events} == {os.getpid()}
            os._exit(0 if mine else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(_of(found.events, "run")) == 1
