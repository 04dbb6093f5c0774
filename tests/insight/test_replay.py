"""Replay files: what is in them, what refuses them, and that they point at the phase that is at fault."""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf.cli import main
from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.tfproto import serialized
from disc_tf.insight import faults
from disc_tf.insight import rerun as rerun_module
from disc_tf.insight.replay_file import Replay, ReplayError, make_replay, read_replay, versions, write_replay
from disc_tf.insight.rerun import WAYS, rerun
from disc_tf.optimizer import optimize_graph_def
from disc_tf.runtime.cpu import native_target
from disc_tf.testing.inputs import InputSpec
from tests.frontend.graphs import F32, G

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
W = np.linspace(0, 1, 8 * 40, dtype=np.float32).reshape(8, 40)


def graph(last: str = "Tanh") -> G:
    g = G()
    g.placeholder("x", [None, 8])
    g.const("w", W)
    g.matmul("m", "x", "w")
    g.unary("y", "m", "Neg")
    g.unary("z", "y", last)
    return g


def captured(last: str = "Tanh") -> Replay:
    result = optimize_graph_def(graph().proto, ["z:0"], use_tf_shapes=False, targets=[native_target()], min_cluster_size=1)
    wrong = optimize_graph_def(graph(last).proto, ["z:0"], use_tf_shapes=False, targets=[native_target()], min_cluster_size=1)
    for node in result.graph_def.node:
        if node.op == "DiscLaunch":
            node.attr["executable"].s = next(n.attr["executable"].s for n in wrong.graph_def.node if n.op == "DiscLaunch")
    return make_replay(result.graph_def, "disc_cluster_0", [W, X], note="a note")


@pytest.fixture(scope="module")
def replay() -> Replay:
    return captured()


def numpy_instead(last: Callable[[np.ndarray], np.ndarray] = np.tanh) -> Callable[..., list[np.ndarray]]:
    """What TensorFlow would say; the code of files and of this version is run by the runtime."""

    def answer(path: Path, replay: Replay, outputs: list[str], *, reference: bool = False, threads: int = 0) -> list[np.ndarray]:
        m = X @ W
        values = {"m:0": m, "y:0": -m, "z:0": last(-m), "disc_result_0:0": last(-m)}
        if reference:
            return [values[o] for o in outputs]
        from disc_tf.frontend.tfproto import graph_from_bytes
        from disc_tf.insight.capture import launch_inputs
        from disc_tf.runtime.executable import Executable

        graph_def = graph_from_bytes(path.read_bytes())
        launch = next(n for n in graph_def.node if n.op == "DiscLaunch")
        count = len(launch_inputs(graph_def)[launch.name])
        with Executable.from_bytes(launch.attr["executable"].s) as executable:
            found = executable.run([W, X][:count])
            names = [r.name if ":" in r.name else f"{r.name}:0" for r in executable.results]
        results = {**values, **dict(zip(names, map(np.array, found), strict=True))}  # what stays in TensorFlow is right
        return [results["z:0" if o.startswith("disc_cluster_0") else o] for o in outputs]

    return answer


def test_the_file(replay: Replay, tmp_path: Path) -> None:
    path = tmp_path / "c.replay"
    data = write_replay(replay)
    assert data == write_replay(replay)
    path.write_bytes(data)
    back = read_replay(path)
    assert (back.cluster, back.results, back.note, back.versions) == ("disc_cluster_0", ["z:0"], "a note", versions())
    assert serialized(back.graph) == serialized(replay.graph) and serialized(back.launch) == serialized(replay.launch)
    assert sorted(back.names.values()) == ["w", "x"]
    (value,) = back.feeds.values()
    np.testing.assert_array_equal(value, X)
    ops = sorted(n.op for n in back.graph.node)
    assert ops == ["Const", "MatMul", "Neg", "Placeholder", "Tanh"]
    assert sorted(n.op for n in back.launch.node) == ["Const", "DiscLaunch", "Placeholder"]


def test_bfloat16_and_scalars(tmp_path: Path) -> None:
    import ml_dtypes

    g = G()
    g.placeholder("x", [None], t := 14)
    g.placeholder("s", [], t)
    g.unary("z", g.binary("y", "x", "s", t=t), t=t)
    result = optimize_graph_def(g.proto, ["z:0"], use_tf_shapes=False, targets=["x86-64-v2"], min_cluster_size=1)
    arguments = [np.arange(3).astype(ml_dtypes.bfloat16), np.array(2, ml_dtypes.bfloat16)]
    path = tmp_path / "c.replay"
    path.write_bytes(write_replay(make_replay(result.graph_def, "disc_cluster_0", arguments)))
    first, second = read_replay(path).feeds.values()
    assert first.dtype == ml_dtypes.bfloat16 and first.tolist() == [0, 1, 2] and second.shape == () and float(second) == 2


