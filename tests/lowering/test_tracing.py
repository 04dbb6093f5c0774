"""Contents of integer vectors that are found late."""

from __future__ import annotations

import numpy as np

from disc_tf.testing.graph_case import case, check_graph, spec
from disc_tf.testing.tf_case import Tolerance, tensorflow


def test_an_extent_that_a_narrow_integer_cannot_hold_wraps() -> None:
    tf = tensorflow()

    def model(indices, values, shape):
        wrapped = tf.cast(tf.cast(shape[0], tf.uint8), tf.int32)
        rows = tf.raw_ops.SparseFillEmptyRows(indices=indices, values=values, dense_shape=shape, default_value=tf.constant(0.0))
        return tf.zeros([wrapped]), rows.output_values

    c = case(model, spec("int64", None, 2), spec("float32", None), spec("int64", 2))
    at, values = np.int64([[0, 0], [3, 1]]), np.float32([1, 2])
    check_graph(c, [[at, values, np.int64([rows, 3])] for rows in (4, 255, 256, 300)], ["x86-64-v3"], Tolerance(ulps=0))
