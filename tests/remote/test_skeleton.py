"""What travels of a graph, and above all what does not."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.graph import Graph, resolve_outputs
from disc_tf.frontend.patterns import PATTERN_ATTR, fill, pattern_of
from disc_tf.frontend.tensor_proto import to_numpy
from disc_tf.ir.types import DType
from disc_tf.lowering.node import ORDINAL_ATTR
from disc_tf.remote.canonical import canonical
from disc_tf.remote.skeleton import make_skeleton
from tests.frontend.graphs import BOOL, F32, I32, STRING, G, body_node

#: a number, a double and a word that nothing else has
FLOAT, DOUBLE, INT, WORD = 1234.5677, 98765.4321, 1926354789, "zxsentinelxz"


def skeleton(g: G, outputs: list[str], **arguments: Any):
    graph = Graph(g.proto)
    fetches, targets = resolve_outputs(graph, outputs)
    made = make_skeleton(graph, fetches, targets, **arguments)
    return made, canonical(made.graph_def, made.outputs)


def is_in(data: bytes) -> list[str]:
    """The sentinels that are in the bytes, in any encoding that a message or a packed array could have."""
    found = []
    for name, patterns in {
        "float": [struct.pack("<f", FLOAT), struct.pack("<d", FLOAT), struct.pack("<d", np.float32(FLOAT))],
        "double": [struct.pack("<d", DOUBLE), struct.pack("<f", DOUBLE)],
        "int": [struct.pack("<i", INT), struct.pack("<q", INT), varint(INT)],
        "word": [WORD.encode()],
    }.items():
        if any(p in data for p in patterns):
            found.append(name)
    return found


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def secret_graph() -> G:
    """Sentinels wherever a graph can hold something of its owner's."""
    g = G()
    g.placeholder(f"{WORD}/x", [None, 4])
    g.const(f"{WORD}/weights", np.full((4, 4), FLOAT))
    g.const(f"{WORD}/bias", np.full(4, FLOAT))
    g.const(f"{WORD}/scalar", FLOAT)
    g.const(f"{WORD}/double", DOUBLE, np.float64)
    g.const(f"{WORD}/ids", np.full(8, INT), np.int32)
    g.const(f"{WORD}/id", INT, np.int32)
    g.const(f"{WORD}/text", np.array([WORD.encode()], object), object)
    g.const(f"{WORD}/axis", 1, np.int32)
    g.node(f"{WORD}/shape", "Const", dtype=("type", I32), value=np.array([-1, 4], np.int32))
    g.node("m", "MatMul", [f"{WORD}/x", f"{WORD}/weights"], T=("type", F32), device=f"/job:{WORD}/task:3/device:CPU:0")
    g.binary("b", "m", f"{WORD}/bias")
    g.binary("s", "b", f"{WORD}/scalar", "Mul")
    g.node("wide", "Cast", ["s"], SrcT=("type", F32), DstT=("type", 2))
    g.binary("d", "wide", f"{WORD}/double", "Mul", t=2)
    g.node("narrow", "Cast", ["d"], SrcT=("type", 2), DstT=("type", F32))
    g.node("checked", "CheckNumerics", ["narrow"], T=("type", F32), message=WORD.encode())
    g.node("reshaped", "Reshape", ["checked", f"{WORD}/shape"], T=("type", F32), Tshape=("type", I32))
    table = {"key_dtype": ("type", STRING), "value_dtype": ("type", I32)}
    g.node("table", "HashTableV2", shared_name=WORD.encode(), container=WORD.encode(), **table)
    g.node("custom", f"{WORD}Op", ["reshaped"], secret=WORD.encode(), number=INT, real=float(FLOAT), T=("type", F32))
    g.node("joined", "StringJoin", [f"{WORD}/text"], N=1, separator=WORD.encode())
    g.node("found", "LookupTableFindV2", ["table", "joined", f"{WORD}/id"], Tin=("type", STRING), Tout=("type", I32))
    gather = dict.fromkeys(("Tparams", "Tindices", "Taxis"), ("type", I32))
    g.node("gathered", "GatherV2", [f"{WORD}/ids", "found", f"{WORD}/axis0"], **gather)
    g.const(f"{WORD}/axis0", 0, np.int32)
    g.node("cond", "Less", ["found0", f"{WORD}/id"], T=("type", I32))
    g.node("found0", "Reshape", ["found", f"{WORD}/none"], T=("type", I32), Tshape=("type", I32))
    g.node(f"{WORD}/none", "Const", dtype=("type", I32), value=np.zeros(0, np.int32))
    g.node("assert", "Assert", ["cond", f"{WORD}/text"], T=("types", [STRING]), summarize=3)
    f = g.function(f"{WORD}_then", {f"{WORD}_a": F32}, {f"{WORD}_o": ("u:y:0", F32)})
    body_node(f, f"{WORD}_c", "Const", [], dtype=("type", F32), value=np.array(FLOAT, np.float32))
    body_node(f, "u", "Mul", [f"{WORD}_a", f"{WORD}_c:output:0"], T=("type", F32))
    f = g.function(f"{WORD}_else", {"a": F32}, {"o": ("u:y:0", F32)})
    body_node(f, "u", "Neg", ["a"], T=("type", F32))
    f.attr["_" + WORD].s = WORD.encode()
    g.node(
        "branch",
        "StatelessIf",
        ["cond", "reshaped"],
        Tcond=("type", BOOL),
        Tin=("types", [F32]),
        Tout=("types", [F32]),
        then_branch=("func", f"{WORD}_then"),
        else_branch=("func", f"{WORD}_else"),
        output_shapes=("shapes", []),
    )
    for node in g.proto.node:
        node.attr["_class"].list.s.append(f"loc:@{WORD}".encode())
        node.attr[f"_{WORD}"].i = INT
        node.experimental_debug_info.original_node_names.append(WORD)
    g.proto.versions.producer = INT
    return g


