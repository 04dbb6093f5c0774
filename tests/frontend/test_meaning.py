"""The rewritten graph means what the original meant: each launch is replaced by a call of its `original` function and both graphs run in
TensorFlow. (What compiled code computes is the business of the differential tests.)"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disc_tf.frontend.analysis import analyse
from disc_tf.frontend.cluster import make_clusters
from disc_tf.frontend.functions import inline_calls
from disc_tf.frontend.graph import Graph, resolve_outputs
from disc_tf.frontend.importer import import_cluster
from disc_tf.frontend.rewrite import LAUNCH_OP, Launch, restore, rewrite
from disc_tf.frontend.tfproto import graph_from_bytes, serialized
from tests.frontend.graphs import F32, I32, STRING, G, body_node, model

tf = pytest.importorskip("tensorflow")


def as_calls(new: Any) -> Any:
    """The rewritten graph with calls of ``original`` in place of launches, as TensorFlow's message."""
    graph = tf.compat.v1.GraphDef.FromString(serialized(new))
    for node in graph.node:
        if node.op != LAUNCH_OP:
            continue
        types = {k: list(node.attr[k].list.type) for k in ("Tconst", "Thost", "Targs", "Thostout", "Tout")}
        function = node.attr["original"].func.name
        shapes = node.attr["_output_shapes"]
        kept = tf.compat.v1.AttrValue()
        kept.CopyFrom(shapes)
        node.attr.clear()
        node.op = "StatefulPartitionedCall"
        node.attr["f"].func.name = function
        node.attr["Tin"].list.SetInParent()
        node.attr["Tin"].list.type.extend(types["Tconst"] + types["Thost"] + types["Targs"])
        node.attr["Tout"].list.SetInParent()
        node.attr["Tout"].list.type.extend(types["Thostout"] + types["Tout"])
        node.attr["_output_shapes"].CopyFrom(kept)
    return graph


def run(graph_def: Any, feeds: dict[str, np.ndarray], fetches: list[str]) -> list[np.ndarray]:
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        return session.run([f if ":" in f else f"{f}:0" for f in fetches], {f"{k}:0": v for k, v in feeds.items()})


def both(original: Any, outputs: list[str], feeds: dict[str, np.ndarray], **options: Any) -> Any:
    """Run original and rewritten graph; compare; return the rewritten graph."""
    graph = Graph(inline_calls(original, outputs).graph_def)
    fetches, targets = resolve_outputs(graph, outputs)
    analysis = analyse(graph, [*(n for n, _ in fetches), *targets])
    clustering = make_clusters(analysis, fetches, targets, **{"min_cluster_size": 1, **options})
    launches = [Launch.of(import_cluster(clustering, c), b"x") for c in clustering.clusters]
    assert launches
    new = rewrite(original, clustering, launches)
    expected = run(tf.compat.v1.GraphDef.FromString(serialized(original)), feeds, outputs)
    found = run(as_calls(new), feeds, outputs)
    for a, b in zip(expected, found, strict=True):
        # a function's body may be folded and reordered differently by TensorFlow, hence not bitwise
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    assert serialized(restore(new)) == serialized(original)
    return new


def test_mixed_graph():
    g = G()
    g.placeholder("x", [None, 6])
    g.const("w", np.random.default_rng(0).standard_normal((300, 6)))
    g.const("two", 2.0)
    g.node("picked", "GatherV2", ["w", g.const("i", [3, 299], np.int32), g.const("axis0", 0, np.int32)],
           Tparams=("type", F32), Tindices=("type", I32), Taxis=("type", I32), batch_dims=0)  # fmt: skip
    g.node("sum", "Sum", ["picked", "axis0"], T=("type", F32), Tidx=("type", I32), keep_dims=False)
    g.binary("a", "x", "sum")
    back = g.string_work("text", "a")
    g.node("halves", "Split", [g.const("axis", 1, np.int32), "a"], T=("type", F32), num_split=2)
    g.binary("b", "halves:1", "two", "Mul")
    g.node("shaped", "Reshape", [back, g.const("dims", [-1, 3], np.int32)], T=("type", F32), Tshape=("type", I32))
    g.node("c", "ConcatV2", ["b", "shaped", "axis0"], T=("type", F32), N=2, Tidx=("type", I32))
    new = both(g.proto, ["c", "halves:1", "a"], {"x": np.arange(18, dtype=np.float32).reshape(3, 6)})
    assert sum(n.op == LAUNCH_OP for n in new.node) == 2


def test_inlined_functions_and_checks():
    g = G()
    g.placeholder("x", [None])
    g.placeholder("n", [], I32)
    f = g.function("f", {"a": F32, "k": I32}, {"out": ("y:z:0", F32)})
    body_node(f, "limit", "Const", [], dtype=("type", I32), value=np.array(10, np.int32))
    body_node(f, "text", "Const", [], dtype=("type", STRING), value=np.array(b"k is too large", object))
    body_node(f, "less", "Less", ["k", "limit:output:0"], T=("type", I32))
    body_node(f, "assert", "Assert", ["less:z:0", "text:output:0"], T=("types", [STRING]))
    body_node(f, "kf", "Cast", ["k", "^assert"], SrcT=("type", I32), DstT=("type", F32))
    body_node(f, "y", "Mul", ["a", "kf:y:0"], T=("type", F32))
    f.control_ret["assert"] = "assert"
    f.signature.control_output.append("assert")
    f.signature.is_stateful = True
    g.node("call", "StatefulPartitionedCall", ["x", "n"], f=("func", "f"), Tin=("types", [F32, I32]), Tout=("types", [F32]))
    g.unary("y", "call")
    feeds = {"x": np.arange(3, dtype=np.float32), "n": np.array(7, np.int32)}
    new = both(g.proto, ["y", "call"], feeds)
    with pytest.raises(tf.errors.InvalidArgumentError, match="k is too large"):
        run(as_calls(new), {**feeds, "n": np.array(11, np.int32)}, ["y"])


def test_effects_run_before_what_waits_for_them():
    """A counter that must be increased before it is read."""
    g = G()
    types = {"dtype": ("type", F32)}
    g.node("var", "VarHandleOp", shape=("shape", []), shared_name=b"v", container=b"", **types)
    g.placeholder("x", [None])
    g.const("one", 1.0)
    g.node("init", "AssignVariableOp", ["var", "one"], **types)
    g.unary("pure", "x", "Identity", controls=["init"])
    g.node("group", "NoOp", ["^pure"])
    g.node("read", "ReadVariableOp", ["var", "^group"], **types)
    g.binary("y", "x", "read")
    g.unary("z", "y", controls=["group"])
    both(g.proto, ["z"], {"x": np.arange(3, dtype=np.float32)})


@pytest.mark.parametrize("options", [{}, {"deny": ["BatchMatMulV2", "Shape", "Mean"]}], ids=str)
def test_tiny_bert_in_pieces(options):
    original = model("tiny_bert")
    rng = np.random.default_rng(1)
    for node in original.node:  # small weights instead of the stripped ones
        if "_disc_fill" in node.attr:
            tensor = node.attr["value"].tensor
            shape = [d.size for d in tensor.tensor_shape.dim]
            tensor.tensor_content = (rng.standard_normal(shape) * 0.05).astype(np.float32).tobytes()
            del node.attr["_disc_fill"]
    original = graph_from_bytes(serialized(original))
    names = [n.name for n in original.node if n.op == "Placeholder"]
    feeds = {n: rng.integers(0, 2, (2, 7)).astype(np.int32) for n in names}
    both(original, ["Identity", "Identity_1"], feeds, **options)
