"""MaxPool and AvgPool over two or three axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Block, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType, TensorType
from disc_tf.lowering.content import constant_ints
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.convolution import Padding, centred, channels_back, channels_last, layout_of, paddings, spatial_ints
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert, lowest, widen
from disc_tf.lowering.registry import FLOATS, NUMBERS, lowering


def _windows(
    ctx: LoweringContext, node: NodeView, x: Value, ksize: list[int], strides: list[int], default: str
) -> tuple[Value, tuple[int, ...], tuple[int, ...], list[Padding], bool]:
    """The data channels last, window and strides of the spatial axes, paddings, and whether the channels were first."""
    first = layout_of(node, x.rank, default)
    spatial = x.rank - 2
    window = spatial_ints(NodeView(node.name, node.op, (), {"ksize": ksize}), "ksize", spatial, first)
    steps = spatial_ints(NodeView(node.name, node.op, (), {"strides": strides}), "strides", spatial, first)
    data = channels_last(ctx, x, first)
    pads = paddings(ctx, node, data.dims[1:-1], window, steps, (1,) * spatial, first)
    return centred(ctx, data, node, window, steps, pads), window, steps, pads, first


def _reduce_window(
    ctx: LoweringContext, x: Value, init: Value, region: Block | str, window: tuple[int, ...], steps: tuple[int, ...],
    pads: list[Padding],
) -> Value:  # fmt: skip
    zero = Dim.of(0)
    return ctx.b.reduce_window(
        [x], [init], region, (1, *window, 1), (1, *steps, 1), (zero, *(p.low for p in pads), zero),
        (zero, *(p.high for p in pads), zero), dims=(x.dims[0], *(p.out for p in pads), x.dims[-1]),
    )[0]  # fmt: skip


def _max_pool(ctx: LoweringContext, node: NodeView, x: Value, ksize: list[int], strides: list[int], default: str) -> Value:
    """The greatest of each window; NaN is never the greatest. As in TF's CPU kernels the type's lowest finite number is always among
    a window's elements in the plane; over three axes only where the window reaches into the padding."""
    data, window, steps, pads, first = _windows(ctx, node, x, ksize, strides, default)
    least = lowest(x.dtype)
    if len(window) == 3:
        if not all(_inside(p) for p in pads):
            edges = [Dim.of(0), *(p.low for p in pads), Dim.of(0)], [Dim.of(0), *(p.high for p in pads), Dim.of(0)]
            data = ctx.b.pad(data, ctx.scalar(least, x.dtype), edges[0], edges[1], [0] * data.rank)
            pads = [Padding(Dim.of(0), Dim.of(0), p.out) for p in pads]
        least = -np.inf
    scalar = TensorType(x.dtype, ())
    region = ctx.b.region([scalar, scalar], lambda b, acc, v: [b.select(b.compare(v, acc, "GT"), v, acc)])
    y = _reduce_window(ctx, data, ctx.scalar(least, x.dtype), region, window, steps, pads)
    return channels_back(ctx, y, first)


@lowering("MaxPool", dtypes=NUMBERS)
def max_pool(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """Windows over height and width; padding SAME, VALID, EXPLICIT."""
    return _max_pool(ctx, node, x, node.ints("ksize"), node.ints("strides"), "NHWC")


@lowering("MaxPoolV2", dtypes=NUMBERS, limits="ksize and strides are constant")
def max_pool_v2(ctx: LoweringContext, node: NodeView, x: Value, ksize: Value, strides: Value) -> Value:
    """MaxPool with window and strides as operands."""
    sizes, steps = constant_ints(ctx, ksize, "ksize of MaxPoolV2"), constant_ints(ctx, strides, "strides of MaxPoolV2")
    return _max_pool(ctx, node, x, sizes, steps, "NHWC")


@lowering("MaxPool3D", dtypes=FLOATS)
def max_pool_3d(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """Windows over three axes."""
    return _max_pool(ctx, node, x, node.ints("ksize"), node.ints("strides"), "NDHWC")


def _avg_pool(ctx: LoweringContext, node: NodeView, x: Value, default: str) -> Value:
    """The mean of the elements of each window that are not padding."""
    data, window, steps, pads, first = _windows(ctx, node, x, node.ints("ksize"), node.ints("strides"), default)
    wide = widen(ctx, data)
    total = _reduce_window(ctx, wide, ctx.scalar(0, wide.dtype), "add", window, steps, pads)
    count = window_elements(ctx, total, data.dims[1:-1], window, steps, pads)
    return channels_back(ctx, convert(ctx, ctx.b.divide(total, count), x.dtype), first)


def _inside(pad: Padding) -> bool:
    """Whether no window reaches beyond the data."""
    return pad.low == 0 and pad.high == 0


def window_elements(
    ctx: LoweringContext, like: Value, extents: Sequence[Dim], window: Sequence[int], steps: Sequence[int], pads: Sequence[Padding]
) -> Value:
    """How many elements of the data each window has, of the dims and type of ``like``: ``[batch, windows..., channels]``."""
    count: Value | None = None
    for axis, (pad, extent, size, step) in enumerate(zip(pads, extents, window, steps, strict=True), 1):
        n = _count(ctx, pad, extent, size, step, like.dtype)
        if n is None:
            continue
        spread = ctx.b.broadcast_in_dim(n, like.dims, (axis,))
        count = spread if count is None else ctx.b.multiply(count, spread)
    full = ctx.splat(float(np.prod([size for size, p in zip(window, pads, strict=True) if _inside(p)])), like)
    return full if count is None else ctx.b.multiply(count, full)


def _count(ctx: LoweringContext, pad: Padding, extent: Dim, size: int, step: int, dtype: DType) -> Value | None:
    """How many elements each window along one axis has; None if it has all of them everywhere."""
    if _inside(pad):
        return None
    b = ctx.b
    dims = (pad.out,)

    def number(d: Dim) -> Value:
        return ctx.broadcast_to(ctx.dim(d), dims)

    start = b.subtract(b.multiply(b.iota(DType.I64, dims, 0), number(Dim.of(step))), number(pad.low))
    stop = b.minimum(b.add(start, number(Dim.of(size))), number(extent))
    inside = b.subtract(stop, b.maximum(start, number(Dim.of(0))))
    return b.convert(inside, dtype)


@lowering("AvgPool", dtypes=FLOATS)
def avg_pool(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """Windows over height and width; padding is not counted. 16-bit floats are summed in f32."""
    return _avg_pool(ctx, node, x, "NHWC")


@lowering("AvgPool3D", dtypes=FLOATS)
def avg_pool_3d(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """Windows over three axes."""
    return _avg_pool(ctx, node, x, "NDHWC")
