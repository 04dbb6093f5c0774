"""Numbers of channels behind products and convolutions fold into the weight; what is left, what is left alone, and that the values stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module, Value
from disc_tf.ir.interp import evaluate
from disc_tf.ir.pass_manager import PassContext, PassManager
from disc_tf.ir.types import DType, TensorType
from disc_tf.passes.pipeline import PASSES

C = 4
IMAGE, KERNEL = ("n", "h", "w", 6), (3, 2, 6, C)


def module_with(shapes: Sequence[tuple], body, kinds: str = "x" + "w" * 9, dtype: DType = DType.F32) -> Module:
    """Parameters of ``shapes``: data for ``x``, constants for ``w``, a variable for ``v``; ``body(b, *params)`` gives the result(s)."""
    fn = Function("main")
    for i, (shape, kind) in enumerate(zip(shapes, kinds, strict=False)):
        fn.add_arg(TensorType.of(dtype, shape), ArgInfo(f"a{i}", {"x": "arg", "w": "const", "v": "variable"}[kind]))
    b = Builder(fn.body, fn.env)
    found = body(b, *fn.params)
    b.return_([found] if isinstance(found, Value) else list(found))
    module = Module()
    module.add(fn)
    return module


def run(module: Module, names: Sequence[str] = ("fold-norms", "dce")) -> Counter[str]:
    """How often each op is in main, before and after which the values are the same."""
    rng = np.random.default_rng(0)
    sizes = {"n": 2, "h": 5, "w": 4}
    arrays = [rng.standard_normal([d.evaluate(sizes) for d in p.dims]).astype(p.dtype.np) for p in module.main.params]
    before = evaluate(module.main, arrays)
    PassManager(tuple(PASSES[n]() for n in names), verify_each=True).run(module, PassContext())
    if "outline_prepare" not in names:
        for x, y in zip(before, evaluate(module.main, arrays), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
    return Counter(op.name for op in module.main.body.ops)


def wide(b: Builder, v: Value, like: Value, axis: int = -1) -> Value:
    return b.broadcast_in_dim(v, like.dims, (axis % like.rank,))


def normalised(b: Builder, y: Value, mean: Value, factor: Value, offset: Value, axis: int = -1) -> Value:
    centred = b.subtract(y, wide(b, mean, y, axis))
    return b.add(b.multiply(centred, wide(b, factor, y, axis)), wide(b, offset, y, axis))


VECTORS = [(C,)] * 4


@pytest.mark.parametrize("kinds", ["xwwwww", "xvvvvv", "xwvvvv"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)
def test_a_norm_becomes_one_addition(kinds, dtype) -> None:
    def body(b, x, w, mean, factor, offset):
        return normalised(b, b.convolution(x, w, padding_low=(1, 1)), mean, factor, offset)

    module = module_with([IMAGE, KERNEL, *VECTORS[:3]], body, kinds, dtype)
    run(module)
    names = run(module, ("outline_prepare",))
    assert (names["convolution"], names["add"], names["multiply"], names["subtract"]) == (1, 1, 0, 0)


def test_a_bias_before_the_norm() -> None:
    def body(b, x, w, bias, mean, factor, offset):
        y = b.convolution(x, w)
        return normalised(b, b.add(wide(b, bias, y), y), mean, factor, offset)

    module = module_with([IMAGE, KERNEL, *VECTORS], body)
    run(module)
    names = run(module, ("outline_prepare",))
    assert (names["add"], names["multiply"], names["subtract"]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("image", "kernel", "options"),
    [
        (("n", "h", "w", C), (3, 3, 1, C), {"groups": C}),
        (("n", "h", "w", 2), (3, 3, 1, C), {"groups": 2}),
        (("n", "h", "w", 3), (2, 2, 3, C), {"lhs_dilation": (2, 2), "padding_low": (1, 1)}),
        (("n", "h", 3), (3, 3, C), {"strides": (2,)}),
        (("n", "h", "w", 3), (1, 1, 3, C), {}),
    ],
    ids=["depthwise", "grouped", "transposed", "1d", "point"],
)
def test_kinds_of_convolutions(image, kernel, options) -> None:
    def body(b, x, w, mean, factor, offset):
        return normalised(b, b.convolution(x, w, **options), mean, factor, offset)

    names = ("conv-to-dot", "fold-norms", "dce")
    module = module_with([image, kernel, *VECTORS[:3]], body)
    run(module, names)
    after = run(module, ("outline_prepare",))
    assert after["convolution"] + after["dot_general"] == 1 and after["add"] == 1 and not after["multiply"] + after["subtract"]


@pytest.mark.parametrize("contracting", [0, 1])
def test_products(contracting) -> None:
    def body(b, x, w, mean, factor, offset):
        return normalised(b, b.dot_general(x, w, lhs_contracting=(2,), rhs_contracting=(contracting,)), mean, factor, offset)

    module = module_with([("n", "h", 6), (6, C) if contracting == 0 else (C, 6), *VECTORS[:3]], body)
    run(module)
    after = run(module, ("outline_prepare",))
    assert after["add"] == 1 and not after["multiply"] + after["subtract"]


def test_layouts_between() -> None:
    """A squeezed axis (convolutions over one axis), and channels first."""

    def squeezed(b, x, w, mean, factor, offset):
        y = b.convolution(x, w)
        return normalised(b, b.reshape(y, (y.dims[0], y.dims[2], C)), mean, factor, offset)

    def first(b, x, w, mean, factor, offset):
        return normalised(b, b.transpose(b.convolution(x, w), (0, 3, 1, 2)), mean, factor, offset, axis=1)

    for image, body, layout in ((("n", 1, "w", 6), squeezed, "reshape"), (IMAGE, first, "transpose")):
        module = module_with([image, (1, 2, 6, C), *VECTORS[:3]], body)
        run(module)
        after = run(module, ("outline_prepare",))
        assert after["add"] == 1 and after[layout] == 1 and not after["multiply"] + after["subtract"]


def test_one_number_for_all_channels_goes_along() -> None:
    def body(b, x, w, factor, one):
        y = b.convolution(x, w)
        y = b.multiply(b.add(y, b.broadcast_in_dim(one, y.dims, ())), wide(b, factor, y))
        return b.multiply(y, b.broadcast_in_dim(one, y.dims, ()))

    module = module_with([IMAGE, KERNEL, (C,), ()], body)
    run(module)
    after = run(module, ("outline_prepare",))
    assert after["add"] == 1 and not after["multiply"]


def two_uses(b, x, w, mean, factor, offset):
    y = b.convolution(x, w)
    return normalised(b, y, mean, factor, offset), y


def no_factor(b, x, w, mean, factor, offset):
    y = b.convolution(x, w)
    return b.subtract(y, wide(b, mean, y))


def reversed_difference(b, x, w, mean, factor, offset):
    y = b.convolution(x, w)
    return b.multiply(b.subtract(wide(b, mean, y), y), wide(b, factor, y))


def other_axis(b, x, w, mean, factor, offset):
    y = b.convolution(x, w)
    return b.multiply(y, b.broadcast_in_dim(factor, y.dims, (2,)))


def squared(b, x, w, mean, factor, offset):
    y = b.convolution(x, w)
    return b.multiply(y, y)


@pytest.mark.parametrize("body", [two_uses, no_factor, reversed_difference, other_axis, squared], ids=lambda f: f.__name__)
def test_left_alone(body) -> None:
    """Sums that something else reads, nothing to multiply by, and numbers that are not the channels'."""
    image = ("n", "h", C, 6) if body is other_axis else IMAGE
    kernel = (1, 1, 6, C) if body is other_axis else KERNEL
    module = module_with([image, kernel, *VECTORS[:3]], body)
    before = Counter(op.name for op in module.main.body.ops)
    assert run(module) == before


