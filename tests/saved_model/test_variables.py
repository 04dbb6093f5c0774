"""Answers follow the variables, however they change: what is packed from one is never used for another's contents."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

v1 = tf.compat.v1
RNG = np.random.default_rng(11)
X = RNG.normal(size=(7, 16)).astype("f")


def expected(m: Any) -> np.ndarray:
    h = np.maximum(X @ m.w.numpy() + m.b.numpy(), 0)
    z = h @ m.w2.numpy()
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def scatter(m: Any) -> None:
    m.w.scatter_nd_update([[1, 2], [3, 4]], [5.0, -5.0])


def scatter_rows(m: Any) -> None:
    m.w.scatter_update(tf.IndexedSlices(tf.ones((2, 32)) * 3, [0, 5]))


def restore_checkpoint(m: Any, directory: Any) -> None:
    other = tf.train.Checkpoint(w=tf.Variable(tf.random.normal((16, 32), seed=4)), b=tf.Variable(tf.ones(32)))
    path = other.save(str(directory / "ckpt"))
    tf.train.Checkpoint(w=m.w, b=m.b).restore(path).expect_partial()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "assign": lambda m: m.w.assign(tf.reverse(m.w, [0])),
    "assign_add": lambda m: m.w.assign_add(tf.ones((16, 32))),
    "assign_sub in a function": lambda m: tf.function(lambda: m.w.assign_sub(0.5 * m.w))(),
    "slice assign": lambda m: m.w[2:4, :].assign(tf.ones((2, 32))),
    "scatter_nd_update": scatter,
    "scatter_update": scatter_rows,
    "bias": lambda m: m.b.assign_add(tf.ones(32)),
    "second weight": lambda m: m.w2.assign(m.w2 * 2),
    "raw gradient descent": lambda m: tf.raw_ops.ResourceApplyGradientDescent(var=m.w.handle, alpha=0.1, delta=tf.ones((16, 32))),
}


@pytest.fixture
def loaded(optimized):
    return tf.saved_model.load(str(optimized("module")[0]))


@pytest.mark.parametrize("change", CHANGES)
def test_the_answer_follows(loaded, change):
    before = loaded(X).numpy()
    np.testing.assert_allclose(before, expected(loaded), rtol=1e-4, atol=1e-6)
    for _ in range(3):
        CHANGES[change](loaded)
        np.testing.assert_allclose(loaded(X).numpy(), expected(loaded), rtol=1e-4, atol=1e-6)
    assert np.abs(loaded(X).numpy() - before).max() > 1e-3


def test_many_changes(loaded):
    """More than the runtime packs again for: it goes on with the plain layout."""
    for i in range(40):
        loaded.w.assign_add(tf.fill((16, 32), 0.01 * i))
        np.testing.assert_allclose(loaded(X).numpy(), expected(loaded), rtol=1e-4, atol=1e-6)


def test_a_checkpoint_is_restored(loaded, tmp_path):
    loaded(X)
    restore_checkpoint(loaded, tmp_path)
    assert loaded.b.numpy().min() == 1
    np.testing.assert_allclose(loaded(X).numpy(), expected(loaded), rtol=1e-4, atol=1e-6)


def test_two_copies_of_one_model(optimized):
    """They share the code; each has its own weights."""
    a, b = (tf.saved_model.load(str(optimized("module")[0])) for _ in range(2))
    b.w.assign(-b.w)
    for _ in range(3):
        for m in (a, b):
            np.testing.assert_allclose(m(X).numpy(), expected(m), rtol=1e-4, atol=1e-6)


def test_concurrent_updates(loaded):
    """While a thread changes a variable among three values, every answer is that of one of them."""
    values = [RNG.normal(size=(16, 32)).astype("f") for _ in range(3)]
    wanted = []
    for v in values:
        loaded.w.assign(v)
        wanted.append(expected(loaded))
    stop, wrong = threading.Event(), []

    def run() -> None:
        while not stop.is_set():
            y = loaded(X).numpy()
            if not any(np.allclose(y, w, rtol=1e-4, atol=1e-6) for w in wanted):
                wrong.append(y)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for t in threads:
        t.start()
    for i in range(200):
        loaded.w.assign(values[i % 3])
    stop.set()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("name", ["w", "w2"])  # a resource variable, a reference variable
def test_sessions_of_tensorflow_1(optimized, tmp_path, name):
    """Saver.restore and Assign between runs, two sessions with different values."""
    path = str(optimized("tf1")[0])
    x = RNG.normal(size=(5, 8)).astype("f")

    def softmax(w, w2):
        z = np.maximum(x @ w, 0) @ w2
        e = np.exp(z - z.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    with v1.Graph().as_default() as graph, v1.Session(graph=graph) as session, v1.Session(graph=graph) as other:
        for s in (session, other):
            meta = v1.saved_model.load(s, ["serve"], path) if s is session else None
            if meta is not None:
                signature = meta.signature_def["serving_default"]
                saver = v1.train.Saver()
                y, feed = signature.outputs["y"].name, signature.inputs["x"].name
                variables = {v.op.name: v for v in v1.global_variables()}
                saved = saver.save(session, str(tmp_path / "model"))
                change = v1.assign_add(variables[name], variables[name] * 0.5)
        saver.restore(other, saved)

        def check(s) -> np.ndarray:
            found = s.run(y, {feed: x})
            np.testing.assert_allclose(found, softmax(*s.run([variables["w"], variables["w2"]])), rtol=1e-4, atol=1e-6)
            return found

        first = check(session)
        np.testing.assert_array_equal(first, check(other))
        for _ in range(3):
            session.run(change)
            assert np.abs(check(session) - first).max() > 1e-4
            np.testing.assert_array_equal(first, check(other))
        saver.restore(session, saved)
        np.testing.assert_array_equal(first, check(session))
