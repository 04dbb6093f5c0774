"""RaggedRange, RaggedGather, RaggedTensorToTensor, RaggedBincount: rows of different lengths, one behind the other."""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, dmax, product
from disc_tf.ir.types import DType
from disc_tf.lowering.content import bind, require_broadcastable
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.counting_ops import SUMS, add_at, bins_of, count_rows, non_negative, weights_of
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.gather_ops import check_in_range
from disc_tf.lowering.join_split import concat
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import ALL, lowering
from disc_tf.lowering.rows import take
from disc_tf.lowering.shapes import invalid
from disc_tf.lowering.symbolic import at_least

_IDS = frozenset({DType.I32, DType.I64})

# ---- splits ----------------------------------------------------------------------------------------------


def splits_of(ctx: LoweringContext, sizes: Value) -> Value:
    """``[0, s0, s0 + s1, ...]``: where rows of these sizes (i64) start, and the end of the last."""
    zero = ctx.full(0, DType.I64, [Dim.of(1)])
    return concat(ctx, [zero, ctx.b.scan(sizes, 0, "add")], 0)


def last_of(ctx: LoweringContext, v: Value) -> Value:
    """The last element of a vector that has one."""
    start = ctx.dim(v.dims[0] - 1)
    return ctx.b.reshape(ctx.b.dynamic_slice(v, [start], [1]), [])


def row_ids(ctx: LoweringContext, ends: Value, total: Dim) -> Value:
    """The row of each of ``total`` elements, by the ascending ends (i64) of the rows: how many rows end before it."""
    ones = ctx.full(1, DType.I64, ends.dims)
    return ctx.b.scan(add_at(ctx, total, ends, ones), 0, "add")


def _spread_rows(ctx: LoweringContext, splits: Value) -> tuple[Value, Value]:
    """(row, place in it) of each element of rows that start at ``splits`` (i64, ascending from 0, one more than there are rows)."""
    b = ctx.b
    total = ctx.fresh_dim(b.maximum(last_of(ctx, splits), ctx.scalar(0, DType.I64)))
    row = row_ids(ctx, b.slice(splits, [1], [splits.dims[0]]), total)
    return row, b.subtract(b.iota(DType.I64, [total], 0), take(ctx, splits, row))


def _vector(v: Value, name: str) -> Value:
    if v.rank != 1:
        raise invalid(f"{name} must be a vector, got shape {v.type}")
    return v


def _steps(ctx: LoweringContext, splits: Value) -> Value:
    """``splits[i + 1] - splits[i]``, of a vector with one element or more."""
    n = splits.dims[0]
    return ctx.b.subtract(ctx.b.slice(splits, [1], [n]), ctx.b.slice(splits, [0], [n - 1]))


def _check_some(ctx: LoweringContext, splits: Value, message: str) -> Value:
    """``splits`` as i64, with at least one element: its extent is ``rows + 1``, with ``rows`` a plain dim."""
    n = splits.dims[0]
    ctx.check_dim_cond(n, "GE", 1, message=message)
    low, _ = ctx.env.bounds(n)
    if low is None or low < 1:
        rows = bind(ctx, dmax(n - 1, 0))
        splits = ctx.cast_dims(splits, [rows + 1])
    return ctx.b.convert(splits, DType.I64)


# ---- RaggedRange -----------------------------------------------------------------------------------------


@lowering(
    "RaggedRange", dtypes={"T": _IDS, "Tsplits": _IDS}, limits="integers: TensorFlow adds up a float step after step, with its rounding"
)
def ragged_range(
    ctx: LoweringContext, node: NodeView, starts: Value, limits: Value, deltas: Value
) -> list[Value]:
    """``range(start, limit, delta)`` of each row; a range that runs the wrong way is empty."""
    b = ctx.b
    n: Dim | None = None
    for name, v in (("starts", starts), ("limits", limits), ("deltas", deltas)):
        if v.rank > 1:
            raise invalid(f"{name} must be a scalar or vector")
        if v.rank and n is not None:
            ctx.check_dims_eq(v.dims[0], n, message="starts, limits, and deltas must have the same shape")
        elif v.rank:
            n = v.dims[0]
    rows = [Dim.of(1) if n is None else n]
    start, limit, delta = (b.convert(ctx.broadcast_to(v, rows), DType.I64) for v in (starts, limits, deltas))
    zero, one = ctx.splat(0, delta), ctx.splat(1, delta)
    ctx.check(b.compare(delta, zero, "NE"), message="Requires delta != 0")
    # `delta` is not 0 behind the check; the division must be defined before it, too.
    step = b.maximum(b.abs(delta), one)
    span = b.select(b.compare(delta, zero, "GT"), b.subtract(limit, start), b.subtract(start, limit))
    steps = b.divide(b.subtract(b.maximum(span, one), one), step)
    sizes = b.select(b.compare(span, zero, "GT"), b.add(steps, one), zero)
    splits = splits_of(ctx, sizes)
    ctx.check(b.compare(splits, ctx.splat(0, splits), "GE"), message="The ranges have more elements than can be counted")
    row, inside = _spread_rows(ctx, splits)
    values = b.add(take(ctx, start, row), b.multiply(inside, take(ctx, delta, row)))
    return [b.convert(splits, node.dtype("Tsplits", DType.I64)), b.convert(values, starts.dtype)]


