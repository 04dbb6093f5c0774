"""The measured part of docs/performance.md."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.engines import CALL, ENGINES, OURS
from bench.peers.environments import versions
from bench.zoo.table import cpu_model
from disc_tf.costs import Machine

#: what lies between these two lines of the page is measured; the rest is written by hand
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
_NAMES = {"tensorflow": "TensorFlow", "xla": "XLA", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "iree": "IREE"}


def replace_measured(page: str, text: str) -> str:
    """The page with its measured part replaced; ``ValueError`` if it has none."""
    return _between(page, BEGIN, END, text)


def replace_part(page: str, part: str, text: str) -> str:
    """The page with another generated part replaced; ``ValueError`` if it has none."""
    return _between(page, f"<!-- {part}: begin -->", f"<!-- {part}: end -->", text)


def _between(page: str, opening: str, closing: str, text: str) -> str:
    before, begin, rest = page.partition(opening)
    _, end, after = rest.partition(closing)
    if not begin or not end:
        raise ValueError(f"the page has no part between {opening} and {closing}")
    return f"{before}{opening}\n{text}{closing}{after}"


def contention_table(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Model -> load -> engine -> milliseconds; beside each time, how many times the engine's own time on the idle machine that is."""
    engines = list(dict.fromkeys(e for loads in results.values() for times in loads.values() for e in times))
    lines = [f"Measured on {cpu_model()}, {len(os.sched_getaffinity(0))} processors.\n"]
    lines.append("| model | machine | " + " | ".join(_NAMES.get(e, e) for e in engines) + " |")
    lines.append("| --- | --- |" + " ---: |" * len(engines))
    for model, loads in results.items():
        for load, times in loads.items():
            cells = [_slowdown(times.get(e), loads.get("idle", {}).get(e), load == "idle") for e in engines]
            lines.append(f"| {model} | {load} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _slowdown(ms: float | None, idle: float | None, is_idle: bool) -> str:
    if ms is None:
        return "-"
    return f"{ms:.2f} ms" if is_idle or not idle else f"{ms:.2f} ms, {ms / idle:.2f}x"


def ratios(model: Mapping[str, Any], engine: str) -> list[float]:
    """How many times faster than TensorFlow an engine is, at each point at which both ran."""
    ran = [p for p in model["points"] if all(e in p and not p[e]["failed"] for e in (engine, "tensorflow"))]
    return [p["tensorflow"]["median"] / p[engine]["median"] for p in ran]


def _times(values: Sequence[float]) -> str:
    return f"{statistics.geometric_mean(values):.2f}" if values else "-"


def markdown(models: Sequence[Mapping[str, Any]], machine: Machine, command: str, environments: Path) -> str:
    """Tables of all models: how many times faster than TensorFlow; peak memory and compile time; every point."""
    engines = [e for e in ENGINES if any(e in p for m in models for p in m["points"])]
    titles = [_NAMES.get(e, e) for e in engines]
    known = versions(sys.executable, ("tensorflow",))
    for name, package in (("onnxruntime", "onnxruntime"), ("openvino", "openvino"), ("iree", "iree-base-runtime")):
        if (python := environments / name / "bin" / "python").exists():
            known |= versions(str(python), (package,))
    bandwidth = ", ".join(f"{rate:.0f} GB/s up to {size >> 10:,} KiB" for size, rate in machine.bandwidth)
    lines = [
        f"Measured on {cpu_model()}, {machine.isa}, {machine.threads} threads, {', '.join(f'{k} {v}' for k, v in known.items())}, by",
        "",
        f"    {command}",
        "",
        f"FMA peak of the same run: {machine.gflops:.0f} GFLOP/s; copy bandwidth (read and written): {bandwidth}.",
        "",
        "Times faster than TensorFlow, geometric mean over the trace (least of all points in brackets):",
        "",
        f"| model | {' | '.join(titles[1:])} |",
        f"| --- {'| --- ' * (len(titles) - 1)}|",
    ]
    for m in models:
        cells = [f"{_times(r)} ({min(r):.2f})" if (r := ratios(m, e)) else "-" for e in engines[1:]]
        lines.append(f"| {m['model']} | {' | '.join(cells)} |")
    lines += ["", "Peak memory above the process with the engine's code loaded, MB; ours to compile, s:", ""]
    lines += [f"| model | {' | '.join(titles)} | compile | command | kernels |", f"| --- {'| --- ' * (len(titles) + 3)}|"]
    for m in models:
        peaks = [f"{m['peak_bytes'][e] / 1e6:.0f}" if e in m["peak_bytes"] else "-" for e in engines]
        lines.append(
            f"| {m['model']} | {' | '.join(peaks)} | {m['compile_ms'] / 1e3:.1f} | {m['compile_seconds']['.pb']:.1f} | {m['kernels']} |"
        )
    lines += _behind(models, [e for e in engines if e not in OURS])
    for m in models:
        lines += ["", f"### {m['model']}", "", *_points(m, engines, titles)]
        lines += [f"{_NAMES.get(e, e)} does not run this model: {why}" for e, why in m["failed"].items()]
    return "\n".join(lines) + "\n"


def _behind(models: Sequence[Mapping[str, Any]], peers: Sequence[str]) -> list[str]:
    """Every point at which a peer is ahead of one of our forms, with what a Session's call takes by itself."""
    rows = []
    for m in models:
        for p in m["points"]:
            ran = {e: p[e]["median"] for e in (*peers, *OURS, CALL) if e in p and not p[e]["failed"]}
            first = min((e for e in peers if e in ran), key=ran.__getitem__, default=None)
            if first is None or not any(ran[o] > ran[first] for o in OURS if o in ran):
                continue
            times = [f"{ran[e]:.2f}" if e in ran else "-" for e in (first, *OURS, CALL)]
            dims = ", ".join(f"{k}={v}" for k, v in p["dims"].items())
            rows.append(f"| {m['model']} | {dims} | {_NAMES.get(first, first)} | {' | '.join(times)} |")
    if not rows:
        return ["", "At no point is a peer ahead of either form of disc_tf."]
    return [
        "",
        "Points where a peer is ahead of one of our forms, ms. *call*: a call of TensorFlow's Session that only takes the feeds; the op",
        "inside TensorFlow cannot be below it.",
        "",
        f"| model | dims | first | its time | {' | '.join(_NAMES.get(e, e) for e in OURS)} | call |",
        f"| --- | --- | --- {'| --- ' * (len(OURS) + 2)}|",
        *rows,
    ]


def _points(model: Mapping[str, Any], engines: Sequence[str], titles: Sequence[str]) -> list[str]:
    mine = OURS[-1]
    lines = [
        "Milliseconds, median (first call, 99th percentile); *roof*: share of the roofline that disc_tf alone reaches; *off*: its largest "
        "difference from TensorFlow.",
        "",
        f"| dims | {' | '.join(titles)} | GFLOP/s | roof | off |",
        f"| --- {'| --- ' * (len(titles) + 3)}|",
    ]
    for p in model["points"]:
        cells = []
        for e in engines:
            t = p.get(e)
            cells.append("-" if t is None or t["failed"] else f"{t['median']:.2f} ({t['first']:.1f}, {t['p99']:.2f})")
        ours = p.get(mine)
        if ours and not ours["failed"]:
            share = 100 * p["least_ms"] / ours["median"]
            cells += [f"{p['flops'] / ours['median'] / 1e6:.0f}", f"{share:.0f} %", f"{ours['difference']:.0e}"]
        else:
            cells += ["-"] * 3
        lines.append(f"| {', '.join(f'{k}={v}' for k, v in p['dims'].items())} | {' | '.join(cells)} |")
    return [*lines, ""]
