"""Conv2D, Conv3D, depthwise and transposed convolutions: TF against the rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.lowering.node import NodeView
from disc_tf.testing.tf_case import (
    MODES,
    Failure,
    Graph,
    Tolerance,
    array,
    check_op,
    difference,
    lower_graph,
    our_answer,
    tensorflow,
)

SUM = Tolerance(ulps=16, relative_floor=1.0)
FLOATS = [d for d in DType if d.is_float]


def conv(x, w, padding="SAME", strides=(1, 1), dilations=(1, 1), op="Conv2D", dtype="f32", **more: Any) -> None:
    check_op(
        op, input=array(x, dtype, 1), filter=array(w, dtype, 2), strides=[1, *strides, 1], padding=padding,
        dilations=[1, *dilations, 1], const=["filter"], known_dims=[f"input:{len(x) - 1}"], tol=more.pop("tol", SUM), **more,
    )  # fmt: skip


SIZES = [(2, 7, 9), (1, 8, 6), (1, 1, 1), (0, 5, 5), (2, 0, 4), (1, 13, 2)]


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("window", [(1, 1), (3, 3), (2, 4)])
def test_conv2d(padding, strides, window) -> None:
    for size in SIZES:
        conv((*size, 3), (*window, 3, 5), padding, strides)


def test_windows_larger_than_the_data() -> None:
    for padding in ("SAME", "VALID"):
        for strides in ((1, 1), (2, 2), (4, 4)):
            for h in range(6):
                conv((1, h, 5, 2), (5, 3, 2, 3), padding, strides)


def test_dilations() -> None:
    for padding in ("SAME", "VALID"):
        for size in ((2, 9, 8), (1, 5, 5)):
            conv((*size, 3), (3, 3, 3, 4), padding, dilations=(2, 2))
        conv((1, 9, 7, 3), (3, 2, 3, 4), padding, dilations=(1, 3))


def test_explicit_padding() -> None:
    conv((2, 6, 5, 3), (3, 3, 3, 4), "EXPLICIT", explicit_paddings=[0, 0, 1, 2, 0, 3, 0, 0])
    conv((2, 6, 5, 3), (3, 3, 3, 4), "EXPLICIT", (2, 2), explicit_paddings=[0, 0, 4, 0, 1, 1, 0, 0])


def test_groups() -> None:
    conv((2, 6, 5, 6), (3, 3, 2, 9))
    conv((2, 6, 5, 6), (3, 3, 1, 6), "VALID", (2, 2))


@pytest.mark.parametrize("dtype", [*FLOATS, DType.I32], ids=str)
def test_conv2d_dtypes(dtype) -> None:
    conv((2, 5, 6, 3), (3, 3, 3, 4), dtype=dtype)


def test_dynamic_filter() -> None:
    x, w = array((2, 5, 6, 3), "f32"), array((3, 3, 3, 4), "f32", 1)
    check_op("Conv2D", input=x, filter=w, strides=[1, 1, 1, 1], padding="SAME", known_dims=["input:3", "filter"], const=[], tol=SUM)


def test_conv2d_misfits() -> None:
    conv((1, 5, 5, 3), (3, 3, 2, 4))
    conv((1, 1, 5, 3), (4, 3, 3, 4), "VALID")
    conv((1, 1, 5, 3), (4, 3, 3, 4), "VALID", (2, 2))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_depthwise(padding, strides) -> None:
    for size in SIZES:
        conv((*size, 5), (3, 3, 5, 1), padding, strides, op="DepthwiseConv2dNative")
    conv((2, 6, 7, 4), (3, 2, 4, 3), padding, strides, op="DepthwiseConv2dNative")
    conv((1, 40, 1, 37), (15, 1, 37, 1), padding, op="DepthwiseConv2dNative")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_depthwise_dtypes(dtype) -> None:
    conv((2, 5, 6, 3), (3, 3, 3, 1), dtype=dtype, op="DepthwiseConv2dNative", tol=Tolerance(ulps=32, relative_floor=1.0))


def test_depthwise_misfits() -> None:
    conv((1, 5, 5, 3), (3, 3, 2, 1), op="DepthwiseConv2dNative")


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_conv3d(dtype, padding) -> None:
    for size, strides in (((1, 5, 4, 6), (1, 1, 1)), ((2, 3, 5, 4), (2, 1, 2)), ((1, 0, 5, 4), (1, 1, 1))):
        check_op(
            "Conv3D", input=array((*size, 3), dtype), filter=array((2, 3, 3, 3, 4), dtype, 1), strides=[1, *strides, 1],
            padding=padding, const=["filter"], known_dims=["input:4"], tol=SUM,
        )  # fmt: skip


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("stride", "window"), [(1, 3), (2, 3), (2, 4), (3, 2)])
def test_transposed(padding, stride, window) -> None:
    for h, w in ((7, 9), (8, 6), (3, 4)):
        if padding == "VALID" and (h < window or w < window):
            continue
        outs = [-(-d // stride) if padding == "SAME" else (d - window) // stride + 1 for d in (h, w)]
        check_op(
            "Conv2DBackpropInput", input_sizes=np.array([2, h, w, 3], np.int32), filter=array((window, window, 3, 5), "f32"),
            out_backprop=array((2, *outs, 5), "f32", 1), strides=[1, stride, stride, 1], padding=padding,
            const=["input_sizes", "filter"], known_dims=["out_backprop:3"], tol=SUM,
        )  # fmt: skip


def test_transposed_misfit() -> None:
    check_op(
        "Conv2DBackpropInput", input_sizes=np.array([2, 7, 7, 3], np.int32), filter=array((3, 3, 3, 5), "f32"),
        out_backprop=array((2, 5, 4, 5), "f32", 1), strides=[1, 2, 2, 1], padding="SAME", const=["input_sizes", "filter"],
        known_dims=["out_backprop:3"], tol=SUM,
    )  # fmt: skip


def test_channels_first() -> None:
    """TF's CPU kernels may lack NCHW: its NHWC kernel between transposes is the reference."""
    tf = tensorflow()
    x, w = array((2, 3, 6, 7), "f32"), array((3, 3, 3, 4), "f32", 1)
    last = tf.nn.conv2d(x.transpose(0, 2, 3, 1), w, [1, 2, 1, 1], "SAME").numpy().transpose(0, 3, 1, 2)
    attrs = {"T": 1, "strides": [1, 1, 2, 1], "padding": "SAME", "data_format": "NCHW"}
    compare("Conv2D", attrs, [x, w], last)


