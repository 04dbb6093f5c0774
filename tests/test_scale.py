"""The largest graphs through the whole optimiser: no recursion over depth, near-linear time, bounded kernels, the same bytes.

Bounds are of this process's CPU time and generous: they are there to catch what grows with the square of the graph.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf.codegen import program
from disc_tf.codegen.kernel_cache import KernelCache
from disc_tf.frontend.load import load
from disc_tf.frontend.tfproto import serialized
from disc_tf.optimizer import OptimizeResult, StrictError, optimize_graph_def
from disc_tf.runtime.cpu import native_target
from disc_tf.runtime.executable import Executable
from tests.frontend.graphs import BOOL, F32, G, body_node

ROOT = Path(__file__).parents[1]
#: no function of an executable may be longer than this (LLVM's time grows faster than a function's length)
MAX_LINES = 20_000
CHAIN = ("Tanh", "Neg", "Sigmoid", "Square", "Abs")


def reference(x: np.ndarray, n: int) -> np.ndarray:
    fns = [np.tanh, np.negative, lambda v: 1 / (1 + np.exp(-v)), np.square, np.abs]
    for i in range(n):
        x = fns[i % len(fns)](x)
    return x


def chain(n: int) -> G:
    """``n`` elementwise nodes in a row."""
    g = G()
    x = g.placeholder("x", [None, None])
    for i in range(n):
        x = g.unary(f"n{i}", x, CHAIN[i % len(CHAIN)])
    return g


def blocks(nodes: int) -> G:
    """Residual blocks with a product and a normalisation, 15 nodes each, until there are ``nodes``."""
    g = G()
    rng = np.random.default_rng(0)
    x = g.placeholder("x", [None, 32])
    g.const("eps", 1e-6)
    g.const("axis", [1], np.int32)
    reduce: dict[str, Any] = {"T": ("type", F32), "Tidx": ("type", 3), "keep_dims": True}
    for i in range(nodes // 15):
        p = f"b{i}/"
        w = g.const(p + "w", rng.standard_normal((32, 32)) * 0.1)
        y = g.binary(p + "bias_add", g.matmul(p + "mm", x, w), g.const(p + "b", rng.standard_normal(32) * 0.1))
        y = g.binary(p + "mul", g.unary(p + "tanh", y), g.const(p + "c", 0.5 + i % 3), "Mul")
        y = g.binary(p + "residual", x, y)
        centred = g.binary(p + "sub", y, g.node(p + "mean", "Mean", [y, "axis"], **reduce), "Sub")
        variance = g.node(p + "var", "Mean", [g.unary(p + "square", centred, "Square"), "axis"], **reduce)
        scale = g.unary(p + "rsqrt", g.binary(p + "add_eps", variance, "eps"), "Rsqrt")
        x = g.binary(p + "out", centred, scale, "Mul")
    g.unary("result", x, "Identity")
    return g


def conditionals(n: int, kind: str) -> G:
    """``n`` TF1 conditionals, each of which needs the one before: of one predicate, each of its own, or one that the last gave."""
    g = G()
    x = g.placeholder("x", [None])
    p = g.placeholder("p", [], BOOL)
    g.const("axis", [0], np.int32)
    g.const("zero", 0.0)
    t = ("type", F32)
    for i in range(n):
        if kind == "own":
            total = g.node(f"c{i}/sum", "Sum", [x, "axis"], T=t, Tidx=("type", 3), keep_dims=False)
            p = g.node(f"c{i}/predicate", "Greater", [total, "zero"], T=t)
        switch = g.node(f"c{i}/switch", "Switch", [x, p], T=t)
        branches = [g.unary(f"c{i}/else", switch, "Tanh"), g.unary(f"c{i}/then", f"{switch}:1", "Exp")]
        x = g.node(f"c{i}/merge", "Merge", branches, T=t, N=2)
        if kind == "given":
            own = g.node(f"c{i}/own_switch", "Switch", [p, p], T=("type", BOOL))
            branches = [g.node(f"c{i}/own_{k}", "LogicalNot", [f"{own}:{k}"]) for k in (0, 1)]
            p = g.node(f"c{i}/own_merge", "Merge", branches, T=("type", BOOL), N=2)
    g.node("y", "Identity", [x], T=t)
    return g


@pytest.mark.parametrize("kind", ["one", "own", "given"])
def test_two_thousand_conditionals(kind: str) -> None:
    proto = conditionals(2000, kind).proto
    start = time.process_time()
    loaded = load(proto, ["y"])
    assert len(loaded.functional) == 2000 and not loaded.legacy
    assert time.process_time() - start < 15


def optimize(g: G, output: str, **options: Any) -> OptimizeResult:
    return optimize_graph_def(g.proto, [output], use_tf_shapes=False, **options)


def launches(result: OptimizeResult) -> list[Any]:
    return [n for n in result.graph_def.node if n.op == "DiscLaunch"]


def executable_of(result: OptimizeResult) -> Executable:
    (node,) = launches(result)
    return Executable.from_bytes(node.attr["executable"].s)


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The LLVM text of everything that is compiled in the test."""
    seen: list[str] = []
    compile_image = program.compile_image

    def noting(text: str, *args: Any) -> bytes:
        seen.append(text)
        return compile_image(text, *args)

    monkeypatch.setattr(program, "compile_image", noting)
    return seen


