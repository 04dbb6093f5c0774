"""ResizeBilinear, ResizeNearestNeighbor, ResizeBicubic, ResizeArea and the gradients of the first two.

All are separable: rows of the result's height (or width) are made first, in TF's order, so that every sum is rounded as there. What
depends on one axis alone (source positions and weights) is a vector of that axis, computed as TF does in f32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, dmax
from disc_tf.ir.types import DType
from disc_tf.lowering.content import positive_sizes
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert
from disc_tf.lowering.registry import FLOATS, NUMBERS, lowering
from disc_tf.lowering.rows import take
from disc_tf.lowering.shapes import invalid

_IMAGES = NUMBERS - {DType.U32, DType.U64}
_F32 = DType.F32


# ---- one axis ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Axis:
    """An axis of ``source`` elements seen by a result of ``size`` elements."""

    ctx: LoweringContext
    source: Dim
    size: Dim
    align: bool
    half: bool

    def number(self, d: Dim | float, dtype: DType = _F32) -> Value:
        """A number spread over the result's axis."""
        scalar = convert(self.ctx, self.ctx.dim(d), dtype) if isinstance(d, Dim) else self.ctx.scalar(d, dtype)
        return self.ctx.broadcast_to(scalar, (self.size,))

    def scale(self) -> Value:
        """Source elements for one of the result, an f32 scalar: ``CalculateResizeScale``."""

        def ratio(a: Dim, c: Dim) -> Value:
            if a.is_static and c.is_static:
                with np.errstate(all="ignore"):
                    return self.ctx.scalar(float(np.float32(int(a)) / np.float32(int(c))), _F32)
            return self.ctx.b.divide(*(convert(self.ctx, self.ctx.dim(d), _F32) for d in (a, c)))

        plain = ratio(self.source, self.size)
        if not self.align:
            return plain
        aligned = ratio(self.source - 1, self.size - 1)
        longer: Value | None = None  # corners can be aligned where both have two of them
        for d in (self.source, self.size):
            if d.is_static:
                if int(d) <= 1:
                    return plain
                continue
            more = self.ctx.b.compare(self.ctx.dim(d), 1, "GT")
            longer = more if longer is None else self.ctx.b.and_(longer, more)
        return aligned if longer is None else self.ctx.b.select(longer, aligned, plain)

    def positions(self, before: float = 0.5, after: float = -0.5) -> Value:
        """Where each result element lies in the source, f32: ``(i + before) * scale + after`` for half-pixel centers, or ``i * scale``."""
        b = self.ctx.b
        at = b.iota(_F32, (self.size,), 0)
        scale = self.ctx.broadcast_to(self.scale(), at.dims)
        if not self.half:
            return b.multiply(at, scale)
        at = b.multiply(b.add(at, self.number(before)), scale)
        return b.add(at, self.number(after)) if after else at

    def inside(self, i: Value) -> Value:
        """Source positions (i32, any shape) brought into the source."""
        last = self.ctx.broadcast_to(self.ctx.dim(self.source - 1, DType.I32), i.dims)
        return self.ctx.b.maximum(self.ctx.b.minimum(i, last), self.ctx.splat(0, i))

    def linear(self) -> tuple[Value, Value, Value]:
        """(lower i32, upper i32, the upper one's share f32)."""
        b = self.ctx.b
        at = self.positions()
        below = b.floor(at)
        lower, upper = b.convert(below, DType.I32), b.convert(b.ceil(at), DType.I32)
        return self.inside(lower), self.inside(upper), b.subtract(at, below)

    def nearest(self) -> Value:
        """The nearest source position, i32: rounded half away from zero where corners are aligned, else down."""
        b = self.ctx.b
        at = self.positions(after=0.0)
        return self.inside(b.convert(b.round_nearest_afz(at) if self.align else b.floor(at), DType.I32))


def _checked(ctx: LoweringContext, node: NodeView, x: Value, source: tuple[Dim, Dim], size: tuple[Dim, Dim]) -> list[Axis]:
    """The axes of height and width, after TF's checks on a 4-dimensional image."""
    for d in size:
        ctx.check_dim_cond(d, "GT", 0, message="output dimensions must be positive")
    for d in source:
        ctx.check_dim_cond(d, "GT", 0, message="input image must be of non-zero size")
    ctx.check_dim_cond(x.dims[3], "GT", 0, message="image must have at least one channel")
    return _axes(ctx, node, source, size)


def _axes(ctx: LoweringContext, node: NodeView, source: tuple[Dim, Dim], size: tuple[Dim, Dim]) -> list[Axis]:
    align, half = bool(node.attr("align_corners", False)), bool(node.attr("half_pixel_centers", False))
    if align and half:
        raise invalid("If half_pixel_centers is True, align_corners must be False.")
    return [Axis(ctx, s, z, align, half) for s, z in zip(source, size, strict=True)]


