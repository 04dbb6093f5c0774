"""Common subexpression elimination by hash-consing."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from disc_tf.ir.core import Block, Function, Module, Op, Value, replace_all_uses
from disc_tf.ir.pass_manager import Pass
from disc_tf.passes.rewriter import words

#: never merged: they have effects, or are cheap markers of a place
_KEEP = frozenset({"return", "disc.check", "disc.create_token", "disc.after_all", "disc.bind_dim"})
#: operands of these may be swapped
COMMUTATIVE = words("add multiply maximum minimum and or xor")


@dataclasses.dataclass(frozen=True)
class CSE(Pass):
    """Merge ops of equal name, operands, attributes, result types and regions; an inner block sees the outer ones' ops.

    The first occurrence stays, and takes over the original node names (``loc``) of the others, so that reports stay whole.
    Bitwise equal constants are merged by content.
    """

    name = "cse"

    def run(self, module: Module, ctx: object) -> None:
        for fn in module.functions.values():
            merge_equal(fn)


def merge_equal(fn: Function) -> int:
    """Number of ops merged away."""
    return _merge_block(fn.body, {})


def _merge_block(block: Block, table: dict[Any, Op]) -> int:
    merged = 0
    kept: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            merged += _merge_block(region, dict(table) if region.ops and len(region.ops) > 8 else {})
        if op.name in _KEEP:
            kept.append(op)
            continue
        key = op_key(op, {})
        first = table.get(key)
        if first is None:
            table[key] = op
            kept.append(op)
            continue
        for old, new in zip(op.results, first.results, strict=True):
            replace_all_uses(old, new)
        if op.loc != first.loc and len(first.loc) < 64:
            first.loc = tuple(dict.fromkeys(first.loc + op.loc))
        op.drop()
        op.parent = None
        merged += 1
    block.ops = kept
    return merged


def op_key(op: Op, numbering: dict[Value, Any]) -> Any:
    """A hashable that is equal for ops that compute the same. ``numbering`` names the values of enclosing regions."""
    operands = [numbering.get(v, v.uid) for v in op.operands]
    if op.name in COMMUTATIVE and len(operands) == 2:
        operands.sort(key=str)
    attrs = tuple(sorted((k, _attr_key(v)) for k, v in op.attrs.items()))
    regions = tuple(_region_key(r, numbering) for r in op.regions)
    return (op.name, tuple(operands), attrs, tuple(r.type for r in op.results), regions)


def _region_key(block: Block, outer: dict[Value, Any]) -> Any:
    depth = len(outer)
    numbering = dict(outer)
    for p in block.params:
        numbering[p] = f"r{depth}.{len(numbering)}"
    ops = []
    for op in block.ops:
        ops.append(op_key(op, numbering))
        for r in op.results:
            numbering[r] = f"r{depth}.{len(numbering)}"
    return (tuple(p.type for p in block.params), tuple(ops))


def _attr_key(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        splat = value.size > 0 and all(s == 0 for s in value.strides)
        content = value[(0,) * value.ndim].tobytes() if splat and value.ndim else value.tobytes()
        return ("ndarray", value.dtype.str, value.dtype.name, value.shape, splat, content)
    if isinstance(value, list):
        return tuple(_attr_key(v) for v in value)
    return value
