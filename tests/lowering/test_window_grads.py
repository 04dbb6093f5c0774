"""Gradients of convolutions and pooling, and MaxPoolWithArgmax: TF against the rules."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.lowering.registry import NUMBERS
from disc_tf.testing.tf_case import MODES, Failure, Tolerance, array, check_op, lower_graph, one_op_graph, our_answer, tf_answer

SUM = Tolerance(ulps=32, relative_floor=1.0)
FLOATS = [d for d in DType if d.is_float]
PADDINGS = ("SAME", "VALID")
#: (spatial extents, strides, window)
PLANE = [((7, 9), (1, 1), (3, 3)), ((8, 6), (2, 2), (2, 4)), ((5, 4), (1, 2), (1, 2)), ((3, 3), (3, 2), (2, 1))]
SPACE = [((5, 4, 6), (1, 1, 1), (2, 3, 2)), ((4, 5, 4), (2, 1, 2), (2, 1, 3))]


def windows(extents, window, strides, padding) -> list[int]:
    """How many windows fit along each axis."""
    ends = [d if padding == "SAME" else d - k + 1 for d, k in zip(extents, window, strict=True)]
    return [-(-n // s) for n, s in zip(ends, strides, strict=True)]


def outer(strides) -> list[int]:
    return [1, *strides, 1]


@pytest.mark.parametrize("padding", PADDINGS)
def test_filter_grads(padding) -> None:
    for cases, op in ((PLANE, "Conv2DBackpropFilter"), (SPACE, "Conv3DBackpropFilterV2")):
        for extents, strides, window in cases if padding == "SAME" else cases[1:2]:
            counts = windows(extents, window, strides, padding)
            sizes = np.array([*window, 3, 5], np.int32)
            for batch in (2, 0):
                check_op(
                    op, input=array((batch, *extents, 3), "f32"), filter_sizes=sizes, out_backprop=array((batch, *counts, 5), "f32", 1),
                    strides=outer(strides), padding=padding, const=["filter_sizes"], tol=SUM,
                )  # fmt: skip


@pytest.mark.parametrize("op", ["Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter", "DepthwiseConv2dNativeBackpropInput"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dtypes(op, dtype) -> None:
    x, multiplier = array((2, 5, 6, 4), dtype), 4 if op.startswith("Conv") else 1
    sizes = np.array([3, 2, 4, multiplier], np.int32)
    g = array((2, 3, 3, 4), dtype, 1)
    if op.endswith("Input"):
        check_op(
            op, input_sizes=np.array(x.shape, np.int32), filter=array(sizes, dtype, 2), out_backprop=g, strides=outer((2, 2)),
            padding="SAME", const=["input_sizes", "filter"], known_dims=["out_backprop:3"], tol=SUM,
        )  # fmt: skip
    else:
        check_op(op, input=x, filter_sizes=sizes, out_backprop=g, strides=[1, 2, 2, 1], padding="SAME", const=["filter_sizes"], tol=SUM)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("multiplier", [1, 3])
def test_depthwise_grads(padding, multiplier) -> None:
    for extents, strides, window in PLANE if multiplier == 1 else PLANE[1:2]:
        if strides[0] != strides[1]:
            continue  # TF's depthwise kernels take equal strides only
        for batch in (2, 0):
            g = array((batch, *windows(extents, window, strides, padding), 4 * multiplier), "f32", 1)
            if batch:  # TF's result is uninitialised memory for nothing (ours is 0)
                check_op(
                    "DepthwiseConv2dNativeBackpropFilter", input=array((batch, *extents, 4), "f32"), out_backprop=g, strides=outer(strides),
                    filter_sizes=np.array([*window, 4, multiplier], np.int32), padding=padding, const=["filter_sizes"], tol=SUM,
                )  # fmt: skip
            check_op(
                "DepthwiseConv2dNativeBackpropInput", input_sizes=np.array([batch, *extents, 4], np.int32), out_backprop=g,
                filter=array((*window, 4, multiplier), "f32", 2), strides=outer(strides), padding=padding,
                const=["input_sizes", "filter"], known_dims=["out_backprop:3"], tol=SUM,
            )  # fmt: skip


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_conv3d_input_grad(padding, dtype) -> None:
    for extents, strides, window in SPACE:
        check_op(
            "Conv3DBackpropInputV2", input_sizes=np.array([2, *extents, 3], np.int32), filter=array((*window, 3, 5), dtype),
            out_backprop=array((2, *windows(extents, window, strides, padding), 5), dtype, 1), strides=outer(strides), padding=padding,
            const=["input_sizes", "filter"], known_dims=["out_backprop:4"], tol=SUM,
        )  # fmt: skip


def test_misfits() -> None:
    for shape, sizes in (((2, 4, 3, 5), [3, 3, 3, 5]), ((2, 3, 4, 4), [3, 3, 3, 5]), ((1, 3, 4, 5), [3, 3, 3, 5])):
        check_op(
            "Conv2DBackpropFilter", input=array((2, 5, 7, 3), "f32"), filter_sizes=np.array(sizes, np.int32), strides=[1, 2, 2, 1],
            out_backprop=array(shape, "f32"), padding="SAME", const=["filter_sizes"], tol=SUM,
        )  # fmt: skip


# ---- pooling -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", PADDINGS)
def test_max_pool_grad(padding) -> None:
    for extents, strides, window in PLANE:
        for batch, channels in ((2, 3), (0, 3), (1, 33)):
            x = array((batch, *extents, channels), "f32")
            g = array((batch, *windows(extents, window, strides, padding), channels), "f32", 1)
            check_op(
                "MaxPoolGrad", orig_input=x, orig_output=g, grad=g, ksize=outer(window), strides=outer(strides), padding=padding, tol=SUM
            )  # fmt: skip


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
def test_argmax(batched, padding) -> None:
    for extents, strides, window in PLANE:
        for batch in (2, 0):
            check_op(
                "MaxPoolWithArgmax", input=array((batch, *extents, 3), "f32"), ksize=outer(window), strides=outer(strides), padding=padding,
                include_batch_in_index=batched, Targmax=np.int32 if batched else np.int64,
            )  # fmt: skip


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
def test_max_pool_grad_with_argmax(batched, padding) -> None:
    """TensorFlow's own indices, and any others in the same image: several gradients at one place."""
    for extents, strides, window in (c for c in PLANE if fits(c[0], c[2], padding)):
        for batch, channels in ((2, 3), (0, 3), (2, 0), (1, 33)):
            x, how = array((batch, *extents, channels), "f32"), {"ksize": outer(window), "strides": outer(strides), "padding": padding}
            if x.size:
                found = tf_answer("MaxPoolWithArgmax", {"input": x, **how, "include_batch_in_index": batched})
                assert isinstance(found, list), found
                indices = [found[1]]
            else:
                indices = [np.zeros((batch, *windows(extents, window, strides, padding), channels), np.int64)]
            g = array(indices[0].shape, "f32", 1)
            if x.size:
                image = x.size // batch
                indices.append(array(g.shape, "i64", 2, 0, image - 1) + image * batched * np.arange(batch).reshape(-1, 1, 1, 1))
            for at in indices:
                check_op("MaxPoolGradWithArgmax", input=x, grad=g, argmax=at, include_batch_in_index=batched, tol=SUM, **how)


