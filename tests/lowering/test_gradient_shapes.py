"""BroadcastGradientArgs: TF against the rule."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.testing.tf_case import check_op

SHAPES = [
    ((), ()), ((3,), ()), ((), (2, 3)), ((2, 3), (2, 3)), ((1, 3), (1, 3)), ((2, 1), (1, 3)), ((5, 1, 3), (4, 1)), ((1,), (2, 1)),
    ((0, 3), (1, 3)), ((1, 1), (1,)), ((2, 3), (3, 2)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_known_shapes(dtype):
    for a, b in SHAPES:
        check_op("BroadcastGradientArgs", s0=np.array(a, dtype), s1=np.array(b, dtype), const=["s0", "s1"], modes=["static"])
