"""SparseSlice, SparseSplit, SparseConcat, SparseDenseCwise*, SparseSoftmax: TF against the rules on the interpreter."""

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import Tolerance, array, check_op

F32 = DType.F32
ONCE = ("dynamic",)
BOTH = ("static", "dynamic")
NEAR = Tolerance(ulps=8, relative_floor=1.0)


def slow(value):
    """A parameter whose case differs little from another."""
    return pytest.param(value, marks=pytest.mark.slow)


ENTRIES = [[0, 1], [0, 3], [1, 0], [2, 2], [2, 3]]


def i64(values, width=None):
    out = np.array(values, np.int64)
    return out if width is None else out.reshape(-1, width)


def sparse(indices, shape, dtype=F32, names=("indices", "values", "shape"), seed=0):
    parts = i64(indices, len(shape)), array((len(indices),), dtype, seed), i64(shape)
    return dict(zip(names, parts, strict=True))


@pytest.mark.parametrize("dtype", [F32, slow(DType.BF16), slow(DType.I64), DType.BOOL], ids=str)
def test_slice(dtype):
    known = ["shape", "start", "size"]
    for start, size in (([0, 1], [3, 2]), ([2, 0], [9, 9]), ([5, 0], [1, 9]), ([-1, 0], [2, 9]), ([0, 0], [0, 4]), ([0, 0], [-1, 9])):
        for indices in (ENTRIES, ENTRIES[::-1], []):
            check_op(
                "SparseSlice", **sparse(indices, [3, 4], dtype), start=i64(start), size=i64(size), const=[], known_dims=known, modes=BOTH
            )  # fmt: skip
    check_op("SparseSlice", **sparse(ENTRIES, [3, 4], dtype), start=i64([0]), size=i64([1, 1]), const=[], known_dims=known, modes=ONCE)
    check_op("SparseSlice", **sparse([[1], [3]], [5], dtype), start=i64([1]), size=i64([2**62]), const=[], known_dims=known, modes=ONCE)


@pytest.mark.parametrize("axis", [0, slow(1), slow(-1), slow(2)])
@pytest.mark.parametrize("count", [slow(1), 2, slow(3)])
def test_split(axis, count):
    for indices, shape in ((ENTRIES, [3, 4]), (ENTRIES, [5, 7]), ([], [3, 4]), ([[4, 0]], [3, 4]), ([[0, 0]], [1, 1])):
        check_op(
            "SparseSplit", split_dim=np.array(axis, np.int64), **sparse(indices, shape), num_split=count, const=["split_dim"],
            known_dims=["shape"], modes=BOTH,
        )  # fmt: skip


@pytest.mark.parametrize("axis", [slow(0), 1, slow(-2), slow(2)])
def test_concat(axis):
    def both(first, second, first_shape, second_shape, dtype=F32):
        a, b = sparse(first, first_shape, dtype), sparse(second, second_shape, dtype, seed=1)
        check_op(
            "SparseConcat", **{k if k != "shape" else "shapes": [a[k], b[k]] for k in a}, concat_dim=axis, const=[],
            known_dims=["shapes_0", "shapes_1"], modes=BOTH,
        )  # fmt: skip

    for shapes in (([3, 4], [3, 4]), ([3, 4], [3, 6]), ([3, 4], [5, 4]), ([3, 4], [5, 6])):
        both(ENTRIES, [[1, 1], [0, 0], [2, 3]], *shapes)
        both(ENTRIES, [], *shapes)
    both(ENTRIES, [[1, 1]], [3, 4], [3, 4], DType.I8)
    both([], [], [3, 4], [3, 4], DType.BF16)


@pytest.mark.parametrize("op", ["Mul", "Add", "Div"])
@pytest.mark.parametrize("dtype", [F32, slow(DType.F16), slow(DType.F64), DType.I32, slow(DType.U8)], ids=str)
def test_dense_cwise(op, dtype):
    for dense in ((3, 4), (4,), (3, 1), (1, 4), (), (1, 1), (1,), (2, 3, 4), (3, 5), (5,)):
        other = array(dense, dtype, 1, 1, 4)
        check_op(
            f"SparseDenseCwise{op}", **sparse(ENTRIES, [3, 4], dtype, ("sp_indices", "sp_values", "sp_shape")), dense=other, const=[],
            known_dims=["sp_shape"], modes=ONCE, tol=NEAR,
        )  # fmt: skip


def test_dense_cwise_errors():
    names = ("sp_indices", "sp_values", "sp_shape")
    for indices, shape, dense in (
        ([[9, 0]], [3, 4], (3, 4)), ([[0, 9]], [3, 4], (3, 1)), ([[-1, 0]], [3, 4], ()), ([[0, 0]], [3, 1], (3, 4)), ([], [3, 4], (3, 4)),
        ([], [0, 4], (0, 4)), ([[0, 0]], [0, 4], (0, 4)),
    ):  # fmt: skip
        check_op(
            "SparseDenseCwiseMul", **sparse(indices, shape, F32, names), dense=array(dense, F32, 1), const=[], known_dims=["sp_shape"],
            modes=BOTH,
        )  # fmt: skip
    for dtype in (DType.I32, F32):
        check_op(
            "SparseDenseCwiseDiv", **sparse(ENTRIES, [3, 4], dtype, names), dense=np.zeros((3, 4), dtype.np), const=[],
            known_dims=["sp_shape"], modes=ONCE,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, slow(DType.F64), slow(DType.F16)], ids=str)
def test_softmax(dtype):
    names = ("sp_indices", "sp_values", "sp_shape")
    cases = (
        (ENTRIES, [3, 4]), (ENTRIES[::-1], [3, 4]), ([[0, 1], [2, 3], [0, 2]], [3, 4]), ([], [3, 4]), ([[0, 0]], [1, 1]),
        ([[0, 1, 0], [0, 1, 2], [1, 0, 1], [1, 1, 1]], [2, 2, 3]), ([[1], [2]], [3]),
    )  # fmt: skip
    for indices, shape in cases:
        check_op("SparseSoftmax", **sparse(indices, shape, dtype, names), const=[], known_dims=["sp_shape"], modes=ONCE, tol=NEAR)
