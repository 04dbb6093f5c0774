"""Loops, branches and TensorLists against TensorFlow: through the interpreter, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from disc_tf.frontend.analysis import analyse
from disc_tf.frontend.cluster import make_clusters
from disc_tf.frontend.flops import node_flops
from disc_tf.frontend.load import load
from disc_tf.testing.graph_case import case, case_of, check_graph, spec
from disc_tf.testing.tf_case import Tolerance, tensorflow

TARGETS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")


def x(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


# ---- recurrent layers as Keras writes them ------------------------------------------------------------------------------


def lstm(
    *, time_major: bool, masked: bool, units: int = 16, inputs: int = 8, dtype: Any = np.float32, declared: bool = False
) -> Callable[..., Any]:
    """An LSTM over a TensorArray. ``declared``: the array knows its elements' shape only as ``[-1, units]``."""
    w, u, bias = x(inputs, 4 * units, dtype=dtype) / 3, x(units, 4 * units, seed=1, dtype=dtype) / 4, x(4 * units, seed=2, dtype=dtype)

    def run(xs: Any) -> Any:
        tf = tensorflow()
        mask = xs[:, :, 0] > 0
        wt, ut, bt = tf.constant(w), tf.constant(u), tf.constant(bias)
        if not time_major:
            xs = tf.transpose(xs, [1, 0, 2])
        steps, batch = tf.shape(xs)[0], tf.shape(xs)[1]
        rows = tf.TensorArray(xs.dtype, steps).unstack(xs)
        masks = tf.TensorArray(tf.bool, steps).unstack(tf.transpose(mask)) if masked else None
        out = tf.TensorArray(xs.dtype, steps, element_shape=[None, units] if declared else None)
        h = tf.zeros([batch, units], xs.dtype)

        def step(i: Any, out: Any, h: Any, c: Any) -> Any:
            z = tf.matmul(rows.read(i), wt) + tf.matmul(h, ut) + bt
            a, f, g, o = tf.split(z, 4, axis=1)
            c2 = tf.sigmoid(f) * c + tf.sigmoid(a) * tf.tanh(g)
            h2 = tf.sigmoid(o) * tf.tanh(c2)
            if masks is not None:
                keep = tf.tile(masks.read(i)[:, None], [1, units])
                h2, c2 = tf.where(keep, h2, h), tf.where(keep, c2, c)
            return i + 1, out.write(i, h2), h2, c2

        _, out, h, c = tf.while_loop(lambda i, *_: i < steps, step, (0, out, h, h))
        ys = out.stack()
        return (ys if time_major else tf.transpose(ys, [1, 0, 2])), h, c

    return run


def gru(units: int = 16, inputs: int = 8) -> Callable[..., Any]:
    w, u, bias = x(inputs, 3 * units) / 3, x(units, 3 * units, seed=1) / 4, x(2, 3 * units, seed=2)

    def run(xs: Any, h: Any) -> Any:
        tf = tensorflow()
        wt, ut, b = tf.constant(w), tf.constant(u), tf.unstack(tf.constant(bias))
        steps = tf.shape(xs)[0]
        rows = tf.TensorArray(xs.dtype, steps).unstack(tf.reverse(xs, [0]))
        out = tf.TensorArray(xs.dtype, steps, element_shape=[None, units])
        h = h[: tf.shape(xs)[1]]

        def step(i: Any, out: Any, h: Any) -> Any:
            p, q = tf.matmul(rows.read(i), wt) + b[0], tf.matmul(h, ut) + b[1]
            pz, pr, ph = tf.split(p, 3, axis=1)
            qz, qr, qh = tf.split(q, 3, axis=1)
            z, r = tf.sigmoid(pz + qz), tf.sigmoid(pr + qr)
            h2 = z * h + (1 - z) * tf.tanh(ph + r * qh)
            return i + 1, out.write(i, h2), h2

        start = tf.zeros([tf.shape(xs)[1], units], xs.dtype) + h[0]
        return tf.while_loop(lambda i, *_: i < steps, step, (0, out, start), maximum_iterations=steps)[1].stack()

    return run


