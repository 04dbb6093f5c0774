"""Concatenations of very many parts become trees of smaller ones.

A kernel branches over the parts of a concatenation, and what LLVM needs for such a chain grows with the square of its length: 1,000
features of a click model would take minutes. In a tree each element is copied once or twice more.
"""

from __future__ import annotations

import dataclasses

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import Function, Module, Op
from disc_tf.ir.pass_manager import Pass

#: parts of one concatenation at most
WIDEST = 24


@dataclasses.dataclass(frozen=True)
class WideConcats(Pass):
    """Split each ``concatenate`` of more than `WIDEST` operands. Kernels do not join the levels again (`fusion.plan`)."""

    name = "wide-concats"

    def run(self, module: Module, ctx: object) -> None:
        for fn in module.functions.values():
            for op in list(fn.body.ops):
                if op.name == "concatenate" and len(op.operands) > WIDEST:
                    _split(fn, op)


def _split(fn: Function, op: Op) -> None:
    b = Builder(fn.body, fn.env, op.loc, before=op)
    axis, parts = op.attrs["dimension"], list(op.operands)
    while len(parts) > WIDEST:
        groups = [parts[i : i + WIDEST] for i in range(0, len(parts), WIDEST)]
        parts = [b.concatenate(group, axis) if len(group) > 1 else group[0] for group in groups]
    op.set_operands(tuple(parts))
