"""Proof before publication: the optimised graph against the original, and putting back what fails.

Compilation is a pure function; this step runs where the weights are. A cluster that differs from TensorFlow, or that makes the graph
slower, is put back and named in the report.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from disc_tf.frontend.rewrite import put_back
from disc_tf.frontend.tfproto import serialized
from disc_tf.report import NOT_TIMED, LeftOut, ShapeResult, counted
from disc_tf.testing.differential import verify_graphs
from disc_tf.testing.inputs import InputSpec, broadcast_feeds, sample_sizes
from disc_tf.testing.timing import busy, pooled

#: runs of the search for the clusters at fault
MAX_ATTEMPTS = 32


def prove(
    original: str | Path,
    result: Any,
    specs: Sequence[InputSpec],
    sizes: Sequence[Mapping[str, int]] | None,
    directory: Path,
    *,
    timing: bool = True,
    threads: int = 0,
    points: int = 6,
    time_budget: float = 0,
    progress: Callable[[str], None] = lambda _text: None,
) -> Any:
    """Verify (and time) ``result`` against the graph file ``original``; put back clusters that fail; fill the report's verification.

    ``sizes`` None: shapes are generated. time_budget: seconds after which nothing is timed any more, no further shape is tried and no
    culprit searched (0: none). Returns the result with the graph that may be published; ``report.verified`` is False only if even
    the graph with every cluster put back differs, and None, with a warning, if no result could be compared.
    """
    report = result.report
    outputs = report.outputs
    sizes = list(sizes) if sizes is not None else sample_sizes(specs, points)

    deadline = time.monotonic() + time_budget if time_budget else math.inf
    two_bodies = any(c.bodies == 2 for c in report.clusters)

    def attempt(graph: Any, with_timing: bool, each: Callable[[ShapeResult], None] | None = None) -> list[ShapeResult]:
        path = directory / "candidate.pb"
        path.write_bytes(serialized(graph))
        options = {"timing": with_timing, "threads": threads, "broadcast": two_bodies, "deadline": deadline, "progress": each}
        return verify_graphs(original, path, specs, outputs, sizes, **options)

    def late() -> bool:
        return time.monotonic() > deadline

    def without(launched: Sequence[Any], with_timing: bool) -> list[ShapeResult]:
        return attempt(put_back(result.graph_def, [c.name for c in clusters if c not in launched]), with_timing)

    shapes = len(sizes) + (len(broadcast_feeds(specs)) if two_bodies else 0)
    progress(f"verifying at {counted(shapes, 'shape')} against TensorFlow")
    if timing and (note := busy()):
        progress(note)
    done = itertools.count(1)
    found = attempt(result.graph_def, timing, lambda _result: progress(f"verified ({next(done)} of {shapes})"))
    clusters = [c for c in report.clusters if c.status == "compiled"]
    if not all_ok(found):
        bad = bisect(clusters, lambda launched: all_ok(without(launched, False)), late)
        found = _put_back(result, bad, f"differs from TensorFlow: {first_failure(found)}", attempt, timing, progress)
        clusters = [c for c in clusters if c not in bad]
    if timing and clusters and all_ok(found) and is_slower(found) and not late():
        progress("slower than TensorFlow: timing once more")
        found = attempt(result.graph_def, True)  # in new processes: two of the same graph may differ by a little
        if all_ok(found) and is_slower(found):
            bad = bisect(clusters, lambda launched: not is_slower(without(launched, True)), late)
            found = _put_back(result, bad, said_slower(found), attempt, timing, progress)
    report.verification = found
    report.verified = all_ok(found)
    warn_slower(report.warnings, found)
    if late():
        report.warnings.append(ended_early(time_budget))
    if not timing:
        report.warnings.append(NOT_TIMED)
    elif clusters and not late():
        _warn_not_timed(report, found)
    if report.verified and not any(r.max_abs for r in found):
        report.verified = None
        why = f"TensorFlow itself fails at all of them, e.g.: {found[0].message}" if found else "there are none"
        report.warnings.append(f"not verified: no result at the {len(found)} shapes tried could be compared ({why}); give other shapes")
    return result


def _warn_not_timed(report: Any, found: Sequence[ShapeResult]) -> None:
    """Warnings for the shapes that are verified but that TensorFlow could not be timed at, and if none could."""
    refused = [r for r in found if r.ok and r.max_abs and r.message]
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


def _put_back(
    result: Any,
    bad: Sequence[Any],
    why: str,
    attempt: Callable[[Any, bool], list[ShapeResult]],
    timing: bool,
    progress: Callable[[str], None],
) -> list[ShapeResult]:
    report = result.report
    mark_put_back(report, bad, why)
    for c in bad:
        progress(f"{c.name} is put back: {why}")
    result.graph_def = put_back(result.graph_def, [c.name for c in bad])
    return attempt(result.graph_def, timing)
