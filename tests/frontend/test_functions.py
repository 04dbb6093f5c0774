"""Inlining of function calls."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.functions import inline_calls, read_body
from disc_tf.frontend.graph import Graph
from disc_tf.frontend.load import load
from tests.frontend.graphs import F32, STRING, G, body_node


def caller(stateful: bool = False, inputs: list[str] | None = None, **attrs) -> G:
    g = G()
    g.placeholder("x", [None, 4])
    f = g.function("f", {"a": F32}, {"out": ("split:output:1", F32), "same": ("a", F32)})
    body_node(f, "axis", "Const", [], dtype=("type", 3), value=np.array(1, np.int32))
    body_node(f, "tanh", "Tanh", ["a"], T=("type", F32))
    body_node(f, "split", "Split", ["axis:output:0", "tanh:y:0"], T=("type", F32), num_split=2)
    op = "StatefulPartitionedCall" if stateful else "PartitionedCall"
    types = {"Tin": ("types", [F32]), "Tout": ("types", [F32, F32])}
    g.node("call", op, inputs or ["x"], f=("func", "f"), **types, **attrs)
    g.binary("y", "call:1", "call")
    return g


def test_body_becomes_nodes_with_provenance_names():
    g = caller()
    done = inline_calls(g.proto)
    graph = Graph(done.graph_def)
    assert done.calls == {"call": "f"} and not done.kept
    assert "call" not in graph
    assert graph["call/split"].inputs == [("call/axis", 0), ("call/tanh", 0)]
    assert graph["y"].inputs == [("x", 0), ("call/split", 1)]
    assert len(g.proto.node) == 3  # the argument is untouched


def test_fetched_or_awaited_call_keeps_its_name():
    g = caller()
    g.node("after", "NoOp", ["^call"])
    for keep in ([], ["call"]):
        graph = Graph(inline_calls(g.proto, keep).graph_def)
        assert graph["call"].op == "IdentityN"
        assert graph["call"].inputs == [("call/split", 1), ("x", 0)]


def test_side_effects_come_before_readers():
    g = caller(stateful=True)
    f = g.proto.library.function[0]
    body_node(f, "print", "PrintV2", ["text:output:0"])
    body_node(f, "text", "Const", [], dtype=("type", STRING), value=np.array(b"hello", object))
    graph = Graph(inline_calls(g.proto).graph_def)
    assert graph["call"].controls == ["call/print"]
    assert graph["y"].inputs == [("call", 1), ("call", 0)]


def test_control_inputs_precede_the_body():
    g = caller(inputs=["x", "^gate"])
    g.node("gate", "NoOp")
    graph = Graph(inline_calls(g.proto).graph_def)
    assert graph["call/tanh"].controls == ["gate"] and graph["call/axis"].controls == ["gate"]
    assert graph["call/split"].controls == []


@pytest.mark.parametrize("legacy", [False, True])
def test_words_of_messages_wait_for_nothing(legacy):
    """But in a graph with frames, where the edge says which one the constant belongs to."""
    g = caller(inputs=["x", "^gate"])
    g.node("gate", "NoOp")
    if legacy:
        g.const("p", True, bool)
        g.node("switch", "Switch", ["x", "p"], T=("type", F32))
    f = g.proto.library.function[0]
    body_node(f, "ok", "Const", [], dtype=("type", 10), value=np.array(True))
    for name in ("words", "more"):
        body_node(f, name, "Const", [], dtype=("type", STRING), value=np.array(b"hello", object))
    body_node(f, "check", "Assert", ["ok:output:0", "words:output:0", "more:output:0"], T=("types", [STRING, STRING]))
    body_node(f, "print", "PrintV2", ["more:output:0"])
    graph = Graph(inline_calls(g.proto).graph_def)
    assert graph["call/words"].controls == (["gate"] if legacy else [])
    assert graph["call/ok"].controls == graph["call/more"].controls == ["gate"]


@pytest.mark.parametrize("where", ["call", "function"])
@pytest.mark.parametrize("name", ["_noinline", "_XlaMustCompile"])
def test_marked_calls_stay(where, name):
    g = caller(**({name: True} if where == "call" else {}))
    if where == "function":
        g.proto.library.function[0].attr[name].b = True
    done = inline_calls(g.proto)
    assert done.graph_def is g.proto and list(done.kept) == ["call"]


def test_functions_with_gradients_stay():
    g = caller()
    g.proto.library.gradient.add(function_name="f", gradient_func="df")
    assert "gradient" in inline_calls(g.proto).kept["call"]


def test_unknown_op_in_a_body_leaves_the_call():
    g = caller()
    f = g.proto.library.function[0]
    body_node(f, "mine", "MyCustomOp", ["a"])
    body_node(f, "use", "Tanh", ["mine:whatever:0"], T=("type", F32))
    assert "MyCustomOp" in inline_calls(g.proto).kept["call"]


def test_recursion_stays_a_call():
    g = G()
    g.placeholder("x", [])
    f = g.function("f", {"a": F32}, {"out": ("again:output:0", F32)})
    types = {"Tin": ("types", [F32]), "Tout": ("types", [F32])}
    body_node(f, "again", "PartitionedCall", ["a"], f=("func", "f"), **types)
    g.node("call", "PartitionedCall", ["x"], f=("func", "f"), **types)
    g.unary("y", "call")
    done = inline_calls(g.proto)
    assert "recursive" in done.kept["call/again"]
    Graph(done.graph_def)


def test_thousand_nested_functions():
    g = G()
    g.placeholder("x", [])
    types = {"Tin": ("types", [F32]), "Tout": ("types", [F32])}
    for i in range(1000):
        f = g.function(f"f{i}", {"a": F32}, {"out": ("n:output:0" if i < 999 else "n:y:0", F32)})
        if i < 999:
            body_node(f, "n", "PartitionedCall", ["a"], f=("func", f"f{i + 1}"), **types)
        else:
            body_node(f, "n", "Tanh", ["a"], T=("type", F32))
    g.node("c", "PartitionedCall", ["x"], f=("func", "f0"), **types)
    g.unary("y", "c")
    graph = Graph(inline_calls(g.proto).graph_def)
    assert len(graph) == 3 and [n.op for n in graph.order] == ["Placeholder", "Tanh", "Tanh"]


def test_doubling_functions_stop_at_the_limit():
    g = G()
    g.placeholder("x", [])
    types = {"Tin": ("types", [F32]), "Tout": ("types", [F32])}
    for i in range(40):
        f = g.function(f"f{i}", {"a": F32}, {"out": ("q:output:0" if i < 39 else "q:y:0", F32)})
        for name, source in (("p", "a"), ("q", "p:output:0" if i < 39 else "p:y:0")):
            if i < 39:
                body_node(f, name, "PartitionedCall", [source], f=("func", f"f{i + 1}"), **types)
            else:
                body_node(f, name, "Tanh", [source], T=("type", F32))
    g.node("c", "PartitionedCall", ["x"], f=("func", "f0"), **types)
    done = inline_calls(g.proto, ["c"], limit=500)
    assert len(done.graph_def.node) < 1500
    assert any("would make more" in why for why in done.kept.values())
    Graph(done.graph_def)


def test_call_by_name_takes_attributes_of_the_call():
    g = G()
    g.placeholder("x", [3])
    f = g.function("relu_twice", {}, {})
    f.signature.attr.add(name="T", type="type")
    f.signature.input_arg.add(name="a", type_attr="T")
    f.signature.output_arg.add(name="out", type_attr="T")
    f.ret["out"] = "r:activations:0"
    body_node(f, "r", "Relu", ["a"])
    f.node_def[0].attr["T"].placeholder = "T"
    g.node("call", "relu_twice", ["x"], T=("type", F32))
    g.unary("y", "call")
    graph = Graph(inline_calls(g.proto).graph_def)
    assert graph["call/r"].attr["T"].type == F32 and graph["y"].inputs == [("call/r", 0)]


@pytest.mark.parametrize(
    ("value", "why"),
    [("nothing:y:0", "not in the body"), ("tanh:z:0", "not an output"), ("tanh:y:1", "not an output"), ("tanh:y:x:1", "not in")],
)
def test_bad_references(value, why):
    g = caller()
    f = g.proto.library.function[0]
    body_node(f, "bad", "Tanh", [value], T=("type", F32))
    with pytest.raises(GraphError, match=why):
        read_body(f, {})


def test_default_outputs_keep_the_name_of_a_call_that_is_inlined():
    g = caller()
    del g.proto.node[[n.name for n in g.proto.node].index("y")]
    loaded = load(g.proto)
    assert loaded.fetches == [("call", 0), ("call", 1)]
    assert loaded.graph["call"].op == "IdentityN" and "call/tanh" in loaded.graph


def test_cycle_of_calls_is_an_error_not_a_hang():
    g = G()
    g.function("same", {"a": F32}, {"out": ("a", F32)})
    for a, b in (("p", "q"), ("q", "p")):
        g.node(a, "PartitionedCall", [b], f=("func", "same"), Tin=("types", [F32]), Tout=("types", [F32]))
    with pytest.raises(GraphError, match="cycle"):
        load(g.proto)


def test_a_call_that_would_explode_stays_whole():
    """Each function calls the next twice: nothing of it is inlined, and it takes no time to see that."""
    g = G()
    g.placeholder("x", [None])
    for i in range(60):
        f = g.function(f"f{i}", {"a": F32}, {"out": ("q:output:0", F32)})
        for n, source in (("p", "a"), ("q", "p:output:0")):
            body_node(f, n, "PartitionedCall", [source], f=("func", f"f{i + 1}"), Tin=("types", [F32]), Tout=("types", [F32]))
    f = g.function("f60", {"a": F32}, {"out": ("n:y:0", F32)})
    body_node(f, "n", "Tanh", ["a"], T=("type", F32))
    g.node("call", "PartitionedCall", ["x"], f=("func", "f0"), Tin=("types", [F32]), Tout=("types", [F32]))
    done = inline_calls(g.proto, ["call"])
    assert done.graph_def is g.proto
    assert "more than" in done.kept["call"]
