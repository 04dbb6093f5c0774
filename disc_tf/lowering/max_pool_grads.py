"""The gradient of MaxPool3D, and the gradients of MaxPool's and MaxPool3D's gradients."""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType
from disc_tf.lowering.content import constant_ints
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.convolution import Padding
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert, widen
from disc_tf.lowering.pool_grads import LAST, check_shape, flat_index, max_pool_geometry
from disc_tf.lowering.registry import NUMBERS, lowering
from disc_tf.lowering.rows import take

_I32, _I64 = DType.I32, DType.I64
#: the position of nothing
_NOWHERE = 2**31 - 1


def _number(ctx: LoweringContext, d: Dim, dims: Sequence[Dim]) -> Value:
    return ctx.broadcast_to(ctx.dim(d, _I32), dims)


def _inside(ctx: LoweringContext, at: Value, extent: Dim) -> Value:
    return ctx.b.and_(ctx.b.compare(at, 0, "GE"), ctx.b.compare(at, _number(ctx, extent, at.dims), "LT"))


def _place(ctx: LoweringContext, along: Sequence[Value], extents: Sequence[Dim], dims: Sequence[Dim]) -> Value:
    """Row-major positions i32 of ``dims = [n..., m...]`` from those along each axis, ``[n_axis, m_axis]``."""
    b, place = ctx.b, None
    for axis, (at, extent) in enumerate(zip(along, extents, strict=True)):
        spread = b.broadcast_in_dim(at, dims, (axis, axis + len(along)))
        place = spread if place is None else b.add(b.multiply(place, _number(ctx, extent, dims)), spread)
    assert place is not None
    return place


def _all(ctx: LoweringContext, along: Sequence[Value], dims: Sequence[Dim], offset: int = 0) -> Value:
    """Where every axis holds, of ``dims``; the axes of ``along`` begin at ``offset`` there."""
    b, out = ctx.b, None
    for axis, holds in enumerate(along, offset):
        spread = b.broadcast_in_dim(holds, dims, (axis, axis + len(along)))
        out = spread if out is None else b.and_(out, spread)
    assert out is not None
    return out


# ---- of the data -------------------------------------------------------------------------------------------------------


