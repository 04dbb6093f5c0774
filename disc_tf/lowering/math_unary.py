"""Elementwise unary math. TF kernels: one function per element, 16-bit floats computed in f32 and rounded once."""

from __future__ import annotations

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.registry import FLOATS, INTS, NUMBERS, lowering

#: TF op -> IR op of the same meaning, for floats
_FLOAT_OPS = {
    "Exp": "exponential",
    "Expm1": "exponential_minus_one",
    "Log": "log",
    "Log1p": "log_plus_one",
    "Sqrt": "sqrt",
    "Rsqrt": "rsqrt",
    "Sin": "sine",
    "Cos": "cosine",
    "Tan": "tan",
    "Tanh": "tanh",
    "Sigmoid": "logistic",
    "Floor": "floor",
    "Ceil": "ceil",
    "Rint": "round_nearest_even",
    "Round": "round_nearest_even",  # floats only: TF's kernel gives 0 for integers
    "IsFinite": "is_finite",
    "Erf": "erf",
    "Erfc": "erfc",
    "Asin": "asin",
    "Acos": "acos",
    "Atan": "atan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Asinh": "asinh",
    "Acosh": "acosh",
    "Atanh": "atanh",
    "Lgamma": "lgamma",
    "Digamma": "digamma",
}


@lowering(*_FLOAT_OPS, dtypes=FLOATS)
def float_unary(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """One IR op."""
    return getattr(ctx.b, _FLOAT_OPS[node.op])(x)


@lowering("Abs", dtypes=NUMBERS)
def abs_(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """The smallest signed integer stays as it is."""
    return x if x.dtype.kind == "u" else ctx.b.abs(x)


@lowering("Neg", dtypes=NUMBERS)
def neg(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """Integers wrap."""
    if x.dtype.kind == "u":
        return ctx.b.subtract(ctx.splat(0, x), x)
    return ctx.b.negate(x)


@lowering("Sign", dtypes=NUMBERS)
def sign(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """NaN gives NaN."""
    if x.dtype.kind == "u":
        return ctx.b.minimum(x, ctx.splat(1, x))
    return ctx.b.sign(x)


@lowering("Square", dtypes=NUMBERS)
def square(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """Integers wrap."""
    return ctx.b.multiply(x, x)


@lowering("Reciprocal", "Inv", dtypes=FLOATS)
def reciprocal(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """``1 / x``."""
    return ctx.b.divide(ctx.splat(1, x), x)


@lowering("IsNan", dtypes=FLOATS)
def is_nan(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """A NaN differs from itself."""
    return ctx.b.compare(x, x, "NE")


@lowering("IsInf", dtypes=FLOATS)
def is_inf(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """Either infinity."""
    return ctx.b.compare(ctx.b.abs(x), ctx.splat(np.inf, x), "EQ")


@lowering("Invert", dtypes=INTS)
def invert(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """Bitwise complement."""
    return ctx.b.not_(x)


@lowering("LogicalNot")
def logical_not(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """Bool only (TF has no other)."""
    return ctx.b.not_(x)


@lowering("PopulationCount", dtypes=INTS)
def population_count(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """Number of bits set, as u8."""
    return ctx.b.convert(ctx.b.popcnt(x), DType.U8) if x.dtype != DType.U8 else ctx.b.popcnt(x)
