"""Elementwise ops: unary, binary, compare, select, clamp, convert, bitcast_convert."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Op
from disc_tf.ir.dims import Dim
from disc_tf.ir.opset import scalar_math
from disc_tf.ir.opset.base import Attr, EvalContext, InferFn, InferInput, OpDef, register
from disc_tf.ir.types import DType, TensorType, Type

# Kinds of dtypes (see DType.kind) that an op accepts.
_UNARY_KINDS = {
    "abs": "fiu",
    "negate": "fiu",
    "sign": "fi",
    "not": "iub",
    "popcnt": "iu",
    "count_leading_zeros": "iu",
}
_BINARY_KINDS = {
    "add": "fiub",
    "subtract": "fiu",
    "multiply": "fiub",
    "divide": "fiu",
    "remainder": "fiu",
    "power": "fiu",
    "maximum": "fiub",
    "minimum": "fiub",
    "atan2": "f",
    "and": "iub",
    "or": "iub",
    "xor": "iub",
    "shift_left": "iu",
    "shift_right_arithmetic": "iu",
    "shift_right_logical": "iu",
}
_CHLO = frozenset(
    ("erf", "erfc", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "lgamma", "digamma")
)
_KIND_WORDS = {"f": "float", "i": "signed", "u": "unsigned", "b": "bool"}
DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")


def _require_kind(i: InferInput, t: TensorType, kinds: str) -> None:
    if t.dtype.kind not in kinds:
        words = ", ".join(_KIND_WORDS[k] for k in kinds)
        raise i.fail(f"dtype {t.dtype} is not accepted (one of: {words})")


def _infer_unary(kinds: str, bool_result: bool) -> InferFn:
    def infer(i: InferInput) -> list[Type]:
        t = i.tensor(0)
        _require_kind(i, t, kinds)
        return [t.with_dtype(DType.BOOL) if bool_result else t]

    return infer


def _unary(name: str) -> None:
    fn = scalar_math.UNARY[name]

    def reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
        return [fn(inputs[0])]

    infer = _infer_unary(_UNARY_KINDS.get(name, "f"), name == "is_finite")
    exported = f"chlo.{name}" if name in _CHLO else f"stablehlo.{name}"
    register(OpDef(name, 1, infer, reference, elementwise=True, stablehlo=exported))


def _binary(name: str) -> None:
    fn = scalar_math.BINARY[name]
    kinds = _BINARY_KINDS[name]

    def infer(i: InferInput) -> list[Type]:
        a, b = i.tensors()
        i.same_dtype((a, b))
        _require_kind(i, a, kinds)
        return [TensorType(a.dtype, i.merge(a.dims, b.dims))]

    def reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
        return [fn(*inputs)]

    register(OpDef(name, 2, infer, reference, elementwise=True, stablehlo=f"stablehlo.{name}"))


def _infer_compare(i: InferInput) -> list[Type]:
    a, b = i.tensors()
    i.same_dtype((a, b))
    return [TensorType(DType.BOOL, i.merge(a.dims, b.dims))]


def _compare_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    return [scalar_math.COMPARE[op.attrs["direction"]](*inputs)]


def _infer_select(i: InferInput) -> list[Type]:
    p, a, b = i.tensors()
    if p.dtype != DType.BOOL:
        raise i.fail("the predicate must be bool")
    i.same_dtype((a, b))
    dims = i.merge(a.dims, b.dims) if p.rank == 0 else i.merge(a.dims, b.dims, p.dims)
    return [TensorType(a.dtype, dims)]


def _select_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    p, a, b = inputs
    return [np.where(p, a, b)]


def _infer_clamp(i: InferInput) -> list[Type]:
    low, x, high = i.tensors()
    i.same_dtype((low, x, high))
    _require_kind(i, x, "fiu")
    shapes = [x.dims] + [t.dims for t in (low, high) if t.rank]
    return [TensorType(x.dtype, i.merge(*shapes))]


def _clamp_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    low, x, high = inputs
    return [scalar_math.BINARY["minimum"](scalar_math.BINARY["maximum"](x, low), high).astype(x.dtype)]


def _infer_convert(i: InferInput) -> list[Type]:
    x, chosen = i.tensor(0), i.chosen()
    return [TensorType(chosen.dtype, i.merge(x.dims, chosen.dims))]


def _convert_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    return [scalar_math.convert(inputs[0], op.result.dtype.np)]


def _infer_bitcast(i: InferInput) -> list[Type]:
    x, chosen = i.tensor(0), i.chosen()
    if DType.BOOL in (x.dtype, chosen.dtype) and x.dtype != chosen.dtype:
        raise i.fail("bool has no bit representation")
    if x.dtype.bits == chosen.dtype.bits:
        dims = i.merge(x.dims, chosen.dims)
    elif x.dtype.bits > chosen.dtype.bits:
        dims = i.merge((*x.dims, Dim.of(x.dtype.bits // chosen.dtype.bits)), chosen.dims)
    else:
        ratio = chosen.dtype.bits // x.dtype.bits
        if not x.rank or i.differ(x.dims[-1], Dim.of(ratio)):
            raise i.fail(f"the last dimension must be {ratio} to become {chosen.dtype}")
        dims = i.merge(x.dims[:-1], chosen.dims)
    return [TensorType(chosen.dtype, dims)]


def _bitcast_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    x, dtype = inputs[0], op.result.dtype.np
    if x.dtype.itemsize == dtype.itemsize:  # whatever the shape: it may run inside a region
        return [np.frombuffer(x.tobytes(), dtype=dtype).reshape(x.shape)]
    shape = tuple(ctx.dim(d) for d in op.result.dims)
    flat = np.frombuffer(x.tobytes(), dtype=dtype)
    return [flat.reshape(shape)]


for _name in scalar_math.UNARY:
    _unary(_name)
for _name in scalar_math.BINARY:
    _binary(_name)
register(
    OpDef(
        "compare", 2, _infer_compare, _compare_reference, {"direction": Attr("str", DIRECTIONS)},
        elementwise=True, stablehlo="stablehlo.compare",
    )
)  # fmt: skip
register(OpDef("select", 3, _infer_select, _select_reference, elementwise=True, stablehlo="stablehlo.select"))
register(OpDef("clamp", 3, _infer_clamp, _clamp_reference, elementwise=True, stablehlo="stablehlo.clamp"))
register(
    OpDef(
        "convert",
        1,
        _infer_convert,
        _convert_reference,
        elementwise=True,
        typed=True,
        stablehlo="stablehlo.convert",
    )
)
register(
    OpDef(
        "bitcast_convert",
        1,
        _infer_bitcast,
        _bitcast_reference,
        typed=True,
        stablehlo="stablehlo.bitcast_convert",
    )
)
