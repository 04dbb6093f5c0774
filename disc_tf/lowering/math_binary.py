"""Elementwise binary math with TF's implicit broadcasting."""

from __future__ import annotations

from collections.abc import Callable

from disc_tf.ir.core import Value
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Status, Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import check_elements, widen
from disc_tf.lowering.registry import ALL, FLOATS, INTS, NUMBERS, SIGNED_INTS, lowering

#: TF op -> IR op, for all numbers; integers wrap, Maximum and Minimum propagate NaN
_NUMBER_OPS = {
    "Add": "add",
    "AddV2": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Maximum": "maximum",
    "Minimum": "minimum",
}


@lowering(*_NUMBER_OPS, dtypes=NUMBERS)
def number_binary(ctx: LoweringContext, node: NodeView, x: Value, y: Value) -> Value:
    """One IR op on the broadcast operands."""
    x, y = ctx.broadcast(x, y)
    return getattr(ctx.b, _NUMBER_OPS[node.op])(x, y)


@lowering("RealDiv", dtypes=FLOATS)
def real_div(ctx: LoweringContext, _node: NodeView, x: Value, y: Value) -> Value:
    """IEEE division."""
    return ctx.b.divide(*ctx.broadcast(x, y))


@lowering("Atan2", dtypes=FLOATS)
def atan2(ctx: LoweringContext, _node: NodeView, y: Value, x: Value) -> Value:
    """Angle of the point ``(x, y)``."""
    return ctx.b.atan2(*ctx.broadcast(y, x))


@lowering("SquaredDifference", dtypes=NUMBERS)
def squared_difference(ctx: LoweringContext, _node: NodeView, x: Value, y: Value) -> Value:
    """``(x - y)^2``; the difference is rounded to the dtype first."""
    d = ctx.b.subtract(*ctx.broadcast(x, y))
    return ctx.b.multiply(d, d)


@lowering("AddN", dtypes=NUMBERS, limits="equal shapes")
def add_n(ctx: LoweringContext, node: NodeView, *args: Value) -> Value:
    """Sum from the left; no broadcasting."""
    if not args:
        raise Unsupported("INVALID", "AddN without operands")
    total = args[0]
    for a in args[1:]:
        ctx.require_same_shape(args[0], a, f"Inputs to operation {node.name} of type AddN must have the same size and shape")
        total = ctx.b.add(total, ctx.cast_dims(a, total.dims))
    return total


# ---- division and remainder ------------------------------------------------------------------------------------------


#: TruncateDiv and TruncateMod by zero report INTERNAL in TF, the others INVALID_ARGUMENT
def _guarded(ctx: LoweringContext, node: NodeView, x: Value, y: Value) -> tuple[Value, Value]:
    """Broadcast integer operands with the check that no divisor that is used is zero."""
    a, b = ctx.broadcast(x, y)
    known = ctx.constant(y)
    if known is None or not known.all():
        status = Status.INTERNAL if node.op.startswith("Truncate") else Status.INVALID_ARGUMENT
        ok = ctx.b.compare(y, ctx.splat(0, y), "NE")
        check_elements(ctx, ok, a.dims, status, "Integer division by zero")
    return a, b


def _opposite_signs(ctx: LoweringContext, a: Value, b: Value) -> Value:
    """True where exactly one of ``a``, ``b`` is negative."""
    zero = ctx.splat(0, a)
    return ctx.b.xor(ctx.b.compare(a, zero, "LT"), ctx.b.compare(b, zero, "LT"))


@lowering("Div", "TruncateDiv", dtypes=NUMBERS)
def truncate_div(ctx: LoweringContext, node: NodeView, x: Value, y: Value) -> Value:
    """Integers round towards zero, ``INT_MIN / -1`` is ``INT_MIN``, a zero divisor is an error; floats divide."""
    if x.dtype.is_float:
        quotient = ctx.b.divide(*ctx.broadcast(x, y))
        if node.op == "Div":
            return quotient
        zero = ctx.splat(0, quotient)
        return ctx.b.select(ctx.b.compare(quotient, zero, "LT"), ctx.b.ceil(quotient), ctx.b.floor(quotient))
    return ctx.b.divide(*_guarded(ctx, node, x, y))


