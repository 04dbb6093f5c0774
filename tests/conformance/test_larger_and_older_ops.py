"""Native cases that the lowering's tables lack: sizes beyond one task of a kernel (prime extents), and old names of ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from disc_tf.testing.native_case import natively
from disc_tf.testing.tf_case import Tolerance, array, check_op

SUM = Tolerance(64.0, relative_floor=4.0)
DTYPES = ["f32", "f64", "f16", "bf16", "i32", "i64", "u8"]


@pytest.fixture(autouse=True)
def _compiled() -> Iterator[None]:
    with natively():
        yield


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def scalar(value: int) -> np.ndarray:
    return np.array(value, np.int32)


def rows(count: int, limit: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, limit, count).astype(np.int32)


def cases(dtype: str) -> dict[str, tuple[dict[str, Any], Tolerance]]:
    """Op -> (arguments, tolerance); 257 x 1009 elements and the like."""
    x, y = array((257, 1009), dtype, 0, 1, 4), array((257, 1009), dtype, 1, 1, 4)
    column, near = array((257, 1), dtype, 2, 1, 4), Tolerance(4.0)
    exact = Tolerance(0.0)
    return {
        "AddV2": ({"x": x, "y": column}, exact),
        "Maximum": ({"x": x, "y": y}, exact),
        "Less": ({"x": x, "y": y}, exact),
        "SelectV2": ({"condition": array((257, 1009), "bool"), "t": x, "e": column}, exact),
        "Transpose": ({"x": x, "perm": ints(1, 0)}, exact),
        "ConcatV2": ({"values": [x, y[:, :7]], "axis": scalar(1)}, exact),
        "Pad": ({"input": x, "paddings": np.array([[1, 2], [30, 3]], np.int32)}, exact),
        "Tile": ({"input": x, "multiples": ints(2, 3)}, exact),
        "ReverseV2": ({"tensor": x, "axis": ints(1)}, exact),
        "StridedSlice": ({"input": x, "begin": ints(250, 1000), "end": ints(3, 0), "strides": ints(-3, -2)}, exact),
        "GatherV2": ({"params": x, "indices": rows(3001, 257), "axis": scalar(0)}, exact),
        "TensorScatterUpdate": ({"tensor": x, "indices": rows(301, 257)[:, None], "updates": array((301, 1009), dtype, 3)}, exact),
        "TensorScatterMax": ({"tensor": x, "indices": rows(301, 257)[:, None], "updates": array((301, 1009), dtype, 3)}, exact),
        "Sum": ({"input": x[:, :101], "axis": ints(0)}, SUM),
        "Mean": ({"input": x[:, :101], "axis": ints(1)}, SUM),
        "Max": ({"input": x, "axis": ints(0, 1)}, exact),
        "ArgMax": ({"input": x, "dimension": scalar(1)}, exact),
        "Cumsum": ({"x": x[:, :60], "axis": scalar(1)}, SUM),
        "TopKV2": ({"input": x, "k": scalar(17)}, exact),
        "Cast": ({"x": x, "DstT": np.dtype(np.float32)}, near),
        "MatrixBandPart": ({"input": x, "num_lower": scalar(3), "num_upper": scalar(70)}, exact),
        "Reshape": ({"tensor": x, "shape": ints(1009, -1)}, exact),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", list(cases("f32")))
def test_larger(op: str, dtype: str) -> None:
    arguments, tol = cases(dtype)[op]
    const = [n for n in ("perm", "axis", "strides", "dimension", "k") if n in arguments]
    shapes = [n for n in ("paddings", "multiples", "shape", "begin", "end") if n in arguments]
    if op.startswith("TensorScatter"):
        shapes = ["indices"]
    check_op(op, **arguments, const=const, known_dims=shapes, modes=["dynamic"], tol=tol)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
def test_larger_float_ops(dtype: str) -> None:
    x = array((131, 1009), dtype)
    for op in ("Tanh", "Exp", "Erf", "Sigmoid"):
        check_op(op, x=x, modes=["dynamic"])
    # The floor covers f16's smallest normal number: on one side of it values count as zero.
    check_op("Softmax", logits=x, modes=["dynamic"], tol=Tolerance(16.0, floor=1e-2 if dtype == "f16" else 1e-3))
    check_op("MatMul", a=x, b=array((1009, 67), dtype, 1), modes=["dynamic"], tol=Tolerance(128.0, relative_floor=4.0))


# ---- old names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_old_elementwise_names(dtype: str) -> None:
    for shape in [(), (0,), (7, 3), (1, 5)]:
        x, y = array(shape, dtype, 0, 0.5, 4), array(shape, dtype, 1, 0.5, 4)
        check_op("Inv", x=x)
        check_op("Xlog1py", x=x, y=y)
        check_op("Xlog1py", x=np.zeros_like(x), y=-np.ones_like(y))


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i32", "i64"])
def test_bias_add_v1(dtype: str) -> None:
    check_op("BiasAddV1", value=array((4, 5), dtype), bias=array((5,), dtype, 1))
    check_op("BiasAddV1", value=array((4, 5), dtype), bias=array((4,), dtype, 1))


@pytest.mark.parametrize("dtype", ["f32", "bool", "u16", "bf16"])
def test_deep_copy(dtype: str) -> None:
    check_op("DeepCopy", x=array((4, 5), dtype))
