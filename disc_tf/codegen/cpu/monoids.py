"""The monoids that reductions know, on register values: combining lanes, identities, and arbitrary regions."""

from __future__ import annotations

import math as pymath
from collections.abc import Sequence

import numpy as np

from disc_tf.codegen.cpu import lane_ops, lanes
from disc_tf.codegen.llvm import FnBuilder, V, const
from disc_tf.ir.core import Block, Op, Value, reduce_kind
from disc_tf.ir.types import DType

MONOIDS = ("add", "mul", "max", "min", "and", "or")
_OP = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum", "and": "and", "or": "or"}
_FLOAT = {"add": FnBuilder.fadd, "mul": FnBuilder.fmul, "max": lane_ops.maximum, "min": lane_ops.minimum}


def combine(b: FnBuilder, kind: str, dtype: DType, x: V, y: V) -> V:
    """x and y combined. f16 and bf16 accumulate in f32: the caller rounds the end result."""
    if dtype.is_float:
        return _FLOAT[kind](b, x, y)
    return lane_ops.binary(b, _OP[kind], dtype, x, y)


def identity(kind: str, dtype: DType) -> float | int:
    """The number that changes nothing."""
    if dtype.is_bool:
        return int(kind in ("mul", "and", "min"))
    if kind in ("add", "or"):
        return -0.0 if dtype.is_float and kind == "add" else 0
    if kind == "mul":
        return 1
    if kind == "and":
        return -1
    if dtype.is_float:
        return -pymath.inf if kind == "max" else pymath.inf
    info = np.iinfo(dtype.np)
    return int(info.min) if kind == "max" else int(info.max)


def known_splat(v: Value) -> float | int | None:
    """The number that a value holds everywhere, if it is a constant (through shape ops)."""
    op = v.op
    while op is not None and op.name in ("broadcast_in_dim", "reshape"):
        op = op.operands[0].op
    if op is None or op.name != "constant" or op.attrs["value"].size == 0:
        return None
    array = op.attrs["value"]
    first = array.reshape(-1)[0]
    if array.size > 1 and any(array.strides) and not np.all(array == first):
        return None
    return float(first) if v.dtype.is_float else int(first)


def is_identity(kind: str, dtype: DType, number: float | None) -> bool:
    """Whether an initial value can be left out. (0 for a sum too: only the sign of an all-negative-zero sum differs,
    and that is what starting from +0 means, so 0 is not left out for floats.)"""
    if number is None:
        return False
    return number == identity(kind, dtype) and not (kind == "add" and dtype.is_float)


class Combiner:
    """How one `reduce` op combines tuples of values: by its monoid, or by running its region on lanes."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.count = len(op.operands) // 2
        self.dtypes = [r.dtype for r in op.results]
        kind = None if op.attrs.get("arg") else reduce_kind(op)
        self.kind = kind if kind in MONOIDS and self.count == 1 else None

    def starts(self, inits: Sequence[V]) -> list[V]:
        """What accumulators start from and masked lanes hold: the identity, or (unknown monoid) the initial values, which
        StableHLO allows to be used any number of times."""
        if self.kind is not None:
            return [const(identity(self.kind, self.dtypes[0]), lanes.reg_elem(self.dtypes[0]))]
        return list(inits)

    def __call__(self, b: FnBuilder, acc: Sequence[V], xs: Sequence[V]) -> list[V]:
        """acc combined with xs, lane by lane (acc holds the earlier elements)."""
        if self.kind is not None:
            return [combine(b, self.kind, self.dtypes[0], acc[0], xs[0])]
        width = max(v.lanes for v in (*acc, *xs))
        known = dict(zip(self.op.regions[0].params, [*acc, *xs], strict=True))
        out = run_region(b, self.op.regions[0], known)
        return [b.splat(v, width) for v in out]

    def lanes_together(self, b: FnBuilder, acc: Sequence[V]) -> list[V]:
        """Reduce vectors to scalars by the fixed tree: lane i with lane i + n/2."""
        acc = list(acc)
        while acc[0].lanes > 1:
            acc = self(b, [b.low_half(v) for v in acc], [b.high_half(v) for v in acc])
        return acc

    def finish(self, b: FnBuilder, acc: Sequence[V], inits: Sequence[V], numbers: Sequence[float | int | None]) -> list[V]:
        """Put in the initial values and round to the results' dtypes. Scalars or vectors."""
        acc = list(acc)
        if self.kind is not None and not is_identity(self.kind, self.dtypes[0], numbers[0]):
            acc = self(b, [b.splat(inits[0], acc[0].lanes)], acc)
        return [lanes.round_float(b, d, v) for d, v in zip(self.dtypes, acc, strict=True)]


def run_region(b: FnBuilder, block: Block, known: dict[Value, V]) -> list[V]:
    """Evaluate a region of scalar elementwise ops on lanes. Constants may lie in the region or, shared with others, outside of it."""

    def value(v: Value) -> V:
        if v not in known:
            number = known_splat(v)
            if number is None and (v.op is None or v.op.name != "constant"):
                raise ValueError(f"a region that combines elements reads {v} of the function around it")
            known[v] = const(0 if number is None else number, lanes.reg_elem(v.dtype))
        return known[v]

    for op in block.ops:
        if op.name == "return":
            return [value(v) for v in op.operands]
        if op.name != "constant":
            known[op.result] = lane_ops.emit(b, op, [value(v) for v in op.operands])
    raise ValueError("region has no return")
