"""Batch normalisation at inference folds into the weights before it: ``(x W - mean) * factor + offset`` is ``x (W * factor) + bias``.

More generally, a chain of additions, subtractions and multiplications by numbers of weights, one for each output channel, behind a
convolution or a product with a weight. Factors go into the weight, the rest becomes one addition; both are made of weights alone, so that
`outline_prepare` moves them out of what runs. The sum is rounded otherwise than before, within the bound of a sum of the same terms in
another order (docs/numerics.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from disc_tf.ir.core import Function, Module, Op, Value, replace_all_uses
from disc_tf.ir.dims import Dim
from disc_tf.ir.pass_manager import Pass
from disc_tf.ir.types import DType, TensorType
from disc_tf.passes.dot_rules import free_dims
from disc_tf.passes.outline_prepare import weight_parameters, weight_values
from disc_tf.passes.rewriter import Rewriter

_AFFINE = ("add", "subtract", "multiply")
_LAYOUT = ("reshape", "transpose")


@dataclasses.dataclass(frozen=True)
class FoldNorms(Pass):
    """Fold factors and offsets of output channels, made of weights alone, into the weight of the product or convolution before them."""

    name = "fold-norms"

    def run(self, module: Module, ctx: object) -> None:
        fold(module.main)


@dataclasses.dataclass(frozen=True)
class _Chain:
    """What follows a linear op: ops in order (`_AFFINE` and `_LAYOUT`), and the operand of each affine one, by channel (or one number)."""

    ops: list[Op]
    numbers: dict[Op, Value]
    axis: int  #: of the channels in the last op's result


def fold(fn: Function) -> int:
    """How many chains were folded."""
    weights = weight_parameters(fn)
    made = weight_values(fn, weights)

    def is_weight(v: Value) -> bool:
        return v in weights or v.op in made

    chains = {c.ops[-1]: (op, c) for op in fn.body.ops if (c := _chain(op, is_weight)) is not None}
    gone = {x for op, chain in chains.values() for x in (op, *chain.ops)}
    out: list[Op] = []
    rw = Rewriter(fn.env, out, fn.body)
    for op in fn.body.ops:
        if op in chains:
            replace_all_uses(op.result, _folded(rw, *chains[op]))
        elif op not in gone:
            out.append(op)
    for op in reversed([op for op in fn.body.ops if op in gone]):
        op.drop()
        op.parent = None
    fn.body.ops = out
    return len(chains)


def _weight_axis(op: Op) -> int | None:
    """The axis of the right operand that is the last one of the result, the channels: of a convolution, or of a product of a matrix."""
    if op.name == "convolution":
        return op.operands[1].rank - 1
    if op.name != "dot_general" or op.attrs["rhs_batching"]:
        return None
    free = free_dims(op)
    return free[0] if len(free) == 1 else None


def _chain(op: Op, is_weight: Callable[[Value], bool]) -> _Chain | None:
    """The longest chain behind a linear op of data that ends with an affine op and multiplies somewhere by a number for each channel."""
    if _weight_axis(op) is None or is_weight(op.operands[0]) or not is_weight(op.operands[1]):
        return None
    dtype = op.result.dtype
    if dtype not in (DType.F32, DType.F64) or any(v.dtype is not dtype for v in op.operands):
        return None
    channels = op.result.dims[-1]
    axis, at = op.result.rank - 1, op.result
    ops: list[Op] = []
    numbers: dict[Op, Value] = {}
    end = (0, axis)
    while len(at.uses) == 1:
        user = next(iter(at.uses))[0]
        if user.parent is not op.parent:
            break
        if user.name in _LAYOUT:
            moved = _moved(user, axis, channels)
            if moved is None:
                break
            axis = moved
        elif user.name in _AFFINE and user.result.dtype is dtype:
            other = user.operands[1] if user.operands[0] is at else user.operands[0]
            number = _by_channel(other, axis, is_weight)
            if number is None or (user.name == "subtract" and user.operands[0] is not at):
                break
            numbers[user] = number
        else:
            break
        ops.append(user)
        at = user.result
        if user in numbers:
            end = (len(ops), axis)
    ops = ops[: end[0]]
    if not any(o.name == "multiply" and numbers[o].rank for o in ops if o in numbers):
        return None
    return _Chain(ops, numbers, end[1])


def _moved(op: Op, axis: int, channels: Dim) -> int | None:
    """Where the channels are after a change of layout; None if they are no axis of their own."""
    if op.name == "transpose":
        return list(op.attrs["permutation"]).index(axis)
    source, result = op.operands[0].dims, op.result.dims
    last = axis == len(source) - 1 and bool(result) and result[-1] == channels
    return len(result) - 1 if last else None


def _by_channel(v: Value, axis: int, is_weight: Callable[[Value], bool]) -> Value | None:
    """The vector (or scalar) of weights that ``v`` repeats over all axes but the channels'."""
    op = v.op
    if op is None or op.name != "broadcast_in_dim":
        return None
    source, mapping = op.operands[0], tuple(op.attrs["broadcast_dimensions"])
    if not is_weight(source) or (source.rank and mapping != (axis,)) or source.rank > 1:
        return None
    return source if not source.rank or source.dims[0] == v.dims[axis] else None


def _folded(rw: Rewriter, op: Op, chain: _Chain) -> Value:
    """The linear op with the chain's factors in its weight, its layout, and one addition."""
    x, w = op.operands
    vector = TensorType(w.dtype, (op.result.dims[-1],))
    factor = bias = None

    def combined(name: str, a: Value | None, number: Value) -> Value:
        number = number if number.rank else rw.broadcast(number, vector.dims, ())
        if a is None:
            return rw.value("negate", [number], vector) if name == "subtract" else number
        return rw.value(name, [a, number], vector)

    for step in chain.ops:
        rw.loc = step.loc
        if step.name == "multiply":
            factor = combined("multiply", factor, chain.numbers[step])
            bias = None if bias is None else combined("multiply", bias, chain.numbers[step])
        elif step in chain.numbers:
            bias = combined(step.name, bias, chain.numbers[step])
    assert factor is not None
    rw.loc = op.loc
    axis = _weight_axis(op)
    assert axis is not None
    w = rw.value("multiply", [w, rw.broadcast(factor, w.dims, (axis,))], w.tensor)
    rw.loc = tuple(dict.fromkeys(name for o in (op, *chain.ops) for name in o.loc))
    y = rw.value(op.name, [x, w], op.result.type, op.attrs)
    for step in chain.ops:
        if step.name in _LAYOUT:
            y = rw.value(step.name, [y], step.result.type, step.attrs)
    if bias is None:
        return y
    return rw.value("add", [y, rw.broadcast(bias, y.dims, (chain.axis,))], y.type)
