"""BroadcastGradientArgs: along which axes the gradient of a broadcast operand is summed up."""

from __future__ import annotations

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.registry import lowering
from disc_tf.lowering.shapes import invalid


@lowering(
    "BroadcastGradientArgs",
    dtypes={"T": {DType.I32, DType.I64}},
    limits="it is known of every pair of dims whether they are equal, and of every dim whether it is 1, or the shapes are equal",
)
def broadcast_gradient_args(ctx: LoweringContext, _node: NodeView, s0: Value, s1: Value) -> list[Value]:
    """The axes of the common shape that each of two shapes is broadcast along, in ascending order."""
    shapes = [ctx.dims_of(s) for s in (s0, s1)]
    if shapes[0] is None or shapes[1] is None:
        raise Unsupported("NOT_CONSTANT", "a shape of BroadcastGradientArgs is not known at compile time")
    rank = max(len(shapes[0]), len(shapes[1]))
    a, b = ([Dim.of(1)] * (rank - len(s)) + s for s in (shapes[0], shapes[1]))
    if len(shapes[0]) == len(shapes[1]) and all(ctx.env.is_equal(x, y) is True for x, y in zip(a, b, strict=True)):
        return [ctx.const(np.zeros(0, s0.dtype.np)) for _ in range(2)]  # also along axes of 1
    reduced: tuple[list[int], list[int]] = ([], [])
    for axis, (x, y) in enumerate(zip(a, b, strict=True)):
        ones = [ctx.env.is_equal(d, 1) for d in (x, y)]
        if ones == [True, True]:
            reduced[0].append(axis)
            reduced[1].append(axis)
            continue
        same = ctx.env.is_equal(x, y)
        if same is True and None not in ones:
            continue
        if True in ones and False in ones:
            reduced[ones.index(True)].append(axis)
        elif ones == [False, False] and same is False:
            raise invalid(f"Incompatible shapes: {[str(d) for d in a]} vs. {[str(d) for d in b]}")
        else:
            raise Unsupported("SHAPE", f"whether {x} is broadcast to {y} is not known at compile time")
    return [ctx.const(np.array(axes, s0.dtype.np)) for axes in reduced]
