"""`--report`: JSON or a page, by the name; and what refuses it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from disc_tf.cli import main
from disc_tf.commands import verify
from disc_tf.commands.progress import Say
from disc_tf.frontend.tfproto import serialized
from disc_tf.report import ShapeResult
from disc_tf.testing.cold import Cold
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
    try:
        return main([str(a) for a in arguments])
    except SystemExit as usage:  # argparse's
        return int(usage.code or 0)


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


def test_bench_as_csv(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A line a shape, bounds where there are enough rounds, and fresh processes if asked."""
    rows = [
        BenchRow({"B": 3}, Timing(9.0, 2.0, 3.0, 10.0), Timing(5.0, 1.0, 2.0, 20.0), (2.0,) * 9, (9, 9)),
        BenchRow({"B": 1}, Timing(9.0, 2.0, 3.0, 10.0), Timing(5.0, 4.0, 2.0, 20.0), (0.5,), (9, 9)),
    ]
    monkeypatch.setattr(verify, "bench_graphs", lambda *_, **__: rows)
    monkeypatch.setattr(verify, "cold_starts", lambda *_, processes, **__: {s: Cold(processes, 7.5) for s in ("original", "optimized")})
    table = tmp_path / "t.csv"
    assert run("bench", graph, graph, "--shape", "<x>/0=3", "--csv", table, "--cold", "2") == 0
    head, first, second = table.read_text().splitlines()
    assert head.startswith("B,original_cold_ms,optimized_cold_ms,") and head.endswith("ratio,low,high")
    assert first == "3,9.0,5.0,2.0,1.0,3.0,2.0,10.0,20.0,2.0,2.0,2.0" and second.endswith(",0.5,,")
    said = capsys.readouterr().out
    assert "2.00 to 2.00" in said and "fresh process, optimized: 2 ms until the graph is loaded, 7.5 ms for the first run" in said
    assert run("bench", graph, graph, "--json", "--cold", "1", "--shape", "<x>/0=3") == 0
    assert json.loads(capsys.readouterr().out)["fresh_process"]["original"] == {"start": 1, "first": 7.5}
    assert run("bench", graph, graph, "--csv", graph) == 2


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines anywhere, a bar on a terminal, nothing when quiet."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    plain, terminal = io.StringIO(), Terminal()
    for stream in (plain, terminal):
        say = Say(stream=stream)
        say("reading")
        say("timing (3 of 6)")
        say("done")
    assert [line.split("] ")[1] for line in plain.getvalue().splitlines()] == ["reading", "timing (3 of 6)", "done"]
    assert "[############............]" in terminal.getvalue() and terminal.getvalue().count("\n") == 2
    Say(quiet=True)("nothing")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("fraction", "denied", "code"), [("0.5", [], 0), ("1", [], 4), ("0.1", ["--deny", "*"], 4), ("0", ["--deny", "*"], 0), ("2", [], 2)]
)
def test_min_coverage(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], fraction: str, denied: list[str], code: int
) -> None:
    out = tmp_path / "out.pb"
    assert run("optimize", graph, "-o", out, "--min-coverage", fraction, *denied, *QUICK) == code
    assert out.exists() == (code != 2)
    error = capsys.readouterr().err
    assert (f"--min-coverage {fraction}: " in error) == (code == 4)
    if denied and code == 4:
        assert "0 of " in error and "(DENIED, " in error
