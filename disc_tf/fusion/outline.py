"""Regions of ``while`` and ``case`` as functions of their own, so that they are planned as any other body.

The function's first parameters are the region's, the others stand for *captures*: values of the enclosing function that the region reads.
What costs nothing to make again (constants, dims, views) is copied inside instead, so that a transposed weight is still a stride, and
a captured weight keeps its kind: products inside a loop use it packed.

In a loop's body two forms of stack access become plain addresses: a ``dynamic_slice`` is a ``slice`` at a bound symbol (a view), and a
``dynamic_update_slice`` of a carried value that nothing else reads is carried out in place (`UPDATE`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from disc_tf.fusion.views import VIEW_OPS
from disc_tf.ir.core import ArgInfo as Info
from disc_tf.ir.core import Block, Function, Op, Value, clone_block, outer_values
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType, TensorType
from disc_tf.passes.placement import can_host, is_host_scalar

REGION_OPS = frozenset({"while", "case"})
#: operands: the carried value, the update, the start along dimension ``axis`` (a host scalar). Made here only, after all passes.
UPDATE = "disc.update_in_place"
_WEIGHTS = ("const", "variable", "prepared")


@dataclasses.dataclass(eq=False)
class RegionFunction:
    """``function``'s parameters from ``own`` on stand for ``captures``. ``in_place``: numbers of carried values that the body changes
    where they lie."""

    function: Function
    own: int
    captures: list[Value]
    in_place: frozenset[int] = frozenset()


def outline_regions(op: Op, outer: Function) -> list[RegionFunction]:
    """The regions of a ``while`` or ``case`` of the body of ``outer``."""
    if op.name == "case":
        return [_outline(block, outer, f"branch{i}") for i, block in enumerate(op.regions)]
    cond, body = (_outline(block, outer, name) for block, name in zip(op.regions, ("cond", "body"), strict=True))
    body.in_place = _update_in_place(body.function, cond.function, body.own)
    _slices_as_views(body.function)
    return [cond, body]


def _outline(block: Block, outer: Function, name: str) -> RegionFunction:
    fn = Function(f"{outer.name}.{name}")
    fn.env = outer.env.child()
    mapping: dict[Value, Value] = {}
    for i, p in enumerate(block.params):
        mapping[p] = fn.add_arg(p.tensor, Info(p.hint or f"carried{i}"))
    captures: list[Value] = []
    for v in outer_values(block):
        _bring(v, fn, outer, mapping, captures)
    copy = clone_block(block, mapping)
    # The cloned block made parameters of its own: those of the function take their place.
    for mine, theirs in zip(fn.params, copy.params, strict=False):
        for op, i in list(theirs.uses):
            op.set_operand(i, mine)
    for op in copy.ops:
        fn.body.append(op)
    return RegionFunction(fn, len(block.params), captures)


def _bring(v: Value, fn: Function, outer: Function, mapping: dict[Value, Value], captures: list[Value]) -> None:
    """Make ``v`` available in ``fn``: a copy if that costs nothing, else a parameter."""
    if v in mapping:
        return
    op = v.op
    if op is not None and is_free(op):
        for x in op.operands:
            _bring(x, fn, outer, mapping, captures)
        copy = fn.body.append(Op(op.name, [mapping[x] for x in op.operands], [v.type], op.attrs, (), op.loc))
        mapping[v] = copy.result
        return
    info = Info(v.hint or f"capture{len(captures)}")
    if op is None and v.owner is outer.body and v.index < len(outer.args) and outer.args[v.index].kind in _WEIGHTS:
        info = dataclasses.replace(outer.args[v.index])
    captures.append(v)
    mapping[v] = fn.add_arg(v.tensor, info)


def is_free(op: Op) -> bool:
    """Whether a region may make the op's result again: it moves no data, or is scalar arithmetic on dims and constants."""
    if op.name in ("constant", "disc.dim", "iota") or op.name in VIEW_OPS:
        return len(op.results) == 1
    return can_host(op) and all(v.op is not None and is_free(v.op) for v in op.operands)


