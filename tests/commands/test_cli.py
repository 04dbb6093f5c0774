"""The command as a whole: verbs, help, exit codes, text graphs, JSON, and that reading a graph never runs its code."""

from __future__ import annotations

import builtins
import ctypes
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disc_tf_server.cli import main as server_main

from disc_tf.cli import VERBS, main
from disc_tf.commands import verify
from disc_tf.frontend.tfproto import graph_from_bytes, graph_from_text, serialized
from disc_tf.report import ShapeResult
from disc_tf.testing.tf_process import ProcessFailed, TfError
from disc_tf.version import __version__
from tests.frontend.graphs import G

QUICK = ["--no-verify", "--target", "x86-64-v2", "--min-cluster-size", "1", "--no-use-tf-shapes"]


def run(*arguments: object) -> int:
    """The exit code, whether argparse or a verb ends the command."""
    try:
        return main([str(a) for a in arguments])
    except SystemExit as e:
        assert isinstance(e.code, int)
        return e.code


def make_graph(path: Path, weight: float = 0.5) -> Path:
    g = G()
    g.placeholder("x", [None, 8])
    g.const("w", np.full((8, 4), weight))
    g.unary("y", g.matmul("m", "x", "w"))
    path.write_bytes(serialized(g.proto))
    return path


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return make_graph(tmp_path / "in.pb")


@pytest.fixture
def optimized(graph: Path) -> Path:
    out = graph.parent / "optimized.pb"
    assert run("optimize", graph, "-o", out, "-q", *QUICK) == 0
    return out


# ---- verbs and help -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(verb, "--help") == 0
    assert f"usage: disc-tf {verb}" in capsys.readouterr().out


def test_help_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in VERBS) and "exit codes" in text
    assert run() == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("disc-tf ")


