"""Pack, Unpack, Concat, Split, Tile."""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType
from disc_tf.lowering.content import RunTimeFacts, bind, constant_int, element_dims
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import ALL, lowering
from disc_tf.lowering.shape_ops import shape_operand
from disc_tf.lowering.shapes import invalid, normal_axis
from disc_tf.lowering.symbolic import is_negative_flag


def slice_along(ctx: LoweringContext, x: Value, axis: int, start: Dim, length: Dim, stride: int = 1) -> Value:
    """``x[..., start : start + length : stride, ...]`` along one axis, which the caller knows to be in bounds."""
    if start == 0 and stride == 1 and length == x.dims[axis]:
        return x
    starts = [Dim.of(0)] * x.rank
    limits = list(x.dims)
    strides = [Dim.of(1)] * x.rank
    starts[axis], limits[axis], strides[axis] = start, start + length, Dim.of(stride)
    return ctx.b.slice(x, starts, limits, strides)


def drop_axis(ctx: LoweringContext, x: Value, axis: int) -> Value:
    """``x`` without an axis of extent 1."""
    return ctx.b.reshape(x, (*x.dims[:axis], *x.dims[axis + 1 :]))


@lowering("Pack", dtypes=ALL)
def pack(ctx: LoweringContext, node: NodeView, *xs: Value) -> Value:
    """Join along a new axis."""
    first = xs[0]
    axis = normal_axis(int(node.attr("axis", 0)), first.rank + 1)
    for i, x in enumerate(xs[1:], 1):
        ctx.require_same_shape(
            first, x, f"Shapes of all inputs must match: values[0].shape = {plain(first.type)}, [{i}] {plain(x.type)}"
        )
    parts = [
        ctx.b.reshape(ctx.cast_dims(x, first.dims), (*first.dims[:axis], Dim.of(1), *first.dims[axis:]))
        for x in xs
    ]
    return parts[0] if len(parts) == 1 else ctx.b.concatenate(parts, axis)


@lowering("Unpack", dtypes=ALL)
def unpack(ctx: LoweringContext, node: NodeView, x: Value) -> list[Value]:
    """The ``num`` slices along an axis."""
    axis, num = normal_axis(int(node.attr("axis", 0)), x.rank), int(node.attr("num"))
    ctx.check_dims_eq(
        x.dims[axis], num, message=f"Input shape axis {axis} must equal {plain(num)}, got shape {plain(x.type)}"
    )
    dims = list(x.dims)
    dims[axis] = Dim.of(num)
    x = ctx.cast_dims(x, dims)
    return [drop_axis(ctx, slice_along(ctx, x, axis, Dim.of(i), Dim.of(1)), axis) for i in range(num)]


def concat(ctx: LoweringContext, xs: Sequence[Value], axis: int) -> Value:
    """Join along an axis; the other dims must be equal."""
    first = xs[0]
    if any(x.rank != first.rank for x in xs):
        raise invalid("ConcatOp : Ranks of all input tensors should match")
    axis = normal_axis(
        axis, first.rank, f"ConcatOp : Expected concatenating dimensions in the range, but got {axis}"
    )
    parts = [first]
    for i, x in enumerate(xs[1:], 1):
        dims = list(first.dims)
        dims[axis] = x.dims[axis]
        for j in range(first.rank):
            if j != axis:
                message = (
                    f"ConcatOp : Dimension {j} in both shapes must be equal: shape[0] = {plain(first.type)} vs. "
                    f"shape[{i}] = {plain(x.type)}"
                )
                ctx.check_dims_eq(first.dims[j], x.dims[j], message=message)
        parts.append(ctx.cast_dims(x, dims))
    return first if len(parts) == 1 else ctx.b.concatenate(parts, axis)


@lowering("ConcatV2", dtypes=ALL, limits="the axis is constant")
def concat_v2(ctx: LoweringContext, _node: NodeView, *args: Value) -> Value:
    """The axis comes last."""
    return concat(ctx, args[:-1], constant_int(ctx, args[-1], "the axis of ConcatV2"))


@lowering("Concat", dtypes=ALL, limits="the axis is constant")
def concat_v1(ctx: LoweringContext, _node: NodeView, axis: Value, *xs: Value) -> Value:
    """The axis comes first."""
    return concat(ctx, xs, constant_int(ctx, axis, "the axis of Concat"))


