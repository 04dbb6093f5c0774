"""Vector math: trigonometric functions and their inverses (conventions as in `math.py`)."""

from __future__ import annotations

import math

from disc_tf.codegen.cpu import math_tables as tables
from disc_tf.codegen.cpu.math import INF, NAN, fmt, is_nan, poly, with_sign_of
from disc_tf.codegen.llvm import F64, I32, I64, FnBuilder, V, const, int_like, vec

_MEDIUM = 1.0e6  # below, the three-part pi/2 is exact enough and its products with n are exact


def _reduce_medium(b: FnBuilder, x: V) -> tuple[V, V]:
    """r = x - n pi/2 in f64, |x| <= _MEDIUM. Returns r and n modulo 4 in the low bits of an i64."""
    magic = 1.5 * 2.0**52
    t = b.fadd(b.fmul(x, 2 / math.pi), magic)
    n = b.fsub(t, magic)
    p1, p2, p3 = tables.PIO2
    r1 = b.fsub(x, b.fmul(n, p1))
    a = b.fmul(n, p2)
    r2 = b.fsub(r1, a)
    lost = b.fsub(b.fsub(r1, r2), a)
    r = b.fsub(r2, b.fsub(b.fmul(n, p3), lost))
    return r, b.bitcast(t, vec(I64, x.ty.lanes))


_WORDS = 6  # 32-bit words of 2/pi in the window: 192 bits, of which 139 are good after the product with m


def _reduce_huge(b: FnBuilder, x: V) -> tuple[V, V]:
    """The same for any finite x, by Payne and Hanek: x = m 2**e, and only the bits of 2/pi that matter are used.

    Bits of 2/pi that weigh 2**-(e - 2) or more only add multiples of 4 quarter turns. With W the following bits
    as a fraction, x (2/pi) / 4 modulo 1 is the fraction of m W: formed in columns of 32 bits.
    """
    ity = vec(I64, x.ty.lanes)
    low32 = 0xFFFFFFFF
    bits = b.bitcast(x, ity)
    m = b.or_(b.and_(bits, (1 << 52) - 1), 1 << 52)
    exponent = b.and_(b.lshr(bits, 52), 0x7FF)
    # e = exponent - 1075; the table starts 96 bits before the binary point.
    start = b.smax(b.sub(exponent, 1075 - 94), 0)
    word, fine = b.lshr(start, 5), b.and_(start, 31)
    table = b.table("disc_two_over_pi", I32, tables.TWO_OVER_PI)
    raw = [b.zext(b.gather(I32, table, b.add(word, i)), I64) for i in range(_WORDS + 1)]
    words = [b.and_(b.or_(b.shl(raw[i], fine), b.lshr(raw[i + 1], b.sub(32, fine))), low32) for i in range(_WORDS)]
    m0, m1 = b.and_(m, low32), b.lshr(m, 32)
    columns = [const(0, ity) for _ in range(_WORDS + 1)]  # column c weighs 2**(-32 c); column 0 is dropped
    for k in range(_WORDS):
        for piece, column in ((m0, k + 1), (m1, k)):
            p = b.mul(words[k], piece)
            if column >= 1:
                columns[column] = b.add(columns[column], b.and_(p, low32))
            if column >= 2:
                columns[column - 1] = b.add(columns[column - 1], b.lshr(p, 32))
    for c in range(_WORDS, 1, -1):
        columns[c - 1] = b.add(columns[c - 1], b.lshr(columns[c], 32))
    hi = b.or_(b.shl(columns[1], 32), b.and_(columns[2], low32))
    lo = b.or_(b.shl(columns[3], 32), b.and_(columns[4], low32))
    # The two top bits of the 128-bit fraction count quarter turns; round to the nearest of them.
    n = b.lshr(b.add(hi, 1 << 61), 62)
    hi = b.sub(hi, b.shl(n, 62))
    turn = b.fadd(b.fmul(b.sitofp(hi, F64), 2.0**-62), b.fmul(b.uitofp(lo, F64), 2.0**-126))
    r = b.fmul(turn, math.pi / 2)
    negative = b.icmp("slt", bits, 0)
    return b.select(negative, b.fneg(r), r), b.select(negative, b.sub(0, n), n)


