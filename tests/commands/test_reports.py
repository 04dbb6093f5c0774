"""`--report`: JSON or a page, by the name; and what refuses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disc_tf.cli import main
from disc_tf.commands import verify
from disc_tf.frontend.tfproto import serialized
from disc_tf.report import ShapeResult
from disc_tf.testing.differential import BenchRow, Timing
from tests.frontend.graphs import G

QUICK = ["--no-verify", "--target", "x86-64-v2", "--min-cluster-size", "1", "--no-use-tf-shapes", "-q"]


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    g = G()
    g.placeholder("<x>", [None, 8])
    g.string_work("s", g.chain("a", "<x>", 3))
    g.chain("b", "s", 2)
    path = tmp_path / "in.pb"
    path.write_bytes(serialized(g.proto))
    return path


def run(*arguments: object) -> int:
    return main([str(a) for a in arguments])


def test_optimize_and_inspect(graph: Path, tmp_path: Path) -> None:
    out, page, data = tmp_path / "out.pb", tmp_path / "r.html", tmp_path / "r.json"
    assert run("optimize", graph, "-o", out, "--report", page, *QUICK) == 0
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>") and "disc-tf: in.pb" in text and "&lt;x&gt;" in text and "<x>" not in text
    assert "AsString" in text and "disc_cluster_0" in text
    assert run("inspect", graph, "--report", data, "--min-cluster-size", "1") == 0
    found = json.loads(data.read_text())
    assert found["drawing"]["boxes"] and found["clusters"][0]["status"] == "planned"
    assert run("inspect", graph, "--report", page, "--min-cluster-size", "1") == 0
    assert "would be compiled" in page.read_text()


def test_where_no_report_is_made(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, before = tmp_path / "out.pb", graph.read_bytes()
    assert run("optimize", graph, "-o", out, *QUICK) == 0
    for arguments in (["inspect", graph], ["verify", graph, out], ["bench", graph, out], ["verify", out, graph]):
        assert run(*arguments, "--report", graph) == 2
        assert run(*arguments, "--report", tmp_path / "missing" / "r.html") == 3
    assert graph.read_bytes() == before
    capsys.readouterr()
    assert run("inspect", out, "--report", tmp_path / "r.html") == 2
    assert "optimised already" in capsys.readouterr().err


def test_verify_and_bench(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = ShapeResult({"<x>": [3, 8]}, True, "", {"b1:0": 0.0}, {"b1:0": 0.0})
    monkeypatch.setattr(verify, "verify_graphs", lambda *_, **__: [result])
    row = BenchRow({"<x>/0": 3}, Timing(9.0, 2.0, 3.0, 10.0), Timing(5.0, 1.0, 2.0, 20.0))
    monkeypatch.setattr(verify, "bench_graphs", lambda *_, **__: [row])
    page, data = tmp_path / "r.htm", tmp_path / "r.json"
    for verb, key in (("verify", "ok"), ("bench", "geometric_mean")):
        assert run(verb, graph, graph, "--report", page, "--shape", "<x>/0=3") == 0
        assert f"disc-tf {verb}: {graph}" in page.read_text() and "<x>" not in page.read_text()
        assert run(verb, graph, graph, "--report", data, "--shape", "<x>/0=3") == 0
        assert json.loads(data.read_text())[key]
