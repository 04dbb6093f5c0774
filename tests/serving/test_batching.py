"""Which requests share a batch, and that each gets its own rows back."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from disc_tf.serving.batching import Batcher, BatchSettings
from disc_tf.serving.errors import ServingError
from disc_tf.serving.servable import Signature

SIGNATURE = Signature("s", "", {}, {}, b"")


class Model:
    """Doubles rows; records the shapes that it ran; fails on negative values."""

    name = "m"

    def __init__(self, drop: int = 0) -> None:
        self.not_batched = {SIGNATURE.name: ""}
        self.shapes: list[tuple[int, ...]] = []
        self.drop = drop

    def run(self, servable: Any, signature: Any, feeds: Mapping[str, np.ndarray], outputs: Any, deadline: float | None) -> list[np.ndarray]:
        self.shapes.append(feeds["x"].shape)
        if (feeds["x"] < 0).any():
            raise ServingError("INVALID_ARGUMENT", "negative")
        return [feeds["x"][self.drop :] * 2 if self.drop else feeds["x"] * 2]


def together(batcher: Batcher, feeds: list[np.ndarray], model: Model, deadlines: list[float | None] | None = None) -> list[Any]:
    results: list[Any] = [None] * len(feeds)

    def ask(i: int) -> None:
        try:
            deadline = deadlines[i] if deadlines else None
            results[i] = batcher(model, SIGNATURE, {"x": feeds[i]}, ("y",), deadline)[0]  # type: ignore[arg-type]
        except ServingError as e:
            results[i] = e

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(feeds))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results


def make(model: Model, rows: int = 64, wait: float = 0.2, allowed: bool = True, waiting: int = 100) -> Batcher:
    model.not_batched = {SIGNATURE.name: ""} if allowed else {}
    return Batcher(BatchSettings(rows, wait, waiting), run=model.run)


def test_requests_of_one_shape_run_together() -> None:
    model = Model()
    feeds = [np.full((1 + i % 3, 4), float(i)) for i in range(8)]
    for x, y in zip(feeds, together(make(model), feeds, model), strict=True):
        np.testing.assert_array_equal(y, 2 * x)
    assert len(model.shapes) < 8 and sum(s[0] for s in model.shapes) == sum(len(x) for x in feeds)


def test_other_dims_and_types_never_mix() -> None:
    model = Model()
    feeds = [np.ones((2, 3 + i % 2), [np.float32, np.float64][i // 2]) for i in range(4)]
    for x, y in zip(feeds, together(make(model), feeds, model), strict=True):
        assert y.shape == x.shape and y.dtype == x.dtype
    assert len(model.shapes) == 4


def test_no_batch_is_larger_than_the_limit() -> None:
    model = Model()
    feeds = [np.full((3, 2), float(i)) for i in range(10)]
    for x, y in zip(feeds, together(make(model, rows=8), feeds, model), strict=True):
        np.testing.assert_array_equal(y, 2 * x)
    assert max(s[0] for s in model.shapes) <= 8


@pytest.mark.parametrize("feed", [np.ones((0, 2)), np.ones(()), np.ones((64, 2))])
def test_what_cannot_share_runs_at_once(feed: np.ndarray) -> None:
    model = Model()
    start = time.monotonic()
    assert together(make(model, wait=5.0), [feed], model)[0].shape[1:] == feed.shape[1:]
    assert time.monotonic() - start < 3


def test_where_rows_are_not_independent_nothing_is_batched() -> None:
    model = Model()
    together(make(model, allowed=False), [np.ones((2, 2))] * 4, model)
    assert model.shapes == [(2, 2)] * 4


def test_a_bad_request_fails_alone() -> None:
    model = Model()
    feeds = [np.ones((1, 2)), -np.ones((1, 2)), np.ones((1, 2))]
    results = together(make(model), feeds, model)
    assert isinstance(results[1], ServingError) and results[1].code == "INVALID_ARGUMENT"
    np.testing.assert_array_equal(results[0], 2 * feeds[0])
    np.testing.assert_array_equal(results[2], 2 * feeds[2])


def test_an_output_without_a_row_for_each_input_ends_batching() -> None:
    model = Model(drop=1)
    batcher = make(model)
    results = together(batcher, [np.ones((2, 2))] * 3, model)
    assert all(r.shape == (1, 2) for r in results)  # as each would have got alone
    model.shapes.clear()
    together(batcher, [np.ones((2, 2))] * 3, model)
    assert model.shapes == [(2, 2)] * 3


def test_too_many_waiting_are_refused() -> None:
    model = Model()
    results = together(make(model, waiting=2), [np.ones((1, 2))] * 5, model)
    refused = [r for r in results if isinstance(r, ServingError)]
    assert 0 < len(refused) <= 3 and all(r.code == "RESOURCE_EXHAUSTED" for r in refused)


def test_a_deadline_shortens_the_wait() -> None:
    model = Model()
    start = time.monotonic()
    together(make(model, wait=10.0), [np.ones((1, 2))], model, [start + 0.5])
    assert time.monotonic() - start < 3
