"""Proof before publication: the optimised graph against the original, and putting back what fails.

Compilation is a pure function; this step runs where the weights are. A cluster that differs from TensorFlow, or that makes the graph
slower, is put back and named in the report.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from disc_tf.frontend.rewrite import put_back
from disc_tf.frontend.tfproto import serialized
from disc_tf.report import LeftOut, ShapeResult
from disc_tf.testing.differential import verify_graphs
from disc_tf.testing.inputs import InputSpec, sample_sizes

#: timing noise: a shape counts as slower only beyond this ratio
SLOWER = 1.05
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
    progress: Callable[[str], None] = lambda _text: None,
) -> Any:
    """Verify (and time) ``result`` against the graph file ``original``; put back clusters that fail; fill the report's verification.

    ``sizes`` None: shapes are generated. Returns the result with the graph that may be published; ``report.verified`` is False only if even
    the graph with every cluster put back differs, and None, with a warning, if no result could be compared.
    """
    report = result.report
    outputs = report.outputs
    sizes = list(sizes) if sizes is not None else sample_sizes(specs, points)

    two_bodies = any(c.bodies == 2 for c in report.clusters)

    def attempt(graph: Any, with_timing: bool) -> list[ShapeResult]:
        path = directory / "candidate.pb"
        path.write_bytes(serialized(graph))
        return verify_graphs(original, path, specs, outputs, sizes, timing=with_timing, threads=threads, broadcast=two_bodies)

    progress(f"verifying at {len(sizes)} shapes against TensorFlow")
    found = attempt(result.graph_def, timing)
    clusters = [c for c in report.clusters if c.status == "compiled"]
    if not _ok(found):
        bad, why = _bisect(clusters, result.graph_def, lambda g: attempt(g, False), _ok, found)
        found = _put_back(result, bad, f"differs from TensorFlow: {why}", attempt, timing, progress)
        clusters = [c for c in clusters if c not in bad]
    if timing and clusters and _ok(found) and _slower(found):
        why = f"slower than TensorFlow: {1 / _mean_ratio(found):.2f}x the time"
        bad, _ = _bisect(
            clusters, result.graph_def, lambda g: attempt(g, True), lambda r: not _slower(r), found
        )
        found = _put_back(result, bad, why, attempt, timing, progress)
    report.verification = found
    report.verified = _ok(found)
    if timing and clusters:
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


def _ok(found: Sequence[ShapeResult]) -> bool:
    return all(r.ok for r in found)


def _mean_ratio(found: Sequence[ShapeResult]) -> float:
    ratios = [r.original_ms / r.optimized_ms for r in found if r.original_ms and r.optimized_ms]
    return statistics.geometric_mean(ratios) if ratios else 1.0


def _slower(found: Sequence[ShapeResult]) -> bool:
    return _mean_ratio(found) < 1 / SLOWER


def _bisect(
    clusters: Sequence[Any],
    graph: Any,
    attempt: Callable[[Any], list[ShapeResult]],
    good: Callable[[Sequence[ShapeResult]], bool],
    found: Sequence[ShapeResult],
) -> tuple[list[Any], str]:
    """The clusters to put back, one after the other: the shortest prefix that still fails ends in a culprit.

    After `MAX_ATTEMPTS` runs all clusters are put back.
    """
    why = next((r.message for r in found if not r.ok), "")
    bad: list[Any] = []
    attempts = 0

    def passes(launched: Sequence[Any]) -> bool:
        nonlocal attempts
        attempts += 1
        return good(attempt(put_back(graph, [c.name for c in clusters if c not in launched])))

    while True:
        rest = [c for c in clusters if c not in bad]
        if not rest or (bad and passes(rest)):
            return bad, why
        low, high = 0, len(rest)  # rest[:low] passes, rest[:high] fails
        while high - low > 1 and attempts < MAX_ATTEMPTS:
            middle = (low + high) // 2
            if passes(rest[:middle]):
                low = middle
            else:
                high = middle
        if attempts >= MAX_ATTEMPTS:
            return list(clusters), why
        bad.append(rest[high - 1])


def _put_back(
    result: Any,
    bad: Sequence[Any],
    why: str,
    attempt: Callable[[Any, bool], list[ShapeResult]],
    timing: bool,
    progress: Callable[[str], None],
) -> list[ShapeResult]:
    report = result.report
    for c in bad:
        c.status, c.reason = "put_back", why
        report.left_out += [LeftOut(n, "", "PUT_BACK", why) for n in c.node_names]
        report.warnings.append(f"{c.name} was put back: {why}")
        progress(f"{c.name} is put back: {why}")
    report.count(report.compiled_clusters)
    result.graph_def = put_back(result.graph_def, [c.name for c in bad])
    return attempt(result.graph_def, timing)
