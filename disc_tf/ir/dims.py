"""Symbolic dimensions: canonical polynomials with integer coefficients over atoms.

A `Dim` is immutable, hashable and canonical: equal polynomials are equal objects by `==`, whatever the order
of the operations that made them.  The expressions live here; what is *known* about symbols (signs, equalities,
divisibility) lives in `shape_env`, so every rewrite in this file holds for all integer values of the symbols.

Structure, for code that emits arithmetic:

* `Dim.terms` is a tuple of `(coefficient, monomial)`, the constant term (if any) last;
* a monomial is a tuple of `(atom, power)` with `power >= 1`, the empty tuple for the constant term;
* an `Atom` has `kind` in `ATOM_KINDS`: for `"sym"` the symbol is `atom.name`; for the others
  (`floordiv mod min max bcast`) the operands are `atom.args == (a, b)`, both `Dim`.

Semantics: `floordiv` and `mod` round towards minus infinity (Python, TF FloorDiv/FloorMod) and are undefined for
a zero divisor (`evaluate` raises ZeroDivisionError).  `bcast(a, b)` is the extent of broadcasting `a` with `b`; it is only
meaningful where `a == b`, `a == 1` or `b == 1` (a check comes first), and evaluates to `b if a == 1 else a`.

All work is bounded: a result with over `MAX_TERMS` terms, `MAX_SIZE` nodes, `MAX_DEPTH` nested atoms or a coefficient beyond
64 bits raises `DimTooComplex`, which callers turn into a reason for leaving an op alone.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from math import gcd
from typing import SupportsIndex, Union

MAX_TERMS = 32
MAX_SIZE = 160
MAX_DEPTH = 24
_MAX_COEFFICIENT = 2**63

ATOM_KINDS = ("sym", "floordiv", "mod", "min", "max", "bcast")
_KIND_RANK = {kind: rank for rank, kind in enumerate(ATOM_KINDS)}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")

DimLike = Union["Dim", int, str]


class DimTooComplex(ValueError):
    """The expression would exceed the budget of this module; the message says which limit."""


class Atom:
    """An indivisible factor: a symbol, or an integer function of two dims (see the module's docstring)."""

    __slots__ = ("_hash", "args", "depth", "key", "kind", "name", "size")

    kind: str
    name: str
    args: tuple[Dim, ...]
    key: tuple[int, str]  # the order of atoms inside monomials
    size: int
    depth: int

    def __init__(self, kind: str, name: str, args: tuple[Dim, ...]) -> None:
        self.kind = kind
        self.name = name
        self.args = args
        self.size = 1 + sum(arg.size for arg in args)
        self.depth = 1 + max((arg.depth for arg in args), default=-1)
        if self.depth > MAX_DEPTH:
            raise DimTooComplex(f"dimension expression nests more than {MAX_DEPTH} levels")
        if self.size > MAX_SIZE:
            raise DimTooComplex(f"dimension expression has more than {MAX_SIZE} nodes")
        text = name if kind == "sym" else f"{kind}({args[0]}, {args[1]})"
        self.key = (_KIND_RANK[kind], text)
        self._hash = hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        # The text of an atom determines it, hence comparing keys is comparing structures.
        return self is other or (
            isinstance(other, Atom) and self._hash == other._hash and self.key == other.key
        )

    def __str__(self) -> str:
        return self.key[1]

    __repr__ = __str__


Monomial = tuple[tuple[Atom, int], ...]
Term = tuple[int, Monomial]


def _order(monomial: Monomial) -> tuple[int, tuple[tuple[tuple[int, str], int], ...]]:
    """Sort key of graded lexicographic order, greatest monomial first (an admissible order: see `exact_div`)."""
    return (-sum(p for _, p in monomial), tuple((a.key, -p) for a, p in monomial))


class Dim:
    """A canonical integer polynomial (see the module's docstring). Make one with `Dim.of`, `sym` or arithmetic."""

    __slots__ = ("_hash", "_symbols", "_text", "depth", "size", "terms")

    terms: tuple[Term, ...]
    size: int
    depth: int

    def __init__(self, terms: tuple[Term, ...]) -> None:
        """`terms` must be canonical already; use `Dim.of` and the operators instead of calling this."""
        self.terms = terms
        self._text: str | None = None
        self._symbols: frozenset[str] | None = None
        size = depth = 0
        for coefficient, mono in terms:
            size += 1
            for atom, power in mono:
                size += atom.size * power
                depth = max(depth, atom.depth)
            if not -_MAX_COEFFICIENT <= coefficient < _MAX_COEFFICIENT:
                raise DimTooComplex(f"coefficient {coefficient} of a dimension expression exceeds 64 bits")
        if len(terms) > MAX_TERMS:
            raise DimTooComplex(f"dimension expression has more than {MAX_TERMS} terms")
        if size > MAX_SIZE:
            raise DimTooComplex(f"dimension expression has more than {MAX_SIZE} nodes")
        self.size = size
        self.depth = depth
        # A constant hashes like the int it equals.
        self._hash = hash(terms) if depth or (terms and terms[0][1]) else hash(terms[0][0] if terms else 0)

    # ---- making -----------------------------------------------------------------------------------------

    @staticmethod
    def of(value: DimLike) -> Dim:
        """The dim of an int, of a symbol or expression in text (`parse_dim`), or `value` itself."""
        if isinstance(value, Dim):
            return value
        if isinstance(value, str):
            return parse_dim(value)
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"not a dimension: {value!r} of type {type(value).__name__}")
        return _constant(value.__index__())

    # ---- reading ----------------------------------------------------------------------------------------

    @property
    def is_static(self) -> bool:
        """Whether this is a plain integer."""
        terms = self.terms
        return not terms or (len(terms) == 1 and not terms[0][1])

    def _constant(self) -> int:
        return self.terms[-1][0] if self.terms and not self.terms[-1][1] else 0

    @property
    def constant(self) -> int:
        """The constant term."""
        return self._constant()

    def __int__(self) -> int:
        if not self.is_static:
            raise TypeError(f"dimension {self} is not static")
        return self._constant()

    __index__ = __int__

    def __bool__(self) -> bool:
        if not self.is_static:
            raise TypeError(
                f"truth value of the symbolic dimension {self}: ask a ShapeEnv, or compare with None"
            )
        return self._constant() != 0

    @property
    def atom(self) -> Atom | None:
        """The atom, if the dim is exactly one atom (coefficient 1, power 1)."""
        if len(self.terms) == 1:
            coefficient, mono = self.terms[0]
            if coefficient == 1 and len(mono) == 1 and mono[0][1] == 1:
                return mono[0][0]
        return None

    @property
    def symbol(self) -> str | None:
        """The symbol's name, if the dim is exactly one symbol."""
        atom = self.atom
        return atom.name if atom is not None and atom.kind == "sym" else None

    def atoms(self) -> list[Atom]:
        """The distinct atoms of the polynomial itself (not those inside atoms), in canonical order."""
        found = {atom: None for _, mono in self.terms for atom, _ in mono}
        return sorted(found, key=lambda atom: atom.key)

    def symbols(self) -> frozenset[str]:
        """Names of all symbols, also those inside floordiv, mod, min, max and bcast."""
        if self._symbols is not None:
            return self._symbols
        found: set[str] = set()
        work: list[Dim] = [self]
        while work:
            for _, mono in work.pop().terms:
                for atom, _ in mono:
                    if atom.kind == "sym":
                        found.add(atom.name)
                    else:
                        work.extend(atom.args)
        self._symbols = frozenset(found)
        return self._symbols

    def content(self) -> int:
        """The greatest common divisor of all coefficients (0 for the dim 0)."""
        return gcd(*(c for c, _ in self.terms))

    # ---- arithmetic -------------------------------------------------------------------------------------

    def __add__(self, other: DimLike) -> Dim:
        other = Dim.of(other)
        if self.is_static and other.is_static:
            return _constant(self._constant() + other._constant())
        return _from_terms(self.terms + other.terms)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return Dim(tuple((-c, m) for c, m in self.terms))

    def __sub__(self, other: DimLike) -> Dim:
        return self + -Dim.of(other)

    def __rsub__(self, other: DimLike) -> Dim:
        return Dim.of(other) + -self

    def __mul__(self, other: DimLike) -> Dim:
        other = Dim.of(other)
        if other.is_static:
            factor = other._constant()
            return _ZERO if factor == 0 else Dim(tuple((c * factor, m) for c, m in self.terms))
        if self.is_static:
            return other * self
        return _from_terms((ca * cb, _mono_mul(ma, mb)) for ca, ma in self.terms for cb, mb in other.terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: DimLike) -> Dim:
        return _floordiv(self, Dim.of(other))

    def __rfloordiv__(self, other: DimLike) -> Dim:
        return _floordiv(Dim.of(other), self)

    def __mod__(self, other: DimLike) -> Dim:
        return _mod(self, Dim.of(other))

    def __rmod__(self, other: DimLike) -> Dim:
        return _mod(Dim.of(other), self)

    # ---- identity ---------------------------------------------------------------------------------------

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Dim):
            return self._hash == other._hash and self.terms == other.terms
        if type(other) is int:
            return self.is_static and self._constant() == other
        if isinstance(other, bool) or not isinstance(other, SupportsIndex):
            return NotImplemented
        return self.is_static and self._constant() == operator.index(other)  # numpy's integers

    def __str__(self) -> str:
        if self._text is None:
            self._text = _format(self.terms)
        return self._text

    def __repr__(self) -> str:
        return f"Dim({self})"

    # ---- values -----------------------------------------------------------------------------------------

    def substitute(self, mapping: Mapping[str, DimLike]) -> Dim:
        """Replace symbols (all at once) by dims or ints. Symbols that are not in `mapping` stay.

        Raises DimTooComplex when the result exceeds the budget, ZeroDivisionError when a divisor becomes the constant 0.
        """
        if not mapping or self.is_static:
            return self
        return _substitute(self, mapping, {})

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The value for these symbol values.

        Raises KeyError for a symbol without a value, ZeroDivisionError for a floordiv or mod by zero.
        """
        total = 0
        for coefficient, mono in self.terms:
            for atom, power in mono:
                coefficient *= _evaluate_atom(atom, values) ** power
            total += coefficient
        return total


# ---- construction of canonical terms ------------------------------------------------------------------------


def _constant(value: int) -> Dim:
    if -1 <= value < len(_SMALL) - 1:
        return _SMALL[value + 1]
    return Dim(((value, ()),))


def _from_terms(terms: Iterable[Term]) -> Dim:
    """Collect equal monomials, drop zeros, sort."""
    total: dict[Monomial, int] = {}
    for coefficient, mono in terms:
        total[mono] = total.get(mono, 0) + coefficient
    kept = [(c, m) for m, c in total.items() if c]
    if len(kept) > 1:
        kept.sort(key=lambda term: _order(term[1]))
    return Dim(tuple(kept))


def _mono_mul(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: item[0].key))


def _mono_div(a: Monomial, b: Monomial) -> Monomial | None:
    powers = dict(a)
    for atom, power in b:
        left = powers.get(atom, 0) - power
        if left < 0:
            return None
        if left:
            powers[atom] = left
        else:
            del powers[atom]
    return tuple(powers.items())  # a's order is kept


_ZERO = Dim(())
_SMALL = (Dim(((-1, ()),)), _ZERO, *(Dim(((i, ()),)) for i in range(1, 257)))
_SYMBOLS: dict[str, Dim] = {}


def _of_atom(atom: Atom) -> Dim:
    return Dim(((1, ((atom, 1),)),))


def sym(name: str) -> Dim:
    """The dim that is the symbol `name` (letters, digits, `_`, `.`; not starting with a digit)."""
    found = _SYMBOLS.get(name)
    if found is None:
        if not _NAME.match(name) or name in ATOM_KINDS[1:]:
            raise ValueError(f"not a name for a dimension symbol: {name!r}")
        found = _of_atom(Atom("sym", name, ()))
        if len(_SYMBOLS) < 4096:  # a cache only: identity never matters
            _SYMBOLS[name] = found
    return found


# ---- floordiv and mod -----------------------------------------------------------------------------------------


def _truncated(value: int, divisor: int) -> int:
    return value // divisor if value >= 0 else -(-value // divisor)


def _floordiv(a: Dim, b: Dim) -> Dim:
    if not b.is_static:
        common = gcd(a.content(), b.content())
        if common > 1:  # (6*a) // (4*b) == (3*a) // (2*b), undefined at the same points
            a, b = _scale_down(a, common), _scale_down(b, common)
        if b.is_static:
            return _floordiv(a, b)
        return _of_atom(Atom("floordiv", "", (a, b)))
    divisor = int(b)
    if divisor == 0:
        raise ZeroDivisionError(f"dimension {a} divided by zero")
    if divisor < 0:
        return _floordiv(-a, _constant(-divisor))
    if divisor == 1:
        return a
    if a.is_static:
        return _constant(int(a) // divisor)
    # Take out the multiples of the divisor: symbolic coefficients towards zero (n and -n keep their sign), the
    # constant term down, so that the rest has a constant term in [0, divisor).
    whole: list[Term] = []
    rest: list[Term] = []
    for coefficient, mono in a.terms:
        quotient = _truncated(coefficient, divisor) if mono else coefficient // divisor
        if quotient:
            whole.append((quotient, mono))
        if coefficient - quotient * divisor:
            rest.append((coefficient - quotient * divisor, mono))
    quotient_part, remainder = _from_terms(whole), _from_terms(rest)
    if remainder.is_static:  # in [0, divisor)
        return quotient_part
    return quotient_part + _floordiv_reduced(remainder, divisor)


def _floordiv_reduced(a: Dim, divisor: int) -> Dim:
    """`a // divisor` where no coefficient of the symbolic `a` reaches the divisor."""
    # A common factor of the symbolic coefficients and the divisor goes, and takes the constant with it rounded
    # down: (2*n + 1) // 4 == n // 2.
    common = gcd(divisor, *(c for c, m in a.terms if m))
    if common > 1:
        return _floordiv(_from_terms((c // common, m) for c, m in a.terms), _constant(divisor // common))
    if a.terms[0][0] < 0:  # one form for ceiling division: -((-n) // 4) == (n + 3) // 4
        return -_floordiv(-a + (divisor - 1), _constant(divisor))
    # (x // p + k) // q == (x + k*p) // (p*q) for q > 0
    inner = (a - a.constant).atom
    if inner is not None and inner.kind == "floordiv" and inner.args[1].is_static:
        x, p = inner.args
        return _floordiv(x + p * a.constant, p * divisor)
    return _of_atom(Atom("floordiv", "", (a, _constant(divisor))))


def _scale_down(a: Dim, factor: int) -> Dim:
    return Dim(tuple((c // factor, m) for c, m in a.terms))


def _mod(a: Dim, b: Dim) -> Dim:
    common = gcd(a.content(), b.content())
    if not b.is_static:
        if common > 1:  # (g*a) % (g*b) == g * (a % b)
            return _mod(_scale_down(a, common), _scale_down(b, common)) * common
        return _of_atom(Atom("mod", "", (a, b)))
    divisor = int(b)
    if divisor == 0:
        raise ZeroDivisionError(f"dimension {a} modulo zero")
    if divisor < 0:  # a % -c == -((-a) % c)
        return -_mod(-a, _constant(-divisor))
    reduced = _from_terms((c % divisor, m) for c, m in a.terms)
    if reduced.is_static:
        return reduced
    common = gcd(reduced.content(), divisor)
    if common > 1:
        return _mod(_scale_down(reduced, common), _constant(divisor // common)) * common
    return _of_atom(Atom("mod", "", (reduced, _constant(divisor))))


def ceildiv(a: DimLike, b: DimLike) -> Dim:
    """`a / b` rounded up, for `b != 0`."""
    return -((-Dim.of(a)) // b)


# ---- min, max, bcast --------------------------------------------------------------------------------------------


def _operands(kind: str, dims: Iterable[Dim]) -> list[Dim]:
    """The operands of nested `kind` atoms (all three are associative and commutative), without repetitions."""
    found: dict[Dim, None] = {}
    work = list(dims)[::-1]
    while work:
        dim = work.pop()
        atom = dim.atom
        if atom is not None and atom.kind == kind:
            work.extend(reversed(atom.args))
        else:
            found[dim] = None
    return list(found)


def _fold(kind: str, operands: list[Dim]) -> Dim:
    operands = sorted(operands, key=str)
    result = operands[0]
    for operand in operands[1:]:
        result = _of_atom(Atom(kind, "", (result, operand)))
    return result


def _extremum(kind: str, a: DimLike, b: DimLike) -> Dim:
    sign = 1 if kind == "max" else -1
    kept: list[Dim] = []
    for operand in _operands(kind, (Dim.of(a), Dim.of(b))):
        # Of two operands with a constant difference only one can be the answer.
        for i, other in enumerate(kept):
            difference = operand - other
            if difference.is_static:
                kept[i] = operand if sign * int(difference) > 0 else other
                break
        else:
            kept.append(operand)
    return _fold(kind, kept)


def dmin(a: DimLike, b: DimLike) -> Dim:
    """The smaller of two dims."""
    return _extremum("min", a, b)


def dmax(a: DimLike, b: DimLike) -> Dim:
    """The greater of two dims."""
    return _extremum("max", a, b)


def bcast(a: DimLike, b: DimLike) -> Dim:
    """The extent of broadcasting extents `a` and `b` together: not their maximum, `bcast(1, 0) == 0`.

    Only meaningful where `a == b`, `a == 1` or `b == 1`; a static extent other than 1 therefore is the answer.
    Raises ValueError for two static extents that do not broadcast.
    """
    operands = [d for d in _operands("bcast", (Dim.of(a), Dim.of(b))) if d != 1]
    static = [d for d in operands if d.is_static]
    if len(static) > 1:
        raise ValueError(f"dimensions {static[0]} and {static[1]} do not broadcast")
    if static:
        return static[0]
    return _fold("bcast", operands) if operands else _constant(1)


def product(dims: Iterable[DimLike]) -> Dim:
    """The product of the dims; 1 for none."""
    result = _constant(1)
    for dim in dims:
        result = result * dim
    return result


def exact_div(a: DimLike, b: DimLike) -> Dim | None:
    """`q` such that `a == q * b` as polynomials, or None if there is none.

    `b` must not be the constant 0. Where `b` is symbolic and may be 0, `q` still satisfies `a == q * b`, but is not `a // b`
    (which is undefined there).
    """
    a, b = Dim.of(a), Dim.of(b)
    if b == 0:
        raise ZeroDivisionError(f"dimension {a} divided by zero")
    quotient: list[Term] = []
    lead_c, lead_m = b.terms[0]
    # Division in an admissible monomial order: the leading terms of an exact product are the products of leading
    # terms, so the first leading term that does not divide ends it. Each round removes one.
    for _ in range(2 * MAX_TERMS):
        if not a.terms:
            return _from_terms(quotient)
        coefficient, mono = a.terms[0]
        mono_quotient = _mono_div(mono, lead_m)
        if coefficient % lead_c or mono_quotient is None:
            return None
        term = (coefficient // lead_c, mono_quotient)
        quotient.append(term)
        try:
            a = a - Dim((term,)) * b
        except DimTooComplex:
            return None
    return None


# ---- substitution and evaluation ------------------------------------------------------------------------------


_MAKERS = {"floordiv": _floordiv, "mod": _mod, "min": dmin, "max": dmax, "bcast": bcast}


def apply_atom(kind: str, a: Dim, b: Dim) -> Dim:
    """The canonical dim of `kind` (one of ATOM_KINDS but "sym") applied to `a` and `b`."""
    return _MAKERS[kind](a, b)


def _substitute(dim: Dim, mapping: Mapping[str, DimLike], memo: dict[Atom, Dim]) -> Dim:
    if dim.is_static:
        return dim
    total = _ZERO
    for coefficient, mono in dim.terms:
        term = _constant(coefficient)
        for atom, power in mono:
            value = memo.get(atom)
            if value is None:
                value = memo[atom] = _substitute_atom(atom, mapping, memo)
            for _ in range(power):
                term = term * value
        total = total + term
    return total


def _substitute_atom(atom: Atom, mapping: Mapping[str, DimLike], memo: dict[Atom, Dim]) -> Dim:
    if atom.kind == "sym":
        replacement = mapping.get(atom.name)
        return _of_atom(atom) if replacement is None else Dim.of(replacement)
    a, b = (_substitute(arg, mapping, memo) for arg in atom.args)
    return _MAKERS[atom.kind](a, b)


def _evaluate_atom(atom: Atom, values: Mapping[str, int]) -> int:
    if atom.kind == "sym":
        return int(values[atom.name])
    a, b = (arg.evaluate(values) for arg in atom.args)
    if atom.kind == "floordiv":
        return a // b
    if atom.kind == "mod":
        return a % b
    if atom.kind == "min":
        return min(a, b)
    if atom.kind == "max":
        return max(a, b)
    return b if a == 1 else a


# ---- text -------------------------------------------------------------------------------------------------------


def _format(terms: tuple[Term, ...]) -> str:
    if not terms:
        return "0"
    parts: list[str] = []
    for coefficient, mono in terms:
        factors = [str(atom) if power == 1 else f"{atom}^{power}" for atom, power in mono]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        text = "*".join(factors)
        if parts:
            parts.append(f"{'-' if coefficient < 0 else '+'} {text}")
        else:
            parts.append(f"-{text}" if coefficient < 0 else text)
    return " ".join(parts)


def parse_dim(text: str) -> Dim:
    """Parse what `str(dim)` prints, and also `//`, `%` and parentheses. Raises ValueError for anything else."""
    from disc_tf.ir.dim_parser import parse  # it needs this module

    return parse(text)
