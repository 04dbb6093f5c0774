"""Elementwise ops on register values: one table from op name to a function on lanes.

`emit(b, op, args)` is the entry: `args` are the operands as `lanes.py` represents them, scalars and vectors mixed
(scalars are splat as needed). Used by every emitter: loops, rows, reductions, epilogues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from disc_tf.codegen.cpu import lanes, math, math_special, math_trig
from disc_tf.codegen.llvm import FnBuilder, V, const
from disc_tf.ir.core import Op
from disc_tf.ir.types import DType

INF = math.INF

FLOAT_UNARY: dict[str, Callable[[FnBuilder, V], V]] = {
    "abs": FnBuilder.fabs,
    "negate": FnBuilder.fneg,
    "exponential": math.exp,
    "exponential_minus_one": math.expm1,
    "log": math.log,
    "log_plus_one": math.log1p,
    "sqrt": FnBuilder.sqrt,
    "rsqrt": math_special.rsqrt,
    "cbrt": math_special.cbrt,
    "sine": math_trig.sin,
    "cosine": math_trig.cos,
    "tan": math_trig.tan,
    "tanh": math.tanh,
    "logistic": math.logistic,
    "floor": FnBuilder.floor,
    "ceil": FnBuilder.ceil,
    "round_nearest_even": FnBuilder.rint,
    "round_nearest_afz": math_special.round_half_away,
    "erf": math_special.erf,
    "erfc": math_special.erfc,
    "asin": math_trig.asin,
    "acos": math_trig.acos,
    "atan": math_trig.atan,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "asinh": math.asinh,
    "acosh": math.acosh,
    "atanh": math.atanh,
    "lgamma": math_special.lgamma,
    "digamma": math_special.digamma,
}

#: results need no rounding to f16/bf16: they are exact there
_EXACT = {"abs", "negate", "sign", "floor", "ceil", "round_nearest_even", "round_nearest_afz", "maximum", "minimum"}


def _plain(y: V) -> bool:
    """A constant that is no NaN, and no zero, whose sign would matter: then one instruction does."""
    return y.const is not None and abs(y.const) > 0


def maximum(b: FnBuilder, x: V, y: V) -> V:
    """Float maximum that propagates NaN."""
    if _plain(y):
        return b.fmax_x86(y, x)
    return b.select(b.fcmp("ord", x, x), b.fmax_x86(x, y), x)  # which is a masked maxps


def minimum(b: FnBuilder, x: V, y: V) -> V:
    """Float minimum that propagates NaN."""
    if _plain(y):
        return b.fmin_x86(y, x)
    return b.select(b.fcmp("ord", x, x), b.fmin_x86(x, y), x)


FLOAT_BINARY: dict[str, Callable[[FnBuilder, V, V], V]] = {
    "add": FnBuilder.fadd,
    "subtract": FnBuilder.fsub,
    "multiply": FnBuilder.fmul,
    "divide": FnBuilder.fdiv,
    "remainder": math_special.remainder,
    "power": math_special.power,
    "maximum": maximum,
    "minimum": minimum,
    "atan2": math_trig.atan2,
}
_BOOL_BINARY = {
    "add": FnBuilder.or_, "or": FnBuilder.or_, "maximum": FnBuilder.or_, "multiply": FnBuilder.and_,
    "and": FnBuilder.and_, "minimum": FnBuilder.and_, "xor": FnBuilder.xor,
}
_INT_BINARY = {
    "add": FnBuilder.add, "subtract": FnBuilder.sub, "multiply": FnBuilder.mul, "and": FnBuilder.and_,
    "or": FnBuilder.or_, "xor": FnBuilder.xor,
}
_FCMP = {"EQ": "oeq", "NE": "une", "LT": "olt", "LE": "ole", "GT": "ogt", "GE": "oge"}
_ICMP = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}


def widest(args: Sequence[V]) -> int:
    return max((a.lanes for a in args), default=1)


def unary(b: FnBuilder, name: str, dtype: DType, x: V) -> V:
    """A unary op of the set on a value of `dtype` (result in the same dtype, but bool for `is_finite`)."""
    if dtype.is_float:
        if name == "is_finite":
            return b.fcmp("olt", b.fabs(x), INF)
        if name == "sign":
            signed = b.copysign(const(1.0, x.ty), x)
            return b.select(b.fcmp("one", x, 0.0), signed, x)
        y = FLOAT_UNARY[name](b, x)
        return y if name in _EXACT else lanes.round_float(b, dtype, y)
    if name == "not":
        return b.not_(x)
    if name == "negate":
        return b.sub(0, x)
    if name == "abs":
        return x if not dtype.is_signed else b.smax(x, b.sub(0, x))
    if name == "sign":
        positive = b.zext(b.icmp("sgt", x, 0), x.ty.elem)
        return positive if not dtype.is_signed else b.add(positive, b.ashr(x, dtype.bits - 1))
    if name == "popcnt":
        return b.intrinsic("ctpop", x)
    if name == "count_leading_zeros":
        return b.intrinsic("ctlz", x)
    raise KeyError(f"{name} of {dtype}")


def binary(b: FnBuilder, name: str, dtype: DType, x: V, y: V) -> V:
    """A binary op of the set on two values of `dtype` with equal lanes."""
    if dtype.is_float:
        r = FLOAT_BINARY[name](b, x, y)
        return r if name in _EXACT else lanes.round_float(b, dtype, r)
    if dtype.is_bool:
        return _BOOL_BINARY[name](b, x, y)
    if name in _INT_BINARY:
        return _INT_BINARY[name](b, x, y)
    if name in ("maximum", "minimum"):
        prefix = "s" if dtype.is_signed else "u"
        return getattr(b, prefix + name[:3])(x, y)
    if name in ("divide", "remainder"):
        return _int_division(b, name, dtype, x, y)
    if name == "power":
        return _int_power(b, dtype, x, y)
    return _shift(b, name, dtype, x, y)


def _int_division(b: FnBuilder, name: str, dtype: DType, x: V, y: V) -> V:
    """Truncating; x / 0 is all ones, x rem 0 is x, INT_MIN / -1 is INT_MIN. Never traps."""
    if y.const is not None and y.const not in (0, -1):
        if dtype.is_signed:
            return b.sdiv(x, y) if name == "divide" else b.srem(x, y)
        return b.udiv(x, y) if name == "divide" else b.urem(x, y)
    zero = b.icmp("eq", y, 0)
    one = const(1, y.ty)
    if not dtype.is_signed:
        safe = b.select(zero, one, y)
        if name == "divide":
            return b.select(zero, const(-1, x.ty), b.udiv(x, safe))
        return b.select(zero, x, b.urem(x, safe))
    minus = b.icmp("eq", y, -1)
    safe = b.select(b.or_(zero, minus), one, y)
    if name == "divide":
        q = b.select(minus, b.sub(0, x), b.sdiv(x, safe))
        return b.select(zero, const(-1, x.ty), q)
    return b.select(zero, x, b.srem(x, safe))


def _int_power(b: FnBuilder, dtype: DType, x: V, y: V) -> V:
    """By squaring, wrapping. A negative exponent gives 1 for base 1, +-1 for base -1, else 0."""
    negative = b.icmp("slt", y, 0) if dtype.is_signed else None
    left = y if negative is None else b.select(negative, const(0, y.ty), y)

    def more(c: list[V]) -> V:
        return b.any_lane(b.icmp("ne", c[2], 0))

    def step(c: list[V]) -> list[V]:
        result, base, n = c
        odd = b.icmp("ne", b.and_(n, 1), 0)
        return [b.select(odd, b.mul(result, base), result), b.mul(base, base), b.lshr(n, 1)]

    result = b.while_loop([const(1, x.ty), x, left], more, step)[0]
    if negative is None:
        return result
    odd = b.icmp("ne", b.and_(y, 1), 0)
    one, minus, zero = const(1, x.ty), const(-1, x.ty), const(0, x.ty)
    inverse = b.select(b.icmp("eq", x, 1), one, b.select(b.icmp("eq", x, -1), b.select(odd, minus, one), zero))
    return b.select(negative, inverse, result)


def _shift(b: FnBuilder, name: str, dtype: DType, x: V, y: V) -> V:
    """Amounts are unsigned; the width or more gives 0 or the sign."""
    bits = dtype.bits
    wide = b.icmp("uge", y, bits)
    if name == "shift_right_arithmetic":
        return b.ashr(x, b.select(wide, const(bits - 1, y.ty), y))
    safe = b.select(wide, const(0, y.ty), y)
    r = b.shl(x, safe) if name == "shift_left" else b.lshr(x, safe)
    return b.select(wide, const(0, x.ty), r)


def compare(b: FnBuilder, direction: str, dtype: DType, x: V, y: V) -> V:
    """bool lanes; NaN compares unequal to everything."""
    if dtype.is_float:
        return b.fcmp(_FCMP[direction], x, y)
    if direction in ("EQ", "NE"):
        return b.icmp(_ICMP[direction], x, y)
    return b.icmp(("s" if dtype.is_signed and not dtype.is_bool else "u") + _ICMP[direction], x, y)


def emit(b: FnBuilder, op: Op, args: Sequence[V]) -> V:
    """The value of an elementwise op. Raises KeyError for an op that is not elementwise."""
    name = op.name
    width = widest(args)
    if name == "convert":
        return lanes.convert(b, args[0], op.operands[0].dtype, op.result.dtype)
    if name == "bitcast_convert":
        return lanes.from_bits(b, op.result.dtype, lanes.as_bits(b, op.operands[0].dtype, args[0]))
    if name == "select":
        p, x, y = args
        value_lanes = max(x.lanes, y.lanes, p.lanes)
        return b.select(p, b.splat(x, value_lanes), b.splat(y, value_lanes))
    args = [b.splat(a, width) for a in args]
    dtype = op.operands[0].dtype
    if name == "compare":
        return compare(b, op.attrs["direction"], dtype, *args)
    if name == "clamp":
        low, x, high = args
        return binary(b, "minimum", dtype, binary(b, "maximum", dtype, x, low), high)
    if len(args) == 1:
        return unary(b, name, dtype, args[0])
    return binary(b, name, dtype, *args)


ELEMENTWISE = frozenset({
    *FLOAT_UNARY, *FLOAT_BINARY, *_INT_BINARY, "is_finite", "sign", "not", "popcnt", "count_leading_zeros",
    "shift_left", "shift_right_arithmetic", "shift_right_logical", "compare", "clamp", "select", "convert",
})
