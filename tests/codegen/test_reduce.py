"""Reductions that are not over rows: columns, both ends, argmax, arbitrary regions; and rows by the general path."""

import numpy as np
import pytest

from disc_tf.ir.builder import new_function
from disc_tf.ir.interp import evaluate
from disc_tf.ir.types import DType, TensorType
from disc_tf.testing.kernel_runner import CompiledFusion, fusion_of

from .kernel_cases import TARGETS, compare, random_array
from .test_rows import layernorm, softmax

F32, F64, I32, I64 = DType.F32, DType.F64, DType.I32, DType.I64
SHAPES = [(1, 1, 1), (2, 3, 5), (7, 2, 64), (3, 9, 70), (5, 1, 131), (0, 3, 5), (3, 0, 5), (3, 5, 0)]


def run(fn, cases, targets=TARGETS, scale=1.0, kind="reduce", **attrs):
    for target in targets:
        c = CompiledFusion(fusion_of(fn, kind, **attrs), fn, target)
        for symbols, arrays in cases:
            compare(c, fn, symbols, arrays, evaluate(fn, arrays), target, scale)


def cases3(dtype, shapes=SHAPES):
    rng = np.random.default_rng(0)
    return [(dict(zip("pqr", s, strict=True)), [random_array(rng, dtype, s)]) for s in shapes]


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2), (2,), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("dtype", [F32, F64, DType.BF16, I32, DType.U8], ids=str)
def test_sum_over_axes(axes, dtype):
    fn, b = new_function("f", {"x": (dtype, ["p", "q", "r"])})
    (x,) = fn.params
    b.return_([b.reduce(b.multiply(x, x), axes, "add")])
    run(fn, cases3(dtype), scale=64)


@pytest.mark.parametrize("kind", ["mul", "max", "min", "and", "or"])
def test_column_monoids(kind):
    for dtype in (F32, I64, DType.I8, DType.BOOL):
        if (kind in ("and", "or")) == dtype.is_float:
            continue
        fn, b = new_function("f", {"x": (dtype, ["p", "q", "r"])})
        b.return_([b.reduce(fn.params[0], [1], kind)])
        run(fn, cases3(dtype), scale=64)


def test_initial_value_counts_once():
    fn, b = new_function("f", {"x": (F32, ["p", "q", "r"])})
    (x,) = fn.params
    region = b.monoid("add", F32)
    b.return_(b.reduce([x], [b.constant(np.float32(10))], [1], region))
    run(fn, cases3(F32), scale=64)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [F32, F64, I32, DType.U8], ids=str)
def test_argmax(axis, dtype, largest):
    """Two results, a region that the emitters do not know; ties take the first index."""
    fn, b = new_function("f", {"x": (dtype, ["p", "q", "r"])})
    (x,) = fn.params
    start = b.constant(np.array(-np.inf if largest else np.inf).astype(dtype.np) if dtype.is_float else
                       np.array(np.iinfo(dtype.np).min if largest else np.iinfo(dtype.np).max, dtype.np))
    index = b.iota(I32, x.dims, axis)

    def pick(rb, av, an, xv, xn):
        better = rb.compare(av, xv, "GT" if largest else "LT")
        tie = rb.create1("and", [rb.compare(av, xv, "EQ"), rb.compare(an, xn, "LT")])
        keep = rb.create1("or", [better, tie])
        return [rb.select(keep, av, xv), rb.select(keep, an, xn)]

    types = [TensorType.of(dtype), TensorType.of(I32)] * 2
    region = b.region(types, pick)
    last = b.constant(np.int32(2**31 - 1))
    found = b.reduce([x, index], [start, last], [axis], region, arg="argmax" if largest else "argmin")
    b.return_([found[1]])
    nonempty = [s for s in SHAPES if all(s)]
    run(fn, cases3(dtype, nonempty))


def test_producers_and_broadcast_are_inlined():
    fn, b = new_function("f", {"x": (F32, ["p", "q"]), "y": (F32, ["q"])})
    x, y = fn.params
    d = b.subtract(x, b.broadcast_in_dim(y, x.dims, [1]))
    b.return_([b.reduce(b.exponential(d), [0], "add")])
    rng = np.random.default_rng(0)
    cases = [({"p": p, "q": q}, [random_array(rng, F32, (p, q)), random_array(rng, F32, q)]) for p, q in ((3, 5), (1, 64), (40, 200))]
    run(fn, cases, scale=64)


@pytest.mark.parametrize("n", [1, 7, 16, 37, 100])
def test_rows_by_the_general_path(n):
    """What the planner gives when an access is not affine: no region."""
    fn, b = new_function("f", {"x": (F32, ["p", "n"]), "g": (F32, ["n"]), "b": (F32, ["n"])})
    x, g, beta = fn.params
    y = layernorm(b, softmax(b, x), g, beta, x.dims[1])
    b.return_([y, b.reduce(b.reverse(y, [1]), [1], "max")])
    rng = np.random.default_rng(0)
    cases = [({"p": 3, "n": n}, [random_array(rng, F32, (3, n)), random_array(rng, F32, n), random_array(rng, F32, n)])]
    run(fn, cases, scale=256, kind="rows", outer=(x.dims[0],), inner=(x.dims[1],))
