"""How elements of each dtype live in registers and in memory, and how to convert between dtypes.

In registers: bool is i1, integers are themselves (signedness is in the op), f32 and f64 are themselves, and f16 and
bf16 are f32 values that are rounded after every op. In memory bool is i8 (0 or 1), f16 and bf16 are their bits.
Everything here works on any number of lanes, scalars included.
"""

from __future__ import annotations

from disc_tf.codegen.llvm import F16, F32, F64, I1, I8, I32, FnBuilder, Ty, V, const, int_like, int_ty, vec
from disc_tf.ir.types import DType

HALVES = (DType.F16, DType.BF16)


def reg_elem(dtype: DType) -> Ty:
    """Element type in registers."""
    if dtype.is_bool:
        return I1
    if dtype.is_float:
        return F64 if dtype is DType.F64 else F32
    return int_ty(dtype.bits)


def mem_elem(dtype: DType) -> Ty:
    """Element type in memory."""
    if dtype.is_bool:
        return I8
    if dtype in HALVES:
        return int_ty(16)
    return reg_elem(dtype)


def reg_ty(dtype: DType, lanes: int) -> Ty:
    return vec(reg_elem(dtype), lanes)


def mem_ty(dtype: DType, lanes: int) -> Ty:
    return vec(mem_elem(dtype), lanes)


def from_memory(b: FnBuilder, dtype: DType, bits: V) -> V:
    """Loaded bits as a register value."""
    if dtype.is_bool:
        return b.icmp("ne", bits, 0)
    if dtype is DType.BF16:
        return b.bitcast(b.shl(b.zext(bits, I32), 16), vec(F32, bits.lanes))
    if dtype is DType.F16:
        return _half_to_float(b, bits)
    return bits


def to_memory(b: FnBuilder, dtype: DType, x: V) -> V:
    """A register value as it is stored (f16 and bf16: rounded to nearest even)."""
    if dtype.is_bool:
        return b.zext(x, I8)
    if dtype is DType.BF16:
        return _float_to_bf16(b, x)
    if dtype is DType.F16:
        return _float_to_half(b, x)
    return x


def round_float(b: FnBuilder, dtype: DType, x: V) -> V:
    """Round an f32 register value to f16 or bf16 and back; other dtypes are untouched."""
    if dtype in HALVES:
        return from_memory(b, dtype, to_memory(b, dtype, x))
    return x


def _half_to_float(b: FnBuilder, bits: V) -> V:
    if b.has_f16c:
        return b.fpext(b.bitcast(bits, vec(F16, bits.lanes)), F32)
    x = b.zext(bits, I32)
    sign = b.shl(b.and_(x, 0x8000), 16)
    rest = b.and_(x, 0x7FFF)
    normal = b.add(b.shl(rest, 13), 112 << 23)
    special = b.or_(b.shl(rest, 13), 0x7F800000)
    tiny = b.bitcast(b.fmul(b.sitofp(rest, F32), 2.0**-24), x.ty)  # normal in f32: safe under DAZ
    magnitude = b.select(b.icmp("slt", rest, 0x400), tiny, b.select(b.icmp("sge", rest, 0x7C00), special, normal))
    return b.bitcast(b.or_(magnitude, sign), vec(F32, bits.lanes))


def _float_to_half(b: FnBuilder, x: V) -> V:
    if b.has_f16c:
        return b.bitcast(b.fptrunc(x, F16), vec(int_ty(16), x.lanes))
    bits = b.bitcast(x, vec(I32, x.lanes))
    sign = b.and_(b.lshr(bits, 16), 0x8000)
    a = b.and_(bits, 0x7FFFFFFF)
    odd = b.and_(b.lshr(a, 13), 1)
    normal = b.lshr(b.add(b.sub(a, (112 << 23) - 0xFFF), odd), 13)
    half = const(0.5, x.ty)  # adding it aligns a subnormal result with the low mantissa bits
    tiny = b.sub(b.bitcast(b.fadd(b.bitcast(a, x.ty), half), a.ty), b.bitcast(half, a.ty))
    big = b.select(b.icmp("sgt", a, 0x7F800000), const(0x7E00, a.ty), const(0x7C00, a.ty))
    r = b.select(b.icmp("slt", a, 113 << 23), tiny, b.select(b.icmp("sge", a, 143 << 23), big, normal))
    return b.trunc(b.or_(r, sign), int_ty(16))


