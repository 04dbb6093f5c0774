"""Cumsum, Cumprod, TopK."""

from __future__ import annotations

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType
from disc_tf.lowering.content import constant_int, scalar_dim
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import FLOATS, NUMBERS, lowering
from disc_tf.lowering.shapes import invalid, normal_axis


@lowering("Cumsum", "Cumprod", dtypes=NUMBERS, limits="the axis is constant")
def cumulative(ctx: LoweringContext, node: NodeView, x: Value, axis: Value) -> Value:
    """Running sum or product; ``exclusive`` starts from the identity, ``reverse`` runs from the end."""
    at = constant_int(ctx, axis, f"the axis of {node.op}")
    at = normal_axis(
        at, x.rank, f"ScanOp: Expected scan axis in the range [{-x.rank}, {x.rank}), but got {at}"
    )
    kind = "add" if node.op == "Cumsum" else "mul"
    return ctx.b.scan(x, at, kind, bool(node.attr("reverse", False)), bool(node.attr("exclusive", False)))


@lowering("CumulativeLogsumexp", dtypes=FLOATS, limits="the axis is constant")
def cumulative_logsumexp(ctx: LoweringContext, node: NodeView, x: Value, axis: Value) -> Value:
    """Running logarithm of the sum of exponentials, from minus infinity."""
    at = constant_int(ctx, axis, "the axis of CumulativeLogsumexp")
    at = normal_axis(at, x.rank, f"ScanOp: Expected scan axis in the range [{-x.rank}, {x.rank}), but got {at}")
    return ctx.b.scan(x, at, "logaddexp", bool(node.attr("reverse", False)), bool(node.attr("exclusive", False)))


@lowering("TopKV2", dtypes=NUMBERS)
def topk(ctx: LoweringContext, node: NodeView, x: Value, k: Value) -> list[Value]:
    """The ``k`` greatest of the last axis in descending order (also where ``sorted`` is false) and their indices; ties by lower
    index."""
    return _topk(ctx, x, scalar_dim(ctx, k, "k of TopKV2"), node.dtype("index_type", DType.I32))


def _topk(ctx: LoweringContext, x: Value, k: Dim, index_type: DType) -> list[Value]:
    if not x.rank:
        raise invalid("input must be >= 1-D, got shape []")
    columns = x.dims[-1]
    ctx.check_dim_cond(k, "GE", 0, message=f"Need k >= 0, got {plain(k)}")
    ctx.check_dim_cond(
        k, "LE", columns, message=f"input must have at least k columns. Had {plain(columns)}, needed {plain(k)}"
    )
    values, indices = ctx.b.topk(x, k)
    return [values, ctx.b.convert(indices, index_type)]
