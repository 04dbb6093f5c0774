"""`inspect --explain` and `--draw`, and what a dry run says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disc_tf.cli import main
from disc_tf.frontend.tfproto import serialized
from tests.frontend.graphs import G

QUICK = ["--target", "x86-64-v2", "--min-cluster-size", "1", "--no-use-tf-shapes"]


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    g = G()
    g.placeholder("x", [None, 8])
    g.string_work("s", g.chain("a", "x", 3))
    path = tmp_path / "in.pb"
    path.write_bytes(serialized(g.proto))
    return path


def run(*arguments: object) -> int:
    return main([str(a) for a in arguments])


def test_explain(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", graph, "--explain", "a1", *QUICK) == 0
    assert "a1 (Tanh): compiled in disc_cluster_0" in capsys.readouterr().out
    assert run("inspect", graph, "--explain", "s", "--json", *QUICK) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "in_tensorflow" and found["advice"]
    assert run("inspect", graph, "--explain", "a11", *QUICK) == 3
    assert "did you mean" in capsys.readouterr().err


def test_draw(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, start in (("c.svg", "<?xml"), ("c.dot", "digraph"), ("c.GV", "digraph")):
        assert run("inspect", graph, "--draw", tmp_path / name, *QUICK) == 0
        assert (tmp_path / name).read_text().startswith(start)
    assert run("inspect", graph, "--draw", tmp_path / "c.png") == 2
    assert run("inspect", graph, "--draw", tmp_path / "no" / "c.svg") == 3
    assert "end the name in .svg or .dot" in capsys.readouterr().err


def test_an_optimised_graph_counts_its_nodes(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.pb"
    assert run("optimize", graph, "-o", out, "--no-verify", "-q", *QUICK) == 0
    assert run("inspect", out) == 0
    assert "disc_cluster_0: 3 original nodes, 1 argument, 1 result, " in capsys.readouterr().out
    assert run("inspect", out, "--draw", tmp_path / "c.svg") == 2
    assert "disc-tf restore" in capsys.readouterr().err


def test_dry_run(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("optimize", graph, "--dry-run", *QUICK) == 0
    said = capsys.readouterr().out
    assert "1 of 1 clusters would be compiled" in said and "dry run: nothing was compiled, verified or written" in said
    assert "nothing compiled" not in said


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel with two signatures, and what `optimize` makes of it."""
    import tensorflow as tf

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, "x"), tf.TensorSpec([], tf.int64, "k")])
        def serve(self, x, k):
            y = tf.tanh(x) * 2.0 + tf.exp(x) - tf.cast(k, tf.float32)
            return {"y": tf.nn.softmax(y), "n": tf.strings.as_string(k)}

        @tf.function(input_signature=[tf.TensorSpec(None, tf.bfloat16, "z")])
        def other(self, z):
            return {"w": -z}

    directory = tmp_path_factory.mktemp("exported")
    model = Model()
    tf.saved_model.save(model, str(directory / "in"), {"serving_default": model.serve, "other": model.other})
    assert run("optimize", directory / "in", "-o", directory / "out", "-q", "--no-verify", "--target", "native") == 0
    return directory


@pytest.mark.parametrize("which", ["in", "out"])
def test_the_signatures_of_a_model(exported: Path, which: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", exported / which) == 0
    said = capsys.readouterr().out
    assert "signature serving_default:\n  takes k int64[]\n  takes x float32[?, 8]\n  gives n string[]\n  gives y float32[?, 8]\n" in said
    assert "signature other:\n  takes z bfloat16 of any rank\n  gives w bfloat16 of any rank\n" in f"{said}\n"
    assert run("inspect", exported / which, "--json") == 0
    interface = json.loads(capsys.readouterr().out)["interface"]
    assert interface["serving_default"]["inputs"] == {"k": {"dtype": "int64", "shape": []}, "x": {"dtype": "float32", "shape": [None, 8]}}
    assert interface["other"]["outputs"] == {"w": {"dtype": "bfloat16", "shape": None}}
    assert interface["other"]["method"] == "tensorflow/serving/predict"