@lowering("FloorDiv", dtypes=NUMBERS)
def floor_div(ctx: LoweringContext, node: NodeView, x: Value, y: Value) -> Value:
    """Rounds towards minus infinity; integers as ``truncate_div``."""
    if x.dtype.is_float:
        return ctx.b.floor(ctx.b.divide(*ctx.broadcast(x, y)))
    a, b = _guarded(ctx, node, x, y)
    quotient = ctx.b.divide(a, b)
    if x.dtype.kind == "u":
        return quotient
    inexact = ctx.b.compare(ctx.b.remainder(a, b), ctx.splat(0, a), "NE")
    down = ctx.b.and_(inexact, _opposite_signs(ctx, a, b))
    return ctx.b.select(down, ctx.b.subtract(quotient, ctx.splat(1, a)), quotient)


@lowering("Mod", "TruncateMod", dtypes=NUMBERS)
def truncate_mod(ctx: LoweringContext, node: NodeView, x: Value, y: Value) -> Value:
    """C's ``%`` and ``fmod``: the sign of the dividend."""
    operands = ctx.broadcast(x, y) if x.dtype.is_float else _guarded(ctx, node, x, y)
    return ctx.b.remainder(*operands)


@lowering("FloorMod", dtypes=NUMBERS)
def floor_mod(ctx: LoweringContext, node: NodeView, x: Value, y: Value) -> Value:
    """The sign of the divisor."""
    a, b = ctx.broadcast(x, y) if x.dtype.is_float else _guarded(ctx, node, x, y)
    r = ctx.b.remainder(a, b)
    if x.dtype.kind == "u":
        return r
    adjust = ctx.b.and_(ctx.b.compare(r, ctx.splat(0, r), "NE"), _opposite_signs(ctx, r, b))
    return ctx.b.select(adjust, ctx.b.add(r, b), r)


@lowering("Pow", dtypes=FLOATS | SIGNED_INTS)
def pow_(ctx: LoweringContext, _node: NodeView, x: Value, y: Value) -> Value:
    """Integers wrap; a negative integer exponent is an error."""
    a, b = ctx.broadcast(x, y)
    if x.dtype.is_int:
        known = ctx.constant(y)
        if known is None or (known < 0).any():
            ok = ctx.b.compare(y, ctx.splat(0, y), "GE")
            message = "Integers to negative integer powers are not allowed"
            check_elements(ctx, ok, a.dims, Status.INVALID_ARGUMENT, message)
    return ctx.b.power(a, b)


# ---- products and quotients that are 0 at 0 ----------------------------------------------------------------------------


def _zero_where(ctx: LoweringContext, is_zero: Value, otherwise: Value) -> Value:
    zero = ctx.splat(0, otherwise)
    return ctx.b.select(ctx.b.compare(is_zero, ctx.splat(0, is_zero), "EQ"), zero, otherwise)


@lowering("MulNoNan", dtypes=FLOATS)
def mul_no_nan(ctx: LoweringContext, _node: NodeView, x: Value, y: Value) -> Value:
    """``x * y``, 0 where ``y`` is 0 even if ``x`` is not finite."""
    x, y = ctx.broadcast(x, y)
    return _zero_where(ctx, y, ctx.b.multiply(x, y))


@lowering("DivNoNan", dtypes=FLOATS)
def div_no_nan(ctx: LoweringContext, _node: NodeView, x: Value, y: Value) -> Value:
    """``x / y``, 0 where ``y`` is 0."""
    x, y = ctx.broadcast(x, y)
    return _zero_where(ctx, y, ctx.b.divide(x, y))


