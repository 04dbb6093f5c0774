"""Shape, Reshape and their kin: TF against the rules on the interpreter."""

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import array, check_op
from tests.frontend.graphs import F32, I64, G, cluster
from tests.frontend.graphs import I32 as I32_TYPE

ALL_DTYPES = list(DType)
I32 = np.int32
SHAPES = [(), (0,), (1,), (7,), (2, 0, 3), (1, 1), (3, 5, 2)]


def i32(*values):
    return np.array(values, I32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("out_type", [np.int32, np.int64])
def test_shape_size_rank(shape, out_type):
    x = array(shape, DType.F32)
    check_op("Shape", input=x, out_type=out_type)
    check_op("Size", input=x, out_type=out_type)
    check_op("Rank", input=x)
    check_op("ShapeN", input=[x, array((2, 1), DType.F32)], out_type=out_type)


RESHAPES = [
    ((2, 3, 4), (6, 4)),
    ((2, 3, 4), (-1, 4)),
    ((2, 3, 4), (2, -1, 2, 2)),
    ((2, 3, 4), (-1,)),
    ((), (1, 1)),
    ((1,), ()),
    ((0, 5), (0, -1)),
    ((0, 0, 8), (0, -1, 8)),
    ((0, 4), (-1, 2)),
    ((0,), (-1,)),
    ((7,), (7, 1, 1)),
    ((2, 3), (4, -1)),  # error
    ((2, 3), (5,)),  # error
    ((2, 3), (-1, 0)),  # error
    ((2, 3), (-2, 3)),  # error
    ((2, 3), (-1, -1)),  # error
]


@pytest.mark.parametrize(("source", "target"), RESHAPES, ids=str)
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_reshape(source, target, index):
    x, shape = array(source, DType.F32), np.array(target, index)
    check_op("Reshape", tensor=x, shape=shape, const=["shape"])
    check_op("Reshape", tensor=x, shape=shape, known_dims=["shape"])


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_dtype(dtype):
    x = array((2, 3), dtype)
    check_op("Reshape", tensor=x, shape=i32(-1, 2), const=["shape"])
    check_op("Transpose", x=x, perm=i32(1, 0), const=["perm"])
    check_op("ExpandDims", input=x, axis=I32(1).reshape(()), const=["axis"])
    check_op("BroadcastTo", input=x, shape=i32(4, 2, 3), const=["shape"])
    check_op("Fill", dims=i32(2, 3), value=x.reshape(-1)[0].reshape(()), const=["dims"])
    check_op("ZerosLike", x=x)
    check_op("OnesLike", x=x)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("axis", [-1, 0, 1, 3, -5])
def test_expand_dims(shape, axis):
    check_op("ExpandDims", input=array(shape, DType.F32), axis=np.array(axis, I32), const=["axis"])


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((1, 3, 1), [0]), ((1, 3, 1), [0, 2]), ((1, 3, 1), [-1]), ((2, 3), [0]), ((1, 0), [0])],
)
def test_squeeze_named(shape, axes):
    check_op("Squeeze", input=array(shape, DType.F32), axis=axes)


@pytest.mark.parametrize("shape", [(1, 3, 1), (1, 1), (2, 3), (), (1, 0)])
def test_squeeze_all(shape):
    check_op("Squeeze", input=array(shape, DType.F32), axis=[], modes=["static"])


@pytest.mark.parametrize(
    ("shape", "perm"), [((2, 3, 5), (2, 0, 1)), ((2, 3, 5), (0, 1, 2)), ((0, 3), (1, 0)), ((), ()), ((2, 3), (-1, 0)),
                        ((2, 3), (0, 0)), ((2, 3), (0, 1, 2)), ((2, 3), (0, 2))],
)  # fmt: skip
def test_transpose(shape, perm):
    for op in ("Transpose", "ConjugateTranspose"):
        check_op(op, x=array(shape, DType.F32), perm=np.array(perm, I32), const=["perm"])


@pytest.mark.parametrize(
    ("shape", "target"),
    [((3,), (2, 3)), ((1,), (4,)), ((2, 1), (2, 5)), ((), (2, 2)), ((1, 1), (0, 3)), ((3,), (3,)), ((2, 0), (2, 0)),
     ((3,), (4,)), ((2, 3), (3,)), ((3,), (1,)), ((1,), (-1,))],
)  # fmt: skip
def test_broadcast_to(shape, target):
    x = array(shape, DType.F32)
    for index in (I32, np.int64):
        check_op("BroadcastTo", input=x, shape=np.array(target, index), const=["shape"])
        check_op("BroadcastTo", input=x, shape=np.array(target, index), known_dims=["shape"])


