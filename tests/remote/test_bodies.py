"""Constants inside of loops and branches stay at home, and the loops and branches compile all the same."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import disc_tf.ops
from disc_tf.frontend.functions import every_node
from disc_tf.frontend.rewrite import LAUNCH_OP, find_recipe, put_back, restore
from disc_tf.frontend.tfproto import serialized
from disc_tf.just_in_time.program import Program, build, export
from disc_tf.optimizer import optimize_graph_def
from disc_tf.remote.merge import compile_remotely
from disc_tf.saved_model import optimize_saved_model, restore_saved_model
from tests.frontend.graphs import BOOL, F32, I32, STRING, G, body_node
from tests.remote.test_compile import SETTINGS, Here, remotely

RNG = np.random.default_rng(11)
TABLE = RNG.standard_normal((100, 4)).astype(np.float32)
W = RNG.standard_normal((4, 4)).astype(np.float32)
HALF = np.float32(0.7531)
#: what must not be on the wire: a row of the table, one of the weights, a factor
SECRETS = [TABLE[20].tobytes(), W[1].tobytes(), HALF.tobytes()]


def in_loop(x):
    for _ in tf.range(3):
        x = tf.tanh(x @ tf.constant(W)) * HALF
    return x


def in_branch(x):
    if tf.reduce_sum(x) > 0.0:
        return x @ tf.constant(W) + HALF
    return x * HALF


def in_nested(x):
    for _ in tf.range(3):
        if tf.reduce_sum(x) > 0.0:
            for _ in tf.range(2):
                x = tf.tanh(x @ tf.constant(W))
        else:
            x = x * HALF + tf.constant(W)[0]
    return x


def in_condition_and_body(x):
    i = 0
    while tf.reduce_sum(tf.abs(x @ tf.constant(W))) > HALF and i < 4:
        x = tf.tanh(x @ tf.constant(W)) * HALF
        i += 1
    return x


def in_case(x):
    cases = [lambda: x + HALF, lambda: x @ tf.constant(W), lambda: x * 2.5 - HALF]
    return tf.switch_case(tf.cast(tf.reduce_sum(x), tf.int32), cases) + 1.0


@tf.function(reduce_retracing=True)
def helper(x):
    return tf.tanh(x @ tf.constant(W)) + HALF


def in_calls(x):
    for _ in tf.range(2):
        x = helper(x)
    if tf.reduce_sum(x) > 0.0:
        x = helper(x) - 1.0
    return x


@tf.function(jit_compile=True)
def whole(x):
    return tf.tanh(x @ tf.constant(W)) + HALF


def in_compiled_call(x):
    return tf.nn.relu(whole(x) * 2.0)


def decode(x):
    """Greedy decoding: an embedding table, weights and the tokens so far."""
    token = tf.zeros([tf.shape(x)[0]], tf.int32)
    out = tf.TensorArray(tf.int32, 5)
    state = x
    for i in tf.range(5):
        state = tf.tanh(tf.gather(tf.constant(TABLE), token) + state @ tf.constant(W))
        token = tf.argmax(state @ tf.transpose(tf.constant(TABLE)), -1, tf.int32)
        out = out.write(i, token)
    return tf.cast(tf.transpose(out.stack()), tf.float32)


def with_nothing(x):
    for _ in tf.range(2):
        x = tf.concat([x * HALF, tf.zeros([0, 4]) + HALF], 0)
    return x


def grow(x):
    """What it makes grows up to a limit that stays at home."""
    return tf.while_loop(
        lambda i, _: i < 7,
        lambda i, y: (i + 1, tf.concat([y, tf.tanh(y[-1:] @ tf.constant(W)) * HALF], 0)),
        [tf.constant(2), x],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 4])],
    )[1]


BODIES = [grow, in_loop, in_branch, in_nested, in_condition_and_body, in_case, in_calls, in_compiled_call, decode, with_nothing]


def traced(fn: Callable[..., Any]) -> Program:
    return export(tf.function(fn).get_concrete_function(tf.TensorSpec([None, 4], tf.float32)), 1)


def inputs() -> list[tf.Tensor]:
    positive = np.abs(RNG.standard_normal((5, 4))).astype(np.float32) / 4
    return [tf.constant(x) for x in (positive, -positive, positive[:1], -positive[:0], RNG.standard_normal((3, 4)).astype(np.float32))]


@pytest.mark.parametrize("fn", BODIES, ids=lambda f: f.__name__)
def test_nothing_of_a_body_travels_and_the_node_compiles(fn: Callable[..., Any]) -> None:
    program = traced(fn)
    mine = serialized(program.graph_def)
    assert any(s in mine or s in serialized_values(program.graph_def) for s in SECRETS), "the search finds what is there"
    transport = Here()
    done = remotely(program.graph_def, program.fetches, transport)
    assert not [s for s in SECRETS for request in transport.requests if s in request.graph]
    assert done.report.coverage == 1.0, done.report.to_text()
    assert serialized(restore(done.graph_def)) == mine == serialized(program.graph_def)
    back = put_back(done.graph_def, [c.name for c in done.report.compiled_clusters])
    assert not any(n.op == LAUNCH_OP for n in every_node(back))
    here = optimize_graph_def(program.graph_def, program.fetches, SETTINGS)
    assert [len(c.kernels) for c in done.report.clusters] == [len(c.kernels) for c in here.report.clusters]
    for x in inputs():
        want = program.concrete(x)
        for graph in (done.graph_def, here.graph_def, back):
            np.testing.assert_allclose(build(program, graph)(x), want, rtol=2e-5, atol=1e-6)


def test_weights_of_bodies_are_in_the_graph_once() -> None:
    """Not in the code of any target, nor in the recipe; taken back, the graph is as large as it was."""
    program = traced(decode)
    settings = dataclasses.replace(SETTINGS, targets=("x86-64-v2", "x86-64-v3"))
    there = remotely(program.graph_def, program.fetches, settings=settings)
    for done in (there, optimize_graph_def(program.graph_def, program.fetches, settings)):
        assert serialized(program.graph_def).count(TABLE.tobytes()) == 2
        assert serialized(done.graph_def).count(TABLE.tobytes()) == 1
        assert TABLE.tobytes() not in zlib.decompress(find_recipe(done.graph_def))
        assert serialized(restore(done.graph_def)) == serialized(program.graph_def)


def serialized_values(graph_def: Any) -> bytes:
    """The contents of all constants, as arrays have them."""
    from disc_tf.frontend.tensor_proto import to_numpy

    values = [n.attr["value"].tensor for n in every_node(graph_def) if n.op == "Const"]
    return b"".join(to_numpy(t).tobytes() for t in values if t.dtype != STRING)


@pytest.mark.parametrize("fn", [in_loop, in_branch, in_case], ids=lambda f: f.__name__)
def test_gradients_are_those_of_the_original(fn: Callable[..., Any]) -> None:
    program = traced(fn)
    done = remotely(program.graph_def, program.fetches)
    assert done.report.coverage == 1.0
    for x in inputs()[:2]:
        found = []
        for call in (build(program, done.graph_def), program.concrete):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = call(x)
            found.append(tape.gradient(y, x))
        np.testing.assert_allclose(*found, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_with_constants_in_their_step(kind: str) -> None:
    """As Keras' frozen layers have them: kernels, recurrent kernels and biases are constants inside of the loop."""
    cell = {"LSTM": tf.keras.layers.LSTMCell, "GRU": tf.keras.layers.GRUCell}[kind](3)
    cell.build((None, 4))
    weights = [w.numpy() + HALF for w in cell.weights]

    class Step:
        """The cell with its weights as constants."""

        state_size = cell.state_size

        def __call__(self, x, states):
            kernel, recurrent, bias = (tf.constant(w) for w in weights)
            if kind == "LSTM":
                h, c = states
                i, f, g, o = tf.split(x @ kernel + h @ recurrent + bias, 4, -1)
                c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
                return (h := tf.sigmoid(o) * tf.tanh(c)), [h, c]
            (h,) = states
            a, b = tf.split(x @ kernel + bias[0], 3, -1), tf.split(h @ recurrent + bias[1], 3, -1)
            z, r = tf.sigmoid(a[0] + b[0]), tf.sigmoid(a[1] + b[1])
            h = z * h + (1.0 - z) * tf.tanh(a[2] + r * b[2])
            return h, [h]

    step = Step()

    def run(x):
        zeros = [tf.zeros([tf.shape(x)[0], 3])] * (2 if kind == "LSTM" else 1)
        return tf.keras.backend.rnn(step, x, zeros)[1]

    concrete = tf.function(run).get_concrete_function(tf.TensorSpec([None, None, 4], tf.float32))
    program = export(concrete, 1)
    transport = Here()
    done = remotely(program.graph_def, program.fetches, transport)
    assert done.report.coverage == 1.0, done.report.to_text()
    assert not [w for w in weights if w.reshape(-1)[:4].tobytes() in transport.requests[0].graph]
    for shape in ((2, 5, 4), (1, 1, 4), (0, 3, 4), (3, 1, 4)):
        x = tf.constant(RNG.standard_normal(shape).astype(np.float32))
        np.testing.assert_allclose(build(program, done.graph_def)(x), program.concrete(x), rtol=2e-5, atol=1e-6)


