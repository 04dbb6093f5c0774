"""Reports as files: JSON, or one HTML page where the name ends in `.html`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from disc_tf.commands.common import write_atomically
from disc_tf.report import Report, ShapeResult
from disc_tf.saved_model_report import SavedModelReport
from disc_tf.scratch import scratch
from disc_tf.testing.inputs import InputSpec, sample_sizes
from disc_tf.version import installed

REPORT_HELP = "write the report: a page for browsers if F ends in .html, else JSON"


def is_html(path: str | None) -> bool:
    return path is not None and Path(path).suffix.lower() in (".html", ".htm")


def versions() -> dict[str, str]:
    """Packages that decide what is compiled and how it runs -> their versions, as far as they are installed."""
    found = {package: installed(package) for package in ("tensorflow", "numpy", "jax", "llvmlite", "protobuf")}
    return {package: version for package, version in found.items() if version is not None}


def write_report(path: str, report: Report | SavedModelReport, source: str) -> None:
    """``report`` to ``path``. ``source``: what was read, for the page's title."""
    if is_html(path):
        from disc_tf.report_html import report_page, saved_model_page

        name = Path(source).name or source
        if isinstance(report, Report):
            text = report_page(report, source=name, versions=versions())
        else:
            text = saved_model_page(report, source=name, versions=versions())
    else:
        text = report.to_json()
    write_atomically(path, text.encode())


def write_standalone(path: str, data: Mapping[str, Any], report: Report, source: str) -> None:
    """What was made of ``source`` as a stand-alone file; ``data`` is what `disc-tf optimize -o NAME.disc --json` prints."""
    from disc_tf.report_html import standalone_page

    _write(path, data, lambda: standalone_page(data, report, source=Path(source).name or source, versions=versions()))


def write_verification(path: str, results: Sequence[ShapeResult], data: Mapping[str, Any], original: str, optimized: str) -> None:
    """What `disc-tf verify` found; ``data`` is what its ``--json`` prints."""
    from disc_tf.report_html import verify_page

    _write(path, data, lambda: verify_page(results, bool(data["ok"]), original=original, optimized=optimized))


def write_bench(path: str, data: Mapping[str, Any], original: str, optimized: str) -> None:
    """What `disc-tf bench` measured; ``data`` is what its ``--json`` prints."""
    from disc_tf.report_html import bench_page

    _write(path, data, lambda: bench_page(data, original=original, optimized=optimized))


def _write(path: str, data: Mapping[str, Any], page: Callable[[], str]) -> None:
    write_atomically(path, (page() if is_html(path) else json.dumps(data, indent=2)).encode())


def write_csv(path: str, data: Mapping[str, Any]) -> None:
    """One line a shape of what `disc-tf bench` measured: a column for each dim, then times in milliseconds and megabytes by side."""
    rows = data["shapes"]
    dims = list(dict.fromkeys(d for r in rows for d in r["dims"]))
    columns = [(side, c) for c in ("cold", "median", "p99", "peak_mb") for side in ("original", "optimized")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*dims, *(f"{side}_{c if c == 'peak_mb' else c + '_ms'}" for side, c in columns), "ratio", "low", "high"])
    for r in rows:
        writer.writerow([*(r["dims"].get(d, "") for d in dims), *(r[s][c] for s, c in columns), r["ratio"], r["low"], r["high"]])
    write_atomically(path, out.getvalue().encode())


def add_profile(
    report: Report,
    graph: Any,
    specs: Sequence[InputSpec],
    sizes: Sequence[Mapping[str, int]] | None,
    *,
    threads: int,
    progress: Callable[[str], None],
) -> None:
    """Times of the kernels for a page, where the clusters were run here at all. Whatever goes wrong is a warning: the graph is written."""
    from disc_tf.insight.profile import largest, profile_report

    if report.verified is None or not report.compiled_clusters:
        return
    try:
        with scratch() as temp:
            at = largest(list(sizes or sample_sizes(specs, 6)))
            profile_report(report, graph, specs, at, temp, threads=threads, progress=progress)
    except Exception as e:
        report.warnings.append(f"kernels were not timed: {type(e).__name__}: {e}")
