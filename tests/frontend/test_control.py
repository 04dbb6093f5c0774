"""What control edges order."""

from __future__ import annotations

import pytest

from disc_tf.frontend.control import nearest_hard
from disc_tf.frontend.graph import Graph
from tests.frontend.graphs import F32, G

TYPES = {"dtype": ("type", F32)}


@pytest.mark.parametrize(
    ("handle", "name", "hard"),
    [("var", b"v", True), ("same", b"v", True), ("other", b"w", False), ("id", b"v", True), ("ids", b"v", True), ("anonymous", b"", False)],
)
def test_a_read_of_a_variable_that_changes_is_waited_for(handle: str, name: bytes, hard: bool) -> None:
    """Whatever way the handle takes: another node of the same shared name, identities."""
    g = G()
    g.node("var", "VarHandleOp", shape=("shape", []), shared_name=b"v", container=b"", **TYPES)
    for other, shared in (("same", b"v"), ("other", b"w"), ("anonymous", b"")):
        g.node(other, "VarHandleOp", shape=("shape", []), shared_name=shared, container=b"", **TYPES)
    g.node("id", "Identity", ["var"], T=("type", 20))
    g.node("ids", "IdentityN", ["other", "var"], T=("types", [20, 20]))
    g.placeholder("x", [])
    g.node("read", "ReadVariableOp", ["var"], **TYPES)
    g.unary("y", "read", "Identity")
    g.node("change", "AssignVariableOp", [{"ids": "ids:1"}.get(handle, handle), "x"], **TYPES)
    graph = Graph(g.proto)
    order = [graph[n] for n in ("var", "same", "other", "anonymous", "id", "ids", "x", "read", "y", "change")]
    found = nearest_hard(graph, order, ["y"], ["change"])
    assert found["read"] == (frozenset({"read"}) if hard else frozenset())
    assert found["y"] == found["read"]
