"""FakeQuantWithMinMax (Args, Vars, VarsPerChannel) with their gradients, and QuantizeAndDequantize (V2, V3, V4, V4Grad)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from disc_tf.ir.core import Value
from disc_tf.ir.types import DType
from disc_tf.lowering.content import constant_int
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import highest
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import lowering
from disc_tf.lowering.shapes import invalid

# ---- FakeQuant ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Range:
    """The range of the quantized numbers, nudged so that 0 is one of them; all of the inputs' shape. ``zero``: both given ends are 0."""

    low: Value
    high: Value
    scale: Value
    zero: Value


def _nudged(ctx: LoweringContext, node: NodeView, ends: Sequence[Value], x: Value) -> _Range:
    """From ends that are scalars or one for each of the last dimension's elements."""
    b = ctx.b
    low, high = ends
    bits = int(node.attr("num_bits", 8))
    if not 2 <= bits <= 16:
        raise invalid(f"num_bits must be between 2 and 16, inclusive: {bits}")
    least, most = float(bool(node.attr("narrow_range", False))), float(2**bits - 1)

    def number(v: float) -> Value:
        return ctx.splat(v, low)

    scale = b.divide(b.subtract(high, low), number(most - least))
    point = b.subtract(number(least), b.divide(low, scale))
    rounded = b.round_nearest_afz(point)
    point = b.select(
        b.compare(point, number(least), "LT"), number(least),
        b.select(b.compare(point, number(most), "GT"), number(most), rounded),
    )  # fmt: skip
    nudged = [b.multiply(b.subtract(number(v), point), scale) for v in (least, most)]
    zero = b.and_(b.compare(low, 0, "EQ"), b.compare(high, 0, "EQ"))
    return _Range(*(ctx.broadcast_to(v, x.dims) for v in (*nudged, scale, zero)))


def _quantized(ctx: LoweringContext, x: Value, r: _Range, by_inverse: bool) -> Value:
    """``by_inverse``: times the inverse of the scale, where TF does so instead of dividing (what lies half-way may go either way)."""
    b = ctx.b
    half = ctx.splat(0.5, x)
    inverse = b.divide(ctx.splat(1.0, x), r.scale)

    def steps_of(v: Value) -> Value:
        return b.multiply(v, inverse) if by_inverse else b.divide(v, r.scale)

    zero_point = b.floor(b.add(steps_of(b.negate(r.low)), half))
    clamped = b.maximum(b.minimum(x, r.high), r.low)
    steps = steps_of(b.subtract(clamped, r.low))
    out = b.multiply(b.floor(b.add(b.subtract(steps, zero_point), half)), r.scale)
    return b.select(r.zero, ctx.splat(0.0, x), out)


def _ends(ctx: LoweringContext, node: NodeView, x: Value, *ends: Value) -> list[Value]:
    """The operands ``min`` and ``max``, checked: scalars, or as many as the last dimension has elements."""
    channels = "PerChannel" in node.op
    if channels and not x.rank:
        raise invalid(f"inputs must be at least 1-dimensional: {x.type}")
    for name, v in zip(("min", "max"), ends, strict=True):
        if v.rank != channels:
            raise invalid(f"`{name}` must be rank {int(channels)} but is rank {v.rank}")
        if channels:
            ctx.check_dims_eq(
                v.dims[0], x.dims[-1], message=f"{name} has incorrect size, expected {plain(x.dims[-1])} was {plain(v.dims[0])}"
            )
    return [ctx.cast_dims(v, x.dims[-1:]) for v in ends] if channels else list(ends)


def _attribute_ends(ctx: LoweringContext, node: NodeView) -> list[Value]:
    low, high = (float(node.attr(name, default)) for name, default in (("min", -6.0), ("max", 6.0)))
    if not low < high:
        raise invalid(f"min has to be smaller than max, was: {low} >= {high}")
    return [ctx.scalar(v, DType.F32) for v in (low, high)]


