"""SparseReshape, SparseFillEmptyRows, SparseTensorDenseMatMul and other ops of SparseTensors: TF against the rules on the
interpreter."""

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import Tolerance, array, check_op

F32 = DType.F32
NEAR = Tolerance(ulps=4, relative_floor=1.0)
ONCE = ("dynamic",)


def slow(dtype):
    return pytest.param(dtype, marks=pytest.mark.slow)


def i64(values, width=None):
    out = np.array(values, np.int64)
    return out if width is None else out.reshape(-1, width)


# ---- SparseReshape ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("indices", "shape", "new_shape"),
    [
        ([[0, 1], [2, 3]], [3, 4], [-1, 4]), ([[0, 1], [2, 3]], [3, 4], [2, -1]), ([[0, 1], [2, 3]], [3, 4], [12]),
        ([[0, 1, 1], [1, 3, 2]], [2, 4, 3], [8, 3]), ([[0, 1, 1], [1, 3, 2]], [2, 4, 3], [-1]), ([[5], [11]], [12], [3, 2, 2]),
        ([[0, 1], [2, 3]], [3, 4], [3, 4]), ([], [0, 4], [-1, 4]), ([], [0, 4], [3, -1]), ([], [3, 0], [0, -1]), ([], [3, 0], [-1, 0]),
        ([], [0, 4], [0, 7]), ([[0, 1]], [3, 4], [5, -1]), ([[0, 1]], [3, 4], [5, 2]), ([[0, 1]], [3, 4], [-1, -1]),
        ([[0, 1]], [3, -4], [12]), ([[0, 1]], [3, 4], [-2, 6]), ([[0]], [1], [1, 1]), ([[0, 0]], [1, 1], []),
        ([[0, 1]], [3, 4, 5], [-1]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("const", [(), ("new_shape",), ("input_shape", "new_shape")])
def test_reshape(indices, shape, new_shape, const):
    check_op(
        "SparseReshape", input_indices=i64(indices, len(shape) if len(shape) < 3 or (indices and len(indices[0]) == 3) else 2),
        input_shape=i64(shape), new_shape=i64(new_shape), const=const, known_dims=["input_shape", "new_shape"],
        modes=("static", "dynamic"),
    )  # fmt: skip


# ---- SparseFillEmptyRows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [d if d in (F32, DType.BF16, DType.BOOL) else slow(d) for d in DType], ids=str)
def test_fill_empty_rows_dtypes(dtype):
    check_op(
        "SparseFillEmptyRows", indices=i64([[2, 1], [0, 1], [2, 0], [0, 0]]), values=array((4,), dtype, 1), dense_shape=i64([4, 4]),
        default_value=array((), dtype, 2), modes=ONCE, const=[], known_dims=["dense_shape"],
    )  # fmt: skip


FILL_EMPTY_ROWS_SHAPES = [
        ([[0, 1], [2, 3]], 2, [4, 4]), ([[2, 3], [0, 1]], 2, [4, 4]), ([], 0, [0, 4]), ([], 0, [3, 4]), ([[0, 0]], 1, [1, 1]),
        ([[0, 1], [2, 3]], 2, [0, 4]), ([[0, 1], [2, 3]], 2, [2, 4]), ([[-1, 0]], 1, [2, 4]), ([[0, 9]], 1, [2, 4]),
        ([[0, 1], [1, 0]], 1, [2, 4]), ([[0, 1]], 1, [-4, 4]), ([[0, 1]], 1, [4]), ([[0, 1]], 1, [4, 4, 4]),
    ]  # fmt: skip


def test_fill_empty_rows_shapes():
    for indices, count, shape in FILL_EMPTY_ROWS_SHAPES:
        for const in ((), ("dense_shape",)):
            check_op(
                "SparseFillEmptyRows", indices=i64(indices, 2), values=array((count,), F32), dense_shape=i64(shape),
                default_value=np.array(9, np.float32), const=const, known_dims=["dense_shape"],
            )  # fmt: skip


def test_fill_empty_rows_ranks():
    for width in (1, 3):
        check_op(
            "SparseFillEmptyRows", indices=np.zeros((2, width), np.int64), values=array((2,), F32), dense_shape=i64([2] * width),
            default_value=np.array(9, np.float32), const=[], known_dims=["dense_shape"],
        )  # fmt: skip
    check_op(
        "SparseFillEmptyRows", indices=i64([0, 1]), values=array((2,), F32), dense_shape=i64([2]),
        default_value=np.array(9, np.float32), const=[], known_dims=["dense_shape"],
    )  # fmt: skip
    check_op(
        "SparseFillEmptyRows", indices=i64([[0], [1]]), values=array((2,), F32), dense_shape=i64([2]),
        default_value=np.array([9], np.float32), const=[], known_dims=["dense_shape"],
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [d if d in (F32, DType.BF16, DType.I64) else slow(d) for d in DType if not d.is_bool], ids=str)
def test_fill_empty_rows_grad(dtype):
    for reverse in ([0, 2], [0, 0], [3, 1, 2, 0], []):
        check_op(
            "SparseFillEmptyRowsGrad", reverse_index_map=i64(reverse), grad_values=array((4,), dtype), modes=ONCE, tol=NEAR
        )  # fmt: skip


def test_fill_empty_rows_grad_shapes():
    for reverse, count in (([0, 4], 4), ([-1], 4), ([], 0), ([0], 1), ([[0]], 1)):
        check_op("SparseFillEmptyRowsGrad", reverse_index_map=i64(reverse), grad_values=array((count,), F32), tol=NEAR)


# ---- with dense tensors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32, DType.F64, DType.I32], ids=str)
def test_matmul_dtypes(dtype, index):
    check_op(
        "SparseTensorDenseMatMul", a_indices=np.array([[2, 3], [0, 1], [2, 0], [0, 1]], index), a_values=array((4,), dtype, 1),
        a_shape=i64([3, 4]), b=array((4, 35), dtype, 2), modes=ONCE, const=[], known_dims=["a_shape"], tol=NEAR,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("indices", "count", "shape", "dense", "adjoint_a", "adjoint_b"),
    [
        ([[0, 1], [2, 3]], 2, [3, 4], (4, 2), False, False), ([[0, 1], [2, 3]], 2, [4, 4], (4, 2), True, False),
        ([[0, 1], [2, 3]], 2, [3, 4], (2, 4), False, True), ([[1, 0], [3, 2]], 2, [4, 3], (2, 4), True, True),
        ([], 0, [3, 4], (4, 2), False, False), ([], 0, [0, 4], (4, 2), False, False), ([], 0, [3, 0], (0, 2), False, False),
        ([[0, 9]], 1, [3, 4], (4, 0), False, False),
        ([[0, 4]], 1, [3, 4], (4, 2), False, False), ([[3, 0]], 1, [3, 4], (4, 2), False, False),
        ([[-1, 0]], 1, [3, 4], (4, 2), False, False), ([[0, -1]], 1, [3, 4], (4, 2), False, False),
        ([[0, 1]], 1, [3, 5], (4, 2), False, False),
        ([[0, 1]], 1, [3, 4, 1], (4, 2), False, False), ([[0, 1]], 2, [3, 4], (4, 2), False, False),
        ([[0, 0]], 1, [1, 1], (1, 1), False, False), ([[0, 1], [2, 3]], 2, [3, 4], (4, 100), False, False),
    ],
)  # fmt: skip
def test_matmul_shapes(indices, count, shape, dense, adjoint_a, adjoint_b):
    check_op(
        "SparseTensorDenseMatMul", a_indices=i64(indices, 2), a_values=array((count,), F32), a_shape=i64(shape), b=array(dense, F32, 1),
        adjoint_a=adjoint_a, adjoint_b=adjoint_b, const=[], known_dims=["a_shape"], tol=NEAR, modes=("static", "dynamic"),
    )  # fmt: skip


DENSE_ADD = [([[0, 1], [2, 3], [0, 1]], [3, 4], (3, 4)), ([[0, 1, 0]], [1, 2, 3], (1, 2, 3)), ([], [3, 4], (3, 4)),
    ([[0, 4]], [3, 4], (3, 4)),
     ([[0, -1]], [3, 4], (3, 4)), ([[0, 1]], [3, 4], (3, 5)), ([[0, 1]], [3, 4], (3,))]  # fmt: skip


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I32, DType.I8], ids=str)
def test_dense_add(dtype):
    for indices, shape, dense in DENSE_ADD:
        check_op(
            "SparseTensorDenseAdd", a_indices=i64(indices, len(shape)), a_values=array((len(indices),), dtype, 1), a_shape=i64(shape),
            b=array(dense, dtype), const=[], known_dims=["a_shape"], tol=NEAR, modes=ONCE,
        )  # fmt: skip


