"""Generators of gradients, resizing, losses and special functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from disc_tf.testing.fuzz_data_ops import finite, small_ints
from disc_tf.testing.fuzz_generator import Generator, generator
from disc_tf.testing.fuzz_image_ops import image, weights
from disc_tf.testing.fuzz_program import Ref
from disc_tf.testing.tf_case import tensorflow

#: gradient -> the operand beside "gradients", or None where they are y and dy
_ELEMENTWISE = {
    "ReluGrad": "features", "Relu6Grad": "features", "LeakyReluGrad": "features", "EluGrad": "outputs", "SeluGrad": "outputs",
    "SoftplusGrad": "features", "SoftsignGrad": "features", "SigmoidGrad": None, "TanhGrad": None, "SqrtGrad": None, "RsqrtGrad": None,
    "InvGrad": None, "ReciprocalGrad": None,
}  # fmt: skip


def _twin(g: Generator, x: Ref) -> Ref:
    """Another value of the dtype and shape of ``x``."""
    found = [r for r in g.refs() if r != x and g.value(r).dtype == g.value(x).dtype and all(a == b for a, b in g.shapes_of(r, x))]
    return g.choice(found) if found and g.flip() else g.add("Identity", {"input": x})[0]


@generator(2)
def elementwise_gradient(g: Generator) -> None:
    op = g.choice(list(_ELEMENTWISE))
    x = g.pick("f", exact=op in ("ReluGrad", "Relu6Grad", "LeakyReluGrad"))
    if x is None:
        return
    if op == "SqrtGrad" and not g.all_within(x, -1e37, 1e37):
        return  # TensorFlow's vectors divide by way of 1 / y, which it flushes to 0, its single elements do not
    other = _ELEMENTWISE[op]
    operands = {"y": x, "dy": _twin(g, x)} if other is None else {"gradients": _twin(g, x), other: x}
    g.add(op, operands, ulps=16)


@generator()
def bias_gradient(g: Generator) -> None:
    x = g.pick("f", min_rank=2, max_rank=4)
    if x is not None:
        g.add("BiasAddGrad", {"out_backprop": x}, ulps=4, sums=True)


@generator()
def cross_entropy(g: Generator) -> None:
    x = g.pick("f", min_rank=2, max_rank=2)
    if x is None or not finite(g, x):
        return
    if g.flip():
        labels = g.add("Softmax", {"logits": _twin(g, x)}, ulps=64)
        if labels:
            g.add("SoftmaxCrossEntropyWithLogits", {"features": x, "labels": labels[0]}, ulps=256, floor=1.0)
    elif g.shape(x)[1]:
        labels = small_ints(g, g.shape(x)[1], like=x)
        if labels is not None:
            g.add("SparseSoftmaxCrossEntropyWithLogits", {"features": x, "labels": labels}, ulps=256, floor=1.0)


@generator()
def slice_gradient(g: Generator) -> None:
    x = g.pick("f", min_rank=1, max_rank=3)
    if x is None:
        return
    tf = tensorflow()
    shape = g.add("Shape", {"input": x}, out_type=tf.int32)[0]
    n = g.rank(x)
    ints = [g.const(v, np.int32) for v in ([0] * n, [2] * n, [1] * n)]
    end_mask = int(g.rng.integers(1 << n))
    part = g.add("StridedSlice", {"input": x, "begin": ints[0], "end": ints[1], "strides": ints[2]}, end_mask=end_mask)
    if part:
        operands = {"shape": shape, "begin": ints[0], "end": ints[1], "strides": ints[2], "dy": part[0]}
        g.add("StridedSliceGrad", operands, end_mask=end_mask)


@generator()
def broadcast_gradient(g: Generator) -> None:
    """How a broadcast's gradient is summed back: as every training graph has it."""
    x = g.pick("f", min_rank=1, max_rank=3)
    y = g.pick("f", min_rank=1, max_rank=3, like=x) if x else None
    if x is None or y is None:
        return
    tf = tensorflow()
    both = g.add("Mul", {"x": x, "y": y})
    shapes = [g.add("Shape", {"input": v}, out_type=tf.int32)[0] for v in (x, y)]
    axes = g.add("BroadcastGradientArgs", {"s0": shapes[0], "s1": shapes[1]}) if both else []
    if axes:
        total = g.add("Sum", {"input": both[0], "axis": axes[0]}, keep_dims=False, ulps=4, sums=True)
        if total:
            g.add("Reshape", {"tensor": total[0], "shape": shapes[0]})


