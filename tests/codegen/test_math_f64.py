"""The f64 bounds of docs/numerics.md: every function against mpmath, where a function is hard: roots, poles, seams, extremes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from disc_tf.codegen.cpu import lane_ops
from disc_tf.ir.types import DType

from .kernel_cases import runnable_targets
from .math_kernels import run

TARGETS = runnable_targets()
TOP, TINY, PI = float(np.finfo(np.float64).max), float(np.finfo(np.float64).tiny), math.pi


def _lgamma(x: Any) -> Any:
    return mpmath.re(mpmath.loggamma(x)) if x > 0 else mpmath.log(abs(mpmath.gamma(x)))


#: function -> its exact value, and ranges to sample: uniformly, or (both bounds of one sign and far apart) evenly over exponents
EXACT: dict[str, tuple[Callable[..., Any], Sequence[tuple[float, float]]]] = {
    "exponential": (mpmath.exp, [(-708, 709.78), (-1, 1), (-1e-300, -1e-8)]),
    "exponential_minus_one": (mpmath.expm1, [(-40, 709.78), (-1, 1), (1e-300, 1e-8)]),
    "log": (mpmath.log, [(TINY, TOP), (0.5, 2), (0.99999, 1.00001)]),
    "log_plus_one": (mpmath.log1p, [(1e-300, TOP), (-0.9999999, 3), (-1e-5, 1e-5)]),
    "sqrt": (mpmath.sqrt, [(TINY, TOP), (0, 4)]),
    "rsqrt": (lambda x: 1 / mpmath.sqrt(x), [(TINY, TOP), (0.1, 4)]),
    "cbrt": (mpmath.cbrt, [(TINY, TOP), (0.1, 64)]),
    "sine": (mpmath.sin, [(1e-300, TOP), (-10, 10), (3.14159, 3.1416), (1e5, 1e7)]),
    "cosine": (mpmath.cos, [(1e-300, TOP), (-10, 10), (1.57079, 1.5708), (1e5, 1e7)]),
    "tan": (mpmath.tan, [(1e-300, TOP), (-10, 10), (1.57079, 1.5708), (3.14159, 3.1416)]),
    "tanh": (mpmath.tanh, [(1e-300, 30), (-3, 3), (0.5, 0.6), (-20, 20)]),
    "logistic": (lambda x: 1 / (1 + mpmath.exp(-x)), [(-708, 708), (-3, 3)]),
    "erf": (mpmath.erf, [(1e-300, 8), (-3, 3), (0.95, 1.05)]),
    "erfc": (mpmath.erfc, [(1e-300, 26.5), (-3, 3), (0.45, 0.55), (5, 26.5)]),
    "asin": (mpmath.asin, [(1e-300, 1), (-1, 1), (0.4999, 0.5001)]),
    "acos": (mpmath.acos, [(1e-300, 1), (-1, 1), (0.4999, 0.5001), (0.999999, 1)]),
    "atan": (mpmath.atan, [(1e-300, TOP), (-3, 3), (0.99, 1.01)]),
    "sinh": (mpmath.sinh, [(1e-300, 710), (-3, 3), (0.99, 1.01)]),
    "cosh": (mpmath.cosh, [(1e-300, 710), (-3, 3)]),
    "asinh": (mpmath.asinh, [(1e-300, TOP), (-3, 3)]),
    "acosh": (mpmath.acosh, [(1, TOP), (1, 3), (1, 1.0001)]),
    "atanh": (mpmath.atanh, [(1e-300, 1), (-0.9999999, 0.9999999)]),
    "lgamma": (_lgamma, [(TINY, 1e300), (0.001, 3), (0.999, 1.001), (1.4, 1.5), (1.99, 2.01), (2, 12)]),
    "digamma": (mpmath.digamma, [(1e-290, 1e300), (0.001, 3), (1.46, 1.4633), (2, 12)]),
}
#: functions of negative arguments with roots between their poles: in ULP of one more than the result
MIRRORED: dict[str, tuple[Callable[..., Any], Sequence[tuple[float, float]]]] = {
    name: (EXACT[name][0], [(-1, -1e-5), (-3, -2), (-30, -3), (-150, -30)]) for name in ("lgamma", "digamma")
}
_EXACTLY = {"abs", "negate", "floor", "ceil", "round_nearest_even", "round_nearest_afz"}


def bounds() -> Iterator[tuple[str, float]]:
    page = (Path(__file__).parents[2] / "docs" / "numerics.md").read_text()
    table = page[page.index("| f64 functions |") :]
    for names, bound in re.findall(r"^\| ([A-Z][^|]*) \| ([\d.]+) \|$", table, re.MULTILINE):
        for name in names.split():
            yield name, float(bound)


#: as TensorFlow spells them
SPELLED = {
    "exponential": "Exp", "exponential_minus_one": "Expm1", "log": "Log", "log_plus_one": "Log1p", "sqrt": "Sqrt", "rsqrt": "Rsqrt",
    "cbrt": "Cbrt", "sine": "Sin", "cosine": "Cos", "logistic": "Sigmoid",
}  # fmt: skip


def spelled(name: str) -> str:
    return SPELLED.get(name, name.capitalize())


def sample(low: float, high: float, count: int) -> np.ndarray:
    rng = np.random.default_rng(count)
    if low * high > 0 and max(high / low, low / high) > 1e6:
        sign = 1 if low > 0 else -1
        a, b = sorted((abs(low), abs(high)))
        return sign * np.clip(np.exp2(rng.uniform(math.log2(a), math.log2(b), count)), a, b)
    return rng.uniform(low, high, count)


def worst(name: str, exact: Callable[..., Any], x: np.ndarray, target: Any, offset: float = 0.0) -> tuple[float, float]:
    """The greatest error in ULP of the exact result (``offset`` more than it), and where."""
    with mpmath.workprec(1200 if x.max() > 1e20 and name in ("sine", "cosine", "tan") else 200):
        found, at = 0.0, 0.0
        for v, got in zip(x, run(target, name, DType.F64, x), strict=True):
            want = exact(mpmath.mpf(float(v)))
            if abs(want) < TINY:
                continue
            unit = mpmath.mpf(2) ** (mpmath.frexp(abs(want) + offset)[1] - 53)
            error = float(abs(mpmath.mpf(float(got)) - want) / unit)
            if not error <= found:
                found, at = error, float(v)
    return found, at


def check(table: dict, name: str, bound: float, count: int, offset: float = 0.0) -> None:
    exact, ranges = table[name]
    for target in TARGETS:
        for low, high in ranges:
            error, at = worst(name, exact, sample(low, high, count), target, offset)
            assert error <= bound, f"{target.name}: {name}({at!r}) is {error} ULP off"


def test_every_function_has_a_bound() -> None:
    assert {spelled(name) for name in EXACT} == dict(bounds()).keys() - {"Lgamma(x<0)", "Digamma(x<0)"}
    assert EXACT.keys() | _EXACTLY == lane_ops.FLOAT_UNARY.keys()


@pytest.mark.parametrize("name", EXACT)
def test_f64(name: str) -> None:
    check(EXACT, name, dict(bounds())[spelled(name)], 25)


@pytest.mark.parametrize("name", MIRRORED)
def test_f64_of_negative_arguments(name: str) -> None:
    check(MIRRORED, name, dict(bounds())[f"{spelled(name)}(x<0)"], 25, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_f64_dense(name: str) -> None:
    check(EXACT, name, dict(bounds())[spelled(name)], 3000)
