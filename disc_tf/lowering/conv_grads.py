"""Gradients of convolutions: of their filters (Conv2D, Conv3D, depthwise) and of their data (Conv3D, depthwise)."""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.lowering.content import element_dims
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.convolution import Padding, paddings, refuse_centred, spatial_ints, transposed_paddings
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert, widen
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import FLOATS, lowering
from disc_tf.lowering.shapes import invalid
from disc_tf.lowering.windows import patches

_LIMITS = "the window's extents are known; channels last; one group; no dilations, as in TF"


def _attrs(node: NodeView, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Strides and dilations of the spatial axes, channels last."""
    layout = node.attr("data_format", "NHWC" if rank == 4 else "NDHWC")
    if layout not in ("NHWC", "NDHWC"):
        raise Unsupported("ATTR", f"{node.op} with data_format {layout}: TF has no CPU kernel")
    strides, dilations = (spatial_ints(node, name, rank - 2, False) for name in ("strides", "dilations"))
    if any(d != 1 for d in dilations) and "Depthwise" not in node.op:
        raise Unsupported("ATTR", f"{node.op} with dilations: TF has no CPU kernel")
    return strides, dilations


def _known_window(dims: Sequence[Dim]) -> tuple[int, ...]:
    if not all(d.is_static for d in dims):
        raise Unsupported("SHAPE", f"the spatial extents of the filter must be known: {[str(d) for d in dims]}")
    window = tuple(int(d) for d in dims)
    if any(k < 1 for k in window):
        raise invalid(f"filter sizes must be positive: {window}")
    return window


def _sizes(ctx: LoweringContext, v: Value, rank: int, what: str) -> list[Dim]:
    sizes = element_dims(ctx, v, what)
    if len(sizes) != rank:
        raise invalid(f"{what} must have {rank} entries, not {len(sizes)}")
    for d in sizes:
        ctx.check_dim_cond(d, "GE", 0, message=f"{what} must be non-negative")
    return [ctx.plain_dim(d) for d in sizes]


def _same(ctx: LoweringContext, node: NodeView, pairs: Sequence[tuple[Dim, Dim]], what: str) -> None:
    for have, want in pairs:
        ctx.check_dims_eq(have, want, message=f"{node.op}: {what}: {plain(have)} and {plain(want)}")


def _pads(
    ctx: LoweringContext, node: NodeView, extents: Sequence[Dim], window: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    grad: Value,
) -> list[Padding]:  # fmt: skip
    """The forward op's paddings, its number of windows checked to be that of the gradient."""
    refuse_centred(node, grad.rank - 2, window, strides)
    pads = paddings(ctx, node, extents, window, strides, dilations, False)
    _same(ctx, node, [(d, p.out) for d, p in zip(grad.dims[1:-1], pads, strict=True)], "size of out_backprop doesn't match computed")
    return pads


def _rank(node: NodeView, rank: int, *values: Value) -> None:
    for v in values:
        if v.rank != rank:
            raise invalid(f"{node.op}: operands must be {rank}-dimensional: {v.type}")


# ---- of the filter -----------------------------------------------------------------------------------------------------


def _filter_grad(ctx: LoweringContext, node: NodeView, x: Value, filter_sizes: Value, grad: Value, rank: int) -> Value:
    _rank(node, rank, x, grad)
    strides, dilations = _attrs(node, rank)
    sizes = _sizes(ctx, filter_sizes, rank, "filter_sizes")
    window = _known_window(sizes[:-2])
    if ctx.env.is_equal(sizes[-2], x.dims[-1]) is False:
        raise Unsupported("SHAPE", f"a gradient in groups: {x.dims[-1]} channels with a filter of depth {sizes[-2]}")
    wanted = [(sizes[-2], x.dims[-1]), (sizes[-1], grad.dims[-1]), (x.dims[0], grad.dims[0])]
    _same(ctx, node, wanted, "depths and batches must agree")
    pads = _pads(ctx, node, x.dims[1:-1], window, strides, dilations, grad)
    seen = patches(ctx, x, window, strides, dilations, pads)
    summed = tuple(range(rank - 1))
    return ctx.cast_dims(ctx.b.dot_general(seen, ctx.cast_dims(grad, (*seen.dims[: rank - 1], grad.dims[-1])), summed, summed), sizes)


@lowering("Conv2DBackpropFilter", dtypes=FLOATS, limits=_LIMITS)
def conv2d_backprop_filter(ctx: LoweringContext, node: NodeView, x: Value, filter_sizes: Value, grad: Value) -> Value:
    """One product of the patches under the window with the gradient, summed over batch and pixels. 16-bit floats are summed in f32."""
    return _filter_grad(ctx, node, x, filter_sizes, grad, 4)


@lowering("Conv3DBackpropFilterV2", dtypes=FLOATS, limits=f"{_LIMITS}; no stride is greater than the window with padding SAME")
def conv3d_backprop_filter(ctx: LoweringContext, node: NodeView, x: Value, filter_sizes: Value, grad: Value) -> Value:
    """As Conv2DBackpropFilter, over three axes."""
    return _filter_grad(ctx, node, x, filter_sizes, grad, 5)


@lowering(
    "DepthwiseConv2dNativeBackpropFilter", dtypes=FLOATS, limits="the window's extents and the multiplier are known; channels last"
)  # fmt: skip
def depthwise_backprop_filter(ctx: LoweringContext, node: NodeView, x: Value, filter_sizes: Value, grad: Value) -> Value:
    """``[h, w, channels, multiplier]``: each channel's patches times its own gradients."""
    _rank(node, 4, x, grad)
    strides, dilations = _attrs(node, 4)
    sizes = _sizes(ctx, filter_sizes, 4, "filter_sizes")
    window = _known_window(sizes[:2])
    channels, multiplier = sizes[2:]
    wanted = [(channels, x.dims[3]), (channels * multiplier, grad.dims[3]), (x.dims[0], grad.dims[0])]
    _same(ctx, node, wanted, "depths and batches must agree")
    pads = _pads(ctx, node, x.dims[1:-1], window, strides, dilations, grad)
    seen = patches(ctx, widen(ctx, ctx.cast_dims(x, (*x.dims[:3], channels))), window, strides, dilations, pads)
    outer = seen.dims[:3]
    g = ctx.cast_dims(widen(ctx, grad), (*outer, channels * multiplier))
    g = ctx.b.reshape(g, (*outer, channels, multiplier))
    dims = (*seen.dims, multiplier)
    terms = ctx.b.multiply(ctx.b.broadcast_in_dim(seen, dims, range(6)), ctx.b.broadcast_in_dim(g, dims, (0, 1, 2, 5, 6)))
    return convert(ctx, ctx.reduce(terms, range(3), "add"), x.dtype)


# ---- of the data -------------------------------------------------------------------------------------------------------


@lowering("Conv3DBackpropInputV2", dtypes=FLOATS, limits=f"{_LIMITS}; no stride is greater than the window with padding SAME")
def conv3d_backprop_input(ctx: LoweringContext, node: NodeView, sizes: Value, filter: Value, grad: Value) -> Value:
    """The transposed convolution over three axes; the result's shape is ``input_sizes``."""
    _rank(node, 5, filter, grad)
    strides, dilations = _attrs(node, 5)
    wanted = _sizes(ctx, sizes, 5, "input_sizes")
    window = _known_window(filter.dims[:3])
    if ctx.env.is_equal(wanted[4], filter.dims[3]) is False:
        raise Unsupported("SHAPE", f"a gradient in groups: {wanted[4]} channels with a filter of depth {filter.dims[3]}")
    pairs = [(wanted[0], grad.dims[0]), (wanted[4], filter.dims[3]), (grad.dims[4], filter.dims[4])]
    _same(ctx, node, pairs, "depths and batches must agree")
    pads = _pads(ctx, node, wanted[1:4], window, strides, dilations, grad)
    low, high = transposed_paddings(pads, grad.dims[1:-1], wanted[1:4], window, strides, dilations)
    kernel = ctx.b.reverse(ctx.b.transpose(filter, (0, 1, 2, 4, 3)), (0, 1, 2))
    return ctx.b.convolution(
        grad, kernel, padding_low=low, padding_high=high, lhs_dilation=strides, rhs_dilation=dilations,
        dims=(grad.dims[0], *wanted[1:4], filter.dims[3]),
    )  # fmt: skip


@lowering("DepthwiseConv2dNativeBackpropInput", dtypes=FLOATS, limits="the filter's shape is known; channels last")
def depthwise_backprop_input(ctx: LoweringContext, node: NodeView, sizes: Value, filter: Value, grad: Value) -> Value:
    """The transposed depthwise convolution: channel ``c`` sums over its ``multiplier`` gradients."""
    _rank(node, 4, filter, grad)
    strides, dilations = _attrs(node, 4)
    wanted = _sizes(ctx, sizes, 4, "input_sizes")
    window = _known_window(filter.dims[:2])
    channels, multiplier = filter.dims[2:]
    if not (channels.is_static and multiplier.is_static) or int(channels) * int(multiplier) == 0:
        raise Unsupported("SHAPE", f"the number of channels must be known: {filter.type}")
    pairs = [(wanted[0], grad.dims[0]), (wanted[3], channels), (grad.dims[3], channels * multiplier)]
    _same(ctx, node, pairs, "depths and batches must agree")
    grad = ctx.cast_dims(grad, (*grad.dims[:3], channels * multiplier))
    pads = _pads(ctx, node, wanted[1:3], window, strides, dilations, grad)
    low, high = transposed_paddings(pads, grad.dims[1:-1], wanted[1:3], window, strides, dilations)
    kernel = ctx.b.reverse(ctx.b.transpose(filter, (0, 1, 3, 2)), (0, 1))
    return ctx.b.convolution(
        grad, kernel, padding_low=low, padding_high=high, lhs_dilation=strides, rhs_dilation=dilations, groups=int(channels),
        dims=(grad.dims[0], *wanted[1:3], channels),
    )  # fmt: skip
