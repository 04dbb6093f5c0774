"""The model table: its code on the smallest model, what it says of failures, and (slow) what every graph of bench/models must reach."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from bench.zoo import __main__ as command
from bench.zoo.files import FAMILY
from bench.zoo.model import Input, Model, catalogue, sizes
from bench.zoo.stages import random_sizes
from bench.zoo.table import markdown, worst_error
from disc_tf.testing.inputs import specs_from_json

GRAPHS = sorted(name for name, m in catalogue().items() if m.family == FAMILY)


def run(work: Path, name: str, *options: str) -> tuple[int, dict]:
    code = command.main(["--work", str(work), "--only", name, "--target", "native", *options])
    return code, command.collect(work / name)


def test_every_model_can_be_fed_at_every_size() -> None:
    for model in catalogue().values():
        names = {d for i in model.inputs for d in i.dims if isinstance(d, str)}
        for point in (*model.points, *model.odd):
            assert names <= set(point), model.name
        assert model.points and all(low <= high for low, high in model.ranges.values())
        assert model.family == FAMILY or (model.build is not None and names <= set(model.ranges)), model.name


def test_random_sizes_are_within_their_ranges_and_repeat() -> None:
    model = Model("m", "f", "", None, (Input("x", "float32", ("B", "S")),), sizes("B S", (1, 2)), ranges={"B": (1, 3), "S": (5, 90)})
    specs = specs_from_json(command.ROOT / "bench" / "models" / "micro_chain.json")[0]
    found = random_sizes(model, specs, 50, seed=3)
    assert found == random_sizes(model, specs, 50, seed=3)
    assert {x["B"] for x in found} == {1, 2, 3} and all(5 <= x["S"] <= 90 for x in found)


def test_a_stage_that_hangs_or_fails_is_a_line(tmp_path: Path) -> None:
    start = time.monotonic()
    hanging = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); time.sleep(60)"
    assert command.run_limited([sys.executable, "-c", hanging], tmp_path / "log", 0.5, 4.0) == "not done in 0 s"
    assert time.monotonic() - start < 20
    why = command.run_limited([sys.executable, "-c", "print('the reason'); raise SystemExit(3)"], tmp_path / "log", 30, 4.0)
    assert why == "ended with status 3: the reason"
    greedy = command.run_limited([sys.executable, "-c", "bytearray(1 << 32)"], tmp_path / "log", 30, 1.0)
    assert "MemoryError" in greedy


def test_the_page_shows_what_failed_and_what_was_left() -> None:
    models = catalogue()
    cluster = {"name": "c", "nodes": 9, "status": "compiled", "reason": "", "kernels": [{}, {}], "artifact_bytes": 2048}
    left = [{"node": "a", "op": "Foo", "code": "UNSUPPORTED_OP", "reason": "Foo has no lowering rule"}] * 2
    report = {"targets": ["x86-64-v2"], "clusters": [cluster], "left_out": left}
    report |= {"compiled_nodes": 9, "compute_nodes": 11, "flops_share": 1.0}
    shapes = [
        {"shapes": {"x": [1]}, "ok": True, "message": "", "max_rel": {"y": 2e-5}, "bound": 1e-4},
        {"shapes": {"x": [2]}, "ok": True, "message": "", "max_rel": {"y": 3e-4}, "bound": 1e-3},
    ]
    times = [{"dims": {"B": 1}, "original": {"median": 4.0}, "optimized": {"median": 1.0}, "ratio": 4.0}]
    whole = {"optimise": {"seconds": 3.0, "report": report}, "check": {"ok": True, "shapes": shapes}, "time": times}
    failed = {"failure": {"stage": "build", "why": "ended with status 1: no such package"}}
    page = markdown([(models["BERT"], whole), (models["T5"], failed)], 2)
    assert worst_error(whole["check"]) == pytest.approx(0.3)
    assert "| BERT | 81.8 % | 100 % | 1 | 2 | 3 s | 2 KiB | 0.3 | 2/2 | 4.00x | 4.00x |" in page
    assert "| T5 | - | - | - | - | - | - | - | - | - | - |" in page
    assert "**Failed** in stage build: ended with status 1: no such package" in page
    assert "* left in TensorFlow: 2 Foo (UNSUPPORTED_OP): Foo has no lowering rule" in page


def test_the_smallest_model_from_graph_to_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--rounds", "1", "--points", "2", "--random", "1")
    code, found = run(tmp_path, "micro_chain", *options)
    assert code == 0 and set(found) == {"graph", "optimise", "check", "time"}
    assert found["check"]["ok"] and len(found["check"]["shapes"]) == 3 and len(found["time"]) == 2
    assert "| micro_chain | 100 % |" in capsys.readouterr().out
    stamp = (tmp_path / "micro_chain" / "check.json").stat().st_mtime_ns
    run(tmp_path, "micro_chain", *options, "--keep")
    assert (tmp_path / "micro_chain" / "check.json").stat().st_mtime_ns == stamp, "what is done is not done again"


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_compile_whole_and_are_right_everywhere(tmp_path: Path, name: str) -> None:
    """99 % of the operations and 95 % of the nodes, in at most three clusters; right on the whole trace and at 20 random shapes."""
    code, found = run(tmp_path, name, "--no-timing")
    report = found["optimise"]["report"]
    assert report["flops_share"] is None or report["flops_share"] >= 0.99
    assert report["compiled_nodes"] >= 0.95 * report["compute_nodes"]
    assert 1 <= sum(c["status"] == "compiled" for c in report["clusters"]) == len(report["clusters"]) <= 3
    wrong = [s for s in found["check"]["shapes"] if not s["ok"]]
    assert code == 0 and not wrong, json.dumps(wrong, indent=1)
    assert len(found["check"]["shapes"]) >= len(catalogue()[name].points) + 20
