"""Cast among all number types and bool, as TF's CPU kernels on x86-64 do it.

Integer results of NaN and out-of-range floats follow the hardware conversion: i32 and i64 give their minimum; u32 and u64 are made
of two signed conversions as compilers make them; narrower integers keep the low bits of the i32 result (TF itself is not
consistent there: its vector code saturates for some source types).
"""

from __future__ import annotations

from disc_tf.ir.core import Value
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.registry import ALL, lowering

#: mantissa bits stored by each float type
_MANTISSA = {DType.F64: 52, DType.F32: 23, DType.F16: 10, DType.BF16: 7}
#: (source, destination) for which ``Truncate`` drops mantissa bits; TF ignores it for other pairs
_TRUNCATING = {(DType.F64, DType.F32), (DType.F64, DType.F16), (DType.F32, DType.F16), (DType.F32, DType.BF16)}


@lowering("Cast", "_HostCast", dtypes={"SrcT": ALL, "DstT": ALL})
def cast(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """``Truncate`` rounds float narrowing towards zero."""
    return cast_value(ctx, x, node.dtype("DstT"), bool(node.attr("Truncate", False)))


def cast_value(ctx: LoweringContext, x: Value, to: DType, truncate: bool = False) -> Value:
    """``x`` cast to ``to`` as TF does."""
    src = x.dtype
    if src == to:
        return x
    if to.is_bool:
        return ctx.b.compare(x, ctx.splat(0, x), "NE")
    if src.is_float and to.is_float:
        if truncate and (src, to) in _TRUNCATING:
            x = _drop_mantissa(ctx, x, to)
        return _narrow_float(ctx, x, to)
    if src.is_float:
        return _float_to_int(ctx, x, to)
    if to.is_float:
        return _int_to_float(ctx, x, to)
    return ctx.b.convert(x, to)


def _drop_mantissa(ctx: LoweringContext, x: Value, to: DType) -> Value:
    """Clear the mantissa bits that ``to`` cannot hold, so that the conversion is exact but for the exponent's range."""
    bits_type = DType.U64 if x.dtype == DType.F64 else DType.U32
    dropped = _MANTISSA[x.dtype] - _MANTISSA[to]
    mask = ((1 << bits_type.bits) - 1) ^ ((1 << dropped) - 1)
    bits = ctx.b.bitcast_convert(x, bits_type)
    cleared = ctx.b.bitcast_convert(ctx.b.and_(bits, ctx.splat(mask, bits)), x.dtype)
    # a NaN whose payload lies in the dropped bits must not become an infinity
    return ctx.b.select(ctx.b.compare(x, x, "EQ"), cleared, x)


def _narrow_float(ctx: LoweringContext, x: Value, to: DType) -> Value:
    """16-bit floats are reached through f32, as Eigen's conversions do (two roundings from f64)."""
    if to in (DType.F16, DType.BF16) and x.dtype != DType.F32:
        x = ctx.b.convert(x, DType.F32)
    return ctx.b.convert(x, to)


def _int_to_float(ctx: LoweringContext, x: Value, to: DType) -> Value:
    if to in (DType.F16, DType.BF16):
        return ctx.b.convert(ctx.b.convert(x, DType.F32), to)
    return ctx.b.convert(x, to)


def _float_to_int(ctx: LoweringContext, x: Value, to: DType) -> Value:
    if x.dtype in (DType.F16, DType.BF16):
        x = ctx.b.convert(x, DType.F32)
    if to in (DType.I32, DType.I64):
        return ctx.b.convert(x, to)
    if to in (DType.U32, DType.U64):
        # a | (b & (a >> sign)): b is the conversion of x - 2^(bits-1), used where a overflowed to its minimum
        signed = DType.I32 if to == DType.U32 else DType.I64
        a = ctx.b.convert(x, signed)
        b = ctx.b.convert(ctx.b.subtract(x, ctx.splat(2.0 ** (to.bits - 1), x)), signed)
        overflow = ctx.b.shift_right_arithmetic(a, ctx.splat(to.bits - 1, a))
        return ctx.b.bitcast_convert(ctx.b.or_(a, ctx.b.and_(b, overflow)), to)
    return ctx.b.convert(ctx.b.convert(x, DType.I32), to)
