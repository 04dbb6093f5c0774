"""Vectorised indices: what one dimension's index is across the lanes of a vector.

`Index` is either affine, `base + lane * step` with scalar i64 base and step (step 0: uniform, the same in every
lane), or general, a vector of i64. A step that is only known at run time to be 0 or 1 (a dimension that may
broadcast) is marked `unit`, so that loads can choose between a vector load and a splat.
"""

from __future__ import annotations

from dataclasses import dataclass

from disc_tf.codegen.llvm import F64, I64, FnBuilder, V, const, vec


@dataclass(frozen=True)
class Index:
    """See the module's docstring. `vector` is set for a general index, and then `base` and `step` are unused."""

    base: V
    step: V
    unit: bool = False
    vector: V | None = None

    @property
    def uniform(self) -> bool:
        return self.vector is None and self.step.const == 0

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.base.name, self.step.name, self.vector.name if self.vector is not None else "")


ZERO = const(0, I64)
ONE = const(1, I64)


def uniform(v: V) -> Index:
    return Index(v, ZERO)


def ramp(base: V) -> Index:
    """base, base + 1, ... across the lanes."""
    return Index(base, ONE, True)


def general(v: V) -> Index:
    """A vector of i64; a scalar becomes a uniform index."""
    return uniform(v) if v.lanes == 1 else Index(ZERO, ZERO, False, v)


def as_vector(b: FnBuilder, i: Index, lanes: int) -> V:
    """The index of every lane."""
    if i.vector is not None:
        return i.vector
    base = b.splat(i.base, lanes)
    if i.step.const == 0 or lanes == 1:
        return base
    steps = b.mul(b.iota(lanes), b.splat(i.step, lanes))
    return b.add(base, steps)


def value(b: FnBuilder, i: Index, lanes: int) -> V:
    """The index as a value: a scalar when uniform."""
    return i.base if i.uniform else as_vector(b, i, lanes)


def add(b: FnBuilder, i: Index, v: V) -> Index:
    """i + v for a scalar v."""
    if i.vector is not None:
        return general(b.add(i.vector, b.splat(v, i.vector.lanes)))
    return Index(b.add(i.base, v), i.step, i.unit)


def scale(b: FnBuilder, i: Index, v: V) -> Index:
    """i * v for a scalar v."""
    if v.const == 1:
        return i
    if i.vector is not None:
        return general(b.mul(i.vector, b.splat(v, i.vector.lanes)))
    step = b.mul(i.step, v)
    return Index(b.mul(i.base, v), step, i.unit and step.const in (0, 1))


def plus(b: FnBuilder, i: Index, j: Index) -> Index:
    """i + j."""
    if j.uniform:
        return add(b, i, j.base)
    if i.uniform:
        return add(b, j, i.base)
    if i.vector is None and j.vector is None:
        return Index(b.add(i.base, j.base), b.add(i.step, j.step))
    lanes = (i.vector or j.vector).lanes  # type: ignore[union-attr]
    return general(b.add(as_vector(b, i, lanes), as_vector(b, j, lanes)))


def gated(b: FnBuilder, i: Index, flag: V) -> Index:
    """i where the scalar i1 flag holds, else 0 in every lane: a dimension that may broadcast."""
    if flag.const is not None:
        return i if flag.const else uniform(ZERO)
    if i.vector is not None:
        return general(b.select(flag, i.vector, const(0, i.vector.ty)))
    return Index(b.select(flag, i.base, ZERO), b.select(flag, i.step, ZERO), i.unit)


def clamp(b: FnBuilder, i: Index, high: V, lanes: int) -> Index:
    """min(max(i, 0), high) per lane."""
    if i.uniform:
        return uniform(b.smax(b.smin(i.base, high), 0))
    v = as_vector(b, i, lanes)
    return general(b.smax(b.smin(v, b.splat(high, lanes)), 0))


def divmod_by(b: FnBuilder, i: Index, d: V, lanes: int) -> tuple[Index, Index]:
    """(i / d, i mod d) for 0 <= i < 2**52 and a scalar d (d == 0 gives something, never a trap)."""
    if d.const == 1:
        return i, uniform(ZERO)
    if i.uniform:
        safe = d if d.const else b.smax(d, 1)
        return uniform(b.udiv(i.base, safe)), uniform(b.urem(i.base, safe))
    v = as_vector(b, i, lanes)
    if lanes == 1:
        safe = d if d.const else b.smax(d, 1)
        return general(b.udiv(v, safe)), general(b.urem(v, safe))
    if d.const and int(d.const) & (int(d.const) - 1) == 0:
        return general(b.udiv(v, const(d.const, v.ty))), general(b.and_(v, int(d.const) - 1))
    # A correctly rounded quotient of integers below 2**52 never rounds up to the next integer.
    q = from_f64(b, b.ftrunc(b.fdiv(to_f64(b, v), b.splat(_scalar_to_f64(b, d), lanes))))
    return general(q), general(b.sub(v, b.mul(q, b.splat(d, lanes))))


_MAGIC = 2.0**52


def to_f64(b: FnBuilder, v: V) -> V:
    """i64 in [0, 2**52) to f64 with integer instructions only (there is no conversion before AVX-512)."""
    magic = const(_MAGIC, vec(F64, v.lanes))
    bits = b.or_(v, const(0x4330000000000000, v.ty))
    return b.fsub(b.bitcast(bits, magic.ty), magic)


def from_f64(b: FnBuilder, x: V) -> V:
    """Integral f64 in [0, 2**52) to i64."""
    magic = const(_MAGIC, x.ty)
    bits = b.bitcast(b.fadd(x, magic), vec(I64, x.lanes))
    return b.and_(bits, const((1 << 52) - 1, bits.ty))


def _scalar_to_f64(b: FnBuilder, d: V) -> V:
    return b.sitofp(d, F64)
