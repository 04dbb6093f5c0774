"""The gradients of CropAndResize, by the image and by the boxes."""

from __future__ import annotations

from collections.abc import Callable

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType
from disc_tf.lowering.content import bind_run_time, element_dims
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.crops import Image, check_picks, crop_positions, number, pixel, within
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert
from disc_tf.lowering.registry import NUMBERS, lowering
from disc_tf.lowering.rows import column, scatter_rows
from disc_tf.lowering.shapes import invalid

_F32, _I64 = DType.F32, DType.I64


class _Crops:
    """Checked operands of a gradient: where each of the crops' pixels ``dims = [boxes, height, width]`` lies in the image."""

    def __init__(
        self, ctx: LoweringContext, grads: Value, boxes: Value, box_ind: Value, image: tuple[Dim, ...], ratio: bool
    ) -> None:  # fmt: skip
        b = ctx.b
        for d in grads.dims[1:3]:
            ctx.check_dim_cond(d, "GT", 0, message="grads dimensions must be positive")
        for d in image[1:3]:
            ctx.check_dim_cond(d, "GT", 0, message="image dimensions must be positive")
        count = boxes.dims[0]
        ctx.check_dims_eq(boxes.dims[1], 4, message="boxes must have 4 columns")
        ctx.check_dims_eq(box_ind.dims[0], count, message="box_index has incompatible shape")
        ctx.check_dims_eq(grads.dims[0], count, message="boxes and grads have incompatible shape")
        boxes, box_ind = ctx.cast_dims(boxes, (count, 4)), ctx.cast_dims(box_ind, (count,))
        check_picks(ctx, box_ind, image[0])
        self.ctx = ctx
        self.dims = (count, *grads.dims[1:3])
        self.extents = image[1:3]
        self.images = b.broadcast_in_dim(b.convert(box_ind, _I64), self.dims, (0,))
        #: positions of rows ``[boxes, height]`` and columns ``[boxes, width]``, f32
        self.at = [
            crop_positions(ctx, column(ctx, boxes, axis), column(ctx, boxes, axis + 2), extent, size, ratio)
            for axis, (extent, size) in enumerate(zip(self.extents, self.dims[1:], strict=True))
        ]
        inside = [within(ctx, v, extent) for v, extent in zip(self.at, self.extents, strict=True)]
        #: whether a pixel lies in the image (not where a box is NaN), of `dims`
        self.inside = b.and_(*(self.spread(v, axis) for axis, v in enumerate(inside)))

    def spread(self, v: Value, axis: int, *more: Dim) -> Value:
        """Rows (``axis`` 0) or columns (1) over `dims` and ``more``."""
        return self.ctx.b.broadcast_in_dim(v, (*self.dims, *more), (0, axis + 1))

    def places(self, rounding: Callable[[Value], Value], axis: int) -> Value:
        """Rounded positions over `dims`, i64."""
        return self.spread(self.ctx.b.convert(rounding(self.at[axis]), _I64), axis)

    def shares(self, *more: Dim) -> list[Value]:
        """How far a pixel lies behind the row and the column before it, over `dims` and ``more``."""
        b = self.ctx.b
        return [self.spread(b.subtract(v, b.floor(v)), axis, *more) for axis, v in enumerate(self.at)]


def _ranks(grads: Value, boxes: Value, box_ind: Value) -> None:
    if grads.rank != 4 or boxes.rank != 2 or box_ind.rank != 1:
        raise invalid(f"grads must be 4-D, boxes 2-D, box_index 1-D: {grads.type}, {boxes.type}, {box_ind.type}")


