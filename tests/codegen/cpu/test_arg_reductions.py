"""Reductions of several results (ArgMax, ArgMin) and plain ones behind every producer that their kernels may take in, against TensorFlow.

Each head of a case reads inputs of its own, so that each has its producer to itself: what a fusion takes in has one reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from disc_tf.testing.graph_case import case, check_graph, spec
from disc_tf.testing.native_case import TARGETS
from disc_tf.testing.tf_case import Tolerance, tensorflow

#: name -> (a, b) -> tensor of rank 3 whose dims are not known; a and b have equal dims but the first
PRODUCERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "plain": lambda tf, a, b: a,
    "concat first": lambda tf, a, b: tf.concat([a, b], 0),
    "concat middle": lambda tf, a, b: tf.concat([a, a[:, ::-1]], 1),
    "concat last": lambda tf, a, b: tf.concat([a, a[:, :, 1:], a], 2),
    "concat of concats": lambda tf, a, b: tf.concat([tf.concat([a, b], 0), b], 0),
    "concat of work": lambda tf, a, b: tf.concat([a + a, tf.maximum(b, tf.cast(2, b.dtype))], 0),
    "work on concat": lambda tf, a, b: tf.concat([a, b], 0) + tf.cast(1, a.dtype),
    "stack": lambda tf, a, b: tf.stack([a[0], a[1] + a[0], b[0]], 1),
    "pad": lambda tf, a, b: tf.pad(a, [[1, 2], [0, 1], [2, 0]], constant_values=tf.cast(1, a.dtype)),
    "concat of pad": lambda tf, a, b: tf.concat([tf.pad(a, [[0, 1], [0, 0], [0, 0]]), b], 0),
    "slice": lambda tf, a, b: a[1:, :-1, 1:],
    "strides": lambda tf, a, b: a[::2, :, ::2],
    "dynamic slice": lambda tf, a, b: tf.slice(a, [tf.shape(b)[0] - 2, 0, 1], [1, -1, -1]),
    "gather": lambda tf, a, b: tf.gather(a, [1, 0, 1, 1], axis=0),
    "gather last": lambda tf, a, b: tf.gather(a, [2, 0, 1, 1], axis=2),
    "gather by data": lambda tf, a, b: tf.gather(a, tf.range(tf.shape(a)[0])[::-1], axis=0),
    "broadcast": lambda tf, a, b: tf.broadcast_to(a[:1, :, :1], tf.shape(a)),
    "outer sum": lambda tf, a, b: a[:, :1, :] + a[:1],
    "tile": lambda tf, a, b: tf.tile(a, [1, 2, 2]),
    "transpose": lambda tf, a, b: tf.transpose(a, [2, 0, 1]),
    "reverse": lambda tf, a, b: tf.reverse(a, [0, 2]),
    "iota": lambda tf, a, b: a + tf.cast(tf.range(tf.shape(a)[2]) % 3, a.dtype),
    "select": lambda tf, a, b: tf.where(a > tf.cast(1, a.dtype), a, tf.cast(0, a.dtype)),
    "cast": lambda tf, a, b: tf.cast(tf.cast(a, tf.float32) * 1.5, tf.int32),
    "reshape": lambda tf, a, b: tf.reshape(tf.concat([a, b], 0), [-1, tf.shape(a)[2], tf.shape(a)[1]]),
    "update": lambda tf, a, b: tf.tensor_scatter_nd_update(a, [[1]], b[:1]),
    "reduction": lambda tf, a, b: tf.reduce_max(tf.concat([a, a], 1), 1, keepdims=True) + a,
}
#: name -> tensor -> result
HEADS: dict[str, Callable[[Any, Any], Any]] = {
    "argmax first": lambda tf, x: tf.argmax(x, 0),
    "argmin last": lambda tf, x: tf.argmin(x, 2, output_type=tf.int32),
    "argmax all": lambda tf, x: tf.argmax(tf.reshape(x, [-1]), 0),
    "argmin middle": lambda tf, x: tf.argmin(x, 1),
    "argmax last": lambda tf, x: tf.argmax(x, 2),
    "argmin first": lambda tf, x: tf.argmin(x, 0, output_type=tf.int32),
    "top": lambda tf, x: tf.math.top_k(x, 1).indices,
    "max and its place": lambda tf, x: tf.gather(x, tf.argmax(x, 2), axis=2, batch_dims=2),
    "sum first": lambda tf, x: tf.reduce_sum(x, 0),
    "max last": lambda tf, x: tf.reduce_max(x, 2),
    "min of two": lambda tf, x: tf.reduce_min(x, [0, 2]),
}
#: shapes of a (b has one row more): small, wide, long, and without rows of the kept dims
SHAPES = [(3, 5, 7), (2, 3, 1025), (40, 2, 33), (2, 4, 3), (2, 300, 3)]
EMPTY = [(2, 0, 3)]
_SUMS = Tolerance(ulps=16, relative_floor=1)


def values(dtype: Any, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Small integers, so that extremes have equals; the first of them is the answer."""
    return np.random.default_rng(seed).integers(0 if np.dtype(dtype).kind == "u" else -9, 9, shape).astype(dtype)


def check(producer: str, dtype: str, heads: list[str], target: str) -> None:
    tf = tensorflow()
    of = tf.as_dtype(dtype).as_numpy_dtype

    def fn(*inputs: Any) -> list[Any]:
        made = [PRODUCERS[producer](tf, inputs[2 * k], inputs[2 * k + 1]) for k in range(len(heads))]
        return [HEADS[head](tf, x) for head, x in zip(heads, made, strict=True)]

    c = case(fn, *[spec(dtype, None, None, None) for _ in range(2 * len(heads))])
    arrays = []
    for n, (first, *rest) in enumerate(SHAPES + (EMPTY if producer != "reduction" else [])):
        arrays.append([values(of, (first + k % 2, *rest), n * 100 + k) for k in range(2 * len(heads))])
    check_graph(c, arrays, [target], _SUMS)


@pytest.mark.parametrize("producer", ["concat first", "concat last", "concat of concats", "concat of work", "pad", "gather", "strides"])
def test_behind(producer: str) -> None:
    check(producer, "float32", list(HEADS)[:3], TARGETS[0])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "half", "bfloat16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("producer", PRODUCERS)
def test_every_head_behind(producer: str, dtype: str) -> None:
    check(producer, dtype, list(HEADS), TARGETS[0])
