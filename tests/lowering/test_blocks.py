"""SpaceToBatchND, BatchToSpaceND: TF against the rules."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import array, check_op


def ints(*values) -> np.ndarray:
    return np.array(values, np.int32)


def to_batch(shape, block, paddings, dtype="f32", const=("block_shape", "paddings")) -> None:
    check_op(
        "SpaceToBatchND", input=array(shape, dtype), block_shape=ints(*block), paddings=ints(*paddings), const=const,
        known_dims=["block_shape", "paddings"],
    )  # fmt: skip


def to_space(shape, block, crops, dtype="f32", const=("block_shape", "crops")) -> None:
    check_op(
        "BatchToSpaceND", input=array(shape, dtype), block_shape=ints(*block), crops=ints(*crops), const=const,
        known_dims=["block_shape", "crops"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "block", "paddings"),
    [
        ((2, 4, 6, 3), (2, 3), ((0, 0), (0, 0))), ((1, 5, 4, 2), (2, 2), ((0, 1), (1, 1))), ((2, 7, 3), (2,), ((1, 2),)),
        ((0, 4, 4, 1), (2, 2), ((0, 0), (0, 0))), ((1, 0, 4, 1), (2, 2), ((0, 0), (2, 0))), ((2, 3), (3,), ((0, 0),)),
        ((1, 4, 4, 1), (1, 2), ((0, 0), (0, 0))), ((1, 5, 4, 1), (2, 2), ((0, 0), (0, 0))),
        ((1, 2, 4, 2, 3), (2, 2, 1), ((0, 0), (2, 2), (1, 0))),
    ],
)  # fmt: skip
def test_space_to_batch(shape, block, paddings) -> None:
    to_batch(shape, block, paddings)
    to_batch(shape, block, paddings, const=("block_shape",))


@pytest.mark.parametrize(
    ("shape", "block", "crops"),
    [
        ((8, 2, 3, 3), (2, 2), ((0, 0), (0, 0))), ((4, 3, 3, 2), (2, 2), ((1, 2), (0, 1))), ((6, 4, 3), (3,), ((2, 1),)),
        ((0, 4, 4, 1), (2, 2), ((0, 0), (0, 0))), ((4, 0, 4, 1), (2, 2), ((0, 0), (0, 0))), ((4, 2, 2, 1), (2, 2), ((2, 2), (0, 0))),
        ((6, 2, 2, 1), (2, 2), ((0, 0), (0, 0))), ((4, 2, 2, 1), (2, 2), ((3, 2), (0, 0))),
    ],
)  # fmt: skip
def test_batch_to_space(shape, block, crops) -> None:
    to_space(shape, block, crops)
    to_space(shape, block, crops, const=("block_shape",))


@pytest.mark.parametrize("dtype", [DType.F64, DType.F16, DType.I32, DType.U8], ids=str)
def test_dtypes(dtype) -> None:
    to_batch((2, 4, 6, 3), (2, 3), ((0, 0), (1, 2)), dtype)
    to_space((6, 4, 2), (3,), ((2, 1),), dtype)