def two_branches(*, text: bool = False, deny: bool = False) -> G:
    """Two nodes with one body in common, of which one changes places; ``text``: a string that is more than printed."""
    g = G()
    g.placeholder("x", [None, 4])
    g.node("on", "Placeholder", dtype=("type", BOOL), shape=("shape", []))
    for name, op in (("mul", "Mul"), ("sub", "Sub"), ("add", "AddV2")):
        f = g.function(name, {"a": F32}, {"o": ("u:z:0", F32)})
        body_node(f, "c", "Const", [], dtype=("type", F32), value=np.array([HALF, 2, 3, 4 if op == "Mul" else 5], np.float32))
        body_node(f, "u", op, ["a", "c:output:0"], T=("type", F32))
        if text and op == "Sub":
            body_node(f, "t", "Const", [], dtype=("type", STRING), value=np.array([b"zxsentinelxz"], object))
            body_node(f, "n", "StringLength", ["t:output:0"], unit=b"BYTE")
            body_node(f, "k", "Cast", ["n:output:0"], SrcT=("type", I32), DstT=("type", F32))
            body_node(f, "v", "Mul", ["u:z:0", "k:y:0"], T=("type", F32))
            f.ret["o"] = "v:z:0"
    types = {"Tcond": ("type", BOOL), "Tin": ("types", [F32]), "Tout": ("types", [F32]), "output_shapes": ("shapes", [])}
    known = {"_output_shapes": ("shapes", [[None, 4]]), **types}
    g.node("first", "StatelessIf", ["on", "x"], then_branch=("func", "mul"), else_branch=("func", "sub"), **known)
    g.unary("between", "first")
    g.node("second", "StatelessIf", ["on", "between"], then_branch=("func", "add"), else_branch=("func", "mul"), **types)
    g.unary("y", "second")
    return g


