"""Dims as machine code: i64 arithmetic for symbolic extents, and an overflow-safe size test."""

from __future__ import annotations

from collections.abc import Mapping

from disc_tf.codegen.llvm import F64, I64, FnBuilder, V
from disc_tf.ir.dims import Atom, Dim


class UnboundSymbol(ValueError):
    """A dim uses a symbol that nothing has bound yet."""


class DimEmitter:
    """Evaluates dims in a function. ``symbols`` maps a symbol's name to its i64 value (it may grow).

    Only call it at the top level of the function (outside loops and branches) if the results are to be kept: values are
    remembered by the builder's own value numbering, which is scoped.
    """

    def __init__(self, b: FnBuilder, symbols: Mapping[str, V]) -> None:
        self.b = b
        self.symbols = symbols

    def i64(self, d: Dim) -> V:
        """The value of ``d``; floordiv and mod round towards minus infinity and give 0 for a zero divisor."""
        b = self.b
        total: V | None = None
        for coefficient, mono in d.terms:
            product: V | None = None
            for atom, power in mono:
                base = self._atom(atom)
                for _ in range(power):
                    product = base if product is None else b.mul(product, base)
            value = b.i64(coefficient) if product is None else b.mul(product, coefficient)
            total = value if total is None else b.add(total, value)
        return total if total is not None else b.i64(0)

    def f64(self, d: Dim) -> V:
        """An upper bound of |d| in double precision: never wraps, so it tells whether the i64 value is right."""
        b = self.b
        total: V | None = None
        for coefficient, mono in d.terms:
            value = b.const(float(abs(coefficient)), F64)
            for atom, power in mono:
                base = self._atom_bound(atom)
                for _ in range(power):
                    value = b.fmul(value, base)
            total = value if total is None else b.fadd(total, value)
        return total if total is not None else b.const(0.0, F64)

    def _atom_bound(self, atom: Atom) -> V:
        """An upper bound of an atom's magnitude, from bounds of its arguments: those may have wrapped as i64."""
        b = self.b
        if atom.kind == "sym":
            return b.fabs(b.sitofp(self._atom(atom), F64))
        x, y = (self.f64(a) for a in atom.args)
        if atom.kind == "floordiv":
            return b.fadd(x, b.const(1.0, F64))
        return y if atom.kind == "mod" else b.fadd(x, y)

    def _atom(self, atom: Atom) -> V:
        b = self.b
        if atom.kind == "sym":
            if atom.name not in self.symbols:
                raise UnboundSymbol(f"dimension symbol {atom.name} is used before it is bound")
            return self.symbols[atom.name]
        x, y = (self.i64(a) for a in atom.args)
        if atom.kind == "min":
            return b.smin(x, y)
        if atom.kind == "max":
            return b.smax(x, y)
        if atom.kind == "bcast":
            return b.select(b.icmp("eq", x, 1), y, x)
        quotient, remainder = floor_divide(b, x, y)
        return quotient if atom.kind == "floordiv" else remainder


def floor_divide(b: FnBuilder, x: V, y: V) -> tuple[V, V]:
    """(x // y, x % y) rounding towards minus infinity; (0, 0) for y == 0; never traps."""
    if y.const is not None and y.const > 0:
        q, r = b.sdiv(x, y), b.srem(x, y)
        negative = b.icmp("slt", r, 0)
        return b.sub(q, b.zext(negative, I64)), b.add(r, b.select(negative, y, b.i64(0)))
    zero, minus = b.icmp("eq", y, 0), b.icmp("eq", y, -1)
    safe = b.select(b.or_(zero, minus), b.i64(1), y)
    q, r = b.sdiv(x, safe), b.srem(x, safe)
    wrong = b.and_(b.icmp("ne", r, 0), b.icmp("ne", b.icmp("slt", r, 0), b.icmp("slt", safe, 0)))
    q = b.sub(q, b.zext(wrong, I64))
    r = b.add(r, b.select(wrong, safe, b.i64(0)))
    q = b.select(minus, b.sub(b.i64(0), x), q)
    return b.select(zero, b.i64(0), q), b.select(zero, b.i64(0), r)