def _covering(ctx: LoweringContext, extent: Dim, size: int, step: int, pad: Padding) -> tuple[Value, Value]:
    """``[extent, windows]`` along one axis: the windows that may cover each element in ascending order, i32, and whether they do.

    As in TF's kernel a window longer than the data that begins in the padding covers all of them.
    """
    b = ctx.b
    count = -(-size // step)
    dims = (extent, Dim.of(count))
    element = b.iota(_I32, dims, 0)
    # The last window that begins at or before the element.
    last = b.divide(b.add(element, _number(ctx, pad.low, dims)), step)
    last = b.minimum(last, _number(ctx, pad.out - 1, dims))
    which = b.add(b.subtract(last, count - 1), b.iota(_I32, dims, 1))
    start = b.subtract(b.multiply(which, step), _number(ctx, pad.low, dims))
    stop = b.add(start, size)
    if pad.low != 0:
        longer = b.compare(_number(ctx, extent, dims), size, "LT")
        stop = b.select(b.and_(longer, b.compare(start, 0, "LT")), _NOWHERE, stop)
    covers = b.and_(b.compare(which, 0, "GE"), b.compare(element, stop, "LT"))
    return b.maximum(which, 0), covers


@lowering("MaxPool3DGrad", dtypes={"T": {DType.BF16, DType.F32}, "TInput": {DType.BF16, DType.F32}}, limits=LAST)
def max_pool_3d_grad(ctx: LoweringContext, node: NodeView, x: Value, y: Value, grad: Value) -> Value:
    """Each gradient goes to every element of its window that is within 1e-5 of the greatest, as in TF's kernel. 16-bit floats are summed in
    f32."""
    if grad.dtype != x.dtype:
        raise Unsupported("DTYPE", f"{node.op} of {grad.dtype} over {x.dtype}: TF has no CPU kernel")
    window, steps, pads, pooled = max_pool_geometry(ctx, node, x, y, grad, node.ints("ksize"), node.ints("strides"), 5)
    check_shape(ctx, "grad", grad, pooled)
    b, extents = ctx.b, x.dims[1:-1]
    if any(p.out == 0 for p in pads):
        return ctx.full(0, x.dtype, x.dims)
    y, grad = ctx.cast_dims(y, pooled), ctx.cast_dims(grad, pooled)
    around = [_covering(ctx, *of) for of in zip(extents, window, steps, pads, strict=True)]
    dims = (*extents, *(at.dims[1] for at, _ in around))
    place = _place(ctx, [at for at, _ in around], y.dims[1:-1], dims)
    windows = product(y.dims[1:-1])
    none = None
    if node.attr("padding") == "VALID" and not all((ctx.env.bounds(p.out)[0] or 0) > 0 for p in pads):
        # There may be no window over data that is not empty: a row that nothing takes its gradient from.
        none = ctx.fresh_dim(b.convert(b.compare(ctx.dim(windows), 0, "EQ"), _I64))

    def seen(v: Value) -> Value:
        rows = b.reshape(v, (v.dims[0], windows, v.dims[-1]))
        if none is not None:
            rows = b.pad(rows, ctx.scalar(0, v.dtype), [0, 0, 0], [0, none, 0])
        return take(ctx, rows, place, 1)

    top = seen(y)
    off = b.abs(b.subtract(b.broadcast_in_dim(x, top.dims, (0, 1, 2, 3, 7)), top))
    near = b.and_(b.compare(off, 1e-5, "LT"), _all(ctx, [covers for _, covers in around], top.dims, 1))
    parts = b.select(near, seen(grad), 0)
    return convert(ctx, ctx.reduce(widen(ctx, parts), (4, 5, 6), "add"), x.dtype)


# ---- of the gradient ---------------------------------------------------------------------------------------------------


def _grad_grad(
    ctx: LoweringContext, node: NodeView, x: Value, y: Value, grad: Value, ksize: Sequence[int], strides: Sequence[int], rank: int
) -> Value:  # fmt: skip
    window, steps, pads, pooled = max_pool_geometry(ctx, node, x, y, grad, ksize, strides, rank)
    check_shape(ctx, "grad", grad, x.dims)
    if rank == 5:
        for name, dims in (("tensor_in", x.dims), ("tensor_out", pooled)):
            for d in dims:
                ctx.check_dim_cond(d, "GT", 0, message=f"received empty tensor {name}")
    b, spatial, extents = ctx.b, rank - 2, x.dims[1:-1]
    if any(d == 0 for d in pooled):
        return ctx.full(0, x.dtype, pooled)
    y, grad = ctx.cast_dims(y, pooled), ctx.cast_dims(grad, x.dims)
    along: list[Value] = []
    for size, step, pad in zip(window, steps, pads, strict=True):
        dims = (pad.out, Dim.of(size))
        start = b.subtract(b.multiply(b.iota(_I32, dims, 0), step), _number(ctx, pad.low, dims))
        along.append(b.add(start, b.iota(_I32, dims, 1)))
    inside = [_inside(ctx, at, extent) for at, extent in zip(along, extents, strict=True)]
    along = [b.select(is_in, at, 0) for is_in, at in zip(inside, along, strict=True)]
    dims = (*(p.out for p in pads), *(Dim.of(k) for k in window))
    place = _place(ctx, along, extents, dims)
    seen = take(ctx, b.reshape(x, (x.dims[0], product(extents), x.dims[-1])), place, 1)
    axes = tuple(range(1 + spatial, 1 + 2 * spatial))
    top = b.broadcast_in_dim(y, seen.dims, (*range(spatial + 1), seen.rank - 1))
    hit = b.and_(b.compare(seen, top, "EQ"), _all(ctx, inside, seen.dims, 1))
    at = b.select(hit, b.broadcast_in_dim(place, seen.dims, range(1, seen.rank - 1)), _NOWHERE)
    # Positions ascend within a window: the least is the first that is equal.
    first = ctx.reduce(at, axes, "minimum", ctx.scalar(_NOWHERE, _I32))
    found = b.compare(first, _NOWHERE, "LT")
    flat = flat_index(ctx, b.convert(b.select(found, first, 0), _I64), x, batch=True)
    out = take(ctx, b.reshape(grad, (product(x.dims),)), flat, 0)
    return b.select(found, out, 0)


@lowering("MaxPoolGradGrad", dtypes=NUMBERS, limits=LAST)
def max_pool_grad_grad(ctx: LoweringContext, node: NodeView, x: Value, y: Value, grad: Value) -> Value:
    """For each window the gradient at its first element that equals ``y``; 0 if none does."""
    return _grad_grad(ctx, node, x, y, grad, node.ints("ksize"), node.ints("strides"), 4)


@lowering("MaxPoolGradGradV2", dtypes=NUMBERS, limits=f"{LAST}; ksize and strides are constant")
def max_pool_grad_grad_v2(
    ctx: LoweringContext, node: NodeView, x: Value, y: Value, grad: Value, ksize: Value, strides: Value
) -> Value:  # fmt: skip
    """MaxPoolGradGrad with window and strides as operands."""
    sizes, steps = (constant_ints(ctx, v, f"{what} of {node.op}") for v, what in ((ksize, "ksize"), (strides, "strides")))
    return _grad_grad(ctx, node, x, y, grad, sizes, steps, 4)


@lowering("MaxPool3DGradGrad", dtypes={DType.BF16, DType.F32}, limits=LAST)
def max_pool_3d_grad_grad(ctx: LoweringContext, node: NodeView, x: Value, y: Value, grad: Value) -> Value:
    """MaxPoolGradGrad over three axes; no operand may be empty."""
    return _grad_grad(ctx, node, x, y, grad, node.ints("ksize"), node.ints("strides"), 5)
