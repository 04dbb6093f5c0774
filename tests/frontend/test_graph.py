"""Graph reading: names, ports, cycles, order, outputs."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.graph import Graph, frames, parse_tensor, resolve_outputs, tensor_name
from tests.frontend.graphs import BOOL, F32, I32, G, model


@pytest.mark.parametrize(("text", "ref"), [("x", ("x", 0)), ("a/b:0", ("a/b", 0)), ("x:12", ("x", 12))])
def test_parse_tensor(text, ref):
    assert parse_tensor(text) == ref
    assert parse_tensor(tensor_name(ref)) == ref


@pytest.mark.parametrize("text", ["", "^x", "x:", "x:-1", "x:y", "x:99999999999", ":1", "x:1:2"])
def test_parse_tensor_refuses(text):
    with pytest.raises(GraphError):
        parse_tensor(text)


def test_order_is_topological_and_inputs_are_resolved():
    g = G()
    g.binary("sum", "b", "a")  # before its inputs in the file
    g.unary("b", "a", controls=["x"])
    g.unary("a", "x")
    g.placeholder("x", [2])
    graph = Graph(g.proto)
    names = [n.name for n in graph.order]
    for node in graph.order:
        for source, _ in node.inputs:
            assert names.index(source) < names.index(node.name)
    assert graph["sum"].inputs == [("b", 0), ("a", 0)] and graph["b"].controls == ["x"]


def test_deep_chain_needs_no_recursion():
    g = G()
    g.placeholder("x", [1])
    g.chain("n", "x", 20000)
    assert len(Graph(g.proto).order) == 20001


def legacy_loop() -> G:
    g = G()
    g.const("zero", 0, np.int32)
    g.const("limit", 5, np.int32)
    g.node("enter", "Enter", ["zero"], T=("type", I32), frame_name=b"loop")
    g.node("enter_limit", "Enter", ["limit"], T=("type", I32), frame_name=b"loop", is_constant=True)
    g.node("merge", "Merge", ["enter", "next"], T=("type", I32), N=2)
    g.node("less", "Less", ["merge", "enter_limit"], T=("type", I32))
    g.node("cond", "LoopCond", ["less"])
    g.node("switch", "Switch", ["merge", "cond"], T=("type", I32))
    g.node("body", "Identity", ["switch:1"], T=("type", I32))
    g.const("one", 1, np.int32, ["^body"])
    g.binary("add", "body", "one", t=I32)
    g.node("next", "NextIteration", ["add"], T=("type", I32))
    g.node("exit", "Exit", ["switch"], T=("type", I32))
    g.node("after", "Square", ["exit"], T=("type", I32))
    return g


def test_legacy_loop_is_a_legal_cycle():
    graph = Graph(legacy_loop().proto)
    inside = frames(graph)
    assert {"merge", "less", "switch", "body", "one", "add", "next", "exit"} <= inside
    assert not {"zero", "limit", "after"} & inside


def test_legacy_cond_ends_at_its_merge():
    g = G()
    g.placeholder("x", [None])
    g.placeholder("p", [], BOOL)
    g.node("sw", "Switch", ["x", "p"], T=("type", F32))
    g.unary("yes", "sw:1")
    g.unary("no", "sw")
    g.node("m", "Merge", ["no", "yes"], T=("type", F32), N=2)
    g.unary("after", "m")
    assert frames(Graph(g.proto)) == {"sw", "yes", "no", "m"}


def test_outputs():
    g = G()
    g.placeholder("unused", [1])
    g.node("split", "Split", [g.const("axis", 0, np.int32), g.placeholder("x", [4])], T=("type", F32), num_split=2)
    g.unary("y", "split:1")
    g.node("group", "NoOp", ["^y"])
    graph = Graph(g.proto)
    assert graph.sinks() == ([], ["group"])
    assert resolve_outputs(graph, ["y:0", "split:1", "group", "^x"]) == ([("y", 0), ("split", 1)], ["group", "x"])
    with pytest.raises(GraphError, match="did you mean split"):
        resolve_outputs(graph, ["splt"])
    with pytest.raises(GraphError, match="has 2 outputs"):
        resolve_outputs(graph, ["split:2"])


def test_a_side_of_a_switch_is_no_default_output():
    """It is dead whenever the other side runs: fetching it would fail."""
    g = G()
    g.placeholder("x", [2])
    g.placeholder("p", [], BOOL)
    g.node("switch", "Switch", ["x", "p"], T=("type", F32))
    g.unary("switch_t", "switch:1", "Identity")
    g.unary("again", "switch_t", "Identity")
    g.unary("kept", "switch", "Neg")
    assert resolve_outputs(Graph(g.proto), None) == ([("kept", 0)], [])


def test_default_outputs_are_data_sinks():
    graph = Graph(model("tiny_bert"))
    assert resolve_outputs(graph, None) == ([("Identity", 0), ("Identity_1", 0)], [])
    assert graph.reachable(["Identity"]) < set(graph.nodes)
