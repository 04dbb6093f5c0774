"""Elementwise unary ops and activations against TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.lowering import all_rules
from disc_tf.lowering.math_unary import _FLOAT_OPS
from disc_tf.lowering.registry import INTS, RULES
from disc_tf.testing.tf_case import Tolerance, array, check_op, specials

FLOATS = [DType.F32, DType.F64, DType.F16, DType.BF16]
SHAPES = [(), (0,), (1,), (7, 3), (2, 0, 3), (5, 1, 33)]
#: ops whose Eigen kernels are less exact than 4 ulp, with what was measured in TF 2.21
LOOSE = {"Lgamma": 64.0, "Digamma": 64.0, "Erfc": 32.0, "Asinh": 8.0, "Acosh": 8.0, "Atanh": 8.0, "Tan": 16.0, "Sinh": 8.0}
_DOMAIN = {
    "Acosh": (1.0, 9.0), "Asin": (-1.0, 1.0), "Acos": (-1.0, 1.0), "Atanh": (-0.9, 0.9), "Log": (0.01, 9.0), "Digamma": (0.5, 9.0),
}  # fmt: skip
_FEATURES = {"Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Softplus", "Softsign"}


def _name(op: str) -> str:
    return "features" if op in _FEATURES else "x"


#: TF has no CPU kernel for these
_NO_KERNEL = {("Rint", "f16"), ("Rint", "bf16"), ("Lgamma", "bf16"), ("Digamma", "bf16")}
_CASES = [(op, d) for op in sorted(_FLOAT_OPS) for d in FLOATS if (op, str(d)) not in _NO_KERNEL]


@pytest.mark.parametrize(("op", "dtype"), _CASES, ids=str)
def test_float_unary(op: str, dtype: DType) -> None:
    low, high = _DOMAIN.get(op, (-4.0, 4.0))
    tol = Tolerance(LOOSE.get(op, 4.0), floor=1.0 if op in ("Lgamma", "Digamma", "Sin", "Cos") else 1e-30)
    for i, shape in enumerate(SHAPES):
        check_op(op, x=array(shape, dtype, i, low, high), tol=tol)


_SPECIAL_OPS = [
    "Abs", "Neg", "Sign", "Exp", "Expm1", "Log", "Log1p", "Sqrt", "Rsqrt", "Square", "Reciprocal", "Tanh", "Sigmoid", "Floor", "Ceil",
    "Round", "IsNan", "IsInf", "IsFinite", "Erf", "Atan", "Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Softplus", "Softsign",
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", _SPECIAL_OPS)
def test_special_values(op: str, dtype: DType) -> None:
    x = specials(dtype)
    if op == "Erf" and dtype == DType.F64:
        x = x[~(np.abs(x) > 1e3)]  # TF's f64 kernel overflows to NaN where erf is 1
    check_op(op, **{_name(op): x}, modes=["dynamic"], tol=_tolerance(op))


def _tolerance(op: str) -> Tolerance:
    """TF computes elu as exp(x) - 1, which loses what is small against 1; ours does not."""
    return Tolerance(4.0, floor=1.0 if op in ("Elu", "Selu") else 1e-30)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", ["Square", "Reciprocal", "IsNan", "IsInf", "Round", *sorted(_FEATURES)])
def test_other_float(op: str, dtype: DType) -> None:
    for i, shape in enumerate(SHAPES):
        check_op(op, **{_name(op): array(shape, dtype, i, -9.0, 9.0)}, tol=_tolerance(op))


@pytest.mark.parametrize("alpha", [0.2, 0.0, 1.5, -0.5])
def test_leaky_relu_alpha(alpha: float) -> None:
    check_op("LeakyRelu", features=specials(DType.F32), alpha=alpha)


_INT_OPS = {
    "Abs": "i8 i16 i32 i64", "Neg": "i8 i16 i32 i64", "Sign": "i8 i16 i32 i64", "Square": "i8 i16 i32 i64 u8 u16 u32 u64",
    "Invert": "i8 i16 i32 i64 u8 u16 u32 u64", "PopulationCount": "i8 i16 i32 i64 u8 u16 u32 u64",
    "Relu": "i8 i16 i32 i64 u8 u16 u32 u64", "Relu6": "i8 i16 i32 i64 u8 u16 u32 u64",
}  # fmt: skip


@pytest.mark.parametrize(("op", "dtype"), [(op, d) for op, names in _INT_OPS.items() for d in names.split()])
def test_int_unary(op: str, dtype: str) -> None:
    check_op(op, **{_name(op): specials(DType.from_name(dtype))})
    check_op(op, **{_name(op): array((3, 0, 2), dtype)})


def test_logical_not() -> None:
    check_op("LogicalNot", x=array((2, 3), "bool"))


def test_every_int_type_is_tested() -> None:
    assert {DType.from_name(d) for d in _INT_OPS["Invert"].split()} == set(INTS)


def test_registry_is_complete() -> None:
    """The issue's list of unary ops."""
    all_rules()
    wanted = """Abs Neg Sign Exp Expm1 Log Log1p Sqrt Rsqrt Square Reciprocal Sin Cos Tan Asin Acos Atan Atan2 Sinh Cosh Tanh Asinh
        Acosh Atanh Erf Erfc Sigmoid Softplus Softsign Relu Relu6 LeakyRelu Elu Selu Floor Ceil Round Rint IsNan IsInf IsFinite
        LogicalNot Invert Add AddV2 AddN Sub Mul MulNoNan Div DivNoNan RealDiv FloorDiv TruncateDiv FloorMod Mod Pow Maximum Minimum
        SquaredDifference Xdivy Xlogy Less LessEqual Greater GreaterEqual Equal NotEqual LogicalAnd LogicalOr BitwiseAnd BitwiseOr
        BitwiseXor LeftShift RightShift ApproximateEqual Cast Select SelectV2 ClipByValue Sum Mean Prod Max Min All Any ArgMax ArgMin
        EuclideanNorm Softmax LogSoftmax L2Loss MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum BiasAdd FusedBatchNorm
        FusedBatchNormV2 FusedBatchNormV3 _FusedMatMul _FusedBatchMatMulV2 Const Identity IdentityN StopGradient Snapshot EnsureShape
        Assert CheckNumerics NoOp"""
    missing = [op for op in wanted.split() if op not in RULES]
    assert not missing
    assert np.all([rule.family for rule in RULES.values()])
