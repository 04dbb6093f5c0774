"""FusedBatchNorm in training and its gradient: TF against the rules."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.testing.tf_case import Tolerance, array, check_op

SUM = Tolerance(ulps=64, relative_floor=1.0)
OPS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
EMPTY = np.zeros(0, np.float32)


def vectors(channels: int) -> dict[str, np.ndarray]:
    return {"scale": array((channels,), "f32", 1), "offset": array((channels,), "f32", 2)}


def running(channels: int) -> dict[str, np.ndarray]:
    return {"mean": array((channels,), "f32", 3), "variance": array((channels,), "f32", 4, 0.5, 2.0)}


def reserved(channels: int) -> dict[str, np.ndarray]:
    return dict(zip(("reserve_space_1", "reserve_space_2"), running(channels).values(), strict=True))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_training(op, dtype) -> None:
    if op == "FusedBatchNorm" and dtype != "f32":
        pytest.skip("V1 is f32 only")
    for shape in ((2, 5, 4, 3), (1, 1, 1, 2), (3, 7, 1, 33)):
        check_op(op, x=array(shape, dtype), **vectors(shape[3]), mean=EMPTY, variance=EMPTY, is_training=True, outputs=range(5), tol=SUM)


def test_factor() -> None:
    for factor, old in ((0.9, running(3)), (0.9, {"mean": EMPTY, "variance": EMPTY}), (1.0, running(3))):
        check_op(
            "FusedBatchNormV3", x=array((2, 5, 4, 3), "f32"), **vectors(3), **old, is_training=True, exponential_avg_factor=factor,
            epsilon=0.01, tol=SUM,
        )  # fmt: skip


def test_nothing() -> None:
    """TF leaves results 3 and 4 as they are."""
    check_op(
        "FusedBatchNormV3", x=array((0, 5, 4, 3), "f32"), **vectors(3), mean=EMPTY, variance=EMPTY, is_training=True, outputs=[0, 1, 2]
    )  # fmt: skip


@pytest.mark.parametrize(("layout", "shape"), [("NCHW", (2, 3, 4, 5)), ("NDHWC", (2, 2, 3, 4, 5)), ("NCDHW", (2, 3, 2, 3, 4))])
def test_layouts(layout, shape) -> None:
    channels = shape[1] if layout.startswith("NC") else shape[-1]
    more = {"data_format": layout, "is_training": True, "tol": SUM}
    check_op("FusedBatchNormV3", x=array(shape, "f32"), **vectors(channels), mean=EMPTY, variance=EMPTY, **more)
    if len(shape) == 4 or layout == "NDHWC":
        check_op(
            "FusedBatchNormGradV3", y_backprop=array(shape, "f32", 5), x=array(shape, "f32"), scale=array((channels,), "f32", 1),
            **reserved(channels), reserve_space_3=EMPTY, **more,
        )  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("op", ["FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"])
def test_grad(op, training) -> None:
    more = {"reserve_space_3": EMPTY} if op.endswith("V3") else {}
    for dtype in ("f32",) if op == "FusedBatchNormGrad" else ("f32", "f16", "bf16"):
        for shape in ((2, 5, 4, 3), (1, 1, 1, 2), (0, 5, 4, 3), (2, 3, 3, 33)):
            check_op(
                op, y_backprop=array(shape, dtype, 5), x=array(shape, dtype), scale=array(shape[3:], "f32", 1), **reserved(shape[3]),
                is_training=training, epsilon=0.001, tol=SUM, **more,
            )  # fmt: skip


def test_misfits() -> None:
    x = array((2, 3, 4, 3), "f32")
    check_op("FusedBatchNormGradV3", y_backprop=x[:1], x=x, scale=array((3,), "f32"), **reserved(3), reserve_space_3=EMPTY)
    check_op("FusedBatchNormGradV3", y_backprop=x, x=x, scale=array((2,), "f32"), **reserved(3), reserve_space_3=EMPTY)
    check_op("FusedBatchNormV3", x=x, **vectors(2), mean=EMPTY, variance=EMPTY, is_training=True)
