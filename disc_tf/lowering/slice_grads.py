"""StridedSliceGrad and MirrorPadGrad."""

from __future__ import annotations

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, dmax
from disc_tf.lowering.content import RunTimeFacts, bind_run_time, constant_ints
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.fold import masks_of
from disc_tf.lowering.join_split import slice_along
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import ALL, NUMBERS, lowering
from disc_tf.lowering.shape_ops import shape_operand
from disc_tf.lowering.shapes import invalid, strided_slice
from disc_tf.lowering.slicing_ops import _bounds, _paddings


@lowering("StridedSliceGrad", dtypes={"T": ALL}, limits="strides are constant")
def strided_slice_grad(
    ctx: LoweringContext, node: NodeView, shape: Value, begin: Value, end: Value, strides: Value, dy: Value
) -> Value:
    """``dy`` where StridedSlice took its elements from, zero elsewhere."""
    masks = masks_of(node)
    if any(v.rank != 1 for v in (shape, begin, end, strides)):
        raise invalid("Expected shape, begin, end, and strides to be 1D")
    steps = constant_ints(ctx, strides, "strides of StridedSliceGrad")
    dims = [ctx.plain_dim(bind_run_time(ctx, d)) for d in shape_operand(ctx, shape, "shape of StridedSliceGrad")]
    unused = masks.ellipsis | masks.new_axis
    starts = _bounds(ctx, begin, len(steps), unused | (masks.begin & ~masks.shrink_axis))
    ends = _bounds(ctx, end, len(steps), unused | masks.end | masks.shrink_axis)
    plan = strided_slice(dims, starts, ends, steps, masks, RunTimeFacts(ctx))
    for check in plan.checks:
        ctx.check_dim_cond(check.index, "GE", 0, message=check.message)
        ctx.check_dim_cond(check.index, "LT", check.extent, message=check.message)
    if dy.rank != len(plan.dims):
        raise invalid(f"shape of dy was {dy.type} instead of {[str(d) for d in plan.dims]}")
    low, high, gaps, sizes = [], [], [], []
    for axis, extent in zip(plan.axes, dims, strict=True):
        size = bind_run_time(ctx, axis.size)
        start = bind_run_time(ctx, axis.start)
        reach = size if axis.stride == 1 else dmax((size - 1) * axis.stride + 1, 0)
        sizes.append(size)
        low.append(start)
        high.append(extent - start - reach)
        gaps.append(axis.stride - 1)
    wanted = [bind_run_time(ctx, d) for d in plan.dims]
    for have, want in zip(dy.dims, wanted, strict=True):
        ctx.check_dims_eq(have, want, message=f"shape of dy was {plain(dy.type)} instead of {plain(wanted)}")
    y = ctx.b.reshape(ctx.cast_dims(dy, wanted), sizes)
    y = ctx.cast_dims(ctx.b.pad(y, ctx.scalar(0, dy.dtype), low, high, gaps), dims)
    return ctx.b.reverse(y, [i for i, a in enumerate(plan.axes) if a.reverse])


@lowering("MirrorPadGrad", dtypes=NUMBERS)
def mirror_pad_grad(ctx: LoweringContext, node: NodeView, g: Value, paddings: Value) -> Value:
    """The middle of the gradient, with what lies in the padding folded back to where MirrorPad took it."""
    mode = node.attr("mode")
    if mode not in ("REFLECT", "SYMMETRIC"):
        raise Unsupported("ATTR", f"MirrorPadGrad mode {mode!r}")
    skip = 1 if mode == "REFLECT" else 0
    pairs = [(bind_run_time(ctx, low), bind_run_time(ctx, high)) for low, high in _paddings(ctx, paddings, g.rank)]
    extents = []
    for have, (low, high) in zip(g.dims, pairs, strict=True):
        extent = have - low - high
        for p in (low, high):
            message = f"paddings must be {'less' if skip else 'no greater'} than the output dimension size: {plain(p)}, {plain(extent)}"
            ctx.check_dim_cond(p, "LT" if skip else "LE", extent, message=message)
        extents.append(bind_run_time(ctx, extent) if not (low.is_static and high.is_static) else extent)
    zero = ctx.scalar(0, g.dtype)
    for axis, (extent, (low, high)) in enumerate(zip(extents, pairs, strict=True)):
        out = slice_along(ctx, g, axis, low, extent)
        for start, size, before in ((Dim.of(0), low, Dim.of(skip)), (low + extent, high, extent - skip - high)):
            if size == 0:
                continue
            part = ctx.b.reverse(slice_along(ctx, g, axis, start, size), [axis])
            first, last = [Dim.of(0)] * g.rank, [Dim.of(0)] * g.rank
            first[axis], last[axis] = before, extent - before - size
            out = ctx.b.add(out, ctx.cast_dims(ctx.b.pad(part, zero, first, last), out.dims))
        g = out
    return g
