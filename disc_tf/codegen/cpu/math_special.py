"""Vector math: erf, powers and roots, remainder, gamma functions (conventions as in `math.py`)."""

from __future__ import annotations

import math

from disc_tf.codegen.cpu import math_tables as tables
from disc_tf.codegen.cpu.math import (
    INF,
    NAN,
    exp,
    fmt,
    is_nan,
    log,
    poly,
    two_product,
    two_sum,
    with_sign_of,
)
from disc_tf.codegen.cpu.math_trig import sin_pi
from disc_tf.codegen.llvm import F32, F64, FnBuilder, V, const, int_like


def _erfc_tail(b: FnBuilder, a: V) -> V:
    """erfc(a) for a >= 1/2 with small relative error: exp(-a^2) erfcx(a)."""
    f = fmt(a)
    k, top = tables.ERFC_K[f.key], tables.ERFC_MAX[f.key]
    c = b.fmin_x86(const(top, a.ty), a)
    low, high = b.fadd(c, k), b.fma(c, 2.0, 1.0)
    if f.elem is F32:
        # q = (c - k) / (c + k) and the division by 2c + 1 share one reciprocal: divisions are what this function costs.
        inverse = b.fdiv(1.0, b.fmul(low, high))
        q = b.fmul(b.fmul(b.fsub(c, k), high), inverse)
        g = b.fmul(poly(b, q, f.polys["ERFCX"]), b.fmul(low, inverse))
    else:  # f64 has no ULP to spare for that
        g = b.fdiv(poly(b, b.fdiv(b.fsub(c, k), low), f.polys["ERFCX"]), high)
    # exp(-c^2) with the rounding error of c^2 put back, by way of g: times the exponential itself it may be denormal.
    square, lost = two_product(b, c, c)
    e = exp(b, b.fneg(square), nonpositive=True)
    return b.fmul(e, b.fma(g, b.fneg(lost), g))


def erfc(b: FnBuilder, x: V) -> V:
    """1 - erf(x), relative accuracy in both tails."""
    a = b.fabs(x)
    y = _erfc_tail(b, a)
    far = b.select(b.fcmp("olt", x, 0.0), b.fsub(2.0, y), y)
    near = b.fsub(1.0, b.fma(x, poly(b, b.fmul(x, x), fmt(x).polys["ERF_HALF"]), x))
    return b.select(b.fcmp("oge", a, 0.5), far, near)  # NaN is near


def erf(b: FnBuilder, x: V) -> V:
    a, f = b.fabs(x), fmt(x)
    beside = poly(b, b.fmul(x, x), f.polys["ERF"])
    # Without FMA the product of a small x with the polynomial less 1 would be flushed.
    near = b.fma(x, beside, x) if b.has_fma else b.fmul(x, b.fadd(beside, 1.0))
    if f.elem is F32:
        # Far from 1, erfc needs no relative accuracy: a polynomial for its logarithm takes no division.
        c = b.fmin_x86(const(tables.ERF_ONE, x.ty), a)
        beyond = exp(b, poly(b, c, f.polys["LOG_ERFC"]), nonpositive=True)
    else:
        beyond = _erfc_tail(b, a)
    far = b.copysign(b.fsub(1.0, beyond), x)
    return b.select(b.fcmp("oge", a, 1.0), far, near)  # NaN is near: the exponential may lose it


def rsqrt(b: FnBuilder, x: V) -> V:
    """1 / sqrt(x): inf at 0, NaN below."""
    return b.fdiv(1.0, b.sqrt(x))


def cbrt(b: FnBuilder, x: V) -> V:
    """Cube root by Newton's iteration from an integer third of the exponent; odd, keeps zeros, inf and NaN."""
    f = fmt(x)
    ity = int_like(x.ty)
    a = b.fabs(x)
    ordinary = b.and_(b.fcmp("olt", a, INF), b.fcmp("oge", a, f.min_normal))
    c = b.select(ordinary, a, const(1.0, x.ty))
    # bits / 3 + 2/3 of the bias, less a correction that centres the error of the piecewise linear guess.
    magic = int((2 * f.bias / 3 - 0.03306235651) * 2.0**f.mantissa)
    if ity.bits == 32:
        third = b.udiv(b.bitcast(c, ity), 3)
    else:  # the exponent and upper mantissa suffice for a guess; 64-bit division by a constant is slow
        third = b.shl(b.udiv(b.lshr(b.bitcast(c, ity), 32), 3), 32)
    r = b.bitcast(b.add(third, magic), x.ty)
    for _ in range(3 if f.elem is F32 else 5):
        r = b.fma(b.fsub(b.fdiv(c, b.fmul(r, r)), r), 1 / 3, r)
    return b.select(ordinary, with_sign_of(b, r, x), b.select(b.fcmp("oeq", a, 0.0), x, b.fadd(x, x)))


