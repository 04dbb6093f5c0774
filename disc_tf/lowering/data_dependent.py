"""Where, Unique, and the form that all ops share whose results' size depends on data.

The HLO op gives results padded to a bound and their count; `bind_count` makes the count a dim, `prefix` cuts to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType
from disc_tf.ir.views import bound_dims
from disc_tf.lowering.content import constant_ints
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.registry import ALL, lowering
from disc_tf.lowering.rows import take
from disc_tf.lowering.shapes import invalid

# ---- the form of all of them -----------------------------------------------------------------------------


def bind_count(ctx: LoweringContext, count: Value, upper: Dim) -> Dim:
    """The dim of a count that lies in ``[0, upper]``."""
    n = ctx.fresh_dim(count)
    _, high = ctx.env.bounds(upper)
    ctx.env.set_range(n, 0, high)
    if not upper.is_static:
        ctx.env.set_range(upper - n, 0, None)
    return n


def bound_dim(count: Value) -> Dim | None:
    """The dim that a count was bound to before."""
    return next(iter(bound_dims(count)), None)


def prefix(ctx: LoweringContext, padded: Value, n: Dim) -> Value:
    """The first ``n`` rows (a view)."""
    return ctx.b.slice(padded, [0] * padded.rank, [n, *padded.dims[1:]])


#: known masks up to this many elements become constants
_MAX_FOLDED = 1024

# ---- Where -----------------------------------------------------------------------------------------------


def nonzero(ctx: LoweringContext, mask: Value) -> Value:
    """The index vectors ``i64[n, rank]`` of the true elements of a bool tensor in row-major order, ``n`` a fresh dim."""
    known = ctx.constant(mask)
    if known is not None and known.size <= _MAX_FOLDED:
        return ctx.const(np.argwhere(known).astype(np.int64))
    for op, _ in mask.uses:  # asked before: the same dim, so that what is taken by both is known to have equal extents
        if op.name == "disc.nonzero" and op.parent is ctx.b.block and (n := bound_dim(op.results[1])) is not None:
            return prefix(ctx, op.results[0], n)
    indices, count = ctx.b.nonzero(mask)
    return prefix(ctx, indices, bind_count(ctx, count, product(mask.dims)))


def truth(ctx: LoweringContext, x: Value) -> Value:
    """Which elements are not zero, as TF's Where sees it: a NaN is not; a bf16 by its bits, so that denormals are not."""
    if x.dtype.is_bool:
        return x
    if x.dtype is DType.BF16:
        bits = ctx.b.bitcast_convert(x, DType.U16)
        x = ctx.b.and_(bits, ctx.splat(0x7FFF, bits))
    return ctx.b.compare(x, ctx.splat(0, x), "NE")


@lowering("Where", dtypes=ALL - {DType.F16})
def where(ctx: LoweringContext, _node: NodeView, condition: Value) -> Value:
    """Index vectors of the elements that are not zero, in row-major order."""
    if not 1 <= condition.rank <= 8:
        raise invalid(f"WhereOp : Unhandled input dimensions: {condition.rank}")
    return nonzero(ctx, truth(ctx, condition))


# ---- Unique ----------------------------------------------------------------------------------------------


def unique(ctx: LoweringContext, x: Value, axis: int, index_type: DType) -> tuple[Value, Value, Value]:
    """The distinct slices of ``x`` along ``axis`` in order of first occurrence, the number of each slice, how often each occurs."""
    dims = x.dims
    order = [axis, *(k for k in range(x.rank) if k != axis)]
    rows = x if axis == 0 else ctx.b.transpose(x, order)
    rows = ctx.b.reshape(rows, [dims[axis], product(d for k, d in enumerate(dims) if k != axis)])
    narrow = x.dtype in (DType.F16, DType.BF16)
    first, index, counts, count = ctx.b.unique(rows, index_type, distinct_zeros=narrow)
    n = bind_count(ctx, count, dims[axis])
    return take(ctx, x, prefix(ctx, first, n), axis), index, prefix(ctx, counts, n)


def _unique(ctx: LoweringContext, node: NodeView, x: Value, axis: Value | None, results: int) -> Sequence[Value]:
    index_type = node.dtype("out_idx", DType.I32)
    at = 0
    axes = [] if axis is None else constant_ints(ctx, axis, f"the axis of {node.op}")
    if axis is not None and axis.rank != 1:
        raise invalid("axis expects a 1D vector.")
    if len(axes) > 1:
        raise invalid("axis does not support input tensors larger than 1 elements")
    if axes:
        at = axes[0] + x.rank * (axes[0] < 0)
        if not 0 <= at < x.rank:
            raise invalid(f"axis has to be between [0, {x.rank})")
    elif x.rank != 1:
        raise invalid("unique expects a 1D vector.")
    return unique(ctx, x, at, index_type)[:results]


_ZEROS = "f16 and bf16: rows that differ in the signs of zeros alone are one row, where TensorFlow's answer depends on its hash"


@lowering("Unique", dtypes=ALL)
def unique_v1(ctx: LoweringContext, node: NodeView, x: Value) -> Sequence[Value]:
    """Distinct values in order of first occurrence, and the number of each element's value. Every NaN is a value of its own."""
    return _unique(ctx, node, x, None, 2)


@lowering("UniqueWithCounts", dtypes=ALL)
def unique_with_counts(ctx: LoweringContext, node: NodeView, x: Value) -> Sequence[Value]:
    """Unique, and how often each value occurs."""
    return _unique(ctx, node, x, None, 3)


@lowering("UniqueV2", dtypes=ALL, constants=(1,), limits=_ZEROS)
def unique_v2(ctx: LoweringContext, node: NodeView, x: Value, axis: Value) -> Sequence[Value]:
    """Distinct slices along an axis in order of first occurrence, and the number of each slice."""
    return _unique(ctx, node, x, axis, 2)


@lowering("UniqueWithCountsV2", dtypes=ALL, constants=(1,), limits=_ZEROS)
def unique_with_counts_v2(ctx: LoweringContext, node: NodeView, x: Value, axis: Value) -> Sequence[Value]:
    """UniqueV2, and how often each slice occurs."""
    return _unique(ctx, node, x, axis, 3)
