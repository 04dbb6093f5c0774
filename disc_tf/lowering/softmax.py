"""Softmax and LogSoftmax over the last dimension, computed in the compute type (f32 for 16-bit floats)."""

from __future__ import annotations

from disc_tf.ir.core import Value
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert, spread, widen
from disc_tf.lowering.registry import FLOATS, lowering


def _shifted(ctx: LoweringContext, x: Value) -> Value:
    """``x`` minus its row maximum."""
    last = [x.rank - 1]
    return ctx.b.subtract(x, spread(ctx, ctx.reduce(x, last, "maximum"), x, last))


@lowering("Softmax", "_MklSoftmax", dtypes=FLOATS)
def softmax(ctx: LoweringContext, _node: NodeView, logits: Value) -> Value:
    """``exp(x - max) / sum(exp(x - max))``; a row with NaN or +inf is NaN throughout."""
    if not logits.rank:
        raise Unsupported("INVALID", "logits must have >= 1 dimension, got []")
    x = widen(ctx, logits)
    last = [x.rank - 1]
    e = ctx.b.exponential(_shifted(ctx, x))
    out = ctx.b.divide(e, spread(ctx, ctx.reduce(e, last, "add"), x, last))
    return convert(ctx, out, logits.dtype)


@lowering("LogSoftmax", dtypes=FLOATS)
def log_softmax(ctx: LoweringContext, _node: NodeView, logits: Value) -> Value:
    """``x - max - log(sum(exp(x - max)))``."""
    if not logits.rank:
        raise Unsupported("INVALID", "logits must have >= 1 dimension, got []")
    x = widen(ctx, logits)
    last = [x.rank - 1]
    shifted = _shifted(ctx, x)
    log_sum = ctx.b.log(ctx.reduce(ctx.b.exponential(shifted), last, "add"))
    return convert(ctx, ctx.b.subtract(shifted, spread(ctx, log_sum, x, last)), logits.dtype)