def _reduce(b: FnBuilder, x: V) -> tuple[V, V]:
    """x modulo pi/2: r in [-pi/4, pi/4] (in x's own type) and the quadrant as an integer of x's width."""
    wide = b.fpext(x, F64)
    huge = b.fcmp("ogt", b.fabs(wide), _MEDIUM)
    finite_huge = b.and_(huge, b.fcmp("olt", b.fabs(wide), INF))
    r, n = _reduce_medium(b, wide)

    def slow() -> list[V]:
        r2, n2 = _reduce_huge(b, wide)
        return [b.select(huge, r2, r), b.select(huge, n2, n)]

    r, n = b.if_then(b.any_lane(finite_huge), slow, [r, n])
    # Infinities give NaN (x - x), NaN stays.
    r = b.select(b.fcmp("olt", b.fabs(wide), INF), r, b.fsub(wide, wide))
    ity = int_like(x.ty)
    return b.fptrunc(r, x.ty.elem), b.trunc(n, ity.elem)


def _sin_poly(b: FnBuilder, r: V) -> V:
    z = b.fmul(r, r)
    return b.fma(b.fmul(z, r), poly(b, z, fmt(r).polys["SIN"]), r)


def _cos_poly(b: FnBuilder, r: V) -> V:
    z = b.fmul(r, r)
    half = b.fmul(z, 0.5)
    w = b.fsub(1.0, half)
    tail = b.fadd(b.fsub(b.fsub(1.0, w), half), b.fmul(b.fmul(z, z), poly(b, z, fmt(r).polys["COS"])))
    return b.fadd(w, tail)


def _sin_from(b: FnBuilder, r: V, n: V) -> V:
    odd = b.icmp("ne", b.and_(n, 1), 0)
    y = b.select(odd, _cos_poly(b, r), _sin_poly(b, r))
    flip = b.shl(b.and_(n, 2), y.ty.bits - 2)
    return b.bitcast(b.xor(b.bitcast(y, n.ty), flip), y.ty)


