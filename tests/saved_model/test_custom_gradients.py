"""Gradients of their own (`tf.custom_gradient`, `tf.recompute_grad`, `tf.nn.silu`): such models load, answer and train as before.

The object graph names tensors inside of the functions that such gradients were traced in; see `disc_tf.frontend.captured`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import disc_tf.ops  # noqa: F401  registers the op
from disc_tf.saved_model import optimize_saved_model, restore_saved_model

v1 = tf.compat.v1
WIDTH, ROWS = 6, 20
SIZES = (1, 5, 0)


@tf.custom_gradient
def bounded(x):
    """tanh whose gradient is not tanh's: a wrong one is seen at once."""
    y = tf.tanh(x) * 2.0

    def gradient(d):
        return d * (0.25 + tf.square(y))

    return y, gradient


@tf.custom_gradient
def two(x, scale):
    y, z = tf.exp(-tf.abs(x)) * scale, x - scale

    def gradient(dy, dz):
        return 3.0 * dy + dz * tf.abs(y), tf.reduce_sum(dz * x) * 7.0

    return (y, z), gradient


@tf.function
def inner(x, w):
    return bounded(x @ w) + tf.nn.silu(x)


def _loop(m: Any, x: Any) -> Any:
    found = tf.while_loop(lambda i, _x: i < 3, lambda i, a: (i + 1, bounded(a @ m.w)), [0, x])[1]
    return tf.nn.softmax(tf.tanh(found) @ m.v)


BODIES: dict[str, Callable[[Any, Any], Any]] = {
    "silu": lambda m, x: tf.nn.silu(x @ m.w) @ m.v,
    "swish with a factor": lambda m, x: tf.nn.silu(x @ m.w, 1.7) @ m.v,
    "own gradient": lambda m, x: bounded(x @ m.w) @ m.v,
    "of an argument": lambda m, x: bounded(x) @ m.v,
    "twice": lambda m, x: bounded(bounded(x @ m.w) @ m.v),
    "several results": lambda m, x: sum(two(x @ m.w, m.v[0, 0])),
    "recomputed": lambda m, x: tf.recompute_grad(lambda y: bounded(y @ m.w) @ m.v)(x),
    "in a function": lambda m, x: inner(x, m.w) @ m.v,
    "behind a function": lambda m, x: bounded(inner(x, m.w) @ m.v),
    "behind a lookup": lambda m, x: bounded(tf.gather(m.table, tf.cast(tf.abs(x[:, 0]), tf.int32)) @ m.w),
    "of one part": lambda m, x: bounded(tf.split(x @ m.w, 2, axis=1)[1]),
    "behind a branch": lambda m, x: bounded(tf.cond(tf.shape(x)[0] > 2, lambda: tf.exp(-tf.abs(x)) @ m.w, lambda: x @ m.v)),
    "in a branch": lambda m, x: tf.cond(tf.shape(x)[0] > 2, lambda: tf.nn.silu(x @ m.w), lambda: x @ m.v),
    "in a loop": _loop,
}
#: TensorFlow itself raises for their gradients once they are loaded
NO_GRADIENT = {"in a branch", "in a loop"}
#: a function with gradients that capture its tensors stays a call
CALLS = {"in a function", "behind a function"}


class Model(tf.Module):
    def __init__(self, body: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        rng = np.random.default_rng(7)
        self.w = tf.Variable(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 3)
        self.v = tf.Variable(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 3)
        self.table = tf.Variable(rng.standard_normal((ROWS, WIDTH)).astype(np.float32))
        self._body = body

    @tf.function(input_signature=[tf.TensorSpec((None, WIDTH), tf.float32, name="x")])
    def __call__(self, x):
        return {"y": self._body(self, x)}


def values(size: int) -> np.ndarray:
    return np.random.default_rng(size).standard_normal((size, WIDTH)).astype(np.float32)


def gradients(m: Any, x: Any) -> list[Any]:
    variables = [m.w, m.v, m.table]
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.square(m(x)["y"]))
    return tape.gradient(loss, [x, *variables], unconnected_gradients="zero")


