"""Accuracy (ULP sweeps) and special values of the vector math, f32 and f64, W = 4, 8 and 16 bytes lanes."""

import ctypes
import math

import mpmath
import numpy as np
import pytest

from disc_tf.codegen.compile import compile_image
from disc_tf.codegen.cpu import math as vm
from disc_tf.codegen.cpu import math_special as vs
from disc_tf.codegen.cpu import math_trig as vt
from disc_tf.codegen.cpu.target import V3
from disc_tf.codegen.llvm import F32, F64, I64, PTR, FnBuilder, ModuleText, vec

from .kernel_cases import runnable_targets
from .math_kernels import FLUSHED, PLAIN, load_image, set_mode

TARGETS = runnable_targets()
UNARY = {
    "exp": vm.exp, "expm1": vm.expm1, "log": vm.log, "log1p": vm.log1p, "tanh": vm.tanh, "logistic": vm.logistic,
    "sinh": vm.sinh, "cosh": vm.cosh, "asinh": vm.asinh, "acosh": vm.acosh, "atanh": vm.atanh, "sin": vt.sin,
    "cos": vt.cos, "tan": vt.tan, "atan": vt.atan, "asin": vt.asin, "acos": vt.acos, "erf": vs.erf, "erfc": vs.erfc,
    "rsqrt": vs.rsqrt, "cbrt": vs.cbrt, "lgamma": vs.lgamma, "digamma": vs.digamma, "round": vs.round_half_away,
}
BINARY = {"power": vs.power, "remainder": vs.remainder, "atan2": vt.atan2}
ELEMS = {np.dtype(np.float32): F32, np.dtype(np.float64): F64}
_LIBS: dict = {}


def unit(target, name, fn, elem):
    """o[i] = fn(x[i], y[i]) over n elements, a multiple of the width."""
    w = target.width(elem.bytes)
    b = FnBuilder(f"{name}_{elem.suffix}", [("x", PTR), ("y", PTR), ("o", PTR), ("n", I64)], fma=target.fma,
                  attrs=target.fn_attrs)
    x, y, o, n = b.params
    ty = vec(elem, w)

    def body(i, _):
        args = [b.load(ty, b.gep(x, i, elem))]
        if name in BINARY:
            args.append(b.load(ty, b.gep(y, i, elem)))
        b.store(fn(b, *args), b.gep(o, i, elem))

    b.loop(0, n, w, [], body)
    b.ret()
    return b


def kernels(target):
    """All functions of both types in one image: compiled once per target."""
    if target.name not in _LIBS:
        module = ModuleText()
        units = [unit(target, name, fn, elem) for elem in (F32, F64) for name, fn in {**UNARY, **BINARY}.items()]
        for u in units:
            module.add(u)
        _LIBS[target.name] = load_image(compile_image(module.text(), target, [u.name for u in units]))
    return _LIBS[target.name]


def run(target, name, x, y=None):
    x = np.ascontiguousarray(x)
    pad = -len(x) % 16
    xs = np.concatenate([x, np.ones(pad, x.dtype)])
    ys = xs if y is None else np.concatenate([np.ascontiguousarray(y), np.ones(pad, x.dtype)])
    out = np.empty_like(xs)
    fn = getattr(kernels(target), f"{name}_{ELEMS[x.dtype].suffix}")
    fn(*(ctypes.c_void_p(a.ctypes.data) for a in (xs, ys, out)), ctypes.c_int64(len(xs)))
    return out[:len(x)]


def sweep(dtype, lo, hi, count):
    """Numbers of both signs spread evenly over the representable values between lo and hi (positive bounds)."""
    it = np.int32 if dtype == np.float32 else np.int64
    a, b = (int(np.array(v, dtype).view(it)) for v in (lo, hi))
    rng = np.random.default_rng(7)
    bits = rng.integers(a, b, size=count, endpoint=True).astype(it)
    v = bits.view(dtype)
    return np.concatenate([v, -v])


REFERENCE = {
    "exp": mpmath.exp, "expm1": mpmath.expm1, "log": mpmath.log, "log1p": mpmath.log1p, "tanh": mpmath.tanh,
    "logistic": lambda x: 1 / (1 + mpmath.exp(-x)), "sinh": mpmath.sinh, "cosh": mpmath.cosh, "asinh": mpmath.asinh,
    "acosh": mpmath.acosh, "atanh": mpmath.atanh, "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan,
    "atan": mpmath.atan, "asin": mpmath.asin, "acos": mpmath.acos, "erf": mpmath.erf, "erfc": mpmath.erfc,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x), "cbrt": mpmath.cbrt,
    "lgamma": lambda x: mpmath.log(abs(mpmath.gamma(x))), "digamma": mpmath.digamma,
}


