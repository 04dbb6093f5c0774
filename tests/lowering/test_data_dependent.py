"""Where, Unique and their kin: TF against the rules on the interpreter."""

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import array, check_op, specials

ALL_DTYPES = list(DType)
F32 = DType.F32
I64 = np.int64


def i32(*values):
    return np.array(values, np.int32)


def few(shape, dtype, seed=0, high=2.0):
    """Values with many repetitions and zeros."""
    return array(shape, DType.I32, seed, low=0, high=high).astype(dtype.np)


@pytest.mark.parametrize("dtype", [d for d in ALL_DTYPES if d is not DType.F16], ids=str)
def test_where_of_every_dtype(dtype):
    for shape in ((7,), (3, 5)):
        check_op("Where", condition=few(shape, dtype))
    check_op("Where", condition=specials(dtype))
    if dtype is DType.BF16:
        check_op("Where", condition=np.array([0, 0x8000, 1, 0x8001, 0x7FC0, 0x3F80], np.uint16).view(dtype.np))


@pytest.mark.parametrize("rank", range(10))
def test_where_of_every_rank(rank):
    dims = [(2, 1, 3, 2, 1, 2, 3, 2, 1)[:rank]]
    dims += [(0, *dims[0][1:]), (*dims[0][:-1], 0), (*dims[0][:-1], 13)] if rank else []
    for shape in dims:
        for value in (array(shape, DType.BOOL), np.zeros(shape, bool), np.ones(shape, bool)):
            check_op("Where", condition=value)


def test_where_of_many_elements():
    """Several tasks, lines that straddle them, runs of zeros that are skipped eight at a time."""
    for shape in ((200_003,), (257, 1021), (3, 5, 17, 1021)):
        for high in (0.0, 1.0, 1000.0):
            values = array(shape, DType.I32, 3, low=0, high=high)
            check_op("Where", condition=values == 0, modes=["dynamic"])


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_unique_of_every_dtype(dtype):
    values = few((31,), dtype, high=9.0)
    modes = ["static", "partial", "dynamic"] if dtype is F32 else ["dynamic"]
    for x in (values, values[:1], values[:0], specials(dtype), np.concatenate([specials(dtype)] * 2)):
        check_op("Unique", x=x, modes=modes)
        check_op("UniqueWithCounts", x=x, out_idx=np.int64, modes=modes)
    rows = few((13, 2), dtype)
    check_op("UniqueV2", x=rows, axis=np.array([0], I64), modes=modes)
    check_op("UniqueWithCountsV2", x=rows, axis=i32(-1), out_idx=np.int64, modes=modes)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((11,), []), ((11,), [0]), ((11, 3), [0]), ((3, 11), [1]), ((3, 11), [-1]), ((2, 7, 2), [1]), ((2, 7, 2), [2]), ((7, 1), [0]),
     ((0, 3), [0]), ((0, 3), [1]), ((3, 0), [0]), ((3, 0), [1]), ((1, 1), [0]), ((), []), ((2, 2), []), ((2, 2), [2]), ((2, 2), [-3]),
     ((2, 2), [0, 1]), ((2, 2), 0), ((2, 3, 1, 2, 2), [4])],
    ids=str,
)  # fmt: skip
def test_unique_along_axes(shape, axis):
    for dtype in (F32, DType.I64):
        x = few(shape, dtype, high=1.0)
        check_op("UniqueV2", x=x, axis=np.array(axis, I64), out_idx=np.int64)
        check_op("UniqueWithCountsV2", x=x, axis=np.array(axis, np.int32))
        if axis == []:
            check_op("Unique", x=x)
            check_op("UniqueWithCounts", x=x)


def test_unique_of_special_rows():
    for dtype in (np.float32, np.float64):
        rows = np.array([[np.nan, 1], [np.nan, 1], [0.0, -0.0], [-0.0, 0.0], [0.0, 0.0], [np.inf, 1], [np.inf, 1]], dtype)
        check_op("UniqueWithCountsV2", x=rows, axis=i32(0))


def test_unique_of_many():
    rng = np.random.default_rng(5)
    for distinct in (3, 1000, 10**9):
        check_op("UniqueWithCounts", x=rng.integers(0, distinct, 50_021), modes=["dynamic"])
    check_op("UniqueWithCountsV2", x=rng.integers(0, 4, (20_011, 5)), axis=i32(0), modes=["dynamic"])
