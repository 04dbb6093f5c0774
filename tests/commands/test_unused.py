"""Flags that a way of running a verb has no use for are errors, said before any work; defaults in configuration files are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disc_tf.cli import main
from disc_tf.frontend.tfproto import serialized
from disc_tf.options import OptionError
from disc_tf.standalone import compile_graph_def
from tests.frontend.graphs import G

OPTIMIZE, MODEL = ["optimize", "{d}/in.pb", "-o", "{d}/out.pb"], ["optimize", "{d}/model", "-o", "{d}/out"]
INSPECT, PREPARE, SERVE = ["inspect", "{d}/in.pb"], ["serving", "prepare", "{d}/model", "--to", "{d}/to"], ["serve", "{d}/model"]
#: command, flags, what is said
REFUSED = [
    (OPTIMIZE, ["--signature", "s"], "--signature is for SavedModels"),
    (OPTIMIZE, ["--tag", "serve"], "--tag is for SavedModels"),
    (OPTIMIZE, ["--all-functions"], "--all-functions is for SavedModels"),
    (OPTIMIZE, ["--freeze"], "--freeze is for SavedModels"),
    (OPTIMIZE, ["--overwrite"], "--overwrite is for SavedModels"),
    (OPTIMIZE, ["--segments", "one"], "--segments is for stand-alone files"),
    (OPTIMIZE, ["--no-verify", "--shape", "x/0=1"], "--shape says how the result is run"),
    (OPTIMIZE, ["--no-verify", "--points", "2"], "--points says how the result is run"),
    (OPTIMIZE, ["--no-verify", "--threads", "2"], "--threads says how the result is run"),
    (MODEL, ["--outputs", "y"], "--outputs is for GraphDefs"),
    (MODEL, ["--inputs-json", "f"], "--inputs-json is for GraphDefs"),
    (MODEL, ["--external-weights"], "--external-weights is for GraphDefs"),
    (MODEL, ["--capture", "d"], "--capture is for GraphDefs"),
    (MODEL, ["--segments", "one"], "--segments is for stand-alone files"),
    (MODEL, ["--profile"], "--profile is for GraphDefs and .disc files"),
    (OPTIMIZE, ["--remote-dry-run", "--profile"], "--profile is for code that is compiled here"),
    (MODEL, ["--freeze", "--all-functions"], "--all-functions does not go with --freeze"),
    (MODEL, ["--signature", "s", "--all-functions"], "--all-functions does not go with --signature"),
    (INSPECT, ["--dump-dir", "d"], "--dump-dir is for `disc-tf optimize`"),
    (INSPECT, ["--verify-passes"], "--verify-passes is for `disc-tf optimize`"),
    (INSPECT, ["--time-budget", "3"], "--time-budget is for `disc-tf optimize`"),
    (INSPECT, ["--segments", "one"], "--segments is for `disc-tf optimize`"),
    (["restore", "{d}/in.pb", "-o", "{d}/out.pb"], ["--overwrite"], "--overwrite is for SavedModels"),
    (["run", "{d}/in.pb"], ["--signature", "s"], "--signature is for SavedModels"),
    (["verify", "{d}/in.pb", "{d}/in.pb"], ["--tag", "serve"], "--tag is for SavedModels"),
    (["bench", "{d}/model", "{d}/model"], ["--outputs", "y"], "--outputs is for GraphDefs"),
    (SERVE, ["--batch-wait-us", "5"], "--batch-wait-us says how requests wait for a batch"),
    (SERVE, ["--batch-queue", "5"], "--batch-queue says how requests wait for a batch"),
    (SERVE, ["--rest-port", "-1", "--rest-timeout", "5"], "--rest-timeout is of REST requests"),
    (PREPARE, ["--poll", "1"], "--poll is for --watch"),
    (PREPARE, ["--watch", "--wait", "1"], "--wait is for one look"),
    (PREPARE, ["--no-warmup", "--warmup-shapes", "1"], "--warmup-shapes is of warm-up records"),
    (PREPARE, ["--segments", "one"], "--segments is for stand-alone files"),
    (PREPARE, ["--rollback", "3", "--freeze"], "--freeze does not go with --rollback"),
    (PREPARE, ["--rollback", "3", "--target", "x86-64-v2"], "--target does not go with --rollback"),
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A graph, and a directory that is no more than one."""
    g = G()
    g.placeholder("x", [None, 8])
    g.unary("y", g.unary("h", "x"))
    (tmp_path / "in.pb").write_bytes(serialized(g.proto))
    (tmp_path / "model").mkdir()
    return tmp_path


@pytest.mark.parametrize(("command", "flags", "message"), REFUSED, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_refused(command: list[str], flags: list[str], message: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([part.format(d=directory) for part in command] + flags) == 2
    assert message in capsys.readouterr().err
    assert sorted(p.name for p in directory.iterdir()) == ["in.pb", "model"]


def test_the_defaults_in_a_configuration_file_are_no_flags(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "--print-config", "--no-verify", "--no-use-tf-shapes", "--target", "native"]) == 0
    (directory / "c.toml").write_text(capsys.readouterr().out)
    assert "points = 6" in (directory / "c.toml").read_text()
    for output in ("out.pb", "out.disc"):
        assert main(["optimize", str(directory / "in.pb"), "-o", str(directory / output), "--config", str(directory / "c.toml")]) == 0


@pytest.mark.parametrize("option", [{"allow": ["Abs"]}, {"fuel": 0}, {"min_cluster_size": 1}, {"keep_control": True}])
def test_the_function_refuses_them_too(option: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="chooses clusters"):
        compile_graph_def(G().proto, None, tmp_path / "m.disc", **option)  # pyright: ignore[reportArgumentType]


def test_a_dry_run_of_a_file_and_its_page(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, out, quick = directory / "in.pb", directory / "m.disc", ["--no-use-tf-shapes", "--target", "native"]
    page, data = directory / "r.html", directory / "r.json"
    assert main(["optimize", str(graph), "-o", str(out), "--dry-run", "--report", str(page), *quick]) == 0
    assert "the whole would be compiled: 2 ops" in capsys.readouterr().out and not out.exists()
    assert "would be compiled" in page.read_text()
    for report in (page, data):
        assert main(["optimize", str(graph), "-o", str(out), "--no-verify", "--report", str(report), *quick]) == 0
    text = page.read_text()
    assert "Inputs, outputs, segments" in text and "Clusters and kernels" in text and "disc_model" in text
    assert json.loads(data.read_text())["inputs"] == ["x"]
    g = G()
    g.placeholder("x", [None])
    g.string_work("y", "x")
    graph.write_bytes(serialized(g.proto))
    assert main(["optimize", str(graph), "-o", str(out), "--dry-run", *quick]) == 4
    assert "2 needed nodes cannot be compiled" in capsys.readouterr().err
