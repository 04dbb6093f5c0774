"""Vector math: exponentials and logarithms, for f32 and f64, any number of lanes.

Every function takes a `FnBuilder` and a float value (scalar or vector) and returns one of the same type. They are
branch-free, free of LLVM poison, call nothing, and treat denormals as the mode of the running thread says
(flushed). Accuracy: a few ULP over the full range; the tests hold the table. Special values as in C99's Annex F.

The algorithms are the same for both types; only polynomial lengths (`math_tables.py`) differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from disc_tf.codegen.cpu import math_tables as tables
from disc_tf.codegen.llvm import F32, F64, FnBuilder, Ty, V, const, int_like

INF = math.inf
NAN = math.nan
#: from here on tanh is 1
TANH_ONE = {"f32": 10.0, "f64": 20.0}


class Format:
    """Layout of a float type: mantissa bits, exponent bias, and the tables that belong to it."""

    def __init__(self, key: str, elem: Ty, mantissa: int, bias: int) -> None:
        self.key = key
        self.elem = elem
        self.mantissa = mantissa
        self.bias = bias
        self.polys: dict[str, tuple[float, ...]] = getattr(tables, key.upper())
        self.exp_hi = math.log(2.0) * (bias + 1)  # first argument whose exp overflows, nearly
        self.min_normal = math.ldexp(1.0, 1 - bias)

    def pair(self, name: str) -> tuple[float, float]:
        """A constant as high part and low part."""
        return getattr(tables, name)[self.key]


_FORMATS = {F32: Format("f32", F32, 23, 127), F64: Format("f64", F64, 52, 1023)}


def fmt(x: V) -> Format:
    """The format of a float value; TypeError for half types (compute those in f32)."""
    try:
        return _FORMATS[x.ty.elem]
    except KeyError:
        raise TypeError(f"math functions take f32 or f64, not {x.ty}") from None


def poly(b: FnBuilder, x: V, coefficients: Sequence[float]) -> V:
    """Horner's rule, highest degree first."""
    r = const(coefficients[0], x.ty)
    for c in coefficients[1:]:
        r = b.fma(r, x, c)
    return r


def is_nan(b: FnBuilder, x: V) -> V:
    return b.fcmp("uno", x, x)


def sign_bit(b: FnBuilder, x: V) -> V:
    """The sign bit alone, as an integer of the same width."""
    ity = int_like(x.ty)
    return b.and_(b.bitcast(x, ity), -(1 << (ity.bits - 1)))


def with_sign_of(b: FnBuilder, magnitude: V, x: V) -> V:
    """Flip the sign of `magnitude` where x is negative."""
    ity = int_like(x.ty)
    return b.bitcast(b.xor(b.bitcast(magnitude, ity), sign_bit(b, x)), x.ty)