def in_a_session(path: Path, x: np.ndarray) -> np.ndarray:
    with tf.Graph().as_default(), v1.Session() as session:
        signature = v1.saved_model.load(session, ["serve"], str(path)).signature_def["serving_default"]
        return session.run(signature.outputs["y"].name, {signature.inputs["x"].name: x})


def same(a: Any, b: Any) -> None:
    np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Callable[[str], tuple[Path, Path, Any]]:
    base, known = tmp_path_factory.mktemp("gradients"), {}

    def get(name: str) -> tuple[Path, Path, Any]:
        if name not in known:
            source = base / name.replace(" ", "_")
            m = Model(BODIES[name])
            tf.saved_model.save(m, str(source), signatures=m.__call__)
            result = optimize_saved_model(source, base / f"{source.name}.out", targets=("native",), verify=False)
            known[name] = source, result.path, result.report
        return known[name]

    return get


@pytest.mark.parametrize("name", BODIES)
def test_every_loader_takes_it_and_answers_are_the_same(name, made):
    source, path, report = made(name)
    assert report.coverage > (0.7 if name in CALLS else 0.99) and report.compiled_clusters, report.to_text()
    a, b = tf.saved_model.load(str(source)), tf.saved_model.load(str(path))
    for size in SIZES:
        x = values(size)
        expected = a.signatures["serving_default"](x=tf.constant(x))["y"]
        same(expected, b.signatures["serving_default"](x=tf.constant(x))["y"])
        same(expected, b(tf.constant(x))["y"])
        same(expected, in_a_session(path, x))


@pytest.mark.parametrize("name", BODIES)
def test_gradients_are_the_same(name, made):
    source, path, _ = made(name)
    a, b = tf.saved_model.load(str(source)), tf.saved_model.load(str(path))
    for size in SIZES:
        x = tf.constant(values(size))
        try:
            expected = gradients(a, x)
        except Exception as error:
            assert name in NO_GRADIENT, error
            continue
        assert name not in NO_GRADIENT
        for g, h in zip(expected, gradients(b, x), strict=True):
            same(tf.convert_to_tensor(g), tf.convert_to_tensor(h))


@pytest.mark.parametrize("name", ["own gradient", "in a function", "behind a lookup"])
def test_it_can_be_trained_saved_again_and_restored(name, made, tmp_path):
    source, path, _ = made(name)
    a, b = tf.saved_model.load(str(source)), tf.saved_model.load(str(path))
    x = tf.constant(values(4))
    for m in (a, b):
        for _ in range(3):
            found = gradients(m, x)[1:3]
            for variable, g in zip((m.w, m.v), found, strict=True):
                variable.assign_sub(0.05 * tf.convert_to_tensor(g))
    same(a(x)["y"], b(x)["y"])
    tf.saved_model.save(b, str(tmp_path / "again"), signatures=b.signatures)
    again = tf.saved_model.load(str(tmp_path / "again"))
    same(a(x)["y"], again(x)["y"])
    same(tf.convert_to_tensor(gradients(a, x)[1]), tf.convert_to_tensor(gradients(again, x)[1]))
    back = restore_saved_model(tmp_path / "again", tmp_path / "back")
    assert back.launches and not back.exact
    plain = tf.saved_model.load(str(tmp_path / "back"))
    same(a(x)["y"], plain(x)["y"])
    same(tf.convert_to_tensor(gradients(a, x)[1]), tf.convert_to_tensor(gradients(plain, x)[1]))
    assert restore_saved_model(path, tmp_path / "restored").exact
    assert (tmp_path / "restored" / "saved_model.pb").read_bytes() == (source / "saved_model.pb").read_bytes()


def test_a_run_does_not_pay_for_what_gradients_capture(made):
    """The captured product of the cluster is not one of its results."""
    from disc_tf.frontend.saved_model import read_saved_model

    _, path, _ = made("own gradient")
    functions = read_saved_model(path).meta_graphs[0].graph_def.library.function
    launches = [n for f in functions for n in f.node_def if n.op == "DiscLaunch"]
    assert [len(n.attr["Tout"].list.type) for n in launches] == [1]
