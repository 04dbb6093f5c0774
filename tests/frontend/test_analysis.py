"""The whole-graph walk: types, symbolic contents, stand-ins, reasons."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from disc_tf.frontend.analysis import analyse, on_cpu
from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.graph import Graph
from disc_tf.frontend.hints import DimHint, parse_hint, parse_hints
from tests.frontend.graphs import F32, I32, I64, STRING, G


def run(g: G, outputs: list[str], **options):
    return analyse(Graph(g.proto), outputs, **{"use_tf_shapes": False, **options})


def types(a, *names: str) -> list[str]:
    return [str(a.type_of((n, 0))) for n in names]


def test_shape_chain_is_followed():
    g = G()
    g.placeholder("x", [None, 6])
    g.node("shape", "Shape", ["x"], T=("type", F32), out_type=("type", I32))
    ints = [g.const(f"i{k}", v, np.int32) for k, v in enumerate(([0], [1], [1]))]
    g.node("b", "StridedSlice", ["shape", *ints], T=("type", I32), Index=("type", I32), shrink_axis_mask=1)
    g.node("dims", "Pack", ["b", g.const("two", 2, np.int32), g.const("three", 3, np.int32)], T=("type", I32), N=3)
    g.node("y", "Reshape", ["x", "dims"], T=("type", F32), Tshape=("type", I32))
    a = run(g, ["y"])
    assert types(a, "x", "shape", "y") == ["f32[x_d0,6]", "i32[2]", "f32[x_d0,2,3]"]
    assert [str(d) for d in a.contents(("dims", 0))] == ["x_d0", "2", "3"]
    assert not a.reasons and a.is_compiled("y") and a.contents(("y", 0)) is None


def test_only_live_nodes_are_walked():
    g = G()
    g.placeholder("x", [1])
    g.unary("y", "x")
    g.node("dead", "MyOp", ["y"])
    assert [n.name for n in run(g, ["y"]).order] == ["x", "y"]


@pytest.mark.parametrize(
    ("op", "attrs", "expected"),
    [
        ("StringToNumber", {"out_type": ("type", F32)}, "f32[y_d0,4]"),
        ("StringLength", {}, "i32[y_d0,4]"),
        ("DecodeRaw", {"out_type": ("type", F32)}, "None"),
        ("DecodeRaw", {"out_type": ("type", F32), "_output_shapes": ("shapes", [[None, 4, 7]])}, "f32[y_d0,4,7]"),
    ],
)
def test_stand_ins_of_host_ops(op, attrs, expected):
    g = G()
    g.placeholder("s", [None, 4], STRING)
    g.node("y", op, ["s"], **attrs)
    a = run(g, ["y"])
    assert types(a, "y") == [expected] and a.shapes[("s", 0)] == (None, 4)
    assert a.reasons["y"].code == "UNSUPPORTED_OP"


def test_random_op_takes_the_shape_that_it_is_given():
    g = G()
    g.placeholder("x", [None, 6])
    g.node("shape", "Shape", ["x"], T=("type", F32), out_type=("type", I32))
    g.node("noise", "RandomUniform", ["shape"], T=("type", I32), dtype=("type", F32))
    g.binary("y", "x", "noise")
    assert types(run(g, ["y"]), "noise", "y") == ["f32[x_d0,6]", "f32[x_d0,6]"]


def test_variables_have_their_shape_and_a_reason():
    g = G()
    g.node("v", "VarHandleOp", dtype=("type", F32), shape=("shape", [3, 4]))
    g.node("read", "ReadVariableOp", ["v"], dtype=("type", F32))
    g.unary("y", "read")
    a = run(g, ["y"])
    assert types(a, "read", "y") == ["f32[3,4]", "f32[3,4]"] and a.reasons["read"].code == "VARIABLE" and a.is_compiled("y")


def test_reasons_point_to_the_operand():
    g = G()
    g.placeholder("s", [None], STRING)
    g.placeholder("r", None)
    g.node("same", "Identity", ["s"], T=("type", STRING))
    g.unary("t", "r")
    g.placeholder("perm", [2], I32)
    g.placeholder("x", [None, 2])
    g.node("tr", "Transpose", ["x", "perm"], T=("type", F32), Tperm=("type", I32))
    a = run(g, ["same", "t", "tr"])
    assert a.reasons["same"].code == "DTYPE" and "s" in a.reasons["same"].message
    assert a.reasons["t"].code == "RANK_UNKNOWN" and "operand r" in a.reasons["t"].message
    assert a.reasons["tr"].code == "NOT_CONSTANT"


def test_fed_tensor_is_not_inferred():
    g = G()
    g.placeholder("x", [2, 3])
    node = g.unary("mid", "x")
    next(n for n in g.proto.node if n.name == node).attr["_output_shapes"].list.shape.add().dim.add().size = -1
    g.unary("y", "mid")
    a = run(g, ["y"], feeds=[("mid", 0)])
    assert a.reasons["mid"].code == "FED" and types(a, "mid", "y") == ["f32[mid_d0]", "f32[mid_d0]"]


def test_large_constants_are_parameters_small_ones_are_values():
    g = G()
    g.placeholder("x", [None, 300])
    g.const("w", np.arange(300))
    g.const("one", 1.0)
    g.binary("y", "x", "w")
    g.binary("z", "y", "one")
    a = run(g, ["z"])
    assert a.values[("one", 0)].op.name == "constant" and a.values[("w", 0)].op is None
    np.testing.assert_array_equal(a.ctx.constant(a.values[("w", 0)]), np.arange(300, dtype=np.float32))


def test_symbols_are_distinct_for_names_that_look_alike():
    g = G()
    g.placeholder("a/x", [None])
    g.placeholder("a_x", [None])
    g.node("y", "ConcatV2", ["a/x", "a_x", g.const("axis", 0, np.int64)], T=("type", F32), N=2, Tidx=("type", I64))
    assert types(run(g, ["y"]), "y") == ["f32[a_x_d0 + a_x_d0_2]"]


def test_hints():
    assert parse_hint("a/ids:0: [b<=32, s%8==0, s~64~128, 3, ?]") == (
        "a/ids",
        [DimHint("b", high=32), DimHint("s", likely=(64, 128), multiple=8), DimHint(size=3), DimHint()],
    )
    with pytest.raises(GraphError, match="two hints"):
        parse_hints(["x: [a]", "x:0: [b]"])
    g = G()
    g.placeholder("x", None)
    g.placeholder("z", [2, None])
    g.binary("y", "x", "z")
    a = run(g, ["y"], hints=parse_hints(["x: [2, n~7]"]))
    x = a.type_of(("x", 0))
    assert str(x) == "f32[x_d0,x_d1]" and a.ctx.env.likely(x.dims[1]) == (7,) and a.ctx.env.likely(x.dims[0]) == (2,)
    for bad in ("nothing: [a]", "z: [a]"):
        with pytest.raises(GraphError):
            run(g, ["y"], hints=parse_hints([bad]))


def test_tensorflow_shapes_help_where_it_is_loaded():
    pytest.importorskip("tensorflow")
    g = G()
    g.placeholder("s", [None, 4], STRING)
    g.node("y", "DecodeRaw", ["s"], out_type=("type", F32))
    g.unary("z", "y")
    assert "tensorflow" in sys.modules
    assert types(run(g, ["z"], use_tf_shapes=True), "z") == ["f32[y_d0,4,y_d2]"]


@pytest.mark.parametrize(
    ("device", "expected"),
    [("", True), ("/device:CPU:0", True), ("/job:w/task:1", True), ("/cpu:0", True), ("/device:GPU:0", False),
     ("/job:a/device:TPU:1", False)],
)
def test_on_cpu(device, expected):
    assert on_cpu(device) is expected
