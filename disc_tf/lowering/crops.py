"""CropAndResize and ImageProjectiveTransform: images read at computed positions."""

from __future__ import annotations

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType
from disc_tf.lowering.cast import cast_value
from disc_tf.lowering.content import positive_sizes, require_broadcastable
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Status, Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert
from disc_tf.lowering.registry import FLOATS, NUMBERS, lowering
from disc_tf.lowering.rows import column, take
from disc_tf.lowering.shapes import invalid

_F32, _F64, _I64 = DType.F32, DType.F64, DType.I64


def _size(ctx: LoweringContext, v: Value, message: str) -> list[Dim]:
    """A vector of two positive sizes as dims."""
    if v.rank != 1 or (v.dims[0].is_static and int(v.dims[0]) != 2):
        raise invalid(f"{message}: {v.type}")
    return positive_sizes(ctx, v, "the size", message)


def number(ctx: LoweringContext, d: Dim, dtype: DType, dims: tuple[Dim, ...]) -> Value:
    return ctx.broadcast_to(convert(ctx, ctx.dim(d), dtype), dims)


def pixel(ctx: LoweringContext, image: Value, y: Value, x: Value, height: Dim, width: Dim) -> Value:
    """Which of all the images' pixels lies at a position, i64."""
    b, dims = ctx.b, y.dims
    row = b.add(b.multiply(image, number(ctx, height, _I64, dims)), y)
    return b.add(b.multiply(row, number(ctx, width, _I64, dims)), x)


def within(ctx: LoweringContext, v: Value, extent: Dim) -> Value:
    """Whether positions in f32 lie in the image."""
    return ctx.b.and_(ctx.b.compare(v, 0, "GE"), ctx.b.compare(v, number(ctx, extent - 1, _F32, v.dims), "LE"))


def check_picks(ctx: LoweringContext, box_ind: Value, batch: Dim) -> None:
    """Require that each box is of an image that is there."""
    b = ctx.b
    inside = b.compare(box_ind, number(ctx, batch, DType.I32, box_ind.dims), "LT")
    inside = b.and_(b.compare(box_ind, 0, "GE"), inside)
    ctx.check(inside, Status.OUT_OF_RANGE, "box_index has values outside [0, batch_size)")


class Image:
    """An image read at ``[n, height, width]`` positions: rows of its channels."""

    def __init__(self, ctx: LoweringContext, x: Value) -> None:
        self.ctx = ctx
        self.height, self.width = x.dims[1:3]
        self.pixels = ctx.b.reshape(x, (product(x.dims[:3]), x.dims[3]))

    def at(self, image: Value, y: Value, x: Value) -> Value:
        """``[n, height, width, channels]`` for i64 positions ``[n, height, width]``."""
        return take(self.ctx, self.pixels, pixel(self.ctx, image, y, x, self.height, self.width), 0)


# ---- CropAndResize -----------------------------------------------------------------------------------------------------


def crop_positions(ctx: LoweringContext, first: Value, last: Value, extent: Dim, size: Dim, ratio: bool = False) -> Value:
    """``[boxes, size]``: where the crop's rows (columns) lie in the image, f32; ``ratio``: rounded as TF's gradient by the boxes does."""
    b = ctx.b
    dims = (first.dims[0], size)

    def spread(v: Value) -> Value:
        return b.broadcast_in_dim(v, dims, (0,))

    reach = number(ctx, extent - 1, _F32, first.dims)
    middle = b.multiply(b.convert(b.add(first, last), _F64), ctx.full(0.5, _F64, first.dims))
    middle = b.convert(b.multiply(middle, b.convert(reach, _F64)), _F32)
    if size == 1:
        return spread(middle)
    steps = number(ctx, size - 1, _F32, first.dims)
    apart = b.subtract(last, first)
    scale = b.multiply(apart, b.divide(reach, steps)) if ratio else b.divide(b.multiply(apart, reach), steps)
    start = b.multiply(first, reach)
    several = b.add(spread(start), b.multiply(b.iota(_F32, dims, 1), spread(scale)))
    if size.is_static:
        return several
    return b.select(b.compare(ctx.dim(size), 1, "GT"), several, spread(middle))