@lowering("CropAndResizeGradImage", dtypes={DType.F16, DType.F32, DType.F64})
def crop_and_resize_grad_image(
    ctx: LoweringContext, node: NodeView, grads: Value, boxes: Value, box_ind: Value, image_size: Value
) -> Value:  # fmt: skip
    """Each gradient is shared out among its sources, which are added up in the image's type in the order of the crops; what lies outside of
    the image is left out."""
    method = node.attr("method", "bilinear")
    if method not in ("bilinear", "nearest"):
        raise Unsupported("ATTR", f"{node.op} with method {method!r}")
    _ranks(grads, boxes, box_ind)
    if image_size.rank != 1 or (image_size.dims[0].is_static and int(image_size.dims[0]) != 4):
        raise invalid(f"image_size must have 4 elements: {image_size.type}")
    size = element_dims(ctx, image_size, "image_size")
    for d, least in zip(size, ("GE", "GT", "GT", "GE"), strict=True):
        ctx.check_dim_cond(d, least, 0, message="image dimensions must be positive")
    batch, height, width, channels = (ctx.plain_dim(bind_run_time(ctx, d)) for d in size)
    ctx.check_dims_eq(grads.dims[3], channels, message="image_size and grads are incompatible")
    dtype, b = node.dtype("T"), ctx.b
    crops = _Crops(ctx, grads, boxes, box_ind, (batch, height, width, channels), ratio=False)
    dims = (*crops.dims, channels)
    grads = ctx.cast_dims(grads, dims)

    def row(y: Value, x: Value) -> Value:
        """Row of the image's pixels, outside of them all where there is no source."""
        return b.select(crops.inside, pixel(ctx, crops.images, y, x, height, width), -1)

    if method == "nearest":
        near = [crops.places(b.round_nearest_afz, axis) for axis in range(2)]
        rows, updates = [row(*near)], [convert(ctx, grads, dtype)]
    else:
        low, high = ([crops.places(rounding, axis) for axis in range(2)] for rounding in (b.floor, b.ceil))
        share_y, share_x = crops.shares(channels)
        one = ctx.splat(1, share_y)
        rows, updates = [], []
        for y, part in ((low[0], b.subtract(one, share_y)), (high[0], share_y)):
            half = b.multiply(part, grads)
            for x, share in ((low[1], b.subtract(one, share_x)), (high[1], share_x)):
                rows.append(row(y, x))
                updates.append(convert(ctx, b.multiply(share, half), dtype))
    taps = len(rows)
    total = product(crops.dims) * taps
    where = b.concatenate([b.reshape(v, (*crops.dims, 1)) for v in rows], 3)
    parts = b.concatenate([b.reshape(v, (*crops.dims, 1, channels)) for v in updates], 3)
    zeros = ctx.full(0, dtype, (batch * height * width, channels))
    out = scatter_rows(ctx, zeros, b.reshape(where, (total, 1)), b.reshape(parts, (total, channels)), "add")
    return b.reshape(out, (batch, height, width, channels))


@lowering("CropAndResizeGradBoxes", dtypes=NUMBERS - {DType.BF16, DType.U32, DType.U64})
def crop_and_resize_grad_boxes(ctx: LoweringContext, node: NodeView, grads: Value, image: Value, boxes: Value, box_ind: Value) -> Value:
    """``f32[boxes, 4]``: how the bilinear crops change with the boxes' edges, summed over their pixels."""
    if node.attr("method", "bilinear") != "bilinear":
        raise Unsupported("ATTR", f"{node.op} with method {node.attr('method')!r}")
    _ranks(grads, boxes, box_ind)
    if image.rank != 4:
        raise invalid(f"input image must be 4-D: {image.type}")
    channels = image.dims[3]
    ctx.check_dims_eq(channels, grads.dims[3], message="image, grads depth differ")
    crops = _Crops(ctx, grads, boxes, box_ind, image.dims, ratio=True)
    b, dims = ctx.b, (*crops.dims, channels)
    grads = ctx.cast_dims(grads, dims)
    source = Image(ctx, image)
    ys, xs = ([crops.places(rounding, axis) for rounding in (b.floor, b.ceil)] for axis in range(2))
    (left_top, right_top), (left_low, right_low) = ([convert(ctx, source.at(crops.images, y, x), _F32) for x in xs] for y in ys)
    share_y, share_x = crops.shares(channels)
    one = ctx.splat(1, share_y)

    def blend(first: Value, second: Value, share: Value) -> Value:
        return b.add(b.multiply(b.subtract(one, share), first), b.multiply(share, second))

    slopes = (
        blend(b.subtract(left_low, left_top), b.subtract(right_low, right_top), share_x),
        blend(b.subtract(right_top, left_top), b.subtract(right_low, left_low), share_y),
    )
    inside = b.broadcast_in_dim(crops.inside, dims, (0, 1, 2))
    edges: list[list[Value]] = []
    for axis, (slope, extent, size) in enumerate(zip(slopes, crops.extents, crops.dims[1:], strict=True)):
        slope = b.select(inside, b.multiply(slope, grads), 0)
        edges.append(_edges(ctx, slope, axis, extent, size))
    columns = [edges[axis][side] for side in range(2) for axis in range(2)]
    return b.concatenate([b.reshape(v, (crops.dims[0], 1)) for v in columns], 1)


def _edges(ctx: LoweringContext, slope: Value, axis: int, extent: Dim, size: Dim) -> list[Value]:
    """``[boxes]`` for the first and the last edge: the slopes times the shares that they have in the positions."""
    b = ctx.b
    reach = number(ctx, extent - 1, _F32, (size,))
    steps = b.maximum(number(ctx, size - 1, _F32, (size,)), 1.0)
    last = b.multiply(b.iota(_F32, (size,), 0), b.divide(reach, steps))
    shares = [b.subtract(reach, last), last]
    middle = b.multiply(reach, 0.5)
    alone = b.broadcast_in_dim(b.compare(ctx.dim(size), 1, "EQ"), (size,), ())
    shares = [b.select(alone, middle, v) for v in shares]
    return [ctx.reduce(b.multiply(slope, b.broadcast_in_dim(v, slope.dims, (axis + 1,))), (1, 2, 3), "add") for v in shares]
