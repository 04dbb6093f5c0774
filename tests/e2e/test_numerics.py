"""A transformer block in each float type against TensorFlow: many shapes, special values, every instruction set of this machine."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from disc_tf.runtime.executable import host_isa, set_target
from disc_tf.testing.native_case import TARGETS
from disc_tf.testing.session_case import GraphSession, SessionCase, assert_same_answer
from disc_tf.testing.tf_case import tensorflow

WIDTH, HEADS, INNER = 16, 2, 48
SHAPES = [(2, 5), (1, 1), (0, 3), (3, 0), (1, 33), (4, 64), (7, 1), (1, 130)]


def block(tf, dtype: str) -> None:
    """Embedded input, attention with a mask, two layer norms, GELU: as exporters write it, in one float type."""
    t = tf.as_dtype(dtype)
    rng = np.random.default_rng(3)

    def weight(*shape: int):
        return tf.constant((rng.standard_normal(shape) * 0.3).astype(t.as_numpy_dtype))

    def number(value: float):
        return tf.constant(value, t)

    def dense(x, n_in: int, n_out: int):
        flat = tf.reshape(x, [-1, n_in])
        y = tf.raw_ops.BiasAdd(value=tf.matmul(flat, weight(n_in, n_out)), bias=weight(n_out))
        return tf.reshape(y, tf.concat([tf.shape(x)[:-1], [n_out]], 0))

    def norm(x):
        mean = tf.reduce_mean(x, -1, keepdims=True)
        var = tf.reduce_mean(tf.math.squared_difference(x, mean), -1, keepdims=True)
        return (x - mean) * tf.math.rsqrt(var + number(1e-3)) * weight(WIDTH) + weight(WIDTH)

    def heads(x):
        s = tf.shape(x)
        return tf.transpose(tf.reshape(x, [s[0], s[1], HEADS, WIDTH // HEADS]), [0, 2, 1, 3])

    x = tf.compat.v1.placeholder(t, (None, None, WIDTH), name="x")
    mask = tf.compat.v1.placeholder(t, (None, None), name="mask")
    q, k, v = (heads(dense(x, WIDTH, WIDTH)) for _ in range(3))
    score = tf.matmul(q, k, transpose_b=True) * number(0.35)
    score += (number(1.0) - mask[:, None, None, :]) * number(-1e4)
    context = tf.transpose(tf.matmul(tf.nn.softmax(score), v), [0, 2, 1, 3])
    h = norm(x + dense(tf.reshape(context, tf.shape(x)), WIDTH, WIDTH))
    inner = dense(h, WIDTH, INNER)
    gelu = inner * number(0.5) * (number(1.0) + tf.math.tanh(number(0.7978845) * (inner + number(0.044715) * inner * inner * inner)))
    tf.identity(norm(h + dense(gelu, INNER, WIDTH)), name="out")


@functools.cache
def made(dtype: str) -> SessionCase:
    targets = tuple(t for t in reversed(TARGETS) if t <= host_isa())
    return SessionCase(lambda tf: block(tf, dtype), ["out:0"], targets=targets, grappler=[True])


def feeds(dtype: str, shape: tuple[int, int], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng((*shape, seed))
    t = tensorflow().as_dtype(dtype).as_numpy_dtype
    x = rng.standard_normal((*shape, WIDTH)).astype(t)
    keep = np.arange(shape[1]) < rng.integers(1, shape[1] + 2, (shape[0], 1))
    return {"x:0": x, "mask:0": keep.astype(t)}


DTYPES = ["float32", "float64", "float16", "bfloat16"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes(dtype: str) -> None:
    case = made(dtype)
    assert len(case.result.report.compiled_clusters) == 1
    for shape in SHAPES:
        case.check(feeds(dtype, shape))


@pytest.mark.parametrize("target", [t for t in TARGETS if t <= host_isa()])
@pytest.mark.parametrize("dtype", DTYPES)
def test_instruction_sets(dtype: str, target: str) -> None:
    case = made(dtype)
    set_target(target)
    try:
        session = GraphSession(case.result.graph_def, grappler=False)
        for shape in SHAPES[:5]:
            given = feeds(dtype, shape)
            assert_same_answer(case.reference.run(["out:0"], given), session.run(["out:0"], given), (target, shape))
    finally:
        set_target(None)
    session.close()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, 1e15])
def test_special_values(dtype: str, value: float) -> None:
    """One bad element: the same rows become NaN as in TensorFlow, and no others."""
    case = made(dtype)
    if value == 1e15 and dtype == "float16":  # large, but no sum of products overflows: what that gives depends on the order of the sum
        value = 6e4
    for shape in ((2, 5), (1, 1), (3, 33)):
        given = feeds(dtype, shape)
        given["x:0"][-1, shape[1] // 2, 3] = value
        want = case.reference.run(["out:0"], given)
        got = case.ours[0].run(["out:0"], given)
        assert isinstance(want, list)
        assert isinstance(got, list)
        assert np.array_equal(np.isnan(want[0].astype(np.float64)), np.isnan(got[0].astype(np.float64))), shape
        if np.isfinite(value):
            continue
        assert_same_answer(want, got, shape)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 88.0), ("float64", 709.0)])
def test_shares_of_a_sum_with_a_denormal_reciprocal(dtype: str, most: float) -> None:
    """exp(x) / sum(exp(x)) without the maximum: such a sum is finite, its reciprocal would be flushed to 0."""

    def build(tf) -> None:
        e = tf.exp(tf.compat.v1.placeholder(dtype, [None, None], name="x"))
        tf.identity(e / tf.reduce_sum(e, -1, keepdims=True), name="y")

    case = SessionCase(build, ["y:0"], grappler=(False,))
    for x in ([[most]], [[most - 1, most - 1.5]], [[most, 0.0, 1.0], [0.0, 1.0, 2.0]], [[most, most, most]], [[-most - 20] * 2]):
        case.check({"x:0": np.asarray(x, dtype)})


@pytest.mark.parametrize(("dtype", "most"), [("float32", 88.375), ("float64", 709.5)])
def test_attention_by_such_shares(dtype: str, most: float) -> None:
    def build(tf) -> None:
        q, k, v = (tf.compat.v1.placeholder(dtype, [None, None, 8], name=n) for n in "qkv")
        e = tf.exp(tf.matmul(q, k, transpose_b=True))
        tf.matmul(e / tf.reduce_sum(e, -1, keepdims=True), v, name="y")

    case = SessionCase(build, ["y:0"], grappler=(False,))
    assert [x.kind for x in case.result.report.kernels] == ["attention"]
    q, k = np.zeros((1, 3, 8), dtype), np.zeros((1, 5, 8), dtype)
    q[..., 0], k[:, :1, 0], k[:, 1:, 0] = most, 1, 0.875
    case.check({"q:0": q, "k:0": k, "v:0": np.random.default_rng(0).normal(size=(1, 5, 8)).astype(dtype)})