def test_the_server_is_a_command_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert server_main(["--version"]) == 0
    assert capsys.readouterr().out == f"disc-tf-server {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["transmogrify"],
        ["optimise", "in.pb"],
        ["inspect"],
        ["inspect", "in.pb", "--nonsense"],
        ["restore", "in.pb"],
        ["restore", "in.pb", "-o", "out.pb", "--force"],
        ["verify", "in.pb"],
        ["verify", "in.pb", "in.pb", "--points", "0"],
        ["verify", "in.pb", "in.pb", "--points", "many"],
        ["verify", "in.pb", "in.pb", "--threads", "-1"],
        ["verify", "in.pb", "in.pb", "--tolerance", "-0.5"],
        ["verify", "in.pb", "in.pb", "--tolerance", "nan"],
        ["bench", "in.pb", "in.pb", "--rounds", "0"],
        ["bench", "in.pb", "in.pb", "--shape", "B"],
        ["verify", "in.pb", "in.pb", "--shape", "B=-1"],
        ["verify", "in.pb", "in.pb", "--shape", "nodim=3"],
        ["verify", "in.pb", "in.pb", "--shape", "x/0=3,x/0=4"],
        ["optimize", "in.pb", "-o", "out.pb", "--shape", "x/0=2;x/1=3"],
        ["optimize", "in.pb", "-o", "out.pb", "--min-cluster-size", "few"],
        ["optimize", "in.pb", "-o", "out.pb", "--target", ","],
        ["doctor", "--fix"],
    ],
    ids=" ".join,
)
def test_wrong_use(graph: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(graph.parent)
    assert run(*arguments) == 2
    assert {p.name for p in graph.parent.iterdir()} == {"in.pb"}


@pytest.mark.parametrize("output", ["out.pb", "out.disc"])
def test_a_shape_that_does_not_fit_is_said_before_compiling(graph: Path, monkeypatch, capsys, output: str) -> None:
    monkeypatch.setattr("disc_tf.optimizer.optimize_graph_def", None)
    monkeypatch.setattr("disc_tf.standalone.compile_graph_def", None)
    assert run("optimize", str(graph), "-o", str(graph.parent / output), "--shape", "nodim=3") == 2
    assert "--shape: " in capsys.readouterr().err
    assert {p.name for p in graph.parent.iterdir()} == {"in.pb"}


# ---- files --------------------------------------------------------------------------------------------------------------

READERS: dict[str, Callable[[Path], list[object]]] = {
    "optimize": lambda path: ["optimize", path, "-o", path.parent / "out.pb", *QUICK],
    "dry run": lambda path: ["optimize", path, "--dry-run"],
    "inspect": lambda path: ["inspect", path],
    "restore": lambda path: ["restore", path, "-o", path.parent / "out.pb"],
    "verify": lambda path: ["verify", path, path],
    "bench": lambda path: ["bench", path, path],
}


def _absent(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)


def _directory(path: Path, data: bytes) -> None:
    path.mkdir()


def _saved_model(graph_def: bytes) -> bytes:
    """The wire format of a SavedModel with one meta graph that holds ``graph_def``; all lengths in two bytes."""

    def message(field: int, content: bytes) -> bytes:
        return bytes([field << 3 | 2, len(content) & 0x7F | 0x80, len(content) >> 7]) + content

    return b"\x08\x01" + message(2, message(2, graph_def))


BAD_FILES: dict[str, tuple[str, Callable[[Path, bytes], Any], str]] = {
    "absent": ("bad.pb", _absent, "cannot read"),
    "directory": ("saved_model", _directory, "directory"),
    "truncated": ("bad.pb", lambda path, data: path.write_bytes(data[:-7]), "not a serialized GraphDef"),
    "noise": ("bad.pb", lambda path, data: path.write_bytes(b"\xff" * 99), "not a serialized GraphDef"),
    "not text": ("bad.pbtxt", lambda path, data: path.write_bytes(b"\xff\xfe"), "bad.pbtxt"),
    "empty": ("bad.pb", lambda path, data: path.write_bytes(b""), "the file is empty"),
    "saved model": ("saved_model.pb", lambda path, data: path.write_bytes(_saved_model(data)), "this is a SavedModel: give its directory"),
    "saved model in text": ("bad.pbtxt", lambda path, data: path.write_text("saved_model_schema_version: 1"), "this is a SavedModel"),
    "other text": ("bad.pbtxt", lambda path, data: path.write_text("node { nom: 'x' }"), "text format"),
}


@pytest.mark.parametrize("bad", BAD_FILES)
@pytest.mark.parametrize("reader", READERS)
def test_bad_files(graph: Path, capsys: pytest.CaptureFixture[str], reader: str, bad: str) -> None:
    name, make, text = BAD_FILES[bad]
    path = graph.parent / name
    make(path, graph.read_bytes())
    assert run(*READERS[reader](path)) == 3
    assert text in capsys.readouterr().err
    assert not (graph.parent / "out.pb").exists()


def test_malformed_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    g = G()
    g.unary("y", "nobody")
    (tmp_path / "in.pb").write_bytes(serialized(g.proto))
    assert run("optimize", tmp_path / "in.pb", "-o", tmp_path / "out.pb", *QUICK) == 3
    assert "nobody" in capsys.readouterr().err


def test_text_graphs(graph: Path, tmp_path: Path) -> None:
    """`.pbtxt` in and out of every verb that reads or writes a graph."""
    original = graph_from_bytes(graph.read_bytes())
    text, out, back = tmp_path / "in.pbtxt", tmp_path / "out.pbtxt", tmp_path / "back.pbtxt"
    text.write_text(str(original))
    assert run("optimize", text, "-o", out, "-q", *QUICK) == 0
    assert "DiscLaunch" in {n.op for n in graph_from_text(out.read_text()).node}
    assert run("inspect", out) == 0
    assert run("restore", out, "-o", back) == 0
    assert serialized(graph_from_text(back.read_text())) == graph.read_bytes()
    assert run("restore", out, "-o", tmp_path / "back.pb") == 0
    assert (tmp_path / "back.pb").read_bytes() == graph.read_bytes()


def test_the_original_is_never_overwritten(graph: Path, tmp_path: Path) -> None:
    before = graph.read_bytes()
    (tmp_path / "link.pb").symlink_to(graph)
    for output in (graph, tmp_path / "link.pb", graph.parent / ".." / graph.parent.name / graph.name):
        assert run("optimize", graph, "-o", output, *QUICK) == 2
    assert graph.read_bytes() == before


def test_restore_of_a_graph_that_is_not_optimised(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("restore", graph, "-o", tmp_path / "back.pb") == 3
    assert "in.pb" in capsys.readouterr().err and not (tmp_path / "back.pb").exists()


# ---- reading runs no code -----------------------------------------------------------------------------------------------


def test_reading_loads_no_code(optimized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("native code was loaded")

    class NoLibrary:
        __init__ = refuse

    monkeypatch.setattr(ctypes, "CDLL", NoLibrary)
    assert run("inspect", optimized) == 0
    assert run("restore", optimized, "-o", tmp_path / "back.pb") == 0
    assert run("optimize", optimized, "--dry-run") == 3


def test_inspect_of_a_broken_artefact(optimized: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph_def = graph_from_bytes(optimized.read_bytes())
    launch = next(n for n in graph_def.node if n.op == "DiscLaunch")
    launch.attr["executable"].s = launch.attr["executable"].s[:100]
    optimized.write_bytes(serialized(graph_def))
    assert run("inspect", optimized) == 0
    assert "cannot be read" in capsys.readouterr().out


def test_without_the_compiler(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An environment that only serves: what to install, not a stack trace."""
    real = builtins.__import__

    def absent(name: str, *rest: Any, **named: Any) -> Any:
        if name == "disc_tf.compiler":
            raise ModuleNotFoundError("No module named 'llvmlite'", name="llvmlite")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", absent)
    assert run("optimize", graph, "-o", tmp_path / "out.pb", *QUICK) == 1
    assert "[compiler]'" in capsys.readouterr().err


# ---- results ------------------------------------------------------------------------------------------------------------


def test_strict_where_nothing_compiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    g = G()
    g.string_work("y", g.placeholder("x", [None]))
    path, out = tmp_path / "in.pb", tmp_path / "out.pb"
    path.write_bytes(serialized(g.proto))
    assert run("optimize", path, "-o", out, *QUICK) == 0
    assert out.read_bytes() == path.read_bytes()
    capsys.readouterr()
    for arguments in (["-o", out, "-q"], ["-o", out, "--json"], ["--dry-run", "-q"]):
        assert run("optimize", path, *arguments, *QUICK, "--strict") == 4
        error = capsys.readouterr().err
        assert "--strict: nothing was compiled (0 of 0 clusters): y" in error and "(AsString): " in error
    assert run("inspect", path, "--strict") == 4
    said = capsys.readouterr()
    assert "AsString" in said.out and "--strict: nothing was compiled" in said.err


def test_a_strict_dry_run_of_what_compiles(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("optimize", graph, "--dry-run", "--strict", "-q", *QUICK) == 0
    assert capsys.readouterr().err == ""


def nothing_compared(*_: object, **__: object) -> list[ShapeResult]:
    return [ShapeResult({"x": [n, 8]}, True, "both raise code 3") for n in (1, 2)]


def test_verify_that_compares_nothing(graph: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(verify, "verify_graphs", nothing_compared)
    assert run("verify", graph, graph) == 5
    said = capsys.readouterr()
    assert "nothing was compared" in said.err and "both raise code 3" in said.err and "--shape" in said.err
    assert "same answers" not in said.out and "worst absolute error" not in said.out
    assert run("verify", graph, graph, "--json") == 5
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["compared"]) == (False, 0)


@pytest.mark.parametrize("error", [ProcessFailed("ended with status -9"), TfError(3, "Op type not registered")])
@pytest.mark.parametrize(("verb", "used"), [("verify", "verify_graphs"), ("bench", "bench_graphs")])
def test_a_process_that_fails_is_an_error_in_one_line(
    graph: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str, used: str, error: Exception
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(verify, used, fails)
    assert run(verb, graph, graph) == 3
    said = capsys.readouterr().err
    assert said.strip().splitlines()[-1].startswith("disc-tf: ") and str(error) in said


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_bench_that_times_nothing(
    graph: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    def skips(*arguments: Any, skipped: Callable[[dict[str, int], str], None], **_: object) -> list[object]:
        for size in arguments[4]:
            skipped(size, "not timed: TensorFlow itself raises code 10: no")
        return []

    monkeypatch.setattr(verify, "bench_graphs", skips)
    assert run("bench", graph, graph, "--shape", "x/0=3", *form) == 0
    said = capsys.readouterr()
    assert "x/0=3: not timed: TensorFlow itself" in said.err and "warning: nothing was timed" in said.err
    if form:
        found = json.loads(said.out)
        assert found["geometric_mean"] is None and found["not_timed"][0]["dims"] == {"x/0": 3}


def test_json(graph: Path, optimized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()

    def printed(*arguments: object) -> Any:
        assert run(*arguments) == 0
        return json.loads(capsys.readouterr().out)

    assert printed("optimize", graph, "-o", tmp_path / "out.pb", "--json", *QUICK)["report_version"] == 1
    assert printed("optimize", graph, "--dry-run", "--json", *QUICK)["clusters"][0]["status"] == "planned"
    assert printed("inspect", graph, "--json", "--min-cluster-size", "1")["clusters"]
    described = printed("inspect", optimized, "--json")
    assert described["clusters"][0]["targets"] == ["x86-64-v2"]


def test_verify_with_tensorflow(graph: Path, optimized: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same answers give 0, others 5."""
    other = make_graph(graph.parent / "other.pb", weight=0.625)
    shape = ["--shape", "x/0=3", "--threads", "1"]
    assert run("verify", graph, optimized, "--json", *shape) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out[captured.out.index("{") :])
    assert found["ok"] and found["compared"] == len(found["shapes"]) == 1
    assert run("verify", graph, other, *shape) == 5
    assert "DIFFERENT" in capsys.readouterr().out


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_names_of_files_that_are_no_text(optimized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", out)
    to = tmp_path / os.fsdecode(b"\xc3\xbc\xff.pb")
    assert run("restore", optimized, "-o", to) == 0 and to.exists()
    out.flush()
    assert b"\\udcff.pb: " in out.buffer.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("arguments", [["completion", "bash"], ["--version"]], ids=["much", "little"])
def test_what_nobody_reads_is_no_defect(arguments: list[str]) -> None:
    """As in `disc-tf ... | head`: no trace of calls on standard error, whenever the pipe is found broken."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "disc_tf.cli", *arguments]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
