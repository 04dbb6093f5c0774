"""Limits of docs/ops.md give their reason in the report: operands that are not known at compile time, layouts, lists that leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from disc_tf.lowering import all_rules
from disc_tf.lowering.registry import RULES
from disc_tf.optimizer import optimize_graph_def

ops, v1 = tf.raw_ops, tf.compat.v1


def given(shape: list[int | None], dtype: Any = tf.float32) -> Any:
    return v1.placeholder(dtype, shape)


def number() -> Any:
    return given([], tf.int32)


def numbers(n: int) -> Any:
    return given([n], tf.int32)


def x(*shape: int | None) -> Any:
    return given([None, *shape])


#: op -> (its limit in docs/ops.md, code and words of the reason, a graph that is beyond it)
CASES: dict[str, tuple[str, str, str, Callable[[], Any]]] = {
    "Sum": ("axes known at compile time", "NOT_CONSTANT", "operand 1 of Sum", lambda: ops.Sum(input=x(4), axis=numbers(1))),
    "ArgMax": (
        "dimension known at compile time", "NOT_CONSTANT", "ArgMax", lambda: ops.ArgMax(input=x(4), dimension=number()),
    ),
    "Transpose": ("the permutation is constant", "NOT_CONSTANT", "permutation", lambda: ops.Transpose(x=x(4), perm=numbers(2))),
    "ConcatV2": ("the axis is constant", "NOT_CONSTANT", "axis of ConcatV2", lambda: ops.ConcatV2(values=[x(4), x(4)], axis=number())),
    "Cumsum": ("the axis is constant", "NOT_CONSTANT", "Cumsum", lambda: ops.Cumsum(x=x(4), axis=number())),
    "GatherV2": (
        "the axis is constant", "NOT_CONSTANT", "axis of GatherV2", lambda: ops.GatherV2(params=x(4), indices=numbers(3), axis=number()),
    ),
    "StridedSlice": (
        "strides are constant", "NOT_CONSTANT", "strides of StridedSlice",
        lambda: ops.StridedSlice(input=x(4), begin=[0, 0], end=[1, 1], strides=numbers(2)),
    ),
    "SpaceToBatchND": (
        "block_shape is constant", "NOT_CONSTANT", "block_shape",
        lambda: ops.SpaceToBatchND(input=x(4, 4, 3), block_shape=numbers(2), paddings=[[0, 0], [0, 0]]),
    ),
    "MatrixSetDiagV3": (
        "k is constant", "NOT_CONSTANT", "MatrixSetDiagV3", lambda: ops.MatrixSetDiagV3(input=x(4, 4), diagonal=x(4), k=number()),
    ),
    "Reverse": ("the mask is constant", "NOT_CONSTANT", "mask of Reverse", lambda: ops.Reverse(tensor=x(4), dims=given([2], tf.bool))),
    "Roll": ("the axes are constant", "NOT_CONSTANT", "axis of Roll", lambda: ops.Roll(input=x(4), shift=1, axis=number())),
    "AvgPoolGrad": (
        "channels last", "ATTRIBUTE", "NCHW",
        lambda: ops.AvgPoolGrad(
            orig_input_shape=[2, 3, 8, 8], grad=x(3, 4, 4), ksize=[1, 1, 2, 2], strides=[1, 1, 2, 2], padding="VALID", data_format="NCHW"
        ),
    ),
    "DepthToSpace": ("NHWC", "ATTRIBUTE", "NCHW", lambda: ops.DepthToSpace(input=x(4, 4, 4), block_size=2, data_format="NCHW")),
}  # fmt: skip


@pytest.mark.parametrize("op", CASES)
def test_the_report_says_what_is_beyond_a_limit(op: str) -> None:
    limit, code, words, build = CASES[op]
    all_rules()
    assert limit in RULES[op].limits, "the page says something else"
    with tf.Graph().as_default() as graph:
        tf.tanh(tf.cast(build(), tf.float32), name="out")
    report = optimize_graph_def(graph.as_graph_def(), ["out"], targets=("native",), min_cluster_size=1, dry_run=True).report
    (found,) = [entry for entry in report.left_out if entry.op == op]
    assert found.code == code and words in found.reason, found
