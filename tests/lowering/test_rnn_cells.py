"""TF's fused recurrent cells: TF against the rules on the interpreter (and compiled: tests/conformance)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import Tolerance, array, check_op, tf_answer

TOL = {DType.F32: Tolerance(ulps=32, relative_floor=1), DType.F16: Tolerance(ulps=24, relative_floor=1)}
SLOW = pytest.mark.slow


def lstm(batch: int, inputs: int, cells: int, dtype: DType = DType.F32, steps: int | None = None) -> dict[str, Any]:
    """Operands of LSTMBlockCell, or of BlockLSTM with ``steps``."""
    sizes = [[batch, inputs], [batch, cells], [batch, cells], [inputs + cells, 4 * cells], [cells], [cells], [cells], [4 * cells]]
    if steps is not None:
        sizes[0] = [steps, *sizes[0]]
    values = [array(s, dtype, seed=i, low=-1.0, high=1.0) for i, s in enumerate(sizes)]
    names = ("x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b")
    out = dict(zip(names, values, strict=True))
    return out if steps is None else {"seq_len_max": np.array(steps, np.int64), **out}


@pytest.mark.parametrize(
    ("dtype", "peephole"),
    [(DType.F32, True), pytest.param(DType.F32, False, marks=SLOW), (DType.F16, False), pytest.param(DType.F16, True, marks=SLOW)],
    ids=str,
)
def test_lstm_block_cell(dtype, peephole):
    for sizes in ((1, 1, 1), (2, 3, 5), (7, 13, 17)):
        check_op("LSTMBlockCell", **lstm(*sizes, dtype), use_peephole=peephole, tol=TOL[dtype])
    for clip, forget in ((0.0, 0.0), (-1.0, 0.5), (0.25, 1.0)):
        check_op(
            "LSTMBlockCell", **lstm(3, 4, 5, dtype), use_peephole=peephole, cell_clip=clip, forget_bias=forget,
            modes=["dynamic"], tol=TOL[dtype],
        )  # fmt: skip


LOOPS = [(op, dtype, peephole) for op in ("BlockLSTM", "BlockLSTMV2") for dtype in TOL for peephole in (False, True)]
FAST = [("BlockLSTM", DType.F32, True), ("BlockLSTMV2", DType.F16, False)]


@pytest.mark.parametrize(
    ("op", "dtype", "peephole"), [pytest.param(*c, marks=() if c in FAST else SLOW) for c in LOOPS], ids=str
)
def test_block_lstm(op, dtype, peephole):
    for steps, *sizes in ((1, 1, 1, 1), (4, 2, 3, 5), (0, 2, 3, 4), (3, 0, 2, 4), (3, 1, 0, 4), (3, 2, 3, 0)):
        check_op(op, **lstm(*sizes, dtype, steps=steps), use_peephole=peephole, tol=TOL[dtype], modes=["partial", "dynamic"])
    check_op(op, **lstm(7, 8, 9, dtype, steps=11), cell_clip=0.5, modes=["dynamic"], tol=TOL[dtype])


def test_block_lstm_of_fewer_steps():
    """Of the steps behind the last, TF clears the states and the outputs alone."""
    for most in (0, 2, 5):
        check_op("BlockLSTM", **{**lstm(2, 3, 4, steps=5), "seq_len_max": np.array(most, np.int64)}, outputs=[1, 6], tol=TOL[DType.F32])


def test_gru_block_cell():
    for batch, inputs, cells in ((1, 1, 1), (2, 3, 5), (0, 3, 5), (7, 13, 17), (2, 0, 3)):
        sizes = {
            "x": [batch, inputs], "h_prev": [batch, cells], "w_ru": [inputs + cells, 2 * cells], "w_c": [inputs + cells, cells],
            "b_ru": [2 * cells], "b_c": [cells],
        }  # fmt: skip
        values = {name: array(s, DType.F32, seed=i, low=-1.0, high=1.0) for i, (name, s) in enumerate(sizes.items())}
        check_op("GRUBlockCell", **values, tol=TOL[DType.F32])


BAD = [
    ("w", (7, 20)), ("w", (8, 19)), ("b", (7,)), ("cs_prev", (3, 5)), ("h_prev", (2, 4)), ("h_prev", (3, 5)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape"), BAD, ids=str)
def test_errors(name, shape):
    bad = {**lstm(2, 3, 5), name: array(shape, DType.F32)}
    assert not isinstance(tf_answer("LSTMBlockCell", bad), list)
    check_op("LSTMBlockCell", **bad)
    check_op("BlockLSTM", **{**lstm(2, 3, 5, steps=4), name: array(shape, DType.F32)})


def test_errors_of_peepholes_and_empty_states():
    check_op("BlockLSTM", **{**lstm(2, 3, 5, steps=4), "wci": array((1,), DType.F32)})
    check_op("LSTMBlockCell", **lstm(0, 3, 5))
    check_op("LSTMBlockCell", **{**lstm(2, 3, 5), "wci": array((1,), DType.F32)}, tol=TOL[DType.F32])