def _image_axes(ctx: LoweringContext, node: NodeView, x: Value, size: Value) -> list[Axis]:
    if x.rank != 4:
        raise invalid(f"input must be 4-dimensional: {x.type}")
    if size.rank != 1:
        raise invalid(f"shape_t must be 1-dimensional: {size.type}")
    if size.dims[0].is_static and int(size.dims[0]) != 2:
        raise invalid(f"shape_t must have two elements: {size.type}")
    height, width = positive_sizes(ctx, size, f"size of {node.op}", "output dimensions must be positive")
    return _checked(ctx, node, x, (x.dims[1], x.dims[2]), (height, width))


def _along(ctx: LoweringContext, v: Value, like: Value, axis: int) -> Value:
    """A vector spread over ``like``, along ``axis``."""
    return ctx.b.broadcast_in_dim(v, like.dims, (axis,))


#: channels up to this many are walked together with the width, by a table of positions: a run of channels would be shorter than a vector
_FEW = 16


def _flat(ctx: LoweringContext, x: Value) -> Value:
    """An image whose few channels are part of its width: ``[batch, height, width * channels]``; others as they are."""
    few = x.dims[3].is_static and int(x.dims[3]) < _FEW
    return ctx.b.reshape(x, (*x.dims[:2], x.dims[2] * x.dims[3])) if few else x


def _per_channel(ctx: LoweringContext, v: Value, channels: Dim) -> Value:
    """Elements of the last axis repeated for each of the channels."""
    wide = ctx.b.broadcast_in_dim(v, (*v.dims, channels), tuple(range(v.rank)))
    return ctx.b.reshape(wide, (*v.dims[:-1], v.dims[-1] * channels))


def _at_columns(ctx: LoweringContext, where: Value, channels: Dim) -> Value:
    """Positions along the width (the last axis) as positions in a `_flat` image."""
    wide = _per_channel(ctx, where, channels)
    lanes = ctx.b.iota(DType.I32, (*where.dims, channels), where.rank)
    first = ctx.b.multiply(wide, ctx.broadcast_to(ctx.dim(channels, DType.I32), wide.dims))
    return ctx.b.add(first, ctx.b.reshape(lanes, wide.dims))


def _unchanged(ctx: LoweringContext, axes: list[Axis]) -> Value | bool:
    """Whether no axis changes its extent: TF copies the image then (whatever infinities in it would make of the formula)."""
    known = [ctx.env.is_equal(a.source, a.size) for a in axes]
    if all(known) or False in known:
        return all(known)
    same = [ctx.b.compare(ctx.dim(a.source), ctx.dim(a.size), "EQ") for a in axes]
    return ctx.b.and_(*same)


# ---- the ops -----------------------------------------------------------------------------------------------------------


@lowering("ResizeBilinear", dtypes=_IMAGES)
def resize_bilinear(ctx: LoweringContext, node: NodeView, x: Value, size: Value) -> Value:
    """f32 results, interpolated in f32; size constant, symbolic or a run-time value."""
    rows, columns = axes = _image_axes(ctx, node, x, size)
    unchanged = _unchanged(ctx, axes)
    if unchanged is True:
        return convert(ctx, x, _F32)
    finite = not x.dtype.is_float

    def lerp(v: Value, lower: Value, upper: Value, share: Value, at: int) -> Value:
        low, high = (convert(ctx, take(ctx, v, i, at), _F32) for i in (lower, upper))
        out = ctx.b.add(low, ctx.b.multiply(ctx.b.subtract(high, low), _along(ctx, share, low, at)))
        return out if unchanged is False or finite else ctx.b.select(unchanged, low, out)

    flat, channels = _flat(ctx, x), x.dims[3]
    lower, upper, share = columns.linear()
    if flat is not x:
        lower, upper = (_at_columns(ctx, v, channels) for v in (lower, upper))
        share = _per_channel(ctx, share, channels)
    wide = lerp(flat, lower, upper, share, 2)
    return _image(ctx, lerp(wide, *rows.linear(), 1), columns, channels)


def _image(ctx: LoweringContext, flat: Value, columns: Axis, channels: Dim) -> Value:
    """Undo `_flat`."""
    return ctx.b.reshape(flat, (*flat.dims[:2], columns.size, channels))


@lowering("ResizeNearestNeighbor", dtypes=_IMAGES)
def resize_nearest(ctx: LoweringContext, node: NodeView, x: Value, size: Value) -> Value:
    """The image's own type; size constant, symbolic or a run-time value."""
    rows, columns = _image_axes(ctx, node, x, size)
    flat, where = _flat(ctx, x), columns.nearest()
    if flat is not x:
        where = _at_columns(ctx, where, x.dims[3])
    return _image(ctx, take(ctx, take(ctx, flat, where, 2), rows.nearest(), 1), columns, x.dims[3])