def _float_to_bf16(b: FnBuilder, x: V) -> V:
    bits = b.bitcast(x, vec(I32, x.lanes))
    odd = b.and_(b.lshr(bits, 16), 1)
    rounded = b.lshr(b.add(b.add(bits, 0x7FFF), odd), 16)
    nan = b.or_(b.lshr(bits, 16), 0x40)
    return b.trunc(b.select(b.fcmp("uno", x, x), nan, rounded), int_ty(16))


# -- conversion between dtypes ------------------------------------------------------------------------------------


def _float_to_int(b: FnBuilder, x: V, bits: int) -> V:
    """cvttss2si: truncation, and INT_MIN for NaN and what does not fit. Without poison."""
    limit = 2.0 ** (bits - 1)
    fits = b.and_(b.fcmp("oge", x, -limit), b.fcmp("olt", x, limit))
    if bits == 32 and x.ty.elem is F64:
        # Truncation brings (-2^31 - 1, -2^31) into range.
        fits = b.and_(b.fcmp("ogt", x, -limit - 1.0), b.fcmp("olt", x, limit))
    r = b.fptosi(b.select(fits, x, const(0.0, x.ty)), int_ty(bits))
    return b.select(fits, r, const(-(1 << (bits - 1)), r.ty))


def _float_to_u64(b: FnBuilder, x: V) -> V:
    high = b.and_(b.fcmp("oge", x, 2.0**63), b.fcmp("olt", x, 2.0**64))
    low = _float_to_int(b, b.select(high, b.fsub(x, 2.0**63), x), 64)
    return b.select(high, b.xor(low, -(1 << 63)), low)


def convert(b: FnBuilder, x: V, source: DType, target: DType) -> V:
    """`convert` of the op set, by value (see docs/architecture.md for what out-of-range floats give)."""
    if source is target:
        return x
    if target.is_bool:
        return b.fcmp("une", x, 0.0) if source.is_float else b.icmp("ne", x, 0)
    if source.is_float and target.is_float:
        want = reg_elem(target)
        if x.ty.elem is not want:
            x = b.fpext(x, want) if want is F64 else b.fptrunc(x, want)
        return round_float(b, target, x)
    if source.is_float:
        if target is DType.U64:
            return _float_to_u64(b, x)
        through = 64 if target in (DType.I64, DType.U32) else 32
        return b.trunc(_float_to_int(b, x, through), int_ty(target.bits)) if target.bits < through else \
            _float_to_int(b, x, through)
    signed = source.is_signed and not source.is_bool
    if target.is_float:
        want = reg_elem(target)
        if source.bits < 32:  # also i1: one conversion instruction from i32 serves all of them
            x = b.sext(x, I32) if signed else b.zext(x, I32)
            signed = True
        y = b.sitofp(x, want) if signed else b.uitofp(x, want)
        return round_float(b, target, y)
    width = x.ty.bits
    if target.bits < width:
        return b.trunc(x, int_ty(target.bits))
    if target.bits > width:
        return b.sext(x, int_ty(target.bits)) if signed else b.zext(x, int_ty(target.bits))
    return x


def as_bits(b: FnBuilder, dtype: DType, x: V) -> V:
    """The bit pattern of a register value, as an integer of the dtype's width."""
    stored = to_memory(b, dtype, x)
    return b.bitcast(stored, int_like(stored.ty))


def from_bits(b: FnBuilder, dtype: DType, bits: V) -> V:
    """The register value of a bit pattern."""
    return from_memory(b, dtype, b.bitcast(bits, mem_ty(dtype, bits.lanes)))


