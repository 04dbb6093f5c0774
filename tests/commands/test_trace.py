"""`disc-tf trace`: graphs, SavedModels and stand-alone files; what is wrong is said before any work."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf import atomic
from disc_tf.commands.common import CommandError, check_sizes
from disc_tf.frontend.tfproto import serialized
from disc_tf.testing.inputs import InputSpec
from tests.commands.test_cli import make_graph, run
from tests.frontend.graphs import G
from tests.insight.test_chrome_trace import check_tracks


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-alone file beside its graph and inputs."""
    directory = tmp_path_factory.mktemp("trace")
    graph = make_graph(directory / "in.pb")
    np.save(directory / "x.npy", np.ones((3, 8), np.float32))
    np.savez(directory / "wrong.npz", y=np.ones(3, np.float32))
    other = {"inputs": [{"name": "q", "dtype": "float32", "shape": [3, 8]}], "outputs": [], "points": []}
    (directory / "other.json").write_text(json.dumps(other))
    (directory / "deep.json").write_text("[" * 100_000)
    out = directory / "model.disc"
    assert run("optimize", graph, "-o", out, "-q", "--no-verify", "--target", "native", "--no-use-tf-shapes") == 0
    return out


def read(path: Path) -> list[dict[str, Any]]:
    found = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    check_tracks(found)
    return found


