"""MaxPool and AvgPool: TF against the rules."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import Tolerance, array, check_op

SUM = Tolerance(ulps=16, relative_floor=1.0)
SIZES = [(2, 7, 9, 5), (1, 8, 6, 3), (1, 1, 1, 4), (0, 5, 5, 2), (2, 5, 4, 0), (1, 13, 2, 33)]
WINDOWS = [((2, 2), (2, 2)), ((3, 3), (2, 2)), ((3, 2), (1, 1)), ((1, 1), (2, 3))]


def pool(op, x, ksize, strides, padding, **more) -> None:
    check_op(op, **{"value" if op == "AvgPool" else "input": x}, ksize=[1, *ksize, 1], strides=[1, *strides, 1], padding=padding, **more)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("ksize", "strides"), WINDOWS)
def test_max_pool(padding, ksize, strides) -> None:
    for size in SIZES:
        pool("MaxPool", array(size, "f32"), ksize, strides, padding)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("ksize", "strides"), WINDOWS)
def test_avg_pool(padding, ksize, strides) -> None:
    for size in SIZES:
        pool("AvgPool", array(size, "f32"), ksize, strides, padding, tol=SUM)


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_float or d in (DType.I32, DType.U8, DType.I64, DType.I16)], ids=str)
def test_max_pool_dtypes(dtype) -> None:
    pool("MaxPool", array((2, 5, 6, 3), dtype), (3, 2), (2, 1), "SAME")


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_float], ids=str)
def test_avg_pool_dtypes(dtype) -> None:
    pool("AvgPool", array((2, 5, 6, 3), dtype), (3, 2), (2, 1), "SAME", tol=SUM)


def test_max_pool_specials() -> None:
    x = array((1, 4, 6, 2), "f32")
    x[0, 0, 0] = np.nan
    x[0, :2, 2:4, 0] = np.nan
    x[0, 2:, 4:, 1] = -np.inf
    x[0, 2, 0, 0] = np.inf
    pool("MaxPool", x, (2, 2), (2, 2), "VALID")


def test_max_pool_v2() -> None:
    x = array((2, 6, 7, 3), "f32")
    sizes, strides = np.array([1, 2, 3, 1], np.int32), np.array([1, 2, 2, 1], np.int32)
    check_op("MaxPoolV2", input=x, ksize=sizes, strides=strides, padding="SAME", const=["ksize", "strides"])


def test_explicit_padding() -> None:
    pool("MaxPool", array((2, 6, 7, 3), "f32"), (3, 3), (2, 2), "EXPLICIT", explicit_paddings=[0, 0, 1, 0, 1, 1, 0, 0])


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("op", ["MaxPool3D", "AvgPool3D"])
def test_three_axes(op, padding) -> None:
    for size in ((2, 5, 4, 6, 3), (1, 3, 3, 0, 2)):
        check_op(op, input=array(size, "f32"), ksize=[1, 2, 3, 2, 1], strides=[1, 2, 1, 2, 1], padding=padding, tol=SUM)


def test_windows_larger_than_the_data() -> None:
    for h in range(1, 5):
        for op in ("MaxPool", "AvgPool"):
            pool(op, array((1, h, 5, 2), "f32"), (4, 2), (2, 2), "SAME", tol=SUM)
            pool(op, array((1, h, 5, 2), "f32"), (4, 2), (2, 2), "VALID", tol=SUM)


def test_windows_over_three_axes_lie_in_the_middle() -> None:
    """Strides above the window's size: TF's SAME skips as much before the first window as behind the last."""
    for size in [(1, 5, 3, 2, 3), (2, 6, 4, 3, 1), (1, 1, 7, 5, 2), (1, 0, 4, 2, 2)]:
        x = array(size, "f32")
        for op, operand in (("MaxPool3D", "input"), ("AvgPool3D", "input")):
            check_op(op, **{operand: x}, ksize=[1, 1, 2, 1, 1], strides=[1, 3, 5, 2, 1], padding="SAME", tol=SUM)


def test_infinities_over_three_axes() -> None:
    x = np.full((1, 2, 3, 2, 2), -np.inf, np.float32)
    x[..., 1, 1] = 3
    check_op("MaxPool3D", input=x, ksize=[1, 2, 2, 2, 1], strides=[1, 1, 1, 1, 1], padding="SAME")
    check_op("MaxPool3D", input=x, ksize=[1, 2, 2, 1, 1], strides=[1, 1, 1, 1, 1], padding="VALID")
