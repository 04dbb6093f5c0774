"""Profiles: kernels timed on captured arguments, and held against the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from disc_tf.cli import main
from disc_tf.commands.kernels import table
from disc_tf.costs import LAUNCH_US, Machine, predict
from disc_tf.frontend.tfproto import graph_from_bytes, serialized
from disc_tf.insight.capture import launch_inputs
from disc_tf.insight.profile import (
    ABOVE_COMPUTE,
    ABOVE_MEMORY,
    arena_over_time,
    argument_dims,
    compile_for_profile,
    demand,
    evaluate,
    kernel_times,
    largest,
    profile_cluster,
    profile_file,
    profile_graph,
    profile_report,
    standalone_specs,
    totals,
)
from disc_tf.insight.roofline import cache_sizes, measure, working_sets
from disc_tf.ir.dims import Dim, dmax
from disc_tf.optimizer import optimize_graph_def
from disc_tf.options import Options
from disc_tf.report import ClusterProfile, ClusterReport, KernelReport, MemoryReport
from disc_tf.report_html.markup import join
from disc_tf.report_html.sections import _profile
from disc_tf.runtime.cpu import native_target
from disc_tf.runtime.recording import LaunchTime
from disc_tf.standalone import compile_graph_def
from disc_tf.testing.inputs import specs_from_graph, specs_from_json
from tests.frontend.graphs import G

MACHINE = Machine("x86-64-v3", 1, 100.0, ((1000, 50.0), (1_000_000, 5.0)))


def two_clusters() -> G:
    """A product, work on strings, a chain: two clusters, the second of which reads the first through TensorFlow."""
    g = G()
    g.placeholder("x", [None, 8])
    g.const("w", np.full((8, 24), 0.1))
    g.matmul("m", "x", "w")
    g.string_work("s", g.chain("a", "m", 3))
    g.chain("b", "s", 5)
    return g


def test_the_roofline_model() -> None:
    assert MACHINE.least_us(1e5, 100) == (1.0, "compute")
    assert MACHINE.least_us(1.0, 500) == (0.01, "memory")
    assert MACHINE.least_us(0.0, 10_000_000)[0] == 2000.0  # beyond the largest measured: the last


def test_the_machine_is_measured() -> None:
    found = measure(1)
    assert found.isa == native_target() and found.gflops > 1
    assert all(0.5 < rate < 5000 for _, rate in found.bandwidth)
    limits = [size for size, _ in found.bandwidth]
    assert limits == sorted(limits) and found.caches == cache_sizes() and len(limits) >= 2


def test_cache_sizes_are_read(tmp_path: Path) -> None:
    levels = [(1, "Data", "48K"), (1, "Instruction", "32K"), (3, "Unified", "480M"), (2, "Unified", "2M")]
    for number, (level, kind, size) in enumerate(levels):
        name = f"index{number}"
        (tmp_path / name).mkdir()
        for file, content in (("level", level), ("type", kind), ("size", size)):
            (tmp_path / name / file).write_text(f"{content}\n")
    (tmp_path / "index4").mkdir()  # a level that says nothing
    assert cache_sizes(str(tmp_path)) == (48 << 10, 2 << 20, 480 << 20)
    assert cache_sizes(str(tmp_path / "none")) == ()
    sets = working_sets(cache_sizes(str(tmp_path)))
    assert [limit for _, limit in sets] == [48 << 10, 2 << 20, 32 << 20, 128 << 20]
    assert all(4096 <= size <= limit and size % 4096 == 0 for size, limit in sets)
    assert working_sets((1000,))[0] == (4096, 1000)


def test_kernels_of_one_step_are_one_entry() -> None:
    """Launches by variant: operations and bytes of a step belong to its kernels together, whatever form the host program picks."""
    product = KernelReport("p", "gemm", ["m"], "2000*a0d0", ["400*a0d0", "100"], [["p_small"], ["p", "p_end"]])
    again = KernelReport("p", "gemm", ["n"], "2000*a0d0", ["400*a0d0", "100"], [["p_small"], ["p", "p_end"]])
    odd = KernelReport("q", "loop", ["t"], "", ["4*n0"], [["q"]])
    cluster = ClusterReport("c", 3, kernels=[product, again, odd])
    run = [LaunchTime(name, 1, ns) for name, ns in (("p", 3000), ("p_end", 1000), ("p", 3000), ("p_end", 1000), ("q", 500))]
    slow = [LaunchTime(x.kernel, 1, x.ns * 3) for x in run]
    found = kernel_times(cluster, [run, slow, run, [*run, LaunchTime("other", 1, 10)]], {"other": ["z"]}, {"a0d0": 2}, MACHINE)
    first, second, third = found
    assert (first.symbol, first.kind, first.calls, first.us, first.nodes) == ("p, p_end", "gemm", 2, 8.0, ["m", "n"])
    assert (first.flops, first.bytes, first.bound) == (8000.0, 1800.0, "launch")
    assert first.predicted_us == pytest.approx(2 * (LAUNCH_US + 4000 / (100 * 0.8) / 1e3))
    assert first.roofline == pytest.approx(8000 / 100.0 / 1e3 / 8.0)
    assert (second.symbol, second.flops, second.roofline, second.predicted_us) == ("q", None, None, None)
    assert (third.symbol, third.kind, third.nodes, third.predicted_us) == ("other", "general body", ["z"], None)


@pytest.mark.parametrize(
    ("flops", "traffic", "ns", "note"),
    [
        ("100000", "8", 900, ABOVE_COMPUTE),
        ("100000", "8", 1100, ""),
        ("2", "1000000", 1000, ABOVE_MEMORY),
        ("2", "1000000", 1_000_000, ""),
    ],
)
def test_what_beats_the_roofline_says_why(flops: str, traffic: str, ns: int, note: str) -> None:
    cluster = ClusterReport("c", 1, kernels=[KernelReport("p", "gemm", ["m"], flops, [traffic], [["p"]])])
    (found,) = kernel_times(cluster, [[LaunchTime("p", 1, ns)]], {}, {}, MACHINE)
    assert found.roofline is not None and (found.roofline > 1) == bool(note) and found.note == note
    said = "\n".join(table(ClusterProfile("c", {}, 1, 2.0, 0.0, [found])))
    assert (f"\n*  {note}" in said and " %*  " in said) if note else "*" not in said
    page = str(join(_profile(ClusterProfile("c", {}, 1, 2.0, 0.0, [found]))))
    assert ("Above 100 % of the roofline: p: faster than" in page) == bool(note)


def test_what_a_launch_asks_for() -> None:
    info = KernelReport(
        "p", "gemm", ["m"], "2*a0d0", ["8*a0d0", "100"], [["s"], ["p", "e"]], weights=["100"], picked=["a0d0"], operations=["3*a0d0"],
        parts=[[["a0d0", "7"]], [["a0d0", str(dmax(1, Dim.of("a0d0") // 9))], ["5", "1"]]],
    )  # fmt: skip
    small, large = (demand(info, form, {"a0d0": 27}) for form in (0, 1))
    assert small is not None and (small.flops, small.operations, small.traffic, small.weights, small.picked) == (54, 81, 316, 100, 27)
    assert (small.chunks, small.launches) == (4, 1)
    assert large is not None and (large.chunks, large.launches) == (9, 2)
    assert demand(info, 0, {}) is None


def chained(threads: int, rows: int) -> float:
    """The predicted microseconds of a compiled graph at a shape, on `MACHINE` with more or fewer threads."""
    g = G()
    g.placeholder("x", [None, 64])
    g.const("w", np.full((64, 256), 0.1))
    g.matmul("m", "x", "w")
    g.chain("a", "m", 3)
    result = optimize_graph_def(g.proto, targets=["x86-64-v3"], use_tf_shapes=False, min_cluster_size=1)
    machine = Machine("x86-64-v3", threads, 100.0 * threads, tuple((size, rate * threads) for size, rate in MACHINE.bandwidth))
    (cluster,) = result.report.clusters
    found = [demand(k, len(k.variants) - 1, dict.fromkeys(cluster.symbols, rows)) for k in cluster.kernels]
    assert found and all(d is not None for d in found)
    for d in found:
        assert d is not None and predict(d, machine).us >= machine.least_us(d.flops, d.traffic)[0]
        assert d.flops == 2.0 * rows * 64 * 256 and d.weights == 4 * 64 * 256 and d.operations > rows * 256
    return sum(predict(d, machine).us for d in found if d is not None)


def test_predictions_of_a_compiled_graph_follow_its_shape() -> None:
    """From the compiler's own expressions: in proportion to the rows of a long product, shared by threads where there are chunks enough."""
    few, many, more = (chained(1, rows) for rows in (1, 1000, 2000))
    assert few < many < more and more / many == pytest.approx(2, rel=0.05)
    assert chained(2, 2000) == pytest.approx(more / 2, rel=0.05) and chained(2, 1) == few