def reference(name, *args, dtype):
    with mpmath.workprec(200 if dtype == np.float64 else 120):
        out = []
        for row in zip(*args, strict=True):
            v = REFERENCE[name](*(mpmath.mpf(float(a)) for a in row))
            out.append(v)
        return out


def ulps(got, want, dtype):
    """Worst distance in units of the last place of the exact value; both flushed to zero below the normals."""
    tiny = np.finfo(dtype).tiny
    bits = np.finfo(dtype).nmant
    limit = mpmath.mpf(float(np.finfo(dtype).max)) * (1 + mpmath.mpf(2) ** -(bits + 2))
    worst, at = 0.0, None
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        if abs(w) < tiny:
            if abs(g) > tiny:
                return math.inf, i
            continue
        if abs(w) > limit:
            if not (math.isinf(g) and (g > 0) == (w > 0)):
                return math.inf, i
            continue
        if not math.isfinite(g):
            return math.inf, i
        ulp = mpmath.mpf(2) ** (mpmath.frexp(w)[1] - 1 - bits)
        d = float(abs(mpmath.mpf(float(g)) - w) / ulp)
        if d > worst:
            worst, at = d, i
    return worst, at


# name: (f32 range of |x|, f64 range, signs, f32 ULP budget, f64 ULP budget)
CASES = {
    "exp": (1e-30, 89, 746, "both", 2, 2), "expm1": (1e-30, 89, 710, "both", 3, 3), "log": (1.2e-38, 3e38, 1e308, "+", 2, 2),
    "log1p": (1e-30, 3e38, 1e308, "log1p", 2, 2), "tanh": (1e-30, 20, 30, "both", 4, 5),
    "logistic": (1e-20, 87, 708, "both", 4, 5), "sinh": (1e-30, 89, 710, "both", 4, 5), "cosh": (1e-30, 89, 710, "both", 4, 5),
    "asinh": (1e-30, 3e38, 1e308, "both", 4, 5), "acosh": (1.0, 3e38, 1e308, "+", 4, 4),
    "atanh": (1e-30, 0.9999999, 0.9999999, "both", 4, 5), "sin": (1e-30, 3.4e38, 1e308, "both", 2, 2),
    "cos": (1e-30, 3.4e38, 1e308, "both", 2, 2), "tan": (1e-30, 3.4e38, 1e308, "both", 4, 5),
    "atan": (1e-30, 3e38, 1e308, "both", 3, 3), "asin": (1e-30, 1, 1, "both", 3, 3), "acos": (1e-30, 1, 1, "both", 3, 3),
    "erf": (1e-30, 10, 10, "both", 3, 3), "erfc": (1e-20, 9.9, 26.5, "both", 4, 5), "rsqrt": (1.2e-38, 3e38, 1e308, "+", 2, 2),
    "cbrt": (1.2e-38, 3e38, 1e308, "+", 2, 2), "lgamma": (1e-5, 1e5, 1e5, "+", 2, None), "digamma": (1e-5, 1e5, 1e5, "+", 2, None),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", CASES)
def test_ulp(name, dtype):
    low, high32, high64, signs, budget32, budget64 = CASES[name]
    high = high32 if dtype == np.float32 else high64
    x = sweep(dtype, low, high, 300)
    # And where the values of real models are.
    x = np.concatenate([x, np.random.default_rng(1).uniform(-min(high, 4), min(high, 4), 300).astype(dtype)])
    if signs == "+":
        x = np.maximum(np.abs(x), dtype(low))
    if signs == "log1p":
        x = x[x > -1]
    want = reference(name, x, dtype=dtype)
    for target in TARGETS:
        got = run(target, name, x)
        if name in ("lgamma", "digamma") and dtype == np.float64:
            # Absolute accuracy at the zeros of these functions.
            w = np.array([float(v) for v in want])
            np.testing.assert_allclose(got, w, rtol=4e-14, atol=4e-14)
            continue
        worst, at = ulps(got, want, dtype)
        budget = budget32 if dtype == np.float32 else budget64
        assert worst <= budget, f"{target.name}: {worst} ULP at {x[at]!r}: {got[at]!r}"


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sin", "cos", "erf", "erfc", "logistic"])
def test_dense_f32_against_f64(name):
    """A million f32 arguments against numpy / scipy in f64."""
    special = pytest.importorskip("scipy.special")
    fn = {"erf": special.erf, "erfc": special.erfc, "logistic": special.expit}.get(name) or getattr(np, name)
    it = np.linspace(0, 0x7F7FFFFF, 1_000_003).astype(np.int32).view(np.float32)
    it = it[it >= np.finfo(np.float32).tiny]
    x = np.concatenate([it, -it]) if name != "log" else it
    with np.errstate(all="ignore"):
        want = fn(x.astype(np.float64))
    got = run(V3, name, x).astype(np.float64)
    tiny = np.finfo(np.float32).tiny
    ok = (np.abs(want) >= tiny) & (np.abs(want) <= np.finfo(np.float32).max)
    ulp = np.spacing(np.abs(want[ok]).astype(np.float32)).astype(np.float64)
    worst = np.max(np.abs(got[ok] - want[ok]) / ulp)
    assert worst <= (5 if name == "erfc" else 4), f"{worst} ULP at {x[ok][np.argmax(np.abs(got[ok] - want[ok]) / ulp)]}"
    assert np.all(np.abs(got[np.abs(want) < tiny]) <= tiny)
    over = np.abs(want) > np.finfo(np.float32).max * (1 + 2.0**-25)
    assert np.all(np.isinf(got[over]))


INF, NAN = math.inf, math.nan
SPECIAL = {
    "exp": [(0.0, 1), (-0.0, 1), (INF, INF), (-INF, 0.0), (NAN, NAN), (1e30, INF), (-1e30, 0)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1), (NAN, NAN)],
    "log": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (-1.0, NAN), (-INF, NAN), (INF, INF), (NAN, NAN)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (-2.0, NAN), (INF, INF), (-INF, NAN), (NAN, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1), (-INF, -1), (NAN, NAN), (1e30, 1)],
    "logistic": [(0.0, 0.5), (INF, 1), (-INF, 0.0), (NAN, NAN), (1e30, 1), (-1e30, 0)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (NAN, NAN)],
    "cosh": [(0.0, 1), (INF, INF), (-INF, INF), (NAN, NAN)],
    "asinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (NAN, NAN)],
    "acosh": [(1.0, 0.0), (0.5, NAN), (-1e30, NAN), (-3e38, NAN), (-INF, NAN), (INF, INF), (NAN, NAN)],
    "atanh": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (2.0, NAN), (INF, NAN), (NAN, NAN)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "cos": [(0.0, 1), (-0.0, 1), (INF, NAN), (NAN, NAN)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (NAN, NAN)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (INF, math.pi / 2), (-INF, -math.pi / 2), (NAN, NAN)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (1.0, math.pi / 2), (1.5, NAN), (INF, NAN), (NAN, NAN)],
    "acos": [(1.0, 0.0), (-1.0, math.pi), (0.0, math.pi / 2), (1.5, NAN), (-INF, NAN), (NAN, NAN)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1), (-INF, -1), (NAN, NAN)],
    "erfc": [(0.0, 1), (INF, 0.0), (-INF, 2), (NAN, NAN), (1e30, 0.0)],
    "rsqrt": [(0.0, INF), (INF, 0.0), (-1.0, NAN), (NAN, NAN)],
    "cbrt": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (NAN, NAN), (-8.0, -2.0)],
    "lgamma": [(1.0, 0.0), (2.0, 0.0), (0.0, INF), (-3.0, INF), (INF, INF), (-INF, INF), (NAN, NAN), (-0.5, 1.2655121234846454),
               (-2.0**-60, 41.58883083359672), (2.0**-60, 41.58883083359672)],
    "digamma": [(1.0, -0.5772156649015329), (0.0, NAN), (-0.0, NAN), (-2.0, NAN), (INF, INF), (NAN, NAN), (-0.5, 0.03648997397857652),
                (-2.0**-60, 2.0**60), (2.0**-60, -2.0**60)],
    "round": [(0.5, 1), (-0.5, -1), (2.5, 3), (0.49999997, 0), (-0.0, -0.0), (INF, INF), (NAN, NAN), (8388609.0, 8388609.0)],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", ["exp", "expm1", "sinh", "cosh"])
