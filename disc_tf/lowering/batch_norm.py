"""FusedBatchNorm (V1-V3), grappler's _FusedBatchNormEx; oneDNN's _MklLayerNorm."""

from __future__ import annotations

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.types import DType
from disc_tf.lowering.activations import fused_activation
from disc_tf.lowering.batch_norm_training import channel_axis, normalise_batch
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.matmul import along
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert, spread, widen
from disc_tf.lowering.reductions import mean as mean_of
from disc_tf.lowering.registry import FLOATS, lowering


def _normalise(
    ctx: LoweringContext, node: NodeView, x: Value, scale: Value, offset: Value, mean: Value, variance: Value
) -> Value:
    """``(x - mean) * (rsqrt(variance + epsilon) * scale) + offset`` in the type of ``scale``."""
    axis = channel_axis(node, x)
    for name, v in (("scale", scale), ("offset", offset), ("mean", mean), ("variance", variance)):
        if v.rank != 1:
            raise Unsupported("INVALID", f"{name} must be 1-dimensional: {v.type}")
        ctx.check_dims_eq(v.dims[0], x.dims[axis], message=f"{name} must have the same number of elements as the channels of x")
    channels = scale.dims
    offset, mean, variance = (ctx.cast_dims(v, channels) for v in (offset, mean, variance))
    epsilon = ctx.splat(float(node.attr("epsilon", 0.0001)), variance)
    factor = ctx.b.multiply(ctx.b.rsqrt(ctx.b.add(variance, epsilon)), scale)
    wide = convert(ctx, x, scale.dtype)
    centered = ctx.b.subtract(wide, along(ctx, mean, wide, axis))
    return ctx.b.add(ctx.b.multiply(centered, along(ctx, factor, wide, axis)), along(ctx, offset, wide, axis))


def _statistics(ctx: LoweringContext, x: Value, mean: Value, variance: Value) -> list[Value]:
    """Outputs 1-4 at inference: the given statistics, NaN if ``x`` is empty. (TF leaves 3 and 4 without content.)"""
    low, _ = ctx.env.bounds(ctx.num_elements(x))
    if low is None or low < 1:
        empty = ctx.b.compare(ctx.dim(ctx.num_elements(x)), 0, "EQ")
        first = [ctx.b.select(empty, ctx.splat(np.nan, v), v) for v in (mean, variance)]
    else:
        first = [mean, variance]
    return [*first, mean, variance]


def _either(
    ctx: LoweringContext, node: NodeView, x: Value, scale: Value, offset: Value, mean: Value, variance: Value
) -> tuple[Value, list[Value]]:
    """``y`` in the type of ``scale``, and results 1 to 4."""
    if node.attr("is_training", True):
        return normalise_batch(ctx, node, x, scale, offset, mean, variance)
    return _normalise(ctx, node, x, scale, offset, mean, variance), _statistics(ctx, x, mean, variance)


_VERSIONS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")


@lowering(
    *_VERSIONS, *(f"_MklNative{v}" for v in _VERSIONS), dtypes={"T": FLOATS, "U": FLOATS}
)  # fmt: skip
def fused_batch_norm(
    ctx: LoweringContext, node: NodeView, x: Value, scale: Value, offset: Value, mean: Value, variance: Value
) -> list[Value]:
    """Layouts NHWC, NCHW, NDHWC, NCDHW; inference and training."""
    y, statistics = _either(ctx, node, x, scale, offset, mean, variance)
    out = [convert(ctx, y, x.dtype), *statistics]
    if node.op.endswith("V3"):
        out.append(ctx.scalar(0.0, scale.dtype))
    return out


@lowering("_FusedBatchNormEx", "_MklNativeFusedBatchNormEx", dtypes={"T": FLOATS, "U": FLOATS}, limits="Identity or Relu")
def fused_batch_norm_ex(
    ctx: LoweringContext,
    node: NodeView,
    x: Value,
    scale: Value,
    offset: Value,
    mean: Value,
    variance: Value,
    *side: Value,
) -> list[Value]:
    """Batch norm, plus a side input, then an activation."""
    y, statistics = _either(ctx, node, x, scale, offset, mean, variance)
    for s in side:
        ctx.require_same_shape(s, x, "side input must have the shape of x")
        y = ctx.b.add(y, ctx.cast_dims(convert(ctx, s, y.dtype), y.dims))
    mode = node.attr("activation_mode", "Identity")
    if mode != "Identity":
        y = fused_activation(ctx, node, mode, y)
    return [convert(ctx, y, x.dtype), *statistics, ctx.scalar(0.0, scale.dtype if scale.dtype.is_float else DType.F32)]


@lowering("_MklLayerNorm", dtypes=FLOATS)
def layer_norm(ctx: LoweringContext, node: NodeView, x: Value, scale: Value, offset: Value) -> Value:
    """Layer norm over the last dim: ``(x - mean) * rsqrt(variance + epsilon) * scale + offset``."""
    if x.rank < 1 or scale.rank != 1 or offset.rank != 1:
        raise Unsupported("INVALID", f"layer norm of {x.type} with scale {scale.type} and offset {offset.type}")
    axis = x.rank - 1
    for v in (scale, offset):
        ctx.check_dims_eq(v.dims[0], x.dims[axis], message="scale and offset must have the extent of the last dimension")
    wide = widen(ctx, x)
    centered = ctx.b.subtract(wide, spread(ctx, mean_of(ctx, wide, [axis]), wide, [axis]))
    variance = mean_of(ctx, ctx.b.multiply(centered, centered), [axis])
    factor = ctx.b.rsqrt(ctx.b.add(variance, ctx.splat(float(node.attr("epsilon", 0.001)), variance)))
    normal = ctx.b.multiply(centered, spread(ctx, factor, wide, [axis]))
    scaled = ctx.b.multiply(normal, along(ctx, widen(ctx, scale), wide, axis))
    return convert(ctx, ctx.b.add(scaled, along(ctx, widen(ctx, offset), wide, axis)), x.dtype)
