"""Dawson's, exponential, Fresnel's and Spence's integrals, quantiles of the normal distribution, and the next number."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax

from disc_tf.ir.stablehlo.special.poly import Array, piecewise, polynomial
from disc_tf.ir.stablehlo.special.tables import TABLES


def dawsn(x: Array) -> Array:
    """Dawson's integral."""
    t, y = TABLES["dawsn"], jnp.abs(x)
    z, w = y * y, 1.0 / y
    u = w * w
    near = y * polynomial(z, t["AN"]) / polynomial(z, t["AD"])
    middle = 0.5 * (u * (polynomial(u, t["BN"]) / (y * polynomial(u, t["BD"]))) + w)
    far = 0.5 * (u * (polynomial(u, t["CN"]) / (y * polynomial(u, t["CD"]))) + w)
    r = piecewise(y, [(3.25, near), (6.25, middle), (1.0e9, far)], 0.5 / x)
    return jnp.where(x < 0.0, -r, r)


def expint(x: Array) -> Array:
    """The exponential integral Ei; NaN below 0."""
    t, w = TABLES["expint"], 1.0 / x
    near = x * (polynomial(x, t["A"]) / polynomial(x, t["B"])) + 0.5772156649015329 + jnp.log(x)
    scale = jnp.exp(x) * w

    def tail(k: int) -> Array:
        return scale * (w * (polynomial(w, t[f"A{k}"]) / polynomial(w, t[f"B{k}"])) + 1.0)

    nan = jnp.full_like(x, jnp.nan)
    pieces = [(0.0, nan), (2.0, near), (4.0, tail(6)), (8.0, tail(5)), (16.0, tail(2)), (32.0, tail(4)), (64.0, tail(7))]
    return piecewise(x, pieces, tail(3))


def _fresnel_far(y: Array, sine: bool) -> Array:
    t = TABLES["fresnel"]
    square = y * y
    v = 1.0 / (math.pi * square)
    u = v * v
    f = 1.0 - u * (polynomial(u, t["FN"]) / polynomial(u, t["FD"]))
    g = v * polynomial(u, t["GN"]) / polynomial(u, t["GD"])
    angle = 1.5707963267948966 * square
    c, s = jnp.cos(angle), jnp.sin(angle)
    scale = 1.0 / (math.pi * y)
    return 0.5 - (f * c + g * s) * scale if sine else 0.5 + (f * s - g * c) * scale


def _fresnel(x: Array, near: Array, sine: bool) -> Array:
    y = jnp.abs(x)
    r = jnp.where(x * x < 2.5625, near, _fresnel_far(y, sine))
    r = jnp.where(y > 36974.0, 0.5, r)
    return jnp.where(x < 0.0, -r, r)


def fresnel_cos(x: Array) -> Array:
    """Fresnel's cosine integral."""
    t, y = TABLES["fresnel"], jnp.abs(x)
    z = (y * y) * (y * y)
    return _fresnel(x, y * polynomial(z, t["CN"]) / polynomial(z, t["CD"]), False)


def fresnel_sin(x: Array) -> Array:
    """Fresnel's sine integral."""
    t, y = TABLES["fresnel"], jnp.abs(x)
    square = y * y
    z = square * square
    return _fresnel(x, y * square * polynomial(z, t["SN"]) / polynomial(z, t["SD"]), True)


def spence(x: Array) -> Array:
    """Spence's integral (the dilogarithm at 1 - x); NaN below 0."""
    t = TABLES["spence"]
    y = jnp.where(x < 2.0, x, 1.0 / x)
    w = jnp.where(y > 1.5, 1.0 / y - 1.0, jnp.where(y < 0.5, -y, y - 1.0))
    r = -w * (polynomial(w, t["A"]) / polynomial(w, t["B"]))
    z = jnp.log(y)
    whole = math.pi * math.pi / 6.0
    r = jnp.where(y < 0.5, -z * jnp.log1p(-y) + whole - r, r)
    r = jnp.where(x > 1.5, -0.5 * z * z - r, r)
    r = jnp.where(x == 1.0, 0.0, jnp.where(x == 0.0, whole, r))
    return jnp.where(x < 0.0, jnp.nan, r)


def ndtri(a: Array) -> Array:
    """The quantile function of the standard normal distribution: infinite at 0 and 1, NaN outside."""
    t, tail = TABLES["ndtri"], 0.13533528323661269189  # exp(-2)
    low = a <= 1.0 - tail
    b = jnp.where(low, a, 1.0 - a)
    c = b - 0.5
    z = c * c
    middle = (c * (z * (polynomial(z, t["P0"]) / polynomial(z, t["Q0"]))) + c) * 2.50662827463100050242
    x = jnp.sqrt(-2.0 * jnp.log(b))
    w = 1.0 / x
    near = polynomial(w, t["P1"]) / polynomial(w, t["Q1"])
    far = polynomial(w, t["P2"]) / polynomial(w, t["Q2"])
    outer = (x - jnp.log(x) / x) - w * jnp.where(x < 8.0, near, far)
    r = jnp.where(b > tail, middle, jnp.where(low, -outer, outer))
    return jnp.where(a == 0.0, -jnp.inf, jnp.where(a == 1.0, jnp.inf, r))


def erfinv(x: Array) -> Array:
    """The inverse of erf, by way of `ndtri` as TensorFlow does: near 0 it is exact to a unit of rounding of 1/2, not of itself."""
    return ndtri(0.5 * x + 0.5) * math.sqrt(0.5)


def nextafter(x: Array, y: Array) -> Array:
    """The next number of the type from ``x`` towards ``y``."""
    signed = jnp.int32 if x.dtype == jnp.float32 else jnp.int64
    bits = lax.bitcast_convert_type(x, signed)
    away = (x < y) == (x > 0.0)
    stepped = lax.bitcast_convert_type(jnp.where(away, bits + 1, bits - 1), x.dtype)
    least = lax.bitcast_convert_type(jnp.ones_like(bits), x.dtype)
    r = jnp.where(x == 0.0, jnp.where(y > 0.0, least, -least), stepped)
    return jnp.where(jnp.isnan(x) | jnp.isnan(y), jnp.nan, jnp.where(x == y, y, r))
