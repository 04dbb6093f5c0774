"""Outputs that are drawn anew at each run: whether two sides draw them from the same distribution."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from disc_tf.ir.types import DType
from disc_tf.testing.compare import RELATIVE

#: how the ops are called that draw other numbers each time
_DRAWS = (
    "Random", "Multinomial", "TruncatedNormal", "ParameterizedTruncatedNormal", "StatefulStandardNormal", "StatefulUniform",
    "StatefulTruncatedNormal", "StatefulRandom", "RngReadAndSkip", "RngSkip",
)  # fmt: skip
#: runs of each side: at least, at most, and the seconds after which no further ones are made
_FEWEST, _MOST, _SECONDS = 48, 200, 1.5
#: how often all tests of an output may together be wrong about equal distributions
FALSE_ALARM = 1e-7
#: elements that are looked at one by one
_PLACES = 12
_QUANTILES = (0.1, 0.5, 0.9)

Draw = Callable[[], Sequence[np.ndarray]]


def draws_random(ops: Collection[str]) -> bool:
    """Whether a graph of these op types draws random numbers."""
    return any(op.startswith(_DRAWS) for op in ops)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Of one output: ``random``, whether the reference's own runs differ; ``message``: what is wrong, empty if nothing."""

    random: bool
    message: str = ""


def compare_draws(reference: Draw, candidate: Draw, outputs: int) -> tuple[list[Drawn], int]:
    """Run both sides equally often and compare each output's draws; also how many runs there were. Raises what the sides raise."""
    ours: list[Sequence[np.ndarray]] = []
    theirs: list[Sequence[np.ndarray]] = []
    stop = time.monotonic() + 2 * _SECONDS
    while len(theirs) < _MOST and (len(theirs) < _FEWEST or time.monotonic() < stop):
        theirs.append(reference())
        ours.append(candidate())
    return [_compare([r[i] for r in theirs], [r[i] for r in ours]) for i in range(outputs)], len(theirs)


def _compare(reference: Sequence[np.ndarray], candidate: Sequence[np.ndarray]) -> Drawn:
    reference, candidate = [np.asarray(a) for a in reference], [np.asarray(a) for a in candidate]
    if all(_same(reference[0], a) for a in reference[1:]):
        return Drawn(False)
    dtypes = {a.dtype for a in reference}
    if other := {a.dtype for a in candidate} - dtypes:
        return Drawn(True, f"dtype {other.pop()} instead of {dtypes.pop()}")
    ranks = {a.ndim for a in reference}
    if other := {a.ndim for a in candidate} - ranks:
        return Drawn(True, f"rank {other.pop()} instead of {ranks.pop()}")
    shapes = {a.shape for a in reference}
    if len(shapes) == 1 and (strange := {a.shape for a in candidate} - shapes):
        return Drawn(True, f"shape {list(strange.pop())} instead of {list(shapes.pop())}")
    measured = [list(_measures(draws, len(shapes) == 1)) for draws in (reference, candidate)]
    tolerance = _tolerance(reference[0].dtype)
    for (what, a), (_, b) in zip(*measured, strict=True):
        slack = tolerance * float(np.abs(np.concatenate([a, b])).max(initial=0.0))
        if differ(a, b, FALSE_ALARM / max(len(measured[0]), 1), slack):
            return Drawn(True, f"another distribution of {what}: median {np.median(b):.4g} instead of {np.median(a):.4g}")
    return Drawn(True)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f"))


def _measures(draws: Sequence[np.ndarray], one_shape: bool) -> Iterator[tuple[str, np.ndarray]]:
    """(name, one number of each draw). The elements of a draw may depend on each other, the draws do not: tests are across draws."""
    for axis in range(draws[0].ndim) if not one_shape else ():
        yield f"extent {axis}", np.array([a.shape[axis] for a in draws], np.float64)
    if draws[0].dtype.kind not in "biufc" and _dtype(draws[0].dtype) is None:
        return
    flat = [_numbers(a) for a in draws]
    for what, test in (("NaN", np.isnan), ("infinities", np.isinf), ("zeros", lambda x: x == 0), ("negatives", lambda x: x < 0)):
        yield f"the share of {what}", np.array([test(x).mean() if x.size else 0.0 for x in flat])
    finite = [x[np.isfinite(x)] for x in flat]
    for what, of in (("mean", np.mean), ("deviation", np.std), ("least", np.min), ("greatest", np.max)):
        yield f"the {what}", np.array([of(x) if x.size else 0.0 for x in finite], np.float64)
    for q in _QUANTILES:
        yield f"the {q:g} quantile", np.array([np.quantile(x, q) if x.size else 0.0 for x in finite])
    if one_shape and flat[0].size:
        for place in np.unique(np.linspace(0, flat[0].size - 1, _PLACES).astype(int)):
            yield f"element {place}", np.array([np.nan_to_num(x[place]) for x in flat])


def _dtype(dtype: np.dtype) -> DType | None:
    try:
        return DType.from_np(dtype)
    except KeyError:
        return None


def _tolerance(dtype: np.dtype) -> float:
    """How far values may be off, relatively: what they may where nothing is random."""
    known = _dtype(dtype)
    return RELATIVE.get(known, 0.0) if known is not None else RELATIVE[DType.F32] if dtype.kind == "c" else 0.0


def _numbers(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "c":
        return np.concatenate([np.real(array).ravel(), np.imag(array).ravel()]).astype(np.float64)
    return array.astype(np.float64).ravel()


def differ(a: np.ndarray, b: np.ndarray, false_alarm: float, slack: float = 0.0) -> bool:
    """The two-sample test of Kolmogorov and Smirnov: whether the greatest distance of the distributions is beyond what chance makes with
    probability ``false_alarm``, even if each value may be off by ``slack``. Ties make it say so less often."""
    n, m = len(a), len(b)
    if not n or not m:
        return False
    a, b = np.sort(a), np.sort(b)
    distance = max(_lead(a, b, slack), _lead(b, a, slack))
    # with the factor e the bound holds for samples of every size
    return distance > math.sqrt((1 - math.log(false_alarm)) * (n + m) / (2 * n * m))


def _lead(a: np.ndarray, b: np.ndarray, slack: float) -> float:
    """How much more of ``a`` than of ``b`` is below a value at most, both sorted, with ``b`` that much lower."""
    at = np.searchsorted(a, a, "right") / len(a) - np.searchsorted(b, a + slack, "right") / len(b)
    return float(at.max())


__all__ = ["Drawn", "compare_draws", "differ", "draws_random"]