def sin(b: FnBuilder, x: V) -> V:
    r, n = _reduce(b, x)
    y = _sin_from(b, r, n)
    # The sign of zero, and tiny arguments, pass through.
    return b.select(b.fcmp("olt", b.fabs(x), 2.0 ** -(fmt(x).mantissa // 2 + 2)), x, y)


def cos(b: FnBuilder, x: V) -> V:
    r, n = _reduce(b, x)
    return _sin_from(b, r, b.add(n, 1))


def tan(b: FnBuilder, x: V) -> V:
    r, n = _reduce(b, x)
    s, c = _sin_poly(b, r), _cos_poly(b, r)
    odd = b.icmp("ne", b.and_(n, 1), 0)
    y = b.fdiv(b.select(odd, c, s), b.select(odd, b.fneg(s), c))
    return b.select(b.fcmp("olt", b.fabs(x), 2.0 ** -(fmt(x).mantissa // 2 + 2)), x, y)


def _atan_unit(b: FnBuilder, num: V, den: V) -> V:
    """atan(num / den) for 0 <= num <= den, den > 0 (their quotient is taken after a reduction by tan(pi/8))."""
    f = fmt(num)
    high = b.fcmp("ogt", num, b.fmul(den, math.tan(math.pi / 8)))
    q = b.fdiv(b.select(high, b.fsub(num, den), num), b.select(high, b.fadd(num, den), den))
    z = b.fmul(q, q)
    y = b.fmul(b.fmul(z, q), poly(b, z, f.polys["ATAN"]))
    hi, lo = f.pair("PI_4")
    zero = const(0.0, num.ty)
    y = b.fadd(b.fadd(y, b.select(high, const(lo, num.ty), zero)), q)
    return b.fadd(y, b.select(high, const(hi, num.ty), zero))


def atan(b: FnBuilder, x: V) -> V:
    f = fmt(x)
    a = b.fabs(x)
    one = const(1.0, x.ty)
    big = b.fcmp("ogt", a, 1.0)
    den = b.select(big, a, one)
    infinite = b.fcmp("oeq", a, INF)
    num = b.select(big, one, a)
    # x = inf: 0 / 1 keeps the reduction away from inf - inf.
    t = _atan_unit(b, b.select(infinite, const(0.0, x.ty), num), b.select(infinite, one, den))
    hi, lo = f.pair("PI_2")
    y = b.select(big, b.fsub(hi, b.fsub(t, lo)), t)
    return with_sign_of(b, b.select(is_nan(b, x), a, y), x)


def atan2(b: FnBuilder, y: V, x: V) -> V:
    """The angle of (x, y), with the signed-zero and infinity cases of C99."""
    f = fmt(x)
    ax, ay = b.fabs(x), b.fabs(y)
    swap = b.fcmp("ogt", ay, ax)
    num, den = b.select(swap, ax, ay), b.select(swap, ay, ax)
    one, zero = const(1.0, x.ty), const(0.0, x.ty)
    both_inf = b.fcmp("oeq", num, INF)
    den_inf = b.fcmp("oeq", den, INF)
    den_zero = b.fcmp("oeq", den, 0.0)
    # Scale so that num + den neither overflows nor loses denormals.
    big = b.fcmp("ogt", den, 2.0 ** (f.bias - 4))
    small = b.fcmp("olt", den, 2.0 ** -(f.bias - 30))
    scale = b.select(big, const(2.0**-32, x.ty), b.select(small, const(2.0**28, x.ty), one))
    num, den = b.fmul(num, scale), b.fmul(den, scale)
    num = b.select(den_inf, b.select(both_inf, one, zero), b.select(den_zero, zero, num))
    den = b.select(b.or_(den_inf, den_zero), one, den)
    t = _atan_unit(b, num, den)
    hi, lo = f.pair("PI_2")
    t = b.select(swap, b.fsub(hi, b.fsub(t, lo)), t)
    negative = b.icmp("slt", b.bitcast(x, int_like(x.ty)), 0)
    hi, lo = f.pair("PI")
    t = b.select(negative, b.fsub(hi, b.fsub(t, lo)), t)
    t = with_sign_of(b, t, y)
    return b.select(b.fcmp("uno", x, y), const(NAN, x.ty), t)


def _asin_tail(b: FnBuilder, s: V, z: V) -> V:
    """asin(s) - s for s*s == z <= 1/4."""
    return b.fmul(b.fmul(s, z), poly(b, z, fmt(s).polys["ASIN"]))


def asin(b: FnBuilder, x: V) -> V:
    """NaN outside [-1, 1]."""
    f = fmt(x)
    a = b.fabs(x)
    big = b.fcmp("ogt", a, 0.5)
    z = b.select(big, b.fmul(b.fsub(1.0, a), 0.5), b.fmul(a, a))
    s = b.select(big, b.sqrt(z), a)
    tail = _asin_tail(b, s, z)
    hi, lo = f.pair("PI_2")
    far = b.fsub(hi, b.fsub(b.fmul(b.fadd(s, tail), 2.0), lo))
    y = b.select(big, far, b.fadd(s, tail))
    return with_sign_of(b, y, x)


def acos(b: FnBuilder, x: V) -> V:
    """NaN outside [-1, 1]."""
    f = fmt(x)
    a = b.fabs(x)
    big = b.fcmp("ogt", a, 0.5)
    z = b.select(big, b.fmul(b.fsub(1.0, a), 0.5), b.fmul(a, a))
    s = b.select(big, b.sqrt(z), a)
    tail = _asin_tail(b, s, z)
    hi, lo = f.pair("PI_2")
    signed = with_sign_of(b, b.fadd(s, tail), x)
    middle = b.fsub(hi, b.fsub(signed, lo))
    twice = b.fmul(b.fadd(s, tail), 2.0)
    hi, lo = f.pair("PI")
    far = b.select(b.fcmp("olt", x, 0.0), b.fsub(hi, b.fsub(twice, lo)), twice)
    return b.select(big, far, middle)


def sin_pi(b: FnBuilder, x: V) -> tuple[V, V]:
    """sin and cos of pi x for |x| < 2**mantissa; exact zeros at integers (for the reflection formulas)."""
    n = b.rint(b.fmul(x, 2.0))
    r = b.fmul(b.fma(n, -0.5, x), math.pi)
    # n modulo 4 without a conversion that could be out of range.
    quarter = b.fsub(n, b.fmul(b.floor(b.fmul(n, 0.25)), 4.0))
    s, c = _sin_poly(b, r), _cos_poly(b, r)
    odd = b.or_(b.fcmp("oeq", quarter, 1.0), b.fcmp("oeq", quarter, 3.0))
    upper = b.fcmp("oge", quarter, 2.0)
    middle = b.or_(b.fcmp("oeq", quarter, 1.0), b.fcmp("oeq", quarter, 2.0))
    sine = b.select(odd, c, s)
    cosine = b.select(odd, s, c)
    return b.select(upper, b.fneg(sine), sine), b.select(middle, b.fneg(cosine), cosine)