OUTPUTS = ["branch", "gathered", "custom", "^assert"]


def test_nothing_of_the_owners_travels() -> None:
    made, form = skeleton(secret_graph(), OUTPUTS)
    assert set(is_in(secret_graph().proto.SerializeToString())) == {"float", "double", "int", "word"}, "the search finds what is there"
    assert is_in(form.graph) == []
    assert not any(WORD in text for text in (*form.outputs, *form.feeds, str(form.options)))
    assert made.texts == {WORD: "s.0"}, "the message is known at home"
    sent = {name.rpartition("/")[2] for name, _ in made.sent}
    assert sent == {"shape", "none", "axis0"}, "what the compiler reads: shapes of reshapes, the axis of a gather"


def test_a_full_upload_has_the_numbers_but_no_names() -> None:
    _, form = skeleton(secret_graph(), OUTPUTS, with_contents=True)
    assert set(is_in(form.graph)) == {"float", "double", "int"}


def test_equal_constants_have_one_ordinal() -> None:
    g = G()
    g.placeholder("x", [None, 2])
    for name, value in {"a": [3.5, 2], "b": [3.5, 2], "c": [3.5, 1]}.items():
        g.const(name, value)
    g.binary("y", "x", "a")
    g.binary("z", "y", "b")
    g.binary("w", "z", "c")
    made, _ = skeleton(g, ["w"])
    ordinals = {n.name: n.attr[ORDINAL_ATTR].i for n in made.graph_def.node if n.op == "Const"}
    assert ordinals["a"] == ordinals["b"] != ordinals["c"] and made.opaque == 2


