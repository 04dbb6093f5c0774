"""What leaves a loop, and what must not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module, Op, Value, walk
from disc_tf.ir.interp import evaluate
from disc_tf.ir.pass_manager import PassContext, PassManager
from disc_tf.ir.types import DType, TensorType
from disc_tf.passes.dce import DCE
from disc_tf.passes.loops import HoistLoops

I32 = DType.I32


def dense(b: Builder, x: Value, w: Value) -> Value:
    numbers = {"lhs_batching": (), "rhs_batching": (), "lhs_contracting": (1,), "rhs_contracting": (0,)}
    return b.create1("dot_general", [x, w], TensorType(x.dtype, (x.dims[0], w.dims[1])), **numbers)


def recurrent(first: int = 0, step: int = 1, direction: str = "LT", rows: int = 0) -> Module:
    """``h = row_i W + h`` for ``i = first, first + step ...`` below the number of rows."""
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    xs = fn.add_arg(TensorType.of(DType.F32, ["t", "b", 4]), ArgInfo("xs"))
    w = fn.add_arg(TensorType.of(DType.F32, [4, 5]), ArgInfo("w", "const"))
    inits = [b.constant(np.int32(first)), b.zeros(DType.F32, [xs.dims[1], 5])]
    types = [v.type for v in inits]
    limit = b.dim(xs.dims[0] + rows, I32)

    def body(b: Builder, i: Value, h: Value) -> Sequence[Value]:
        zero = b.constant(np.int32(0))
        row = b.reshape(b.dynamic_slice(xs, [i, zero, zero], (1, *xs.dims[1:])), xs.dims[1:])
        scale = b.exponential(b.reduce(w, [0], "add"))
        biased = b.add(b.broadcast_in_dim(b.reduce(w, [0], "max"), h.dims, (1,)), dense(b, row, w))
        h = b.add(b.multiply(biased, b.broadcast_in_dim(scale, h.dims, (1,))), h)
        return [b.add(i, b.constant(np.int32(step))), h]

    cond = b.region(types, lambda b, i, h: [b.compare(i, limit, direction)])
    out = b.while_(inits, cond, b.region(types, body))
    b.return_(out)
    module = Module()
    module.add(fn)
    return module


def names(ops: Sequence[Op]) -> list[str]:
    return [op.name for op in ops]


def loop_of(module: Module) -> Op:
    (loop,) = [op for op in module.main.body.ops if op.name == "while"]
    return loop


def inputs(t: int = 6, b: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(t, b, 4)).astype(np.float32), rng.normal(size=(4, 5)).astype(np.float32)]


@pytest.mark.parametrize("shape", [(6, 3), (0, 3), (1, 0)])
def test_the_product_of_all_rows_and_what_is_invariant_leave(shape):
    module = recurrent()
    before = evaluate(module, inputs(*shape))
    PassManager((HoistLoops(),), verify_each=True).run(module, PassContext())
    inside = names(list(walk(loop_of(module).regions[1])))
    assert "dot_general" not in inside
    assert "exponential" not in inside
    assert inside.count("add") == 2  # of the counter and of h: the bias left with the product
    assert "dynamic_slice" in inside
    for x, y in zip(before, evaluate(module, inputs(*shape)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


@pytest.mark.parametrize("args", [{"first": 1}, {"step": 2}, {"direction": "LE", "rows": -1}, {"rows": 2}])
def test_other_counters_keep_their_product(args):
    module = recurrent(**args)
    before = evaluate(module, inputs())
    PassManager((HoistLoops(),), verify_each=True).run(module, PassContext())
    assert "dot_general" in names(list(walk(loop_of(module).regions[1])))
    for x, y in zip(before, evaluate(module, inputs()), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


def test_a_check_in_a_branch_of_a_loop_stays():
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    n = fn.add_arg(TensorType.of(I32, []), ArgInfo("n", "host"))
    types = [n.type]

    def body(b: Builder, i: Value) -> Sequence[Value]:
        def checked(b: Builder) -> Sequence[Value]:
            b.check(b.compare(i, n, "NE"), b.create_token(), code=3, message="no", node="x")
            return [b.constant(np.int32(1))]

        b.case(i, [b.region([], checked), b.region([], lambda b: [b.constant(np.int32(2))])])
        return [b.add(i, b.constant(np.int32(1)))]

    cond = b.region(types, lambda b, i: [b.compare(i, n, "LT")])
    b.while_([b.constant(np.int32(0))], cond, b.region(types, body))
    b.return_([n])
    module = Module()
    module.add(fn)
    PassManager((DCE(),), verify_each=True).run(module, PassContext())
    assert "disc.check" in names(list(walk(module.main.body)))
