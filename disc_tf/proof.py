"""Proof before publication: the optimised graph against the original, and putting back what fails.

Compilation is a pure function; this step runs where the weights are. A cluster that differs from TensorFlow, or that makes the graph
slower, is put back and named in the report.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from disc_tf.frontend.rewrite import put_back
from disc_tf.frontend.tfproto import serialized
from disc_tf.report import NOT_TIMED, LeftOut, ShapeResult, counted
from disc_tf.testing.differential import GraphCheck, first_line, generated
from disc_tf.testing.inputs import InputSpec, sample_sizes
from disc_tf.testing.tf_process import Hosts, ProcessFailed, TfError
from disc_tf.testing.timing import busy, pooled

#: runs of the search for the clusters at fault
MAX_ATTEMPTS = 32


#: how users load a graph file
ROUTE = "tf.import_graph_def"


def prove(
    original: str | Path,
    result: Any,
    specs: Sequence[InputSpec],
    sizes: Sequence[Mapping[str, int]] | None,
    directory: Path,
    *,
    write: Callable[[Any], Path] | None = None,
    timing: bool = True,
    threads: int = 0,
    points: int = 6,
    time_budget: float = 0,
    progress: Callable[[str], None] = lambda _text: None,
    hosts: Hosts | None = None,
) -> Any:
    """Verify (and time) ``result`` against the graph file ``original``; put back clusters that fail; fill the report's verification.

    ``sizes`` None: shapes are generated. write: makes the file that would be published of a graph, and is called last for the graph of the
    result; by default a file in ``directory``. time_budget: seconds after which nothing is timed any more, no further shape is tried and no
    culprit searched (0: none). hosts: see `Hosts`. Returns the result with the graph that may be published; ``report.verified`` is False
    only if even the graph with every cluster put back differs, and None, with a warning, if no result could be compared.
    """
    report = result.report
    sizes = list(sizes) if sizes is not None else sample_sizes(specs, points)
    deadline = time.monotonic() + time_budget if time_budget else math.inf
    two_bodies = any(c.bodies == 2 for c in report.clusters)
    cases = generated(specs, sizes, broadcast=two_bodies)
    with GraphCheck(original, specs, report.outputs, cases, threads=threads, hosts=hosts) as check:
        proof = _Proof(check, result, write or functools.partial(_write, directory), timing, deadline, progress)
        try:
            found = proof.run()
        except (ProcessFailed, TfError) as e:
            report.warnings.append(f"not verified: TensorFlow does not load the original: {first_line(e)}")
            return result
    clusters = [c for c in report.clusters if c.status == "compiled"]
    report.verification, report.routes = found, [ROUTE]
    report.verified = all_ok(found)
    warn_slower(report.warnings, found)
    late = time.monotonic() > deadline
    if late:
        report.warnings.append(ended_early(time_budget))
    if not timing:
        report.warnings.append(NOT_TIMED)
    elif clusters and not late:
        _warn_not_timed(report, found)
    report.warnings += [f"output {name} is not verified: {NO_ELEMENTS}" for name in without_elements(found)]
    if report.verified and not any(r.compared for r in found):
        report.verified = None
        report.warnings.append(
            f"not verified: no result at the {len(found)} shapes tried could be compared ({why_nothing(found)}); give other shapes"
        )
    return result


def _write(directory: Path, graph: Any) -> Path:
    path = directory / "candidate.pb"
    path.write_bytes(serialized(graph))
    return path


class _Proof:
    def __init__(
        self,
        check: GraphCheck,
        result: Any,
        write: Callable[[Any], Path],
        timing: bool,
        deadline: float,
        progress: Callable[[str], None],
    ) -> None:
        self.check, self.result, self.write = check, result, write
        self.timing, self.deadline, self.progress = timing, deadline, progress

    def run(self) -> list[ShapeResult]:
        """The results of the graph that is left. `ProcessFailed` or `TfError` if the original does not load."""
        report, progress = self.result.report, self.progress
        shapes = len(self.check.cases)
        progress(f"verifying at {counted(shapes, 'shape')} against TensorFlow")
        if self.timing and (note := busy()):
            progress(note)
        done = itertools.count(1)
        found = self._attempt(self.timing, lambda _result: progress(f"verified ({next(done)} of {shapes})"))
        clusters = [c for c in report.clusters if c.status == "compiled"]
        if not all_ok(found):
            bad = bisect(clusters, lambda launched: all_ok(self._only(launched, False)), self._late)
            found = self._put_back(bad, f"differs from TensorFlow: {first_failure(found)}")
            clusters = [c for c in clusters if c not in bad]
        if self.timing and clusters and all_ok(found) and is_slower(found) and not self._late():
            progress("slower than TensorFlow: timing once more")
            found = self._attempt(True)  # in new processes: two of the same graph may differ by a little
            if all_ok(found) and is_slower(found):
                bad = bisect(clusters, lambda launched: not is_slower(self._only(launched, True)), self._late)
                found = self._put_back(bad, said_slower(found))
        return found

    def _attempt(self, timing: bool, each: Callable[[ShapeResult], None] | None = None, graph: Any = None) -> list[ShapeResult]:
        path = self.write(self.result.graph_def if graph is None else graph)
        return self.check.attempt(path, timing=timing, deadline=self.deadline, progress=each)

    def _only(self, launched: Sequence[Any], timing: bool) -> list[ShapeResult]:
        """Results with these clusters launched and all others put back."""
        names = [c.name for c in self.result.report.clusters if c.status == "compiled" and c not in launched]
        return self._attempt(timing, graph=put_back(self.result.graph_def, names))

    def _put_back(self, bad: Sequence[Any], why: str) -> list[ShapeResult]:
        mark_put_back(self.result.report, bad, why)
        for c in bad:
            self.progress(f"{c.name} is put back: {why}")
        self.result.graph_def = put_back(self.result.graph_def, [c.name for c in bad])
        return self._attempt(self.timing)

    def _late(self) -> bool:
        return time.monotonic() > self.deadline


#: why an output is not compared although the graph runs
NO_ELEMENTS = "it has no elements at any shape tried"


def without_elements(found: Sequence[ShapeResult]) -> list[str]:
    """Outputs that were there to be compared, but never with an element."""
    seen: dict[str, int] = {}
    for name, number in (item for r in found for item in r.elements.items()):
        seen[name] = seen.get(name, 0) + number
    return [name for name, number in seen.items() if not number]


def why_nothing(found: Sequence[ShapeResult]) -> str:
    """Why none of the results has anything that was compared."""
    if not found:
        return "there are none"
    if any(r.elements for r in found):
        return "its outputs have no elements at any of them"
    return f"TensorFlow itself fails at all of them, e.g.: {found[0].message}" if found[0].message else "it gives no result"


def _warn_not_timed(report: Any, found: Sequence[ShapeResult]) -> None:
    """Warnings for the shapes that are verified but that TensorFlow could not be timed at, and if none could."""
    refused = [r for r in found if r.ok and r.compared and r.message.startswith("not timed")]
    for r in refused:
        shapes = ", ".join(f"{k}{v}" for k, v in r.shapes.items())
        report.warnings.append(f"{shapes}: {r.message}")
    if refused and not any(r.original_ms for r in found):
        report.warnings.append("nothing was timed: whether the optimised graph is faster is not known; give other shapes with --shape")


def runs_here(targets: Sequence[str]) -> bool:
    """Whether this machine runs code for one of the targets."""
    from disc_tf.runtime.cpu import native_target

    try:
        return any(t <= native_target() for t in targets)
    except RuntimeError:
        return False


def ended_early(time_budget: float) -> str:
    return f"the time budget of {time_budget:g} s ended the verification early: not all shapes were tried or timed"


def all_ok(found: Sequence[ShapeResult]) -> bool:
    return all(r.ok for r in found)


def first_failure(found: Sequence[ShapeResult]) -> str:
    return next((r.message for r in found if not r.ok), "")


def is_slower(found: Sequence[ShapeResult]) -> bool:
    """Whether the geometric mean over the shapes is slower: its 95 % interval lies below one as a whole."""
    over_all = pooled([r.ratios for r in found])
    return over_all is not None and over_all[2] < 1.0


def said_slower(found: Sequence[ShapeResult]) -> str:
    """The reason for clusters that make the graph slower."""
    over_all = pooled([r.ratios for r in found])
    assert over_all is not None
    ratio, low, high = over_all
    return f"slower than TensorFlow: {1 / ratio:.2f}x the time (95 % in {1 / high:.2f} to {1 / low:.2f})"


def warn_slower(warnings: list[str], found: Sequence[ShapeResult], where: str = "") -> None:
    """Name the shapes at which the graph is slower although it is not over all."""
    for r in found:
        if r.slower and r.interval is not None:
            shapes = ", ".join(f"{k}{v}" for k, v in r.shapes.items())
            warnings.append(f"{where}slower than TensorFlow at {shapes}: {1 / r.interval[1]:.2f} to {1 / r.interval[0]:.2f}x the time")


def bisect(clusters: Sequence[Any], passes: Callable[[Sequence[Any]], bool], out_of_time: Callable[[], bool] = lambda: False) -> list[Any]:
    """The clusters to put back, one after the other: the shortest prefix that still fails ends in a culprit.

    passes: whether it is good with these clusters launched and the others put back. After `MAX_ATTEMPTS` runs, or when the time is over,
    all clusters are put back.
    """
    bad: list[Any] = []
    attempts = 0

    def tried(launched: Sequence[Any]) -> bool:
        nonlocal attempts
        attempts += 1
        return passes(launched)

    while True:
        rest = [c for c in clusters if c not in bad]
        if not rest or (bad and tried(rest)):
            return bad
        low, high = 0, len(rest)  # rest[:low] passes, rest[:high] fails
        while high - low > 1 and attempts < MAX_ATTEMPTS and not out_of_time():
            middle = (low + high) // 2
            if tried(rest[:middle]):
                low = middle
            else:
                high = middle
        if attempts >= MAX_ATTEMPTS or out_of_time():
            return list(clusters)
        bad.append(rest[high - 1])


def mark_put_back(report: Any, bad: Sequence[Any], why: str) -> None:
    """Say in a `Report` that these of its clusters run in TensorFlow again."""
    for c in bad:
        c.status, c.reason = "put_back", why
        report.left_out += [LeftOut(n, "", "PUT_BACK", why) for n in c.node_names]
        report.warnings.append(f"{c.name} was put back: {why}")
    report.count(report.compiled_clusters)