def test_a_constant_without_elements_is_known() -> None:
    """Type and shape are all that there is of it; it is no weight that could be missing."""
    g = G()
    g.placeholder("x", [None, 2])
    g.const("none", np.zeros((0, 2)))
    g.node("y", "ConcatV2", ["x", "none", "axis"], N=2, T=("type", F32), Tidx=("type", I32))
    g.const("axis", 0, np.int32)
    made, _ = skeleton(g, ["y"])
    constant = Graph(made.graph_def).constant("none")
    assert made.opaque == 0 and constant is not None and constant.present and constant.array().shape == (0, 2)


def test_dead_nodes_and_functions_do_not_travel() -> None:
    g = secret_graph()
    made, _ = skeleton(g, ["m"])
    assert {n.op for n in made.graph_def.node} == {"Placeholder", "Const", "MatMul"}
    assert not made.graph_def.library.function


def test_a_skeleton_reads_as_a_graph_and_is_read_nowhere_as_content() -> None:
    made, form = skeleton(secret_graph(), OUTPUTS)
    graph = Graph(made.graph_def)
    for node in graph.order:
        constant = graph.constant(node.name)
        if constant is not None and ORDINAL_ATTR in node.attr:
            assert not constant.present and len(constant.digest()) == 32
            with pytest.raises(GraphError, match="not in the graph"):
                constant.array()
    assert Graph(canonical(form.graph, form.outputs).graph and made.graph_def)


ROLES = [
    # op, operands (constants by name), positions that travel
    ("Reshape", 1, np.int32),
    ("Transpose", 1, np.int32),
    ("Sum", 1, np.int32),
    ("Tile", 1, np.int32),
    ("Pad", 1, np.int32),
]


@pytest.mark.parametrize(("op", "position", "dtype"), ROLES)
def test_values_travel_by_their_role(op: str, position: int, dtype: Any) -> None:
    """The operand that says the shape does, the same value as data does not."""
    g = G()
    g.const("data", [[5, 7]], np.int32)
    g.const("role", [5, 7], dtype)
    g.node("y", op, ["data", "role"], T=("type", I32))
    made, _ = skeleton(g, ["y"])
    assert [name for name, _ in made.sent] == ["role"]


@pytest.mark.parametrize(("exponent", "sent"), [(2.0, ["role"]), (3.0, []), (FLOAT, []), ([2.0, 2.0], [])])
def test_an_exponent_travels_if_it_makes_a_square(exponent: Any, sent: list[str]) -> None:
    g = G()
    g.placeholder("x", [None, 2])
    g.const("role", exponent)
    g.const("data", 2.0)
    g.binary("y", "x", "role", "Pow")
    g.binary("z", "y", "data", "Mul")
    made, _ = skeleton(g, ["z"])
    assert [name for name, _ in made.sent] == sent


def test_values_travel_through_integer_arithmetic_only() -> None:
    g = G()
    g.placeholder("x", [None, 8])
    g.const("four", 4, np.int32)
    g.const("two", 2, np.int32)
    g.const("real", 4.0)
    g.const("minus", -1, np.int32)
    g.binary("product", "four", "two", "Mul", I32)
    g.node("cast", "Cast", ["real"], SrcT=("type", F32), DstT=("type", I32))
    g.node("shape", "Pack", ["minus", "product", "cast"], T=("type", I32), N=3)
    g.node("y", "Reshape", ["x", "shape"], T=("type", F32), Tshape=("type", I32))
    made, _ = skeleton(g, ["y"])
    assert {name for name, _ in made.sent} == {"four", "two", "minus"}


def test_a_large_table_of_integers_stays() -> None:
    g = G()
    g.placeholder("x", [None])
    g.const("many", np.arange(2, 5002), np.int32)
    g.node("y", "Reshape", ["x", "many"], T=("type", F32), Tshape=("type", I32))
    made, _ = skeleton(g, ["y"])
    assert not made.sent and made.opaque == 1


