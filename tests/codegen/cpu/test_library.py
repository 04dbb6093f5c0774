"""Ops of kind `library` compiled by the whole pipeline, against the interpreter."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function
from disc_tf.ir.dims import Dim
from disc_tf.ir.interp import evaluate
from disc_tf.ir.types import DType, TensorType
from disc_tf.ir.verifier import verify
from disc_tf.testing.native_case import TARGETS, native_answer
from disc_tf.testing.tf_case import Tolerance, array, declared_dims, difference

NUMBERS = [d for d in DType if not d.is_bool]
COMMON = [DType.F32, DType.F64, DType.F16, DType.BF16, DType.I32, DType.I64, DType.U8]
MODES = ("static", "dynamic")
NEAR = Tolerance(ulps=2, relative_floor=1.0)


def function(arrays, mode, build):
    """A function of arguments with the arrays' types; ``build(builder, *values)`` gives the results."""
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    values = []
    for i, x in enumerate(arrays):
        dims = declared_dims(x.shape, mode, i)
        values.append(fn.add_arg(TensorType.of(DType.from_np(x.dtype), dims), ArgInfo(f"a{i}")))
    results = build(b, *values)
    b.return_(results)
    fn.result_names = [f"r{i}" for i in range(len(results))]
    verify(fn)
    return fn


def check(arrays, build, target=TARGETS[0], modes=MODES, tol=NEAR):
    for mode in modes:
        expected = evaluate(function(arrays, mode, build), arrays)
        found = native_answer(function(arrays, mode, build), arrays, target)
        assert isinstance(found, list), f"{mode}: {found}"
        for i, (want, have) in enumerate(zip(expected, found, strict=True)):
            problem = difference(np.asarray(want), have, tol)
            assert not problem, f"{mode}, result {i}: {problem}"


# ---- scan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_scan_dtypes(dtype, kind):
    x = array((3, 5, 19), dtype, low=-2, high=2)
    for axis in (1, 2):
        check([x], lambda b, v, axis=axis: [b.scan(v, axis, kind)], modes=["dynamic"])


@pytest.mark.parametrize(("reverse", "exclusive"), itertools.product([False, True], repeat=2))
@pytest.mark.parametrize("shape", [(1,), (0,), (9,), (4, 1), (1, 70), (2, 3, 65), (2, 0, 3), (2, 3, 0)])
def test_scan_shapes(shape, reverse, exclusive):
    for axis in range(len(shape)):
        check(
            [array(shape, DType.F32)], lambda b, v, axis=axis: [b.scan(v, axis, "add", reverse, exclusive)],
            tol=Tolerance(ulps=16, relative_floor=1.0),
        )  # fmt: skip


# ---- scatter ------------------------------------------------------------------------------------------------------

