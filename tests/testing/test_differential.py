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


def verify(monkeypatch: pytest.MonkeyPatch, original: Answer, optimized: Answer | Exception) -> list[bool]:
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
    with pytest.raises(ProcessFailed):
        verify(monkeypatch, dies_at(2), double)


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
