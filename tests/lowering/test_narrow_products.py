"""Products of bytes and of bf16 as TensorFlow graphs have them, in the code for every instruction set that this machine runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from disc_tf.runtime.executable import host_isa
from disc_tf.testing.graph_case import case, check_graph, spec
from disc_tf.testing.tf_case import Tolerance, array, tensorflow

EXACT = Tolerance(0.0)
#: of a sum of bf16 in f32, rounded once here, and to bf16 behind every op of TensorFlow's
SUM = Tolerance(4.0, relative_floor=1.0)
VNNI, BF16 = "x86-64-v4-vnni", "x86-64-v4-vnni-bf16"
ROWS = (0, 1, 5, 9, 40)


def isas(extension: str) -> list[str]:
    """v4's own code and that of the extension, if they run here."""
    if host_isa() < "x86-64-v4":
        pytest.skip(f"this machine runs {host_isa()}")
    return ["x86-64-v4", *([extension] if extension <= host_isa() else [])]


def whole(dtype: str, *shape: int, seed: int = 1) -> np.ndarray:
    """Bytes of the whole range, with both ends."""
    info = np.iinfo({"int8": np.int8, "uint8": np.uint8}[dtype])
    out = np.random.default_rng(seed).integers(info.min, info.max, shape, dtype=info.dtype, endpoint=True)
    out.reshape(-1)[:2] = (info.min, info.max)[: out.size]
    return out


@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("right", ["int8", "uint8"])
@pytest.mark.parametrize("constant", [True, False])
def test_products_of_cast_bytes(left: str, right: str, constant: bool) -> None:
    """What a quantized graph has: both operands cast to int32, a bias, a scale."""
    tf = tensorflow()
    weight, bias, scale = whole(right, 70, 50, seed=2), np.arange(50, dtype=np.int32) * 1000, np.float32(0.125)

    def layer(x: Any, *w: Any) -> Any:
        wide = [tf.cast(v, tf.int32) for v in (x, *(w or (tf.constant(weight),)))]
        return tf.cast(tf.matmul(*wide) + bias, tf.float32) * scale

    c = case(layer, spec(left, None, 70), *([] if constant else [spec(right, 70, None)]))
    check_graph(c, [[whole(left, m, 70), *([] if constant else [weight])] for m in ROWS], ["x86-64-v4"], EXACT, isas=isas(VNNI))


def test_tensordot_of_bytes() -> None:
    """Reshapes and transposes between the casts and the product."""
    tf = tensorflow()
    weight = whole("int8", 3, 4, 20, seed=2)

    def dot(x: Any) -> Any:
        return tf.tensordot(tf.cast(x, tf.int32), tf.cast(weight, tf.int32), [[2, 1], [0, 1]])

    c = case(dot, spec("uint8", None, 4, 3))
    check_graph(c, [[whole("uint8", m, 4, 3)] for m in ROWS], ["x86-64-v4"], EXACT, isas=isas(VNNI))


@pytest.mark.parametrize(("left", "right"), [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8")])
@pytest.mark.parametrize("adjoint", [False, True])
def test_batch_matmul_v3_of_bytes(left: str, right: str, adjoint: bool) -> None:
    tf = tensorflow()

    def product(x: Any, y: Any) -> Any:
        return tf.raw_ops.BatchMatMulV3(x=x, y=y, Tout=tf.int32, adj_y=adjoint)

    c = case(product, spec(left, None, None, None), spec(right, None, None, None))
    inputs = []
    for batch, m, n, k in ((2, 3, 5, 7), (1, 40, 50, 33), (3, 9, 48, 64), (0, 2, 2, 2), (1, 5, 0, 3), (1, 5, 6, 0)):
        inputs.append([whole(left, batch, m, k), whole(right, batch, *((n, k) if adjoint else (k, n)), seed=2)])
    check_graph(c, inputs, ["x86-64-v4"], EXACT, isas=isas(VNNI))


def dense(x: Any) -> Any:
    tf = tensorflow()
    return tf.nn.relu(tf.matmul(x, tf.constant(array((33, 50), "bf16", 2))) + tf.constant(array((50,), "bf16", 3)))


def cast_dense(x: Any) -> Any:
    tf = tensorflow()
    return tf.matmul(tf.cast(x, tf.float32), tf.cast(tf.constant(array((33, 50), "bf16", 2)), tf.float32))


def transposed(x: Any) -> Any:
    tf = tensorflow()
    return tf.matmul(x, tf.constant(array((50, 33), "bf16", 2)), transpose_b=True)


def squared(x: Any) -> Any:
    return tensorflow().matmul(x, x, transpose_b=True)


@pytest.mark.parametrize("form", [dense, cast_dense, transposed, squared], ids=lambda f: f.__name__)
def test_products_of_bf16(form: Callable[..., Any]) -> None:
    c = case(form, spec("bfloat16", None, 33))
    check_graph(c, [[array((m, 33), "bf16", 1)] for m in ROWS], ["x86-64-v4"], SUM, isas=isas(BF16))


WINDOWS = [(1, 1, "VALID"), (1, 2, "VALID"), (3, 1, "SAME"), (3, 2, "SAME"), (3, 1, "VALID")]


@pytest.mark.parametrize(("window", "stride", "padding"), WINDOWS)
def test_convolutions_of_bf16(window: int, stride: int, padding: str) -> None:
    tf = tensorflow()
    w = array((window, window, 16, 70), "bf16", 2)
    c = case(lambda x: tf.nn.conv2d(x, tf.constant(w), stride, padding), spec("bfloat16", None, None, None, 16))
    inputs = [[array((*size, 16), "bf16", 1)] for size in ((1, 5, 7), (2, 3, 3), (1, 4, 100), (0, 5, 5))]
    check_graph(c, inputs, ["x86-64-v4"], SUM, isas=isas(BF16))
