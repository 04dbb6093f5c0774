"""Two samples of one distribution are not told apart, whatever it is; shifted or widened ones are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from disc_tf.testing.random_outputs import compare_draws, differ, draws_random

Sample = Callable[[np.random.Generator, int], np.ndarray]

SAMPLES: dict[str, Sample] = {
    "uniform": lambda rng, n: rng.random(n),
    "normal": lambda rng, n: rng.standard_normal(n),
    "heavy": lambda rng, n: rng.standard_cauchy(n),
    "coins": lambda rng, n: rng.integers(0, 2, n).astype(float),
    "rare": lambda rng, n: (rng.random(n) < 0.01).astype(float),
    "constant": lambda rng, n: np.full(n, 3.0),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_false_alarms(name: str) -> None:
    """At a rate of one in a hundred, of two thousand pairs; the bound is on the safe side."""
    rng = np.random.default_rng(0)
    found = sum(differ(SAMPLES[name](rng, 60), SAMPLES[name](rng, 60), 0.01) for _ in range(2000))
    assert found <= 20


@pytest.mark.parametrize("name", ["uniform", "normal", "coins"])
@pytest.mark.parametrize("change", [lambda x: x + 1, lambda x: 4 * x, lambda x: -x - 1])
def test_what_differs_is_seen(name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    rng = np.random.default_rng(0)
    assert differ(SAMPLES[name](rng, 200), change(SAMPLES[name](rng, 200)), 1e-7)


@pytest.mark.parametrize(("off", "seen"), [(0.0, False), (0.9e-4, False), (1.5e-4, True)])
def test_slack(off: float, seen: bool) -> None:
    a = np.full(100, 1.0)
    assert differ(a, a + off, 1e-6, slack=1e-4) is seen and differ(a, a - off, 1e-6, slack=1e-4) is seen


@pytest.mark.parametrize(
    ("ops", "random"),
    [
        (["Mul", "RandomUniform"], True),
        (["StatelessRandomUniformV2"], False),
        (["Multinomial"], True),
        (["RngReadAndSkip"], True),
        ([], False),
    ],
)
def test_which_ops_draw(ops: list[str], random: bool) -> None:
    assert draws_random(ops) is random


def test_strings_and_complex_numbers() -> None:
    """Of strings the shapes are compared; of complex numbers both parts."""
    rng = np.random.default_rng(0)
    words = np.array([b"a", b"b", b"c"], object)
    (found,), _ = compare_draws(lambda: [rng.permutation(words)], lambda: [rng.permutation(words)], 1)
    assert found.random and not found.message
    (found,), _ = compare_draws(lambda: [rng.permutation(words)], lambda: [rng.permutation(words)[:2]], 1)
    assert found.message == "shape [2] instead of [3]"
    complex_ = lambda factor: [rng.random(5) + 1j * factor * rng.random(5)]  # noqa: E731
    (found,), _ = compare_draws(lambda: complex_(1), lambda: complex_(2), 1)
    assert "another distribution" in found.message
