"""Inverted residual blocks (Sandler et al. 2018) as exporters write them: two kernels each, TensorFlow's answers at every size."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from disc_tf.testing.session_case import SessionCase

CHANNELS = 24
SIZES = [(1, 32, 32), (2, 17, 9), (1, 1, 1), (1, 2, 50), (3, 7, 7), (1, 90, 130), (0, 8, 8), (1, 3, 700)]


def _norm(tf, x, rng, name: str):
    n = x.shape[-1]
    scale, offset, mean = (tf.constant(rng.normal(size=n).astype("f")) for _ in range(3))
    variance = tf.constant(rng.uniform(0.5, 2, size=n).astype("f"))
    return tf.compat.v1.nn.fused_batch_norm(x, scale, offset, mean, variance, is_training=False, name=name)[0]


def _block(tf, x, rng, name: str, stride: int):
    """Expand six times, window of three, project; the input again where the extents allow it."""
    n = x.shape[-1]
    y = tf.nn.conv2d(x, tf.constant(rng.normal(size=(1, 1, n, 6 * n)).astype("f") / n), 1, "VALID", name=f"{name}/expand")
    y = tf.nn.relu6(_norm(tf, y, rng, f"{name}/expand_norm"))
    if stride > 1:
        y = tf.pad(y, [[0, 0], [0, 1], [0, 1], [0, 0]])
    taps = tf.constant(rng.normal(size=(3, 3, 6 * n, 1)).astype("f") / 3)
    y = tf.nn.depthwise_conv2d(y, taps, [1, stride, stride, 1], "SAME" if stride == 1 else "VALID", name=f"{name}/depthwise")
    y = tf.nn.relu6(_norm(tf, y, rng, f"{name}/depthwise_norm"))
    y = tf.nn.conv2d(y, tf.constant(rng.normal(size=(1, 1, 6 * n, n)).astype("f") / n), 1, "SAME", name=f"{name}/project")
    y = _norm(tf, y, rng, f"{name}/project_norm")
    return y + x if stride == 1 else y


def _build(tf) -> None:
    rng = np.random.default_rng(3)
    x = tf.compat.v1.placeholder(tf.float32, [None, None, None, CHANNELS], name="x")
    for i, stride in enumerate((1, 2, 1)):
        x = _block(tf, x, rng, f"block{i}", stride)
    tf.identity(x, name="y")


@pytest.fixture(scope="module")
def case():
    return SessionCase(_build, ["y:0"])


def test_two_kernels_a_block(case) -> None:
    kernels = case.result.report.kernels
    assert Counter(k.kind for k in kernels) == {"conv": 3, "gemm": 3}
    first = next(k for k in kernels if k.kind == "conv")
    assert {"block0/expand", "block0/depthwise"} <= set(first.nodes)


def test_answers(case) -> None:
    rng = np.random.default_rng(5)
    for size in SIZES:
        case.check({"x:0": rng.normal(size=(*size, CHANNELS)).astype("f")})


@pytest.mark.parametrize("width", [None, 1])
@pytest.mark.parametrize(("height", "window"), [(None, (3, 1)), (1, (1, 1))])
def test_data_one_pixel_wide(width: int | None, height: int | None, window: tuple[int, int]) -> None:
    """Extents that are 1 in the graph leave no second axis to the convolution."""

    def build(tf) -> None:
        rng = np.random.default_rng(7)
        x = tf.compat.v1.placeholder(tf.float32, [None, height, width, CHANNELS], name="x")
        y = tf.nn.conv2d(x, tf.constant(rng.normal(size=(1, 1, CHANNELS, 300)).astype("f")), 1, "VALID")
        taps = tf.constant(rng.normal(size=(*window, 300, 1)).astype("f"))
        tf.nn.depthwise_conv2d(y, taps, [1, 1, 1, 1], "SAME", name="y")

    case = SessionCase(build, ["y:0"], grappler=(False,))
    assert [k.kind for k in case.result.report.kernels] == ["conv"]
    rng = np.random.default_rng(8)
    for batch, lines in ((1, 1), (3, 1)) if height == 1 else ((1, 1), (2, 40), (1, 0), (0, 3)):
        case.check({"x:0": rng.normal(size=(batch, lines, 1, CHANNELS)).astype("f")})
