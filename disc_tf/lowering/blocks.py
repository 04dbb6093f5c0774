"""SpaceToBatchND, BatchToSpaceND: paddings, reshapes and transposes."""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.lowering.content import bind, bind_run_time, constant_ints, content_of, element_dims
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.dilation import dilated_convolution
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import ALL, lowering
from disc_tf.lowering.shapes import invalid

ZERO = Dim.of(0)


def _pairs(ctx: LoweringContext, v: Value, count: int, what: str) -> list[tuple[Dim, Dim]]:
    """A ``[count, 2]`` operand as pairs of dims, checked to be non-negative."""
    if v.rank != 2 or any(ctx.env.is_equal(d, n) is not True for d, n in zip(v.dims, (count, 2), strict=True)):
        raise invalid(f"{what} should have shape [{count}, 2]: {v.type}")
    content = content_of(ctx, v)
    flat = (
        content.reshape(-1).tolist() if content is not None else element_dims(ctx, ctx.b.reshape(v, [2 * count]), what)
    )
    for d in flat:
        ctx.check_dim_cond(d, "GE", 0, message=f"{what} must be non-negative")
    flat = [bind_run_time(ctx, d) for d in flat]
    return list(zip(flat[::2], flat[1::2], strict=True))


def _block(ctx: LoweringContext, v: Value, x: Value) -> list[int]:
    sizes = constant_ints(ctx, v, "block_shape")
    if v.rank != 1 or not sizes or len(sizes) > x.rank - 1:
        raise invalid(f"block_shape must be a vector of 1 to {x.rank - 1} entries: {v.type}")
    if any(s < 1 for s in sizes):
        raise invalid(f"block_shape must be positive: {sizes}")
    return sizes


def _parts(ctx: LoweringContext, extent: Dim, size: int, message: str) -> Dim:
    """``extent / size``, checked to be exact."""
    if size == 1:
        return extent
    if ctx.env.divides(size, extent) is not True:
        ctx.check_dims_eq(extent % size, 0, message=message)
    return ctx.plain_dim(extent // size)


@lowering("SpaceToBatchND", dtypes=ALL, limits="block_shape is constant")
def space_to_batch(ctx: LoweringContext, _node: NodeView, x: Value, block_shape: Value, paddings: Value) -> Value:
    """Pad with zeros, cut the spatial axes into blocks, and move the positions in a block before the batch."""
    block = _block(ctx, block_shape, x)
    pairs = _pairs(ctx, paddings, len(block), "paddings")
    rest = x.dims[len(block) + 1 :]
    low, high, parts = [ZERO] * x.rank, [ZERO] * x.rank, []
    for k, (size, (before, after)) in enumerate(zip(block, pairs, strict=True), 1):
        extent = x.dims[k] + before + after
        count = _parts(ctx, extent, size, f"padded_shape[{k - 1}]={extent} is not divisible by block_shape[{k - 1}]={size}")
        parts.append(count)
        # `count * size` is the padded extent, which the check says is the same: the dims of what follows are then plain.
        low[k], high[k] = before, count * size - x.dims[k] - before
    if any(d != 0 for d in (*low, *high)):
        x = ctx.b.pad(x, ctx.scalar(0, x.dtype), low, high)
    cut: list[Dim] = [x.dims[0]]
    for count, size in zip(parts, block, strict=True):
        cut += [count, Dim.of(size)]
    y = ctx.b.reshape(x, (*cut, *rest))
    spatial = range(len(block))
    order = (*(2 * k + 2 for k in spatial), 0, *(2 * k + 1 for k in spatial), *range(2 * len(block) + 1, y.rank))
    return ctx.b.reshape(ctx.b.transpose(y, order), (x.dims[0] * _product(block), *parts, *rest))


@lowering("BatchToSpaceND", dtypes=ALL, limits="block_shape is constant")
def batch_to_space(ctx: LoweringContext, _node: NodeView, x: Value, block_shape: Value, crops: Value) -> Value:
    """The inverse of SpaceToBatchND: interleave the blocks' positions from the batch, and cut the borders off."""
    block = _block(ctx, block_shape, x)
    pairs = _pairs(ctx, crops, len(block), "crops")
    total = _product(block)
    batch = _parts(ctx, x.dims[0], total, f"Input batch dimension ({x.dims[0]}) is not divisible by product of block sizes ({total})")
    rest = x.dims[len(block) + 1 :]
    spatial = x.dims[1 : len(block) + 1]
    extents = [d * size for d, size in zip(spatial, block, strict=True)]
    wanted = (batch, *extents, *rest)
    y = dilated_convolution(ctx, x, block, wanted)
    if y is None:
        if total > 1:
            x = ctx.b.slice(x, [ZERO] * x.rank, [batch * total, *x.dims[1:]])
        y = ctx.b.reshape(x, (*block, batch, *spatial, *rest))
        count = len(block)
        order = [count]
        for k in range(count):
            order += [count + 1 + k, k]
        y = ctx.b.reshape(ctx.b.transpose(y, (*order, *range(2 * count + 1, y.rank))), wanted)
    starts, limits = [ZERO] * y.rank, list(y.dims)
    for k, ((before, after), extent) in enumerate(zip(pairs, extents, strict=True), 1):
        message = f"cropped_shape[{k - 1}]={plain(extent - before - after)} must be non-negative"
        ctx.check_dim_cond(before + after, "LE", extent, message=message)
        left = extent - before - after
        starts[k], limits[k] = before, before + (left if before.is_static and after.is_static else bind(ctx, left))
    if any(a != 0 for a in starts) or limits != list(y.dims):
        y = ctx.b.slice(y, starts, limits)
    return y


def _product(values: Sequence[int]) -> int:
    out = 1
    for v in values:
        out *= v
    return out
