"""A value that grows or shrinks in a loop lies in a store with room for the most that it becomes; the rest of it is of no meaning."""

from __future__ import annotations

from collections.abc import Mapping

from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext


def used_part(ctx: LoweringContext, store: Value, extents: Mapping[int, Dim]) -> Value:
    """The part of a store that is in use: the first ``extents[axis]`` along each of these axes."""
    limits = [extents.get(axis, d) for axis, d in enumerate(store.dims)]
    return ctx.b.slice(store, [0] * store.rank, limits, [1] * store.rank)


def stored(ctx: LoweringContext, new: Value, view: Value, store: Value) -> Value:
    """The store that holds ``new``, where ``store`` holds ``view``. The store itself if ``new`` is a first part of ``view``.

    ``concatenate(view, x...)`` and ``view`` with one row written at its end or inside write into the store what is new; everything else
    is copied. Readers of ``new`` then read the store.
    """
    op = new.op
    if new is view or _is_first_part(new, view):
        return store
    if op is not None and op.parent is ctx.b.block:
        if op.name == "concatenate" and op.operands[0] is view and _fits(new, store, op.attrs["dimension"]):
            return _append(ctx, op, store)
        if op.name == "dynamic_update_slice" and _is_padded(ctx, op.operands[0], view):
            return ctx.b.dynamic_update_slice(store, op.operands[1], op.operands[2:])
    room = [have - d for have, d in zip(store.dims, new.dims, strict=True)]
    if all(d == 0 for d in room):
        return new
    none = [0] * new.rank
    return ctx.b.pad(new, ctx.scalar(0, new.dtype), none, room, none)


def _is_first_part(new: Value, view: Value) -> bool:
    op = new.op
    if op is None or op.name != "slice" or op.operands[0] is not view:
        return False
    return all(s == 0 for s in op.attrs["starts"]) and all(s == 1 for s in op.attrs["strides"])


def _fits(new: Value, store: Value, axis: int) -> bool:
    """Whether the store has room along one axis only."""
    return all(a == b for i, (a, b) in enumerate(zip(new.dims, store.dims, strict=True)) if i != axis)


def _is_padded(ctx: LoweringContext, x: Value, view: Value) -> bool:
    """``view``, or ``view`` with zeros behind the end of its first axis. Behind the used part of a store that nothing but such writes
    change there are zeros, too."""
    if x is view:
        return True
    op = x.op
    if op is None or op.name != "pad" or op.operands[0] is not view or any(d != 0 for d in (*op.attrs["low"], *op.attrs["interior"])):
        return False
    zero = ctx.constant(op.operands[1])
    return zero is not None and not zero.any() and all(d == 0 for d in op.attrs["high"][1:])


def _append(ctx: LoweringContext, op: Op, store: Value) -> Value:
    """Write the other parts of a concatenation into the store, right behind that op; its readers read the store."""
    block, axis, new = ctx.b.block, op.attrs["dimension"], op.result
    before = len(block.ops)
    at = op.operands[0].dims[axis]
    out = store
    zero = ctx.scalar(0, DType.I64)
    for part in op.operands[1:]:
        starts = [zero] * new.rank
        starts[axis] = ctx.dim(at)
        out = ctx.b.dynamic_update_slice(out, part, starts)
        at = at + part.dims[axis]
    view = used_part(ctx, out, {axis: new.dims[axis]})
    made, ops = block.ops[before:], block.ops[:before]
    where = ops.index(op) + 1
    block.ops = [*ops[:where], *made, *ops[where:]]
    for user, i in list(new.uses):
        user.set_operand(i, view)
    return out