# ---- access to stacks ---------------------------------------------------------------------------------------------


def _is_zero(v: Value) -> bool:
    content = v.op.attrs["value"] if v.op is not None and v.op.name == "constant" else None
    return content is not None and content.size == 1 and int(np.asarray(content).reshape(-1)[0]) == 0


def _update_in_place(fn: Function, cond: Function, own: int) -> frozenset[int]:
    """Mark updates ``carried[..., i] = update`` of whole slices along one dimension, whose operand nobody else reads. Others may read the
    result: it lies in the same place from then on."""
    found: set[int] = set()
    for k, v in enumerate(fn.results[:own]):
        op, param = v.op, fn.params[k]
        if op is None or op.name != "dynamic_update_slice" or op.operands[0] is not param or not param.rank:
            continue
        _, update, *starts = op.operands
        axis = next((i for i, s in enumerate(starts) if not _is_zero(s)), 0)
        others = [i for i in range(param.rank) if i != axis]
        whole = all(_is_zero(starts[i]) and param.dims[i] == update.dims[i] for i in others)
        if not whole or len(param.uses) != 1 or cond.params[k].uses or not is_host_scalar(starts[axis]):
            continue
        new = Op(UPDATE, [param, update, starts[axis]], [v.type], {"axis": axis}, (), op.loc)
        _replace(fn, op, [new], new.result)
        found.add(k)
    return frozenset(found)


def _replace(fn: Function, op: Op, new: list[Op], value: Value) -> None:
    at = fn.body.ops.index(op)
    for user, i in list(op.result.uses):
        user.set_operand(i, value)
    op.set_operands(())
    fn.body.ops[at : at + 1] = new
    for o in new:
        o.parent = fn.body


def _slices_as_views(fn: Function) -> None:
    """``dynamic_slice`` at host scalars -> ``slice`` at symbols bound to the clamped starts."""
    prefix, made = f"at{fn.name.count('.')}_", 0
    for op in list(fn.body.ops):
        if op.name != "dynamic_slice" or not all(is_host_scalar(s) for s in op.operands[1:]):
            continue
        x, *starts = op.operands
        ops: list[Op] = []
        low: list[Dim] = []
        for start, size, extent in zip(starts, op.result.dims, x.dims, strict=True):
            if size == extent:
                low.append(Dim.of(0))
                continue
            symbol = f"{prefix}{made}"
            made += 1
            ops += _bound_start(start, extent - size, symbol, op.loc)
            fn.env.set_range(Dim.of(symbol), 0, None)
            low.append(Dim.of(symbol))
        limits = tuple(a + n for a, n in zip(low, op.result.dims, strict=True))
        attrs = {"starts": tuple(low), "limits": limits, "strides": (1,) * x.rank}
        view = Op("slice", [x], [op.result.type], attrs, (), op.loc)
        _replace(fn, op, [*ops, view], view.result)


def _bound_start(start: Value, room: Dim, symbol: str, loc: tuple[str, ...]) -> list[Op]:
    """Bind ``symbol`` to ``start`` clamped to ``[0, room]``."""
    i64 = TensorType(DType.I64, ())
    ops: list[Op] = []

    def make(name: str, operands: list[Value], attrs: Mapping[str, object] | None = None) -> Value:
        ops.append(Op(name, operands, [i64], attrs, (), loc))
        return ops[-1].result

    wide = start if start.dtype is DType.I64 else make("convert", [start])
    top = make("disc.dim", [], {"dim": room}) if not room.is_static else make("constant", [], {"value": np.array(int(room), np.int64)})
    zero = make("constant", [], {"value": np.array(0, np.int64)})
    inside = make("maximum", [make("minimum", [wide, top]), zero])
    ops.append(Op("disc.bind_dim", [inside], [], {"symbol": symbol}, (), loc))
    return ops


__all__ = ["REGION_OPS", "UPDATE", "RegionFunction", "is_free", "outline_regions"]
