"""Slice, StridedSlice, Pad, MirrorPad, Reverse, Roll."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.lowering.content import (
    RunTimeFacts,
    bind,
    bind_run_time,
    constant_ints,
    content_of,
    element,
    element_dims,
    signed_dim,
)
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.fold import masks_of
from disc_tf.lowering.join_split import slice_along
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import ALL, NUMBERS, lowering
from disc_tf.lowering.shapes import AxisSlice, StridedPlan, invalid, normal_axis, strided_slice
from disc_tf.lowering.symbolic import is_negative_flag, maximum

# ---- Slice -----------------------------------------------------------------------------------------------


@lowering("Slice", dtypes=ALL)
def slice_(ctx: LoweringContext, _node: NodeView, x: Value, begin: Value, size: Value) -> Value:
    """``size`` elements from ``begin`` on each axis; -1 is the rest. Out of bounds is INVALID_ARGUMENT."""
    starts = element_dims(ctx, begin, "begin of Slice")
    sizes = element_dims(ctx, size, "size of Slice")
    if not len(starts) == len(sizes) == x.rank:
        raise invalid(f"Expected begin and size arguments to be 1-D tensors of size {x.rank}")
    limits: list[Dim] = []
    for i, (extent, b, s) in enumerate(zip(x.dims, starts, sizes, strict=True)):
        ctx.check_dim_cond(b, "GE", 0, message=f"Expected begin[{i}] in [0, {plain(extent)}], but got {plain(b)}")
        ctx.check_dim_cond(b, "LE", extent, message=f"Expected begin[{i}] in [0, {plain(extent)}], but got {plain(b)}")
        b = starts[i] = bind_run_time(ctx, b)
        flag = is_negative_flag(RunTimeFacts(ctx), s)
        if flag == 1 and s == -1:
            limits.append(extent)
            continue
        message = f"Expected size[{i}] in [0, {plain(extent)} - {plain(b)}], but got {plain(s)}"
        ctx.check_dim_cond(s, "GE", 0 if flag.is_static else -1, message=message)
        if flag.is_static:
            s = bind_run_time(ctx, s)
        else:  # -1 at run time
            s = bind(ctx, s + flag * (extent - b + 1))
        ctx.check_dim_cond(b + s, "LE", extent, message=message)
        limits.append(b + s)
    return ctx.b.slice(x, starts, limits)


# ---- StridedSlice ----------------------------------------------------------------------------------------


@lowering("StridedSlice", dtypes=ALL, limits="strides are constant")
def strided_slice_(
    ctx: LoweringContext, node: NodeView, x: Value, begin: Value, end: Value, strides: Value
) -> Value:
    """TF's StridedSlice with all masks; bounds may be run-time values."""
    masks = masks_of(node)
    if begin.rank != 1 or end.rank != 1:
        raise invalid("Expected begin, end, and strides to be 1D equal size tensors")
    steps = constant_ints(ctx, strides, "strides of StridedSlice")
    unused = masks.ellipsis | masks.new_axis
    starts = _bounds(ctx, begin, len(steps), unused | (masks.begin & ~masks.shrink_axis))
    ends = _bounds(ctx, end, len(steps), unused | masks.end | masks.shrink_axis)
    plan = strided_slice(x.dims, starts, ends, steps, masks, RunTimeFacts(ctx))
    for check in plan.checks:
        ctx.check_dim_cond(check.index, "GE", 0, message=check.message)
        ctx.check_dim_cond(check.index, "LT", check.extent, message=check.message)
    axes = [
        dataclasses.replace(a, start=bind_run_time(ctx, a.start), length=bind_run_time(ctx, a.length))
        for a in plan.axes
    ]
    return apply_plan(ctx, x, dataclasses.replace(plan, axes=tuple(axes)))


def _bounds(ctx: LoweringContext, v: Value, count: int, unused: int) -> list[Dim]:
    """The elements of ``begin`` or ``end`` as dims; those of the mask ``unused`` are not looked at."""
    if v.dims[0] != count:
        raise invalid("Expected begin, end, and strides to be 1D equal size tensors")
    known = ctx.dims_of(v)
    if known is not None:
        return [Dim.of(0) if unused >> i & 1 else d for i, d in enumerate(known)]
    return [Dim.of(0) if unused >> i & 1 else signed_dim(ctx, element(ctx, v, i)) for i in range(count)]


