"""The bounds of docs/numerics.md: every function, compiled, against the exact result.

f16 and bf16 go through all of their numbers, f32 through a dense sample of all bit patterns and of the range where most models live. The
fast part has one instruction set and the smaller sample.
"""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import scipy.special as sp

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function
from disc_tf.ir.types import DType, TensorType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.lower import lower_nodes
from disc_tf.lowering.math_unary import _FLOAT_OPS
from disc_tf.lowering.node import NodeView
from disc_tf.testing.native_case import TARGETS, compile_function, load, run_executable

_SELU_SCALE, _SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
#: TF op -> its function in f64
EXACT = {
    "Exp": np.exp, "Expm1": np.expm1, "Log": np.log, "Log1p": np.log1p, "Sqrt": np.sqrt, "Rsqrt": lambda x: 1 / np.sqrt(x),
    "Sin": np.sin, "Cos": np.cos, "Tan": np.tan, "Tanh": np.tanh, "Sigmoid": sp.expit, "Erf": sp.erf, "Erfc": sp.erfc,
    "Asin": np.arcsin, "Acos": np.arccos, "Atan": np.arctan, "Sinh": np.sinh, "Cosh": np.cosh, "Asinh": np.arcsinh,
    "Acosh": np.arccosh, "Atanh": np.arctanh, "Lgamma": lambda x: np.where(np.isinf(x), np.inf, sp.gammaln(x)),
    "Digamma": lambda x: np.where((x <= 0) & (np.floor(x) == x), np.nan, sp.psi(x)), "Reciprocal": lambda x: 1 / x,
    "Square": np.square, "Softplus": lambda x: np.logaddexp(0.0, x), "Softsign": lambda x: x / (1 + np.abs(x)),
    "Elu": lambda x: np.where(x < 0, np.expm1(x), x),
    "Selu": lambda x: _SELU_SCALE * np.where(x < 0, _SELU_ALPHA * np.expm1(x), x),
}  # fmt: skip
_GROUPS = [list(EXACT)[k : k + 10] for k in range(0, len(EXACT), 10)]
#: exact whatever the argument, or compared bit for bit elsewhere
_OTHERS = {"Floor", "Ceil", "Rint", "Round", "IsFinite"}


def budgets() -> dict[str, tuple[float, float]]:
    """TF op -> (f32, f16 and bf16) of the page's table."""
    page = (Path(__file__).parents[2] / "docs" / "numerics.md").read_text()
    rows = re.findall(r"^\| ([A-Z][^|]*) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    return {op: (float(wide), float(narrow)) for names, wide, narrow in rows for op in names.split("(")[0].split()}


def numbers(dtype: DType, count: int) -> np.ndarray:
    """All numbers of a 16-bit type; of f32 a sample of all bit patterns, and denser between -20 and 20. Without denormals but f16's."""
    if dtype.bits == 16:
        x = np.arange(1 << 16, dtype=np.uint16).view(dtype.np)
    else:
        rng = np.random.default_rng(count)
        bits = rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
        top = np.finfo(np.float32).max
        edges = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, top, -top, np.finfo(np.float32).tiny], np.float32)
        near = np.linspace(88.0, 90.0, 257, dtype=np.float32)  # where exponentials overflow
        x = np.concatenate([bits, *(rng.uniform(-r, r, count // 4).astype(np.float32) for r in (1.0, 20.0)), near, -near, edges])
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
        return x if dtype == DType.F16 else x[~((np.abs(wide) < float(ml_dtypes.finfo(dtype.np).tiny)) & (wide != 0))]


def compiled(ops: list[str], dtype: DType, target: str, x: np.ndarray) -> list[np.ndarray]:
    """All functions of one argument, in one cluster."""
    fn = Function("main")
    builder = Builder(fn.body, fn.env)
    ctx = LoweringContext(builder, fn.env)
    argument = fn.add_arg(TensorType.of(dtype, ["n"]), ArgInfo("x"))
    nodes = [NodeView.from_dict({"name": op, "op": op, "inputs": ["x"], "attrs": {"T": dtype}}) for op in ops]
    found = lower_nodes(ctx, nodes, {("x", 0): argument})
    builder.return_([found[(op, 0)] for op in ops])
    fn.result_names = list(ops)
    executable = load(compile_function(fn, target).executable, target)
    try:
        results = run_executable(executable, [x])
    finally:
        executable.close()
    assert isinstance(results, list)
    return results


def errors(exact: np.ndarray, got: np.ndarray, dtype: DType) -> np.ndarray:
    """In units of the last place of the exact result; infinite where only one is NaN or a finite one became infinite."""
    info = ml_dtypes.finfo(dtype.np)
    tiny, top, eps = (float(v) for v in (info.tiny, info.max, info.eps))
    unit = 2.0 ** np.floor(np.log2(np.clip(np.abs(exact), tiny, top))) * eps
    error = np.abs(got - exact) / unit
    rounded = exact.astype(np.float32).astype(dtype.np).astype(np.float64)  # an overflow may round down to the greatest number
    same = (np.isnan(rounded) & np.isnan(got)) | (rounded == got)
    if dtype != DType.F16:  # flushed
        same |= (np.abs(rounded) <= tiny) & (np.abs(got) <= tiny)
    return np.where(same, np.where(error <= 0.5, error, 0.0), np.where(np.isnan(got) | np.isnan(rounded), np.inf, error))


def check(ops: list[str], dtype: DType, target: str, count: int = 0) -> None:
    x = numbers(dtype, count)
    allowed, wide = budgets(), x.astype(np.float64)
    with np.errstate(all="ignore"):
        for op, result in zip(ops, compiled(ops, dtype, target, x), strict=True):
            exact = np.asarray(EXACT[op](wide), np.float64)
            error = errors(exact, result.astype(np.float64), dtype)
            worst = int(np.argmax(error))
            limit = allowed[op][0 if dtype == DType.F32 else 1]
            assert error[worst] <= limit, f"{op}({x[worst]!r}) is {exact[worst]!r}, ours {result[worst]!r}: {error[worst]} ULP"


def test_every_function_has_a_bound() -> None:
    assert budgets().keys() == EXACT.keys()
    assert _FLOAT_OPS.keys() <= EXACT.keys() | _OTHERS


@pytest.mark.parametrize("ops", _GROUPS, ids=lambda ops: ops[0])
def test_f32(ops: list[str]) -> None:
    check(ops, DType.F32, TARGETS[0], 1 << 14)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=str)
def test_16_bits(dtype: DType) -> None:
    check(["Exp", "Tanh", "Erf", "Softplus"], dtype, TARGETS[0])


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("ops", _GROUPS, ids=lambda ops: ops[0])
def test_f32_dense(ops: list[str], target: str) -> None:
    check(ops, DType.F32, target, 1 << 21)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=str)
@pytest.mark.parametrize("ops", _GROUPS, ids=lambda ops: ops[0])
def test_every_16_bit_number(ops: list[str], dtype: DType, target: str) -> None:
    check(ops, dtype, target)
