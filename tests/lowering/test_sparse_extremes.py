"""Sparse tensors and segments at the ends of their integers and floats: shapes of more than 2^63 elements, infinite values, the last id."""

import numpy as np
import pytest

from disc_tf.testing.graph_case import case, check_graph, spec
from disc_tf.testing.tf_case import check_op, tensorflow

ONCE = ("dynamic",)
B = 2**62
#: whose elements can be counted, and not; TensorFlow multiplies from the left, so that a 0 helps only before it overflows
FIT = [[5, 2**60], [2, B - 1], [2**63 - 1, 1], [0, B, 4], [B, 0]]
OVERFLOW = [[5, B], [B, B], [4, B], [2**40, 2**40], [B, 4, 0], [2**63 - 1, 2]]


def i64(*values):
    return np.array(values, np.int64)


def entries(shape):
    """``(indices, values)`` out of order, none if the shape is empty."""
    n = 0 if 0 in shape else 3
    indices = np.zeros((n, len(shape)), np.int64)
    if n:
        indices[0, 0], indices[2, 0] = min(shape[0], 4) - 1, min(shape[0], 4) - 1
        indices[0, -1] = shape[-1] - 1
    return indices, np.arange(1, n + 1, dtype=np.float32)


@pytest.mark.parametrize("shape", [*FIT, *OVERFLOW], ids=str)
def test_order_of_large_shapes(shape):
    indices, values = entries(shape)
    check_op(
        "SparseReorder", input_indices=indices, input_values=values, input_shape=i64(*shape), modes=ONCE, known_dims=["input_shape"]
    )


def test_order_of_any_coordinates():
    """Rows are compared as they are: out of range, negative and equal ones."""
    indices = i64([0, 9], [1, -5], [1, -7], [-3, 1], [1, -5], [0, 2**62])
    check_op(
        "SparseReorder", input_indices=indices, input_values=np.arange(6, dtype=np.float32), input_shape=i64(2, 2), modes=ONCE,
        known_dims=["input_shape"],
    )  # fmt: skip


@pytest.mark.parametrize("shape", [*FIT, *OVERFLOW], ids=str)
def test_elements_that_cannot_be_counted(shape):
    indices, values = entries(shape)
    dims = i64(*shape)
    common = {"modes": ONCE, "const": []}
    if shape[0] != 0:
        check_op("SparseSoftmax", sp_indices=indices[1:], sp_values=values[1:], sp_shape=dims, known_dims=["sp_shape"], **common)
    for new in ([-1], [-1, 4], shape):
        check_op(
            "SparseReshape", input_indices=indices, input_shape=dims, new_shape=i64(*new), known_dims=["input_shape", "new_shape"], **common
        )
    corner = np.zeros(len(shape), np.int64)
    check_op(
        "SparseSlice", indices=indices, values=values, shape=dims, start=corner, size=corner + 2, known_dims=["shape", "start", "size"],
        **common,
    )  # fmt: skip
    check_op(
        "SparseDenseCwiseMul", sp_indices=indices, sp_values=values, sp_shape=dims, dense=np.float32(2), known_dims=["sp_shape"], **common
    )


@pytest.mark.parametrize("new_shape", [[B, 4], [B, 4, -1], [B, 4, 0]], ids=str)
@pytest.mark.parametrize("const", [(), ("new_shape",)])
def test_new_shapes_that_overflow(new_shape, const):
    for indices, shape in ((i64([0, 0], [1, 1]), [4, 4]), (np.zeros((0, 2), np.int64), [0, 4])):
        check_op(
            "SparseReshape", input_indices=indices, input_shape=i64(*shape), new_shape=i64(*new_shape), const=const,
            known_dims=["input_shape", "new_shape"], modes=ONCE,
        )  # fmt: skip


@pytest.mark.parametrize("shape", OVERFLOW[:4], ids=str)
def test_joined_shapes_that_overflow(shape):
    indices, values = entries(shape)

    def fn(indices, values, shape):
        return tuple(tensorflow().raw_ops.SparseConcat(indices=[indices] * 2, values=[values] * 2, shapes=[shape] * 2, concat_dim=1))

    c = case(fn, spec("int64", None, 2), spec("float32", None), spec("int64", 2))
    check_graph(c, [[indices, values, i64(*shape)], [indices[1:2], values[1:2], i64(3, 4)]], ["x86-64-v3"])


@pytest.mark.parametrize(
    ("shape", "new_shape"), [([0, 4], [-1]), ([0, 4], [0, 4]), ([0, 4], [4, 0]), ([3, 0], [0]), ([0], []), ([2, 4], [8])], ids=str
)
@pytest.mark.parametrize("const", [(), ("new_shape",)])
def test_entries_of_empty_shapes(shape, new_shape, const):
    for n in (0, 2):
        check_op(
            "SparseReshape", input_indices=np.zeros((n, len(shape)), np.int64), input_shape=i64(*shape), new_shape=i64(*new_shape),
            const=const, known_dims=["input_shape", "new_shape"], modes=ONCE,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32"])
def test_greatest_of_the_least(dtype):
    """Entries that are all the least value there is; rows without entries."""

    def fn(indices, values, shape):
        raw = tensorflow().raw_ops
        operands = {"input_indices": indices, "input_values": values, "input_shape": shape}
        return tuple(getattr(raw, op)(**operands, reduction_axes=[1], keep_dims=False) for op in ("SparseReduceMax", "SparseReduceSum"))

    low = [-np.inf, -np.inf, 3, -np.inf] if dtype != "int32" else [-(2**31), -(2**31), 3, -5]
    c = case(fn, spec("int64", None, 2), spec(dtype, None), spec("int64", 2))
    check_graph(c, [[i64([0, 0], [2, 1], [2, 2], [3, 0]), np.array(low, dtype), i64(5, 3)]], ["x86-64-v3"])


@pytest.mark.parametrize("ids", [[2**63 - 1], [0, 2**63 - 1], [2**63 - 2, 2**63 - 1]], ids=str)
def test_one_more_than_the_last_id(ids):
    data = np.ones((len(ids),), np.float32)
    for op in ("Sum", "Max"):
        check_op(f"Segment{op}", data=data, segment_ids=np.array(ids, np.int64), modes=ONCE)
    for op in ("Sum", "Mean"):
        check_op(
            f"SparseSegment{op}", data=data[:, None], indices=np.zeros(len(ids), np.int64), segment_ids=np.array(ids, np.int64), modes=ONCE
        )
