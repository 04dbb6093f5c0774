"""SoftmaxCrossEntropyWithLogits and SparseSoftmaxCrossEntropyWithLogits: the loss of each row and its gradient."""

from __future__ import annotations

from disc_tf.ir.core import Value
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Status
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import check_elements, convert, spread, widen
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import FLOATS, lowering
from disc_tf.lowering.shapes import invalid


def _softmax_parts(ctx: LoweringContext, x: Value) -> tuple[Value, Value, Value]:
    """(logits less their row's greatest, log of the row's sum of exponentials spread over it, softmax)."""
    b = ctx.b
    shifted = b.subtract(x, spread(ctx, ctx.reduce(x, [1], "maximum"), x, [1]))
    exp = b.exponential(shifted)
    total = ctx.reduce(exp, [1], "add")
    return shifted, spread(ctx, b.log(total), x, [1]), b.divide(exp, spread(ctx, total, x, [1]))


@lowering("SoftmaxCrossEntropyWithLogits", dtypes=FLOATS)
def softmax_cross_entropy(ctx: LoweringContext, _node: NodeView, logits: Value, labels: Value) -> list[Value]:
    """Loss ``[rows]`` and gradient ``[rows, classes]``; logits and labels broadcast. 16-bit floats are computed in f32."""
    if max(logits.rank, labels.rank) != 2:
        raise invalid("logits and labels must be either 2-dimensional, or broadcasted to be 2-dimensional")
    wide, target = ctx.broadcast(widen(ctx, logits), widen(ctx, labels))
    b = ctx.b
    shifted, log_sum, probability = _softmax_parts(ctx, wide)
    loss = ctx.reduce(b.multiply(target, b.subtract(log_sum, shifted)), [1], "add")
    return [convert(ctx, loss, logits.dtype), convert(ctx, b.subtract(probability, target), logits.dtype)]


@lowering("SparseSoftmaxCrossEntropyWithLogits", dtypes={"T": FLOATS, "Tlabels": {DType.I32, DType.I64}})
def sparse_softmax_cross_entropy(ctx: LoweringContext, _node: NodeView, logits: Value, labels: Value) -> list[Value]:
    """Loss ``[rows]`` and gradient ``[rows, classes]`` for one class of each row; a label out of range is INVALID_ARGUMENT."""
    if logits.rank != 2:
        raise invalid(f"logits must be 2-D, but got shape {logits.type}")
    if labels.rank != 1:
        raise invalid(f"labels must be 1-D, but got shape {labels.type}")
    rows, classes = logits.dims
    message = (
        f"logits and labels must have the same first dimension, got logits shape {plain(logits.type)} and "
        f"labels shape {plain(labels.type)}"
    )
    ctx.check_dims_eq(rows, labels.dims[0], message=message)
    ctx.check_dim_cond(classes, "GT", 0, message=f"Must have at least one class, but got logits shape {plain(logits.type)}")
    labels = ctx.cast_dims(labels, (rows,))
    b = ctx.b
    count = ctx.broadcast_to(ctx.dim(classes, labels.dtype), labels.dims)
    inside = b.and_(b.compare(labels, ctx.splat(0, labels), "GE"), b.compare(labels, count, "LT"))
    check_elements(
        ctx, inside, (rows,), Status.INVALID_ARGUMENT, f"Received a label value which is outside the valid range of [0, {plain(classes)})."
    )  # fmt: skip
    wide = widen(ctx, logits)
    shifted, log_sum, probability = _softmax_parts(ctx, wide)
    here = b.compare(b.broadcast_in_dim(labels, wide.dims, (0,)), b.iota(labels.dtype, wide.dims, 1), "EQ")
    zero = ctx.splat(0, wide)
    loss = ctx.reduce(b.select(here, b.subtract(log_sum, shifted), zero), [1], "add")
    grad = b.subtract(probability, b.select(here, ctx.splat(1, wide), zero))
    return [convert(ctx, loss, logits.dtype), convert(ctx, grad, logits.dtype)]
