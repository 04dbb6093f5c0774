"""Range and LinSpace."""

from __future__ import annotations

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType
from disc_tf.lowering.content import scalar_dim
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import FLOATS, SIGNED_INTS, lowering
from disc_tf.lowering.shapes import invalid, range_size


@lowering("Range", dtypes={"Tidx": FLOATS | SIGNED_INTS})
def range_(ctx: LoweringContext, _node: NodeView, start: Value, limit: Value, delta: Value) -> Value:
    """``start, start + delta, ...`` up to ``limit``, not included; a length that only run time knows binds a fresh dim."""
    for name, v in (("start", start), ("limit", limit), ("delta", delta)):
        if v.rank:
            raise invalid(f"{name} must be a scalar, not shape {v.type}")
    step = ctx.constant(delta)
    if step is not None and step == 0:
        raise invalid("Requires delta != 0: 0")
    if step is not None and start.dtype.is_int:
        count = _static_step(ctx, start, limit, int(step))
    else:
        count = _run_time_count(ctx, start, limit, delta)
    return _progression(ctx, start, delta, count)


def _static_step(ctx: LoweringContext, start: Value, limit: Value, step: int) -> Dim:
    a, b = scalar_dim(ctx, start, "start of Range"), scalar_dim(ctx, limit, "limit of Range")
    count = range_size(a, b, step, ctx.env)
    sign, way = ("<=", ">") if step > 0 else (">=", "<")
    ctx.check_dim_cond(
        a, "LE" if step > 0 else "GE", b, message=f"Requires start {sign} limit when delta {way} 0"
    )
    return count


def _run_time_count(ctx: LoweringContext, start: Value, limit: Value, delta: Value) -> Dim:
    """The length as TF computes it: integers in i64, floats by a division in their own type."""
    b = ctx.b
    first, step = ctx.constant(start), ctx.constant(delta)
    length = _converted_dim(ctx, limit)
    if length is not None and first is not None and step is not None and first == 0 and step > 0:
        # No extent is below zero, or as large as the largest integer: neither check of TensorFlow can fail.
        return ctx.fresh_dim(b.convert(b.ceil(b.abs(b.divide(limit, delta))), DType.I64))
    zero = ctx.scalar(0, delta.dtype)
    up = b.compare(delta, zero, "GT")
    ctx.check(b.compare(delta, zero, "NE"), message="Requires delta != 0")
    right_way = b.select(up, b.compare(start, limit, "LE"), b.compare(start, limit, "GE"))
    ctx.check(right_way, message="Requires start <= limit when delta > 0, start >= limit when delta < 0")
    if start.dtype.is_float:
        count = b.ceil(b.abs(b.divide(b.subtract(limit, start), delta)))
        finite = b.compare(count, ctx.scalar(float(2**62), count.dtype), "LE")
        ctx.check(finite, message="Requires ((limit - start) / delta) <= the greatest 64-bit integer")
        return ctx.fresh_dim(b.convert(count, DType.I64))
    first, last, step = (b.convert(v, DType.I64) for v in (start, limit, delta))
    step = b.abs(step)
    step = b.maximum(step, 1)
    span = b.abs(b.subtract(last, first))
    return ctx.fresh_dim(b.divide(b.add(span, b.subtract(step, 1)), step))


def _converted_dim(ctx: LoweringContext, limit: Value) -> Dim | None:
    """The extent that a float is the conversion of."""
    op = limit.op
    if op is None or op.name != "convert" or limit.dtype not in (DType.F32, DType.F64) or not op.operands[0].dtype.is_int:
        return None  # (in f16 large extents are infinite)
    content = ctx.dims_of(op.operands[0])
    return content[0] if content is not None and ctx.env.is_nonneg(content[0]) is True else None


def _progression(ctx: LoweringContext, start: Value, delta: Value, count: Dim) -> Value:
    b = ctx.b
    out = b.iota(start.dtype, [count], 0)
    step, first = ctx.constant(delta), ctx.constant(start)
    if step is None or step != 1:
        out = b.multiply(out, ctx.broadcast_to(delta, [count]))
    if first is None or first != 0:
        out = b.add(ctx.broadcast_to(start, [count]), out)
    return out


@lowering("LinSpace", dtypes=FLOATS)
def lin_space(ctx: LoweringContext, _node: NodeView, start: Value, stop: Value, num: Value) -> Value:
    """``num`` evenly spaced values from ``start`` to ``stop``, both included."""
    if start.rank or stop.rank:
        raise invalid("start and stop must be scalars")
    b = ctx.b
    n = scalar_dim(ctx, num, "num of LinSpace")
    ctx.check_dim_cond(n, "GT", 0, message=f"Requires num > 0: {plain(n)}")
    gaps = ctx.dim(n - 1, DType.I64)
    steps = b.convert(b.maximum(gaps, 1), start.dtype)
    step = b.divide(b.subtract(stop, start), steps)
    at = b.iota(start.dtype, [n], 0)
    values = b.add(ctx.broadcast_to(start, [n]), b.multiply(ctx.broadcast_to(step, [n]), at))
    # The last value is stop itself, unless it is the first too.
    position = b.iota(DType.I64, [n], 0)
    last = b.and_(
        b.compare(position, ctx.broadcast_to(gaps, [n]), "EQ"),
        b.compare(position, ctx.full(0, DType.I64, [n]), "GT"),
    )
    return b.select(last, ctx.broadcast_to(stop, [n]), values)