def apply_plan(ctx: LoweringContext, x: Value, plan: StridedPlan) -> Value:
    """``x`` sliced and laid out by a plan, its checks being done."""
    x = ctx.b.reverse(x, [i for i, a in enumerate(plan.axes) if a.reverse])
    x = slice_axes(ctx, x, plan.axes)
    return ctx.b.reshape(x, plan.dims)


def slice_axes(ctx: LoweringContext, x: Value, axes: Sequence[AxisSlice]) -> Value:
    """All axes sliced at once; ``x`` itself if nothing is cut."""
    if all(a.start == 0 and a.stride == 1 and a.length == d for a, d in zip(axes, x.dims, strict=True)):
        return x
    return ctx.b.slice(
        x, [a.start for a in axes], [a.start + a.length for a in axes], [a.stride for a in axes]
    )


# ---- padding ---------------------------------------------------------------------------------------------


def _paddings(ctx: LoweringContext, paddings: Value, rank: int) -> list[tuple[Dim, Dim]]:
    """The ``[rank, 2]`` operand as pairs of dims, checked to be non-negative."""
    if paddings.rank != 2 or any(
        ctx.env.is_equal(d, n) is not True for d, n in zip(paddings.dims, (rank, 2), strict=True)
    ):
        raise invalid(
            f"The first dimension of paddings must be the rank of inputs ({rank}), the second 2: {paddings.type}"
        )
    content = content_of(ctx, paddings)
    if content is not None:
        flat = content.reshape(-1).tolist()
    else:
        flat = element_dims(ctx, ctx.b.reshape(paddings, [2 * rank]), "paddings")
    for d in flat:
        ctx.check_dim_cond(d, "GE", 0, message="Paddings must be non-negative")
    return list(zip(flat[::2], flat[1::2], strict=True))


@lowering("Pad", "PadV2", dtypes=ALL)
def pad(
    ctx: LoweringContext, _node: NodeView, x: Value, paddings: Value, value: Value | None = None
) -> Value:
    """Pad with zero, or with a scalar."""
    pairs = _paddings(ctx, paddings, x.rank)
    if value is None:
        value = ctx.scalar(0, x.dtype)
    elif value.rank:
        raise invalid(f"constant_values must be a scalar, not of shape {value.type}")
    if all(p == 0 for pair in pairs for p in pair):
        return x
    return ctx.b.pad(x, value, [lo for lo, _ in pairs], [hi for _, hi in pairs])


@lowering("MirrorPad", dtypes=ALL)
def mirror_pad(ctx: LoweringContext, node: NodeView, x: Value, paddings: Value) -> Value:
    """Pad by reflection: ``SYMMETRIC`` repeats the edge, ``REFLECT`` does not."""
    mode = node.attr("mode")
    if mode not in ("REFLECT", "SYMMETRIC"):
        raise Unsupported("ATTR", f"MirrorPad mode {mode!r}")
    skip = 1 if mode == "REFLECT" else 0
    pairs = _paddings(ctx, paddings, x.rank)
    for extent, pair in zip(x.dims, pairs, strict=True):
        for p in pair:
            message = (
                f"paddings must be {'less' if skip else 'no greater'} than the dimension size: {plain(p)}, {plain(extent)}"
            )
            ctx.check_dim_cond(p, "LT" if skip else "LE", extent, message=message)
    for axis, (low, high) in enumerate(pairs):
        extent = x.dims[axis]
        parts = [x]
        if low != 0:
            parts.insert(0, ctx.b.reverse(slice_along(ctx, x, axis, Dim.of(skip), low), [axis]))
        if high != 0:
            parts.append(ctx.b.reverse(slice_along(ctx, x, axis, extent - skip - high, high), [axis]))
        x = ctx.b.concatenate(parts, axis)
    return x


# ---- reversing, rolling ----------------------------------------------------------------------------------


