"""A recording as a trace file: what lies inside what, what each launch is called, and that times add up."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from disc_tf.compiler import compile_module
from disc_tf.insight.chrome_trace import Program, TfSlice, holders, host_gaps, label_of, runs_us, shares, steps_of, trace_json
from disc_tf.runtime.artifact import StepSpec
from disc_tf.runtime.executable import Executable, set_num_threads
from disc_tf.runtime.recording import Event, Recording, record
from tests.runtime.test_profile import K, N, _module


def event(kind: str, begin: int, end: int, name: str = "", first: int = 0, second: int = 0, thread: int = 7, **more: int) -> Event:
    return Event(kind, name, "c", 0, thread, begin, end, more.get("processor_ns", 0), first, second, more.get("axis", 0))


def slices(data: bytes) -> list[dict[str, Any]]:
    return [e for e in json.loads(data)["traceEvents"] if e["ph"] == "X"]


def check_tracks(found: list[dict[str, Any]]) -> None:
    """On each track a slice lies inside another one or beside it: viewers show nothing sensible else."""
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in found:
        assert e["dur"] >= 0 and e["ts"] >= 0
        tracks.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for track in tracks.values():
        around: list[float] = []
        for begin, end in sorted(track, key=lambda t: (t[0], -t[1])):
            while around and around[-1] <= begin + 1e-6:
                around.pop()
            assert not around or end <= around[-1] + 1e-3
            around.append(end)


#: a run: memory, a constant that is made by a kernel, two launches (the second on two threads), a library function with a launch of its own
RUN = [
    event("extent", 0, 0, "x", 0, 5, axis=0), event("extent", 0, 0, "x", 0, 8, axis=1),
    event("arena", 11, 12, second=64), event("kernel", 22, 28, "k_pack", 1, 1), event("prepare", 20, 30, first=0, second=1),
    event("kernel", 40, 50, "k_gemm", 3, 1, processor_ns=9), event("chunk", 61, 79, "k_gemm", 0, 2),
    event("chunk", 62, 70, "k_gemm", 2, 3, thread=8),
    event("kernel", 60, 80, "k_gemm", 3, 2), event("kernel", 82, 88, "", 9, 1), event("library", 81, 90, "sort"),
    event("output", 91, 92, "y"), event("send", 92, 94, "y"), event("segment", 10, 100), event("run", 5, 105, "c"),
]  # fmt: skip


def test_what_lies_inside_what() -> None:
    around = {RUN[i].kind + RUN[i].name: outer.kind for i, outer in holders(RUN).items()}
    assert around["kernelk_pack"] == "prepare" and around["kernel"] == "library"
    assert {around[k] for k in ("arena", "prepare", "kernelk_gemm", "librarysort", "outputy", "sendy")} == {"segment"}
    gaps = [(g.event.kind, g.begin_ns, g.end_ns) for g in host_gaps(RUN)]
    assert sorted(gaps) == [
        ("prepare", 20, 22), ("prepare", 28, 30), ("segment", 10, 11), ("segment", 12, 20), ("segment", 30, 40), ("segment", 50, 60),
        ("segment", 80, 81), ("segment", 90, 91), ("segment", 94, 100),
    ]  # fmt: skip


def test_what_begins_or_ends_at_once() -> None:
    """Clocks have steps: of two with the same times the one that was complete later is the outer, and none is lost."""
    inner, outer = event("kernel", 10, 20, "a"), event("library", 10, 20, "f")
    segment = event("segment", 10, 20)
    assert {i: e.kind for i, e in holders([inner, outer, segment]).items()} == {0: "library", 1: "segment"}
    assert host_gaps([inner, outer, segment]) == []
    touching = [event("kernel", 10, 15, "a"), event("kernel", 15, 20, "b"), segment]
    assert {i: e.kind for i, e in holders(touching).items()} == {0: "segment", 1: "segment"}
    nothing = event("arena", 15, 15, second=1)
    assert host_gaps([nothing, segment])[0].end_ns == 15 and len(host_gaps([nothing, segment])) == 2


def step(symbol: str, nodes: list[str], *variants: tuple[str, ...]) -> StepSpec:
    return StepSpec("gemm", tuple(nodes), variants or ((symbol,),), "2*a0d0*a0d1", ("4*a0d0",), (("f32", "a0d0", "n0"),))


def test_equal_kernels_of_several_layers_are_told_apart_by_their_order() -> None:
    kernels = [step("k", ["one/MatMul"]), step("k", ["two/MatMul"], ("small",), ("k", "rest")), step("q", ["end"])]
    program = Program({"k": ["one/MatMul", "two/MatMul"], "q": ["end"]}, [[step("other_target", ["one/MatMul"])], kernels])

    def names(symbols: list[str]) -> list[str | None]:
        return [s.nodes[0] if s is not None else None for s in program.steps(symbols)]

    assert names(["k", "k", "rest", "q"]) == ["one/MatMul", "two/MatMul", "two/MatMul", "end"]
    assert names(["k", "small", "q"]) == ["one/MatMul", "two/MatMul", "end"]
    assert names(["k", "k", "k", "q"]) == [None, None, None, "end"]  # a loop: only what one step has is sure
    assert names(["other"]) == [None] and names([]) == []
    assert program.label("k") == "one/MatMul +1" and program.label("k", kernels[1]) == "two/MatMul"
    assert program.label("strange") == "strange"
    assert program.work("k", None, {"a0d0": 5, "a0d1": 8}) == {"kind": "gemm", "flops": 80, "bytes": 20, "makes": ["f32[5,?]"]}
    assert program.work("strange", None, {}) == {}


@pytest.mark.parametrize(
    ("symbol", "nodes", "label"),
    [
        ("k_gemm_x", ["a/Reshape", "a/MatMul_2", "a/BiasAdd"], "a/MatMul_2 +2"),
        ("k_rows_x", ["a/Mean", "a/MatMul"], "a/Mean +1"),
        ("k_gemm_x", ["Einsums/x"], "Einsums/x"),
        ("k_conv_x", ["BiasAdd", "Conv2D"], "Conv2D +1"),
    ],
)
def test_labels(symbol: str, nodes: list[str], label: str) -> None:
    assert label_of(symbol, nodes) == label


def test_the_file_of_a_run() -> None:
    kernels = [step("k_gemm", ["one/Reshape", "one/MatMul"]), step("k_gemm", ["two/MatMul"]), step("sort", ["s/TopKV2"])]
    programs = {"c": Program({"k_gemm": ["one/MatMul", "two/MatMul"]}, [kernels])}
    recording = Recording(RUN, 3, {7: "python", 8: "disc_tf/0"})
    tensorflow = [TfSlice("c", "DiscLaunch", 2, 110), TfSlice("out", "Identity", 111, 112), TfSlice("slow", "Work", 50, 200)]
    data = json.loads(trace_json(recording, programs, tensorflow, {"at": "B=5"}))
    found = [e for e in data["traceEvents"] if e["ph"] == "X"]
    check_tracks(found)
    assert data["otherData"] == {"dropped_events": 3, "at": "B=5"}
    by_name = {(e["cat"], e["name"]): e for e in found}
    run = by_name["run", "run of c"]
    assert run["args"]["arguments"] == {"x": [5, 8]} and (run["ts"], run["dur"]) == (0.005, 0.1)  # from the first event, in microseconds
    one, two = by_name["kernel", "one/MatMul +1"], by_name["kernel", "two/MatMul"]
    assert one["args"]["processor_us"] == 0.009 and one["args"]["flops"] == 80 and one["args"]["gflops_per_s"] == 8.0
    assert (two["args"]["kernel"], two["args"]["tasks"], two["args"]["threads"], two["args"]["nodes"]) == ("k_gemm", 3, 2, ["two/MatMul"])
    parts = [e for e in found if e["cat"] == "chunk"]
    assert {(e["tid"], e["name"], *e["args"]["tasks"]) for e in parts} == {(7, "two/MatMul", 0, 2), (8, "two/MatMul", 2, 3)}
    assert by_name["library", "s/TopKV2"]["args"]["function"] == "sort"
    assert ("kernel", "part of a library function") in by_name and ("prepare", "make or read packed constant 0") in by_name
    tracks = {e["args"]["name"] for e in data["traceEvents"] if e["name"] == "thread_name"}
    assert tracks == {"python (runs)", "disc_tf/0", "nodes 1", "nodes 2"}
    rows = {e["name"]: e["tid"] for e in found if e["pid"] == 2}
    assert rows["c"] == rows["out"] and rows["slow"] != rows["c"]  # what overlaps is on tracks of its own


def test_times_add_up() -> None:
    programs = {"c": Program({})}
    found = {s.name: (s.calls, s.us) for s in shares(Recording(RUN), programs)}
    assert found["k_gemm"] == (2, 0.03) and found["packed constants"] == (1, 0.01) and found["sort"] == (1, 0.009)
    assert sum(us for _, us in found.values()) == pytest.approx(0.09)  # the segment
    assert runs_us(Recording(RUN)) == {"c": [0.1]}
    slow = [dataclasses.replace(e, run=1, begin_ns=1000 + e.begin_ns * 3, end_ns=1000 + e.end_ns * 3) for e in RUN]
    assert runs_us(Recording([*slow, *RUN]), 1) == {"c": [0.3]}
    assert sum(s.us for s in shares(Recording([*slow, *RUN]), programs, skip_runs=1)) == pytest.approx(0.27)


def test_nothing_was_recorded() -> None:
    assert slices(trace_json(Recording(), {})) == [] and steps_of([], {}) == {}
    assert shares(Recording(), {}) == [] and runs_us(Recording()) == {}


def test_a_real_run() -> None:
    """All tasks of every launch are seen on two threads; kernels, the host program and the rest are the segment."""
    compiled = compile_module(_module("a0d0"), ["x86-64-v2"], name="model", profile=True)
    x, w = np.ones((3000, K), np.float32), np.ones((K, N), np.float32)
    set_num_threads(2)
    try:
        with Executable.from_bytes(compiled.executable) as executable:
            with record() as recording:
                for _ in range(3):
                    executable.run([x, w])
            programs = {"model": Program.of(executable.artifact)}
    finally:
        set_num_threads(0)
    found = slices(trace_json(recording, programs))
    check_tracks(found)
    products = [e for e in found if e["cat"] == "kernel" and e["args"]["kernel"].startswith("k_gemm")]
    assert len(products) == 3
    for e in products:
        told = e["args"]
        assert told["flops"] == 2 * 3000 * N * K and told["makes"] == [f"f32[3000,{N}]"] and told["bytes"] > 4 * 3000 * (N + K)
    later = [e for e in recording.events if e.kind == "segment"][1:]  # the first packs the weight
    parts = shares(recording, programs, skip_runs=1)
    assert {s.name for s in parts} >= {"host program", "packed constants", "memory for results", "delivering results"}
    spent = sorted((e.end_ns - e.begin_ns) / 1e3 for e in later)
    assert spent[0] <= sum(s.us for s in parts) * 1.5 and sum(s.us for s in parts) <= spent[-1] * 1.5
    assert len([e for e in found if e["cat"] == "host"]) >= 9
