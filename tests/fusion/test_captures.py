"""What loops and branches read from outside is stored, also where another form of it is what their bodies name."""

from __future__ import annotations

import numpy as np

from disc_tf.testing.graph_case import case, check_graph, spec
from disc_tf.testing.tf_case import Tolerance, tensorflow


def normalised(x, steps):
    """The mean (keep_dims) is carried by the loop unchanged, and read by the normalisation before it."""
    tf = tensorflow()
    mean = tf.reduce_mean(x, -1, keepdims=True)
    scale = tf.math.rsqrt(tf.reduce_mean(tf.square(x - mean), -1, keepdims=True) + 1e-3)

    def body(i, a, b):
        return i + 1, tf.math.erf(tf.nn.relu(b) * a), b

    return tf.while_loop(lambda i, _a, _b: i < steps, body, [0, scale, mean])[1:]


def either(x, on):
    tf = tensorflow()
    y = tf.space_to_batch_nd(x, [3, 3], [[0, 1], [0, 1]])
    return tf.cond(on, lambda: tf.math.erf(-y), lambda: tf.sigmoid(-tf.abs(y))), y


def test_a_loop_that_carries_a_mean() -> None:
    rng = np.random.default_rng(0)
    inputs = [[rng.standard_normal(s).astype(np.float32), np.array(n, np.int32)] for s in ((8, 4), (1, 1), (3, 0)) for n in (0, 2)]
    check_graph(case(normalised, spec("float32", None, None), spec("int32")), inputs, ["x86-64-v2"], Tolerance(ulps=512, relative_floor=1))


def test_a_branch_on_what_is_also_a_result() -> None:
    rng = np.random.default_rng(0)
    inputs = [[rng.standard_normal((2, 2, 5, 2)).astype(np.float32), np.array(on)] for on in (True, False)]
    check_graph(case(either, spec("float32", 2, None, None, 2), spec("bool")), inputs, ["x86-64-v2"], Tolerance(ulps=64, relative_floor=1))
