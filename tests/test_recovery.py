"""An internal error of a phase costs the fusion that it is about: that is compiled apart, and the report says so. Errors are put into each
phase; what comes out is compared with TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import disc_tf
from disc_tf.codegen import program
from disc_tf.codegen.cpu import emit
from disc_tf.fusion import plan
from disc_tf.report import Defect, Report
from disc_tf.testing.session_case import GraphSession, assert_same_answer
from disc_tf.testing.tf_case import tensorflow

Failing = Callable[[Any], bool]


def everything(tf: Any) -> None:
    """Rows, columns, loops, products, attention, a convolution, a loop in the graph, views, and what moves data."""
    v1 = tf.compat.v1
    x = v1.placeholder(tf.float32, [None, 6, 8], name="x")
    y = v1.placeholder(tf.float32, [None, 6, 8], name="y")
    both = tf.concat([x, y], 0, name="both")
    tf.argmax(both, 0, name="best")
    probs = tf.nn.softmax(tf.matmul(x, y, transpose_b=True), name="probs")
    seen = tf.matmul(probs, y, name="seen")
    flat = tf.reshape(tf.transpose(seen, [0, 2, 1]), [-1, 48])
    weight = tf.constant(np.random.default_rng(0).normal(size=(48, 10)).astype("f"))
    hidden = tf.nn.relu(tf.matmul(flat, weight) + 1.0, name="hidden")
    centred = hidden - tf.reduce_mean(hidden, 1, keepdims=True)
    tf.tanh(centred * 0.1 + tf.reduce_sum(hidden, 0), name="normed")
    kernel = tf.constant(np.random.default_rng(1).normal(size=(3, 8, 4)).astype("f"))
    tf.nn.relu(tf.nn.conv1d(tf.pad(x, [[0, 0], [1, 1], [0, 0]]), kernel, 1, "VALID"), name="filtered")
    tf.identity(tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, tf.tanh(a + x[:, i])), [0, y[:, 0]])[1], name="state")
    tf.reduce_max(tf.stack([x[:, ::2], tf.tile(y[:, :3], [1, 1, 1])], 1), [1, 3], name="most")


OUTPUTS = ["best", "seen", "normed", "filtered", "state", "most"]


@pytest.fixture(scope="module")
def model() -> Any:
    """The graph, feeds, and TensorFlow's answer."""
    tf = tensorflow()
    import disc_tf.ops  # noqa: F401

    with tf.Graph().as_default() as graph:
        everything(tf)
    rng = np.random.default_rng(2)
    feeds = {"x:0": rng.normal(size=(3, 6, 8)).astype("f"), "y:0": rng.normal(size=(3, 6, 8)).astype("f")}
    fetches = [f"{o}:0" for o in OUTPUTS]
    return graph.as_graph_def(), feeds, fetches, GraphSession(graph.as_graph_def(), grappler=False).run(fetches, feeds)


def optimized(model: Any) -> Report:
    """The report of the optimised graph, once it has given TensorFlow's answer."""
    graph_def, feeds, fetches, want = model
    result = disc_tf.optimize_graph_def(graph_def, OUTPUTS, min_cluster_size=1, targets=("native",))
    assert_same_answer(want, GraphSession(result.graph_def, grappler=False).run(fetches, feeds))
    return result.report


def broken(monkeypatch: Any, module: Any, name: str, fails: Failing, most: int = 1 << 30) -> list[Any]:
    """Let a function raise for some first arguments, ``most`` times; what it was refused for."""
    original, seen = getattr(module, name), []

    def wrapper(first: Any, *args: Any, **more: Any) -> Any:
        if len(seen) < most and fails(first):
            seen.append(first)
            raise IndexError("put in by a test")
        return original(first, *args, **more)

    monkeypatch.setattr(module, name, wrapper)
    return seen


