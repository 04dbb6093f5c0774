"""The published page: what was measured replaces the measured part and nothing else; engines answer, fail and are compared alike."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.engines import ENGINES, EngineProcess, compile_model, start_engines
from bench.page import BEGIN, END, markdown, ratios, replace_measured
from bench.roof import least_seconds
from bench.run import difference, measure_point
from disc_tf.costs import Machine
from disc_tf.testing.tf_process import ProcessFailed

MACHINE = Machine("x86-64-v3", 2, 100.0, ((1 << 16, 50.0), (1 << 28, 10.0)))


def test_only_the_measured_part_changes() -> None:
    page = f"# Performance\n\nBy hand.\n\n{BEGIN}\nold\n{END}\n\n## Memory\n"
    assert replace_measured(page, "new\n") == f"# Performance\n\nBy hand.\n\n{BEGIN}\nnew\n{END}\n\n## Memory\n"


@pytest.mark.parametrize("page", ["", BEGIN, END, f"{END}{BEGIN}"])
def test_a_page_without_the_part_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="no part between"):
        replace_measured(page, "new")


@pytest.mark.parametrize(
    ("got", "want", "most"),
    [
        ([[1.0, 2.0]], [[1.0, 2.5]], 0.5),
        ([[], [3.0]], [[], [3.0]], 0.0),
        ([[1.0]], [[1.0, 1.0]], float("inf")),
    ],
)
def test_the_difference_is_the_largest_of_all_outputs(got: list, want: list, most: float) -> None:
    assert difference([np.float32(g) for g in got], [np.float32(w) for w in want]) == most


def timing(median: float, failed: str = "") -> dict:
    return {"first": 9.0, "median": median, "p99": 2 * median, "difference": 1e-6, "failed": failed}


def test_the_page_shows_losses_and_failures(tmp_path: Path) -> None:
    first = {"dims": {"B": 1}, "flops": 4_000_000, "least_ms": 0.5}
    second = {"dims": {"B": 2}, "flops": 8_000_000, "least_ms": 1.0}
    points = [
        {**first, "tensorflow": timing(2.0), "openvino": timing(1.0), "disc_tf alone": timing(4.0)},
        {**second, "tensorflow": timing(8.0), "openvino": timing(0, "odd shape"), "disc_tf alone": timing(1.0)},
    ]
    model = {
        "model": "m", "points": points, "failed": {"openvino": "at {'B': 2}: odd shape"}, "peak_bytes": {"tensorflow": 5_000_000},
        "compile_seconds": {".pb": 1.5}, "kernels": 3, "compile_ms": 250.0,
    }  # fmt: skip
    assert ratios(model, "disc_tf alone") == [0.5, 8.0] and ratios(model, "openvino") == [2.0] and ratios(model, "xla") == []
    page = markdown([model], MACHINE, "make bench", tmp_path)
    assert "| model | OpenVINO | disc_tf alone |" in page
    assert "| m | 2.00 (2.00) | 2.00 (0.50) |" in page
    assert "| B=2 | 8.00 (9.0, 16.00) | - | 1.00 (9.0, 2.00) | 8 | 100 % | 1e-06 |" in page
    assert "OpenVINO does not run this model: at {'B': 2}: odd shape" in page
    assert "| m | 5 | - | - | 0.2 | 1.5 | 3 |" in page


def layer(directory: Path) -> tuple[Path, Path]:
    """tanh(x w) of rows of 8, and its description."""
    import tensorflow as tf

    with tf.Graph().as_default() as g:
        x = tf.compat.v1.placeholder(tf.float32, [None, 8], "x")
        weights = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
        tf.tanh(tf.matmul(x, tf.constant(weights)), name="y")
    graph, description = directory / "layer.pb", directory / "layer.json"
    graph.write_bytes(g.as_graph_def().SerializeToString())
    inputs = [{"name": "x", "dtype": "float32", "shape": ["B", 8], "gen": {"kind": "normal"}}]
    description.write_text(json.dumps({"inputs": inputs, "outputs": ["y:0"], "points": [{"dims": {"B": 5}, "flops": 1280}]}))
    return graph, description


@pytest.mark.slow
def test_a_model_in_three_engines(tmp_path: Path) -> None:
    """TensorFlow, the op inside it and the stand-alone file give the same answers; what they cannot run or load is said."""
    graph, description = layer(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    compiled = compile_model(graph, work)
    feeds = {"x": np.ones((5, 8), np.float32)}
    with contextlib.ExitStack() as stack:
        wanted = ("tensorflow", "disc_tf", "disc_tf alone")
        peers, failed = start_engines(graph, description, compiled, 1, work, tmp_path, wanted, stack)
        assert not failed and list(peers) == list(wanted) and set(wanted) <= set(ENGINES)
        found = measure_point(peers, list(feeds.values()), 2)
        assert all(t.median > 0 and t.first > 0 and not t.failed for t in found.values())
        assert found["disc_tf"].difference <= 1e-5 and found["disc_tf alone"].difference <= 1e-5
        wrong = measure_point(peers, [np.ones((5, 9), np.float32)], 1)
        assert all(t.failed for t in wrong.values())
    # 5 x 8 times 8 x 16: 1,280 operations at 100 a nanosecond, and the bytes of one kernel take longer
    assert least_seconds(compiled, feeds, 1280.0, MACHINE) >= 1280.0 / 100 / 1e9
    with pytest.raises(ProcessFailed, match="DiscError"):
        EngineProcess("disc_tf alone", description, ["x:0"], ["y:0"], 1, sys.executable)
    assert json.loads(description.read_text())["outputs"]