def round_half_away(b: FnBuilder, x: V) -> V:
    """Round to nearest, ties away from zero."""
    f = fmt(x)
    below_half = 0.5 - 2.0 ** -(f.mantissa + 2)
    return b.copysign(b.ftrunc(b.fadd(b.fabs(x), below_half)), x)


def _log_double(b: FnBuilder, x: V) -> tuple[V, V]:
    """log(x) of a positive normal number as high + low part, about twice the precision of the type."""
    from disc_tf.codegen.cpu.math import split_log

    f = fmt(x)
    e, m = split_log(b, x)
    # s = (m - 1) / (m + 1) with its error; m - 1 is exact, m + 1 = d + dl.
    num = b.fsub(m, 1.0)
    d, dl = two_sum(b, m, const(1.0, x.ty))
    s = b.fdiv(num, d)
    p, pe = two_product(b, s, d)
    sl = b.fdiv(b.fsub(b.fsub(b.fsub(num, p), pe), b.fmul(s, dl)), d)
    # log m = 2 s + (2/3) s^3 + s^5 (...): the first two terms in double length.
    z = b.fmul(s, s)
    zh, zl = two_product(b, s, s)
    zl = b.fadd(zl, b.fmul(b.fmul(s, sl), 2.0))
    ch, cl = f.pair("TWO_THIRDS")
    th, tl = two_product(b, zh, const(ch, x.ty))
    tl = b.fadd(tl, b.fadd(b.fmul(zl, ch), b.fmul(zh, cl)))
    uh, ul = two_product(b, th, s)
    ul = b.fadd(ul, b.fadd(b.fmul(tl, s), b.fmul(th, sl)))
    # LOG is (log m / s - 2) / z; without its constant term (2/3) it is z times the rest.
    rest = b.fmul(poly(b, z, f.polys["LOG"][:-1]), b.fmul(b.fmul(z, z), s))
    hi, lo = f.pair("LN2")
    eh = b.fmul(e, hi)  # exact
    s2 = b.fmul(s, 2.0)
    a, ae = two_sum(b, eh, s2)
    c, ce = two_sum(b, a, uh)
    low = b.fadd(b.fadd(ae, ce), b.fadd(b.fadd(b.fmul(sl, 2.0), ul), b.fadd(rest, b.fmul(e, lo))))
    return two_sum(b, c, low)


def _pow_f64(b: FnBuilder, a: V, y: V) -> V:
    """a**y for positive normal finite a, in f64."""
    high, low = _log_double(b, a)
    yc = b.fmin_x86(const(1e300, y.ty), b.fmax_x86(const(-1e300, y.ty), y))
    p, pe = two_product(b, high, yc)
    pe = b.fma(low, yc, pe)
    # Far out of range the low part means nothing (and may be inf - inf).
    pe = b.select(b.fcmp("olt", b.fabs(p), 1000.0), pe, const(0.0, y.ty))
    return exp(b, p, low=pe)


def power(b: FnBuilder, x: V, y: V) -> V:
    """x**y with C99's special cases; f32 goes through f64, f64 through a double-length logarithm."""
    f = fmt(x)
    a = b.fabs(x)
    zero, one = const(0.0, x.ty), const(1.0, x.ty)
    ordinary = b.and_(b.fcmp("olt", a, INF), b.fcmp("oge", a, f.min_normal))
    base = b.select(ordinary, a, one)
    if f.elem is F32:
        wide = exp(b, b.fmul(log(b, b.fpext(base, F64)), b.fpext(y, F64)))
        # A magnitude beyond f32 must not be undefined or double rounded: the conversion itself saturates to inf.
        r = b.fptrunc(wide, F32)
    else:
        r = _pow_f64(b, base, y)
    # |x| is 0 (or flushed), inf or NaN.
    base_zero = b.fcmp("olt", a, f.min_normal)
    y_positive = b.fcmp("ogt", y, 0.0)
    edge = b.select(b.xor(base_zero, y_positive), const(INF, x.ty), zero)
    r = b.select(ordinary, r, edge)
    # Infinite y: |x| against 1.
    y_inf = b.fcmp("oeq", b.fabs(y), INF)
    grows = b.xor(b.fcmp("ogt", a, 1.0), b.fcmp("olt", y, 0.0))
    r = b.select(y_inf, b.select(b.fcmp("oeq", a, 1.0), one, b.select(grows, const(INF, x.ty), zero)), r)
    # Negative x: integers only, odd ones flip the sign.
    negative = b.icmp("slt", b.bitcast(x, int_like(x.ty)), 0)
    integer = b.fcmp("oeq", b.rint(y), y)
    half_y = b.fmul(y, 0.5)
    odd = b.and_(b.and_(integer, b.fcmp("une", b.rint(half_y), half_y)), b.fcmp("olt", b.fabs(y), INF))
    r = b.select(b.and_(negative, odd), b.fneg(r), r)
    bad = b.and_(b.and_(negative, b.not_(integer)), ordinary)
    r = b.select(bad, const(NAN, x.ty), r)
    r = b.select(b.fcmp("uno", x, y), const(NAN, x.ty), r)
    return b.select(b.or_(b.fcmp("oeq", y, 0.0), b.fcmp("oeq", x, 1.0)), one, r)


