"""Functions around the gamma function: incomplete gamma with its derivatives, Hurwitz zeta, polygamma, incomplete beta."""

from __future__ import annotations

import math
from typing import Literal

import jax.numpy as jnp
from jax import lax

from disc_tf.ir.stablehlo.special.poly import Array
from disc_tf.ir.stablehlo.special.tables import TABLES

Mode = Literal["value", "derivative", "sample"]


def _machep(x: Array) -> float:
    return float(jnp.finfo(x.dtype).eps) / 2


def _scale(x: Array) -> tuple[float, float]:
    """Where numerators and denominators of a continued fraction are scaled back, and by what."""
    eps = float(jnp.finfo(x.dtype).eps)
    return (2.0 / eps, eps / 2.0) if x.dtype == jnp.float32 else (1.0 / eps, eps)


def _igamma_iterations(x: Array, mode: Mode) -> int:
    if mode == "value":
        return 2000
    return 200 if x.dtype == jnp.float32 else 500


def _igamma_term(a: Array, x: Array) -> Array:
    """x^a exp(-x) / gamma(a)."""
    logarithm = a * jnp.log(x) - x - lax.lgamma(a)
    tiny = (logarithm < -math.log(float(jnp.finfo(x.dtype).max))) | jnp.isnan(logarithm)
    return jnp.where(tiny, 0.0, jnp.exp(logarithm))


def _igamma_series(a: Array, x: Array, wanted: Array, mode: Mode) -> Array:
    """The power series; elements that are not ``wanted`` are left at any value."""
    machep, term = _machep(x), _igamma_term(a, x)
    zero, one = jnp.zeros_like(x), jnp.ones_like(x)

    def step(state):
        i, active, r, c, total, dc, dtotal = state
        r1 = r + 1.0
        factor = x / r1
        dc1 = factor * dc - x / (r1 * r1) * c
        dtotal1 = dtotal + dc1
        c1 = c * factor
        total1 = total + c1
        done = c1 <= machep * total1 if mode == "value" else jnp.abs(dc1) <= machep * jnp.abs(dtotal1)

        def keep(new: Array, old: Array) -> Array:
            return jnp.where(active, new, old)

        return (i + 1, active & ~done, keep(r1, r), keep(c1, c), keep(total1, total), keep(dc1, dc), keep(dtotal1, dtotal))

    limit = _igamma_iterations(x, mode)
    start = (0, wanted & (term != 0.0), a, one, one, zero, zero)
    _, _, _, _, total, _, dtotal = lax.while_loop(lambda s: (s[0] < limit) & jnp.any(s[1]), step, start)
    if mode == "value":
        return jnp.where(term == 0.0, 0.0, total * (term / a))
    slope = jnp.log(x) - lax.digamma(a + 1.0)
    if mode == "derivative":
        scaled = term / a
        return jnp.where(term == 0.0, 0.0, total * (scaled * slope) + dtotal * scaled)
    return jnp.where(term == 0.0, 0.0, -(dtotal + total * slope) * x / a)


def _igammac_fraction(a: Array, x: Array, wanted: Array, mode: Mode) -> Array:
    """The continued fraction of the upper function; elements that are not ``wanted`` are left at any value."""
    machep, (big, small) = _machep(x), _scale(x)
    term = _igamma_term(a, x)
    zero, one = jnp.zeros_like(x), jnp.ones_like(x)
    y = one - a
    z = x + y + 1.0
    p1, q1 = x + 1.0, z * x
    ratio = p1 / q1
    value = mode == "value"

    def step(state):
        i, active, y0, z0, ratio0, fractions, slope0, slopes = state
        c = (i + 1).astype(x.dtype)
        y1, z1 = y0 + 1.0, z0 + 2.0
        yc = y1 * c
        p2, p1, q2, q1 = fractions
        p, q = p1 * z1 - p2 * yc, q1 * z1 - q2 * yc
        nonzero = q != 0.0
        ratio1 = jnp.where(nonzero, p / q, ratio0)
        scaled = jnp.abs(p) > big

        def shrink(v: Array) -> Array:
            return jnp.where(scaled, v * small, v)

        def keep(new: Array, old: Array) -> Array:
            return jnp.where(active, new, old)

        if value:
            done = nonzero & (jnp.abs(ratio0 - ratio1) <= machep * jnp.abs(ratio1))
            slope1, after = slope0, slopes
        else:
            dp2, dp1, dq2, dq1 = slopes
            dp = dp1 * z1 - p1 - dp2 * yc + p2 * c
            dq = dq1 * z1 - q1 - dq2 * yc + q2 * c
            slope1 = jnp.where(nonzero, (dp - ratio1 * dq) / q, slope0)
            done = nonzero & (jnp.abs(slope1 - slope0) <= machep)
            after = tuple(keep(shrink(n), o) for n, o in zip((dp1, dp, dq1, dq), slopes, strict=True))
        moved = tuple(keep(shrink(n), o) for n, o in zip((p1, p, q1, q), fractions, strict=True))
        return (i + 1, active & ~done, keep(y1, y0), keep(z1, z0), keep(ratio1, ratio0), moved, keep(slope1, slope0), after)

    start = (0, wanted & (term != 0.0), y, z, ratio, (one, p1, x, q1))
    dp1, dq1 = zero, -x
    extra = ((dp1 - ratio * dq1) / q1, () if value else (zero, dp1, zero, dq1))
    limit = _igamma_iterations(x, mode)
    out = lax.while_loop(lambda s: (s[0] < limit) & jnp.any(s[1]), step, (*start, *extra))
    ratio, slope = out[4], out[6]
    if value:
        r = ratio * term
    else:
        log_slope = jnp.log(x) - lax.digamma(a)
        r = ratio * (term * log_slope) + slope * term if mode == "derivative" else -(slope + ratio * log_slope) * x
    return jnp.where(jnp.isinf(x) | (term == 0.0), 0.0, r)


