"""What a report says first, and last."""

from __future__ import annotations

import pytest

from disc_tf.report import LeftOut, Report, ShapeResult, headline, speed_line

NONE: list[LeftOut] = []
RANK = [LeftOut(f"r{i}", "Reshape", "RANK_UNKNOWN", "rank of x is not known") for i in range(3)]
OTHERS = [LeftOut("v", "ReadVariableOp", "VARIABLE", "variables are read in TensorFlow")] * 9 + [LeftOut("s", "Substr", "DTYPE", "strings")]


@pytest.mark.parametrize(
    ("compiled", "ops", "left_out", "expected"),
    [
        (0, 0, NONE, ""),
        (5, 10, RANK, ""),
        (10, 10, NONE, ""),
        (0, 1049, OTHERS + RANK, "0 of 1,049 ops are compiled: rank of x is not known (RANK_UNKNOWN, 3 nodes, e.g. r0)"),
        (4, 10, OTHERS, "4 of 10 ops are compiled: strings (DTYPE, 1 node, e.g. s)"),
        (4, 10, NONE, "4 of 10 ops are compiled"),
    ],
)
def test_headline(compiled, ops, left_out, expected):
    assert headline(compiled, ops, left_out) == expected


def test_a_report_begins_with_it():
    report = Report("0", ["x86-64-v3"], compute_nodes=10, compiled_nodes=0, left_out=list(RANK))
    assert report.to_text().splitlines()[0].startswith("0 of 10 ops are compiled: rank of x")
    assert f'"headline": "{report.headline}"' in report.to_json()
    report.compiled_nodes = 10
    assert report.to_text().splitlines()[0].startswith("disc_tf 0")


def timed(size: int, original: float, optimized: float) -> ShapeResult:
    return ShapeResult({"x": [size]}, True, "", original_ms=original, optimized_ms=optimized)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([], ""),
        ([ShapeResult({"x": [1]}, True, "")], ""),
        ([timed(1, 3.0, 2.0)], "speed: 1.50x TensorFlow's over 1 shape"),
        ([timed(1, 4.0, 2.0), timed(8, 8.0, 1.0)], "speed: 4.00x TensorFlow's over 2 shapes (least 2.00x at x[1]; most 8.00x at x[8])"),
    ],
)
def test_speed_line(results, expected):
    assert speed_line(results) == expected
