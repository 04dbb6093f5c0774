"""The verdicts of the differential check, with processes that only pretend to be TensorFlow; and the real process's failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from disc_tf.testing import differential
from disc_tf.testing.differential import OptimizedRaised, bench_graphs, verify_graphs
from disc_tf.testing.inputs import InputSpec
from disc_tf.testing.tf_process import ProcessFailed, TfError, TfProcess

Answer = Callable[[np.ndarray], Any]


def double(x: np.ndarray) -> np.ndarray:
    return x * 2


def raises(code: int) -> Answer:
    def answer(_x: np.ndarray) -> Any:
        raise TfError(code, "no")

    return answer


def dies_at(rows: int) -> Answer:
    def answer(x: np.ndarray) -> Any:
        if len(x) == rows:
            raise ProcessFailed("ended with status -11")
        return double(x)

    return answer


class Fake:
    """A process that answers with a function of the feed."""

    answers: dict[str, Answer | Exception]  # set by `verify`
    timed: ClassVar[dict[str, Answer]] = {}  # where timing runs answer otherwise
    info: ClassVar[dict[str, int]] = {"import_rss": 0}
    dead = False

    def __init__(self, path: str, inputs: Any, outputs: Any, **_: Any) -> None:
        self.path = str(path)
        answer = self.answers[str(path)]
        if isinstance(answer, Exception):
            raise answer
        self.answer = answer

    def run(self, feeds: list[np.ndarray]) -> list[np.ndarray]:
        return [self.answer(feeds[0])]

    def time(self, feeds: list[np.ndarray], repeats: int = 5, warmup: int = 1) -> list[float]:
        self.timed.get(self.path, double)(feeds[0])
        return [1.0] * repeats

    def memory(self) -> dict[str, int]:
        return {"peak": 0}

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


def verify(monkeypatch: pytest.MonkeyPatch, original: Answer | Exception, optimized: Answer | Exception) -> list[bool]:
    monkeypatch.setattr(differential, "TfProcess", Fake)
    Fake.answers = {"original": original, "optimized": optimized}
    spec = InputSpec("x", np.dtype(np.float32), ("n", 3))
    found = verify_graphs("original", "optimized", [spec], ["y:0"], [{"n": n} for n in (1, 2, 3)])
    assert all(r.message for r in found if not r.ok)
    return [r.ok for r in found]


@pytest.mark.parametrize(
    ("original", "optimized", "ok"),
    [
        (double, double, [True, True, True]),
        (double, lambda x: x * 3, [False, False, False]),
        (double, lambda x: (x * 2).astype(np.float64), [False, False, False]),
        (double, lambda x: x[:1] * 2, [True, False, False]),
        (raises(3), raises(3), [True, True, True]),
        (raises(3), raises(5), [False, False, False]),
        (raises(3), double, [False, False, False]),
        (double, raises(3), [False, False, False]),
        (double, dies_at(2), [True, False, False]),  # nothing can be asked of it any more
        (double, ProcessFailed("ended with status -11"), [False, False, False]),
        (double, TfError(3, "Op type not registered"), [False, False, False]),
    ],
)
def test_verdicts(monkeypatch: pytest.MonkeyPatch, original: Answer, optimized: Answer | Exception, ok: list[bool]) -> None:
    assert verify(monkeypatch, original, optimized) == ok


def test_an_original_that_dies_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compared before counts; the rest says why it was not compared."""
    monkeypatch.setattr(differential, "TfProcess", Fake)
    Fake.answers = {"original": dies_at(2), "optimized": double}
    found = verify_graphs("original", "optimized", [SPEC], ["y:0"], SIZES)
    assert [(r.ok, r.compared) for r in found] == [(True, True), (True, False), (True, False)]
    assert all(r.message == "TensorFlow itself cannot run it here: ended with status -11" for r in found[1:])