@lowering("ReverseV2", dtypes=ALL, limits="the axes are constant")
def reverse_v2(ctx: LoweringContext, _node: NodeView, x: Value, axes: Value) -> Value:
    """Flip the named axes."""
    named = [
        normal_axis(a, x.rank, f"axis {a} out of range")
        for a in constant_ints(ctx, axes, "the axes of ReverseV2")
    ]
    if len(set(named)) != len(named):
        raise invalid("axis specified more than once")
    return ctx.b.reverse(x, sorted(named))


@lowering("Reverse", dtypes=ALL, limits="the mask is constant")
def reverse_v1(ctx: LoweringContext, _node: NodeView, x: Value, mask: Value) -> Value:
    """Flip the axes of a bool mask."""
    known = ctx.constant(mask)
    if known is None:
        raise Unsupported("NOT_CONSTANT", "the mask of Reverse is not known at compile time")
    if known.shape != (x.rank,):
        raise invalid(f"'dims' must have one entry for each of {x.rank} dimensions")
    if x.rank:
        ctx.check_dim_cond(x.dims[0], "GT", 0, message="Invalid input first dimension. Found 0.")
    return ctx.b.reverse(x, [int(i) for i in np.flatnonzero(known)])


@lowering("Roll", dtypes=ALL, limits="the axes are constant")
def roll(ctx: LoweringContext, _node: NodeView, x: Value, shift: Value, axis: Value) -> Value:
    """Rotate along axes; shifts of an axis named twice add up."""
    if not x.rank:
        raise invalid("input must be 1-D or higher")
    axes = [
        normal_axis(a, x.rank, f"axis {a} is out of range")
        for a in constant_ints(ctx, axis, "the axis of Roll")
    ]
    shifts = element_dims(ctx, shift, "shift of Roll") if shift.rank else [signed_dim(ctx, shift)]
    if len(shifts) != len(axes):
        raise invalid("shift and axis must have the same size")
    totals: dict[int, Dim] = {}
    for a, s in zip(axes, shifts, strict=True):
        totals[a] = totals.get(a, Dim.of(0)) + s
    for a, total in totals.items():
        extent = x.dims[a]
        count = bind(ctx, total % maximum(ctx.env, extent, 1))
        head = slice_along(ctx, x, a, Dim.of(0), extent - count)
        tail = slice_along(ctx, x, a, extent - count, count)
        if count != 0:
            x = ctx.cast_dims(ctx.b.concatenate([tail, head], a), x.dims)
    return x


# ---- blocks of space and depth ---------------------------------------------------------------------------


def _blocks(node: NodeView, x: Value) -> int:
    if node.attr("data_format", "NHWC") != "NHWC":
        raise Unsupported("ATTR", f"{node.op} with data_format {node.attr('data_format')}")
    if x.rank != 4:
        raise invalid(f"Input rank should be 4 instead of {x.rank}")
    return int(node.attr("block_size"))


def _divided(ctx: LoweringContext, d: Dim, by: int, what: str) -> Dim:
    if ctx.env.divides(by, d) is not True:
        ctx.check_dims_eq(d % by, 0, message=f"{what} {plain(d)} should be divisible by {plain(by)}")
    return d // by


@lowering("SpaceToDepth", dtypes=NUMBERS, limits="NHWC")
def space_to_depth(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """``[n, h, w, c] -> [n, h/s, w/s, s*s*c]``."""
    s = _blocks(node, x)
    n, h, w, c = x.dims
    rows, columns = _divided(ctx, h, s, "Image height"), _divided(ctx, w, s, "Image width")
    x = ctx.b.reshape(x, [n, rows, s, columns, s, c])
    x = ctx.b.transpose(x, [0, 1, 3, 2, 4, 5])
    return ctx.b.reshape(x, [n, rows, columns, c * s * s])


@lowering("DepthToSpace", dtypes=NUMBERS, limits="NHWC")
def depth_to_space(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """``[n, h, w, s*s*c] -> [n, h*s, w*s, c]``."""
    s = _blocks(node, x)
    n, h, w, c = x.dims
    depth = _divided(ctx, c, s * s, "Input depth dimension")
    x = ctx.b.reshape(x, [n, h, w, s, s, depth])
    x = ctx.b.transpose(x, [0, 1, 3, 2, 4, 5])
    return ctx.b.reshape(x, [n, h * s, w * s, depth])
