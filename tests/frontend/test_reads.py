"""Reads of variables leave loops and branches; what does more than read stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import disc_tf.ops
from disc_tf.frontend.graph import Graph
from disc_tf.frontend.load import expand, load
from disc_tf.frontend.reads import hoist_reads
from disc_tf.frontend.rewrite import put_back, restore
from disc_tf.frontend.tfproto import serialized
from disc_tf.just_in_time.canonical import canonical
from disc_tf.just_in_time.program import Program, build, export
from disc_tf.optimizer import Request, optimize, optimize_graph_def
from disc_tf.options import Options

A, B = tf.Variable([[1.0, 2.0], [3.0, 4.0]]), tf.Variable([0.5, -0.5])
STATE = tf.Variable(0.0)


def in_loop(x):
    for _ in tf.range(3):
        x = tf.tanh(x @ A) + B
    return x


def in_condition(x):
    while tf.reduce_sum(x) < tf.reduce_sum(A) and tf.shape(x)[0] > 0:
        x = x + tf.abs(B) + 0.25
    return x


def nested(x):
    for _ in tf.range(2):
        for _ in tf.range(2):
            x = tf.tanh(x @ A)
        x = x + B
    return x


@tf.function(reduce_retracing=True)
def helper(x):
    return tf.tanh(x @ A)


def through_calls(x):
    for _ in tf.range(2):
        x = helper(x) + B
    return helper(x)


def in_branches(x):
    if tf.reduce_sum(x) > 0:
        y = x @ A
    else:
        y = x + B
    return y * 2.0


def branch_in_loop(x):
    for i in tf.range(4):
        if i % 2 == 0:
            x = x @ A
        else:
            x = x - B
    return x


def after_assignment(x):
    STATE.assign_add(1.0)
    for _ in tf.range(2):
        x = x * STATE + B
    STATE.assign_add(1.0)
    return x + STATE


def in_switch(x):
    return tf.switch_case(tf.cast(tf.reduce_sum(x) > 0, tf.int32), [lambda: x + B, lambda: x @ A, lambda: x * 2.0]) + 1.0


def assigned_in_loop(x):
    for _ in tf.range(3):
        STATE.assign_add(1.0)
        x = x * STATE + B
    return x


def traced(fn: Any) -> Program:
    program = export(tf.function(fn).get_concrete_function(tf.TensorSpec([None, 2], tf.float32)), 1)
    canonical(program.graph_def)
    return program


def resources_of(graph_def: Any) -> list[str]:
    """Loops and branches that still take a handle."""
    nodes = [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]
    kinds = ("While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase")
    # a key that is only asked for would be made
    return [n.name for n in nodes if n.op in kinds and any(20 in n.attr[key].list.type for key in ("T", "Tin") if key in n.attr)]


READ = [in_loop, in_condition, nested, through_calls, in_branches, branch_in_loop, after_assignment, in_switch]


@pytest.mark.parametrize("fn", READ, ids=lambda f: f.__name__)
def test_reads_leave_and_nothing_else_changes(fn):
    program = traced(fn)
    before = serialized(program.graph_def)
    graph = load(program.graph_def, program.fetches).graph.graph_def
    live = {n.name for n in graph.node}
    assert not [n for n in resources_of(graph) if n in live]
    assert serialized(program.graph_def) == before
    hoisted = build(program, graph)
    results = []
    for call in (hoisted, program.concrete):
        answers = []
        for x in ([[1.0, 2.0]], [[-3.0, 0.5], [0.0, 1.0]], np.zeros([0, 2])):
            STATE.assign(3.0)
            answers += [call(tf.constant(x, tf.float32)), STATE.numpy()]
        if fn in (in_loop, in_branches):
            x = tf.constant([[-3.0, 0.5]])
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = call(x)
            answers += tape.gradient(y, [x, A, B])
        results.append(answers)
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_what_does_more_than_read_stays():
    program = traced(assigned_in_loop)
    assert resources_of(program.graph_def)
    assert hoist_reads(program.graph_def) is program.graph_def
    plain = traced(lambda x: x @ A + B).graph_def
    assert hoist_reads(plain) is plain


@pytest.mark.parametrize("fn", [in_loop, after_assignment, branch_in_loop], ids=lambda f: f.__name__)
def test_the_original_comes_back_and_clusters_can_be_put_back(fn):
    program = traced(fn)
    done = optimize_graph_def(program.graph_def, program.fetches, targets=("native",), min_cluster_size=1)
    assert done.report.compiled_clusters, done.report.to_text()
    assert any(n.op == "ReadVariableOp" for n in done.graph_def.node)
    assert serialized(restore(done.graph_def)) == serialized(program.graph_def)
    without = put_back(done.graph_def, [c.name for c in done.report.compiled_clusters])
    assert not any(n.op == "DiscLaunch" for n in without.node)
    x = tf.constant([[1.0, 2.0], [0.5, -1.0]])
    answers = []
    for graph in (done.graph_def, without, program.graph_def):
        STATE.assign(3.0)
        answers.append(build(program, graph)(x))
    np.testing.assert_allclose(answers[0], answers[2], rtol=1e-5)
    np.testing.assert_allclose(answers[1], answers[2], rtol=1e-6)


def stacked(x):
    """A loop on what another one gives: neither writes, and no read waits for the other."""
    return in_loop(in_loop(x) @ A)


def test_reads_do_not_cut_what_belongs_together():
    program = traced(stacked)
    done = optimize_graph_def(program.graph_def, program.fetches, targets=("native",), min_cluster_size=1, dry_run=True)
    assert len(done.report.clusters) == 1, done.report.to_text()


def test_loops_of_tensorflow_1_read_their_variables_before():
    v1 = tf.compat.v1
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [None, 2], "x")
            w = v1.get_variable("w", initializer=[[1.0, 2.0], [3.0, 4.0]], use_resource=True)
            before = v1.assign_add(w, [[0.25, 0.5], [-0.5, 0.0]])
            with tf.control_dependencies([before]):
                y = v1.while_loop(lambda i, _: i < 4, lambda i, y: (i + 1, tf.tanh(y @ w)), [0, x])[1]
            y = v1.cond(tf.reduce_sum(y) > 0.0, lambda: y @ w, lambda: y - w[0])
            tf.identity(y, "y")
            start = v1.global_variables_initializer().name
    finally:
        v1.enable_control_flow_v2()
    graph_def = graph.as_graph_def()
    settings = Options.from_overrides(targets=("native",), min_cluster_size=1, use_tf_shapes=False)
    done = optimize(Request(graph_def, ["y", f"^{start}"], settings, runs=(("y",), (start,))))
    assert not done.report.warnings, done.report.warnings
    inside = {n for c in done.report.compiled_clusters for n in c.node_names}
    assert any("while" in n for n in inside) and any("cond" in n for n in inside), inside
    assert serialized(restore(done.graph_def)) == serialized(graph_def)
    answers = []
    for each in (graph_def, done.graph_def, put_back(done.graph_def, [c.name for c in done.report.compiled_clusters])):
        disc_tf.ops.load_op_library()
        with tf.Graph().as_default(), v1.Session() as session:
            tf.graph_util.import_graph_def(each, name="")
            session.run(start)
            answers.append([session.run("y:0", {"x:0": x}) for x in ([[1.0, 2.0]], [[-3.0, 0.5], [0.0, -1.0]], np.zeros([0, 2]))])
    for other in answers[1:]:
        for ours, theirs in zip(other, answers[0], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def branch_of(x, v):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: v.read_value() * 2.0 + x, lambda: v.read_value() - x)


def loop_of(x, v):
    return tf.while_loop(lambda i, _y: i < 3, lambda i, y: (i + 1, y * v.read_value()), [tf.constant(0), x])[1]


def lookup_of(x, v):
    return tf.gather(v, tf.cast(x, tf.int32))


@pytest.mark.parametrize("again", [False, True], ids=["once", "the result is changed, too"])
@pytest.mark.parametrize("fn", [branch_of, loop_of, lookup_of], ids=lambda f: f.__name__)
def test_a_read_waits_for_assignments_that_only_other_inputs_wait_for(fn, again):
    """Graphs of TensorFlow 1: no control edge says that the branch comes after the assignment, what it computes with does."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [2])
        v, other = tf.Variable([1.0, 2.0]), tf.Variable(0.0)
        slow = tf.exp(tf.reduce_sum(tf.linalg.matmul(tf.random.normal([400, 400]), tf.ones([400, 400]))) * 0.0)  # 1, after a while
        changed, unrelated = v.assign_add([slow, slow], read_value=False), other.assign(slow, read_value=False)
        with tf.control_dependencies([changed, unrelated]):
            y = fn(tf.abs(x), v)
        if again:
            with tf.control_dependencies([y]), tf.control_dependencies([v.assign_add([7.0, 7.0], read_value=False)]):
                y = tf.identity(y)
        init = tf.compat.v1.global_variables_initializer()
    given = graph.as_graph_def()
    done = expand(Graph(given), [y.op.name, init.name], [], read_tables=True)[0].graph_def
    reads = [n for n in done.node if n.op == "ReadVariableOp" and "/read" in n.name]
    assert reads and all("^AssignAddVariableOp" in n.input and not any("Assign_1" in t or "_1" in t for t in n.input) for n in reads)
    answers = []
    for definition in (given, done):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.import_graph_def(definition, name="")
            session.run(init.name)
            answers.append([session.run(y.name, {x.name: [1.0, 0.0]}) for _ in range(3)])
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-6)
