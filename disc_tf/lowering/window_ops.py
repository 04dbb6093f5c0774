"""ExtractImagePatches, ExtractVolumePatches, Dilation2D, LRN, and the old SpaceToBatch and BatchToSpace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType
from disc_tf.lowering.blocks import batch_to_space, space_to_batch
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.convolution import paddings, refuse_centred, spatial_ints
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert, lowest, widen
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import NUMBERS, lowering
from disc_tf.lowering.shapes import invalid
from disc_tf.lowering.windows import patches


def _extract(ctx: LoweringContext, node: NodeView, x: Value, rank: int) -> Value:
    if x.rank != rank:
        raise invalid(f"input must be {rank}-dimensional: {x.type}")
    spatial = rank - 2
    window, strides, rates = (spatial_ints(node, name, spatial, False) for name in ("ksizes", "strides", "rates"))
    refuse_centred(node, spatial, window, strides)
    pads = paddings(ctx, node, x.dims[1:-1], window, strides, rates, False)
    seen = patches(ctx, x, window, strides, rates, pads)
    return ctx.b.reshape(seen, (*seen.dims[: spatial + 1], product(seen.dims[spatial + 1 :])))


@lowering("ExtractImagePatches", dtypes=NUMBERS)
def extract_image_patches(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """``[batch, rows, columns, height * width * channels]``; zeros in the padding."""
    return _extract(ctx, node, x, 4)


@lowering("ExtractVolumePatches", dtypes=NUMBERS, limits="no stride is greater than the window with padding SAME")
def extract_volume_patches(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """ExtractImagePatches over three axes."""
    return _extract(ctx, node, x, 5)


@lowering("Dilation2D", dtypes=NUMBERS, limits="the window's extents are known")
def dilation_2d(ctx: LoweringContext, node: NodeView, x: Value, filter: Value) -> Value:
    """The greatest sum of an element under the window and the filter's; padding does not count, nor does a NaN."""
    if x.rank != 4 or filter.rank != 3:
        raise invalid(f"input must be 4-dimensional and filter 3-dimensional: {x.type}, {filter.type}")
    if not all(d.is_static and int(d) > 0 for d in filter.dims[:2]):
        raise Unsupported("SHAPE", f"the spatial extents of the filter must be known: {filter.type}")
    strides, rates = (spatial_ints(node, name, 2, False) for name in ("strides", "rates"))
    window = (int(filter.dims[0]), int(filter.dims[1]))
    depth = x.dims[3]
    ctx.check_dims_eq(
        depth, filter.dims[2], message=f"input and filter must have the same depth: {plain(depth)} vs {plain(filter.dims[2])}"
    )
    pads = paddings(ctx, node, x.dims[1:3], window, strides, rates, False)
    b = ctx.b
    seen = patches(ctx, x, window, strides, rates, pads)
    terms = b.add(seen, b.broadcast_in_dim(ctx.cast_dims(filter, (*filter.dims[:2], depth)), seen.dims, (3, 4, 5)))
    least = ctx.splat(lowest(x.dtype), terms)
    counts = b.compare(terms, least, "GT")
    for axis, (pad, extent, stride, rate) in enumerate(zip(pads, x.dims[1:3], strides, rates, strict=True)):
        if pad.low == 0 and pad.high == 0:
            continue
        dims = (pad.out, Dim.of(window[axis]))
        at = b.add(b.multiply(b.iota(DType.I64, dims, 0), stride), b.multiply(b.iota(DType.I64, dims, 1), rate))
        at = b.subtract(at, ctx.broadcast_to(ctx.dim(pad.low), dims))
        inside = b.and_(b.compare(at, 0, "GE"), b.compare(at, ctx.broadcast_to(ctx.dim(extent), dims), "LT"))
        counts = b.and_(counts, b.broadcast_in_dim(inside, seen.dims, (1 + axis, 3 + axis)))
    return ctx.reduce(b.select(counts, terms, least), (3, 4), "maximum", ctx.scalar(lowest(x.dtype), x.dtype))


# ---- local response normalisation --------------------------------------------------------------------------------------


