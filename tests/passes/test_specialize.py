"""The two bodies of a module: equalities, positive extents and bound dims, against numpy on both sides of the entry predicate."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module
from disc_tf.ir.dims import Dim, bcast
from disc_tf.ir.interp import evaluate
from disc_tf.ir.opset.control import CheckFailed
from disc_tf.ir.pass_manager import PassContext, PassManager
from disc_tf.ir.types import DType, TensorType
from disc_tf.ir.verifier import verify
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.lower import lower_nodes
from disc_tf.lowering.node import NodeView
from disc_tf.passes.canonicalize import Canonicalize
from disc_tf.passes.shape_simplifier import ShapeSimplifier
from disc_tf.passes.specialize import specialize_broadcast


def head_split_module() -> Module:
    """(x[a,s,4] + y[b,t,4]) reshaped to [B, -1, 2, 2] and back, times itself: an attention head's split and merge."""
    fn = Function("main")
    x = fn.add_arg(TensorType.of(DType.F32, ["a", "s", 4]), ArgInfo("x"))
    y = fn.add_arg(TensorType.of(DType.F32, ["b", "t", 4]), ArgInfo("y"))
    ctx = LoweringContext(Builder(fn.body, fn.env), fn.env, "n")
    total = ctx.b.add(*ctx.broadcast(x, y))
    shape = ctx.from_dims([total.dims[0], -1, 2, 2], DType.I32)
    back = ctx.from_dims([total.dims[0], -1, 4], DType.I32)
    i32 = {"T": 1, "Tshape": 3}
    nodes = [NodeView("split", "Reshape", ["t", "shape"], i32), NodeView("merge", "Reshape", ["split", "back"], i32)]
    found = lower_nodes(ctx, nodes, {("t", 0): total, ("shape", 0): shape, ("back", 0): back})
    u, v = ctx.broadcast(found[("merge", 0)], total)
    results = [ctx.b.multiply(u, v)]
    fn.wanted_positive = [r.a for r in ctx.requests if r.kind == "positive"]
    ctx.b.return_([*results, *([ctx.token] if ctx.token is not None else [])])
    module = Module()
    module.add(fn)
    return module


def test_uniform_body_is_plain() -> None:
    special = specialize_broadcast(head_split_module())
    assert special.general is not None
    main = special.uniform.main
    names = [op.name for op in main.body.ops]
    assert "disc.check" not in names and "disc.bind_dim" not in names
    assert len({s for d in main.results[0].dims for s in d.symbols()}) == 2
    for m in special.modules:
        verify(m)


@pytest.mark.parametrize(("b", "s", "t"), list(itertools.product([0, 1, 2, 3], [0, 1, 2, 5], [1, 5])))
def test_both_bodies_agree(b: int, s: int, t: int) -> None:
    special = specialize_broadcast(head_split_module())
    assert special.general is not None
    rng = np.random.default_rng(0)
    for batch in {1, b}:
        x = rng.standard_normal((b, s, 4), np.float32)
        y = rng.standard_normal((batch, t, 4), np.float32)
        sizes = {"a": b, "s": s, "b": batch, "t": t}
        uniform = all(p.evaluate(sizes) == q.evaluate(sizes) for p, q in special.predicate)
        assert uniform == (batch == b and s == t and b > 0)
        try:
            expected = (x + y) * (x + y)
        except ValueError:
            with pytest.raises(CheckFailed):
                evaluate(special.general.main, [x, y])
            continue
        if b == 0:
            continue  # TensorFlow's rule for -1 among zeros is tested with Reshape
        assert np.array_equal(evaluate(special.general.main, [x, y])[0], expected)
        if uniform:
            assert np.array_equal(evaluate(special.uniform.main, [x, y])[0], expected)


def test_nothing_to_assume_gives_one_body() -> None:
    fn = Function("main")
    x = fn.add_arg(TensorType.of(DType.F32, ["a", 4]), ArgInfo("x"))
    b = Builder(fn.body, fn.env)
    b.return_([b.negate(x)])
    module = Module()
    module.add(fn)
    special = specialize_broadcast(module)
    assert special.general is None and special.predicate == [] and special.modules == [module]
    assert special.uniform.main.results[0].dims == (Dim.of("a"), Dim.of(4))


def test_what_checks_require_comes_before_what_broadcasts_like():
    """A dim that a check requires to be 1 is not assumed to be 2 because a broadcast would like that."""
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    x = fn.add_arg(TensorType.of(DType.F32, ("m", "n")), ArgInfo("x"))
    n = Dim.of("n")
    wide = b.broadcast_in_dim(x, (Dim.of("m"), bcast(n, 2)), (0, 1))
    token = b.create_token()
    ok = b.compare(b.dim(n), b.dim(1), "EQ")
    token = b.check(ok, token, code=3, message="n is 1", node="c")
    b.return_([b.tanh(wide), token])
    fn.result_names = ["y"]
    module = Module()
    module.add(fn)
    special = specialize_broadcast(module)
    assert (n, Dim.of(1)) in special.predicate or (Dim.of(1), n) in special.predicate
    assert special.uniform.main.env.is_equal(n, 1) is True


def float_range_module(dtype: DType) -> Module:
    """x[n] + range(0., cast(n), 1.): positions as Keras counts them."""
    fn = Function("main")
    x = fn.add_arg(TensorType.of(dtype, ["n"]), ArgInfo("x"))
    ctx = LoweringContext(Builder(fn.body, fn.env), fn.env, "n")
    start, delta = (ctx.scalar(v, dtype) for v in (0.0, 1.0))
    limit = ctx.b.convert(ctx.dim(x.dims[0], DType.I32), dtype)
    refs = [("start", 0), ("limit", 0), ("delta", 0)]
    node = NodeView("range", "Range", ["start", "limit", "delta"], {"Tidx": dtype.tf_enum})
    found = lower_nodes(ctx, [node], dict(zip(refs, (start, limit, delta), strict=True)))
    u, v = ctx.broadcast(x, found[("range", 0)])
    ctx.b.return_([ctx.b.add(u, v), *([ctx.token] if ctx.token is not None else [])])
    module = Module()
    module.add(fn)
    return module


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_a_length_computed_in_floats_is_the_dim_where_it_is_exact(dtype: DType) -> None:
    module = float_range_module(dtype)
    PassManager((ShapeSimplifier(), Canonicalize())).run(module, PassContext())
    special = specialize_broadcast(module)
    assert special.general is not None
    exact = 1 << (24 if dtype is DType.F32 else 53)
    holds = [all(p.evaluate({"n": n}) == q.evaluate({"n": n}) for p, q in special.predicate) for n in (0, 7, exact, exact + 1)]
    assert holds == [True, True, True, False]
    names = [op.name for op in special.uniform.main.body.ops]
    assert "disc.bind_dim" not in names and "disc.check" not in names
    assert any(op.name == "disc.bind_dim" for op in special.general.main.body.ops)
    for n in (0, 1, 9):
        x = np.linspace(0, 1, n).astype(dtype.np)
        for m in special.modules:
            np.testing.assert_array_equal(evaluate(m.main, [x])[0], x + np.arange(n, dtype=dtype.np))


def test_short_floats_are_computed_at_run_time() -> None:
    """A limit of 2048 or 256 is one that real lengths exceed."""
    for dtype in (DType.F16, DType.BF16):
        special = specialize_broadcast(float_range_module(dtype))
        assert any(op.name == "disc.bind_dim" for op in special.uniform.main.body.ops)
