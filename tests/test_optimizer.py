"""The public function: what it is given, and what it says of what it cannot take."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf import optimize_graph_def
from disc_tf.frontend.errors import GraphError
from tests.frontend.graphs import G


def graph() -> G:
    g = G()
    g.placeholder("x", [None, 4])
    g.unary("y", "x", "Neg")
    g.unary("z", "y", "Tanh")
    return g


def test_one_output_may_be_given_without_a_list() -> None:
    report = optimize_graph_def(graph().proto, "z:0", min_cluster_size=1, use_tf_shapes=False).report
    assert report.outputs == ["z:0"]
    assert report.coverage == 1.0


@pytest.mark.parametrize(
    ("given", "outputs", "message"),
    [("graph.pb", None, "a GraphDef is wanted, not str"), (graph().proto, [], "no outputs are given"), (np.zeros(3), ["z"], "not ndarray")],
)
def test_what_is_no_graph_and_no_output(given, outputs, message) -> None:
    with pytest.raises(GraphError, match=message):
        optimize_graph_def(given, outputs)


def test_an_optimised_graph_says_that_it_is_one() -> None:
    once = optimize_graph_def(graph().proto, ["z"], min_cluster_size=1, use_tf_shapes=False)
    again = optimize_graph_def(once.graph_def, ["z"], min_cluster_size=1, use_tf_shapes=False)
    (entry,) = (e for e in again.report.left_out if e.op == "DiscLaunch")
    assert "is compiled already" in entry.reason
