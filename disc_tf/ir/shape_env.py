"""What is known about the symbols of `dims`, and the decision procedures over it.

A `ShapeEnv` holds facts that are true at its place in the program: equalities, divisibility, ranges (a symbol is an
extent, hence >= 0 by default), and *likely* values (never facts).  Answers are three-valued, `True | False | None`, and never
wrong: `True` and `False` hold for every assignment that satisfies the facts and for which the expressions are defined,
`None` says only that the bounded search found no proof.  Rewrites by `simplify` hold likewise; dividing by something that may be
zero is never simplified away (`B*S*768 // (B*768)` is `S` only once `B >= 1` is known).

Environments form a tree: `child()` starts from the parent's facts, and what it learns stays in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import gcd

from disc_tf.ir.dims import MAX_TERMS, Dim, DimLike, DimTooComplex, exact_div, product, sym
from disc_tf.ir.shape_bounds import Interval, meet, normal_form
from disc_tf.ir.shape_simplify import Simplifier

_REDUCTIONS = 2 * MAX_TERMS  # rewriting steps by known equations for one query
_ROUNDS = 4  # substitution rounds of `simplify`


class ShapeEnv(Simplifier):
    """Facts about dimension symbols and the questions that can be asked of them (see the module's docstring).

    The methods that add facts return False, and add nothing, when the fact contradicts what is known: the place is then
    unreachable, or guarded by a check that always fails.
    """

    def __init__(self, parent: ShapeEnv | None = None) -> None:
        super().__init__()
        self.parent = parent
        self._solved: dict[str, Dim] = dict(parent._solved) if parent else {}
        self._equations: list[Dim] = list(parent._equations) if parent else []  # polynomials that are 0
        self._ranges = dict(parent._ranges) if parent else {}
        self._multiples = list(parent._multiples) if parent else []
        self._likely: dict[str, tuple[int, ...]] = dict(parent._likely) if parent else {}
        self._preferred: set[str] = set(parent._preferred) if parent else set()
        self._cache: dict[Dim, Dim] = {}
        self._equal: dict[tuple[Dim, Dim], bool | None] = {}

    def child(self) -> ShapeEnv:
        """An environment for a region: it starts with these facts, and its own facts do not leave it."""
        return ShapeEnv(self)

    # ---- adding facts ---------------------------------------------------------------------------------------

    def prefer(self, names: Iterable[str]) -> None:
        """Of equal symbols these are the ones to keep (the dims of arguments, which are there from the start)."""
        self._preferred.update(names)

    def assume_eq(self, a: DimLike, b: DimLike) -> bool:
        """From here on `a == b` (also products: `assume_eq(a*b, c*d)`)."""
        a, b = Dim.of(a), Dim.of(b)
        try:
            zero = self._cancel(self.simplify(a) - self.simplify(b))
        except DimTooComplex:
            return True  # too big to be of use; forgetting a fact is sound
        if not zero.terms:
            return True
        if self._never_zero(zero):
            return False
        name, value = self._solve(zero)
        if name is None:
            if zero not in self._equations:
                self._equations.append(zero)
                self._forget()
            return True
        return self._substitute_symbol(name, value)

    def assume_divides(self, divisor: DimLike, dim: DimLike) -> bool:
        """From here on `dim` is an integer multiple of `divisor`."""
        divisor, dim = self.simplify(Dim.of(divisor)), self.simplify(Dim.of(dim))
        known = self.divides(divisor, dim)
        if known is None:
            self._multiples.append((divisor, dim))
            self._forget()
        return known is not False

    def set_range(self, dim: DimLike, low: int | None = 0, high: int | None = None) -> bool:
        """From here on `low <= dim <= high` (None: no bound on that side; a symbol stays >= 0)."""
        dim = self.simplify(Dim.of(dim))
        old_low, old_high = self.bounds(dim)
        if (low is not None and old_high is not None and low > old_high) or (
            high is not None and old_low is not None and high < old_low
        ):
            return False
        implied_low = low is None or (old_low is not None and old_low >= low)
        implied_high = high is None or (old_high is not None and old_high <= high)
        if dim.is_static or (implied_low and implied_high):
            return True
        key, scale, offset = normal_form(dim)
        if low is not None:
            low = -((offset - low) // scale)  # ceil((low - offset) / scale)
        if high is not None:
            high = (high - offset) // scale
        self._ranges[key] = meet(self._ranges.get(key, (None, None)), (low, high))
        self._forget()
        low, high = self.bounds(key)
        if low is not None and low == high:
            return self.assume_eq(key, low)
        return True

    def set_likely(self, symbol: DimLike, values: Iterable[int]) -> None:
        """Values that `symbol` is expected to take; a preference for code versions, never a fact."""
        name = Dim.of(symbol).symbol
        if name is None:
            raise ValueError(f"likely values are given for a symbol, not for {symbol}")
        self._likely[name] = tuple(values)

    # ---- asking ---------------------------------------------------------------------------------------------

    def is_equal(self, a: DimLike, b: DimLike) -> bool | None:
        """Whether `a == b`: always (True), never (False), or undecided."""
        a, b = Dim.of(a), Dim.of(b)
        if a == b:
            return True
        if (a, b) not in self._equal:
            self._equal[a, b] = self._decide_equal(a, b)
        return self._equal[a, b]

    def _decide_equal(self, a: Dim, b: Dim) -> bool | None:
        try:
            difference = self.simplify(self.simplify(a) - self.simplify(b))
            if not difference.terms:
                return True
            if self._never_zero(difference):
                return False
            if self._equations and not self._reduce(difference).terms:
                return True
            without_mod = self.simplify(_expand_mod(difference))
            if not without_mod.terms or (self._equations and not self._reduce(without_mod).terms):
                return True
            if without_mod != difference and self._never_zero(without_mod):
                return False
        except DimTooComplex:
            pass
        return None

    def divides(self, divisor: DimLike, dim: DimLike) -> bool | None:
        """Whether there is always (True) or never (False) an integer `q` with `dim == q * divisor`."""
        divisor, dim = self.simplify(Dim.of(divisor)), self.simplify(Dim.of(dim))
        if not dim.terms:
            return True
        if not divisor.terms:
            return False if self._never_zero(dim) else None
        try:
            if exact_div(dim, divisor) is not None:
                return True
            for known_divisor, known in self._multiples:
                if exact_div(known_divisor, divisor) is not None and exact_div(dim, known) is not None:
                    return True
            if not divisor.is_static:
                return None
            modulus = abs(int(divisor))
            left = [c for c, m in dim.terms if (c * self.known_factor(m)) % modulus]
        except DimTooComplex:
            return None
        if not left:
            return True
        # Every symbolic term is a multiple, the constant is not.
        return False if len(left) == 1 and not dim.terms[-1][1] and left[0] == dim.constant else None

    def is_nonneg(self, dim: DimLike) -> bool | None:
        """Whether `dim >= 0`: always, never, or undecided."""
        low, high = self.bounds(dim)
        if low is not None and low >= 0:
            return True
        return False if high is not None and high < 0 else None

    def bounds(self, dim: DimLike) -> Interval:
        """`(low, high)` with `low <= dim <= high` always; None where no bound is known."""
        dim = self.simplify(Dim.of(dim))
        if dim.is_static:
            return int(dim), int(dim)
        low = self.low_bound(dim)
        high = self.low_bound(-dim)
        return low, None if high is None else -high

    def same_elements(self, a: Sequence[DimLike], b: Sequence[DimLike]) -> bool | None:
        """Whether shapes `a` and `b` hold equally many elements: always, never, or undecided."""
        try:
            equal = self.is_equal(product(a), product(b))
        except DimTooComplex:
            equal = None
        if equal is not None:
            return equal
        # Dims on both sides go; what is left may be small enough. (No False from here: a dim that went may be 0.)
        left = [self.simplify(Dim.of(d)) for d in a]
        right: list[Dim] = []
        for dim in (self.simplify(Dim.of(d)) for d in b):
            if dim in left:
                left.remove(dim)
            else:
                right.append(dim)
        try:
            return True if self.is_equal(product(left), product(right)) else None
        except DimTooComplex:
            return None

    def likely(self, dim: DimLike) -> tuple[int, ...]:
        """Likely values of `dim`, from those of its symbols (varied together, first values with first); () if unknown."""
        dim = self.simplify(Dim.of(dim))
        if dim.is_static:
            return (int(dim),)
        values = {name: self._likely.get(name, ()) for name in dim.symbols()}
        if not all(values.values()):
            return ()
        count = max(len(v) for v in values.values())
        found: dict[int, None] = {}
        for i in range(count):
            try:
                found[dim.evaluate({name: v[min(i, len(v) - 1)] for name, v in values.items()})] = None
            except ZeroDivisionError:
                continue
        return tuple(found)

    def representative(self, symbol: str) -> Dim:
        """What `symbol` is known to equal: itself, another symbol, or an expression."""
        return self.simplify(sym(symbol))

    def simplify(self, dim: DimLike) -> Dim:
        """An equal dim in this environment's canonical form. Idempotent for what the facts decide; never raises."""
        dim = Dim.of(dim)
        if dim.is_static:
            return dim
        known = self._cache.get(dim)
        if known is not None:
            return known
        result = dim
        try:
            for _ in range(_ROUNDS):
                before = result
                if self._solved:
                    result = result.substitute(self._resolved(result.symbols()))
                if any(atom.kind != "sym" for atom in result.atoms()):
                    result = self.absorb_divisions(self.rebuild(result, {}))
                if result == before:
                    break
        except (DimTooComplex, ZeroDivisionError):
            result = dim
        self._cache[dim] = result
        self._cache[result] = result
        return result

    def facts(self) -> list[str]:
        """The facts in text, one per line, for dumps and error messages."""
        lines = [f"{name} == {value}" for name, value in self._solved.items()]
        lines += [f"{zero} == 0" for zero in self._equations]
        lines += [f"{divisor} divides {dim}" for divisor, dim in self._multiples]
        for key, (low, high) in self._ranges.items():
            left = "" if low is None else f"{low} <= "
            right = "" if high is None else f" <= {high}"
            lines.append(f"{left}{key}{right}")
        return lines

    # ---- equalities -----------------------------------------------------------------------------------------

    def _resolved(self, names: Iterable[str]) -> dict[str, Dim]:
        """The solutions of these symbols, with path compression (a solution never mentions its own symbol)."""
        found: dict[str, Dim] = {}
        for name in names:
            value = self._solved.get(name)
            if value is None:
                continue
            for _ in range(64):
                inner = {s: self._solved[s] for s in value.symbols() if s in self._solved}
                if not inner:
                    break
                value = value.substitute(inner)
            found[name] = self._solved[name] = value
        return found

    def _cancel(self, zero: Dim) -> Dim:
        """Divide the equation `zero == 0` by factors that are certainly not zero."""
        content = zero.content()
        if content > 1:
            zero = Dim(tuple((c // content, m) for c, m in zero.terms))
        if len(zero.terms) > 1:
            for atom, _ in zero.terms[0][1]:
                factor = Dim(((1, ((atom, 1),)),))
                while self.is_positive(factor):
                    quotient = exact_div(zero, factor)
                    if quotient is None:
                        break
                    zero = quotient
        return zero

    def _solve(self, zero: Dim) -> tuple[str | None, Dim]:
        """A symbol that `zero == 0` determines (linear, unit coefficient, nowhere else) and its value.

        Of several the last in natural order goes, so that `a0d0` outlives later names; preferred symbols outlive all others.
        """
        best: tuple[tuple[bool, tuple[tuple[str, int], ...]], str, Dim] | None = None
        for coefficient, mono in zero.terms:
            if abs(coefficient) != 1 or len(mono) != 1 or mono[0][1] != 1 or mono[0][0].kind != "sym":
                continue
            name = mono[0][0].name
            rest = zero - Dim(((coefficient, mono),))
            if name in rest.symbols():
                continue
            rank = (name not in self._preferred, _natural(name))
            if best is None or rank > best[0]:
                best = (rank, name, rest * -coefficient)
        return (None, zero) if best is None else (best[1], best[2])

    def _substitute_symbol(self, name: str, value: Dim) -> bool:
        symbol = sym(name)
        low, high = self._ranges.pop(symbol, (None, None))
        low = 0 if low is None else max(low, 0)
        known_low, known_high = self.bounds(value)
        if (known_high is not None and known_high < low) or (
            high is not None and known_low is not None and known_low > high
        ):
            return False
        if name in self._likely and value.symbol is not None:
            self._likely.setdefault(value.symbol, self._likely[name])
        self._solved[name] = value
        self._forget()
        # Facts about the symbol become facts about its value.
        equations = [e for e in self._equations if name in e.symbols()]
        ranges = [(k, r) for k, r in self._ranges.items() if name in k.symbols()]
        multiples = [(d, m) for d, m in self._multiples if name in d.symbols() | m.symbols()]
        self._equations = [e for e in self._equations if name not in e.symbols()]
        self._multiples = [f for f in self._multiples if f not in multiples]
        for key, _ in ranges:
            del self._ranges[key]
        consistent = self.set_range(value, low, high)
        for key, (key_low, key_high) in ranges:
            consistent &= self.set_range(key, key_low, key_high)
        for divisor, dim in multiples:
            consistent &= self.assume_divides(divisor, dim)
        for zero in equations:
            consistent &= self.assume_eq(zero, 0)
        return consistent

    def _reduce(self, dim: Dim) -> Dim:
        """Rewrite leading monomials of the known equations; the value is kept."""
        steps = 0
        changed = True
        while changed and dim.terms and steps < _REDUCTIONS:
            changed = False
            for zero in self._equations:
                if exact_div(dim, zero) is not None:
                    return Dim.of(0)
                lead_c, lead_m = zero.terms[0]
                lead = Dim(((lead_c, lead_m),))
                for coefficient, mono in dim.terms:
                    factor = exact_div(Dim(((coefficient, mono),)), lead)
                    if factor is not None:
                        dim = dim - factor * zero
                        steps += 1
                        changed = True
                        break
        return dim

    def _never_zero(self, dim: Dim) -> bool:
        if dim.is_static:
            return int(dim) != 0
        symbolic = gcd(*(c * self.known_factor(m) for c, m in dim.terms if m))
        if dim.constant % symbolic:
            return True  # 2*n + 1
        low = self.low_bound(dim)
        if low is not None and low > 0:
            return True
        low = self.low_bound(-dim)
        return low is not None and low > 0

    def _forget(self) -> None:
        """Drop what was derived from the facts: they have changed."""
        self._cache.clear()
        self._equal.clear()
        self._intervals.clear()


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    """Sort key of a name with its numbers as numbers: a2d1 < a10d0 < n0."""
    return tuple((text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", name))


def _expand_mod(dim: Dim) -> Dim:
    """Write top-level `a % b` as `a - b * (a // b)`."""
    total = Dim.of(0)
    for coefficient, mono in dim.terms:
        term = Dim.of(coefficient)
        for atom, power in mono:
            value = Dim(((1, ((atom, 1),)),))
            if atom.kind == "mod":
                a, b = atom.args
                value = a - b * (a // b)
            for _ in range(power):
                term = term * value
        total = total + term
    return total


__all__ = ["Interval", "ShapeEnv"]
