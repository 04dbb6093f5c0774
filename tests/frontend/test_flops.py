"""The operations that nodes do, and the part of them that is compiled."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.frontend.flops import NOMINAL, node_flops, share
from disc_tf.optimizer import optimize_graph_def
from tests.frontend.graphs import F32, G, cluster


def two_products() -> G:
    """A product of 8 by 32 and one of 32 by 2, a Tanh between, over an unknown number of rows."""
    g = G()
    g.placeholder("x", [None, 8])
    g.const("w", np.ones((8, 32)))
    g.const("v", np.ones((32, 2)))
    g.matmul("big", "x", "w")
    g.unary("tanh", "big")
    g.matmul("small", "tanh", "v")
    return g


@pytest.mark.parametrize(("hints", "rows"), [([], NOMINAL), (["x: [m~5, 8]"], 5)])
def test_lowered_nodes(hints: list[str], rows: int) -> None:
    analysis = cluster(two_products().proto, hints=hints).analysis
    assert analysis is not None
    found = node_flops(analysis)
    assert found["big"] == 2 * rows * 8 * 32 and found["small"] == 2 * rows * 32 * 2 and found["tanh"] == rows * 32
    assert found["x"] == found["w"] == 0


@pytest.mark.parametrize(
    ("op", "filter_shape", "expected"),
    [("Conv2D", (3, 5, 8, 7), 2 * 4 * 6 * 6 * 7 * (3 * 5 * 8)), ("DepthwiseConv2dNative", (3, 5, 8, 2), 2 * 4 * 6 * 6 * 16 * (3 * 5))],
)
def test_nodes_that_stay_outside(op: str, filter_shape: tuple[int, ...], expected: int) -> None:
    g = G()
    g.placeholder("x", [4, 6, 6, 8])
    g.const("w", np.ones(filter_shape))
    channels = filter_shape[3] * (8 if op.startswith("Depthwise") else 1)
    g.node("c", op, ["x", "w"], T=("type", F32), padding=b"SAME", _output_shapes=("shapes", [(4, 6, 6, channels)]))
    g.proto.node[-1].attr["strides"].list.i.extend([1, 1, 1, 1])
    analysis = cluster(g.proto).analysis
    assert analysis is not None
    if "c" in analysis.lowered:
        pytest.skip(f"{op} is compiled: counted by its HLO")
    assert node_flops(analysis)["c"] == expected


def test_share() -> None:
    assert share({"a": 3.0, "b": 1.0}, ["a"]) == 0.75
    assert share({"a": 0.0}, ["a"]) is None and share({"a": 3.0, "b": None}, ["a"]) is None


def test_the_report_weighs_products_by_their_size() -> None:
    """One of two products denied: the share is by operations, not by number of nodes."""
    graph = two_products().proto
    options = {"min_cluster_size": 1, "use_tf_shapes": False}
    whole = optimize_graph_def(graph, ["small:0"], options, dry_run=True).report
    assert whole.flops_share == pytest.approx(1.0) and whole.coverage == 1.0
    part = optimize_graph_def(graph, ["small:0"], {**options, "deny": ["big"]}, dry_run=True).report
    assert part.flops_share == pytest.approx((32 + 2 * 32 * 2) / (2 * 8 * 32 + 32 + 2 * 32 * 2)) and part.coverage == pytest.approx(2 / 3)
    none = optimize_graph_def(graph, ["small:0"], {**options, "deny": ["*"]}, dry_run=True).report
    assert none.flops_share == 0.0
