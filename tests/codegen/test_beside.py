"""Loops that do not need each other: their places in the plan, and that they give the same bits at the same time as in turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from disc_tf.codegen import host_beside
from disc_tf.compiler import compile_module
from disc_tf.fusion.plan import make_plan
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module, Value
from disc_tf.ir.interp import evaluate
from disc_tf.ir.types import DType, TensorType
from disc_tf.passes.pipeline import optimize
from disc_tf.testing.native_case import TARGETS, load

I32, F32 = DType.I32, DType.F32
WIDTH = 24


def recurrent(b: Builder, xs: Value, w: Value, *, checked: bool = False, start: Value | None = None) -> tuple[Value, Value]:
    """``h = tanh(x_i + h w)`` for all rows of ``xs [t, b, WIDTH]``: the last one, and all of them."""
    h0 = b.zeros(F32, xs.dims[1:]) if start is None else start
    inits = [b.constant(np.int32(0)), h0, b.zeros(F32, xs.dims)]
    limit = b.dim(xs.dims[0], I32)
    zero = b.constant(np.int32(0))

    def body(b: Builder, i: Value, h: Value, all_: Value) -> Sequence[Value]:
        if checked:
            b.check(b.compare(i, b.constant(np.int32(5)), "NE"), b.create_token(), code=3, message="no fifth row", node="x")
        x = b.reshape(b.dynamic_slice(xs, [i, zero, zero], (1, *xs.dims[1:])), xs.dims[1:])
        h = b.tanh(b.add(x, b.dot_general(h, w, [1], [0])))
        row = b.reshape(h, (1, *h.dims))
        return [b.add(i, b.constant(np.int32(1))), h, b.dynamic_update_slice(all_, row, [i, zero, zero])]

    types = [v.type for v in inits]
    out = b.while_(inits, b.region(types, lambda b, i, h, a: [b.compare(i, limit, "LT")]), b.region(types, body))
    return out[1], out[2]


def module_with(body) -> Module:
    """``body(b, xs, w, v)`` gives the results; ``xs [t, b, WIDTH]`` is data, ``w`` and ``v`` are weights."""
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    xs = fn.add_arg(TensorType.of(F32, ["t", "b", WIDTH]), ArgInfo("xs"))
    w, v = (fn.add_arg(TensorType.of(F32, [WIDTH, WIDTH]), ArgInfo(n, "const")) for n in "wv")
    b.return_(body(b, xs, w, v))
    module = Module()
    module.add(fn)
    return module


def both_ways(b: Builder, xs: Value, w: Value, v: Value) -> list[Value]:
    """A bidirectional layer."""
    _, there = recurrent(b, xs, w)
    _, back = recurrent(b, b.reverse(xs, [0]), v)
    return [b.concatenate([there, b.reverse(back, [0])], 2)]


def two_layers(b: Builder, xs: Value, w: Value, v: Value) -> list[Value]:
    last, there = recurrent(b, xs, w)
    _, back = recurrent(b, b.reverse(xs, [0]), v, start=b.reduce(xs, [0], "max"))
    xs = b.multiply(there, b.reverse(back, [0]))
    end, there = recurrent(b, xs, v)
    other, back = recurrent(b, b.reverse(xs, [0]), w, start=b.multiply(last, last))
    return [b.add(there, back), b.add(end, other)]


def one_after_the_other(b: Builder, xs: Value, w: Value, v: Value) -> list[Value]:
    _, there = recurrent(b, xs, w)
    _, back = recurrent(b, there, v)
    return [b.negate(back)]


def through_something(b: Builder, xs: Value, w: Value, v: Value) -> list[Value]:
    last, there = recurrent(b, xs, w)
    back, _ = recurrent(b, xs, v, start=b.exponential(last))
    return [b.negate(there), b.negate(back)]


def a_result(b: Builder, xs: Value, w: Value, v: Value) -> list[Value]:
    """Somebody may wait for the first one."""
    _, there = recurrent(b, xs, w)
    _, back = recurrent(b, b.reverse(xs, [0]), v)
    return [there, b.negate(back)]


def fails(b: Builder, xs: Value, w: Value, v: Value) -> list[Value]:
    _, there = recurrent(b, xs, w, checked=True)
    _, back = recurrent(b, b.reverse(xs, [0]), v)
    return [b.concatenate([there, b.reverse(back, [0])], 2)]


@pytest.mark.parametrize(
    ("body", "pairs"),
    [(both_ways, 1), (two_layers, 2), (one_after_the_other, 0), (through_something, 0), (a_result, 0), (fails, 0)],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_places_in_the_plan(body, pairs) -> None:
    special = optimize(module_with(body))
    plan = make_plan(special.modules[0].main)
    kinds = [f.kind for f in plan.fusions]
    second = [k for k, f in enumerate(plan.fusions) if f.attrs.get("beside")]
    assert len(second) == pairs
    assert all(kinds[k - 1] == kinds[k] == "while" for k in second)
    made = set(special.modules[0].main.params)
    for f in plan.fusions:  # still an order in which everything is made before it is read
        assert all(v in made or v.op is None or v.op.name == "constant" for v in f.inputs)
        made.update(f.outputs)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("body", [both_ways, two_layers], ids=lambda f: f.__name__)
def test_the_same_bits_at_the_same_time_and_in_turn(body, target, monkeypatch) -> None:
    emitted = []
    emit = host_beside._side
    monkeypatch.setattr(host_beside, "_side", lambda *args: emitted.append(1) or emit(*args))
    together = compile_module(module_with(body), [target]).executable
    assert emitted
    monkeypatch.setattr(host_beside, "_runs_alone", lambda _loop: False)
    in_turn = compile_module(module_with(body), [target]).executable
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 5 for _ in range(2)]
    oracle = module_with(body).main
    with load(together, target) as one, load(in_turn, target) as other:
        for t, n in ((0, 3), (1, 1), (1, 0), (7, 1), (13, 5), (3, 200), (2, 3000), (40, 2)):
            arrays = [rng.normal(size=(t, n, WIDTH)).astype(np.float32), *weights]
            found = [[np.array(r) for r in e.run(arrays, max_threads=k)] for e in (one, other) for k in (1, 2, 0)]
            for results in found[1:]:
                for x, y in zip(found[0], results, strict=True):
                    np.testing.assert_array_equal(x, y)
            for x, y in zip(evaluate(oracle, arrays), found[0], strict=True):
                np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5)


def test_many_runs_at_once() -> None:
    """Each run has a frame of its own to hand over."""
    from concurrent.futures import ThreadPoolExecutor

    rng = np.random.default_rng(1)
    weights = [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 5 for _ in range(2)]
    with load(compile_module(module_with(both_ways), [TARGETS[0]]).executable, TARGETS[0]) as executable:

        def once(k: int) -> bool:
            data = np.random.default_rng(k).normal(size=(5 + k % 7, 1 + k % 3, WIDTH)).astype(np.float32)
            results = [np.array(executable.run([data, *weights])[0]) for _ in range(20)]
            return all((r == results[0]).all() for r in results) and (results[0] == np.array(executable.run([data, *weights])[0])).all()

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(once, range(48)))
