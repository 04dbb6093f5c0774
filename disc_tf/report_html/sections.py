"""The parts of a report page, each from a `Report`."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from disc_tf.frontend.errors import REASON_ADVICE
from disc_tf.report import ClusterProfile, ClusterReport, Report, ShapeResult, counted
from disc_tf.report_html import plots
from disc_tf.report_html.graph import COLORS, MOST, draw
from disc_tf.report_html.markup import Markup, bytes_text, join, table, tag

Section = tuple[str, str, Markup]  # anchor, title, content

#: names in one list before the rest is only counted
_NAMES = 5000


def summary(report: Report) -> Markup:
    tiles = [("ops compiled", f"{100 * report.coverage:.1f} %", f"{report.compiled_nodes} of {report.compute_nodes}", "")]
    if report.flops_share is not None:
        tiles.append(("of the operations", f"{100 * report.flops_share:.1f} %", "floating point", ""))
    planned = sum(c.status == "planned" for c in report.clusters)
    done = planned or len(report.compiled_clusters)
    tiles.append(("clusters", f"{done} of {len(report.clusters)}", "would be compiled" if planned else "compiled", ""))
    if report.verified is not None:
        word, style = ("yes", "good") if report.verified else ("NO", "bad")
        tiles.append(("verified against TensorFlow", word, counted(len(report.verification), "shape"), style))
    ratios = [s.ratio for s in report.verification if s.ratio is not None]
    if ratios:
        least = f"least {min(ratios):.2f}x, {counted(len(ratios), 'shape')}"
        tiles.append(("speed-up, geometric mean", f"{statistics.geometric_mean(ratios):.2f}x", least, ""))
    blocks = (tag("div", what, tag("b", value, class_=style or None), tag("span", note, class_="quiet"), class_="tile")
              for what, value, note, style in tiles)  # fmt: skip
    return join([tag("div", blocks, class_="tiles"), (tag("p", w, class_="warn") for w in report.warnings)])


def graph(report: Report, prefix: str = "") -> Section | None:
    if report.drawing is None or not report.drawing.boxes:
        return None
    status = {c.name: c.status for c in report.clusters}
    anchors = {c.name: i for i, c in enumerate(report.clusters)}
    kinds = [("compiled", "compiled"), ("would be compiled", "planned"), ("failed or put back", "failed"), ("in TensorFlow", "tensorflow")]
    key = tag("p", (tag("span", k, style=f"background:{COLORS[state]}") for k, state in kinds), class_="key")
    more = len(report.drawing.boxes) - MOST
    note = tag("p", f"The first {MOST} boxes are drawn, {more} are not.", class_="warn") if more > 0 else None
    details = []
    for box in report.drawing.boxes[:MOST]:
        ops = ", ".join(f"{n} {op}" for op, n in box.ops.items())
        head = [tag("code", box.name), f": {box.nodes} ops ({ops})"]
        if box.kind == "cluster" and box.name in anchors:
            body: Any = tag("p", tag("a", "to its kernels", href=f"#{prefix}cluster-{anchors[box.name]}"))
        else:
            body = _names(box.names, box.nodes)
        details.append(tag("details", tag("summary", head), body, id=f"{prefix}box-{box.id}"))
    listing = tag("details", tag("summary", f"{len(details)} boxes as a list"), details)
    canvas = tag("div", draw(report.drawing, status, prefix=prefix), class_="canvas")
    return f"{prefix}graph", "The graph", join([key, note, canvas, listing])


def clusters(report: Report, prefix: str = "") -> Section:
    profiles = {p.cluster: p for p in report.profile}
    rows = []
    for i, c in enumerate(report.clusters):
        kinds = ", ".join(f"{n} {k}" for k, n in Counter(k.kind for k in c.kernels).most_common())
        run = profiles[c.name].run_us / 1e3 if c.name in profiles and not profiles[c.name].message else None
        name = tag("a", c.name, href=f"#{prefix}cluster-{i}")
        rows.append([name, c.status.replace("_", " "), c.nodes, c.compute_nodes, len(c.kernels), kinds, bytes_text(c.artifact_bytes), run])
    head = ["cluster", "status", "nodes", "ops", "kernels", "of kinds", "code", "ms a run"]
    parts = [table(head, rows)] if rows else [tag("p", "There are no clusters.")]
    parts += [_cluster(f"{prefix}cluster-{i}", c, profiles.get(c.name)) for i, c in enumerate(report.clusters)]
    if report.machine:
        parts.insert(0, _machine(report.machine))
    return f"{prefix}clusters", "Clusters and kernels", join(parts)


def _machine(machine: Mapping[str, Any]) -> Markup:
    levels = ", ".join(f"{rate:.0f} GB/s with up to {bytes_text(size)} in use" for size, rate in machine["bandwidth"])
    said = (
        f"Measured here with {machine['threads']} threads of {machine['isa']}: {machine['gflops']:.0f} GFLOP/s (f32), {levels}. "
        "A kernel's share of the roofline is the least time that these allow for its products and for moving its inputs and outputs once, "
        "over the time that it took. "
        "Predicted times are those of the cost model that the compiler decides by, with this machine's rates."
    )
    return tag("p", said, class_="quiet")


def _cluster(anchor: str, c: ClusterReport, profile: ClusterProfile | None) -> Markup:
    parts: list[Markup] = [tag("h3", c.name, id=anchor)]
    if c.reason:
        parts.append(tag("p", f"{c.status.replace('_', ' ')}: {c.reason}", class_="warn"))
    if c.arena and c.status == "compiled":
        parts.append(tag("p", "Arena: ", tag("code", c.arena), " bytes"))
    if c.symbols:
        named = ", ".join(f"{s} is {what}" for s, what in list(c.symbols.items())[:40])
        parts.append(tag("p", f"In it and below, {named}.", class_="quiet"))
    if profile is not None and profile.message:
        parts.append(tag("p", f"not timed: {profile.message}", class_="warn"))
    elif profile is not None:
        parts += _profile(profile)
    if c.kernels and (profile is None or profile.message):
        rows = [[tag("code", k.symbol), k.kind, _nodes_cell(k.nodes)] for k in c.kernels]
        parts.append(table(["kernel", "kind", "original nodes"], rows))
    parts.append(_memory(c, profile))
    parts.append(tag("details", tag("summary", f"its {counted(len(c.node_names), 'node')}"), _names(c.node_names, len(c.node_names))))
    return tag("section", parts)


def _profile(p: ClusterProfile) -> list[Markup]:
    shapes = ", ".join(f"{name} {dims}" for name, dims in p.shapes.items())
    times = f"{p.run_us / 1e3:.3f} ms, of which {p.other_us / 1e3:.3f} ms beyond the kernels timed"
    line = f"One run at {shapes} on {p.threads} threads: {times}."
    rows = []
    for k in p.kernels:
        share = k.us / p.run_us if p.run_us else 0.0
        bar = tag("span", "", class_="share", style=f"width:{min(max(60 * share, 1), 60):.0f}px")
        gflops = k.flops / k.us / 1e3 if k.flops and k.us else None
        rate = k.bytes / k.us / 1e3 if k.bytes and k.us else None
        roof = 100 * k.roofline if k.roofline is not None else None
        rows.append(
            [tag("code", k.symbol), k.kind, k.calls, k.us / 1e3, 100 * share, bar,
             k.predicted_us / 1e3 if k.predicted_us is not None else None, gflops, rate, roof, k.bound, _nodes_cell(k.nodes)]
        )  # fmt: skip
    head = ["kernel", "kind", "launches", "ms", "% of run", "", "predicted ms"]
    head += ["GFLOP/s", "GB/s", "% of roofline", "bound by", "original nodes"]
    above: dict[str, list[str]] = {}
    for k in p.kernels:
        if k.note:
            above.setdefault(k.note, []).append(k.symbol)
    notes = [tag("p", f"Above 100 % of the roofline: {', '.join(names)}: {note}.", class_="quiet") for note, names in above.items()]
    return [tag("p", line), table(head, rows), *notes]


def roofline(report: Report) -> Section | None:
    if not report.machine:
        return None
    points = [(k.symbol, k.flops or 0.0, k.bytes or 0.0, k.us) for p in report.profile for k in p.kernels]
    plot = plots.roofline(points, report.machine["gflops"], report.machine["bandwidth"])
    return ("roofline", "Roofline", plot) if plot else None


def _memory(c: ClusterReport, profile: ClusterProfile | None) -> Markup:
    if c.memory is None or not c.memory.buffers:
        return Markup("")
    if profile is not None and profile.live is not None:
        plot = plots.memory(c.memory.steps, profile.live, profile.arena)
        return join([tag("p", f"Memory over time: {bytes_text(max(profile.live, default=0))} in use at most, ",
                         f"{bytes_text(profile.arena or 0)} asked for."), plot])  # fmt: skip
    rows = [[slot, first, last, tag("code", size)] for size, first, last, slot in c.memory.buffers]
    content = table(["slot", "first step", "last step", "bytes"], rows)
    return tag("details", tag("summary", f"memory: {len(rows)} buffers in {len(c.memory.slots)} slots"), content)


def left_out(report: Report, prefix: str = "", *, search: bool = True) -> Section:
    """search: with the field that searches all lists of the page."""
    if not report.left_out:
        return f"{prefix}left-out", "Left in TensorFlow", tag("p", "Nothing.")
    parts: list[Any] = []
    if search:
        parts = [tag("input", type="search", id="search", placeholder="search nodes, ops and reasons"), " ", tag("span", "", id="found")]
    for (code, reason), nodes in report.left_out_groups:
        items = [tag("li", n.node, f" ({n.op})" if n.op else "") for n in nodes[:_NAMES]]
        if len(nodes) > _NAMES:
            items.append(tag("li", f"and {len(nodes) - _NAMES} more"))
        head = [tag("b", f"{len(nodes)} "), tag("code", code), f": {reason}"]
        advice = REASON_ADVICE.get(code)
        way_out = tag("p", f"Way out: {advice}.", class_="quiet") if advice else None
        parts.append(tag("details", tag("summary", head), way_out, tag("ul", items, class_="nodes"), data_group=f"{code} {reason}"))
    return f"{prefix}left-out", f"Left in TensorFlow: {counted(len(report.left_out), 'node')}", join(parts)


def shapes(results: Sequence[ShapeResult]) -> Section | None:
    if not results:
        return None
    bars = []
    rows = []
    for s in results:
        name = ", ".join(f"{k} {v}" for k, v in s.shapes.items())
        if s.original_ms and s.optimized_ms:
            bounds = f" ({s.interval[0]:.2f} to {s.interval[1]:.2f})" if s.interval else ""
            bars.append((name, s.original_ms, s.optimized_ms, f"{s.ratio:.2f}x{bounds}"))
        worst, relative = max(s.max_abs.values(), default=None), max(s.max_rel.values(), default=None)
        ok = tag("span", "ok" if s.ok else "FAIL", class_="good" if s.ok else "bad")
        rows.append([tag("span", name, class_="name"), ok, worst, relative, s.original_ms, s.optimized_ms, s.ratio, s.message])
    head = ["shapes", "", "worst absolute error", "relative", "original ms", "optimised ms", "times faster", ""]
    return "shapes", "Verification and speed by shape", join([plots.speed(bars) if bars else None, table(head, rows)])


def options(report: Report, versions: Mapping[str, str]) -> Section:
    chosen = [[k, tag("code", str(v))] for k, v in report.options.items()]
    chosen += [[f"table of schedules, {isa}", tag("code", digest)] for isa, digest in report.tuning.items()]
    phases = [[k, v] for k, v in report.times_ms.items()]
    totals: dict[str, float] = defaultdict(float)
    for c in report.clusters:
        for phase, ms in c.times_ms.items():
            totals[phase] += ms
    phases += [[f"  of compile: {k}", v] for k, v in totals.items()]
    return "options", "Options, times, versions", join([
        tag("h3", "Options"), table(["option", "value"], chosen),
        tag("h3", "Time of the optimisation"), table(["phase", "ms"], phases),
        tag("h3", "Versions"), table(["package", "version"], [[k, v] for k, v in versions.items()]),
        tag("p", "Outputs: ", tag("code", ", ".join(report.outputs)), " (found: the graph's sinks)" if report.outputs_found else ""),
    ])  # fmt: skip


def _nodes_cell(nodes: Sequence[str]) -> Markup:
    if len(nodes) <= 3:
        return tag("span", ", ".join(nodes), class_="name")
    return tag("details", tag("summary", counted(len(nodes), "node")), _names(nodes, len(nodes)))


def _names(names: Sequence[str], total: int) -> Markup:
    items = [tag("li", n) for n in names[:_NAMES]]
    if total > len(items):
        items.append(tag("li", f"and {total - len(items)} more"))
    return tag("ul", items, class_="nodes")
