"""Loading stored elements as accumulator elements: f16 and bf16 to f32, narrow integers to i32."""

from __future__ import annotations

from disc_tf.codegen.cpu.target import CpuTarget
from disc_tf.codegen.llvm import F16, F32, I16, I32, FnBuilder, Ty, V, const, int_ty, vec
from disc_tf.ir.types import DType


def load_widened(b: FnBuilder, target: CpuTarget, stored: DType, ty: Ty, p: V, lanes: int, mask: V | None = None) -> V:
    """`lanes` elements of type `stored` at `p` as `ty` (the accumulator type of `stored`); masked-off lanes give 0."""
    if stored.is_float and stored.bits >= 32:
        return _load(b, vec(ty, lanes), p, mask)
    bits = _load(b, vec(int_ty(stored.bits), lanes), p, mask)
    if stored.is_int:
        return b.sext(bits, ty) if stored.is_signed else b.zext(bits, ty)
    if stored is DType.BF16:
        return b.bitcast(b.shl(b.zext(bits, I32), 16), vec(F32, lanes))
    return widen_f16(b, target, bits)


def _load(b: FnBuilder, ty: Ty, p: V, mask: V | None) -> V:
    if mask is None:
        return b.load(ty, p)
    if ty.lanes == 1:
        return b.if_then(mask, lambda: [b.load(ty, p)], [const(0, ty)])[0]
    return b.masked_load(ty, p, mask)


def widen_f16(b: FnBuilder, target: CpuTarget, bits: V) -> V:
    """Half-precision bits (i16) as f32: exact, subnormals included whatever the denormal mode."""
    lanes = bits.ty.lanes
    if target.f16c:
        return b.fpext(b.bitcast(bits, vec(F16, lanes)), F32)
    assert bits.ty.elem is I16
    x = b.zext(bits, I32)
    sign = b.shl(b.and_(x, 0x8000), 16)
    rest = b.and_(x, 0x7FFF)
    normal = b.add(b.shl(rest, 13), 112 << 23)
    special = b.or_(b.shl(rest, 13), 0x7F800000)  # infinities and NaNs keep their mantissa
    tiny = b.bitcast(b.fmul(b.sitofp(rest, F32), 2.0**-24), vec(I32, lanes))
    magnitude = b.select(b.icmp("slt", rest, 0x400), tiny, b.select(b.icmp("sge", rest, 0x7C00), special, normal))
    return b.bitcast(b.or_(magnitude, sign), vec(F32, lanes))
