"""Inside TensorFlow a cluster never joins independent towers (an op runs when all its inputs are there): one late input holds nothing back
that does not need it."""

from __future__ import annotations

import threading

import numpy as np

from disc_tf.ops import load_op_library
from disc_tf.optimizer import optimize_graph_def
from disc_tf.testing.tf_case import tensorflow

WIDTH = 16


def test_a_tower_runs_while_the_other_input_is_on_its_way() -> None:
    """No clocks: the late input is given out only once the first tower's result has been seen. Joined, the two would wait for each other;
    then the op gives up after a while and says so."""
    tf = tensorflow()
    load_op_library()
    seen = threading.Event()
    in_time: list[bool] = []

    def wait(x):
        in_time.append(seen.wait(20))
        return x

    def signal(x):
        seen.set()
        return x

    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4 for _ in range(6)]

    def tower(x, ws):
        for w in ws:
            x = tf.tanh(tf.matmul(x, tf.constant(w)) + 0.5)
        return x

    with tf.Graph().as_default() as graph:
        a = tf.compat.v1.placeholder("float32", [None, WIDTH], name="a")
        b = tf.compat.v1.placeholder("float32", [None, WIDTH], name="b")
        late = tf.ensure_shape(tf.numpy_function(wait, [b], tf.float32), [None, WIDTH])
        first, second = tower(a, weights[:3]), tower(late, weights[3:])
        out_of_tf = tf.ensure_shape(tf.numpy_function(signal, [first], tf.float32), [None, WIDTH])
        tf.identity(out_of_tf, name="early")
        tf.identity(tf.reduce_sum(first * second, 1) * 2.0, name="joined")
        x = {f"{n}:0": rng.standard_normal((5, WIDTH)).astype(np.float32) for n in "ab"}
        result = optimize_graph_def(graph.as_graph_def(), ["early:0", "joined:0"], targets="native", min_cluster_size=1)
    assert len(result.report.compiled_clusters) >= 2
    with tf.Graph().as_default():
        tf.import_graph_def(result.graph_def, name="")
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=4)
        with tf.compat.v1.Session(config=config) as session:
            early, joined = session.run(["early:0", "joined:0"], x)
    assert in_time == [True], "the late input's cluster held the first tower back"
    expected = [x["a:0"], x["b:0"]]
    for i, w in enumerate(weights):
        expected[i // 3] = np.tanh(expected[i // 3] @ w + 0.5)
    np.testing.assert_allclose(early, expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(joined, 2 * (expected[0] * expected[1]).sum(1), rtol=1e-4, atol=1e-5)
