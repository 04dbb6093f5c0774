"""One form for graphs that differ in names and order only."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.graph import Graph
from disc_tf.frontend.tfproto import graph_from_bytes, message_class
from disc_tf.remote.canonical import canonical, renamed_text
from disc_tf.remote.messages import new
from tests.frontend.graphs import G, model
from tests.remote.test_skeleton import OUTPUTS, loop_graph, secret_graph


def shuffled(graph_def: Any, seed: int) -> tuple[Any, dict[str, str]]:
    """Another graph of the same structure: nodes and functions in another order and under other names."""
    rng = random.Random(seed)
    out = message_class("GraphDef")()
    out.versions.producer = rng.randrange(1000)
    names = {n.name: f"z{rng.random()}_{i}".replace(".", "") for i, n in enumerate(graph_def.node)}
    functions = {f.signature.name: f"g{rng.random()}".replace(".", "") for f in graph_def.library.function}

    def node(new: Any, old: Any, of: dict[str, str]) -> None:
        new.CopyFrom(old)
        new.name = of[old.name]
        texts = [t for t in old.input if not t.startswith("^")]
        control = [t for t in old.input if t.startswith("^")]
        rng.shuffle(control)
        del new.input[:]
        for t in texts + control:
            mark = "^" if t.startswith("^") else ""
            name, colon, rest = t[len(mark) :].partition(":")
            new.input.append(f"{mark}{of.get(name, name)}{colon}{rest}")
        for key in new.attr:
            value = new.attr[key]
            if value.WhichOneof("value") == "func":
                value.func.name = functions.get(value.func.name, value.func.name)
        new.experimental_debug_info.original_node_names.append("where it came from")

    order = list(graph_def.node)
    rng.shuffle(order)
    for n in order:
        node(out.node.add(), n, names)
    library = list(graph_def.library.function)
    rng.shuffle(library)
    for f in library:
        copy = out.library.function.add()
        copy.CopyFrom(f)
        copy.signature.name = functions[f.signature.name]
        args = {a.name: f"q{i}" for i, a in enumerate(f.signature.input_arg)}
        inner = {n.name: f"b{rng.random()}_{i}".replace(".", "") for i, n in enumerate(f.node_def)} | args
        for a in copy.signature.input_arg:
            a.name = args[a.name]
        del copy.node_def[:]
        body = list(f.node_def)
        rng.shuffle(body)
        for n in body:
            node(copy.node_def.add(), n, inner)
        for key, value in f.ret.items():
            name, colon, rest = value.partition(":")
            copy.ret[key] = f"{inner.get(name, name)}{colon}{rest}"
    return out, names


def renamed(outputs: list[str], names: dict[str, str]) -> list[str]:
    out = []
    for text in outputs:
        mark = "^" if text.startswith("^") else ""
        name, colon, rest = text[len(mark) :].partition(":")
        out.append(f"{mark}{names[name]}{colon}{rest}")
    return out


GRAPHS = {"secret": (secret_graph, OUTPUTS), "loop": (loop_graph, ["y"])}


@pytest.mark.parametrize("name", GRAPHS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_names_and_order_do_not_count(name: str, seed: int) -> None:
    make, outputs = GRAPHS[name]
    graph_def = make().proto
    first = canonical(graph_def, outputs)
    other, names = shuffled(graph_def, seed)
    second = canonical(other, renamed(outputs, names))
    assert first.graph == second.graph and first.digest == second.digest
    for text, mine in first.names.items():
        if mine in names:
            assert second.names[text] == names[mine]


@pytest.mark.parametrize("name", ["tiny_bert", "mobilenet_v2", "rnn_tagger"])
def test_published_graphs(name: str) -> None:
    graph_def = model(name)
    outputs = [n.name for n in graph_def.node if n.name in ("Identity", "Identity_1")]
    first = canonical(graph_def, outputs)
    other, names = shuffled(graph_def, 5)
    second = canonical(other, renamed(outputs, names))
    assert first.digest == second.digest
    Graph(graph_from_bytes(first.graph))


def test_it_is_its_own_canonical_form() -> None:
    first = canonical(secret_graph().proto, OUTPUTS)
    second = canonical(first.graph, first.outputs, first.feeds, first.options)
    assert second.graph == first.graph and second.digest == first.digest
    assert all(old == new_ for new_, old in second.names.items())


CHANGES = {
    "attribute": lambda g: setattr(g.proto.node[6].attr["value"].tensor, "dtype", 9),
    "op": lambda g: setattr(next(n for n in g.proto.node if n.op == "Neg" or n.op == "Mul"), "op", "Sub"),
    "body": lambda g: setattr(g.proto.library.function[1].node_def[0], "op", "Abs"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_is_told_apart(change: str) -> None:
    g = secret_graph()
    CHANGES[change](g)
    assert canonical(g.proto, OUTPUTS).digest != canonical(secret_graph().proto, OUTPUTS).digest


def test_the_order_of_outputs_and_the_options_count() -> None:
    proto = secret_graph().proto
    digest = canonical(proto, OUTPUTS).digest
    assert canonical(proto, OUTPUTS[::-1]).digest != digest
    assert canonical(proto, OUTPUTS, options=new("CompileOptions", min_cluster_size=1)).digest != digest
    one = new("CompileOptions", targets=["x86-64-v2", "x86-64-v3"], denied=["m", "b"])
    two = new("CompileOptions", targets=["x86-64-v3", "x86-64-v2"], denied=["b", "m"])
    assert canonical(proto, OUTPUTS, options=one).digest == canonical(proto, OUTPUTS, options=two).digest


def test_depth_is_no_limit() -> None:
    g = G()
    g.placeholder("x", [None])
    g.chain("c", "x", 50_000)
    last = g.unary("end", "c49999", controls=["c17", "c4"])
    form = canonical(g.proto, [last])
    assert len(form.names) == 50_002


BAD = [
    (lambda g: g.proto.node.add(name="m", op="NoOp"), OUTPUTS, "two nodes"),
    (lambda g: None, ["nobody"], "nobody"),
    (lambda g: g.proto.node[11].input.append("nobody"), OUTPUTS, "nobody"),
]


@pytest.mark.parametrize(("change", "outputs", "message"), BAD)
def test_bad_graphs_are_named(change: Any, outputs: list[str], message: str) -> None:
    g = secret_graph()
    change(g)
    with pytest.raises(GraphError, match=message):
        canonical(g.proto, outputs)


def test_texts() -> None:
    names = {"n.1": "dense/kernel", "f.2.3": "body/add", "n.12": "other"}
    text = "n.1 and n.12:0 of f.2.3, not n.123, an.1 or n.1.5; x[n.1]"
    assert renamed_text(text, names) == "dense/kernel and other:0 of body/add, not n.123, an.1 or n.1.5; x[dense/kernel]"


def test_a_circle_of_legacy_loops_ends() -> None:
    g = G()
    g.placeholder("x", [None])
    g.node("enter", "Enter", ["x"], T=("type", 1), frame_name=b"f")
    g.node("merge", "Merge", ["enter", "next"], T=("type", 1), N=2)
    g.unary("u", "merge", controls=["merge", "enter"])
    g.node("next", "NextIteration", ["u"], T=("type", 1))
    g.node("y", "Exit", ["u"], T=("type", 1))
    form = canonical(g.proto, ["y"])
    assert len(graph_from_bytes(form.graph).node) == 6
    assert np.asarray(len(form.digest)) == 32
