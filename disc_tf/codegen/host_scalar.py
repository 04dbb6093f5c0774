"""Scalar shape arithmetic that the host program computes itself, in registers: the ops of `passes.placement.can_host`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from disc_tf.codegen.dims import DimEmitter
from disc_tf.codegen.llvm import I1, I64, FnBuilder, V, int_ty
from disc_tf.ir.core import Op, Value
from disc_tf.ir.types import DType

_BINARY: dict[str, Callable[[FnBuilder, V, V], V]] = {
    "add": FnBuilder.add,
    "subtract": FnBuilder.sub,
    "multiply": FnBuilder.mul,
    "and": FnBuilder.and_,
    "or": FnBuilder.or_,
    "xor": FnBuilder.xor,
}
_COMPARE = {"EQ": "eq", "NE": "ne", "LT": "slt", "LE": "sle", "GT": "sgt", "GE": "sge"}


def _ty(dtype: DType):
    return I1 if dtype.is_bool else int_ty(dtype.bits)


class HostScalars:
    """Evaluates inline scalar ops; ``load(v)`` reads a scalar that lies in memory."""

    def __init__(self, b: FnBuilder, dims: DimEmitter, load: Callable[[Value], V]) -> None:
        self.b = b
        self.dims = dims
        self.load = load
        self.known: dict[Value, V] = {}

    def value(self, v: Value) -> V:
        """The scalar's value: i1 for a bool, else an integer of its width."""
        if v not in self.known:
            op = v.op
            if op is not None and op.name == "constant":
                self.compute(op)
            else:
                self.known[v] = self.load(v)
        return self.known[v]

    def as_i64(self, v: Value) -> V:
        x = self.value(v)
        return self.b.sext(x, I64) if v.dtype.is_signed else self.b.zext(x, I64)

    def compute(self, op: Op) -> None:
        """Evaluate ``op`` (see `passes.placement.can_host`)."""
        b, r = self.b, op.result
        ty = _ty(r.dtype)
        args = [self.value(v) for v in op.operands] if op.name != "constant" else []
        if op.name == "constant":
            out = b.const(int(np.asarray(op.attrs["value"]).reshape(-1)[0]), ty)
        elif op.name == "disc.dim":
            out = b.trunc(self.dims.i64(op.attrs["dim"]), ty) if ty.bits < 64 else self.dims.i64(op.attrs["dim"])
        elif op.name in _BINARY:
            out = _BINARY[op.name](b, args[0], args[1])
        elif op.name == "compare":
            pred = _COMPARE[op.attrs["direction"]]
            unsigned = not op.operands[0].dtype.is_signed
            out = b.icmp(pred.replace("s", "u", 1) if unsigned and pred[0] == "s" else pred, args[0], args[1])
        elif op.name == "select":
            out = b.select(args[0], args[1], args[2])
        elif op.name == "not":
            out = b.not_(args[0])
        elif op.name == "negate":
            out = b.sub(b.const(0, ty), args[0])
        elif op.name in ("maximum", "minimum"):
            lt = b.icmp("slt" if r.dtype.is_signed else "ult", args[0], args[1])
            out = b.select(lt, args[1], args[0]) if op.name == "maximum" else b.select(lt, args[0], args[1])
        elif op.name == "convert":
            out = self._convert(args[0], op.operands[0].dtype, r.dtype)
        elif op.name == "reshape":
            out = args[0]
        else:
            raise ValueError(f"the host program cannot compute {op.name}")
        self.known[r] = out

    def _convert(self, x: V, source: DType, target: DType) -> V:
        b, ty = self.b, _ty(target)
        if target.is_bool:
            return x if source.is_bool else b.icmp("ne", x, 0)
        if ty.bits < x.ty.bits:
            return b.trunc(x, ty)
        if ty.bits == x.ty.bits:
            return x
        return b.sext(x, ty) if source.is_signed and not source.is_bool else b.zext(x, ty)