# ---- RaggedGather ----------------------------------------------------------------------------------------


@lowering("RaggedGather", dtypes={"Tvalues": ALL, "Tindices": _IDS, "Tsplits": _IDS}, limits="one ragged dimension, a vector of indices")
def ragged_gather(ctx: LoweringContext, node: NodeView, *args: Value) -> list[Value]:
    """Rows of a ragged tensor at indices: their splits and values."""
    *nested, values, indices = args
    if len(nested) != 1 or indices.rank != 1:
        raise Unsupported("RANK", f"RaggedGather of {len(nested)} ragged dimensions by indices of rank {indices.rank}")
    if not values.rank:
        raise invalid("params.rank must be nonzero")
    b = ctx.b
    dtype = nested[0].dtype
    splits = _check_some(ctx, _vector(nested[0], "splits"), "Ragged splits may not be empty")
    rows = splits.dims[0] - 1
    check_in_range(ctx, indices, rows, f"indices: a value is not in [0, {plain(rows)})")
    first = b.reshape(b.slice(splits, [0], [1]), [])
    ctx.check(b.compare(first, ctx.scalar(0, DType.I64), "GE"), message="Ragged splits must be non-negative")
    lengths = _steps(ctx, splits)
    ctx.check(b.compare(lengths, ctx.splat(0, lengths), "GE"), message="Ragged splits must be sorted")
    ctx.check(b.compare(last_of(ctx, splits), ctx.dim(values.dims[0]), "LE"), message="Ragged splits must not point past values")
    starts = take(ctx, splits, indices)
    sizes = take(ctx, lengths, indices)
    out_splits = splits_of(ctx, sizes)
    row, inside = _spread_rows(ctx, out_splits)
    source = b.add(take(ctx, starts, row), inside)
    return [b.convert(out_splits, dtype), take(ctx, values, source)]


# ---- RaggedTensorToTensor --------------------------------------------------------------------------------


def _wanted(ctx: LoweringContext, shape: Value) -> list[Dim | None] | None:
    """The elements of the shape operand, None for -1; None for the scalar -1: nothing is wanted."""
    dims = ctx.dims_of(shape)
    if dims is None:
        raise Unsupported("NOT_CONSTANT", "the shape of RaggedTensorToTensor is not known at compile time")
    if not shape.rank:
        if dims[0] != -1:
            raise invalid("The only valid scalar shape tensor is the fully unknown shape specified as -1.")
        return None
    out: list[Dim | None] = []
    for d in dims:
        if d == -1:
            out.append(None)
        elif d.is_static and int(d) < -1:
            raise invalid(f"Dimension {d} must be >= -1")
        elif at_least(ctx.env, d, 0):
            out.append(d)
        else:
            raise Unsupported("NOT_CONSTANT", f"an extent of RaggedTensorToTensor ({d}) may be -1 or a size")
    return out


def _row_splits(ctx: LoweringContext, parts: Sequence[Value], kinds: Sequence[str], count: Dim, sides: Sequence[Dim | None]) -> Value:
    """The splits (i64 [rows + 1]) of a row partition of up to ``count`` values. TF does not look at splits where the result is empty: where
    one of its ``sides`` is (None: as many rows as there are, as wide as the longest)."""
    b = ctx.b
    if list(kinds) == ["ROW_SPLITS"]:
        splits = _vector(parts[0], "row_splits")
        splits = _check_some(ctx, splits, "Invalid first partition input. Tensor requires at least one element.")
        height = splits.dims[0] - 1 if sides[0] is None else sides[0]
        known = product([height, *(d for d in sides[1:] if d is not None)])
        empty = b.compare(ctx.dim(known), ctx.dim(0), "EQ")
        lengths = _steps(ctx, splits)
        ascend = ctx.reduce(b.compare(lengths, ctx.splat(0, lengths), "GE"), [0], "and")
        first = b.reshape(b.slice(splits, [0], [1]), [])
        starts = b.compare(first, ctx.scalar(0, DType.I64), "EQ")
        inside = b.compare(last_of(ctx, splits), ctx.dim(count), "LE")
        ctx.check(b.or_(b.and_(ascend, starts), empty), message="Invalid row split size.")
        ctx.check(b.or_(inside, empty), message="The row splits point past the values")
        return splits
    size, ids = parts[0], _vector(parts[1], "value_rowids")
    if size.rank:
        raise invalid("the first dimension's size must be a scalar")
    ctx.check(b.compare(size, ctx.scalar(0, size.dtype), "GE"), message="the first dimension's size must not be negative")
    rows = ctx.fresh_dim(b.maximum(size, ctx.scalar(0, size.dtype)))
    ctx.check_dim_cond(ids.dims[0], "LE", count, message="there are more value_rowids than values")
    ids = b.convert(ids, DType.I64)
    below = b.compare(ids, ctx.broadcast_to(ctx.dim(rows), ids.dims), "LT")
    in_range = b.and_(b.compare(ids, ctx.splat(0, ids), "GE"), below)
    ctx.check(in_range, message=f"Got a value_rowid which is not less than {plain(rows)}")
    before = b.scan(ids, 0, "max", exclusive=True)
    ctx.check(b.compare(ids, before, "GE"), message="value_rowids must ascend")
    numbers = b.iota(DType.I64, [1, rows + 1], 1)
    found = b.search(b.reshape(ids, [1, ids.dims[0]]), numbers, "lower", DType.I64)
    return b.reshape(found, [rows + 1])