def remainder(b: FnBuilder, x: V, y: V) -> V:
    """fmod(x, y): exact, the sign of x; NaN for y = 0 or infinite x. f32 in f64 steps of 28 quotient bits."""
    if x.ty.elem is F32:
        # Every f32 is exact in f64, and no intermediate can overflow or be denormal there.
        r = _fmod_core(b, b.fpext(b.fabs(x), F64), b.fpext(b.fabs(y), F64), 28)
        r = b.fptrunc(r, F32)
    else:
        # Keep y away from the ends of the range; powers of two are exact.
        ax, ay = b.fabs(x), b.fabs(y)
        small = b.fcmp("olt", ay, 2.0**-900)
        up = b.select(small, const(2.0**120, x.ty), const(1.0, x.ty))
        down = b.select(small, const(2.0**-120, x.ty), const(1.0, x.ty))
        # With a tiny divisor, x is first reduced by a multiple of it that is still in range.
        ay_up = b.fmul(ay, up)
        first = _fmod_core(b, ax, ay_up, 24)
        second = _fmod_core(b, b.fmul(first, up), ay_up, 24)
        r = b.fmul(b.select(small, second, first), down)
    bad = b.or_(b.fcmp("oeq", y, 0.0), b.fcmp("oeq", b.fabs(x), INF))
    r = b.select(b.fcmp("oeq", b.fabs(y), INF), b.fabs(x), r)
    r = b.copysign(r, x)
    r = b.select(bad, const(NAN, x.ty), r)
    return b.select(b.fcmp("uno", x, y), const(NAN, x.ty), r)


def _fmod_core(b: FnBuilder, x: V, y: V, step_bits: int) -> V:
    """x mod y for x >= 0, y > 0 finite f64: subtract q (y 2**k) with q below 2**(step_bits + 1), largest k first."""
    ity = int_like(x.ty)
    ordinary = b.and_(b.and_(b.fcmp("olt", x, INF), b.fcmp("olt", y, INF)), b.fcmp("oge", y, 2.0**-1022))
    x = b.select(ordinary, x, const(0.0, x.ty))
    y = b.select(ordinary, y, const(1.0, x.ty))

    def exponent(v: V) -> V:
        return b.lshr(b.bitcast(v, ity), 52)

    def again(carried: list[V]) -> V:
        return b.any_lane(b.fcmp("oge", carried[0], y))

    def step(carried: list[V]) -> list[V]:
        r = carried[0]
        # y 2**k with an exponent at most step_bits below r's; still at least y.
        k = b.smax(b.sub(b.sub(exponent(r), exponent(y)), step_bits), 0)
        scaled = b.bitcast(b.add(b.bitcast(y, ity), b.shl(k, 52)), x.ty)
        q = b.ftrunc(b.fdiv(r, scaled))
        # q * scaled exactly, in two pieces: each product fits 53 bits.
        high = b.bitcast(b.and_(b.bitcast(scaled, ity), -(1 << 28)), x.ty)
        low = b.fsub(scaled, high)
        r2 = b.fsub(b.fsub(r, b.fmul(q, high)), b.fmul(q, low))
        # The rounded quotient may be one too large.
        r2 = b.select(b.fcmp("olt", r2, 0.0), b.fadd(r2, scaled), r2)
        return [b.select(b.fcmp("oge", r, y), r2, r)]

    return b.while_loop([x], again, step)[0]


_STIRLING = (  # B_2k / (2k (2k - 1)), highest first, for sums in 1/z^2
    43867 / 244188, -3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12,
)
_DIGAMMA = (  # B_2k / (2k), highest first
    43867 / 14364, -3617 / 8160, 1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12,
)
_SERIES = 9.0  # from here on by the asymptotic series
_DOWN = 7  # steps of the recurrence from there to 9/4


def _in_f64(fn):
    """Run an f64 emitter for f32 values: absolute accuracy there is relative accuracy here, also near zeros."""
    def wrapped(b: FnBuilder, x: V) -> V:
        if x.ty.elem is F32:
            return b.fptrunc(fn(b, b.fpext(x, F64)), F32)
        return fn(b, x)

    wrapped.__doc__ = fn.__doc__
    return wrapped