def both_ways(graph_def: Any, outputs: list[str]) -> Callable[..., Any]:
    """The graph as a function of the condition and x."""
    disc_tf.ops.load_op_library()
    new = tf.compat.v1.GraphDef.FromString(graph_def.SerializeToString())
    return tf.compat.v1.wrap_function(
        lambda on, x: tf.graph_util.import_graph_def(new, {"on": on, "x": x}, outputs),
        [tf.TensorSpec([], tf.bool), tf.TensorSpec([None, 4], tf.float32)],
    )


def test_bodies_of_two_nodes() -> None:
    g = two_branches()
    done = remotely(g.proto, ["y"])
    assert done.report.coverage == 1.0
    assert serialized(restore(done.graph_def)) == serialized(g.proto)
    (launch,) = [n for n in done.graph_def.node if n.op == LAUNCH_OP]
    # `sub` and `add` have equal constants, `mul` has another
    assert sum(k == 1 for k in launch.attr["Tconst"].list.type) == 2
    ours, theirs = both_ways(done.graph_def, ["y:0"]), both_ways(g.proto, ["y:0"])
    for on in (True, False):
        for x in inputs():
            np.testing.assert_allclose(ours(tf.constant(on), x)[0], theirs(tf.constant(on), x)[0], rtol=2e-5)


def test_strings_stay_inside_with_the_reason() -> None:
    g = two_branches(text=True)
    transport = Here()
    done = remotely(g.proto, ["y"], transport)
    left = {x.node: x.reason for x in done.report.left_out}
    assert "_sub_" in left["first"] and "node t (Const)" in left["first"] and "string" in left["first"]
    assert b"zxsentinelxz" in serialized(g.proto) and b"zxsentinelxz" not in transport.requests[0].graph
    before, after = ({n.name: n for n in x.node} for x in (g.proto, done.graph_def))
    assert "second" not in left and after["first"] == before["first"]


