"""Integer tensors followed symbolically, element by element.

The *content* of a small integer tensor of static shape is a numpy array of `Dim` (dtype object) of the tensor's shape.
Data movement (reshape, slice, gather, concat ...) is then numpy itself; this file has the arithmetic. All
functions are pure: they return the content of the result, or None where it cannot be told for all values of the
symbols (the caller then computes at run time).

Arithmetic is that of unbounded integers: extents and their products fit the 32 or 64 bits of the tensor, so wrapping
is not modelled (an element that would wrap gives the mathematical value instead).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from disc_tf.ir.dims import Dim, DimLike, DimTooComplex, dmax, dmin

#: contents with more elements are not followed: they are data, not shapes
MAX_CONTENT = 256


class Facts(Protocol):
    """What these functions ask of a shape environment (`ir.shape_env.ShapeEnv` has it)."""

    def is_equal(self, a: DimLike, b: DimLike) -> bool | None: ...

    def is_nonneg(self, dim: DimLike) -> bool | None: ...


def as_content(values: Iterable[DimLike], shape: Sequence[int]) -> np.ndarray:
    """The content with these elements in row-major order. `ValueError` if their number does not fit `shape`."""
    items = [Dim.of(v if isinstance(v, (Dim, str)) else int(v)) for v in values]
    out = np.empty(len(items), object)
    out[:] = items
    return out.reshape(tuple(shape))


def of_constant(value: np.ndarray) -> np.ndarray | None:
    """The content of a known integer constant, None if it is not an integer or too large to be followed."""
    if value.dtype.kind not in "iu" or value.size > MAX_CONTENT:
        return None
    try:
        return as_content(value.reshape(-1).tolist(), value.shape)
    except DimTooComplex:  # over 63 bits
        return None


def to_constant(content: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """The constant that `content` is (wrapped to `dtype` as TF integers wrap), or None if an element is symbolic."""
    items = content.reshape(-1).tolist()
    if not all(d.is_static for d in items):
        return None
    bits = 8 * dtype.itemsize
    wrapped = [int(d) & ((1 << bits) - 1) for d in items]
    unsigned = np.array(wrapped, np.dtype(f"u{dtype.itemsize}"))
    return unsigned.view(dtype).reshape(content.shape)


# ---- deciding --------------------------------------------------------------------------------------------


def at_least(facts: Facts, a: DimLike, b: DimLike) -> bool | None:
    """Whether `a >= b`: True or False if that holds for all values, else None."""
    difference = Dim.of(a) - Dim.of(b)
    if difference.is_static:
        return int(difference) >= 0
    if facts.is_nonneg(difference) is True:
        return True
    return False if facts.is_nonneg(-difference - 1) is True else None


def is_positive(facts: Facts, d: DimLike) -> bool:
    """Whether `d >= 1` for all values."""
    return at_least(facts, d, 1) is True


def maximum(facts: Facts, a: DimLike, b: DimLike) -> Dim:
    """`max(a, b)`, without an atom where the order is known."""
    if at_least(facts, a, b):
        return Dim.of(a)
    return Dim.of(b) if at_least(facts, b, a) else dmax(a, b)


def minimum(facts: Facts, a: DimLike, b: DimLike) -> Dim:
    """`min(a, b)`, without an atom where the order is known."""
    if at_least(facts, a, b):
        return Dim.of(b)
    return Dim.of(a) if at_least(facts, b, a) else dmin(a, b)


def is_negative_flag(facts: Facts, x: DimLike) -> Dim:
    """1 where `x < 0`, else 0."""
    x = Dim.of(x)
    nonneg = at_least(facts, x, 0)
    if nonneg is not None:
        return Dim.of(0 if nonneg else 1)
    return dmin(1, dmax(0, -x))


# ---- arithmetic ------------------------------------------------------------------------------------------

_Scalar2 = Callable[[Facts, Dim, Dim], "Dim | None"]


def _floordiv(facts: Facts, a: Dim, b: Dim) -> Dim | None:
    # A divisor that can be 0 makes TF raise: that needs the run-time check, so it is not folded here.
    if (b.is_static and int(b) != 0) or is_positive(facts, b):
        return a // b
    return None


def _floormod(facts: Facts, a: Dim, b: Dim) -> Dim | None:
    if (b.is_static and int(b) != 0) or is_positive(facts, b):
        return a % b
    return None


def _truncdiv(facts: Facts, a: Dim, b: Dim) -> Dim | None:
    if a.is_static and b.is_static and int(b) != 0:
        q = abs(int(a)) // abs(int(b))
        return Dim.of(q if (int(a) < 0) == (int(b) < 0) else -q)
    if at_least(facts, a, 0) and is_positive(facts, b):
        return a // b
    return None


def _truncmod(facts: Facts, a: Dim, b: Dim) -> Dim | None:
    quotient = _truncdiv(facts, a, b)
    if quotient is None:
        return None
    return a - quotient * b if a.is_static and b.is_static else a % b


_BINARY: dict[str, _Scalar2] = {
    "Add": lambda _f, a, b: a + b,
    "AddV2": lambda _f, a, b: a + b,
    "Sub": lambda _f, a, b: a - b,
    "Mul": lambda _f, a, b: a * b,
    "FloorDiv": _floordiv,
    "FloorMod": _floormod,
    "Div": _truncdiv,
    "TruncateDiv": _truncdiv,
    "Mod": _truncmod,
    "TruncateMod": _truncmod,
    "Maximum": maximum,
    "Minimum": minimum,
    "SquaredDifference": lambda _f, a, b: (a - b) * (a - b),
}

_UNARY: dict[str, Callable[[Facts, Dim], Dim | None]] = {
    "Identity": lambda _f, a: a,
    "Neg": lambda _f, a: -a,
    "Square": lambda _f, a: a * a,
    "Abs": lambda f, a: maximum(f, a, -a),
    "Sign": lambda f, a: (
        Dim.of(1) if is_positive(f, a) else (Dim.of(int(np.sign(int(a)))) if a.is_static else None)
    ),
    "Relu": lambda f, a: maximum(f, a, 0),
}


def binary(op: str, a: np.ndarray, b: np.ndarray, facts: Facts) -> np.ndarray | None:
    """The content of TF's binary integer op `op` with implicit broadcasting.

    None if `op` is not an integer op that is followed, the shapes do not broadcast, a divisor may be zero, or the result
    would be too complex.
    """
    scalar = _BINARY.get(op)
    if scalar is None:
        return None
    try:
        a, b = np.broadcast_arrays(a, b)
    except ValueError:
        return None
    if a.size > MAX_CONTENT:
        return None
    return _map(lambda x, y: scalar(facts, x, y), a, b)


def unary(op: str, a: np.ndarray, facts: Facts) -> np.ndarray | None:
    """The content of TF's unary integer op `op`, None as for `binary`."""
    scalar = _UNARY.get(op)
    return None if scalar is None else _map(lambda x: scalar(facts, x), a)


