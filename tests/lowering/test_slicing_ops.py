"""Slices, padding, joining and splitting: TF against the rules on the interpreter."""

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import array, check_op

ALL_DTYPES = list(DType)
F32 = DType.F32


def i32(*values):
    return np.array(values, np.int32)


def scalar(v, dtype=np.int32):
    return np.array(v, dtype)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_dtype(dtype):
    x = array((2, 3), dtype)
    one = x.reshape(-1)[:1].reshape(())
    check_op("Pack", values=[x, x], axis=1)
    check_op("Unpack", value=x, num=3, axis=1)
    check_op("ConcatV2", values=[x, x[:1]], axis=scalar(0), const=["axis"])
    check_op("Split", axis=scalar(1), value=x, num_split=3, const=["axis"])
    check_op(
        "SplitV", value=x, size_splits=i32(1, -1), axis=scalar(1), num_split=2, const=["axis", "size_splits"]
    )
    if dtype is not DType.U16:  # TF has no such kernel
        check_op("Tile", input=x, multiples=i32(2, 3), const=["multiples"])
    check_op("Slice", input=x, begin=i32(0, 1), size=i32(-1, 2), const=["begin", "size"])
    check_op("Pad", input=x, paddings=np.array([[1, 0], [0, 2]], np.int32), const=["paddings"])
    check_op(
        "PadV2",
        input=x,
        paddings=np.array([[1, 0], [0, 2]], np.int32),
        constant_values=one,
        const=["paddings"],
    )
    check_op(
        "MirrorPad",
        input=x,
        paddings=np.array([[1, 0], [2, 1]], np.int32),
        mode="REFLECT",
        const=["paddings"],
    )
    check_op("ReverseV2", tensor=x, axis=i32(1), const=["axis"])
    check_op("Roll", input=x, shift=i32(1), axis=i32(1), const=["shift", "axis"])
    check_op(
        "StridedSlice",
        input=x,
        begin=i32(0, 2),
        end=i32(2, 0),
        strides=i32(1, -1),
        const=["begin", "end", "strides"],
    )


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 0), (2, 3)], ids=str)
def test_pack_unpack(shape):
    xs = [array(shape, F32, seed) for seed in range(3)]
    for axis in range(-len(shape) - 1, len(shape) + 1):
        check_op("Pack", values=xs, axis=axis)
        check_op("Pack", values=xs[:1], axis=axis)
    for axis, n in enumerate(shape):
        check_op("Unpack", value=xs[0], num=n, axis=axis)
        check_op("Unpack", value=xs[0], num=n + 1, axis=axis)
    check_op("Pack", values=[xs[0], array((*shape[:-1], 4) if shape else (1,), F32)], axis=0)


@pytest.mark.parametrize(
    "shapes",
    [[(2, 3), (4, 3)], [(0, 3), (2, 3)], [(2, 3), (2, 3), (1, 3)], [(2, 3), (2, 4)], [(2,), (2, 1)]],
    ids=str,
)
@pytest.mark.parametrize("axis", [0, -2, 1, 2])
def test_concat(shapes, axis):
    xs = [array(s, F32, i) for i, s in enumerate(shapes)]
    check_op("ConcatV2", values=xs, axis=scalar(axis), const=["axis"])
    check_op("Concat", concat_dim=scalar(axis), values=xs, const=["concat_dim"])


@pytest.mark.parametrize("shape", [(6,), (6, 2), (0, 6), (7, 3)], ids=str)
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("ways", [1, 2, 3])
def test_split(shape, axis, ways):
    check_op("Split", axis=scalar(axis), value=array(shape, F32), num_split=ways, const=["axis"])


@pytest.mark.parametrize(
    "sizes",
    [(2, 4), (2, -1), (-1, 6), (0, 6), (6, -1), (7, -1), (2, 3), (-1, -1), (-2, 8), (1, 2, 3), (-1, 2, 1)],
    ids=str,
)
def test_split_v(sizes):
    for dtype in (np.int32, np.int64):
        args = {"value": array((6, 2), F32), "size_splits": np.array(sizes, dtype), "axis": scalar(0)}
        check_op("SplitV", **args, num_split=len(sizes), const=["axis", "size_splits"])
        check_op("SplitV", **args, num_split=len(sizes), const=["axis"], known_dims=["size_splits"])


