"""Slower or not: intervals that hold what they promise, rounds in which neither side always comes first."""

from __future__ import annotations

import math

import numpy as np
import pytest

from disc_tf.proof import is_slower
from disc_tf.report import ShapeResult, shape_line
from disc_tf.testing.timing import busy, interval, pooled, race, warm_up


@pytest.mark.parametrize("rounds", [6, 7, 9, 15, 40])
def test_the_interval_of_the_median_covers_it(rounds: int) -> None:
    """A skewed distribution, as times have: its median is inside in at least 95 % of the experiments, and not always."""
    rng = np.random.default_rng(rounds)
    hits = 0
    for _ in range(3000):
        low, high = interval(rng.lognormal(0.0, 1.0, rounds).tolist()) or (math.nan, math.nan)
        hits += low <= 1.0 <= high
    assert 0.94 <= hits / 3000 < 0.9999
    assert interval([1.0] * 5) is None  # five rounds cannot tell


@pytest.mark.parametrize(("ratio", "verdict"), [(0.97, True), (1.0, False), (1.03, False)])
def test_verdicts(ratio: float, verdict: bool) -> None:
    """Three percent are told from noise of four percent with six shapes; equal sides are called slower seldom."""
    rng = np.random.default_rng(1)
    slower = 0
    for _ in range(100):
        shapes = [ShapeResult({}, True, ratios=list(ratio * rng.lognormal(0.0, 0.04, 9))) for _ in range(6)]
        slower += is_slower(shapes)
    assert slower > 60 if verdict else slower < 8


def test_pooled_bounds() -> None:
    assert pooled([]) is None and pooled([[]]) is None
    assert pooled([[2.0] * 9, [0.5] * 9]) == pytest.approx((1.0, 1.0, 1.0))
    ratio, low, high = pooled([[1.0, 1.1, 0.9, 1.2, 0.8, 1.0, 1.0]]) or (0.0, 0.0, 0.0)
    assert ratio == pytest.approx(1.0) and low < 1.0 < high


def test_rounds_interleave() -> None:
    """Both sides are timed in each round, each first as often as the other; medians and ratios come from their own sides."""
    log: list[str] = []

    def side(name: str, seconds: float):
        def run(repeats: int, warmup: int) -> list[float]:
            log.append(name)
            return [seconds] * repeats

        return run

    found = race(side("a", 0.03), side("b", 0.01), rounds=6)
    assert (found.original, found.optimized) == (0.03, 0.01) and found.ratios == pytest.approx([3.0] * 6)
    rounds = ["".join(log[i : i + 2]) for i in range(2, len(log), 2)]
    assert rounds == ["ab", "ba"] * 3


def test_lines() -> None:
    result = ShapeResult({"x": [2]}, True, "", {"y": 0.0}, {}, 1.0, 1.1, [0.9] * 9, (0.88, 0.93))
    assert result.slower and "0.91x, 95 % in 0.88 to 0.93: slower" in shape_line(result)
    result.interval, result.source = (0.9, 1.01), "warm-up record"
    assert not result.slower and "slower" not in shape_line(result) and "warm-up record" in shape_line(result)


def test_warm_up_ends_when_times_are_stable() -> None:
    times = iter([9.0, 9.0, 9.0, 5.0, 5.0, 5.0, 4.0, 4.0, 4.0, *[3.0] * 300])

    def run(repeats: int, warmup: int) -> list[float]:
        assert warmup == 0
        return [next(times) for _ in range(repeats)]

    assert warm_up(run) == 18  # three batches at 3.0 after three that fell
    noisy = iter(range(1, 10**6))
    assert warm_up(lambda n, _: [float(2 ** (next(noisy) % 9)) for _ in range(n)], seconds=0.05) >= 3


@pytest.mark.parametrize(
    ("load", "processors", "noted"), [(3.0, 2, False), (3.2, 2, True), (40.0, 64, False), (1.6, 1, True), (0.0, 1, False)]
)
def test_a_busy_machine_is_named(load: float, processors: int, noted: bool) -> None:
    note = busy(load, processors)
    assert (note is not None) is noted
    assert not noted or f"load average {load:.1f}, {processors} processor" in str(note)
