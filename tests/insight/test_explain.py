"""Each thing that can happen with a node has its own words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from disc_tf.cli import main
from disc_tf.frontend.errors import REASON_ADVICE, REASON_TEXT, GraphError
from disc_tf.frontend.tfproto import message_class
from disc_tf.insight.explain import explain, explain_model
from disc_tf.optimizer import optimize_graph_def
from disc_tf.options import Options
from tests.frontend.graphs import F32, G, body_node

OPTIONS = Options.from_overrides(use_tf_shapes=False, targets=["x86-64-v2"])


def graph() -> G:
    g = G()
    g.placeholder("x", [None, 8])
    g.const("w", np.full((8, 4), 0.5))
    g.const("big", np.full((1, 4000), 0.5))
    g.string_work("s", g.chain("a", "x", 4))
    g.matmul("m", "s", "w")
    g.const("dims", [2, -1], np.int32)
    g.node("r", "Reshape", ["m", "dims"], T=("type", F32), Tshape=("type", 3))
    g.node("out", "AddV2", [g.chain("b", "r", 3), "big_sum"], T=("type", F32))
    g.const("axis", 1, np.int32)
    g.node("big_sum", "Sum", ["big", "axis"], T=("type", F32), Tidx=("type", 3), keep_dims=True)
    g.unary("lonely", "x")
    return g


def said(name: str, g: G | None = None, **options: object):
    return explain((g or graph()).proto, name, ["out"], Options.from_overrides(OPTIONS, **options))


def test_a_node_in_a_kernel() -> None:
    found = said("a1")
    assert (found.status, found.cluster, found.inputs) == ("compiled", "disc_cluster_0", {"a0": "f32[x_d0,8]"})
    (kernel,) = found.kernels
    assert (kernel.kind, kernel.number, kernel.of, kernel.with_nodes) == ("loop", 1, 1, ["a0", "a2", "a3"])
    assert found.dims == {"x_d0": "axis 0 of x"}
    assert "kernel 1 of 1 (loop) computes it, with a0, a2, a3" in found.to_text()


def test_a_node_that_stays() -> None:
    found = said("s_s")
    assert (found.status, found.code, found.kernels) == ("in_tensorflow", "UNSUPPORTED_OP", [])
    assert found.reason and found.advice == REASON_ADVICE["UNSUPPORTED_OP"] and "way out" in found.to_text()
    small = said("b0", min_cluster_size=50, deny=["MatMul"])
    assert small.code == "CLUSTER_TOO_SMALL" and "--min-cluster-size 1" in small.advice
    assert said("m", deny=["MatMul"]).code == "DENIED"


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("x", "input", "read by disc_cluster_0"),
        ("w", "constant", "part of the code of disc_cluster_1"),
        ("big", "constant", "argument of disc_cluster_1"),
        ("lonely", "not_needed", "no output needs it"),
        ("r", "compiled", "with m, b0, b1, b2, out"),
        ("big_sum", "compiled", "done once"),
        ("a1:0", "compiled", "kernel 1 of 1"),
    ],
)
def test_other_nodes(name: str, status: str, words: str) -> None:
    found = said(name)
    assert found.status == status and words in found.to_text()


def test_names_that_are_not_there() -> None:
    with pytest.raises(GraphError, match="did you mean big_sum"):
        said("bigsum")
    with pytest.raises(GraphError, match="no node '☃'"):
        said("☃")


def test_an_inlined_call() -> None:
    g = G()
    g.placeholder("x", [None, 8])
    f = g.function("f", {"a": F32}, {"o": ("t3:y:0", F32)})
    at = "a"
    for i in range(4):
        body_node(f, f"t{i}", "Tanh", [at], T=("type", F32))
        at = f"t{i}:y:0"
    g.node("call", "PartitionedCall", ["x"], Tin=("types", [F32]), Tout=("types", [F32]), f=("func", "f"))
    g.unary("out", "call")
    found = said("call", g)
    if found.status == "inlined":
        assert "explain one of these" in found.to_text() and said("call/t1", g).status == "compiled"
    else:  # the call's name stays as an Identity
        assert found.op == "Identity"


def test_an_optimised_graph() -> None:
    optimized = optimize_graph_def(graph().proto, ["out"], OPTIONS).graph_def
    found = explain(optimized, "a1")
    assert (found.status, found.op, found.cluster) == ("compiled", "Tanh", "disc_cluster_0")
    assert found.kernels[0].with_nodes and "a0" in found.kernels[0].with_nodes
    assert explain(optimized, "s_s").status == "in_tensorflow"
    assert "original nodes" in explain(optimized, "disc_cluster_1").to_text()
    with pytest.raises(GraphError, match="did you mean"):
        explain(optimized, "a11")


def test_every_reason_has_a_way_out() -> None:
    assert REASON_ADVICE.keys() == REASON_TEXT.keys()


def test_a_saved_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of TensorFlow 1: the main graph is named, and nothing is written."""
    message = message_class("SavedModel")()
    meta = message.meta_graphs.add()
    meta.meta_info_def.tags.append("serve")
    meta.graph_def.CopyFrom(graph().proto)
    signature = meta.signature_def["serving_default"]
    signature.inputs["x"].name, signature.outputs["y"].name = "x:0", "out:0"
    (tmp_path / "saved_model.pb").write_bytes(message.SerializeToString())
    (explained,) = explain_model(tmp_path, "a1", OPTIONS).items()
    assert explained[0] == "(main graph)" and explained[1].cluster == "disc_cluster_0"
    with pytest.raises(GraphError, match=r"no node|no function .* has a node 'nothing'"):
        explain_model(tmp_path, "nothing", OPTIONS)
    assert main(["inspect", str(tmp_path), "--explain", "s_s", "--json", "--no-use-tf-shapes"]) == 0
    assert json.loads(capsys.readouterr().out)["(main graph)"]["code"] == "UNSUPPORTED_OP"
    assert [p.name for p in tmp_path.iterdir()] == ["saved_model.pb"]


def test_a_cluster_and_its_nodes_have_their_own_kernels() -> None:
    """In the graph and in its optimized form, where each kernel is named once for all targets."""
    g = G()
    g.placeholder("x", [None, 64])
    g.const("w", np.full((64, 64), 0.01))
    g.unary("t", g.matmul("m1", "x", "w"))
    g.unary("e", g.matmul("m2", "t", "w"), "Exp")
    optimized = optimize_graph_def(g.proto, ["e"], use_tf_shapes=False, targets=["x86-64-v3", "x86-64-v4"]).graph_def
    for graph in (g.proto, optimized):
        whole = explain(graph, "disc_cluster_0", None if graph is optimized else ["e"], Options.from_overrides(use_tf_shapes=False))
        nodes = [tuple(sorted(k.with_nodes)) for k in whole.kernels]
        assert nodes.count(("m1", "t")) == nodes.count(("e", "m2")) == 1
        assert "computes m1, t" in whole.to_text() and "original nodes" in whole.to_text()
        (one,) = explain(graph, "t", None if graph is optimized else ["e"], Options.from_overrides(use_tf_shapes=False)).kernels
        assert one.with_nodes == ["m1"] and one.of == len(whole.kernels)
