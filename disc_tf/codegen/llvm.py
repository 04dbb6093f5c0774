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
guard: shifts by the width or more, division by zero, out-of-range float-to-int (see `cpu/lane_ops.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from disc_tf.codegen.llvm_core import SAFE_INTRINSICS, Operand
from disc_tf.codegen.llvm_memory import Memory
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
    vec,
)

__all__ = [
    "BF16",
    "F16",
    "F32",
    "F64",
    "I1",
    "I8",
    "I16",
    "I32",
    "I64",
    "NULL",
    "PTR",
    "SAFE_INTRINSICS",
    "VOID",
    "FnBuilder",
    "ModuleText",
    "Number",
    "Operand",
    "Ty",
    "V",
    "const",
    "const_vector",
    "int_like",
    "int_ty",
    "poison",
    "vec",
]


class FnBuilder(Memory):
    """Builds the text of one function: see `FnCore` for the arguments, `Arithmetic` and `Memory` for instructions; control
    flow is here."""

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
            incoming = ", ".join(f"[ {v.name}, %{e[0]} ]" for v, e in zip(column, edges, strict=True))
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
        for p, v in zip(phis, nexts, strict=True):
            if p.ty is not v.ty:
                raise TypeError(f"loop in {self.name}: carried {p.ty} becomes {v.ty}")
        after = self._emit(I64, f"add nsw i64 {i.name}, {step.name}")
        last = self._block
        again = self._emit(I1, f"icmp slt i64 {after.name}, {hi.name}")
        self._cond_branch(again, head, out)
        self._pop()
        self._lines[slot] = f"  {i.name} = phi i64 [ {lo.name}, %{before} ], [ {after.name}, %{last} ]"
        for k, (p, v0, v1) in enumerate(zip(phis, inits, nexts, strict=True)):
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

    def definition(self, symbol: str) -> str:
        """The text that ``symbol`` was added with. ``KeyError`` if it was not."""
        return self._defined[symbol]

    def text(self) -> str:
        declared = [line for symbol, line in sorted(self._declared.items()) if symbol not in self._defined]
        return "\n".join([*self._globals.values(), *declared, "", *self._defined.values()])