def test_overflow_is_infinite(name, dtype):
    """Dense about the largest argument with a finite result and the clamps behind it."""
    edge = math.log(float(np.finfo(dtype).max)) + (math.log(2.0) if name in ("sinh", "cosh") else 0.0)
    x = np.linspace(edge * (1 + 1e-6), edge + 4.0, 4001).astype(dtype)
    np.testing.assert_array_equal(run(TARGETS[0], name, x), np.full_like(x, INF))


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name, target, dtype):
    x = np.array([a for a, _ in SPECIAL[name]], dtype)
    want = np.array([w for _, w in SPECIAL[name]], dtype)
    got = run(target, name, x)
    rtol = 4 * np.finfo(dtype).eps
    if name in ("lgamma", "digamma"):  # absolute accuracy only, in f64
        rtol = max(rtol, 1e-14)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=0)
    zero = want == 0
    if name != "acos":
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


def _grid(dtype):
    v = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1e10, -1e10, 2.5, -7.25, 1e-20, 1e30, INF, -INF, NAN]
    a = np.array(v, dtype)
    return np.repeat(a, len(a)), np.tile(a, len(a))


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("name,fn", [("power", np.power), ("remainder", np.fmod), ("atan2", np.arctan2)])
def test_binary(name, fn, target, dtype):
    x, y = _grid(dtype)
    rng = np.random.default_rng(3)
    x = np.concatenate([x, rng.standard_normal(2000).astype(dtype) * 10, sweep(dtype, 1e-30, 1e30, 1000)])
    y = np.concatenate([y, rng.standard_normal(2000).astype(dtype) * 10, rng.permutation(sweep(dtype, 1e-30, 1e30, 1000))])
    if name == "power":
        x[-4000:-2000] = np.abs(x[-4000:-2000])
    with np.errstate(all="ignore"):
        want = fn(x.astype(np.float64), y.astype(np.float64)).astype(dtype) if name != "remainder" else fn(x, y)
    got = run(target, name, x, y)
    normal = ~((np.abs(want) < np.finfo(dtype).tiny) & (want != 0))
    rtol = 0 if name == "remainder" else 4 * np.finfo(dtype).eps
    np.testing.assert_allclose(got[normal], want[normal], rtol=rtol, atol=0)
    zero = want == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_remainder_far_apart(target):
    for dtype, lo, hi in ((np.float32, 1.2e-38, 3e38), (np.float64, 1e-307, 1e308)):
        x = sweep(dtype, lo, hi, 2000)
        y = np.random.default_rng(0).permutation(x)
        want = np.fmod(x, y)
        got = run(target, "remainder", x, y)
        normal = np.abs(want) >= np.finfo(dtype).tiny
        np.testing.assert_array_equal(got[normal], want[normal])


