"""Special functions, whose rules are traced JAX functions, against TensorFlow over their whole range."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.lowering.jax_rules import _BINARY_LOOPS, _UNARY, _UNARY_HALF
from disc_tf.testing.tf_case import Tolerance, check_op

#: op -> units of rounding of |result|, and what is added to |result|: near their zeros these functions are differences (docs/numerics.md)
UNARY = {
    "Dawsn": (8, 0), "Erfinv": (8, 1), "Expint": (16, 0.4), "FresnelCos": (8, 0.5), "FresnelSin": (8, 0.5), "Ndtri": (8, 1.5),
    "Spence": (24, 2.0), "BesselI0": (32, 0), "BesselI0e": (12, 0), "BesselI1": (32, 0), "BesselI1e": (16, 0), "BesselJ0": (8, 1),
    "BesselJ1": (8, 1), "BesselK0": (24, 0), "BesselK0e": (24, 0), "BesselK1": (16, 0), "BesselK1e": (16, 0), "BesselY0": (16, 1),
    "BesselY1": (16, 1),
}  # fmt: skip
BINARY = {
    "Igamma": (64, 4), "IgammaGradA": (128, 4), "Igammac": (64, 4), "Polygamma": (64, 1), "RandomGammaGrad": (256, 4), "Zeta": (16, 0),
}  # fmt: skip
_NAMES = {"NextAfter": ("x1", "x2"), "Zeta": ("x", "q"), "RandomGammaGrad": ("alpha", "sample")}
_DOMAIN = {"Erfinv": (-1.0, 1.0), "Ndtri": (0.0, 1.0)}
#: where TF's f64 sine and cosine, and ours, have lost the angle's digits
_FAR = {"BesselJ0": 1e4, "BesselJ1": 1e4, "BesselY0": 1e4, "BesselY1": 1e4}


def whole_range(op: str, dtype: DType) -> np.ndarray:
    """Dense where the function changes, then every magnitude, both signs, and the special values; of f16 every number."""
    if dtype == DType.F16:
        x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
        return x[~(np.abs(x) > _FAR.get(op, np.inf))]
    low, high = _DOMAIN.get(op, (-40.0, 40.0))
    top = 37.5 if dtype == DType.F32 else 307.0
    magnitudes = 10.0 ** np.linspace(-top, top, 801)
    parts = [np.linspace(low, high, 4001), np.linspace(0.0, 9.0, 1801), magnitudes, -magnitudes]
    x = np.concatenate(parts)
    x = x[np.abs(x) <= _FAR.get(op, np.inf)]
    return np.concatenate([x, [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]]).astype(dtype.np)


#: f32 in the fast part, the other types in the slow one
_CASES = [
    (op, DType.F32) if d == DType.F32 else pytest.param(op, d, marks=pytest.mark.slow)
    for op in UNARY for d in (DType.F32, DType.F64, *([DType.F16] if op in _UNARY_HALF else []))
]  # fmt: skip


@pytest.mark.parametrize(("op", "dtype"), _CASES, ids=str)
def test_special_function(op: str, dtype: DType) -> None:
    ulps, floor = UNARY[op]
    tol = Tolerance(ulps if dtype != DType.F16 else 2.0, floor=max(floor, 1e-30))
    x = whole_range(op, dtype)
    for data in (x, x[:0], x[4003:4004]):
        check_op(op, x=data, modes=["dynamic"], tol=tol)


def test_shapes() -> None:
    for shape in ((), (2, 0, 3), (3, 1, 7)):
        x = np.linspace(0.1, 0.9, int(np.prod(shape, dtype=int))).astype(np.float32).reshape(shape)
        check_op("Spence", x=x, tol=Tolerance(24.0, floor=2.0))


def pairs(op: str, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Operands over the useful range, then every pair of special values."""
    rng = np.random.default_rng(3)
    n = 700
    if op == "Polygamma":
        a, x = rng.integers(0, 8, n).astype(np.float64), rng.uniform(0.1, 30.0, n)
    elif op == "Zeta":
        a, x = rng.uniform(1.01, 30.0, n), rng.uniform(0.01, 40.0, n)
    else:
        a = rng.gamma(1.0, 4.0, n) + 0.05
        x = a * rng.gamma(2.0, 0.5, n)
    special = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, np.inf, -np.inf, np.nan, -1.5, 3.0, 100.0])
    b, y = (g.reshape(-1) for g in np.meshgrid(special, special))
    if op in ("RandomGammaGrad", "IgammaGradA"):  # what TF gives there is left over from rounding
        keep = ~((b == 100.0) & (y == 100.0)) & np.isfinite(y)
        b, y = b[keep], y[keep]
    return np.concatenate([a, b]).astype(dtype.np), np.concatenate([x, y]).astype(dtype.np)