@lowering("CropAndResize", dtypes=NUMBERS - {DType.BF16, DType.U32, DType.U64})
def crop_and_resize(ctx: LoweringContext, node: NodeView, image: Value, boxes: Value, box_ind: Value, crop_size: Value) -> Value:
    """f32 crops ``[boxes, height, width, channels]``; ``extrapolation_value`` outside of the image; bilinear or nearest."""
    method = node.attr("method", "bilinear")
    if method not in ("bilinear", "nearest"):
        raise Unsupported("ATTR", f"CropAndResize with method {method!r}")
    if image.rank != 4 or boxes.rank != 2 or box_ind.rank != 1:
        raise invalid(f"image must be 4-D, boxes 2-D, box_index 1-D: {image.type}, {boxes.type}, {box_ind.type}")
    batch, height, width = image.dims[:3]
    for d in (height, width):
        ctx.check_dim_cond(d, "GT", 0, message="image dimensions must be positive")
    count = boxes.dims[0]
    ctx.check_dims_eq(boxes.dims[1], 4, message="boxes must have 4 columns")
    ctx.check_dims_eq(box_ind.dims[0], count, message="box_index has incompatible shape")
    rows, columns = _size(ctx, crop_size, "crop dimensions must be positive")
    boxes, box_ind = ctx.cast_dims(boxes, (count, 4)), ctx.cast_dims(box_ind, (count,))
    b = ctx.b
    check_picks(ctx, box_ind, batch)
    ctx.check(b.is_finite(boxes), message="Boxes contains at least one element that is not finite")
    y = crop_positions(ctx, column(ctx, boxes, 0), column(ctx, boxes, 2), height, rows)
    x = crop_positions(ctx, column(ctx, boxes, 1), column(ctx, boxes, 3), width, columns)
    dims = (count, rows, columns)
    crop = (*dims, image.dims[3])
    images = b.broadcast_in_dim(b.convert(box_ind, _I64), dims, (0,))
    source = Image(ctx, image)

    def read(at_y: Value, at_x: Value) -> Value:
        places = [b.broadcast_in_dim(b.convert(v, _I64), dims, (0, axis)) for v, axis in ((at_y, 1), (at_x, 2))]
        return convert(ctx, source.at(images, *places), _F32)

    if method == "nearest":
        out = read(b.round_nearest_afz(y), b.round_nearest_afz(x))
    else:
        floors = [b.floor(v) for v in (y, x)]
        ceils = [b.ceil(v) for v in (y, x)]
        share_y, share_x = (
            b.broadcast_in_dim(b.subtract(v, f), crop, (0, axis)) for v, f, axis in ((y, floors[0], 1), (x, floors[1], 2))
        )

        def lerp(low: Value, high: Value, share: Value) -> Value:
            return b.add(low, b.multiply(b.subtract(high, low), share))

        top = lerp(read(floors[0], floors[1]), read(floors[0], ceils[1]), share_x)
        bottom = lerp(read(ceils[0], floors[1]), read(ceils[0], ceils[1]), share_x)
        out = lerp(top, bottom, share_y)
    valid = b.and_(*(b.broadcast_in_dim(within(ctx, v, e), crop, (0, axis)) for v, e, axis in ((y, height, 1), (x, width, 2))))
    return b.select(valid, out, ctx.full(float(node.attr("extrapolation_value", 0.0)), _F32, crop))


# ---- ImageProjectiveTransform ------------------------------------------------------------------------------------------


def _filled(ctx: LoweringContext, at: Value, extent: Dim, mode: str) -> Value:
    """Positions along an axis brought inside by a fill mode; CONSTANT leaves them."""
    if mode == "CONSTANT":
        return at
    b, dims = ctx.b, at.dims
    zero = ctx.splat(0, at)
    length, last = (number(ctx, d, _F32, dims) for d in (extent, extent - 1))

    def whole(v: Value) -> Value:
        return b.convert(b.convert(v, _I64), _F32)

    if mode != "NEAREST":
        one = ctx.splat(1, at)
        below, above = b.compare(at, zero, "LT"), b.compare(at, last, "GT")
        if mode == "REFLECT":
            double = b.add(length, length)
            up = b.add(b.multiply(double, whole(b.divide(b.negate(at), double))), at)
            up = b.select(b.compare(up, b.negate(length), "LT"), b.add(up, double), b.subtract(b.negate(up), one))
            down = b.subtract(at, b.multiply(double, whole(b.divide(at, double))))
            down = b.select(b.compare(down, length, "GE"), b.subtract(b.subtract(double, down), one), down)
        else:
            up = b.add(at, b.multiply(length, b.add(whole(b.divide(b.negate(at), last)), one)))
            down = b.subtract(at, b.multiply(length, whole(b.divide(at, last))))
        moved = b.select(below, up, b.select(above, down, at))
        alone = b.and_(b.compare(length, one, "LE"), b.or_(below, above))
        at = b.select(alone, zero, moved)
    return b.minimum(b.maximum(at, zero), last)


