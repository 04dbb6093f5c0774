"""Ops whose results' size depends on data: disc.nonzero, disc.unique.

They all have one form: results padded along their first dimension to a bound that is a `Dim` known before the op, and an i64
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


register(OpDef("disc.nonzero", 1, _infer_nonzero, _nonzero_reference))
register(
    OpDef(
        "disc.unique", 1, _infer_unique, _unique_reference,
        {"index_type": Attr("str", ("i32", "i64")), "distinct_zeros": Attr("bool", default=False)},
    )
)  # fmt: skip

__all__ = ["COUNT", "pad_rows"]