# ---- order and reductions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [DType.F32, DType.I64, DType.BOOL, DType.BF16], ids=str)
def test_reorder(dtype):
    for indices in ([[2, 1], [0, 3], [2, 0], [0, 0], [2, 0]], [[0, 0]], []):
        check_op(
            "SparseReorder", input_indices=i64(indices, 2), input_values=array((len(indices),), dtype), input_shape=i64([3, 4]),
            const=[], known_dims=["input_shape"], modes=("static", "dynamic"),
        )  # fmt: skip


@pytest.mark.parametrize("op", ["SparseReduceSum", "SparseReduceMax"])
@pytest.mark.parametrize("keep_dims", [False, True])
@pytest.mark.parametrize("axes", [[0], [-1], [0, 2], [1, 2], [0, 1, 2], []])
def test_reduce(op, keep_dims, axes):
    indices = [[0, 0, 1], [0, 2, 0], [1, 0, 0], [1, 0, 1], [1, 2, 3]]
    for dtype in (F32, DType.I32):
        check_op(
            op, input_indices=i64(indices), input_values=array((5,), dtype), input_shape=i64([2, 3, 4]),
            reduction_axes=np.array(axes, np.int32), keep_dims=keep_dims, const=["reduction_axes"], known_dims=["input_shape"],
            modes=ONCE, tol=NEAR,
        )  # fmt: skip
