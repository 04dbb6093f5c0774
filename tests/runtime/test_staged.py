"""Staged runs of compiled programs: results in every order of arrival, each as early as its inputs allow, and what is left of runs that end
early."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path

import numpy as np
import pytest

from disc_tf.runtime import DiscError, Runner, counters
from disc_tf.runtime.host import Host
from tests.runtime import staged_models as models

RNG = np.random.default_rng(7)


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runner]:
    directory: Path = tmp_path_factory.mktemp("staged")
    makers = (models.towers, models.chain, models.early_exit, models.checked)
    return {make.__name__: models.build(make, directory / f"{make.__name__}.disc") for make in makers}


def feeds(runner: Runner, rows: int) -> dict[str, np.ndarray]:
    out = {}
    for name, t in runner.inputs.items():
        shape = [rows if d is None else d for d in t.shape]
        out[name] = RNG.integers(0, 10, shape).astype(np.int32) if t.dtype == "i32" else RNG.standard_normal(shape).astype(np.float32)
    return out


def arrivals(runner: Runner, inputs: dict[str, np.ndarray], order: tuple[str, ...]) -> Iterator[tuple[set[str], dict[str, np.ndarray]]]:
    """(inputs that are there, outputs that came by then) after each arrival, in the caller's thread."""
    index = {x.name: i for i, x in enumerate(runner.executable.args)}
    names = list(runner.outputs)
    came: dict[str, np.ndarray] = {}
    with runner.executable.start() as run:
        came |= {names[i]: x for i, x in run.advance().items()}
        for k, name in enumerate(order):
            run.set_input(index[name], inputs[name])
            came |= {names[i]: x for i, x in run.advance().items()}
            yield set(order[: k + 1]), came
        assert run.remaining == 0
        run.finish()


