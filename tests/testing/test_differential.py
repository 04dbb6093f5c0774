"""The verdicts of the differential check, with processes that only pretend to be TensorFlow; and the real process's failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from disc_tf.testing import differential
from disc_tf.testing.differential import verify_graphs
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

    def __init__(self, path: str, inputs: Any, outputs: Any, **_: Any) -> None:
        answer = self.answers[str(path)]
        if isinstance(answer, Exception):
            raise answer
        self.answer = answer

    def run(self, feeds: list[np.ndarray]) -> list[np.ndarray]:
        return [self.answer(feeds[0])]

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


def test_a_process_that_ends_says_why(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much it writes before."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nhead -c 1000000 /dev/zero | tr '\\0' x >&2\necho last words >&2\nexit 7\n")
    python.chmod(0o755)
    with pytest.raises(ProcessFailed, match=r"status 7 during 'load'[\s\S]*last words"):
        TfProcess("none.pb", [], [], python=str(python))
