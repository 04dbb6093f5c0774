"""ReverseSequence, SparseToDense: TF against the rules on the interpreter."""

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import array, check_op

ALL_DTYPES = list(DType)
F32 = DType.F32


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_dtype(dtype):
    x = array((3, 5, 2), dtype)
    check_op("ReverseSequence", input=x, seq_lengths=np.array([5, 0, 3]), seq_dim=1, batch_dim=0)
    v = x.reshape(-1)
    check_op(
        "SparseToDense", sparse_indices=np.array([0, 2, 5], np.int32), output_shape=np.array([7], np.int32), sparse_values=v[:3],
        default_value=v[4], known_dims=["output_shape"],
    )  # fmt: skip


REVERSED = [
    ((2, 3, 4), [2, 3], 1, 0), ((2, 0, 3), [0, 0], 1, 0), ((3, 4, 0), [1, 2, 4], 1, 0), ((2, 3, 4), [2, 4], 1, 0),
    ((2, 3, 4), [2, -1], 1, 0), ((2, 3, 4), [2, 1, 1], 1, 0), ((2, 3, 4), [2, 1, 0], 0, 1), ((2, 3, 4), [4, 1, 0], 2, 1),
    ((2, 3, 4), [2, 0, 1, 2], 0, 2), ((2, 3), [1, 3], 1, 0), ((0, 3), [], 1, 0), ((1, 1), [1], 1, 0), ((2, 0), [0, 1], 1, 0),
    ((2, 3, 4), [2, 1], 0, 0), ((2, 3, 4), [2, 1], 3, 0), ((2, 3, 4), [2, 1], 1, 3), ((2, 3, 4), [2, 1], -1, 0),
    ((2, 3, 4), [[1, 2]], 1, 0),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_reverse_sequence(dtype):
    for shape, lengths, seq, batch in REVERSED:
        check_op("ReverseSequence", input=array(shape, F32), seq_lengths=np.array(lengths, dtype), seq_dim=seq, batch_dim=batch)


DENSE = [
    ([1, 3], [5], 2), ([], [3], 0), ([], [0], 0), ([2, 1], [4], 2), ([2, 2], [4], 2), ([2, 4], [4], 2), ([-2, 1], [4], 2), ([0, 1], [2], 3),
    ([0], [-2], 1), ([0], [0], 1), ([1, 3], [5], ()), (1, [4], ()), (1, [4], 1), ([[0, 1], [1, 0]], [2, 3], 2),
    (np.zeros((0, 2)), [2, 0], 0), ([[1, 0], [0, 1]], [2, 2], 2), ([[0, 5], [1, 0]], [2, 3], 2),
    ([[0, 1, 1], [0, 2, 0], [1, 0, 0]], [2, 3, 2], 3), (np.zeros((1, 0)), [], 1), (np.zeros((2, 0)), [], 2), ([0, 1], [2, 2], 2),
    ([[[0]]], [2], 1), ([[1, 0]], [2, 2, 2], 1), ([0, 1], 3, 2),
]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "validate", "cases"), [(np.int32, True, DENSE), (np.int64, True, DENSE[:14:2]), (np.int32, False, DENSE)]
)
def test_sparse_to_dense(dtype, validate, cases):
    for indices, shape, values in cases:
        given = {
            "sparse_indices": np.array(indices, dtype), "output_shape": np.array(shape, dtype),
            "sparse_values": array((values,) if isinstance(values, int) else values, F32), "default_value": np.float32(-1).reshape(()),
        }  # fmt: skip
        check_op("SparseToDense", **given, validate_indices=validate, known_dims=["output_shape"])
        if validate:
            modes = ["static", "partial"]
            check_op("SparseToDense", **given, const=["output_shape"], known_dims=["output_shape"], modes=modes)


def test_sparse_to_dense_of_wrong_ranks():
    given = {
        "sparse_indices": np.array([0], np.int32), "output_shape": np.array([1], np.int32), "sparse_values": np.ones(1, np.float32),
        "default_value": np.float32(-1).reshape(()),
    }  # fmt: skip
    vector = np.zeros(1, np.float32)
    check_op("SparseToDense", **{**given, "default_value": vector}, known_dims=["output_shape"])
    check_op("SparseToDense", **{**given, "sparse_values": vector[None]}, known_dims=["output_shape"])