def check_chain(n: int, texts: list[str]) -> None:
    result = optimize(chain(n), f"n{n - 1}:0", targets=[native_target()])
    assert len(result.report.compiled_clusters) == 1
    assert len(result.report.kernels) > n // 1000
    functions = re.split(r"(?m)^(?=define )", texts[0])
    kernels = [f for f in functions if re.match(r"define [^(]*@k_", f)]
    assert kernels
    assert max(f.count("\n") for f in kernels) < MAX_LINES
    assert len(kernels) < 20  # equal pieces of the chain are one kernel
    x = np.random.default_rng(0).standard_normal((3, 37)).astype(np.float32)
    with executable_of(result) as executable:
        (got,) = executable.run([x])
    np.testing.assert_allclose(got, reference(x.astype(np.float64), n), rtol=1e-5, atol=1e-6)


def test_chain(texts: list[str]) -> None:
    check_chain(3_000, texts)


@pytest.mark.slow
def test_chain_of_fifty_thousand(texts: list[str]) -> None:
    start = time.process_time()
    check_chain(50_000, texts)
    assert time.process_time() - start < 90


def test_thousand_nested_functions() -> None:
    g = G()
    g.placeholder("x", [None])
    types = {"Tin": ("types", [F32]), "Tout": ("types", [F32])}
    depth = 1000
    for i in range(depth):
        last = i == depth - 1
        f = g.function(f"f{i}", {"a": F32}, {"out": ("n:y:0" if last else "t:y:0", F32)})
        if last:
            body_node(f, "n", "Tanh", ["a"], T=("type", F32))
        else:
            body_node(f, "n", "PartitionedCall", ["a"], f=("func", f"f{i + 1}"), **types)
            body_node(f, "t", "Neg", ["n:output:0"], T=("type", F32))
    g.node("c", "PartitionedCall", ["x"], f=("func", "f0"), **types)
    g.unary("y", "c", "Abs")
    result = optimize(g, "y:0", targets=[native_target()])
    assert [c.nodes for c in result.report.compiled_clusters] == [depth + 1]
    x = np.linspace(-2, 2, 11).astype(np.float32)
    with executable_of(result) as executable:
        np.testing.assert_allclose(executable.run([x])[0], np.abs(np.tanh(x)), rtol=1e-6)


@pytest.mark.parametrize("make", [lambda: blocks(20_000), lambda: chain(20_000)], ids=["blocks", "chain"])
def test_clustering_of_twenty_thousand_nodes(make: Any) -> None:
    g = make()
    start = time.process_time()
    result = optimize(g, f"{g.proto.node[-1].name}:0", dry_run=True)
    assert time.process_time() - start < 20
    assert [c.status for c in result.report.clusters] == ["planned"]
    assert result.report.coverage == 1.0


@pytest.mark.slow
def test_compilation_of_five_thousand_nodes() -> None:
    g = blocks(5_000)
    start = time.process_time()
    result = optimize(g, "result:0", targets=("x86-64-v2", "x86-64-v3", "x86-64-v4"))
    assert time.process_time() - start < 60
    assert len(result.report.compiled_clusters) == len(result.report.clusters) == 1


# -- the same bytes ------------------------------------------------------------------------------------------------

_HASH = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from tests.test_scale import blocks, chain, optimize, serialized
for g, output in ((blocks(150), "result:0"), (chain(200), "n199:0")):
    print(hashlib.sha256(serialized(optimize(g, output).graph_def)).hexdigest())
"""


def test_same_bytes_in_every_process() -> None:
    """Whatever the order of sets and dicts of strings."""
    found = []
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", _HASH, str(ROOT)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(done.stdout.split())
    assert len(found[0]) == 2 and found[0] == found[1] == found[2]


def test_same_bytes_when_compiled_again() -> None:
    digests = {hashlib.sha256(serialized(optimize(blocks(150), "result:0").graph_def)).digest() for _ in range(2)}
    assert len(digests) == 1


def test_verifying_the_cache_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every hit is emitted again and compared; without any hits the bytes are the same."""
    caches: list[KernelCache] = []

    class Noted(KernelCache):
        def __init__(self, verify: bool = False) -> None:
            super().__init__(verify)
            caches.append(self)

    class Forgetful(KernelCache):
        def variants(self, fusion: Any, ctx: Any, emit: Any) -> Any:
            return emit(fusion, ctx)

    found = []
    for cache, verify in ((KernelCache, False), (Noted, True), (Forgetful, False)):
        monkeypatch.setattr(program, "KernelCache", cache)
        (launch,) = launches(optimize(blocks(150), "result:0", verify_passes=verify))
        found.append(launch.attr["executable"].s)
    assert found[0] == found[1] == found[2]
    assert len(caches) == 3
    assert all(c.verify and c.hits > c.misses for c in caches)


# -- the time budget -----------------------------------------------------------------------------------------------


def test_time_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    g = blocks(30)
    assert launches(optimize(g, "result:0", time_budget=3600))
    clock = iter(range(0, 10_000, 60))  # each question finds a minute gone
    monkeypatch.setattr("disc_tf.budget.time.monotonic", lambda: next(clock))
    result = optimize(g, "result:0", time_budget=100)
    assert result.graph_def is g.proto
    (cluster,) = result.report.clusters
    assert cluster.status == "failed"
    assert "time budget of 100 s" in cluster.reason and "time_budget" in cluster.reason
    assert {x.node for x in result.report.left_out} >= {"b0/mm", "b0/tanh"}
    with pytest.raises(StrictError, match="time budget"):
        optimize(g, "result:0", time_budget=100, strict=True)


def test_time_budget_in_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM is waited for no longer than the budget lasts."""
    slow = program.compile_image

    def image(*args: Any) -> bytes:
        time.sleep(4)
        return slow(*args)

    monkeypatch.setattr(program, "compile_image", image)
    (cluster,) = optimize(chain(5), "n4:0", targets=["x86-64-v2"], time_budget=2).report.clusters
    assert cluster.status == "failed"
    assert "LLVM" in cluster.reason
