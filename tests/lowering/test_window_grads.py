"""Gradients of convolutions and pooling, and MaxPoolWithArgmax: TF against the rules."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.lowering.registry import NUMBERS
from disc_tf.testing.tf_case import Tolerance, array, check_op

SUM = Tolerance(ulps=32, relative_floor=1.0)
FLOATS = [d for d in DType if d.is_float]
PADDINGS = ("SAME", "VALID")
#: (spatial extents, strides, window)
PLANE = [((7, 9), (1, 1), (3, 3)), ((8, 6), (2, 2), (2, 4)), ((5, 4), (1, 2), (1, 2)), ((3, 3), (3, 2), (2, 1))]
SPACE = [((5, 4, 6), (1, 1, 1), (2, 3, 2)), ((4, 5, 4), (2, 1, 2), (2, 1, 3))]


def windows(extents, window, strides, padding) -> list[int]:
    """How many windows fit along each axis."""
    ends = [d if padding == "SAME" else d - k + 1 for d, k in zip(extents, window, strict=True)]
    return [-(-n // s) for n, s in zip(ends, strides, strict=True)]


def outer(strides) -> list[int]:
    return [1, *strides, 1]


@pytest.mark.parametrize("padding", PADDINGS)
def test_filter_grads(padding) -> None:
    for cases, op in ((PLANE, "Conv2DBackpropFilter"), (SPACE, "Conv3DBackpropFilterV2")):
        for extents, strides, window in cases if padding == "SAME" else cases[1:2]:
            counts = windows(extents, window, strides, padding)
            sizes = np.array([*window, 3, 5], np.int32)
            for batch in (2, 0):
                check_op(
                    op, input=array((batch, *extents, 3), "f32"), filter_sizes=sizes, out_backprop=array((batch, *counts, 5), "f32", 1),
                    strides=outer(strides), padding=padding, const=["filter_sizes"], tol=SUM,
                )  # fmt: skip


@pytest.mark.parametrize("op", ["Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter", "DepthwiseConv2dNativeBackpropInput"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dtypes(op, dtype) -> None:
    x, multiplier = array((2, 5, 6, 4), dtype), 4 if op.startswith("Conv") else 1
    sizes = np.array([3, 2, 4, multiplier], np.int32)
    g = array((2, 3, 3, 4), dtype, 1)
    if op.endswith("Input"):
        check_op(
            op, input_sizes=np.array(x.shape, np.int32), filter=array(sizes, dtype, 2), out_backprop=g, strides=outer((2, 2)),
            padding="SAME", const=["input_sizes", "filter"], known_dims=["out_backprop:3"], tol=SUM,
        )  # fmt: skip
    else:
        check_op(op, input=x, filter_sizes=sizes, out_backprop=g, strides=[1, 2, 2, 1], padding="SAME", const=["filter_sizes"], tol=SUM)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("multiplier", [1, 3])
def test_depthwise_grads(padding, multiplier) -> None:
    for extents, strides, window in PLANE if multiplier == 1 else PLANE[1:2]:
        if strides[0] != strides[1]:
            continue  # TF's depthwise kernels take equal strides only
        for batch in (2, 0):
            g = array((batch, *windows(extents, window, strides, padding), 4 * multiplier), "f32", 1)
            if batch:  # TF's result is uninitialised memory for nothing (ours is 0)
                check_op(
                    "DepthwiseConv2dNativeBackpropFilter", input=array((batch, *extents, 4), "f32"), out_backprop=g, strides=outer(strides),
                    filter_sizes=np.array([*window, 4, multiplier], np.int32), padding=padding, const=["filter_sizes"], tol=SUM,
                )  # fmt: skip
            check_op(
                "DepthwiseConv2dNativeBackpropInput", input_sizes=np.array([batch, *extents, 4], np.int32), out_backprop=g,
                filter=array((*window, 4, multiplier), "f32", 2), strides=outer(strides), padding=padding,
                const=["input_sizes", "filter"], known_dims=["out_backprop:3"], tol=SUM,
            )  # fmt: skip


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_conv3d_input_grad(padding, dtype) -> None:
    for extents, strides, window in SPACE:
        check_op(
            "Conv3DBackpropInputV2", input_sizes=np.array([2, *extents, 3], np.int32), filter=array((*window, 3, 5), dtype),
            out_backprop=array((2, *windows(extents, window, strides, padding), 5), dtype, 1), strides=outer(strides), padding=padding,
            const=["input_sizes", "filter"], known_dims=["out_backprop:4"], tol=SUM,
        )  # fmt: skip


def test_misfits() -> None:
    for shape, sizes in (((2, 4, 3, 5), [3, 3, 3, 5]), ((2, 3, 4, 4), [3, 3, 3, 5]), ((1, 3, 4, 5), [3, 3, 3, 5])):
        check_op(
            "Conv2DBackpropFilter", input=array((2, 5, 7, 3), "f32"), filter_sizes=np.array(sizes, np.int32), strides=[1, 2, 2, 1],
            out_backprop=array(shape, "f32"), padding="SAME", const=["filter_sizes"], tol=SUM,
        )  # fmt: skip


# ---- pooling -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", PADDINGS)
def test_max_pool_grad(padding) -> None:
    for extents, strides, window in PLANE:
        for batch, channels in ((2, 3), (0, 3), (1, 33)):
            x = array((batch, *extents, channels), "f32")
            g = array((batch, *windows(extents, window, strides, padding), channels), "f32", 1)
            check_op(
                "MaxPoolGrad", orig_input=x, orig_output=g, grad=g, ksize=outer(window), strides=outer(strides), padding=padding, tol=SUM
            )  # fmt: skip


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
def test_argmax(batched, padding) -> None:
    for extents, strides, window in PLANE:
        for batch in (2, 0):
            check_op(
                "MaxPoolWithArgmax", input=array((batch, *extents, 3), "f32"), ksize=outer(window), strides=outer(strides), padding=padding,
                include_batch_in_index=batched, Targmax=np.int32 if batched else np.int64,
            )  # fmt: skip


@pytest.mark.parametrize("dtype", sorted(NUMBERS - {DType.U64}, key=str), ids=str)
def test_max_dtypes(dtype) -> None:
    x, g = array((2, 5, 6, 3), dtype), array((2, 3, 3, 3), dtype, 1)
    check_op("MaxPoolWithArgmax", input=x, ksize=[1, 3, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    check_op("MaxPoolGrad", orig_input=x, orig_output=g, grad=g, ksize=[1, 3, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    lists = {"ksize": np.array([1, 3, 2, 1], np.int32), "strides": np.array([1, 2, 2, 1], np.int32)}
    check_op("MaxPoolGradV2", orig_input=x, orig_output=g, grad=g, **lists, padding="SAME", const=list(lists))


def test_max_specials() -> None:
    x = array((1, 4, 6, 2), "f32")
    x[0, 0, 0] = np.nan
    x[0, :2, 2:4, 0] = np.nan
    x[0, 2:, 4:, 1] = -np.inf
    x[0, 2, 1, 0] = np.inf
    x[0, 3, 3, 1] = np.nan
    g = array((1, 2, 3, 2), "f32", 1)
    check_op("MaxPoolWithArgmax", input=x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")
    check_op("MaxPoolGrad", orig_input=x, orig_output=g, grad=g, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")


def test_max_pool_grad_misfits() -> None:
    x = array((1, 4, 6, 2), "f32")
    for good, bad in (((1, 2, 3, 2), (1, 2, 2, 2)), ((1, 3, 3, 2), (1, 2, 3, 2))):
        for y, g in ((good, bad), (bad, good)):
            check_op(
                "MaxPoolGrad", orig_input=x, orig_output=array(y, "f32"), grad=array(g, "f32"), ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1],
                padding="VALID",
            )  # fmt: skip


@pytest.mark.parametrize("padding", PADDINGS)
def test_avg_pool_grads(padding) -> None:
    for op, cases in (("AvgPoolGrad", PLANE), ("AvgPool3DGrad", SPACE)):
        for extents, strides, window in cases:
            for batch in (2, 0):
                check_op(
                    op, orig_input_shape=np.array([batch, *extents, 3], np.int32), ksize=outer(window), strides=outer(strides),
                    grad=array((batch, *windows(extents, window, strides, padding), 3), "f32"), padding=padding,
                    const=["orig_input_shape"], tol=SUM,
                )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_avg_pool_grad_dtypes(dtype) -> None:
    shape = np.array([2, 5, 6, 3], np.int32)
    for const in ([], ["orig_input_shape"]):
        check_op(
            "AvgPoolGrad", orig_input_shape=shape, grad=array((2, 3, 3, 3), dtype), ksize=[1, 3, 2, 1], strides=[1, 2, 2, 1],
            padding="SAME", const=const, known_dims=["orig_input_shape"], tol=SUM,
        )  # fmt: skip