@lowering(
    "RaggedTensorToTensor", dtypes={"T": ALL, "Tindex": _IDS, "Tshape": _IDS},
    limits="one ragged dimension, given by row splits or ascending row ids that stay inside the values; the shape is known",
)  # fmt: skip
def ragged_tensor_to_tensor(
    ctx: LoweringContext, node: NodeView, shape: Value, values: Value, default: Value, *parts: Value
) -> Value:
    """The rows side by side, cut or filled up with ``default``."""
    kinds = [k.decode() if isinstance(k, bytes) else str(k) for k in node.attr("row_partition_types")]
    if kinds not in (["ROW_SPLITS"], ["FIRST_DIM_SIZE", "VALUE_ROWIDS"]):
        raise Unsupported("ATTR", f"RaggedTensorToTensor of row partitions {', '.join(kinds)}")
    b = ctx.b
    if not values.rank:
        raise invalid("values must have a rank of 1 or more")
    count, inner = values.dims[0], values.dims[1:]
    wanted = _wanted(ctx, shape)
    if wanted is None:
        wanted = [None] * (values.rank + 1)
    if len(wanted) != values.rank + 1:
        raise invalid(f"rt_input.rank = {values.rank + 1} but shape.rank = {len(wanted)}")
    for have, want in zip(inner, wanted[2:], strict=True):
        if want is not None:
            ctx.check_dims_eq(have, want, message="rt_input.shape and shape are incompatible")
    if default.rank > len(inner):
        raise invalid("default_value.shape and rt_input.flat_values.shape are incompatible")
    message = "default_value.shape and rt_input.flat_values.shape are incompatible"
    require_broadcastable(ctx, default.dims, inner[len(inner) - default.rank :], message)
    splits = _row_splits(ctx, parts, kinds, count, [*wanted[:2], *inner])
    rows = splits.dims[0] - 1
    height = rows if wanted[0] is None else wanted[0]
    if wanted[1] is None:
        longest = ctx.reduce(_steps(ctx, splits), [0], "maximum", ctx.scalar(0, DType.I64))
        width = ctx.fresh_dim(b.maximum(longest, ctx.scalar(0, DType.I64)))
    else:
        width = wanted[1]
    # Rows behind the last one start and end where that one ends.
    numbers = b.iota(DType.I64, [height], 0)
    end = ctx.broadcast_to(ctx.dim(rows), [height])
    start = take(ctx, splits, b.minimum(numbers, end))
    stop = take(ctx, splits, b.minimum(b.add(numbers, ctx.splat(1, numbers)), end))
    space = [height, width]
    at = b.add(b.broadcast_in_dim(start, space, [0]), b.iota(DType.I64, space, 1))
    filled = b.compare(at, b.broadcast_in_dim(stop, space, [0]), "LT")
    # One row of defaults behind the values is what all other places take: no read but of a row that is there.
    spare = ctx.broadcast_to(default, [Dim.of(1), *inner])
    source = b.select(filled, at, ctx.broadcast_to(ctx.dim(count), space))
    found = take(ctx, concat(ctx, [values, spare], 0), b.reshape(source, [height * width]))
    return b.reshape(found, [height, width, *inner])


# ---- RaggedBincount --------------------------------------------------------------------------------------


@lowering("RaggedBincount", dtypes={"T": SUMS, "Tidx": _IDS})
def ragged_bincount(
    ctx: LoweringContext, node: NodeView, splits: Value, values: Value, size: Value, weights: Value
) -> Value:
    """DenseBincount of each row of a ragged tensor: ``[rows, size]``."""
    b = ctx.b
    n = _vector(values, "values").dims[0]
    bins = bins_of(ctx, size)
    ends = _check_some(ctx, _vector(splits, "splits"), "Splits must be non-empty")
    rows = ends.dims[0] - 1
    first = b.reshape(b.slice(ends, [0], [1]), [])
    ctx.check(b.compare(first, ctx.scalar(0, DType.I64), "EQ"), message="Splits must start with 0")
    message = "Splits must end with the number of values"
    ctx.check(b.compare(last_of(ctx, ends), ctx.dim(n), "EQ"), message=message)
    w = weights_of(ctx, values, weights, same_shape=True)
    wide = non_negative(ctx, values)
    # A row that ends before the one in front of it is empty.
    row = row_ids(ctx, b.scan(b.slice(ends, [1], [rows + 1]), 0, "max"), n)
    binary = bool(node.attr("binary_output", False))
    updates = ctx.full(1, weights.dtype, [n]) if binary or w is None else w
    return count_rows(ctx, row, wide, rows, bins, updates, "assign" if binary else "add")