@lowering("FakeQuantWithMinMaxArgs")
def fake_quant_args(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """Quantized and dequantized between constant ends."""
    return _quantized(ctx, x, _nudged(ctx, node, _attribute_ends(ctx, node), x), True)


@lowering("FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel")
def fake_quant_vars(ctx: LoweringContext, node: NodeView, x: Value, low: Value, high: Value) -> Value:
    """Quantized and dequantized between given ends (for each of the last dimension's elements); 0 where both are 0."""
    return _quantized(ctx, x, _nudged(ctx, node, _ends(ctx, node, x, low, high), x), "PerChannel" in node.op)


def _passed(ctx: LoweringContext, g: Value, x: Value, r: _Range) -> tuple[Value, Value, Value]:
    """The gradient where the input is inside, below, above the range, 0 elsewhere."""
    b = ctx.b
    below, above = b.compare(x, r.low, "LT"), b.compare(x, r.high, "GT")
    inside = b.and_(b.compare(x, r.low, "GE"), b.compare(x, r.high, "LE"))
    a, c, d = (b.multiply(g, b.convert(p, g.dtype)) for p in (inside, below, above))
    return a, c, d


@lowering("FakeQuantWithMinMaxArgsGradient")
def fake_quant_args_grad(ctx: LoweringContext, node: NodeView, g: Value, x: Value) -> Value:
    """The gradient where the input is inside the range."""
    ctx.require_same_shape(g, x, "gradients and inputs must be the same size")
    g = ctx.cast_dims(g, x.dims)
    return _passed(ctx, g, x, _nudged(ctx, node, _attribute_ends(ctx, node), x))[0]


@lowering("FakeQuantWithMinMaxVarsGradient", "FakeQuantWithMinMaxVarsPerChannelGradient")
def fake_quant_vars_grad(ctx: LoweringContext, node: NodeView, g: Value, x: Value, low: Value, high: Value) -> list[Value]:
    """Gradients of the inputs, and of the ends: the sums of what lies beyond them."""
    ctx.require_same_shape(g, x, "gradients and inputs must be the same size")
    g = ctx.cast_dims(g, x.dims)
    b = ctx.b
    r = _nudged(ctx, node, _ends(ctx, node, x, low, high), x)
    inside, below, above = _passed(ctx, g, x, r)
    none = ctx.splat(0.0, x)
    axes = range(x.rank - 1 if "PerChannel" in node.op else x.rank)
    sums = [b.select(r.zero, none, v) for v in (below, above)]
    return [b.select(r.zero, g, inside), *(ctx.reduce(v, axes, "add") if len(axes) else v for v in sums)]


# ---- QuantizeAndDequantize ---------------------------------------------------------------------------------------------


def _round(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    mode = node.attr("round_mode", "HALF_TO_EVEN")
    if mode == "HALF_TO_EVEN":
        return ctx.b.round_nearest_even(x)
    if mode == "HALF_UP":
        return ctx.b.floor(ctx.b.add(x, ctx.splat(0.5, x)))
    raise Unsupported("ATTR", f"round_mode={mode!r}")


def _quantize_and_dequantize(ctx: LoweringContext, node: NodeView, x: Value, low: Value, high: Value, bits: int) -> Value:
    b = ctx.b
    axis = int(node.attr("axis", -1))
    if not -1 <= axis < max(x.rank, 1):
        raise invalid(f"Axis requested is larger than input dimensions. Axis: {axis} Input Dimensions: {x.rank}")
    signed, given = bool(node.attr("signed_input", True)), bool(node.attr("range_given", node.op == "QuantizeAndDequantizeV3"))
    if not 0 < bits < (63 if signed else 64):
        raise invalid(f"num_bits is out of range: {bits} with signed_input_ {signed}")
    place = () if axis < 0 else (axis,)
    if given:
        if place and node.op != "QuantizeAndDequantizeV3":
            if low.rank or high.rank:
                raise invalid("input_min must be a scalar.")
            raise Unsupported("ATTR", f"{node.op} with axis={axis} and a range given")
        for name, v in (("input_min", low), ("input_max", high)):
            if v.rank != len(place):
                raise invalid(f"{name} must be a {'vector' if place else 'scalar'}: {v.type}")
            if place:
                ctx.check_dims_eq(
                    v.dims[0], x.dims[axis], message=f"{name} has incorrect size, expected {plain(x.dims[axis])} was {plain(v.dims[0])}"
                )
        if place:
            low, high = (ctx.cast_dims(v, (x.dims[axis],)) for v in (low, high))
        else:
            ctx.check(b.compare(low, high, "LE"), message="Invalid range: input_min > input_max")
    else:
        others = [k for k in range(x.rank) if k not in place]
        low, high = (ctx.reduce(x, others, kind) if others else x for kind in ("minimum", "maximum"))
    least = (-(2 ** (bits - 1)) + bool(node.attr("narrow_range", False))) if signed else 0
    most = 2 ** (bits - 1) - 1 if signed else 2**bits - 1

    def number(v: float) -> Value:
        return ctx.splat(v, low)

    def side(quantized: int, end: Value) -> Value:
        positive = b.compare(b.multiply(number(quantized), end), 0, "GT")
        return b.select(positive, b.divide(number(quantized), end), number(highest(x.dtype)))

    sides = side(least, low), side(most, high)
    by_low = b.compare(sides[0], sides[1], "LT")
    scale = b.select(by_low, sides[0], sides[1])
    inverse = b.divide(high, number(most))
    if least:
        inverse = b.select(by_low, b.divide(low, number(least)), inverse)
    new_low = b.select(by_low, low, b.multiply(number(least), inverse))
    new_high = b.select(by_low, b.multiply(number(most), inverse), high)

    def spread(v: Value) -> Value:
        return b.broadcast_in_dim(v, x.dims, place)

    y = b.maximum(b.minimum(x, spread(new_high)), spread(new_low)) if given else x
    return b.multiply(_round(ctx, node, b.multiply(y, spread(scale))), spread(inverse))


@lowering(
    "QuantizeAndDequantizeV2", "QuantizeAndDequantizeV4", dtypes={"T": {DType.F32, DType.F64}}, limits="no axis where the range is given"
)  # fmt: skip
def quantize_and_dequantize(ctx: LoweringContext, node: NodeView, x: Value, low: Value, high: Value) -> Value:
    """A range given or that of the input, one or (``axis``) one for each slice; both round modes; signed or not; narrow or not."""
    return _quantize_and_dequantize(ctx, node, x, low, high, int(node.attr("num_bits", 8)))


@lowering("QuantizeAndDequantizeV3", dtypes={"T": {DType.F32, DType.F64}}, limits="num_bits is constant")
def quantize_and_dequantize_v3(ctx: LoweringContext, node: NodeView, x: Value, low: Value, high: Value, bits: Value) -> Value:
    """The number of bits as an operand."""
    return _quantize_and_dequantize(ctx, node, x, low, high, constant_int(ctx, bits, "num_bits of QuantizeAndDequantizeV3"))


@lowering("QuantizeAndDequantizeV4Grad", dtypes={"T": {DType.F32, DType.F64}}, limits="one range: no axis")
def quantize_and_dequantize_grad(ctx: LoweringContext, node: NodeView, g: Value, x: Value, low: Value, high: Value) -> list[Value]:
    """The gradient where the input is inside the range; none of the ends."""
    if int(node.attr("axis", -1)) != -1:
        raise Unsupported("ATTR", f"{node.op} with axis={node.attr('axis')}")
    ctx.require_same_shape(g, x, "gradient and input must be the same size")
    for name, v in (("Input_min", low), ("Input_max", high)):
        if v.rank:
            raise invalid(f"{name} tensor must be a scalar when axis = -1: {v.type}")
    b = ctx.b
    g = ctx.cast_dims(g, x.dims)
    inside = b.and_(b.compare(x, ctx.broadcast_to(low, x.dims), "GE"), b.compare(x, ctx.broadcast_to(high, x.dims), "LE"))
    nothing = ctx.scalar(0.0, x.dtype)
    return [b.multiply(g, b.convert(inside, g.dtype)), nothing, nothing]
