"""Rules about convolutions: what they make of a small function, what they leave alone, and that the values stay."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module
from disc_tf.ir.interp import evaluate
from disc_tf.ir.pass_manager import PassContext, PassManager
from disc_tf.ir.types import DType, TensorType
from disc_tf.passes.pipeline import PASSES

F32 = DType.F32


def module_with(dims, kernel, body) -> Module:
    fn = Function("main")
    for i, shape in enumerate((dims, kernel)):
        fn.add_arg(TensorType.of(F32, shape), ArgInfo(f"a{i}"))
    b = Builder(fn.body, fn.env)
    b.return_([body(b, *fn.params)])
    module = Module()
    module.add(fn)
    return module


def run(module: Module) -> list[str]:
    """The ops of main, before and after which the values are the same."""
    rng = np.random.default_rng(0)
    sizes = {"n": 2, "h": 5, "w": 4}
    arrays = [rng.standard_normal([d.evaluate(sizes) for d in p.dims]).astype(np.float32) for p in module.main.params]
    before = evaluate(module.main, arrays)
    PassManager(tuple(PASSES[n]() for n in ("conv-to-dot", "dce")), verify_each=True).run(module, PassContext())
    for x, y in zip(before, evaluate(module.main, arrays), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    return [op.name for op in module.main.body.ops if op.name != "return"]


IMAGE = ("n", "h", "w", 6)


def test_single_points_are_a_product() -> None:
    assert run(module_with(IMAGE, (1, 1, 6, 7), lambda b, x, w: b.convolution(x, w))) == ["reshape", "dot_general"]


@pytest.mark.parametrize(
    "options",
    [{"strides": (2, 1)}, {"padding_low": (1, 0)}, {"padding_high": (0, 1)}, {"lhs_dilation": (1, 2)}, {"groups": 2}],
    ids=str,
)
def test_other_windows_stay(options) -> None:
    depth = 6 // options.get("groups", 1)
    assert run(module_with(IMAGE, (1, 1, depth, 8), lambda b, x, w: b.convolution(x, w, **options))) == ["convolution"]


def padded(value=0.0, low=(0, 1, 0, 0), high=(0, 2, 3, 0), interior=(0, 0, 0, 0), **options):
    return module_with(IMAGE, (3, 3, 6, 4), lambda b, x, w: b.convolution(b.pad(x, value, low, high, interior), w, **options))


def test_zeros_around_the_data_are_padding() -> None:
    assert run(padded()) == ["convolution"]
    assert run(padded(strides=(2, 2), padding_low=(1, 1), padding_high=(-1, 0), rhs_dilation=(1, 2))) == ["convolution"]


@pytest.mark.parametrize(
    "options",
    [
        {"value": 1.0}, {"low": (1, 0, 0, 0)}, {"low": (0, -1, 0, 0)}, {"interior": (0, 1, 0, 0)}, {"lhs_dilation": (2, 1)},
        {"padding_low": (-1, 0)},
    ],
    ids=str,
)  # fmt: skip
def test_other_paddings_stay(options) -> None:
    assert run(padded(**options)) == ["constant", "pad", "convolution"]