def _near_two(b: FnBuilder, z: V) -> V:
    """w = z - 2, z + 1 - 2 or z + 2 - 2, whichever is between -3/4 and 1/4 (or above 1/4), without rounding."""
    return b.select(b.fcmp("olt", z, 0.25), z, b.select(b.fcmp("olt", z, 1.25), b.fsub(z, 1.0), b.fsub(z, 2.0)))


@_in_f64
def lgamma(b: FnBuilder, x: V) -> V:
    """log |gamma(x)|: w P(w) about 2, the recurrence to there from below and above, Stirling's series from 9 on, reflection
    below 0. +inf at the poles."""
    one = const(1.0, x.ty)
    reflect = b.fcmp("olt", x, 0.0)
    z = b.select(reflect, b.fsub(1.0, x), x)
    small, far = b.fcmp("olt", z, 1.25), b.fcmp("oge", z, _SERIES)
    w = _near_two(b, z)
    # What gamma(2 + w) is divided by (small z), or multiplied by.
    product = b.select(b.fcmp("olt", z, 0.25), b.fmul(z, b.fadd(z, 1.0)), b.select(small, z, one))
    for _ in range(_DOWN):
        above = b.fcmp("ogt", w, 0.25)
        product = b.select(above, b.fmul(product, b.fadd(w, 1.0)), product)
        w = b.select(above, b.fsub(w, 1.0), w)
    logarithm = log(b, b.select(far, z, product))
    middle = b.fmul(w, poly(b, b.fadd(w, 0.25), tables.F64["LGAMMA"]))
    middle = b.fadd(middle, b.select(small, b.fneg(logarithm), logarithm))
    inverse = b.fdiv(1.0, z)
    series = b.fmul(poly(b, b.fmul(inverse, inverse), _STIRLING), inverse)
    stirling = b.fmul(b.fsub(z, 0.5), b.fsub(logarithm, 1.0))
    stirling = b.fadd(stirling, b.fadd(series, 0.5 * math.log(2 * math.pi) - 0.5))
    y = b.select(far, stirling, middle)
    sine, _ = sin_pi(b, b.fsub(x, b.rint(x)))
    mirrored = b.fsub(log(b, b.fdiv(math.pi, b.fabs(sine))), y)
    y = b.select(reflect, mirrored, y)
    pole = b.and_(b.fcmp("ole", x, 0.0), b.fcmp("oeq", b.floor(x), x))
    y = b.select(b.or_(pole, b.fcmp("oeq", b.fabs(x), INF)), const(INF, x.ty), y)
    return b.select(is_nan(b, x), x, y)


@_in_f64
def digamma(b: FnBuilder, x: V) -> V:
    """Derivative of lgamma, in the same way: (z - root) P(w) about 2. NaN at the poles, 0 among them (as TensorFlow)."""
    zero, one = const(0.0, x.ty), const(1.0, x.ty)
    reflect = b.fcmp("olt", x, 0.0)
    z = b.select(reflect, b.fsub(1.0, x), x)
    small, far = b.fcmp("olt", z, 1.25), b.fcmp("oge", z, _SERIES)
    w = _near_two(b, z)
    # The reciprocals that the recurrence takes away (small z) or adds, as one fraction; that of z itself far out.
    tiny = b.fcmp("olt", z, 0.25)
    after = b.fadd(z, 1.0)
    over = b.select(tiny, b.fadd(after, z), b.select(small, one, zero))
    under = b.select(tiny, b.fmul(z, after), b.select(small, z, one))
    for _ in range(_DOWN):
        above = b.fcmp("ogt", w, 0.25)
        step = b.fadd(w, 1.0)
        over = b.select(above, b.fma(over, step, under), over)
        under = b.select(above, b.fmul(under, step), under)
        w = b.select(above, b.fsub(w, 1.0), w)
    total = b.fdiv(b.select(far, one, over), b.select(far, z, under))
    inverse = total
    total = b.select(small, b.fneg(total), total)
    root, low = tables.DIGAMMA_ROOT
    from_root = b.fsub(b.fadd(w, 2.0 - root), low)
    middle = b.fadd(total, b.fmul(from_root, poly(b, b.fadd(w, 0.25), tables.F64["DIGAMMA"])))
    square = b.fmul(inverse, inverse)
    series = b.fsub(b.fsub(log(b, z), b.fmul(inverse, 0.5)), b.fmul(square, poly(b, square, _DIGAMMA)))
    y = b.select(far, series, middle)
    sine, cosine = sin_pi(b, b.fsub(x, b.rint(x)))
    mirrored = b.fsub(y, b.fdiv(b.fmul(cosine, math.pi), sine))
    y = b.select(reflect, mirrored, y)
    pole = b.and_(b.fcmp("ole", x, 0.0), b.fcmp("oeq", b.floor(x), x))
    y = b.select(pole, const(NAN, x.ty), y)
    y = b.select(b.fcmp("oeq", x, INF), x, y)
    return b.select(is_nan(b, x), x, y)
