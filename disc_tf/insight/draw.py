"""The clusters of a graph as a picture: SVG, or a file for Graphviz."""

from __future__ import annotations

from collections.abc import Mapping

from disc_tf.report import Drawing
from disc_tf.report_html.graph import COLORS, draw, state_of


def to_svg(drawing: Drawing, status: Mapping[str, str]) -> str:
    """A file of its own. ``status``: cluster -> compiled, planned, failed or put_back."""
    return f'<?xml version="1.0" encoding="utf-8"?>\n{draw(drawing, status, links=False, stand_alone=True)}\n'


def to_dot(drawing: Drawing, status: Mapping[str, str]) -> str:
    """Graphviz' language."""
    lines = ["digraph clusters {", '  node [shape=box, style="rounded,filled", fontname="sans-serif", fontsize=11];']
    for box in drawing.boxes:
        label = f"{box.name}\n{box.nodes} ops: {', '.join(list(box.ops)[:4])}"
        wide = ", penwidth=2.5" if box.output else ""
        lines.append(f"  b{box.id} [label={_quoted(label)}, fillcolor={_quoted(COLORS.get(state_of(box, status), '#ffffff'))}{wide}];")
    lines += [f"  b{a} -> b{b};" for a, b, _ in drawing.edges]
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\0", "")
    return f'"{escaped}"'
