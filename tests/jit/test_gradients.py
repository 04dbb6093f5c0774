"""Gradients through a jitted function are TensorFlow's; variables that change are followed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import disc_tf


def jit(fn: Any = None, **options: Any) -> Any:
    return disc_tf.jit(fn, **{"background": False, "cache_dir": None, **options})


def close(a: Any, b: Any, tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


W, B = tf.Variable(tf.random.stateless_normal([6, 5], [1, 2])), tf.Variable(tf.zeros([5]))
UNTRAINED = tf.Variable(tf.ones([5]), trainable=False)


def layer(x):
    return tf.nn.softmax(tf.nn.gelu(x @ W + B) * UNTRAINED) * 3.0


LAYER = jit(layer)


@pytest.mark.parametrize("rows", [3, 1, 0])
def test_first_and_second_order(rows):
    x = tf.random.stateless_normal([rows, 6], [3, 4])
    found = []
    for fn in (LAYER, layer):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape(persistent=True) as inner:
                inner.watch(x)
                y = tf.reduce_sum(fn(x) ** 2)
            first = inner.gradient(y, [x, W, B])
            loss = tf.reduce_sum(first[0] ** 2)
        assert {v.ref() for v in inner.watched_variables()} == {W.ref(), B.ref()}
        found.append([y, *first, *outer.gradient(loss, [x, W])])
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs)
    s = LAYER.report()[0]
    assert s.state == "compiled" and s.answers["tensorflow"] == 0


@pytest.mark.slow
def test_jacobian_and_forward_mode():
    x = tf.random.stateless_normal([2, 6], [3, 4])
    jacobians, tangents = [], []
    for fn in (LAYER, layer):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = fn(x)
        jacobians.append(tape.jacobian(y, x))
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            y = fn(x)
        tangents.append(accumulator.jvp(y))
    close(*jacobians)
    close(*tangents)


@pytest.mark.slow
def test_gradients_in_a_graph():
    nested = jit(layer, nested=True)
    x = tf.random.stateless_normal([2, 6], [3, 4])
    nested.compile(x)

    def step(fn):
        def run(x):
            y = fn(x)
            return y, *tf.gradients(tf.reduce_sum(y**2), [x])

        return tf.function(run)

    def taped(fn):
        def run(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(fn(x) ** 2)
            return tape.gradient(loss, [W, B])

        return tf.function(run)

    for fn in (nested, LAYER):
        for make in (step, taped):
            for a, b in zip(make(fn)(x), make(layer)(x), strict=True):
                close(a, b)


def test_a_gradient_that_the_program_gives():
    def make():
        @tf.custom_gradient
        def clipped(x):
            e = tf.exp(x)
            return tf.math.log1p(e) * 2.0 + 1.0, lambda dy: dy * tf.minimum(e, 0.5)

        return clipped

    reference = make()
    f = jit(lambda x: tf.nn.silu(make()(x)) + 1.0)
    x = tf.constant([-3.0, 0.0, 2.0])
    close(f(x), tf.nn.silu(reference(x)) + 1.0)
    gradients = []
    for fn in (f, lambda x: tf.nn.silu(reference(x)) + 1.0):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = fn(x)
        gradients.append(tape.gradient(y, x))
    close(*gradients)
    assert f.report()[0].answers == {"compiled": 1, "tensorflow": 1}, "TensorFlow answers while a tape records such a function"


def test_random_numbers_of_the_forward_pass_are_those_of_the_gradient():
    @jit
    def dropped(x):
        keep = tf.cast(tf.random.uniform(tf.shape(x)) > 0.5, x.dtype)
        return tf.exp(x) * keep * 2.0

    x = tf.ones([40, 5])
    for _ in range(2):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = dropped(x)
        close(tape.gradient(y, x), y)  # d/dx exp(x) k = exp(x) k: the same k
        assert 0 < np.count_nonzero(y) < 200


CHANGES = {
    "assign": lambda v: v.assign(v * 0.5 - 1.0),
    "assign_add": lambda v: v.assign_add(tf.ones_like(v) * 0.25),
    "assign_sub": lambda v: v.assign_sub(tf.ones_like(v) * 0.25),
    "scatter": lambda v: v.scatter_nd_update([[1], [3]], tf.ones([2, v.shape[1]])),
    "slice": lambda v: v[1:3, 2].assign([7.0, -7.0]),
    "optimizer": lambda v: tf.keras.optimizers.Adam(0.1).apply_gradients([(tf.ones_like(v), v)]),
    "sgd": lambda v: tf.keras.optimizers.SGD(0.1).apply_gradients([(tf.ones_like(v), v)]),
}


def test_packed_weights_follow_every_change_of_the_variable(tmp_path):
    w = tf.Variable(tf.random.stateless_normal([64, 48], [5, 6]))
    f = jit(lambda x: tf.nn.relu(x @ w) + 1.0)
    x = tf.random.stateless_normal([7, 64], [7, 8])

    def check(what: str) -> None:
        for _ in range(2):
            np.testing.assert_allclose(f(x), np.maximum(x.numpy() @ w.numpy(), 0) + 1, rtol=1e-4, atol=1e-4, err_msg=what)

    check("first")
    for name, change in CHANGES.items():
        for _ in range(3):
            change(w)
            check(name)
    checkpoint = tf.train.Checkpoint(w=w)
    path = checkpoint.write(str(tmp_path / "c"))
    before = w.numpy()
    w.assign(w * 0.0)
    check("zeros")
    checkpoint.read(path)
    np.testing.assert_array_equal(w.numpy(), before)
    check("checkpoint")
    assert f.report()[0].answers["tensorflow"] == 0


def test_training_goes_as_in_tensorflow():
    x, target = tf.random.stateless_normal([16, 6], [1, 1]), tf.random.stateless_normal([16, 5], [2, 2])
    losses = []
    for wrap in (jit, lambda fn: fn):
        w, b = tf.Variable(tf.random.stateless_normal([6, 5], [1, 2])), tf.Variable(tf.zeros([5]))
        optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9)

        @wrap
        def loss(x, y, w=w, b=b):
            return tf.reduce_mean((tf.nn.tanh(x @ w + b) - y) ** 2)

        run = []
        for step in range(8):
            rows = 16 - step
            with tf.GradientTape() as tape:
                value = loss(x[:rows], target[:rows])
            optimizer.apply_gradients(zip(tape.gradient(value, [w, b]), [w, b], strict=True))
            run.append(float(value))
        losses.append(run)
    close(*losses)
    assert losses[0][-1] < losses[0][0]
