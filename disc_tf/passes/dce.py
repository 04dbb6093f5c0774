"""Dead code elimination: what no result, check or used symbol needs goes."""

from __future__ import annotations

import dataclasses

from disc_tf.ir.core import Block, Function, Module, Op, may_fail
from disc_tf.ir.pass_manager import Pass
from disc_tf.passes.rewriter import dims_of_op


@dataclasses.dataclass(frozen=True)
class DCE(Pass):
    """Remove ops without effect whose results are unused. Checks stay (with their token chain), ``disc.bind_dim`` stays while its symbol
    occurs in a live op's types or attributes; parameters are never removed."""

    name = "dce"

    def run(self, module: Module, ctx: object) -> None:
        for fn in module.functions.values():
            eliminate(fn)


def eliminate(fn: Function) -> int:
    """Remove dead ops; the number removed."""
    live: set[Op] = set()
    symbols: set[str] = set()
    binders: dict[str, list[Op]] = {}
    seen_dims: set[object] = set()
    stack: list[Op] = []

    def mark(op: Op) -> None:
        if op not in live:
            live.add(op)
            stack.append(op)

    def need_symbols(op_dims: object) -> None:
        for d in op_dims:  # type: ignore[attr-defined]
            if d in seen_dims:
                continue
            seen_dims.add(d)
            for s in d.symbols():
                if s not in symbols:
                    symbols.add(s)
                    for b in binders.get(s, ()):
                        mark(b)

    _collect_binders(fn.body, binders)
    mark(fn.body.terminator)
    for op in fn.body.ops:
        if may_fail(op):
            mark(op)
    while stack:
        op = stack.pop()
        need_symbols(dims_of_op(op))
        for v in op.operands:
            if v.op is not None:
                mark(v.op)
            elif isinstance(v.owner, Block) and v.owner.parent_op is not None:
                mark(v.owner.parent_op)
        for region in op.regions:
            for inner in region.ops:
                if inner.name == "return" or may_fail(inner):
                    mark(inner)
    return _sweep(fn.body, live)


def _collect_binders(block: Block, binders: dict[str, list[Op]]) -> None:
    for op in block.ops:
        if op.name == "disc.bind_dim":
            binders.setdefault(op.attrs["symbol"], []).append(op)
        for region in op.regions:
            _collect_binders(region, binders)


def _sweep(block: Block, live: set[Op]) -> int:
    removed = 0
    kept: list[Op] = []
    for op in block.ops:
        if op in live:
            kept.append(op)
            for region in op.regions:
                removed += _sweep(region, live)
        else:
            removed += 1
    if len(kept) != len(block.ops):
        for op in reversed(block.ops):
            if op not in live:
                op.drop()
                op.parent = None
    block.ops = kept
    return removed
