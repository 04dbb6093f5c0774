"""Constants leave bodies; what says what the graph does, and what must not be changed, stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disc_tf.frontend.body_constants import hoist_constants
from disc_tf.frontend.graph import Graph
from disc_tf.frontend.load import load
from disc_tf.frontend.tensor_proto import to_numpy
from disc_tf.frontend.tfproto import serialized
from tests.frontend.graphs import BOOL, F32, I32, STRING, G, body_node

W = np.array([0.5, 1.5, -2.0, 3.25], np.float32)


def function(g: G, name: str, constants: dict[str, Any], calls: str = "") -> Any:
    """``a`` plus each of the constants, and then a function of it."""
    f = g.function(name, {"a": F32}, {"o": ("end:output:0", F32)})
    at = "a"
    for key, value in constants.items():
        array = np.array(value)
        number = {"f": F32, "i": I32, "O": STRING}[array.dtype.kind]
        body_node(f, key, "Const", ["^a"], dtype=("type", number), value=array)
        if number == F32:
            body_node(f, f"plus_{key}", "AddV2", [at, f"{key}:output:0"], T=("type", F32))
            at = f"plus_{key}:z:0"
    if calls:
        body_node(f, "call", "PartitionedCall", [at, "^a"], f=("func", calls), Tin=("types", [F32]), Tout=("types", [F32]))
        at = "call:output:0"
    body_node(f, "end", "Identity", [at], T=("type", F32))
    return f


def branch(g: G, then: str, otherwise: str, name: str = "branch", x: str = "x") -> None:
    types = {"Tcond": ("type", BOOL), "Tin": ("types", [F32]), "Tout": ("types", [F32])}
    g.node(name, "StatelessIf", ["on", x, "^x"], then_branch=("func", then), else_branch=("func", otherwise), **types)


def graph() -> G:
    g = G()
    g.placeholder("x", [None, 4])
    g.node("on", "Placeholder", dtype=("type", BOOL), shape=("shape", []))
    return g


def values(hoisted: Any, node: str = "branch", first: int = 2) -> list[Any]:
    """The constants that a node takes."""
    nodes = {n.name: n for n in hoisted.graph_def.node}
    taken = [t for t in nodes[node].input if not t.startswith("^")][first:]
    return [to_numpy(nodes[t].attr["value"].tensor).tolist() for t in taken]


def test_equal_constants_become_one_argument() -> None:
    g = graph()
    function(g, "a", {"w": W, "half": np.float32(0.75)}, "b")
    function(g, "b", {"other": W})
    function(g, "c", {"again": W, "more": np.float32(2.5)})
    branch(g, "a", "c")
    branch(g, "b", "c", "second", "branch")
    before = serialized(g.proto)
    hoisted = hoist_constants(Graph(g.proto))
    assert serialized(g.proto) == before
    assert values(hoisted) == [W.tolist(), 0.75, 2.5] and values(hoisted, "second") == [W.tolist(), 2.5]
    assert len([n for n in hoisted.graph_def.node if n.op == "Const"]) == 3, "both nodes read the same ones"
    assert hoisted.before == {n.name: n for n in g.proto.node if n.op == "StatelessIf"}
    assert hoisted.places == [("a", "half"), ("a", "w"), ("b", "other"), ("c", "again"), ("c", "more")]
    again = hoist_constants(Graph(g.proto), hoisted.places)
    assert serialized(again.graph_def) == serialized(hoisted.graph_def)
    functions = {f.signature.name: f for f in hoisted.graph_def.library.function}
    assert {"a", "b", "c"} < functions.keys()
    new = functions[next(n.attr["then_branch"].func.name for n in hoisted.graph_def.node if n.name == "branch")]
    nodes = {n.name: n for n in new.node_def}
    assert nodes["w"].op == "Identity" and list(nodes["w"].input) == [new.signature.input_arg[1].name, "^a"], "control edges stay"
    assert list(nodes["call"].input) == ["plus_half:z:0", new.signature.input_arg[1].name, "^a"]
    assert not any(n.op == "Const" for f in functions.values() if f.signature.name.startswith("disc_body_") for n in f.node_def)


def test_hoisting_again_finds_nothing() -> None:
    g = graph()
    function(g, "a", {"w": W})
    branch(g, "a", "a")
    once = Graph(hoist_constants(Graph(g.proto)).graph_def)
    assert hoist_constants(once).graph_def is once.graph_def


STAYS = {
    "zeros": np.zeros(4, np.float32),
    "one": np.float32(1),
    "none": np.zeros((0, 4), np.float32),
    "text": np.array([b"words"], object),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_is_no_secret_stays(name: str) -> None:
    g = graph()
    function(g, "a", {name: STAYS[name]})
    branch(g, "a", "a")
    assert hoist_constants(Graph(g.proto)).graph_def is g.proto


def test_shapes_stay_and_messages_stay() -> None:
    """A reshape's shape is read at compile time; what only an Assert prints is no argument of anything."""
    g = graph()
    f = function(g, "a", {"w": W})
    body_node(f, "shape", "Const", [], dtype=("type", I32), value=np.array([-1, 4], np.int32))
    body_node(f, "cut", "Reshape", ["end:output:0", "shape:output:0"], T=("type", F32), Tshape=("type", I32))
    f.ret["o"] = "cut:output:0"
    body_node(f, "printed", "Const", [], dtype=("type", F32), value=np.array(0.375, np.float32))
    body_node(f, "fine", "Const", [], dtype=("type", BOOL), value=np.array(True))
    body_node(f, "check", "Assert", ["fine:output:0", "printed:output:0"], T=("types", [F32]), summarize=3)
    branch(g, "a", "a")
    assert values(hoist_constants(Graph(g.proto))) == [W.tolist()]


