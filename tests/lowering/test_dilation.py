"""SpaceToBatchND, a convolution and BatchToSpaceND as one dilated convolution: TF against the rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from disc_tf.ir.core import Op
from disc_tf.testing.graph_case import Case, case, check_graph, spec
from disc_tf.testing.native_case import TARGETS
from disc_tf.testing.tf_case import Tolerance, array, tensorflow

SUM = Tolerance(ulps=16, relative_floor=1.0)


def convolutions(c: Case) -> list[Op]:
    """The convolutions that anybody reads."""
    ops = c.imported.module.main.body.ops
    return [op for op in ops if op.name == "convolution" and any(r.uses for r in op.results)]


def check(fn: Callable[..., Any], shapes: list[tuple[int, ...]], *specs: Any, dilations: tuple[int, ...] | None) -> None:
    c = case(fn, *specs)
    found = convolutions(c)
    if dilations is None:
        assert all(set(op.attrs["rhs_dilation"]) == {1} for op in found)
    else:
        assert tuple(found[-1].attrs["rhs_dilation"]) == dilations
    check_graph(c, [[array(s, "f32", 1)] for s in shapes], TARGETS[:1], SUM)


@pytest.mark.parametrize(("rate", "window"), [(2, 3), (3, 2)])
def test_planes(rate, window) -> None:
    tf = tensorflow()
    w = tf.constant(array((window, window, 3, 4), "f32", 2))

    def same(x):
        block, size = [rate, rate], tf.shape(x)[1:3]
        base = [(window - 1) * rate // 2, (window - 1) * rate - (window - 1) * rate // 2]
        paddings, crops = tf.required_space_to_batch_paddings(size, block, [base, base])
        y = tf.raw_ops.SpaceToBatchND(input=x, block_shape=block, paddings=paddings)
        y = tf.raw_ops.Conv2D(input=y, filter=w, strides=[1] * 4, padding="VALID")
        return tf.raw_ops.BatchToSpaceND(input=y, block_shape=block, crops=crops)

    shapes = [(2, 7, 9, 3), (1, 1, 1, 3), (0, 6, 6, 3), (2, 12, 5, 3)]
    check(same, shapes, spec("float32", None, None, None, 3), dilations=(rate, rate))


def test_padding_and_own_dilation() -> None:
    """The convolution pads and dilates too; blocks of different sizes; crops cut."""
    tf = tensorflow()
    w = tf.constant(array((3, 2, 3, 4), "f32", 2))

    def fn(x):
        y = tf.raw_ops.SpaceToBatchND(input=x, block_shape=[2, 3], paddings=[[1, 1], [0, 3]])
        y = tf.raw_ops.Conv2D(input=y, filter=w, strides=[1] * 4, padding="SAME", dilations=[1, 2, 1, 1])
        return tf.raw_ops.BatchToSpaceND(input=y, block_shape=[2, 3], crops=[[1, 0], [0, 2]])

    check(fn, [(2, 6, 6, 3), (1, 10, 3, 3), (1, 7, 6, 3)], spec("float32", None, None, None, 3), dilations=(4, 3))


@pytest.mark.parametrize("causal", [True, False])
def test_lines(causal) -> None:
    """A one-dimensional convolution has a unit axis around it."""
    tf = tensorflow()
    w = tf.constant(array((1, 3, 5, 4), "f32", 2))

    def fn(x):
        size = tf.shape(x)[1:2]
        paddings, crops = tf.required_space_to_batch_paddings(size, [4], [[8, 0] if causal else [4, 4]])
        y = tf.raw_ops.SpaceToBatchND(input=x, block_shape=[4], paddings=paddings)
        y = tf.raw_ops.Conv2D(input=tf.expand_dims(y, 1), filter=w, strides=[1] * 4, padding="VALID")
        return tf.nn.relu(tf.raw_ops.BatchToSpaceND(input=tf.squeeze(y, [1]), block_shape=[4], crops=crops))

    check(fn, [(2, 16, 5), (1, 13, 5), (3, 1, 5), (0, 8, 5)], spec("float32", None, None, 5), dilations=(1, 4))


def test_depthwise() -> None:
    tf = tensorflow()
    w = tf.constant(array((3, 3, 4, 1), "f32", 2))

    def fn(x):
        y = tf.raw_ops.SpaceToBatchND(input=x, block_shape=[2, 2], paddings=[[2, 2], [2, 2]])
        y = tf.raw_ops.DepthwiseConv2dNative(input=y, filter=w, strides=[1] * 4, padding="VALID")
        return tf.raw_ops.BatchToSpaceND(input=y, block_shape=[2, 2], crops=[[0, 0], [0, 0]])

    check(fn, [(2, 6, 8, 4), (1, 2, 2, 4), (1, 3, 2, 4)], spec("float32", None, None, None, 4), dilations=(2, 2))


def test_what_stays() -> None:
    """Another block, a stride, or something between: no dilated convolution."""
    tf = tensorflow()
    w = tf.constant(array((2, 2, 3, 4), "f32", 2))

    def graph(back: list[int], stride: int, between: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def fn(x):
            y = tf.raw_ops.SpaceToBatchND(input=x, block_shape=[2, 2], paddings=[[0, 0], [0, 0]])
            y = tf.raw_ops.Conv2D(input=y, filter=w, strides=[1, stride, stride, 1], padding="SAME")
            return tf.raw_ops.BatchToSpaceND(input=between(y), block_shape=back, crops=[[0, 0], [0, 0]])

        return fn

    given = spec("float32", None, None, None, 3)
    shapes = [(2, 6, 8, 3)]
    check(graph([4, 1], 1, lambda y: y), shapes, given, dilations=None)
    check(graph([2, 2], 2, lambda y: y), shapes, given, dilations=None)
    check(graph([2, 2], 1, tf.nn.relu), shapes, given, dilations=None)


def test_results_that_others_read() -> None:
    tf = tensorflow()
    w = tf.constant(array((2, 2, 3, 4), "f32", 2))

    def fn(x):
        y = tf.raw_ops.SpaceToBatchND(input=x, block_shape=[2, 2], paddings=[[0, 0], [0, 0]])
        z = tf.raw_ops.Conv2D(input=y, filter=w, strides=[1] * 4, padding="VALID")
        return tf.raw_ops.BatchToSpaceND(input=z, block_shape=[2, 2], crops=[[0, 0], [0, 0]]), y, z

    c = case(fn, spec("float32", None, None, None, 3))
    check_graph(c, [[array(s, "f32", 1)] for s in ((2, 6, 8, 3), (1, 2, 4, 3))], TARGETS[:1], SUM)
    assert {tuple(op.attrs["rhs_dilation"]) for op in convolutions(c)} == {(1, 1), (2, 2)}


def test_keras_causal_stack() -> None:
    """As TF exports a stack of dilated layers: `tf.nn.convolution` by hand."""
    tf = tensorflow()
    ws = [tf.constant(array((2, 3, 3), "f32", k)) for k in range(3)]

    def fn(x):
        for k, w in enumerate(ws):
            x = x + tf.nn.tanh(tf.nn.conv1d(tf.pad(x, [[0, 0], [2**k, 0], [0, 0]]), w, 1, "VALID", dilations=2**k))
        return x

    c = case(fn, spec("float32", None, None, 3))
    check_graph(c, [[np.asarray(array(s, "f32", 1))] for s in ((2, 17, 3), (1, 1, 3))], TARGETS[:1], SUM)
