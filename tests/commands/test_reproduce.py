"""`disc-tf reproduce`: a small graph for each internal error, without the model's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import disc_tf
from disc_tf.cli import main
from disc_tf.codegen import program
from disc_tf.testing.tf_case import tensorflow


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A product with weights, and an ArgMax of a concatenation."""
    tf = tensorflow()
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 8], name="x")
        weight = tf.constant(np.full((8, 8), 0.125, "f"), name="weight")
        hidden = tf.nn.relu(tf.matmul(x, weight), name="hidden")
        tf.identity(tf.tanh(hidden) * 3.0, name="other")
        tf.argmax(tf.concat([hidden, x, tf.nn.softmax(hidden)], 0, name="both"), 0, name="best")
    path = tmp_path / "model.pb"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


def break_reductions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of reductions of several results cannot be emitted behind a concatenation."""
    original = program.emit_fusion

    def emit(fusion: Any, *args: Any) -> Any:
        names = {op.name for op in fusion.ops}
        if names >= {"reduce", "concatenate"}:
            raise IndexError("put in by a test")
        return original(fusion, *args)

    monkeypatch.setattr(program, "emit_fusion", emit)


def test_writes_a_small_graph_that_shows_it(model, tmp_path, monkeypatch, capsys) -> None:
    break_reductions(monkeypatch)
    out = tmp_path / "defects"
    assert main(["reproduce", str(model), "-o", str(out), "--target", "native", "--json"]) == 0
    (defect,) = json.loads(capsys.readouterr().out)["defects"]
    assert (defect["phase"], defect["error"], defect["exact"]) == ("kernel emission", "IndexError: put in by a test", True)
    graph = tensorflow().compat.v1.GraphDef.FromString(Path(defect["file"]).read_bytes())
    ops = sorted(n.op for n in graph.node if n.op not in ("Placeholder", "Const"))
    assert ops == ["ArgMax", "ConcatV2"]
    assert all(len(n.attr["value"].tensor.tensor_content) <= 256 for n in graph.node)
    report = disc_tf.optimize_graph_def(graph, defect["outputs"], targets=("native",), min_cluster_size=1).report
    assert [d.error for c in report.clusters for d in c.defects] == ["IndexError: put in by a test"]


def test_says_that_there_is_none(model, tmp_path, capsys) -> None:
    assert main(["reproduce", str(model), "-o", str(tmp_path / "defects"), "--target", "native"]) == 0
    assert "no internal error" in capsys.readouterr().out


def test_not_a_graph(tmp_path, capsys) -> None:
    (tmp_path / "x.pb").write_bytes(b"\xff\xff\xff")
    assert main(["reproduce", str(tmp_path / "x.pb"), "-o", str(tmp_path / "d")]) != 0
    assert "x.pb" in capsys.readouterr().err
