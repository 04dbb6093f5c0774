"""The wall time of runs is accounted for: every moment has one row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disc_tf.frontend.tfproto import serialized
from disc_tf.insight.chrome_trace import TfSlice
from disc_tf.insight.wall import CALLER, ENTERING, OUTSIDE, wall_rows
from disc_tf.runtime.recording import Event
from tests.commands.test_cli import make_graph, run
from tests.frontend.graphs import G


def ran(cluster: str, begin: int, end: int) -> Event:
    return Event("run", "", cluster, 1, 1, begin, end, 0, 0, 0, 0)


CASES = {
    "nothing": ([], [], {CALLER: 100}),
    "a cluster": ([ran("c", 20, 70)], [], {"c": 50, CALLER: 50}),
    "in its node": ([ran("c", 20, 70)], [TfSlice("n", "DiscLaunch", 10, 75)], {"c": 50, ENTERING: 15, OUTSIDE: 35}),
    "beside another node": ([ran("c", 20, 70)], [TfSlice("n", "MatMul", 10, 90)], {"c": 50, "TensorFlow: MatMul": 30, OUTSIDE: 20}),
    "two clusters at a time": ([ran("c", 0, 60), ran("d", 40, 100)], [], {"c": 50, "d": 50}),
    "two nodes at a time": (
        [], [TfSlice("a", "A", 0, 50), TfSlice("b", "B", 30, 50)],
        {"TensorFlow: A": 40, "TensorFlow: B": 10, OUTSIDE: 50},
    ),
    "twice the same": ([], [TfSlice("a", "A", 0, 50), TfSlice("b", "A", 30, 60)], {"TensorFlow: A": 60, OUTSIDE: 40}),
    "over the edges": ([ran("c", -50, 30), ran("c", 80, 500)], [], {"c": 50, CALLER: 50}),
}


@pytest.mark.parametrize(("events", "nodes", "rows"), CASES.values(), ids=CASES)
def test_who_owns_a_moment(events: list[Event], nodes: list[TfSlice], rows: dict[str, int]) -> None:
    found = wall_rows([(0, 100)], events, nodes, tensorflow=bool(nodes))
    assert {r.name: r.us * 1e3 for r in found} == pytest.approx(rows)
    assert [r.us for r in found] == sorted((r.us for r in found), reverse=True)


times = st.tuples(st.integers(0, 1000), st.integers(0, 300)).map(lambda t: (t[0], t[0] + t[1]))


@given(st.lists(times, min_size=1, max_size=3), st.lists(times, max_size=8), st.lists(st.tuples(times, st.sampled_from("ABC")), max_size=8))
@settings(max_examples=100, deadline=None)
def test_the_rows_are_all_of_it(
    windows: list[tuple[int, int]], runs: list[tuple[int, int]], nodes: list[tuple[tuple[int, int], str]]
) -> None:
    found = wall_rows(windows, [ran("c", *r) for r in runs], [TfSlice(op, op, *t) for t, op in nodes], tensorflow=True)
    assert sum(r.us for r in found) * 1e3 * len(windows) == pytest.approx(sum(e - b for b, e in windows))


def test_a_traced_graph_and_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real runs: the rows are the wall time, TensorFlow's own nodes have theirs, and a cluster's rows are nearly all of its time."""
    g = G()
    g.placeholder("x", [None, 256])
    g.chain("b", g.string_work("s", g.chain("a", "x", 8)), 8)
    graph = tmp_path / "g.pb"
    graph.write_bytes(serialized(g.proto))
    assert run("trace", graph, "-o", tmp_path / "t.json", "--shape", "x/0=2000", "--runs", "4", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    kinds = {r["kind"] for r in data["wall"]}
    assert {"cluster", "tensorflow", "outside"} <= kinds
    assert sum(r["us"] for r in data["wall"]) >= 0.95 * data["wall_us"] > 0
    owned = {r["name"]: r["us"] for r in data["wall"] if r["kind"] == "cluster"}
    for name, c in data["clusters"].items():
        assert owned[name] > 0 and sum(s["us"] for s in c["shares"]) >= 0.95 * c["run_us"]
    small = make_graph(tmp_path / "in.pb")
    assert run("optimize", small, "-o", tmp_path / "m.disc", "-q", "--no-verify", "--target", "native", "--no-use-tf-shapes") == 0
    capsys.readouterr()
    assert run("trace", tmp_path / "m.disc", "-o", tmp_path / "t.json", "--shape", "x/0=2000") == 0
    said = capsys.readouterr().out
    assert "(mean, without the first run):" in said and CALLER in said and OUTSIDE not in said
