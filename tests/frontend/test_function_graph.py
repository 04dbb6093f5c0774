"""A function's body as a graph, and back."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.function_graph import function_graph, function_of, single_call
from disc_tf.frontend.functions import Library
from disc_tf.frontend.graph import Graph
from disc_tf.frontend.opaque import inferred_shapes
from disc_tf.frontend.tfproto import message_class, serialized
from disc_tf.optimizer import Request, optimize
from disc_tf.options import Options
from tests.frontend.graphs import F32, G, body_node

RESOURCE = 20


def library(inner: str = "Tanh") -> tuple[G, dict]:
    """f(a, w, b) = (split of `inner`(a @ read w), b), with a check of a side effect."""
    g = G()
    f = g.function("f", {"a": F32, "w": RESOURCE, "b": F32}, {"left": ("split:output:0", F32), "same": ("b", F32)})
    body_node(f, "read", "ReadVariableOp", ["w"], dtype=("type", F32))
    body_node(f, "axis", "Const", [], dtype=("type", 3), value=np.array(1, np.int32))
    body_node(f, "product", "MatMul", ["a", "read:value:0"], T=("type", F32))
    body_node(f, "tanh", inner, ["product:product:0"], **({"T": ("type", F32)} if inner == "Tanh" else {}))
    body_node(f, "split", "Split", ["axis:output:0", "tanh:y:0" if inner == "Tanh" else "tanh:mine:0"], T=("type", F32), num_split=2)
    body_node(f, "soft", "Softmax", ["split:output:0"], T=("type", F32))
    body_node(f, "write", "AssignVariableOp", ["w", "read:value:0", "^split"], dtype=("type", F32))
    shape = f.arg_attr[0].attr["_output_shapes"].list.shape.add()
    shape.dim.add().size = -1
    shape.dim.add().size = 8
    f.ret["left"] = "soft:softmax:0"
    f.control_ret["read"] = "read"
    f.signature.control_output.append("read")
    return g, {x.signature.name: x for x in g.proto.library.function}


def test_arguments_outputs_and_effects():
    _, functions = library()
    body = function_graph(functions["f"], functions, variables={1: (8, 6)})
    graph = Graph(body.graph_def)
    assert [n.op for n in graph.nodes.values()][:3] == ["Placeholder"] * 3
    assert body.outputs == ["soft", "b"] and body.targets == ["read", "write"]
    assert [d.size for d in graph["a"].attr["shape"].shape.dim] == [-1, 8] and graph["b"].attr["shape"].shape.unknown_rank
    assert graph["write"].controls == ["split"] and graph["split"].inputs == [("axis", 0), ("tanh", 0)]


@pytest.mark.parametrize("inner", ["Tanh", "SomebodysOp"])
def test_there_and_back(inner):
    _, functions = library(inner)
    f = functions["f"]
    body = function_graph(f, functions)
    assert serialized(function_of(body, body.graph_def, functions)) == serialized(f)


def test_optimised_body():
    _, functions = library()
    f = functions["f"]
    body = function_graph(f, functions, variables={1: (8, 6)})
    request = Request(body.graph_def, body.fetches, Options.from_overrides(targets=("native",), min_cluster_size=2), with_recipe=False)
    result = optimize(request)
    assert [c.status for c in result.report.clusters] == ["compiled"]
    made = {x.signature.name: x for x in result.graph_def.library.function}
    new = function_of(body, result.graph_def, {**functions, **made})
    ops = [n.op for n in new.node_def]
    assert ops.count("DiscLaunch") == 1 and "MatMul" not in ops and "Placeholder" not in ops
    assert {"ReadVariableOp", "AssignVariableOp"} <= set(ops) and new.signature == f.signature
    assert new.ret["same"] == "b" and new.ret["left"].startswith("soft:") and dict(new.control_ret) == {"read": "read"}
    launch = next(n for n in new.node_def if n.op == "DiscLaunch")
    assert "read:value:0" in launch.input and len(launch.attr["Tconst"].list.type) == 1  # packed from the variable's buffer
    assert serialized(function_of(body, result.without([c.name for c in result.report.clusters]), functions)) == serialized(f)


def polymorphic(f) -> None:
    f.node_def[2].attr["T"].placeholder = "T"


def typed_by_the_call(f) -> None:
    f.signature.input_arg[0].type = 0
    f.signature.input_arg[0].type_attr = "T"


def dangling(f) -> None:
    f.node_def[2].input[0] = "nobody"


@pytest.mark.parametrize("dims", [(8, 6), (-1,), ()])
def test_shapes_of_variables(dims):
    """A scalar too: without it the rank of what is read is not known."""
    _, functions = library()
    graph = Graph(function_graph(functions["f"], functions, variables={1: dims}).graph_def)
    shape = tuple(None if d < 0 else d for d in dims)
    assert inferred_shapes(graph, graph["read"], [], [], None) == [shape]  # type: ignore[arg-type]
    unknown = Graph(function_graph(functions["f"], functions).graph_def)
    assert inferred_shapes(unknown, unknown["read"], [], [], None) == [None]  # type: ignore[arg-type]


LEFT = [(polymorphic, "given by each call"), (typed_by_the_call, "by each call"), (dangling, "not in the body")]


@pytest.mark.parametrize(("change", "text"), LEFT)
def test_functions_that_are_left(change, text):
    _, functions = library()
    change(functions["f"])
    with pytest.raises(GraphError, match=text):
        function_graph(functions["f"], functions)


def test_an_output_that_is_gone():
    _, functions = library()
    body = function_graph(functions["f"], functions)
    with pytest.raises(GraphError, match="is gone"):
        function_of(body, message_class("GraphDef")(), functions)


def test_single_calls():
    g, functions = library()
    wrapper = g.function("wrapper", {"a": F32, "w": RESOURCE}, {"y": ("id:output:0", F32)})
    types = {"Tin": ("types", [F32, RESOURCE, F32]), "Tout": ("types", [F32] * 2)}
    body_node(wrapper, "call", "StatefulPartitionedCall", ["a", "w", "a"], f=("func", "f"), **types)
    body_node(wrapper, "id", "Identity", ["call:output:0"], T=("type", F32))
    found = single_call(wrapper, Library(g.proto))
    assert found is not None and found[0].name == "call" and found[1] == "f"
    body_node(wrapper, "more", "Tanh", ["call:output:0"], T=("type", F32))
    assert single_call(wrapper, Library(g.proto)) is None and single_call(functions["f"], Library(g.proto)) is None
