"""Ops over rows that belong to segments: `disc.segment` (gather and reduce) and `disc.fill_rows` (a sparse matrix without empty rows).

Ids and indices are data: whatever they are, the meaning is defined (the lowering checks them and reports TensorFlow's errors).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from disc_tf.ir.core import Op
from disc_tf.ir.opset import scalar_math
from disc_tf.ir.opset.base import Attr, EvalContext, InferInput, OpDef, register
from disc_tf.ir.types import DType, TensorType, Type

KINDS = ("add", "mul", "max", "min")
SCALES = ("none", "mean", "sqrtn")
#: `max` and `min` are x86's: the later of two elements if they are not ordered (NaN)
_COMBINE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add, "mul": np.multiply, "max": lambda a, b: np.where(a > b, a, b), "min": lambda a, b: np.where(a < b, a, b),
}  # fmt: skip

# ---- segment ------------------------------------------------------------------------------------------------------


def _vector(i: InferInput, k: int, what: str) -> TensorType:
    t = i.tensor(k)
    if t.rank != 1:
        raise i.fail(f"{what} must be a vector")
    return t


def _infer_segment(i: InferInput) -> list[Type]:
    if not 2 <= len(i.types) <= 4:
        raise i.fail("takes data, ids, and optionally indices, and weights")
    data, ids = i.tensor(0), _vector(i, 1, "ids")
    if not data.rank or data.dtype.is_bool:
        raise i.fail("data must be numbers of rank 1 or more")
    if ids.dtype not in (DType.I32, DType.I64):
        raise i.fail("ids must be i32 or i64")
    if len(i.types) > 2:
        indices = _vector(i, 2, "indices")
        if indices.dtype not in (DType.I32, DType.I64):
            raise i.fail("indices must be i32 or i64")
        i.merge(ids.dims, indices.dims)
    else:
        i.merge(ids.dims, data.dims[:1])
    if len(i.types) > 3:
        weights = _vector(i, 3, "weights")
        i.same_dtype((data, weights))
        i.merge(ids.dims, weights.dims)
    a = i.attrs
    if a["scale"] != "none" and (a["kind"] != "add" or not a["sorted"]):
        raise i.fail("only sums of sorted segments are scaled")
    if a["wide"] and not a["sorted"]:
        raise i.fail("only sorted segments accumulate in a wider type")
    return [TensorType(data.dtype, (a["segments"], *data.dims[1:]))]


def fill_value(kind: str, empty: str, dtype: DType) -> float | int:
    """What a segment without rows holds: 0, or what changes nothing, of max and min either the end of the finite numbers, as TensorFlow's
    unsorted segments do, or infinite."""
    if empty == "zero" or kind == "add":
        return 0
    if kind == "mul":
        return 1
    if dtype.is_float:
        import ml_dtypes

        top = float("inf") if empty == "infinity" else float(ml_dtypes.finfo(dtype.np).max)
        return -top if kind == "max" else top
    info = np.iinfo(dtype.np)
    return int(info.min) if kind == "max" else int(info.max)


def _segment_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    data, ids, *rest = inputs
    a, dtype = op.attrs, op.result.dtype
    segments = ctx.dim(a["segments"])
    out = np.full((segments, *data.shape[1:]), fill_value(a["kind"], a["empty"], dtype), dtype.np)
    inside = (ids >= 0) & (ids < segments)
    if data.shape[0] == 0 or not inside.any():
        return [out]
    rows = np.clip(rest[0], 0, data.shape[0] - 1) if rest else np.arange(ids.shape[0])
    combine = _COMBINE[a["kind"]]
    wide = np.dtype(np.float32) if a["wide"] and dtype in (DType.F16, DType.BF16) else dtype.np
    counts = np.zeros(segments, np.int64)
    totals: dict[int, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for n in np.flatnonzero(inside):
            row, s = data[rows[n]].astype(wide), int(ids[n])
            if len(rest) > 1:
                row = scalar_math.round_to(row * rest[1][n].astype(wide), dtype.np).astype(wide)
            # A segment that is walked at once starts from its first row, one that is added to from what it was filled with.
            before = totals.get(s, row if a["sorted"] else out[s].astype(wide))
            first = a["sorted"] and s not in totals
            totals[s] = row if first else np.asarray(combine(before, row)).astype(wide)
            counts[s] += 1
        for s, total in totals.items():
            out[s] = np.asarray(_scaled(total, int(counts[s]), a["scale"], wide)).astype(dtype.np)
    return [out]


def _scaled(total: np.ndarray, count: int, scale: str, wide: np.dtype) -> np.ndarray:
    if scale == "none":
        return total
    if not scalar_math.is_float(wide):
        return np.asarray(scalar_math.BINARY["divide"](total, np.asarray(count).astype(wide)))
    return total / np.asarray(count if scale == "mean" else np.sqrt(count)).astype(wide)


register(
    OpDef(
        "disc.segment", None, _infer_segment, _segment_reference,
        {
            "kind": Attr("str", KINDS), "segments": Attr("dim"), "sorted": Attr("bool", default=True),
            "scale": Attr("str", SCALES, default="none"), "empty": Attr("str", ("zero", "identity", "infinity"), default="zero"),
            "wide": Attr("bool", default=False),
        },
    )
)  # fmt: skip

# ---- fill_rows ----------------------------------------------------------------------------------------------------


def _infer_fill_rows(i: InferInput) -> list[Type]:
    indices, values, default = i.tensor(0), i.tensor(1), i.tensor(2)
    if indices.rank != 2 or indices.dtype is not DType.I64:
        raise i.fail("indices must be an i64 matrix")
    if values.rank != 1 or default.rank:
        raise i.fail("values must be a vector, the default value a scalar")
    i.same_dtype((values, default))
    (n,) = i.merge(indices.dims[:1], values.dims)
    rows = i.attrs["rows"]
    most = n + rows
    return [
        TensorType(DType.I64, (most, indices.dims[1])), TensorType(values.dtype, (most,)), TensorType(DType.BOOL, (rows,)),
        TensorType(DType.I64, (n,)), TensorType(DType.I64, ()),
    ]  # fmt: skip


def _fill_rows_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    indices, values, default = inputs
    rows, n, rank = ctx.dim(op.attrs["rows"]), indices.shape[0], indices.shape[1]
    out = np.zeros((n + rows, rank), np.int64)
    filled = np.zeros(n + rows, values.dtype)
    reverse = np.zeros(n, np.int64)
    kept = [k for k in range(n) if rank and 0 <= indices[k, 0] < rows]
    empty = np.ones(rows, np.bool_)
    empty[[int(indices[k, 0]) for k in kept]] = False
    at = 0
    for row in range(rows):
        if empty[row]:
            out[at, :1] = row
            filled[at] = default
            at += 1
            continue
        for k in kept:
            if indices[k, 0] == row:
                out[at], filled[at], reverse[k] = indices[k], values[k], at
                at += 1
    return [out, filled, empty, reverse, np.asarray(at, np.int64)]


register(OpDef("disc.fill_rows", 3, _infer_fill_rows, _fill_rows_reference, {"rows": Attr("dim")}))


__all__ = ["KINDS", "SCALES", "fill_value"]
