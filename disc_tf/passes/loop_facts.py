"""What a loop's condition and its counters say: comparisons that always hold in its body, and results that tell only whether it ran.

* The body runs where the condition held, of the same carried values: what is one of its terms is true there.
* A carried value that starts at a number from 0 on and is incremented, below a limit that the condition tests, is never negative: from one
  below any limit the next number does not wrap.
* A carried scalar whose next value is a constant is that constant after the loop if the condition held at first, else what it was.

The checks of indices into a recurrent layer's lists go with these, and the loop has nothing left that may fail.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from disc_tf.ir.core import Block, Module, Op, Value, clone_op, replace_all_uses
from disc_tf.ir.pass_manager import Pass
from disc_tf.ir.types import TensorType
from disc_tf.passes.loops import counts_from
from disc_tf.passes.rewriter import conjuncts, constant_of, dims_of_op

_TURNED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "EQ": "EQ", "NE": "NE"}
#: a condition of more ops is not computed once more in front of the loop
_MOST_OPS = 16
_CHEAP = frozenset({"constant", "disc.dim", "compare", "and", "or", "not", "add", "subtract", "convert"})


@dataclasses.dataclass(frozen=True)
class LoopFacts(Pass):
    """Replace in every ``while`` what its condition and counters decide."""

    name = "loop-facts"

    def run(self, module: Module, ctx: object) -> None:
        for fn in module.functions.values():
            _block(fn.body)


def _block(block: Block) -> None:
    out: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            _block(region)
        out.append(op)
        if op.name == "while":
            _decide(op)
            out += _first_test(op)
    block.set_ops(out)


def _decide(loop: Op) -> None:
    """Comparisons of the body that are true."""
    cond, body = loop.regions
    terms = {_key(v.op, cond) for v in conjuncts(cond.results[0]) if v.op is not None and v.op.name == "compare"}
    limited = {x[1] for how, x, _ in terms if how == "LT" and _is_carried(x)}
    natural = {k for k in limited if (first := counts_from(loop, k)) is not None and first >= 0}
    out: list[Op] = []
    for op in body.ops:
        if op.name == "compare" and not op.result.rank and (_key(op, body) in terms or _is_natural(op, body, natural)):
            true = Op("constant", [], [op.result.type], {"value": np.array(True)}, (), op.loc)
            replace_all_uses(op.result, true.result)
            op.drop()
            op.parent = None
            op = true
        out.append(op)
    body.set_ops(out)


def _operand(v: Value, block: Block) -> Any:
    """What an operand is, whichever of a loop's regions reads it."""
    if v in block.params:
        return "carried", block.params.index(v)
    content = constant_of(v)
    if content is not None and content.size == 1:
        return "number", v.dtype, content.reshape(-1)[0].item()
    if v.op is not None and v.op.name == "disc.dim":
        return "dim", v.dtype, v.op.attrs["dim"]
    return v


def _key(op: Op, block: Block) -> tuple[str, Any, Any]:
    """A comparison, written so that its left operand is the carried value if one is."""
    x, y = (_operand(v, block) for v in op.operands)
    direction = op.attrs["direction"]
    return (_TURNED[direction], y, x) if _is_carried(y) and not _is_carried(x) else (direction, x, y)


def _is_carried(operand: Any) -> bool:
    return isinstance(operand, tuple) and operand[0] == "carried"


def _is_natural(op: Op, body: Block, natural: set[int]) -> bool:
    """``counter >= 0`` or ``counter > -1``."""
    direction, x, y = _key(op, body)
    if not (_is_carried(x) and x[1] in natural and isinstance(y, tuple) and y[0] == "number"):
        return False
    return (direction == "GE" and y[2] <= 0) or (direction == "GT" and y[2] < 0)


def _first_test(loop: Op) -> list[Op]:
    """Ops behind the loop that replace scalar results which are constant from the first iteration on."""
    cond, body = loop.regions
    wanted = [
        k for k, r in enumerate(loop.results)
        if r.uses and isinstance(r.type, TensorType) and not r.type.dims and constant_of(body.results[k]) is not None
    ]  # fmt: skip
    computing, own = [op for op in cond.ops if op.name != "return"], _own_symbols(loop)
    if not wanted or len(computing) >= _MOST_OPS or not all(_leaves(op, own) for op in computing):
        return []
    mapping: dict[Value, Value] = dict(zip(cond.params, loop.operands, strict=True))
    out = [clone_op(op, mapping) for op in computing]
    ran = mapping.get(cond.results[0], cond.results[0])
    for k in wanted:
        old, content = loop.results[k], constant_of(body.results[k])
        number = Op("constant", [], [old.type], {"value": content}, (), loop.loc)
        chosen = Op("select", [ran, number.result, loop.operands[k]], [old.type], {}, (), loop.loc)
        replace_all_uses(old, chosen.result)
        out += [number, chosen]
    return out


def _leaves(op: Op, own: set[str]) -> bool:
    """Whether an op of the condition may be computed in front of the loop as well. ``own``: symbols that the regions alone know."""
    return op.name in _CHEAP and not op.result.rank and all(own.isdisjoint(d.symbols()) for d in dims_of_op(op))


def _own_symbols(loop: Op) -> set[str]:
    def symbols(values: Sequence[Value]) -> set[str]:
        return {s for v in values for d in v.dims for s in d.symbols()}

    return symbols(loop.regions[0].params) - symbols(loop.operands)
