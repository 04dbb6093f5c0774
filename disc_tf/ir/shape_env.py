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

from disc_tf.ir.dims import (
    MAX_TERMS,
    Atom,
    Dim,
    DimLike,
    DimTooComplex,
    Monomial,
    apply_atom,
    exact_div,
    product,
    sym,
)

Interval = tuple[int | None, int | None]

_RELAXATIONS = 24  # bound refinements tried for one query
_REDUCTIONS = 2 * MAX_TERMS  # rewriting steps by known equations for one query
_ROUNDS = 4  # substitution rounds of `simplify`


class ShapeEnv:
    """Facts about dimension symbols and the questions that can be asked of them (see the module's docstring).

    The methods that add facts return False, and add nothing, when the fact contradicts what is known: the place is then
    unreachable, or guarded by a check that always fails.
    """

    def __init__(self, parent: ShapeEnv | None = None) -> None:
        self.parent = parent
        self._solved: dict[str, Dim] = dict(parent._solved) if parent else {}
        self._equations: list[Dim] = list(parent._equations) if parent else []  # polynomials that are 0
        self._ranges: dict[Dim, Interval] = dict(parent._ranges) if parent else {}  # keys: see `_normal`
        self._multiples: list[tuple[Dim, Dim]] = list(parent._multiples) if parent else []  # divisor, dividend
        self._likely: dict[str, tuple[int, ...]] = dict(parent._likely) if parent else {}
        self._cache: dict[Dim, Dim] = {}
        self._equal: dict[tuple[Dim, Dim], bool | None] = {}
        self._intervals: dict[Atom, Interval] = {}  # of atoms other than symbols; nested ones share work

    def child(self) -> ShapeEnv:
        """An environment for a region: it starts with these facts, and its own facts do not leave it."""
        return ShapeEnv(self)

    # ---- adding facts ---------------------------------------------------------------------------------------

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
        key, scale, offset = _normal(dim)
        if low is not None:
            low = -((offset - low) // scale)  # ceil((low - offset) / scale)
        if high is not None:
            high = (high - offset) // scale
        self._ranges[key] = _meet(self._ranges.get(key, (None, None)), (low, high))
        self._forget()
        low, high = self.bounds(key)
        if low is not None and low == high:
            return self.assume_eq(key, low)
        return True

    def assume_nonneg(self, dim: DimLike) -> bool:
        """From here on `dim >= 0`."""
        return self.set_range(dim, 0, None)

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
            left = [c for c, m in dim.terms if (c * self._factor_of(m)) % modulus]
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
        low = self._low(dim)
        high = self._low(-dim)
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
                    result = self._absorb_divisions(self._rebuild(result, {}))
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
                while self._positive(factor):
                    quotient = exact_div(zero, factor)
                    if quotient is None:
                        break
                    zero = quotient
        return zero

    def _solve(self, zero: Dim) -> tuple[str | None, Dim]:
        """A symbol that `zero == 0` determines (linear, unit coefficient, nowhere else) and its value.

        Of several the last in natural order goes, so that `a0d0` outlives later arguments and bound symbols (`n0`).
        """
        best: tuple[tuple[tuple[str, int], ...], str, Dim] | None = None
        for coefficient, mono in zero.terms:
            if abs(coefficient) != 1 or len(mono) != 1 or mono[0][1] != 1 or mono[0][0].kind != "sym":
                continue
            name = mono[0][0].name
            rest = zero - Dim(((coefficient, mono),))
            if name in rest.symbols():
                continue
            rank = _natural(name)
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
        symbolic = gcd(*(c * self._factor_of(m) for c, m in dim.terms if m))
        if dim.constant % symbolic:
            return True  # 2*n + 1
        low = self._low(dim)
        if low is not None and low > 0:
            return True
        low = self._low(-dim)
        return low is not None and low > 0

    def _factor_of(self, mono: Monomial) -> int:
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

    # ---- bounds ---------------------------------------------------------------------------------------------

    def _low(self, dim: Dim) -> int | None:
        """A lower bound of an already simplified dim: term by term, then by relaxing one function at a time."""
        best = self._low_of_terms(dim)
        queue: list[tuple[Dim, int]] = [(dim, 1)]  # a lower bound of `dim * scale` gives one of `dim`
        seen = {dim}
        budget = _RELAXATIONS
        while queue and budget:
            current, scale = queue.pop(0)
            for relaxed, factor in _relaxations(current):
                budget -= 1
                if relaxed in seen or not budget:
                    break
                seen.add(relaxed)
                low = self._low_of_terms(relaxed)
                if low is not None:
                    low = -(-low // (scale * factor))
                    best = low if best is None else max(best, low)
                queue.append((relaxed, scale * factor))
        return best

    def _low_of_terms(self, dim: Dim) -> int | None:
        best = self._sum_low(dim.terms, {})
        fact = self._range_of(dim)[0]
        if fact is not None:
            best = fact if best is None else max(best, fact)
        # With n = low + n', n*m - m is n'*m for n >= 1: every coefficient is then positive.
        shifts = {}
        for atom in dim.atoms():
            low = self._interval(atom)[0]
            if low is not None and low != 0:
                shifts[atom] = low
        if shifts and len(dim.terms) > 1:
            try:
                shifted = _shift(dim, shifts)
            except DimTooComplex:
                return best
            low = self._sum_low(shifted.terms, shifts)
            if low is not None:
                best = low if best is None else max(best, low)
        return best

    def _sum_low(self, terms: Iterable[tuple[int, Monomial]], shifts: dict[Atom, int]) -> int | None:
        total = 0
        for coefficient, mono in terms:
            low, high = self._monomial(mono, shifts)
            end = low if coefficient > 0 else high
            if end is None:
                return None
            total += coefficient * end
        return total

    def _monomial(self, mono: Monomial, shifts: dict[Atom, int]) -> Interval:
        result: Interval = (1, 1)
        for atom, power in mono:
            low, high = self._interval(atom)
            shift = shifts.get(atom, 0)
            if shift:
                low, high = 0, None if high is None else high - shift
            if power % 2 == 0 and (low is None or low < 0):
                # An even power of a sign-changing atom.
                ends = None if low is None or high is None else max(abs(low), abs(high)) ** power
                one: Interval = (0, ends)
            else:
                one = (None if low is None else low**power, None if high is None else high**power)
            result = _times(result, one)
        return result

    def _range_of(self, dim: Dim) -> Interval:
        """What the range facts say about exactly this dim (up to scale and offset)."""
        if not self._ranges or dim.is_static:
            return (None, None)
        key, scale, offset = _normal(dim)
        found = self._ranges.get(key)
        if found is not None:
            low, high = found
            return (None if low is None else low * scale + offset, None if high is None else high * scale + offset)
        found = self._ranges.get(-key)
        if found is not None:
            low, high = found
            return (None if high is None else -high * scale + offset, None if low is None else -low * scale + offset)
        return (None, None)

    def _forget(self) -> None:
        """Drop what was derived from the facts: they have changed."""
        self._cache.clear()
        self._equal.clear()
        self._intervals.clear()

    def _interval(self, atom: Atom) -> Interval:
        found = self._intervals.get(atom)
        if found is None:
            found = self._find_interval(atom)
            if atom.kind != "sym":
                self._intervals[atom] = found
        return found

    def _find_interval(self, atom: Atom) -> Interval:
        as_dim = Dim(((1, ((atom, 1),)),))
        known = self._ranges.get(as_dim, (None, None))
        if atom.kind == "sym":
            return _meet(known, (0, None))
        (alow, ahigh), (blow, bhigh) = (
            (int(d), int(d)) if d.is_static else self._coarse(d) for d in atom.args
        )
        if atom.kind == "min":
            low = None if alow is None or blow is None else min(alow, blow)
            high = min((h for h in (ahigh, bhigh) if h is not None), default=None)
        elif atom.kind == "max":
            low = max((x for x in (alow, blow) if x is not None), default=None)
            high = None if ahigh is None or bhigh is None else max(ahigh, bhigh)
        elif atom.kind == "bcast":
            low = None if alow is None or blow is None else min(alow, blow)
            high = None if ahigh is None or bhigh is None else max(ahigh, bhigh)
        elif blow is None or blow < 0:
            return known
        elif atom.kind == "mod":
            # The divisor is > 0 where this is defined.
            high = None if bhigh is None else max(bhigh - 1, 0)
            if alow is not None and alow >= 0 and ahigh is not None:
                high = ahigh if high is None else min(high, ahigh)
            low = 0
        else:
            least = max(blow, 1)
            low = high = None
            if alow is not None:
                low = alow // least if alow < 0 else 0 if bhigh is None else alow // max(bhigh, 1)
            if ahigh is not None:
                high = ahigh // least if ahigh >= 0 else -1 if bhigh is None else ahigh // max(bhigh, 1)
        return _meet(known, (low, high))

    def _coarse(self, dim: Dim) -> Interval:
        """Bounds by terms only: nesting is bounded by the depth of the atoms."""
        low = self._low_of_terms(dim)
        high = self._low_of_terms(-dim)
        return low, None if high is None else -high

    # ---- simplification ---------------------------------------------------------------------------------------

    def _rebuild(self, dim: Dim, memo: dict[Atom, Dim]) -> Dim:
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
        a, b = (self._absorb_divisions(self._rebuild(arg, memo)) for arg in atom.args)
        if atom.kind == "min" or atom.kind == "max":
            if self._at_least(a, b):
                return b if atom.kind == "min" else a
            if self._at_least(b, a):
                return a if atom.kind == "min" else b
        elif atom.kind == "bcast":
            low = self._low(a)
            if low is not None and low > 1:
                return a
            low = self._low(b)
            if low is not None and low > 1:
                return b
        elif atom.kind == "floordiv":
            return self._divide(a, b)
        elif atom.kind == "mod":
            return self._remainder(a, b)
        return apply_atom(atom.kind, a, b)

    def _at_least(self, a: Dim, b: Dim) -> bool:
        try:
            low = self._low(a - b)
        except DimTooComplex:
            return False
        return low is not None and low >= 0

    def _positive(self, dim: Dim) -> bool:
        low = self._low(dim)
        return low is not None and low > 0

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
        if not self._positive(b):
            return a // b
        quotient, rest = self._split(a, b)
        if rest.is_static and int(rest) == 0:
            return quotient
        if self._at_least(rest, Dim.of(0)) and self._positive(b - rest):
            return quotient
        rest, b = self._cancel_common(rest, b)
        return quotient + rest // b

    def _cancel_common(self, a: Dim, b: Dim) -> tuple[Dim, Dim]:
        """Take factors out of `a // b` that divide both and are positive."""
        for atom, power in b.terms[0][1]:
            factor = Dim(((1, ((atom, 1),)),))
            for _ in range(power):
                qa, qb = exact_div(a, factor), exact_div(b, factor)
                if qa is None or qb is None or not self._positive(factor):
                    break
                a, b = qa, qb
        return a, b

    def _remainder(self, a: Dim, b: Dim) -> Dim:
        if not self._positive(b):
            return a % b
        if b.is_static and self._is_multiple(a, b):
            return Dim.of(0)
        _, rest = self._split(a, b)
        if self._at_least(rest, Dim.of(0)) and self._positive(b - rest):
            return rest
        if self._is_multiple(rest, b):
            return Dim.of(0)
        return rest % b

    def _is_multiple(self, dim: Dim, divisor: Dim) -> bool:
        """`divides` for dims that are simplified already."""
        if exact_div(dim, divisor) is not None:
            return True
        for known_divisor, known in self._multiples:
            if exact_div(known_divisor, divisor) is not None and exact_div(dim, known) is not None:
                return True
        return divisor.is_static and all(c * self._factor_of(m) % int(divisor) == 0 for c, m in dim.terms)

    def _absorb_divisions(self, dim: Dim) -> Dim:
        """`c * (x // c)` is `x` where `c` divides `x`."""
        for coefficient, mono in dim.terms:
            for atom, _ in mono:
                if atom.kind != "floordiv":
                    continue
                x, divisor = atom.args
                rest = exact_div(Dim(((coefficient, mono),)), Dim(((1, ((atom, 1),)),)))
                assert rest is not None
                factor = exact_div(rest, divisor)
                if factor is not None and self._positive(divisor) and self._is_multiple(x, divisor):
                    return self._absorb_divisions(dim - Dim(((coefficient, mono),)) + factor * x)
        return dim


# ---- helpers ------------------------------------------------------------------------------------------------------


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    """Sort key of a name with its numbers as numbers: a2d1 < a10d0 < n0."""
    return tuple((text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", name))


def _meet(a: Interval, b: Interval) -> Interval:
    low = max((x for x in (a[0], b[0]) if x is not None), default=None)
    high = min((x for x in (a[1], b[1]) if x is not None), default=None)
    return low, high


def _times(a: Interval, b: Interval) -> Interval:
    """The product of two intervals."""
    if a == (0, 0) or b == (0, 0):
        return (0, 0)
    (al, ah), (bl, bh) = a, b
    if al is not None and ah is not None and bl is not None and bh is not None:
        corners = (al * bl, al * bh, ah * bl, ah * bh)
        return min(corners), max(corners)
    if al is not None and al >= 0 and bl is not None and bl >= 0:
        return al * bl, None if ah is None or bh is None else ah * bh
    if al is not None and al >= 0:  # b may be negative
        low = None if bl is None or ah is None else ah * bl
        high = None if bh is None else (None if ah is None else ah * bh) if bh > 0 else al * bh
        return low, high
    if bl is not None and bl >= 0:
        return _times(b, a)
    return (None, None)


def _normal(dim: Dim) -> tuple[Dim, int, int]:
    """`(key, scale, offset)` with `dim == scale * key + offset`, `scale > 0`, and a key without constant or content."""
    offset = dim.constant
    symbolic = dim - offset
    scale = symbolic.content()
    return Dim(tuple((c // scale, m) for c, m in symbolic.terms)), scale, offset


def _shift(dim: Dim, shifts: dict[Atom, int]) -> Dim:
    """`dim` with each atom replaced by itself plus its shift (only in the polynomial, not inside atoms)."""
    total = Dim.of(0)
    for coefficient, mono in dim.terms:
        term = Dim.of(coefficient)
        for atom, power in mono:
            value = Dim(((1, ((atom, 1),)),)) + shifts.get(atom, 0)
            for _ in range(power):
                term = term * value
        total = total + term
    return total


def _relaxations(dim: Dim) -> list[tuple[Dim, int]]:
    """Pairs `(smaller, factor)` with `smaller <= dim * factor`, each without one function that stands alone in a term."""
    found: list[tuple[Dim, int]] = []
    for coefficient, mono in dim.terms:
        if len(mono) != 1 or mono[0][1] != 1:
            continue
        atom = mono[0][0]
        if atom.kind not in ("min", "max", "floordiv"):
            continue
        a, b = atom.args
        try:
            rest = dim - Dim(((coefficient, mono),))
            if (atom.kind == "min") == (coefficient < 0) and atom.kind != "floordiv":
                found += [(rest + a * coefficient, 1), (rest + b * coefficient, 1)]
            elif atom.kind == "floordiv" and b.is_static and int(b) > 0:
                # (x - c + 1) / c <= x // c <= x / c
                end = a if coefficient < 0 else a - (int(b) - 1)
                found.append((rest * b + end * coefficient, int(b)))
        except DimTooComplex:
            continue
    return found


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
