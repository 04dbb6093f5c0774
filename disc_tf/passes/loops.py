"""What a loop need not do in every iteration moves in front of it.

Two cases: an op all of whose operands come from outside; and the product of row ``i`` of a stack with a matrix, where ``i`` counts from 0
to the number of rows: the whole stack is multiplied at once (the input product of a recurrent layer), and the loop reads a row of it.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from disc_tf.ir.core import Block, Module, Op, Value, replace_all_uses, walk
from disc_tf.ir.dims import Dim
from disc_tf.ir.pass_manager import Pass
from disc_tf.ir.types import DType, TensorType
from disc_tf.passes.elementwise_rules import dim_of
from disc_tf.passes.rewriter import ELEMENTWISE, base_name, conjuncts, constant_of, dims_of_op, is_number, words

#: ops without effect that are right whatever they are given, also where the loop would not have run
_MOVABLE = ELEMENTWISE | words(
    "constant iota disc.dim broadcast_in_dim reshape transpose slice reverse concatenate pad reduce dot_general"
)


@dataclasses.dataclass(frozen=True)
class HoistLoops(Pass):
    """Move loop-invariant ops, and products of all rows of a stack, out of ``while`` bodies, inner loops first."""

    name = "hoist_loops"

    def run(self, module: Module, ctx: object) -> None:
        for fn in module.functions.values():
            hoist(fn.body)


def hoist(block: Block) -> None:
    """All loops of a block and of its regions."""
    if not any(op.name in ("while", "case") for op in block.ops):
        return
    out: list[Op] = []
    for op in block.ops:
        if op.name in ("while", "case"):
            for region in op.regions:
                hoist(region)
        if op.name == "while":
            for region in op.regions:
                out += _leave(op, region)
        out.append(op)
    block.set_ops(out)


def _leave(loop: Op, region: Block) -> list[Op]:
    """Take what may leave out of a region; the ops to put in front of the loop."""
    bound = {op.attrs["symbol"] for op in walk(region) if op.name == "disc.bind_dim"}
    bound |= {s for op in walk(region) if op.name in ("while", "case") for d in dims_of_op(op) for s in d.symbols()}
    bound |= {s for p in region.params for d in p.dims for s in d.symbols()} - _outer_symbols(loop)
    inside: set[Value] = set(region.params)
    moved: list[Op] = []
    kept: list[Op] = []
    #: value of the loop -> the index and the stack whose row it is
    rows: dict[Value, tuple[Value, Value]] = {}
    for op in region.ops:
        if _may_leave(op, inside, bound):
            moved.append(op)
            continue
        whole = _rows_product(loop, region, op, inside, bound) or _rows_bias(op, inside, rows)
        if whole is not None:
            start, ops = whole
            moved += ops
            row = _row(start, ops[-1].result)
            kept += row
            rows[row[-1].result] = start, ops[-1].result
            inside.update(r for o in row for r in o.results)
            replace_all_uses(op.result, row[-1].result)
            op.drop()
            op.parent = None
            continue
        kept.append(op)
        inside.update(op.results)
    region.set_ops(kept)
    return moved


def _outer_symbols(loop: Op) -> set[str]:
    return {s for v in loop.operands for d in v.dims for s in d.symbols()}


def _may_leave(op: Op, inside: set[Value], bound: set[str]) -> bool:
    if base_name(op.name) not in _MOVABLE or not all(isinstance(r.type, TensorType) for r in op.results):
        return False
    read = [*op.operands, *(v for r in op.regions for o in walk(r) for v in o.operands)]
    return inside.isdisjoint(read) and all(bound.isdisjoint(d.symbols()) for d in dims_of_op(op))


def _rows_product(loop: Op, region: Block, op: Op, inside: set[Value], bound: set[str]) -> tuple[Value, list[Op]] | None:
    """``dot(reshape(stack[i]), w)`` -> ``i``, and the product of the whole stack."""
    if op.name != "dot_general" or op.attrs["lhs_batching"] or region is not loop.regions[1]:
        return None
    lhs, w = op.operands
    shape = lhs.op
    row = shape.operands[0].op if shape is not None and shape.name == "reshape" else None
    if w in inside or row is None or row.name != "dynamic_slice":
        return None
    stack, start, *_ = row.operands
    whole = row.result.dims[0] == 1 and row.result.dims[1:] == stack.dims[1:] == lhs.dims
    if stack in inside or not whole or not _counts_to(loop, start, stack.dims[0]):
        return None
    dims = (stack.dims[0], *op.result.dims)
    if any(not bound.isdisjoint(d.symbols()) for d in dims):
        return None
    attrs = {**op.attrs, "lhs_contracting": tuple(d + 1 for d in op.attrs["lhs_contracting"])}
    return start, [Op("dot_general", [stack, w], [TensorType(op.result.dtype, dims)], attrs, (), op.loc)]


def _rows_bias(op: Op, inside: set[Value], rows: dict[Value, tuple[Value, Value]]) -> tuple[Value, list[Op]] | None:
    """``add`` of a row of such a product and a value from outside -> the same for all rows."""
    if op.name != "add":
        return None
    for row, other in (op.operands, reversed(op.operands)):
        if row in rows and other not in inside:
            start, stack = rows[row]
            spread = {"broadcast_dimensions": tuple(range(1, len(stack.dims)))}
            wide = Op("broadcast_in_dim", [other], [stack.type], spread, (), op.loc)
            return start, [wide, Op("add", [stack, wide.result], [stack.type], {}, (), op.loc)]
    return None


def _row(start: Value, stack: Value) -> list[Op]:
    """The ops that read ``stack[start]``; the last one gives it."""
    zero = Op("constant", [], [TensorType(start.dtype, ())], {"value": np.zeros((), start.dtype.np)})
    sizes = (Dim.of(1), *stack.dims[1:])
    starts = [start, *([zero.result] * (stack.rank - 1))]
    read = Op("dynamic_slice", [stack, *starts], [TensorType(stack.dtype, sizes)], {"sizes": sizes})
    return [zero, read, Op("reshape", [read.result], [TensorType(stack.dtype, stack.dims[1:])])]


def _counts_to(loop: Op, index: Value, n: Dim) -> bool:
    """Whether a carried value of the loop counts 0, 1 ... up to ``n`` at most, and is ``index``."""
    cond, body = loop.regions
    if index not in body.params:
        return False
    k = body.params.index(index)
    return counts_from(loop, k) == 0 and _below(cond.results[0], cond.params[k], n)


def counts_from(loop: Op, k: int) -> int | None:
    """The known integer that carried value ``k`` is at first, if each iteration adds 1 to it."""
    body = loop.regions[1]
    p, first, step = body.params[k], constant_of(loop.operands[k]), body.results[k].op
    if p.dtype not in (DType.I32, DType.I64) or p.rank or first is None or step is None or step.name != "add" or p not in step.operands:
        return None
    return int(first) if is_number(step.operands[1 - step.operands.index(p)], 1) else None


def _below(pred: Value, index: Value, n: Dim) -> bool:
    """Whether ``index < n`` is one of the terms of a conjunction."""
    return any(
        v.op is not None
        and v.op.name == "compare"
        and v.op.attrs["direction"] == "LT"
        and v.op.operands[0] is index
        and dim_of(v.op.operands[1]) == n
        for v in conjuncts(pred)
    )
