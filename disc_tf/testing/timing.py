"""Whether one side is slower than the other: interleaved rounds, and intervals that do not assume how times are distributed."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence

import numpy as np

#: rounds at a shape: with nine, the second smallest and second greatest bound the median with 96 %
ROUNDS = 9
CONFIDENCE = 0.95
#: the fewest rounds that give an interval; one that leaves no doubt about who is faster ends the race
FEWEST = 6
#: seconds that one side runs in a round
_ROUND_SECONDS = 0.02
_RESAMPLES = 2000
#: processes per processor from which on others are in the way; a compile before and the timing itself stay below
_BUSY = 1.5

#: (how often, warm-up runs) -> seconds of each run
Run = Callable[[int, int], list[float]]


@dataclasses.dataclass(frozen=True)
class Race:
    """Times of both sides at one shape. ``original``, ``optimized``: seconds, medians. ``ratios``: of each round, how many times faster the
    optimised side was."""

    original: float
    optimized: float
    ratios: tuple[float, ...]


def race(original: Run, optimized: Run, rounds: int = ROUNDS) -> Race:
    """Time both sides in turn, the first one of a round changing; short runs are repeated. Raises what the sides raise."""
    once = max(min(min(side(2, 1)) for side in (original, optimized)), 1e-6)
    repeats = int(np.clip(_ROUND_SECONDS / once, 1, 50))
    first, second = in_turn((original, optimized), rounds, (repeats, repeats), _is_clear)
    return Race(float(np.median(medians(first))), float(np.median(medians(second))), round_ratios(first, second))


def _is_clear(found: Sequence[Sequence[Sequence[float]]]) -> bool:
    """Whether the interval of the rounds so far says who is faster."""
    bounds = interval(round_ratios(*found)) if len(found[0]) >= FEWEST else None
    return bounds is not None and not bounds[0] <= 1.0 <= bounds[1]


def in_turn(
    sides: Sequence[Run],
    rounds: int,
    repeats: Sequence[int],
    enough: Callable[[Sequence[Sequence[Sequence[float]]]], bool] = lambda _found: False,
) -> list[list[list[float]]]:
    """By side, seconds of as many runs as ``repeats`` has for it in each round; who comes first changes from round to round. enough:
    whether what was found so far ends it."""
    found: list[list[list[float]]] = [[] for _ in sides]
    for i in range(rounds):
        for k in range(len(sides)):
            at = (i + k) % len(sides)
            found[at].append(sides[at](repeats[at], 1))
        if enough(found):
            break
    return found


def medians(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The median of each round."""
    return [float(np.median(r)) for r in rounds]


def round_ratios(original: Sequence[Sequence[float]], optimized: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """How many times faster the optimised side was in each round."""
    return tuple(a / b for a, b in zip(medians(original), medians(optimized), strict=True))


def warm_up(run: Run, *, seconds: float = 2.0, batch: int = 3) -> int:
    """Run until the medians of three batches in a row lie within 5 % of each other, or the time is over. Returns the number of runs."""
    medians: list[float] = []
    stop, runs = time.perf_counter() + seconds, 0
    while True:
        medians.append(float(np.median(run(batch, 0))))
        runs += batch
        last = medians[-3:]
        if (len(last) == 3 and max(last) <= 1.05 * min(last)) or time.perf_counter() > stop:
            return runs


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Bounds of the median of what ``values`` are samples of, by order statistics (exact for any distribution); None for too few values."""
    n = len(values)
    ordered = sorted(values)
    below, k = 0.0, 0
    while k < n // 2:
        below += math.comb(n, k) / 2**n
        if 1 - 2 * below < confidence:
            break
        k += 1
    return (ordered[k - 1], ordered[n - k]) if k else None


def pooled(groups: Sequence[Sequence[float]], confidence: float = CONFIDENCE, seed: int = 0) -> tuple[float, float, float] | None:
    """(geometric mean of the groups' medians, lower, upper bound): the rounds of each group are resampled. None without groups."""
    groups = [g for g in groups if len(g)]
    if not groups:
        return None
    rng = np.random.default_rng(seed)
    logs = [np.log(np.asarray(g, np.float64)) for g in groups]
    middle = float(np.mean([np.median(g) for g in logs]))
    drawn = np.zeros(_RESAMPLES)
    for g in logs:
        drawn += np.median(g[rng.integers(0, len(g), (_RESAMPLES, len(g)))], axis=1)
    low, high = np.quantile(drawn / len(logs), [(1 - confidence) / 2, (1 + confidence) / 2])
    return math.exp(middle), float(np.exp(low)), float(np.exp(high))


def busy(load: float | None = None, processors: int | None = None) -> str | None:
    """What to say before times are taken on a machine that is busy with other work; None where it is not, or cannot be known.

    load: processes that run or wait for a processor, the mean of a minute; processors: of the host. Default: what the system says.
    """
    try:
        load = os.getloadavg()[0] if load is None else load
    except OSError:
        return None
    processors = processors or os.cpu_count() or 1
    if load <= _BUSY * processors:
        return None
    what = f"load average {load:.1f}, {processors} processor{'s' if processors > 1 else ''}"
    return f"this machine is busy ({what}): times and ratios are not to be relied on, repeat them when it is quiet"