@pytest.mark.parametrize("dtype", sorted(NUMBERS, key=str), ids=str)
def test_max_pool_grad_with_argmax_dtypes(dtype) -> None:
    x, g, at = array((2, 5, 6, 3), dtype), array((2, 3, 3, 3), dtype, 1), array((2, 3, 3, 3), "i64", 2, 0, 5 * 6 * 3 - 1)
    check_op("MaxPoolGradWithArgmax", input=x, grad=g, argmax=at, ksize=[1, 3, 2, 1], strides=[1, 2, 2, 1], padding="SAME", tol=SUM)


def test_max_pool_grad_with_argmax_misfits() -> None:
    x, at = array((1, 4, 6, 2), "f32"), np.zeros((1, 2, 3, 2), np.int64)
    how = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
    for grad, argmax in ((array((1, 2, 2, 2), "f32"), at), (array((1, 2, 3, 2), "f32"), at[:, :1])):
        check_op("MaxPoolGradWithArgmax", input=x, grad=grad, argmax=argmax, **how)


@pytest.mark.parametrize("bad", [-1, 48, 2**40])
def test_max_pool_grad_with_argmax_outside(bad) -> None:
    """TensorFlow ends the process there: nothing to compare with."""
    at = np.zeros((1, 2, 3, 2), np.int64)
    at[0, 1, 1, 1] = bad
    operands = {"input": array((1, 4, 6, 2), "f32"), "grad": array((1, 2, 3, 2), "f32"), "argmax": at}
    how = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
    graph = one_op_graph("MaxPoolGradWithArgmax", {**operands, **how}, ())
    for mode in MODES:
        found = our_answer(lower_graph(graph, mode), graph.arrays)
        assert isinstance(found, Failure) and found.code == 3 and "argmax has an index outside of the input" in found.message


