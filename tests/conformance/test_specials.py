"""NaN, infinities, signed zeros, denormals and extreme integers through compiled code, against TensorFlow.

The tables of `test_lowered_ops` have special values for elementwise ops. Here they meet what combines elements: every lane position and the
tail of a vector loop, row and column reductions, scans, products, and the rounding of narrow floats.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from disc_tf.compiler import compile_module
from disc_tf.ir.types import DType
from disc_tf.testing.graph_case import case, spec
from disc_tf.testing.native_case import TARGETS, load, natively, run_executable
from disc_tf.testing.tf_case import Tolerance, array, check_op, specials, tensorflow

FLOATS = [DType.F32, DType.F64, DType.F16, DType.BF16]
INTS = [d for d in DType if d.is_int]


def tiny(dtype: DType) -> np.ndarray:
    """Denormals, the smallest normal and its neighbours, both signs."""
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.bytes]
    exponent = {DType.F16: 10, DType.BF16: 7, DType.F32: 23, DType.F64: 52}[dtype]
    small = np.array([1, 2, 3, (1 << exponent) - 1, 1 << exponent, (1 << exponent) + 1, 2 << exponent], bits)
    return np.concatenate([small, small | bits(1 << (8 * dtype.bytes - 1))]).view(dtype.np)


def everywhere(dtype: DType) -> np.ndarray:
    """[n, 37]: each special value at every position of a row that ends in a part of a vector."""
    rows = []
    for value in specials(dtype):
        for at in (0, 1, 15, 16, 35, 36):
            row = array((37,), dtype, at, -2, 2)
            row[at] = value
            rows.append(row)
    return np.stack(rows)


@pytest.fixture(autouse=True, params=[TARGETS[0], *(pytest.param(t, marks=pytest.mark.slow) for t in TARGETS[1:])])
def _compiled(request: pytest.FixtureRequest):
    with natively(request.param):
        yield


@pytest.mark.parametrize("dtype", [*FLOATS, DType.I32, DType.I64, DType.U8, DType.I8], ids=str)
@pytest.mark.parametrize("op", ["Max", "Min"])
def test_extremes(op: str, dtype: DType) -> None:
    x = everywhere(dtype)
    check_op(op, input=x, axis=np.array([1], np.int32), modes=["dynamic"], tol=Tolerance(0.0))
    check_op(op, input=np.ascontiguousarray(x.T), axis=np.array([0], np.int32), modes=["dynamic"], tol=Tolerance(0.0))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", ["Sum", "Mean", "Prod"])
def test_sums(op: str, dtype: DType) -> None:
    """Rows whose sum is NaN or infinite in any order; overflow by order is left out."""
    x = everywhere(dtype)
    x = x[~np.isfinite(x.astype(np.float64)).all(axis=1)]
    tol = Tolerance(64.0, relative_floor=4.0)
    check_op(op, input=x, axis=np.array([1], np.int32), modes=["dynamic"], tol=tol)
    check_op(op, input=np.ascontiguousarray(x.T), axis=np.array([0], np.int32), modes=["dynamic"], tol=tol)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_sums_wrap(dtype: DType) -> None:
    x = everywhere(dtype)
    check_op("Sum", input=x, axis=np.array([1], np.int32), modes=["dynamic"])
    check_op("Cumsum", x=x, axis=np.array(0, np.int32), const=["axis"], modes=["dynamic"])
    check_op("Cumprod", x=x, axis=np.array(1, np.int32), const=["axis"], modes=["dynamic"])


@pytest.mark.parametrize("dtype", [*FLOATS, DType.I32, DType.U8], ids=str)
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_positions_of_extremes(op: str, dtype: DType) -> None:
    """NaN is ignored, as in TF; the first of equal ones, so -0 after 0 and 0 after -0."""
    x = everywhere(dtype)
    check_op(op, input=x, dimension=np.array(1, np.int32), modes=["dynamic"])
    check_op(op, input=np.ascontiguousarray(x.T), dimension=np.array(0, np.int32), modes=["dynamic"])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax(dtype: DType) -> None:
    x = everywhere(dtype)
    check_op("Softmax", logits=x, modes=["dynamic"], tol=Tolerance(16.0, relative_floor=1.0))
    full = np.full((3, 37), -np.inf).astype(dtype.np)
    check_op("Softmax", logits=full, modes=["dynamic"])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scans(dtype: DType) -> None:
    x = everywhere(dtype)
    finite = np.abs(np.nan_to_num(x.astype(np.float64))).max(axis=1) < 1e3  # sums near the greatest number depend on their order
    for kind in ("Cumsum", "Cumprod"):
        check_op(kind, x=x[finite], axis=np.array(1, np.int32), const=["axis"], modes=["dynamic"], tol=Tolerance(64.0, relative_floor=4.0))


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=str)
def test_products(dtype: DType) -> None:
    x = everywhere(dtype)
    x = x[np.abs(np.nan_to_num(x.astype(np.float64), posinf=0, neginf=0)).max(axis=1) < 1e3]
    y = array((37, 5), dtype, 1, 0.5, 1.5)  # no zero: 0 * inf in one order is 0 * inf in all
    check_op("MatMul", a=x, b=y, modes=["dynamic"], tol=Tolerance(64.0, relative_floor=4.0))


_TINY_UNARY = [
    "Neg", "Abs", "Square", "Sqrt", "Rsqrt", "Reciprocal", "Exp", "Log", "Tanh", "Sigmoid", "Erf", "Floor", "Ceil", "Sign", "Relu",
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", _TINY_UNARY)
def test_tiny_unary(op: str, dtype: DType) -> None:
    """Denormals (compared as zeros: TF flushes them) and the smallest normal numbers."""
    x = tiny(dtype)
    if op in ("Sign", "Ceil", "Floor", "Reciprocal", "Rsqrt", "Log", "Sqrt"):
        x = x[np.abs(x.astype(np.float64)) >= float(2 * np.abs(x[4].astype(np.float64)))]  # what a denormal is decides the answer
    check_op(op, **{"features" if op == "Relu" else "x": x}, modes=["dynamic"], tol=Tolerance(8.0))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", ["AddV2", "Sub", "Mul", "Maximum", "Minimum"])
def test_tiny_binary(op: str, dtype: DType) -> None:
    x, y = (g.reshape(-1) for g in np.meshgrid(tiny(dtype), np.concatenate([tiny(dtype), specials(dtype)])))
    check_op(op, x=x, y=y, modes=["dynamic"], tol=Tolerance(0.0))


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("target", FLOATS, ids=str)
def test_tiny_casts(source: DType, target: DType) -> None:
    check_op("Cast", x=tiny(source), DstT=tensorflow().as_dtype(target.tf_enum), modes=["dynamic"])


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_extreme_integers(dtype: DType) -> None:
    x, y = (g.reshape(-1) for g in np.meshgrid(specials(dtype), specials(dtype)))
    for op in ("AddV2", "Sub", "Mul", "Maximum", "Minimum", "Less", "GreaterEqual", "Equal"):
        check_op(op, x=x, y=y, modes=["dynamic"])
    keep = (y != 0) & ~((y.astype(np.float64) == -1) & (x == np.iinfo(dtype.np).min))
    for op in ("FloorDiv", "FloorMod", "TruncateDiv", "TruncateMod"):
        if op == "TruncateMod" and dtype not in (DType.I32, DType.I64):
            continue  # no CPU kernel
        check_op(op, x=x[keep], y=y[keep], modes=["dynamic"])
    for op in ("Abs", "Neg", "Sign"):
        if dtype.is_signed:
            check_op(op, x=specials(dtype), modes=["dynamic"])


# -- activations as models spell them -----------------------------------------------------------------------------

_ACTIVATIONS = {
    "gelu_tanh": lambda tf, x: tf.nn.gelu(x, approximate=True),
    "gelu_erf": lambda tf, x: tf.nn.gelu(x, approximate=False),
    "gelu_erfc": lambda tf, x: 0.5 * x * tf.math.erfc(-x * tf.cast(np.sqrt(0.5), x.dtype)),
    "silu": lambda tf, x: x * tf.sigmoid(x),
    "softplus": lambda tf, x: tf.nn.softplus(x),
    "selu": lambda tf, x: tf.nn.selu(x),
    "elu": lambda tf, x: tf.nn.elu(x),
    "mish": lambda tf, x: x * tf.tanh(tf.nn.softplus(x)),
    "tanh_shrink": lambda tf, x: x - tf.tanh(x),
    "log_sigmoid": lambda tf, x: -tf.nn.softplus(-x),
    "hard_sigmoid": lambda tf, x: tf.nn.relu6(x + 3.0) * 0.16666667,
    "tanh": lambda tf, x: tf.tanh(x),
    "erf": lambda tf, x: tf.math.erf(x),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations_far_out(dtype: DType, request: pytest.FixtureRequest) -> None:
    """Where they saturate their results are exact: what a limit that is missed by one unit in the last place is multiplied by is large.
    Signs of zeros count."""
    tf = tensorflow()
    target = request.node.callspec.params["_compiled"]
    x = np.array([1e4, -1e4, 100, -100, 30, -30, np.inf, -np.inf, 0.0, -0.0, np.nan], dtype.np)

    def fn(x: Any) -> Any:
        return [activation(tf, x) for activation in _ACTIVATIONS.values()]

    c = case(fn, spec(tf.as_dtype(dtype.tf_enum).name, None))
    expected: Any = c.tf([x])
    with load(compile_module(c.imported.module, [target]).executable, target) as executable:
        found: Any = run_executable(executable, c.feeds([x]))
    eps = float(ml_dtypes.finfo(dtype.np).eps)
    for name, e, position in zip(_ACTIVATIONS, expected, c.outputs, strict=True):
        wide, f = e.astype(np.float64), found[position].astype(np.float64)
        if name == "erf" and dtype == DType.F64:  # TensorFlow's vectors give NaN, its scalars 1
            wide = np.where(np.isinf(x), np.sign(x), wide)
        np.testing.assert_allclose(f, wide, rtol=4 * eps, atol=float(ml_dtypes.finfo(dtype.np).tiny), err_msg=name)
        zero = wide == 0
        np.testing.assert_array_equal(np.signbit(f[zero]), np.signbit(wide[zero]), err_msg=f"{name}: {x[zero]}")
