"""Gradients of elementwise ops, slices and losses: TF against the rules."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.lowering.registry import NUMBERS
from disc_tf.testing.tf_case import Tolerance, array, check_op, specials

FLOATS = [d for d in DType if d.is_float]
SUM = Tolerance(ulps=16, relative_floor=1.0)
#: operand names of ops that take (gradients, x)
GRADS = {
    "ReluGrad": "features", "Relu6Grad": "features", "LeakyReluGrad": "features", "SoftplusGrad": "features", "SoftsignGrad": "features",
    "EluGrad": "outputs", "SeluGrad": "outputs",
}  # fmt: skip
OF_RESULTS = ("SigmoidGrad", "TanhGrad", "SqrtGrad", "RsqrtGrad", "InvGrad", "ReciprocalGrad")


def pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of special values, and some others."""
    s = specials(dtype)
    a, b = (v.reshape(-1) for v in np.meshgrid(s, s))
    return np.concatenate([a, array((300,), dtype, 1)]), np.concatenate([b, array((300,), dtype, 2)])


def grad(op: str, x: np.ndarray, g: np.ndarray, **more) -> None:
    if op in GRADS:
        check_op(op, gradients=g, **{GRADS[op]: x}, **more)
    else:
        check_op(op, y=x, dy=g, **more)


@pytest.mark.parametrize("op", [*GRADS, *OF_RESULTS])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_values(op, dtype) -> None:
    x, g = pairs(dtype)
    if op == "SqrtGrad":  # TF multiplies by 1 / y, which is a denormal there, and flushed
        sure = np.abs(x) != specials(dtype)[11]
        x, g = x[sure], g[sure]
    grad(op, x, g, modes=["dynamic"], tol=Tolerance(ulps=8))


@pytest.mark.parametrize("op", [*GRADS, *OF_RESULTS])
def test_shapes(op) -> None:
    for shape in ((2, 3, 5), (0, 3), (1,), ()):
        grad(op, array(shape, "f32", 1), array(shape, "f32", 2), tol=Tolerance(ulps=8))
    grad(op, array((2, 3), "f32"), array((3, 2), "f32"))
    grad(op, array((2, 3), "f32"), array((2, 4), "f32"))
    grad(op, array((4,), "f32"), array((1,), "f32"))


@pytest.mark.parametrize("op", ["ReluGrad", "Relu6Grad"])
@pytest.mark.parametrize("dtype", [d for d in DType if d.is_int], ids=str)
def test_integers(op, dtype) -> None:
    grad(op, *pairs(dtype), modes=["dynamic"])


def test_alpha() -> None:
    check_op("LeakyReluGrad", gradients=array((9,), "f32", 1), features=array((9,), "f32"), alpha=0.7)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_bias_add_grad(layout) -> None:
    for shape in ((2, 3), (4, 5, 6), (2, 3, 4, 5), (2, 3, 4, 5, 2), (0, 3), (3, 0, 2), (4,), (67, 33)):
        check_op("BiasAddGrad", out_backprop=array(shape, "f32"), data_format=layout, tol=SUM)


@pytest.mark.parametrize("dtype", sorted(NUMBERS, key=str), ids=str)
def test_bias_add_grad_dtypes(dtype) -> None:
    check_op("BiasAddGrad", out_backprop=array((5, 3), dtype), tol=SUM)


# ---- losses ------------------------------------------------------------------------------------------------------------


