"""Exact identities of elementwise ops.

Floats: only rewrites that give the same bits for every input (NaN payloads and flushed denormals aside); ``x + 0.0`` is not one
(it turns -0.0 into 0.0), ``x + -0.0`` is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType
from disc_tf.passes.rewriter import UNARY, Rewriter, is_elementwise, splat_of, table, words

_MANTISSA = {DType.F16: 11, DType.BF16: 8, DType.F32: 24, DType.F64: 53}


def widens_exactly(a: DType, b: DType) -> bool:
    """Whether every value of dtype ``a`` is a value of dtype ``b``."""
    if a == b:
        return True
    if a.is_bool:
        return True
    if b.is_bool:
        return False
    if a.is_float:
        wider = {DType.F16: (DType.F32, DType.F64), DType.BF16: (DType.F32, DType.F64), DType.F32: (DType.F64,)}
        return b in wider.get(a, ())
    if b.is_float:
        bits = a.bits - (a.kind == "i")
        return bits < _MANTISSA[b] if b != DType.F16 else bits <= 8
    if a.kind == b.kind:
        return b.bits > a.bits
    return a.kind == "u" and b.bits > a.bits


def _is(v: np.generic | None, number: float) -> bool:
    """Equal as numbers and in sign (``_is(x, 0)`` is +0.0 only)."""
    if v is None:
        return False
    x = float(v)
    return x == number and math.copysign(1.0, x) == math.copysign(1.0, number)


def identity(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """``x + 0``, ``x * 1``, ``x - 0``, ``x / 1``, shifts by zero, and with 0, max(x, x) ..."""
    a, b = op.operands
    if op.name in ("maximum", "minimum", "and", "or") and a is b:
        return [a]
    for x, c, right in ((a, splat_of(b), True), (b, splat_of(a), False)):
        if c is None or not rw.same_dims(x.dims, op.result.dims):
            continue
        floating = x.dtype.is_float
        if op.name == "add" and not x.dtype.is_bool and (_is(c, -0.0) if floating else c == 0):
            return [x]
        if op.name == "multiply" and not x.dtype.is_bool and _is(c, 1):
            return [x]
        if op.name in ("subtract", "shift_left", "shift_right_arithmetic", "shift_right_logical") and right and _is(c, 0):
            return [x]
        if op.name == "divide" and right and _is(c, 1):
            return [x]
        if op.name == "power" and right and _is(c, 1):
            return [x]
        if x.dtype.is_bool or x.dtype.is_int:
            ones = bool(c) if x.dtype.is_bool else int(c) == (-1 if x.dtype.kind == "i" else 2**x.dtype.bits - 1)
            zero = not bool(c)
            other = b if right else a  # the constant
            if op.name == "and":
                return [x] if ones else [other] if zero else None
            if op.name == "or":
                return [x] if zero else [other] if ones else None
            if op.name == "xor" and zero:
                return [x]
            if op.name == "multiply" and zero and x.dtype.is_int:
                return [other]
    return None


def power_of_two_division(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """``x / 2**k`` is ``x * 2**-k`` where the reciprocal is a normal number."""
    a, b = op.operands
    c = splat_of(b)
    if c is None or not a.dtype.is_float or not np.isfinite(c) or c == 0:
        return None
    mantissa, _ = math.frexp(float(c))
    reciprocal = 1.0 / float(c)
    tiny = float(_finfo(a.dtype).smallest_normal)
    largest = float(_finfo(a.dtype).max)
    if abs(mantissa) != 0.5 or not tiny <= abs(reciprocal) <= largest or abs(float(c)) < tiny:
        return None
    return [rw.value("multiply", [a, rw.splat(reciprocal, b.tensor)], op.result.type)]


def _finfo(dtype: DType):  # numpy's finfo does not know bfloat16
    import ml_dtypes

    return ml_dtypes.finfo(dtype.np)


def power_by_constant(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """``x ** 2`` is ``x * x``: correctly rounded, within the error that any pow has."""
    a, b = op.operands
    c = splat_of(b)
    if a.dtype.is_float and _is(c, 2):
        return [rw.value("multiply", [a, a], op.result.type)]
    return None


def involution(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """``-(-x)``, ``not not x``, ``abs(abs x)``, ``abs(-x)``; rounding of what is rounded."""
    inner = op.operands[0].op
    if inner is None:
        return None
    if op.name == inner.name:
        if op.name in ("negate", "not"):
            return [inner.operands[0]]
        if op.name in ("abs", "floor", "ceil", "round_nearest_even", "round_nearest_afz", "sign"):
            return [inner.result]
    if op.name == "abs" and inner.name == "negate":
        return [rw.value("abs", [inner.operands[0]], op.result.type)]
    return None


def select_same(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    p, a, b = op.operands
    if a is b and rw.same_dims(a.dims, op.result.dims):
        return [a]
    c = splat_of(p)
    if c is not None:
        chosen = a if bool(c) else b
        return [chosen] if rw.same_dims(chosen.dims, op.result.dims) else None
    negated = p.op
    if negated is not None and negated.name == "not":
        return [rw.value("select", [negated.operands[0], b, a], op.result.type)]
    return None


def convert_chain(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """``convert(x: T) -> T`` is x; ``A -> B -> C`` is ``A -> C`` where ``A -> B`` loses nothing."""
    (x,) = op.operands
    if x.dtype == op.result.dtype:
        return [x] if rw.same_dims(x.dims, op.result.dims) else None
    inner = x.op
    if inner is None or inner.name != "convert":
        return None
    (source,) = inner.operands
    if not widens_exactly(source.dtype, x.dtype):
        return None
    if op.result.dtype.is_int and source.dtype.is_float:
        return None  # out-of-range values go through the source's own conversion
    return [rw.value("convert", [source], op.result.type)]


def compare_same(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    a, b = op.operands
    direction = op.attrs["direction"]
    if a is b and not a.dtype.is_float:
        return [rw.splat(direction in ("EQ", "LE", "GE"), op.result.tensor)]
    return None


def compare_dims(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """A comparison of dims that the shape environment decides."""
    a, b = (dim_of(v) for v in op.operands)
    if a is None or b is None or op.result.rank:
        return None
    direction = op.attrs["direction"]
    env = rw.env
    answer: bool | None
    if direction in ("EQ", "NE"):
        answer = env.is_equal(a, b)
        if answer is not None and direction == "NE":
            answer = not answer
    else:
        slack = {"GE": a - b, "GT": a - b - 1, "LE": b - a, "LT": b - a - 1}[direction]
        answer = env.is_nonneg(slack)
    return None if answer is None else [rw.constant(np.array(answer))]


def dim_of(v: Value) -> Dim | None:
    """The dim that an integer scalar is: of ``disc.dim`` or of a constant, through exact converts; None if not known.

    A dim in i32 is taken to fit: every extent that TF hands out as int32 does (TF raises otherwise).
    """
    for _ in range(8):
        op = v.op
        if op is None or not v.dtype.is_int:
            return None
        if op.name == "disc.dim":
            return op.attrs["dim"]
        if op.name == "constant" and v.rank == 0:
            return Dim.of(int(op.attrs["value"]))
        if op.name == "convert" and v.dtype.bits >= 32 and op.operands[0].dtype.is_int:
            v = op.operands[0]
            continue
        return None
    return None


def through_broadcast(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """An elementwise op on values broadcast in the same way (splats aside) is computed before the broadcast."""
    if op.result.rank == 0 or not is_elementwise(op):
        return None
    small: Op | None = None
    for v in op.operands:
        if splat_of(v) is not None:
            continue
        b = v.op
        if b is None or b.name != "broadcast_in_dim":
            return None
        if small is None:
            small = b
        elif (
            b.attrs["broadcast_dimensions"] != small.attrs["broadcast_dimensions"]
            or b.operands[0].dims != small.operands[0].dims
        ):
            return None
    if small is None:
        return None  # all splats: constant folding's work
    dims = small.operands[0].dims
    # An undecided broadcast may as well be none; computing early is right either way.
    operands = []
    for v in op.operands:
        c = splat_of(v)
        operands.append(rw.splat(c, v.tensor.with_dims(dims)) if c is not None else v.op.operands[0])  # type: ignore[union-attr]
    early = rw.value(op.name, operands, op.result.tensor.with_dims(dims), dict(op.attrs))
    return [rw.broadcast(early, op.result.dims, small.attrs["broadcast_dimensions"])]


ELEMENTWISE_RULES = table(
    (
        words("add multiply subtract divide power maximum minimum and or xor shift_left shift_right_arithmetic "
        "shift_right_logical"),
        identity,
    ),
    (["divide"], power_of_two_division),
    (["power"], power_by_constant),
    (words("negate not abs floor ceil round_nearest_even round_nearest_afz sign"), involution),
    (["select"], select_same),
    (["convert"], convert_chain),
    (["compare"], compare_same),
    (["compare"], compare_dims),
    (
        sorted(UNARY | {"add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "compare", "select", "and", "or"}),
        through_broadcast,
    ),
)
