"""`disc-tf optimize`, `inspect` and `restore` without TensorFlow: files, exit codes, what is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from disc_tf import compiler
from disc_tf.cli import main
from disc_tf.frontend.tfproto import graph_from_bytes, serialized
from tests.frontend.graphs import G

QUICK = ["--no-verify", "--target", "x86-64-v2", "--min-cluster-size", "1", "--no-use-tf-shapes"]


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    g = G()
    g.placeholder("x", [None, 8])
    g.const("w", np.ones((8, 4)))
    g.unary("y", g.matmul("m", "x", "w"))
    path = tmp_path / "in.pb"
    path.write_bytes(serialized(g.proto))
    return path


def test_optimize_and_restore(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, report, back = tmp_path / "out.pb", tmp_path / "report.json", tmp_path / "back.pb"
    assert main(["optimize", str(graph), "-o", str(out), "--report", str(report), *QUICK]) == 0
    said = capsys.readouterr()
    assert "1 of 1 clusters compiled; 2 of 2 ops (100.0 %), 100.0 % of FLOPs" in said.out and "y:0" in said.err
    found = json.loads(report.read_text())
    assert found["coverage"] == found["flops_share"] == 1.0 and found["verified"] is None
    assert [n.op for n in graph_from_bytes(out.read_bytes()).node].count("DiscLaunch") == 1
    assert main(["inspect", str(out)]) == 0 and "native code" in capsys.readouterr().out
    assert main(["restore", str(out), "-o", str(back)]) == 0
    assert back.read_bytes() == graph.read_bytes()


def test_a_dry_run_writes_nothing(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(graph.parent.iterdir())
    assert main(["optimize", str(graph), "--dry-run", *QUICK]) == 0
    assert "1 of 1 clusters would be compiled" in capsys.readouterr().out and set(graph.parent.iterdir()) == before


@pytest.mark.parametrize("strict", [False, True])
def test_a_cluster_that_fails(graph: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], strict: bool) -> None:
    """The graph comes out as it was, with the reason; with --strict that is an error and nothing is written."""

    def fail(*_: object, **__: object) -> None:
        raise ValueError("no such luck")

    monkeypatch.setattr(compiler, "compile_module", fail)
    out = graph.parent / "out.pb"
    code = main(["optimize", str(graph), "-o", str(out), *QUICK, *(["--strict"] if strict else [])])
    said = capsys.readouterr()
    assert "no such luck" in (said.err if strict else said.out)
    assert (code, out.exists()) == ((4, False) if strict else (0, True))
    if not strict:
        assert out.read_bytes() == graph.read_bytes() and "nothing compiled: 0 of 1 clusters" in said.out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["in.pb"], 2, "give -o OUTPUT"),
        (["in.pb", "-o", "in.pb"], 2, "same file"),
        (["in.pb", "-o", "out.pb", "--target", "pentium"], 2, "pentium"),
        (["none.pb", "-o", "out.pb"], 3, "cannot read"),
        (["bad.pb", "-o", "out.pb"], 3, "bad.pb"),
        (["in.pb", "-o", "out.pb", "--no-verify", "--outputs", "nothing:0"], 3, "nothing"),
        (["in.pb", "-o", "out.pb", "--no-verify", "--outputs", "nothing:0"], 3, "'nothing' is not in the graph; the graph's sinks are y"),
        (["m.h5", "-o", "out.pb"], 2, "a Keras model becomes the directory of a SavedModel: give a name without .pb"),
        ([".", "-o", "out.pb"], 3, "saved_model.pb"),
        (["model", "-o", "out.pb"], 2, "a SavedModel becomes the directory of a SavedModel: give a name without .pb"),
        (["in.pb", "-o", "out.pb", "--shape", "B=1,x/0=7"], 2, "--shape: unknown dim B; dims: x/0 (in.json beside the graph"),
        (["in.pb", "-o", "out.pb", "--shape", "B=1"], 2, "--shape: unknown dim B, no extent for x/0; dims: x/0 (in.json"),
        (["in.pb", "-o", "out.disc", "--shape", "B=1"], 2, "--shape: unknown dim B, no extent for x/0; dims: x/0 (in.json"),
        (["in.pb", "-o", "no/such/directory/out.pb", *QUICK], 3, "cannot write"),
        (["in.pb", "-o", "out.pb", *QUICK, "--dump-dir", "in.pb/dumps"], 2, "nothing can be written into in.pb/dumps: Not a directory"),
        (["in.pb", "-o", "out.pb", *QUICK, "--time-budget", "-1"], 2, "option 'time_budget': -1 is less than 0"),
        (["in.pb", "-o", "out.pb", *QUICK, "--fuel", "-2"], 2, "option 'fuel': -2 is less than -1"),
    ],
)
def test_errors(
    graph: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, text: str
) -> None:
    (graph.parent / "bad.pb").write_bytes(b"\xff" * 50)
    (graph.parent / "model").mkdir()
    (graph.parent / "model" / "saved_model.pb").write_bytes(b"")
    monkeypatch.chdir(graph.parent)
    assert main(["optimize", *arguments]) == code
    assert text in capsys.readouterr().err
    assert not (graph.parent / "out.pb").exists()


def test_strict_where_nothing_is_there_to_compile(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The code says it; what was asked for is written, as docs/cli.md has it."""
    out = graph.parent / "out.pb"
    assert main(["optimize", str(graph), "-o", str(out), "--no-verify", "--deny", "MatMul", "--deny", "Tanh", "--strict"]) == 4
    assert "--strict: nothing was compiled" in capsys.readouterr().err and out.read_bytes() == graph.read_bytes()


@pytest.mark.parametrize("flag", ["--no-such-flag", "--fast-math", "--verif"])
def test_unknown_flags_are_errors(graph: Path, flag: str) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["optimize", str(graph), "-o", "out.pb", flag])
    assert raised.value.code == 2
