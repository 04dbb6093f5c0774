"""TF1 control flow (Switch, Merge, frames, TensorArrays) made functional: one launch where all compiles, untouched where not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from disc_tf.frontend.load import load
from disc_tf.frontend.rewrite import put_back, restore
from disc_tf.frontend.tfproto import serialized
from disc_tf.testing.session_case import SessionCase
from disc_tf.testing.tf_case import Failure, tensorflow

ONLY_LAUNCH = {"DiscLaunch", "Identity", "IdentityN", "Placeholder", "NoOp", "Const"}


def legacy(build: Callable[[Any], None]) -> Callable[[Any], None]:
    """``build`` with TF1 control flow."""

    def run(tf: Any) -> None:
        before = tf.compat.v1.control_flow_v2_enabled()
        tf.compat.v1.disable_control_flow_v2()
        try:
            build(tf)
        finally:
            if before:
                tf.compat.v1.enable_control_flow_v2()

    return run


def placeholder(tf: Any, name: str = "x", shape: Any = (None, None), dtype: str = "float32") -> Any:
    return tf.compat.v1.placeholder(dtype, shape, name=name)


def inputs(tf: Any) -> tuple[Any, Any]:
    return placeholder(tf), placeholder(tf, "n", (), "int32")


def x(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def loop(tf):
    a, n = inputs(tf)
    y = tf.tanh(a)
    _, z = tf.compat.v1.while_loop(lambda i, _: i < n, lambda i, b: (i + 1, tf.nn.relu(b + y) * 0.5), [tf.constant(0), y])
    tf.identity(z + 1.0, name="out")


def two_results(tf):
    a, n = inputs(tf)
    y = tf.exp(a)
    p, q = tf.compat.v1.cond(n > 2, lambda: (tf.nn.softmax(y), a), lambda: (y - 1.0, tf.sin(y)))
    tf.identity(p * q, name="out")


def nested_branches(tf):
    a, n = inputs(tf)
    cond = tf.compat.v1.cond
    inner = lambda: cond(n > 4, lambda: tf.exp(a), lambda: tf.tanh(a) + 1.0)  # noqa: E731
    z = cond(n > 2, inner, lambda: tf.matmul(a, tf.matmul(a, a, transpose_a=True)))
    tf.identity(z * 2.0, name="out")


def branch_after_branch(tf):
    """The same predicate for two conditionals of which one needs the other."""
    a, n = inputs(tf)
    p = n > 1
    y = tf.compat.v1.cond(p, lambda: tf.exp(a), lambda: tf.nn.relu(a))
    z = tf.compat.v1.cond(p, lambda: tf.sin(y), lambda: tf.nn.softmax(y))
    tf.identity(z + y, name="out")


def branch_of_a_branch(tf):
    """A conditional on what another one gives."""
    a, n = inputs(tf)
    cond = tf.compat.v1.cond
    y, p = cond(n > 1, lambda: (tf.exp(a), n > 4), lambda: (tf.nn.relu(a), tf.equal(n, 0)))
    y, q = cond(p, lambda: (tf.sin(y), tf.logical_not(p)), lambda: (tf.nn.softmax(y), n > 2))
    tf.identity(cond(q, lambda: tf.tanh(y), lambda: y + 1.0), name="out")


def branch_in_a_loop(tf):
    a, n = inputs(tf)

    def body(i, b):
        return i + 1, tf.compat.v1.cond(tf.equal(i % 2, 0), lambda: tf.sin(b) + a, lambda: tf.nn.softmax(b))

    tf.identity(tf.compat.v1.while_loop(lambda i, _: i < n, body, [tf.constant(0), a])[1] + 1.0, name="out")


def loop_in_a_branch(tf):
    a, n = inputs(tf)
    run = lambda: tf.compat.v1.while_loop(lambda i, _: i < n, lambda i, b: (i + 1, tf.sin(b) + a), [tf.constant(0), a])[1]  # noqa: E731
    tf.identity(tf.compat.v1.cond(n > 1, run, lambda: a * 2.0) + 1.0, name="out")


def nested_loops(tf):
    a, n = inputs(tf)

    def body(i, b):
        inner = tf.compat.v1.while_loop(lambda j, _: j < i, lambda j, c: (j + 1, c * 0.5 + a), [tf.constant(0), b])
        return i + 1, tf.sin(inner[1])

    tf.identity(tf.compat.v1.while_loop(lambda i, _: i < n, body, [tf.constant(0), a])[1] + 1.0, name="out")


def loop_after_loop(tf):
    a, n = inputs(tf)
    step = lambda i, b: (i + 1, tf.sin(b) + 0.1)  # noqa: E731
    i, y = tf.compat.v1.while_loop(lambda i, _: i < n, step, [tf.constant(0), a])
    _, z = tf.compat.v1.while_loop(lambda j, _: j < 2 * n, step, [i, y])
    tf.identity(tf.compat.v1.cond(i > 2, lambda: z * 2.0, lambda: tf.exp(z)), name="out")


def checked(tf):
    a, n = inputs(tf)
    with tf.control_dependencies([tf.compat.v1.Assert(n < 5, ["too large", n])]):
        y = tf.identity(a)
    tf.identity(tf.compat.v1.cond(n > 2, lambda: tf.exp(y), lambda: tf.tanh(y) + 1.0) * 2.0, name="out")


BUILDS = [
    loop, two_results, nested_branches, branch_after_branch, branch_of_a_branch, branch_in_a_loop, loop_in_a_branch, nested_loops,
    loop_after_loop, checked,
]  # fmt: skip


@pytest.mark.parametrize("build", BUILDS, ids=lambda f: f.__name__)
def test_functional(build):
    case = SessionCase(legacy(build), ["out:0"])
    assert set(case.ops) <= ONLY_LAUNCH, case.result.report.to_text()
    assert len(case.result.report.clusters) == 1
    for shape in ((3, 4), (0, 4), (1, 1)):
        for n in (0, 1, 3, 5):
            case.check({"x:0": x(*shape), "n:0": np.int32(n)})
    new = case.result.graph_def
    assert serialized(restore(new)) == serialized(case.graph_def)
    assert serialized(put_back(new, ["disc_cluster_0"])) == serialized(case.graph_def)
    assert serialized(put_back(new, [])) == serialized(new)


def merged_index(tf):
    a, p = placeholder(tf), placeholder(tf, "p", (), "bool")
    off, on = tf.raw_ops.Switch(data=a, pred=p)
    value, index = tf.raw_ops.Merge(inputs=[tf.exp(on) + 1.0, tf.tanh(off) * 3.0])
    tf.identity(value * 2.0, name="out")
    tf.identity(index + 1, name="index")


def test_the_index_of_a_merge():
    case = SessionCase(merged_index, ["out:0", "index:0"])
    assert set(case.ops) <= ONLY_LAUNCH
    for p in (True, False):
        case.check({"x:0": x(3, 4), "p:0": np.bool_(p)})


# ---- arrays -------------------------------------------------------------------------------------------------------------


def recurrence(tf):
    a = placeholder(tf, "x", (None, None, 3))
    w = tf.constant(x(8, 5) / 3)
    steps, batch = tf.shape(a)[0], tf.shape(a)[1]
    rows = tf.TensorArray(tf.float32, steps).unstack(a)
    out = tf.TensorArray(tf.float32, steps, element_shape=[None, 5])

    def body(i, h, out):
        h = tf.tanh(tf.matmul(tf.concat([rows.read(i), h], 1), w))
        return i + 1, h, out.write(i, h)

    _, h, out = tf.compat.v1.while_loop(lambda i, *_: i < steps, body, [tf.constant(0), tf.zeros([batch, 5]), out])
    tf.identity(out.stack(), name="out")
    tf.identity(h, name="last")


def dynamic_array(tf):
    a, n = inputs(tf)
    array = tf.TensorArray(tf.float32, 0, dynamic_size=True)
    body = lambda i, t: (i + 1, t.write(i, a * tf.cast(i, tf.float32)))  # noqa: E731
    array = tf.compat.v1.while_loop(lambda i, _: i < n, body, [tf.constant(0), array])[1]
    tf.identity(array.stack(), name="out")
    tf.identity(array.size() * 3, name="last")


def written_ahead(tf):
    """Elements after the counter, downwards, and the first before the loop."""
    a, n = inputs(tf)
    a = tf.ensure_shape(a, [2, 3])
    array = tf.TensorArray(tf.float32, 6, element_shape=[2, 3])
    body = lambda i, t: (i - 2, t.write(i - 1, a * tf.cast(i, tf.float32)))  # noqa: E731
    array = tf.compat.v1.while_loop(lambda i, _: i > n, body, [tf.constant(6), array])[1]
    tf.identity(array.stack(), name="out")
    tf.identity(array.size() * 3, name="last")


def in_a_row(tf):
    """No loop, an element for each operation; one that is read twice is not cleared."""
    a, n = inputs(tf)
    a = tf.ensure_shape(a, [2, 3])
    array = tf.TensorArray(tf.float32, 3, element_shape=[2, 3], clear_after_read=False)
    for i in range(3):
        array = array.write(i, a + float(i))
    total = tf.compat.v1.while_loop(lambda i, _: i < n, lambda i, s: (i + 1, s + array.read(0)), [tf.constant(0), a])[1]
    tf.identity(array.read(n % 3) * total, name="out")
    tf.identity(array.stack(), name="last")


def mapped(tf):
    a, n = inputs(tf)
    tf.identity(tf.compat.v1.map_fn(lambda row: tf.cond(n > 1, lambda: tf.tanh(row), lambda: row * 2.0), a), name="out")
    tf.identity(n * 2, name="last")


SEQUENCES = [{"x:0": x(*s)} for s in ((4, 2, 3), (1, 1, 3), (0, 2, 3), (3, 0, 3))]


@pytest.mark.parametrize(
    ("build", "feeds"),
    [
        (recurrence, SEQUENCES),
        (dynamic_array, [{"x:0": x(2, 3), "n:0": np.int32(n)} for n in (1, 4)]),
        (written_ahead, [{"x:0": x(2, 3), "n:0": np.int32(n)} for n in (7, 3, 1)]),
        (in_a_row, [{"x:0": x(2, 3), "n:0": np.int32(n)} for n in (1, 4)]),
        (mapped, [{"x:0": x(*s), "n:0": np.int32(n)} for s in ((3, 2), (0, 3)) for n in (1, 4)]),
    ],
    ids=["recurrence", "dynamic_array", "written_ahead", "in_a_row", "mapped"],
)
def test_arrays_become_lists(build, feeds):
    case = SessionCase(legacy(build), ["out:0", "last:0"])
    assert set(case.ops) <= ONLY_LAUNCH, case.result.report.to_text()
    for each in feeds:
        case.check(each)
    assert serialized(restore(case.result.graph_def)) == serialized(case.graph_def)


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["BasicRNNCell", "LSTMCell", "GRUCell"])
@pytest.mark.parametrize("lengths", [False, True])
def test_dynamic_rnn(cell, lengths):
    tf = tensorflow()
    cells = pytest.importorskip("tf_keras.src.layers.rnn.legacy_cells")
    v1 = tf.compat.v1

    def build(tf):
        a = placeholder(tf, "x", (None, None, 3))
        given = {"sequence_length": tf.minimum(tf.shape(a)[1], tf.range(tf.shape(a)[0]) + 1)} if lengths else {}
        out, state = v1.nn.dynamic_rnn(getattr(cells, cell)(5), a, dtype=tf.float32, **given)
        tf.identity(out, name="out")
        tf.identity(tf.nest.flatten(state)[-1], name="last")

    with tf.Graph().as_default() as graph:
        legacy(build)(tf)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            frozen = v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), ["out", "last"])
    case = SessionCase(lambda tf: tf.import_graph_def(frozen, name=""), ["out:0", "last:0"])
    assert set(case.ops) <= ONLY_LAUNCH, case.result.report.to_text()
    for feeds in SEQUENCES:
        case.check({"x:0": feeds["x:0"].transpose(1, 0, 2)})
    assert serialized(restore(case.result.graph_def)) == serialized(case.graph_def)


def test_a_lowered_keras_layer():
    """What `convert_variables_to_constants_v2` leaves with ``lower_control_flow``."""
    tf = tensorflow()
    keras = pytest.importorskip("keras")
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    given = keras.Input((None, 5))
    model = keras.Model(given, keras.layers.LSTM(6, return_sequences=True)(given))
    concrete = tf.function(lambda v: model(v)).get_concrete_function(tf.TensorSpec([None, None, 5], name="x"))
    frozen = convert_variables_to_constants_v2(concrete, lower_control_flow=True)
    graph_def = frozen.graph.as_graph_def()
    assert any(n.op == "NextIteration" for n in graph_def.node)
    (output,) = (t.name for t in frozen.outputs)
    case = SessionCase(lambda tf: tf.import_graph_def(graph_def, name=""), [output])
    assert set(case.ops) <= ONLY_LAUNCH, case.result.report.to_text()
    for b, s in ((2, 4), (1, 1), (0, 2), (2, 0)):
        case.check({frozen.inputs[0].name: x(b, s, 5)})


# ---- what stays ---------------------------------------------------------------------------------------------------------


def strings_in_a_loop(tf):
    a, n = inputs(tf)
    y = tf.tanh(a) * 2.0 + a
    body = lambda i, s: (i + 1, tf.strings.join([s, tf.strings.as_string(i)]))  # noqa: E731
    text = tf.compat.v1.while_loop(lambda i, _: i < n, body, [tf.constant(0), tf.constant("")])[1]
    tf.identity(text, name="text")
    tf.identity(tf.exp(y) - 1.0, name="out")


def half(tf):
    """One conditional compiles, the other does not."""
    a, n = inputs(tf)
    strings_in_a_loop_of = lambda: tf.strings.as_string(tf.reduce_sum(a))  # noqa: E731
    text = tf.compat.v1.cond(n > 1, strings_in_a_loop_of, lambda: tf.constant("-"))
    tf.identity(text, name="text")
    tf.identity(tf.compat.v1.cond(n > 2, lambda: tf.exp(a) + 1.0, lambda: tf.nn.softmax(a)), name="out")


@pytest.mark.parametrize("build", [strings_in_a_loop, half], ids=lambda f: f.__name__)
def test_what_does_not_compile_stays_as_it_was(build):
    case = SessionCase(legacy(build), ["out:0", "text:0"])
    before = {n.name: n for n in case.graph_def.node}
    left = [n for n in case.result.graph_def.node if n.op in ("Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond")]
    assert left and all(before[n.name].op == n.op for n in left)
    assert not any(n.op in ("StatelessWhile", "While", "StatelessIf", "If") for n in case.result.graph_def.node)
    assert any("legacy control flow" in w for w in case.result.report.warnings)
    for n in (0, 1, 2, 3):
        case.check({"x:0": x(3, 4), "n:0": np.int32(n)})
    new = case.result.graph_def
    names = [c.name for c in case.result.report.compiled_clusters]
    assert serialized(restore(new)) == serialized(case.graph_def)
    assert serialized(put_back(new, names)) == serialized(case.graph_def)
    assert serialized(put_back(new, [])) == serialized(new)


def written_twice(tf):
    a, n = inputs(tf)
    array = tf.TensorArray(tf.float32, 3, element_shape=[None, None])
    body = lambda i, t: (i + 1, t.write(0, a))  # noqa: E731
    tf.identity(tf.compat.v1.while_loop(lambda i, _: i < n, body, [tf.constant(0), array])[1].stack(), name="out")


def written_anywhere(tf):
    a, n = inputs(tf)
    at = tf.stack([0, n, 1])
    array = tf.TensorArray(tf.float32, 3, element_shape=[None, None])
    body = lambda i, t: (i + 1, t.write(at[i], a))  # noqa: E731
    tf.identity(tf.compat.v1.while_loop(lambda i, _: i < 2, body, [tf.constant(0), array])[1].stack(), name="out")


def written_in_a_row(tf):
    a, n = inputs(tf)
    array = tf.TensorArray(tf.float32, 3, element_shape=[None, None]).write(0, a).write(n, a * 2.0)
    tf.identity(array.stack(), name="out")


def written_again_by_an_outer_loop(tf):
    a, n = inputs(tf)
    array = tf.TensorArray(tf.float32, 3, element_shape=[None, None])
    inner = lambda j, t: (j + 1, t.write(j, a))  # noqa: E731
    outer = lambda i, t: (i + 1, tf.compat.v1.while_loop(lambda j, _: j < 2, inner, [tf.constant(0), t])[1])  # noqa: E731
    tf.identity(tf.compat.v1.while_loop(lambda i, _: i < n, outer, [tf.constant(0), array])[1].stack(), name="out")


def read_when_cleared(tf):
    a, n = inputs(tf)
    rows = tf.TensorArray(tf.float32, 3).unstack(tf.stack([a, a * 2.0, a * 3.0]))
    body = lambda i, s: (i + 1, s + rows.read(0))  # noqa: E731
    tf.identity(tf.compat.v1.while_loop(lambda i, _: i < n, body, [tf.constant(0), a])[1], name="out")


def stacked_when_cleared(tf):
    a, n = inputs(tf)
    array = tf.TensorArray(tf.float32, 2, element_shape=[None, None]).unstack(tf.stack([a, a * 2.0]))
    tf.identity(array.read(n % 2) + tf.reduce_sum(array.stack(), 0), name="out")


REFUSED_BY_ARRAYS = [
    written_twice, written_anywhere, written_in_a_row, written_again_by_an_outer_loop, read_when_cleared, stacked_when_cleared,
]  # fmt: skip


@pytest.mark.parametrize("build", REFUSED_BY_ARRAYS, ids=lambda f: f.__name__)
def test_arrays_that_may_fail_stay_arrays(build):
    """An element that is written twice, or read when it is cleared, is an error in TensorFlow; a list would not mind."""
    case = SessionCase(legacy(build), ["out:0"], min_clusters=0)
    assert "TensorArrayV3" in case.ops and not {"TensorListReserve", "StatelessWhile", "While"} & set(case.ops)
    found = [case.check({"x:0": x(2, 3), "n:0": np.int32(n)}) for n in (0, 1, 2)]
    assert any(isinstance(f, Failure) for f in found)


def unmerged(tf):
    """A Switch of which one side is never brought together with the other."""
    a, p = placeholder(tf), placeholder(tf, "p", (), "bool")
    _, on = tf.raw_ops.Switch(data=a, pred=p)
    tf.identity(tf.exp(on) * 2.0 + 1.0, name="out")
    tf.identity(tf.tanh(a) * 2.0 + a, name="other")


def crossed(tf):
    """A Merge of two predicates."""
    a, n = inputs(tf)
    _, first = tf.raw_ops.Switch(data=a, pred=n > 0)
    second, _ = tf.raw_ops.Switch(data=a, pred=n > 1)
    tf.identity(tf.raw_ops.Merge(inputs=[tf.exp(first) + 1.0, tf.tanh(second)])[0] * 2.0, name="other")


@pytest.mark.parametrize("build", [unmerged, crossed], ids=lambda f: f.__name__)
def test_other_forms_are_respected(build):
    with tensorflow().Graph().as_default() as graph:
        build(tensorflow())
    loaded = load(graph.as_graph_def(), ["other:0"])
    assert not loaded.functional and loaded.graph.graph_def == graph.as_graph_def()
    case = SessionCase(build, ["other:0"], min_clusters=0)
    for value in (False, True):
        feeds = {"x:0": x(3, 4), ("p:0" if build is unmerged else "n:0"): np.bool_(value) if build is unmerged else np.int32(2 * value)}
        assert not isinstance(case.check(feeds), Failure)


def chain_of_branches(tf):
    """150 conditionals, half of them of one predicate, each of which needs the one before."""
    a, n = inputs(tf)
    cond = tf.compat.v1.cond
    for i in range(75):
        a = cond(n > i, lambda a=a: tf.sin(a) + 1.0, lambda a=a: tf.tanh(a))
        a = a + cond(n > 0, lambda a=a: tf.sin(a) + 1.0, lambda a=a: tf.tanh(a))
    tf.identity(a, name="out")


def test_many_conditionals():
    import time

    with tensorflow().Graph().as_default() as graph:
        legacy(chain_of_branches)(tensorflow())
    start = time.process_time()
    loaded = load(graph.as_graph_def(), ["out:0"])
    assert len(loaded.functional) == 150 and not loaded.legacy
    assert time.process_time() - start < 20


def test_a_defect_costs_the_user_nothing_and_shows_in_tests(monkeypatch):
    def defect(*_args: Any) -> list[str]:
        raise KeyError("defect")

    monkeypatch.setattr("disc_tf.frontend.legacy.conds_to_ifs", defect)
    with tensorflow().Graph().as_default() as graph:
        legacy(two_results)(tensorflow())
    given = graph.as_graph_def()
    loaded = load(given, ["out:0"])
    assert not loaded.functional and "defect" in loaded.legacy["graph"] and loaded.graph.graph_def == given
    with pytest.raises(KeyError, match="defect"):
        load(given, ["out:0"], verify=True)
