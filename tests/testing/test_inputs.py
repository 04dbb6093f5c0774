"""Inputs that are made up: which placeholders need some, and what is said where none can be made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from disc_tf.testing.inputs import specs_from_graph
from tests.frontend.graphs import G

STRING, RESOURCE = 7, 20


def graph_with(dtype: int, unknown_rank: bool) -> Any:
    """y = Relu(x), and a second placeholder that only ``z`` reads."""
    g = G()
    g.placeholder("x", [None, 8])
    g.unary("y", "x")
    g.placeholder("odd", [None])
    g.unary("z", "odd")
    odd = next(n for n in g.proto.node if n.name == "odd")
    odd.attr["dtype"].type = dtype
    if unknown_rank:
        odd.attr["shape"].shape.Clear()
        odd.attr["shape"].shape.unknown_rank = True
    return g.proto


@pytest.mark.parametrize(
    ("dtype", "unknown_rank", "said"),
    [
        (STRING, True, ["its rank is not known", "--inputs-json FILE", "--no-verify"]),
        (RESOURCE, False, ["values of type resource cannot be made up", "--no-verify"]),
        (8, False, ["values of type complex64 cannot be made up", "--no-verify"]),
        (1, True, ["its rank is not known", "--inputs-json FILE", "--no-verify"]),
        (0, False, ["its dtype is not known", "--inputs-json FILE", "--no-verify"]),
    ],
)
def test_only_what_the_outputs_need_counts(dtype: int, unknown_rank: bool, said: Sequence[str]) -> None:
    graph = graph_with(dtype, unknown_rank)
    assert [s.name for s in specs_from_graph(graph, outputs=["y:0"])] == ["x"]
    for outputs in (["z:0"], ["y", "^z"], None):
        with pytest.raises(ValueError, match="input odd: ") as raised:
            specs_from_graph(graph, outputs=outputs)
        assert all(text in str(raised.value) for text in said)


def test_a_placeholder_that_is_waited_for_is_needed() -> None:
    graph = graph_with(1, False)
    next(n for n in graph.node if n.name == "y").input.append("^odd")
    assert [s.name for s in specs_from_graph(graph, outputs=["y:0"])] == ["x", "odd"]
