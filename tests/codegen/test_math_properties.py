"""One table of what every elementary function promises beside its accuracy: limits, exact points, symmetry, range, monotony, NaN.

For every float type and every instruction set that this machine runs, under the mode of the runtime (denormals are zeros). `test_math` has
the accuracy.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import pytest

from disc_tf.codegen.cpu import lane_ops
from disc_tf.ir.types import DType

from .kernel_cases import runnable_targets
from .math_kernels import run

TARGETS = runnable_targets()
DTYPES = (DType.F32, DType.F64, DType.F16, DType.BF16)
INF, NAN, PI, LN2 = math.inf, math.nan, math.pi, math.log(2.0)
MANTISSA = {DType.F32: 23, DType.F64: 52, DType.F16: 10, DType.BF16: 7}
BIAS = {DType.F32: 127, DType.F64: 1023, DType.F16: 15, DType.BF16: 127}
_BITS = {2: np.int16, 4: np.int32, 8: np.int64}
#: arguments named by their type: the largest number, the smallest normal one, the smallest denormal (which is zero to f32, f64 and bf16)
TOP, TINY, DENORMAL = "top", "tiny", "denormal"
Point = float | str


@dataclasses.dataclass(frozen=True)
class Properties:
    """at: argument -> result, exactly, signs of zeros too. symmetry: odd or even, bit for bit. inside: its range, never left.
    rising: (from, to, whether it rises). seams: where pieces of the approximation meet, of mantissa bits and bias. back: the greatest step
    back among neighbours, in ULP, with a fused multiply-add and without."""

    at: dict[Point, Point]
    symmetry: str = ""
    inside: tuple[float, float] = (-INF, INF)
    rising: Sequence[tuple[float, float, bool]] = ()
    seams: Callable[[int, int], Sequence[float]] = lambda m, bias: ()
    back: tuple[int, int] = (0, 0)


def _odd(at: dict[Point, Point]) -> dict[Point, Point]:
    """With the mirrored points, and zeros of both signs."""
    def negative(p: Point) -> Point:
        return f"-{p}" if isinstance(p, str) else -p

    mirrored = {negative(x): negative(y) for x, y in at.items()}
    return {**at, **mirrored, 0.0: 0.0, "-0": -0.0}


_EVERYWHERE = [(-INF, INF, True)]
_NEGATIVE_IS_NAN: dict[Point, Point] = {-1.0: NAN, -INF: NAN, "-top": NAN, "-tiny": NAN}
TABLE: dict[str, Properties] = {
    "exponential": Properties(
        {0.0: 1, "-0": 1, DENORMAL: 1, TINY: 1, INF: INF, -INF: 0.0, TOP: INF, "-top": 0.0}, "", (0.0, INF), _EVERYWHERE,
        lambda m, bias: [LN2 / 2, 1.5 * LN2, 2.5 * LN2, 10.5 * LN2, (bias - 0.01) * LN2, (bias + 1) * LN2],
    ),
    "exponential_minus_one": Properties(
        {**_odd({TINY: TINY}), INF: INF, -INF: -1, TOP: INF, "-top": -1}, "", (-1.0, INF), _EVERYWHERE,
        lambda m, bias: [2.0 ** -(m + 2), LN2 / 2, 1.5 * LN2, 2.5 * LN2, (m + 3) * LN2, (bias + 1) * LN2, (bias + 1.25) * LN2],
    ),
    "log": Properties(
        {1.0: 0.0, 0.0: -INF, "-0": -INF, INF: INF, **_NEGATIVE_IS_NAN}, "", (-INF, INF), [(0, INF, True)],
        lambda m, bias: [math.sqrt(0.5), 1, math.sqrt(2.0), 2 * math.sqrt(2.0), 1.5 * 2.0 ** (1 - bias), 2.0 ** (bias / 2)],
    ),
    "log_plus_one": Properties(
        {**_odd({TINY: TINY}), -1.0: -INF, -2.0: NAN, INF: INF, -INF: NAN, "-top": NAN}, "", (-INF, INF), [(-1, INF, True)],
        lambda m, bias: [2.0 ** -(m + 2), math.sqrt(2.0) - 1, 1, 2 * math.sqrt(2.0) - 1, 2.0 ** min(m, bias), 2.0 ** min(m + 2, bias)],
    ),
    "sqrt": Properties(
        {0.0: 0.0, "-0": -0.0, 1.0: 1, 4.0: 2, 0.25: 0.5, 144.0: 12, INF: INF, **_NEGATIVE_IS_NAN}, "", (0.0, INF), [(0, INF, True)],
        lambda m, bias: [1, 2, 4],
    ),
    "rsqrt": Properties(
        {0.0: INF, "-0": -INF, 1.0: 1, 4.0: 0.5, 0.25: 2, INF: 0.0, **_NEGATIVE_IS_NAN}, "", (-INF, INF), [(0, INF, False)],
        lambda m, bias: [1, 2, 4],
    ),
    "cbrt": Properties(
        _odd({1.0: 1, 8.0: 2, 27.0: 3, 0.125: 0.5, 1000.0: 10, INF: INF}), "odd", (-INF, INF), _EVERYWHERE, lambda m, bias: [1, 2, 4, 8]
    ),
    "sine": Properties(_odd({INF: NAN, TINY: TINY}), "odd", (-1.0, 1.0), [(-PI / 2, PI / 2, True)],
                       lambda m, bias: [PI / 4, 2.0 ** -(m // 2 + 2)]),
    "cosine": Properties({0.0: 1, "-0": 1, TINY: 1, INF: NAN, -INF: NAN}, "even", (-1.0, 1.0), [(-PI, 0, True), (0, PI, False)],
                         lambda m, bias: [PI / 4, 3 * PI / 4, PI / 2]),
    "tan": Properties(_odd({INF: NAN, TINY: TINY}), "odd", (-INF, INF), [(-PI / 2, PI / 2, True)],
                      lambda m, bias: [PI / 4, 2.0 ** -(m // 2 + 2)]),
    "tanh": Properties(
        _odd({INF: 1, TOP: 1, 1e4: 1, 20.0: 1, TINY: TINY}), "odd", (-1.0, 1.0), _EVERYWHERE,
        lambda m, bias: [LN2 / 4, LN2 * 0.75, math.log(3.0) / 2, LN2 * (m + 1) / 2, LN2 * (m + 2) / 2, 10, 20],
    ),
    "logistic": Properties(
        {0.0: 0.5, "-0": 0.5, TINY: 0.5, INF: 1, TOP: 1, -INF: 0.0, "-top": 0.0, 1e4: 1, -1e4: 0.0}, "", (0.0, 1.0), _EVERYWHERE,
        lambda m, bias: [LN2 / 2, 1.5 * LN2, (m + 1) * LN2, bias * LN2, (bias + 1) * LN2],
    ),
    "erf": Properties(
        _odd({INF: 1, TOP: 1, 1e4: 1, 6.0: 1}), "odd", (-1.0, 1.0), _EVERYWHERE, lambda m, bias: [1, 2, 3.95, 5.9], (1, 2)
    ),
    "erfc": Properties(
        {0.0: 1, "-0": 1, TINY: 1, INF: 0.0, TOP: 0.0, 1e4: 0.0, -INF: 2, "-top": 2, -6.0: 2}, "", (0.0, 2.0), [(-INF, INF, False)],
        lambda m, bias: [0.5, 1, 2, 4, 10.1, 26.8], (2, 2),
    ),
    "asin": Properties(_odd({1.0: PI / 2, 2.0: NAN, INF: NAN, TINY: TINY}), "odd", (-PI / 2, PI / 2), [(-1, 1, True)],
                       lambda m, bias: [0.5, 1]),
    "acos": Properties({1.0: 0.0, -1.0: PI, 0.0: PI / 2, "-0": PI / 2, 2.0: NAN, -2.0: NAN, INF: NAN, -INF: NAN}, "", (0.0, PI),
                       [(-1, 1, False)], lambda m, bias: [0.5, 1]),
    "atan": Properties(
        _odd({INF: PI / 2, TOP: PI / 2, 1.0: PI / 4, TINY: TINY}), "odd", (-PI / 2, PI / 2), _EVERYWHERE,
        lambda m, bias: [1, math.tan(PI / 8), 1 / math.tan(PI / 8), 2.0 ** (m // 2)],
    ),
    "sinh": Properties(_odd({INF: INF, TOP: INF, TINY: TINY}), "odd", (-INF, INF), _EVERYWHERE,
                       lambda m, bias: [LN2 / 2, 1, 1.5 * LN2, (bias + 1) * LN2, (bias + 2) * LN2]),
    "cosh": Properties({0.0: 1, "-0": 1, TINY: 1, INF: INF, -INF: INF, TOP: INF, "-top": INF}, "even", (1.0, INF),
                       [(-INF, 0, False), (0, INF, True)], lambda m, bias: [LN2 / 2, 1, 1.5 * LN2, (bias + 1) * LN2, (bias + 2) * LN2]),
    "asinh": Properties(_odd({INF: INF, TINY: TINY}), "odd", (-INF, INF), _EVERYWHERE,
                        lambda m, bias: [2.0 ** -(m // 2), 0.5, 1, 2.0 ** (m // 2), 2.0 ** min(m + 5, bias)]),
    "acosh": Properties({1.0: 0.0, 0.5: NAN, 0.0: NAN, -1.0: NAN, "-top": NAN, INF: INF, -INF: NAN}, "", (0.0, INF), [(1, INF, True)],
                        lambda m, bias: [1, 1.5, 2, 2.0 ** min(m + 5, bias)]),
    "atanh": Properties(_odd({1.0: INF, 2.0: NAN, INF: NAN, TOP: NAN, TINY: TINY}), "odd", (-INF, INF), [(-1, 1, True)],
                        lambda m, bias: [2.0 ** -(m + 2), 0.25, 1 / 3, 0.5, 1]),
    "lgamma": Properties(
        {1.0: 0.0, 2.0: 0.0, 0.0: INF, "-0": INF, -1.0: INF, -2.0: INF, INF: INF, -INF: INF, TOP: INF}, "", (-INF, INF),
        [(0, 1.45, False), (1.47, INF, True)], lambda m, bias: [0.25, 0.5, 1, 1.25, 1.75, 2, 2.25, 2.5, 3, 4, 9, 1e5], (1, 1),
    ),
    "digamma": Properties(
        {0.0: NAN, "-0": NAN, -1.0: NAN, -2.0: NAN, INF: INF, -INF: NAN}, "", (-INF, INF), [(0, INF, True)],
        lambda m, bias: [0.25, 0.5, 1, 1.25, 1.4616, 2, 2.25, 3.25, 9, 1e5], (2, 2),
    ),
    "floor": Properties({**_odd({INF: INF, TOP: TOP, 1.0: 1}), 1.5: 1, -1.5: -2}, "", (-INF, INF), _EVERYWHERE, lambda m, bias: [1, 2]),
    "ceil": Properties({**_odd({INF: INF, TOP: TOP, 1.0: 1}), 1.5: 2, -1.5: -1, -0.5: -0.0}, "", (-INF, INF), _EVERYWHERE,
                       lambda m, bias: [1, 2]),
    "round_nearest_even": Properties(_odd({INF: INF, TOP: TOP, 0.5: 0.0, 1.5: 2, 2.5: 2}), "odd", (-INF, INF), _EVERYWHERE,
                                     lambda m, bias: [0.5, 1.5]),
    "round_nearest_afz": Properties(_odd({INF: INF, TOP: TOP, 0.5: 1, 1.5: 2, 2.5: 3}), "odd", (-INF, INF), _EVERYWHERE,
                                    lambda m, bias: [0.5, 1.5]),
    "abs": Properties({0.0: 0.0, "-0": 0.0, INF: INF, -INF: INF, TOP: TOP, "-top": TOP}, "even", (0.0, INF)),
    "negate": Properties({0.0: -0.0, "-0": 0.0, INF: -INF, -INF: INF, TOP: "-top"}, "odd"),
}  # fmt: skip


def number(point: Point, dtype: DType) -> np.ndarray:
    """A point of the table in a type, rounded."""
    info = ml_dtypes.finfo(dtype.np)
    if isinstance(point, str):
        sign, name = (-1.0, point[1:]) if point[0] == "-" else (1.0, point)
        return np.array(sign * float({"0": 0, TOP: info.max, TINY: info.tiny, DENORMAL: info.smallest_subnormal}[name]), dtype.np)
    return np.array(point, dtype.np)


def around(dtype: DType, value: float, count: int) -> np.ndarray:
    """``count`` neighbouring positive numbers about a value."""
    ints = _BITS[dtype.bytes]
    middle = int(np.array(value, dtype.np).view(ints))
    low = max(middle - count // 2, int(number(TINY, dtype).view(ints)))
    high = min(low + count, int(np.array(INF, dtype.np).view(ints)) + 1)
    return np.arange(low, high, dtype=ints).view(dtype.np)


def everything(dtype: DType) -> np.ndarray:
    """All numbers of a 16-bit type in order but denormals; of the others a sample."""
    ints = _BITS[dtype.bytes]
    tiny, end = (int(v.view(ints)) for v in (number(TINY, dtype), np.array(INF, dtype.np)))
    bits = np.arange(tiny, end + 1, dtype=ints) if dtype.bytes == 2 else np.linspace(tiny, end, 50_001).astype(ints)
    half = bits.view(dtype.np)
    return np.concatenate([-half[::-1], np.array([0], dtype.np), half])


def steps_back(x: np.ndarray, y: np.ndarray, rising: bool, dtype: DType) -> tuple[float, float]:
    """The greatest distance of a result behind an earlier one in ULP, and its argument. x rises."""
    wide = y.astype(np.float64) if rising else -y.astype(np.float64)
    before = np.maximum.accumulate(wide)
    finite = np.where(np.isfinite(wide), wide, 1.0)
    unit = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(finite), float(ml_dtypes.finfo(dtype.np).tiny)))) - MANTISSA[dtype])
    with np.errstate(invalid="ignore"):
        fall = np.where(before > wide, (before - wide) / unit, 0.0)
    worst = int(np.argmax(fall))
    return float(fall[worst]), float(x[worst])


def each(dtypes: Sequence[DType] = DTYPES) -> Callable:
    """The product of functions, types and instruction sets."""
    parameters = [
        pytest.param(name, dtype, target, id=f"{name}-{dtype}-{target.name}") for name in TABLE for dtype in dtypes for target in TARGETS
    ]
    return pytest.mark.parametrize(("name", "dtype", "target"), parameters)


def test_every_function_is_in_the_table() -> None:
    assert TABLE.keys() == lane_ops.FLOAT_UNARY.keys()


@each()
def test_points_range_symmetry_nan(name, dtype, target) -> None:
    row = TABLE[name]
    x = np.array([number(p, dtype) for p in row.at], dtype.np)
    got = run(target, name, dtype, x)
    expected = np.array([number(y, dtype) for y in row.at.values()], dtype.np)
    rounded = np.abs(expected.astype(np.float64)) > 1.2 if name in ("asin", "acos", "atan") else np.zeros(len(x), bool)
    _same(x[~rounded], got[~rounded], expected[~rounded], name)
    np.testing.assert_allclose(got[rounded].astype(float), expected[rounded].astype(float), rtol=float(ml_dtypes.finfo(dtype.np).eps))
    assert np.isnan(run(target, name, dtype, np.array([NAN, -NAN], dtype.np)).astype(np.float64)).all()
    x = everything(dtype)
    y = run(target, name, dtype, x)
    if row.symmetry:
        other = run(target, name, dtype, -x)
        _same(x, other, -y if row.symmetry == "odd" else y, name)
    wide = y.astype(np.float64)
    low, high = (float(np.array(v, dtype.np)) for v in row.inside)
    outside = (wide < low) | (wide > high)
    assert not outside.any(), f"{name}({x[outside][0]!r}) = {y[outside][0]!r}"


def _same(x: np.ndarray, got: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Equal, with the signs of zeros."""
    a, b = got.astype(np.float64), expected.astype(np.float64)
    same = (np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))
    assert same.all(), f"{name}({x[~same][0]!r}) = {got[~same][0]!r}, not {expected[~same][0]!r}"


def check_monotone(name: str, dtype: DType, target, count: int) -> None:
    row = TABLE[name]
    allowed = row.back[0 if target.fma else 1] if dtype.bytes > 2 else 0
    pieces = [everything(dtype)]
    if dtype.bytes > 2:
        for seam in row.seams(MANTISSA[dtype], BIAS[dtype]):
            near = around(dtype, seam, count)
            pieces += [near, -near[::-1]]
    for x in pieces:
        for low, high, rising in row.rising:
            inside = x[(x.astype(np.float64) >= low) & (x.astype(np.float64) <= high)]
            y = run(target, name, dtype, inside)
            known = ~np.isnan(y.astype(np.float64))  # at poles
            if known.any():
                back, at = steps_back(inside[known], y[known], rising, dtype)
                assert back <= allowed, f"{name} steps back by {back} ULP at {at!r}"


@each()
def test_monotone(name, dtype, target) -> None:
    check_monotone(name, dtype, target, 1 << 13)


@pytest.mark.slow
@each(DTYPES[:2])
def test_monotone_about_seams(name, dtype, target) -> None:
    check_monotone(name, dtype, target, 1 << 20)
