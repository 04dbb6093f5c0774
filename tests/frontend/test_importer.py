"""Clusters in the IR: parameters, shared symbols, contents, digests."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.frontend.importer import ImportFailed, import_cluster
from disc_tf.ir.core import walk
from disc_tf.runtime.artifact import tensor_digest
from tests.frontend.graphs import F32, I32, G, cluster


def only(g: G, outputs: list[str], **options):
    clustering = cluster(g.proto, outputs, min_cluster_size=1, **options)
    (c,) = clustering.clusters
    return import_cluster(clustering, c)


def test_parameters_in_order_of_kind_with_digests():
    g = G()
    g.placeholder("x", [None, 300])
    g.placeholder("k", [], I32)
    weight = np.arange(300, dtype=np.float32)
    g.const("w", weight)
    g.node("kf", "Cast", ["k"], SrcT=("type", I32), DstT=("type", F32))
    g.binary("y", g.binary("s", "x", "kf"), "w")
    found = only(g, ["y"])
    assert [(a.name, a.kind) for a in found.main.args] == [("w", "const"), ("k", "host"), ("x", "device")]
    assert found.args == [("w", 0), ("k", 0), ("x", 0)]
    assert found.main.args[0].digest == tensor_digest(weight, "f32")
    np.testing.assert_array_equal(found.main.args[0].value, weight)
    assert [str(p.type) for p in found.main.params] == ["f32[300]", "i32[]", "f32[a2d0,300]"]
    assert str(found.main.results[0].type) == "f32[a2d0,300]" and found.main.result_names == ["y"]


def test_dims_proved_equal_share_a_symbol():
    g = G()
    g.placeholder("x", [None, None])
    g.node("e", "Exp", ["x"], T=("type", F32))
    g.node("l", "Log", ["x"], T=("type", F32))
    g.unary("t", "x")
    g.binary("y", "e", g.binary("z", "l", "t"))
    found = only(g, ["y"], deny=["e", "l"])
    assert [str(p.type) for p in found.main.params] == ["f32[a0d0,a0d1]", "f32[a0d0,a0d1]", "f32[a0d0,a0d1]"]
    assert not found.requests


def test_unrelated_dims_do_not():
    g = G()
    g.placeholder("a", [None])
    g.placeholder("b", [None])
    g.binary("y", "a", "b")
    found = only(g, ["y"])
    assert [str(p.type) for p in found.main.params] == ["f32[a0d0]", "f32[a1d0]"]
    assert [r.kind for r in found.requests] == ["broadcast"]
    assert str(found.main.results[-1].type) == "token"


def test_known_content_of_an_argument_is_used():
    """The shape is computed outside, yet the reshape inside is static in terms of the arguments' dims."""
    g = G()
    g.placeholder("x", [None, 6])
    g.node("shape", "Shape", ["x"], T=("type", F32), out_type=("type", I32))
    g.unary("t", "x")
    g.node("y", "Reshape", ["t", "shape"], T=("type", F32), Tshape=("type", I32))
    found = only(g, ["y"], deny=["shape"])
    assert [a.kind for a in found.main.args] == ["host", "device"]
    (x,) = [p for p in found.main.params if p.rank == 2]
    assert found.main.results[0].dims == x.dims
    assert not any(op.name == "disc.bind_dim" for op in walk(found.main.body))


def test_skeleton_weights_have_no_content_but_a_type():
    g = G()
    g.placeholder("x", [None, 4])
    g.const("w", np.zeros((4, 400)))
    node = next(n for n in g.proto.node if n.name == "w")
    node.attr["value"].tensor.ClearField("float_val")
    node.attr["_disc_digest"].s = b"d" * 32
    g.matmul("y", "x", "w")
    found = only(g, ["y"])
    assert found.main.args[0].digest == b"d" * 32 and found.main.args[0].value is None
    assert str(found.main.params[0].type) == "f32[4,400]"


def test_hints_become_likely_values():
    g = G()
    g.placeholder("x", [None, None])
    g.unary("y", "x")
    found = only(g, ["y"], hints=["x: [b, s~128~256]"])
    assert found.main.env.likely(found.main.params[0].dims[1]) == (128, 256)


def test_host_results_come_first():
    g = G()
    g.placeholder("x", [None, 3])
    g.unary("y", "x")
    g.node("shape", "Shape", ["y"], T=("type", F32), out_type=("type", I32))
    g.node("out", "MyOp", ["y", "shape"])
    found = only(g, ["out"])
    assert found.results == [("shape", 0), ("y", 0)] and found.host_results == [True, False]


def test_import_failure_names_the_node(monkeypatch):
    from disc_tf.frontend import importer
    from disc_tf.lowering.errors import Unsupported

    g = G()
    g.placeholder("x", [None, 3])
    g.unary("y", "x")
    clustering = cluster(g.proto, ["y"], min_cluster_size=1)

    def fail(*_args):
        raise Unsupported("ATTR", "no such luck")

    monkeypatch.setattr(importer, "lower_node", fail)
    with pytest.raises(ImportFailed, match=r"y: no such luck \[ATTRIBUTE\]"):
        import_cluster(clustering, clustering.clusters[0])
