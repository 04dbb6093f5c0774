"""Reductions by segment: Segment*, UnsortedSegment*, SparseSegment* and their gradients, all by `disc.segment`."""

from __future__ import annotations

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType
from disc_tf.ir.views import seen_through
from disc_tf.lowering.content import scalar_dim
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.gather_ops import check_in_range
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import FLOATS, NUMBERS, lowering
from disc_tf.lowering.rows import length_of_indices, take
from disc_tf.lowering.shapes import invalid

_IDS = {DType.I32, DType.I64}
_KINDS = {"Sum": "add", "Mean": "add", "SqrtN": "add", "Prod": "mul", "Max": "max", "Min": "min"}
_SCALES = {"Mean": "mean", "SqrtN": "sqrtn"}


# ---- what is known of ids --------------------------------------------------------------------------------------------


def rows_filled(ids: Value) -> Dim | None:
    """The number of rows, if ``ids`` are the row numbers of what SparseFillEmptyRows gives: sorted, and none left out."""
    seen = seen_through(ids)
    op = seen.source.op
    if op is None or op.name != "disc.fill_rows" or seen.source is not op.results[0] or seen.column != 0 or not seen.whole:
        return None
    return op.attrs["rows"]


def check_sorted(ctx: LoweringContext, ids: Value) -> None:
    """Require ``0 <= ids[0] <= ids[1] <= ...``."""
    if rows_filled(ids) is not None:
        return
    before = ctx.b.pad(ids, ctx.scalar(0, ids.dtype), [1], [-1], [0])
    ctx.check(ctx.b.compare(before, ids, "LE"), message="segment ids are not increasing, or negative")


def last_plus_one(ctx: LoweringContext, ids: Value) -> Dim:
    """The number of segments of sorted ids: one more than the last, 0 where there are none."""
    filled = rows_filled(ids)
    if filled is not None:
        return filled
    return length_of_indices(ctx, ids, "segment ids must be >= 0")


def _vector(v: Value, what: str) -> None:
    if v.rank != 1:
        raise invalid(f"{what} should be a vector.")


# ---- sorted ids ------------------------------------------------------------------------------------------------------


@lowering("SegmentSum", "SegmentMean", "SegmentProd", "SegmentMax", "SegmentMin", dtypes={"T": NUMBERS, "Tindices": _IDS})
def segment(ctx: LoweringContext, node: NodeView, data: Value, ids: Value) -> Value:
    """Rows combined by sorted ids. Segments without rows hold 0 (Prod: 1); of Max and Min a NaN hides the rows before it, as in TF's
    scalar code (its vector code drops NaN); 16-bit floats are rounded at every step, as TF does."""
    _vector(ids, "segment_ids")
    if not data.rank:
        raise invalid("input must be at least rank 1")
    ctx.check_dims_eq(
        ids.dims[0], data.dims[0], message="segment_ids should be the same size as dimension 0 of input."
    )
    ids = ctx.cast_dims(ids, data.dims[:1])
    check_sorted(ctx, ids)
    what = node.op.removeprefix("Segment")
    empty = "identity" if what == "Prod" else "zero"
    return ctx.b.segment(data, ids, last_plus_one(ctx, ids), _KINDS[what], scale=_SCALES.get(what, "none"), empty=empty)


@lowering(
    "SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN", "SparseSegmentSumWithNumSegments",
    "SparseSegmentMeanWithNumSegments", "SparseSegmentSqrtNWithNumSegments",
    dtypes={"T": NUMBERS, "Tidx": _IDS, "Tsegmentids": _IDS, "Tnumsegments": _IDS},
)  # fmt: skip
def sparse_segment(ctx: LoweringContext, node: NodeView, data: Value, indices: Value, ids: Value, *count: Value) -> Value:
    """Rows at ``indices`` combined by sorted ids, in one kernel; 16-bit floats are summed in f32. ``sparse_gradient`` changes nothing."""
    what = node.op.removeprefix("SparseSegment").removesuffix("WithNumSegments")
    if what != "Sum" and not data.dtype.is_float:
        raise invalid(f"{node.op} takes floats")
    _vector(indices, "indices")
    _vector(ids, "segment_ids")
    if not data.rank:
        raise invalid("Shape must be at least rank 1")
    ctx.check_dims_eq(indices.dims[0], ids.dims[0], message="segment_ids and indices should have same size.")
    indices = ctx.cast_dims(indices, ids.dims)
    check_sorted(ctx, ids)
    if count:
        if count[0].rank:
            raise invalid(f"num_segments should be a scalar, not shape {count[0].type}")
        segments = scalar_dim(ctx, count[0], f"num_segments of {node.op}")
        ctx.check_dim_cond(segments, "GE", 0, message="segment ids must be >= 0")
        if rows_filled(ids) != segments:
            check_in_range(ctx, ids, segments, "segment ids must be < num_segments")
    else:
        segments = last_plus_one(ctx, ids)
    check_in_range(ctx, indices, data.dims[0], f"Bad: an index is out of range [0, {plain(data.dims[0])})")
    return ctx.b.segment(data, ids, segments, "add", indices, scale=_SCALES.get(what, "none"), wide=True)