def loop_graph() -> G:
    """A loop of n iterations: the limit is an argument, the step a constant of the body."""
    g = G()
    g.placeholder("x", [None, 4])
    g.const("zero", 0, np.int32)
    g.const("limit", 7, np.int32)
    g.const("shape", [2, 2], np.int32)
    args = {"i": I32, "n": I32, "s": I32, "v": F32}
    cond = g.function("cond", args, {"o": ("less:z:0", BOOL)})
    body_node(cond, "less", "Less", ["i", "n"], T=("type", I32))
    outs = {"io": ("next:z:0", I32), "no": ("n", I32), "so": ("s", I32), "vo": ("flat:output:0", F32)}
    body = g.function("body", args, outs)
    body_node(body, "one", "Const", [], dtype=("type", I32), value=np.array(3, np.int32))
    body_node(body, "half", "Const", [], dtype=("type", F32), value=np.array(0.5, np.float32))
    body_node(body, "next", "AddV2", ["i", "one:output:0"], T=("type", I32))
    body_node(body, "scaled", "Mul", ["v", "half:output:0"], T=("type", F32))
    body_node(body, "cut", "Reshape", ["scaled:z:0", "s"], T=("type", F32), Tshape=("type", I32))
    body_node(body, "flat", "Reshape", ["cut:output:0", "same:output:0"], T=("type", F32), Tshape=("type", I32))
    body_node(body, "same", "Const", [], dtype=("type", I32), value=np.array([1, 4], np.int32))
    g.node(
        "loop",
        "StatelessWhile",
        ["zero", "limit", "shape", "x"],
        T=("types", [I32, I32, I32, F32]),
        cond=("func", "cond"),
        body=("func", "body"),
        output_shapes=("shapes", []),
        parallel_iterations=10,
    )
    g.node("y", "Identity", ["loop:3"], T=("type", F32))
    return g


def test_roles_are_followed_into_loops() -> None:
    """Shapes inside of it; a factor, a step, a limit do not travel (0 and 1 are patterns)."""
    made, _ = skeleton(loop_graph(), ["y"])
    assert {name for name, _ in made.sent} == {"zero", "shape", "same of body"}


PATTERNS = [
    ("zeros", np.zeros((3, 2), np.float32)),
    ("ones", np.ones(4, np.float64)),
    ("zeros", np.array(0, np.int32)),
    ("ones", np.array(True)),
    ("iota", np.arange(17, dtype=np.int32)),
    ("iota", np.broadcast_to(np.arange(5.0, dtype=np.float32), (2, 5))),
    ("lower", np.tri(4, 4, dtype=np.float32)),
    ("upper", ~np.tri(3, 5, dtype=bool)),
    ("", np.array(7.25, np.float32)),
    ("", -np.zeros(3, np.float32)),
    ("", np.array([0, 1, 3])),
    ("", np.zeros(0, np.float32)),
    ("", np.array([b"a"], object)),
    ("", np.zeros(1 << 20, np.float32)),
]


@pytest.mark.parametrize(("name", "array"), PATTERNS)
def test_patterns(name: str, array: np.ndarray) -> None:
    assert pattern_of(array) == name
    if name:
        node = G().proto.node.add(name="n", op="Const")
        node.attr[PATTERN_ATTR].s = name.encode()
        tensor = node.attr["value"].tensor
        tensor.dtype = DType.from_np(array.dtype).tf_enum
        for d in array.shape:
            tensor.tensor_shape.dim.add().size = d
        fill(node)
        made = to_numpy(tensor)
        assert made.shape == array.shape and made.tobytes() == array.tobytes() and PATTERN_ATTR not in node.attr


@pytest.mark.parametrize("change", ["unknown", "huge", "string"])
def test_patterns_of_strangers(change: str) -> None:
    node = G().proto.node.add(name="n", op="Const")
    node.attr[PATTERN_ATTR].s = b"zeros" if change != "unknown" else b"primes"
    node.attr["value"].tensor.dtype = STRING if change == "string" else F32
    node.attr["value"].tensor.tensor_shape.dim.add().size = 1 << 40 if change == "huge" else 4
    with pytest.raises(GraphError, match="pattern"):
        fill(node)
