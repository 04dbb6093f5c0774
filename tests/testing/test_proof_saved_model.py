"""Proof of SavedModels: clusters at fault are found in whatever function and signature they are, and nothing else is put back."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from disc_tf import proof_saved_model
from disc_tf.proof_saved_model import prove_saved_model
from disc_tf.report import ClusterReport, Report, ShapeResult
from disc_tf.runtime.cpu import native_target
from disc_tf.saved_model_report import FunctionReport, SavedModelReport
from disc_tf.testing.tf_process import ProcessFailed, TfError

#: function -> its clusters; signature -> the functions that it runs
FUNCTIONS = {"f": ["c0", "c1"], "g": ["c0", "c1", "c2"]}
SIGNATURES = {"serving_default": ["f"], "scores": ["f", "g"]}
NAMES = [f"{f}:{c}" for f, clusters in FUNCTIONS.items() for c in clusters]


def make_report() -> SavedModelReport:
    functions = []
    for name, clusters in FUNCTIONS.items():
        nodes = {c: [f"{name}/{c}/{i}" for i in range(5)] for c in clusters}
        entries = [ClusterReport(c, 7, compute_nodes=5, flops_share=0.1, node_names=nodes[c]) for c in clusters]
        report = Report("0", ["x86-64-v3"], compute_nodes=20, compiled_nodes=5 * len(entries), clusters=entries)
        functions.append(FunctionReport(name, "compiled", [], report=report))
    return SavedModelReport("0", "", ["serve"], list(SIGNATURES), functions, options={"targets": [native_target()]})


class World:
    """A candidate is the set of clusters that are launched in it."""

    def __init__(self) -> None:
        self.launched = frozenset(NAMES)
        self.bad: frozenset[str] = frozenset()
        self.slow: frozenset[str] = frozenset()
        self.message = ""
        self.attempts: list[tuple[bool, tuple[str, ...]]] = []
        self.seconds = 0.0

    def put_back(self, names: Collection[str]) -> None:
        assert set(names) <= set(NAMES) and len(set(names)) == len(names)
        self.launched = frozenset(NAMES) - frozenset(names)

    # ---- what ModelCheck is

    warnings = ("a warning of the check",)
    cases: dict[str, list[Any]] = {name: [None] for name in SIGNATURES}  # noqa: RUF012
    used = ("tf2", "session", "serve")
    same: dict[str, str] = {}  # noqa: RUF012
    plan = SimpleNamespace(same={})

    def __call__(self, plan: Any, **_: Any) -> World:
        return self

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def attempt(
        self, candidate: Path, *, timing: bool, deadline: float, signatures: Sequence[str] | None = None, progress: object = None
    ) -> dict[str, list[ShapeResult]]:
        self.attempts.append((timing, tuple(signatures or SIGNATURES)))
        time.sleep(self.seconds)
        found = {}
        for name in signatures or SIGNATURES:
            run = {c for c in self.launched if c.split(":")[0] in SIGNATURES[name]}
            ok = not run & self.bad
            ratio = 1.02 / 1.3 ** len(run & self.slow)
            errors = {} if self.message else {"y": 0.0}
            ratios = [ratio] * 9 if timing and ok else []
            message = self.message if ok else "y: error above 0.0001"
            found[name] = [ShapeResult({"x": [2]}, ok, message, errors, ratios=ratios)]
        return found


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(proof_saved_model, "ModelCheck", made)
    plans = {name: SimpleNamespace(functions=frozenset(functions)) for name, functions in SIGNATURES.items()}
    monkeypatch.setattr(proof_saved_model, "plan_model", lambda *_, **__: SimpleNamespace(signatures=plans, loader="tf2"))
    return made


def prove(world: World, **options: Any) -> SavedModelReport:
    report = make_report()
    prove_saved_model(Path("in"), Path("out"), report, world.put_back, **options)
    kept = {name for name, c in report.clusters.items() if c.status == "compiled"}
    assert world.launched == kept  # what is published is what is reported
    for function, inner in report.reports.items():
        names = [c for c in FUNCTIONS[function] if f"{function}:{c}" in kept]
        assert inner.compiled_nodes == 5 * len(names)
        assert len(inner.left_out) == 5 * (len(FUNCTIONS[function]) - len(names))
    return report


@pytest.mark.parametrize("bad", [frozenset(c) for n in (0, 1, 2, 5) for c in itertools.combinations(NAMES, n)])
def test_wrong_clusters_are_put_back(world: World, bad: frozenset[str]) -> None:
    world.bad = bad
    report = prove(world)
    assert world.launched == frozenset(NAMES) - bad
    assert report.verified is True and set(report.verification) == set(SIGNATURES)
    for name, c in report.clusters.items():
        if name in bad:
            assert c.status == "put_back" and "differs from TensorFlow: y: error above" in c.reason


@pytest.mark.parametrize("slow", NAMES)
def test_slow_clusters_are_put_back_after_a_second_look(world: World, slow: str) -> None:
    world.slow = frozenset([slow])
    report = prove(world)
    assert world.launched == frozenset(NAMES) - {slow}
    assert "slower than TensorFlow" in report.clusters[slow].reason
    assert sum(timing for timing, _ in world.attempts[:2]) == 2


def test_no_timing_never_puts_back_for_speed(world: World) -> None:
    world.slow = frozenset(NAMES)
    assert len(prove(world, timing=False).compiled_clusters) == len(NAMES)
    assert not any(timing for timing, _ in world.attempts)


def test_nothing_compared_is_not_verified(world: World) -> None:
    world.message = "both raise code 3"
    report = prove(world)
    assert report.verified is None and len(report.compiled_clusters) == len(NAMES)
    assert any("scores is not verified" in w and "both raise code 3" in w for w in report.warnings)
    assert "a warning of the check" in report.warnings


def test_the_loaders_are_named(world: World) -> None:
    report = prove(world)
    assert report.routes == ["tf.saved_model.load", "tf.compat.v1.saved_model.load", "disc-tf serve"]
    assert "loaded by tf.saved_model.load, tf.compat.v1.saved_model.load, disc-tf serve" in report.to_text()


@pytest.mark.parametrize("error", [ProcessFailed("status 1"), TfError(3, "no such op")])
def test_an_original_that_does_not_load_is_not_verified(world: World, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def attempt(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(world, "attempt", attempt)
    report = prove(world)
    said = f"not verified: TensorFlow does not load the original by tf.saved_model.load: {error}"
    assert report.verified is None and said in report.warnings and report.compiled_clusters


def test_a_result_that_does_not_load(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original comes back, and the reason names the loader."""
    said = "the optimised model does not load by tf.compat.v1.saved_model.load: KeyError: 'add:0'"
    plain = world.attempt

    def attempt(*arguments: Any, **options: Any) -> Any:
        found = plain(*arguments, **options)
        if world.launched:
            for results in found.values():
                results.append(ShapeResult({}, False, said))
        return found

    monkeypatch.setattr(world, "attempt", attempt)
    report = prove(world)
    assert report.verified is True and not report.compiled_clusters and not world.launched
    assert {c.reason for c in report.clusters.values()} == {said}