def _igamma(a: Array, x: Array, mode: Mode) -> Array:
    inside = (x > 0.0) & (a > 0.0)
    upper = (x > 1.0) & (x > a)
    fraction = _igammac_fraction(a, x, inside & upper, mode)
    r = jnp.where(upper, 1.0 - fraction if mode == "value" else -fraction, _igamma_series(a, x, inside & ~upper, mode))
    outside = (x < 0.0) | (a <= 0.0) | jnp.isnan(a) | jnp.isnan(x)
    return jnp.where(x == 0.0, 0.0, jnp.where(outside, jnp.nan, r))


def igamma(a: Array, x: Array) -> Array:
    """The lower incomplete gamma function, regularised."""
    return _igamma(a, x, "value")


def igamma_grad_a(a: Array, x: Array) -> Array:
    """The derivative of `igamma` by ``a``."""
    return _igamma(a, x, "derivative")


def random_gamma_grad(a: Array, x: Array) -> Array:
    """The derivative of a sample of the gamma distribution by its shape."""
    return _igamma(a, x, "sample")


def igammac(a: Array, x: Array) -> Array:
    """The upper incomplete gamma function, regularised."""
    inside = (x >= 0.0) & (a > 0.0)
    lower = (x < 1.0) | (x < a)
    series = _igamma_series(a, x, inside & lower, "value")
    r = jnp.where(lower, 1.0 - series, _igammac_fraction(a, x, inside & ~lower, "value"))
    return jnp.where((x < 0.0) | (a <= 0.0) | jnp.isnan(a) | jnp.isnan(x), jnp.nan, r)


def zeta(x: Array, q: Array) -> Array:
    """Hurwitz' zeta function: the sum of (q + k)^-x."""
    machep = _machep(x)
    total, a = jnp.power(q, -x), q
    b = jnp.zeros_like(x)
    done = jnp.zeros_like(x, dtype=bool)
    wide = x.dtype == jnp.float64

    def add(state):
        i, total, a, b, done, running = state
        a1 = jnp.where(running, a + 1.0, a)
        b1 = jnp.where(running, jnp.power(a1, -x), b)
        total1 = jnp.where(running, total + b1, total)
        done1 = done | (running & (jnp.abs(b1 / total1) < machep))
        more = (i + 1 < 9) | (a1 <= 9.0) if wide else jnp.broadcast_to(i + 1 < 9, x.shape)
        return i + 1, total1, a1, b1, done1, running & ~done1 & more

    whole = q == jnp.floor(q)
    outside = (x <= 1.0) | ((q <= 0.0) & (whole | (x != jnp.floor(x)))) | jnp.isnan(x) | jnp.isnan(q)
    start = (0, total, a, b, done, ~outside)
    _, total, w, b, done, _ = lax.while_loop(lambda s: jnp.any(s[5]), add, start)
    done = done | (b == 0.0)
    result = total
    s = total + b * w / (x - 1.0)
    s = s - 0.5 * b
    factor, k = jnp.ones_like(x), 0.0
    stopped = jnp.zeros_like(x, dtype=bool)
    for divisor in TABLES["zeta"]["A"]:
        factor = factor * (x + k)
        b = b / w
        t = factor * b / divisor
        s = jnp.where(stopped, s, s + t)
        stopped = stopped | (jnp.abs(t / s) < machep)
        k += 1.0
        factor = factor * (x + k)
        b = b / w
        k += 1.0
    r = jnp.where(done, result, s)
    even = jnp.round(0.5 * x) == 0.5 * x
    pole = jnp.where((q <= 0.0) & whole & even & (x > 1.0), jnp.inf, jnp.nan)
    return jnp.where(x == 1.0, jnp.inf, jnp.where(outside, pole, r))


def polygamma(n: Array, x: Array) -> Array:
    """The n-th derivative of digamma."""
    order = n + 1.0
    sign = jnp.where(jnp.floor(0.5 * order) == 0.5 * order, 1.0, -1.0)
    r = sign * jnp.exp(lax.lgamma(order)) * zeta(order, x)
    r = jnp.where(n == 0.0, lax.digamma(x), r)
    return jnp.where((jnp.floor(n) != n) | (n < 0.0) | jnp.isnan(n), jnp.nan, r)


def betainc(a: Array, b: Array, x: Array) -> Array:
    """The incomplete beta function, regularised: JAX's own continued fraction; TensorFlow's domain."""
    r = jnp.where(jnp.isfinite(a) & jnp.isfinite(b), lax.betainc(a, b, x), jnp.nan)
    r = jnp.where(x == 0.0, 0.0, jnp.where(x == 1.0, 1.0, r))
    return jnp.where((a <= 0.0) | (b <= 0.0) | (x < 0.0) | (x > 1.0), jnp.nan, r)