@pytest.mark.parametrize(
    ("shape", "multiples"),
    [((3,), (2,)), ((2, 3), (1, 2)), ((2, 3), (2, 1)), ((2, 3), (0, 2)), ((0, 2), (3, 3)), ((1, 1), (4, 5)), ((), ()),
     ((2, 3), (1, 1)), ((2,), (-1,)), ((2,), (1, 1))],
)  # fmt: skip
def test_tile(shape, multiples):
    for dtype in (np.int32, np.int64):
        m = np.array(multiples, dtype)
        check_op("Tile", input=array(shape, F32), multiples=m, const=["multiples"])
        check_op("Tile", input=array(shape, F32), multiples=m, known_dims=["multiples"])


@pytest.mark.parametrize(
    ("begin", "size"),
    [((0, 0), (2, 5)), ((1, 2), (1, -1)), ((2, 5), (0, 0)), ((2, 5), (-1, -1)), ((0, 1), (2, 5)), ((-1, 0), (1, 1)),
     ((3, 0), (0, 1)), ((0, 0), (-2, 1)), ((0, 4), (1, 1)), ((0,), (1,))],
)  # fmt: skip
def test_slice(begin, size):
    args = {"input": array((2, 5), F32)}
    for dtype in (np.int32, np.int64):
        args |= {"begin": np.array(begin, dtype), "size": np.array(size, dtype)}
        check_op("Slice", **args, const=["begin", "size"])
        check_op("Slice", **args, const=["size"], known_dims=["begin"])
        check_op("Slice", **args, const=["begin"], known_dims=["size"])
        check_op("Slice", **args, known_dims=["begin", "size"])


X = ("new",)
SPECS = [
    ((7,), [slice(None)]),
    ((7,), [slice(1, -1)]),
    ((7,), [slice(-3, None)]),
    ((7,), [slice(None, None, -1)]),
    ((7,), [slice(5, 1, -2)]),
    ((7,), [slice(9, 2)]),
    ((7,), [slice(-9, 4, 3)]),
    ((7,), [3]),
    ((7,), [-7]),
    ((7,), [7]),
    ((7,), [-8]),
    ((0,), [slice(1, None)]),
    ((0,), [0]),
    ((2, 5, 3), [1]),
    ((2, 5, 3), [Ellipsis, 0]),
    ((2, 5, 3), [slice(None), slice(1, 4, 2), 1]),
    ((2, 5, 3), [0, None, slice(None, None, -2)]),
    ((2, 5, 3), [None, Ellipsis, None]),
    ((2, 5, 3), [Ellipsis, slice(0, 1), None, 2]),
    ((2, 5, 3), [-1, -1, -1]),
    ((2, 5, 3), [slice(0, 0)]),
    ((), [None]),
    ((), [Ellipsis]),
    ((1, 4), [0, slice(0, 2)]),
]


