"""The shape rules of TF ops over symbolic dims: pure functions of dims, sizes and masks.

Each follows TensorFlow's kernel for *all* values of the symbols, zero included. Static violations raise
`Unsupported(INVALID)` (TF reports its own error then); what only run time can tell comes back for the caller to check.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from disc_tf.ir.dims import Dim, ceildiv, exact_div, product
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.symbolic import (
    Facts,
    at_least,
    is_negative_flag,
    is_positive,
    maximum,
    minimum,
)

ONE = Dim.of(1)
ZERO = Dim.of(0)


def invalid(message: str) -> Unsupported:
    """TensorFlow itself rejects the node with this message."""
    return Unsupported("INVALID", message)


# ---- Reshape ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ReshapePlan:
    """Result of `reshape_dims`: the result's dims; `exact` if their product is the input's by construction (else it
    is to be checked or proved); `positive`: dims whose being >= 1 would make the result simpler."""

    dims: tuple[Dim, ...]
    exact: bool = False
    positive: tuple[Dim, ...] = ()


def reshape_dims(dims: Sequence[Dim], sizes: Sequence[Dim], facts: Facts) -> ReshapePlan:
    """The dims of `Reshape` of a tensor of `dims` to `sizes`, each `>= 0` or exactly the constant -1 (once at most).

    TF's rule for -1: with a zero among the other sizes the zero dims on both sides are left out of the division, so that
    [0, 5] reshaped to [0, -1] is [0, 5], and [0, 0, 8] to [0, -1, 8] is [0, 1, 8]. Both cases are in one expression.
    """
    wild = [i for i, s in enumerate(sizes) if s.is_static and int(s) == -1]
    for i, s in enumerate(sizes):
        if s.is_static and int(s) < -1:
            raise invalid(f"Size {i} must be non-negative, not {s}")
    if len(wild) > 1:
        raise invalid(f"Only one input size may be -1, not both {wild[0]} and {wild[1]}")
    if not wild:
        return ReshapePlan(tuple(sizes))
    missing, exact, positive = infer_missing(dims, [s for i, s in enumerate(sizes) if i != wild[0]], facts)
    out = list(sizes)
    out[wild[0]] = missing
    return ReshapePlan(tuple(out), exact, positive)


def infer_missing(
    dims: Sequence[Dim], sizes: Sequence[Dim], facts: Facts
) -> tuple[Dim, bool, tuple[Dim, ...]]:
    """`(missing, exact, positive)` of `reshape_dims` for the sizes other than the -1."""
    rest, left, matched = _match(dims, sizes, facts)
    # Every maybe-zero size that is not a dim of the input itself keeps us from dividing exactly.
    unsure = tuple(s for s in [*left, *matched] if not is_positive(facts, s))
    # `max(d, floor)` is 1 instead of 0 where one of those sizes is 0, else d: every d is at least 0, the floor at most 1.
    floor = 1 - product(unsure)
    divisor = product(maximum(facts, s, floor) if unsure else s for s in left)
    dividend = product(maximum(facts, d, floor) if unsure else d for d in rest)
    quotient = exact_div(dividend, divisor)
    if quotient is None or not is_positive(facts, divisor):
        return dividend // divisor, False, unsure
    # Exact if every size that is not a dim is positive: TF's quotient is this one and leaves nothing over.
    return quotient, all(is_positive(facts, s) for s in left), unsure


def _match(dims: Sequence[Dim], sizes: Sequence[Dim], facts: Facts) -> tuple[list[Dim], list[Dim], list[Dim]]:
    """Split off the sizes that are dims of the input: `(dims left, sizes left, sizes matched)`.

    A matched pair cancels in TF's rule whether it is zero or not (it is counted on both sides or on none).
    """
    rest, left, matched = list(dims), [], []
    for s in sizes:
        for i, d in enumerate(rest):
            if not s.is_static and facts.is_equal(s, d) is True:
                del rest[i]
                matched.append(s)
                break
        else:
            left.append(s)
    return rest, left, matched


# ---- slices ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class AxisSlice:
    """`length` consecutive elements from `start` of an axis (of the reversed axis if `reverse`), every `stride`-th kept.

    `0 <= start <= start + length <= extent` for all values of the symbols.
    """

    start: Dim
    length: Dim
    stride: int = 1
    reverse: bool = False

    @property
    def size(self) -> Dim:
        """Number of elements kept."""
        return self.length if self.stride == 1 else ceildiv(self.length, self.stride)


@dataclasses.dataclass(frozen=True)
class IndexCheck:
    """A run-time check: `0 <= index < extent`."""

    index: Dim
    extent: Dim
    message: str


def full_axis(extent: Dim) -> AxisSlice:
    """All of an axis."""
    return AxisSlice(ZERO, extent)


def wrap_index(x: Dim, extent: Dim, facts: Facts) -> Dim:
    """`x + extent` where `x < 0`, else `x` (Python's negative indices, not clamped)."""
    return x + extent * is_negative_flag(facts, x)


def slice_axis(begin: Dim | None, end: Dim | None, stride: int, extent: Dim, facts: Facts) -> AxisSlice:
    """Python's `[begin:end:stride]` on an axis (None: masked), as TF's StridedSlice clamps it."""
    if stride == 0:
        raise invalid("strides must be non-zero")
    if stride > 0:
        return _forward(begin, end, stride, extent, facts)
    # Mirror: element i is i' = extent - 1 - i of the reversed axis; an unclamped end of -1 becomes `extent`.
    mirrored_begin = None if begin is None else extent - 1 - wrap_index(begin, extent, facts)
    mirrored_end = None if end is None else extent - 1 - wrap_index(end, extent, facts)
    start, length = _clamped(mirrored_begin, mirrored_end, extent, facts)
    return AxisSlice(start, length, -stride, True)


def _forward(begin: Dim | None, end: Dim | None, stride: int, extent: Dim, facts: Facts) -> AxisSlice:
    b = None if begin is None else wrap_index(begin, extent, facts)
    e = None if end is None else wrap_index(end, extent, facts)
    start, length = _clamped(b, e, extent, facts)
    return AxisSlice(start, length, stride)


def _clamped(b: Dim | None, e: Dim | None, extent: Dim, facts: Facts) -> tuple[Dim, Dim]:
    """`(start, length)` of `[clamp(b), clamp(e))` in `[0, extent]`, in the form with the fewest atoms."""
    if b is None or b == 0:
        return ZERO, extent if e is None else clamp(e, extent, facts)
    if e is None or at_least(facts, e, extent):
        length = clamp(extent - b, extent, facts)
        return extent - length, length
    low, high = maximum(facts, b, 0), minimum(facts, e, extent)
    # An empty slice may start anywhere in [0, extent].
    return minimum(facts, low, extent), maximum(facts, high - low, 0)


def clamp(x: Dim, extent: Dim, facts: Facts) -> Dim:
    """`x` limited to `[0, extent]`."""
    if at_least(facts, x, 0):
        return minimum(facts, x, extent)
    if at_least(facts, extent, x):
        return maximum(facts, x, 0)
    return minimum(facts, maximum(facts, x, 0), extent)


@dataclasses.dataclass(frozen=True)
class StridedPlan:
    """Result of `strided_slice`: one `AxisSlice` per input axis, the layout of the result (input axis, or -1 for a new axis of
    extent 1; axes left out are dropped) and the index checks of the dropped axes in TF's order."""

    axes: tuple[AxisSlice, ...]
    layout: tuple[int, ...]
    checks: tuple[IndexCheck, ...]

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The result's dims."""
        return tuple(ONE if a < 0 else self.axes[a].size for a in self.layout)


@dataclasses.dataclass(frozen=True)
class Masks:
    """The five bit masks of StridedSlice."""

    begin: int = 0
    end: int = 0
    ellipsis: int = 0
    new_axis: int = 0
    shrink_axis: int = 0


def strided_slice(
    dims: Sequence[Dim],
    begin: Sequence[Dim],
    end: Sequence[Dim],
    strides: Sequence[int],
    masks: Masks,
    facts: Facts,
) -> StridedPlan:
    """TF's StridedSlice on a tensor of `dims`. `begin`, `end`: any values; `strides`: constants of equal length."""
    if not len(begin) == len(end) == len(strides):
        raise invalid("Expected begin, end, and strides to be 1D equal size tensors")
    if masks.ellipsis & (masks.ellipsis - 1):
        raise invalid("Multiple ellipses in slice spec not allowed")
    rank, count = len(dims), len(begin)
    ellipsis = next((i for i in range(count) if masks.ellipsis >> i & 1), count)
    after = sum(1 for i in range(ellipsis + 1, count) if masks.new_axis >> i & 1)
    spec_length = count + (ellipsis == count)  # an ellipsis at the end is implied
    axes: list[AxisSlice] = []
    layout: list[int] = []
    checks: list[IndexCheck] = []
    for i in range(spec_length):
        at = len(axes)
        if i == ellipsis:
            stop = min(rank - (spec_length - i) + 1 + after, rank)
            for axis in range(at, stop):
                axes.append(full_axis(dims[axis]))
                layout.append(axis)
            continue
        if masks.new_axis >> i & 1:
            layout.append(-1)
            continue
        if at == rank:
            raise invalid(f"Index out of range using input dim {at}; input has only {rank} dims")
        extent = dims[at]
        if strides[i] == 0:
            raise invalid(f"strides[{i}] must be non-zero")
        if masks.shrink_axis >> i & 1:
            if strides[i] <= 0:
                raise invalid("only stride 1 allowed on non-range indexing.")
            if extent == 0:
                raise invalid(f"slice index {begin[i]} of dimension {at} out of bounds.")
            index = wrap_index(begin[i], extent, facts)
            checks.append(
                IndexCheck(index, extent, f"slice index {begin[i]} of dimension {at} out of bounds.")
            )
            axes.append(AxisSlice(index, ONE))
            continue
        first = None if masks.begin >> i & 1 else begin[i]
        last = None if masks.end >> i & 1 else end[i]
        axes.append(slice_axis(first, last, strides[i], extent, facts))
        layout.append(at)
    return StridedPlan(tuple(axes), tuple(layout), tuple(checks))


# ---- Range -----------------------------------------------------------------------------------------------


def range_size(start: Dim, limit: Dim, delta: int, facts: Facts) -> Dim:
    """Number of elements of an integer Range; the caller checks that `delta` points from `start` to `limit`."""
    if delta == 0:
        raise invalid("Requires delta != 0: 0")
    span = limit - start if delta > 0 else start - limit
    if at_least(facts, span, 0) is False:
        raise invalid(
            f"Requires start {'<=' if delta > 0 else '>='} limit when delta {'>' if delta > 0 else '<'} 0"
        )
    return maximum(facts, ceildiv(span, abs(delta)), 0)


# ---- axes ------------------------------------------------------------------------------------------------


def normal_axis(axis: int, rank: int, message: str = "") -> int:
    """`axis` in `[0, rank)`; a negative one counts from the end. `Unsupported(INVALID)` outside."""
    if not -rank <= axis < rank:
        raise invalid(message or f"axis {axis} is out of range for rank {rank}")
    return axis + rank if axis < 0 else axis


def permutation_of(perm: Sequence[int], rank: int) -> tuple[int, ...]:
    """A checked permutation; negative entries count from the end, as in TF."""
    if len(perm) != rank:
        raise invalid(
            f"transpose expects a vector of size {rank}. But input(1) is a vector of size {len(perm)}"
        )
    out = tuple(normal_axis(int(p), rank) for p in perm)
    if len(set(out)) != rank:
        raise invalid(f"{list(perm)} is not a permutation of [0..{rank})")
    return out
