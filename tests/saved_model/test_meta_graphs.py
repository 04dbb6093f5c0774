"""A file with several MetaGraphs: each is compiled, proved and restored by its tags; one for training is left alone unless named."""

from __future__ import annotations

import filecmp
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import disc_tf.ops  # noqa: F401  registers the op
from disc_tf.cli import main
from disc_tf.frontend.saved_model import SavedModelError, choose_meta_graphs, read_saved_model, signature_tensors, write_saved_model
from disc_tf.saved_model import optimize_saved_model, read_marker, restore_saved_model
from tests.saved_model.models import tf1_graphs

v1 = tf.compat.v1
TAGS = [["train"], ["serve"], ["serve", "gpu"], ["eval"]]  # in the order of the file
COMPILED = TAGS[1:]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "in"
    tf1_graphs(path)
    return path


@pytest.fixture(scope="module")
def made(model, tmp_path_factory):
    """(directory, report, how many clusters were compiled)."""
    import disc_tf.compiler as compiler

    calls, real = [], compiler.compile_module
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "compile_module", lambda *a, **k: (calls.append(k["name"]), real(*a, **k))[1])
        result = optimize_saved_model(model, tmp_path_factory.mktemp("graphs") / "out", targets=("native",), verify=False)
    assert result.path is not None
    return result.path, result.report, len(calls)


def answers(path: Path, tags: list[str]) -> dict[str, Any]:
    with v1.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        meta = v1.saved_model.load(session, tags, str(path))
        x = np.random.default_rng(3).normal(size=(5, 8)).astype("f")
        return {
            f"{key}/{name}": session.run(tensor, {signature.inputs["x"].name: x})
            for key, signature in meta.signature_def.items() for name, tensor in signature_tensors(signature, "outputs").items()
        }  # fmt: skip


def launches(meta: Any) -> int:
    return sum(n.op == "DiscLaunch" for n in meta.graph_def.node)


@pytest.mark.parametrize("tags", TAGS, ids=",".join)
def test_each_is_loaded_by_its_tags(tags, model, made):
    wanted, found = answers(model, tags), answers(made[0], tags)
    assert wanted.keys() == found.keys() and wanted
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6)


def test_the_report_is_by_graph(model, made):
    path, report, compiled = made
    graphs = {tuple(g.tags): g for g in report.graphs}
    assert list(graphs) == [("serve",), ("gpu", "serve"), ("eval",), ("train",)]
    assert all(len(graphs[tuple(sorted(t))].compiled_clusters) == 1 + ("gpu" in t) for t in COMPILED)
    assert graphs[("gpu", "serve")].signatures == ["serving_default", "best"]
    training = graphs[("train",)]
    assert not training.functions and "training" in training.reason and "--tag train" in training.reason
    assert compiled == 3  # four clusters, of which two are equal
    text = report.to_text()
    assert "(serve), signatures serving_default" in text and "(gpu, serve)" in text and training.reason in text
    data = json.loads(report.to_json())
    assert [g["tags"] for g in data["other_graphs"]] == [["gpu", "serve"], ["eval"], ["train"]]
    assert data["other_graphs"][0]["coverage"] == 1.0
    marker = read_marker(path)
    assert marker is not None and len(marker["clusters"]) == 4 and marker["clusters"][0].startswith("[eval] ")


def test_what_stays(model, made):
    old, new = read_saved_model(model), read_saved_model(made[0])
    assert old.meta_graphs[0] == new.meta_graphs[0]  # for training
    for before, after in zip(old.meta_graphs, new.meta_graphs, strict=True):
        ops = {op.name for op in after.meta_info_def.stripped_op_list.op}
        assert ("DiscLaunch" in ops) == (launches(after) > 0) == (before != after)
        assert {n.op for n in after.graph_def.node} <= ops
        assert before.signature_def == after.signature_def and before.saver_def == after.saver_def
    assert filecmp.cmp(model / "variables" / "variables.index", made[0] / "variables" / "variables.index", shallow=False)
    if (model / "fingerprint.pb").exists():
        from tensorflow.python.saved_model.pywrap_saved_model import fingerprinting

        from disc_tf.frontend.tfproto import parse

        ours = parse("FingerprintDef", (made[0] / "fingerprint.pb").read_bytes())
        theirs = parse("FingerprintDef", fingerprinting.CreateFingerprintDef(str(made[0])))
        assert ours.saved_model_checksum == theirs.saved_model_checksum


