"""FakeQuant and QuantizeAndDequantize: TF against the rules."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.testing.tf_case import Tolerance, array, check_op

SUM = Tolerance(ulps=16, relative_floor=1.0)
SPECIAL = np.array([-2, -1, -0.5, -0.0, 0, 0.3, 0.5, 1.2, np.nan, np.inf, -np.inf], np.float32)


def inputs() -> np.ndarray:
    return np.concatenate([SPECIAL, array((200,), "f32", 1)])


def scalars(low: float, high: float) -> dict[str, np.ndarray]:
    return {"min": np.array(low, np.float32), "max": np.array(high, np.float32)}


ENDS = [(-1.0, 1.0), (0.5, 1.0), (-3.0, -1.0), (0.0, 0.0), (-0.1, 5.0)]


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("bits", [8, pytest.param(3, marks=pytest.mark.slow), 16])
def test_scalars(bits, narrow) -> None:
    more = {"num_bits": bits, "narrow_range": narrow, "modes": ["dynamic"]}
    x = inputs()
    for low, high in ENDS:
        check_op("FakeQuantWithMinMaxVars", inputs=x, **scalars(low, high), **more)
        g = array(x.shape, "f32", 2)
        check_op("FakeQuantWithMinMaxVarsGradient", gradients=g, inputs=x, **scalars(low, high), tol=SUM, **more)
        if (low, high) in ENDS[:2]:
            # TF does not round what lies half-way between two steps in one way.
            at = x / np.float32((high - low) / (2**bits - 1 - narrow))
            with np.errstate(invalid="ignore"):
                sure = x[~(np.abs(at - np.floor(at) - 0.5) < 0.01)]
            check_op("FakeQuantWithMinMaxArgs", inputs=sure, min=low, max=high, **more)
            check_op("FakeQuantWithMinMaxArgsGradient", gradients=g, inputs=x, min=low, max=high, **more)


def test_shapes() -> None:
    for shape in ((2, 3), (0, 4), (), (5, 1, 3, 2)):
        x = array(shape, "f32")
        check_op("FakeQuantWithMinMaxVars", inputs=x, **scalars(-1, 2))
        check_op("FakeQuantWithMinMaxVarsGradient", gradients=x, inputs=x, **scalars(-1, 2), tol=SUM)
        check_op("FakeQuantWithMinMaxArgs", inputs=x)


def test_per_channel() -> None:
    low, high = np.array([-1, 0, 2, -0.1], np.float32), np.array([1, 0, 3, 5], np.float32)
    for shape in ((7, 4), (4,), (2, 3, 5, 4), (0, 4)):
        x = array(shape, "f32")
        check_op("FakeQuantWithMinMaxVarsPerChannel", inputs=x, min=low, max=high, num_bits=4)
        check_op("FakeQuantWithMinMaxVarsPerChannelGradient", gradients=array(shape, "f32", 2), inputs=x, min=low, max=high, tol=SUM)
    check_op("FakeQuantWithMinMaxVarsPerChannel", inputs=array((2, 3), "f32"), min=low, max=high)


@pytest.mark.parametrize("narrow", [False, True])
def test_steps_per_channel_are_found_by_the_inverse_of_the_scale(narrow) -> None:
    """Unlike those of one range for all, which are divisions: with 16 bits there are numbers for which it makes a step's difference."""
    x = np.random.default_rng(0).uniform(-2, 2, (4224, 2)).astype(np.float32)
    ends = {"min": np.full(2, -1.3, np.float32), "max": np.full(2, 1.7, np.float32)}
    more = {"num_bits": 16, "narrow_range": narrow, "modes": ["dynamic"]}
    check_op("FakeQuantWithMinMaxVarsPerChannel", inputs=x, **ends, **more)
    check_op("FakeQuantWithMinMaxVars", inputs=x, **scalars(-1.3, 1.7), **more)


# ---- QuantizeAndDequantize ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["QuantizeAndDequantizeV2", pytest.param("QuantizeAndDequantizeV4", marks=pytest.mark.slow)])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("signed", [True, False])
def test_one_range(op, given, signed) -> None:
    for narrow in (True, False):
        for mode in ("HALF_TO_EVEN", "HALF_UP"):
            for dtype in (np.float32, np.float64) if narrow and mode == "HALF_UP" else (np.float32,):
                x = inputs().astype(dtype) if given else array((5, 7), "f32").astype(dtype)
                check_op(
                    op, input=x, input_min=np.array(-1, dtype), input_max=np.array(0.9, dtype), signed_input=signed, range_given=given,
                    narrow_range=narrow, num_bits=4, round_mode=mode, modes=["dynamic"], tol=SUM,
                )  # fmt: skip


def test_ranges() -> None:
    x = array((3, 5), "f32")
    for low, high in ((0.0, 0.0), (1.0, 0.5), (-1.0, -0.5), (0.25, 0.5), (np.nan, 1.0)):
        ends = {"input_min": np.array(low, np.float32), "input_max": np.array(high, np.float32)}
        check_op("QuantizeAndDequantizeV2", input=x, **ends, range_given=True, tol=SUM)
        check_op("QuantizeAndDequantizeV3", input=x, **ends, num_bits=np.array(5, np.int32), const=["num_bits"], tol=SUM)
    check_op("QuantizeAndDequantizeV2", input=x[:0], **ends)


def test_slices() -> None:
    x = array((3, 4, 5), "f32")
    for axis in (0, 1):
        n = x.shape[axis]
        ends = {"input_min": array((n,), "f32", 3, -2, 0), "input_max": array((n,), "f32", 4, 0.1, 2), "axis": axis, "tol": SUM}
        bits = np.array(5, np.int32)
        check_op("QuantizeAndDequantizeV3", input=x, **ends, num_bits=bits, const=["num_bits"])
        check_op("QuantizeAndDequantizeV3", input=x, **ends, num_bits=bits, const=["num_bits"], range_given=False)
        check_op("QuantizeAndDequantizeV4", input=x, **ends, num_bits=5, range_given=False)
        check_op("QuantizeAndDequantizeV4", input=x, **ends, num_bits=5, range_given=True)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_quantize_grad(dtype) -> None:
    for shape in ((3, 4), (0,), (40,)):
        ends = {"input_min": array((), dtype, 3, -2, 0), "input_max": array((), dtype, 4, 0.1, 2)}
        check_op("QuantizeAndDequantizeV4Grad", gradients=array(shape, dtype, 1), input=array(shape, dtype), **ends)
    check_op("QuantizeAndDequantizeV4Grad", gradients=array((3,), dtype, 1), input=array((4,), dtype), **ends)
