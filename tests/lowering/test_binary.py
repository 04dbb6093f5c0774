"""Elementwise binary ops against TensorFlow: broadcasting, integer rules, special values, errors."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.lowering.errors import Status
from disc_tf.testing.tf_case import Failure, Tolerance, array, check_op, specials, tf_answer

FLOATS = ["f32", "f64", "f16", "bf16"]
INTS = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]
#: pairs of shapes: equal, scalar, 1 against n, both sides broadcast, zero, ranks differ
SHAPES = [((3, 5), (3, 5)), ((3, 5), ()), ((3, 1), (1, 5)), ((0, 3), (1, 3)), ((7,), (2, 1, 7)), ((1,), (0,)), ((1, 1), (1, 1))]
MISFITS = [((3, 5), (3, 4)), ((2,), (3, 3)), ((0,), (3,)), ((2, 3, 4), (2, 4))]
EXACT = Tolerance(0.0)


@pytest.mark.parametrize("dtype", FLOATS + INTS)
@pytest.mark.parametrize("op", ["AddV2", "Sub", "Mul", "Maximum", "Minimum"])
def test_arithmetic(op: str, dtype: str) -> None:
    for i, (a, b) in enumerate(SHAPES if dtype in ("f32", "i32") else SHAPES[:4]):
        check_op(op, x=array(a, dtype, i), y=array(b, dtype, i + 50), tol=EXACT)


@pytest.mark.parametrize("op", ["AddV2", "Maximum", "FloorDiv", "Less", "Equal", "Pow", "Xlogy", "MulNoNan"])
def test_shapes_that_do_not_fit(op: str) -> None:
    for a, b in MISFITS:
        check_op(op, x=array(a, "f32", low=1), y=array(b, "f32", low=1))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "op", ["AddV2", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "FloorDiv", "FloorMod", "SquaredDifference", "DivNoNan", "MulNoNan",
           "Xdivy", "Xlogy", "Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual", "Atan2"],
)  # fmt: skip
def test_special_values(op: str, dtype: str) -> None:
    v = specials(DType.from_name(dtype))
    x, y = (g.reshape(-1) for g in np.meshgrid(v, v))
    if op in ("FloorDiv", "FloorMod"):  # a quotient that TF flushes to zero and the interpreter does not
        with np.errstate(all="ignore"):
            quotient = np.abs(x.astype(np.float64) / y.astype(np.float64))
        keep = ~((quotient > 0) & (quotient < 1e-30))
        x, y = x[keep], y[keep]
    names = ("y", "x") if op == "Atan2" else ("x", "y")
    loose = 4.0 if op in ("Xlogy", "Atan2") else 0.0
    check_op(op, **dict(zip(names, (x, y), strict=True)), modes=["dynamic"], tol=Tolerance(loose))


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_float_division_family(dtype: str) -> None:
    for i, (a, b) in enumerate(SHAPES[:5]):
        x, y = array(a, dtype, i), array(b, dtype, i + 9, 0.5, 4.0)
        for op in ("RealDiv", "Div", "FloorDiv", "FloorMod", "Mod", "SquaredDifference", "DivNoNan", "Xdivy"):
            if op == "Mod" and dtype in ("f16", "bf16"):
                continue  # no CPU kernel
            check_op(op, x=x, y=y, modes=["dynamic", "static"], tol=EXACT)
        check_op("Xlogy", x=x, y=y, modes=["dynamic"])
        check_op("Pow", x=np.abs(x), y=y, modes=["dynamic"])
        check_op("Atan2", y=x, x=y, modes=["dynamic"])


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("op", ["Div", "TruncateDiv", "FloorDiv", "FloorMod"])
def test_int_division(op: str, dtype: str) -> None:
    v = specials(DType.from_name(dtype))
    x, y = (g.reshape(-1) for g in np.meshgrid(v, v[v != 0]))
    check_op(op, x=x, y=y)
    check_op(op, x=x, y=y, const=["y"], modes=["dynamic"])


@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_int_mod(dtype: str) -> None:
    v = specials(DType.from_name(dtype))
    x, y = (g.reshape(-1) for g in np.meshgrid(v, v[v != 0]))
    for op in ("Mod", "TruncateMod"):
        check_op(op, x=x, y=y)


@pytest.mark.parametrize("op", ["Div", "TruncateDiv", "FloorDiv", "FloorMod", "Mod", "TruncateMod"])
def test_int_division_by_zero(op: str) -> None:
    one, zero = np.array([1, 2], np.int32), np.array([3, 0], np.int32)
    code = Status.INTERNAL if op.startswith("Truncate") else Status.INVALID_ARGUMENT
    failed = tf_answer(op, {"x": one, "y": zero})
    assert isinstance(failed, Failure) and failed.code == code  # the reference did fail
    check_op(op, x=one, y=zero)
    check_op(op, x=one, y=zero, const=["y"])
    check_op(op, x=np.zeros((0,), np.int32), y=np.zeros((1,), np.int32))  # nothing is divided: no error
    check_op(op, x=np.zeros((0, 2), np.int32), y=zero)


@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64"])
def test_int_pow(dtype: str) -> None:
    v = specials(DType.from_name(dtype))
    x, y = (g.reshape(-1) for g in np.meshgrid(v, v[v >= 0]))
    check_op("Pow", x=x, y=y)
    check_op("Pow", x=v[:2], y=np.array([1, -1], v.dtype))
    check_op("Pow", x=v[:2], y=np.array([1, -1], v.dtype), const=["y"])


def test_float_pow_special_values() -> None:
    v = specials(DType.F32)
    x, y = (g.reshape(-1) for g in np.meshgrid(v, v))
    check_op("Pow", x=x, y=y, tol=Tolerance(4.0))


@pytest.mark.parametrize("dtype", INTS)
def test_bits(dtype: str) -> None:
    v = specials(DType.from_name(dtype))
    x, y = (g.reshape(-1) for g in np.meshgrid(v, v))
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift", "Less", "GreaterEqual", "Equal"):
        check_op(op, x=x, y=y, modes=["static", "dynamic"])
    count = np.array([0, 1, 7, 8, 31, 32, 63, 64, 100], v.dtype)
    for op in ("LeftShift", "RightShift"):
        check_op(op, x=v[:, None], y=count)


def test_logic() -> None:
    x, y = array((4, 1), "bool", 1), array((3,), "bool", 2)
    for op in ("LogicalAnd", "LogicalOr", "Equal", "NotEqual"):
        check_op(op, x=x, y=y)


@pytest.mark.parametrize("op", ["Equal", "NotEqual"])
def test_lenient_comparison(op: str) -> None:
    a, b = array((2, 3), "f32"), array((2,), "f32")
    check_op(op, x=a, y=b, incompatible_shape_error=False, modes=["static"])
    check_op(op, x=a, y=a[:1], incompatible_shape_error=False, modes=["static"])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_approximate_equal(dtype: str) -> None:
    x = array((3, 4), dtype)
    y = (x.astype(np.float64) + np.array([0, 1e-6, 1e-4, 1])).astype(x.dtype)
    check_op("ApproximateEqual", x=x, y=y)
    check_op("ApproximateEqual", x=x, y=y, tolerance=0.5)
    check_op("ApproximateEqual", x=x, y=y[:1])  # no broadcasting


@pytest.mark.parametrize("dtype", [*FLOATS, "i32", "u8", "i64"])
def test_add_n(dtype: str) -> None:
    for count in (1, 2, 3, 9):
        check_op("AddN", inputs=[array((2, 3), dtype, i) for i in range(count)], tol=Tolerance(8.0, relative_floor=1.0))
    check_op("AddN", inputs=[array((2, 3), dtype), array((1, 3), dtype)])


@pytest.mark.parametrize("dtype", [*FLOATS, "i32", "bool", "u8", "i64"])
def test_select(dtype: str) -> None:
    x, y = array((3, 4), dtype, 1), array((3, 4), dtype, 2)
    check_op("SelectV2", condition=array((3, 1), "bool"), t=x, e=y[:1])
    check_op("SelectV2", condition=np.array(True), t=x, e=y[0])
    check_op("SelectV2", condition=array((0, 1), "bool"), t=x[:1], e=y[:1])
    check_op("Select", condition=array((3, 4), "bool"), x=x, y=y)
    check_op("Select", condition=array((3,), "bool"), x=x, y=y)
    check_op("Select", condition=np.array(False), x=x, y=y)


def test_select_misfits() -> None:
    x = array((2, 2), "f32")
    for cond, t, e in [((3,), x, x), ((1,), x, x), ((), x, x[:1]), ((1, 2), x, x)]:
        check_op("Select", condition=array(cond, "bool"), x=t, y=e)
    check_op("SelectV2", condition=array((3,), "bool"), t=x, e=x)


@pytest.mark.parametrize("dtype", [*FLOATS, "i8", "i32", "i64", "u8"])
def test_clip(dtype: str) -> None:
    t = specials(DType.from_name(dtype))
    low, high = np.array(1, t.dtype), np.array(3, t.dtype)
    check_op("ClipByValue", t=t, clip_value_min=low, clip_value_max=high)
    check_op("ClipByValue", t=t, clip_value_min=high, clip_value_max=low)
    check_op("ClipByValue", t=t, clip_value_min=np.full_like(t, 1), clip_value_max=high)
    check_op("ClipByValue", t=t, clip_value_min=low, clip_value_max=np.full_like(t, 5))


def test_clip_by_nan_and_misfits() -> None:
    t, nan = specials(DType.F32), np.array(np.nan, np.float32)
    check_op("ClipByValue", t=t, clip_value_min=nan, clip_value_max=np.float32([2])[0:1].reshape(()))
    check_op("ClipByValue", t=t, clip_value_min=np.array(-1, np.float32), clip_value_max=nan)
    check_op("ClipByValue", t=t, clip_value_min=np.zeros((1,), np.float32), clip_value_max=np.array(1, np.float32))
