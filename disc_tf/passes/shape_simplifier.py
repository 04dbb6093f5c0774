"""Shape simplification: what the shape environment knows goes into every type and attribute, and proved checks go."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from disc_tf.ir.core import Block, Function, Module, Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.pass_manager import Pass
from disc_tf.passes.elementwise_rules import compare_dims
from disc_tf.passes.rewriter import Rewriter, map_dims_in, map_type, rewrite, splat_of, table


@dataclasses.dataclass(frozen=True)
class ShapeSimplifier(Pass):
    """Simplify all dims by the function's facts; decide comparisons of dims; drop checks that always hold.

    ``reshape`` and ``broadcast_in_dim`` that become identities are left to `Canonicalize`.
    """

    name = "shape_simplifier"

    def run(self, module: Module, ctx: object) -> None:
        for fn in module.functions.values():
            simplify_shapes(fn)


def simplify_shapes(fn: Function) -> None:
    retype(fn, fn.env.simplify)
    rewrite(fn, CHECK_RULES)


def retype(fn: Function, f: Callable[[Dim], Dim]) -> None:
    """Apply ``f`` to every dim of every type and attribute, in place."""
    memo: dict[Dim, Dim] = {}

    def g(d: Dim) -> Dim:
        new = memo.get(d)
        if new is None:
            new = memo[d] = f(d)
        return new

    _retype_block(fn.body, g)


def _retype_block(block: Block, f: Callable[[Dim], Dim]) -> None:
    for p in block.params:
        p.type = map_type(p.type, f)
    for op in block.ops:
        for r in op.results:
            r.type = map_type(r.type, f)
        for key, value in op.attrs.items():
            new = map_dims_in(value, f)
            if new is not value and not isinstance(value, np.ndarray):
                op.attrs[key] = new
        for region in op.regions:
            _retype_block(region, f)


def drop_proved_check(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """``disc.check(true, token)`` is its token."""
    pred, token = op.operands
    c = splat_of(pred)
    return [token] if c is not None and bool(c) else None


def logic(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """``and``/``or`` of scalars with a known side."""
    if op.result.rank or not op.result.dtype.is_bool:
        return None
    a, b = op.operands
    for x, other in ((a, b), (b, a)):
        c = splat_of(x)
        if c is not None:
            absorbing = bool(c) == (op.name == "or")
            return [x if absorbing else other]
    return None


def after_all(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    tokens = list(dict.fromkeys(v for v in op.operands if v.op is None or v.op.name != "disc.create_token"))
    if len(tokens) == len(op.operands):
        return None
    if len(tokens) == 1:
        return tokens
    if not tokens:
        return [op.operands[0]]
    return [rw.value("disc.after_all", tokens, op.result.type)]


CHECK_RULES = table(
    (["compare"], compare_dims),
    (["and", "or"], logic),
    (["disc.check"], drop_proved_check),
    (["disc.after_all"], after_all),
)
