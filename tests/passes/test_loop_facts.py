"""What a loop's condition and counters decide, what they do not, and that the values stay."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module, Value
from disc_tf.ir.interp import evaluate
from disc_tf.ir.pass_manager import PassContext, PassManager
from disc_tf.ir.types import DType, TensorType
from disc_tf.passes.loop_facts import LoopFacts

I32 = DType.I32
LIMITS = (-2, 0, 1, 5)


def module_with(test: str, first: int = 0, step: int = 1, condition: str = "i < n", ended: object = True) -> Module:
    """A loop over ``i`` (and ``j``, twice as fast) that counts in how many iterations ``test`` held. Results: that number, and a bool that
    each iteration sets to ``ended`` (to itself, if None)."""
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    n = fn.add_arg(TensorType.of(I32, []), ArgInfo("n", "host"))
    other = fn.add_arg(TensorType.of(I32, []), ArgInfo("other", "host"))
    inits = [b.constant(np.int32(first)), b.constant(np.int32(first)), b.constant(np.int32(0)), b.constant(np.array(False))]

    def number(text: str, b: Builder, i: Value, j: Value) -> Value:
        return {"i": i, "j": j, "n": n, "other": other}.get(text) or b.constant(np.int32(int(text)))

    def compare(text: str, b: Builder, i: Value, j: Value) -> Value:
        x, how, y = text.split()
        how = {"<": "LT", ">": "GT", "<=": "LE", ">=": "GE", "==": "EQ"}[how]
        return b.compare(number(x, b, i, j), number(y, b, i, j), how)

    def body(b: Builder, i: Value, j: Value, count: Value, flag: Value) -> list[Value]:
        held = b.convert(compare(test, b, i, j), I32)
        after = flag if ended is None else b.constant(np.array(ended))
        return [b.add(i, b.constant(np.int32(step))), b.add(j, b.constant(np.int32(2))), b.add(count, held), after]

    def cond(b: Builder, i: Value, j: Value, count: Value, flag: Value) -> list[Value]:
        terms = [compare(t, b, i, j) for t in condition.split(" and ")]
        out = terms[0]
        for t in terms[1:]:
            out = b.and_(out, t)
        return [out]

    types = [v.type for v in inits]
    found = b.while_(inits, b.region(types, cond), b.region(types, body))
    b.return_([found[2], found[3]])
    module = Module()
    module.add(fn)
    return module


def run(module: Module) -> tuple[Counter[str], Counter[str]]:
    """The ops of the body, and those behind the loop; the values are as before."""
    cases = [[np.array(n, np.int32), np.array(m, np.int32)] for n in LIMITS for m in (0, 3)]
    before = [evaluate(module.main, case) for case in cases]
    PassManager((LoopFacts(),), verify_each=True).run(module, PassContext())
    for case, values in zip(cases, before, strict=True):
        for x, y in zip(values, evaluate(module.main, case), strict=True):
            np.testing.assert_array_equal(x, y)
    ops = module.main.body.ops
    at = next(k for k, op in enumerate(ops) if op.name == "while")
    return Counter(op.name for op in ops[at].regions[1].ops), Counter(op.name for op in ops[at + 1 :])


@pytest.mark.parametrize(
    ("test", "how"),
    [
        ("i < n", {}),
        ("n > i", {}),
        ("i < n", {"condition": "n > i"}),
        ("i < n", {"condition": "i < n and j < other"}),
        ("j < other", {"condition": "i < n and j < other"}),
        ("i <= n", {"condition": "i <= n", "first": -3, "step": 2}),
        ("i < 4", {"condition": "i < n and i < 4"}),
        ("i >= 0", {}),
        ("0 <= i", {}),
        ("i > -1", {}),
        ("i >= -5", {"first": 2}),
        ("i >= 0", {"condition": "n > i and j < 100"}),
    ],
)
def test_true(test, how) -> None:
    assert run(module_with(test, **how))[0]["compare"] == 0


@pytest.mark.parametrize(
    ("test", "how"),
    [
        ("i <= n", {}),
        ("j < n", {}),
        ("i < other", {}),
        ("i < n", {"condition": "i <= n"}),
        ("i < 4", {"condition": "i < 5"}),
        ("i >= 0", {"first": -1}),
        ("i >= 0", {"step": -1, "condition": "i > n"}),
        ("i >= 0", {"condition": "i > -3 and j < 6", "step": -1}),
        ("i >= 1", {}),
        ("i > 0", {}),
        ("j >= 0", {"condition": "i < n"}),
        ("i >= 0", {"condition": "i <= n"}),
        ("i >= 0", {"condition": "j < 8"}),
        ("i >= 0", {"step": 3}),
    ],
)
def test_not_decided(test, how) -> None:
    """Other numbers, other limits, and counters that may wrap around."""
    assert run(module_with(test, **how))[0]["compare"] == 1


@pytest.mark.parametrize(("ended", "selects"), [(True, 1), (False, 1), (None, 0)])
@pytest.mark.parametrize("condition", ["i < n", "i < n and j < other"])
def test_whether_it_ran(ended, selects, condition) -> None:
    """A constant from the first iteration on is chosen by the condition at the beginning."""
    assert run(module_with("i < n", condition=condition, ended=ended))[1]["select"] == selects


def test_a_condition_over_extents_that_the_loop_changes_stays_inside() -> None:
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    x = fn.add_arg(TensorType.of(DType.F32, ["n"]), ArgInfo("x"))
    inits = [x, b.constant(np.array(False))]
    types = [TensorType.of(DType.F32, ["_k"]), inits[1].type]

    def cond(b: Builder, v: Value, _flag: Value) -> list[Value]:
        return [b.compare(b.dim(v.dims[0], I32), b.constant(np.int32(6)), "LT")]

    def body(b: Builder, v: Value, _flag: Value) -> list[Value]:
        return [v, b.constant(np.array(True))]

    loop = b.while_(inits, b.region(types, cond), b.region(types, body))
    b.return_([loop[1]])
    module = Module()
    module.add(fn)
    LoopFacts().run(module, PassContext())
    assert [op.name for op in module.main.body.ops if op.name == "select"] == []
