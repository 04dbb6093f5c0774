"""The stages' results as docs/models.md."""

from __future__ import annotations

import platform
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.zoo.files import FAMILY
from bench.zoo.model import Model

_HEAD = """# Models

Published architectures with random weights, frozen at unknown batch and length or image size, compiled once each. Made by

    make models

Measured on {cpu}, {threads} threads.

* *nodes*, *FLOPs*: what runs inside DiscLaunch, of the nodes left after pruning
* *compile*: the whole command, for the targets {targets}
* *error*: the worst difference from TensorFlow (grappler and oneDNN off) at any of the *shapes*, as a part of the bound of
  [numerics.md](numerics.md) for a whole graph: below 1 is right. Where a model is worse conditioned than that, the bound is sixteen times
  what one unit in the last place of the inputs does to TensorFlow's own results
* *speed-up*, *least*: against TensorFlow as users run it, in interleaved rounds: geometric mean over the timed shapes, and the least. A
  shape at which TensorFlow is faster is timed twice; the attempt that took less time on both sides together counts

| model | nodes | FLOPs | clusters | kernels | compile | code | error | shapes | speed-up | least |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def percent(part: float) -> str:
    """Rounded down: 100 % is said of nothing less."""
    return f"{int(part * 1000) / 10:g} %"


def worst_error(check: Mapping[str, Any]) -> float:
    """The largest relative error at any shape as a part of the bound there."""
    return max((max(s["max_rel"].values(), default=0.0) / s["bound"] for s in check["shapes"]), default=0.0)


def row(model: Model, found: Mapping[str, Any]) -> str:
    """One line of the table; what is not known (yet) is a dash."""
    cells = ["-"] * 10
    if "optimise" in found:
        report = found["optimise"]["report"]
        running = [c for c in report["clusters"] if c["status"] == "compiled"]
        share = report["flops_share"]
        cells[:6] = [
            percent(report["compiled_nodes"] / report["compute_nodes"]) if report["compute_nodes"] else "-",
            percent(share) if share is not None else "-",
            str(len(running)),
            str(sum(len(c["kernels"]) for c in running)),
            f"{found['optimise']['seconds']:.0f} s",
            f"{sum(c['artifact_bytes'] for c in running) / 1024:.0f} KiB",
        ]
    if "check" in found:
        good = sum(s["ok"] for s in found["check"]["shapes"])
        cells[6] = f"{worst_error(found['check']):.2g}" if found["check"]["ok"] else "**wrong**"
        cells[7] = f"{good}/{len(found['check']['shapes'])}"
    if found.get("time"):
        ratios = [p["ratio"] for p in found["time"]]
        cells[8:] = [f"{statistics.geometric_mean(ratios):.2f}x", f"{min(ratios):.2f}x"]
    return f"| {model.name} | " + " | ".join(cells) + " |"


def details(model: Model, found: Mapping[str, Any]) -> list[str]:
    """What the line cannot say: the configuration, what was left in TensorFlow and why, failures, times per shape."""
    lines = ["", f"### {model.name}", ""]
    meta = found.get("graph", {})
    facts = [model.family, model.config, f"{meta.get('nodes', 0)} nodes" if meta.get("nodes") else ""]
    facts.append(f"{meta['parameters'] / 1e6:.1f} M parameters" if meta.get("parameters") else "")
    lines.append("; ".join(f for f in facts if f) + ".")
    if "failure" in found:
        lines += ["", f"**Failed** in stage {found['failure']['stage']}: {found['failure']['why']}"]
    for cluster in found.get("optimise", {}).get("report", {}).get("clusters", []):
        if cluster["status"] != "compiled":
            lines += ["", f"{cluster['name']} ({cluster['nodes']} nodes) stays in TensorFlow: {cluster['reason']}"]
    left = found.get("optimise", {}).get("report", {}).get("left_out", [])
    groups = Counter((x["op"], x["code"], x["reason"]) for x in left if x["code"] != "COMPILE")
    if groups:
        lines.append("")
    lines += [f"* left in TensorFlow: {n} {op or 'nodes'} ({code}): {reason}" for (op, code, reason), n in groups.most_common(8)]
    for shape in found.get("check", {}).get("shapes", []):
        if not shape["ok"]:
            lines += ["", f"**Wrong** at {shape['shapes']}: {shape['message']}"]
    if found.get("time"):
        lines += ["", "| dims | TensorFlow | disc_tf | speed-up |", "| --- | --- | --- | --- |"]
        for p in found["time"]:
            dims = ", ".join(f"{k}={v}" for k, v in p["dims"].items())
            lines.append(f"| {dims} | {p['original']['median']:.2f} ms | {p['optimized']['median']:.2f} ms | {p['ratio']:.2f}x |")
    return lines


def markdown(rows: Sequence[tuple[Model, Mapping[str, Any]]], threads: int) -> str:
    """The whole page."""
    targets = next((", ".join(f["optimise"]["report"]["targets"]) for _, f in rows if "optimise" in f), "-")
    text = _HEAD.format(cpu=cpu_model(), threads=threads, targets=targets)
    text += "\n".join(row(m, f) for m, f in rows) + "\n"
    text += "\nGraphs of " + FAMILY + " are at the shapes of their traces; all models also at 20 random shapes.\n\n## Each model\n"
    return text + "\n".join(line for m, f in rows for line in details(m, f)) + "\n"
