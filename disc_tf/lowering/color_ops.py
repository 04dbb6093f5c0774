"""RGBToHSV, HSVToRGB, AdjustHue, AdjustSaturation, AdjustContrastv2: images of three channels, the last dimension."""

from __future__ import annotations

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Status
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert, keep_dims
from disc_tf.lowering.plain import plain
from disc_tf.lowering.reductions import mean
from disc_tf.lowering.registry import FLOATS, lowering
from disc_tf.lowering.shapes import invalid

Triple = tuple[Value, Value, Value]


def _split(ctx: LoweringContext, x: Value, code: Status = Status.INVALID_ARGUMENT) -> Triple:
    """The three channels, each ``[pixels]``."""
    ctx.check_dims_eq(x.dims[-1], 3, code, f"input must have 3 channels but instead has {plain(x.dims[-1])} channels.")
    flat = ctx.b.reshape(ctx.cast_dims(x, (*x.dims[:-1], Dim.of(3))), (product(x.dims[:-1]), 3))
    count = flat.dims[0]
    r, g, b = (ctx.b.reshape(ctx.b.slice(flat, (0, c), (count, c + 1)), (count,)) for c in range(3))
    return r, g, b


def _join(ctx: LoweringContext, parts: Triple, like: Value) -> Value:
    columns = [ctx.b.reshape(p, (p.dims[0], 1)) for p in parts]
    return ctx.b.reshape(ctx.b.concatenate(columns, 1), (*like.dims[:-1], 3))


def _rank(x: Value, least: int) -> None:
    if x.rank < least:
        raise invalid(f"input must be at least {least}-D, got shape {x.type}")


def _scalar(v: Value, what: str) -> None:
    if v.rank:
        raise invalid(f"{what} must be scalar: {v.type}")


# ---- hue, saturation, value --------------------------------------------------------------------------------------------


def _to_hsv(ctx: LoweringContext, rgb: Triple) -> Triple:
    """Hue in [0, 1), saturation, value."""
    b, (red, green, blue) = ctx.b, rgb
    zero = ctx.splat(0, red)
    value = b.maximum(b.maximum(red, green), blue)
    extent = b.subtract(value, b.minimum(b.minimum(red, green), blue))
    saturation = b.select(b.compare(value, zero, "GT"), b.divide(extent, value), zero)
    sixth = b.divide(ctx.splat(1, red), ctx.splat(6, red))
    norm = b.multiply(b.divide(ctx.splat(1, red), extent), sixth)

    def sector(p: Value, q: Value, thirds: int) -> Value:
        part = b.multiply(norm, b.subtract(p, q))
        return b.add(part, b.divide(ctx.splat(2 * thirds, red), ctx.splat(6, red))) if thirds else part

    others = b.select(b.compare(green, value, "EQ"), sector(blue, red, 1), sector(red, green, 2))
    hue = b.select(b.compare(red, value, "EQ"), sector(green, blue, 0), others)
    hue = b.select(b.compare(extent, zero, "GT"), hue, zero)
    return b.select(b.compare(hue, zero, "LT"), b.add(hue, ctx.splat(1, hue)), hue), saturation, value


