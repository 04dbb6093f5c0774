"""What a loop's condition and its counters say: comparisons that always hold in its body, and results that tell only whether it ran.

* The body runs where the condition held, of the same carried values: what is one of its terms is true there.
* A carried value that starts at a number from 0 on and is incremented, below a limit that the condition tests, is never negative: from one
  below any limit the next number does not wrap.
* A carried scalar whose next value is a constant is that constant after the loop if the condition held at first, else what it was.

The checks of indices into a recurrent layer's lists go with these, and the loop has nothing left that may fail.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from disc_tf.ir.core import Block, Module, Op, Value, replace_all_uses
from disc_tf.ir.pass_manager import Pass
from disc_tf.ir.types import DType, TensorType
from disc_tf.passes.rewriter import constant_of, dims_of_op

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
    terms = {_key(v.op, cond) for v in _terms(cond.results[0]) if v.op is not None and v.op.name == "compare"}
    natural = {k for k, p in enumerate(body.params) if _counts_up(loop, k) and any(_limits(t, k) for t in terms)}
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


def _terms(v: Value) -> Iterator[Value]:
    """The values that a conjunction joins."""
    todo = [v]
    while todo:
        v = todo.pop()
        if v.op is not None and v.op.name == "and" and not v.rank:
            todo += v.op.operands
        else:
            yield v


def _operand(v: Value, block: Block) -> Hashable:
    """What an operand is, whichever of a loop's regions reads it."""
    if v in block.params:
        return "carried", block.params.index(v)
    content = constant_of(v)
    if content is not None and content.size == 1:
        return "number", v.dtype, content.reshape(-1)[0].item()
    if v.op is not None and v.op.name == "disc.dim":
        return "dim", v.dtype, v.op.attrs["dim"]
    return v


def _key(op: Op, block: Block) -> tuple[str, Hashable, Hashable]:
    """A comparison, written so that its left operand is the carried value if one is."""
    x, y = (_operand(v, block) for v in op.operands)
    direction = op.attrs["direction"]
    carried = isinstance(y, tuple) and y[0] == "carried" and not (isinstance(x, tuple) and x[0] == "carried")
    return (_TURNED[direction], y, x) if carried else (direction, x, y)


def _limits(term: tuple[str, Hashable, Hashable], k: int) -> bool:
    """Whether a term says that carried value ``k`` is below something."""
    return term[0] == "LT" and term[1] == ("carried", k)


def _counts_up(loop: Op, k: int) -> bool:
    """Whether carried value ``k`` is an integer that starts at a number from 0 on, to which each iteration adds 1."""
    body = loop.regions[1]
    p, first, step = body.params[k], constant_of(loop.operands[k]), body.results[k].op
    if p.dtype not in (DType.I32, DType.I64) or p.rank or first is None or int(first.reshape(-1)[0]) < 0:
        return False
    if step is None or step.name != "add" or p not in step.operands:
        return False
    by = constant_of(step.operands[1 - step.operands.index(p)])
    return by is not None and by.size == 1 and int(by.reshape(-1)[0]) == 1


def _is_natural(op: Op, body: Block, natural: set[int]) -> bool:
    """``counter >= 0`` or ``counter > -1``."""
    direction, x, y = _key(op, body)
    if not (isinstance(x, tuple) and x[0] == "carried" and x[1] in natural and isinstance(y, tuple) and y[0] == "number"):
        return False
    return (direction == "GE" and y[2] <= 0) or (direction == "GT" and y[2] < 0)


def _first_test(loop: Op) -> list[Op]:
    """Ops behind the loop that replace scalar results which are constant from the first iteration on."""
    cond, body = loop.regions
    wanted = [
        k for k, r in enumerate(loop.results)
        if r.uses and isinstance(r.type, TensorType) and not r.type.dims and constant_of(body.results[k]) is not None
    ]  # fmt: skip
    if not wanted or len(cond.ops) > _MOST_OPS or not all(_leaves(op, _own_symbols(loop)) for op in _computing(cond)):
        return []
    out: list[Op] = []
    mapping: dict[Value, Value] = dict(zip(cond.params, loop.operands, strict=True))
    for op in _computing(cond):
        copy = Op(op.name, [mapping.get(v, v) for v in op.operands], [op.result.type], dict(op.attrs), (), op.loc)
        mapping[op.result] = copy.result
        out.append(copy)
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


def _computing(cond: Block) -> list[Op]:
    return [op for op in cond.ops if op.name != "return"]
