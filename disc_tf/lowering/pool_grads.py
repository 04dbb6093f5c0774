"""MaxPoolWithArgmax, and the gradients of MaxPool and AvgPool."""

from __future__ import annotations

import math
from collections.abc import Sequence

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType, TensorType
from disc_tf.lowering.content import constant_ints, element_dims
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.convolution import Padding, paddings, refuse_centred, spatial_ints, transposed_paddings
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert, lowest, widen
from disc_tf.lowering.plain import plain
from disc_tf.lowering.pooling import window_elements
from disc_tf.lowering.registry import FLOATS, NUMBERS, lowering
from disc_tf.lowering.rows import scatter_rows
from disc_tf.lowering.shapes import invalid

LAST = "channels last"


def _window(node: NodeView, ksize: Sequence[int], strides: Sequence[int], rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Window and strides of the spatial axes, channels last."""
    if node.attr("data_format", "NHWC" if rank == 4 else "NDHWC") not in ("NHWC", "NDHWC"):
        raise Unsupported("ATTR", f"{node.op} with data_format {node.attr('data_format')}: TF has no CPU kernel")
    views = [NodeView(node.name, node.op, (), {"list": list(v)}) for v in (ksize, strides)]
    window, steps = (spatial_ints(v, "list", rank - 2, False) for v in views)
    return window, steps


def check_shape(ctx: LoweringContext, name: str, v: Value, wanted: Sequence[Dim]) -> None:
    for have, want in zip(v.dims, wanted, strict=True):
        ctx.check_dims_eq(have, want, message=f"Expected {name} shape to be {plain(wanted)}, but got {plain(v.type)}")


def max_pool_geometry(
    ctx: LoweringContext, node: NodeView, x: Value, y: Value, grad: Value, ksize: Sequence[int], strides: Sequence[int], rank: int
) -> tuple[tuple[int, ...], tuple[int, ...], list[Padding], tuple[Dim, ...]]:  # fmt: skip
    """Window, strides, paddings, and the dims of the pooled tensor, to which ``y`` has been checked."""
    for v in (x, y, grad):
        if v.rank != rank:
            raise invalid(f"operands of {node.op} must be {rank}-dimensional: {v.type}")
    window, steps = _window(node, ksize, strides, rank)
    pads = paddings(ctx, node, x.dims[1:-1], window, steps, (1,) * (rank - 2), False)
    pooled = (x.dims[0], *(p.out for p in pads), x.dims[-1])
    check_shape(ctx, "orig_output", y, pooled)
    return window, steps, pads, pooled


def _argmax(
    ctx: LoweringContext, x: Value, window: Sequence[int], steps: Sequence[int], pads: Sequence[Padding]
) -> tuple[Value, Value]:
    """(the greatest element of each window, its position ``row * width + column`` i64): the first of equal ones; a NaN is greater than
    nothing and less than nothing, so that it stays where it comes first."""
    b = ctx.b
    width = ctx.broadcast_to(ctx.dim(x.dims[2]), x.dims)
    position = b.add(b.multiply(b.iota(DType.I64, x.dims, 1), width), b.iota(DType.I64, x.dims, 2))

    def greater(r: Builder, acc: Value, at: Value, v: Value, here: Value) -> list[Value]:
        better = r.or_(r.compare(at, 0, "LT"), r.compare(v, acc, "GT"))
        # What is not there (padding) has the initial position.
        better = r.and_(better, r.compare(here, 0, "GE"))
        return [r.select(better, v, acc), r.select(better, here, at)]

    types = [TensorType.of(x.dtype), TensorType.of(DType.I64)]
    region = b.region(types * 2, greater, "acc", "at", "x", "here")
    least = -math.inf if x.dtype.is_float else lowest(x.dtype)
    zero = Dim.of(0)
    found = b.reduce_window(
        [x, position], [ctx.scalar(least, x.dtype), ctx.scalar(-1, DType.I64)], region, (1, *window, 1), (1, *steps, 1),
        (zero, *(p.low for p in pads), zero), (zero, *(p.high for p in pads), zero),
        dims=(x.dims[0], *(p.out for p in pads), x.dims[-1]),
    )  # fmt: skip
    return found[0], found[1]


def flat_index(ctx: LoweringContext, position: Value, x: Value, batch: bool) -> Value:
    """``(position * channels + channel)``, plus the image's place in the batch."""
    b, dims = ctx.b, position.dims
    out = b.add(b.multiply(position, ctx.broadcast_to(ctx.dim(x.dims[-1]), dims)), b.iota(DType.I64, dims, x.rank - 1))
    return in_batch(ctx, out, x) if batch else out


def in_batch(ctx: LoweringContext, index: Value, x: Value) -> Value:
    """Flat indices in the batch, of those in each image of ``x``."""
    b, dims = ctx.b, index.dims
    return b.add(index, b.multiply(b.iota(DType.I64, dims, 0), ctx.broadcast_to(ctx.dim(product(x.dims[1:])), dims)))


@lowering("MaxPoolWithArgmax", dtypes={"T": NUMBERS, "Targmax": {DType.I32, DType.I64}})
def max_pool_with_argmax(ctx: LoweringContext, node: NodeView, x: Value) -> list[Value]:
    """The greatest of each window and its flat index, in the image or (``include_batch_in_index``) in the batch."""
    if x.rank != 4:
        raise invalid(f"tensor_in must be 4-dimensional: {x.type}")
    for d in x.dims:
        ctx.check_dim_cond(d, "GT", 0, message="tensor_in must not be empty")
    window, steps = _window(node, node.ints("ksize"), node.ints("strides"), 4)
    pads = paddings(ctx, node, x.dims[1:-1], window, steps, (1, 1), False)
    value, position = _argmax(ctx, x, window, steps, pads)
    index = flat_index(ctx, position, x, bool(node.attr("include_batch_in_index", False)))
    return [value, convert(ctx, index, node.dtype("Targmax", DType.I64))]


def _to_winners(ctx: LoweringContext, x: Value, index: Value, grad: Value) -> Value:
    """Zeros like ``x``, plus each element of ``grad`` where its flat ``index`` says."""
    b, size, zeros = ctx.b, product(grad.dims), ctx.full(0, grad.dtype, (product(x.dims),))
    return b.reshape(scatter_rows(ctx, zeros, b.reshape(index, (size, 1)), b.reshape(grad, (size,)), "add"), x.dims)


def _max_pool_grad(
    ctx: LoweringContext, node: NodeView, x: Value, y: Value, grad: Value, ksize: Sequence[int], strides: Sequence[int]
) -> Value:  # fmt: skip
    window, steps, pads, wanted = max_pool_geometry(ctx, node, x, y, grad, ksize, strides, 4)
    check_shape(ctx, "grad", grad, wanted)
    grad = ctx.cast_dims(grad, wanted)
    _, position = _argmax(ctx, x, window, steps, pads)
    return _to_winners(ctx, x, flat_index(ctx, position, x, True), grad)


@lowering("MaxPoolGrad", dtypes=NUMBERS, limits=LAST)
def max_pool_grad(ctx: LoweringContext, node: NodeView, x: Value, y: Value, grad: Value) -> Value:
    """Each gradient goes to the greatest element of its window."""
    return _max_pool_grad(ctx, node, x, y, grad, node.ints("ksize"), node.ints("strides"))


@lowering("MaxPoolGradV2", dtypes=NUMBERS, limits=f"{LAST}; ksize and strides are constant")
def max_pool_grad_v2(ctx: LoweringContext, node: NodeView, x: Value, y: Value, grad: Value, ksize: Value, strides: Value) -> Value:
    """MaxPoolGrad with window and strides as operands."""
    sizes, steps = (constant_ints(ctx, v, f"{what} of MaxPoolGradV2") for v, what in ((ksize, "ksize"), (strides, "strides")))
    return _max_pool_grad(ctx, node, x, y, grad, sizes, steps)


@lowering("MaxPoolGradWithArgmax", dtypes={"T": NUMBERS, "Targmax": {DType.I64}})
def max_pool_grad_with_argmax(ctx: LoweringContext, node: NodeView, x: Value, grad: Value, argmax: Value) -> Value:
    """Each gradient goes to the element at its flat index; one outside of the tensor, where TensorFlow ends the process, is an error."""
    if x.rank != 4:
        raise invalid(f"input must be 4-dimensional: {x.type}")
    window, steps = _window(node, node.ints("ksize"), node.ints("strides"), 4)
    pads = paddings(ctx, node, x.dims[1:-1], window, steps, (1, 1), False)
    wanted = (x.dims[0], *(p.out for p in pads), x.dims[-1])
    for name, v in (("grad", grad), ("argmax", argmax)):
        if v.rank != 4:
            raise invalid(f"{name} must be 4-dimensional: {v.type}")
        check_shape(ctx, name, v, wanted)
    b, index = ctx.b, ctx.cast_dims(argmax, wanted)
    if not node.attr("include_batch_in_index", False):
        index = in_batch(ctx, index, x)
    inside = b.and_(b.compare(index, 0, "GE"), b.compare(index, ctx.broadcast_to(ctx.dim(product(x.dims)), wanted), "LT"))
    ctx.check(inside, message="argmax has an index outside of the input")
    return _to_winners(ctx, x, index, ctx.cast_dims(grad, wanted))


@lowering("AvgPoolGrad", "AvgPool3DGrad", dtypes=FLOATS, limits=LAST)
def avg_pool_grad(ctx: LoweringContext, node: NodeView, shape: Value, grad: Value) -> Value:
    """Each gradient is shared out among the elements of its window. 16-bit floats are summed in f32."""
    rank = 4 if node.op == "AvgPoolGrad" else 5
    if grad.rank != rank:
        raise invalid(f"out_backprop must be {rank}-dimensional: {grad.type}")
    dims = element_dims(ctx, shape, "orig_input_shape")
    if len(dims) != rank:
        raise invalid(f"orig_input_shape must be 1-dimensional and {rank} elements")
    for d in dims:
        ctx.check_dim_cond(d, "GE", 0, message="orig_input_shape must be non-negative")
    dims = [ctx.plain_dim(d) for d in dims]
    window, steps = _window(node, node.ints("ksize"), node.ints("strides"), rank)
    refuse_centred(node, rank - 2, window, steps)
    pads = paddings(ctx, node, dims[1:-1], window, steps, (1,) * (rank - 2), False)
    wanted = (dims[0], *(p.out for p in pads), dims[-1])
    check_shape(ctx, "grad", grad, wanted)
    b = ctx.b
    part = widen(ctx, ctx.cast_dims(grad, wanted))
    part = b.divide(part, window_elements(ctx, part, dims[1:-1], window, steps, pads))
    ones, zero = (1,) * (rank - 2), Dim.of(0)
    low, high = transposed_paddings(pads, [p.out for p in pads], dims[1:-1], window, steps, ones)
    out = b.reduce_window(
        [part], [ctx.scalar(0, part.dtype)], "add", (1, *window, 1), None, (zero, *low, zero), (zero, *high, zero),
        base_dilations=(1, *steps, 1), dims=dims,
    )[0]  # fmt: skip
    return convert(ctx, out, grad.dtype)
