"""Conv2D, Conv3D, DepthwiseConv2dNative, Conv2DBackpropInput and grappler's _FusedConv2D."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, ceildiv, dmax
from disc_tf.ir.types import DType
from disc_tf.lowering.activations import fused_activation
from disc_tf.lowering.content import element_dims
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.matmul import along, bias_add
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import FLOATS, lowering
from disc_tf.lowering.shapes import invalid

_NUMBERS = FLOATS | {DType.I32}
_CHANNELS_FIRST = ("NCHW", "NCDHW")
_LAYOUTS = {"NHWC": 2, "NCHW": 2, "NDHWC": 3, "NCDHW": 3}


# ---- windows -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Padding:
    """Along one axis: zeros before and after the data, and the number of windows."""

    low: Dim
    high: Dim
    out: Dim


def layout_of(node: NodeView, rank: int, default: str = "NHWC") -> bool:
    """Whether ``data_format`` is channels first; checks that it fits the operand's rank."""
    layout = node.attr("data_format", default)
    if layout not in _LAYOUTS:
        raise Unsupported("ATTR", f"data_format={layout!r}")
    if _LAYOUTS[layout] != rank - 2:
        raise invalid(f"input must be {_LAYOUTS[layout] + 2}-dimensional, not of rank {rank}")
    return layout in _CHANNELS_FIRST


def spatial_ints(node: NodeView, name: str, spatial: int, first: bool, default: int = 1) -> tuple[int, ...]:
    """The spatial entries of a list with one per axis (or per spatial axis); those of batch and channels must be 1."""
    values = node.ints(name, [default] * (spatial + 2))
    if len(values) == spatial:
        values = [1, 1, *values] if first else [1, *values, 1]
    if len(values) != spatial + 2:
        raise invalid(f"{name} must specify {spatial + 2} dimensions")
    batch, channel = values[0], values[1 if first else -1]
    if batch != 1 or channel != 1:
        raise Unsupported("ATTR", f"{name}={values} over batch or channels")
    out = tuple(values[2:] if first else values[1:-1])
    if any(v < 1 for v in out):
        raise invalid(f"{name} must be positive")
    return out


def paddings(
    ctx: LoweringContext, node: NodeView, extents: Sequence[Dim], window: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], first: bool,
) -> list[Padding]:  # fmt: skip
    """TF's SAME, VALID and EXPLICIT padding, exact for every extent."""
    mode = node.attr("padding")
    explicit = node.ints("explicit_paddings") if mode == "EXPLICIT" else []
    out: list[Padding] = []
    for k, (extent, size, stride, dilation) in enumerate(zip(extents, window, strides, dilations, strict=True)):
        reach = (size - 1) * dilation + 1
        if mode == "SAME":
            out.append(_same(ctx, extent, reach, stride))
        elif mode in ("VALID", "EXPLICIT"):
            low, high = 0, 0
            if explicit:
                at = 2 * (k + 2 if first else k + 1)
                if len(explicit) != 2 * (len(extents) + 2):
                    raise invalid(f"explicit_paddings attribute must contain {2 * (len(extents) + 2)} values")
                low, high = explicit[at], explicit[at + 1]
            if low < 0 or high < 0:
                raise invalid("all explicit padding values must be non-negative")
            out.append(_fixed(ctx, extent, reach, stride, low, high))
        else:
            raise Unsupported("ATTR", f"padding={mode!r}")
    return out


def _same(ctx: LoweringContext, extent: Dim, reach: int, stride: int) -> Padding:
    count = extent if stride == 1 else ctx.plain_dim(ceildiv(extent, stride))
    if stride == 1:
        total = Dim.of(reach - 1)
    elif reach == 1:
        total = Dim.of(0)
    else:
        total = dmax((count - 1) * stride + reach - extent, 0)
    low = total // 2
    return Padding(low, total - low, count)


def _fixed(ctx: LoweringContext, extent: Dim, reach: int, stride: int, low: int, high: int) -> Padding:
    """A window that is more than a stride too long for the data is an error, otherwise there are no windows."""
    room = extent + (low + high - reach)
    # TF computes (room + stride) / stride, which truncates, and fails if that is negative.
    ctx.check_dim_cond(
        room + 2 * stride, "GT", 0, message=f"Computed output size would be negative: {plain(extent)} by a window of {plain(reach)}"
    )
    count = room // stride + 1
    slack, _ = ctx.env.bounds(count)
    if slack is None or slack < 0:
        count = dmax(count, 0)
    return Padding(Dim.of(low), Dim.of(high), ctx.plain_dim(count))


