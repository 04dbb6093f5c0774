"""Putting back: the clusters at fault are found by bisection, whatever their number; nothing else is touched."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf import proof
from disc_tf.report import ClusterReport, Report, ShapeResult, counted
from disc_tf.testing.inputs import InputSpec
from disc_tf.testing.tf_process import ProcessFailed, TfError


@dataclasses.dataclass
class FakeGraph:
    """A graph is the set of clusters that are launched in it."""

    launched: frozenset[str]


@dataclasses.dataclass
class FakeResult:
    graph_def: FakeGraph
    report: Report


def make_result(names: list[str]) -> FakeResult:
    clusters = [ClusterReport(n, 7, compute_nodes=5, flops_share=0.1, node_names=[f"{n}/{i}" for i in range(5)]) for n in names]
    report = Report("0", ["x86-64-v3"], ["y:0"], compute_nodes=50, compiled_nodes=5 * len(names), clusters=clusters)
    return FakeResult(FakeGraph(frozenset(names)), report)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch):
    """`bad` clusters give wrong answers; `slow` ones make the graph slow."""
    state = {"bad": frozenset(), "slow": frozenset(), "graph": None, "runs": 0}

    class FakeCheck:
        def __init__(self, original, specs, outputs, cases, **_: Any) -> None:
            self.cases = cases

        def __enter__(self) -> FakeCheck:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def attempt(self, path, *, timing=False, deadline=0.0, progress=None):
            state["runs"] += 1
            if error := state.get("lost"):
                raise error
            launched = state["graph"].launched
            ok = not launched & state["bad"]
            slower = len(launched & state["slow"])
            ms = 10.0 * (1 + 0.3 * slower)
            times: Any = {"original_ms": 10.0, "optimized_ms": ms, "ratios": [10.0 / ms] * 9} if timing and "not timed" not in state else {}
            said = state.get("not timed", "") if ok else "y:0: differs"
            elements = {} if "fails" in state else state.get("elements", {"y:0": 3})
            errors = dict.fromkeys(elements, 0.0)
            shapes = range(len(self.cases))
            return [ShapeResult({"x": [i]}, ok, state.get("fails", said), errors, elements=elements, **times) for i in shapes]

    def fake_serialized(graph):
        state["graph"] = graph
        return b""

    monkeypatch.setattr(proof, "GraphCheck", FakeCheck)
    monkeypatch.setattr(proof, "serialized", fake_serialized)
    monkeypatch.setattr(proof, "put_back", lambda g, names: FakeGraph(g.launched - frozenset(names)))
    return state


NAMES = ["c0", "c1", "c2", "c3", "c4"]


@pytest.mark.parametrize("bad", [frozenset(c) for n in (0, 1, 2, 5) for c in itertools.combinations(NAMES, n)])
def test_wrong_clusters_are_put_back(world, tmp_path: Path, bad: frozenset[str]) -> None:
    world["bad"] = bad
    result = proof.prove("original.pb", make_result(NAMES), [], [{}], tmp_path, timing=True)
    kept = {c.name for c in result.report.compiled_clusters}
    assert result.graph_def.launched == kept
    assert result.report.verified is True
    assert result.report.compiled_nodes == 5 * len(kept)
    if bad:
        assert result.report.flops_share == pytest.approx(0.1 * len(kept))
    assert kept == set(NAMES) - bad  # exactly the culprits
    for c in result.report.clusters:
        if c.name not in kept:
            assert c.status == "put_back" and "differs" in c.reason


@pytest.mark.parametrize("slow", NAMES)
def test_a_slow_cluster_is_put_back(world, tmp_path: Path, slow: str) -> None:
    world["slow"] = frozenset([slow])
    result = proof.prove("original.pb", make_result(NAMES), [], [{}], tmp_path, timing=True)
    assert {c.name for c in result.report.compiled_clusters} == set(NAMES) - {slow}
    assert any("slower" in w for w in result.report.warnings)


def test_no_timing_never_puts_back_for_speed(world, tmp_path: Path) -> None:
    world["slow"] = frozenset(NAMES)
    result = proof.prove("original.pb", make_result(NAMES), [], [{}], tmp_path, timing=False)
    assert len(result.report.compiled_clusters) == 5


@pytest.mark.parametrize(("sizes", "why"), [([], "there are none"), ([{}, {}], "both raise code 3")])
def test_nothing_compared_is_not_verified(world, tmp_path: Path, sizes: list, why: str) -> None:
    world["fails"] = "both raise code 3"
    report = proof.prove("original.pb", make_result(NAMES), [], sizes, tmp_path, timing=True).report
    assert report.verified is None and len(report.compiled_clusters) == len(NAMES)
    assert any("not verified" in w and why in w for w in report.warnings)
    assert "verified against TensorFlow" not in report.to_text()


@pytest.mark.parametrize(
    ("elements", "verified", "said"),
    [
        ({"y:0": 3}, True, "verified against TensorFlow: 1 output, 6 elements at 2 shapes; loaded by tf.import_graph_def"),
        ({"y:0": 3, "z:0": 0}, True, "output z:0 is not verified: it has no elements at any shape tried"),
        ({"y:0": 0}, None, "not verified: no result at the 2 shapes tried could be compared (its outputs have no elements at any of them)"),
    ],
)
def test_what_was_compared_is_said(world, tmp_path: Path, elements: dict[str, int], verified: bool | None, said: str) -> None:
    world["elements"] = elements
    report = proof.prove("original.pb", make_result(NAMES), [], [{}, {}], tmp_path).report
    assert report.verified is verified and said in report.to_text()
    assert Report.from_dict(json.loads(report.to_json())).to_text() == report.to_text()


@pytest.mark.parametrize("error", [ProcessFailed("status 1"), TfError(3, "no such op")])
def test_an_original_that_does_not_load_is_not_verified(world, tmp_path: Path, error: Exception) -> None:
    world["lost"] = error
    report = proof.prove("original.pb", make_result(NAMES), [], [{}], tmp_path).report
    assert report.verified is None and report.warnings == [f"not verified: TensorFlow does not load the original: {error}"]


def test_the_file_of_the_result_is_written_last(world, tmp_path: Path) -> None:
    """Bisection writes other graphs to the same place; what is there at the end was proved."""
    world["bad"] = frozenset(["c1", "c3"])
    written: list[FakeGraph] = []

    def write(graph: FakeGraph) -> Path:
        written.append(graph)
        world["graph"] = graph
        return tmp_path

    result = proof.prove("original.pb", make_result(NAMES), [], [{}], tmp_path, write=write)
    assert written[-1] is result.graph_def and written[-1].launched == {"c0", "c2", "c4"}


@pytest.mark.parametrize("refused", [False, True])
def test_nothing_timed_is_a_warning(world, tmp_path: Path, refused: bool) -> None:
    if refused:
        world["not timed"] = "not timed: TensorFlow itself raises code 10: no pooling"
    report = proof.prove("original.pb", make_result(NAMES), [], [{}], tmp_path, timing=True).report
    assert report.verified is True and len(report.compiled_clusters) == len(NAMES)
    assert any("nothing was timed" in w for w in report.warnings) is refused
    assert any("no pooling" in w for w in report.warnings) is refused


@pytest.mark.parametrize(("bodies", "said"), [(1, "verifying at 1 shape against"), (2, "verifying at 3 shapes against")])
def test_all_rows_are_counted(world: dict[str, Any], tmp_path: Path, bodies: int, said: str) -> None:
    """Where code has two bodies, two inputs that share a dim are also run with one of them at extent 1."""
    result = make_result(["c0"])
    result.report.clusters[0].bodies = bodies
    specs = [InputSpec(name, np.dtype(np.float32), ("n", 2)) for name in ("x", "z")]
    lines: list[str] = []
    proof.prove(tmp_path / "in.pb", result, specs, [{"n": 3}], tmp_path, timing=False, progress=lines.append)
    assert lines[0] == f"{said} TensorFlow"


@pytest.mark.parametrize(("number", "what", "said"), [(0, "node", "0 nodes"), (1, "node", "1 node"), (2, "launch", "2 launches")])
def test_counted(number: int, what: str, said: str) -> None:
    assert counted(number, what) == said
