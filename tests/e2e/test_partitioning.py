"""Clusters beside everything else that graphs hold: functions, effects, references, foreign compilers, many or tiny outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disc_tf.frontend.rewrite import put_back, restore
from disc_tf.frontend.tfproto import serialized
from disc_tf.optimizer import optimize_graph_def
from disc_tf.testing.session_case import SessionCase
from disc_tf.testing.tf_case import tensorflow


def ph(tf: Any, name: str = "x", shape: Any = (None, None), dtype: str = "float32") -> Any:
    return tf.compat.v1.placeholder(dtype, shape, name=name)


def x(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def text(tf: Any, v: Any) -> Any:
    """Numbers that went through an op that is never compiled."""
    return tf.strings.to_number(tf.strings.as_string(v))


# ---- functions ----------------------------------------------------------------------------------------------------------


def across_functions(tf):
    inner = tf.function(lambda v: tf.tanh(v) * 2.0, autograph=False)

    @tf.function(autograph=False)
    def outer(v):
        return tf.nn.softmax(inner(v) + 1.0), tf.shape(v)

    a = ph(tf)
    y, s = outer(tf.exp(a))
    tf.identity(tf.reshape(y, s) - 1.0, name="out")


def kept_function(tf):
    """A call that must stay: a cluster before and one behind it."""

    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def kept(v):
        return tf.sin(v) + 1.0

    a = ph(tf)
    tf.identity(tf.nn.relu(kept(tf.tanh(a) * 2.0) + a) * 3.0, name="out")


# ---- outputs and inputs -------------------------------------------------------------------------------------------------


def many_outputs(tf):
    """64 small results, each read outside."""
    a = ph(tf, "x", (None, 64))
    parts = tf.unstack(tf.tanh(a) * 2.0, axis=1)
    tf.add_n([text(tf, p) for p in parts], name="out")


def shape_only(tf):
    """Of a long computation only the shape is read outside."""
    a = ph(tf)
    y = tf.nn.softmax(tf.matmul(a, a, transpose_b=True))
    tf.strings.as_string(tf.shape(tf.concat([y, y], 1)), name="sizes")
    tf.identity(tf.reduce_sum(y, 1) + 1.0, name="out")


def duplicates(tf):
    """One tensor several times, one node twice among the outputs of a cluster, the same constant in two."""
    a = ph(tf)
    k = tf.constant(3.0)
    y = tf.tanh(a) * k
    tf.identity(tf.concat([text(tf, y) * k, y, y], 1) + k, name="out")


def pass_through(tf):
    """An input that leaves the cluster unchanged, a constant that does."""
    a = ph(tf)
    tf.identity(tf.identity(a), name="same")
    tf.identity(tf.constant(x(3)), name="constant")
    tf.identity(tf.exp(a) + tf.reduce_max(a), name="out")


# ---- order --------------------------------------------------------------------------------------------------------------


def control_edges(tf):
    """Through compiled nodes, from a print to a print."""
    a = ph(tf)
    first = tf.compat.v1.Print(a, [a], message="")
    with tf.control_dependencies([first]):
        y = tf.tanh(a) + 1.0
    with tf.control_dependencies([y]):
        second = tf.compat.v1.Print(a, [a], message="")
    with tf.control_dependencies([second, tf.no_op()]):
        tf.identity(tf.exp(y) * 2.0, name="out")


def counter(tf):
    """A variable is changed between two clusters."""
    a = ph(tf, "x", (None, 3))
    v = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[3], shared_name="v_part", name="v")
    tf.raw_ops.AssignVariableOp(resource=v, value=tf.constant([1.0, 2.0, 3.0]), name="init")
    y = tf.tanh(a * tf.raw_ops.ReadVariableOp(resource=v, dtype=tf.float32))
    with tf.control_dependencies([y]):
        change = tf.raw_ops.AssignAddVariableOp(resource=v, value=tf.reduce_sum(y, 0) + 1.0)
    with tf.control_dependencies([change]):
        tf.identity(tf.exp(y) + tf.raw_ops.ReadVariableOp(resource=v, dtype=tf.float32), name="out")


def references(tf):
    """A TF1 variable: reads and assignments by reference."""
    a = ph(tf, "x", (None, 3))
    v = tf.raw_ops.VariableV2(shape=[3], dtype=tf.float32, shared_name="ref_part", name="v")
    tf.raw_ops.Assign(ref=v, value=tf.constant([1.0, 2.0, 3.0]), name="init")
    y = tf.tanh(a * tf.identity(v)) * 2.0
    with tf.control_dependencies([y]):
        added = tf.raw_ops.AssignAdd(ref=v, value=tf.reduce_sum(y, 0))
    tf.identity(tf.exp(y) + added, name="out")


def random_beside(tf):
    """A stateful op between two clusters that neither may hold nor run twice."""
    a = ph(tf)
    y = tf.tanh(a) * 2.0
    noise = tf.raw_ops.RandomUniform(shape=tf.shape(y), dtype=tf.float32, seed=1, seed2=2)
    tf.identity(tf.exp(y) + tf.floor(noise) + 1.0, name="out")


# ---- foreign compilers, devices -----------------------------------------------------------------------------------------


def colocated(tf):
    a = ph(tf)
    y = tf.tanh(a) * 2.0
    with tf.compat.v1.colocate_with(y.op):
        z = tf.exp(y) + 1.0
    with tf.device("/device:CPU:0"):
        w = tf.nn.relu(z) * text(tf, z)
    with tf.compat.v1.colocate_with(z.op):
        tf.identity(w - 1.0, name="out")


def two_towers(tf):
    """One tower waits for slow work on strings, the other does not."""
    a, b = ph(tf, "x", (None, 8)), ph(tf, "b", (None, 8))
    w = tf.constant(x(8, 8, seed=1))
    early = tf.nn.relu(tf.matmul(a, w) + 1.0)
    late = tf.nn.relu(tf.matmul(text(tf, b), w) + 1.0)
    tf.identity(tf.reduce_sum(early * late, 1) * 2.0, name="out")


def of_two_ops(tf):
    """A cluster of two ops between ops that stay."""
    a = ph(tf)
    tf.identity(text(tf, tf.exp(text(tf, a)) + 1.0), name="out")


Case = tuple[Any, list[str], dict[str, Any]]
CASES: list[Case] = [
    (across_functions, ["out:0"], {}),
    (kept_function, ["out:0"], {"min_clusters": 2}),
    (many_outputs, ["out:0"], {}),
    (shape_only, ["sizes:0", "out:0"], {}),
    (duplicates, ["out:0", "out:0"], {"min_clusters": 2}),
    (pass_through, ["same:0", "constant:0", "out:0", "x:0"], {}),
    (control_edges, ["out:0"], {}),
    (counter, ["out:0", "^init"], {"init": ["init"], "min_clusters": 2}),
    (references, ["out:0", "^init"], {"init": ["init"]}),
    (random_beside, ["out:0"], {}),
    (colocated, ["out:0"], {"min_clusters": 2}),
    (two_towers, ["out:0"], {"min_clusters": 2}),
    (of_two_ops, ["out:0"], {}),
]


@pytest.mark.parametrize(("build", "outputs", "options"), CASES, ids=[c[0].__name__ for c in CASES])
def test_same_answers_and_the_way_back(build, outputs, options):
    case = SessionCase(build, outputs, **options)
    columns = {"many_outputs": 64, "counter": 3, "references": 3, "two_towers": 8}.get(build.__name__, 4)
    for rows in (3, 1, 0, 3):
        feeds = {"x:0": x(rows, columns)}
        if build is two_towers:
            feeds["b:0"] = x(rows, columns, seed=2)
        case.check(feeds)
    new = case.result.graph_def
    names = [c.name for c in case.result.report.compiled_clusters]
    assert serialized(restore(new)) == serialized(case.graph_def)
    assert serialized(put_back(new, names)) == serialized(case.graph_def)
    for name in names if len(names) > 1 else ():  # each cluster alone back in TensorFlow
        one = put_back(new, [name])
        assert [n.name for n in one.node if n.op == "DiscLaunch"] == [n for n in names if n != name]
        assert serialized(restore(one)) == serialized(case.graph_def)


# ---- what another compiler owns -----------------------------------------------------------------------------------------


def foreign_graph(op: str) -> Any:
    """A chain with a node in its middle that belongs to XLA or TensorRT."""
    tf = tensorflow()
    with tf.Graph().as_default() as graph:
        a = ph(tf)
        y = tf.tanh(a, name="before") * 2.0
        z = tf.exp(y, name="middle")
        tf.identity(tf.nn.relu(z) - 1.0, name="out")
    graph_def = graph.as_graph_def()
    (middle,) = (n for n in graph_def.node if n.name == "middle")
    if op == "_XlaMustCompile":
        middle.attr["_XlaMustCompile"].b = True
        return graph_def
    body = graph_def.library.function.add()
    body.signature.name = "engine"
    body.signature.input_arg.add(name="a", type=1)
    body.signature.output_arg.add(name="r", type=1)
    node = body.node_def.add(name="e", op="Exp", input=["a"])
    node.attr["T"].type = 1
    body.ret["r"] = "e:y:0"
    data = list(middle.input)
    middle.Clear()
    middle.name, middle.op = "middle", op
    middle.input.extend(data)
    if op == "XlaLaunch":
        middle.attr["function"].func.name = "engine"
        for key, types in (("Tconstants", []), ("Targs", [1]), ("Tresults", [1])):
            middle.attr[key].list.SetInParent()
            middle.attr[key].list.type.extend(types)
        middle.attr["Nresources"].i = 0
    else:  # no op that TensorFlow for the CPU knows
        middle.attr["segment_func"].func.name = "engine"
        middle.attr["InT"].list.type.append(1)
        middle.attr["OutT"].list.type.append(1)
        middle.attr["serialized_segment"].s = b"engine"
    return graph_def


@pytest.mark.parametrize("op", ["_XlaMustCompile", "XlaLaunch", "TRTEngineOp"])
def test_nodes_of_other_compilers_stay(op):
    graph_def = foreign_graph(op)
    result = optimize_graph_def(graph_def, ["out:0"], min_cluster_size=1, targets=("native",))
    (middle,) = (n for n in result.graph_def.node if n.name == "middle")
    (before,) = (n for n in graph_def.node if n.name == "middle")
    assert middle.op == before.op and middle.attr == before.attr
    # the rank of what a foreign node gives is not known
    assert len(result.report.compiled_clusters) == (2 if op == "_XlaMustCompile" else 1)
    (left,) = (entry for entry in result.report.left_out if entry.node == "middle")
    assert left.reason
    if op != "_XlaMustCompile":
        assert "engine" in {f.signature.name for f in result.graph_def.library.function}
    assert serialized(restore(result.graph_def)) == serialized(graph_def)


# ---- a cluster that fails -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["import_cluster", "compile_module"])
def test_a_cluster_that_fails_leaves_the_graph_as_it_was(where, monkeypatch):
    """The first fails, by a defect: its nodes stay, with the reason; the second is compiled."""
    import disc_tf.compiler
    import disc_tf.optimizer

    tf = tensorflow()
    module = disc_tf.optimizer if where == "import_cluster" else disc_tf.compiler
    real, calls = getattr(module, where), []

    def broken(*args, **kwargs):
        calls.append(args)
        if len(calls) == 1:
            raise KeyError("a defect")
        return real(*args, **kwargs)

    monkeypatch.setattr(module, where, broken)
    with tf.Graph().as_default() as graph:
        duplicates(tf)
    graph_def = graph.as_graph_def()
    result = optimize_graph_def(graph_def, ["out:0"], min_cluster_size=1, targets=("native",))
    first, second = result.report.clusters
    assert first.status == "failed" and "a defect" in first.reason and second.status != "failed"
    kept = {n.name: n for n in result.graph_def.node}
    assert all(kept[n.name] == n for n in graph_def.node if n.name in first.node_names)
    assert {entry.node for entry in result.report.left_out if entry.code == "COMPILE"} == set(first.node_names)
    assert serialized(restore(result.graph_def)) == serialized(graph_def)
    monkeypatch.setattr(module, where, lambda *args, **kwargs: broken(*args) if calls.clear() is None else None)
    assert optimize_graph_def(graph_def, ["out:0"], min_cluster_size=1, targets=("native",)).graph_def is graph_def