def centred(
    ctx: LoweringContext, x: Value, node: NodeView, window: Sequence[int], strides: Sequence[int], pads: Sequence[Padding]
) -> Value:
    """``x``, channels last, without what TF's SAME skips at the start: over three axes (not over two) its padding is negative where strides
    leave elements out, so that the windows lie in the middle."""
    if x.rank != 5 or node.attr("padding") != "SAME":
        return x
    starts = [Dim.of(0)] * x.rank
    for axis, (size, stride, pad) in enumerate(zip(window, strides, pads, strict=True), 1):
        if stride > size:
            starts[axis] = ctx.plain_dim(dmax(x.dims[axis] - dmax((pad.out - 1) * stride, 0) - size, 0) // 2)
    return x if all(s == 0 for s in starts) else ctx.b.slice(x, starts, x.dims)


def refuse_centred(node: NodeView, spatial: int, window: Sequence[int], strides: Sequence[int]) -> None:
    """``Unsupported`` where windows would lie as `centred` has them, for rules that do not know of it."""
    if spatial == 3 and node.attr("padding") == "SAME" and any(s > k for s, k in zip(strides, window, strict=True)):
        raise Unsupported("ATTR", f"{node.op} with padding SAME and strides {strides} greater than the window {window}")


def transposed_paddings(
    pads: Sequence[Padding], have: Sequence[Dim], extents: Sequence[Dim], window: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[list[Dim], list[Dim]]:  # fmt: skip
    """Low and high paddings of a gradient of ``have`` windows, spread by the strides, under which windows in steps of one give ``extents``:
    the inverse of ``pads``."""
    low, high = [], []
    for pad, count, extent, size, stride, dilation in zip(pads, have, extents, window, strides, dilations, strict=True):
        reach = (size - 1) * dilation + 1
        before = reach - 1 - pad.low
        low.append(before)
        high.append(extent + (reach - 1) - dmax((count - 1) * stride + 1, 0) - before)
    return low, high


def channels_last(ctx: LoweringContext, x: Value, first: bool) -> Value:
    """``x`` with its channels moved to the end, if they are dim 1."""
    return ctx.b.transpose(x, (0, *range(2, x.rank), 1)) if first else x


def channels_back(ctx: LoweringContext, y: Value, first: bool) -> Value:
    """The inverse of `channels_last`."""
    return ctx.b.transpose(y, (0, y.rank - 1, *range(1, y.rank - 1))) if first else y


# ---- convolutions ------------------------------------------------------------------------------------------------------


def _window(filter: Value, spatial: int) -> tuple[int, ...]:
    window = filter.dims[:spatial]
    if not all(d.is_static for d in window):
        raise Unsupported("SHAPE", f"the spatial extents of the filter must be known: {filter.type}")
    if any(int(d) == 0 for d in window):
        raise Unsupported("SHAPE", f"a filter without elements: {filter.type}")
    return tuple(int(d) for d in window)


def _groups(ctx: LoweringContext, channels: Dim, depth: Dim, features: Dim) -> int:
    """The number of groups: how often the filter's depth is contained in the channels."""
    if ctx.env.is_equal(channels, depth) is True:
        return 1
    if not (channels.is_static and depth.is_static):
        raise Unsupported("SHAPE", f"the groups of {channels} channels with a filter of depth {depth} are not known")
    if int(depth) == 0 or int(channels) % int(depth):
        raise invalid(f"input depth must be evenly divisible by filter depth: {channels} vs {depth}")
    groups = int(channels) // int(depth)
    if not features.is_static or int(features) % max(groups, 1):
        raise invalid(f"output depth must be evenly divisible by number of groups: {features} vs {groups}")
    return groups


def conv(ctx: LoweringContext, node: NodeView, x: Value, filter: Value, default: str = "NHWC") -> Value:
    """``x[batch, spatial..., channels]`` (or channels first) by ``filter[spatial..., depth, features]``."""
    if filter.rank != x.rank:
        raise invalid(f"filter must be {x.rank}-dimensional: {filter.type}")
    first = layout_of(node, x.rank, default)
    spatial = x.rank - 2
    strides = spatial_ints(node, "strides", spatial, first)
    dilations = spatial_ints(node, "dilations", spatial, first)
    window = _window(filter, spatial)
    data = channels_last(ctx, x, first)
    groups = _groups(ctx, data.dims[-1], filter.dims[-2], filter.dims[-1])
    pads = paddings(ctx, node, data.dims[1:-1], window, strides, dilations, first)
    data = centred(ctx, data, node, window, strides, pads)
    y = ctx.b.convolution(
        data, filter, strides=strides, padding_low=[p.low for p in pads], padding_high=[p.high for p in pads],
        rhs_dilation=dilations, groups=max(groups, 1), dims=(data.dims[0], *(p.out for p in pads), filter.dims[-1]),
    )  # fmt: skip
    return channels_back(ctx, y, first)


_LIMITS = "the window's extents are known"


@lowering("Conv2D", dtypes=_NUMBERS, limits=_LIMITS)
def conv2d(ctx: LoweringContext, node: NodeView, x: Value, filter: Value) -> Value:
    """Padding SAME, VALID, EXPLICIT; strides, dilations, groups; NHWC and NCHW. 16-bit floats are summed in f32."""
    return conv(ctx, node, x, filter)


@lowering("Conv3D", dtypes=FLOATS, limits=_LIMITS)
def conv3d(ctx: LoweringContext, node: NodeView, x: Value, filter: Value) -> Value:
    """As Conv2D, over three axes."""
    return conv(ctx, node, x, filter, "NDHWC")


@lowering("DepthwiseConv2dNative", dtypes=FLOATS, limits=f"{_LIMITS}; so is the number of channels")
def depthwise_conv2d(ctx: LoweringContext, node: NodeView, x: Value, filter: Value) -> Value:
    """``filter[h, w, channels, multiplier]``: result channel ``c * multiplier + m`` is channel ``c`` by ``filter[..., c, m]``."""
    if filter.rank != 4:
        raise invalid(f"filter must be 4-dimensional: {filter.type}")
    first = layout_of(node, x.rank)
    strides, dilations = (spatial_ints(node, name, 2, first) for name in ("strides", "dilations"))
    window = _window(filter, 2)
    data = channels_last(ctx, x, first)
    channels = filter.dims[2]
    ctx.check_dims_eq(
        data.dims[-1], channels, message=f"input and filter must have the same depth: {plain(data.dims[-1])} vs {plain(channels)}"
    )
    if not channels.is_static or not int(channels):
        raise Unsupported("SHAPE", f"the number of channels must be known: {filter.type}")
    features = channels * filter.dims[3]
    if not features.is_static:
        raise Unsupported("SHAPE", f"the channel multiplier must be known: {filter.type}")
    data = ctx.cast_dims(data, (*data.dims[:-1], channels))
    pads = paddings(ctx, node, data.dims[1:-1], window, strides, dilations, first)
    kernel = ctx.b.reshape(filter, (*filter.dims[:2], 1, features))
    y = ctx.b.convolution(
        data, kernel, strides=strides, padding_low=[p.low for p in pads], padding_high=[p.high for p in pads],
        rhs_dilation=dilations, groups=int(channels), dims=(data.dims[0], *(p.out for p in pads), features),
    )  # fmt: skip
    return channels_back(ctx, y, first)


@lowering("Conv2DBackpropInput", dtypes=_NUMBERS, limits=f"{_LIMITS}; one group")
def conv2d_backprop_input(ctx: LoweringContext, node: NodeView, sizes: Value, filter: Value, grad: Value) -> Value:
    """The transposed convolution: the result's shape is ``input_sizes`` (all of it, or height and width)."""
    if filter.rank != 4 or grad.rank != 4:
        raise invalid(f"filter and out_backprop must be 4-dimensional: {filter.type}, {grad.type}")
    first = layout_of(node, 4)
    strides, dilations = (spatial_ints(node, name, 2, first) for name in ("strides", "dilations"))
    window = _window(filter, 2)
    wanted = element_dims(ctx, sizes, "input_sizes")
    data = channels_last(ctx, grad, first)
    depth = filter.dims[2]
    if len(wanted) == 2:
        extents = list(wanted)
    elif len(wanted) == 4:
        batch, channels = wanted[0], wanted[1 if first else 3]
        extents = wanted[2:] if first else wanted[1:3]
        ctx.check_dims_eq(
            batch, data.dims[0], message=f"input and out_backprop must have the same batch size: {plain(batch)}, {plain(data.dims[0])}"
        )
        if ctx.env.is_equal(channels, depth) is not True:
            if channels.is_static and depth.is_static and int(depth) and int(channels) % int(depth) == 0:
                raise Unsupported("SHAPE", f"a gradient in groups: {channels} channels with a filter of depth {depth}")
            ctx.check_dims_eq(channels, depth, message=f"input depth must be that of the filter: {plain(channels)} vs {plain(depth)}")
    else:
        raise invalid(f"input_sizes must have 2 or 4 entries, not {len(wanted)}")
    for d in wanted:
        ctx.check_dim_cond(d, "GE", 0, message="input_sizes must be non-negative")
    extents = [ctx.plain_dim(d) for d in extents]
    pads = paddings(ctx, node, extents, window, strides, dilations, first)
    ctx.check_dims_eq(data.dims[-1], filter.dims[3], message="filter and out_backprop must have the same out_depth")
    for have, pad in zip(data.dims[1:-1], pads, strict=True):
        ctx.check_dims_eq(
            have, pad.out, message=f"Size of out_backprop doesn't match computed: actual = {plain(have)}, expected = {plain(pad.out)}"
        )
    low, high = transposed_paddings(pads, data.dims[1:-1], extents, window, strides, dilations)
    kernel = ctx.b.reverse(ctx.b.transpose(filter, (0, 1, 3, 2)), (0, 1))
    y = ctx.b.convolution(
        data, kernel, padding_low=low, padding_high=high, lhs_dilation=strides, rhs_dilation=dilations,
        dims=(data.dims[0], *extents, depth),
    )  # fmt: skip
    return channels_back(ctx, y, first)


# ---- fused -------------------------------------------------------------------------------------------------------------


@lowering("_FusedConv2D", dtypes=FLOATS, limits=f"{_LIMITS}; fused_ops of BiasAdd, FusedBatchNorm, Add and activations")
def fused_conv2d(ctx: LoweringContext, node: NodeView, x: Value, filter: Value, *args: Value) -> Value:
    """A Conv2D and the ops that grappler's remapper fused into it."""
    if int(node.attr("num_args", len(args))) != len(args):
        raise Unsupported("ATTR", "host operands")
    layout = node.attr("data_format", "NHWC")
    left = list(args)

    def take(name: str, count: int = 1) -> list[Value]:
        if len(left) < count:
            raise invalid(f"fused op {name!r} lacks its operand")
        taken, left[:] = left[:count], left[count:]
        return taken

    out = conv(ctx, node, x, filter)
    for name in node.attr("fused_ops", []):
        if name == "BiasAdd":
            out = bias_add(ctx, out, take(name)[0], layout)
        elif name == "FusedBatchNorm":
            out = _batch_norm(ctx, node, out, *take(name, 4), axis=1 if layout in _CHANNELS_FIRST else 3)
        elif name == "Add":
            a, b = ctx.broadcast(out, take(name)[0])
            out = ctx.b.add(a, b)
        else:
            out = fused_activation(ctx, node, name, out)
    if left:
        raise Unsupported("ATTR", f"fused_ops={node.attr('fused_ops', [])} leave {len(left)} operands unused")
    return out


def _batch_norm(
    ctx: LoweringContext, node: NodeView, x: Value, scale: Value, offset: Value, mean: Value, variance: Value, axis: int
) -> Value:
    """``(x - mean) * (rsqrt(variance + epsilon) * scale) + offset`` along ``axis``."""
    for v in (scale, offset, mean, variance):
        if v.rank != 1:
            raise invalid(f"the operands of a fused batch norm must be vectors: {v.type}")
        ctx.check_dims_eq(v.dims[0], x.dims[axis], message="the operands of a fused batch norm must have the extent of the channels")
    scale, offset, mean, variance = (ctx.cast_dims(v, (x.dims[axis],)) for v in (scale, offset, mean, variance))
    epsilon = ctx.splat(float(node.attr("epsilon", 0.0001)), variance)
    factor = ctx.b.multiply(ctx.b.rsqrt(ctx.b.add(variance, epsilon)), scale)
    centered = ctx.b.subtract(x, along(ctx, mean, x, axis))
    return ctx.b.add(ctx.b.multiply(centered, along(ctx, factor, x, axis)), along(ctx, offset, x, axis))
