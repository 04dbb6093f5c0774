"""Truncated, corrupt, cyclic, huge, ill-typed and hostile GraphDefs: a clear `GraphError`, or a graph that is left as it was. Never a
crash, never a hang."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from disc_tf.frontend.analysis import analyse
from disc_tf.frontend.cluster import make_clusters
from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.functions import inline_calls
from disc_tf.frontend.graph import Graph, resolve_outputs
from disc_tf.frontend.hints import parse_hint
from disc_tf.frontend.importer import ImportFailed, import_cluster
from disc_tf.frontend.rewrite import Launch, restore, rewrite
from disc_tf.frontend.tfproto import graph_from_bytes, graph_from_text, serialized
from tests.frontend.graphs import F32, I32, STRING, G, body_node, model


def optimise(data: bytes | Any, outputs: list[str] | None = None) -> Any:
    """The whole frontend on a graph; checks that what comes out restores to what went in."""
    original = graph_from_bytes(data) if isinstance(data, bytes) else data
    before = serialized(original)
    Graph(original)
    graph = Graph(inline_calls(original, outputs or []).graph_def)
    fetches, targets = resolve_outputs(graph, outputs)
    names = [*(n for n, _ in fetches), *targets]
    clustering = make_clusters(analyse(graph, names, use_tf_shapes=False), fetches, targets, min_cluster_size=1)
    launches = []
    for c in clustering.clusters:
        try:
            launches.append(Launch.of(import_cluster(clustering, c), b"x"))
        except ImportFailed:
            continue
    new = rewrite(original, clustering, launches)
    Graph(new)
    assert serialized(original) == before
    if launches:
        assert serialized(restore(new)) == before
    return new


def base() -> G:
    g = G()
    g.placeholder("x", [None, 8])
    g.const("w", np.ones((8, 8)))
    g.matmul("m", "x", "w")
    g.chain("n", "m", 3)
    g.node("r", "Reshape", ["n2", g.const("s", [-1, 4], np.int32)], T=("type", F32), Tshape=("type", I32))
    return g


def node(g: G, name: str) -> Any:
    return next(n for n in g.proto.node if n.name == name)


def call(g: G, f: str, **attrs: Any) -> None:
    g.node("call", "PartitionedCall", ["x"], f=("func", f), Tin=("types", [F32]), Tout=("types", [F32]), **attrs)
    g.unary("after", "call")


def no_ret(g: G) -> None:
    g.function("f", {"a": F32}, {"out": ("a", F32)}).ret.clear()
    call(g, "f")


def two_arguments(g: G) -> None:
    f = g.function("f", {"a": F32}, {"out": ("a", F32)})
    f.signature.input_arg.add(name="a", type=F32)
    call(g, "f")


def wrong_arity(g: G) -> None:
    f = g.function("f", {"a": F32, "b": F32}, {"out": ("a", F32)})
    body_node(f, "n", "Tanh", ["a"], T=("type", F32))
    call(g, "f")


def output_of_call_out_of_range(g: G) -> None:
    g.function("f", {"a": F32}, {})
    call(g, "f")


def placeholder_attr(g: G) -> None:
    f = g.function("f", {"a": F32}, {"out": ("n:y:0", F32)})
    body_node(f, "n", "Tanh", ["a"])
    f.node_def[0].attr["T"].placeholder = "nothing"
    call(g, "f")


def set_content(g: G, name: str, content: bytes) -> None:
    tensor = node(g, name).attr["value"].tensor
    tensor.ClearField("float_val")
    tensor.ClearField("int_val")
    tensor.tensor_content = content


def resize(g: G, name: str, dims: list[int]) -> None:
    shape = node(g, name).attr["value"].tensor.tensor_shape
    del shape.dim[:]
    for d in dims:
        shape.dim.add().size = d


#: mutations that are errors, with what the message must say
ERRORS: dict[str, tuple[Callable[[G], Any], str]] = {
    "two nodes of one name": (lambda g: g.unary("n0", "x"), "n0"),
    "two nodes of one name, far": (lambda g: g.placeholder("x", [1]), "'x'"),
    "empty name": (lambda g: setattr(node(g, "n0"), "name", ""), "bad name"),
    "name with a colon": (lambda g: g.unary("a:b", "x"), "bad name"),
    "name that is a control input": (lambda g: g.unary("^a", "x"), "bad name"),
    "no op": (lambda g: setattr(node(g, "n0"), "op", ""), "n0"),
    "dangling input": (lambda g: g.unary("q", "nowhere"), "'q'.*nowhere"),
    "dangling control input": (lambda g: g.unary("q", "x", controls=["nowhere"]), "'q'.*nowhere"),
    "input of itself": (lambda g: g.unary("q", "q"), "cycle.*q"),
    "control input of itself": (lambda g: g.unary("q", "x", controls=["q"]), "cycle"),
    "cycle of two": (lambda g: (g.unary("p", "q"), g.unary("q", "p")), "cycle"),
    "cycle through control": (lambda g: (g.unary("p", "q"), g.unary("q", "x", controls=["p"])), "cycle"),
    "long cycle": (lambda g: (g.chain("c", "end", 5000), g.unary("end", "c4999")), "cycle"),
    "merge without NextIteration": (
        lambda g: (g.node("p", "Merge", ["x", "q"], T=("type", F32), N=2), g.unary("q", "p")), "cycle"),
    "port out of range": (lambda g: g.unary("q", "m:1"), "'q'.*only 1"),
    "port far out of range": (lambda g: g.unary("q", "m:99999999999999999999"), "'q'"),
    "negative port": (lambda g: g.unary("q", "m:-1"), "'q'"),
    "empty input": (lambda g: g.unary("q", ""), "'q'"),
    "data after control": (lambda g: node(g, "n1").input.extend(["^x", "x"]), "n1.*after a control"),
    "too many inputs": (lambda g: node(g, "n1").input.append("x"), "n1.*takes 1"),
    "too few inputs": (lambda g: node(g, "m").input.pop(), "'m'.*takes 2"),
    "no inputs": (lambda g: node(g, "n1").ClearField("input"), "n1"),
    "attribute missing": (lambda g: node(g, "n1").attr.pop("T"), "n1.*'T'"),
    "attribute of the wrong kind": (lambda g: setattr(node(g, "n1").attr["T"], "i", 1), "n1.*'T'"),
    "attribute without a value": (lambda g: node(g, "n1").attr["T"].Clear(), "n1.*'T'"),
    "bool attribute that is a string": (lambda g: setattr(node(g, "m").attr["transpose_a"], "s", b"y"), "'m'.*transpose_a"),
    "list where a type belongs": (lambda g: node(g, "n1").attr["T"].list.type.append(1), "n1.*'T'"),
    "negative count": (lambda g: g.node("q", "AddN", ["x"], T=("type", F32), N=-1), "'q'.*'N'"),
    "huge count": (lambda g: g.node("q", "AddN", ["x"], T=("type", F32), N=1 << 40), "'q'.*'N'"),
    "huge number of outputs": (
        lambda g: g.node("q", "Split", ["s0", "x"], T=("type", F32), num_split=1 << 60) and g.const("s0", 0, np.int32), "'q'"),
    "float to an int op": (lambda g: g.unary("q", "x", "Invert", t=I32), "'q'.*type f32"),
    "int to a float op": (lambda g: g.unary("q", "s"), "'q'.*type i32"),
    "string to a float op": (lambda g: g.unary("q", g.const("text", np.array(b"t", object), object)), "'q'.*type string"),
    "operands of two types": (lambda g: g.binary("q", "x", "s"), "'q'"),
    "Const without a value": (lambda g: node(g, "w").attr.pop("value"), "'w'"),
    "Const of another type": (lambda g: setattr(node(g, "w").attr["dtype"], "type", 3), "'w'"),
    "Const with negative dims": (lambda g: resize(g, "w", [-8, 8]), "'w'.*negative"),
    "Const of more than 2**63": (lambda g: resize(g, "w", [1 << 62, 1 << 62]), r"'w'.*2\*\*63"),
    "Const that overflows though empty": (lambda g: resize(g, "w", [0, 1 << 62, 1 << 62]), r"'w'.*2\*\*63"),
    "Const of unknown rank": (lambda g: setattr(node(g, "w").attr["value"].tensor.tensor_shape, "unknown_rank", True), "'w'"),
    "Const of rank 300": (lambda g: resize(g, "w", [1] * 300), "'w'"),
    "Const with too little content": (lambda g: set_content(g, "w", b"1234567"), "'w'.*7 bytes"),
    "Const with too much content": (lambda g: set_content(g, "w", b"1" * 1000), "'w'.*1000 bytes"),
    "shape Const with odd content": (lambda g: set_content(g, "s", b"123"), "'s'.*3 bytes"),
    "more values than elements": (
        lambda g: (resize(g, "s", [1]), set_content(g, "s", b""), node(g, "s").attr["value"].tensor.int_val.extend([1, 2])), "'s'"),
    "two functions of one name": (lambda g: (g.function("f", {}, {}), g.function("f", {}, {})), "'f'"),
    "function without a return value": (no_ret, "'f'.*'out'"),
    "function with two equal arguments": (two_arguments, "'f'.*'a'"),
    "function called with too few inputs": (wrong_arity, "call"),
    "result that a function does not have": (output_of_call_out_of_range, "call"),
    "attribute that a call does not give": (placeholder_attr, "call/n.*nothing"),
}  # fmt: skip


@pytest.mark.parametrize("what", ERRORS)
def test_error_names_the_node(what):
    mutate, message = ERRORS[what]
    g = base()
    mutate(g)
    with pytest.raises(GraphError, match=message):
        optimise(g.proto)


def huge_splat(g: G) -> None:
    g.const("big", 1.0)
    resize(g, "big", [1 << 20, 1 << 20])
    g.binary("q", "x", "big")


def huge_shape_content(g: G) -> None:
    g.node("q", "Fill", [g.const("dims", [1 << 40, 1 << 40], np.int64), g.const("v", 1.0)], T=("type", F32), index_type=("type", 9))
    g.unary("t", "q")


def huge_range(g: G) -> None:
    g.node("q", "Range", [g.const("r0", 0, np.int32), g.const("r1", 2**31 - 1, np.int32), g.const("r2", 1, np.int32)], Tidx=("type", I32))
    g.node("t", "Square", ["q"], T=("type", I32))


def deep_nest(g: G) -> None:
    last = "x"
    for i in range(60):
        other = g.placeholder(f"p{i}", [None, None])
        last = g.binary(f"d{i}", last, other)


def many_consumers(g: G) -> None:
    for i in range(3000):
        g.unary(f"u{i}", "x")


def blow_up(g: G) -> None:
    """Shapes whose products grow without bound."""
    g.node("shape", "Shape", ["x"], T=("type", F32), out_type=("type", I32))
    last = "shape"
    for i in range(40):
        last = g.binary(f"b{i}", last, last, "Mul", I32)
    g.node("q", "Fill", [last, g.const("v", 1.0)], T=("type", F32), index_type=("type", I32))


def unknown_ops(g: G) -> None:
    g.node("q", "NoSuchOp", ["n2", "x:0"], weird=("shape", [None, -7]), other=b"\xff")
    g.unary("t", "q:3")


def bad_shape_attr(g: G) -> None:
    g.placeholder("p", [-5, 3])
    g.unary("q", "p")


def lying_output_shapes(g: G) -> None:
    node(g, "n1").attr["_output_shapes"].list.shape.add().dim.add().size = 77


def string_noise(g: G) -> None:
    node(g, "n1").attr["_class"].list.s.extend([b"loc:@nowhere", b"\xff\xfe"])
    node(g, "n1").device = "/device:GPU:\u2603"


def recursive(g: G) -> None:
    f = g.function("f", {"a": F32}, {"out": ("n:output:0", F32)})
    body_node(f, "n", "PartitionedCall", ["a"], f=("func", "f"), Tin=("types", [F32]), Tout=("types", [F32]))
    call(g, "f")


def mutually_recursive(g: G) -> None:
    for a, b in (("f", "h"), ("h", "f")):
        f = g.function(a, {"a": F32}, {"out": ("n:output:0", F32)})
        body_node(f, "n", "PartitionedCall", ["a"], f=("func", b), Tin=("types", [F32]), Tout=("types", [F32]))
    call(g, "f")


def missing_function(g: G) -> None:
    call(g, "nothing")


def exponential(g: G) -> None:
    for i in range(30):
        f = g.function(f"f{i}" if i else "f", {"a": F32}, {"out": ("q:output:0" if i < 29 else "q:y:0", F32)})
        for n, source in (("p", "a"), ("q", "p:output:0" if i < 29 else "p:y:0")):
            if i < 29:
                body_node(f, n, "PartitionedCall", [source], f=("func", f"f{i + 1}"), Tin=("types", [F32]), Tout=("types", [F32]))
            else:
                body_node(f, n, "Tanh", [source], T=("type", F32))
    call(g, "f", _noinline=True)


def bad_einsum(g: G) -> None:
    g.node("q", "Einsum", ["x", "w"], T=("type", F32), N=2, equation=b"ij,jk,,->->i...k...")


def bad_axis(g: G) -> None:
    g.node("q", "Sum", ["x", g.const("axis", [7, -9], np.int32)], T=("type", F32), Tidx=("type", I32), keep_dims=False)


def bad_perm(g: G) -> None:
    g.node("q", "Transpose", ["x", g.const("perm", [1, 1], np.int32)], T=("type", F32), Tperm=("type", I32))


def bad_reshape(g: G) -> None:
    g.node("q", "Reshape", ["w", g.const("dims", [-1, -1], np.int32)], T=("type", F32), Tshape=("type", I32))


def bad_slice(g: G) -> None:
    ints = [g.const(f"i{k}", v, np.int32) for k, v in enumerate(([5], [-(2**31)], [0]))]
    g.node("q", "StridedSlice", ["x", *ints], T=("type", F32), Index=("type", I32), begin_mask=-1, end_mask=1 << 40,
           ellipsis_mask=3, new_axis_mask=7, shrink_axis_mask=7)  # fmt: skip


def bad_concat(g: G) -> None:
    g.node("q", "ConcatV2", ["x", "w", "w", g.const("axis", 5, np.int32)], T=("type", F32), N=3, Tidx=("type", I32))


def mismatched_matmul(g: G) -> None:
    g.matmul("q", "w", g.const("w2", np.ones((3, 3))))


def assert_on_text(g: G) -> None:
    g.node("a", "Assert", [g.const("no", False, np.bool_), g.const("text", np.array(b"\xff", object), object)], T=("types", [STRING]))
    g.unary("q", "x", controls=["a"])


#: legal or merely odd graphs: they must come through, whatever is compiled
ODD: list[Callable[[G], Any]] = [
    huge_splat, huge_shape_content, huge_range, deep_nest, many_consumers, blow_up, unknown_ops, bad_shape_attr, lying_output_shapes,
    string_noise, recursive, mutually_recursive, missing_function, exponential, bad_einsum, bad_axis, bad_perm, bad_reshape,
    bad_slice, bad_concat, mismatched_matmul, assert_on_text,
]  # fmt: skip


@pytest.mark.parametrize("mutate", ODD, ids=lambda f: f.__name__)
def test_odd_graph_is_left_or_compiled(mutate):
    g = base()
    mutate(g)
    start = time.process_time()
    optimise(g.proto)
    assert time.process_time() - start < 60


@pytest.mark.parametrize("cut", range(0, 100, 4))
def test_truncated_bytes(cut):
    data = serialized(base().proto)
    with contextlib.suppress(GraphError):
        optimise(data[: len(data) * cut // 100])


@pytest.mark.parametrize("seed", range(60))
def test_flipped_bytes(seed):
    rng = random.Random(seed)
    data = bytearray(serialized(base().proto))
    for _ in range(rng.choice((1, 1, 2, 5, 40))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    with contextlib.suppress(GraphError):
        optimise(bytes(data))


@pytest.mark.parametrize("seed", range(40))
def test_shuffled_structure(seed):
    """Random edits of a real graph: names, inputs, attributes, types, swapped between nodes."""
    rng = random.Random(seed)
    graph = model("micro_chain")
    nodes = list(graph.node)
    for _ in range(rng.randrange(1, 4)):
        a, b = rng.choice(nodes), rng.choice(nodes)
        kind = rng.randrange(6)
        if kind == 0:
            a.op = b.op
        elif kind == 1 and a.input:
            a.input[rng.randrange(len(a.input))] = b.name + rng.choice(["", ":0", ":1", ":7"])
        elif kind == 2:
            a.input.append(rng.choice(["^" + b.name, b.name]))
        elif kind == 3 and a.attr and b.attr:
            a.attr[rng.choice(sorted(a.attr))].CopyFrom(b.attr[rng.choice(sorted(b.attr))])
        elif kind == 4:
            for key in a.attr:
                if a.attr[key].WhichOneof("value") == "type":
                    a.attr[key].type = rng.choice([0, 1, 2, 3, 7, 9, 19, 20, 101, 12345])
        else:
            a.attr.pop(rng.choice(sorted(a.attr)), None) if a.attr else None
    with contextlib.suppress(GraphError):
        optimise(graph)


@pytest.mark.parametrize("data", [b"", b"\x00", b"PK\x03\x04 not a graph", b"\x0a\xff\xff\xff\xff\x0f", b"\x08" * 100])
def test_foreign_bytes(data):
    try:
        assert len(optimise(data).node) == 0
    except GraphError as e:
        assert "GraphDef" in str(e)


@pytest.mark.parametrize("text", ["node {", "node { name: 3 }", "nodes { }", "\x00", "node { name: 'a' op: 'NoOp' } }"])
def test_bad_text(text):
    with pytest.raises(GraphError, match="text format"):
        graph_from_text(text)


def test_nested_attributes_do_not_recurse():
    data = b""
    for _ in range(2000):  # attr { key: "k" value { func { attr ...
        inner = b"\x0a\x01k\x12" + _length(b"\x52" + _length(b"\x12" + _length(data)))
        data = inner
    message = b"\x0a" + _length(b"\x0a\x01a\x12\x04NoOp\x2a" + _length(data))
    with pytest.raises(GraphError):
        optimise(message)


def _length(data: bytes) -> bytes:
    n, out = len(data), b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n]) + data


BAD_HINTS = ["", "x", "x:", "x: [", "x: []]", "x: [b<32]", "x: [b%0==0]", "x: [-1]", "x: [b c]", ": [b]", "x: [b<=-1]"]
BAD_HINTS += [f"x: [{form}{'9' * 5000}]" for form in ("", "b<=", "b>=", "b~8~", "b%")]


@pytest.mark.parametrize("hint", BAD_HINTS, ids=lambda hint: hint[:12])
def test_bad_hints(hint):
    with pytest.raises(GraphError, match="hint"):
        parse_hint(hint)