def _rewritten(data: bytes, change: Callable[[dict[str, bytes]], Any]) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {n: archive.read(n) for n in archive.namelist()}
    change(files)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def _manifest(files: dict[str, bytes], **changes: Any) -> None:
    files["manifest.json"] = json.dumps({**json.loads(files["manifest.json"]), **changes}).encode()


BAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "not a zip": (lambda d: b"nonsense", "not a replay file"),
    "cut": (lambda d: d[: len(d) // 2], "not a replay file"),
    "no manifest": (lambda d: _rewritten(d, lambda f: f.pop("manifest.json")), "damaged"),
    "too deep": (lambda d: _rewritten(d, lambda f: f.update({"manifest.json": b"[" * 100_000})), "damaged"),
    "not json": (lambda d: _rewritten(d, lambda f: f.update({"manifest.json": b"{"})), "damaged"),
    "another format": (lambda d: _rewritten(d, lambda f: _manifest(f, format=99)), "replay format is 99"),
    "no input": (lambda d: _rewritten(d, lambda f: f.pop("inputs/0.npy")), "damaged"),
    "a pickle": (lambda d: _rewritten(d, lambda f: f.update({"inputs/0.npy": _pickled()})), "damaged"),
    "another shape": (
        lambda d: _rewritten(d, lambda f: _manifest(f, inputs=[{"name": "a", "dtype": "f32", "shape": [1]}])), "not what the manifest says",
    ),
    "no graph": (lambda d: _rewritten(d, lambda f: f.update({"graph.pb": b"\xff" * 9})), "damaged"),
}  # fmt: skip


def _pickled() -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([{"a": 1}], object), allow_pickle=True)
    return out.getvalue()


@pytest.mark.parametrize("bad", BAD)
def test_bad_files(replay: Replay, tmp_path: Path, bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    change, words = BAD[bad]
    path = tmp_path / "c.replay"
    path.write_bytes(change(write_replay(replay)))
    with pytest.raises(ReplayError, match=words):
        read_replay(path)
    assert main(["replay", str(path)]) == 3
    assert words in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "absent")]) == 3


def test_no_such_cluster(replay: Replay) -> None:
    with pytest.raises(GraphError, match="no cluster 'c'"):
        make_replay(graph().proto, "c", [])


def test_all_agree(replay: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerun_module, "_tensorflow", numpy_instead())
    found = rerun(replay, tmp_path, values=True)
    assert found.same and found.answers == dict.fromkeys(WAYS, "same") and not found.first and not found.blame
    assert sum("all 3 of them" in n for n in found.notes) == 3


def test_only_the_file_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of an older version: what this one compiles is right."""
    monkeypatch.setattr(rerun_module, "_tensorflow", numpy_instead())
    found = rerun(captured("Sigmoid"), tmp_path)
    assert found.answers["the file's code"].startswith("z:0: ") and found.answers["compiled again"] == "same"
    assert "of the version that made the file" in found.blame and not found.same and not found.first
    assert rerun(captured("Sigmoid"), tmp_path, captured=False).same


def test_a_wrong_lowering(replay: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the rule of one op did not say what TensorFlow says: all of ours differ, at that node first."""
    monkeypatch.setattr(rerun_module, "_tensorflow", numpy_instead(np.sinh))
    found = rerun(replay, tmp_path)
    assert "lowering" in found.blame
    assert {(d.way, d.tensor) for d in found.first} == {(w, "z:0") for w in WAYS[:3]}


