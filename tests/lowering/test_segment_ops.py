"""Segment*, UnsortedSegment*, SparseSegment* and their gradients: TF against the rules on the interpreter."""

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import Tolerance, array, check_op

NUMBERS = [d for d in DType if not d.is_bool]
F32 = DType.F32
ONCE = ("dynamic",)
#: every dtype; those whose code differs in nothing but the width are tested with the slow tests
EACH = [d if d in (F32, DType.BF16, DType.I64) else pytest.param(d, marks=pytest.mark.slow) for d in NUMBERS]
SORTED = ("Sum", "Mean", "Prod", "Max", "Min")
UNSORTED = ("Sum", "Prod", "Max", "Min")


def ids(*values, dtype=np.int32):
    return np.array(values, dtype)


def close(dtype):
    """Sums of few terms; the gradients of 16-bit floats are rounded twice."""
    return Tolerance(ulps=8 if dtype in (DType.F16, DType.BF16) else 4, relative_floor=1.0)


@pytest.mark.parametrize("op", SORTED)
@pytest.mark.parametrize("dtype", EACH, ids=str)
def test_segment_dtypes(op, dtype):
    """Gaps, one row, many rows; i32 and i64 ids; vectors and scalars in a row."""
    small = 2 if op == "Prod" else 4
    for shape, index in (((7, 19), np.int32), ((7,), np.int64)):
        check_op(
            f"Segment{op}", data=array(shape, dtype, 1, -small, small), segment_ids=ids(0, 0, 2, 2, 2, 2, 5, dtype=index), modes=ONCE,
            tol=close(dtype),
        )  # fmt: skip


SEGMENT_SHAPES = [
        ((6, 3), [0, 0, 1, 1, 1, 2]), ((6,), [3, 3, 3, 3, 3, 9]), ((1, 1), [0]), ((0, 3), []), ((0,), []), ((3, 0), [0, 2, 2]),
        ((4, 2, 5), [1, 1, 1, 1]), ((3, 130), [0, 1, 1]), ((3, 257), [0, 0, 0]), ((4, 2), [0, 2, 1, 3]), ((3, 2), [-1, 0, 0]),
        ((3, 2), [0, 1, -1]), ((3, 2), [0, 0]), ((3, 2), [[0, 0, 0]]), ((), [0]), ((3, 0), [2, 1, 0]), ((4, 2), [-3, -3, -2, -1]),
    ]  # fmt: skip


@pytest.mark.parametrize("op", SORTED)
def test_segment_shapes(op):
    for shape, segment_ids in SEGMENT_SHAPES:
        check_op(f"Segment{op}", data=array(shape, F32, 2), segment_ids=np.array(segment_ids, np.int64), tol=close(F32))


def test_segment_long():
    """One segment of many rows, among short ones; wide rows; the order of terms is the rows' order."""
    segment_ids = np.sort(np.concatenate([np.full(3000, 7), np.arange(40)])).astype(np.int32)
    for op in ("Sum", "Mean", "Max"):
        check_op(f"Segment{op}", data=array((3040, 11), F32), segment_ids=segment_ids, modes=ONCE, tol=Tolerance(256, relative_floor=1))
    for dtype in (DType.F16, DType.BF16):  # TF rounds at every step
        check_op("SegmentSum", data=np.ones((3040, 2), dtype.np), segment_ids=segment_ids, modes=ONCE)


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_segment_extremes_of_specials(op):
    """A NaN hides what is before it (TF's vector code drops NaN: only narrow rows are compared); infinities count."""
    x = np.array([1, np.nan, np.nan, 2, np.inf, -np.inf, -np.inf], np.float32)
    check_op(f"Segment{op}", data=x, segment_ids=ids(0, 0, 1, 1, 2, 2, 3))
    check_op(f"UnsortedSegment{op}", data=x, segment_ids=ids(0, 0, 1, 1, 2, 2, 3), num_segments=np.array(5, np.int32))


@pytest.mark.parametrize("op", UNSORTED)
@pytest.mark.parametrize("dtype", EACH, ids=str)
def test_unsorted_dtypes(op, dtype):
    for shape, index in (((6, 9), np.int32), ((6,), np.int64)):
        check_op(
            f"UnsortedSegment{op}", data=array(shape, dtype, 3, -2, 2), segment_ids=ids(4, -1, 0, 4, 2, 0, dtype=index),
            num_segments=np.array(6, index), modes=ONCE, tol=close(dtype),
        )  # fmt: skip


UNSORTED_SHAPES = [
        ((6, 3), [5, 0, 0, -9, 5, 1], 6), ((2, 3, 4), [[0, 1, 1], [2, -1, 0]], 3), ((2, 3), [[0, 1, 1], [2, -1, 0]], 3), ((3,), 1, 2),
        ((), 1, 2), ((0, 3), [], 2), ((3, 0), [7, 7, 7], 2), ((3, 0), [0, 0, 1], 0), ((3, 2), [0, 1, 2], 2), ((3, 2), [-1, -1, -1], 0),
        ((3, 2), [0, 1, 0], -1), ((3, 2), [0, 1], 2), ((3,), [[0], [1], [1]], 2), ((2, 70), [1, 1], 2), ((1, 1), [0], 1),
        ((3, 2), [0, 1, 0], [3]),
    ]  # fmt: skip