def test_expressions_and_arena() -> None:
    symbols = argument_dims([np.zeros((2, 0)), np.zeros(())])
    assert symbols == {"a0d0": 2, "a0d1": 0}
    assert evaluate(["4*a0d0", "8"], symbols) == 16.0 and evaluate(["n0"], symbols) is None and evaluate(["8 floordiv"], symbols) is None
    memory = MemoryReport(["a", "b", "c"], [("4*a0d0", 0, 1, 0), ("16", 1, 3, 1)], ["4*a0d0", "16"])
    assert arena_over_time(memory, symbols) == ([8, 24, 16], 24)
    assert arena_over_time(MemoryReport(["a"], [("n0", 0, 0, 0)], ["n0"]), symbols) == (None, None)
    assert arena_over_time(None, symbols) == (None, None)
    assert largest([{"B": 1, "S": 7}, {"B": 8, "S": 48}, {"B": 0, "S": 9}]) == {"B": 8, "S": 48} and largest([{}]) == {}


def test_a_cluster_that_refuses_its_arguments() -> None:
    g = G()
    g.placeholder("x", [None, 8])
    g.placeholder("y", [None, 8])
    g.chain("a", g.binary("z", "x", "y"), 3)
    result = optimize_graph_def(g.proto, targets=[native_target()], use_tf_shapes=False, profile=True)
    launch = next(n for n in result.graph_def.node if n.op == "DiscLaunch")
    cluster = result.report.clusters[0]
    ones = np.ones((3, 8), np.float32)
    bad = profile_cluster(cluster, launch.attr["executable"].s, [ones, np.ones((2, 8), np.float32)], MACHINE)
    assert bad.message and not bad.kernels
    good = profile_cluster(cluster, launch.attr["executable"].s, [ones, ones], MACHINE)
    assert good.kernels and good.run_us > 0 and all(k.nodes and k.us > 0 and k.predicted_us for k in good.kernels)
    sums = totals(good)
    assert sums.predicted_us == sum(k.predicted_us or 0 for k in good.kernels) and sums.calls == sum(k.calls for k in good.kernels)


