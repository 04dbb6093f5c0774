"""The NonMaxSuppression family."""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType
from disc_tf.lowering.content import bind, require_broadcastable, scalar_dim
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.data_dependent import bind_count, prefix
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import lowest
from disc_tf.lowering.registry import lowering
from disc_tf.lowering.shapes import invalid
from disc_tf.lowering.symbolic import maximum, minimum

_T = frozenset({DType.F16, DType.F32})
_BOTH = {"T": _T, "T_threshold": _T}


def _scalar(ctx: LoweringContext, v: Value, dtype: DType, name: str) -> Value:
    if v.rank:
        raise invalid(f"{name} must be 0-D, got shape {v.type}")
    return v if v.dtype is dtype else ctx.b.convert(v, dtype)


def _check_between(ctx: LoweringContext, v: Value, low: float, high: float | None, message: str) -> None:
    ok = ctx.b.compare(v, ctx.scalar(low, v.dtype), "GE")
    if high is not None:
        ok = ctx.b.and_(ok, ctx.b.compare(v, ctx.scalar(high, v.dtype), "LE"))
    ctx.check(ok, message=message)


def _sizes(ctx: LoweringContext, data: Value, scores: Value, columns: Dim | None, what: str) -> tuple[Value, Value]:
    """``boxes`` or ``overlaps`` and ``scores`` of checked shapes."""
    if data.rank != 2:
        raise invalid(f"{what} must be 2-D: {data.type}")
    n = data.dims[0]
    message = "boxes must have 4 columns" if columns is not None else "overlaps must be square"
    columns = n if columns is None else columns
    ctx.check_dims_eq(data.dims[1], columns, message=message)
    if scores.rank != 1:
        raise invalid(f"scores must be 1-D: {scores.type}")
    ctx.check_dims_eq(scores.dims[0], n, message="scores has incompatible shape")
    return ctx.cast_dims(data, [n, columns]), ctx.cast_dims(scores, [n])


