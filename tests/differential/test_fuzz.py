"""Random graphs against TensorFlow: half a minute from a fixed seed for every change; longer, and from fresh seeds, marked slow."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from disc_tf.testing.fuzz import Finding, difference, fuzz, reduce_program
from disc_tf.testing.fuzz_generator import Generator
from disc_tf.testing.fuzz_program import Program, Step, evaluate


def report(found) -> str:
    return "\n\n".join(found.reports)


#: 0: a seed that nobody has tried; slow, since what it finds need not be of the change that is tested
SEEDS = [pytest.param(1, id="fixed"), pytest.param(0, id="fresh", marks=pytest.mark.slow)]


def start(seed: int) -> int:
    """The seed itself, or a fresh one, printed: `python -m disc_tf.testing.fuzz --seed N` goes the same way."""
    chosen = seed or random.SystemRandom().randrange(10**6, 10**9)
    print(f"fuzzing from seed {chosen}")
    return chosen


@pytest.mark.parametrize("seed", SEEDS)
def test_half_a_minute(seed: int) -> None:
    """Some 40 graphs of a few sizes each, compiled for all instruction sets of this machine in turn."""
    found = fuzz(start(seed), 30, reduce_seconds=20)
    assert not found.reports, report(found)
    assert found.graphs >= 1  # a machine may be busy
    assert found.compared >= 3 * found.graphs


@pytest.mark.slow
@pytest.mark.parametrize("seed", [100_000, 0], ids=["fixed", "fresh"])
def test_longer(seed: int) -> None:
    found = fuzz(start(seed), 300, steps=20, reduce_seconds=60)
    assert not found.reports, report(found)


# ---- the fuzzer itself finds and reduces -------------------------------------------------------------------------------


def test_difference_is_two_sided() -> None:
    x = np.float32([1, np.nan, np.inf, 2])
    zero = np.zeros(4)
    assert difference(x, x.copy(), zero) == ""
    assert "shape" in difference(x, x[:2], zero)
    assert "dtype" in difference(x, x.astype(np.float64), zero)
    for i, wrong in ((0, 1.0001), (0, np.nan), (1, 1.0), (2, -np.inf), (3, 0.0)):
        y = x.copy()
        y[i] = wrong
        assert difference(x, y, zero)
    assert difference(x, np.float32([1.0001, np.nan, np.inf, 2]), zero + 1e-3) == ""
    assert difference(np.int32([1]), np.int32([2]), np.zeros(1))


@pytest.mark.parametrize("exact", [False, True])
def test_nothing_is_known_of_a_function_whose_operand_may_be_at_its_pole(exact: bool) -> None:
    """1 / (a - b), the difference a rounding away from zero: any value may come of it. Where nothing was rounded, only the right one."""
    a, b = np.float32([1, 3, 2]), np.float32([1 - 2**-24, 1, 2])
    steps = [
        Step("Placeholder", {}, {"dtype": "float32", "dims": ("b",), "data": [a]}),
        Step("Placeholder", {}, {"dtype": "float32", "dims": ("b",), "data": [b]}),
        Step("Identity", {"input": (0, 0)}, ulps=0 if exact else 4),
        Step("Sub", {"x": (2, 0), "y": (1, 0)}),
        Step("Inv", {"x": (3, 0)}, ulps=1),
    ]
    evaluation = evaluate(Program(steps, [{"b": 3}], [(4, 0)]))
    assert evaluation is not None
    (error,) = evaluation.errors[0][4]
    assert np.isinf(error).tolist() == [not exact, False, not exact]


def test_errors_of_a_short_mean_do_not_cancel_out() -> None:
    """The mean of two squares, each off by the same amount: moved in opposite directions they would be off by nothing."""
    x = np.float32([[1.0, -1.0]] * 64)
    steps = [
        Step("Placeholder", {}, {"dtype": "float32", "dims": ("b", 2), "data": [x]}),
        Step("Exp", {"x": (0, 0)}, ulps=1000),
        Step("Const", {}, {"value": np.array([1], np.int32)}),
        Step("Mean", {"input": (1, 0), "axis": (2, 0)}, {"keep_dims": False}, ulps=2, sums=True),
    ]
    evaluation = evaluate(Program(steps, [{"b": 64}], [(3, 0)]))
    assert evaluation is not None
    (error,) = evaluation.errors[0][3]
    assert (error >= evaluation.errors[0][1][0].mean(axis=1)).all()


def test_reduces_to_the_step_that_is_wrong(monkeypatch) -> None:
    """Were Exp wrong, the reducer would leave Exp of an input."""
    from disc_tf.testing import fuzz as module

    x = np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)
    steps = [
        Step("Placeholder", {}, {"dtype": "float32", "dims": ("b", "s"), "data": [x, x]}),
        Step("Tanh", {"x": (0, 0)}, ulps=8),
        Step("Exp", {"x": (1, 0)}, ulps=8),
        Step("Neg", {"x": (2, 0)}),
        Step("Square", {"x": (1, 0)}),
    ]
    program = Program(steps, [{"b": 2, "s": 3}] * 2, [(3, 0), (4, 0)])
    right = module.check(program, evaluate(program), "x86-64-v2")  # type: ignore[arg-type]
    assert right == ([], 2)

    def broken(candidate, evaluation, target):
        bad = any(candidate.steps[i].op == "Exp" for i in candidate.needed())
        return ([Finding("result", "values", "wrong")] if bad else []), 1

    monkeypatch.setattr(module, "check", broken)
    small = reduce_program(program, Finding("result", "values", ""), "x86-64-v2")
    assert [small.steps[i].op for i in sorted(small.needed())] == ["Placeholder", "Exp"]
    assert len(small.sizes) == 1
    assert "Exp(x=n1)" in small.describe()


def test_reductions_are_the_only_readers_of_what_moves_data() -> None:
    """What a kernel takes in has one reader: in programs at random that is rare, so a generator of its own makes such pairs."""
    pairs = set()
    for seed in range(24):
        program = Generator(seed, steps=12).program
        readers = Counter(ref for step in program.steps for ref in step.refs())
        for step in program.steps:
            for ref in step.refs():
                if readers[ref] == 1 and ref not in program.outputs:
                    pairs.add((step.op, program.steps[ref[0]].op))
    assert {a for a, _ in pairs} >= {"ArgMax", "ArgMin"}
    assert any(a in ("ArgMax", "ArgMin") and b == "ConcatV2" for a, b in pairs)