def _norm(ctx: LoweringContext, node: NodeView, x: Value) -> tuple[Value, Value, Value]:
    """``(bias + alpha * sum of squares, that to the power -beta, band matrix)`` of channels ``x``."""
    b, depth = ctx.b, x.dims[3]
    radius = int(node.attr("depth_radius", 5))
    bias, alpha, beta = _constants(node)
    band = (depth, depth)
    distance = b.abs(b.subtract(b.iota(DType.I64, band, 0), b.iota(DType.I64, band, 1)))
    near = b.convert(b.compare(distance, radius, "LE"), x.dtype)
    total = b.dot_general(b.multiply(x, x), near, (3,), (0,))
    norm = b.add(b.multiply(total, ctx.splat(alpha, total)), ctx.splat(bias, total))
    if beta == 1.0:
        factor = b.divide(ctx.splat(1.0, norm), norm)
    elif beta == 0.5:
        factor = b.rsqrt(norm)
    else:
        factor = b.exponential(b.multiply(b.log(norm), ctx.splat(-beta, norm)))
    return norm, factor, near


def _constants(node: NodeView) -> tuple[float, float, float]:
    """bias, alpha, beta."""
    defaults = (("bias", 1.0), ("alpha", 1.0), ("beta", 0.5))
    bias, alpha, beta = (float(np.float32(node.attr(name, default))) for name, default in defaults)
    return bias, alpha, beta


@lowering("LRN", dtypes={"T": {DType.F16, DType.F32}})
def lrn(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """``x / (bias + alpha * sum of the squares of neighbouring channels) ** beta``. The sum is a product with a band matrix, as in TF: what
    is not finite spoils its whole pixel."""
    if x.rank != 4:
        raise invalid(f"in must be 4-dimensional: {x.type}")
    wide = widen(ctx, x)
    return convert(ctx, ctx.b.multiply(wide, _norm(ctx, node, wide)[1]), x.dtype)


@lowering("LRNGrad", dtypes={"T": {DType.F16, DType.F32}})
def lrn_grad(ctx: LoweringContext, node: NodeView, grad: Value, x: Value, y: Value) -> Value:
    """The gradient of LRN's input: ``grad * norm ** -beta - 2 alpha beta x * (sum over neighbours of grad * y / norm)``."""
    for v in (grad, x, y):
        if v.rank != 4:
            raise invalid(f"inputs must be 4-dimensional: {v.type}")
    for v in (grad, y):
        ctx.require_same_shape(v, x, "input_grads, input_image and out_image should have the same shape")
    b = ctx.b
    g, wide, out = (widen(ctx, ctx.cast_dims(v, x.dims)) for v in (grad, x, y))
    _, alpha, beta = _constants(node)
    norm, factor, near = _norm(ctx, node, wide)
    spread = b.dot_general(b.divide(b.multiply(g, out), norm), near, (3,), (0,))
    through = b.multiply(b.multiply(ctx.splat(-2.0 * alpha * beta, wide), wide), spread)
    return convert(ctx, b.add(b.multiply(g, factor), through), x.dtype)


# ---- blocks with one size ----------------------------------------------------------------------------------------------


def _block_shape(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    if x.rank != 4:
        raise invalid(f"input rank should be 4 instead of {x.rank}")
    size = int(node.attr("block_size"))
    return ctx.const(np.array([size, size], np.int32))


@lowering("SpaceToBatch", dtypes=NUMBERS)
def space_to_batch_2d(ctx: LoweringContext, node: NodeView, x: Value, pads: Value) -> Value | Sequence[Value]:
    """SpaceToBatchND over height and width."""
    return space_to_batch(ctx, node, x, _block_shape(ctx, node, x), pads)


@lowering("BatchToSpace", dtypes=NUMBERS)
def batch_to_space_2d(ctx: LoweringContext, node: NodeView, x: Value, crops: Value) -> Value | Sequence[Value]:
    """BatchToSpaceND over height and width."""
    return batch_to_space(ctx, node, x, _block_shape(ctx, node, x), crops)