def test_restore(model, made, tmp_path):
    assert restore_saved_model(made[0], tmp_path / "back").exact
    assert filecmp.cmp(model / "saved_model.pb", tmp_path / "back" / "saved_model.pb", shallow=False)


NARROWED: dict[str, tuple[dict[str, Any], list[list[str]]]] = {
    "tags": ({"tags": ["serve", "gpu"]}, [["gpu", "serve"]]),
    "training, named": ({"tags": ["train"]}, [["train"]]),
    "a signature": ({"signatures": ["best"]}, [["gpu", "serve"]]),
    "signatures of two graphs": ({"signatures": ["best", "eval"]}, [["gpu", "serve"], ["eval"]]),
}


@pytest.mark.parametrize("case", NARROWED)
def test_dry_runs(case, model):
    options, looked_at = NARROWED[case]
    report = optimize_saved_model(model, None, dry_run=True, **options).report
    assert [g.tags for g in report.graphs if not g.reason] == looked_at
    for g in report.graphs:
        assert bool(g.clusters) == (not g.reason) and all(c.status == "planned" for c in g.clusters.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tags": ["gpu"]}, "there are: train; serve; gpu, serve; eval"),
        ({"signatures": ["no"]}, "no signature no; there are: train, serving_default"),
    ],
)
def test_unknown(options: dict[str, Any], message, model):
    with pytest.raises(SavedModelError, match=message):
        choose_meta_graphs(read_saved_model(model), **options)


def test_frozen(model, tmp_path):
    result = optimize_saved_model(model, tmp_path / "out", freeze=True, targets=("native",), verify=False)
    assert sorted(g.tags for g in result.report.graphs) == [["eval"], ["gpu", "serve"], ["serve"]]
    assert not (tmp_path / "out" / "variables").exists()
    for tags in COMPILED:
        found, wanted = answers(tmp_path / "out", tags), answers(model, tags)
        for name in wanted:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6)


def test_each_is_proved_and_put_back_alone(model, tmp_path):
    """A proof that puts the second graph's clusters back touches no other; the time that one took is told to the next."""
    seen = []

    def prove(source: Path, candidate: Path, report: Any, put_back: Any, *, spent: float) -> None:
        seen.append((report.tags, spent))
        time.sleep(0.01)
        if "gpu" in report.tags:
            put_back(list(report.clusters))
            for c in report.clusters.values():
                c.status = "put_back"
        report.verified = True

    report = optimize_saved_model(model, tmp_path / "out", targets=("native",), prove=prove).report
    assert [tags for tags, _ in seen] == [["serve"], ["gpu", "serve"], ["eval"]]
    assert [spent >= 0.01 * i for i, (_, spent) in enumerate(seen)] == [True] * 3
    message = read_saved_model(tmp_path / "out")
    assert [launches(m) for m in message.meta_graphs] == [0, 1, 0, 1]
    assert message.meta_graphs[2] == read_saved_model(model).meta_graphs[2]
    assert report.verified_all is True


@pytest.mark.slow
def test_the_commands(model, tmp_path, capsys):
    out, page = tmp_path / "out", tmp_path / "r.html"
    assert main(["optimize", str(model), "-o", str(out), "--points", "2", "--no-timing", "--report", str(page), "--json", "-q"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [g["verified"] for g in (data, *data["other_graphs"])] == [True, True, True, None]
    assert "[gpu, serve] Functions" in page.read_text()
    assert main(["verify", str(model), str(out), "--points", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["signatures"]
    assert set(found) == {"[serve] serving_default", "[gpu, serve] serving_default", "[gpu, serve] best", "[eval] eval"}
    assert main(["verify", str(model), str(out), "--tag", "eval", "--points", "2"]) == 0
    assert main(["verify", str(model), str(out), "--shape", "x/0=3"]) == 2 and "--tag" in capsys.readouterr().err
    assert main(["inspect", str(model), "--explain", "y"]) == 0
    assert "[gpu, serve] (main graph)" in capsys.readouterr().out


def test_a_model_for_training_only_has_no_shape_to_give(model, tmp_path, capsys) -> None:
    message = read_saved_model(model)
    del message.meta_graphs[1:]  # one is never left for its tags, two are
    message.meta_graphs.add().CopyFrom(message.meta_graphs[0])
    message.meta_graphs[1].meta_info_def.tags.append("gpu")
    (tmp_path / "in").mkdir()
    write_saved_model(tmp_path / "in", message)
    assert main(["optimize", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--shape", "x/0=3"]) == 2
    assert "--tag" in capsys.readouterr().err
