"""Profiles: kernels timed on captured arguments, and held against the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from disc_tf.cli import main
from disc_tf.frontend.tfproto import serialized
from disc_tf.insight.capture import launch_inputs
from disc_tf.insight.profile import arena_over_time, argument_dims, evaluate, kernel_times, largest, profile_cluster, profile_report
from disc_tf.insight.roofline import WORKING_SETS, Machine, measure
from disc_tf.optimizer import optimize_graph_def
from disc_tf.report import ClusterReport, KernelReport, MemoryReport
from disc_tf.runtime.cpu import native_target
from disc_tf.runtime.recording import LaunchTime
from disc_tf.testing.inputs import specs_from_graph
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
    assert [size for size, _ in found.bandwidth] == list(WORKING_SETS) and all(0.5 < rate < 5000 for _, rate in found.bandwidth)


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
    assert (first.flops, first.bytes, first.bound) == (8000.0, 1800.0, "compute")
    assert first.roofline == pytest.approx(8000 / 100.0 / 1e3 / 8.0)
    assert (second.symbol, second.flops, second.roofline) == ("q", None, None)
    assert (third.symbol, third.kind, third.nodes) == ("other", "general body", ["z"])


def test_expressions_and_arena() -> None:
    symbols = argument_dims([np.zeros((2, 0)), np.float32(1.0)])
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
    assert good.kernels and good.run_us > 0 and all(k.nodes and k.us > 0 for k in good.kernels)


@pytest.mark.slow
def test_the_page_of_an_optimisation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole way by command: verified, timed, profiled; the page has kernels with their share, memory and speed."""
    graph, out, page = tmp_path / "g.pb", tmp_path / "o.pb", tmp_path / "r.html"
    graph.write_bytes(serialized(two_clusters().proto))
    arguments = ["--target", "native", "--min-cluster-size", "2", "--shape", "x/0=5", "--shape", "x/0=300", "--threads", "1", "-q"]
    assert main(["optimize", str(graph), "-o", str(out), "--report", str(page), *arguments]) == 0
    text = page.read_text()
    assert capsys.readouterr().err == ""
    for words in ("% of roofline", "GFLOP/s", "yes", "speed-up", "x [300, 8]", "disc_cluster_0"):
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