@generator()
def convolution_gradient(g: Generator) -> None:
    """By the filter, of a plain or a depthwise convolution."""
    x = image(g)
    if x is None or not finite(g, x):
        return
    window = [int(v) for v in g.rng.integers(1, 4, 2)]
    stride, padding = int(g.choice((1, 1, 2))), g.choice(("SAME", "VALID"))
    deep = g.flip(0.3)
    w = weights(g, x, *window, g.shape(x)[-1], int(g.choice((1, 3, 5))))
    forward: dict[str, Any] = {"strides": [1, stride, stride, 1], "padding": padding, "ulps": 2, "sums": True}
    y = g.add("DepthwiseConv2dNative" if deep else "Conv2D", {"input": x, "filter": w}, **forward)
    if not y or any(0 in shape for shapes in g.shapes_of(x, y[0]) for shape in shapes):
        return  # TensorFlow's kernel dies on some empty operands
    size = g.const(g.shape(w), np.int32)
    operands = {"input": x, "filter_sizes": size, "out_backprop": y[0]}
    g.add("DepthwiseConv2dNativeBackpropFilter" if deep else "Conv2DBackpropFilter", operands, **forward)
    if deep:
        shape = g.add("Shape", {"input": x}, out_type=tensorflow().int32)[0]
        g.add("DepthwiseConv2dNativeBackpropInput", {"input_sizes": shape, "filter": w, "out_backprop": y[0]}, **forward)


@generator()
def pooling_gradient(g: Generator) -> None:
    x = image(g)
    if x is None or not g.exact(x) or not finite(g, x):
        return
    ksize = [1, *(int(v) for v in g.rng.integers(1, 4, 2)), 1]
    strides = [1, *(int(v) for v in g.rng.integers(1, 3, 2)), 1]
    how: dict[str, Any] = {"ksize": ksize, "strides": strides, "padding": g.choice(("SAME", "VALID"))}
    if g.flip():
        y = g.add("MaxPool", {"input": x}, **how)
        if y and not any(0 in shape for shapes in g.shapes_of(x, y[0]) for shape in shapes):  # TensorFlow leaves memory as it was then
            g.add("MaxPoolGrad", {"orig_input": x, "orig_output": y[0], "grad": y[0]}, **how, ulps=4, sums=True)
            if g.flip():
                g.add("MaxPoolGradGrad", {"orig_input": x, "orig_output": y[0], "grad": x}, **how)
    else:
        y = g.add("AvgPool", {"value": x}, **how, ulps=2, sums=True)
        shape = g.add("Shape", {"input": x}, out_type=tensorflow().int32)[0]
        if y:
            g.add("AvgPoolGrad", {"orig_input_shape": shape, "grad": y[0]}, **how, ulps=4, sums=True)


@generator()
def pooling_gradient_3d(g: Generator) -> None:
    """By the data, and the gradient of that. Nothing is empty: TensorFlow's second gradient refuses it."""
    x = image(g, 5, "float32")
    if x is None or str(g.value(x).dtype) not in ("float32", "bfloat16") or not g.exact(x) or not finite(g, x):
        return
    ksize = [1, *(int(v) for v in g.rng.integers(1, 4, 3)), 1]
    strides = [1, *(int(g.rng.integers(1, min(k, 2) + 1)) for k in ksize[1:4]), 1]
    how: dict[str, Any] = {"ksize": ksize, "strides": strides, "padding": g.choice(("SAME", "VALID"))}
    y = g.add("MaxPool3D", {"input": x}, **how)
    if not y or any(0 in shape for shapes in g.shapes_of(x, y[0]) for shape in shapes):
        return
    sign = g.add("Sign", {"x": y[0]})[0]  # sums of these are exact
    g.add("MaxPool3DGrad", {"orig_input": x, "orig_output": y[0], "grad": sign}, **how)
    if g.flip():
        g.add("MaxPool3DGradGrad", {"orig_input": x, "orig_output": y[0], "grad": x}, **how)


@generator()
def crop_gradient(g: Generator) -> None:
    """Boxes that may end outside of the image; the image's size constant or from its shape."""
    x = image(g)
    if x is None or not g.all_within(x, -16, 16) or any(0 in shape for (shape,) in g.shapes_of(x)):
        return
    n = int(g.rng.integers(1, 4))
    corners = g.const(g.rng.uniform(-0.3, 1.3, (n, 4)).astype(np.float32))
    which = g.const(np.zeros(n, np.int32))
    rows, columns = (int(v) for v in g.rng.integers(1, 6, 2))
    grads = g.placeholder("float32", (n, rows, columns, g.shape(x)[3]), special=False)
    operands = {"boxes": corners, "box_ind": which, "grads": grads}
    kind = str(g.value(x).dtype)
    if kind != "bfloat16" and g.flip():
        g.add("CropAndResizeGradBoxes", {**operands, "image": x}, method="bilinear", ulps=32, floor=2e4)
        return
    tf = tensorflow()
    shape = g.add("Shape", {"input": x}, out_type=tf.int32)[0]
    dtype = g.choice((tf.float16, tf.float32, tf.float64))
    g.add("CropAndResizeGradImage", {**operands, "image_size": shape}, T=dtype, method="bilinear", ulps=64, floor=4.0)