def test_a_forked_process_runs_in_threads_of_its_own(runners: dict[str, Runner]) -> None:
    runner = runners["towers"]
    inputs = feeds(runner, 3)
    want = runner.run_async(inputs).result()
    with runner._lock:  # as a thread that submits
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            got = runner.run_async(inputs).result()
            os._exit(0 if all(np.array_equal(got[name], want[name]) for name in want) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


NEEDS = {
    "towers": {"joined": {"a", "b"}, "early": {"a"}},
    "chain": {"l9": {"a", "b", "c"}, "l3": {"a"}, "l6": {"a", "b"}},
    "early_exit": {"final": {"a"}, "exit": {"a"}},
    "checked": {"l7": {"a", "b"}, "l3": {"a"}},
}


@pytest.mark.parametrize("rows", [4, 1, 0, 33])
@pytest.mark.parametrize("name", NEEDS)
def test_every_order_of_arrival(runners: dict[str, Runner], name: str, rows: int) -> None:
    """Bitwise the plain run's results, each after the arrival that completes its inputs, not later and not earlier."""
    runner = runners[name]
    inputs = feeds(runner, rows)
    want = runner.run(inputs)
    assert want.keys() == NEEDS[name].keys()
    for order in itertools.permutations(inputs):
        for there, came in arrivals(runner, inputs, order):
            assert came.keys() == {n for n, needs in NEEDS[name].items() if needs <= there}, (order, there)
        for n, x in came.items():
            assert x.tobytes() == want[n].tobytes(), (order, n)


def test_inputs_that_broadcast_where_towers_meet(runners: dict[str, Runner]) -> None:
    runner = runners["towers"]
    a, b = (RNG.standard_normal((rows, 32)).astype(np.float32) for rows in (6, 1))
    whole = runner.run({"a": a, "b": np.repeat(b, 6, 0)})
    for inputs, order in itertools.product(({"a": a, "b": b}, {"b": a, "a": b}), itertools.permutations("ab")):
        want = runner.run(inputs)
        *_, (_, came) = arrivals(runner, inputs, order)
        assert came["joined"].tobytes() == want["joined"].tobytes() and came["joined"].shape == (6, 32)
    np.testing.assert_allclose(runner.run({"a": a, "b": b})["joined"], whole["joined"], rtol=1e-5, atol=1e-6)
    with pytest.raises(DiscError) as error:
        runner.run({"a": a, "b": np.repeat(b, 4, 0)})
    assert error.value.code == 3 and error.value.node == "sum"


def test_the_same_results_as_in_one_segment(runners: dict[str, Runner], tmp_path: Path) -> None:
    for make in (models.towers, models.chain, models.checked):
        one = models.build(make, tmp_path / "one.disc", segments="one")
        assert (len(one.segments), len(runners[make.__name__].segments)) == (1, 3)
        inputs = feeds(one, 9)
        found, want = runners[make.__name__].run(inputs), one.run(inputs)
        for n in want:
            np.testing.assert_allclose(found[n], want[n], rtol=1e-5, atol=1e-6)


def test_a_result_leaves_its_segment_before_the_end(runners: dict[str, Runner]) -> None:
    """`exit` is told of while the layers behind it have yet to run: they are when the kernels are counted."""
    seen = []
    run = runners["early_exit"].executable.start(on_output=lambda i, _x: seen.append((i, counters()["kernels"])))
    run.set_input(next(i for i, x in enumerate(runners["early_exit"].executable.args) if x.name == "a"), np.zeros((4000, 32), np.float32))
    run.advance()
    run.finish()
    (first, at_exit), (second, at_end) = seen
    assert [list(runners["early_exit"].outputs)[i] for i in (first, second)] == ["exit", "final"] and at_end >= at_exit + 9


# ---- checks -------------------------------------------------------------------------------------------------------------


def test_errors_are_the_plain_runs(runners: dict[str, Runner]) -> None:
    """Code and node in every order of arrival; of two failures that of the first segment in the program, if both inputs are there."""
    runner = runners["checked"]
    good, bad_a, bad_b = np.array([1, 2], np.int32), np.array([1, 10], np.int32), np.array([-1, 2], np.int32)
    for inputs, node in (({"a": bad_a, "b": good}, "a_pick"), ({"a": good, "b": bad_b}, "b_pick"), ({"a": bad_a, "b": bad_b}, "a_pick")):
        with pytest.raises(DiscError) as plain:
            runner.run(inputs)
        assert (plain.value.code, plain.value.node) == (3, node)
    for order in itertools.permutations("ab"):
        with pytest.raises(DiscError) as error:
            list(arrivals(runner, {"a": good, "b": bad_b}, order))
        assert (error.value.code, error.value.node) == (3, "b_pick")


def test_a_result_that_is_out_survives_a_later_failure(runners: dict[str, Runner]) -> None:
    runner = runners["checked"]
    job = runner.start()
    job.feed("a", np.array([3, 4], np.int32))
    early = job.outputs["l3"].result(30)
    job.feed("b", np.array([3, 20], np.int32))
    with pytest.raises(DiscError, match="b_pick"):
        job.result(30)
    with pytest.raises(DiscError, match="b_pick"):
        job.outputs["l7"].result(30)
    assert early.tobytes() == runner.run({"a": np.array([3, 4], np.int32), "b": np.array([0, 0], np.int32)})["l3"].tobytes()


# ---- in the background, many at a time ----------------------------------------------------------------------------------


def test_a_late_input_does_not_hold_the_early_result_back(runners: dict[str, Runner]) -> None:
    """No clocks: the late input is made from the early result."""
    runner = runners["towers"]
    inputs = feeds(runner, 5)
    late: Future[np.ndarray] = Future()
    job = runner.run_async({"a": inputs["a"], "b": late})
    job.outputs["early"].add_done_callback(lambda f: late.set_result(f.result() * 2))
    want = runner.run({"a": inputs["a"], "b": job.outputs["early"].result(30) * 2})
    assert job.result(30)["joined"].tobytes() == want["joined"].tobytes()


def test_many_staged_runs_of_one_model(runners: dict[str, Runner]) -> None:
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for name in ("towers", "chain"):
            runner = runners[name]
            for rows in (1, 17, 120):
                inputs = feeds(runner, rows)
                want = runner.run(inputs)
                jobs = [runner.start() for _ in range(3)]
                for n in rng.permutation(list(inputs)):
                    for job in jobs:
                        job.feed(n, inputs[n])
                for job in jobs:
                    got = job.result(60)
                    wrong.extend(n for n in want if got[n].tobytes() != want[n].tobytes())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_abandoned_runs_leak_nothing(runners: dict[str, Runner]) -> None:
    """Runs that end between segments give their memory back: kept values, arenas, packed constants, Python's records."""
    runner = runners["towers"]
    inputs = feeds(runner, 50)
    runner.run(inputs)
    gc.collect()

    def state() -> tuple[int, int, int]:
        c = counters()
        return c["arena_in_use_bytes"], c["prepared_live_bytes"], sum(isinstance(x, Host) for x in gc.get_objects())

    before = state()
    jobs = [runner.start() for _ in range(12)]
    for i, job in enumerate(jobs):
        job.feed("ab"[i % 2], inputs["ab"[i % 2]])
    jobs[0].outputs["early"].result(30)
    for _ in range(500):
        if state()[2] == before[2] + 12 and state()[0] > before[0]:
            break
        time.sleep(0.01)
    assert state()[0] > before[0], "kept values live while their run does"
    for job in jobs[:6]:
        job.cancel()
    with pytest.raises(CancelledError):
        jobs[0].result(30)
    del jobs, job
    for _ in range(500):
        gc.collect()
        if state() == before:
            break
        time.sleep(0.01)
    assert state() == before