def test_a_wrong_pass(replay: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that drops a negation: the interpreter is right before it, wrong after it."""
    from disc_tf.ir.core import replace_all_uses
    from disc_tf.passes import pipeline

    real = pipeline.optimize

    def wrong(module: Any, *rest: Any, **named: Any) -> Any:
        for op in list(module.main.body.ops):
            if op.name == "negate":
                replace_all_uses(op.result, op.operands[0])
        return real(module, *rest, **named)

    monkeypatch.setattr(pipeline, "optimize", wrong)
    monkeypatch.setattr("disc_tf.compiler.optimize", wrong)
    monkeypatch.setattr(rerun_module, "_tensorflow", numpy_instead())
    found = rerun(replay, tmp_path)
    assert found.answers["interpreter"] == "same" and "pass" in found.blame
    assert {(d.way, d.tensor) for d in found.first} == {("after the passes", "y:0"), ("compiled again", "y:0")}


def test_a_graph_that_this_version_leaves_alone(replay: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from disc_tf.insight.replay_file import Replay as Kind

    other = Kind(**{**vars(replay), "graph": type(replay.graph)()})
    other.graph.CopyFrom(replay.graph)
    next(n for n in other.graph.node if n.name == "y").op = "NoSuchOp"
    monkeypatch.setattr(rerun_module, "_tensorflow", numpy_instead())
    monkeypatch.setattr(rerun_module, "_with_asserts", lambda r: r.graph)
    found = rerun(other, tmp_path)
    assert found.answers["interpreter"].startswith("not run:") and found.answers["the file's code"] == "same"


def test_capture_leaves_other_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clusters whose names become one file name, and files of the user that are named like ours might be."""
    result = optimize_graph_def(graph().proto, ["z:0"], use_tf_shapes=False, targets=[native_target()], min_cluster_size=1)
    (launch,) = [n for n in result.graph_def.node if n.op == "DiscLaunch"]
    launch.name = "a/b"
    result.graph_def.node.add().CopyFrom(launch)
    result.graph_def.node[-1].name = "a_b"
    (cluster,) = result.report.clusters
    result.report.clusters[:] = [
        dataclasses.replace(cluster, name=n, status="put_back", reason="differs") for n in ("a/b", "a_b")
    ]
    mine = [tmp_path / n for n in (".candidate.pb", ".graph.pb", ".launch.pb")]
    for path in mine:
        path.write_text(path.name)
    seen = []

    def runs(path: Path, replay: Replay, outputs: list[str], **_: Any) -> list[np.ndarray]:
        assert path.read_bytes()
        seen.append(path)
        return [X * len(seen)]

    monkeypatch.setattr(rerun_module, "_tensorflow", runs)
    monkeypatch.setattr(faults, "capture", lambda path, *_, **__: path.read_bytes() and {"a/b": [W, X], "a_b": [W, X]})
    specs = [InputSpec("x", np.dtype(np.float32), ("n", 8))]
    write = lambda path, data: Path(path).write_bytes(data)  # noqa: E731
    made = faults.capture_faults(result.graph_def, result.report, specs, [{"n": 3}, {"n": 4}], tmp_path, write=write)
    assert [Path(p).name for p in made] == ["a_b.replay", "a_b-2.replay"]
    assert [read_replay(p).cluster for p in made] == ["a/b", "a_b"]
    assert len(seen) == 4 and all(p.read_text() == p.name for p in mine) and len(list(tmp_path.iterdir())) == 5


@pytest.mark.slow
def test_capture_and_replay_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`optimize --capture`, then `replay` in TensorFlow, for a cluster that checks an index: right, and where TensorFlow raises."""
    g = G()
    g.placeholder("ids", [None], 3)
    g.const("table", np.arange(40.0).reshape(10, 4))
    g.const("axis", 0, np.int32)
    g.node("rows", "GatherV2", ["table", "ids", "axis"], Tparams=("type", F32), Tindices=("type", 3), Taxis=("type", 3), batch_dims=0)
    g.unary("z", "rows")
    path, out, faults = tmp_path / "g.pb", tmp_path / "o.pb", tmp_path / "faults"
    path.write_bytes(serialized(g.proto))
    arguments = ["--min-cluster-size", "1", "--target", "native", "--no-timing", "--points", "1", "-q"]
    assert main(["optimize", str(path), "-o", str(out), "--capture", str(faults), *arguments]) == 0
    file = faults / "disc_cluster_0.replay"
    assert [p.name for p in faults.iterdir()] == [file.name]
    capsys.readouterr()
    assert main(["replay", str(file), "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same"] and set(found["answers"].values()) == {"same"}
    replay = read_replay(file)
    replay.feeds = {name: np.array([3, 99], np.int32) for name in replay.feeds}
    file.write_bytes(write_replay(replay))
    assert main(["replay", str(file), "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "raises code 3" in found["reference"] and set(found["answers"].values()) == {"same"}
