"""The patches that a window passes over. No rules here."""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.convolution import Padding
from disc_tf.lowering.rows import take


def patches(
    ctx: LoweringContext, x: Value, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[Padding]
) -> Value:  # fmt: skip
    """What a window sees of ``x[batch, spatial..., channels]``: ``[batch, windows..., window..., channels]``, zeros in the padding."""
    b, spatial = ctx.b, len(window)
    zero = Dim.of(0)
    low, high = ([zero, *(getattr(p, side) for p in pads), zero] for side in ("low", "high"))
    # A window may end beyond the data where TF's padding says so, never begin there.
    if any(d != 0 for d in (*low, *high)):
        x = b.pad(x, ctx.scalar(0, x.dtype), low, high)
    extents = x.dims[1:-1]
    counts = [p.out for p in pads]
    dims = (*counts, *(Dim.of(k) for k in window))
    place: Value | None = None
    for axis, (extent, stride, dilation) in enumerate(zip(extents, strides, dilations, strict=True)):
        start = b.multiply(b.iota(DType.I32, dims, axis), stride)
        at = b.add(start, b.multiply(b.iota(DType.I32, dims, spatial + axis), dilation))
        if place is not None:
            at = b.add(b.multiply(place, ctx.broadcast_to(ctx.dim(extent, DType.I32), dims)), at)
        place = at
    assert place is not None
    return take(ctx, b.reshape(x, (x.dims[0], product(extents), x.dims[-1])), place, 1)