ROWS = {"update_window_dims": (1,), "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,), "index_vector_dim": 1}


def scatter_rows(kind):
    return lambda b, x, i, u: b.scatter([x], i, [u], kind, **ROWS)


@pytest.mark.parametrize("kind", ["assign", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_scatter_dtypes(dtype, kind):
    """Duplicates and indices out of bounds included."""
    i = np.array([[2], [0], [2], [7], [-1], [2]], np.int32)
    check([array((4, 5), dtype), i, array((6, 5), dtype, 1)], scatter_rows(kind), modes=["dynamic"])


@pytest.mark.parametrize("columns", [0, 1, 3, 16, 17, 700])
@pytest.mark.parametrize("index", [np.int64, np.int32, np.uint8])
def test_scatter_columns(columns, index):
    rng = np.random.default_rng(columns)
    i = rng.integers(0, 9, (13, 1)).astype(index)
    check([array((9, columns), DType.F32), i, array((13, columns), DType.F32, 1)], scatter_rows("add"))


def test_scatter_of_scalars_and_points():
    x, i = array((5, 7), DType.I32), np.array([[0, 1], [4, 6], [0, 1], [4, 7], [5, 0]], np.int64)
    numbers = {
        "update_window_dims": (), "inserted_window_dims": (0, 1), "scatter_dims_to_operand_dims": (0, 1), "index_vector_dim": 1,
    }  # fmt: skip
    check([x, i, array((5,), DType.I32, 1)], lambda b, x, i, u: b.scatter([x], i, [u], "add", **numbers))


def test_scatter_windows_that_reach_outside():
    """A window over both dims at starts of both, elementwise in or out."""
    x, i = array((6, 9), DType.F32), np.array([[0, 0], [4, 7], [-1, 2], [3, -2]], np.int32)
    numbers = {
        "update_window_dims": (1, 2), "inserted_window_dims": (), "scatter_dims_to_operand_dims": (0, 1), "index_vector_dim": 1,
    }  # fmt: skip
    check([x, i, array((4, 3, 4), DType.F32, 1)], lambda b, x, i, u: b.scatter([x], i, [u], "add", **numbers))


def test_scatter_with_batching_and_minor_index():
    """The index chooses the minor dim; dim 0 is a batch; the index vector dim is implicit."""
    x, i = array((3, 4, 8), DType.F32), np.array([[1, 5], [0, 0], [7, 8]], np.int32)
    numbers = {
        "update_window_dims": (2,), "inserted_window_dims": (2,), "input_batching_dims": (0,), "scatter_indices_batching_dims": (0,),
        "scatter_dims_to_operand_dims": (2,), "index_vector_dim": 2,
    }  # fmt: skip
    check([x, i, array((3, 2, 4), DType.F32, 1)], lambda b, x, i, u: b.scatter([x], i, [u], "add", **numbers))


def test_scatter_of_two_operands():
    def build(b, x, y, i, u, v):
        scalars = [TensorType(x.dtype, ()), TensorType(y.dtype, ())] * 2
        region = b.region(scalars, lambda b, p, q, r, s: [b.add(p, r), b.maximum(q, s)])
        return b.scatter([x, y], i, [u, v], region, **ROWS)

    i = np.array([[1], [1], [3]], np.int32)
    arrays = [array((4, 20), DType.F32), array((4, 20), DType.I32, 2), i, array((3, 20), DType.F32, 3), array((3, 20), DType.I32, 4)]
    check(arrays, build)


# ---- sort and top k -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["LT", "GT"])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_sort_dtypes(dtype, direction):
    x, y = array((3, 33), dtype), array((3, 33), DType.I64, 1)
    check([x, y], lambda b, x, y: b.sort([x, y], 1, direction), modes=["dynamic"])


@pytest.mark.parametrize("shape", [(1,), (0,), (2,), (3,), (33,), (4, 5, 6), (0, 3), (3, 0, 2), (100, 2)])
def test_sort_by_any_comparator(shape):
    """By descending first key, then ascending second: ties of both keep their order; only the last result is used."""
    x, y, z = array(shape, DType.I32, 0, -2, 2), array(shape, DType.F32, 1), np.arange(np.prod(shape)).reshape(shape)

    def build(b, x, y, z):
        types = [TensorType(v.dtype, ()) for v in (x, y, z) for _ in range(2)]

        def comparator(b, p, q, r, s, _t, _u):
            tie = b.and_(b.compare(p, q, "EQ"), b.compare(r, s, "LT"))
            return b.or_(b.compare(p, q, "GT"), tie)

        return [b.sort([x, y, z], axis, b.region(types, comparator))[2] for axis in range(len(shape))]

    check([x, y, z], build)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_topk(dtype):
    for shape, k in [((5, 17), 3), ((1, 4), 4), ((0, 4), 2), ((3, 4), 0), ((9,), 9)]:
        check([array(shape, dtype)], lambda b, v, k=k: list(b.topk(v, k)), modes=["static"])
    check([array((5, 17), dtype)], lambda b, v: [b.topk(v, 3)[1]], modes=["static"])


# ---- reduce_window ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["add", "max", "min", "mul"])
@pytest.mark.parametrize("dtype", COMMON, ids=str)
def test_window_dtypes(dtype, kind):
    def build(b, x):
        init = b.constant(1, x.dtype)
        return b.reduce_window([x], [init], kind, (1, 3), (1, 2), (0, 1), (0, 2))

    check([array((3, 41), dtype, low=-2, high=2)], build)


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (2, 40), (0, 6), (6, 0)])
def test_window_dilations(shape):
    def build(b, x):
        init = b.constant(0, x.dtype)
        return b.reduce_window(
            [x], [init], "add", (2, 3), (2, 1), (1, 4), (1, 4), base_dilations=(1, 2), window_dilations=(2, 1)
        )

    check([array(shape, DType.F32)], build)


def test_window_of_two_operands():
    """The greatest and where it is."""
    def build(b, x, i):
        types = [TensorType(x.dtype, ()), TensorType(i.dtype, ())] * 2

        def pick(b, p, q, r, s):
            keep = b.compare(p, r, "GE")
            return [b.select(keep, p, r), b.select(keep, q, s)]

        inits = [b.constant(-np.inf, x.dtype), b.constant(-1, i.dtype)]
        return b.reduce_window([x, i], inits, b.region(types, pick), (3,), (1,), (1,), (1,))

    check([array((50,), DType.F32), np.arange(50, dtype=np.int32)], build)


# ---- reduce with any region -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_reduce_by_any_region(axes):
    """x or y, but not both: a commutative region that is no known monoid of two operands."""
    def build(b, x, y):
        types = [TensorType(x.dtype, ()), TensorType(y.dtype, ())] * 2
        region = b.region(types, lambda b, p, q, r, s: [b.xor(p, r), b.maximum(q, s)])
        return b.reduce([x, y], [b.constant(0, x.dtype), b.constant(-np.inf, y.dtype)], axes, region)

    check([array((5, 37), DType.I32), array((5, 37), DType.F32)], build)


@pytest.mark.parametrize("target", TARGETS)
def test_targets(target):
    """Every kind once on every instruction set."""
    i = np.array([[2], [0], [2]], np.int32)
    check([array((4, 35), DType.F16), i, array((3, 35), DType.F16, 1)], scatter_rows("add"), target)
    check([array((3, 35), DType.BF16)], lambda b, v: [b.scan(v, 0, "add")], target)
    check([array((3, 35), DType.F16)], lambda b, v: list(b.topk(v, 3)), target, ["static"])
    check([array((3, 35), DType.U8)], lambda b, v: b.sort([v], 1, "LT"), target)
    check([array((3, 35), DType.F64)], lambda b, v: b.reduce_window([v], [b.constant(0, v.dtype)], "max", (1, 2)), target)


def test_dim_is_kept_symbolic():
    """The dynamic mode really has symbols (else the tests above check less than they say)."""
    fn = function([array((3, 4), DType.F32)], "dynamic", lambda b, v: [b.scan(v, 0, "add")])
    assert [d for d in fn.params[0].dims if Dim.of(d).is_static] == []
