"""DiscLaunch in TensorFlow, carrying the toy executable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from disc_tf.runtime import counters, pack
from disc_tf.testing.tf_case import tensorflow
from tests.runtime import toy

tf = tensorflow()  # with the settings that all tests of this process share
from disc_tf import ops

ops.load_op_library()


@tf.function(autograph=False)
def _original(w, n, x):
    """What the toy computes, in the order of DiscLaunch's outputs: host results first."""
    first = tf.reshape(x, [-1])[:1] * 0.1
    return tf.tile(first, [tf.cast(n, tf.int32)]), x * (2.0 * w), tf.reshape(x, [-1])


_CONCRETE = _original.get_concrete_function(
    tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.int64), tf.TensorSpec([None, None], tf.float32)
)


def _launch(w, n, x, executable: bytes | None = None, abi: int = 1):
    """(filled, y, flat)"""
    module = ops.load_op_library()
    data = pack(toy.artifact()) if executable is None else executable
    host, results = module.disc_launch(
        constants=[w], host_args=[n], args=[x], executable=data, original=_CONCRETE, nodes="scale/Mul", abi=abi,
        Thostout=[tf.float32], Tout=[tf.float32, tf.float32],
    )  # fmt: skip
    return host[0], results[0], results[1]


def _values(rows=3, columns=4):
    x = (np.arange(rows * columns) % 600 + 1).astype(np.float32).reshape(rows, columns)
    return np.linspace(1, 2, columns, dtype=np.float32), np.int64(2), x


def _check(got, w, n, x):
    want = toy.expected(w, x, int(n))
    for a, b in zip(got, (want[2], want[0], want[1]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_eager():
    w, n, x = _values()
    _check(_launch(w, n, x), w, n, x)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (501, 5)])
def test_function_with_unknown_shapes(shape):
    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([], tf.int64), tf.TensorSpec([None, None])])
    def f(w, n, x):
        return _launch(w, n, x)

    w, n, x = _values(*shape)
    _check(f(w, n, x), w, n, x)


def test_session_with_feeds_and_aliasing():
    w, n, x = _values()
    with tf.Graph().as_default() as graph:
        feeds = [tf.compat.v1.placeholder(tf.float32), tf.compat.v1.placeholder(tf.int64), tf.compat.v1.placeholder(tf.float32)]
        _CONCRETE.add_to_graph(graph)
        outs = _launch(*feeds)
        with tf.compat.v1.Session() as session:
            for _ in range(3):
                _check(session.run(outs, dict(zip(feeds, (w, n, x), strict=True))), w, n, x)


def test_grappler_folds_a_launch_of_constants():
    """All inputs constant: the kernel runs inside grappler, where there is no session and no step."""
    w, n, x = _values()
    with tf.Graph().as_default() as graph:
        _CONCRETE.add_to_graph(graph)
        outs = [tf.identity(t + 0.0, name=f"out{i}") for i, t in enumerate(_launch(tf.constant(w), tf.constant(n), tf.constant(x)))]
        config = tf.compat.v1.ConfigProto()
        config.graph_options.rewrite_options.min_graph_nodes = -1
        config.graph_options.optimizer_options.global_jit_level = 0
        before = counters()["runs"]
        with tf.compat.v1.Session(config=config) as session:
            metadata = tf.compat.v1.RunMetadata()
            options = tf.compat.v1.RunOptions(output_partition_graphs=True)
            _check(session.run(outs, options=options, run_metadata=metadata), w, n, x)
            runs = counters()["runs"] - before
            left = [m.op for g in metadata.partition_graphs for m in g.node if m.op == "DiscLaunch"]
            _check(session.run(outs), w, n, x)
    assert not left and runs > 0, "constant folding should have run the launch and replaced it"


@pytest.mark.parametrize(
    ("x", "n", "error", "text"),
    [
        (np.zeros((2, 3), np.float32), 1, tf.errors.InvalidArgumentError, "w and x do not fit .*original node: scale/Mul"),
        (np.full((9, 4), 666, np.float32), 1, tf.errors.OutOfRangeError, "666 is not allowed .*original node: scale/Assert"),
        (np.zeros((2, 4), np.float32), -1, tf.errors.InvalidArgumentError, "n must not be negative"),
        (np.zeros((2, 4), np.float32), 2**62, tf.errors.ResourceExhaustedError, "overflows"),
        (np.zeros(4, np.float32), 1, tf.errors.InvalidArgumentError, r"input x \(1 of 2\) has shape \[4\]"),
    ],
)
def test_errors(x, n, error, text):
    with pytest.raises(error, match=text):
        _launch(_values()[0], np.int64(n), x)


def test_constructor_errors():
    w, n, x = _values()
    data = pack(toy.artifact())
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a disc_tf artefact"):
        _launch(w, n, x, b"nonsense")
    with pytest.raises(tf.errors.DataLossError, match="checksum does not match"):
        _launch(w, n, x, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="made for runtime ABI 99"):
        _launch(w, n, x, data, abi=99)
    module = ops.load_op_library()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"the node has 0 inputs in list 1, its executable 1|types do not fit"):
        module.disc_launch(constants=[w], host_args=[], args=[x], executable=data, original=_CONCRETE, nodes="", abi=1,
                           Thostout=[tf.float32], Tout=[tf.float32, tf.float32])  # fmt: skip


