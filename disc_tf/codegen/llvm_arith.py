"""Arithmetic of `FnBuilder`: integers, floats, comparisons, selects and casts."""

from __future__ import annotations

from collections.abc import Callable

from disc_tf.codegen.llvm_core import FnCore, Operand
from disc_tf.codegen.llvm_types import I1, I64, Number, Ty, V, const, vec, wrap_int

_COMMUTATIVE = frozenset({"add", "mul", "and", "or", "xor", "fadd", "fmul"})

_INT_FOLD: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
    "and": lambda x, y: x & y, "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y,
}
_ICMP_FOLD: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "slt": lambda x, y: x < y, "sle": lambda x, y: x <= y,
    "sgt": lambda x, y: x > y, "sge": lambda x, y: x >= y,
}


class Arithmetic(FnCore):
    """Scalar and lane-wise instructions."""

    # -- integer arithmetic -----------------------------------------------------------------------------------

    def _int_bin(self, op: str, x: Operand, y: Operand) -> V:
        x, y = self._pair(x, y)
        if x.const is not None and op in _COMMUTATIVE:
            x, y = y, x
        if y.const is not None:
            c = y.const
            if x.const is not None and op in _INT_FOLD:
                return const(wrap_int(_INT_FOLD[op](int(x.const), int(c)), x.ty.bits), x.ty)
            ones = -1 if x.ty.bits > 1 else 1
            if c == 0 and op in ("add", "sub", "or", "xor", "shl", "lshr", "ashr"):
                return x
            if c == 0 and op in ("mul", "and"):
                return y
            if c == 1 and op in ("mul", "sdiv", "udiv") and x.ty.bits > 1:
                return x
            if c == ones and op == "and":
                return x
            if c == ones and op == "or":
                return y
        if x.name == y.name:
            if op in ("and", "or"):
                return x
            if op in ("sub", "xor"):
                return const(0, x.ty)
        return self._pure(x.ty, f"{op} {x.ty.text} {x.name}, {y.name}")

    def add(self, x: Operand, y: Operand) -> V:
        return self._int_bin("add", x, y)

    def sub(self, x: Operand, y: Operand) -> V:
        return self._int_bin("sub", x, y)

    def mul(self, x: Operand, y: Operand) -> V:
        return self._int_bin("mul", x, y)

    def and_(self, x: Operand, y: Operand) -> V:
        return self._int_bin("and", x, y)

    def or_(self, x: Operand, y: Operand) -> V:
        return self._int_bin("or", x, y)

    def xor(self, x: Operand, y: Operand) -> V:
        return self._int_bin("xor", x, y)

    def not_(self, x: V) -> V:
        return self._int_bin("xor", x, -1 if x.ty.bits > 1 else 1)

    def shl(self, x: Operand, y: Operand) -> V:
        """Poison where the amount reaches the width: guard it."""
        return self._int_bin("shl", x, y)

    def lshr(self, x: Operand, y: Operand) -> V:
        return self._int_bin("lshr", x, y)

    def ashr(self, x: Operand, y: Operand) -> V:
        return self._int_bin("ashr", x, y)

    def _division(self, op: str, x: Operand, y: Operand) -> V:
        """Divisions are not pure in LLVM (they trap), but equal ones in a dominating block may be reused."""
        x, y = self._pair(x, y)
        if x.const is not None and y.const is not None and y.const > 0 and x.const >= 0:
            q, r = divmod(int(x.const), int(y.const))
            return const(q if op.endswith("div") else r, x.ty)
        if y.const is not None and y.const > 0 and op[0] == "u":
            power = int(y.const).bit_length() - 1
            if 1 << power == y.const:
                return self.lshr(x, power) if op == "udiv" else self.and_(x, int(y.const) - 1)
        if y.const is None or y.const in (0, -1):
            x, y = self._pair(x, y)
            return self._pure(x.ty, f"{op} {x.ty.text} {x.name}, {y.name}", speculate=False)
        return self._int_bin(op, x, y)

    def sdiv(self, x: Operand, y: Operand) -> V:
        return self._division("sdiv", x, y)

    def udiv(self, x: Operand, y: Operand) -> V:
        return self._division("udiv", x, y)

    def srem(self, x: Operand, y: Operand) -> V:
        return self._division("srem", x, y)

    def urem(self, x: Operand, y: Operand) -> V:
        return self._division("urem", x, y)

    def smin(self, x: Operand, y: Operand) -> V:
        return self._min_max("smin", x, y, min)

    def smax(self, x: Operand, y: Operand) -> V:
        return self._min_max("smax", x, y, max)

    def umin(self, x: Operand, y: Operand) -> V:
        return self.intrinsic("umin", x, y)

    def umax(self, x: Operand, y: Operand) -> V:
        return self.intrinsic("umax", x, y)

    def _min_max(self, op: str, x: Operand, y: Operand, fold: Callable[[Number, Number], Number]) -> V:
        x, y = self._pair(x, y)
        if x.const is not None and y.const is not None:
            return const(fold(x.const, y.const), x.ty)
        return self.intrinsic(op, x, y)

    # -- floating point ---------------------------------------------------------------------------------------

    def _fp_bin(self, op: str, x: Operand, y: Operand) -> V:
        x, y = self._pair(x, y)
        if not x.ty.is_float:
            raise TypeError(f"{op} needs floats, not {x.ty}")
        if y.const == 1.0 and op in ("fmul", "fdiv"):
            return x
        if x.const == 1.0 and op == "fmul":
            return y
        return self._pure(x.ty, f"{op} {x.ty.text} {x.name}, {y.name}")

    def fadd(self, x: Operand, y: Operand) -> V:
        return self._fp_bin("fadd", x, y)

    def fsub(self, x: Operand, y: Operand) -> V:
        return self._fp_bin("fsub", x, y)

    def fmul(self, x: Operand, y: Operand) -> V:
        return self._fp_bin("fmul", x, y)

    def fdiv(self, x: Operand, y: Operand) -> V:
        return self._fp_bin("fdiv", x, y)

    def fneg(self, x: V) -> V:
        return self._pure(x.ty, f"fneg {x.ty.text} {x.name}")

    def fma(self, x: Operand, y: Operand, z: Operand) -> V:
        """x * y + z: fused where the target fuses, else a rounded product and a sum."""
        ref = next(v for v in (x, y, z) if isinstance(v, V))
        x, y, z = (v if isinstance(v, V) else const(v, ref.ty) for v in (x, y, z))
        if not self.has_fma:
            return self.fadd(self.fmul(x, y), z)
        return self._call_intrinsic("fma", ref.ty, (x, y, z))

    def fabs(self, x: V) -> V:
        return self.intrinsic("fabs", x)

    def sqrt(self, x: V) -> V:
        return self.intrinsic("sqrt", x)

    def floor(self, x: V) -> V:
        return self.intrinsic("floor", x)

    def ceil(self, x: V) -> V:
        return self.intrinsic("ceil", x)

    def rint(self, x: V) -> V:
        """Round to nearest, ties to even (the rounding mode of every worker is round-to-nearest)."""
        return self.intrinsic("rint", x)

    def ftrunc(self, x: V) -> V:
        return self.intrinsic("trunc", x)

    def copysign(self, x: V, sign: V) -> V:
        return self.intrinsic("copysign", x, sign)

    def fmin_x86(self, x: Operand, y: Operand) -> V:
        """x < y ? x : y, which is one minps: gives y when either is NaN."""
        x, y = self._pair(x, y)
        return self.select(self.fcmp("olt", x, y), x, y)

    def fmax_x86(self, x: Operand, y: Operand) -> V:
        """x > y ? x : y, which is one maxps: gives y when either is NaN."""
        x, y = self._pair(x, y)
        return self.select(self.fcmp("ogt", x, y), x, y)

    # -- compare, select, casts -------------------------------------------------------------------------------

    def icmp(self, pred: str, x: Operand, y: Operand) -> V:
        """pred: eq ne slt sle sgt sge ult ule ugt uge. Result i1 (or a vector of it)."""
        x, y = self._pair(x, y)
        ty = vec(I1, x.ty.lanes)
        if x.const is not None and y.const is not None and pred in _ICMP_FOLD and x.ty.kind == "i":
            return const(int(_ICMP_FOLD[pred](int(x.const), int(y.const))), ty)
        return self._pure(ty, f"icmp {pred} {x.ty.text} {x.name}, {y.name}")

    def fcmp(self, pred: str, x: Operand, y: Operand) -> V:
        """pred: oeq une olt ole ogt oge ord uno ueq one ult ule ugt uge."""
        x, y = self._pair(x, y)
        return self._pure(vec(I1, x.ty.lanes), f"fcmp {pred} {x.ty.text} {x.name}, {y.name}")

    def select(self, cond: V, x: Operand, y: Operand) -> V:
        """Per lane `cond ? x : y`; a scalar condition chooses whole vectors."""
        x, y = self._pair(x, y)
        if cond.const is not None:
            return x if cond.const else y
        if x.name == y.name:
            return x
        if x.ty.elem is I1 and cond.ty is x.ty and x.const is not None and y.const is not None:
            return cond if x.const else self.not_(cond)
        return self._pure(x.ty, f"select {cond.ty.text} {cond.name}, {x.ty.text} {x.name}, {y.ty.text} {y.name}")

    def _cast(self, op: str, x: V, elem: Ty) -> V:
        ty = vec(elem, x.ty.lanes)
        if ty is x.ty:
            return x
        return self._pure(ty, f"{op} {x.ty.text} {x.name} to {ty.text}")

    def trunc(self, x: V, elem: Ty) -> V:
        if x.const is not None:
            return const(wrap_int(int(x.const), elem.elem.bits), vec(elem, x.ty.lanes))
        return self._cast("trunc", x, elem)

    def zext(self, x: V, elem: Ty) -> V:
        if x.const is not None:
            return const(int(x.const) & ((1 << x.ty.bits) - 1), vec(elem, x.ty.lanes))
        return self._cast("zext", x, elem)

    def sext(self, x: V, elem: Ty) -> V:
        if x.const is not None:
            value = int(x.const) if x.ty.bits > 1 else -int(x.const)
            return const(value, vec(elem, x.ty.lanes))
        return self._cast("sext", x, elem)

    def fpext(self, x: V, elem: Ty) -> V:
        return self._cast("fpext", x, elem)

    def fptrunc(self, x: V, elem: Ty) -> V:
        return self._cast("fptrunc", x, elem)

    def sitofp(self, x: V, elem: Ty) -> V:
        if x.const is not None and abs(x.const) <= 1 << 24:
            return const(float(int(x.const)), vec(elem, x.ty.lanes))
        return self._cast("sitofp", x, elem)

    def uitofp(self, x: V, elem: Ty) -> V:
        return self._cast("uitofp", x, elem)

    def fptosi(self, x: V, elem: Ty) -> V:
        """Poison out of range: clamp or select first."""
        return self._cast("fptosi", x, elem)

    def fptoui(self, x: V, elem: Ty) -> V:
        """Poison out of range: clamp or select first."""
        return self._cast("fptoui", x, elem)

    def bitcast(self, x: V, ty: Ty) -> V:
        """Reinterpret the bits; `ty` is the full result type (or an element type for the same lane count)."""
        if ty.bits == x.ty.bits and ty.lanes == 1 and x.ty.lanes > 1:
            ty = vec(ty, x.ty.lanes)
        if ty is x.ty:
            return x
        return self._pure(ty, f"bitcast {x.ty.text} {x.name} to {ty.text}")

    def ptrtoint(self, p: V) -> V:
        return self._pure(I64, f"ptrtoint ptr {p.name} to i64")