def strided(spec):
    begin, end, strides = [], [], []
    masks = dict.fromkeys(("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0)
    for i, s in enumerate(spec):
        b, e, st = 0, 0, 1
        if s is None:
            masks["new_axis_mask"] |= 1 << i
        elif s is Ellipsis:
            masks["ellipsis_mask"] |= 1 << i
        elif isinstance(s, int):
            masks["shrink_axis_mask"] |= 1 << i
            b, e = s, s + 1
        else:
            masks["begin_mask"] |= (s.start is None) << i
            masks["end_mask"] |= (s.stop is None) << i
            b, e, st = s.start or 0, s.stop or 0, s.step or 1
        begin.append(b)
        end.append(e)
        strides.append(st)
    return begin, end, strides, masks


@pytest.mark.parametrize(("shape", "spec"), SPECS, ids=str)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_strided_slice(shape, spec, dtype):
    begin, end, strides, masks = strided(spec)
    args = {
        "input": array(shape, F32), "begin": np.array(begin, dtype), "end": np.array(end, dtype),
        "strides": np.array(strides, dtype), **masks,
    }  # fmt: skip
    check_op("StridedSlice", **args, const=["begin", "end", "strides"])
    check_op("StridedSlice", **args, const=["strides"], known_dims=["begin", "end"])
    check_op("StridedSlice", **args, const=["begin", "strides"], known_dims=["end"])


@pytest.mark.parametrize(
    ("shape", "paddings"),
    [((3,), [[1, 2]]), ((2, 3), [[0, 0], [1, 1]]), ((2, 0), [[0, 1], [2, 0]]), ((0,), [[0, 0]]), ((), []), ((2, 3), [[0, 0], [0, 0]]),
     ((3,), [[-1, 2]]), ((2, 2), [[1, 1]])],
)  # fmt: skip
def test_pad(shape, paddings):
    x, value = array(shape, F32), np.array(7.5, np.float32)
    for dtype in (np.int32, np.int64):
        p = np.array(paddings, dtype).reshape(-1, 2)
        for const in (["paddings"], []):
            check_op("Pad", input=x, paddings=p, const=const, known_dims=["paddings"])
            check_op(
                "PadV2", input=x, paddings=p, constant_values=value, const=const, known_dims=["paddings"]
            )


@pytest.mark.parametrize("mode", ["REFLECT", "SYMMETRIC"])
@pytest.mark.parametrize(
    ("shape", "paddings"),
    [((3,), [[1, 2]]), ((3,), [[2, 2]]), ((3,), [[3, 0]]), ((3,), [[0, 4]]), ((2, 3), [[1, 0], [1, 2]]), ((0,), [[0, 0]]),
     ((1, 4), [[0, 0], [3, 3]]), ((1,), [[1, 1]]), ((3,), [[-1, 0]])],
)  # fmt: skip
def test_mirror_pad(mode, shape, paddings):
    x = array(shape, F32)
    for dtype in (np.int32, np.int64):
        p = np.array(paddings, dtype)
        for const in (["paddings"], []):
            check_op("MirrorPad", input=x, paddings=p, mode=mode, const=const, known_dims=["paddings"])


@pytest.mark.parametrize("axes", [[], [0], [1], [-1], [0, 1], [0, 0], [2], [0, -2]], ids=str)
@pytest.mark.parametrize("shape", [(2, 3), (0, 3)], ids=str)
def test_reverse(axes, shape):
    x = array(shape, F32)
    if 0 in shape and (2 in axes or len({a % 2 for a in axes}) < len(axes)):
        return  # TF does not look at the axes of an empty tensor; the rule leaves such a node to TF
    check_op("ReverseV2", tensor=x, axis=np.array(axes, np.int32), const=["axis"])
    if max(axes, default=0) < 2 and len({a % 2 for a in axes}) == len(axes):
        check_op("Reverse", tensor=x, dims=np.isin(np.arange(2), [a % 2 for a in axes]), const=["dims"])


@pytest.mark.parametrize("shape", [(5,), (0,), (1,), (3, 4)], ids=str)
@pytest.mark.parametrize("shift", [0, 1, -1, 7, -12])
@pytest.mark.parametrize("const", [["shift", "axis"], ["axis"]], ids=str)
def test_roll(shape, shift, const):
    check_op("Roll", input=array(shape, F32), shift=scalar(shift), axis=scalar(0), const=const)
    check_op(
        "Roll",
        input=array(shape, F32),
        shift=i32(shift, 1),
        axis=i32(0, -1),
        const=const,
        known_dims=["shift"],
    )


@pytest.mark.parametrize("shape", [(1, 4, 6, 3), (2, 0, 2, 1), (1, 3, 4, 4), (1, 2, 2, 8)], ids=str)
@pytest.mark.parametrize("op", ["SpaceToDepth", "DepthToSpace"])
def test_blocks(op, shape):
    check_op(op, input=array(shape, F32), block_size=2)