SIZES = ((1, 1), (5, 3), (7, 31), (3, 0))


@pytest.mark.parametrize("target", TARGETS)
def test_lstm_batch_major(target):
    c = case(lstm(time_major=False, masked=False), spec("float32", None, None, 8))
    check_graph(c, [[x(b, t, 8)] for t, b in (*SIZES, (0, 2), (0, 0))], [target], Tolerance(ulps=64, relative_floor=1))


def test_lstm_time_major_declared():
    c = case(lstm(time_major=True, masked=False, declared=True), spec("float32", None, None, 8))
    check_graph(c, [[x(t, b, 8)] for t, b in (*SIZES, (0, 2))], TARGETS[-1:], Tolerance(ulps=64, relative_floor=1))


def test_lstm_masked():
    c = case(lstm(time_major=False, masked=True), spec("float32", None, None, 8))
    check_graph(c, [[x(b, t, 8)] for t, b in SIZES], TARGETS[-1:], Tolerance(ulps=64, relative_floor=1))


def test_operations_of_a_loop_are_counted():
    tf = tensorflow()
    concrete = tf.function(lstm(time_major=True, masked=False)).get_concrete_function(spec("float32", 10, 3, 8))
    loaded = load(concrete.graph.as_graph_def(), [concrete.outputs[0].name])
    analysis = analyse(loaded.graph, [name for name, _ in loaded.fetches])
    (loop,) = [n.name for n in analysis.order if n.op == "StatelessWhile"]
    products = 10 * 2 * 3 * 64 * (8 + 16)
    assert products < node_flops(analysis)[loop] < 1.2 * products


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_lstm_types(dtype):
    c = case(lstm(time_major=True, masked=False, dtype=dtype, declared=True), spec(np.dtype(dtype).name, None, None, 8))
    check_graph(c, [[x(t, b, 8, dtype=dtype)] for t, b in ((4, 3), (1, 1))], TARGETS[-1:], Tolerance(ulps=256, relative_floor=1))


def test_gru():
    c = case(gru(), spec("float32", None, None, 8), spec("float32", None, 16))
    check_graph(c, [[x(t, b, 8), x(3, 16)] for t, b in SIZES], TARGETS[-1:], Tolerance(ulps=64, relative_floor=1))


# ---- loops ------------------------------------------------------------------------------------------------------------------


def collatz(n: Any) -> Any:
    tf = tensorflow()

    def body(n: Any, steps: Any) -> Any:
        return tf.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    return tf.while_loop(lambda n, _: n > 1, body, (n, 0))


def until_small(v: Any, limit: Any) -> Any:
    """The number of steps is known from what the kernels make; a value that is passed on, two that change places."""
    tf = tensorflow()
    return tf.while_loop(
        lambda i, a, b, w: tf.reduce_sum(tf.abs(a)) > limit, lambda i, a, b, w: (i + 1, b * 0.5 * w, a + 0, w), (0, v, v * 2, v * 0 + 1)
    )[:3]


def nested(v: Any, n: Any) -> Any:
    tf = tensorflow()

    def outer(i: Any, acc: Any) -> Any:
        _, inner = tf.while_loop(lambda j, _: j < i, lambda j, a: (j + 1, a * 0.5 + v), (0, acc))
        return i + 1, inner + tf.sin(v)

    return tf.while_loop(lambda i, _: i < n, outer, (0, v))


def loop_with_branch(v: Any, n: Any) -> Any:
    tf = tensorflow()

    def body(i: Any, a: Any) -> Any:
        return i + 1, tf.cond(i % 3 == 0, lambda: tf.matmul(a, a, transpose_b=True) @ a / 10, lambda: tf.exp(-a * a))

    return tf.while_loop(lambda i, _: i < n, body, (0, v))