def _suppress(
    ctx: LoweringContext, data: Value, scores: Value, limit: Value, threshold: Value, least: Value | None, sigma: Value | None,
    *, fill: bool = False, overlaps: bool = False,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """Indices, their scores, and the number of them (i32). ``fill``: with zeros up to ``limit``."""
    data, scores = _sizes(ctx, data, scores, None if overlaps else Dim.of(4), "overlaps" if overlaps else "boxes")
    dtype = scores.dtype
    if limit.rank:
        raise invalid(f"max_output_size must be 0-D, got shape {limit.type}")
    threshold = _scalar(ctx, threshold, dtype, "iou_threshold")
    least = ctx.scalar(lowest(dtype), dtype) if least is None else _scalar(ctx, least, dtype, "score_threshold")
    if not overlaps:
        _check_between(ctx, threshold, 0, 1, "iou_threshold must be in [0, 1]")
    if sigma is None:
        sigma = ctx.scalar(0, dtype)
    else:
        sigma = _scalar(ctx, sigma, dtype, "soft_nms_sigma")
        _check_between(ctx, sigma, 0, None, "soft_nms_sigma_val must be >= 0")
    k = scalar_dim(ctx, limit, "max_output_size")
    ctx.check_dim_cond(k, "GE", 0, message="output size must be non-negative")
    k = bind(ctx, maximum(ctx.env, k, 0))
    room = k if fill else minimum(ctx.env, scores.dims[0], k)
    indices, taken, count = ctx.b.nms(data, scores, threshold, least, sigma, k, room, overlaps=overlaps)
    if not fill:
        n = bind_count(ctx, count, room)
        indices, taken = prefix(ctx, indices, n), prefix(ctx, taken, n)
    return indices, taken, ctx.b.convert(count, DType.I32)


@lowering("NonMaxSuppression")
def nms_v1(ctx: LoweringContext, node: NodeView, boxes: Value, scores: Value, limit: Value) -> Value:
    """Indices of boxes that no better one overlaps, the best score first."""
    at = float(node.attr("iou_threshold", 0.5))
    if not 0 <= at <= 1:
        raise invalid("iou_threshold must be in [0, 1]")
    return _suppress(ctx, boxes, scores, limit, ctx.scalar(at, DType.F32), None, None)[0]


@lowering("NonMaxSuppressionV2", dtypes=_BOTH)
def nms_v2(
    ctx: LoweringContext, _node: NodeView, boxes: Value, scores: Value, limit: Value, threshold: Value
) -> Value:
    """NonMaxSuppression with a threshold that is an operand."""
    return _suppress(ctx, boxes, scores, limit, threshold, None, None)[0]


@lowering("NonMaxSuppressionV3", dtypes=_BOTH)
def nms_v3(
    ctx: LoweringContext, _node: NodeView, boxes: Value, scores: Value, limit: Value, threshold: Value, least: Value
) -> Value:
    """NonMaxSuppression of the boxes whose score is above a threshold."""
    return _suppress(ctx, boxes, scores, limit, threshold, least, None)[0]


@lowering("NonMaxSuppressionV4", dtypes=_BOTH)
def nms_v4(
    ctx: LoweringContext, node: NodeView, boxes: Value, scores: Value, limit: Value, threshold: Value, least: Value
) -> Sequence[Value]:
    """NonMaxSuppressionV3 and the number of indices; padded with zeros if asked for."""
    fill = bool(node.attr("pad_to_max_output_size", False))
    indices, _, count = _suppress(ctx, boxes, scores, limit, threshold, least, None, fill=fill)
    return [indices, count]


@lowering("NonMaxSuppressionV5", dtypes={"T": _T})
def nms_v5(
    ctx: LoweringContext, node: NodeView, boxes: Value, scores: Value, limit: Value, threshold: Value, least: Value, sigma: Value
) -> Sequence[Value]:
    """NonMaxSuppressionV4 with scores; a sigma above 0 lowers the scores of boxes that better ones overlap (soft suppression)."""
    fill = bool(node.attr("pad_to_max_output_size", False))
    return _suppress(ctx, boxes, scores, limit, threshold, least, sigma, fill=fill)


@lowering("NonMaxSuppressionWithOverlaps")
def nms_with_overlaps(
    ctx: LoweringContext, _node: NodeView, overlaps: Value, scores: Value, limit: Value, threshold: Value, least: Value
) -> Value:
    """NonMaxSuppressionV3 by a matrix of overlaps."""
    return _suppress(ctx, overlaps, scores, limit, threshold, least, None, overlaps=True)[0]


def _positive(ctx: LoweringContext, v: Value, message: str) -> Dim:
    if v.rank:
        raise invalid(f"{message}: it must be 0-D, got shape {v.type}")
    d = scalar_dim(ctx, v, message)
    ctx.check_dim_cond(d, "GT", 0, message=message)
    return bind(ctx, maximum(ctx.env, d, 0))


@lowering(
    "CombinedNonMaxSuppression",
    limits="of boxes with equal scores the lower class and index come first, where TensorFlow's order depends on its heap",
)
def combined_nms(
    ctx: LoweringContext, node: NodeView, boxes: Value, scores: Value, per_class: Value, total: Value, threshold: Value, least: Value
) -> Sequence[Value]:
    """The best boxes of each image, after NonMaxSuppression within each class: boxes, scores, classes, how many are valid."""
    if boxes.rank != 4:
        raise invalid(f"boxes must be 4-D: {boxes.type}")
    if scores.rank != 3:
        raise invalid(f"scores must be 3-D: {scores.type}")
    batch, n, classes = scores.dims
    each = _positive(ctx, per_class, "max_size_per_class must be positive")
    most = _positive(ctx, total, "max_total_size must be > 0")
    threshold = _scalar(ctx, threshold, DType.F32, "iou_threshold")
    least = _scalar(ctx, least, DType.F32, "score_threshold")
    _check_between(ctx, threshold, 0, 1, "iou_threshold must be in [0, 1]")
    ctx.check_dims_eq(boxes.dims[3], 4, message="box dimension must be 4")
    ctx.check_dims_eq(boxes.dims[0], batch, message="boxes and scores must have same batch size")
    ctx.check_dims_eq(boxes.dims[1], n, message="number of boxes must be same as the number of scores")
    shared = boxes.dims[2]
    require_broadcastable(ctx, [shared], [classes], "third dimension of boxes must be either 1 or num classes")
    boxes = ctx.cast_dims(boxes, [batch, n, shared, 4])
    if node.attr("pad_per_class", False):
        most = minimum(ctx.env, most, each * classes)
    clip = bool(node.attr("clip_boxes", True))
    return ctx.b.combined_nms(boxes, scores, threshold, least, each, most, clip)
