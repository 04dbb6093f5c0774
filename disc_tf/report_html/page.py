"""Whole pages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from disc_tf.report import Report, ShapeResult
from disc_tf.report_html import plots, sections
from disc_tf.report_html.markup import Markup, asset, bytes_text, join, table, tag
from disc_tf.saved_model_report import SavedModelReport

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(title: str, intro: Markup, parts: Sequence[sections.Section | None], data: Any = None) -> str:
    """A self-contained document. ``data``: the same as JSON, for programs that read the page."""
    found = [p for p in parts if p is not None]
    embedded = None
    if data is not None:
        text = json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        embedded = tag("script", Markup(text), type="application/json", id="data")
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", asset("page.css"), asset("graph.css")),
    ]
    body = [
        tag("h1", title),
        intro,
        tag("nav", (tag("a", name.partition(":")[0], href=f"#{anchor}") for anchor, name, _ in found)),
        (tag("section", tag("h2", name, id=anchor), content) for anchor, name, content in found),
        embedded,
        tag("script", asset("page.js")),
    ]
    return "<!DOCTYPE html>\n" + tag("html", tag("head", head), tag("body", body), lang="en") + "\n"


def report_page(report: Report, *, source: str = "", versions: Mapping[str, str] | None = None) -> str:
    """The page of an optimisation (or of a dry run). ``source``: what was optimised, for the title; ``versions``: of packages."""
    line = f"disc_tf {report.compiler_version}, targets {', '.join(report.targets)}"
    intro = join([tag("p", line, class_="quiet"), sections.summary(report)])
    parts = [
        sections.graph(report),
        sections.clusters(report),
        sections.roofline(report),
        sections.left_out(report),
        sections.shapes(report.verification),
        sections.options(report, {"disc_tf": report.compiler_version, **(versions or {})}),
    ]
    return page(f"disc-tf: {source or 'report'}", intro, parts, json.loads(report.to_json()))


def saved_model_page(report: SavedModelReport, *, source: str = "", versions: Mapping[str, str] | None = None) -> str:
    """The page of a SavedModel: what a report has, for each function of each MetaGraph."""
    line = f"disc_tf {report.compiler_version}, a SavedModel with signatures {', '.join(report.signatures) or '(none)'}"
    graphs = report.graphs
    whole = Report(
        verified=report.verified_all, compute_nodes=sum(g.compute_nodes for g in graphs),
        compiled_nodes=sum(g.compiled_nodes for g in graphs), clusters=list(report.clusters_of_all.values()),
        verification=[s for g in graphs for found in g.verification.values() for s in found],
        warnings=list(dict.fromkeys(w for g in graphs for w in g.warnings)), compiler_version=report.compiler_version,
        options=report.options, times_ms=report.times_ms,
    )  # fmt: skip
    intro = join([tag("p", line, class_="quiet"), sections.summary(whole)])
    parts: list[sections.Section | None] = []
    for i, g in enumerate(graphs):
        search = not any(r.left_out for earlier in graphs[:i] for r in earlier.reports.values())
        parts += _meta_graph(g, f"graph-{i}-" if i else "", f"[{g.title}] " if len(graphs) > 1 else "", search)
    parts.append(sections.options(whole, {"disc_tf": report.compiler_version, **(versions or {})}))
    return page(f"disc-tf: {source or 'report'}", intro, parts, json.loads(report.to_json()))


def _meta_graph(report: SavedModelReport, before: str, title: str, search: bool) -> list[sections.Section | None]:
    """The sections of one MetaGraph. ``before``: what its anchors start with; ``title``: what those of its sections do. search: the page
    has no field yet that searches what was left out."""
    if report.reason:
        return [(f"{before}left", f"{title}Left as it is", tag("p", report.reason))]
    anchors = {f.name: f"{before}function-{i}" for i, f in enumerate(report.functions) if f.report is not None}
    rows = []
    for f in report.functions:
        name = tag("a", f.name, href=f"#{anchors[f.name]}") if f.name in anchors else tag("span", f.name, class_="name")
        share = 100 * f.report.coverage if f.report is not None else None
        rows.append([name, f.status.replace("_", " "), share, ", ".join(f.called_by), f.reason])
    rows += [[tag("span", name, class_="name"), "left as it is", None, "", why] for name, why in report.skipped.items()]
    overview = table(["function", "status", "% of ops compiled", "called by", ""], rows)
    parts: list[sections.Section | None] = [(f"{before}functions", f"{title}Functions", overview)]
    for f in report.functions:
        if f.report is None:
            continue
        prefix = f"{anchors[f.name]}-"
        found = [sections.graph(f.report, prefix), sections.clusters(f.report, prefix)]
        found.append(sections.left_out(f.report, prefix, search=search))
        search = search and not f.report.left_out
        content = [(tag("h3", title, id=anchor), inner) for anchor, title, inner in filter(None, found)]
        parts.append((anchors[f.name], f"{title}Function {f.name}", join([sections.summary(f.report), *content])))
    for i, (signature, results) in enumerate(report.verification.items()):
        section = sections.shapes(results)
        if section is not None:
            parts.append((f"{before}shapes-{i}", f"{title}Signature {signature} by shape", section[2]))
    return parts


def standalone_page(data: Mapping[str, Any], report: Report, *, source: str = "", versions: Mapping[str, str] | None = None) -> str:
    """The page of a stand-alone file. ``data``: what the command prints as JSON; ``report``: the whole as the only cluster."""
    line = f"disc_tf {report.compiler_version}, targets {', '.join(report.targets)}: a file that runs without TensorFlow"
    sizes = f"{bytes_text(data['file_bytes'])}, {bytes_text(data['weight_bytes'])} of it weights"
    intro = join([tag("p", line, class_="quiet"), sections.summary(report), tag("p", tag("code", data["output"]), f": {sizes}")])
    segments = ((s["waits_for"], s["makes"]) for s in data["segments"])
    rows = [[i, ", ".join(a) or "nothing", ", ".join(b) or "intermediate results"] for i, (a, b) in enumerate(segments)]
    names = table(["", "names"], [["inputs", ", ".join(data["inputs"]) or "none"], ["outputs", ", ".join(data["outputs"])]])
    parts = [
        ("file", "Inputs, outputs, segments", join([names, table(["segment", "waits for", "makes"], rows)])),
        sections.graph(report),
        sections.clusters(report),
        sections.shapes(report.verification),
        sections.options(report, {"disc_tf": report.compiler_version, **(versions or {})}),
    ]
    return page(f"disc-tf: {source or 'report'}", intro, parts, data)


def verify_page(results: Sequence[ShapeResult], ok: bool, *, original: str, optimized: str) -> str:
    """The page of `disc-tf verify`."""
    verdict = tag("b", "same answers" if ok else "DIFFERENT", class_="good" if ok else "bad")
    intro = tag("p", tag("code", original), " and ", tag("code", optimized), ": ", verdict)
    return page(f"disc-tf verify: {optimized}", intro, [sections.shapes(results)], {"ok": ok, "shapes": [vars(r) for r in results]})


def bench_page(data: Mapping[str, Any], *, original: str, optimized: str) -> str:
    """The page of `disc-tf bench`; ``data`` is what its ``--json`` prints."""
    mean, least = data["geometric_mean"], data["minimum"]
    said = f"{mean:.2f} times faster in the geometric mean, {least:.2f} at least" if mean is not None else "nothing was timed"
    intro = join([tag("p", tag("code", original), " against ", tag("code", optimized)), tag("p", tag("b", said))])
    bars = []
    for r in data["shapes"]:
        low, high = r.get("low"), r.get("high")
        note = f"{r['ratio']:.2f}x" + (f" ({low:.2f} to {high:.2f})" if low is not None and high is not None else "")
        bars.append((_dims(r["dims"]), r["original"]["median"], r["optimized"]["median"], note))
    known = data["shapes"][0]["original"] if data["shapes"] else {}
    columns = [(c, side) for c in ("cold", "median", "p99", "peak_mb") if c in known for side in ("original", "optimized")]
    rows = [[_dims(r["dims"]), *(r[side][c] for c, side in columns), r["ratio"]] for r in data["shapes"]]
    head = ["shape", *(f"{c.replace('_', ' ')}, {side}" for c, side in columns), "times faster"]
    content = join([plots.speed(bars) if bars else None, table(head, rows)])
    parts: list[sections.Section | None] = [("shapes", "Time by shape", content)]
    if fresh := data.get("fresh_process"):
        rows = [[side, found["start"], found["first"]] for side, found in fresh.items()]
        parts.append(("fresh", "In a fresh process", table(["graph", "ms until it is loaded", "ms of the first run"], rows)))
    if skipped := data.get("not_timed"):
        notes = [[_dims(s["dims"]), s["message"]] for s in skipped]
        parts.append(("not-timed", "Not timed", table(["shape", "why"], notes)))
    return page(f"disc-tf bench: {optimized}", intro, parts, data)


def _dims(dims: Mapping[str, int]) -> str:
    return ", ".join(f"{k}={v}" for k, v in dims.items()) or "static"