def two_bodies(v: Any, w: Any, k: Any) -> Any:
    """Dims that broadcast before the loop: a uniform and a general body hold it."""
    tf = tensorflow()
    return tf.while_loop(lambda i, *_: i < k, lambda i, a, flag: (i + 1, tf.tanh(a) * 1.5, tf.reduce_any(a > 0.9)), (0, v + w, False))


def list_of_scalars(v: Any, k: Any) -> Any:
    tf = tensorflow()
    out = tf.TensorArray(tf.float32, k)
    total = tf.reduce_sum(v)
    return tf.while_loop(lambda i, _: i < k, lambda i, o: (i + 1, o.write(k - 1 - i, total * tf.cast(i, tf.float32))), (0, out))[1].stack()


def mapped(v: Any, w: Any) -> Any:
    tf = tensorflow()
    return tf.map_fn(lambda row: tf.linalg.matvec(w, row) + tf.reduce_max(row), v, fn_output_signature=tf.float32)


def scanned(v: Any) -> Any:
    tf = tensorflow()
    return tf.scan(lambda a, row: a * 0.5 + tf.exp(-row * row), v, initializer=tf.zeros([5]), reverse=True)


def mapped_in_a_loop(v: Any, k: Any) -> Any:
    tf = tensorflow()
    return tf.while_loop(lambda i, _: i < k, lambda i, a: (i + 1, tf.map_fn(lambda row: tf.sin(row) + row[0], a)), (0, v))


def n(value: int) -> np.ndarray:
    return np.array(value, np.int32)


