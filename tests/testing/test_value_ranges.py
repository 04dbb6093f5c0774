"""Values that a graph accepts, learned from what reads them: tables behind casts, slices, calls and loops, vocabularies, Examples."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf.frontend.tensor_proto import fill_tensor
from disc_tf.frontend.tfproto import message_class
from disc_tf.testing.inputs import InputSpec, make_feeds, sample_sizes, specs_from_graph
from disc_tf.testing.strings import example, png, wav
from disc_tf.testing.value_flow import Flow
from disc_tf.testing.value_ranges import Feature, Learned, learn

F32, I32, I64, STRING = 1, 3, 9, 7


class Builder:
    """NodeDefs of a graph or a function."""

    def __init__(self) -> None:
        self.proto: Any = message_class("GraphDef")()

    def node(self, op: str, name: str, *inputs: str, nodes: Any = None, **types: int) -> str:
        node = (self.proto.node if nodes is None else nodes).add(name=name, op=op, input=inputs)
        for key, number in types.items():
            node.attr[key].type = number
        return name

    def placeholder(self, name: str, dtype: int, rank: int = 1) -> str:
        self.node("Placeholder", name, dtype=dtype)
        shape = self.proto.node[-1].attr["shape"].shape
        for _ in range(rank):
            shape.dim.add(size=-1)
        return name

    def const(self, name: str, value: Any, dtype: Any = np.int32) -> str:
        array = np.asarray(value, object if isinstance(value, list) and value and isinstance(value[0], bytes) else dtype)
        self.node("Const", name)
        node = self.proto.node[-1]
        fill_tensor(node.attr["value"].tensor, array)
        node.attr["dtype"].type = node.attr["value"].tensor.dtype
        return name

    def gather(self, ids: str, rows: int, name: str = "gather", nodes: Any = None) -> str:
        self.const(f"{name}/table", np.zeros((rows, 2)), np.float32)
        self.const(f"{name}/axis", 0)
        return self.node("GatherV2", name, f"{name}/table", ids, f"{name}/axis", nodes=nodes, Tparams=F32, Tindices=I32, Taxis=I32)

    def spec(self) -> InputSpec:
        (spec,) = specs_from_graph(self.proto)
        return spec


def through_nothing(g: Builder, x: str) -> str:
    return x


def through_plain_ops(g: Builder, x: str) -> str:
    g.node("Identity", "a", x)
    g.node("Cast", "b", "a", SrcT=I32, DstT=I64)
    g.const("shape", [-1])
    g.node("Reshape", "c", "b", "shape")
    for name in ("one", "two", "three"):
        g.const(name, [1])
    g.node("StridedSlice", "d", "c", "one", "two", "three")
    g.const("axis", 0)
    g.node("ConcatV2", "e", "d", "d", "axis")
    g.node("Split", "f", "axis", "e")
    g.proto.node[-1].attr["num_split"].i = 2
    return "f:1"


def through_select(g: Builder, x: str) -> str:
    g.node("ZerosLike", "zeros", x)
    g.node("NotEqual", "set", x, "zeros")
    return g.node("SelectV2", "chosen", "set", x, "zeros")


def through_list(g: Builder, x: str) -> str:
    g.const("shape", [1])
    g.node("TensorListFromTensor", "list", x, "shape", element_dtype=I32, shape_type=I32)
    g.const("index", 0)
    return g.node("TensorListGetItem", "item", "list", "index", "shape", element_dtype=I32)


def through_call(g: Builder, x: str) -> str:
    """f(unused, ids) = Identity(ids), called twice in a row."""
    f = g.proto.library.function.add()
    f.signature.name = "f"
    for name in ("unused", "ids"):
        f.signature.input_arg.add(name=name, type=I32)
    f.signature.output_arg.add(name="out", type=I32)
    g.node("Identity", "same", "ids", nodes=f.node_def, T=I32)
    f.ret["out"] = "same:output:0"
    for name, source in (("call", x), ("again", "call")):
        g.node("StatefulPartitionedCall", name, source, source)
        g.proto.node[-1].attr["f"].func.name = "f"
        for key in ("Tin", "Tout"):
            g.proto.node[-1].attr[key].list.type.extend([I32, I32][: 2 if key == "Tin" else 1])
    return "again"


def through_loop(g: Builder, x: str) -> str:
    """while: (i, ids) -> (i, ids)"""
    for name in ("body", "cond"):
        f = g.proto.library.function.add()
        f.signature.name = name
        for a in ("i", "ids"):
            f.signature.input_arg.add(name=a, type=I32)
        if name == "cond":
            f.signature.output_arg.add(name="more", type=10)
            g.node("Cast", "more_", "i", nodes=f.node_def, SrcT=I32, DstT=10)
            f.ret["more"] = "more_:y:0"
        else:
            for a in ("i", "ids"):
                f.signature.output_arg.add(name=f"{a}_out", type=I32)
                g.node("Identity", f"{a}_", a, nodes=f.node_def, T=I32)
                f.ret[f"{a}_out"] = f"{a}_:output:0"
    g.const("zero", 0)
    g.node("While", "loop", "zero", x)
    g.proto.node[-1].attr["body"].func.name = "body"
    g.proto.node[-1].attr["cond"].func.name = "cond"
    g.proto.node[-1].attr["T"].list.type.extend([I32, I32])
    return "loop:1"


def plus(g: Builder, x: str, op: str, value: int) -> str:
    g.const("c", value)
    return g.node(op, "changed", x, "c", T=I32)


@pytest.mark.parametrize("way", [through_nothing, through_plain_ops, through_select, through_list, through_call, through_loop])
def test_rows_of_a_table(way: Any) -> None:
    g = Builder()
    g.gather(way(g, g.placeholder("x", I32)), 137)
    assert (g.spec().low, g.spec().high) == (0, 137)
    values = g.spec().make([4000], np.random.default_rng(0))
    assert values.min() == 0 and values.max() == 136


@pytest.mark.parametrize(
    ("op", "value", "bounds"),
    [
        ("AddV2", 3, (0, 97)),
        ("Sub", 1, (1, 101)),
        ("AddV2", -2, (2, 102)),
        ("Minimum", 9, (0, 10)),
        ("FloorMod", 5, (0, 2)),
        ("Mul", 2, (0, 2)),
    ],
)
def test_arithmetic_on_the_way(op: str, value: int, bounds: tuple[int, int]) -> None:
    """Offsets move the bounds; behind ops that keep values in range, or that are not followed, there is no bound to learn."""
    g = Builder()
    g.gather(plus(g, g.placeholder("x", I32), op, value), 100)
    assert (g.spec().low, g.spec().high) == bounds


def test_the_smallest_table_counts() -> None:
    g = Builder()
    x = g.placeholder("x", I32)
    g.gather(x, 50, "big")
    g.gather(x, 7, "small")
    assert g.spec().high == 7


def test_a_variable_behind_a_call() -> None:
    """f(table, ids) = ResourceGather(table, ids): the variable's shape stands in the main graph."""
    g = Builder()
    x = g.placeholder("x", I64)
    g.node("VarHandleOp", "v", dtype=F32)
    for d in (23, 4):
        g.proto.node[-1].attr["shape"].shape.dim.add(size=d)
    f = g.proto.library.function.add()
    f.signature.name = "f"
    f.signature.input_arg.add(name="table", type=20)
    f.signature.input_arg.add(name="ids", type=I64)
    f.signature.output_arg.add(name="out", type=F32)
    g.node("ResourceGather", "rows", "table", "ids", nodes=f.node_def, dtype=F32, Tindices=I64)
    f.ret["out"] = "rows:output:0"
    g.node("f", "call", "v", x)
    assert g.spec().high == 23