def _read_or_fill(
    ctx: LoweringContext, source: Image, images: Value, y: Value, x: Value, extents: tuple[Dim, Dim], fill: Value, channels: Dim
) -> Value:  # fmt: skip
    """The image at positions given as integral f32, ``fill`` where they are outside."""
    b = ctx.b
    places = [b.convert(v, _I64) for v in (y, x)]
    inside: Value | None = None
    for v, extent in zip(places, extents, strict=True):
        fits = b.and_(b.compare(v, 0, "GE"), b.compare(v, number(ctx, extent, _I64, v.dims), "LT"))
        inside = fits if inside is None else b.and_(inside, fits)
    assert inside is not None
    zero = ctx.splat(0, places[0])
    found = source.at(images, *(b.select(inside, p, zero) for p in places))
    dims = (*y.dims, channels)
    return b.select(b.broadcast_in_dim(inside, dims, (0, 1, 2)), found, ctx.broadcast_to(fill, dims))


@lowering(
    "ImageProjectiveTransformV2", "ImageProjectiveTransformV3", dtypes={"dtype": FLOATS | {DType.U8, DType.I32, DType.I64}}
)  # fmt: skip
def image_projective_transform(
    ctx: LoweringContext, node: NodeView, image: Value, transforms: Value, shape: Value, fill: Value | None = None
) -> Value:
    """Interpolation NEAREST and BILINEAR; fill modes CONSTANT, REFLECT, WRAP, NEAREST; one transform, or one for each image."""
    interpolation, mode = node.attr("interpolation"), node.attr("fill_mode", "CONSTANT")
    if interpolation not in ("NEAREST", "BILINEAR") or mode not in ("CONSTANT", "REFLECT", "WRAP", "NEAREST"):
        raise Unsupported("ATTR", f"{node.op} with interpolation {interpolation!r} and fill mode {mode!r}")
    if image.rank != 4:
        raise invalid(f"input images must be 4-dimensional: {image.type}")
    if transforms.rank != 2:
        raise invalid(f"Input transform should be num_images x 8 or 1 x 8: {transforms.type}")
    message = "Input transform should be num_images x 8 or 1 x 8"
    ctx.check_dims_eq(transforms.dims[1], 8, message=message)
    require_broadcastable(ctx, transforms.dims[:1], image.dims[:1], message)
    rows, columns = _size(ctx, shape, "output dimensions must be positive")
    transforms = ctx.cast_dims(transforms, (transforms.dims[0], 8))
    b = ctx.b
    batch, height, width, channels = image.dims
    border = ctx.scalar(0, image.dtype) if fill is None else cast_value(ctx, fill, image.dtype)
    if border.rank:
        raise invalid(f"fill_value must be a scalar: {border.type}")
    dims = (batch, rows, columns)
    coefficients = [b.broadcast_in_dim(column(ctx, transforms, k), dims, (0,)) for k in range(8)]
    out_y, out_x = (b.iota(_F32, dims, axis) for axis in (1, 2))

    def plane(i: int, last: Value) -> Value:
        products = b.add(b.multiply(coefficients[i], out_x), b.multiply(coefficients[i + 1], out_y))
        return b.add(products, last)

    depth = plane(6, ctx.full(1.0, _F32, dims))
    x = _filled(ctx, b.divide(plane(0, coefficients[2]), depth), width, mode)
    y = _filled(ctx, b.divide(plane(3, coefficients[5]), depth), height, mode)
    images = b.iota(_I64, dims, 0)
    extents = (height, width)
    if any((ctx.env.bounds(d)[0] or 0) < 1 for d in extents):  # nothing to read from: an edge that is never taken
        image = b.pad(image, 0, (0, 0, 0, 0), (0, 1, 1, 0))
    source = Image(ctx, image)

    def read(at_y: Value, at_x: Value) -> Value:
        return _read_or_fill(ctx, source, images, at_y, at_x, extents, border, channels)

    if interpolation == "NEAREST":
        out = read(b.round_nearest_afz(y), b.round_nearest_afz(x))
    else:
        low_y, low_x = b.floor(y), b.floor(x)
        one = ctx.splat(1, y)
        high_y, high_x = b.add(low_y, one), b.add(low_x, one)
        full = (*dims, channels)

        def mix(near: Value, far: Value, low: Value, high: Value, at: Value) -> Value:
            shares = [b.broadcast_in_dim(b.subtract(p, q), full, (0, 1, 2)) for p, q in ((high, at), (at, low))]
            return b.add(b.multiply(shares[0], near), b.multiply(shares[1], far))

        lines = [
            mix(cast_value(ctx, read(v, low_x), _F32), cast_value(ctx, read(v, high_x), _F32), low_x, high_x, x) for v in (low_y, high_y)
        ]
        out = cast_value(ctx, mix(lines[0], lines[1], low_y, high_y, y), image.dtype)
    nowhere = b.broadcast_in_dim(b.compare(depth, 0, "EQ"), out.dims, (0, 1, 2))
    return b.select(nowhere, ctx.broadcast_to(border, out.dims), out)