def _cubic(axis: Axis) -> list[tuple[Value, Value]]:
    """(source position i32, weight f32) of the four taps; Keys' kernel (with weights only inside the image, made to sum up to 1) for
    half-pixel centers, else TF's older one. The weights are those of TF's table of 1024 steps."""
    b = axis.ctx.b
    keys = axis.half
    a = -0.5 if keys else -0.75
    at = axis.positions()
    below = b.floor(at)
    step = b.round_nearest_even(b.multiply(b.subtract(at, below), axis.number(1024.0)))
    near = b.multiply(b.convert(step, DType.F64), axis.number(1 / 1024, DType.F64))
    far = b.subtract(axis.number(1.0, DType.F64), near)

    def polynomial(x: Value, *c: float) -> Value:
        out = axis.number(c[0], DType.F64)
        for k in c[1:]:
            out = b.add(b.multiply(out, x), axis.number(k, DType.F64))
        return b.convert(out, _F32)

    def inner(x: Value) -> Value:
        return polynomial(x, a + 2, -(a + 3), 0, 1)

    def outer(x: Value) -> Value:
        return polynomial(b.add(x, axis.number(1.0, DType.F64)), a, -5 * a, 8 * a, -4 * a)

    first = b.convert(below, DType.I32)
    taps: list[tuple[Value, Value]] = []
    for k, weight in ((-1, outer(near)), (0, inner(near)), (1, inner(far)), (2, outer(far))):
        where = b.add(first, axis.number(float(k), DType.I32))
        bounded = axis.inside(where)
        if keys:
            weight = b.select(b.compare(where, bounded, "EQ"), weight, axis.number(0.0))
        taps.append((bounded, weight))
    if not keys:
        return taps
    total = taps[0][1]
    for _, weight in taps[1:]:
        total = b.add(total, weight)
    some = b.compare(b.abs(total), axis.number(1000 * float(np.finfo(np.float32).tiny)), "GE")
    factor = b.select(some, b.divide(axis.number(1.0), total), axis.number(1.0))
    return [(where, b.multiply(weight, factor)) for where, weight in taps]


@lowering("ResizeBicubic", dtypes=_IMAGES)
def resize_bicubic(ctx: LoweringContext, node: NodeView, x: Value, size: Value) -> Value:
    """f32 results, interpolated in f32; size constant, symbolic or a run-time value."""
    rows, columns = _image_axes(ctx, node, x, size)

    def blend(v: Value, taps: list[tuple[Value, Value]], at: int) -> Value:
        out: Value | None = None
        for where, weight in taps:
            tap = convert(ctx, take(ctx, v, where, at), _F32)
            term = ctx.b.multiply(tap, _along(ctx, weight, tap, at))
            out = term if out is None else ctx.b.add(out, term)
        assert out is not None
        return out

    flat, channels = _flat(ctx, x), x.dims[3]
    across = _cubic(columns)
    if flat is not x:
        across = [(_at_columns(ctx, where, channels), _per_channel(ctx, weight, channels)) for where, weight in across]
    return _image(ctx, blend(blend(flat, _cubic(rows), 1), across, 2), columns, channels)


def _area(axis: Axis) -> tuple[Value, Value, Value]:
    """``[taps, size]``: source positions (i32), their weights and whether they count."""
    ctx, b = axis.ctx, axis.ctx.b
    span = (axis.source - 1) // dmax(axis.size - 1, 1) if axis.align else axis.source // dmax(axis.size, 1)
    dims = (ctx.plain_dim(span + 3), axis.size)
    scale = axis.scale()
    result = b.iota(_F32, dims, 1)
    wide = ctx.broadcast_to(scale, dims)
    one = ctx.splat(1.0, result)
    start, stop = b.multiply(result, wide), b.multiply(b.add(result, one), wide)
    at = b.add(b.floor(start), b.iota(_F32, dims, 0))
    beyond = b.compare(b.add(at, one), stop, "GT")
    first = b.select(beyond, wide, b.subtract(b.add(at, one), start))
    others = b.select(beyond, b.subtract(stop, at), one)
    weight = b.select(b.compare(at, start, "LT"), first, others)
    return axis.inside(b.convert(at, DType.I32)), weight, b.compare(at, b.ceil(stop), "LT")


