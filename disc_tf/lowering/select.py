"""Select, SelectV2, ClipByValue."""

from __future__ import annotations

from disc_tf.ir.core import Value
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.registry import ALL, NUMBERS, lowering


@lowering("SelectV2", dtypes=ALL)
def select_v2(ctx: LoweringContext, _node: NodeView, cond: Value, x: Value, y: Value) -> Value:
    """Broadcasts all three operands."""
    return ctx.b.select(*ctx.broadcast(cond, x, y))


@lowering("Select", dtypes=ALL)
def select_v1(ctx: LoweringContext, _node: NodeView, cond: Value, x: Value, y: Value) -> Value:
    """``x`` and ``y`` of one shape; ``cond`` of that shape, a scalar, or a vector that picks rows."""
    ctx.require_same_shape(x, y, "'then' and 'else' must have the same size")
    y = ctx.cast_dims(y, x.dims)
    if cond.rank == 0:
        return ctx.b.select(ctx.broadcast_to(cond, x.dims), x, y)
    if cond.rank == 1 and x.rank > 1:
        ctx.check_dims_eq(cond.dims[0], x.dims[0], message="Number of batches of 'then' must match size of 'cond'")
        row = ctx.cast_dims(cond, x.dims[:1])
        return ctx.b.select(ctx.b.broadcast_in_dim(row, x.dims, (0,)), x, y)
    ctx.require_same_shape(cond, x, "'cond' must have the shape of 'then', or be a scalar or a vector")
    return ctx.b.select(ctx.cast_dims(cond, x.dims), x, y)


@lowering("ClipByValue", dtypes=NUMBERS, limits="bounds are scalars or have the operand's shape")
def clip_by_value(ctx: LoweringContext, _node: NodeView, x: Value, low: Value, high: Value) -> Value:
    """``max(min(x, high), low)`` that keeps a NaN ``x`` and ignores a NaN bound, as TF's CPU kernel."""
    bounds = []
    for bound in (low, high):
        if bound.rank == 0:
            bounds.append(ctx.broadcast_to(bound, x.dims))
            continue
        message = "clip_value_min and clip_value_max must be either of the same shape as input, or a scalar"
        if bound.rank != x.rank:
            raise Unsupported("INVALID", message)
        ctx.require_same_shape(bound, x, message)
        bounds.append(ctx.cast_dims(bound, x.dims))
    low, high = bounds
    x = ctx.b.select(ctx.b.compare(high, x, "LT"), high, x)
    return ctx.b.select(ctx.b.compare(x, low, "LT"), low, x)