def test_saved_model_round_trip(tmp_path):
    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(_values()[0])

        @tf.function(input_signature=[tf.TensorSpec([], tf.int64), tf.TensorSpec([None, None])])
        def serve(self, n, x):
            return _launch(self.w, n, x)

    w, n, x = _values()
    tf.saved_model.save(Model(), str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    _check(loaded.serve(n, x), w, n, x)


def test_packed_variable_follows_assignments():
    _, n, x = _values()
    v = tf.Variable(_values()[0])

    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def f(x):
        return _launch(v, n, x)

    for _ in range(4):
        _check(f(x), v.numpy(), n, x)
        v.assign_add(tf.ones_like(v))
        _check(f(x), v.numpy(), n, x)
        v.assign(v * 2.0)
        v.scatter_nd_update([[0]], [7.0])
        _check(f(x), v.numpy(), n, x)


@pytest.mark.parametrize("graph", [False, True])
def test_gradient_is_that_of_the_original(graph):
    w, n, x = (tf.constant(v) for v in _values())

    def ours(w, x):
        with tf.GradientTape() as tape:
            tape.watch([w, x])
            loss = sum(tf.reduce_sum(t * t) for t in _launch(w, n, x))
        return tape.gradient(loss, [w, x])

    def reference(w, x):
        with tf.GradientTape() as tape:
            tape.watch([w, x])
            loss = sum(tf.reduce_sum(t * t) for t in _original(w, n, x))
        return tape.gradient(loss, [w, x])

    for a, b in zip((tf.function(ours) if graph else ours)(w, x), reference(w, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_gradient_in_an_imported_graph():
    """As a frozen graph is used: the original is in the library of the imported GraphDef only."""
    w, n, x = _values()
    with tf.Graph().as_default() as graph:
        feed = tf.compat.v1.placeholder(tf.float32, [None, None], name="x")
        _CONCRETE.add_to_graph(graph)
        tf.identity(_launch(tf.constant(w), tf.constant(n), feed)[1], name="y")
        graph_def = graph.as_graph_def()
    with tf.Graph().as_default():
        feed = tf.compat.v1.placeholder(tf.float32, [None, None])
        (y,) = tf.import_graph_def(graph_def, {"x:0": feed}, ["y:0"])
        (gradient,) = tf.gradients(y, feed)
        with tf.compat.v1.Session() as session:
            got = session.run(gradient, {feed: x})
    np.testing.assert_allclose(got, np.broadcast_to(2 * w, x.shape), rtol=1e-6)


_SHARE = """
import numpy as np, ctypes, os
order = {order!r}
from tests.runtime import toy
from disc_tf.runtime import Executable, counters, pack, set_num_threads
data = pack(toy.artifact())
x, w, n = np.ones((999, 3), np.float32), np.ones(3, np.float32), np.int64(1)
def op():
    import tensorflow as tf
    from disc_tf import ops
    module = ops.load_op_library()
    f = tf.function(lambda w: w); c = f.get_concrete_function(tf.TensorSpec([]))
    module.disc_launch(constants=[w], host_args=[n], args=[x], executable=data, original=c, nodes="", abi=1,
                       Thostout=[tf.float32], Tout=[tf.float32, tf.float32])
def alone():
    Executable.from_bytes(data).run([w, x, n])
for step in order: {{"op": op, "alone": alone}}[step]()
assert counters()["runs"] == 2, counters()
names = [open(f"/proc/self/task/{{t}}/comm").read().strip() for t in os.listdir("/proc/self/task")]
assert sum(s.startswith("disc_tf/") for s in names) == counters()["worker_threads"], names
print("shared")
"""


@pytest.mark.parametrize("order", [("op", "alone"), ("alone", "op")])
def test_op_and_runner_share_one_runtime(order):
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", _SHARE.format(order=order)], capture_output=True, text=True, check=False, cwd=root)
    assert done.stdout.strip().endswith("shared"), done.stdout + done.stderr[-2000:]


def test_loading_twice_is_harmless():
    assert ops.load_op_library() is ops.load_op_library()


def _frozen(w):
    """A toy whose first argument has a digest: its doubled copy is known by content."""
    return pack(toy.artifact(w, name="contents", code_hash=b"contents"))


@pytest.mark.parametrize("sessions", [1, 2])
def test_constants_with_other_contents_than_their_digest(sessions):
    """TensorFlow lets every tensor be fed: what was packed of the compiler's weights is not for others."""
    w, n, x = _values()
    data = _frozen(w)
    with tf.Graph().as_default() as graph:
        constant, feed = tf.constant(w), tf.compat.v1.placeholder(tf.float32)
        _CONCRETE.add_to_graph(graph)
        outs = _launch(constant, n, feed, data)
    opened = [tf.compat.v1.Session(graph=graph) for _ in range(sessions)]
    live = counters()["prepared_live_bytes"]
    for k in [0, *range(9), 0, 3, 0]:
        for session in opened:
            feeds = {feed: x} if k == 0 else {feed: x, constant: w * k}
            _check(session.run(outs, feeds), w * max(k, 1), n, x)
    assert counters()["prepared_live_bytes"] - live <= 4 * w.nbytes, "only the latest contents are kept"
    for session in opened:
        session.close()


def test_an_edited_graph_beside_the_original():
    w, n, x = _values()
    with tf.Graph().as_default() as graph:
        _CONCRETE.add_to_graph(graph)
        feed = tf.compat.v1.placeholder(tf.float32)
        outs = [_launch(tf.constant(v), n, feed, _frozen(w)) for v in (w, w + 1, w)]
        with tf.compat.v1.Session() as session:
            for _ in range(2):
                for got, v in zip(session.run(outs, {feed: x}), (w, w + 1, w), strict=True):
                    _check(got, v, n, x)