def test_floats_that_become_row_numbers() -> None:
    """Keras casts float inputs to integers before it looks rows up."""
    g = Builder()
    g.node("Cast", "ids", g.placeholder("x", F32), SrcT=F32, DstT=I32)
    g.gather("ids", 11)
    values = g.spec().make([500], np.random.default_rng(0))
    assert g.spec().kind == "whole" and values.dtype == np.float32
    assert set(values) == set(range(11))


def test_segment_numbers_are_sorted() -> None:
    g = Builder()
    g.const("data", np.zeros((9, 2)), np.float32)
    g.const("ids", [0, 1, 2], np.int32)
    g.node("SparseSegmentSum", "s", "data", "ids", g.placeholder("x", I32), T=F32, Tidx=I32)
    values = g.spec().make([100], np.random.default_rng(0))
    assert g.spec().kind == "sorted" and (np.diff(values) >= 0).all()


def test_small_types_hold_their_values() -> None:
    g = Builder()
    g.node("Cast", "ids", g.placeholder("x", 6), SrcT=6, DstT=I32)  # int8
    g.gather("ids", 1000)
    values = g.spec().make([500], np.random.default_rng(0))
    assert values.dtype == np.int8 and values.min() >= 0 and values.max() > 100


def lookup(g: Builder, keys: str, dtype: int) -> None:
    g.node("HashTableV2", "table", key_dtype=dtype, value_dtype=I64)
    g.const("default", -1, np.int64)
    g.node("LookupTableFindV2", "found", "table", keys, "default", Tin=dtype, Tout=I64)


WORDS = [b"ape", b"bee", b"cat"]