@pytest.mark.parametrize("dtype", sorted(NUMBERS - {DType.U64}, key=str), ids=str)
def test_max_dtypes(dtype) -> None:
    x, g = array((2, 5, 6, 3), dtype), array((2, 3, 3, 3), dtype, 1)
    check_op("MaxPoolWithArgmax", input=x, ksize=[1, 3, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    check_op("MaxPoolGrad", orig_input=x, orig_output=g, grad=g, ksize=[1, 3, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    lists = {"ksize": np.array([1, 3, 2, 1], np.int32), "strides": np.array([1, 2, 2, 1], np.int32)}
    check_op("MaxPoolGradV2", orig_input=x, orig_output=g, grad=g, **lists, padding="SAME", const=list(lists))


def test_max_specials() -> None:
    x = array((1, 4, 6, 2), "f32")
    x[0, 0, 0] = np.nan
    x[0, :2, 2:4, 0] = np.nan
    x[0, 2:, 4:, 1] = -np.inf
    x[0, 2, 1, 0] = np.inf
    x[0, 3, 3, 1] = np.nan
    g = array((1, 2, 3, 2), "f32", 1)
    check_op("MaxPoolWithArgmax", input=x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")
    check_op("MaxPoolGrad", orig_input=x, orig_output=g, grad=g, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")


def test_max_pool_grad_misfits() -> None:
    x = array((1, 4, 6, 2), "f32")
    for good, bad in (((1, 2, 3, 2), (1, 2, 2, 2)), ((1, 3, 3, 2), (1, 2, 3, 2))):
        for y, g in ((good, bad), (bad, good)):
            check_op(
                "MaxPoolGrad", orig_input=x, orig_output=array(y, "f32"), grad=array(g, "f32"), ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1],
                padding="VALID",
            )  # fmt: skip


@pytest.mark.parametrize("padding", PADDINGS)
def test_avg_pool_grads(padding) -> None:
    for op, cases in (("AvgPoolGrad", PLANE), ("AvgPool3DGrad", SPACE)):
        for extents, strides, window in cases:
            for batch in (2, 0):
                check_op(
                    op, orig_input_shape=np.array([batch, *extents, 3], np.int32), ksize=outer(window), strides=outer(strides),
                    grad=array((batch, *windows(extents, window, strides, padding), 3), "f32"), padding=padding,
                    const=["orig_input_shape"], tol=SUM,
                )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_avg_pool_grad_dtypes(dtype) -> None:
    shape = np.array([2, 5, 6, 3], np.int32)
    for const in ([], ["orig_input_shape"]):
        check_op(
            "AvgPoolGrad", orig_input_shape=shape, grad=array((2, 3, 3, 3), dtype), ksize=[1, 3, 2, 1], strides=[1, 2, 2, 1],
            padding="SAME", const=const, known_dims=["orig_input_shape"], tol=SUM,
        )  # fmt: skip


# ---- pooling over three axes, and gradients of gradients ---------------------------------------------------------------

#: (spatial extents, strides, window): also windows longer than the data, strides greater than windows, and extents of 1
CUBES = [*SPACE, ((3, 5, 4), (1, 1, 2), (5, 6, 7)), ((7, 1, 5), (3, 2, 4), (2, 1, 3)), ((11, 2, 3), (2, 2, 2), (4, 2, 3))]


def grown(shape, dtype, seed: int = 0) -> np.ndarray:
    """Few different values, exact in every dtype: windows with ties."""
    return array(shape, DType.I32, seed, 0, 5).astype(DType.from_name(str(dtype)).np)


def pooled(x: np.ndarray, window, strides, padding) -> np.ndarray:
    """TF's MaxPool or MaxPool3D of channels-last data."""
    op = "MaxPool" if x.ndim == 4 else "MaxPool3D"
    found = tf_answer(op, {"input": x, "ksize": outer(window), "strides": outer(strides), "padding": padding})
    assert isinstance(found, list), found
    return found[0]


def fits(extents, window, padding) -> bool:
    return padding == "SAME" or all(d >= k for d, k in zip(extents, window, strict=True))


@pytest.mark.parametrize("padding", PADDINGS)
def test_max_pool_3d_grads(padding) -> None:
    for extents, strides, window in (c for c in CUBES if fits(c[0], c[2], padding)):
        for batch, channels in ((2, 3), (1, 1)) if extents == CUBES[0][0] else ((2, 2),):
            x = grown((batch, *extents, channels), "f32")
            y = pooled(x, window, strides, padding)
            if padding == "SAME" and any(s > k for s, k in zip(strides, window, strict=True)):
                y = array((batch, *windows(extents, window, strides, padding), channels), DType.I32, 1, 0, 5).astype(np.float32)
            how = {"ksize": outer(window), "strides": outer(strides), "padding": padding}
            check_op("MaxPool3DGrad", orig_input=x, orig_output=y, grad=array(y.shape, "f32", 1), tol=SUM, **how)
            check_op("MaxPool3DGradGrad", orig_input=x, orig_output=y, grad=array(x.shape, "f32", 2), **how)


def test_max_pool_3d_grads_of_nothing() -> None:
    """Empty operands, which the second gradient refuses, and no window over data."""
    for shape, counts in (((0, 4, 5, 4, 3), (2, 3, 2)), ((2, 4, 5, 4, 0), (2, 3, 2)), ((1, 0, 5, 4, 3), (0, 3, 2))):
        x, y = array(shape, "f32"), array((shape[0], *counts, shape[-1]), "f32")
        how = {"ksize": outer((2, 2, 2)), "strides": outer((2, 2, 2)), "padding": "SAME"}
        check_op("MaxPool3DGrad", orig_input=x, orig_output=y, grad=y, **how)
        check_op("MaxPool3DGradGrad", orig_input=x, orig_output=y, grad=x, **how)
    x, y = array((2, 1, 4, 4, 3), "f32"), array((2, 0, 2, 2, 3), "f32")
    how = {"ksize": outer((2, 2, 2)), "strides": outer((2, 2, 2)), "padding": "VALID"}
    check_op("MaxPool3DGrad", orig_input=x, orig_output=y, grad=y, **how)
    check_op("MaxPool3DGradGrad", orig_input=x, orig_output=y, grad=x, **how)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_max_pool_3d_near_ties(dtype) -> None:
    """What is within 1e-5 of the greatest gets the gradient, too; infinities and NaN never do."""
    x = np.full((1, 4, 4, 4, 2), 0.5, np.float32)
    x += array(x.shape, "i32", 3, 0, 4) * np.float32(4e-6)
    x[0, 0, 0, 0] = np.inf
    x[0, 2, 2, 2] = np.nan
    x[0, 3, 0, 3] = -np.inf
    x[0, 0, 2] *= np.float32(1e-4)
    x = x.astype(DType.from_name(dtype).np)
    how = {"ksize": outer((2, 2, 2)), "strides": outer((2, 2, 2)), "padding": "VALID"}
    y = pooled(x, (2, 2, 2), (2, 2, 2), "VALID")
    check_op("MaxPool3DGrad", orig_input=x, orig_output=y, grad=array(y.shape, dtype, 1), tol=SUM, **how)
    check_op("MaxPool3DGradGrad", orig_input=x, orig_output=y, grad=array(x.shape, dtype, 2), **how)
    how = {"ksize": outer((3, 2, 3)), "strides": outer((1, 1, 1)), "padding": "SAME"}
    x = grown((2, 5, 4, 5, 3), dtype)
    y = pooled(x, (3, 2, 3), (1, 1, 1), "SAME")
    check_op("MaxPool3DGrad", orig_input=x, orig_output=y, grad=array(y.shape, dtype, 1), tol=SUM, **how)
    check_op("MaxPool3DGradGrad", orig_input=x, orig_output=y, grad=array(x.shape, dtype, 2), **how)


@pytest.mark.parametrize("padding", PADDINGS)
def test_max_pool_grad_grad(padding) -> None:
    for extents, strides, window in [*PLANE, ((3, 5), (1, 2), (5, 6)), ((1, 31), (1, 3), (1, 4))]:
        for batch, channels in ((2, 3), (0, 3), (1, 33), (2, 0)) if extents == (8, 6) else ((2, 3),):
            if not fits(extents, window, padding):
                continue
            x = grown((batch, *extents, channels), "f32")
            y = array((batch, *windows(extents, window, strides, padding), channels), DType.I32, 1, 0, 5).astype(np.float32)
            if x.size:
                y = pooled(x, window, strides, padding)
            how = {"ksize": outer(window), "strides": outer(strides), "padding": padding}
            check_op("MaxPoolGradGrad", orig_input=x, orig_output=y, grad=array(x.shape, "f32", 2), **how)


@pytest.mark.parametrize("dtype", sorted(NUMBERS - {DType.U64}, key=str), ids=str)
def test_max_pool_grad_grad_dtypes(dtype) -> None:
    x = grown((2, 5, 6, 3), dtype)
    y, g = pooled(x.astype(np.float32), (3, 2), (2, 2), "SAME").astype(x.dtype), array(x.shape, dtype, 2)
    y[0, 0] += y[1, 0]  # some that no element equals: 0
    check_op("MaxPoolGradGrad", orig_input=x, orig_output=y, grad=g, ksize=[1, 3, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    lists = {"ksize": np.array([1, 3, 2, 1], np.int32), "strides": np.array([1, 2, 2, 1], np.int32)}
    check_op("MaxPoolGradGradV2", orig_input=x, orig_output=y, grad=g, **lists, padding="SAME", const=list(lists))


def test_max_pool_grad_grad_specials() -> None:
    x = grown((1, 4, 6, 2), "f32")
    x[0, :2, 2:4, 0] = np.nan
    x[0, 2:, 4:, 1] = -np.inf
    x[0, 2, 1, 0] = np.inf
    x[0, 0, 0], x[0, 1, 1] = 0.0, -0.0
    y = pooled(x, (2, 2), (2, 2), "VALID")
    g = array(x.shape, "f32", 2)
    g[0, 2, 1] = np.nan
    for v in (y, np.full_like(y, np.nan), np.zeros_like(y), np.full_like(y, -np.inf)):
        check_op("MaxPoolGradGrad", orig_input=x, orig_output=v, grad=g, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")


def test_pool_grad_grad_misfits() -> None:
    for rank, first, second in ((4, "MaxPoolGrad", "MaxPoolGradGrad"), (5, "MaxPool3DGrad", "MaxPool3DGradGrad")):
        n = rank - 2
        how = {"ksize": outer([2] * n), "strides": outer([2] * n), "padding": "VALID"}
        x, y = array((1, *[4] * n, 2), "f32"), array((1, *[2] * n, 2), "f32")
        for off in (0, 1, rank - 1):
            wide = [list(v.shape) for v in (x, y)]
            wide[0][off] += 1
            wide[1][off] += 1
            check_op(second, orig_input=x, orig_output=y, grad=array(wide[0], "f32"), **how)
            check_op(second, orig_input=x, orig_output=array(wide[1], "f32"), grad=x, **how)
            check_op(first, orig_input=x, orig_output=array(wide[1], "f32"), grad=y, **how)
            check_op(first, orig_input=x, orig_output=y, grad=array(wide[1], "f32"), **how)
        for v in (y[..., :1], y[0]):
            check_op(second, orig_input=x, orig_output=v, grad=x, **how)