# -- under flush-to-zero, as TensorFlow and the runtime run kernels -----------------------------------------------


def run_flushed(target, *args):
    control = set_mode()
    kernels(target)
    control(FLUSHED)
    try:
        return run(target, *args)
    finally:
        control(PLAIN)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values_flushed(name, dtype):
    tiny = float(np.finfo(dtype).smallest_subnormal) * 3
    x = np.array([a for a, _ in SPECIAL[name]] + [tiny], dtype)
    at_zero = {"log": -INF, "rsqrt": INF, "lgamma": INF, "digamma": NAN, "acosh": NAN, "exp": 1, "logistic": 0.5, "cosh": 1,
               "cos": 1, "erfc": 1, "acos": math.pi / 2}
    want = np.array([w for _, w in SPECIAL[name]] + [at_zero.get(name, 0.0)], dtype)
    for target in TARGETS:
        got = run_flushed(target, name, x)
        np.testing.assert_allclose(got, want, rtol=max(4 * np.finfo(dtype).eps, 1e-14 * (name in ("lgamma", "digamma"))),
                                   atol=tiny)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", [*CASES, "power", "remainder", "atan2"])
def test_flushing_changes_normal_results_only_at_the_edge(name, dtype):
    """Where argument and result are normal, FTZ and DAZ cost at most a few ULP."""
    x = np.abs(sweep(dtype, np.finfo(dtype).tiny * 2, 1e30, 2000))
    x = np.concatenate([x, np.random.default_rng(0).uniform(0, 4, 2000).astype(dtype)])
    if name in ("asin", "acos", "atanh"):
        x = np.minimum(x, dtype(0.999))
    y = np.random.default_rng(1).permutation(x)
    for target in TARGETS:
        plain, flushed = run(target, name, x, y), run_flushed(target, name, x, y)
        np.testing.assert_array_equal(np.isnan(flushed), np.isnan(plain))
        plain, flushed = np.nan_to_num(plain, posinf=INF), np.nan_to_num(flushed, posinf=INF)
        normal = np.abs(plain) >= np.finfo(dtype).tiny * 4
        np.testing.assert_allclose(flushed[normal], plain[normal], rtol=4 * np.finfo(dtype).eps, atol=0)
        assert np.all(np.abs(flushed[~normal]) <= np.finfo(dtype).tiny * 4)