@pytest.mark.parametrize("dtype", [DType.F32, pytest.param(DType.F64, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("op", BINARY)
def test_function_of_two(op: str, dtype: DType) -> None:
    first, second = _NAMES.get(op, ("a", "x"))
    ulps, floor = BINARY[op]
    tol = Tolerance(ulps * (1 if dtype == DType.F32 else 8), floor=max(floor, 1e-30))
    a, x = pairs(op, dtype)
    for some in (slice(None), slice(0), slice(5, 6)):
        check_op(op, **{first: a[some], second: x[some]}, modes=["dynamic"], tol=tol)


def test_neighbours_do_not_matter() -> None:
    """An element gives the same bits alone and beside one that takes the loop longer."""
    check_op("Igamma", a=np.array([2.0], np.float32), x=np.array([1.5], np.float32), modes=["dynamic"], tol=Tolerance(16.0))
    check_op("Igamma", a=np.array([2.0, 90.0], np.float32), x=np.array([1.5, 88.0], np.float32), modes=["dynamic"], tol=Tolerance(128.0))


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)
def test_next_after(dtype: DType) -> None:
    values = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 1e30, -1e30, np.nan, 3.25, 1e-3], dtype.np)
    x, y = (g.reshape(-1) for g in np.meshgrid(values, np.append(values, [np.inf, -np.inf]).astype(dtype.np)))
    check_op("NextAfter", x1=x, x2=y, modes=["dynamic"], tol=Tolerance(0.0))
    for a, b in (((3, 1), (1, 4)), ((0, 3), (3,)), ((), (2,))):
        left, right = np.full(a, 1.5).astype(dtype.np), np.full(b, 2.0).astype(dtype.np)
        check_op("NextAfter", x1=left, x2=right, tol=Tolerance(0.0))


@pytest.mark.parametrize("dtype", [DType.F32, pytest.param(DType.F64, marks=pytest.mark.slow)], ids=str)
def test_betainc(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.gamma(1.0, 4.0, 1000) + 0.05, rng.gamma(1.0, 4.0, 1000) + 0.05
    special = np.array([0.0, 1.0, -1.0, 0.5, 2.0, np.inf, np.nan, 3.0, 100.0])
    grid = [g.reshape(-1) for g in np.meshgrid(special, special, special)]
    columns = [np.concatenate(c).astype(dtype.np) for c in zip((a, b, rng.uniform(0, 1, 1000)), grid, strict=True)]
    tol = Tolerance(256.0 if dtype == DType.F32 else 2048.0, floor=1.0)
    check_op("Betainc", **dict(zip("abx", columns, strict=True)), modes=["dynamic"], tol=tol)


def test_betainc_shapes() -> None:
    for a, b, x in (((), (3,), (3,)), ((2,), (3,), ()), ((2, 3), (2, 3), ())):
        given = {name: np.full(shape, 0.5, np.float32) for name, shape in zip("abx", (a, b, x), strict=True)}
        check_op("Betainc", **given, modes=["dynamic"], tol=Tolerance(64.0))


def test_every_function_is_tested() -> None:
    assert UNARY.keys() == _UNARY.keys() | _UNARY_HALF.keys()
    assert BINARY.keys() == _BINARY_LOOPS.keys()
