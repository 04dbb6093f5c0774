"""Calls of functions that XLA is to compile as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from disc_tf.frontend.analysis import analyse
from disc_tf.frontend.cluster import make_clusters
from disc_tf.frontend.load import load
from disc_tf.testing.graph_case import case, check_graph, spec
from disc_tf.testing.tf_case import Tolerance, tensorflow


def x(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def jitted(fn: Any) -> Any:
    return tensorflow().function(fn, jit_compile=True)


def test_a_grouped_convolution_that_xla_compiles() -> None:
    """Keras has XLA compile convolutions with groups; ours is the same convolution, in the cluster of its neighbours."""
    tf = tensorflow()
    kernel = x(3, 3, 2, 12, seed=1)

    @jitted
    def grouped(image: Any) -> Any:
        return tf.nn.conv2d(image, tf.constant(kernel), 1, "SAME")

    def model(image: Any) -> Any:
        return tf.nn.relu(grouped(tf.tanh(image)) + 0.5)

    c = case(model, spec("float32", None, None, None, 6))
    images = [[x(*dims, 6)] for dims in ((1, 1, 1), (2, 7, 5), (0, 4, 4), (3, 16, 9))]
    check_graph(c, images, ["x86-64-v3"], Tolerance(ulps=32, relative_floor=1))


def left(model: Any, *specs: Any) -> dict[str, str]:
    """Op type -> why it stays in TensorFlow."""
    concrete = tensorflow().function(model).get_concrete_function(*specs)
    loaded = load(concrete.graph.as_graph_def(), [t.name for t in concrete.outputs])
    analysis = analyse(loaded.graph, [name for name, _ in loaded.fetches])
    reasons = make_clusters(analysis, loaded.fetches, min_cluster_size=1).reasons
    return {loaded.graph[n].op: str(r) for n, r in reasons.items() if loaded.graph[n].op.endswith("PartitionedCall")}


def test_what_xla_does_not_check_is_left_to_it() -> None:
    """An index out of range is clamped by XLA, and an error in TensorFlow."""
    tf = tensorflow()

    @jitted
    def pick(table: Any, index: Any) -> Any:
        return tf.gather(table, index)

    found = left(lambda t, i: pick(t, i) * 2.0, spec("float32", None, 3), spec("int32", None))
    assert len(found) == 1 and "XLA" in next(iter(found.values()))


def test_what_is_checked_inside_of_a_branch_or_a_loop_is_left_to_xla() -> None:
    tf = tensorflow()

    @jitted
    def branch(table: Any, index: Any, flag: Any) -> Any:
        return tf.cond(flag, lambda: tf.gather(table, index), lambda: tf.gather(table, index * 0))

    @jitted
    def loop(table: Any, index: Any) -> Any:
        return tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, v + tf.gather(table, index)), [0, tf.gather(table, [0])])[1]

    table, index = spec("float32", 3), spec("int32", 1)
    found = left(lambda t, i, p: branch(t, i, p) * 2.0, table, index, spec("bool"))
    assert len(found) == 1 and "XLA" in next(iter(found.values()))
    found = left(lambda t, i: loop(t, i) * 2.0, table, index)
    assert len(found) == 1 and "XLA" in next(iter(found.values()))


def test_functions_marked_noinline_stay() -> None:
    tf = tensorflow()

    @tf.function(experimental_attributes={"_noinline": True})
    def whole(v: Any) -> Any:
        return tf.tanh(v)

    assert len(left(lambda v: whole(v) * 2.0, spec("float32", None))) == 1
