"""`disc-tf run` and `disc-tf optimize -o MODEL.disc`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from disc_tf import compiler, standalone_model
from disc_tf.budget import OutOfTime
from disc_tf.codegen.program import ProgramError
from disc_tf.frontend.tfproto import serialized
from disc_tf.runtime import artifact_file
from disc_tf.testing.standalone_check import FileProcess, FileSide
from disc_tf.testing.tf_process import TfError
from tests.commands.test_cli import make_graph, run
from tests.frontend.graphs import G

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
Y = np.tanh(X @ np.full((8, 4), 0.5, np.float32))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-alone file beside its graph and an input."""
    directory = tmp_path_factory.mktemp("run")
    graph = make_graph(directory / "in.pb")
    np.save(directory / "x.npy", X)
    np.savez(directory / "inputs.npz", x=X)
    out = directory / "model.disc"
    assert run("optimize", graph, "-o", out, "-q", "--no-verify", "--target", "native", "--no-use-tf-shapes") == 0
    return out


def test_prints_and_writes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", model, "--input", f"x={model.parent / 'x.npy'}") == 0
    assert "y float32[3, 4]" in capsys.readouterr().out
    assert run("run", model, "--inputs", model.parent / "inputs.npz", "--json", "--outputs", "y:0") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["y"]["shape"] == [3, 4] and shown["y"]["dtype"] == "float32"
    np.testing.assert_allclose(shown["y"]["values"], Y, rtol=1e-5)
    out = model.parent / "out.npz"
    assert run("run", model, "--inputs", model.parent / "inputs.npz", "-o", out) == 0
    np.testing.assert_allclose(np.load(out)["y"], Y, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 3, "no value for input x; the inputs are x"),
        (["--input", "x"], 2, "write it as NAME=FILE.npy"),
        (["--input", "x=none.npy"], 3, "cannot read none.npy"),
        (["--input", "x={d}/inputs.npz"], 2, "holds several arrays"),
        (["--inputs", "{d}/x.npy"], 2, "one array without a name"),
        (["--inputs", "{d}/in.pb"], 3, "cannot read"),
        (["--input", "x={d}/x.npy", "--input", "x={d}/x.npy"], 2, "given twice"),
        (["--input", "x={d}/x.npy", "--outputs", "q"], 3, "no output q; the outputs are y"),
        (["--input", "q={d}/x.npy", "--input", "x={d}/x.npy"], 3, "unknown input q"),
        (["--input", "x={d}/x.npy", "-o", "{d}/none/out.npz"], 3, "does not exist"),
        (["--input", "x={d}/x.npy", "-o", "{d}/model.disc"], 2, "same file"),
    ],
)
def test_bad_input_is_named(model: Path, arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", model, *[a.format(d=model.parent) for a in arguments]) == code
    assert message in capsys.readouterr().err


def test_files_that_are_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", tmp_path / "none") == 3
    assert "No such file" in capsys.readouterr().err
    bad = tmp_path / "bad.disc"
    bad.write_bytes(b"DISCTF\0\1" + b"\0" * 100)
    assert run("run", bad) == 3
    assert "artefact: " in capsys.readouterr().err


def test_a_graph_that_needs_tensorflow_gives_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    g = G()
    g.placeholder("x", [None])
    g.string_work("y", "x")
    (tmp_path / "in.pb").write_bytes(serialized(g.proto))
    assert run("optimize", tmp_path / "in.pb", "-o", tmp_path / "m.disc", "--no-verify", "--no-use-tf-shapes") == 4
    text = capsys.readouterr().err
    assert "cannot run without TensorFlow: 2 needed nodes" in text and "y_s (AsString)" in text
    assert [p.name for p in tmp_path.iterdir()] == ["in.pb"]


QUICK = ("--no-verify", "--no-use-tf-shapes", "--target", "native", "-q")


@pytest.mark.parametrize(
    ("failure", "code", "message"),
    [
        (OutOfTime("more than the time budget of 3 s"), 4, "in.pb: more than the time budget of 3 s"),
        (ProgramError("too many results"), 4, "in.pb: ProgramError: too many results"),
        (KeyError("no such value"), 4, "in.pb: KeyError: 'no such value'"),
        (MemoryError(), 4, "in.pb: MemoryError"),
        (OSError(28, "No space left on device", "dumps/1.txt"), 3, "No space left on device: 'dumps/1.txt'"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Exception) else None,
)
def test_a_compilation_that_fails_is_told_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: Exception, code: int, message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(compiler, "compile_module", fail)
    graph, out, report = make_graph(tmp_path / "in.pb"), tmp_path / "m.disc", tmp_path / "r.json"
    out.write_bytes(b"the one before")
    assert run("optimize", graph, "-o", out, "--report", report, *QUICK) == code
    assert message in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.pb", "m.disc"] and out.read_bytes() == b"the one before"


def test_files_that_cannot_be_written_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The file itself, its publication, the report."""
    graph, out, report = make_graph(tmp_path / "in.pb"), tmp_path / "m.disc", tmp_path / "r.json"
    replace, full = os.replace, OSError(28, "No space left on device")
    for lost, left in ((lambda to: to.parent != tmp_path, []), (lambda to: to == out, []), (lambda to: to == report, ["m.disc"])):

        def fails(a: str | Path, b: str | Path, lost: Callable[[Path], bool] = lost) -> None:
            if lost(Path(b)):
                raise full
            replace(a, b)

        monkeypatch.setattr(os, "replace", fails)
        assert run("optimize", graph, "-o", out, "--report", report, *QUICK) == 3
        said = capsys.readouterr().err
        assert "cannot write" in said and "No space left on device" in said
        assert sorted(p.name for p in tmp_path.iterdir()) == ["in.pb", *left]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--external-weights"], "--external-weights is for graphs"),
        (["--tag", "train"], "--tag is for SavedModels"),
        (["--allow", "Add"], "--allow does not go with a .disc file"),
        (["--deny", "Add"], "--deny does not go with a .disc file"),
        (["--fuel", "0"], "--fuel does not go with a .disc file"),
        (["--min-cluster-size", "1"], "--min-cluster-size does not go with a .disc file"),
        (["--keep-control"], "--keep-control does not go with a .disc file"),
        (["--no-verify", "--points", "2"], "--points says how the result is run"),
        (["--all-functions"], "--all-functions does not go with a .disc file"),
        (["--freeze"], "--freeze does not go with a .disc file"),
        (["--overwrite"], "--overwrite does not go with a .disc file"),
        (["--capture", "faults"], "--capture is for clusters in graphs"),
        (["--no-timing"], "--no-timing does not go with a .disc file"),
        (["--signature", "f"], "--signature is for SavedModels"),
    ],
)
def test_flags_that_a_stand_alone_file_has_no_use_for(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("optimize", make_graph(tmp_path / "in.pb"), "-o", tmp_path / "m.disc", *arguments) == 2
    assert message in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["in.pb"]


def test_a_file_runs_in_a_process_of_its_own(model: Path) -> None:
    """Without TensorFlow, with the runtime's codes for what it refuses."""
    with FileProcess(model) as process:
        assert (process.info["inputs"], process.info["outputs"]) == (["x"], ["y"])
        side = FileSide(process, ["unused", "x"])
        np.testing.assert_allclose(side.run([np.zeros(3), X])[0], Y, rtol=1e-5)
        with pytest.raises(TfError) as error:
            process.run({"x": X[0]})
        assert error.value.code == 3
        loaded = Path(f"/proc/{process._child.pid}/maps").read_text()
        assert "libdisc_ral" in loaded and "tensorflow" not in loaded


def test_a_file_that_does_not_load_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def damaged(path: Path, *arguments: object) -> None:
        write_file(path, *arguments)
        Path(path).write_bytes(Path(path).read_bytes()[:-100])

    write_file = artifact_file.write_file
    monkeypatch.setattr(artifact_file, "write_file", damaged)
    quick = [*(x for x in QUICK if x != "--no-verify"), "--target", "native"]
    assert run("optimize", make_graph(tmp_path / "in.pb"), "-o", tmp_path / "m.disc", *quick) == 5
    assert "m.disc was not written: it does not load: " in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["in.pb"]


@pytest.mark.slow
def test_the_file_is_proved_before_it_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "m.disc"
    assert run("optimize", make_graph(tmp_path / "in.pb"), "-o", out, "--points", "2", "--target", "native", "--json") == 0
    assert json.loads(capsys.readouterr().out)["verified"] is True and out.is_file()


@pytest.mark.slow
def test_the_file_of_a_signature_is_compared_with_the_model_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value that goes wrong when the model is frozen is found."""
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(tf.ones([8, 4]))

        @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, name="x"), tf.TensorSpec([], tf.string, name="unused")])
        def serve(self, x, unused):
            return {"y": tf.tanh(tf.matmul(x, self.w))}

    m = Model()
    tf.saved_model.save(m, str(tmp_path / "saved"), {"serving_default": m.serve})
    command = ["optimize", tmp_path / "saved", "-o", tmp_path / "m.disc", "--points", "2", "--target", "native"]
    assert run(*command) == 0
    assert "verified against TensorFlow: 1 output, 8 elements at 1 shape; loaded by disc_tf.runtime.load" in capsys.readouterr().out

    def frozen_wrongly(*arguments: object, **options: object) -> object:
        found = freeze(*arguments, **options)
        graph = found.graph_def
        for node in (*graph.node, *(n for f in graph.library.function for n in f.node_def)):
            if node.op == "Tanh":
                node.op = "Sigmoid"
        return found

    freeze = standalone_model.freeze_signature
    monkeypatch.setattr(standalone_model, "freeze_signature", frozen_wrongly)
    assert run(*command) == 5
    assert "verification failed" in capsys.readouterr().err


@pytest.mark.slow
def test_graphs_and_saved_models_run_in_tensorflow(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import tensorflow as tf

    graph, x = model.parent / "in.pb", model.parent / "x.npy"
    optimized = tmp_path / "optimized.pb"
    quick = ["--no-verify", "--target", "native", "--min-cluster-size", "1"]
    assert run("optimize", graph, "-o", optimized, "-q", *quick) == 0
    for path in (graph, optimized):
        capsys.readouterr()
        assert run("run", path, "--input", f"x={x}", "--json") == 0
        np.testing.assert_allclose(json.loads(capsys.readouterr().out)["y"]["values"], Y, rtol=1e-5)
    assert run("run", optimized, "--input", f"q={x}") == 3 and "unknown input q; the inputs are x" in capsys.readouterr().err
    assert run("run", optimized) == 3 and "must feed a value" in capsys.readouterr().err

    class Doubler(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, name="x")])
        def serve(self, x):
            return {"twice": x * 2}

    doubler = Doubler()
    tf.saved_model.save(doubler, str(tmp_path / "saved"), {"serving_default": doubler.serve})
    assert run("run", tmp_path / "saved", "--input", f"x={x}", "--json") == 0
    np.testing.assert_array_equal(json.loads(capsys.readouterr().out)["twice"]["values"], (X * 2).tolist())
    np.save(tmp_path / "d.npy", X.astype(np.float64))
    assert run("run", tmp_path / "saved", "--input", f"x={tmp_path / 'd.npy'}") == 3
    assert "float32 is needed, float64" in capsys.readouterr().err
    assert run("run", tmp_path / "saved", "--signature", "other", "--input", f"x={x}") == 3
    assert "no signature 'other'; there are serving_default" in capsys.readouterr().err


@pytest.mark.slow
def test_a_signature_becomes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Variables are baked in, names are the signature's keys, and what needs one input comes without the other."""
    import tensorflow as tf

    from disc_tf.runtime import load

    class Towers(tf.Module):
        def __init__(self) -> None:
            self.w = tf.Variable(np.eye(8, dtype=np.float32) / 2)

        @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, name=n) for n in ("left", "right")])
        def score(self, left, right):
            for _ in range(3):
                left, right = tf.tanh(left @ self.w), tf.tanh(right @ self.w)
            return {"score": tf.reduce_sum(left * right, -1), "embedding": left}

    towers = Towers()
    tf.saved_model.save(towers, str(tmp_path / "saved"), {"rank": towers.score})
    command = ["optimize", tmp_path / "saved", "-o", tmp_path / "m.disc", "--target", "native", "--points", "2"]
    assert run(*command) == 3 and "serving_default" in capsys.readouterr().err
    assert run(*command, "--signature", "rank") == 0
    model = load(tmp_path / "m.disc")
    assert model.segments[0] == (["left"], ["embedding"]) and list(model.inputs) == ["left", "right"]
    found, want = model.run({"left": X, "right": 2 * X}), towers.score(X, 2 * X)
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value.numpy(), rtol=1e-4, atol=1e-5)