@pytest.mark.parametrize("kinds", ["xxwww", "xwwxw"])
def test_what_is_not_made_of_weights_stays(kinds) -> None:
    def body(b, x, w, mean, factor, offset):
        y = b.convolution(x, w)
        return b.multiply(y, wide(b, factor, y))

    module = module_with([IMAGE, KERNEL, *VECTORS[:3]], body, kinds)
    assert run(module)["multiply"] == 1 and run(module, ("outline_prepare",))["multiply"] == 1


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=str)
def test_narrow_floats_stay(dtype) -> None:
    """TensorFlow rounds the sum to the narrow type before it is normalised."""

    def body(b, x, w, mean, factor, offset):
        y = b.convolution(x, w)
        return b.multiply(y, wide(b, factor, y))

    module = module_with([IMAGE, KERNEL, *VECTORS[:3]], body, dtype=dtype)
    before = Counter(op.name for op in module.main.body.ops)
    PassManager((PASSES["fold-norms"](),), verify_each=True).run(module, PassContext())
    assert Counter(op.name for op in module.main.body.ops) == before


def test_what_is_made_of_weights_alone_is_left_to_prepare() -> None:
    """The product of two weights, with factors of its own, gives the factors of a convolution."""

    def body(b, x, w, u, v, factor):
        numbers = b.dot_general(u, v, lhs_contracting=(1,), rhs_contracting=(0,))
        numbers = b.multiply(numbers, wide(b, factor, numbers))
        y = b.convolution(x, w)
        return b.multiply(y, wide(b, b.reshape(numbers, (C,)), y))

    module = module_with([IMAGE, KERNEL, (1, 5), (5, C), (C,)], body)
    before = Counter(op.name for op in module.main.body.ops)
    after = run(module)
    assert after["dot_general"] == before["dot_general"] == 1
    run(module, ("outline_prepare",))
    assert [op.name for op in module.main.body.ops] == ["convolution", "return"]


def test_chains_one_after_the_other() -> None:
    def body(b, x, w, v, mean, factor, offset):
        y = normalised(b, b.convolution(x, w, padding_low=(1, 0), padding_high=(1, 1)), mean, factor, offset)
        y = b.maximum(y, b.broadcast_in_dim(b.constant(np.float32(0)), y.dims, ()))
        return normalised(b, b.convolution(y, v), mean, factor, offset)

    module = module_with([IMAGE, KERNEL, (2, 2, C, C), *VECTORS[:3]], body)
    run(module)
    after = run(module, ("outline_prepare",))
    assert (after["convolution"], after["add"], after["maximum"], after["multiply"], after["subtract"]) == (2, 2, 1, 0, 0)
