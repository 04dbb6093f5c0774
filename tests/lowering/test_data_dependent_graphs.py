"""What follows ops of data-dependent size, and what they stand in: whole functions against TensorFlow, interpreted and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from disc_tf.testing.graph_case import case, check_graph, spec
from disc_tf.testing.tf_case import Tolerance, tensorflow

TARGET = ["x86-64-v3"]
SUMS = Tolerance(ulps=64, relative_floor=1)


def x(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def masks(*shape: int) -> list[np.ndarray]:
    return [x(*shape, seed=1) > 0, np.zeros(shape, bool), np.ones(shape, bool)]


def test_boolean_mask_and_a_product() -> None:
    w = x(5, 7, seed=2)

    def fn(rows: Any, mask: Any) -> Any:
        tf = tensorflow()
        kept = tf.boolean_mask(rows, mask)
        y = tf.nn.softmax(tf.matmul(kept, w) + 1.0)
        return y, tf.reduce_sum(y, axis=0), tf.shape(kept)[0], tf.concat([y, y], 0)

    c = case(fn, spec("float32", None, 5), spec("bool", None))
    inputs = [[x(n, 5), m] for n in (13, 1, 0) for m in masks(n)]
    check_graph(c, [*inputs, [x(3, 5), masks(4)[0]]], TARGET, SUMS)


def test_boolean_mask_over_two_axes() -> None:
    def fn(rows: Any, mask: Any) -> Any:
        tf = tensorflow()
        kept = tf.boolean_mask(rows, mask)
        mean = tf.reduce_mean(kept, axis=0, keepdims=True)
        return kept - mean, tf.matmul(kept, kept, transpose_b=True)

    c = case(fn, spec("float32", None, None, 4), spec("bool", None, None))
    check_graph(c, [[x(*s, 4), m] for s in ((3, 5), (1, 1), (0, 3), (2, 0)) for m in masks(*s)], TARGET, SUMS)


def test_where_into_scatter_and_gather() -> None:
    def fn(rows: Any) -> Any:
        tf = tensorflow()
        at = tf.where(rows > 0.5)
        found = tf.gather_nd(rows, at)
        back = tf.scatter_nd(at, found * 2.0, tf.shape(rows, out_type=tf.int64))
        return found, back, tf.shape(at), tf.cast(at[:, 1], tf.float32) * found

    c = case(fn, spec("float32", None, None))
    check_graph(c, [[x(4, 7)], [x(1, 1)], [x(0, 3)], [np.zeros((3, 3), np.float32)]], TARGET, SUMS)


def test_unique_ids_are_looked_up_once() -> None:
    table = x(11, 6, seed=3)

    def fn(ids: Any) -> Any:
        tf = tensorflow()
        values, index = tf.unique(tf.reshape(ids, [-1]))
        rows = tf.tanh(tf.gather(tf.constant(table), values))
        return tf.reshape(tf.gather(rows, index), tf.concat([tf.shape(ids), [6]], 0)), tf.size(values)

    c = case(fn, spec("int32", None, None))
    ids = np.random.default_rng(4).integers(0, 11, (5, 9)).astype(np.int32)
    bad = ids.copy()
    bad[2, 3] = 11
    check_graph(c, [[ids], [ids[:1]], [ids[:, :1]], [ids[:0]], [bad]], TARGET, Tolerance(ulps=16))


def test_two_counts_meet() -> None:
    """Dims of different counts are added and compared; a mismatch is an error."""

    def fn(a: Any, b: Any) -> Any:
        tf = tensorflow()
        p, q = tf.boolean_mask(a, a > 0), tf.boolean_mask(b, b > 0)
        return p * 2.0 + q, tf.concat([p, q], 0)

    c = case(fn, spec("float32", None), spec("float32", None))
    one = np.array([1, -1, 2, -3], np.float32)
    inputs = [[one, one[::-1].copy()], [one, np.float32([1, 2, 3])], [one, np.float32([-1, 5])], [one[:0], one[:0]]]
    check_graph(c, inputs, TARGET)


def test_where_in_a_loop() -> None:
    """The count is another one in each iteration; what the loop carries keeps its shape."""

    def fn(rows: Any) -> Any:
        tf = tensorflow()

        def step(i: Any, total: Any, y: Any) -> Any:
            kept = tf.boolean_mask(y, y[:, 0] > tf.cast(i, tf.float32) * 0.4)
            return i + 1, total + tf.reduce_sum(kept, axis=0), y - 0.1

        zero = tf.zeros(tf.shape(rows)[1:])
        return tf.while_loop(lambda i, *_: i < 4, step, (0, zero, rows))[1:]

    c = case(fn, spec("float32", None, 3))
    check_graph(c, [[x(n, 3)] for n in (9, 1, 0)], TARGET, SUMS)


def test_unique_in_a_branch() -> None:
    def fn(ids: Any) -> Any:
        tf = tensorflow()
        return tf.cond(tf.size(ids) > 3, lambda: tf.size(tf.unique(ids)[0]) * 2, lambda: tf.reduce_sum(ids))

    c = case(fn, spec("int32", None))
    check_graph(c, [[np.array(v, np.int32)] for v in ([3, 3, 1, 3, 7], [5, 5], [], [1, 1, 1, 1])], TARGET)
