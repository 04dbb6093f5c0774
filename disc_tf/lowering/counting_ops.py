"""Bincount and its kin, histograms, searches in sorted lines, InTopK, NthElement."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType
from disc_tf.lowering.content import bind, scalar_dim
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.join_split import concat
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import NUMBERS, lowering
from disc_tf.lowering.rows import scatter_rows, take
from disc_tf.lowering.shapes import invalid
from disc_tf.lowering.symbolic import maximum

_IDS = frozenset({DType.I32, DType.I64})
SUMS = frozenset({DType.I32, DType.I64, DType.F32, DType.F64})

# ---- Bincount --------------------------------------------------------------------------------------------


def add_at(ctx: LoweringContext, size: Dim, at: Value, updates: Value, kind: str = "add") -> Value:
    """A vector of zeros with updates added (or assigned) at indices, in their order; indices out of range are skipped."""
    return scatter_rows(ctx, ctx.full(0, updates.dtype, [size]), at, updates, kind)


def bins_of(ctx: LoweringContext, size: Value) -> Dim:
    """The number of bins."""
    if size.rank:
        raise invalid(f"Shape must be rank 0 but is rank {size.rank}")
    n = scalar_dim(ctx, size, "the number of bins")
    ctx.check_dim_cond(n, "GE", 0, message=f"size ({plain(n)}) must be non-negative")
    return bind(ctx, maximum(ctx.env, n, 0))


def weights_of(ctx: LoweringContext, values: Value, weights: Value, same_shape: bool) -> Value | None:
    """The weight of each value as a vector; None where every weight is 1, since there are no weights."""
    b = ctx.b
    n, m = product(values.dims), product(weights.dims)
    low, high = ctx.env.bounds(m)
    if high == 0:
        return None
    fits = b.compare(ctx.dim(m), ctx.dim(n), "EQ")
    if same_shape and weights.rank != values.rank:
        fits = ctx.scalar(False, DType.BOOL)
    elif same_shape:
        for have, want in zip(weights.dims, values.dims, strict=True):
            fits = b.and_(fits, b.compare(ctx.dim(have), ctx.dim(want), "EQ"))
    nothing = b.compare(ctx.dim(m), ctx.dim(0), "EQ")
    may_be_empty = not (low is not None and low >= 1)
    message = "Input indices and weights must have the same shape, or weights be of length 0"
    if not may_be_empty and ctx.env.is_equal(m, n) is False:
        raise invalid(message)
    ctx.check(b.or_(fits, nothing) if may_be_empty else fits, message=message)
    flat = b.reshape(weights, [m])
    if not may_be_empty:
        return ctx.cast_dims(flat, [n])
    # With a one behind the weights: the one that all take where there are no weights.
    extended = concat(ctx, [flat, ctx.full(1, weights.dtype, [Dim.of(1)])], 0)
    positions = b.iota(DType.I64, [n], 0)
    at = b.select(nothing, ctx.splat(0, positions), positions)
    return take(ctx, extended, at)


def non_negative(ctx: LoweringContext, values: Value) -> Value:
    """The values as i64, none of them negative."""
    wide = ctx.b.convert(values, DType.I64)
    ctx.check(ctx.b.compare(wide, ctx.splat(0, wide), "GE"), message="Input arr must be non-negative!")
    return wide


def _count(ctx: LoweringContext, values: Value, size: Dim, weights: Value | None, dtype: DType, binary: bool) -> Value:
    """Counts of a vector (or of each row of a matrix): ``[size]`` or ``[rows, size]``."""
    b = ctx.b
    wide = non_negative(ctx, values)
    n = product(values.dims)
    one = ctx.full(1, dtype, [n])
    updates = one if binary or weights is None else weights
    kind = "assign" if binary else "add"
    if values.rank < 2:
        return add_at(ctx, size, b.reshape(wide, [n]), updates, kind)
    row = b.iota(DType.I64, values.dims, 0)
    return count_rows(ctx, b.reshape(row, [n]), b.reshape(wide, [n]), values.dims[0], size, updates, kind)


def count_rows(
    ctx: LoweringContext, row: Value, values: Value, rows: Dim, size: Dim, updates: Value, kind: str
) -> Value:  # fmt: skip
    """``[rows, size]``: updates added (or assigned) at ``[row, value]``; values from ``size`` on are skipped. Vectors of i64."""
    b = ctx.b
    bins = ctx.broadcast_to(ctx.dim(size), values.dims)
    at = b.add(b.multiply(row, bins), values)
    at = b.select(b.compare(values, bins, "LT"), at, ctx.broadcast_to(ctx.dim(rows * size), values.dims))
    return b.reshape(add_at(ctx, rows * size, at, updates, kind), [rows, size])


@lowering("Bincount", dtypes={"T": SUMS})
def bincount(ctx: LoweringContext, _node: NodeView, values: Value, size: Value, weights: Value) -> Value:
    """How often each of 0 .. size-1 occurs, or the sum of the weights of each; greater values are skipped."""
    bins = bins_of(ctx, size)
    flat = ctx.b.reshape(values, [product(values.dims)])
    w = weights_of(ctx, flat, weights, same_shape=False)
    return _count(ctx, flat, bins, w, weights.dtype, False)


@lowering("DenseBincount", dtypes={"T": SUMS, "Tidx": _IDS})
def dense_bincount(
    ctx: LoweringContext, node: NodeView, values: Value, size: Value, weights: Value
) -> Value:
    """Bincount of a vector or of each row of a matrix; ``binary_output``: whether each value occurs."""
    if values.rank > 2:
        raise invalid(f"Shape must be at most rank 2 but is rank {values.rank}")
    bins = bins_of(ctx, size)
    w = weights_of(ctx, values, weights, same_shape=True)
    return _count(ctx, values, bins, w, weights.dtype, bool(node.attr("binary_output", False)))


# ---- histograms ------------------------------------------------------------------------------------------


@lowering("HistogramFixedWidth", dtypes={"T": SUMS, "dtype": _IDS})
def histogram_fixed_width(
    ctx: LoweringContext, node: NodeView, values: Value, value_range: Value, nbins: Value
) -> Value:
    """How many values lie in each of ``nbins`` equal parts of a range; the outer ones count what is beyond. Computed in f64."""
    b = ctx.b
    if value_range.rank != 1:
        raise invalid("value_range should be a vector of 2 elements.")
    ctx.check_dims_eq(value_range.dims[0], 2, message="value_range should be a vector of 2 elements.")
    if nbins.rank:
        raise invalid("nbins should be a scalar.")
    pair = ctx.cast_dims(value_range, [Dim.of(2)])
    low, high = (b.reshape(b.slice(pair, [k], [k + 1]), []) for k in range(2))
    message = "value_range should satisfy value_range[0] < value_range[1]"
    ctx.check(b.compare(low, high, "LT"), message=message)
    n = scalar_dim(ctx, nbins, "nbins")
    ctx.check_dim_cond(n, "GT", 0, message=f"nbins should be a positive number, but got '{plain(n)}'")
    n = bind(ctx, maximum(ctx.env, n, 0))
    x = b.reshape(values, [product(values.dims)])
    if x.dtype.is_float:
        ctx.check(b.compare(x, x, "EQ"), message="Histogram values must not contain NaN")
    x = b.convert(b.maximum(x, ctx.broadcast_to(low, x.dims)), DType.F64)
    low, high = b.convert(low, DType.F64), b.convert(high, DType.F64)
    bins = b.convert(ctx.dim(n), DType.F64)
    step = b.divide(b.subtract(high, low), bins)
    last = b.subtract(bins, ctx.scalar(1, DType.F64))
    at = b.divide(b.subtract(x, ctx.broadcast_to(low, x.dims)), ctx.broadcast_to(step, x.dims))
    at = b.convert(b.minimum(at, ctx.broadcast_to(last, x.dims)), DType.I32)
    return add_at(ctx, n, at, ctx.full(1, node.dtype("dtype", DType.I32), x.dims))


# ---- searches --------------------------------------------------------------------------------------------

#: boundaries that are compared one by one
_FEW = 8


@lowering("Bucketize", dtypes=SUMS)
def bucketize(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """How many of the ascending boundaries each element is not below. Integers are compared as f32, as by TF."""
    b = ctx.b
    boundaries = [float(v) for v in node.attr("boundaries", [])]
    if any(p > q for p, q in itertools.pairwise(boundaries)):
        raise invalid("Expected sorted boundaries")
    if not x.dtype.is_float:
        x = b.convert(x, DType.F32)
    content = np.array(boundaries, np.float32).astype(x.dtype.np)
    if len(boundaries) <= _FEW:
        out = ctx.full(0, DType.I32, x.dims)
        for v in content:
            below = b.compare(x, ctx.splat(float(v), x), "LT")
            out = b.add(out, b.convert(b.not_(below), DType.I32))
        return out
    line = ctx.const(content.reshape(1, -1))
    found = b.search(line, b.reshape(x, [1, product(x.dims)]), "upper", DType.I32)
    return b.reshape(found, x.dims)


@lowering("LowerBound", "UpperBound", dtypes={"T": NUMBERS, "out_type": _IDS})
def bound(ctx: LoweringContext, node: NodeView, lines: Value, values: Value) -> Value:
    """Where each value belongs in the sorted line of its row: before its equals, or behind them."""
    for name, v in (("sorted_inputs", lines), ("values", values)):
        if v.rank != 2:
            raise invalid(f"Shape must be rank 2 but is rank {v.rank} for `{name}` argument")
    rows = lines.dims[0]
    ctx.check_dims_eq(rows, values.dims[0], message="Leading dim_size of both tensors must match.")
    values = ctx.cast_dims(values, [rows, values.dims[1]])
    side = "lower" if node.op == "LowerBound" else "upper"
    return ctx.b.search(lines, values, side, node.dtype("out_type", DType.I32))


# ---- InTopK ----------------------------------------------------------------------------------------------


@lowering("InTopK", "InTopKV2", dtypes={"T": _IDS})
def in_top_k(
    ctx: LoweringContext, node: NodeView, predictions: Value, targets: Value, *rest: Value
) -> Value:
    """Whether fewer than k predictions of its row are greater than the target's. False for a target out of range, and for a row in which
    a prediction is not finite."""
    b = ctx.b
    if predictions.rank != 2:
        raise invalid("predictions must be 2-dimensional")
    if targets.rank != 1:
        raise invalid("targets must be 1-dimensional")
    if rest and rest[0].rank:
        raise invalid(f"k must be 0-D, got shape {rest[0].type}")
    k = rest[0] if rest else ctx.scalar(int(node.attr("k")), DType.I64)
    dims = predictions.dims
    message = f"First dimension of predictions {plain(dims[0])} must match length of targets {plain(targets.dims[0])}"
    ctx.check_dims_eq(dims[0], targets.dims[0], message=message)
    wanted = b.convert(ctx.cast_dims(targets, [dims[0]]), DType.I64)
    hit = b.compare(b.iota(DType.I64, dims, 1), b.broadcast_in_dim(wanted, dims, [0]), "EQ")
    target = ctx.reduce(b.select(hit, predictions, ctx.splat(-np.inf, predictions)), [1], "maximum")
    greater = b.compare(predictions, b.broadcast_in_dim(target, dims, [0]), "GT")
    count = ctx.reduce(b.convert(greater, DType.I64), [1], "add")
    known = b.and_(ctx.reduce(b.is_finite(predictions), [1], "and"), b.is_finite(target))
    return b.and_(known, b.compare(count, ctx.broadcast_to(b.convert(k, DType.I64), count.dims), "LT"))


# ---- NthElement ------------------------------------------------------------------------------------------


@lowering("NthElement", dtypes=NUMBERS, limits="a line with NaNs has them behind all numbers, where TensorFlow's answer is undefined")
def nth_element(ctx: LoweringContext, node: NodeView, x: Value, n: Value) -> Value:
    """The n-th smallest (``reverse``: greatest) element of each line of the last axis."""
    b = ctx.b
    if n.rank:
        raise invalid(f"N must be scalar but has rank {n.rank}")
    if not x.rank:
        raise invalid("Input must be at least rank 1 but is rank 0")
    at = scalar_dim(ctx, n, "n of NthElement")
    ctx.check_dim_cond(at, "GE", 0, message=f"n must be non-negative but is {plain(at)}")
    ctx.check_dim_cond(x.dims[-1], "GT", at, message=f"Input must have last dimension > n = {plain(at)}")
    if x.dims[-1] == 0:
        raise Unsupported("INVALID", "Input must have last dimension > n")
    (ordered,) = b.sort([x], x.rank - 1, "GT" if node.attr("reverse", False) else "LT")
    starts: Sequence[Value] = [*(ctx.scalar(0, DType.I64) for _ in x.dims[:-1]), ctx.dim(at)]
    found = b.dynamic_slice(ordered, starts, [*x.dims[:-1], 1])
    return b.reshape(found, x.dims[:-1])
