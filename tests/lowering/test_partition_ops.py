"""DynamicPartition, DynamicStitch, ListDiff: TF against the rules on the interpreter."""

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import array, check_op, specials

ALL_DTYPES = list(DType)
F32 = DType.F32


def i32(*values):
    return np.array(values, np.int32)


def few(shape, dtype, seed=0, high=3.0):
    return array(shape, DType.I32, seed, low=0, high=high).astype(dtype.np)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_dtype(dtype):
    data = array((7, 3), dtype)
    check_op("DynamicPartition", data=data, partitions=i32(2, 0, 2, 1, 1, 0, 2), num_partitions=3)
    for op in ("DynamicStitch", "ParallelDynamicStitch"):
        check_op(op, indices=[i32(5, 1, 1), i32(3, 0, 4, 2)], data=[data[:3], data[3:]])
    if not dtype.is_bool:
        for x, y in ((few((13,), dtype), few((4,), dtype, 1, 1.0)), (specials(dtype), specials(dtype)[:5])):
            check_op("ListDiff", x=x, y=y)


@pytest.mark.parametrize(
    ("data", "partitions", "parts"),
    [((4, 3), (2, 0, 2, 0), 3), ((4, 3), (0, 0, 0, 0), 1), ((4, 3), 1, 2), ((2, 3), ((0, 1, 0), (1, 1, 1)), 2), ((0, 3), (), 2),
     ((4, 0), (0, 1, 1, 1), 2), ((1,), (4,), 5), ((4, 3), (2, 0, 3, 0), 3), ((4, 3), (2, 0, -1, 0), 3), ((4, 0), (0, 1, 1, 7), 2),
     ((4, 3), (0, 1, 1), 2), ((4,), ((0, 1, 1, 0),), 2), ((7, 2, 2), (6, 5, 4, 3, 2, 1, 0), 7)],
    ids=str,
)  # fmt: skip
def test_dynamic_partition(data, partitions, parts):
    check_op("DynamicPartition", data=array(data, F32), partitions=np.array(partitions, np.int32), num_partitions=parts)


STITCHES = [
    ([[0, 1], [2]], ()), ([[2, 0], [1, 1]], (3,)), ([[0, 0], [0]], (2,)), ([0, [1, 2]], ()), ([[[1, 0]], [2]], (2, 2)), ([[]], (3,)),
    ([[], [1, 0]], (3,)), ([[0, 1]], (0,)), ([[-1, 1]], (2,)), ([[3], [1, -5]], ()), ([[0, 1], [2], [5, 4, 3], [1]], (1,)),
]  # fmt: skip


@pytest.mark.parametrize(("indices", "rest"), STITCHES, ids=str)
@pytest.mark.parametrize("op", ["DynamicStitch", "ParallelDynamicStitch"])
def test_dynamic_stitch(indices, rest, op):
    ids = [np.array(i, np.int32) for i in indices]
    data = [array((*i.shape, *rest), F32, k) for k, i in enumerate(ids)]
    for const in ([], ["indices"]):
        check_op(op, indices=ids, data=data, const=const)


def test_dynamic_stitch_of_what_does_not_fit():
    rows = array((4, 3), F32)
    for ids, data in (
        ([i32(0, 1), i32(2)], [rows[:2], rows[2:3, :2]]),
        ([i32(0, 1), i32(2)], [rows[:2], rows[2:3, :1]]),
        ([i32(0, 1), i32(2)], [rows[:2], rows[2:]]),
        ([i32(0, 1), i32(2)], [rows[:2], rows[2]]),
    ):
        check_op("DynamicStitch", indices=ids, data=data)


def test_rows_that_no_index_names_are_zero():
    from disc_tf.testing import tf_case

    for known in (True, False):
        ids, data = [i32(4, 1)], [array((2, 3), F32)]
        graph = tf_case.one_op_graph("DynamicStitch", {"indices": ids, "data": data}, ["indices"] if known else [])
        (out,) = tf_case.our_answer(tf_case.lower_graph(graph, "dynamic"), graph.arrays)
        want = np.zeros((5, 3), np.float32)
        want[[4, 1]] = data[0]
        np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize(
    ("x", "y"),
    [([1, 2, 3, 2, 5, 1], [2, 7]), ([], [1]), ([1, 1], []), ([], []), ([3], [3]), ([[1]], [1]), ([1], 1),
     (list(range(200)), list(range(0, 400, 3)))],
    ids=str,
)  # fmt: skip
def test_list_diff(x, y):
    for dtype in (np.int32, np.float32):
        for index in (np.int32, np.int64):
            check_op("ListDiff", x=np.array(x, dtype), y=np.array(y, dtype), out_idx=index)


def test_list_diff_of_special_values():
    x = np.array([np.nan, 1, -0.0, 0.0, np.inf, -np.inf])
    for dtype in (np.float16, np.float32, np.float64):
        check_op("ListDiff", x=x.astype(dtype), y=np.array([np.nan, 0, np.inf], dtype))