def compare(op: str, attrs: dict, arrays: list[np.ndarray], want: np.ndarray) -> None:
    names = [f"x{i}" for i in range(len(arrays))]
    node = NodeView("tested", op, names, attrs)
    known = ["x1", "x0:1", "x0:3"]
    for mode in MODES:
        ours = our_answer(lower_graph(Graph([node], names, arrays, "tested"), mode, known), arrays)
        assert not isinstance(ours, Failure), ours
        assert not difference(want, ours[0], SUM), f"[{mode}]: {difference(want, ours[0], SUM)}"


@pytest.mark.parametrize("activation", ["", "Relu", "Relu6", "Elu"])
def test_fused_bias(activation) -> None:
    tf = tensorflow()
    x, w, bias = array((2, 6, 7, 3), "f32"), array((3, 3, 3, 4), "f32", 1), array((4,), "f32", 2)
    want = tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), bias)
    want = {"": lambda v: v, "Relu": tf.nn.relu, "Relu6": tf.nn.relu6, "Elu": tf.nn.elu}[activation](want).numpy()
    fused = ["BiasAdd", *([activation] if activation else [])]
    compare("_FusedConv2D", {"T": 1, "strides": [1] * 4, "padding": "SAME", "fused_ops": fused, "num_args": 1}, [x, w, bias], want)


def test_fused_batch_norm() -> None:
    tf = tensorflow()
    x, w = array((2, 6, 7, 3), "f32"), array((3, 3, 3, 4), "f32", 1)
    scale, offset, mean = (array((4,), "f32", s) for s in (2, 3, 4))
    variance = array((4,), "f32", 5, 0.5, 2.0)
    y = tf.nn.conv2d(x, w, 1, "VALID")
    want = tf.nn.relu(tf.nn.batch_normalization(y, mean, variance, offset, scale, 1e-3)).numpy()
    attrs = {
        "T": 1, "strides": [1] * 4, "padding": "VALID", "fused_ops": ["FusedBatchNorm", "Relu"], "num_args": 4, "epsilon": 1e-3,
    }  # fmt: skip
    compare("_FusedConv2D", attrs, [x, w, scale, offset, mean, variance], want)


def test_windows_over_three_axes_lie_in_the_middle() -> None:
    """Strides above the window's size: TF's SAME skips as much before the first window as behind the last."""
    w = array((1, 2, 1, 2, 3), "f32", 1)
    for size in [(1, 5, 3, 2, 2), (2, 6, 4, 3, 2), (1, 1, 7, 5, 2)]:
        known = {"const": ["filter"], "known_dims": ["input:4"]}
        check_op("Conv3D", input=array(size, "f32"), filter=w, strides=[1, 3, 5, 2, 1], padding="SAME", tol=SUM, **known)