@generator(2)
def resize(g: Generator) -> None:
    x = image(g)
    if x is None or not finite(g, x):
        return
    tf = tensorflow()
    size = g.const(g.rng.integers(1, 9, 2), np.int32)
    if g.flip():
        shape = g.add("Shape", {"input": x}, out_type=tf.int32)[0]
        ints = [g.const([v], np.int32) for v in (1, 3, 1)]
        plane = g.add("StridedSlice", {"input": shape, "begin": ints[0], "end": ints[1], "strides": ints[2]})
        size = g.add("Mul", {"x": plane[0], "y": g.const(2, np.int32)})[0] if plane else size
    how = g.choice(({"align_corners": False, "half_pixel_centers": False}, {"align_corners": True}, {"half_pixel_centers": True}))
    which = g.choice(("ResizeBilinear", "ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea"))
    if which == "ResizeArea":
        g.add(which, {"images": x, "size": size}, align_corners=bool(how.get("align_corners")), ulps=64, floor=4.0)
    elif which == "ResizeNearestNeighbor":
        g.add(which, {"images": x, "size": size}, **how)
    else:
        g.add(which, {"images": x, "size": size}, **how, ulps=64, floor=4.0)


@generator()
def training_norm(g: Generator) -> None:
    x = image(g, 4, "float32")
    if x is None or str(g.value(x).dtype) != "float32" or not finite(g, x):
        return
    c = g.shape(x)[-1]
    scale, offset = (g.const(g.data("float32", (c,), False)) for _ in range(2))
    empty = g.const(np.zeros(0, np.float32))
    operands = {"x": x, "scale": scale, "offset": offset, "mean": empty, "variance": empty}
    g.add("FusedBatchNormV3", operands, is_training=True, epsilon=0.1, ulps=512, floor=8.0, undefined=(1, 2, 3, 4, 5))


@generator()
def special(g: Generator) -> None:
    """Functions of one or two positive arguments, where they are smooth."""
    x = g.pick("f")
    if x is None or str(g.value(x).dtype) not in ("float32", "float64") or not finite(g, x):
        return
    t = g.value(x).dtype
    a = g.add("AddV2", {"x": g.add("Abs", {"x": x})[0], "y": g.const(0.5, t)})[0]
    how = int(g.rng.integers(4))
    if how == 0:
        op = g.choice(("BesselI0e", "BesselI1e", "BesselK0e", "BesselK1e", "Spence", "Dawsn"))
        g.add(op, {"x": a}, ulps=256, floor=1.0)
    elif how == 1:
        g.add(g.choice(("Igamma", "Igammac")), {"a": a, "x": _twin(g, a)}, ulps=4096, floor=1.0)
    elif how == 2:
        unit = g.add("Sigmoid", {"x": x}, ulps=8)
        g.add(g.choice(("Erfinv", "Ndtri")), {"x": unit[0]}, ulps=64, floor=1.0)
    else:
        g.add("NextAfter", {"x1": x, "x2": _twin(g, x)}) if g.exact(x) else None


@generator()
def random_numbers(g: Generator) -> None:
    """Stateless: the same seed gives the same numbers."""
    x = g.pick("fib", min_rank=1, max_rank=3)
    if x is None:
        return
    tf = tensorflow()
    shape = g.add("Shape", {"input": x}, out_type=tf.int32)[0]
    seed = g.const(g.rng.integers(0, 100, 2), np.int64)
    which = int(g.rng.integers(3))
    if which == 0:
        g.add("StatelessRandomUniform", {"shape": shape, "seed": seed}, dtype=g.choice((tf.float32, tf.float64)))
    elif which == 1:
        g.add("StatelessRandomNormal", {"shape": shape, "seed": seed}, dtype=tf.float32, ulps=64, floor=1.0)
    else:
        ends = [g.const(v, np.int32) for v in (-3, 40)]
        g.add("StatelessRandomUniformInt", {"shape": shape, "seed": seed, "minval": ends[0], "maxval": ends[1]})


@generator()
def linear_algebra(g: Generator) -> None:
    """On well-conditioned square matrices."""
    t = np_float(g)
    n = int(g.rng.integers(1, 5))
    base = g.placeholder(t, ("b", n, n), special=False)
    gram = g.add("BatchMatMulV2", {"x": base, "y": base}, adj_y=True, ulps=2, sums=True)
    eye = g.const(np.eye(n) * 4, g.value(base).dtype)
    a = g.add("AddV2", {"x": gram[0], "y": eye})[0]
    loose: dict[str, Any] = {"ulps": 4096, "floor": 16.0}
    how = int(g.rng.integers(4))
    if how == 0:
        g.add("Cholesky", {"input": a}, **loose)
    elif how == 1:
        g.add("MatrixInverse", {"input": a}, adjoint=g.flip(), **loose)
    elif how == 2:
        g.add("MatrixSolve", {"matrix": a, "rhs": base}, adjoint=g.flip(), **loose)
    else:
        lower = g.flip()
        g.add("MatrixTriangularSolve", {"matrix": a, "rhs": base}, lower=lower, adjoint=g.flip(), **loose)


def np_float(g: Generator) -> str:
    return g.choice(("float32", "float64"))
