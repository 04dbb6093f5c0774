"""The core of `FnBuilder`: emission of text, scoped value numbering, hoisting, and the allow-list of intrinsics."""

from __future__ import annotations

import re
from collections.abc import Sequence

from disc_tf.codegen.llvm_types import I64, VOID, Number, Ty, V, const

Operand = V | int | float | bool

_NAMES = re.compile(r"%[\w.]+")

# Intrinsics that are known to be expanded inline on every supported CPU target, for every width and element type.
# Anything that may become a libm call (exp, sin, fma without FMA, ...) must not be here.
SAFE_INTRINSICS = frozenset({
    "sqrt", "fabs", "copysign", "floor", "ceil", "rint", "trunc", "ctpop", "ctlz", "cttz", "smin", "smax", "umin",
    "umax", "abs", "bswap", "fshl", "fshr", "uadd.sat", "usub.sat", "sadd.sat", "ssub.sat",
})


class FnCore:
    """Builds the text of one function (see `llvm.FnBuilder`).

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

    # -- declarations and intrinsics ---------------------------------------------------------------------------

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
