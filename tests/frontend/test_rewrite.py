"""Rewriting, restore and put-back."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.frontend import recipe
from disc_tf.frontend.analysis import analyse
from disc_tf.frontend.cluster import make_clusters
from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.functions import inline_calls, read_body
from disc_tf.frontend.graph import Graph, resolve_outputs
from disc_tf.frontend.importer import import_cluster
from disc_tf.frontend.rewrite import (
    LAUNCH_OP,
    ORIGINAL_PREFIX,
    Launch,
    find_recipe,
    put_back,
    restore,
    rewrite,
)
from disc_tf.frontend.tfproto import graph_from_bytes, serialized
from tests.frontend.graphs import F32, I32, G, body_node, cluster, launches, model


def split_chain() -> G:
    """Two clusters around a custom op; a dead branch; a fetched node in the middle; a shared weight."""
    g = G()
    g.placeholder("x", [None, 300])
    g.placeholder("unused", [3])
    g.const("w", np.arange(300))
    g.const("two", 2.0)
    g.binary("a", "x", "w")
    g.binary("b", "a", "two")
    g.node("middle", "MyOp", ["b:0"], _output_shapes=("shapes", [[None, 300]]))
    g.binary("c", "middle", "w")
    g.binary("d", "c", "two")
    g.node("halves", "Split", [g.const("axis", 1, np.int32), "d"], T=("type", F32), num_split=2)
    g.unary("dead", "a")
    g.node("late", "MyOp", ["halves:1", "^b"], _output_shapes=("shapes", [[None, 150]]))
    return g


def done(g: G, outputs: list[str], **options):
    clustering = cluster(g.proto, outputs, min_cluster_size=1, **options)
    return clustering, rewrite(g.proto, clustering, launches(clustering))


OUTPUTS = ["late", "b", "halves:1"]


def test_structure():
    clustering, new = done(split_chain(), OUTPUTS)
    graph = Graph(new)
    assert [n.op for n in graph.nodes.values()].count(LAUNCH_OP) == 2
    assert "dead" not in graph and "a" not in graph and "unused" in graph and "two" not in graph
    assert graph["b"].op == "Identity" and graph["halves"].op == "IdentityN"
    assert graph["middle"].inputs == [("disc_cluster_0", 0)]
    assert graph["late"].inputs == [("disc_cluster_1", 1)] and graph["late"].controls == []
    first = next(n for n in new.node if n.name == "disc_cluster_0")
    assert list(first.input) == ["w", "x"]
    assert first.attr["nodes"].s.decode().split("\n") == ["a", "b"]
    assert first.attr["executable"].s == b"code of disc_cluster_0"
    assert list(first.attr["Tconst"].list.type) == [F32] and list(first.attr["Targs"].list.type) == [F32]
    assert first.attr["Thost"].HasField("list") and not first.attr["Thost"].list.type
    assert [[d.size for d in s.dim] for s in first.attr["_output_shapes"].list.shape] == [[-1, 300]]
    assert len(clustering.clusters) == 2


@pytest.mark.parametrize("outputs", [OUTPUTS, ["d"], ["b", "w"], ["dead", "^late"]], ids=str)
def test_restore_is_bit_for_bit(outputs):
    g = split_chain()
    before = serialized(g.proto)
    _, new = done(g, outputs)
    assert serialized(g.proto) == before, "the argument was changed"
    assert serialized(restore(graph_from_bytes(serialized(new)))) == before


def test_put_back_one_and_all():
    g = split_chain()
    _, new = done(g, OUTPUTS)
    one = put_back(new, ["disc_cluster_0"])
    graph = Graph(one)
    assert graph["a"].op == "AddV2" and graph["b"].op == "AddV2" and graph["disc_cluster_1"].op == LAUNCH_OP
    assert "disc_cluster_0" not in graph and "disc_cluster_0_nodes" not in graph
    assert next(n for n in one.node if n.op == LAUNCH_OP).attr["executable"].s == b"code of disc_cluster_1"
    assert serialized(restore(one)) == serialized(g.proto)
    assert serialized(put_back(new, ["disc_cluster_0", "disc_cluster_1"])) == serialized(g.proto)
    assert serialized(put_back(one, ["disc_cluster_1"])) == serialized(g.proto)
    assert serialized(put_back(new, [])) == serialized(new)
    with pytest.raises(GraphError, match="disc_cluster_1"):
        put_back(new, ["nonsense"])


def test_nothing_to_launch_gives_the_argument():
    g = split_chain()
    clustering = cluster(g.proto, OUTPUTS, deny=["*"])
    assert rewrite(g.proto, clustering, []) is g.proto
    with pytest.raises(GraphError, match="not written by disc_tf"):
        restore(g.proto)


def test_weights_are_stored_once():
    g = G()
    g.placeholder("x", [None, 1000])
    weight = np.random.default_rng(0).standard_normal((1000, 1000)).astype(np.float32)
    g.const("w", weight)
    g.const("dead_w", weight * 2)
    f = g.function("f", {"a": F32}, {"out": ("m:product:0", F32)})
    body_node(f, "inner_w", "Const", [], dtype=("type", F32), value=weight * 3)
    body_node(f, "m", "MatMul", ["a", "inner_w:output:0"], T=("type", F32), transpose_a=False, transpose_b=False)
    g.node("call", "PartitionedCall", ["x"], f=("func", "f"), Tin=("types", [F32]), Tout=("types", [F32]))
    g.matmul("y", "call", "w")
    g.matmul("dead", "x", "dead_w")
    original = g.proto
    graph = Graph(inline_calls(original).graph_def)
    fetches, _ = resolve_outputs(graph, ["y"])
    clustering = make_clusters(analyse(graph, ["y"], use_tf_shapes=False), fetches, min_cluster_size=1)
    (imported,) = [import_cluster(clustering, c) for c in clustering.clusters]
    new = rewrite(original, clustering, [Launch.of(imported, b"x")])
    data = serialized(new)
    assert serialized(restore(new)) == serialized(original)
    assert serialized(put_back(new, ["disc_cluster_0"])) == serialized(original)
    for content in (weight, weight * 3):
        assert data.count(content[500].tobytes()) == 1
    assert not any(f.signature.name == "f" for f in new.library.function)
    # the dropped one lives in the recipe; compressed it has nearly its own size
    assert len(find_recipe(new)) < weight.nbytes * 1.1
    assert len(data) < 3 * weight.nbytes + 20000


def test_functions_still_called_stay():
    g = split_chain()
    f = g.function("g", {"a": F32}, {"out": ("a", F32)})
    g.function("helper", {"a": F32}, {"out": ("a", F32)})
    g.function("orphan", {"a": F32}, {"out": ("a", F32)})
    body_node(f, "n", "PartitionedCall", ["a"], f=("func", "helper"), Tin=("types", [F32]), Tout=("types", [F32]))
    g.node("call", "PartitionedCall", ["d"], f=("func", "g"), Tin=("types", [F32]), Tout=("types", [F32]), _noinline=True)
    _, new = done(g, ["call"])
    names = [f.signature.name for f in new.library.function]
    assert names[:2] == ["g", "helper"] and "orphan" not in names
    assert serialized(restore(new)) == serialized(g.proto)


def test_original_functions_are_valid_and_have_the_launch_signature():
    _, new = done(split_chain(), OUTPUTS)
    functions = {f.signature.name: f for f in new.library.function}
    for node in new.node:
        if node.op != LAUNCH_OP:
            continue
        f = functions[node.attr["original"].func.name]
        assert f.signature.name.startswith(ORIGINAL_PREFIX)
        body = read_body(f, {})
        assert {n.name for n in body.nodes} >= set(node.attr["nodes"].s.decode().split("\n"))
        taken = [t for k in ("Tconst", "Thost", "Targs") for t in node.attr[k].list.type]
        assert [a.type for a in f.signature.input_arg] == taken
        assert [a.type for a in f.signature.output_arg] == [
            t for k in ("Thostout", "Tout") for t in node.attr[k].list.type
        ]


def test_control_edges_follow_their_nodes():
    g = G()
    g.placeholder("x", [None])
    g.placeholder("n", [], I32)
    g.node("less", "Less", ["n", g.const("limit", 10, np.int32)], T=("type", I32))
    g.node("assert", "Assert", ["less", "limit"], T=("types", [I32]))
    g.unary("y", "x", controls=["assert"])
    g.node("save", "MyEffect", ["x", "^y", "^assert"])
    _, new = done(g, ["y", "^save"])
    graph = Graph(new)
    assert graph["save"].controls == ["disc_cluster_0"] and graph["y"].op == "Identity"
    (function,) = [f for f in new.library.function if f.signature.name.startswith(ORIGINAL_PREFIX)]
    assert dict(function.control_ret) == {"check_0": "assert"}
    assert serialized(restore(new)) == serialized(g.proto)


def test_colocation_with_a_node_that_is_gone_is_dropped():
    g = split_chain()
    late = next(n for n in g.proto.node if n.name == "late")
    late.attr["_class"].list.s.extend([b"loc:@d", b"loc:@middle"])
    _, new = done(g, OUTPUTS)
    assert list(next(n for n in new.node if n.name == "late").attr["_class"].list.s) == [b"loc:@middle"]
    assert serialized(restore(new)) == serialized(g.proto)


@pytest.mark.parametrize("damage", [0.0, 0.3, 0.7, 0.99])
def test_damaged_recipe_is_an_error(damage):
    _, new = done(split_chain(), OUTPUTS)
    data = find_recipe(new)
    broken = bytearray(data)
    broken[int(damage * len(data))] ^= 0x55
    for bad in (bytes(broken), data[: int(damage * len(data))]):
        with pytest.raises(GraphError):
            recipe.restore(new, bad)


def test_missing_node_is_an_error_that_names_it():
    _, new = done(split_chain(), OUTPUTS)
    del new.node[[n.name for n in new.node].index("w")]
    with pytest.raises(GraphError, match="'w'"):
        restore(new)


def test_deterministic():
    a, b = (serialized(done(split_chain(), OUTPUTS)[1]) for _ in range(2))
    assert a == b


@pytest.mark.parametrize("name", ["micro_chain", "ctr_din", "conformer", "basic_pitch", "mobilenet_v2", "rnn_tagger"])
def test_real_graphs_round_trip(name):
    original = model(name)
    clustering = cluster(original)
    made = launches(clustering)
    assert made
    new = rewrite(original, clustering, made)
    Graph(new)
    assert serialized(restore(new)) == serialized(original)
    first = [clustering.clusters[0].name]
    back = put_back(new, first)
    Graph(back)
    assert serialized(back if len(made) == 1 else restore(back)) == serialized(original)
