"""Drawings: well-formed, and nothing of a name becomes syntax."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from disc_tf.insight.draw import to_dot, to_svg
from disc_tf.report import Box, Drawing
from disc_tf.report_html.graph import MOST, ROW
from tests.report_html.pages import HOSTILE

DRAWING = Drawing(
    [Box(i, ("input", "tensorflow", "cluster")[i % 3], name, i // 3, 2, {name: 2}, [name], i == 2) for i, name in enumerate(HOSTILE)],
    [[0, 3, 1], [1, 4, 7], [2, 5, 1]],
)


def test_svg() -> None:
    root = ET.fromstring(to_svg(DRAWING, {HOSTILE[2]: "failed"}))
    names = {e.tag.rpartition("}")[2] for e in root.iter()}
    assert names == {"svg", "style", "path", "g", "title", "rect", "text"}
    classes = [e.get("class") for e in root.iter() if e.tag.endswith("}g")]
    assert "box failed output" in classes and "box planned" in classes


def test_boxes_do_not_overlap() -> None:
    boxes = [Box(i, "cluster", f"c{i}", i % 2, 1, {}, [], False) for i in range(4 * ROW + 1)]
    root = ET.fromstring(to_svg(Drawing(boxes, [[0, 1, 1]]), {}))
    places = [(float(e.get("x", 0)), float(e.get("y", 0))) for e in root.iter() if e.tag.endswith("rect")]
    assert len(set(places)) == len(boxes)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for i, (x, y) in enumerate(places):
        assert min(x, y) >= 0 and x + 172 <= width and y + 46 <= height
        assert all(abs(x - u) >= 172 or abs(y - v) >= 46 for u, v in places[:i])


def test_no_more_boxes_than_can_be_read() -> None:
    boxes = [Box(i, "cluster", f"c{i}", i, 1, {}, [], False) for i in range(MOST + 50)]
    assert to_svg(Drawing(boxes, [[MOST - 1, MOST, 1]]), {}).count("<rect") == MOST


def test_dot() -> None:
    lines = to_dot(DRAWING, {}).splitlines()
    assert lines[0] == "digraph clusters {" and lines[-1] == "}"
    assert sum(" -> " in line and line.startswith("  b") and "label" not in line for line in lines) == 3
    for line in lines[2:-1]:
        assert re.fullmatch(r'  b\d+ (-> b\d+|\[label="([^"\\\n]|\\.)*", fillcolor="#[0-9a-f]{6}"(, penwidth=2\.5)?\]);', line), line


def test_an_empty_drawing() -> None:
    ET.fromstring(to_svg(Drawing([], []), {}))
    assert to_dot(Drawing([], []), {}).endswith("}\n")