def _map(fn: Callable[..., Dim | None], *arrays: np.ndarray) -> np.ndarray | None:
    items: list[Dim] = []
    for args in zip(*(a.reshape(-1).tolist() for a in arrays), strict=True):
        try:
            item = fn(*args)
        except DimTooComplex:
            return None
        if item is None:
            return None
        items.append(item)
    return as_content(items, arrays[0].shape)


_COMPARE: dict[str, Callable[[Facts, Dim, Dim], bool | None]] = {
    "Equal": lambda f, a, b: f.is_equal(a, b),
    "NotEqual": lambda f, a, b: _not(f.is_equal(a, b)),
    "GreaterEqual": lambda f, a, b: at_least(f, a, b),
    "LessEqual": lambda f, a, b: at_least(f, b, a),
    "Less": lambda f, a, b: _not(at_least(f, a, b)),
    "Greater": lambda f, a, b: _not(at_least(f, b, a)),
}


def _not(x: bool | None) -> bool | None:
    return None if x is None else not x


def compare(op: str, a: np.ndarray, b: np.ndarray, facts: Facts) -> np.ndarray | None:
    """The bool array of TF's comparison `op`, None if an element is not decided for all values of the symbols."""
    scalar = _COMPARE.get(op)
    if scalar is None:
        return None
    try:
        a, b = np.broadcast_arrays(a, b)
    except ValueError:
        return None
    out = [scalar(facts, x, y) for x, y in zip(a.reshape(-1).tolist(), b.reshape(-1).tolist(), strict=True)]
    return None if any(v is None for v in out) else np.array(out, np.bool_).reshape(a.shape)


def select(pred: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """`np.where` over contents with a known predicate (shapes that broadcast), else None."""
    try:
        return np.where(pred, a, b)
    except ValueError:
        return None


_REDUCE: dict[str, tuple[int | None, _Scalar2]] = {
    "Sum": (0, _BINARY["Add"]),
    "Prod": (1, _BINARY["Mul"]),
    "Max": (None, maximum),
    "Min": (None, minimum),
}


def reduce(op: str, a: np.ndarray, axes: Sequence[int], keep_dims: bool, facts: Facts) -> np.ndarray | None:
    """The content of a TF reduction over `axes` (normalised or negative); None for other ops or Max/Min of nothing."""
    if op not in _REDUCE:
        return None
    neutral, scalar = _REDUCE[op]
    axes = sorted({ax % a.ndim for ax in axes}) if a.ndim else []
    kept = [i for i in range(a.ndim) if i not in axes]
    width = math.prod(a.shape[i] for i in axes)
    count = math.prod(a.shape[i] for i in kept)
    rows = np.transpose(a, [*kept, *axes]).reshape(count, width).tolist()
    items: list[Dim] = []
    for row in rows:
        if not row and neutral is None:
            return None
        total = Dim.of(neutral) if neutral is not None else row[0]
        for item in row if neutral is not None else row[1:]:
            try:
                value = scalar(facts, total, item)
            except DimTooComplex:
                return None
            if value is None:
                return None
            total = value
        items.append(total)
    shape = (
        [1 if i in axes else n for i, n in enumerate(a.shape)] if keep_dims else [a.shape[i] for i in kept]
    )
    return as_content(items, shape)


def cumulative(
    op: str, a: np.ndarray, axis: int, exclusive: bool, reverse: bool, facts: Facts
) -> np.ndarray | None:
    """The content of `Cumsum` / `Cumprod` along `axis`."""
    neutral, scalar = {"Cumsum": _REDUCE["Sum"], "Cumprod": _REDUCE["Prod"]}[op]
    lines = np.moveaxis(a, axis, -1)
    flat = lines.reshape(-1, lines.shape[-1])[:, :: -1 if reverse else 1]
    out = np.empty(flat.shape, object)
    for i, row in enumerate(flat):
        total = Dim.of(neutral)  # type: ignore[arg-type]
        for j, item in enumerate(row):
            try:
                after = scalar(facts, total, item)
            except DimTooComplex:
                return None
            assert after is not None
            out[i, j] = total if exclusive else after
            total = after
    return np.moveaxis(out[:, :: -1 if reverse else 1].reshape(lines.shape), -1, axis)


BINARY_OPS = frozenset(_BINARY)
UNARY_OPS = frozenset(_UNARY) - {"Identity"}  # values pass through unchanged anyway
COMPARE_OPS = frozenset(_COMPARE)
REDUCE_OPS = frozenset(_REDUCE)
