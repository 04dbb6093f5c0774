"""`inspect --kernels`: what is run and printed, and what is refused with the way out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from disc_tf.cli import main
from disc_tf.commands.kernels import table
from disc_tf.frontend.tfproto import serialized
from disc_tf.insight.profile import totals
from disc_tf.report import ClusterProfile, KernelTime
from disc_tf.runtime.cpu import native_target
from disc_tf.standalone import compile_graph_def
from tests.frontend.graphs import G

SMALL = ["--min-cluster-size", "1", "--no-use-tf-shapes"]


def run(*arguments: object) -> int:
    return main([str(a) for a in arguments])


def product() -> G:
    g = G()
    g.placeholder("x", [None, 64])
    g.const("w", np.full((64, 256), 0.1))
    g.matmul("m", "x", "w")
    g.chain("a", "m", 3)
    return g


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "in.pb"
    path.write_bytes(serialized(product().proto))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.disc"
    compile_graph_def(product().proto, None, path, targets=[native_target()], use_tf_shapes=False)
    return path


PROFILE = ClusterProfile(
    "c", {"x": [4, 8]}, 2, 100.0, 20.0,
    [
        KernelTime("k_gemm_1", "gemm", ["dense/MatMul", "dense/Tanh"], 2, 60.0, 4e6, 8e3, 0.5, "compute", 40.0),
        KernelTime("k_rows_1", "rows", ["norm"], 1, 15.0, 0.0, 2e3, 0.25, "memory", 10.0),
        KernelTime("k_loop_1", "loop", [], 1, 5.0, 0.0, 5e2, 0.1, "launch", 0.5),
    ],
)  # fmt: skip


def test_the_table() -> None:
    head, names, *rows = table(PROFILE)
    assert head == "c at x [4, 8]: 100.0 us a run, 20.0 us of them beside these kernels; rank correlation of predictions with times 1.00"
    assert names.split() == ["us", "predicted", "calls", "kind", "MFLOP", "kB", "roofline", "bound", "by", "nodes"]
    assert rows[0].split() == ["60.0", "40.0", "2", "gemm", "4.0", "8", "50", "%", "compute", "dense/MatMul", "+1"]
    assert rows[2].split()[-2:] == ["launch", "k_loop_1"]
    assert rows[-1].split() == ["80.0", "50.5", "4", "3", "in", "all", "4.0", "10", "43", "%"]
    assert len({row.index("gemm") for row in rows[:1]} | {names.index("kind")}) == 1
    assert table(ClusterProfile("c", {}, 1, 0.0, 0.0, [], message="no")) == ["c at no inputs: not timed: no"]


def test_totals_of_what_is_known_in_part() -> None:
    without = ClusterProfile("c", {}, 1, 9.0, 0.0, [*PROFILE.kernels, KernelTime("", "library", [], 1, 7.0)])
    sums = totals(without)
    assert sums.predicted_us is None and sums.us == 87.0 and sums.correlation == pytest.approx(1)
    assert sums.roofline == pytest.approx((0.5 * 60 + 0.25 * 15 + 0.1 * 5) / 80)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--shape", "x/0=3"], "--shape is for --kernels"),
        (["--threads", "1"], "--threads is for --kernels"),
        (["--kernels", "--explain", "m"], "--explain does not go with --kernels"),
        (["--kernels", "--target", "native"], "which is about this machine"),
        (["--kernels", "--dump-dir", "d"], "--dump-dir is for `disc-tf optimize`"),
        (["--kernels", "--signature", "s"], "--signature is for SavedModels"),
        (["--kernels", "--trust-file", "t"], "--kernels compiles what it runs"),
        (["--kernels", "--shape", "y=3"], "unknown dim y, no extent for x/0; dims: x/0"),
    ],
)
def test_flags_that_do_not_fit(graph: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str) -> None:
    assert run("inspect", graph, *flags, *SMALL) == 2
    assert said in capsys.readouterr().err


def test_a_policy_for_signed_code(graph: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISC_TF_TRUST", "trust.toml")
    assert run("inspect", graph, "--kernels", *SMALL) == 2
    assert "nobody signs what is compiled here" in capsys.readouterr().err


def test_a_stand_alone_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", file, "--kernels", "--shape", "x/0=700", "--threads", "1") == 0
    out = capsys.readouterr().out
    assert "m.disc at x [700, 64]" in out and "gemm" in out and "m +3" in out and "for predictions give the graph" in out
    for flags, said in ((["--shape", "x/1=3"], "unknown dim x/1"), (["--report", "r.html"], "--report is for graphs")):
        assert run("inspect", file, "--kernels", *flags) == 2
        assert said in capsys.readouterr().err


def test_what_cannot_be_run(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = G()
    nothing.placeholder("x", [None])
    nothing.string_work("s", "x")
    path = tmp_path / "nothing.pb"
    path.write_bytes(serialized(nothing.proto))
    assert run("inspect", path, "--kernels", *SMALL) == 4
    assert "there are no kernels" in capsys.readouterr().err
    damaged = tmp_path / "damaged.disc"
    damaged.write_bytes(file.read_bytes()[:200])
    assert run("inspect", damaged, "--kernels") == 3
    assert str(damaged) in capsys.readouterr().err


@pytest.mark.slow
def test_a_graph_before_and_after(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, out = tmp_path / "r.html", tmp_path / "out.pb"
    at = ["--shape", "x/0=5", "--shape", "x/0=3000", "--threads", "1"]
    assert run("inspect", graph, "--kernels", *at, "--json", "--report", page, *SMALL) == 0
    found = json.loads(capsys.readouterr().out)
    small, large = found["profiles"]
    assert found["machine"]["gflops"] > 1 and small["shapes"] == {"x": [5, 64]} and large["shapes"] == {"x": [3000, 64]}
    for p in (small, large):
        assert p["totals"]["us"] > 0 and all(k["us"] > 0 and k["bound"] and k["nodes"] for k in p["kernels"])
    before, after = small["totals"], large["totals"]
    assert after["predicted_us"] > 100 * before["predicted_us"] and after["flops"] == 600 * before["flops"]
    assert "predicted ms" in page.read_text()
    assert run("optimize", graph, "-o", out, "--no-verify", "-q", "--target", "native", *SMALL) == 0
    assert run("inspect", out, "--kernels", "--shape", "x/0=5", *SMALL) == 0
    assert "compiled again for this machine" in capsys.readouterr().out


@pytest.mark.slow
def test_a_saved_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tf = pytest.importorskip("tensorflow")
    module = tf.Module()
    module.w = tf.Variable(tf.ones([8, 16]))
    spec = tf.TensorSpec([None, 8], name="x")
    module.f = tf.function(lambda x: {"y": tf.nn.softmax(x @ module.w)}, input_signature=[spec])
    directory = tmp_path / "model"
    tf.saved_model.save(module, str(directory), signatures={"serving_default": module.f})
    assert run("inspect", directory, "--kernels", "--shape", "x/0=64", *SMALL) == 0
    out = capsys.readouterr().out
    assert "signature serving_default with the variables' values baked in" in out and "[64, 8]" in out
    assert run("inspect", directory, "--kernels", "--signature", "none") == 3
    assert "there is no signature 'none'" in capsys.readouterr().err
