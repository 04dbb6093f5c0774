"""NodeView, constants, broadcasting, checks, and the driver: no TensorFlow needed."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function
from disc_tf.ir.dims import Dim
from disc_tf.ir.interp import evaluate
from disc_tf.ir.opset.control import CheckFailed
from disc_tf.ir.types import DType, TensorType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.lower import lower_nodes
from disc_tf.lowering.node import NodeView, split_input


def scratch(*shapes: tuple, dtype: DType = DType.F32):
    fn = Function("main")
    ctx = LoweringContext(Builder(fn.body, fn.env), fn.env)
    types = [TensorType.of(dtype, (fn.env.simplify(Dim.of(d)) for d in s)) for s in shapes]
    return fn, ctx, [fn.add_arg(t, ArgInfo(f"x{i}")) for i, t in enumerate(types)]


def finish(fn: Function, ctx: LoweringContext, *results) -> Function:
    ctx.b.return_([*results, *([ctx.token] if ctx.token is not None else [])])
    return fn


def test_split_input() -> None:
    assert split_input("a/b:1") == ("a/b", 1)
    assert split_input("a") == ("a", 0)


def test_node_view_from_dict_and_defaults() -> None:
    node = NodeView.from_dict({"name": "m", "op": "MatMul", "inputs": ["a", "b:1"], "attrs": {"T": 1, "transpose_a": True}})
    assert node.inputs == (("a", 0), ("b", 1))
    assert node.dtype("T") is DType.F32 and node.attr("transpose_a") is True and node.attr("transpose_b", False) is False
    with pytest.raises(Unsupported, match="missing"):
        node.attr("nothing")
    with pytest.raises(Unsupported) as e:
        NodeView("s", "Identity", attrs={"T": 7}).dtype("T")
    assert e.value.code == "DTYPE"


class _Proto:
    """The fields of a TensorProto."""

    def __init__(self, dtype: DType, shape: tuple, content: bytes = b"", **values: list) -> None:
        self.dtype, self.tensor_content = dtype.tf_enum, content
        self.tensor_shape = type("S", (), {"unknown_rank": False, "dim": [type("D", (), {"size": n})() for n in shape]})()
        for field in ("float_val", "double_val", "half_val", "int_val", "int64_val", "uint32_val", "uint64_val", "bool_val"):
            setattr(self, field, values.get(field, []))


def test_tensor_proto() -> None:
    from disc_tf.lowering.tensor_proto import tensor_to_numpy

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(tensor_to_numpy(_Proto(DType.F32, (2, 3), x.tobytes())), x)
    splat = tensor_to_numpy(_Proto(DType.I32, (1 << 20, 1 << 10), int_val=[7]))
    assert splat.shape == (1 << 20, 1 << 10) and splat.strides == (0, 0) and splat[5, 5] == 7  # no memory for a hostile splat
    assert tensor_to_numpy(_Proto(DType.I32, (4,), int_val=[1, 2])).tolist() == [1, 2, 2, 2]
    bits = int(np.array(1.5, ml_dtypes.bfloat16).view(np.uint16))
    assert float(tensor_to_numpy(_Proto(DType.BF16, (), half_val=[bits]))) == 1.5
    assert tensor_to_numpy(_Proto(DType.F32, (0, 3))).shape == (0, 3)
    assert tensor_to_numpy(_Proto(DType.I8, (2,), int_val=[-1, 1])).tolist() == [-1, 1]
    for bad in (_Proto(DType.F32, (2, 3), b"abc"), _Proto(DType.F32, (-2,)), _Proto(DType.F32, (1,), float_val=[1, 2]),
                _Proto(DType.F32, (1 << 40, 1 << 40))):  # fmt: skip
        with pytest.raises(Unsupported):
            tensor_to_numpy(bad)


@pytest.mark.parametrize(("a", "b"), list(itertools.product([0, 1, 2, 3], repeat=2)))
def test_broadcast_checks_at_run_time(a: int, b: int) -> None:
    fn, ctx, (x, y) = scratch(("n", 4), ("m", 1))
    u, v = ctx.broadcast(x, y)
    finish(fn, ctx, ctx.b.add(u, v))
    arrays = [np.ones((a, 4), np.float32), np.ones((b, 1), np.float32)]
    try:
        expected = np.add(*arrays)
    except ValueError:
        with pytest.raises(CheckFailed) as e:
            evaluate(fn, arrays)
        assert e.value.code == 3
        return
    assert np.array_equal(evaluate(fn, arrays)[0], expected)


def test_broadcast_decides_what_it_can() -> None:
    _, ctx, (x, y) = scratch(("n", 4), ("n", 1))
    ctx.broadcast(x, y)
    assert ctx.token is None and not ctx.requests
    _, ctx, (x, y) = scratch((2,), (3,))
    with pytest.raises(Unsupported) as e:
        ctx.broadcast(x, y)
    assert e.value.code == "INVALID"


def test_the_same_check_is_made_once() -> None:
    fn, ctx, (x, y) = scratch(("n",), ("m",))
    ctx.broadcast(x, y)
    count = len(fn.body.ops)
    ctx.broadcast_dims(x.dims, y.dims)
    ctx.bcast_dim("m", "n")
    assert len(fn.body.ops) == count and len(ctx.requests) == 1


def test_check_dims_eq() -> None:
    fn, ctx, _ = scratch(("n",), ("m",))
    ctx.check_dims_eq("n", "n")
    assert ctx.token is None
    with pytest.raises(Unsupported):
        ctx.check_dims_eq("n", Dim.of("n") + 1)
    ctx.check_dims_eq("n", "m")
    finish(fn, ctx)
    evaluate(fn, [np.zeros(2, np.float32)] * 2)
    with pytest.raises(CheckFailed):
        evaluate(fn, [np.zeros(2, np.float32), np.zeros(3, np.float32)])


def test_contents() -> None:
    _, ctx, _ = scratch()
    shape = ctx.from_dims(["n", 4], DType.I32)
    assert ctx.dims_of(shape) == [Dim.of("n"), Dim.of(4)] and ctx.constant(shape) is None
    static = ctx.from_dims([2, 4])
    assert ctx.constant(static).tolist() == [2, 4]
    assert ctx.dims_of(ctx.const(np.int64(5))) == [Dim.of(5)]
    assert ctx.fresh_dim(ctx.dim("n")) == Dim.of("n")


def test_fresh_dim_binds_a_symbol() -> None:
    fn, ctx, (x,) = scratch((), dtype=DType.I32)
    d = ctx.fresh_dim(x)
    finish(fn, ctx, ctx.full(1.0, DType.F32, [d]))
    assert evaluate(fn, [np.array(5, np.int32)])[0].shape == (5,)


def test_a_failed_rule_leaves_nothing_behind() -> None:
    fn, ctx, (x, y) = scratch(("n",), ("m", 3))
    node = NodeView("bad", "MatMul", ["x0", "x1"], {"T": 1})
    with pytest.raises(Unsupported) as e:
        lower_nodes(ctx, [node], {("x0", 0): x, ("x1", 0): y})
    assert (e.value.node, e.value.op, e.value.code) == ("bad", "MatMul", "INVALID")
    nodes = [NodeView("sel", "Select", ["c", "x0", "x0"], {"T": 1}), NodeView("neg", "Neg", ["sel"], {"T": 1})]
    cond = ctx.const(np.ones((2, 2), np.bool_))
    before, token = len(fn.body.ops), ctx.token
    seen: list[Unsupported] = []
    found = lower_nodes(ctx, nodes, {("c", 0): cond, ("x0", 0): x}, lambda _n, _a, why: seen.append(why) or [])
    assert [w.code for w in seen] == ["INVALID", "RANK"] and ("sel", 0) not in found
    assert len(fn.body.ops) == before and ctx.token is token


def test_assert_ignores_operands_without_value() -> None:
    fn, ctx, (x,) = scratch((), dtype=DType.BOOL)
    node = NodeView("guard", "Assert", ["x0", "text"], {"T": [7]})
    lower_nodes(ctx, [node], {("x0", 0): x})
    finish(fn, ctx)
    evaluate(fn, [np.array(True)])
    with pytest.raises(CheckFailed) as e:
        evaluate(fn, [np.array(False)])
    assert e.value.node == "guard" and e.value.code == 3


def test_no_rule() -> None:
    _, ctx, (x,) = scratch(("n",))
    with pytest.raises(Unsupported) as e:
        lower_nodes(ctx, [NodeView("q", "NoSuchOp", ["x0"])], {("x0", 0): x})
    assert e.value.code == "OP"


def test_what_a_failed_rule_did_is_taken_back() -> None:
    fn = Function("f")
    x = fn.add_arg(TensorType.of(DType.F32, ["a", "b"]), ArgInfo("x"))
    ctx = LoweringContext(Builder(fn.body, fn.env), fn.env, "n")
    a, b = x.dims
    ctx.check_dims_eq(a, 3)
    before, mark = ([op.name for op in fn.body.ops], ctx.token, list(ctx.requests)), ctx.mark()
    ctx.check_dims_eq(a, b)
    ctx.check_dim_cond(a, "LT", b)
    ctx.bcast_dim(a, b * b)
    ctx.rewind(mark)
    assert ([op.name for op in fn.body.ops], ctx.token, list(ctx.requests)) == before
    ctx.check_dims_eq(a, 3)  # stands: no second check
    assert [op.name for op in fn.body.ops] == before[0]
    ctx.check_dims_eq(a, b)  # was taken back: made again
    assert len(fn.body.ops) > len(before[0]) and len(ctx.requests) == len(before[2]) + 1
