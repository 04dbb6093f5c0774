"""Proof of an optimised SavedModel before it is published: `disc_tf.proof` for every signature, with clusters in functions."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from disc_tf.proof import (
    NO_ELEMENTS,
    all_ok,
    bisect,
    ended_early,
    first_failure,
    is_slower,
    mark_put_back,
    runs_here,
    said_slower,
    warn_slower,
    why_nothing,
    without_elements,
)
from disc_tf.report import FOREIGN, NOT_TIMED, ShapeResult, counted
from disc_tf.saved_model_report import MAIN_GRAPH
from disc_tf.testing.differential import first_line
from disc_tf.testing.saved_models import ROUTES, UNLOADABLE, ModelCheck, Progress
from disc_tf.testing.signatures import plan_model
from disc_tf.testing.tf_process import Hosts, ProcessFailed, TfError
from disc_tf.testing.timing import busy

Found = dict[str, list[ShapeResult]]


def prove_saved_model(
    original: Path,
    candidate: Path,
    report: Any,
    put_back: Callable[[Collection[str]], None],
    *,
    timing: bool = True,
    time_budget: float = 0,
    spent: float = 0,
    threads: int = 0,
    points: int = 6,
    sizes: Sequence[Mapping[str, int]] | None = None,
    tolerance: float | None = None,
    progress: Callable[[str], None] = lambda _text: None,
    hosts: Hosts | None = None,
) -> None:
    """Verify (and time) the directory ``candidate`` against ``original``; put back clusters that fail; fill the `SavedModelReport`.

    put_back: makes ``candidate`` again with exactly these clusters (keys of ``report.clusters``) in TensorFlow. time_budget: seconds after
    which nothing is timed any more and no further shape is tried (0: none), ``spent`` of which are gone; every signature is compared at
    least once. sizes: shapes instead of generated ones, for models of one signature. ``report.verified`` is False only if even the model
    with every cluster put back differs, and None, with a warning, if no result could be compared.
    """
    if not runs_here(report.options["targets"]):
        progress(FOREIGN)
        report.warnings.append(FOREIGN)
        return
    proof = _Proof(candidate, report, put_back, timing, time_budget, spent, progress)
    compiled = [f for f in report.functions if f.status == "compiled" and f.name != MAIN_GRAPH]
    plan = plan_model(original, tags=report.tags or None, signatures=report.signatures, functions=[f.name for f in compiled])
    two_bodies = any(c.bodies == 2 for c in report.compiled_clusters)
    settings = {"tolerance": tolerance, "points": points, "sizes": sizes, "threads": threads, "two_bodies": two_bodies, "hosts": hosts}
    with ModelCheck(plan, loaders=list(ROUTES), **settings) as check:
        try:
            proof.run(check)
        except (ProcessFailed, TfError) as e:
            report.warnings.append(f"not verified: TensorFlow does not load the original by {ROUTES[plan.loader]}: {first_line(e)}")
            return
    run = {name for signature in plan.signatures.values() for name in signature.functions}
    for function in compiled:
        if function.name not in run:
            callers = ", ".join(function.called_by[:3])
            report.warnings.append(f"{function.name} is not verified: no signature or method of the model runs it (called by {callers})")


class _Proof:
    def __init__(
        self,
        candidate: Path,
        report: Any,
        put_back: Callable[[Collection[str]], None],
        timing: bool,
        time_budget: float,
        spent: float,
        progress: Callable[[str], None],
    ) -> None:
        self.candidate, self.report, self.put_back = candidate, report, put_back
        self.timing, self.progress = timing, progress
        self.budget = time_budget
        self.deadline = time.monotonic() + time_budget - spent if time_budget else math.inf
        self.gone: list[str] = []

    def run(self, check: ModelCheck) -> None:
        report = self.report
        names = [name for name in check.cases if name not in check.plan.same]
        cases = sum(len(check.cases[name]) for name in names)
        self.progress(f"verifying {counted(len(names), 'signature')} at {counted(cases, 'shape')} against TensorFlow")
        if self.timing and (note := busy()):
            self.progress(note)
        done = itertools.count(1)
        found = self._attempt(check, self.timing, each=lambda *_result: self.progress(f"verified ({next(done)} of {cases})"))
        if not _ok(found):
            wrong = [name for name, results in found.items() if not all_ok(results)]
            failure = first_failure(found[wrong[0]])
            why = failure if UNLOADABLE in failure else f"signature {wrong[0]} differs from TensorFlow: {failure}"
            bad = self._search(lambda launched: _ok(self._launch(check, launched, False, wrong)))
            found = self._give_up(check, bad, why)
        found = self._slow(check, found)
        report.verification, report.verified = found, _ok(found)
        report.same = dict(check.same)
        report.routes = [ROUTES[loader] for loader in check.used]
        report.warnings += check.warnings
        self._warn(check, found)

    def _slow(self, check: ModelCheck, found: Found) -> Found:
        """A signature that is slower, and still is in new processes, loses the clusters that make it so."""
        for name in list(found):
            if not (self.timing and self._launched() and _ok(found) and is_slower(found[name])) or self._late():
                continue
            self.progress(f"signature {name} is slower than TensorFlow: timing once more")
            found[name] = self._attempt(check, True, [name])[name]
            if not is_slower(found[name]):
                continue
            why = f"signature {name} is {said_slower(found[name])}"
            bad = self._search(lambda launched, name=name: not is_slower(self._launch(check, launched, True, [name])[name]))
            found = self._give_up(check, bad, why)
        return found

    def _attempt(self, check: ModelCheck, timing: bool, signatures: Sequence[str] | None = None, each: Progress | None = None) -> Found:
        return check.attempt(self.candidate, timing=timing, deadline=self.deadline, signatures=signatures, progress=each)

    def _launched(self) -> list[str]:
        return [name for name, c in self.report.clusters.items() if c.status == "compiled"]

    def _launch(self, check: ModelCheck, launched: Sequence[str], timing: bool, signatures: Sequence[str]) -> Found:
        """Results with these clusters launched and all others put back."""
        self.put_back([name for name in self._launched() if name not in launched] + self.gone)
        return self._attempt(check, timing, signatures)

    def _search(self, passes: Callable[[Sequence[str]], bool]) -> list[str]:
        return bisect(self._launched(), passes, self._late)

    def _give_up(self, check: ModelCheck, bad: Sequence[str], why: str) -> Found:
        clusters = self.report.clusters
        for function, report in self.report.reports.items():
            entries = [clusters[name] for name in bad if any(clusters[name] is c for c in report.clusters)]
            if entries:
                mark_put_back(report, entries, why)
            for c in entries:
                self.progress(f"{function}: {c.name} is put back: {why}")
        self.gone += bad
        self.put_back(self.gone)
        return self._attempt(check, self.timing)

    def _late(self) -> bool:
        return time.monotonic() > self.deadline

    def _warn(self, check: ModelCheck, found: Found) -> None:
        report = self.report
        for name, results in found.items():
            warn_slower(report.warnings, results, f"signature {name}: ")
            if results and not any(r.compared for r in results) and all_ok(results):
                report.warnings.append(f"signature {name} is not verified: at the {len(results)} shapes tried: {why_nothing(results)}")
            elif all_ok(results):
                report.warnings += [f"output {o} of signature {name} is not verified: {NO_ELEMENTS}" for o in without_elements(results)]
        if self._late():
            report.warnings.append(ended_early(self.budget))
        if not self.timing:
            report.warnings.append(NOT_TIMED)
        if report.verified and not any(r.compared for results in found.values() for r in results):
            report.verified = None
            report.warnings.append("not verified: no result of any signature could be compared")


def _ok(found: Found) -> bool:
    return all(all_ok(results) for results in found.values())