@lowering("RGBToHSV", dtypes=FLOATS)
def rgb_to_hsv(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """Rounded to the type after every operation, as TF does."""
    _rank(x, 1)
    return _join(ctx, _to_hsv(ctx, _split(ctx, x, Status.FAILED_PRECONDITION)), x)


@lowering("HSVToRGB", dtypes=FLOATS)
def hsv_to_rgb(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """Rounded to the type after every operation, as TF does."""
    _rank(x, 1)
    b = ctx.b
    hue, saturation, value = _split(ctx, x, Status.FAILED_PRECONDITION)
    one = ctx.splat(1, hue)
    turn = b.multiply(hue, ctx.splat(6, hue))
    rest = b.subtract(one, saturation)

    def channel(weight: Value) -> Value:
        weight = b.minimum(b.maximum(weight, ctx.splat(0, hue)), one)
        return b.multiply(b.add(rest, b.multiply(saturation, weight)), value)

    def away(center: int) -> Value:
        return b.abs(b.subtract(turn, ctx.splat(center, hue)))

    two = ctx.splat(2, hue)
    weights = b.subtract(away(3), one), b.subtract(two, away(2)), b.subtract(two, away(4))
    return _join(ctx, (channel(weights[0]), channel(weights[1]), channel(weights[2])), x)


# ---- adjusting ---------------------------------------------------------------------------------------------------------


def _choose(ctx: LoweringContext, category: Value, cases: list[Value], default: Value) -> Value:
    """``cases[i]`` where the (float, integral) category is ``i``."""
    out = default
    for i, case in reversed(list(enumerate(cases))):
        if case is not default:
            out = ctx.b.select(ctx.b.compare(category, ctx.splat(i, category), "EQ"), case, out)
    return out


@lowering("AdjustHue", dtypes={"T": {DType.F32}})
def adjust_hue(ctx: LoweringContext, _node: NodeView, x: Value, delta: Value) -> Value:
    """The hue turned by ``delta`` (1 is the whole circle), between the same least and greatest channel."""
    _rank(x, 3)
    _scalar(delta, "delta")
    b = ctx.b
    red, green, blue = _split(ctx, x)

    def number(v: float) -> Value:
        return ctx.splat(v, red)

    def pick(p: Value, yes: Value, no: Value) -> Value:
        return b.select(p, yes, no)

    rising = b.compare(red, green, "LT")
    below = pick(rising, b.compare(blue, red, "LT"), b.compare(blue, green, "LT"))
    above = pick(rising, b.compare(blue, green, "GT"), b.compare(blue, red, "GT"))
    larger, smaller = pick(rising, green, red), pick(rising, red, green)
    # The six orders of the channels, counted round the circle.
    category = pick(
        below, pick(rising, number(1), number(0)), pick(above, pick(rising, number(3), number(4)), pick(rising, number(2), number(5)))
    )  # fmt: skip
    most, least = pick(above, blue, larger), pick(below, blue, smaller)
    middle = pick(below, smaller, pick(above, larger, blue))
    ratio = b.divide(b.subtract(middle, least), b.subtract(most, least))
    even = b.compare(b.multiply(b.floor(b.multiply(category, number(0.5))), number(2)), category, "EQ")
    hue = b.add(category, pick(even, ratio, b.subtract(number(1), ratio)))
    hue = pick(b.compare(most, least, "EQ"), number(0), hue)
    hue = b.add(hue, ctx.broadcast_to(b.multiply(delta, ctx.scalar(6.0, DType.F32)), hue.dims))
    hue = b.subtract(hue, b.multiply(number(6), b.floor(b.divide(hue, number(6)))))
    turned = b.floor(hue)
    ratio = b.subtract(hue, turned)
    even = b.compare(b.multiply(b.floor(b.multiply(turned, number(0.5))), number(2)), turned, "EQ")
    ratio = pick(even, ratio, b.subtract(number(1), ratio))
    middle = b.add(least, b.multiply(ratio, b.subtract(most, least)))
    parts = (
        _choose(ctx, turned, [most, middle, least, least, middle], most),
        _choose(ctx, turned, [middle, most, most, middle, least], least),
        _choose(ctx, turned, [least, least, middle, most, most], middle),
    )
    return _join(ctx, parts, x)


@lowering("AdjustSaturation", dtypes={"T": {DType.F32}})
def adjust_saturation(ctx: LoweringContext, _node: NodeView, x: Value, scale: Value) -> Value:
    """The saturation times ``scale``, kept in [0, 1]."""
    _rank(x, 3)
    _scalar(scale, "scale")
    b = ctx.b
    hue, saturation, value = _to_hsv(ctx, _split(ctx, x))

    def number(v: float) -> Value:
        return ctx.splat(v, hue)

    saturation = b.multiply(saturation, ctx.broadcast_to(scale, saturation.dims))
    saturation = b.minimum(number(1), b.maximum(number(0), saturation))
    chroma = b.multiply(saturation, value)
    base = b.subtract(value, chroma)
    turn = b.multiply(hue, number(6))
    category = b.floor(turn)
    pair = b.subtract(turn, b.multiply(number(2), b.floor(b.multiply(turn, number(0.5)))))
    second = b.multiply(chroma, b.subtract(number(1), b.abs(b.subtract(pair, number(1)))))
    none = number(0)
    parts = (
        _choose(ctx, category, [chroma, second, none, none, second, chroma], none),
        _choose(ctx, category, [second, chroma, chroma, second, none, none], none),
        _choose(ctx, category, [none, none, second, chroma, chroma, second], none),
    )
    return _join(ctx, tuple(b.add(p, base) for p in parts), x)  # type: ignore[arg-type]


@lowering("AdjustContrastv2", dtypes={"T": {DType.F32}})
def adjust_contrast(ctx: LoweringContext, _node: NodeView, x: Value, factor: Value) -> Value:
    """``(x - mean) * factor + mean`` with the mean over height and width, in f32."""
    _rank(x, 3)
    _scalar(factor, "contrast_factor")
    b = ctx.b
    wide = convert(ctx, x, DType.F32)
    axes = [x.rank - 3, x.rank - 2]
    center = ctx.broadcast_to(keep_dims(ctx, mean(ctx, wide, axes), wide, axes), wide.dims)
    out = b.add(b.multiply(b.subtract(wide, center), ctx.broadcast_to(factor, wide.dims)), center)
    return convert(ctx, out, x.dtype)