@pytest.mark.parametrize(
    ("a", "b"),
    [((2, 3), (3,)), ((1, 3), (2, 1)), ((), (4,)), ((0, 1), (1, 5)), ((2,), (3,)), ((2, 3), (2, 3))],
)
def test_broadcast_args(a, b):
    for const in ([], ["s0", "s1"], ["s0"]):
        check_op(
            "BroadcastArgs", s0=np.array(a, I32), s1=np.array(b, I32), const=const, known_dims=["s0", "s1"]
        )


@pytest.mark.parametrize("dims", [(), (0,), (1, 4), (2, 3, 0), (-1, 2)])
@pytest.mark.parametrize("const", [["dims"], []])
def test_fill(dims, const):
    check_op(
        "Fill", dims=np.array(dims, I32), value=np.float32(2.5).reshape(()), const=const, known_dims=["dims"]
    )


@pytest.mark.parametrize("values", [[], [0], [1, 0], [2, 0, 3, 1], [0, 0], [0, 2], [-1, 0]])
@pytest.mark.parametrize("const", [["x"], []])
def test_invert_permutation(values, const):
    for dtype in (I32, np.int64):
        check_op("InvertPermutation", x=np.array(values, dtype), const=const)


@pytest.mark.parametrize(
    ("start", "limit", "delta"),
    [
        (0, 5, 1),
        (0, 5, 2),
        (3, 3, 1),
        (5, 0, -1),
        (5, 0, -2),
        (2, -7, -3),
        (0, 0, -1),
        (5, 0, 1),
        (0, 5, -1),
        (0, 5, 0),
    ],
)
@pytest.mark.parametrize("dtype", [DType.I32, DType.I64, DType.F32, DType.F64], ids=str)
def test_range(start, limit, delta, dtype):
    args = {"start": start, "limit": limit, "delta": delta}
    args = {k: np.array(v, dtype.np) for k, v in args.items()}
    for const in (list(args), ["start", "delta"], ["delta"], []):
        check_op("Range", **args, const=const)


@pytest.mark.parametrize(
    ("start", "limit", "delta"),
    [(0.1, 1, 0.1), (-1.5, 3.3, 0.7), (1, 0, -0.3), (0, np.inf, 0.5), (np.nan, 1, 1)],
)
def test_range_of_floats(start, limit, delta):
    args = {
        k: np.float32(v).reshape(())
        for k, v in zip(("start", "limit", "delta"), (start, limit, delta), strict=True)
    }
    check_op("Range", **args, const=["delta"])


@pytest.mark.parametrize("num", [1, 2, 7, 0, -1])
@pytest.mark.parametrize("const", [["num"], []])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lin_space(num, const, dtype):
    check_op(
        "LinSpace",
        start=np.array(-1.3, dtype),
        stop=np.array(4.1, dtype),
        num=np.array(num, I32),
        const=const,
    )


@pytest.mark.parametrize(
    ("source", "target", "shape"),
    [(DType.F32, DType.I32, (3, 2)), (DType.F64, DType.I32, (3,)), (DType.U8, DType.I32, (3, 4)), (DType.U8, DType.I32, (3, 5)),
     (DType.BF16, DType.I16, ()), (DType.F32, DType.U8, (0,)), (DType.I64, DType.U32, ())],
)  # fmt: skip
def test_bitcast(source, target, shape):
    tf_types = {DType.BF16: "bfloat16"}
    check_op("Bitcast", input=array(shape, source), type=tf_types.get(target, target.np.name))


def test_reshape_to_sizes_of_unknown_sign_and_dims():
    """Sizes from run-time scalars beside a -1 and a dim of the operand."""
    g = G()
    g.placeholder("x", [None] * 4)
    g.placeholder("a", [], I64)
    g.placeholder("b", [], I64)
    g.node("shape", "Shape", ["x"], T=("type", F32), out_type=("type", I64))
    for name, value in (("begin", [3]), ("end", [4]), ("step", [1])):
        g.const(name, value, np.int32)
    types = {"T": ("type", I64), "Index": ("type", I32_TYPE)}
    g.node("last", "StridedSlice", ["shape", "begin", "end", "step"], **types, shrink_axis_mask=1)
    g.const("rest", -1, np.int64)
    g.node("sizes", "Pack", ["rest", "a", "b", "last"], T=("type", I64), N=4, axis=0)
    g.node("y", "Reshape", ["x", "sizes"], T=("type", F32), Tshape=("type", I64))
    assert not cluster(g.proto, ["y"], min_cluster_size=1).reasons