def softmax_rows(shape: tuple[int, int], dtype: DType | str) -> np.ndarray:
    x = array(shape, dtype, 3, 0.0, 1.0).astype(np.float32)
    return (x / np.maximum(x.sum(1, keepdims=True), 1e-3)).astype(array((1,), dtype).dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_cross_entropy(dtype) -> None:
    for shape in ((5, 7), (1, 1), (0, 4), (3, 0), (4, 129)):
        check_op("SoftmaxCrossEntropyWithLogits", features=array(shape, dtype), labels=softmax_rows(shape, dtype), tol=SUM)
        if shape[1]:
            labels = np.arange(shape[0]) % shape[1]
            for kind in (np.int32, np.int64):
                check_op("SparseSoftmaxCrossEntropyWithLogits", features=array(shape, dtype), labels=labels.astype(kind), tol=SUM)


def test_cross_entropy_broadcasts() -> None:
    for a, b in (((1, 5), (4, 5)), ((4, 1), (4, 5)), ((4, 5), (1, 5)), ((5,), (4, 5)), ((2, 5), (4, 5)), ((5,), (5,))):
        check_op("SoftmaxCrossEntropyWithLogits", features=array(a, "f32"), labels=array(b, "f32", 1, 0, 1), tol=SUM)


def test_cross_entropy_specials() -> None:
    rows = np.array([[1, -np.inf, 3], [0, np.inf, 1], [np.nan, 0, 1], [-np.inf] * 3, [1e30, -1e30, 0]], np.float32)
    labels = np.array([[0.5, 0, 0.5], [0, 0, 1], [1, 0, 0], [1, 0, 0], [0, 1, 0]], np.float32)
    check_op("SoftmaxCrossEntropyWithLogits", features=rows, labels=labels)
    check_op("SparseSoftmaxCrossEntropyWithLogits", features=rows, labels=np.array([0, 0, 1, 2, 1], np.int64))


def test_labels_out_of_range() -> None:
    x = array((3, 4), "f32")
    for labels in ([0, 4, 1], [0, 1, -1], [0, 1]):
        check_op("SparseSoftmaxCrossEntropyWithLogits", features=x, labels=np.array(labels, np.int32))
    check_op("SparseSoftmaxCrossEntropyWithLogits", features=x[:, :0], labels=np.zeros(3, np.int32))


# ---- slices ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("const", [True, False])
def test_strided_slice_grad(const) -> None:
    cases = [
        ((7, 6), [1, 0], [5, 6], [1, 1], {}), ((7, 6), [5, 4], [0, 0], [-2, -1], {}), ((9,), [1], [8], [3], {}),
        ((4, 5, 6), [1, 2], [2, 4], [1, 1], {"shrink_axis_mask": 1}), ((4, 5, 6), [0, 1], [0, 3], [1, 1], {"ellipsis_mask": 1}),
        ((4, 5), [0, 0, 1], [0, 0, 4], [1, 1, 2], {"new_axis_mask": 1, "begin_mask": 2, "end_mask": 2}), ((4, 5), [2], [2], [1], {}),
        ((0, 5), [0, 0], [3, 3], [1, 1], {}),
    ]  # fmt: skip
    for shape, begin, end, strides, masks in cases:
        x = array(shape, "f32")
        tf_slice = strided(x, begin, end, strides, masks)
        vectors = [np.array(v, np.int32) for v in (shape, begin, end, strides)]
        known = ["shape", "begin", "end", "strides"]
        check_op(
            "StridedSliceGrad", **dict(zip(known, vectors, strict=True)), dy=array(tf_slice, "f32"),
            const=known if const else ["strides"], known_dims=known, **masks,
        )  # fmt: skip


def strided(x: np.ndarray, begin: list[int], end: list[int], strides: list[int], masks: dict[str, int]) -> tuple[int, ...]:
    """The shape of TF's StridedSlice."""
    from disc_tf.testing.tf_case import tensorflow

    vectors = [np.array(v, np.int32) for v in (begin, end, strides)]
    return tuple(tensorflow().raw_ops.StridedSlice(input=x, begin=vectors[0], end=vectors[1], strides=vectors[2], **masks).shape)


@pytest.mark.parametrize("dtype", [DType.F16, DType.F64, DType.I32, DType.U8, DType.BOOL], ids=str)
def test_strided_slice_grad_dtypes(dtype) -> None:
    vectors = {k: np.array(v, np.int64) for k, v in (("shape", [5, 4]), ("begin", [4, 0]), ("end", [0, 4]), ("strides", [-1, 2]))}
    check_op("StridedSliceGrad", **vectors, dy=array((4, 2), dtype), const=["shape", "begin", "end", "strides"])


def test_strided_slice_grad_misfit() -> None:
    vectors = {k: np.array(v, np.int64) for k, v in (("shape", [5]), ("begin", [1]), ("end", [4]), ("strides", [1]))}
    for n in (2, 4):
        check_op("StridedSliceGrad", **vectors, dy=array((n,), "f32"), const=list(vectors))


@pytest.mark.parametrize("mode", ["REFLECT", "SYMMETRIC"])
@pytest.mark.parametrize("const", [True, False])
def test_mirror_pad_grad(mode, const) -> None:
    cases = [((9, 8), [[2, 1], [0, 3]]), ((5, 4, 3), [[0, 0], [1, 1], [1, 0]]), ((4, 5), [[0, 0], [0, 0]]), ((6,), [[3, 2]])]
    for shape, paddings in cases:
        check_op(
            "MirrorPadGrad", input=array(shape, "f32"), paddings=np.array(paddings, np.int32), mode=mode,
            const=["paddings"] if const else [], known_dims=["paddings"],
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F64, DType.I32, DType.U8], ids=str)
def test_mirror_pad_grad_dtypes(dtype) -> None:
    paddings = np.array([[2, 1], [1, 1]], np.int64)
    check_op("MirrorPadGrad", input=array((7, 6), dtype), paddings=paddings, mode="SYMMETRIC", const=["paddings"])
