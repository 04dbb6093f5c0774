"""Small helpers shared by the rules: accumulation types, constants, and checks on integer operands. No rules here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Status


def compute_dtype(dtype: DType) -> DType:
    """The type in which multi-step float formulas and sums are computed: f32 for the 16-bit floats, else itself."""
    return DType.F32 if dtype in (DType.F16, DType.BF16) else dtype


def widen(ctx: LoweringContext, x: Value) -> Value:
    """``x`` in its compute type."""
    return convert(ctx, x, compute_dtype(x.dtype))


def convert(ctx: LoweringContext, x: Value, dtype: DType) -> Value:
    """``x`` converted, or ``x`` itself if it has that type."""
    return x if x.dtype == dtype else ctx.b.convert(x, dtype)


def lowest(dtype: DType) -> float:
    """The smallest finite value of a dtype."""
    if dtype.is_float:
        import ml_dtypes

        return float(ml_dtypes.finfo(dtype.np).min)
    return int(np.iinfo(dtype.np).min)


def highest(dtype: DType) -> float:
    """The largest finite value of a dtype."""
    if dtype.is_float:
        import ml_dtypes

        return float(ml_dtypes.finfo(dtype.np).max)
    return int(np.iinfo(dtype.np).max)


def check_elements(
    ctx: LoweringContext, ok: Value, used_at: Sequence[Dim], code: Status | int, message: str
) -> None:
    """Check a bool tensor ``ok`` about an operand that is broadcast to ``used_at``: TF looks only at elements that it uses, so
    nothing is checked when the result is empty although the operand is not."""
    if ok.rank:
        every = ctx.reduce(ok, range(ok.rank), "and")
    else:
        every = ok
    count = Dim.of(1)
    for d in used_at:
        count = count * d
    low, _ = ctx.env.bounds(count)
    if tuple(ok.dims) != tuple(used_at) and not (low is not None and low > 0):
        every = ctx.b.or_(every, ctx.b.compare(ctx.dim(count), ctx.scalar(0, DType.I64), "EQ"))
    ctx.check(every, code, message)


def keep_dims(ctx: LoweringContext, reduced: Value, like: Value, axes: Sequence[int]) -> Value:
    """``reduced`` with its reduced ``axes`` of ``like`` put back with extent 1."""
    dims = [Dim.of(1) if i in axes else d for i, d in enumerate(like.dims)]
    return ctx.b.reshape(reduced, dims)


def spread(ctx: LoweringContext, reduced: Value, like: Value, axes: Sequence[int]) -> Value:
    """``reduced`` (``like`` without ``axes``) broadcast back to the dims of ``like``."""
    kept = tuple(i for i in range(like.rank) if i not in axes)
    return ctx.b.broadcast_in_dim(reduced, like.dims, kept)
