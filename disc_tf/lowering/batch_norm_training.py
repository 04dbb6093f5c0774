"""Batch norm in training: statistics of the batch itself, and FusedBatchNormGrad (V1-V3) in both modes."""

from __future__ import annotations

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.dims import product
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.matmul import along
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert
from disc_tf.lowering.registry import FLOATS, lowering
from disc_tf.lowering.shapes import invalid

_CHANNEL_FIRST = ("NCHW", "NCDHW")
_LAYOUTS = ("NHWC", "NDHWC", *_CHANNEL_FIRST)


def channel_axis(node: NodeView, x: Value) -> int:
    """The axis of the channels; checks ``data_format`` and the rank of ``x``."""
    layout = node.attr("data_format", "NHWC")
    if layout not in _LAYOUTS:
        raise Unsupported("ATTR", f"data_format={layout!r}")
    if x.rank != len(layout):
        raise invalid(f"input must be {len(layout)}-dimensional: {x.type}")
    return 1 if layout in _CHANNEL_FIRST else x.rank - 1


def _per_channel(ctx: LoweringContext, x: Value, axis: int, **vectors: Value) -> list[Value]:
    """Vectors with an element for each channel, their extents checked and renamed to that of the channels."""
    out = []
    for name, v in vectors.items():
        if v.rank != 1:
            raise invalid(f"{name} must be 1-dimensional: {v.type}")
        ctx.check_dims_eq(v.dims[0], x.dims[axis], message=f"{name} must have the same number of elements as the channels of x")
        out.append(ctx.cast_dims(v, (x.dims[axis],)))
    return out


def _mean(ctx: LoweringContext, x: Value, axis: int) -> tuple[Value, Value]:
    """(mean of each channel, number of its elements spread over the channels)."""
    others = [k for k in range(x.rank) if k != axis]
    total = ctx.reduce(x, others, "add")
    count = convert(ctx, ctx.dim(product(x.dims[k] for k in others)), x.dtype)
    spread = ctx.broadcast_to(count, total.dims)
    return ctx.b.divide(total, spread), spread


def normalise_batch(
    ctx: LoweringContext, node: NodeView, x: Value, scale: Value, offset: Value, mean: Value, variance: Value
) -> tuple[Value, list[Value]]:
    """``(y, [running mean, running variance, batch mean, batch variance])`` in the type of ``scale``; NaN statistics of nothing.

    The running variance is the unbiased one; with ``exponential_avg_factor`` f both are ``(1 - f) * old + f * new``."""
    b, axis = ctx.b, channel_axis(node, x)
    scale, offset = _per_channel(ctx, x, axis, scale=scale, offset=offset)
    wide = convert(ctx, x, scale.dtype)
    center, count = _mean(ctx, wide, axis)
    centered = b.subtract(wide, along(ctx, center, wide, axis))
    spread, _ = _mean(ctx, b.multiply(centered, centered), axis)
    factor = b.multiply(b.rsqrt(b.add(spread, ctx.splat(float(node.attr("epsilon", 0.0001)), spread))), scale)
    y = b.add(b.multiply(centered, along(ctx, factor, wide, axis)), along(ctx, offset, wide, axis))
    one = ctx.splat(1.0, count)
    unbiased = b.multiply(spread, b.divide(count, b.maximum(b.subtract(count, one), one)))
    running = [center, unbiased]
    f = float(np.float32(node.attr("exponential_avg_factor", 1.0)))
    if f != 1.0:
        old = _per_channel(ctx, x, axis, mean=mean, variance=variance)
        running = [
            b.add(b.multiply(ctx.splat(float(np.float32(1) - np.float32(f)), o), o), b.multiply(ctx.splat(f, n), n))
            for o, n in zip(old, running, strict=True)
        ]
    return y, [*running, center, spread]


@lowering(
    "FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3", dtypes={"T": FLOATS, "U": FLOATS},
    limits="inference is channels last, as in TF",
)  # fmt: skip
def fused_batch_norm_grad(
    ctx: LoweringContext, node: NodeView, dy: Value, x: Value, scale: Value, mean: Value, variance: Value, *_reserve: Value
) -> list[Value]:
    """Gradients of ``x``, ``scale`` and ``offset``; in training through the statistics too. The reserved results are empty."""
    axis = channel_axis(node, x)
    training = bool(node.attr("is_training", True))
    if not training and axis != x.rank - 1:
        raise invalid("The implementation of FusedBatchNormGrad with is_training=False only support NHWC tensor format for now.")
    ctx.require_same_shape(dy, x, "x and y_backprop must have same shape")
    scale, mean, variance = _per_channel(ctx, x, axis, scale=scale, reserve_space_1=mean, reserve_space_2=variance)
    b, dtype = ctx.b, scale.dtype
    g, wide = convert(ctx, ctx.cast_dims(dy, x.dims), dtype), convert(ctx, x, dtype)
    centered = b.subtract(wide, along(ctx, mean, wide, axis))
    coefficient = b.rsqrt(b.add(variance, ctx.splat(float(node.attr("epsilon", 0.0001)), variance)))
    others = [k for k in range(x.rank) if k != axis]
    d_offset = ctx.reduce(g, others, "add")
    product_sum = ctx.reduce(b.multiply(g, centered), others, "add")
    factor = along(ctx, b.multiply(scale, coefficient), wide, axis)
    if training:
        count = ctx.broadcast_to(convert(ctx, ctx.dim(product(x.dims[k] for k in others)), dtype), d_offset.dims)
        mean_g = along(ctx, b.divide(d_offset, count), wide, axis)
        slope = b.multiply(b.divide(product_sum, count), b.multiply(coefficient, coefficient))
        dx = b.multiply(factor, b.subtract(b.subtract(g, mean_g), b.multiply(centered, along(ctx, slope, wide, axis))))
    else:
        dx = b.multiply(g, factor)
    nothing = ctx.const(np.zeros(0, DType.F32.np))
    return [convert(ctx, dx, x.dtype), b.multiply(product_sum, coefficient), d_offset, nothing, nothing]
