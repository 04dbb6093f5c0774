"""Gradients of lookups in variables are rows (IndexedSlices), as through TensorFlow's functions, and those of shared tables are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import disc_tf.ops  # noqa: F401  registers the op
from disc_tf.frontend.saved_model import read_saved_model
from disc_tf.saved_model import optimize_saved_model

ROWS, WIDTH = 40, 6
IDS = tf.constant([[3, 7, 3], [0, 39, 7]])


class Lookups(tf.Module):
    """Tables that are looked up once, twice (also in a branch), and one that a product reads as a whole as well."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(4)
        self.once = tf.Variable(tf.constant(rng.normal(size=(ROWS, WIDTH)), tf.float32))
        self.twice = tf.Variable(tf.constant(rng.normal(size=(ROWS, WIDTH)), tf.float32))
        self.tied = tf.Variable(tf.constant(rng.normal(size=(ROWS, WIDTH)), tf.float32))
        self.w = tf.Variable(tf.constant(rng.normal(size=(WIDTH, WIDTH)), tf.float32))

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32)])
    def __call__(self, ids: Any) -> Any:
        x = tf.tanh(tf.gather(self.once, ids) @ self.w) + tf.gather(self.twice, ids) * 2.0
        x += tf.nn.relu(tf.gather(self.twice, tf.math.floormod(ids + 1, ROWS))) + tf.gather(self.tied, ids)
        return tf.matmul(tf.nn.softmax(x), self.tied, transpose_b=True)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[Any, Any]:
    """(TensorFlow's, the optimised one)."""
    base: Path = tmp_path_factory.mktemp("lookups")
    tf.saved_model.save(Lookups(), str(base / "in"))
    result = optimize_saved_model(base / "in", base / "out", targets=("native",), verify=False)
    assert result.report.coverage == 1.0, result.report.to_text()
    ops = [n.op for f in read_saved_model(base / "out").meta_graphs[0].graph_def.library.function for n in f.node_def]
    assert "DiscLaunch" in ops
    return tf.saved_model.load(str(base / "in")), tf.saved_model.load(str(base / "out"))


def variables(m: Any) -> dict[str, Any]:
    return {name: getattr(m, name) for name in ("once", "twice", "tied", "w")}


def gradients(m: Any, ids: Any) -> dict[str, Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(m(ids)))
    return tape.gradient(loss, variables(m))


@pytest.mark.parametrize("ids", [IDS, IDS[:, :1], IDS[:0]], ids=["several", "one column", "none"])
def test_rows_stay_rows(ids, models):
    wanted, found = (gradients(m, ids) for m in models)
    for name in wanted:
        assert isinstance(found[name], tf.IndexedSlices) == isinstance(wanted[name], tf.IndexedSlices) == (name in ("once", "twice")), name
        a, b = tf.convert_to_tensor(wanted[name]), tf.convert_to_tensor(found[name])
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
    rows = found["twice"].indices.shape[0]
    assert rows == 2 * int(tf.size(ids)), "as many as were looked up"


def test_in_a_function_and_through_an_optimizer(models):
    import keras

    after = []
    for m in models:
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(list(variables(m).values()))

        @tf.function
        def step(ids: Any, m: Any = m, optimizer: Any = optimizer) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(m(ids)))
            found = tape.gradient(loss, list(variables(m).values()))
            optimizer.apply_gradients(zip(found, variables(m).values(), strict=True))
            return loss

        losses = [float(step(IDS)) for _ in range(3)]
        after.append((losses, {name: v.numpy() for name, v in variables(m).items()}))
    np.testing.assert_allclose(after[1][0], after[0][0], rtol=1e-4)
    for name, value in after[0][1].items():
        np.testing.assert_allclose(after[1][1][name], value, rtol=1e-3, atol=1e-4)


def test_second_derivatives(models):
    found = []
    for m in models:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(tf.square(m(IDS)))
            first = inner.gradient(loss, m.once)
            size = tf.reduce_sum(tf.square(tf.convert_to_tensor(first)))
        found.append(tf.convert_to_tensor(outer.gradient(size, m.w)))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-3 * float(tf.reduce_max(tf.abs(found[0]))))
