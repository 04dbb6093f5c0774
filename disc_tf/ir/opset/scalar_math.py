"""The numpy meaning of elementwise ops, exact to the dtype.

Floats: f16 and bf16 are computed in f32 and rounded once; transcendental functions of f32 in f64. Integers wrap; what StableHLO
leaves open (division by zero, float to int out of range, wide shifts) is fixed as docs/architecture.md says. Denormals are kept.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from disc_tf.ir.bfloat16 import bfloat16_or_none

_NARROW = tuple(t for t in (np.dtype(np.float16), bfloat16_or_none()) if t is not None)


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype in _NARROW


def round_to(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Float to float. Narrow types are reached through f32, as TensorFlow and Eigen do."""
    if dtype in _NARROW and x.dtype == np.float64:
        x = x.astype(np.float32)
    return x.astype(dtype)


def widen(x: np.ndarray) -> np.ndarray:
    """f16 and bf16 to f32, others as they are."""
    return x.astype(np.float32) if x.dtype in _NARROW else x


def _exact(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A function computed in the dtype (narrow floats in f32)."""

    def apply(*xs: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(fn(*map(widen, xs))).astype(xs[0].dtype)

    return apply


def _transcendental(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A function computed in f64 and rounded to the dtype."""

    def apply(*xs: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            wide = np.asarray(fn(*(x.astype(np.float64) for x in xs)))
        return (
            wide.astype(np.float32).astype(xs[0].dtype)
            if xs[0].dtype in _NARROW
            else wide.astype(xs[0].dtype)
        )

    return apply


def _special(name: str) -> Callable[[np.ndarray], np.ndarray]:
    def apply(x: np.ndarray) -> np.ndarray:
        import scipy.special  # only the reference needs it

        return getattr(scipy.special, name)(x)

    return _transcendental(apply)


def _sign(x: np.ndarray) -> np.ndarray:
    if is_float(x.dtype):
        return np.where((x == 0) | np.isnan(x), x, np.copysign(np.ones_like(x), x))
    return np.sign(x)


def _round_afz(x: np.ndarray) -> np.ndarray:
    whole = np.floor(np.abs(x))
    whole = whole + (np.abs(x) - whole >= 0.5)
    return np.copysign(whole, x)


def _logistic(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _lgamma(x: np.ndarray) -> np.ndarray:
    import scipy.special

    return np.where(np.isinf(x), np.inf, scipy.special.gammaln(x))


def _digamma(x: np.ndarray) -> np.ndarray:
    import scipy.special

    # A pole gives NaN (as TensorFlow and chlo do), not the one-sided infinity of scipy.
    return np.where((x <= 0) & (np.floor(x) == x), np.nan, scipy.special.psi(x))


def _clz(x: np.ndarray) -> np.ndarray:
    bits = x.dtype.itemsize * 8
    u = x.view(np.dtype(f"u{x.dtype.itemsize}"))
    out = np.full(u.shape, bits, dtype=np.int64)
    for i in range(bits):
        out = np.where((u >> np.array(i, u.dtype)) & np.array(1, u.dtype) != 0, bits - 1 - i, out)
    return out.astype(x.dtype)


UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "abs": _exact(np.abs),
    "negate": _exact(np.negative),
    "sign": _exact(_sign),
    "exponential": _transcendental(np.exp),
    "exponential_minus_one": _transcendental(np.expm1),
    "log": _transcendental(np.log),
    "log_plus_one": _transcendental(np.log1p),
    "sqrt": _exact(np.sqrt),
    "rsqrt": _transcendental(lambda x: 1 / np.sqrt(x)),
    "cbrt": _transcendental(np.cbrt),
    "sine": _transcendental(np.sin),
    "cosine": _transcendental(np.cos),
    "tan": _transcendental(np.tan),
    "tanh": _transcendental(np.tanh),
    "logistic": _transcendental(_logistic),
    "floor": _exact(np.floor),
    "ceil": _exact(np.ceil),
    "round_nearest_even": _exact(np.rint),
    "round_nearest_afz": _exact(_round_afz),
    "is_finite": lambda x: np.isfinite(x.astype(np.float64)),
    "not": lambda x: np.logical_not(x) if x.dtype == np.bool_ else np.invert(x),
    "popcnt": lambda x: np.bitwise_count(x.view(np.dtype(f"u{x.dtype.itemsize}"))).astype(x.dtype),
    "count_leading_zeros": _clz,
    "erf": _special("erf"),
    "erfc": _special("erfc"),
    "lgamma": _transcendental(_lgamma),
    "digamma": _transcendental(_digamma),
    "asin": _transcendental(np.arcsin),
    "acos": _transcendental(np.arccos),
    "atan": _transcendental(np.arctan),
    "sinh": _transcendental(np.sinh),
    "cosh": _transcendental(np.cosh),
    "asinh": _transcendental(np.arcsinh),
    "acosh": _transcendental(np.arccosh),
    "atanh": _transcendental(np.arctanh),
}


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quotient; integers truncate, `x / 0` has all bits set, `INT_MIN / -1` is INT_MIN."""
    if is_float(a.dtype):
        return _exact(np.divide)(a, b)
    quotient, _ = _divmod(a, b)
    return quotient


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Remainder with the sign of the dividend; for integers `x rem 0` is x, `INT_MIN rem -1` is 0."""
    if is_float(a.dtype):
        return _exact(np.fmod)(a, b)
    _, rest = _divmod(a, b)
    return rest


def _divmod(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    dtype = a.dtype
    one = np.ones((), dtype)
    trap = b == 0
    if dtype.kind == "i":
        trap = trap | ((a == np.iinfo(dtype).min) & (b == -1))
    divisor = np.where(trap, one, b)
    with np.errstate(all="ignore"):
        rest = np.fmod(a, divisor)
        quotient = (a - rest) // divisor
    ones = np.array(-1).astype(dtype) if dtype.kind == "i" else np.array(np.iinfo(dtype).max, dtype)
    quotient = np.where(b == 0, ones, np.where(trap, a, quotient))
    rest = np.where(b == 0, a, np.where(trap, np.zeros((), dtype), rest))
    return quotient.astype(dtype), rest.astype(dtype)


def power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a to the b. Integers wrap; a negative exponent gives 1 for base 1, +-1 for base -1, else 0."""
    if is_float(a.dtype):
        return _transcendental(np.power)(a, b)
    result = np.ones(np.broadcast_shapes(a.shape, b.shape), a.dtype)
    base, exponent = np.broadcast_to(a, result.shape).copy(), np.broadcast_to(b, result.shape)
    left = exponent.astype(np.uint64) if a.dtype.kind == "u" else np.maximum(exponent, 0).astype(np.uint64)
    with np.errstate(all="ignore"):
        while left.any():
            result = np.where(left & np.uint64(1) != 0, result * base, result).astype(a.dtype)
            base = (base * base).astype(a.dtype)
            left = left >> np.uint64(1)
    if a.dtype.kind == "i":
        odd = np.bitwise_and(exponent, 1) != 0
        inverse = np.where(a == 1, 1, np.where(a == -1, np.where(odd, -1, 1), 0))
        result = np.where(exponent < 0, inverse, result)
    return result.astype(a.dtype)


def _shift(kind: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def apply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        bits = a.dtype.itemsize * 8
        unsigned = np.dtype(f"u{a.dtype.itemsize}")
        amount = b.view(unsigned)
        wide = amount >= bits
        safe = np.where(wide, 0, amount).astype(unsigned)
        if kind == "arithmetic":
            signed = a.view(np.dtype(f"i{a.dtype.itemsize}"))
            filled = np.where(wide, bits - 1, safe).astype(signed.dtype)
            return np.right_shift(signed, filled).view(a.dtype)
        shift = np.left_shift if kind == "left" else np.right_shift
        return (
            np.where(wide, np.zeros((), unsigned), shift(a.view(unsigned), safe))
            .astype(unsigned)
            .view(a.dtype)
        )

    return apply


BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": _exact(np.add),
    "subtract": _exact(np.subtract),
    "multiply": _exact(np.multiply),
    "divide": divide,
    "remainder": remainder,
    "power": power,
    "maximum": _exact(np.maximum),
    "minimum": _exact(np.minimum),
    "atan2": _transcendental(np.arctan2),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shift_left": _shift("left"),
    "shift_right_arithmetic": _shift("arithmetic"),
    "shift_right_logical": _shift("logical"),
}

COMPARE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def convert(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Change the dtype by value.

    Float to int truncates towards zero; NaN and what does not fit give INT_MIN of the conversion used: i32 for results up to 32 signed or
    16 unsigned bits (then truncated), else i64. Float to bool is `x != 0`. Integers wrap.
    """
    dtype = np.dtype(dtype)
    if x.dtype == dtype:
        return x
    if dtype == np.bool_:
        return x != 0
    if is_float(dtype):
        if is_float(x.dtype):
            with np.errstate(all="ignore"):
                return round_to(x, dtype)
        return x.astype(np.float32).astype(dtype) if dtype in _NARROW else x.astype(dtype)
    if not is_float(x.dtype):
        return x.astype(dtype)
    wide = widen(x).astype(np.float64)
    if dtype == np.uint64:
        high = (wide >= 2.0**63) & (wide < 2.0**64)
        low = _truncate(np.where(high, wide - 2.0**63, wide), np.int64).view(np.uint64)
        return np.where(high, low ^ np.uint64(2**63), low)
    through = np.int64 if dtype in (np.dtype(np.int64), np.dtype(np.uint32)) else np.int32
    return _truncate(wide, through).astype(dtype)


def _truncate(x: np.ndarray, dtype: type) -> np.ndarray:
    info = np.iinfo(dtype)
    limit = float(info.max) + 1.0  # a power of two, exact in f64
    whole = np.trunc(x)
    fits = (whole >= float(info.min)) & (whole < limit)
    return np.where(fits, np.where(fits, whole, 0).astype(dtype), info.min).astype(dtype)
