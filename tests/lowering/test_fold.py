"""Integer tensors computed from shapes are followed element by element: no code remains, and the contents are TF's at every size."""

import itertools

import numpy as np
import pytest

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function
from disc_tf.ir.types import DType, TensorType
from disc_tf.lowering.content import content_of
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.lower import lower_nodes
from disc_tf.lowering.node import NodeView
from disc_tf.testing.tf_case import tensorflow

SIZES = range(4)


def shape(tf, x):
    return tf.raw_ops.Shape(input=x)


def dense_dims(tf, x, y):
    """Keras' Dense on rank 3: Shape, GatherV2, Prod, ConcatV2, Pack."""
    raw = tf.raw_ops
    s = shape(tf, x)
    free = raw.GatherV2(params=s, indices=[0, 1], axis=0)
    axes = raw.GatherV2(params=s, indices=[2], axis=0)
    rows, inner = raw.Prod(input=free, axis=[0]), raw.Prod(input=axes, axis=[0])
    return [
        raw.Pack(values=[rows, inner]), raw.ConcatV2(values=[free, [7]], axis=0), raw.Prod(input=free, axis=[0], keep_dims=True),
        raw.Prod(input=raw.Slice(input=s, begin=[0], size=[0]), axis=[0]),
    ]  # fmt: skip


def attention_dims(tf, x, y):
    raw = tf.raw_ops
    s = shape(tf, x)
    b = raw.StridedSlice(input=s, begin=[0], end=[1], strides=[1], shrink_axis_mask=1)
    last = raw.StridedSlice(input=s, begin=[-1], end=[0], strides=[1], shrink_axis_mask=1)
    return [
        raw.Pack(values=[b, -1, 12, raw.FloorDiv(x=last, y=4)]), raw.FloorMod(x=last, y=3), raw.Cast(x=s, DstT=tf.int64),
        raw.StridedSlice(input=s, begin=[0], end=[0], strides=[-1], begin_mask=1, end_mask=1),
        raw.StridedSlice(input=s, begin=[0], end=[-1], strides=[1], begin_mask=1), raw.Unpack(value=s, num=3)[1],
        raw.StridedSlice(input=s, begin=[1], end=[-2], strides=[2], begin_mask=1, end_mask=1, shrink_axis_mask=1),
    ]  # fmt: skip


def arithmetic(tf, x, y):
    raw = tf.raw_ops
    s, t = shape(tf, x), shape(tf, y)
    t3 = raw.ConcatV2(values=[t, [5]], axis=0)
    return [
        raw.AddV2(x=s, y=1), raw.Sub(x=s, y=t3), raw.Mul(x=s, y=t3), raw.Maximum(x=s, y=t3), raw.Minimum(x=s, y=2),
        raw.SquaredDifference(x=s, y=t3), raw.Neg(x=s), raw.Square(x=s), raw.AddN(inputs=[s, t3, s]), raw.Abs(x=raw.Sub(x=s, y=2)),
        raw.Cumsum(x=s, axis=0), raw.Cumprod(x=s, axis=0, exclusive=True), raw.Cumsum(x=s, axis=0, reverse=True),
        raw.Max(input=s, axis=[0]), raw.Min(input=s, axis=[-1], keep_dims=True), raw.Sum(input=s, axis=0),
        raw.SelectV2(condition=[True, False, True], t=s, e=t3), raw.Div(x=s, y=2), raw.TruncateMod(x=s, y=[2, 3, 4]),
    ]  # fmt: skip


