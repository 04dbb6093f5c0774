"""Ops with implicit broadcast: one executable at shapes on both sides of its predicate, and at shapes that do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.testing.native_case import TARGETS, NativeOp, native_op
from disc_tf.testing.tf_case import Failure, Tolerance, array, difference, tf_answer

INVALID_ARGUMENT = 3
#: (shapes, whether they fit); the first ones are equal, so they take the uniform body where there are two
PAIRS = [
    ((3, 5), (3, 5)), ((1, 1), (1, 1)), ((17, 33), (17, 33)), ((0, 4), (0, 4)),
    ((1, 5), (3, 5)), ((3, 5), (1, 5)), ((3, 1), (3, 5)), ((3, 5), (3, 1)), ((1, 5), (3, 1)), ((1, 1), (3, 70)), ((3, 70), (1, 1)),
    ((0, 5), (1, 5)), ((1, 1), (0, 5)), ((3, 0), (3, 1)),
]  # fmt: skip
MISFITS = [((3, 5), (3, 4)), ((3, 5), (2, 5)), ((0, 5), (3, 5)), ((3, 5), (3, 0)), ((2, 1), (3, 4))]
BINARY = {
    "AddV2": "f32", "Sub": "i64", "Mul": "bf16", "Maximum": "f16", "Minimum": "u8", "RealDiv": "f64", "FloorDiv": "i32", "FloorMod": "f32",
    "SquaredDifference": "f32", "Pow": "f32", "Xlogy": "f32", "DivNoNan": "f32", "Less": "i32", "Equal": "bool", "NotEqual": "f16",
    "LogicalAnd": "bool", "BitwiseXor": "i16", "LeftShift": "u32", "Atan2": "f64", "GreaterEqual": "bf16", "TruncateDiv": "i8",
    "MulNoNan": "f32", "Xdivy": "f64",
}  # fmt: skip


def data(op: str, shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Values in the domain of every op above."""
    return array(shape, dtype, seed, 1.0, 4.0)


def names_of(op: str) -> tuple[str, str]:
    return ("y", "x") if op == "Atan2" else ("x", "y")


DEFAULT = Tolerance(4.0, relative_floor=1.0)


def check(compiled: NativeOp, op: str, arguments: dict, tol: Tolerance = DEFAULT) -> None:
    want, have = tf_answer(op, arguments), compiled(*(a for a in arguments.values() if isinstance(a, np.ndarray)))
    if isinstance(want, Failure):
        assert isinstance(have, Failure) and have.code == INVALID_ARGUMENT and want.code in (None, INVALID_ARGUMENT), (want, have)
        return
    assert isinstance(have, list), have
    for w, h in zip(want, have, strict=True):
        problem = difference(w, h, tol)
        assert not problem, problem


@pytest.mark.parametrize("op", BINARY)
def test_binary(op: str) -> None:
    dtype, names = BINARY[op], names_of(op)
    compiled = native_op(op, {n: data(op, (3, 5), dtype, 0) for n in names})
    assert compiled.bodies == 2
    for a, b in [*PAIRS, *MISFITS]:
        check(compiled, op, dict(zip(names, (data(op, a, dtype, 1), data(op, b, dtype, 2)), strict=True)))


@pytest.mark.parametrize("target", TARGETS)
def test_other_targets(target: str) -> None:
    compiled = native_op("AddV2", {n: array((3, 5), "f16", 0) for n in "xy"}, target=target)
    for a, b in [*PAIRS, *MISFITS]:
        check(compiled, "AddV2", {"x": array(a, "f16", 1), "y": array(b, "f16", 2)})


def test_ranks_differ() -> None:
    compiled = native_op("AddV2", {"x": array((2, 3, 5), "f32"), "y": array((3, 5), "f32")})
    for a, b in [
        ((2, 3, 5), (3, 5)), ((2, 1, 5), (3, 5)), ((2, 3, 1), (1, 5)), ((0, 3, 5), (1, 1)), ((2, 3, 5), (4, 5)), ((2, 0, 5), (1, 5)),
    ]:  # fmt: skip
        check(compiled, "AddV2", {"x": array(a, "f32", 1), "y": array(b, "f32", 2)})


@pytest.mark.parametrize("dtype", ["f32", "i64", "bool"])
def test_select(dtype: str) -> None:
    """Three operands: every one may be the one that is spread."""
    shapes = [
        ((3, 5), (3, 5), (3, 5)), ((1, 5), (3, 1), (3, 5)), ((3, 1), (1, 1), (1, 5)), ((0, 1), (1, 5), (1, 1)), ((3, 5), (3, 5), (2, 5)),
    ]  # fmt: skip
    compiled = native_op("SelectV2", {"condition": array((3, 5), "bool"), "t": array((3, 5), dtype), "e": array((3, 5), dtype)})
    assert compiled.bodies == 2
    for p, x, y in shapes:
        check(compiled, "SelectV2", {"condition": array(p, "bool", 1), "t": array(x, dtype, 2), "e": array(y, dtype, 3)})


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
def test_batch_matmul(dtype: str) -> None:
    """Batch dims broadcast; contracted ones must agree."""
    compiled = native_op("BatchMatMulV2", {"x": array((2, 3, 4), dtype), "y": array((2, 4, 5), dtype)})
    shapes = [
        ((2, 3, 4), (2, 4, 5)), ((1, 3, 4), (2, 4, 5)), ((7, 3, 4), (1, 4, 5)), ((0, 3, 4), (1, 4, 5)), ((2, 3, 0), (2, 0, 5)),
        ((1, 1, 1), (1, 1, 1)), ((2, 3, 4), (3, 4, 5)), ((2, 3, 4), (2, 5, 5)),
    ]  # fmt: skip
    for a, b in shapes:
        check(compiled, "BatchMatMulV2", {"x": array(a, dtype, 1), "y": array(b, dtype, 2)}, Tolerance(16.0, relative_floor=4.0))


@pytest.mark.parametrize("op", ["BroadcastTo", "ClipByValue", "BiasAdd"])
def test_one_sided(op: str) -> None:
    """Ops of which one operand must fit into the other's shape."""
    if op == "BiasAdd":
        compiled = native_op(op, {"value": array((3, 5), "f32"), "bias": array((5,), "f32")})
        for a, b in [((3, 5), (5,)), ((0, 5), (5,)), ((2, 1), (1,)), ((3, 5), (1,)), ((3, 5), (4,))]:
            check(compiled, op, {"value": array(a, "f32", 1), "bias": array(b, "f32", 2)})
    elif op == "ClipByValue":
        names = ("t", "clip_value_min", "clip_value_max")
        compiled = native_op(op, {n: array((3, 5), "f32") for n in names})
        for shapes in [((3, 5),) * 3, ((3, 5), (3, 5), (3, 4))]:
            arrays = [array(s, "f32", i, *[(-4, 4), (-2, -1), (1, 2)][i]) for i, s in enumerate(shapes)]
            check(compiled, op, dict(zip(names, arrays, strict=True)))
    else:
        shape = np.array([3, 5], np.int32)
        compiled = native_op(op, {"input": array((3, 5), "f32"), "shape": shape}, known_dims=["shape"])
        for a, target in [((3, 5), (3, 5)), ((1, 5), (3, 5)), ((3, 1), (3, 0)), ((1, 1), (2, 7)), ((3, 5), (1, 5)), ((3, 5), (3, -1))]:
            check(compiled, op, {"input": array(a, "f32", 1), "shape": np.array(target, np.int32)})
