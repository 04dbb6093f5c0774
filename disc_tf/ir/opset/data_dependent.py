"""Ops whose results' size depends on data: disc.nonzero, disc.partition, disc.unique; and disc.search in sorted lines.

The former have one form: results padded along their first dimension to a bound that is a `Dim` known before the op, and an i64
scalar that says how many rows are meant. Who creates the op binds the count to a symbol (`disc.bind_dim`) and slices. The rows
behind the count are undefined; the references make them zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Op
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.opset.base import Attr, EvalContext, InferInput, OpDef, register
from disc_tf.ir.types import DType, TensorType, Type

COUNT = TensorType(DType.I64, ())
_NONZERO_RANKS = 8


def pad_rows(rows: np.ndarray, length: int) -> np.ndarray:
    """``rows`` with rows of zeros behind them, ``length`` in all."""
    out = np.zeros((length, *rows.shape[1:]), rows.dtype)
    out[: rows.shape[0]] = rows
    return out


# ---- nonzero --------------------------------------------------------------------------------------------------------


def _infer_nonzero(i: InferInput) -> list[Type]:
    x = i.tensor(0)
    if not x.dtype.is_bool or not 1 <= x.rank <= _NONZERO_RANKS:
        raise i.fail(f"needs a bool tensor of rank 1 to {_NONZERO_RANKS}")
    return [TensorType(DType.I64, (product(x.dims), Dim.of(x.rank))), COUNT]


def _nonzero_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    found = np.argwhere(inputs[0]).astype(np.int64)
    return [pad_rows(found, inputs[0].size), np.array(found.shape[0], np.int64)]


# ---- unique ---------------------------------------------------------------------------------------------------------


def _infer_unique(i: InferInput) -> list[Type]:
    x = i.tensor(0)
    if x.rank != 2:
        raise i.fail("needs a tensor of rank 2")
    n = (x.dims[0],)
    index = TensorType(DType.from_name(i.attrs["index_type"]), n)
    return [TensorType(DType.I64, n), index, index, COUNT]


def _keys(x: np.ndarray, distinct_zeros: bool) -> tuple[np.ndarray, np.ndarray]:
    """``(keys, never)``: integers that are equal for elements that count as equal, and where an element equals nothing (NaN)."""
    bits = x.view(np.dtype(f"u{x.dtype.itemsize}"))
    if x.dtype.kind not in "fV":  # ml_dtypes.bfloat16 is of kind V
        return bits, np.zeros(x.shape, bool)
    wide = x.astype(np.float64)
    zero = wide == 0
    if x.dtype in (np.float32, np.float64):  # denormals are flushed wherever TF computes with them
        zero = np.abs(wide) < np.finfo(x.dtype).tiny
    return (bits if distinct_zeros else np.where(zero, 0, bits)), np.isnan(wide)


def _unique_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    keys, never = _keys(np.ascontiguousarray(inputs[0]), op.attrs["distinct_zeros"] and inputs[0].shape[1] == 1)
    n = keys.shape[0]
    seen: dict[bytes, int] = {}
    first: list[int] = []
    index = np.zeros(n, np.int64)
    for row in range(n):
        key = keys[row].tobytes()
        number = len(first) if never[row].any() else seen.setdefault(key, len(first))
        if number == len(first):
            first.append(row)
        index[row] = number
    dtype = op.results[1].dtype.np
    counts = np.bincount(index, minlength=n) if n else np.zeros(0, np.int64)
    padded = pad_rows(np.array(first, np.int64), n)
    return [padded, index.astype(dtype), counts.astype(dtype), np.array(len(first), np.int64)]


# ---- partition, search ----------------------------------------------------------------------------------------------


def _infer_partition(i: InferInput) -> list[Type]:
    ids = i.tensor(0)
    if ids.dtype is not DType.I32 or ids.rank != 1 or i.attrs["parts"] < 1:
        raise i.fail("needs a vector of i32 and one part or more")
    return [TensorType(DType.I64, ids.dims), TensorType(DType.I64, (Dim.of(i.attrs["parts"]),))]


def _partition_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    ids, parts = inputs[0], op.attrs["parts"]
    where = [np.nonzero(ids == k)[0] for k in range(parts)]
    return [pad_rows(np.concatenate(where), ids.size).astype(np.int64), np.array([w.size for w in where], np.int64)]


def _infer_search(i: InferInput) -> list[Type]:
    line, values = i.tensors()
    i.same_dtype((line, values))
    if line.rank != 2 or values.rank != 2 or i.differ(line.dims[0], values.dims[0]):
        raise i.fail("needs two tensors of rank 2 with the same first dimension")
    return [TensorType(DType.from_name(i.attrs["index_type"]), values.dims)]


def _bound(line: np.ndarray, x: np.generic, upper: bool) -> int:
    """std::lower_bound or std::upper_bound, step for step: the answer counts where the line is not sorted or has NaNs."""
    first, length = 0, len(line)
    while length:
        half = length // 2
        middle = line[first + half]
        if (not x < middle) if upper else middle < x:
            first, length = first + half + 1, length - half - 1
        else:
            length = half
    return first


def _search_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    lines, values = inputs
    upper = op.attrs["side"] == "upper"
    found = [[_bound(line, x, upper) for x in row] for line, row in zip(lines, values, strict=True)]
    return [np.array(found, np.int64).reshape(values.shape).astype(op.result.dtype.np)]


register(OpDef("disc.partition", 1, _infer_partition, _partition_reference, {"parts": Attr("int")}))
register(
    OpDef(
        "disc.search", 2, _infer_search, _search_reference,
        {"side": Attr("str", ("lower", "upper")), "index_type": Attr("str", ("i32", "i64"))},
    )
)  # fmt: skip
register(OpDef("disc.nonzero", 1, _infer_nonzero, _nonzero_reference))
register(
    OpDef(
        "disc.unique", 1, _infer_unique, _unique_reference,
        {"index_type": Attr("str", ("i32", "i64")), "distinct_zeros": Attr("bool", default=False)},
    )
)  # fmt: skip

__all__ = ["COUNT", "pad_rows"]
