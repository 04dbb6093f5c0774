"""Skeletons compile as the graphs that they are of, and what comes back fits into these."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.rewrite import LAUNCH_OP, restore
from disc_tf.frontend.tfproto import serialized
from disc_tf.optimizer import Request, optimize, optimize_graph_def
from disc_tf.options import OptionError, Options
from disc_tf.remote.canonical import Canonical
from disc_tf.remote.compile import compile_skeleton
from disc_tf.remote.merge import Answer, ResultError, compile_remotely
from disc_tf.remote.messages import message_class, new
from disc_tf.runtime.artifact import pack, tensor_digest, unpack
from disc_tf.runtime.executable import DiscError, Executable
from tests.frontend.graphs import F32, G, model

SETTINGS = Options.from_overrides(targets=("native",), use_tf_shapes=False, min_cluster_size=1)
RNG = np.random.default_rng(5)
W, B = RNG.standard_normal((8, 3)).astype(np.float32), RNG.standard_normal(3).astype(np.float32)


class Here:
    """A transport that compiles in this process; ``change`` alters what comes back."""

    def __init__(self, change: Callable[[Any], None] = lambda _result: None) -> None:
        self.change = change
        self.requests: list[Canonical] = []

    def compile(self, request: Canonical, *, dry_run: bool, progress: Callable[[str], None]) -> Answer:
        self.requests.append(request)
        result = compile_skeleton(request.graph, request.outputs, request.feeds, request.options, dry_run=dry_run)
        self.change(result)
        return Answer(result)


def remotely(graph_def: Any, outputs: list[str] | None, transport: Any = None, settings: Options = SETTINGS, **arguments: Any):
    transport = transport or Here()
    request = Request(graph_def, outputs, settings, elsewhere=lambda x, r: compile_remotely(x, r, transport), **arguments)
    return optimize(request)


def mlp() -> G:
    g = G()
    g.placeholder("x", [None, 8])
    g.const("w", W)
    g.const("b", B)
    g.const("half", 0.5)
    g.const("limit", 1e6)
    g.node("biased", "BiasAdd", [g.matmul("m", "x", "w"), "b"], T=("type", F32))
    g.binary("scaled", "biased", "half", "Mul")
    g.unary("y", "scaled")
    g.node("max", "Max", ["y", "axes"], T=("type", F32), Tidx=("type", 3), keep_dims=False)
    g.const("axes", [0, 1], np.int32)
    g.node("ok", "Less", ["max", "limit"], T=("type", F32))
    g.const("said", np.array([b"too large"], object), object)
    g.node("check", "Assert", ["ok", "said", "limit"], T=("types", [7, F32]), summarize=3)
    return g


def launch_of(graph_def: Any) -> Any:
    (node,) = [n for n in graph_def.node if n.op == LAUNCH_OP]
    return node


def run(graph_def: Any, x: np.ndarray) -> list[np.ndarray]:
    """The answers of the graph's one launch, its constants from the graph."""
    node = launch_of(graph_def)
    constants = {n.name: n for n in graph_def.node if n.op == "Const"}
    from disc_tf.frontend.tensor_proto import to_numpy

    with Executable.from_bytes(node.attr["executable"].s) as executable:
        values = [to_numpy(constants[t].attr["value"].tensor) if t in constants else x for t in node.input if not t.startswith("^")]
        return list(executable.run(values))


