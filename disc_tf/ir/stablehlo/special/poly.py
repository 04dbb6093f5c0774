"""Polynomials and Chebyshev series, and selection by intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

Array = Any


def polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    """Horner's rule, the highest power first (Cephes' polevl)."""
    y = jnp.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y = y * x + c
    return y


def chebyshev(x: Array, coefficients: Sequence[float]) -> Array:
    """Clenshaw's recurrence at x / 2, the last term first (Cephes' chbevl)."""
    b0, b1, b2 = jnp.full_like(x, coefficients[0]), jnp.zeros_like(x), jnp.zeros_like(x)
    for c in coefficients[1:]:
        b0, b1, b2 = (x * b0 + c) - b1, b0, b1
    return 0.5 * (b0 - b2)


def piecewise(x: Array, pieces: Sequence[tuple[float, Array]], last: Array) -> Array:
    """The value of the first piece whose upper limit is above ``x``, else ``last`` (also for NaN)."""
    y = last
    for limit, value in reversed(pieces):
        y = jnp.where(x < limit, value, y)
    return y