def split_high(b: FnBuilder, x: V) -> V:
    """The upper half of the mantissa of x, so that its square is exact."""
    f = fmt(x)
    ity = int_like(x.ty)
    return b.bitcast(b.and_(b.bitcast(x, ity), -(1 << ((f.mantissa + 4) // 2))), x.ty)


def two_product(b: FnBuilder, x: V, y: V) -> tuple[V, V]:
    """(p, e) with p + e == x * y exactly, short of over- and underflow."""
    p = b.fmul(x, y)
    if b.has_fma:
        return p, b.fma(x, y, b.fneg(p))
    xh, yh = split_high(b, x), split_high(b, y)
    xl, yl = b.fsub(x, xh), b.fsub(y, yh)
    e = b.fsub(b.fmul(xh, yh), p)
    e = b.fadd(b.fadd(e, b.fadd(b.fmul(xh, yl), b.fmul(xl, yh))), b.fmul(xl, yl))
    return p, e


def two_sum(b: FnBuilder, x: V, y: V) -> tuple[V, V]:
    """(s, e) with s + e == x + y exactly."""
    s = b.fadd(x, y)
    t = b.fsub(s, x)
    return s, b.fadd(b.fsub(x, b.fsub(s, t)), b.fsub(y, t))


def _reduce_exp(b: FnBuilder, x: V, unit: float = 1.0) -> tuple[V, V]:
    """x = n unit log 2 + r (unit: a power of 2). Returns r and n as an integer (garbage, but not poison, for huge x and NaN)."""
    f = fmt(x)
    ity = int_like(x.ty)
    magic = 1.5 * 2.0**f.mantissa  # adding it rounds to an integer that sits in the low mantissa bits
    t = b.fma(x, 1 / (unit * math.log(2.0)), magic)
    n = b.fsub(t, magic)
    hi, lo = f.pair("LN2")
    r = b.fma(n, -hi * unit, x)
    r = b.fma(n, -lo * unit, r)
    bits = b.sub(b.bitcast(t, ity), b.bitcast(const(magic, x.ty), ity))
    return r, bits


def _exp_tail(b: FnBuilder, r: V) -> V:
    """exp(r) - 1 for |r| <= log(2)/2."""
    return b.fma(b.fmul(r, r), poly(b, r, fmt(r).polys["EXP"]), r)


def exp(b: FnBuilder, x: V, *, halve: bool = False, low: V | None = None, nonpositive: bool = False) -> V:
    """e**x; with `halve` e**x / 2 (which overflows later); `low` is added to x (|low| tiny), for pow. `nonpositive`
    promises a finite x <= 0 or NaN (NaN gives something)."""
    f = fmt(x)
    ity = int_like(x.ty)
    r, n = _reduce_exp(b, x)
    if low is not None:
        r = b.fadd(r, low)
    p = b.fadd(_exp_tail(b, r), 1.0)
    if halve:
        n = b.sub(n, 1)
    # Adding n to the exponent field is right for every normal result: p is in [0.7, 1.5].
    scaled = b.bitcast(b.add(b.bitcast(p, ity), b.shl(n, f.mantissa)), x.ty)
    ln2 = math.log(2.0)
    top = _last_below(f, (f.bias + 1 + halve) * ln2)
    bottom = _first_at_or_above(f, (1 - f.bias + halve) * ln2)
    flushed = b.select(b.fcmp("olt", x, bottom), const(0.0, x.ty), scaled)
    if nonpositive:
        return flushed
    return b.select(b.fcmp("ole", x, top), flushed, b.fadd(x, INF))


def _last_below(f: Format, value: float) -> float:
    """The greatest number of the format whose exp does not overflow (value = log of 2**(bias+1))."""
    import numpy as np

    dtype = np.float32 if f.elem is F32 else np.float64
    v = dtype(value)
    return float(np.nextafter(v, dtype(0))) if float(v) >= value else float(v)


def _first_at_or_above(f: Format, value: float) -> float:
    import numpy as np

    dtype = np.float32 if f.elem is F32 else np.float64
    v = dtype(value)
    return float(np.nextafter(v, dtype(0))) if float(v) < value else float(v)


def expm1(b: FnBuilder, x: V) -> V:
    """e**x - 1 without cancellation near 0."""
    f = fmt(x)
    lowest = -(f.mantissa + 3) * math.log(2.0)
    # Above this n would be bias + 2 and the scale infinite, times a q of either sign; here all that overflow give infinity.
    highest = (f.bias + 1.25) * math.log(2.0)
    c = b.fmin_x86(const(highest, x.ty), b.fmax_x86(const(lowest, x.ty), x))
    r, n = _reduce_exp(b, c)
    q = _exp_tail(b, r)
    # 2 (2**(n-1) q + (2**(n-1) - 1/2)) reaches the largest finite results without overflowing on the way.
    scale = b.bitcast(b.shl(b.add(n, f.bias - 1), f.mantissa), x.ty)
    y = b.fma(scale, q, b.fsub(scale, 0.5))
    y = b.fadd(y, y)
    tiny = b.fcmp("olt", b.fabs(x), 2.0 ** -(f.mantissa + 2))
    return b.select(tiny, x, y)


def split_log(b: FnBuilder, x: V) -> tuple[V, V]:
    """x = 2**e * m with m in [sqrt(1/2), sqrt(2)), for normal positive x. Returns e as a float and m."""
    f = fmt(x)
    ity = int_like(x.ty)
    bits = b.bitcast(x, ity)
    half_root = b.bitcast(const(math.sqrt(0.5), x.ty), ity)
    shifted = b.sub(bits, half_root)
    e = b.ashr(shifted, f.mantissa)
    m = b.bitcast(b.sub(bits, b.shl(e, f.mantissa)), x.ty)
    return int_to_float(b, e, x.ty), m


def int_to_float(b: FnBuilder, e: V, ty: Ty) -> V:
    """Small integers (|e| < 2**20) to float by adding into a mantissa: no i64 conversion is needed before AVX-512."""
    f = _FORMATS[ty.elem]
    magic = const(1.5 * 2.0**f.mantissa, ty)
    return b.fsub(b.bitcast(b.add(e, b.bitcast(magic, e.ty)), ty), magic)


def _log_core(b: FnBuilder, f_: V, e: V, correction: V | None = None) -> V:
    """log(1 + f) + e log 2 (+ correction), f in [sqrt(1/2) - 1, sqrt(2) - 1]. After fdlibm's e_log.c."""
    fm = fmt(f_)
    s = b.fdiv(f_, b.fadd(f_, 2.0))
    z = b.fmul(s, s)
    big_r = b.fmul(z, poly(b, z, fm.polys["LOG"]))
    half_sq = b.fmul(b.fmul(f_, 0.5), f_)
    hi, lo = fm.pair("LN2")
    low = b.fmul(e, lo)
    if correction is not None:
        low = b.fadd(low, correction)
    tail = b.fma(s, b.fadd(half_sq, big_r), low)
    return b.fadd(b.fsub(f_, b.fsub(half_sq, tail)), b.fmul(e, hi))


def log(b: FnBuilder, x: V) -> V:
    """Natural logarithm; -inf at 0, NaN below."""
    fm = fmt(x)
    e, m = split_log(b, x)
    y = _log_core(b, b.fsub(m, 1.0), e)
    return _log_special(b, x, y, fm)


def _log_special(b: FnBuilder, x: V, y: V, fm: Format) -> V:
    """Values of log where x is not a positive normal number. +inf and NaN give themselves."""
    y = b.select(b.fcmp("olt", x, INF), y, x)
    y = b.select(b.fcmp("olt", x, 0.0), const(NAN, x.ty), y)
    return b.select(b.fcmp("olt", b.fabs(x), fm.min_normal), const(-INF, x.ty), y)


def log1p(b: FnBuilder, x: V) -> V:
    """log(1 + x) without cancellation near 0."""
    fm = fmt(x)
    u = b.fadd(x, 1.0)
    # What 1 + x lost, whichever of the two is larger.
    big = b.fcmp("ogt", x, 1.0)
    lost = b.select(big, b.fsub(1.0, b.fsub(u, x)), b.fsub(x, b.fsub(u, 1.0)))
    e, m = split_log(b, u)
    y = _log_core(b, b.fsub(m, 1.0), e, b.fdiv(lost, u))
    y = _log_special(b, u, y, fm)
    return b.select(b.fcmp("olt", b.fabs(x), 2.0 ** -(fm.mantissa + 2)), x, y)


def tanh(b: FnBuilder, x: V) -> V:
    """1 - 2 / (e^2|x| + 1), whose every step is monotone and which ends at 1; an odd polynomial below 1/2."""
    fm = fmt(x)
    a = b.fabs(x)
    c = b.fmin_x86(const(TANH_ONE[fm.key], x.ty), a)
    # c = n log(2)/2 + h; half of e^2c + 1 is 2^n ((e^2h - 1)/2 + 1/2) + 1/2.
    h, n = _reduce_exp(b, c, 0.5)
    scale = b.bitcast(b.shl(b.add(n, fm.bias), fm.mantissa), x.ty)
    tail = b.fma(b.fmul(h, h), poly(b, h, fm.polys["TANH_EXP"]), h)
    half = b.fma(scale, tail, b.fma(scale, 0.5, 0.5))
    far = b.fsub(1.0, b.fdiv(1.0, half))
    z = b.fmul(a, a)
    near = b.fma(b.fmul(a, z), poly(b, z, fm.polys["TANH"]), a)
    return b.copysign(b.select(b.fcmp("oge", a, tables.TANH_FAR), far, near), x)  # NaN is near


def logistic(b: FnBuilder, x: V) -> V:
    """1 / (1 + e**-x)."""
    return b.fdiv(1.0, b.fadd(exp(b, b.fneg(x)), 1.0))


def sinh(b: FnBuilder, x: V) -> V:
    fm = fmt(x)
    a = b.fabs(x)
    h = exp(b, a, halve=True)
    large = b.fsub(h, b.fdiv(0.25, h))
    z = b.fmul(a, a)
    small = b.fma(b.fmul(a, z), poly(b, z, fm.polys["SINH"]), a)
    return b.copysign(b.select(b.fcmp("olt", a, 1.0), small, large), x)


def cosh(b: FnBuilder, x: V) -> V:
    h = exp(b, b.fabs(x), halve=True)
    return b.fadd(h, b.fdiv(0.25, h))


def asinh(b: FnBuilder, x: V) -> V:
    """sign(x) log(|x| + sqrt(x^2 + 1)), as log1p near 0 and log|x| + log 2 far out."""
    fm = fmt(x)
    a = b.fabs(x)
    large = b.fcmp("oge", a, 2.0 ** (fm.mantissa + 5))
    z = b.fmul(a, a)
    near = b.fadd(a, b.fdiv(z, b.fadd(b.sqrt(b.fadd(z, 1.0)), 1.0)))
    y = log1p(b, b.select(large, a, near))
    y = b.fadd(y, b.select(large, const(math.log(2.0), x.ty), const(0.0, x.ty)))
    return b.copysign(y, x)


def acosh(b: FnBuilder, x: V) -> V:
    """log(x + sqrt(x^2 - 1)); NaN below 1."""
    fm = fmt(x)
    large = b.fcmp("oge", x, 2.0 ** (fm.mantissa + 5))
    t = b.fsub(x, 1.0)
    near = b.fadd(t, b.sqrt(b.fmul(t, b.fadd(t, 2.0))))
    y = log1p(b, b.select(large, x, near))
    y = b.fadd(y, b.select(large, const(math.log(2.0), x.ty), const(0.0, x.ty)))
    return b.select(b.fcmp("olt", x, 1.0), const(NAN, x.ty), y)  # t * (t + 2) overflows for large negative x


def atanh(b: FnBuilder, x: V) -> V:
    """log((1 + x) / (1 - x)) / 2; infinite at +-1, NaN beyond."""
    a = b.fabs(x)
    y = log1p(b, b.fdiv(b.fadd(a, a), b.fsub(1.0, a)))
    return b.copysign(b.select(b.fcmp("ugt", a, 1.0), const(NAN, x.ty), b.fmul(y, 0.5)), x)