LOOPS = [
    ("collatz", collatz, [("int32",)], [[n(k)] for k in (0, 1, 2, 7, 27)]),
    ("until_small", until_small, [("float32", None), ("float32",)], [[x(k), np.float32(0.1)] for k in (0, 1, 7, 100)]),
    ("nested", nested, [("float32", None), ("int32",)], [[x(m), n(k)] for m, k in ((5, 0), (5, 1), (5, 4), (0, 3), (1, 5))]),
    ("loop_with_branch", loop_with_branch, [("float32", None, 5), ("int32",)],
     [[x(m, 5), n(k)] for m, k in ((3, 0), (3, 5), (1, 4), (0, 3))]),
    ("two_bodies", two_bodies, [("float32", None, None), ("float32", None, None), ("int32",)],
     [[x(*a), x(*b), n(k)] for a, b in (((3, 5), (3, 5)), ((3, 1), (1, 5)), ((0, 5), (1, 5))) for k in (0, 1, 3)]),
    ("list_of_scalars", list_of_scalars, [("float32", None), ("int32",)], [[x(m), n(k)] for m, k in ((3, 1), (0, 4), (7, 13))]),
    ("mapped", mapped, [("float32", None, None), ("float32", None, None)],
     [[x(m, k), x(4, k, seed=1)] for m, k in ((3, 5), (1, 1), (13, 7))]),
    ("scanned", scanned, [("float32", None, 5)], [[x(m, 5)] for m in (1, 2, 13, 0)]),
    ("mapped_in_a_loop", mapped_in_a_loop, [("float32", None, 3), ("int32",)], [[x(m, 3), n(k)] for m, k in ((4, 2), (1, 1), (5, 0))]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fn", "specs", "inputs"), LOOPS, ids=[c[0] for c in LOOPS])
def test_loops(name, fn, specs, inputs):
    check_graph(case(fn, *(spec(*s) for s in specs)), inputs, TARGETS[-1:], Tolerance(ulps=64, relative_floor=1))


# ---- branches ---------------------------------------------------------------------------------------------------------------


def dear_or_cheap(v: Any, w: Any, pred: Any) -> Any:
    tf = tensorflow()
    return tf.cond(pred, lambda: (tf.nn.softmax(tf.matmul(v, w)), 1), lambda: (v, 2))


def cheap_both(v: Any, pred: Any) -> Any:
    tf = tensorflow()
    return tf.cond(tf.reduce_sum(v) > pred, lambda: v + 1.0, lambda: v * 2.0)


def switch(v: Any, index: Any) -> Any:
    tf = tensorflow()
    return tf.switch_case(index, [lambda: tf.exp(v), lambda: tf.tanh(v) + tf.reduce_max(v), lambda: tf.sort(v)])


BRANCHES = [
    ("dear_or_cheap", dear_or_cheap, [("float32", None, 7), ("float32", 7, 7), ("bool",)],
     [[x(m, 7), x(7, 7, seed=1), np.array(p)] for m in (0, 1, 5) for p in (True, False)]),
    ("cheap_both", cheap_both, [("float32", None), ("float32",)], [[x(m), np.float32(p)] for m in (0, 1, 7) for p in (-100, 100)]),
    ("switch", switch, [("float32", None), ("int32",)], [[x(m), n(k)] for m in (1, 7) for k in (-1, 0, 1, 2, 3)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fn", "specs", "inputs"), BRANCHES, ids=[c[0] for c in BRANCHES])
def test_branches(name, fn, specs, inputs):
    check_graph(case(fn, *(spec(*s) for s in specs)), inputs, TARGETS[-1:], Tolerance(ulps=16))


# ---- errors and reasons -------------------------------------------------------------------------------------------------------


def out_of_range(v: Any, at: Any) -> Any:
    tf = tensorflow()
    rows = tf.TensorArray(v.dtype, tf.shape(v)[0]).unstack(v)
    return tf.while_loop(lambda i, _: i < 2, lambda i, a: (i + 1, a + rows.read(at)), (0, v[0] * 0))[1]


def test_index_out_of_a_list():
    c = case(out_of_range, spec("float32", None, 3), spec("int32"))
    check_graph(c, [[x(4, 3), n(k)] for k in (0, 3, 4, -1)], TARGETS[-1:], Tolerance())


def asserts_in_a_loop(v: Any, limit: Any) -> Any:
    """An Assert in a branch of a loop's body; its message holds strings."""
    tf = tensorflow()

    def body(i: Any, a: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_max(a), limit, message="too large")]):
            return i + 1, a * 2.0

    return tf.while_loop(lambda i, _: i < 4, body, (0, v))[1]


def test_asserts_in_a_loop():
    c = case(asserts_in_a_loop, spec("float32", 3), spec("float32"))
    check_graph(c, [[np.ones(3, np.float32), np.float32(k)] for k in (100, 9, 8, 1, 0.5)], TARGETS[-1:], Tolerance())


def dead_code(v: Any) -> Any:
    """What nothing needs in a body does not run: the read would fail."""
    tf = tensorflow()
    rows = tf.TensorArray(v.dtype, tf.shape(v)[0]).unstack(v)

    def body(i: Any, a: Any) -> Any:
        rows.read(i + 1000)
        return i + 1, a + rows.read(i)

    return tf.while_loop(lambda i, _: i < tf.shape(v)[0], body, (0, v[0] * 0))[1]


def test_dead_code_in_a_body():
    check_graph(case(dead_code, spec("float32", None, 3)), [[x(4, 3)], [x(1, 3)]], TARGETS[-1:], Tolerance())


def grows(v: Any) -> Any:
    tf = tensorflow()
    return tf.while_loop(
        lambda i, _: i < 3,
        lambda i, a: (i + 1, tf.concat([a, a], 0)),
        (0, v),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
    )[1]


def broadcasts(v: Any) -> Any:
    """A carried value that may be broadcast: dims that nothing proves equal."""
    tf = tensorflow()
    return tf.while_loop(
        lambda i, _: i < 3, lambda i, a: (i + 1, a + v[1:]), (0, v[:1]), shape_invariants=(tf.TensorShape([]), tf.TensorShape([None]))
    )[1]


def list_of_two_shapes(v: Any) -> Any:
    tf = tensorflow()
    out = tf.TensorArray(tf.float32, 3, infer_shape=False)
    return tf.while_loop(lambda i, _: i < 3, lambda i, o: (i + 1, o.write(i, v[:i])), (0, out))[1].concat()


@pytest.mark.parametrize(
    ("fn", "reason"),
    [(grows, "may change a dimension of carried value"), (broadcasts, "may change a dimension"), (list_of_two_shapes, "list")],
)
def test_reasons(fn, reason):
    tf = tensorflow()
    concrete = tf.function(fn).get_concrete_function(spec("float32", None))
    loaded = load(concrete.graph.as_graph_def(), [concrete.outputs[0].name])
    analysis = analyse(loaded.graph, [name for name, _ in loaded.fetches])
    clustering = make_clusters(analysis, loaded.fetches, min_cluster_size=1)
    (loop,) = [n for n in analysis.order if n.op in ("While", "StatelessWhile")]
    assert reason in clustering.reasons[loop.name].message


# ---- Keras ------------------------------------------------------------------------------------------------------------------------


def keras_model(kind: str) -> Any:
    import keras

    layers = keras.layers
    keras.utils.set_random_seed(1)
    tokens = keras.Input((None,), dtype="int32")
    h = layers.Embedding(50, 12, mask_zero=kind != "plain")(tokens)
    if kind == "lstm":
        h = layers.LSTM(9)(layers.Bidirectional(layers.LSTM(7, return_sequences=True))(h))
    elif kind == "gru":
        h = layers.GRU(9, go_backwards=True)(layers.Bidirectional(layers.GRU(7, return_sequences=True))(h))
    else:
        h = layers.GRU(5, reset_after=False)(layers.SimpleRNN(6, return_sequences=True)(layers.LSTM(7, return_sequences=True)(h)))
    return keras.Model(tokens, layers.Dense(5, activation="softmax")(h))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lstm", "gru", "plain"])
def test_keras(kind):
    tf = tensorflow()
    pytest.importorskip("keras")
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    model = keras_model(kind)
    concrete = tf.function(lambda tokens: model(tokens)).get_concrete_function(spec("int32", None, None))
    c = case_of(convert_variables_to_constants_v2(concrete, lower_control_flow=False))
    rng = np.random.default_rng(0)
    inputs = [[rng.integers(0, 4, (b, t)).astype(np.int32)] for b, t in ((1, 1), (3, 5), (5, 31), (0, 3), (2, 0))]
    check_graph(c, inputs, TARGETS[-1:], Tolerance(ulps=128, relative_floor=1))


# ---- nesting ------------------------------------------------------------------------------------------------------------


def nested(depth: int) -> Any:
    """Branches, loops and calls in turn, ``depth`` deep."""
    tf = tensorflow()

    def go(level: int, v: Any, n: Any) -> Any:
        if level == depth:
            return tf.tanh(v) * 2.0
        if level % 8 == 7:
            return tf.while_loop(lambda i, _: i < n % 2 + 1, lambda i, w: (i + 1, go(level + 1, w, n)), (0, v))[1] + 0.5
        return tf.cond(n > level, lambda: go(level + 1, v, n), lambda: tf.sin(v) + float(level))

    return lambda v, n: go(0, v, n)


def test_deep_nesting():
    c = case(nested(28), spec("float32", 3), spec("int32"))
    check_graph(c, [[x(3), np.array(n, np.int32)] for n in (0, 7, 20, 40)], TARGETS[-1:], Tolerance(ulps=64, relative_floor=1))


@pytest.mark.parametrize("depth", [34, 50])
def test_deeper_nesting_is_refused(depth):
    """With a reason, not by the depth of Python's stack."""
    tf = tensorflow()
    concrete = tf.function(nested(depth), autograph=False).get_concrete_function(spec("float32", 3), spec("int32"))
    loaded = load(concrete.graph.as_graph_def(), [concrete.outputs[0].name])
    analysis = analyse(loaded.graph, [name for name, _ in loaded.fetches])
    clustering = make_clusters(analysis, loaded.fetches, min_cluster_size=1)
    (branch,) = [n.name for n in analysis.order if n.op in ("If", "StatelessIf")]
    reason = clustering.reasons[branch]
    assert reason.code == "TOO_COMPLEX" and "nested more than" in reason.message
