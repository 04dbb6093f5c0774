"""The graph drawn as boxes in layers (`report.Drawing`): inputs, clusters, and what stays in TensorFlow between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disc_tf.report import Box, Drawing
from disc_tf.report_html.markup import Markup, asset, number, short, tag

WIDTH, HEIGHT, GAP, BETWEEN = 172, 46, 16, 38
#: boxes in a row before the layer goes on in the next
ROW = 7
#: boxes that are drawn at all
MOST = 600
#: what a box is -> its colour (as in graph.css)
COLORS = {
    "compiled": "#d5f0dd", "planned": "#dbe9fb", "failed": "#fde0d8", "put_back": "#fde0d8", "tensorflow": "#eceff2", "input": "#ffffff",
}  # fmt: skip


def state_of(box: Box, status: Mapping[str, str]) -> str:
    """A key of `COLORS`. ``status``: cluster -> compiled, planned, failed or put_back."""
    return status.get(box.name, "planned") if box.kind == "cluster" else box.kind


def draw(
    drawing: Drawing, status: Mapping[str, str], *, links: bool = True, prefix: str = "", stand_alone: bool = False
) -> Markup:
    """An SVG element. ``status``: cluster -> compiled, planned, failed or put_back. links: boxes lead to
    their anchors in the report, which begin with ``prefix``."""
    boxes = drawing.boxes[:MOST]
    rows = _rows(boxes, drawing.edges)
    width = max((len(r) for r in rows), default=1) * (WIDTH + GAP) + GAP
    height = len(rows) * (HEIGHT + BETWEEN) + GAP
    place = {}
    for y, row in enumerate(rows):
        left = (width - len(row) * (WIDTH + GAP) + GAP) / 2
        for x, box in enumerate(row):
            place[box.id] = (left + x * (WIDTH + GAP), GAP + y * (HEIGHT + BETWEEN))
    shapes = [_edge(place[a], place[b], count) for a, b, count in drawing.edges if a in place and b in place]
    shapes += [_box(box, place[box.id], status, f"#{prefix}box-{box.id}" if links else "") for box in boxes]
    attributes = {"xmlns": "http://www.w3.org/2000/svg"} if stand_alone else {"role": "img", "aria-label": "the clusters on the graph"}
    style = tag("style", asset("graph.css")) if stand_alone else None
    return tag(
        "svg", style, shapes, class_="graph", width=number(width), height=number(height),
        viewbox=f"0 0 {number(width)} {number(height)}", **attributes,
    )  # fmt: skip


def _rows(boxes: Sequence[Box], edges: Sequence[Sequence[int]]) -> list[list[Box]]:
    """Boxes by layer, each near the middle of those that it reads; a long layer takes several rows."""
    layers: dict[int, list[Box]] = {}
    for box in boxes:
        layers.setdefault(box.layer, []).append(box)
    preds: dict[int, list[int]] = {}
    for a, b, _ in edges:
        preds.setdefault(b, []).append(a)
    at: dict[int, float] = {}
    rows = []
    for layer in sorted(layers):
        members = layers[layer]

        def middle(box: Box) -> float:
            known = [at[p] for p in preds.get(box.id, ()) if p in at]
            return sum(known) / len(known) if known else 0.0

        members = sorted(members, key=lambda b: (b.kind == "input", middle(b), b.id))
        for start in range(0, len(members), ROW):
            row = members[start : start + ROW]
            rows.append(row)
            for i, box in enumerate(row):
                at[box.id] = i - (len(row) - 1) / 2
    return rows


def _box(box: Box, at: tuple[float, float], status: Mapping[str, str], link: str) -> Markup:
    x, y = at
    state = state_of(box, status)
    ops = ", ".join(box.ops)
    count = f"{box.nodes} ops" if box.nodes != 1 else next(iter(box.ops), "")
    what = {"tensorflow": "in TensorFlow", "input": "input"}.get(state, state.replace("_", " "))
    content = [
        tag("title", f"{box.name}: {what}, {box.nodes} ops ({ops})"),
        tag("rect", x=number(x), y=number(y), width=WIDTH, height=HEIGHT),
        tag("text", short(box.name, 24), x=number(x + 8), y=number(y + 19)),
        tag("text", short_end(f"{count}: {ops}" if box.nodes != 1 else ops, 30), x=number(x + 8), y=number(y + 35), class_="small"),
    ]
    group = tag("g", content, class_=f"box {state}{' output' if box.output else ''}")
    return tag("a", group, href=link) if link else group


def short_end(text: str, length: int) -> str:
    """The start of a text that does not fit."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _edge(a: tuple[float, float], b: tuple[float, float], count: int) -> Markup:
    x0, y0 = a[0] + WIDTH / 2, a[1] + HEIGHT
    x1, y1 = b[0] + WIDTH / 2, b[1]
    bend = max((y1 - y0) / 2, 14)
    path = f"M{number(x0)} {number(y0)}C{number(x0)} {number(y0 + bend)} {number(x1)} {number(y1 - bend)} {number(x1)} {number(y1)}"
    return tag("path", tag("title", f"{count} edges"), d=path, stroke_width=number(min(1 + count**0.5 / 3, 4)))
