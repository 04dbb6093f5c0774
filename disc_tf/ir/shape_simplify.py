"""Divisibility facts, and the simplification of floordiv, mod, min, max and bcast by what is known.

The middle layer of `shape_env`, above `shape_bounds`. Dims given to it have their solved symbols substituted already.
"""

from __future__ import annotations

from math import gcd

from disc_tf.ir.dims import Atom, Dim, Monomial, apply_atom, exact_div
from disc_tf.ir.shape_bounds import Bounds


class Simplifier(Bounds):
    """Rewrites atoms into simpler equal ones; never cancels a factor that may be zero."""

    def __init__(self) -> None:
        super().__init__()
        self._multiples: list[tuple[Dim, Dim]] = []  # divisor, dividend

    def known_factor(self, mono: Monomial) -> int:
        """A constant that is known to divide the monomial."""
        factor = 1
        for atom, power in mono:
            known = 1
            as_dim = Dim(((1, ((atom, 1),)),))
            for divisor, dim in self._multiples:
                if divisor.is_static and dim == as_dim:
                    known = known * abs(int(divisor)) // gcd(known, int(divisor))
            factor *= known**power
            if factor > 2**40:
                break
        return max(factor, 1)

    def rebuild(self, dim: Dim, memo: dict[Atom, Dim]) -> Dim:
        if dim.is_static:
            return dim
        total = Dim.of(0)
        for coefficient, mono in dim.terms:
            term = Dim.of(coefficient)
            for atom, power in mono:
                value = memo.get(atom)
                if value is None:
                    value = memo[atom] = self._rebuild_atom(atom, memo)
                for _ in range(power):
                    term = term * value
            total = total + term
        return total

    def _rebuild_atom(self, atom: Atom, memo: dict[Atom, Dim]) -> Dim:
        if atom.kind == "sym":
            return Dim(((1, ((atom, 1),)),))
        a, b = (self.absorb_divisions(self.rebuild(arg, memo)) for arg in atom.args)
        if atom.kind == "min" or atom.kind == "max":
            if self.at_least(a, b):
                return b if atom.kind == "min" else a
            if self.at_least(b, a):
                return a if atom.kind == "min" else b
        elif atom.kind == "bcast":
            low = self.low_bound(a)
            if low is not None and low > 1:
                return a
            low = self.low_bound(b)
            if low is not None and low > 1:
                return b
        elif atom.kind == "floordiv":
            return self._divide(a, b)
        elif atom.kind == "mod":
            return self._remainder(a, b)
        return apply_atom(atom.kind, a, b)

    def _split(self, a: Dim, b: Dim) -> tuple[Dim, Dim]:
        """`(q, r)` with `a == q*b + r`, where `q` takes the terms that a monomial `b` divides, or all or nothing."""
        whole = exact_div(a, b)
        if whole is not None:
            return whole, Dim.of(0)
        if len(b.terms) != 1:
            return Dim.of(0), a
        quotient = Dim.of(0)
        for term in a.terms:
            part = exact_div(Dim((term,)), b)
            if part is not None:
                quotient = quotient + part
        return quotient, a - quotient * b

    def _divide(self, a: Dim, b: Dim) -> Dim:
        if not self.is_positive(b):
            return a // b
        quotient, rest = self._split(a, b)
        if rest.is_static and int(rest) == 0:
            return quotient
        if self.at_least(rest, Dim.of(0)) and self.is_positive(b - rest):
            return quotient
        rest, b = self._cancel_common(rest, b)
        return quotient + rest // b

    def _cancel_common(self, a: Dim, b: Dim) -> tuple[Dim, Dim]:
        """Take factors out of `a // b` that divide both and are positive."""
        for atom, power in b.terms[0][1]:
            factor = Dim(((1, ((atom, 1),)),))
            for _ in range(power):
                qa, qb = exact_div(a, factor), exact_div(b, factor)
                if qa is None or qb is None or not self.is_positive(factor):
                    break
                a, b = qa, qb
        return a, b

    def _remainder(self, a: Dim, b: Dim) -> Dim:
        if not self.is_positive(b):
            return a % b
        if b.is_static and self.is_multiple(a, b):
            return Dim.of(0)
        _, rest = self._split(a, b)
        if self.at_least(rest, Dim.of(0)) and self.is_positive(b - rest):
            return rest
        if self.is_multiple(rest, b):
            return Dim.of(0)
        return rest % b

    def is_multiple(self, dim: Dim, divisor: Dim) -> bool:
        """`divides` for dims that are simplified already."""
        if exact_div(dim, divisor) is not None:
            return True
        for known_divisor, known in self._multiples:
            if exact_div(known_divisor, divisor) is not None and exact_div(dim, known) is not None:
                return True
        return divisor.is_static and all(c * self.known_factor(m) % int(divisor) == 0 for c, m in dim.terms)

    def absorb_divisions(self, dim: Dim) -> Dim:
        """`c * (x // c)` is `x` where `c` divides `x`."""
        for coefficient, mono in dim.terms:
            for atom, _ in mono:
                if atom.kind != "floordiv":
                    continue
                x, divisor = atom.args
                rest = exact_div(Dim(((coefficient, mono),)), Dim(((1, ((atom, 1),)),)))
                assert rest is not None
                factor = exact_div(rest, divisor)
                if factor is not None and self.is_positive(divisor) and self.is_multiple(x, divisor):
                    return self.absorb_divisions(dim - Dim(((coefficient, mono),)) + factor * x)
        return dim
