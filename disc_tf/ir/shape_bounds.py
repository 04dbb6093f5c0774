"""Bounds of dims: interval arithmetic over polynomials, sharpened by range facts and by relaxing one function at a time.

The lowest layer of `shape_env`: nothing here substitutes or simplifies; dims are taken as they are.
"""

from __future__ import annotations

from collections.abc import Iterable

from disc_tf.ir.dims import Atom, Dim, DimTooComplex, Monomial

Interval = tuple[int | None, int | None]

_RELAXATIONS = 24  # bound refinements tried for one query


class Bounds:
    """Range facts and the bounds that follow from them. Symbols are >= 0."""

    def __init__(self) -> None:
        self._ranges: dict[Dim, Interval] = {}  # keys: see `normal_form`
        self._intervals: dict[Atom, Interval] = {}  # of atoms other than symbols; nested ones share work

    def low_bound(self, dim: Dim) -> int | None:
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
        key, scale, offset = normal_form(dim)
        found = self._ranges.get(key)
        if found is not None:
            low, high = found
            return (
                None if low is None else low * scale + offset,
                None if high is None else high * scale + offset,
            )
        found = self._ranges.get(-key)
        if found is not None:
            low, high = found
            return (
                None if high is None else -high * scale + offset,
                None if low is None else -low * scale + offset,
            )
        return (None, None)

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
            return meet(known, (0, None))
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
        return meet(known, (low, high))

    def _coarse(self, dim: Dim) -> Interval:
        """Bounds by terms only: nesting is bounded by the depth of the atoms."""
        low = self._low_of_terms(dim)
        high = self._low_of_terms(-dim)
        return low, None if high is None else -high

    def at_least(self, a: Dim, b: Dim) -> bool:
        try:
            low = self.low_bound(a - b)
        except DimTooComplex:
            return False
        return low is not None and low >= 0

    def is_positive(self, dim: Dim) -> bool:
        low = self.low_bound(dim)
        return low is not None and low > 0


def meet(a: Interval, b: Interval) -> Interval:
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


def normal_form(dim: Dim) -> tuple[Dim, int, int]:
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