# ---- ids in any order ------------------------------------------------------------------------------------------------


@lowering(
    "UnsortedSegmentSum", "UnsortedSegmentProd", "UnsortedSegmentMax", "UnsortedSegmentMin",
    dtypes={"T": NUMBERS, "Tindices": {*_IDS, DType.I16}, "Tnumsegments": _IDS},
)  # fmt: skip
def unsorted_segment(ctx: LoweringContext, node: NodeView, data: Value, ids: Value, count: Value) -> Value:
    """Slices of the data combined by ids of any rank, negative ones dropped. Segments without slices hold 0, 1, or the least or
    greatest finite number."""
    if count.rank:
        raise invalid(f"num_segments should be a scalar, not shape {count.type}")
    message = f"data.shape = {plain(data.type)} does not start with segment_ids.shape = {plain(ids.type)}"
    if ids.rank > data.rank:
        raise invalid(message)
    for have, want in zip(ids.dims, data.dims, strict=False):
        ctx.check_dims_eq(have, want, message=message)
    window = data.dims[ids.rank :]
    n = product(data.dims[: ids.rank])
    segments = scalar_dim(ctx, count, f"num_segments of {node.op}")
    ctx.check_dim_cond(segments, "GE", 0, message=f"Input num_segments == {plain(segments)} must not be negative.")
    flat = ctx.b.reshape(ctx.cast_dims(ids, data.dims[: ids.rank]), [n])
    if flat.dtype is DType.I16:
        flat = ctx.b.convert(flat, DType.I32)
    _check_below(ctx, flat, segments, window)
    rows = ctx.b.reshape(data, [n, *window])
    kind = _KINDS[node.op.removeprefix("UnsortedSegment")]
    return ctx.b.segment(rows, flat, segments, kind, sorted=False, empty="identity")


def _check_below(ctx: LoweringContext, ids: Value, segments: Dim, window: tuple[Dim, ...]) -> None:
    """Require ``ids < segments``, unless the slices are empty: TF does not look at ids then."""
    wide = ids if ids.dtype is DType.I64 else ctx.b.convert(ids, DType.I64)
    below = ctx.b.compare(wide, ctx.broadcast_to(ctx.dim(segments), wide.dims), "LT")
    some = product(window)
    if ctx.env.is_nonneg(some - 1) is not True:
        if some == 0:
            return
        below = ctx.b.or_(ctx.reduce(below, [0], "and"), ctx.b.compare(ctx.dim(some), ctx.dim(0), "EQ"))
    ctx.check(below, message=f"segment_ids: an id is out of range [0, {plain(segments)})")


# ---- gradients -------------------------------------------------------------------------------------------------------


@lowering(
    "SparseSegmentSumGrad", "SparseSegmentMeanGrad", "SparseSegmentSqrtNGrad",
    dtypes={"T": FLOATS, "Tidx": _IDS, "Tsegmentids": _IDS},
)  # fmt: skip
def sparse_segment_grad(
    ctx: LoweringContext, node: NodeView, grad: Value, indices: Value, ids: Value, dim0: Value
) -> Value:
    """Row ``ids[n]`` of the gradient, scaled as the forward op did, added to row ``indices[n]`` of the result."""
    _vector(indices, "indices")
    _vector(ids, "segment_ids")
    if not grad.rank:
        raise invalid("Shape must be at least rank 1")
    if dim0.rank:
        raise invalid("output_dim0 should be a scalar.")
    ctx.check_dims_eq(indices.dims[0], ids.dims[0], message="segment_ids and indices should have same size.")
    indices = ctx.cast_dims(indices, ids.dims)
    rows = scalar_dim(ctx, dim0, f"output_dim0 of {node.op}")
    ctx.check_dim_cond(rows, "GE", 0, message="output_dim0 must not be negative")
    check_in_range(ctx, ids, grad.dims[0], f"Segment id out of range [0, {plain(grad.dims[0])}).")
    check_in_range(ctx, indices, rows, f"Index out of range [0, {plain(rows)}).")
    weights = None
    if not node.op.endswith("SumGrad"):
        wide = DType.F64 if grad.dtype is DType.F64 else DType.F32
        ones = ctx.full(1, wide, ids.dims)
        counts = ctx.b.segment(ones, ids, grad.dims[0], "add", sorted=False)
        counts = ctx.b.maximum(counts, ctx.splat(1, counts))
        if node.op.endswith("SqrtNGrad"):
            counts = ctx.b.sqrt(counts)
        scale = ctx.b.divide(ctx.splat(1, counts), counts)
        weights = take(ctx, ctx.b.convert(scale, grad.dtype), ids)
    return ctx.b.segment(grad, indices, rows, "add", ids, weights, sorted=False, empty="identity")


__all__ = ["check_sorted", "last_plus_one", "rows_filled"]
