"""Bessel functions of order 0 and 1: I, K (also scaled by the exponential), J, Y."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from disc_tf.ir.stablehlo.special.poly import Array, chebyshev, polynomial
from disc_tf.ir.stablehlo.special.tables import Table
from disc_tf.ir.stablehlo.special.tables_bessel import BESSEL

_TWO_OVER_PI = 0.636619772367581343075535
_SQRT_TWO_OVER_PI = 7.9788456080286535587989e-1
_PI_OVER_4 = 0.7853981633974483096
_THREE_PI_OVER_4 = 2.35619449019234492885


def _tables(name: str, x: Array) -> Table:
    return BESSEL[f"{name}.{'f64' if x.dtype == jnp.float64 else 'f32'}"]


def i0e(x: Array) -> Array:
    """exp(-|x|) I0(x)."""
    t, y = _tables("i0e", x), jnp.abs(x)
    large = chebyshev(32.0 / y - 2.0, t["B"]) * lax.rsqrt(y)
    return jnp.where(y <= 8.0, chebyshev(0.5 * y - 2.0, t["A"]), large)


def i0(x: Array) -> Array:
    """Modified Bessel function of the first kind, order 0."""
    return jnp.exp(jnp.abs(x)) * i0e(x)


def i1e(x: Array) -> Array:
    """exp(-|x|) I1(x)."""
    t, y = _tables("i1e", x), jnp.abs(x)
    large = chebyshev(32.0 / y - 2.0, t["B"]) * lax.rsqrt(y)
    r = jnp.where(y <= 8.0, y * chebyshev(0.5 * y - 2.0, t["A"]), large)
    return jnp.where(x < 0.0, -r, r)


def i1(x: Array) -> Array:
    """Modified Bessel function of the first kind, order 1."""
    return jnp.exp(jnp.abs(x)) * i1e(x)


def _k0_small(x: Array) -> Array:
    r = i0(x) * -jnp.log(0.5 * x) + chebyshev(x * x - 2.0, _tables("k0", x)["A"])
    return jnp.where(x <= 0.0, jnp.inf, r)


def _k1_small(x: Array) -> Array:
    r = i1(x) * jnp.log(0.5 * x) + chebyshev(x * x - 2.0, _tables("k1", x)["A"]) / x
    return jnp.where(x <= 0.0, jnp.inf, r)


def _k_large(name: str, x: Array) -> Array:
    return chebyshev(8.0 / x - 2.0, _tables(name, x)["B"]) * lax.rsqrt(x)


def k0(x: Array) -> Array:
    """Modified Bessel function of the second kind, order 0; infinite for x <= 0."""
    return jnp.where(x <= 2.0, _k0_small(x), jnp.exp(-x) * _k_large("k0", x))


def k0e(x: Array) -> Array:
    """exp(x) K0(x); infinite for x <= 0."""
    small = jnp.where(x <= 0.0, jnp.inf, jnp.exp(x) * _k0_small(x))
    return jnp.where(x <= 2.0, small, _k_large("k0", x))


def k1(x: Array) -> Array:
    """Modified Bessel function of the second kind, order 1; infinite for x <= 0."""
    return jnp.where(x <= 2.0, _k1_small(x), jnp.exp(-x) * _k_large("k1", x))


def k1e(x: Array) -> Array:
    """exp(x) K1(x); infinite for x <= 0."""
    small = jnp.where(x <= 0.0, jnp.inf, jnp.exp(x) * _k1_small(x))
    return jnp.where(x <= 2.0, small, _k_large("k1", x))


def _modulus_and_phase(t: Table, suffix: str, y: Array, offset: float) -> tuple[Array, Array]:
    """Of the asymptotic form in f32: modulus, and phase without its linear part."""
    q = 1.0 / y
    return lax.rsqrt(y) * polynomial(q, t["MO" + suffix]), q * polynomial(q * q, t["PH" + suffix]) - offset


def _asymptotic(t: Table, y: Array, offset: float, second: bool) -> Array:
    """The asymptotic form in f64 for J, or for Y (``second``)."""
    s = 25.0 / (y * y)
    p = polynomial(s, t["PP"]) / polynomial(s, t["PQ"])
    q = polynomial(s, t["QP"]) / polynomial(s, t["QQ"])
    angle = y - offset
    if second:
        r = p * jnp.sin(angle) + (5.0 / y) * (q * jnp.cos(angle))
    else:
        r = p * jnp.cos(angle) + (-5.0 / y) * (q * jnp.sin(angle))
    return r * (_SQRT_TWO_OVER_PI * lax.rsqrt(y))


def j0(x: Array) -> Array:
    """Bessel function of the first kind, order 0."""
    t, y = _tables("j0", x), jnp.abs(x)
    z = y * y
    first_zero = 5.78318596294678452118
    if x.dtype == jnp.float32:
        small = jnp.where(y < 1.0e-3, 1.0 - 0.25 * z, (z - first_zero) * polynomial(z, t["JP"]))
        p, angle = _modulus_and_phase(t, "", y, _PI_OVER_4)
        return jnp.where(y <= 2.0, small, p * jnp.cos(angle + y))
    quotient = polynomial(z, t["RP"]) / polynomial(z, t["RQ"])
    small = (z - first_zero) * (z - 3.04712623436620863991e1) * quotient
    small = jnp.where(y < 1.0e-5, 1.0 - 0.25 * z, small)
    return jnp.where(y <= 5.0, small, _asymptotic(t, y, _PI_OVER_4, False))


def y0(x: Array) -> Array:
    """Bessel function of the second kind, order 0; minus infinity for x <= 0."""
    t, z = _tables("j0", x), x * x
    if x.dtype == jnp.float32:
        small = (z - 0.43221455686510834878) * polynomial(z, t["YP"]) + _TWO_OVER_PI * (jnp.log(x) * j0(x))
        p, angle = _modulus_and_phase(t, "", x, _PI_OVER_4)
        return jnp.where(x <= 2.0, jnp.where(x <= 0.0, -jnp.inf, small), p * jnp.sin(angle + x))
    small = _TWO_OVER_PI * jnp.log(x) * j0(x) + polynomial(z, t["YP"]) / polynomial(z, t["YQ"])
    return jnp.where(x <= 5.0, jnp.where(x <= 0.0, -jnp.inf, small), _asymptotic(t, x, _PI_OVER_4, True))


def j1(x: Array) -> Array:
    """Bessel function of the first kind, order 1."""
    t, y = _tables("j1", x), jnp.abs(x)
    z = y * y
    first_zero = 1.46819706421238932572e1
    if x.dtype == jnp.float32:
        small = (z - first_zero) * (x * polynomial(z, t["JP"]))
        p, angle = _modulus_and_phase(t, "1", y, _THREE_PI_OVER_4)
        large, limit = p * jnp.cos(angle + y), 2.0
    else:
        small = polynomial(z, t["RP"]) / polynomial(z, t["RQ"]) * x * (z - first_zero) * (z - 4.92184563216946036703e1)
        large, limit = _asymptotic(t, y, _THREE_PI_OVER_4, False), 5.0
    return jnp.where(y <= limit, small, jnp.where(x < 0.0, -large, large))


def y1(x: Array) -> Array:
    """Bessel function of the second kind, order 1; minus infinity for x < 0, and at 0."""
    t, z = _tables("j1", x), x * x
    singular = _TWO_OVER_PI * (j1(x) * jnp.log(x) + -1.0 / x)
    if x.dtype == jnp.float32:
        small = (z - 4.66539330185668857532) * polynomial(z, t["YP"]) * x + singular
        small = jnp.where(x < 0.0, -jnp.inf, small)  # at 0 it is 0 * -inf, NaN, as in TensorFlow
        p, angle = _modulus_and_phase(t, "1", x, _THREE_PI_OVER_4)
        return jnp.where(x <= 2.0, small, p * jnp.sin(angle + x))
    small = polynomial(z, t["YP"]) / polynomial(z, t["YQ"]) * x + singular
    small = jnp.where(x <= 0.0, -jnp.inf, small)
    return jnp.where(x <= 5.0, small, _asymptotic(t, x, _THREE_PI_OVER_4, True))