@lowering("ResizeArea", dtypes=_IMAGES)
def resize_area(ctx: LoweringContext, node: NodeView, x: Value, size: Value) -> Value:
    """The mean of the source area of each result element, f32; size constant, symbolic or a run-time value."""
    rows, columns = _image_axes(ctx, node, x, size)
    b = ctx.b

    def collect(v: Value, where: Value, weight: Value, counts: Value, at: int) -> Value:
        taps = convert(ctx, take(ctx, v, where, at), _F32)
        spread, counted = (b.broadcast_in_dim(w, taps.dims, (at, at + 1)) for w in (weight, counts))
        terms = b.select(counted, b.multiply(taps, spread), ctx.splat(0.0, taps))
        return ctx.reduce(terms, [at], "add")

    flat, channels = _flat(ctx, x), x.dims[3]
    where, weight, counts = _area(columns)
    if flat is not x:
        where, weight = _at_columns(ctx, where, channels), _per_channel(ctx, weight, channels)
        counts = _per_channel(ctx, counts, channels)
    total = collect(collect(flat, where, weight, counts, 2), *_area(rows), 1)
    share = b.divide(ctx.scalar(1.0, _F32), b.multiply(rows.scale(), columns.scale()))
    return _image(ctx, b.multiply(total, ctx.broadcast_to(share, total.dims)), columns, channels)


# ---- gradients ---------------------------------------------------------------------------------------------------------


def _scatter_add(ctx: LoweringContext, where: Value, updates: Value, dims: tuple[Dim, ...]) -> Value:
    """Zeros of ``dims`` (batch, height, width, channels) with ``updates[y, x, tap, batch, channels]`` added at ``where[y, x, tap, 2]``, in
    this order."""
    (out,) = ctx.b.scatter(
        [ctx.full(0, updates.dtype, dims)], where, [updates], "add", update_window_dims=(3, 4), inserted_window_dims=(1, 2),
        scatter_dims_to_operand_dims=(1, 2), index_vector_dim=3,
    )  # fmt: skip
    return out


def _taps(
    ctx: LoweringContext, rows: list[Value], columns: list[Value], update: Callable[[int, int], Value]
) -> tuple[Value, Value]:
    """Positions ``[y, x, taps, 2]`` of all pairs of rows and columns, and their updates ``[y, x, taps, batch, channels]``."""
    b = ctx.b
    height, width = rows[0].dims[0], columns[0].dims[0]
    places, updates = [], []
    for i, row in enumerate(rows):
        for k, column in enumerate(columns):
            pair = [b.broadcast_in_dim(v, (height, width, 1, 1), (axis,)) for axis, v in enumerate((row, column))]
            places.append(b.concatenate(pair, 3))
            u = b.transpose(update(i, k), (1, 2, 0, 3))
            updates.append(b.reshape(u, (u.dims[0], u.dims[1], 1, *u.dims[2:])))
    return b.concatenate(places, 2), b.concatenate(updates, 2)


@lowering("ResizeBilinearGrad", dtypes=FLOATS)
def resize_bilinear_grad(ctx: LoweringContext, node: NodeView, grads: Value, image: Value) -> Value:
    """In the image's type: each gradient is shared out among its four sources."""
    if grads.rank != 4 or image.rank != 4:
        raise invalid(f"input_grad and original_image must be 4-dimensional: {grads.type}, {image.type}")
    source, size = (image.dims[1], image.dims[2]), (grads.dims[1], grads.dims[2])
    rows, columns = _checked(ctx, node, grads, source, size)
    b = ctx.b
    y, x = rows.linear(), columns.linear()
    shares = [[b.subtract(ctx.splat(1.0, v[2]), v[2]), v[2]] for v in (y, x)]

    def update(i: int, k: int) -> Value:
        part = b.multiply(grads, _along(ctx, shares[0][i], grads, 1))
        return convert(ctx, b.multiply(part, _along(ctx, shares[1][k], grads, 2)), image.dtype)

    where, updates = _taps(ctx, list(y[:2]), list(x[:2]), update)
    return _scatter_add(ctx, where, updates, (grads.dims[0], *source, grads.dims[3]))


@lowering("ResizeNearestNeighborGrad", dtypes=FLOATS | {DType.I8, DType.U8, DType.I32})
def resize_nearest_grad(ctx: LoweringContext, node: NodeView, grads: Value, size: Value) -> Value:
    """Each gradient is added to its nearest source; ``size`` is that of the image."""
    if grads.rank != 4:
        raise invalid(f"input must be 4-dimensional: {grads.type}")
    if size.rank != 1 or (size.dims[0].is_static and int(size.dims[0]) != 2):
        raise invalid(f"shape_t must have two elements: {size.type}")
    height, width = positive_sizes(ctx, size, f"size of {node.op}", "output dimensions must be positive")
    source = (height, width)
    # unlike the other gradients, TF's takes one without elements
    rows, columns = _axes(ctx, node, source, (grads.dims[1], grads.dims[2]))
    where, updates = _taps(ctx, [rows.nearest()], [columns.nearest()], lambda _i, _k: grads)
    return _scatter_add(ctx, where, updates, (grads.dims[0], *source, grads.dims[3]))
