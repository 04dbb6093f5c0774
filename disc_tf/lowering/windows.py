"""Elements picked by computed positions: rows along an axis, and the patches that a window passes over. No rules here."""

from __future__ import annotations

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.lowering.context import LoweringContext


def take(ctx: LoweringContext, x: Value, indices: Value, axis: int) -> Value:
    """``x`` at ``indices`` (any shape, in its place) along ``axis``, where all of them are known to be in range."""
    offset = (*range(axis), *range(axis + indices.rank, x.rank - 1 + indices.rank))
    sizes = [Dim.of(1) if i == axis else d for i, d in enumerate(x.dims)]
    return ctx.b.gather(
        x, indices, sizes, offset_dims=offset, collapsed_slice_dims=(axis,), start_index_map=(axis,), index_vector_dim=indices.rank
    )  # fmt: skip