@pytest.mark.parametrize("where", ["const", "file", "column", "asset"])
def test_keys_of_a_vocabulary(tmp_path: Path, where: str) -> None:
    g = Builder()
    x = g.placeholder("x", STRING)
    lookup(g, g.node("StringLower", "lower", x), STRING)
    g.const("values", [1, 2, 3], np.int64)
    if where == "const":
        g.const("keys", WORDS)
        g.node("LookupTableImportV2", "init", "table", "keys", "values", Tin=STRING, Tout=I64)
    else:
        path = tmp_path / "vocabulary.txt"
        path.write_bytes(b"".join((b"7|%s\n" if where == "column" else b"%s\n") % w for w in WORDS))
        g.const("name", [b"elsewhere" if where == "asset" else str(path).encode()])
        g.node("InitializeTableFromTextFileV2", "init", "table", "name")
        g.proto.node[-1].attr["key_index"].i = 1 if where == "column" else -2
        g.proto.node[-1].attr["delimiter"].s = b"|"
    flow = Flow(g.proto, {"name": tmp_path / "vocabulary.txt"} if where == "asset" else {})
    assert learn(flow, flow.root, ("x", 0)).keys == tuple(WORDS)
    if where != "asset":
        assert set(g.spec().make([200], np.random.default_rng(0))) == set(WORDS)


def test_sentences_and_integer_keys() -> None:
    g = Builder()
    g.const("sep", [b" "])
    g.node("StringSplitV2", "words", g.placeholder("x", STRING), "sep")
    lookup(g, "words:1", STRING)
    g.const("keys", WORDS)
    g.const("values", [1, 2, 3], np.int64)
    g.node("LookupTableImportV2", "init", "table", "keys", "values", Tin=STRING, Tout=I64)
    made = g.spec().make([50], np.random.default_rng(0))
    assert any(b" " in s for s in made) and {w for s in made for w in s.split(b" ")} == set(WORDS)
    g = Builder()
    lookup(g, g.placeholder("x", I64), I64)
    g.const("keys", [10, 20, 700], np.int64)
    g.const("values", [1, 2, 3], np.int64)
    g.node("LookupTableImportV2", "init", "table", "keys", "values", Tin=I64, Tout=I64)
    assert set(g.spec().make([200], np.random.default_rng(0))) == {10, 20, 700}


def test_serialized_examples() -> None:
    """The features that ParseExampleV2 asks for; ids among them stay within the table that they index."""
    g = Builder()
    x = g.placeholder("x", STRING)
    g.const("names", [], np.int32)
    for name, keys in (("sparse", [b"tags"]), ("dense", [b"id", b"price"])):
        g.const(name, keys)
    g.const("ragged", np.zeros(0, object), object)
    g.const("no_int", [], np.int64)
    g.const("no_float", [], np.float32)
    g.node("ParseExampleV2", "parsed", x, "names", "sparse", "dense", "ragged", "no_int", "no_float")
    attr = g.proto.node[-1].attr
    attr["sparse_types"].list.type.append(STRING)
    attr["num_sparse"].i = 1
    attr["Tdense"].list.type.extend([I64, F32])
    for dims in ((2,), ()):
        shape = attr["dense_shapes"].list.shape.add()
        for d in dims:
            shape.dim.add(size=d)
    for key in ("ragged_value_types", "ragged_split_types"):
        attr[key].list.SetInParent()
    g.gather("parsed:3", 5)
    spec = g.spec()
    for data in spec.make([30], np.random.default_rng(0)):
        features = message_class("Example").FromString(data).features.feature
        assert sorted(features) == ["id", "price", "tags"]
        assert len(features["id"].int64_list.value) == 2 and all(0 <= v < 5 for v in features["id"].int64_list.value)
        assert len(features["price"].float_list.value) == 1 and len(features["tags"].bytes_list.value) >= 1


def test_pictures_and_base64() -> None:
    g = Builder()
    g.node("DecodeBase64", "plain", g.placeholder("x", STRING))
    g.node("DecodePng", "image", "plain", dtype=4)
    (data,) = g.spec().make([1], np.random.default_rng(0))
    assert base64.urlsafe_b64decode(data + b"==").startswith(b"\x89PNG")


@pytest.mark.slow
def test_tensorflow_reads_what_is_made() -> None:
    tf = pytest.importorskip("tensorflow")
    pixels = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    assert (tf.io.decode_png(png(pixels)).numpy() == pixels).all()
    assert (tf.io.decode_jpeg(png(pixels)).numpy() == pixels).all()
    samples = np.array([0, 1000, -1000], np.int16)
    assert np.allclose(tf.audio.decode_wav(wav(samples))[0].numpy()[:, 0] * 32768, samples)
    features = [Feature(b"a", F32, (2, 3)), Feature(b"b", I64, None, Learned(high=4))]
    parsed = tf.io.parse_example(
        [example(features, np.random.default_rng(0))],
        {"a": tf.io.FixedLenFeature([2, 3], tf.float32), "b": tf.io.VarLenFeature(tf.int64)},
    )
    assert parsed["a"].shape == (1, 2, 3) and int(parsed["b"].values.numpy().max()) < 4


def test_feeds_of_strings_at_all_sizes() -> None:
    g = Builder()
    g.node("StringLower", "y", g.placeholder("x", STRING, 2))
    specs = specs_from_graph(g.proto)
    for size in [*sample_sizes(specs, 3), {"x/0": 0, "x/1": 4}]:
        (feed,) = make_feeds(specs, size)
        assert feed.dtype == object and feed.shape == tuple(size[d] for d in specs[0].dims if isinstance(d, str))
