"""`FnBuilder`: LLVM IR written as text, with typed SSA handles, trivial folding and scoped value numbering.

Writing text is 20-50 times faster than building llvmlite.ir objects, and the modules are compiled without a pass
pipeline, so the builder itself does the cheap part of one: constants are folded, a pure instruction that was
already emitted in a dominating block is reused. Control flow is structured (`loop`, `while_loop`, `if_else`,
`switch`), which is what makes that reuse sound.

    b = FnBuilder("k_scale", [("x", PTR), ("n", I64)])
    x, n = b.params
    b.loop(0, n, 8, [], lambda i, _: b.store(b.fmul(b.load(vec(F32, 8), b.gep(x, i, F32)), 2.0), b.gep(x, i, F32)))
    b.ret()
    text = b.text()

Operands may be Python numbers wherever another operand fixes the type. Undefined behaviour is the caller's to
guard: shifts by the width or more, division by zero, out-of-range float-to-int (see `cpu/scalar_ops.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from disc_tf.codegen.llvm_types import (
    BF16,
    F16,
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    NULL,
    PTR,
    VOID,
    Number,
    Ty,
    V,
    const,
    const_vector,
    int_like,
    int_ty,
    poison,
    scalar_text,
    vec,
    wrap_int,
)

__all__ = [
    "BF16", "F16", "F32", "F64", "I1", "I8", "I16", "I32", "I64", "NULL", "PTR", "VOID",
    "FnBuilder", "ModuleText", "Number", "Ty", "V", "const", "const_vector", "int_like", "int_ty", "poison", "vec",
]

Operand = V | int | float | bool

_NAMES = re.compile(r"%[\w.]+")

# Intrinsics that are known to be expanded inline on every supported CPU target, for every width and element type.
# Anything that may become a libm call (exp, sin, fma without FMA, ...) must not be here.
SAFE_INTRINSICS = frozenset({
    "sqrt", "fabs", "copysign", "floor", "ceil", "rint", "trunc", "ctpop", "ctlz", "cttz", "smin", "smax", "umin",
    "umax", "abs", "bswap", "fshl", "fshr", "uadd.sat", "usub.sat", "sadd.sat", "ssub.sat",
})

_COMMUTATIVE = frozenset({"add", "mul", "and", "or", "xor", "fadd", "fmul"})

_INT_FOLD: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
    "and": lambda x, y: x & y, "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y,
}
_ICMP_FOLD: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "slt": lambda x, y: x < y, "sle": lambda x, y: x <= y,
    "sgt": lambda x, y: x > y, "sge": lambda x, y: x >= y,
}


class FnBuilder:
    """Builds the text of one function.

    Args:
        name: the function's symbol.
        params: (name, type) pairs; `b.params` holds their values.
        ret: return type.
        linkage: e.g. "internal", "linkonce_odr hidden"; empty for an exported function.
        fma: whether the target has fused multiply-add (`fma` falls back to mul+add without).
        noalias: names of pointer parameters that alias nothing else.
        attrs: extra function attributes, e.g. `CpuTarget.fn_attrs` or `noinline`.
        hoist: move pure instructions out of the loops that they do not depend on (see `_pure`). Off by default:
            micro-kernels place every instruction themselves.
        f16c: whether half <-> float conversions are instructions (default: as `fma`, they came together).
    """

    def __init__(self, name: str, params: Sequence[tuple[str, Ty]], ret: Ty = VOID, *, linkage: str = "",
                 fma: bool = True, noalias: Sequence[str] = (), attrs: str = "",
                 hoist: bool = False, f16c: bool | None = None) -> None:
        self.name = name
        self.has_f16c = fma if f16c is None else f16c
        self._hoist = hoist
        self.ret_ty = ret
        self.has_fma = fma
        self.declarations: dict[str, str] = {}  # symbol -> declare line
        self.params = [V(f"%{n}", ty) for n, ty in params]
        spelled = ", ".join(f"{ty.text}{' noalias' if n in noalias else ''} %{n}" for n, ty in params)
        linkage = linkage + " " if linkage else ""
        self._head = f"define {linkage}{ret.text} @{name}({spelled}) nounwind {attrs} {{"
        self._lines: list[str | list[str]] = []  # a list is a loop's preheader, filled while its body is emitted
        self._allocas: list[str] = []
        self._next = 0
        self._block = "entry"
        self._open = True
        self._scopes: list[dict[object, V]] = [{}]
        self._preheaders: list[list[str] | None] = [None]  # per scope: where its loop takes hoisted code
        self._depth: dict[str, int] = {}  # value -> scope that it is defined in; absent: the outermost

    # -- plumbing ---------------------------------------------------------------------------------------------

    def _fresh(self) -> str:
        self._next += 1
        return f"%v{self._next}"

    def _label(self, hint: str) -> str:
        self._next += 1
        return f"{hint}{self._next}"

    def _emit(self, ty: Ty, rhs: str) -> V:
        """An instruction with a result and no reuse."""
        name = self._fresh()
        self._lines.append(f"  {name} = {rhs}")
        if self._hoist:
            self._depth[name] = len(self._scopes) - 1
        return V(name, ty)

    def _pure(self, ty: Ty, rhs: str, *, speculate: bool = True) -> V:
        """An instruction without effects: reused when a dominating block already has it.

        With `hoist` it goes to the preheader of the outermost loop that none of its operands depends on. Preheaders
        run only when their loop does, so that loads may go there too; only what cannot trap (`speculate`) may leave
        a branch.
        """
        for scope in reversed(self._scopes):
            hit = scope.get(rhs)
            if hit is not None:
                return hit
        if not self._hoist or len(self._scopes) == 1:
            value = self._scopes[-1][rhs] = self._emit(ty, rhs)
            return value
        needed = max((self._depth.get(n, 0) for n in _NAMES.findall(rhs)), default=0)
        home, preheader = 0, None
        for level in range(len(self._scopes) - 1, needed, -1):
            found = self._preheaders[level]
            if found is not None:
                home, preheader = level, found
            elif not speculate:
                break
        if preheader is None:
            value = self._scopes[-1][rhs] = self._emit(ty, rhs)
            return value
        name = self._fresh()
        preheader.append(f"  {name} = {rhs}")
        self._depth[name] = home - 1
        # Known for the loop's body only: the preheader is skipped when the loop is.
        value = self._scopes[home][rhs] = V(name, ty)
        return value

    def remember(self, key: object, value: V) -> V:
        """Note `value` under `key` (not a str) for as long as the current block dominates. Returns the value."""
        self._scopes[-1][key] = value
        return value

    def recall(self, key: object) -> V | None:
        """What `remember` noted under `key` in this or a dominating block."""
        for scope in reversed(self._scopes):
            hit = scope.get(key)
            if hit is not None:
                return hit
        return None

    def in_entry(self, ty: Ty, rhs: str) -> V:
        """A pure instruction over parameters (and other entry values), placed in the entry block."""
        hit = self._scopes[0].get(rhs)
        if hit is None:
            name = self._fresh()
            self._allocas.append(f"  {name} = {rhs}")
            hit = self._scopes[0][rhs] = V(name, ty)
        return hit

    def _push(self, preheader: list[str] | None = None) -> None:
        self._scopes.append({})
        self._preheaders.append(preheader)

    def _pop(self) -> None:
        self._scopes.pop()
        self._preheaders.pop()

    def _effect(self, text: str) -> None:
        self._lines.append("  " + text)

    def _start(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._block = label
        self._open = True

    def _branch(self, label: str) -> None:
        if self._open:
            self._effect(f"br label %{label}")
            self._open = False

    def _cond_branch(self, cond: V, then: str, other: str) -> None:
        self._effect(f"br i1 {cond.name}, label %{then}, label %{other}")
        self._open = False

    def const(self, value: Number, ty: Ty) -> V:
        """A constant; for a vector type in every lane."""
        return const(value, ty)

    def i64(self, value: Operand) -> V:
        """`value` as an i64 scalar (numbers become constants)."""
        return value if isinstance(value, V) else const(int(value), I64)

    def _pair(self, x: Operand, y: Operand) -> tuple[V, V]:
        if not isinstance(x, V):
            if not isinstance(y, V):
                raise TypeError("one operand must be a V to fix the type")
            x = const(x, y.ty)
        elif not isinstance(y, V):
            y = const(y, x.ty)
        if x.ty is not y.ty:
            raise TypeError(f"operand types differ in {self.name}: {x.ty} and {y.ty}")
        return x, y

    def text(self) -> str:
        """The function's definition."""
        if self._open:
            raise ValueError(f"function {self.name} does not end in a terminator: call ret()")
        lines: list[str] = []
        for line in self._lines:
            if isinstance(line, str):
                lines.append(line)
            else:
                lines.extend(line)
        return "\n".join([self._head, "entry:", *self._allocas, *lines, "}", ""])

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

    # -- memory -----------------------------------------------------------------------------------------------

    def gep(self, p: V, index: Operand, elem: Ty) -> V:
        """Address of element `index` (of type `elem`) from `p`; a vector index gives a vector of pointers."""
        index = self.i64(index)
        if index.const == 0 and index.ty.lanes == 1:
            return p
        if index.ty.lanes > 1:
            ty = vec(PTR, index.ty.lanes)
            return self._pure(ty, f"getelementptr {elem.text}, ptr {p.name}, {index.ty.text} {index.name}")
        return self._pure(PTR, f"getelementptr inbounds {elem.text}, ptr {p.name}, i64 {index.name}")

    def load(self, ty: Ty, p: V, align: int | None = None, *, invariant: bool = False) -> V:
        """Load `ty`; the default alignment is one element (inputs have no wider one).

        `invariant` promises that nothing in this function stores there, and lets an earlier load be reused.
        """
        text = f"load {ty.text}, ptr {p.name}, align {align or ty.bytes}"
        if invariant:
            return self._pure(ty, text, speculate=False)
        return self._emit(ty, text)

    def store(self, value: V, p: V, align: int | None = None) -> None:
        self._effect(f"store {value.ty.text} {value.name}, ptr {p.name}, align {align or value.ty.bytes}")

    def masked_load(self, ty: Ty, p: V, mask: V, passthru: V | None = None, align: int | None = None,
                    *, invariant: bool = False) -> V:
        """Lanes whose mask is false read nothing and give `passthru` (default 0). `invariant` as in `load`."""
        passthru = passthru or const(0, ty)
        name = f"llvm.masked.load.{ty.suffix}.p0"
        self._declare(name, f"declare {ty.text} @{name}(ptr, i32, {mask.ty.text}, {ty.text})")
        text = f"call {ty.text} @{name}(ptr {p.name}, i32 {align or ty.bytes}, {mask!r}, {passthru!r})"
        return self._pure(ty, text, speculate=False) if invariant else self._emit(ty, text)

    def masked_store(self, value: V, p: V, mask: V, align: int | None = None) -> None:
        ty = value.ty
        name = f"llvm.masked.store.{ty.suffix}.p0"
        self._declare(name, f"declare void @{name}({ty.text}, ptr, i32, {mask.ty.text})")
        self._effect(f"call void @{name}({value!r}, ptr {p.name}, i32 {align or ty.bytes}, {mask!r})")

    def gather(self, elem: Ty, p: V, index: V, mask: V | None = None, passthru: V | None = None,
               *, invariant: bool = False) -> V:
        """Lane i loads `elem` at p + index[i]; masked-off lanes read nothing. `invariant` as in `load`."""
        lanes = index.ty.lanes
        if lanes == 1:
            return self.load(elem, self.gep(p, index, elem), invariant=invariant)
        ty = vec(elem, lanes)
        mask = mask or const(1, vec(I1, lanes))
        passthru = passthru or const(0, ty)
        ptrs = self.gep(p, index, elem)
        name = f"llvm.masked.gather.{ty.suffix}.v{lanes}p0"
        self._declare(name, f"declare {ty.text} @{name}({ptrs.ty.text}, i32, {mask.ty.text}, {ty.text})")
        text = f"call {ty.text} @{name}({ptrs!r}, i32 {elem.bytes}, {mask!r}, {passthru!r})"
        return self._pure(ty, text, speculate=False) if invariant else self._emit(ty, text)

    def scatter(self, value: V, p: V, index: V, mask: V | None = None) -> None:
        """Lane i stores value[i] at p + index[i], in lane order."""
        ty, lanes = value.ty, value.ty.lanes
        if lanes == 1:
            self.store(value, self.gep(p, index, ty))
            return
        mask = mask or const(1, vec(I1, lanes))
        ptrs = self.gep(p, index, ty.elem)
        name = f"llvm.masked.scatter.{ty.suffix}.v{lanes}p0"
        self._declare(name, f"declare void @{name}({ty.text}, {ptrs.ty.text}, i32, {mask.ty.text})")
        self._effect(f"call void @{name}({value!r}, {ptrs!r}, i32 {ty.bytes}, {mask!r})")

    def alloca(self, ty: Ty, count: int = 1, align: int = 64) -> V:
        """Fixed-size stack space in the entry block. Frames stay under 16 KiB; larger needs use scratch."""
        name = self._fresh()
        self._allocas.append(f"  {name} = alloca {ty.text}, i32 {count}, align {align}")
        return V(name, PTR)

    def prefetch(self, p: V, *, write: bool = False, locality: int = 3) -> None:
        name = "llvm.prefetch.p0"
        self._declare(name, f"declare void @{name}(ptr, i32, i32, i32)")
        self._effect(f"call void @{name}(ptr {p.name}, i32 {int(write)}, i32 {locality}, i32 1)")

    def atomic_umin(self, p: V, value: V) -> None:
        """*p = min(*p, value), unsigned, atomically: the first-error cell."""
        self._emit(value.ty, f"atomicrmw umin ptr {p.name}, {value!r} monotonic")

    # -- vectors ----------------------------------------------------------------------------------------------

    def splat(self, x: V, lanes: int) -> V:
        """The scalar in every lane; a vector of that many lanes is returned as it is."""
        if lanes == 1 or x.ty.lanes == lanes:
            return x
        if x.ty.lanes != 1:
            raise TypeError(f"cannot splat {x.ty} to {lanes} lanes")
        ty = vec(x.ty, lanes)
        if x.const is not None:
            return const(x.const, ty)
        one = self._pure(ty, f"insertelement {ty.text} poison, {x!r}, i64 0")
        mask = f"<{lanes} x i32> zeroinitializer"
        return self._pure(ty, f"shufflevector {one!r}, {ty.text} poison, {mask}")

    def iota(self, lanes: int, elem: Ty = I64) -> V:
        """0, 1, 2, ... as constants."""
        return const_vector(range(lanes), elem)

    def shuffle(self, x: V, y: V | None, index: Sequence[int]) -> V:
        """Lanes of x (0..n-1) and y (n..2n-1) picked by `index`; -1 is don't-care."""
        y = y or poison(x.ty)
        ty = vec(x.ty, len(index))
        if len(index) == 1:
            n = x.ty.lanes
            return self.extract(x, index[0]) if index[0] < n else self.extract(y, index[0] - n)
        if y.name == "poison" and tuple(index) == tuple(range(x.ty.lanes)):
            return x
        mask = ", ".join("i32 poison" if i < 0 else f"i32 {i}" for i in index)
        return self._pure(ty, f"shufflevector {x!r}, {y!r}, <{len(index)} x i32> <{mask}>")

    def extract(self, x: V, lane: Operand) -> V:
        if x.ty.lanes == 1:
            return x
        if x.const is not None:
            return const(x.const, x.ty.elem)
        return self._pure(x.ty.elem, f"extractelement {x!r}, i64 {self.i64(lane).name}")

    def insert(self, x: V, value: V, lane: Operand) -> V:
        if x.ty.lanes == 1:
            return value
        return self._pure(x.ty, f"insertelement {x!r}, {value!r}, i64 {self.i64(lane).name}")

    def concat(self, x: V, y: V) -> V:
        """The lanes of x followed by those of y (equal types)."""
        if x.ty.lanes == 1:
            both = vec(x.ty, 2)
            return self.insert(self.insert(poison(both), x, 0), y, 1)
        return self.shuffle(x, y, range(2 * x.ty.lanes))

    def low_half(self, x: V) -> V:
        return self.shuffle(x, None, range(x.ty.lanes // 2))

    def high_half(self, x: V) -> V:
        return self.shuffle(x, None, range(x.ty.lanes // 2, x.ty.lanes))

    def hreduce(self, x: V, op: Callable[[V, V], V]) -> V:
        """Combine all lanes (a power of two) in the fixed tree lane i with lane i + n/2."""
        while x.ty.lanes > 1:
            x = op(self.low_half(x), self.high_half(x))
        return x

    def any_lane(self, mask: V) -> V:
        """i1: whether any lane of an i1 vector is set."""
        if mask.ty.lanes == 1:
            return mask
        bits = self.bitcast(mask, int_ty(mask.ty.lanes))
        return self.icmp("ne", bits, 0)

    # -- calls ------------------------------------------------------------------------------------------------

    def _declare(self, symbol: str, line: str) -> None:
        self.declarations[symbol] = line

    def declare(self, symbol: str, ret: Ty, params: Sequence[Ty]) -> None:
        """Note a function defined elsewhere in the module (dropped if the module defines it)."""
        self._declare(symbol, f"declare {ret.text} @{symbol}({', '.join(p.text for p in params)})")

    def _call_intrinsic(self, name: str, ty: Ty, args: Sequence[V]) -> V:
        symbol = f"llvm.{name}.{ty.suffix}"
        extra = {"ctlz": ", i1 false", "cttz": ", i1 false", "abs": ", i1 false"}.get(name, "")
        extra_ty = ", i1" if extra else ""
        params = ", ".join(a.ty.text for a in args)
        self._declare(symbol, f"declare {ty.text} @{symbol}({params}{extra_ty})")
        return self._pure(ty, f"call {ty.text} @{symbol}({', '.join(map(repr, args))}{extra})")

    def intrinsic(self, name: str, *args: Operand) -> V:
        """`llvm.<name>` overloaded on its first operand's type; only names that never become a libm call."""
        if name not in SAFE_INTRINSICS:
            raise ValueError(f"llvm.{name} is not on the allow-list: it may become a library call")
        ref = next(a for a in args if isinstance(a, V))
        values = [a if isinstance(a, V) else const(a, ref.ty) for a in args]
        return self._call_intrinsic(name, ref.ty, values)

    def table(self, symbol: str, elem: Ty, values: Sequence[Number]) -> V:
        """Address of a constant array in the module; equal symbols must have equal contents."""
        body = ", ".join(f"{elem.text} {scalar_text(v, elem)}" for v in values)
        self._declare(symbol, f"@{symbol} = internal unnamed_addr constant [{len(values)} x {elem.text}] [{body}], align 64")
        return V(f"@{symbol}", PTR)

    def call(self, symbol: str, ret: Ty, args: Sequence[V], *, declare: bool = True) -> V | None:
        """Call a function of this module by name. Returns its result, or None for void."""
        if declare:
            self.declare(symbol, ret, [a.ty for a in args])
        text = f"call {ret.text} @{symbol}({', '.join(map(repr, args))})"
        if ret is VOID:
            self._effect(text)
            return None
        return self._emit(ret, text)

    def call_ptr(self, fn: V, ret: Ty, args: Sequence[V]) -> V | None:
        """Call through a pointer."""
        text = f"call {ret.text} {fn.name}({', '.join(map(repr, args))})"
        if ret is VOID:
            self._effect(text)
            return None
        return self._emit(ret, text)

    def ret(self, value: V | None = None) -> None:
        self._effect("ret void" if value is None else f"ret {value!r}")
        self._open = False

    def unreachable(self) -> None:
        self._effect("unreachable")
        self._open = False

    # -- control flow -----------------------------------------------------------------------------------------

    def _region(self, label: str, body: Callable[[], Sequence[V] | None], exit_label: str) -> tuple[str, list[V], bool]:
        """Emit `body` in its own block and scope, ending in a jump to `exit_label`.

        Returns the label it leaves from, its results, and whether it reaches the exit at all.
        """
        self._start(label)
        self._push()
        results = list(body() or [])
        self._pop()
        reaches = self._open
        last = self._block
        self._branch(exit_label)
        return last, results, reaches

    def _merge(self, exit_label: str, edges: Sequence[tuple[str, list[V], bool]]) -> list[V]:
        edges = [e for e in edges if e[2]]
        self._start(exit_label)
        if not edges:
            self.unreachable()
            return []
        results = []
        for column in zip(*(e[1] for e in edges), strict=True):
            if all(v.name == column[0].name for v in column):
                results.append(column[0])
                continue
            ty = column[0].ty
            if any(v.ty is not ty for v in column):
                raise TypeError(f"branches of {self.name} give different types: {[v.ty for v in column]}")
            incoming = ", ".join(f"[ {v.name}, %{e[0]} ]" for v, e in zip(column, edges))
            results.append(self._emit(ty, f"phi {ty.text} {incoming}"))
        return results

    def if_else(self, cond: V, then: Callable[[], Sequence[V] | None],
                other: Callable[[], Sequence[V] | None] | None = None) -> list[V]:
        """Both branches give the same number of results (values, or None for none); returns the merged ones."""
        if cond.const is not None:
            chosen = then if cond.const else other
            return list(chosen() or []) if chosen else []
        t, o, x = self._label("then"), self._label("else"), self._label("join")
        self._cond_branch(cond, t, o)
        edges = [self._region(t, then, x), self._region(o, other or (lambda: None), x)]
        return self._merge(x, edges)

    def if_then(self, cond: V, then: Callable[[], Sequence[V] | None], otherwise: Sequence[V] = ()) -> list[V]:
        """Run `then` when cond holds; the results are those of `then`, else `otherwise`."""
        return self.if_else(cond, then, lambda: list(otherwise))

    def loop(self, lo: Operand, hi: Operand, step: Operand, inits: Sequence[V],
             body: Callable[[V, list[V]], Sequence[V] | None], hint: str = "loop") -> list[V]:
        """for (i = lo; i < hi; i += step) carried = body(i, carried). Signed i64; step > 0; zero trips allowed.

        `body` returns the next carried values (None when there are none). Returns the values after the loop.
        """
        lo, hi, step = self.i64(lo), self.i64(hi), self.i64(step)
        known = lo.const is not None and hi.const is not None
        left = hi.const - lo.const if lo.const is not None and hi.const is not None else 1
        if left <= 0:
            return list(inits)
        if known and step.const is not None and step.const >= left:
            return list(body(lo, list(inits)) or [])
        head, out = self._label(hint), self._label(hint + ".x")
        before = skipped_from = self._block
        preheader: list[str] | None = None
        if self._hoist:
            if not known:
                before = self._label(hint + ".ph")
                self._cond_branch(self.icmp("slt", lo, hi), before, out)
                self._start(before)
            preheader = []
            self._lines.append(preheader)
            self._branch(head)
        elif known:
            self._branch(head)
        else:
            self._cond_branch(self.icmp("slt", lo, hi), head, out)
        self._start(head)
        self._push(preheader)
        slot = len(self._lines)
        i = V(self._fresh(), I64)
        phis = [V(self._fresh(), v.ty) for v in inits]
        if self._hoist:
            self._depth.update({v.name: len(self._scopes) - 1 for v in (i, *phis)})
        self._lines.extend([""] * (1 + len(phis)))
        nexts = list(body(i, list(phis)) or [])
        if len(nexts) != len(phis):
            raise ValueError(f"loop in {self.name}: {len(phis)} values carried in, {len(nexts)} out")
        for p, v in zip(phis, nexts):
            if p.ty is not v.ty:
                raise TypeError(f"loop in {self.name}: carried {p.ty} becomes {v.ty}")
        after = self._emit(I64, f"add nsw i64 {i.name}, {step.name}")
        last = self._block
        again = self._emit(I1, f"icmp slt i64 {after.name}, {hi.name}")
        self._cond_branch(again, head, out)
        self._pop()
        self._lines[slot] = f"  {i.name} = phi i64 [ {lo.name}, %{before} ], [ {after.name}, %{last} ]"
        for k, (p, v0, v1) in enumerate(zip(phis, inits, nexts)):
            self._lines[slot + 1 + k] = (
                f"  {p.name} = phi {p.ty.text} [ {v0.name}, %{before} ], [ {v1.name}, %{last} ]")
        edges = [(last, nexts, True)] if known else [(skipped_from, list(inits), True), (last, nexts, True)]
        return self._merge(out, edges)

    def while_loop(self, inits: Sequence[V], cond: Callable[[list[V]], V],
                   body: Callable[[list[V]], Sequence[V]]) -> list[V]:
        """while (cond(carried)) carried = body(carried); returns the last carried values."""
        head, inner, out = self._label("while"), self._label("do"), self._label("done")
        before = self._block
        self._branch(head)
        self._start(head)
        self._push()
        slot = len(self._lines)
        phis = [V(self._fresh(), v.ty) for v in inits]
        if self._hoist:
            self._depth.update({v.name: len(self._scopes) - 1 for v in phis})
        self._lines.extend([""] * len(phis))
        test = cond(list(phis))
        self._cond_branch(test, inner, out)
        self._start(inner)
        self._push()
        nexts = list(body(list(phis)))
        self._pop()
        last = self._block
        self._branch(head)
        self._pop()
        for k, (p, v0, v1) in enumerate(zip(phis, inits, nexts, strict=True)):
            if p.ty is not v1.ty:
                raise TypeError(f"while in {self.name}: carried {p.ty} becomes {v1.ty}")
            self._lines[slot + k] = f"  {p.name} = phi {p.ty.text} [ {v0.name}, %{before} ], [ {v1.name}, %{last} ]"
        self._start(out)
        if self._hoist:  # the header dominates the exit: the phis are values of the scope around the loop
            self._depth.update({v.name: len(self._scopes) - 1 for v in phis})
        return phis

    def switch(self, value: V, cases: Mapping[int, Callable[[], Sequence[V] | None]],
               default: Callable[[], Sequence[V] | None] | None = None) -> list[V]:
        """Run the case whose number is `value`, else `default` (None: unreachable). Returns the merged results."""
        out, other = self._label("join"), self._label("default")
        labels = {n: self._label("case") for n in cases}
        table = " ".join(f"{value.ty.text} {n}, label %{label}" for n, label in labels.items())
        self._effect(f"switch {value!r}, label %{other} [ {table} ]")
        self._open = False
        edges = [self._region(labels[n], fn, out) for n, fn in cases.items()]
        if default is None:
            self._start(other)
            self.unreachable()
        else:
            edges.append(self._region(other, default, out))
        return self._merge(out, edges)


class ModuleText:
    """Assembles functions into one module; each declaration and each definition appears once."""

    def __init__(self) -> None:
        self._defined: dict[str, str] = {}
        self._declared: dict[str, str] = {}
        self._globals: dict[str, str] = {}

    def add(self, fn: FnBuilder) -> None:
        self.add_text(fn.name, fn.text(), fn.declarations)

    def add_text(self, symbol: str, definition: str, declarations: Mapping[str, str] = {}) -> None:
        """A definition by text. Adding the same symbol twice needs the same text."""
        old = self._defined.get(symbol)
        if old is not None and old != definition:
            raise ValueError(f"two different definitions of {symbol}")
        self._defined[symbol] = definition
        self._declared.update(declarations)

    def add_global(self, symbol: str, line: str) -> None:
        """A global's definition line, e.g. a constant table."""
        self._globals[symbol] = line

    def text(self) -> str:
        declared = [line for symbol, line in sorted(self._declared.items()) if symbol not in self._defined]
        return "\n".join([*self._globals.values(), *declared, "", *self._defined.values()])