@lowering("Split", dtypes=ALL, limits="the axis is constant")
def split(ctx: LoweringContext, node: NodeView, axis: Value, x: Value) -> list[Value]:
    """``num_split`` equal parts; an extent that does not divide is INVALID_ARGUMENT."""
    ways = int(node.attr("num_split"))
    at = constant_int(ctx, axis, "the axis of Split")
    at = normal_axis(at, x.rank, f"-input rank(-{x.rank}) <= split_dim < input rank ({x.rank}), but got {at}")
    extent = x.dims[at]
    message = f"Number of ways to split should evenly divide the split dimension, but got {plain(extent)} and num_split {ways}"
    if ctx.env.divides(ways, extent) is not True:
        ctx.check_dims_eq(extent % ways, 0, message=message)
    part = extent // ways
    return [slice_along(ctx, x, at, part * i, part) for i in range(ways)]


@lowering("SplitV", dtypes=ALL, limits="the axis is constant")
def split_v(ctx: LoweringContext, node: NodeView, x: Value, sizes: Value, axis: Value) -> list[Value]:
    """Parts of given sizes, one of which may be -1 (what is left)."""
    at = constant_int(ctx, axis, "the axis of SplitV")
    at = normal_axis(at, x.rank, f"-input rank(-{x.rank}) <= split_dim < input rank ({x.rank}), but got {at}")
    wanted = element_dims(ctx, sizes, "size_splits of SplitV")
    if len(wanted) != int(node.attr("num_split", len(wanted))):
        raise invalid(f"size_splits has {len(wanted)} entries, num_split is {node.attr('num_split')}")
    parts = _split_sizes(ctx, wanted, x.dims[at])
    out, start = [], Dim.of(0)
    for part in parts:
        out.append(slice_along(ctx, x, at, start, part))
        start = start + part
    return out


def _split_sizes(ctx: LoweringContext, wanted: Sequence[Dim], extent: Dim) -> list[Dim]:
    """The sizes with the -1 resolved, checked to add up to ``extent``."""
    flags = [bind(ctx, is_negative_flag(RunTimeFacts(ctx), s)) for s in wanted]
    for s in wanted:
        ctx.check_dim_cond(s, "GE", -1, message="Split size must be non-negative, or -1")
    wild = sum(flags, Dim.of(0))
    ctx.check_dim_cond(wild, "LE", 1, message="There can only be one -1 in the input.")
    known = [s + f for s, f in zip(wanted, flags, strict=True)]  # the -1 counts as 0
    total = sum(known, Dim.of(0))
    if wild.is_static:
        if int(wild) == 0:
            ctx.check_dims_eq(
                total, extent, message=f"Determined shape must match the split dimension {plain(extent)}"
            )
            return known
        message = f"size_splits add up to more than the split dimension {plain(extent)}"
        ctx.check_dim_cond(total, "LE", extent, message=message)
        return [extent - total if f == 1 else s for s, f in zip(known, flags, strict=True)]
    bound = [bind(ctx, s + f * (extent - total)) for s, f in zip(known, flags, strict=True)]
    ctx.check_dim_cond(
        total, "LE", extent, message=f"size_splits add up to more than the split dimension {plain(extent)}"
    )
    ctx.check_dims_eq(
        sum(bound, Dim.of(0)), extent, message=f"size_splits must add up to the split dimension {plain(extent)}"
    )
    return bound


@lowering("Tile", dtypes=ALL - {DType.U16})  # TF's CPU kernel has no u16
def tile(ctx: LoweringContext, _node: NodeView, x: Value, multiples: Value) -> Value:
    """Repeat along each axis."""
    times = shape_operand(ctx, multiples, "multiples of Tile")
    if len(times) != x.rank:
        raise invalid(
            f"Expected multiples argument to be a vector of length {x.rank} but got length {len(times)}"
        )
    spread: list[Dim] = []
    mapping: list[int] = []
    for d, m in zip(x.dims, times, strict=True):
        if m != 1:
            spread.append(m)
        mapping.append(len(spread))
        spread.append(d)
    if len(spread) == x.rank:
        return x
    repeated = ctx.b.broadcast_in_dim(x, spread, mapping)
    return ctx.b.reshape(repeated, [d * m for d, m in zip(x.dims, times, strict=True)])
