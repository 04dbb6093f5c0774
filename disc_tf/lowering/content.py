"""Between IR values and contents (`symbolic`): reading what is known of a value, making values of known content, binding
run-time scalars as dims where a shape depends on data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, DimLike
from disc_tf.ir.types import DType
from disc_tf.lowering import symbolic
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.symbolic import MAX_CONTENT
from disc_tf.lowering.tracing import traced


def static_shape(v: Value) -> tuple[int, ...] | None:
    """The shape of `v` as ints, None if a dim is symbolic."""
    return tuple(int(d) for d in v.dims) if v.tensor.is_static else None


def content_of(ctx: LoweringContext, v: Value) -> np.ndarray | None:
    """What is known of a small integer tensor: an array of `Dim` of its shape; a known bool tensor as a bool array."""
    shape = static_shape(v)
    if shape is None or math.prod(shape) > MAX_CONTENT:
        return None
    if v.dtype.is_bool:
        return ctx.constant(v)
    if not v.dtype.is_int:
        return None
    found = ctx.known_dims(v)
    if found is not None:
        return symbolic.as_content(found, shape)
    known = ctx.constant(v)
    return None if known is None else symbolic.of_constant(known)


def dense_value(ctx: LoweringContext, content: np.ndarray, dtype: DType) -> Value:
    """A value with this content (an array of `Dim` of any rank, or of bools), its content recorded."""
    if content.dtype != object:
        return ctx.const(content, dtype)
    known = symbolic.to_constant(content, dtype.np)
    if known is not None:
        return ctx.const(known, dtype)
    if content.ndim == 0:
        return ctx.dim(content.item(), dtype)
    flat = ctx.from_dims(content.reshape(-1).tolist(), dtype)
    if content.ndim == 1:
        return flat
    value = ctx.b.reshape(flat, content.shape)
    return ctx.set_dims(value, content.reshape(-1).tolist())


# ---- run-time values as dims -----------------------------------------------------------------------------


def signed_dim(ctx: LoweringContext, scalar: Value) -> Dim:
    """The value of an integer scalar of any sign as a dim: known content, else two fresh symbols (a symbol is never
    negative): `max(x, 0) - max(-x, 0)`. INT_MIN gives -INT_MAX, which no extent tells apart."""
    known = traced(ctx, scalar)
    if known is not None:
        ctx.set_dims(scalar, known)
        return known[0]
    wide = scalar if scalar.dtype is DType.I64 else ctx.b.convert(scalar, DType.I64)
    zero = ctx.scalar(0, DType.I64)
    low = ctx.b.maximum(wide, ctx.scalar(-(2**63) + 1, DType.I64))
    parts = [ctx.fresh_dim(ctx.b.maximum(v, zero)) for v in (wide, ctx.b.negate(low))]
    ctx.run_time |= {str(p) for p in parts}
    ctx.set_dims(scalar, [parts[0] - parts[1]])
    return parts[0] - parts[1]


class RunTimeFacts:
    """The environment's answers, but none for functions over signed run-time scalars, which would be long searches in vain."""

    def __init__(self, ctx: LoweringContext) -> None:
        self.ctx = ctx

    def is_equal(self, a: DimLike, b: DimLike) -> bool | None:
        a, b = Dim.of(a), Dim.of(b)
        if a == b:
            return True
        return None if self.ctx.is_run_time(a - b) else self.ctx.env.is_equal(a, b)

    def is_nonneg(self, dim: DimLike) -> bool | None:
        dim = Dim.of(dim)
        return None if self.ctx.is_run_time(dim) else self.ctx.env.is_nonneg(dim)


def element(ctx: LoweringContext, v: Value, i: int) -> Value:
    """Element `i` (a scalar) of a rank-1 tensor; looks through the concatenation that made it."""
    while v.op is not None and v.op.name == "concatenate" and v.rank == 1:
        for piece in v.op.operands:
            if not piece.dims[0].is_static:
                return _sliced(ctx, v, i)
            if i < int(piece.dims[0]):
                v = piece
                break
            i -= int(piece.dims[0])
    op = v.op
    if op is not None and op.name == "reshape" and op.operands[0].rank == 0 and v.rank == 1:
        return op.operands[0]
    return _sliced(ctx, v, i)


