"""Ragged ops: TF against the rules on the interpreter."""

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import Tolerance, array, check_op

F32 = DType.F32


RANGES = [
    ([0, 5, 8], [3, 5, 2], [1, 1, -2]), ([], [], []), ([0], [7], [3]), ([1, 2], [3, 4], [1, 0]), ([0], [3, 5], [1, 1]),
    ([0, 1], [3, 5], [1]), ([-(2**31)], [2**31 - 1], [2**30]), ([2**31 - 3], [2**31 - 1], [5]), ([0] * 40, list(range(40)), [3] * 40),
    (0, [3, 5, 2], 1), (0, [3, -5, 2], 1), (0, [3, 5, 2], 0), (9, [0, 9, 10], 1), ([5, -5], 0, [-1, 2]), (2, 9, 3), ([[0]], [3], [1]),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "splits"), [(np.int32, np.int64), (np.int64, np.int32)])
def test_ragged_range(dtype, splits):
    for case in RANGES:
        given = {k: np.array(v, dtype) for k, v in zip(("starts", "limits", "deltas"), case, strict=True)}
        check_op("RaggedRange", **given, Tsplits=splits)


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_every_dtype(dtype):
    splits, v = np.array([0, 2, 2, 5]), array((5, 2), dtype)
    gathered = {"params_nested_splits": [splits], "params_dense_values": v, "indices": np.array([2, 0, 1, 0])}
    check_op("RaggedGather", **gathered, OUTPUT_RAGGED_RANK=1)
    given = {"shape": np.array([-1, -1, -1]), "values": v, "default_value": v[0, 0].reshape(()), "row_partition_tensors": [splits]}
    check_op("RaggedTensorToTensor", **given, row_partition_types=["ROW_SPLITS"], const=["shape"])


GATHERS = [
    ([0, 2, 2, 5], 5, [2, 0, 1, 0]), ([0, 2, 2, 5], 5, []), ([0], 0, []), ([0, 0], 0, [0, 0]), ([1, 2, 4], 6, [1, 0]), ([0, 2], 2, [0] * 9),
    ([0, 2, 2, 5], 5, [3]), ([0, 2, 2, 5], 5, [-1]), ([0, 2, 2, 9], 5, [2]), ([0, 4, 2, 5], 5, [1]), ([-1, 4, 4, 5], 5, [1]), ([0], 0, [0]),
    ([0, 2, 2, 3], 5, [1, 2]), ([0, 7, 2, 2], 5, [2]),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ragged_gather(dtype):
    for splits, values, indices in GATHERS:
        for shape in ((values,), (values, 3)):
            check_op(
                "RaggedGather", params_nested_splits=[np.array(splits, dtype)], params_dense_values=array(shape, F32),
                indices=np.array(indices, dtype), OUTPUT_RAGGED_RANK=1,
            )  # fmt: skip


def to_tensor(shape, values, default, parts, kinds, dtype=np.int64):
    check_op(
        "RaggedTensorToTensor", shape=np.array(shape, dtype), values=values, default_value=np.array(default, values.dtype),
        row_partition_tensors=[np.array(p, dtype) for p in parts], row_partition_types=kinds, const=["shape"],
    )  # fmt: skip


V = array((5,), F32)
ROWS = array((5, 2), F32)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ragged_to_tensor_by_splits(dtype):
    for shape in ([-1, -1], [2, 2], [5, 4], -1, [-1, 0], [0, -1], 3, [-2, -1], [-1, -1, 2]):
        for splits in ([0, 2, 2, 5], [0, 2, 2, 4], [0], [3], [0, 0, 0], [0, 5], [1, 2, 2, 5], [0, 3, 2, 5], []):
            to_tensor(shape, V, 9, [splits], ["ROW_SPLITS"], dtype)


def test_ragged_to_tensor_of_rows():
    open_ = [-1, -1, -1]
    for shape, default in (([-1, -1, 2], 9), (open_, [7, 8]), ([-1, 2, 3], [7, 8]), (open_, [7]), ([-1, -1], 9), (open_, [7, 8, 9])):
        to_tensor(shape, ROWS, default, [[0, 2, 2, 5]], ["ROW_SPLITS"])
    to_tensor([-1, -1], V, [9, 9], [[0, 2, 2, 5]], ["ROW_SPLITS"])
    to_tensor([-1, -1, -1], ROWS[:0], [7, 8], [[0, 0, 0]], ["ROW_SPLITS"])
    to_tensor([2, 3, -1], ROWS[:0], [7, 8], [[0]], ["ROW_SPLITS"])
    to_tensor([-1, -1, -1], ROWS[:, :0], 0, [[0, 2, 2, 5]], ["ROW_SPLITS"])


def test_ragged_to_tensor_by_row_ids():
    for size, rows in [(4, [0, 0, 2, 2, 2]), (1, [0] * 5), (5, [4]), (2, [0, 0, 2, 2, 2]), (2, [-1, 0, 1, 1, 1])]:
        for shape in ([-1, -1], [2, 1], [6, 6]):
            to_tensor(shape, V, 9, [size, rows], ["FIRST_DIM_SIZE", "VALUE_ROWIDS"])


def test_ragged_bincount():
    for binary in (False, True):
        for splits in ([0, 2, 3], [1, 2, 3], [0, 2], [0, 4], [0, 4, 3], [0, 0, 3, 3], []):
            for weights in (np.zeros(0, np.float32), np.array([1, 2, 3], np.float32)):
                for values in ([0, 1, 7], [0, 1, 1], [0, -1, 1]):
                    check_op(
                        "RaggedBincount", splits=np.array(splits, np.int64), values=np.array(values, np.int32), size=np.array(3, np.int32),
                        weights=weights, binary_output=binary, tol=Tolerance(ulps=4), modes=["dynamic"],
                    )  # fmt: skip
    check_op(
        "RaggedBincount", splits=np.array([0]), values=np.zeros(0, np.int64), size=np.array(3), weights=np.zeros(0, np.int32)
    )
