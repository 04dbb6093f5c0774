"""QuantizeV2 and Dequantize against TensorFlow: the same integers, the same ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disc_tf.testing.session_case import SessionCase
from disc_tf.testing.tf_case import Tolerance, check_op, tensorflow

TYPES = ["qint8", "quint8", "qint16", "quint16", "qint32"]
MODES = ["MIN_COMBINED", "MIN_FIRST", "SCALED"]
RANGES = [(-2.0, 3.0), (0.0, 6.0), (-5.0, -1.0), (1.0, 4.0), (0.0, 0.0), (-1e-3, 1e-3), (-4.0, 4.0), (3.0, 2.0)]
EXACT = Tolerance(0.0)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def scalar(v: float) -> np.ndarray:
    return np.array(v, np.float32)


def values() -> np.ndarray:
    x = np.concatenate([np.linspace(-6.0, 7.0, 401), [0.0, -0.0, np.inf, -np.inf, 1e30, -1e30]])
    return x.astype(np.float32)


def quantized(name: str, n: int) -> np.ndarray:
    """All values of 8 bits, or a sample with the extremes, as numpy has quantized types."""
    record = np.dtype(tensorflow().as_dtype(name).as_numpy_dtype)
    info = np.iinfo(record[0])
    spread = np.linspace(int(info.min), int(info.max), n)
    return np.rint(spread).astype(np.int64).astype(record[0]).view(record)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TYPES)
def test_quantize(name: str, mode: str) -> None:
    attrs: dict[str, Any] = {"T": tensorflow().as_dtype(name), "mode": mode, "modes": ["dynamic"], "tol": EXACT}
    for low, high in RANGES:
        check_op("QuantizeV2", input=values(), min_range=scalar(low), max_range=scalar(high), **attrs)
    for x in (values()[:0], values()[:6].reshape(2, 1, 3)):
        check_op("QuantizeV2", input=x, min_range=scalar(-1), max_range=scalar(1), **attrs)


@pytest.mark.parametrize("name", ["qint8", "quint8"])
def test_quantize_rounds_half_to_even(name: str) -> None:
    x = (np.arange(-260, 260, dtype=np.float32) / 2) * np.float32(1 / 16)
    for narrow in (False, True):
        for mode in ("SCALED", "MIN_FIRST"):
            check_op(
                "QuantizeV2", input=x, min_range=scalar(-127 / 16), max_range=scalar(127 / 16), T=tensorflow().as_dtype(name), mode=mode,
                round_mode="HALF_TO_EVEN", narrow_range=narrow, tol=EXACT,
            )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_quantize_slices(mode: str) -> None:
    x = np.linspace(-3, 3, 24).astype(np.float32).reshape(2, 3, 4)
    for axis in (0, 1, 2):
        n = x.shape[axis]
        low, high = np.linspace(-2, -1, n).astype(np.float32), np.linspace(1, 3, n).astype(np.float32)
        check_op(
            "QuantizeV2", input=x, min_range=low, max_range=high, T=tensorflow().qint8, mode=mode, axis=axis, modes=["dynamic"], tol=EXACT
        )


@pytest.mark.parametrize("target", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TYPES)
def test_dequantize(name: str, mode: str, target: str) -> None:
    tf = tensorflow()
    attrs: dict[str, Any] = {"mode": mode, "dtype": tf.as_dtype(target), "modes": ["dynamic"], "tol": Tolerance(1.0)}
    x = quantized(name, 256)
    for low, high in RANGES[:-1]:
        check_op("Dequantize", input=x, min_range=scalar(low), max_range=scalar(high), **attrs)
    check_op("Dequantize", input=x[:0], min_range=scalar(-1), max_range=scalar(1), **attrs)


@pytest.mark.parametrize("mode", MODES)
def test_dequantize_slices(mode: str) -> None:
    x = quantized("quint8", 24).reshape(2, 3, 4)
    for axis in (0, 2):
        n = x.shape[axis]
        low, high = np.linspace(-2, -1, n).astype(np.float32), np.linspace(1, 3, n).astype(np.float32)
        given = {"input": x, "min_range": low, "max_range": high}  # TensorFlow's shape function needs the operand's rank
        check_op("Dequantize", **given, mode=mode, axis=axis, const=["input"], modes=["dynamic"], tol=Tolerance(1.0))


def test_quantized_tensors_cross_the_edges_of_clusters() -> None:
    """Fed, fetched, constant and on the way to an op that stays in TensorFlow: the graph keeps its quantized types."""

    def build(tf):
        raw = tf.raw_ops
        x = tf.compat.v1.placeholder(tf.float32, [None, 4], name="x")
        q = tf.compat.v1.placeholder(tf.quint8, [None, 4], name="q")
        made = raw.QuantizeV2(input=x * 2.0, min_range=-1.0, max_range=1.0, T=tf.quint8, name="made")
        tf.identity(raw.Dequantize(input=made[0], min_range=made[1], max_range=made[2]) + 1.0, name="back")
        tf.identity(raw.Dequantize(input=q, min_range=-1.0, max_range=3.0) * 2.0, name="fed")
        fixed = tf.bitcast(tf.constant([[1, 2, 3, 255]], tf.uint8), tf.quint8)
        tf.identity(raw.Dequantize(input=raw.ConcatV2(values=[q, fixed], axis=0), min_range=0.0, max_range=1.0), name="joined")
        total = raw.QuantizedRelu(features=made[0], min_features=made[1], max_features=made[2], out_type=tf.quint8, name="relu")
        tf.identity(raw.Dequantize(input=total[0], min_range=total[1], max_range=total[2]), name="last")

    outputs = ["made:0", "made:1", "back:0", "fed:0", "joined:0", "last:0"]
    case = SessionCase(build, outputs, grappler=(False,))
    assert "QuantizeV2" not in case.ops and "Dequantize" not in case.ops, case.ops
    rng = np.random.default_rng(0)
    for n in (3, 1, 0):
        fed = rng.integers(0, 256, (n, 4)).astype(np.uint8).view(np.dtype([("quint8", "u1")]))
        case.check({"x:0": rng.uniform(-1, 1, (n, 4)).astype(np.float32), "q:0": fed})