def _sliced(ctx: LoweringContext, v: Value, i: int) -> Value:
    known = ctx.dims_of(v)
    if known is not None:
        return ctx.dim(known[i], v.dtype)
    return ctx.b.reshape(ctx.b.slice(v, [i], [i + 1], [1]), [])


def element_dims(ctx: LoweringContext, v: Value, what: str) -> list[Dim]:
    """The elements of a rank-1 integer tensor as dims of any sign, binding those that only run time knows.

    `Unsupported(RANK)` if its length is not static: the rank of a result hangs on it. `what` names it in the message.
    """
    known = ctx.dims_of(v)
    if known is not None:
        return known
    if v.rank != 1:
        raise Unsupported("INVALID", f"{what} must be a vector, not of rank {v.rank}")
    if not v.dims[0].is_static:
        raise Unsupported("RANK", f"{what} has {v.dims[0]} elements: the rank of the result is not known")
    dims = [signed_dim(ctx, element(ctx, v, i)) for i in range(int(v.dims[0]))]
    ctx.set_dims(v, dims)
    return dims


def scalar_dim(ctx: LoweringContext, v: Value, what: str) -> Dim:
    """An integer scalar as a dim of any sign. TF takes one-element vectors for scalars here and there: so do we."""
    if v.rank > 1 or (v.rank == 1 and v.dims[0] != 1):
        raise Unsupported("INVALID", f"{what} must be a scalar, not of shape {v.type}")
    return element_dims(ctx, v, what)[0] if v.rank else signed_dim(ctx, v)


def constant_ints(ctx: LoweringContext, v: Value, what: str) -> list[int]:
    """The elements of an integer tensor that must be known numbers; `Unsupported(NOT_CONSTANT)` otherwise."""
    known = ctx.constant(v)
    if known is None:
        raise Unsupported("NOT_CONSTANT", f"{what} is not known at compile time")
    return [int(x) for x in known.reshape(-1)]


def constant_int(ctx: LoweringContext, v: Value, what: str) -> int:
    """The value of an integer scalar (or one-element vector) that must be a known number."""
    values = constant_ints(ctx, v, what)
    if len(values) != 1:
        raise Unsupported("INVALID", f"{what} must be a scalar")
    return values[0]


def bind(ctx: LoweringContext, d: DimLike) -> Dim:
    """`d` itself if static or one symbol, else a fresh symbol for it: keeps run-time expressions out of types."""
    d = Dim.of(d)
    return d if d.is_static or d.symbol is not None else ctx.fresh_dim(ctx.b.dim(d, DType.I64))


def bind_run_time(ctx: LoweringContext, d: DimLike) -> Dim:
    """`bind` for what hangs on signed run-time scalars; `d` itself otherwise."""
    d = Dim.of(d)
    return d if ctx.run_time.isdisjoint(d.symbols()) else bind(ctx, d)


def check_size(ctx: LoweringContext, sizes: Sequence[Dim], message: str) -> None:
    """Require every size to be non-negative."""
    for s in sizes:
        ctx.check_dim_cond(s, "GE", 0, message=message)


def positive_sizes(ctx: LoweringContext, v: Value, what: str, message: str) -> list[Dim]:
    """The elements of a vector as plain dims that are known to be at least 1, which is checked; ``what``: the operand, for messages."""
    sizes = element_dims(ctx, v, what)
    for d in sizes:
        ctx.check_dim_cond(d, "GT", 0, message=message)
    sizes = [ctx.plain_dim(bind_run_time(ctx, d)) for d in sizes]
    for d in sizes:
        if d.symbol is not None and ctx.env.bounds(d)[0] == 0:
            ctx.env.set_range(d, 1, None)
    return sizes


def require_broadcastable(
    ctx: LoweringContext, dims: Sequence[Dim], target: Sequence[Dim], message: str
) -> None:
    """Require each of ``dims`` to be 1 or equal to the dim of ``target`` at its place."""
    for d, r in zip(dims, target, strict=True):
        if d == 1 or ctx.env.is_equal(d, r) is True:
            continue
        if ctx.env.is_equal(d, 1) is False:
            ctx.check_dims_eq(d, r, message=message)
            continue
        if ctx.env.is_equal(d, r) is False:
            ctx.check_dims_eq(d, 1, message=message)
            continue
        same, one = (ctx.b.compare(ctx.dim(d), ctx.dim(x), "EQ") for x in (r, 1))
        ctx.check(ctx.b.or_(same, one), message=message)
