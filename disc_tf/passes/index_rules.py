"""Indices that count: comparisons of an iota become statements about its extent, and gathers by an iota become slices.

Position embeddings are made this way: ``gather(table, range(length))`` after a check that every index is below the table's size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Op, Value, reduce_kind
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType, TensorType
from disc_tf.ir.views import embedding_gather
from disc_tf.passes.rewriter import Rewriter, splat_of, table


def counted_extent(v: Value, rw: Rewriter) -> Dim | None:
    """``D`` where the elements of ``v`` are 0 .. D-1 in row-major order (an iota, all other dims being 1)."""
    for _ in range(16):
        op = v.op
        if op is None or not v.dtype.is_int:
            return None
        if op.name == "iota":
            axis = op.attrs["dimension"]
            others = [d for i, d in enumerate(v.dims) if i != axis]
            return v.dims[axis] if all(rw.is_one(d) for d in others) else None
        widened = op.name == "convert" and op.operands[0].dtype.is_int and v.dtype.bits >= 32
        if op.name not in ("reshape", "transpose") and not widened:
            return None
        v = op.operands[0]
    return None


def iota_bounds(v: Value) -> tuple[int, Dim] | None:
    """The least element, and one more than the greatest, of an iota under any view or broadcast; None for anything else."""
    for _ in range(16):
        op = v.op
        if op is None or not v.dtype.is_int:
            return None
        if op.name == "iota":
            return 0, v.dims[op.attrs["dimension"]]
        widened = op.name == "convert" and op.operands[0].dtype.is_int and v.dtype.bits >= 32
        if op.name not in ("reshape", "transpose", "broadcast_in_dim", "slice", "reverse") and not widened:
            return None
        v = op.operands[0]
    return None


def compare_iota(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """A comparison of an iota with a number that holds, or fails, for every element (where there is one)."""
    a, b = op.operands
    bounds, c = iota_bounds(a), splat_of(b)
    if bounds is None or c is None or not b.dtype.is_int:
        return None
    low, end = bounds
    number = int(c)
    below = rw.env.is_nonneg(number - end) is True  # every element < number
    answer = {
        "LT": True if below else False if low >= number else None,
        "LE": True if below else False if low > number else None,
        "GE": True if low >= number else False if below else None,
        "GT": True if low > number else False if below else None,
        "EQ": False if below or low > number else None,
        "NE": True if below or low > number else None,
    }[op.attrs["direction"]]
    return None if answer is None else [rw.splat(answer, op.result.tensor)]


def all_counted_below(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """``all(0 .. D-1 < c)`` is ``D <= c``, for ``c >= 0`` (also for D == 0)."""
    if len(op.operands) != 2 or op.result.rank or reduce_kind(op) != "and":
        return None
    test, init = op.operands[0].op, splat_of(op.operands[1])
    if test is None or test.name != "compare" or init is None or not bool(init):
        return None
    extent, c = counted_extent(test.operands[0], rw), splat_of(test.operands[1])
    direction = test.attrs["direction"]
    if extent is None or c is None or direction not in ("LT", "LE"):
        return None
    limit = int(c) + (direction == "LE")
    if limit < 0:
        return None
    scalar = TensorType.of(DType.I64)
    have = rw.value("disc.dim", [], scalar, {"dim": extent})
    return [rw.value("compare", [have, rw.constant(np.array(limit, np.int64))], op.result.type, {"direction": "LE"})]


def gather_by_iota(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """Rows 0 .. D-1 of a table that has at least D are a slice of it."""
    source, index = op.operands
    if not source.rank or not embedding_gather(op):
        return None
    extent = counted_extent(index, rw)
    if extent is None or rw.env.is_nonneg(source.dims[0] - extent) is not True:
        return None
    zero, one = Dim.of(0), Dim.of(1)
    dims = (extent, *source.dims[1:])
    attrs = {"starts": (zero,) * len(dims), "limits": dims, "strides": (one,) * len(dims)}
    rows = rw.value("slice", [source], TensorType(source.dtype, dims), attrs)
    return [rw.reshape(rows, op.result.dims)]


INDEX_RULES = table(
    (["compare"], compare_iota),
    (["reduce"], all_counted_below),
    (["gather"], gather_by_iota),
)
