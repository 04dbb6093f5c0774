"""disc.nms: non-maximum suppression, of the form of all ops of data-dependent size (see `data_dependent`)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from disc_tf.ir.core import Op
from disc_tf.ir.opset.base import Attr, EvalContext, InferInput, OpDef, register
from disc_tf.ir.opset.data_dependent import COUNT, pad_rows
from disc_tf.ir.types import DType, TensorType, Type


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


def iou(a: np.ndarray, b: np.ndarray) -> np.generic:
    """Intersection over union of two boxes by any two diagonal corners ``[y, x, y, x]``, rounded to their dtype at each step."""
    zero = a.dtype.type(0)

    def low(p: np.generic, q: np.generic) -> np.generic:
        return q if q < p else p

    def high(p: np.generic, q: np.generic) -> np.generic:
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
    scores: np.ndarray, similarity: Callable[[int, int], np.generic], threshold: np.generic, least: np.generic, sigma: np.generic,
    limit: int,
) -> tuple[list[int], list[np.generic]]:  # fmt: skip
    number = scores.dtype.type
    soft = sigma > 0
    scale = number(-0.5) / sigma if soft else number(0)
    heap = [(-s, k, 0) for k, s in enumerate(scores) if s > least]
    heapq.heapify(heap)
    taken: list[int] = []
    taken_scores: list[np.generic] = []
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


register(
    OpDef("disc.nms", 5, _infer, _reference, {"limit": Attr("dim"), "room": Attr("dim"), "overlaps": Attr("bool", default=False)})
)
