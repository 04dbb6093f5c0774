"""Generators of what graphs make of results whose size depends on data: cuts, columns, reshapes and casts between an op and its reader;
zeros of both signs among distinct values; sparse tensors whose dense shape has more than 2^63 elements."""

from __future__ import annotations

import numpy as np

from disc_tf.testing.fuzz_data_ops import finite, small_ints
from disc_tf.testing.fuzz_generator import Generator, generator
from disc_tf.testing.fuzz_program import Ref
from disc_tf.testing.tf_case import tensorflow


def _slice(g: Generator, x: Ref, start: int, end: int | None, stride: int = 1) -> Ref | None:
    """``x[start:end:stride]``."""
    ends = g.const([0 if end is None else end], np.int32)
    operands = {"input": x, "begin": g.const([start], np.int32), "end": ends, "strides": g.const([stride], np.int32)}
    return next(iter(g.add("StridedSlice", operands, end_mask=int(end is None))), None)


def _column(g: Generator, x: Ref, k: int) -> Ref | None:
    """``x[:, k]``."""
    operands = {"input": x, "begin": g.const([0, k], np.int32), "end": g.const([0, k + 1], np.int32), "strides": g.const([1, 1], np.int32)}
    return next(iter(g.add("StridedSlice", operands, begin_mask=1, end_mask=1, shrink_axis_mask=2)), None)


def _viewed(g: Generator, x: Ref | None) -> Ref | None:
    """A vector of some of the integers of ``x``."""
    tf = tensorflow()
    for _ in range(int(g.rng.integers(1, 4))):
        if x is None:
            return None
        how = int(g.rng.integers(6))
        if how < 2:
            x = _slice(g, x, *((0, int(g.choice((1, 2, 4)))), (1, None), (0, None))[int(g.rng.integers(3))])
        elif how == 2:
            x = _slice(g, x, 0, None, 2)
        elif how == 3:
            to = [-1, 2] if g.value(x).size % 2 == 0 and g.rank(x) == 2 else [-1]
            x = next(iter(g.add("Reshape", {"tensor": x, "shape": g.const(to, np.int32)})), None)
        elif how == 4:
            narrow = g.add("Cast", {"x": x}, DstT=g.choice((tf.uint8, tf.int32)))
            x = g.add("Cast", {"x": narrow[0]}, DstT=g.choice((tf.int32, tf.int64)))[0] if narrow else None
        elif g.rank(x) == 2 and g.shape(x)[1]:
            x = _column(g, x, int(g.rng.integers(g.shape(x)[1])))
    if x is not None and g.rank(x) == 2 and g.shape(x)[1]:
        x = _column(g, x, int(g.rng.integers(g.shape(x)[1])))
    return x if x is not None and g.rank(x) == 1 and g.kind(x) == "i" else None


def _entries(g: Generator, columns: int = 2) -> Ref | None:
    """Coordinates ``i64[n, columns]`` of data, in any order."""
    first = small_ints(g, 4)
    if first is None:
        return None
    wide = g.add("Cast", {"x": first}, DstT=tensorflow().int64)[0]
    others = [g.add("FloorMod", {"x": wide, "y": g.const(k + 2, np.int64)})[0] for k in range(columns - 1)]
    return next(iter(g.add("Pack", {"values": [wide, *others]}, axis=1)), None)


def _source(g: Generator) -> Ref | None:
    how = int(g.rng.integers(3))
    if how == 0:
        x = g.pick("fi", min_rank=1, max_rank=3, exact=True)
        condition = g.add("Greater", {"x": x, "y": g.const(0, g.value(x).dtype)}) if x is not None else []
        return next(iter(g.add("Where", {"condition": condition[0]})), None) if condition else None
    if how == 1:
        x = small_ints(g, 5)
        found = g.add("Unique", {"x": x}, out_idx=tensorflow().int32) if x is not None else []
        return found[int(g.rng.integers(2))] if found else None
    at = _entries(g)
    if at is None:
        return None
    values = _column(g, at, 1)
    found = g.add("SparseFillEmptyRows", {"indices": at, "values": values, "dense_shape": g.const([5, 9], np.int64),
                                          "default_value": g.const(1, np.int64)})  # fmt: skip
    return found[int(g.rng.integers(2))] if found else None


@generator(3)
def viewed(g: Generator) -> None:
    """Reads at, or sums by, what is left of an op's integers."""
    at = _viewed(g, _source(g))
    if at is None:
        return
    tf = tensorflow()
    how = int(g.rng.integers(4))
    if how == 0:
        table = g.const(g.rng.normal(size=(int(g.choice((2, 5, 40))), 3)), np.float32)
        g.add("GatherV2", {"params": table, "indices": at, "axis": g.const(0, np.int32)})
    elif how == 1:
        ones = g.add("Cast", {"x": g.add("OnesLike", {"x": at})[0]}, DstT=tf.float32)
        g.add("SegmentSum", {"data": ones[0], "segment_ids": at}, ulps=4, sums=True)
    elif how == 2:
        g.add(g.choice(("Max", "Min", "Sum")), {"input": at, "axis": g.const(0, np.int32)}, keep_dims=False)
    else:
        low = g.add("Less", {"x": at, "y": g.const(3, g.value(at).dtype)})
        g.add(g.choice(("All", "Any")), {"input": low[0], "axis": g.const(0, np.int32)}, keep_dims=False)


@generator()
def zeros_of_both_signs(g: Generator) -> None:
    """Questions that tell +0 from -0, about distinct values."""
    x = g.pick("f", min_rank=1, max_rank=1, exact=True)
    if x is None or not finite(g, x) or str(g.value(x).dtype) not in ("float32", "float64"):
        return
    t = g.value(x).dtype
    zeros = g.add("Mul", {"x": x, "y": g.const(0, t)})
    distinct = g.add("Unique", {"x": zeros[0]}, out_idx=tensorflow().int32) if zeros else []
    low = g.add("Reciprocal", {"x": distinct[0]}) if distinct else []
    if low and g.flip():
        g.add(g.choice(("Max", "Min")), {"input": low[0], "axis": g.const(0, np.int32)}, keep_dims=False)
    elif low:
        positive = g.add("Greater", {"x": low[0], "y": g.const(0, t)})
        g.add(g.choice(("All", "Any")), {"input": positive[0], "axis": g.const(0, np.int32)}, keep_dims=False)


@generator()
def large_dense_shapes(g: Generator) -> None:
    at = _entries(g)
    values = _column(g, at, 0) if at is not None else None
    if at is None or values is None:
        return
    size = int(g.choice((2**62, 2**63 - 1, 2**40, 12)))
    shape = g.const([int(g.choice((5, 4, 2**20))), size], np.int64)
    how = int(g.rng.integers(3))
    if how == 0:
        g.add("SparseReorder", {"input_indices": at, "input_values": values, "input_shape": shape})
    elif how == 1:
        g.add("SparseReshape", {"input_indices": at, "input_shape": shape, "new_shape": g.const(g.choice(([-1], [-1, 2])), np.int64)})
    else:
        corner, room = g.const([1, 0], np.int64), g.const([2, size], np.int64)
        g.add("SparseSlice", {"indices": at, "values": values, "shape": shape, "start": corner, "size": room})
