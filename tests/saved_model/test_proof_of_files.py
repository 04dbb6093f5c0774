"""What was proved is what is published: the files of the directory, of frozen models too, and models that draw random numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import disc_tf.ops  # noqa: F401  registers the op
from disc_tf import saved_model_freeze
from disc_tf.cli import main
from disc_tf.frontend.saved_model import SavedModelError, read_saved_model, write_saved_model
from disc_tf.saved_model import MARKER, optimize_saved_model
from disc_tf.saved_model_files import fingerprint, op_list


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(tf.ones([8, 4]) / 8)

        @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, name="x")])
        def serve(self, x):
            return {"y": tf.tanh(tf.matmul(x, self.w) + 1.0) * 2.0}

    path = tmp_path_factory.mktemp("model") / "in"
    module = Model()
    tf.saved_model.save(module, str(path), signatures=module.serve)
    return path


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("left", [None, 0])
def test_the_files_that_were_proved_are_published(model: Path, tmp_path: Path, freeze: bool, left: int | None) -> None:
    """left: how many clusters the proof leaves, None for all. Only our note of it is written afterwards."""
    seen: dict[str, bytes] = {}

    def prove(source: Path, candidate: Path, report: Any, put_back: Callable[[Any], None], *, spent: float) -> None:
        assert source == model  # the one that was given, not a frozen copy
        if left is not None:
            put_back(list(report.clusters))
            for c in report.clusters.values():
                c.status = "put_back"
        seen.update(contents(candidate))
        report.verified = True

    optimize_saved_model(model, tmp_path / "out", targets=("native",), freeze=freeze, prove=prove)
    published = contents(tmp_path / "out")
    assert json.loads(published.pop(MARKER))["verified"] is True
    assert published == seen and len(seen) >= 2


@pytest.mark.slow
def test_a_frozen_model_is_compared_with_the_model_that_was_given(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["optimize", str(model), "-o", str(tmp_path / "out"), "--freeze", "--no-timing", "--target", "native", "-q", "--json"]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verified"] and len(report["routes"]) == 3

    def wrong(directory: Path, message: Any) -> None:
        for graph in (m.graph_def for m in message.meta_graphs):
            for node in (*graph.node, *(n for f in graph.library.function for n in f.node_def)):
                if node.op == "Tanh":
                    node.op = "Sigmoid"
        write_saved_model(directory, message)

    monkeypatch.setattr(saved_model_freeze, "write_saved_model", wrong)
    with pytest.raises(SavedModelError, match=r"cannot freeze .*: the frozen model is not the same: y: error above"):
        optimize_saved_model(model, tmp_path / "other", targets=("native",), freeze=True, timing=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True])
def test_random_models(tmp_path: Path, frozen: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Seedless ops of all kinds; a GraphDef and a SavedModel."""

    def draw(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            "uniform": tf.tanh(tf.random.uniform(tf.shape(x)) * 2.0 + x),
            "normal": tf.exp(tf.random.normal(tf.shape(x)) * 0.1 + x),
            "dropout": tf.nn.dropout(tf.tanh(x * 2.0 + 1.0), 0.5),
            "ids": tf.random.categorical(tf.tanh(x * 2.0 + 1.0), 3),
            "fixed": tf.tanh(x * 3.0 + 1.0),
        }

    if frozen:
        with tf.Graph().as_default() as graph:
            found = draw(tf.compat.v1.placeholder(tf.float32, [None, 8], name="x"))
            outputs = [tf.identity(value, name=f"out_{name}").name for name, value in found.items()]
        source, out = tmp_path / "in.pb", tmp_path / "out.pb"
        source.write_bytes(graph.as_graph_def().SerializeToString())
        more = ["--outputs", *outputs]
    else:
        module = tf.Module()
        module.serve = tf.function(draw, input_signature=[tf.TensorSpec([None, 8], tf.float32, name="x")])
        source, out, more = tmp_path / "in", tmp_path / "out", []
        tf.saved_model.save(module, str(source), signatures=module.serve)
    command = ["optimize", str(source), "-o", str(out), "--no-timing", "--target", "native", "-q", "--json", "--points", "2"]
    assert main([*command, *more]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = report["verification"] if frozen else report["verification"]["serving_default"]
    clusters = report["clusters"] if frozen else [c for f in report["functions"] if f["report"] for c in f["report"]["clusters"]]
    assert report["verified"] and clusters and all(c["status"] == "compiled" for c in clusters)
    for row in rows:
        assert row["message"].startswith("random in TensorFlow itself, compared by distribution in ") and len(row["elements"]) == 5
        assert len(row["max_abs"]) == 1  # the fixed one


@pytest.mark.slow
def test_the_command_does_not_import_tensorflow_itself(model: Path, tmp_path: Path) -> None:
    """Seconds for a small model: what is asked of TensorFlow is asked where it is imported already. The op list is TensorFlow's own."""
    command = ["optimize", str(model), "-o", str(tmp_path / "out"), "--no-timing", "--target", "native", "-q"]
    code = f"import sys; from disc_tf.cli import main; sys.exit(main({command}) or 'tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    for path in (model, tmp_path / "out"):
        (meta,) = read_saved_model(path).meta_graphs
        assert op_list(meta.graph_def.SerializeToString()) == meta.meta_info_def.stripped_op_list.SerializeToString(deterministic=True)
    assert fingerprint(tmp_path / "out")
