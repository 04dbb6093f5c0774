"""The forms in which frameworks write attention: each is one kernel, and TensorFlow's answer at every shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from disc_tf.compiler import compile_module
from disc_tf.passes.specialize import clone_module
from disc_tf.testing.graph_case import Case, case, check_graph, spec
from disc_tf.testing.tf_case import Tolerance, tensorflow

#: (batch, queries, keys)
SIZES = ((1, 1, 1), (2, 7, 7), (3, 13, 29), (0, 4, 4), (1, 1, 70), (2, 67, 5))
HEADS, SIZE = 3, 8


def x(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def keras_einsum(q: Any, k: Any, v: Any) -> Any:
    """Keras: keys times queries, transposed, a softmax, then values."""
    tf = tensorflow()
    scores = tf.einsum("aecd,abcd->acbe", k, q * 0.3)
    return tf.einsum("acbe,aecd->abcd", tf.nn.softmax(scores), v)


def padding(q: Any, k: Any, v: Any) -> Any:
    """A mask of keys as a large negative number that is added."""
    tf = tensorflow()
    keep = tf.cast(k[:, :, 0, 0] > -1, tf.float32)[:, None, None, :]
    scores = tf.matmul(heads(q), heads(k), transpose_b=True) / 2.8 + (1.0 - keep) * -1e9
    return tf.transpose(tf.matmul(tf.nn.softmax(scores), heads(v)), [0, 2, 1, 3])


def causal(q: Any, k: Any, v: Any) -> Any:
    """GPT-2: no key after the query, by a comparison of positions and a select."""
    tf = tensorflow()
    scores = tf.matmul(heads(q), heads(k), transpose_b=True)
    rows, columns = tf.range(tf.shape(q)[1])[:, None], tf.range(tf.shape(k)[1])[None, :]
    seen = (columns <= rows)[None, None]
    return tf.transpose(tf.matmul(tf.nn.softmax(tf.where(seen, scores, -1e9)), heads(v)), [0, 2, 1, 3])


def relative_bias(q: Any, k: Any, v: Any) -> Any:
    """T5: a bias for each head and distance, looked up in a table and added."""
    tf = tensorflow()
    table = tf.constant(x(15, HEADS, seed=5))
    distance = tf.range(tf.shape(k)[1])[None, :] - tf.range(tf.shape(q)[1])[:, None]
    bias = tf.transpose(tf.gather(table, tf.clip_by_value(distance, -7, 7) + 7), [2, 0, 1])[None]
    scores = tf.einsum("bqhd,bkhd->bhqk", q, k) + bias
    return tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), v)


def shared_keys(q: Any, k: Any, v: Any) -> Any:
    """Gemma: groups of query heads share a head of keys; what is masked is exactly zero afterwards."""
    tf = tensorflow()
    grouped = tf.reshape(tf.concat([q, q + 1.0], 2), tf.concat([tf.shape(q)[:2], [HEADS, 2, SIZE]], 0))
    keep = (k[:, :, 0, 0] > -1)[:, None, None, None, :]
    scores = tf.where(keep, tf.einsum("btkgh,bskh->bkgts", grouped, k), -2e38)
    probs = tf.where(keep, tf.nn.softmax(scores), 0.0)
    return tf.einsum("bkgts,bskh->btkgh", probs, v)


def heads(v: Any) -> Any:
    return tensorflow().transpose(v, [0, 2, 1, 3])


FORMS: list[Callable[..., Any]] = [keras_einsum, padding, causal, relative_bias, shared_keys]


def kinds(c: Case) -> Counter[str]:
    """Fusion kind -> number of kernels of the body that runs first."""
    module = clone_module(c.imported.module)
    return Counter(k.kind for k in compile_module(module, ["x86-64-v2"]).kernels)


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_attention_is_one_kernel(form: Callable[..., Any]) -> None:
    c = case(form, *(spec("float32", None, None, HEADS, SIZE) for _ in range(3)))
    found = kinds(c)
    assert found["attention"] == 1 and not found["gemm"], found
    inputs = [[x(b, m, HEADS, SIZE), *(x(b, n, HEADS, SIZE, seed=s) for s in (1, 2))] for b, m, n in SIZES]
    check_graph(c, inputs, ["x86-64-v3"], Tolerance(ulps=64, relative_floor=1))
