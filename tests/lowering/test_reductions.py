"""Reductions, ArgMax/ArgMin, Softmax against TensorFlow."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.lowering.errors import Unsupported
from disc_tf.testing.tf_case import (
    Tolerance,
    array,
    check_op,
    lower_graph,
    one_op_graph,
    specials,
    tensorflow,
)

FLOATS = ["f32", "f64", "f16", "bf16"]
INTS = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]
SHAPES = [(3, 5, 7), (1, 5, 1), (0, 3, 2), (2, 0, 3)]
AXES = [[0], [-1], [0, 2], [1, -1], [], [0, 1, 2], 1]
SUM = Tolerance(16.0, relative_floor=1.0)


def _axes(value) -> np.ndarray:
    return np.array(value, np.int32)


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min", "Prod", "EuclideanNorm"])
@pytest.mark.parametrize("keep_dims", [False, True])
def test_axes_and_shapes(op: str, keep_dims: bool) -> None:
    for shape, axes in itertools.product(SHAPES, AXES):
        check_op(op, input=array(shape, "f32"), axis=_axes(axes), keep_dims=keep_dims, tol=SUM)


@pytest.mark.parametrize("op", ["All", "Any"])
def test_bool(op: str) -> None:
    for shape, axes in itertools.product(SHAPES, AXES):
        check_op(op, input=array(shape, "bool"), axis=_axes(axes), keep_dims=False, modes=["dynamic"])
        check_op(op, input=array(shape, "bool"), axis=_axes(axes), keep_dims=True, modes=["static"])


@pytest.mark.parametrize("dtype", FLOATS + INTS)
@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min", "Prod", "EuclideanNorm"])
def test_dtypes(op: str, dtype: str) -> None:
    if op == "EuclideanNorm" and dtype in ("u16", "u32", "u64"):
        return
    big = 3.0 if dtype in FLOATS or op == "EuclideanNorm" else 2.0**62
    for shape in ((4, 6), (0, 3), (1, 1), (2, 31)):
        x = array(shape, dtype, 2, -big, big)
        check_op(op, input=x, axis=_axes([-1]), modes=["dynamic", "static"], tol=SUM)
        check_op(op, input=x, axis=_axes([0]), keep_dims=True, modes=["partial"], tol=SUM)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_infinities(dtype: str) -> None:
    x = np.stack([specials(DType.from_name(dtype)), specials(DType.from_name(dtype))[::-1]])
    for op in ("Max", "Min", "Sum", "Mean"):
        check_op(op, input=x, axis=_axes([0]), modes=["dynamic"])
        check_op(op, input=x, axis=_axes([1]), modes=["dynamic"])


@pytest.mark.parametrize("axes", [[2], [-3], [0, 0], [0, -2]])
def test_bad_axes(axes: list[int]) -> None:
    check_op("Sum", input=array((2, 3), "f32"), axis=_axes(axes))


def test_axes_that_are_not_constant_are_left_to_tf() -> None:
    graph = one_op_graph("Sum", {"input": array((2, 3), "f32"), "axis": _axes([0])}, const=())
    with pytest.raises(Unsupported) as e:
        lower_graph(graph, "dynamic")
    assert e.value.code == "NOT_CONSTANT" and e.value.node == "tested"


def test_int_mean_is_exact_beyond_the_type() -> None:
    check_op("Mean", input=np.full((5,), 100, np.int8), axis=_axes([0]))
    check_op("Mean", input=np.full((5,), 2**31 - 1, np.int32), axis=_axes([0]))
    check_op("Mean", input=np.array([-7, 2], np.int32), axis=_axes([0]))


# ---- ArgMax, ArgMin ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, "bool"])
def test_arg_extremum(op: str, dtype: str) -> None:
    for i, shape in enumerate([(5,), (3, 7), (2, 3, 5), (1, 1), (4, 1), (0, 3)]):
        x = array(shape, dtype, i, -3, 3)  # few values: ties
        for axis in {-1, len(shape) - 1, *([1] if len(shape) > 2 else [])}:
            check_op(op, input=x, dimension=np.array(axis, np.int32), modes=["dynamic"])
        check_op(op, input=x, dimension=np.array(-1, np.int64), output_type=tensorflow().int32, modes=["static", "partial"])


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_arg_extremum_ignores_nan(op: str, dtype: str) -> None:
    values = [np.nan, np.inf, -np.inf, -1.0, 2.0, 0.0, float(np.finfo(np.float32).min)]
    with np.errstate(over="ignore"):
        x = np.array(list(itertools.product(values, repeat=3))).astype(DType.from_name(dtype).np)
    check_op(op, input=x, dimension=np.array(1, np.int32), modes=["dynamic"])
    check_op(op, input=np.ascontiguousarray(x.T), dimension=np.array(0, np.int32), modes=["static"])


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_arg_extremum_errors(op: str) -> None:
    zero = np.array(0, np.int32)
    check_op(op, input=array((0, 3), "f32"), dimension=zero)
    check_op(op, input=array((0, 0), "f32"), dimension=np.array(1, np.int32))
    check_op(op, input=array((3,), "f32"), dimension=np.array(2, np.int32))
    check_op(op, input=array((), "f32"), dimension=zero)


@pytest.mark.parametrize("output_type", ["int16", "uint16", "int32", "int64"])
def test_arg_max_output_types(output_type: str) -> None:
    tf = tensorflow()
    check_op("ArgMax", input=array((3, 9), "f32"), dimension=np.array(1, np.int32), output_type=getattr(tf, output_type))


# ---- Softmax, L2Loss ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax(op: str, dtype: str) -> None:
    for i, shape in enumerate([(5,), (3, 7), (2, 3, 31), (1, 1), (0, 4), (3, 0), (2, 0, 5)]):
        check_op(op, logits=array(shape, dtype, i), tol=Tolerance(8.0, floor=1.0 if op == "LogSoftmax" else 1e-30))


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_special_values(op: str) -> None:
    rows = [[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, 1, 2], [-np.inf] * 3, [np.inf, np.inf, 0], [1e30, -1e30, 0], [88, 89, 90]]
    check_op(op, logits=np.array(rows, np.float32), tol=Tolerance(8.0, floor=1e-6))
    check_op(op, logits=array((), "f32"))


@pytest.mark.parametrize("dtype", FLOATS)
def test_l2_loss(dtype: str) -> None:
    for shape in ((), (5,), (0,), (3, 7)):
        check_op("L2Loss", t=array(shape, dtype), tol=SUM)
