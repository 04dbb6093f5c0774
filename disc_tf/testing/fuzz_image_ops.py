"""Generators of convolutions, pooling, block rearrangements and batch normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from disc_tf.testing.fuzz_generator import Generator, generator
from disc_tf.testing.fuzz_program import Ref
from disc_tf.testing.tf_case import tensorflow


def image(g: Generator, rank: int = 4, floats: str = "") -> Ref | None:
    """A float value of this rank with few elements: one that exists, or a new placeholder with known channels."""
    found = g.pick("f", min_rank=rank, max_rank=rank)
    if found is not None and g.flip(0.6) and g.value(found).size < 3000:
        return found
    space = [g.choice(("s", "h", "s", 5, 9)) for _ in range(rank - 2)]
    dims: list[str | int] = [g.choice(("b", "b", 1, 2)), *space, int(g.choice((1, 2, 3, 4, 8)))]
    dtype = floats or g.choice(("float32", "float32", "float32", "float64", "float16", "bfloat16"))
    return g.placeholder(dtype, dims)


def weights(g: Generator, x: Ref, *dims: int) -> Ref:
    return g.const(g.data("float64", dims, False).astype(g.value(x).dtype))


def _window(g: Generator, spatial: int, most: int = 4) -> list[int]:
    return [int(g.rng.integers(1, most)) for _ in range(spatial)]


def _padding(g: Generator, spatial: int, explicit: bool) -> dict[str, Any]:
    if explicit and g.flip(0.2):
        pairs = g.rng.integers(0, 3, (spatial, 2)).reshape(-1).tolist()
        return {"padding": "EXPLICIT", "explicit_paddings": [0, 0, *pairs, 0, 0]}
    return {"padding": g.choice(("SAME", "VALID"))}


def _strides(g: Generator, spatial: int) -> list[int]:
    return [1, *(int(g.choice((1, 1, 2, 3))) for _ in range(spatial)), 1]


@generator(2)
def convolution(g: Generator) -> None:
    x = image(g)
    if x is None:
        return
    channels = g.shape(x)[-1]
    groups = int(g.choice([n for n in (1, 1, 1, 2, 4) if channels % n == 0])) if channels else 1
    w = weights(g, x, *_window(g, 2), channels // groups, groups * int(g.choice((1, 2, 5, 16))))
    dilations = [1, *([1, 1] if g.flip(0.7) else _window(g, 2)), 1]
    strides = _strides(g, 2) if dilations == [1, 1, 1, 1] else [1, 1, 1, 1]
    found = g.add("Conv2D", {"input": x, "filter": w}, strides=strides, dilations=dilations, ulps=2, sums=True, **_padding(g, 2, True))
    if found and g.flip(0.6):
        bias = weights(g, x, g.shape(found[0])[-1])
        found = g.add("BiasAdd", {"value": found[0], "bias": bias})
        if found and g.flip():
            g.add(g.choice(("Relu", "Relu6")), {"features": found[0]})
            return
    if found and g.flip(0.3):
        _normalise(g, found[0])


@generator()
def depthwise(g: Generator) -> None:
    x = image(g)
    if x is None:
        return
    w = weights(g, x, *_window(g, 2), g.shape(x)[-1], int(g.choice((1, 1, 2, 3))))
    stride = int(g.choice((1, 1, 2)))
    how = _padding(g, 2, False)
    found = g.add("DepthwiseConv2dNative", {"input": x, "filter": w}, strides=[1, stride, stride, 1], ulps=2, sums=True, **how)
    if found and g.flip(0.3):
        _normalise(g, found[0])


@generator()
def convolution_3d(g: Generator) -> None:
    x = image(g, 5)
    if x is not None:
        w = weights(g, x, *_window(g, 3, 3), g.shape(x)[-1], int(g.choice((1, 3, 8))))
        g.add("Conv3D", {"input": x, "filter": w}, strides=_strides(g, 3), ulps=2, sums=True, **_padding(g, 3, False))


@generator()
def convolution_transposed(g: Generator) -> None:
    """The gradient of a convolution by its input, with the input's size from a forward convolution's operand."""
    x = image(g)
    if x is None:
        return
    tf = tensorflow()
    features = int(g.choice((1, 2, 6)))
    w = weights(g, x, *_window(g, 2), g.shape(x)[-1], features)
    strides, padding = _strides(g, 2), _padding(g, 2, False)
    y = g.add("Conv2D", {"input": x, "filter": w}, strides=strides, ulps=2, sums=True, **padding)
    if y:
        size = g.add("Shape", {"input": x}, out_type=tf.int32)[0]
        operands = {"input_sizes": size, "filter": w, "out_backprop": y[0]}
        g.add("Conv2DBackpropInput", operands, strides=strides, ulps=2, sums=True, **padding)


@generator(2)
def pooling(g: Generator) -> None:
    x = image(g)
    if x is None:
        return
    ksize, strides = [1, *_window(g, 2), 1], _strides(g, 2)
    if g.flip():
        if g.exact(x) or g.flip():
            g.add("MaxPool", {"input": x}, ksize=ksize, strides=strides, **_padding(g, 2, True))
    else:
        g.add("AvgPool", {"value": x}, ksize=ksize, strides=strides, ulps=2, sums=True, **_padding(g, 2, False))


@generator()
def pooling_3d(g: Generator) -> None:
    x = image(g, 5)
    if x is None or str(g.value(x).dtype) not in ("float32", "float64"):
        return
    ksize, strides = [1, *_window(g, 3, 3), 1], _strides(g, 3)
    if g.has_nans(x):
        return  # which NaN counts depends on TensorFlow's vector width
    op, more = ("MaxPool3D", {}) if g.flip() else ("AvgPool3D", {"ulps": 2, "sums": True})
    g.add(op, {"input": x}, ksize=ksize, strides=strides, **_padding(g, 3, False), **more)


@generator()
def blocks(g: Generator) -> None:
    x = g.pick("fib", min_rank=3, max_rank=4) if g.flip() else image(g)
    if x is None:
        return
    how = int(g.rng.integers(3))
    if how == 0 and g.rank(x) == 4:
        if g.flip():
            g.add("SpaceToDepth", {"input": x}, block_size=int(g.choice((2, 3))))
        else:
            g.add("DepthToSpace", {"input": x}, block_size=2)
        return
    n = int(g.rng.integers(1, g.rank(x) - 1))
    block = g.rng.integers(1, 4, n)
    if how == 1:
        room = [int(-g.shape(x)[1 + i] % block[i]) for i in range(n)]
        crops = g.const([[0, r] for r in room], np.int32)
        found = g.add("SpaceToBatchND", {"input": x, "block_shape": g.const(block, np.int32), "paddings": crops})
        if found and g.flip():
            y = g.add("Neg", {"x": found[0]}) or found
            g.add("BatchToSpaceND", {"input": y[0], "block_shape": g.const(block, np.int32), "crops": crops})
    else:
        crops = g.const(g.rng.integers(0, 2, (n, 2)), np.int32)
        g.add("BatchToSpaceND", {"input": x, "block_shape": g.const(block, np.int32), "crops": crops})


@generator()
def batch_norm(g: Generator) -> None:
    x = image(g, 4, "float32")
    if x is not None:
        _normalise(g, x)


def _normalise(g: Generator, x: Ref) -> None:
    if str(g.value(x).dtype) not in ("float32", "float16", "bfloat16"):
        return
    c = g.shape(x)[-1]
    parts = [g.const(g.data("float32", (c,), False)) for _ in range(3)]
    variance = g.const(np.abs(g.data("float32", (c,), False)) + np.float32(0.1))
    operands = {"x": x, "scale": parts[0], "offset": parts[1], "mean": parts[2], "variance": variance}
    op = "FusedBatchNormV3" if str(g.value(x).dtype) != "float32" else g.choice(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"))
    g.add(op, operands, is_training=False, epsilon=1e-3, ulps=16, floor=4.0, undefined=(3, 4))