def test_functions_that_must_not_change() -> None:
    """Recursive ones, those with gradients, absent ones: the nodes that need them are left, the rest is not."""
    g = graph()
    function(g, "recursive", {"w": W}, "inner")
    function(g, "inner", {"v": W * 2}, "recursive")
    function(g, "own", {"w": W})
    function(g, "caller", {"u": W * 3}, "own")
    function(g, "lost", {"t": W * 4}, "nobody")
    g.proto.library.gradient.add(function_name="own", gradient_func="gradient_of_own")
    branch(g, "recursive", "caller", "first")
    branch(g, "own", "caller", "second", "first")
    branch(g, "caller", "lost", "third", "second")
    hoisted = hoist_constants(Graph(g.proto))
    assert set(hoisted.before) == {"third"}
    assert values(hoisted, "third") == [(W * 3).tolist(), (W * 4).tolist()]


def test_calls_nested_too_deep() -> None:
    g = graph()
    for k in range(60):
        function(g, f"f{k}", {"w": W + k}, f"f{k + 1}" if k < 59 else "")
    branch(g, "f0", "f0")
    found = values(hoist_constants(Graph(g.proto)))
    assert 20 < len(found) < 60 and found[0] == W.tolist()


def test_loops_pass_constants_on() -> None:
    g = graph()
    function(g, "body", {"w": W, "v": W + 1})
    f = g.function("cond", {"a": F32}, {"o": ("less:z:0", BOOL)})
    body_node(f, "zero", "Const", [], dtype=("type", I32), value=np.array([0, 1], np.int32))
    body_node(f, "w", "Const", [], dtype=("type", F32), value=W)
    body_node(f, "sum", "Sum", ["a", "zero:output:0"], T=("type", F32), Tidx=("type", I32))
    body_node(f, "norm", "Max", ["w:output:0", "axis:output:0"], T=("type", F32), Tidx=("type", I32))
    body_node(f, "axis", "Const", [], dtype=("type", I32), value=np.array([0], np.int32))
    body_node(f, "less", "Less", ["sum:output:0", "norm:output:0"], T=("type", F32))
    shapes = ("shapes", [[None, 4]])
    g.node("loop", "StatelessWhile", ["x"], T=("types", [F32]), cond=("func", "cond"), body=("func", "body"), output_shapes=shapes)
    hoisted = hoist_constants(Graph(g.proto))
    assert values(hoisted, "loop", 1) == [W.tolist(), (W + 1).tolist()]
    loop = next(n for n in hoisted.graph_def.node if n.name == "loop")
    assert [[d.size for d in s.dim] for s in loop.attr["output_shapes"].list.shape] == [[-1, 4], [4], [4]]
    functions = {f.signature.name: f for f in hoisted.graph_def.library.function}
    body, cond = functions[loop.attr["body"].func.name], functions[loop.attr["cond"].func.name]
    given = [a.name for a in body.signature.input_arg][1:]
    assert [body.ret[a.name] for a in body.signature.output_arg][1:] == given
    assert len(cond.signature.input_arg) == 3 and len(cond.signature.output_arg) == 1
    names = [a.name for a in (*body.signature.input_arg, *body.signature.output_arg)]
    assert len(set(names)) == len(names), "TensorFlow wants them apart"


def test_the_graph_that_is_loaded_knows_what_was_done() -> None:
    g = graph()
    function(g, "a", {"w": W})
    branch(g, "a", "a")
    loaded = load(g.proto, ["branch"]).graph
    assert loaded.hoisted == [("a", "w")] and list(loaded.before_hoisting) == ["branch"]
