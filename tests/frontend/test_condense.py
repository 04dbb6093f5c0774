"""The graph as boxes: no cycles, every node in one box, few boxes for large graphs."""

from __future__ import annotations

from collections import Counter

from disc_tf.frontend.condense import condense
from disc_tf.report import Drawing
from tests.frontend.graphs import G, cluster


def check(drawing: Drawing) -> None:
    layer = {b.id: b.layer for b in drawing.boxes}
    assert len(layer) == len(drawing.boxes)
    for a, b, count in drawing.edges:
        assert layer[a] < layer[b] and count > 0


def test_two_clusters_around_a_host_op() -> None:
    g = G()
    g.placeholder("x", [None, 8])
    g.string_work("s", g.chain("a", "x", 5))
    out = g.chain("b", "s", 5)
    drawing = condense(cluster(g.proto, [out]))
    check(drawing)
    assert [(b.kind, b.nodes, b.output) for b in drawing.boxes] == [
        ("input", 1, False), ("cluster", 5, False), ("tensorflow", 2, False), ("cluster", 5, True),
    ]  # fmt: skip
    assert [e[:2] for e in drawing.edges] == [[0, 1], [1, 2], [2, 3]]
    assert drawing.boxes[2].names == ["s_s", "s"] and drawing.boxes[2].ops == {"AsString": 1, "StringToNumber": 1}
    assert drawing.boxes[1].names == []


def test_five_thousand_nodes_stay_readable() -> None:
    g = G()
    g.placeholder("x", [None, 8])
    ends = []
    for i in range(40):  # forty towers of host work and clusters
        at = "x"
        for k in range(8):
            at = g.string_work(f"s{i}_{k}", g.chain(f"c{i}_{k}", at, 15))
        ends.append(at)
    assert len(g.proto.node) > 4000
    drawing = condense(cluster(g.proto, ends))
    check(drawing)
    assert sum(b.nodes for b in drawing.boxes) == len(g.proto.node)
    kinds = Counter(b.kind for b in drawing.boxes)
    assert kinds == {"input": 1, "cluster": 320, "tensorflow": 8}  # more than WIDEST in a layer are one


def test_an_empty_graph() -> None:
    g = G()
    g.placeholder("x", [3])
    drawing = condense(cluster(g.proto, ["x"]))
    assert [(b.kind, b.output) for b in drawing.boxes] == [("input", True)] and drawing.edges == []