def movement(tf, x, y):
    raw = tf.raw_ops
    s, t = shape(tf, x), shape(tf, y)
    square = raw.Reshape(tensor=raw.ConcatV2(values=[s, t, [9]], axis=0), shape=[2, -1])
    return [
        square, raw.Transpose(x=square, perm=[1, 0]), raw.ExpandDims(input=s, axis=-1),
        raw.Squeeze(input=raw.ExpandDims(input=s, axis=0), axis=[0]), raw.ReverseV2(tensor=square, axis=[1]),
        raw.Tile(input=t, multiples=[2]), raw.Pad(input=s, paddings=[[1, 2]]), raw.PadV2(input=s, paddings=[[1, 0]], constant_values=7),
        raw.BroadcastTo(input=t, shape=[2, 2]), raw.Fill(dims=[3], value=s[0]),
        raw.Split(axis=0, value=raw.Tile(input=t, multiples=[2]), num_split=2)[1],
        raw.SplitV(value=s, size_splits=[1, -1], axis=0, num_split=2)[1],
        raw.Size(input=x), raw.Rank(input=x),
        raw.ShapeN(input=[x, y])[1], raw.Sum(input=square, axis=[0]), raw.Prod(input=square, axis=[0, 1]),
        raw.Slice(input=s, begin=[1], size=[-1]),
        raw.Range(start=s[0], limit=s[0] + 3, delta=1), raw.Range(start=0, limit=6, delta=2), raw.InvertPermutation(x=[2, 0, 1]),
        raw.GatherV2(params=square, indices=[[1, 0]], axis=1), raw.Pack(values=[s, s + 1], axis=1), raw.BroadcastArgs(s0=s, s1=[1, 1]),
        raw.Equal(x=raw.Rank(input=x), y=3), raw.GreaterEqual(x=s, y=0), raw.Less(x=s, y=s), raw.LogicalNot(x=raw.Less(x=s, y=s)),
        raw.All(input=raw.GreaterEqual(x=s, y=0), axis=[0]), raw.ShapeN(input=[y])[0],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "build", [dense_dims, attention_dims, arithmetic, movement], ids=lambda f: f.__name__
)
def test_contents_are_tf_results(build):
    tf = tensorflow()
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, None, 8], name="x")
        y = tf.compat.v1.placeholder(tf.float32, [None, None], name="y")
        outputs = build(tf, x, y)
        nodes = [NodeView.from_proto(n) for n in graph.as_graph_def().node]
    fn = Function("main")
    ctx = LoweringContext(Builder(fn.body, fn.env), fn.env)
    feeds = {
        ("x", 0): fn.add_arg(TensorType.of(DType.F32, ["b", "s", 8]), ArgInfo("x")),
        ("y", 0): fn.add_arg(TensorType.of(DType.F32, ["m", "k"]), ArgInfo("y")),
    }
    found = lower_nodes(ctx, [n for n in nodes if n.name not in ("x", "y")], feeds)
    contents = []
    for out in outputs:
        value = found[out.op.name, out.value_index]
        content = content_of(ctx, value)
        assert content is not None, f"{out.op.type} is not followed"
        assert value.dtype.np == out.dtype.as_numpy_dtype
        contents.append(content)
    assert not [op for op in fn.body.ops if op.name == "disc.check"]
    with tf.compat.v1.Session(graph=graph) as session:
        for b, s, m, k in itertools.product(SIZES, (0, 1, 3), (1, 2), (0, 3)):
            expected = session.run(outputs, {x: np.zeros((b, s, 8)), y: np.zeros((m, k))})
            at = {"b": b, "s": s, "m": m, "k": k}
            for out, content, e in zip(outputs, contents, expected, strict=True):
                got = np.array(
                    [d.evaluate(at) if content.dtype == object else d for d in content.reshape(-1)]
                )
                np.testing.assert_array_equal(got.reshape(content.shape), e, err_msg=f"{out.op.type} at {at}")


def test_division_by_a_dim_that_may_be_zero_is_left_to_run_time():
    fn = Function("main")
    ctx = LoweringContext(Builder(fn.body, fn.env), fn.env)
    feeds = {("x", 0): fn.add_arg(TensorType.of(DType.F32, ["n"]), ArgInfo("x"))}
    ints = {"T": DType.I32}
    nodes = [
        NodeView("size", "Size", ["x"], {"T": DType.F32}),
        NodeView("twelve", "Const", (), {"value": np.array(12, np.int32)}),
        NodeView("out", "FloorDiv", ["twelve", "size"], ints),
    ]
    found = lower_nodes(ctx, nodes, feeds)
    assert content_of(ctx, found["out", 0]) is None
    assert [op for op in fn.body.ops if op.name == "disc.check"]


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64], ids=str)
def test_constants_wrap_as_in_tf(dtype):
    tf = tensorflow()
    big = np.array([np.iinfo(dtype).max, 3], dtype)
    fn = Function("main")
    ctx = LoweringContext(Builder(fn.body, fn.env), fn.env)
    ints = {"T": DType.from_np(dtype)}
    nodes = [NodeView("c", "Const", (), {"value": big}), NodeView("sum", "AddV2", ["c", "c"], ints)]
    found = lower_nodes(ctx, nodes, {})
    got = ctx.constant(found["sum", 0])
    if got is not None:  # a sum beyond 64 bits is not followed
        np.testing.assert_array_equal(got, tf.raw_ops.AddV2(x=big, y=big))