def test_a_graph_compiled_elsewhere_answers_the_same() -> None:
    graph_def = mlp().proto
    here, there = optimize_graph_def(graph_def, ["y", "^check"], SETTINGS), remotely(graph_def, ["y", "^check"])
    assert there.report.coverage == 1.0 == here.report.coverage
    assert [c.node_names for c in there.report.clusters] == [c.node_names for c in here.report.clusters] or there.report.clusters
    assert set(there.report.clusters[0].node_names) == set(here.report.clusters[0].node_names)
    for rows in (0, 1, 7, 300):
        x = RNG.standard_normal((rows, 8)).astype(np.float32)
        (mine,), (theirs,) = run(here.graph_def, x), run(there.graph_def, x)
        np.testing.assert_allclose(theirs, mine, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(theirs, np.tanh((x @ W + B) * np.float32(0.5)), rtol=1e-5, atol=1e-6)


def test_the_graph_can_be_restored_and_clusters_put_back() -> None:
    graph_def = mlp().proto
    there = remotely(graph_def, ["y", "^check"])
    assert serialized(restore(there.graph_def)) == serialized(graph_def)
    assert there.without([there.report.clusters[0].name]) is graph_def


def test_names_digests_and_messages_are_the_owners() -> None:
    there = remotely(mlp().proto, ["y", "^check"])
    artifact = unpack(launch_of(there.graph_def).attr["executable"].s)
    assert {a.name: a.digest for a in artifact.args}["w"] == tensor_digest(W, "f32")
    said = [(c.node, c.message) for c in artifact.checks if "assertion" in c.message]
    assert said == [("check", "assertion failed: [too large] [1000000.0]")]
    named = {n for nodes in artifact.kernels.values() for n in nodes}
    assert named and named <= {n.name for n in mlp().proto.node}
    text = there.report.to_json()
    assert '"n.' not in text and "biased" in text


def test_a_failed_assertion_says_what_its_owner_wrote() -> None:
    g = mlp()
    for node in g.proto.node:
        if node.name == "limit":
            node.attr["value"].tensor.tensor_content = np.float32(-2).tobytes()
            node.attr["value"].tensor.ClearField("float_val")
    there = remotely(g.proto, ["y", "^check"])
    with pytest.raises(DiscError, match="too large") as caught:
        run(there.graph_def, np.ones((2, 8), np.float32))
    assert caught.value.node == "check"


@pytest.mark.parametrize("name", ["tiny_bert", "ctr_din", "rnn_tagger", "mobilenet_v2"])
def test_as_much_of_real_graphs_compiles(name: str) -> None:
    graph_def = model(name)
    settings = dataclasses.replace(SETTINGS, min_cluster_size=4)
    here = optimize_graph_def(graph_def, None, settings, dry_run=True)
    there = remotely(graph_def, None, settings=settings, dry_run=True)
    assert here.report.coverage == there.report.coverage > 0.9
    assert [sorted(c.node_names) for c in here.report.clusters] == [sorted(c.node_names) for c in there.report.clusters]


def test_options_travel() -> None:
    transport = Here()
    g = mlp()
    settings = dataclasses.replace(SETTINGS, deny=("Tanh",), hints=("x: [rows<=32, ?]",), fuel=1, time_budget=100)
    there = remotely(g.proto, ["y"], transport, settings)
    (request,) = transport.requests
    assert list(request.options.denied) == [k for k, v in request.names.items() if v == "y"]
    assert request.options.fuel == 1 and request.options.time_budget == 100
    assert [h.partition(": ")[2] for h in request.options.hints] == ["[d1<=32, ?]"], "the name of the dim is its user's"
    assert "y" not in there.report.clusters[0].node_names
    assert {x.node: x.code for x in there.report.left_out}["y"] == "DENIED"
    assert there.report.options == settings.to_dict()


def test_allowing_and_denying_by_name_happens_at_home() -> None:
    transport = Here()
    settings = dataclasses.replace(SETTINGS, allow=("bias*", "m"))
    remotely(mlp().proto, ["y"], transport, settings)
    (request,) = transport.requests
    denied = {request.names[n] for n in request.options.denied}
    assert {"scaled", "y"} <= denied and not {"biased", "m"} & denied


def _swap_types(result: Any) -> None:
    artifact = unpack(result.clusters[0].executable)
    changed = dataclasses.replace(artifact, results=tuple(dataclasses.replace(r, dtype="f64") for r in artifact.results))
    result.clusters[0].executable = pack(changed)


BAD_ANSWERS = {
    "unknown node": (lambda r: r.clusters[0].nodes.append("n.99"), "no node"),
    "node twice": (lambda r: r.clusters.add().CopyFrom(r.clusters[0]), "two clusters"),
    "argument missing": (lambda r: r.clusters[0].args.pop(), "do not agree"),
    "no such port": (lambda r: r.clusters[0].results.__setitem__(0, "n.0:7"), "outputs"),
    "unknown kind": (lambda r: r.clusters[0].kinds.__setitem__(0, "magic"), "unknown kind"),
    "wrong kind": (lambda r: r.clusters[0].kinds.__setitem__(0, "device"), "of kind device"),
    "other input": (lambda r: r.clusters[0].args.__setitem__(len(r.clusters[0].args) - 1, r.clusters[0].results[0]), "read inside"),
    "unknown constant": (lambda r: r.clusters[0].constants.append("n.99"), "no node"),
    "unknown control": (lambda r: r.clusters[0].controls.append("n.99"), "no node"),
    "type": (_swap_types, "another type"),
    "no artefact": (lambda r: setattr(r.clusters[0], "executable", b"\x7fELF"), "cannot be read"),
    "no report": (lambda r: setattr(r, "report_json", b"[1"), "cannot be read"),
    "report of something else": (lambda r: setattr(r, "report_json", b"[]"), "cannot be read"),
    "unknown compiled": (lambda r: r.compiled.append("n.99"), "no node"),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_answers_that_do_not_fit(name: str) -> None:
    change, message = BAD_ANSWERS[name]
    with pytest.raises(ResultError, match=message):
        remotely(mlp().proto, ["y"], Here(change))


BAD_REQUESTS = [
    (b"\xff\xff", ["y"], {}, GraphError, "GraphDef"),
    (serialized(mlp().proto), [], {}, GraphError, "no outputs"),
    (serialized(mlp().proto), ["nobody"], {}, GraphError, "nobody"),
    (serialized(mlp().proto), ["y"], {"targets": ["native"]}, OptionError, "name the instruction set"),
    (serialized(mlp().proto), ["y"], {"targets": ["z80"]}, OptionError, "z80"),
    (serialized(mlp().proto), ["y"], {"hints": ["q: [1]"]}, GraphError, "no such input"),
]


@pytest.mark.parametrize(("graph", "outputs", "options", "error", "message"), BAD_REQUESTS)
def test_bad_requests(graph: bytes, outputs: list[str], options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        compile_skeleton(graph, outputs, (), new("CompileOptions", **options), dry_run=True)


def test_progress_and_dry_run() -> None:
    seen: list[tuple[str, float, str]] = []
    graph = serialized(mlp().proto)
    options = new("CompileOptions", targets=["x86-64-v2"], min_cluster_size=1)
    result = compile_skeleton(graph, ["y"], (), options, progress=lambda *event: seen.append(event))
    assert any("code for" in phase for phase, _, _ in seen) and all(f <= 1 for _, f, _ in seen)
    dry = compile_skeleton(graph, ["y"], (), options, dry_run=True)
    assert not dry.clusters and json.loads(dry.report_json)["clusters"][0]["status"] == "planned"
    assert message_class("CompileResult").FromString(result.SerializeToString()) == result


def test_nothing_here_imports_tensorflow_or_what_a_client_does_not_have() -> None:
    code = """
import sys
import disc_tf.remote.merge, disc_tf.remote.canonical, disc_tf.remote.skeleton, disc_tf.remote.connection
print(sorted({"tensorflow", "jax", "llvmlite", "scipy"} & set(sys.modules)))
import disc_tf.remote.compile
print("tensorflow" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "False"]