def _times_function(function: Callable[[LoweringContext, Value, Value], Value]):
    def rule(ctx: LoweringContext, _node: NodeView, x: Value, y: Value) -> Value:
        """``f(x, y)``, 0 where ``x`` is 0 even if ``y`` is NaN."""
        x, y = ctx.broadcast(x, y)
        wide = function(ctx, widen(ctx, x), widen(ctx, y))
        return _zero_where(ctx, x, wide if wide.dtype == x.dtype else ctx.b.convert(wide, x.dtype))

    return rule


lowering("Xdivy", dtypes=FLOATS)(_times_function(lambda ctx, x, y: ctx.b.divide(x, y)))
lowering("Xlogy", dtypes=FLOATS)(_times_function(lambda ctx, x, y: ctx.b.multiply(x, ctx.b.log(y))))
lowering("Xlog1py", dtypes=FLOATS)(_times_function(lambda ctx, x, y: ctx.b.multiply(x, ctx.b.log_plus_one(y))))


# ---- comparison, logic, bits -------------------------------------------------------------------------------------------

_COMPARISONS = {"Less": "LT", "LessEqual": "LE", "Greater": "GT", "GreaterEqual": "GE", "Equal": "EQ", "NotEqual": "NE"}


@lowering(*_COMPARISONS, dtypes=ALL, limits="incompatible_shape_error=false only where shapes are known to broadcast")
def comparison(ctx: LoweringContext, node: NodeView, x: Value, y: Value) -> Value:
    """A NaN is unequal to everything and unordered."""
    before = len(ctx.requests)
    lenient = node.op in ("Equal", "NotEqual") and not node.attr("incompatible_shape_error", True)
    try:
        x, y = ctx.broadcast(x, y)
    except Unsupported as e:
        if lenient and e.code == "INVALID":  # then the answer does not depend on the values
            return ctx.scalar(node.op == "NotEqual", DType.BOOL)
        raise
    if lenient and len(ctx.requests) != before:
        raise Unsupported("ATTR", "incompatible_shape_error=false where the shapes may or may not broadcast")
    return ctx.b.compare(x, y, _COMPARISONS[node.op])


@lowering("ApproximateEqual", dtypes=NUMBERS)
def approximate_equal(ctx: LoweringContext, node: NodeView, x: Value, y: Value) -> Value:
    """``|x - y| < tolerance`` with the tolerance rounded to the dtype; equal shapes."""
    ctx.require_same_shape(x, y, "x and y must be of the same shape")
    y = ctx.cast_dims(y, x.dims)
    tolerance = float(node.attr("tolerance", 1e-5))
    difference = ctx.b.subtract(x, y)
    if x.dtype.kind != "u":
        difference = ctx.b.abs(difference)
    limit = tolerance if x.dtype.is_float else int(tolerance)
    return ctx.b.compare(difference, ctx.splat(limit, x), "LT")


_LOGIC = {
    "LogicalAnd": "and_", "LogicalOr": "or_", "BitwiseAnd": "and_", "BitwiseOr": "or_", "BitwiseXor": "xor",
}  # fmt: skip


@lowering(*_LOGIC, dtypes=INTS)
def logic(ctx: LoweringContext, node: NodeView, x: Value, y: Value) -> Value:
    """Logical ops are on bools, bitwise ops on integers."""
    return getattr(ctx.b, _LOGIC[node.op])(*ctx.broadcast(x, y))


@lowering("LeftShift", "RightShift", dtypes=INTS)
def shift(ctx: LoweringContext, node: NodeView, x: Value, y: Value) -> Value:
    """Shift counts are clamped to ``[0, bits - 1]`` as TF's CPU kernel does; a right shift keeps a signed type's sign."""
    x, y = ctx.broadcast(x, y)
    y = ctx.b.minimum(ctx.b.maximum(y, ctx.splat(0, y)), ctx.splat(x.dtype.bits - 1, y))
    if node.op == "LeftShift":
        return ctx.b.shift_left(x, y)
    return ctx.b.shift_right_arithmetic(x, y) if x.dtype.kind == "i" else ctx.b.shift_right_logical(x, y)