def test_what_stays_in_tensorflow_is_as_it_was() -> None:
    """Only nodes that are compiled take constants: others keep theirs, and put back they have them again."""
    g = two_branches()
    settings = dataclasses.replace(SETTINGS, deny=("first",))
    for done in (remotely(g.proto, ["y"], settings=settings), optimize_graph_def(g.proto, ["y"], settings)):
        before = next(n for n in g.proto.node if n.name == "first")
        assert next(n for n in done.graph_def.node if n.name == "first") == before
        assert done.report.compiled_clusters
        kept = {f.signature.name for f in done.graph_def.library.function}
        assert {"mul", "sub"} <= kept and "add" not in kept
        assert serialized(restore(done.graph_def)) == serialized(g.proto)
        back = put_back(done.graph_def, [c.name for c in done.report.compiled_clusters])
        assert {n.name: n for n in back.node}["second"] == {n.name: n for n in g.proto.node}["second"]
        ours, theirs = both_ways(done.graph_def, ["y:0"]), both_ways(g.proto, ["y:0"])
        x = inputs()[0]
        for on in (True, False):
            np.testing.assert_allclose(ours(tf.constant(on), x)[0], theirs(tf.constant(on), x)[0], rtol=2e-5)


class Model(tf.Module):
    """A signature that calls a function with a loop."""

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
    def __call__(self, x):
        return {"out": helper(in_nested(x)) + decode(x)[:, :4]}


def test_saved_models(tmp_path: Path) -> None:
    """Their bodies lie in the library; the file has the weights in one more place at most, and gives the original back byte for byte."""
    model = Model()
    tf.saved_model.save(model, str(tmp_path / "in"), signatures=model.__call__)
    transport = Here()
    found = optimize_saved_model(
        tmp_path / "in",
        tmp_path / "out",
        SETTINGS,
        verify=False,
        elsewhere=lambda loaded, request: compile_remotely(loaded, request, transport),
    )
    assert [f.report.coverage for f in found.report.functions if f.report is not None] == [1.0], found.report.to_text()
    assert not [s for s in SECRETS for request in transport.requests if s in request.graph]
    ours, theirs = (tf.saved_model.load(str(tmp_path / d)) for d in ("out", "in"))
    for x in inputs():
        np.testing.assert_allclose(ours.signatures["serving_default"](x=x)["out"], theirs(x)["out"], rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(ours(x)["out"], theirs(x)["out"], rtol=2e-5, atol=1e-6)
    restore_saved_model(tmp_path / "out", tmp_path / "back")
    assert (tmp_path / "back" / "saved_model.pb").read_bytes() == (tmp_path / "in" / "saved_model.pb").read_bytes()


def test_loops_and_conditionals_of_tensorflow_1() -> None:
    """What their frames hold becomes bodies first."""
    v1 = tf.compat.v1
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [None, 4], "x")
            on = v1.placeholder(tf.bool, [], "on")
            y = v1.while_loop(lambda i, _: i < 4, lambda i, y: (i + 1, tf.tanh(y @ tf.constant(W)) * HALF), [0, x])[1]
            v1.cond(on, lambda: y @ tf.constant(W), lambda: y * HALF + TABLE[20], name="cond")
    finally:
        v1.enable_control_flow_v2()
    graph_def = graph.as_graph_def()
    output = next(n.name for n in graph_def.node if n.op == "Merge" and n.name.startswith("cond"))
    transport = Here()
    done = remotely(graph_def, [output], transport)
    assert done.report.coverage == 1.0, done.report.to_text()
    assert not [s for s in SECRETS for request in transport.requests if s in request.graph]
    assert serialized(restore(done.graph_def)) == serialized(graph_def)
    back = put_back(done.graph_def, [c.name for c in done.report.compiled_clusters])
    ours, theirs, again = (both_ways(g, [f"{output}:0"]) for g in (done.graph_def, graph_def, back))
    for x in inputs():
        for flag in (True, False):
            want = theirs(tf.constant(flag), x)[0]
            np.testing.assert_allclose(ours(tf.constant(flag), x)[0], want, rtol=2e-5, atol=1e-6)
            np.testing.assert_allclose(again(tf.constant(flag), x)[0], want, rtol=2e-5, atol=1e-6)
