"""disc.nms, disc.combined_nms: non-maximum suppression, of the form of all ops of data-dependent size (see `data_dependent`)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from disc_tf.ir.core import Op
from disc_tf.ir.opset.base import Attr, EvalContext, InferInput, OpDef, register
from disc_tf.ir.opset.data_dependent import COUNT, pad_rows
from disc_tf.ir.types import DType, TensorType, Type

Number = Any  # a numpy scalar: what it computes with others is rounded to their dtype


def _infer(i: InferInput) -> list[Type]:
    data, scores, *scalars = i.tensors()
    dtype = i.same_dtype((data, scores, *scalars))
    if dtype not in (DType.F16, DType.F32):
        raise i.fail("needs f16 or f32")
    if data.rank != 2 or scores.rank != 1 or any(s.rank for s in scalars):
        raise i.fail("needs boxes or overlaps of rank 2, a vector of scores and three scalars")
    n = scores.dims[0]
    if i.differ(data.dims[0], n) or i.differ(data.dims[1], n if i.attrs["overlaps"] else n * 0 + 4):
        raise i.fail("boxes, overlaps and scores do not fit")
    room = (i.attrs["room"],)
    return [TensorType(DType.I32, room), TensorType(dtype, room), COUNT]


def iou(a: np.ndarray, b: np.ndarray) -> Number:
    """Intersection over union of two boxes by any two diagonal corners ``[y, x, y, x]``, rounded to their dtype at each step."""
    zero = a.dtype.type(0)

    def low(p: Number, q: Number) -> Number:
        return q if q < p else p

    def high(p: Number, q: Number) -> Number:
        return q if p < q else p

    lows = [[low(c[k], c[k + 2]) for k in (0, 1)] for c in (a, b)]
    highs = [[high(c[k], c[k + 2]) for k in (0, 1)] for c in (a, b)]
    areas = [(top[0] - end[0]) * (top[1] - end[1]) for end, top in zip(lows, highs, strict=True)]
    if areas[0] <= zero or areas[1] <= zero:
        return zero
    sides = [high(low(highs[0][k], highs[1][k]) - high(lows[0][k], lows[1][k]), zero) for k in (0, 1)]
    common = sides[0] * sides[1]
    return common / (areas[0] + areas[1] - common)


def _suppress(
    scores: np.ndarray, similarity: Callable[[int, int], Number], threshold: Number, least: Number, sigma: Number,
    limit: int,
) -> tuple[list[int], list[Number]]:  # fmt: skip
    number = scores.dtype.type
    soft = sigma > 0
    scale = number(-0.5) / sigma if soft else number(0)
    heap = [(-s, k, 0) for k, s in enumerate(scores) if s > least]
    heapq.heapify(heap)
    taken: list[int] = []
    taken_scores: list[Number] = []
    while heap and len(taken) < limit:
        negated, box, compared = heapq.heappop(heap)
        before = score = -negated
        suppressed = False
        for j in range(len(taken) - 1, compared - 1, -1):
            s = similarity(box, taken[j])
            score = score * (np.exp(scale * s * s) if soft or s <= threshold else number(0))
            suppressed = not soft and bool(s > threshold)
            if suppressed or score <= least:
                break
        if suppressed:
            continue
        if score == before:
            taken.append(box)
            taken_scores.append(score)
        elif score > least:
            heapq.heappush(heap, (-score, box, len(taken)))
    return taken, taken_scores


def _reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    data, scores, threshold, least, sigma = inputs
    room = ctx.dim(op.attrs["room"])
    limit = min(ctx.dim(op.attrs["limit"]), room)
    with np.errstate(all="ignore"):
        by_boxes = lambda p, q: iou(data[p], data[q])  # noqa: E731
        similarity = (lambda p, q: data[p, q]) if op.attrs["overlaps"] else by_boxes
        taken, values = _suppress(scores, similarity, threshold[()], least[()], sigma[()], limit)
    padded = [pad_rows(np.array(taken, np.int32), room), pad_rows(np.array(values, scores.dtype), room)]
    return [*padded, np.array(len(taken), np.int64)]


# ---- of many classes ------------------------------------------------------------------------------------------------


def _infer_combined(i: InferInput) -> list[Type]:
    boxes, scores, *scalars = i.tensors()
    if {boxes.dtype, scores.dtype, *(s.dtype for s in scalars)} != {DType.F32}:
        raise i.fail("needs f32")
    if boxes.rank != 4 or scores.rank != 3 or any(s.rank for s in scalars):
        raise i.fail("needs boxes of rank 4, scores of rank 3 and two scalars")
    batch, n, _ = scores.dims
    if i.differ(boxes.dims[0], batch) or i.differ(boxes.dims[1], n) or i.differ(boxes.dims[3], n * 0 + 4):
        raise i.fail("boxes and scores do not fit")
    rows = TensorType(DType.F32, (batch, i.attrs["room"]))
    return [TensorType(DType.F32, (*rows.dims, n * 0 + 4)), rows, rows, TensorType(DType.I32, (batch,))]


def _combined_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    boxes, scores, threshold, least = inputs
    room, per_class = ctx.dim(op.attrs["room"]), ctx.dim(op.attrs["per_class"])
    zero = np.float32(0)
    outs: list[list[np.ndarray]] = [[], [], []]
    valid = []
    for image in range(scores.shape[0]):
        entries = []
        for label in range(scores.shape[2]):
            own = boxes[image, :, min(label, boxes.shape[2] - 1)]
            similarity = lambda p, q, own=own: iou(own[p], own[q])  # noqa: E731
            with np.errstate(all="ignore"):
                taken, values = _suppress(scores[image, :, label], similarity, threshold[()], least[()], zero, per_class)
            entries += [(-v, label, box, own[box]) for box, v in zip(taken, values, strict=True)]
        entries = sorted(entries, key=lambda e: e[:3])[:room]
        corners = np.array([e[3] for e in entries], np.float32).reshape(-1, 4)
        if op.attrs["clip"]:
            corners = np.clip(corners, 0, 1)
        rows = [corners, np.array([-e[0] for e in entries], np.float32), np.array([e[1] for e in entries], np.float32)]
        for out, row in zip(outs, rows, strict=True):
            out.append(pad_rows(row, room))
        valid.append(len(entries))
    batch = scores.shape[0]
    shapes = [(batch, room, 4), (batch, room), (batch, room)]
    done = [np.array(out, np.float32).reshape(shape) for out, shape in zip(outs, shapes, strict=True)]
    return [*done, np.array(valid, np.int32)]


register(
    OpDef(
        "disc.combined_nms", 4, _infer_combined, _combined_reference,
        {"per_class": Attr("dim"), "room": Attr("dim"), "clip": Attr("bool")},
    )
)  # fmt: skip
register(
    OpDef("disc.nms", 5, _infer, _reference, {"limit": Attr("dim"), "room": Attr("dim"), "overlaps": Attr("bool", default=False)})
)
