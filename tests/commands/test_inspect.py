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
