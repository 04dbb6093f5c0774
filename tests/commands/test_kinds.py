"""A path of another kind than the verb takes: what it is, and the way out, before any work."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from disc_tf.frontend.tfproto import graph_from_bytes, message_class, serialized
from tests.commands.test_cli import QUICK, make_graph, run

ORIGINAL_FIRST = "is optimised already: the original comes first"
NO_INPUT = "was optimised by disc_tf: give the original, which `disc-tf restore` gives back"
NO_GRAPH = "model.disc is a stand-alone file, not a graph: `disc-tf run` runs it, `disc-tf inspect` describes it"


def _as_model(graph: Path, directory: Path) -> None:
    message = message_class("SavedModel")(saved_model_schema_version=1)
    meta = message.meta_graphs.add()
    meta.meta_info_def.tags.append("serve")
    meta.graph_def.CopyFrom(graph_from_bytes(graph.read_bytes()))
    directory.mkdir(parents=True)
    (directory / "saved_model.pb").write_bytes(serialized(message))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """in.pb, what is made of it, and both graphs as SavedModels."""
    here = tmp_path_factory.mktemp("kinds")
    graph = make_graph(here / "in.pb")
    assert run("optimize", graph, "-o", here / "optimized.pb", "-q", *QUICK) == 0
    assert run("optimize", graph, "-o", here / "model.disc", "-q", "--no-verify", "--target", "x86-64-v2", "--no-use-tf-shapes") == 0
    _as_model(graph, here / "models" / "1")
    _as_model(here / "optimized.pb", here / "optimized")
    return here


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["verify", "optimized.pb", "in.pb"], 2, ORIGINAL_FIRST),
        (["bench", "optimized.pb", "in.pb"], 2, ORIGINAL_FIRST),
        (["verify", "optimized", "models/1"], 2, ORIGINAL_FIRST),
        (["bench", "optimized", "models/1"], 2, ORIGINAL_FIRST),
        (["optimize", "optimized.pb", "-o", "out.pb"], 3, NO_INPUT),
        (["optimize", "optimized.pb", "-o", "out.pb", "--no-verify"], 3, NO_INPUT),
        (["optimize", "optimized.pb", "--dry-run"], 3, NO_INPUT),
        (["optimize", "optimized.pb", "-o", "out.disc"], 3, NO_INPUT),
        (["optimize", "optimized.pb", "--remote", "127.0.0.1:1", "-o", "out.pb"], 3, NO_INPUT),
        (["optimize", "optimized", "-o", "out"], 3, NO_INPUT),
        (["optimize", "optimized", "-o", "out.disc"], 3, NO_INPUT),
        (["optimize", "models", "-o", "out"], 3, "models is a directory without a saved_model.pb; it holds versions of one: give models/1"),
        (["optimize", "models", "--dry-run"], 3, "give models/1"),
        (["optimize", "models", "-o", "out.disc"], 3, "it is not a SavedModel; it holds versions of one: give models/1"),
        (["inspect", "models"], 3, "give models/1"),
        (["verify", "models", "models/1"], 3, "give models/1"),
        (["restore", "models", "-o", "out"], 3, "give models/1"),
        (["run", "models"], 3, "give models/1"),
        (["optimize", "model.disc", "-o", "out.pb"], 3, NO_GRAPH),
        (["optimize", "model.disc", "-o", "out.disc"], 3, NO_GRAPH),
        (["verify", "in.pb", "model.disc"], 3, NO_GRAPH),
        (["bench", "model.disc", "in.pb"], 3, NO_GRAPH),
        (["restore", "model.disc", "-o", "out.pb"], 3, NO_GRAPH),
        (["inspect", "model.disc", "--explain", "y"], 2, "--explain is for graphs: a stand-alone file is described as a whole"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr("disc_tf.testing.tf_process.subprocess", None)  # no process is started
    before = set(place.rglob("*"))
    assert run(*arguments) == code
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error and set(place.rglob("*")) == before


def test_a_stand_alone_file_is_described(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", place / "model.disc") == 0
    said = capsys.readouterr().out
    assert all(text in said for text in ("a stand-alone file", "x f32[?, 8]", "y f32[?, 4]", "targets x86-64-v2", "not signed"))
    assert run("inspect", place / "model.disc", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["inputs"] == {"x": {"dtype": "f32", "shape": [None, 8]}}
    assert found["outputs"] == {"y": {"dtype": "f32", "shape": [None, 4]}}
    assert found["targets"] == ["x86-64-v2"] and found["bytes"] == (place / "model.disc").stat().st_size


def test_a_damaged_stand_alone_file_is_not(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.disc"
    bad.write_bytes((place / "model.disc").read_bytes()[:200])
    assert run("inspect", bad) == 3
    assert f"disc-tf: {bad}: " in capsys.readouterr().err


def test_an_unknown_input_is_named_before_those_that_lack(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 8), np.float32))
    assert run("run", place / "model.disc", "--input", f"ids={tmp_path / 'x.npy'}") == 3
    assert "unknown input ids; the inputs are x" in capsys.readouterr().err
