"""Keras models through `disc_tf.jit`: dynamic batch and length, training, layers made on the first call."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import disc_tf
from bench import jit as models

pytestmark = pytest.mark.slow  # processes and models of their own: minutes on a busy machine


def jit(fn: Any, **options: Any) -> Any:
    return disc_tf.jit(fn, **{"background": False, "cache_dir": None, **options})


def close(a: Any, b: Any, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_a_model_that_is_built_by_its_first_call_trains():
    """Batch normalisation and dropout change variables; the seeds of both runs are equal."""
    runs = []
    for wrap in (jit, lambda model: model):
        keras.utils.set_random_seed(3)
        layers = keras.layers
        model = keras.Sequential([layers.Dense(8, "gelu"), layers.Dropout(0.3, seed=5), layers.BatchNormalization()])
        call, optimizer, losses = wrap(model), keras.optimizers.Adam(0.05), []
        x = tf.random.stateless_normal([12, 4], [1, 2])
        for rows in (12, 7):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((call(x[:rows], training=True) - 1.0) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
            losses.append(float(loss))
        runs.append([losses, call(x[:5], training=False).numpy(), *(v.numpy() for v in model.weights if v.dtype == "float32")])
        if wrap is jit:
            assert [s.state for s in call.report()] == ["compiled"] * 2
    for ours, theirs in zip(*runs, strict=True):
        close(ours, theirs, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_one_compilation_serves_batch_and_length(name):
    keras.utils.set_random_seed(1)
    model = models.MODELS[name](keras)
    f = jit(model)
    for rows, length in [(2, 5), (1, 1), (3, 17), (5, 2)]:
        x = models.inputs(tf, name, rows, length)
        close(f(x), model(x))
        weight = model.trainable_variables[0]
        weight.assign(weight * 1.1)
        close(f(x), model(x))
    assert len(f.report()) == 1 and f.report()[0].answers["tensorflow"] == 0
    assert f.report()[0].report.flops_share > 0.99


@pytest.mark.slow
def test_fit_with_a_jitted_part_is_keras_own():
    dense = keras.layers.Dense(4, activation="gelu")
    dense.build((None, 3))
    part = jit(dense)

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.out = dense, keras.layers.Dense(1)

        def call(self, x):
            return self.out(part(x))

    model = Model()
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).standard_normal((32, 3)).astype(np.float32)
    history = model.fit(x, x.sum(1, keepdims=True), epochs=3, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