def test_a_stand_alone_file(tmp_path: Path) -> None:
    """Its launches by way of the runtime are timed under their nodes; there are no predictions."""
    g = G()
    g.placeholder("x", [None, 64])
    g.const("w", np.full((64, 256), 0.1))
    g.matmul("m", "x", "w")
    path = tmp_path / "m.disc"
    compile_graph_def(g.proto, ["m"], path, targets=[native_target()], use_tf_shapes=False)
    specs = standalone_specs(path)
    assert [(s.name, s.dims) for s in specs] == [("x", ("x/0", 64))]
    found, machine = profile_file(path, specs, {"x/0": 700}, threads=1)
    assert [(k.kind, k.nodes, k.predicted_us) for k in found.kernels] == [("gemm", ["m"], None)] and machine["threads"] == 1
    assert found.shapes == {"x": [700, 64]} and totals(found).predicted_us is None and 0 < found.kernels[0].us <= found.run_us
    compile_graph_def(g.proto, ["m"], path, targets=[native_target()], use_tf_shapes=False, profile=True)
    few, many = (profile_file(path, specs, {"x/0": rows}, threads=1)[0].kernels for rows in (70, 7000))
    assert [(k.kind, k.nodes, k.flops, k.bound != "") for k in few] == [("gemm", ["m"], 2.0 * 70 * 64 * 256, True)]
    assert few[0].predicted_us is not None and many[0].predicted_us is not None and many[0].predicted_us > 20 * few[0].predicted_us


@pytest.mark.slow
def test_predictions_of_a_model_are_in_the_order_of_its_times(tmp_path: Path) -> None:
    """Loosely, since the machine may be busy: at an ordinary shape, kernels that are predicted to take long do."""
    from tests.e2e.conftest import ROOT, materialise

    specs, outputs, _ = specs_from_json(ROOT / "bench" / "models" / "tiny_bert.json")
    graph = graph_from_bytes(materialise("tiny_bert").read_bytes())
    result = compile_for_profile(graph, outputs, Options())
    (found,), machine = profile_graph(result, specs, [{"B": 4, "S": 61}], tmp_path, threads=1)
    sums = totals(found)
    assert machine["threads"] == 1 and sums.predicted_us is not None and sums.correlation is not None
    assert sums.correlation > 0.7 and 0.1 < sums.predicted_us / sums.us < 10, table(found)


@pytest.mark.slow
def test_the_page_of_an_optimisation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole way by command: verified, timed, profiled; the page has kernels with their share, memory and speed."""
    graph, out, page = tmp_path / "g.pb", tmp_path / "o.pb", tmp_path / "r.html"
    graph.write_bytes(serialized(two_clusters().proto))
    arguments = ["--target", "native", "--min-cluster-size", "2", "--shape", "x/0=5", "--shape", "x/0=300", "--threads", "1", "-q"]
    assert main(["optimize", str(graph), "-o", str(out), "--report", str(page), *arguments]) == 0
    text = page.read_text()
    assert capsys.readouterr().err == ""
    for words in ("% of roofline", "predicted ms", "GFLOP/s", "yes", "speed-up", "x [300, 8]", "disc_cluster_0"):
        assert words in text


@pytest.mark.slow
def test_a_report_with_tensorflow_between(tmp_path: Path) -> None:
    """Two clusters: the arguments of the second come out of a TensorFlow run."""
    g = two_clusters()
    result = optimize_graph_def(g.proto, targets=["x86-64-v2"], use_tf_shapes=False, min_cluster_size=2)
    assert launch_inputs(result.graph_def) == {"disc_cluster_0": ["x:0"], "disc_cluster_1": ["s:0"]}
    profile_report(result.report, g.proto, specs_from_graph(g.proto), {"x/0": 5}, tmp_path, threads=1)
    assert not result.report.warnings
    first, second = result.report.profile
    assert first.shapes == {"x": [5, 8]} and second.shapes == {"s": [5, 24]}
    product = next(k for k in first.kernels if k.kind == "gemm")
    assert product.flops == 2 * 5 * 8 * 24 and product.roofline and result.report.machine["threads"] == 1
