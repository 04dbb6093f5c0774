"""Diagonals and bands: TF against the rules on the interpreter."""

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import array, check_op

F32 = DType.F32
MATRICES = [(3, 3), (2, 5), (5, 2), (2, 3, 4), (0, 3), (3, 0), (0, 3, 3), (1, 1)]
ALIGN = ["LEFT_RIGHT", "RIGHT_LEFT", "LEFT_LEFT", "RIGHT_RIGHT"]


def i32(v):
    return np.array(v, np.int32)


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_every_dtype(dtype):
    x, d = array((2, 3), dtype), array((2,), dtype, 1)
    pad = d[0].reshape(())
    check_op("MatrixBandPart", input=x, num_lower=i32(0), num_upper=i32(-1), const=["num_lower", "num_upper"])
    check_op("MatrixDiag", diagonal=x)
    check_op("MatrixDiagPart", input=x)
    check_op("MatrixSetDiag", input=x, diagonal=d)
    check_op("MatrixDiagPartV3", input=x, k=i32([-1, 1]), padding_value=pad, const=["k"])


@pytest.mark.parametrize("shape", MATRICES, ids=str)
@pytest.mark.parametrize(
    ("lower", "upper"), [(0, 0), (-1, 0), (0, -1), (1, 1), (-1, -1), (2, 0), (-3, 1), (9, 0)]
)
def test_band_part(shape, lower, upper):
    for dtype in (np.int32, np.int64):
        args = {"num_lower": np.array(lower, dtype), "num_upper": np.array(upper, dtype)}
        for const in (list(args), [], ["num_lower"]):
            check_op("MatrixBandPart", input=array(shape, F32), **args, const=const)


@pytest.mark.parametrize("shape", [(3,), (0,), (1,), (2, 3), (0, 3), (2, 0)], ids=str)
def test_matrix_diag_v1(shape):
    check_op("MatrixDiag", diagonal=array(shape, F32))
    check_op("Diag", diagonal=array(shape, F32))


@pytest.mark.parametrize("align", ALIGN)
@pytest.mark.parametrize(
    ("shape", "k", "rows", "columns"),
    [((3,), 0, -1, -1), ((3,), 1, -1, -1), ((3,), -2, -1, -1), ((2, 3), 0, -1, -1), ((3,), 0, 3, 5), ((3,), 0, 5, -1), ((3,), 1, 3, -1),
     ((3, 3), [-1, 1], -1, -1), ((2, 3), [0, 1], 3, 4), ((2, 3), [-1, 0], -1, -1), ((2, 2, 3), [1, 2], -1, -1), ((3,), 0, 2, 2),
     ((3,), 0, 5, 5), ((2, 3), [-1, 1], -1, -1), ((2, 3), [1, 0], -1, -1)],
)  # fmt: skip
def test_matrix_diag_v3(align, shape, k, rows, columns):
    args = {
        "diagonal": array(shape, F32), "k": i32(k), "num_rows": i32(rows), "num_cols": i32(columns),
        "padding_value": np.array(9.5, np.float32),
    }  # fmt: skip
    const = ["k", "num_rows", "num_cols"]
    check_op("MatrixDiagV3", **args, align=align, const=const)
    if align == "LEFT_LEFT":
        check_op("MatrixDiagV2", **args, const=const)


@pytest.mark.parametrize("align", ALIGN)
@pytest.mark.parametrize("shape", MATRICES, ids=str)
@pytest.mark.parametrize("k", [0, 1, -1, 2, [-1, 1], [0, 1], [-1, 0], [1, 2], [5, 6], [-9, 0]], ids=str)
def test_matrix_diag_part(align, shape, k):
    args = {"input": array(shape, F32), "k": i32(k), "padding_value": np.array(9.5, np.float32)}
    modes = ["static", "dynamic"]
    check_op("MatrixDiagPartV3", **args, align=align, const=["k"], modes=modes)
    if align == "LEFT_LEFT":
        check_op("MatrixDiagPartV2", **args, const=["k"], modes=modes)
        check_op("MatrixDiagPart", input=args["input"])


@pytest.mark.parametrize("align", ALIGN)
@pytest.mark.parametrize(
    ("shape", "k", "diagonal"),
    [((3, 3), 0, (3,)), ((2, 5), 1, (2,)), ((5, 2), -1, (2,)), ((2, 3, 4), 0, (2, 3)), ((3, 3), [-1, 1], (3, 3)), ((2, 4), [0, 2], (3, 2)),
     ((2, 3, 3), [-1, 0], (2, 2, 3)), ((0, 3), 0, (0,)), ((3, 3), 0, (2,)), ((3, 3), [-1, 1], (2, 3)), ((3, 3), 4, (3,))],
)  # fmt: skip
def test_matrix_set_diag(align, shape, k, diagonal):
    args = {"input": array(shape, F32), "diagonal": array(diagonal, F32, 1), "k": i32(k)}
    check_op("MatrixSetDiagV3", **args, align=align, const=["k"])
    if align == "LEFT_LEFT":
        check_op("MatrixSetDiagV2", **args, const=["k"])
        if k == 0:
            check_op("MatrixSetDiag", input=args["input"], diagonal=args["diagonal"])


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 2, 3), (0, 0), (1, 1), (2, 3), (3, 3, 3)], ids=str)
def test_diag_part(shape):
    check_op("DiagPart", input=array(shape, F32))