def check_report(report: Report, phase: str) -> None:
    assert [c.status for c in report.clusters] == ["compiled"] * len(report.clusters)
    assert report.coverage > 0.9  # as without any
    defects = found(report)
    assert defects
    for d in defects:
        assert (d.phase, d.error, d.outcome) == (phase, "IndexError: put in by a test", "apart")
    assert len(report.warnings) == len(defects)
    assert all("put in by a test" in w and "disc-tf reproduce" in w for w in report.warnings)
    assert found(Report.from_dict(json.loads(report.to_json()))) == defects


def found(report: Report) -> list[Defect]:
    return [d for c in report.clusters for d in c.defects]


def test_without_any(model) -> None:
    report = optimized(model)
    assert not report.warnings
    assert not found(report)
    assert report.coverage > 0.9


def slow_but(fast: list[str], *others: str) -> list[Any]:
    return [*fast, *(pytest.param(name, marks=pytest.mark.slow) for name in others)]


@pytest.mark.parametrize("kind", slow_but(["reduce"], "loop", "rows", "gemm", "conv", "attention"))
def test_kernel_emission(model, monkeypatch, kind) -> None:
    """The fused form of a kind: each op of it alone is emitted."""
    from disc_tf.codegen.cpu import conv, gemm, loops, reduce, rows  # noqa: F401  they register themselves

    emit._load()
    original = emit.EMITTERS[kind]

    def fails(fusion: Any, ctx: Any) -> Any:
        if kind == "rows" or sum(op.name not in ("constant", "broadcast_in_dim", "disc.dim") for op in fusion.ops) > 1:
            raise IndexError("put in by a test")
        return original(fusion, ctx)

    monkeypatch.setitem(emit.EMITTERS, kind, fails)
    report = optimized(model)
    check_report(report, "kernel emission")
    named = {n for d in found(report) for n in d.nodes}
    assert named
    assert named < {n for c in report.clusters for n in c.node_names}


@pytest.mark.parametrize("name", slow_but(["bufferize"], "make_plan", "BodyEmitter", "compile_image"))
def test_phases_of_a_whole_body(model, monkeypatch, name) -> None:
    """The first attempt fails: everything is compiled apart."""
    phase = {"make_plan": "fusion planning", "bufferize": "buffers", "BodyEmitter": "host program", "compile_image": "LLVM"}[name]
    if name == "make_plan":
        seen = broken(monkeypatch, plan, "gemm_group", lambda _: True, 1)
    else:
        seen = broken(monkeypatch, program, name, lambda _: True, 1)
    report = optimized(model)
    assert seen
    check_report(report, phase)
    assert not any(k.kind in ("rows", "attention") for k in report.kernels)


@pytest.mark.parametrize(
    "name", slow_but(["emit_fusion"], "gemm_group", "bufferize", "BodyEmitter", "compile_image", "emit_segment", "_artifact")
)
def test_what_fails_apart_too_stays_in_tensorflow(model, monkeypatch, name) -> None:
    broken(monkeypatch, plan if name == "gemm_group" else program, name, lambda _: True)
    report = optimized(model)
    failed = [c for c in report.clusters if c.status == "failed"]
    assert len(failed) >= (1 if name == "gemm_group" else len(report.clusters))
    for cluster in failed:
        assert "put in by a test" in cluster.reason
        assert [d.outcome for d in cluster.defects][-1] == "tensorflow"
    assert any("left in TensorFlow" in w for w in report.warnings)


@pytest.mark.parametrize("phase", ["passes", "lowering"])
def test_before_there_are_fusions(model, monkeypatch, phase) -> None:
    """Nothing is known to be at fault: the cluster stays in TensorFlow, with a defect in the report."""
    from disc_tf import compiler, optimizer

    broken(monkeypatch, *((compiler, "optimize") if phase == "passes" else (optimizer, "import_cluster")), lambda _: True)
    report = optimized(model)
    assert [d.outcome for d in found(report)] == ["tensorflow"] * len(report.clusters)