@pytest.mark.parametrize("error", [ProcessFailed("ended with status -11"), TfError(3, "Op type not registered")])
def test_an_original_that_does_not_load(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    with pytest.raises(type(error)):
        verify(monkeypatch, error, double)


@pytest.mark.parametrize(
    ("rows", "compared"), [((0, 0), [False, False]), ((0, 2), [False, True])]
)  # an output without elements is not compared
def test_empty_outputs(monkeypatch: pytest.MonkeyPatch, rows: tuple[int, ...], compared: list[bool]) -> None:
    monkeypatch.setattr(differential, "TfProcess", Fake)
    Fake.answers = {"original": double, "optimized": double}
    found = verify_graphs("original", "optimized", [SPEC], ["y:0"], [{"n": n} for n in rows])
    assert [r.compared for r in found] == compared and [r.elements for r in found] == [{"y:0": 3 * n} for n in rows]


class Draws:
    """Draws anew each time, from what ``make`` makes of a generator and a feed."""

    def __init__(self, seed: int, make: Callable[[np.random.Generator, np.ndarray], Any]) -> None:
        self.rng, self.make = np.random.default_rng(seed), make

    def __call__(self, x: np.ndarray) -> Any:
        return self.make(self.rng, x)


def uniform(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return rng.random(x.shape, np.float32)


def dropout(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return np.where(rng.random(x.shape) < 0.5, 0, np.float32(2) * x).astype(np.float32)


@pytest.mark.parametrize(
    ("original", "optimized", "said"),
    [
        (uniform, uniform, ""),
        (dropout, dropout, ""),
        (dropout, lambda rng, x: dropout(rng, x) * np.float32(1 + 1e-5), ""),  # rounded otherwise
        (dropout, lambda rng, x: dropout(rng, x) * np.float32(1.01), "another distribution"),
        (lambda rng, x: rng.integers(0, 5, x.shape), lambda rng, x: rng.integers(0, 5, x.shape), ""),
        (lambda rng, x: rng.random((rng.integers(1, 9), 2)), lambda rng, x: rng.random((rng.integers(1, 9), 2)), ""),
        (lambda rng, x: np.full(x.shape, rng.random()), lambda rng, x: np.full(x.shape, rng.random()), ""),  # elements hang together
        (uniform, lambda rng, x: uniform(rng, x) * np.float32(1.5), "another distribution"),
        (uniform, lambda rng, x: uniform(rng, x).astype(np.float64), "dtype float64 instead of float32"),
        (uniform, lambda rng, x: uniform(rng, x[:1]), "shape [1, 3] instead of [2, 3]"),
        (uniform, lambda rng, x: np.where(uniform(rng, x) < 0.3, np.nan, uniform(rng, x)), "NaN"),
        (dropout, lambda rng, x: x, "another distribution"),
        (lambda rng, x: x, uniform, "error above"),  # not random in TensorFlow
        (lambda rng, x: rng.integers(0, 5, x.shape), lambda rng, x: rng.integers(0, 6, x.shape), "another distribution"),
    ],
)
def test_random_outputs(monkeypatch: pytest.MonkeyPatch, original: Any, optimized: Any, said: str) -> None:
    """Compared by distribution where the graph draws and the reference differs from itself."""
    monkeypatch.setattr(differential, "TfProcess", Fake)
    monkeypatch.setattr(Fake, "info", {"import_rss": 0, "ops": ["Mul", "RandomUniform"]})
    Fake.answers = {"original": Draws(1, original), "optimized": Draws(2, optimized)}
    (row,) = verify_graphs("original", "optimized", [SPEC], ["y:0"], [{"n": 2}])
    assert row.ok is (not said) and row.compared
    assert said in row.message if said else row.message.startswith(differential.RANDOM)


def refuses_two_rows(x: np.ndarray) -> np.ndarray:
    if len(x) == 2:
        raise TfError(10, "Graph execution error:\n\nDetected at node 'pool'\nno such pooling\n\t [[{{node pool}}]]")
    return x


SPEC = InputSpec("x", np.dtype(np.float32), ("n", 3))
SIZES = [{"n": n} for n in (1, 2, 3)]


@pytest.mark.parametrize("side", ["original", "optimized"])
def test_timing_where_users_get_an_error(monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    """The original's is a note and the other shapes are timed; the optimised graph's alone is a difference."""
    monkeypatch.setattr(differential, "TfProcess", Fake)
    monkeypatch.setattr(Fake, "answers", {"original": double, "optimized": double}, raising=False)
    monkeypatch.setattr(Fake, "timed", {side: refuses_two_rows})
    rows = verify_graphs("original", "optimized", [SPEC], ["y:0"], SIZES, timing=True)
    assert [r.original_ms is not None for r in rows] == [True, False, True]
    assert [r.ok for r in rows] == [True, side == "original", True]
    said = "not timed: TensorFlow itself raises code 10: no such pooling"
    assert rows[1].message.endswith("raises code 10: no such pooling")
    assert (rows[1].message == said) is (side == "original")

    skipped = []
    if side == "original":
        rows = bench_graphs("original", "optimized", [SPEC], ["y:0"], SIZES, skipped=lambda *told: skipped.append(told))
        assert [r.dims["n"] for r in rows] == [1, 3] and skipped == [({"n": 2}, said)]
        assert all(len(r.ratios) == 7 and min(r.warmup) >= 9 for r in rows)
        assert rows[0].to_dict()["low"] <= rows[0].to_dict()["high"]
    with pytest.raises(TfError if side == "original" else OptimizedRaised, match="no such pooling"):
        bench_graphs("original", "optimized", [SPEC], ["y:0"], SIZES)


def test_a_process_that_ends_says_why(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much it writes before."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nhead -c 1000000 /dev/zero | tr '\\0' x >&2\necho last words >&2\nexit 7\n")
    python.chmod(0o755)
    with pytest.raises(ProcessFailed, match=r"status 7 during 'load'[\s\S]*last words"):
        TfProcess("none.pb", [], [], python=str(python))