def test_a_difference_that_stays_is_a_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow alone differs from itself: nothing is left to put back, and the report does not claim otherwise."""
    monkeypatch.setattr(world, "attempt", lambda *_, **__: {"serving_default": [ShapeResult({}, False, "y: values differ")]})
    report = prove(world)
    assert report.verified is False and not report.compiled_clusters


def test_functions_that_no_signature_runs_are_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    only = {"serving_default": SimpleNamespace(functions=frozenset(["f"]))}
    monkeypatch.setattr(proof_saved_model, "plan_model", lambda *_, **__: SimpleNamespace(signatures=only, loader="tf2"))
    assert next(w for w in prove(world).warnings if "no signature or method" in w).startswith("g is not verified")


def test_the_time_budget_ends_the_search(world: World) -> None:
    """Everything is put back when the time is over before the culprits are known: correct, and soon done."""
    world.bad, world.seconds = frozenset(NAMES[:1]), 0.05
    report = prove(world, time_budget=0.04)
    assert not report.compiled_clusters and report.verified is True
    assert len(world.attempts) <= 3 and any("time budget of 0.04 s" in w for w in report.warnings)


def test_code_for_other_machines_is_not_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_saved_model, "runs_here", lambda targets: False)
    report = prove(world)
    assert report.verified is None and not world.attempts and any("no target" in w for w in report.warnings)
