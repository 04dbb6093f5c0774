"""Real graphs (skeletons of bench/models) through the frontend."""

from __future__ import annotations

import time

import pytest

from disc_tf.frontend.graph import Graph
from disc_tf.frontend.importer import import_cluster
from disc_tf.frontend.rewrite import Launch, restore, rewrite
from disc_tf.frontend.tfproto import serialized
from disc_tf.ir.core import walk
from tests.frontend.graphs import cluster, model


@pytest.mark.parametrize(("name", "nodes"), [("tiny_bert", 600), ("bert_base", 1700)])
def test_bert_is_one_cluster(name, nodes):
    original = model(name)
    start = time.process_time()
    clustering = cluster(original)
    assert time.process_time() - start < 30
    (only,) = clustering.clusters
    assert len(only.nodes) > nodes
    graph = clustering.graph
    left = [graph[n].op for n in clustering.reasons]
    assert not left, left
    # Assert is a check inside, its text and the weight reads' NoOp are gone
    assert "Assert" in {n.op for n in only.nodes} and not only.controls
    imported = import_cluster(clustering, only)
    kinds = [a.kind for a in imported.main.args]
    assert kinds == sorted(kinds) and kinds.count("device") == 3 and set(kinds) == {"const", "device"}
    assert [str(p.type) for p in imported.main.params if p.type.dims and not p.type.is_static] == [
        f"i32[a{i}d0,a{i}d1]" for i in range(len(kinds) - 3, len(kinds))
    ]
    assert any(op.name == "disc.check" for op in walk(imported.main.body))
    new = rewrite(original, clustering, [Launch.of(imported, b"code")])
    ops = {n.op for n in new.node}
    assert ops == {"Placeholder", "Const", "DiscLaunch", "Identity"}
    assert {n.name for n in new.node if n.op == "Identity"} == {"Identity", "Identity_1"}
    assert serialized(restore(new)) == serialized(original)


@pytest.mark.parametrize("name", ["micro_chain", "ctr_din"])
def test_whole_graph_compiles(name):
    clustering = cluster(model(name))
    assert len(clustering.clusters) == 1 and not clustering.reasons


@pytest.mark.parametrize(
    "name",
    ["basic_pitch", "bert_base", "conformer", "ctr_din", "micro_chain", "mobilenet_v2", "rnn_tagger", "tiny_bert"],
)
def test_every_live_node_is_compiled_or_has_a_reason(name):
    clustering = cluster(model(name))
    owner = clustering.owner
    for node in clustering.order:
        if node.name not in owner and node.op not in ("Const", "Placeholder", "NoOp"):
            assert node.name in clustering.reasons, node.name
    assert not set(owner) & set(clustering.reasons)
    for reason in clustering.reasons.values():
        assert reason.code != "INTERNAL", reason
    assert len(Graph(clustering.graph.graph_def)) == len(clustering.graph)