def test_a_stand_alone_file(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "t.json"
    assert run("trace", model, "-o", out, "--shape", "x/0=5000", "--runs", "4") == 0
    told = capsys.readouterr()
    assert f"wrote {out}: " in told.out and "of 4 runs at x/0=5000; open it in https://ui.perfetto.dev" in told.out
    assert "host program" in told.out and "note: small kernels are called directly" in told.out
    assert "running" in told.err
    found = read(out)
    assert len([e for e in found if e["cat"] == "run"]) == 4
    kernel = next(e for e in found if e["cat"] == "kernel" and e["args"]["tasks"] > 1 and "m" in e["args"]["nodes"])
    assert kernel["args"]["cluster"] == "model" and kernel["args"]["kernel"].startswith("k_gemm")
    assert next(e for e in found if e["cat"] == "run")["args"]["arguments"] == {"x": [5000, 8]}


def test_a_stand_alone_file_in_which_everything_is_seen(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`optimize --profile`: small kernels too, with shapes, operations and bytes; the answers stay the same bits."""
    made, out = tmp_path / "seen.disc", tmp_path / "t.json"
    graph = model.parent / "in.pb"
    assert run("optimize", graph, "-o", made, "-q", "--no-verify", "--target", "native", "--no-use-tf-shapes", "--profile") == 0
    assert run("trace", made, "-o", out, "-q", "--input", f"x={model.parent / 'x.npy'}", "--runs", "2") == 0
    assert "note" not in capsys.readouterr().out
    kernels = [e["args"] for e in read(out) if e["cat"] == "kernel" and "m" in e["args"]["nodes"]]
    assert len(kernels) == 2 and all(k["flops"] == 2 * 3 * 8 * 4 and k["makes"] == ["f32[3,4]"] and k["bytes"] > 0 for k in kernels)
    answers = []
    for file in (model, made):
        assert run("run", file, "--input", f"x={model.parent / 'x.npy'}", "-o", tmp_path / "y.npz") == 0
        answers.append(np.load(tmp_path / "y.npz")["y"].tobytes())
    assert answers[0] == answers[1]


def test_given_inputs_and_json(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "t.json"
    assert run("trace", model, "-o", out, "--input", f"x={model.parent / 'x.npy'}", "--runs", "1", "--json") == 0
    told = capsys.readouterr()
    data = json.loads(told.out)
    assert told.err == "" and data["at"] == "given inputs" and len(data["run_ms"]) == 1 and data["dropped_events"] == 0
    cluster = data["clusters"]["model"]
    assert cluster["run_us"] == cluster["first_us"] > 0 and {s["name"] for s in cluster["shares"]} >= {"host program", "memory for results"}
    assert read(out)[0]["args"]["run"] >= 0


def test_a_description_beside_the_file(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy.disc"
    copy.write_bytes(model.read_bytes())
    inputs = [{"name": "x", "dtype": "float32", "shape": ["ROWS", 8]}]
    description = {"inputs": inputs, "outputs": ["y"], "points": [{"dims": {"ROWS": 17}}]}
    copy.with_suffix(".json").write_text(json.dumps(description))
    assert run("trace", copy, "-o", tmp_path / "t.json", "-q") == 0
    assert "at ROWS=17" in capsys.readouterr().out
    copy.with_suffix(".json").write_text(json.dumps(description | {"inputs": []}))
    assert run("trace", copy, "-o", tmp_path / "t.json", "-q") == 3
    assert "does not describe input x" in capsys.readouterr().err


BAD = [
    (["{m}"], 2, "-o/--output"),
    (["{m}", "-o", "{m}"], 2, "model and output are the same file"),
    (["{m}", "-o", "{d}/none/t.json"], 3, "does not exist"),
    (["{m}", "-o", "{d}"], 3, "it is a directory"),
    (["{m}", "-o", "{d}/t.json", "--runs", "0"], 2, "0 is less than 1"),
    (["{m}", "-o", "{d}/t.json", "--shape", "x"], 2, "write it as NAME=EXTENT"),
    (["{m}", "-o", "{d}/t.json", "--shape", "x/0=" + "9" * 5000], 2, "write it as NAME=EXTENT"),
    (["{m}", "-o", "{d}/t.json", "--shape", "q=3"], 2, "unknown dim q, no extent for x/0; dims: x/0"),
    (["{m}", "-o", "{d}/t.json", "--shape", f"x/0={1 << 45}"], 3, "input x at [35184372088832, 8] does not fit in memory: take smaller"),
    (["{d}/in.pb", "-o", "{d}/t.json", "--shape", f"x/0={1 << 70}"], 3, "8] does not fit in memory: take smaller"),
    (["{m}", "-o", "{d}/t.json", "--shape", "x/0=3", "--input", "x={d}/x.npy"], 2, "one of the two"),
    (["{m}", "-o", "{d}/t.json", "--inputs", "{d}/wrong.npz"], 3, "unknown input y"),
    (["{m}", "-o", "{d}/t.json", "--input", "x={d}/none.npy"], 3, "cannot read"),
    (["{m}", "-o", "{d}/t.json", "--target", "native"], 2, "--target is for graphs, which are compiled for the trace"),
    (["{m}", "-o", "{d}/t.json", "--signature", "s"], 2, "--signature is for SavedModels: a .disc file is one signature"),
    (["{m}", "-o", "{d}/t.json", "--outputs", "y"], 2, "--outputs is for graphs"),
    (["{m}", "-o", "{d}/t.json", "--inputs-json", "{d}/x.npy"], 3, "is not a model description"),
    (["{d}/in.pb", "-o", "{d}/t.json", "--inputs-json", "{d}/other.json"], 3, "other.json describes input q, which is not in"),
    (["{d}/in.pb", "-o", "{d}/t.json", "--inputs-json", "{d}/deep.json"], 3, "is not a model description"),
    (["{d}/none.pb", "-o", "{d}/t.json"], 3, "cannot read"),
    (["{d}/x.npy", "-o", "{d}/t.json"], 3, "not a serialized"),
    (["{d}", "-o", "{d}/t.json"], 3, "saved_model.pb"),
    (["{d}/in.pb", "-o", "{d}/t.json", "--signature", "s"], 2, "--signature is for SavedModels"),
    (["{d}/in.pb", "-o", "{d}/t.json", "--trust-file", "f"], 2, "--trust-file is for .disc files"),
    (["{d}/in.pb", "-o", "{d}/t.json", "--shape", "q=3"], 2, "unknown dim q"),
    (["{d}/in.pb", "-o", "{d}/t.json", "--outputs", "nothing"], 3, "nothing"),
    (["{d}/in.pb", "-o", "{d}/t.json", "--inputs", "{d}/wrong.npz"], 3, "unknown input y; the inputs are x"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), BAD, ids=[m for *_, m in BAD])
def test_bad_input_is_named(model: Path, arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace", *[a.format(m=model, d=model.parent) for a in arguments]) == code
    told = capsys.readouterr()
    assert message in told.err and "Traceback" not in told.err and not (model.parent / "t.json").exists()


def test_a_full_disk_leaves_what_was_there(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t.json"
    out.write_text("before")

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic.os, "fsync", full)
    assert run("trace", model, "-o", out, "-q") == 3
    assert f"cannot write {out}: No space left on device" in capsys.readouterr().err
    assert out.read_text() == "before" and os.listdir(tmp_path) == ["t.json"]


def test_no_memory_to_record(model: Path, tmp_path: Path) -> None:
    """In a process that may not map more: an error in one line, and no file."""
    code = (
        "import resource, sys\nfrom disc_tf.cli import main\nfrom disc_tf.runtime import library_path, num_threads\nnum_threads()\n"
        "now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (now + (150 << 20),) * 2)\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "trace", str(model), "-o", str(tmp_path / "t.json"), "--shape", "x/0=3", "-q", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 3 and done.stderr.count("\n") == 1 and "no memory for a profile" in done.stderr, done.stderr
    assert not os.listdir(tmp_path)


def test_code_that_nobody_signed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DISC_TF_TRUST", str(tmp_path / "trust.toml"))
    assert run("trace", model.parent / "in.pb", "-o", tmp_path / "t.json") == 2
    assert "DISC_TF_TRUST=" in capsys.readouterr().err


@pytest.mark.slow
def test_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An original, its optimised form (the same clusters, or others), and one of which nothing compiles."""
    g = G()
    g.placeholder("x", [None, 8])
    g.const("w", np.full((8, 24), 0.1))
    g.matmul("m", "x", "w")
    g.string_work("s", g.chain("a", "m", 3))
    g.chain("b", "s", 5)
    graph, optimized, out = tmp_path / "in.pb", tmp_path / "opt.pb", tmp_path / "t.json"
    graph.write_bytes(serialized(g.proto))
    flags = ["--min-cluster-size", "2", "--shape", "x/0=700", "-q"]
    assert run("trace", graph, "-o", out, *flags) == 0
    assert "a run, as its caller sees it" in capsys.readouterr().out
    found = read(out)
    product = next(e for e in found if e["cat"] == "kernel" and e["args"].get("flops"))
    assert product["name"].startswith("m") and product["args"]["flops"] == 2 * 700 * 8 * 24 and product["args"]["makes"] == ["f32[700,24]"]
    assert {e["args"]["cluster"] for e in found if e["cat"] == "run"} == {"disc_cluster_0", "disc_cluster_1"}
    nodes = {e["name"]: e for e in found if e["cat"] == "tensorflow"}
    assert nodes["disc_cluster_0"]["args"]["op"] == "DiscLaunch" and len([e for e in found if e["cat"] == "tensorflow"]) > 5 * 2
    run_ = next(e for e in found if e["cat"] == "run" and e["args"]["cluster"] == "disc_cluster_0")
    launch = min((e for e in found if e["name"] == "disc_cluster_0"), key=lambda e: e["ts"])
    # two clocks, within a millisecond
    assert launch["ts"] - 1000 <= run_["ts"] and run_["ts"] + run_["dur"] <= launch["ts"] + launch["dur"] + 1000
    assert run("optimize", graph, "-o", optimized, "--no-verify", "--target", "native", "--min-cluster-size", "2", "-q") == 0
    capsys.readouterr()
    assert run("trace", optimized, "-o", out, *flags) == 0
    assert "other clusters" not in capsys.readouterr().out and read(out)
    assert run("trace", optimized, "-o", out, *flags[2:], "--deny", "MatMul", "--min-cluster-size", "2") == 0
    assert "note: the file has other clusters" in capsys.readouterr().out
    assert run("trace", graph, "-o", out, *flags[2:], "--fuel", "0") == 0
    assert "note: nothing was compiled" in capsys.readouterr().out and {e["cat"] for e in read(out)} == {"tensorflow"}


@pytest.mark.slow
def test_a_signature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self) -> None:
            self.w = tf.Variable(tf.fill([8, 24], 0.1))

        @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, "x")])
        def call(self, x: Any) -> dict[str, Any]:
            return {"y": tf.tanh(x @ self.w)}

    module = Model()
    tf.saved_model.save(module, tmp_path / "model", signatures={"serving_default": module.call})
    assert run("trace", tmp_path / "model", "-o", tmp_path / "t.json", "-q", "--runs", "2", "--min-cluster-size", "1") == 0
    assert "matmul" in capsys.readouterr().out and any(e["cat"] == "kernel" for e in read(tmp_path / "t.json"))
    np.savez(tmp_path / "in.npz", x=np.ones((5, 8), np.float32))
    given = ["--inputs", tmp_path / "in.npz", "--min-cluster-size", "1"]
    assert run("trace", tmp_path / "model", "-o", tmp_path / "t.json", "-q", *given) == 0
    assert next(e for e in read(tmp_path / "t.json") if e["cat"] == "run")["args"]["arguments"] == {"serving_default_x": [5, 8]}


def test_a_dim_that_is_missing_has_a_way_out() -> None:
    specs = [InputSpec("x", np.dtype(np.float32), ("a", "b"))]
    with pytest.raises(CommandError, match="no extent for b; dims: a, b; one --shape has all of them"):
        check_sizes(specs, [{"a": 1}])
    check_sizes(specs, [{"a": 1, "b": 2}])
