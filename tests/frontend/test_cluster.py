"""Marking and clustering of graphs: control edges, Assert, options, boundaries."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.frontend.graphs import BOOL, F32, I32, STRING, G, cluster, groups


def chain(n: int = 5) -> G:
    g = G()
    g.placeholder("x", [None, 8])
    g.chain("n", "x", n)
    return g


def test_one_chain_is_one_cluster():
    c = cluster(chain().proto)
    assert groups(c) == [{f"n{i}" for i in range(5)}]
    (only,) = c.clusters
    assert only.name == "disc_cluster_0" and only.inputs == [("x", 0)] and only.outputs == [("n4", 0)]
    assert not c.reasons


@pytest.mark.parametrize(("size", "found"), [(1, 1), (5, 1), (6, 0), (10**9, 0)])
def test_min_cluster_size(size, found):
    c = cluster(chain().proto, min_cluster_size=size)
    assert len(c.clusters) == found
    if not found:
        assert {r.code for r in c.reasons.values()} == {"CLUSTER_TOO_SMALL"} and len(c.reasons) == 5


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"deny": ["n2"]}, [{"n0", "n1"}, {"n3", "n4"}]),
        ({"deny": ["Tanh"]}, []),
        ({"deny": ["n[0-3]"]}, [{"n4"}]),
        ({"allow": ["n1", "n2"]}, [{"n1", "n2"}]),
        ({"allow": ["T*"], "deny": ["n0"]}, [{"n1", "n2", "n3", "n4"}]),
        ({"deny": ["n2"], "fuel": 1}, [{"n0", "n1"}]),
        ({"fuel": 0}, []),
    ],
)
def test_lists_and_fuel(options, expected):
    c = cluster(chain().proto, min_cluster_size=1, **options)
    assert groups(c) == expected
    left = {f"n{i}" for i in range(5)} - set().union(*expected)
    assert set(c.reasons) == left
    assert {r.code for r in c.reasons.values()} <= {"DENIED", "FUEL"}


def test_unsupported_op_in_the_middle_has_its_reason():
    g = chain(4)
    g.node("odd", "MyCustomOp", ["n3"])
    g.node("text", "AsString", ["n3"], T=("type", F32))
    c = cluster(g.proto, ["odd", "text"])
    assert groups(c) == [{"n0", "n1", "n2", "n3"}]
    assert c.reasons["odd"].code == c.reasons["text"].code == "UNSUPPORTED_OP"


def test_unknown_rank_has_its_reason_and_a_hint_helps():
    g = G()
    g.placeholder("x", None)
    g.chain("n", "x", 4)
    c = cluster(g.proto)
    assert not c.clusters and c.reasons["n0"].code == "RANK_UNKNOWN"
    assert len(cluster(g.proto, hints=["x: [b, s~128]"]).clusters) == 1


def test_devices():
    g = chain(3)
    for name, device in (("n0", "/device:CPU:0"), ("n1", "/job:worker/task:0/device:GPU:0"), ("n2", "/cpu:0")):
        next(n for n in g.proto.node if n.name == name).device = device
    c = cluster(g.proto, min_cluster_size=1)
    assert groups(c) == [{"n0"}, {"n2"}] and c.reasons["n1"].code == "DEVICE"


def test_xla_nodes_stay():
    g = chain(3)
    next(n for n in g.proto.node if n.name == "n1").attr["_XlaMustCompile"].b = True
    c = cluster(g.proto, min_cluster_size=1)
    assert c.reasons["n1"].code == "MUST_COMPILE" and len(c.clusters) == 2


def test_shape_arithmetic_alone_is_not_worth_a_launch():
    g = G()
    g.placeholder("x", [None, 3])
    g.node("shape", "Shape", ["x"], T=("type", F32), out_type=("type", I32))
    for i, op in enumerate(["AddV2", "Mul", "Sub", "AddV2"]):
        g.binary(f"s{i}", f"s{i - 1}" if i else "shape", "shape", op, I32)
    c = cluster(g.proto)
    assert not c.clusters and {r.message for r in c.reasons.values()} == {"only shape arithmetic"}


def test_small_constants_are_copied_and_large_ones_are_inputs():
    g = G()
    g.placeholder("x", [None, 300])
    g.const("small", 2.0)
    g.const("large", np.arange(300))
    g.binary("a", "x", "small")
    g.binary("b", "a", "large")
    g.binary("c", "b", "small")
    g.node("text", "AsString", ["small"], T=("type", F32))
    c = cluster(g.proto, ["c", "text"], min_cluster_size=1)
    (only,) = c.clusters
    assert only.constants == ["small"] and set(only.inputs) == {("x", 0), ("large", 0)}


def test_control_edge_from_a_pure_node_is_nothing():
    g = chain(2)
    g.const("w", np.arange(300))
    g.unary("read", "w", "Identity")
    g.node("group", "NoOp", ["^read"])
    g.unary("y", "n1", controls=["group"])
    c = cluster(g.proto, ["y"], min_cluster_size=1)
    assert groups(c) == [{"n0", "n1", "y"}]
    assert not c.clusters[0].controls
    assert not {"group", "read", "w"} & {n.name for n in c.order}


def test_control_edge_stands_for_the_effect_before_it():
    g = chain(2)
    g.node("print", "PrintV2", [g.const("text", np.array(b"hi", object), object)])
    g.unary("pure", "x", controls=["print"])
    g.node("group", "NoOp", ["^pure"])
    g.unary("y", "n1", controls=["group"])
    c = cluster(g.proto, ["y"], min_cluster_size=1)
    assert "print" in {n.name for n in c.order}
    (with_y,) = [k for k in c.clusters if "y" in k.node_names]
    assert with_y.controls == ["print"]


def test_node_that_may_fail_and_only_control_keeps_is_kept():
    g = chain(2)
    g.node("check", "Reshape", ["x", g.const("two", [2], np.int32)], T=("type", F32), Tshape=("type", I32))
    g.unary("y", "n1", controls=["check"])
    c = cluster(g.proto, ["y"], min_cluster_size=1)
    assert "check" in {n.name for n in c.order}


def with_assert(data: str) -> G:
    g = G()
    g.placeholder("x", [None])
    g.placeholder("n", [], I32)
    g.const("limit", 10, np.int32)
    g.const("text", np.array(b"too long", object), object)
    g.node("less", "Less", ["n", "limit"], T=("type", I32))
    number = {"text": STRING, "n": I32, "runtime_text": STRING}[data]
    g.node("runtime_text", "AsString", ["n"], T=("type", I32))
    g.node("assert", "Assert", ["less", data], T=("types", [number]))
    g.node("group", "NoOp", ["^assert"])
    g.unary("y", "x", controls=["group"])
    g.chain("z", "y", 3)
    return g


@pytest.mark.parametrize("data", ["text", "n"])
def test_assert_becomes_a_check(data):
    c = cluster(with_assert(data).proto)
    (only,) = c.clusters
    assert {"less", "assert", "y"} <= set(only.node_names) and not only.controls


def test_assert_with_run_time_text_stays_and_comes_first():
    c = cluster(with_assert("runtime_text").proto, min_cluster_size=1)
    assert c.reasons["assert"].code in ("CONTROL_EDGE", "DTYPE")
    (with_y,) = [k for k in c.clusters if "y" in k.node_names]
    assert with_y.controls == ["assert"] and "less" not in with_y.node_names


def towers(slow: bool) -> G:
    g = G()
    g.placeholder("x", [None, 64])
    g.placeholder("late", [None, 64])
    g.const("wa", np.ones((64, 64)))
    g.const("wb", np.ones((64, 64)) * 2)
    source = g.string_work("strings", "late") if slow else "late"
    g.node("shaped", "EnsureShape", [source], T=("type", F32), shape=("shape", [None, 64]))
    a = g.chain("a", g.matmul("ma", "x", "wa"), 3)
    b = g.chain("b", g.matmul("mb", "shaped", "wb"), 3)
    g.binary("y", a, b)
    return g


def test_two_towers_with_a_late_input():
    assert len(groups(cluster(towers(slow=False).proto))) == 1
    early, late = sorted(groups(cluster(towers(slow=True).proto)), key=lambda names: "y" in names)
    assert "ma" in early and "a2" in early and "mb" in late and "y" in late
    assert not any(name.startswith("b") for name in early)


def test_identity_that_only_passes_a_weight_on_is_left_out():
    g = chain(4)
    g.const("w", np.arange(8.0))
    g.const("big", np.zeros((300, 8)) + np.arange(8))
    g.unary("read", "big", "Identity")
    g.binary("y", "n3", "w")
    g.node("text", "AsString", ["read"], T=("type", F32))
    g.binary("z", "y", g.node("row", "Max", ["read", g.const("axis", 0, np.int32)], T=("type", F32), Tidx=("type", I32)))
    c = cluster(g.proto, ["z", "text"])
    (only,) = c.clusters
    assert "read" not in only.node_names and ("big", 0) in only.inputs and only.through == {("read", 0): ("big", 0)}


def test_legacy_control_flow_is_respected():
    g = G()
    g.placeholder("x", [None])
    g.placeholder("p", [], BOOL)
    g.chain("pre", "x", 3)
    g.node("sw", "Switch", ["pre2", "p"], T=("type", F32))
    g.unary("yes", "sw:1")
    g.unary("no", "sw")
    g.node("m", "Merge", ["no", "yes"], T=("type", F32), N=2, _output_shapes=("shapes", [[None], []]))
    g.chain("post", "m", 3)
    c = cluster(g.proto, ["post2"], min_cluster_size=1)
    assert groups(c) == [{"pre0", "pre1", "pre2"}, {"post0", "post1", "post2"}]
    assert c.reasons["yes"].code == c.reasons["m"].code == "IN_FRAME"


def test_names_are_deterministic_and_fresh():
    g = chain(4)
    g.unary("disc_cluster_0", "n3", "Square")
    first, second = cluster(g.proto), cluster(g.proto)
    assert [k.name for k in first.clusters] == [k.name for k in second.clusters] == ["disc_cluster_0_v2"]


def test_twenty_thousand_nodes():
    g = G()
    g.placeholder("x", [None, 8])
    last = "x"
    for i in range(20000):
        if i % 50 == 49:
            last = g.node(f"n{i}", "MyOp", [last], _output_shapes=("shapes", [[None, 8]]))
        else:
            last = g.binary(f"n{i}", last, f"n{i - 3}" if i % 50 > 5 else last)
    g.unary("y", "n19998")
    start = time.process_time()
    c = cluster(g.proto, ["y"])
    assert time.process_time() - start < 30  # 10 s on an idle machine
    assert c.reasons["n49"].code == "UNSUPPORTED_OP"