@pytest.mark.parametrize("op", UNSORTED)
@pytest.mark.parametrize("const", [("num_segments",), ()])
def test_unsorted_shapes(op, const):
    for shape, segment_ids, count in UNSORTED_SHAPES:
        check_op(
            f"UnsortedSegment{op}", data=array(shape, F32, 5), segment_ids=np.array(segment_ids, np.int32),
            num_segments=np.array(count, np.int32), const=const, tol=close(F32),
        )  # fmt: skip


def test_unsorted_narrow_ids():
    check_op(
        "UnsortedSegmentSum", data=array((4, 3), F32), segment_ids=ids(2, -1, 0, 2, dtype=np.int16),
        num_segments=np.array(3, np.int64),
    )  # fmt: skip


@pytest.mark.parametrize("op", ["Sum", "Mean", "SqrtN"])
@pytest.mark.parametrize("dtype", EACH, ids=str)
def test_sparse_segment_dtypes(op, dtype):
    if op != "Sum" and not dtype.is_float:
        pytest.skip("TF has no such kernel")
    for index, segment in ((np.int32, np.int64), (np.int64, np.int32)):
        check_op(
            f"SparseSegment{op}", data=array((9, 18), dtype, 1), indices=ids(8, 0, 0, 3, 5, 8, 1, dtype=index),
            segment_ids=ids(0, 0, 0, 2, 2, 2, 4, dtype=segment), modes=ONCE, tol=close(dtype),
        )  # fmt: skip


SPARSE_SEGMENT_SHAPES = [
        ((6, 2), [0, 5, 5], [0, 0, 3], 6), ((6, 2), [], [], 2), ((0, 2), [], [], 0), ((6,), [1, 4], [0, 1], 2), ((6, 0), [1, 4], [0, 1], 2),
        ((4, 2, 3), [3, 3, 3], [1, 1, 1], 2), ((6, 130), [2, 1, 0], [0, 1, 1], 3), ((6, 2), [0, 6], [0, 0], 1),
        ((6, 2), [0, -1], [0, 0], 1),
        ((6, 2), [0, 1], [1, 0], 2), ((6, 2), [0, 1], [-1, 0], 2), ((6, 2), [0, 1], [0, 2], 2), ((6, 2), [0], [0, 0], 2),
        ((6, 2), [[0]], [0], 2), ((), [0], [0], 2), ((0, 2), [0], [0], 2), ((1, 1), [0], [0], 1),
    ]  # fmt: skip


@pytest.mark.parametrize("op", ["Sum", "Mean", "SqrtN"])
def test_sparse_segment_shapes(op):
    for shape, indices, segment_ids, count in SPARSE_SEGMENT_SHAPES:
        given = {"indices": np.array(indices, np.int32), "segment_ids": np.array(segment_ids, np.int32)}
        check_op(f"SparseSegment{op}", data=array(shape, F32, 7), **given, tol=close(F32))
        check_op(
            f"SparseSegment{op}WithNumSegments", data=array(shape, F32, 7), **given, num_segments=np.array(count, np.int64),
            const=[], tol=close(F32),
        )  # fmt: skip


def test_sparse_segment_num_segments():
    given = {"data": array((4, 3), F32), "indices": ids(1, 1, 0), "segment_ids": ids(0, 0, 1)}
    for count in (np.array(-2, np.int32), np.array([3], np.int32), np.array(0, np.int32), np.array(40, np.int32)):
        for const in ([], ["num_segments"]):
            check_op("SparseSegmentMeanWithNumSegments", **given, num_segments=count, const=const, tol=close(F32))


@pytest.mark.parametrize("op", ["Sum", "Mean", "SqrtN"])
@pytest.mark.parametrize("dtype", [d for d in EACH if d in (F32, DType.BF16)], ids=str)
def test_sparse_segment_grad(op, dtype):
    for shape in ((3, 7), (3,), (3, 2, 9)):
        check_op(
            f"SparseSegment{op}Grad", grad=array(shape, dtype), indices=ids(0, 4, 4, 1), segment_ids=ids(0, 0, 1, 2),
            output_dim0=np.array(6, np.int32), modes=ONCE, const=[], tol=close(dtype),
        )  # fmt: skip


SPARSE_SEGMENT_GRAD_SHAPES = [([0, 2, 4], [0, 0, 1], 5), ([0, 2, 4], [0, 0, 1], 4), ([0, 2, -1], [0, 0, 1], 5), ([0, 1, 2], [0, 0, 2], 5),
     ([0, 1, 2], [1, 1, 0], 3), ([0, 1], [0, 0, 1], 5)]  # fmt: skip


def test_sparse_segment_grad_shapes():
    for indices, segment_ids, rows in SPARSE_SEGMENT_GRAD_SHAPES:
        check_op(
            "SparseSegmentMeanGrad", grad=array((2, 3), F32), indices=np.array(indices, np.int64),
            segment_ids=np.array(segment_ids, np.int64), output_dim0=np.array(rows, np.int32), tol=close(F32),
        )  # fmt: skip
