"""Rows and columns by computed positions: picked, placed into a new tensor, ordered; and the dims that positions and extents amount to.

No rules here: what many of them share.
"""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType, TensorType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Status
from disc_tf.lowering.shapes import invalid

_MOST = 2**63 - 1


def take(ctx: LoweringContext, x: Value, indices: Value, axis: int = 0) -> Value:
    """``x`` at ``indices`` (any shape, in its place) along ``axis``, where all of them are known to be in range."""
    offset = (*range(axis), *range(axis + indices.rank, x.rank - 1 + indices.rank))
    sizes = [Dim.of(1) if i == axis else d for i, d in enumerate(x.dims)]
    return ctx.b.gather(
        x, indices, sizes, offset_dims=offset, collapsed_slice_dims=(axis,), start_index_map=(axis,), index_vector_dim=indices.rank
    )  # fmt: skip


def column(ctx: LoweringContext, matrix: Value, k: int) -> Value:
    """Column ``k`` of a matrix, as a vector."""
    n = matrix.dims[0]
    return ctx.b.reshape(ctx.b.slice(matrix, [0, k], [n, k + 1]), [n])


def scatter_rows(ctx: LoweringContext, into: Value, at: Value, rows: Value, kind: str = "assign") -> Value:
    """``into`` with rows assigned (or added) at the indices of a vector, in their order; indices out of range are skipped."""
    (out,) = ctx.b.scatter(
        [into], at, [rows], kind, update_window_dims=tuple(range(1, into.rank)),
        inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), index_vector_dim=1,
    )  # fmt: skip
    return out


def row_major_order(ctx: LoweringContext, matrix: Value) -> Value:
    """``i64[n]``: which row comes first, second ... when rows are compared column by column; equal rows keep their order.

    Compared as they are: a position in a tensor whose extents multiply to more than 2^63 could not be computed.
    """
    n, width = matrix.dims[0], int(matrix.dims[1])
    if not width:
        return ctx.b.iota(DType.I64, [n], 0)

    def before(b: Builder, *p: Value) -> Value:
        less = b.compare(p[2 * width - 2], p[2 * width - 1], "LT")
        for k in range(width - 2, -1, -1):
            x, y = p[2 * k], p[2 * k + 1]
            less = b.or_(b.compare(x, y, "LT"), b.and_(b.compare(x, y, "EQ"), less))
        return less

    keys = [*(column(ctx, matrix, k) for k in range(width)), ctx.b.iota(DType.I64, [n], 0)]
    region = ctx.b.region([TensorType(x.dtype, ()) for x in keys for _ in range(2)], before)
    return ctx.b.sort(keys, 0, region)[-1]


# ---- dims ----------------------------------------------------------------------------------------------------------------


def length_of_indices(ctx: LoweringContext, indices: Value, message: str) -> Dim:
    """One more than the greatest of a vector of indices, 0 if there are none or all are negative; an error if no i64 holds it."""
    wide = indices if indices.dtype is DType.I64 else ctx.b.convert(indices, DType.I64)
    last = ctx.reduce(wide, [0], "maximum", ctx.scalar(-1, DType.I64))
    if indices.dtype is DType.I64:
        ctx.check(ctx.b.compare(last, ctx.scalar(_MOST, DType.I64), "LT"), message=message)
    return ctx.fresh_dim(ctx.b.maximum(ctx.b.add(last, ctx.scalar(1, DType.I64)), ctx.scalar(0, DType.I64)))


def check_countable(ctx: LoweringContext, dims: Sequence[Dim], message: str, code: Status = Status.INVALID_ARGUMENT) -> None:
    """Require that extents, multiplied one after the other, stay below 2^63: TensorFlow does, also for a tensor that nobody makes."""
    most, unsure = 1, False
    for d in dims:
        high = None if ctx.is_run_time(d) else ctx.env.bounds(d)[1]
        unsure = unsure or high is None
        most *= high or 0
        if most > _MOST and all(e.is_static for e in dims):
            raise invalid(message)
        unsure = unsure or most > _MOST
    if unsure:
        check_product(ctx, [ctx.dim(d) for d in dims], message, code)


def check_product(
    ctx: LoweringContext, extents: Sequence[Value], message: str, code: Status = Status.INVALID_ARGUMENT
) -> Value:
    """The product of i64 scalars, none negative; an error if a partial product is 2^63 or more."""
    b, total = ctx.b, ctx.scalar(1, DType.I64)
    fits: Value | None = None
    for k, extent in enumerate(extents):
        if k:
            room = b.divide(ctx.scalar(_MOST, DType.I64), b.maximum(extent, ctx.scalar(1, DType.I64)))
            more = b.compare(total, room, "LE")
            fits = more if fits is None else b.and_(fits, more)
        total = extent if k == 0 else b.multiply(total, extent)
    if fits is not None:
        ctx.check(fits, code, message)
    return total


__all__ = ["check_countable", "check_product", "column", "length_of_indices", "row_major_order", "scatter_rows", "take"]
