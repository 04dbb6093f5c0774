"""Convolutions against numpy in float64: targets x dtypes x windows x sizes x epilogues."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from disc_tf.ir.dims import Dim, ceildiv, dmax
from disc_tf.ir.opset.convolution import convolve
from disc_tf.ir.types import DType
from tests.codegen.cpu.products import Case, epsilon, host_targets, prepared, random

TARGETS = host_targets()
F32 = DType.F32
ONES = (1, 1)


@dataclasses.dataclass(frozen=True)
class Conv:
    """`window` and the attributes, spatial axes only; `size(name, extent)` gives the padding for "same"."""

    window: tuple[int, ...] = (3, 3)
    channels: int = 5
    features: int = 7
    strides: tuple[int, ...] = ONES
    low: tuple[int, ...] = (0, 0)
    high: tuple[int, ...] = (0, 0)
    spread: tuple[int, ...] = ONES
    dilation: tuple[int, ...] = ONES
    groups: int = 1

    @property
    def kernel(self) -> tuple[int, ...]:
        return (*self.window, self.channels // self.groups, self.features)

    def build(self, c: Case, x, w, low=None, high=None, dims=None):
        return c.b.convolution(
            x, w, strides=self.strides, padding_low=low or self.low, padding_high=high or self.high, lhs_dilation=self.spread,
            rhs_dilation=self.dilation, groups=self.groups, dims=dims,
        )  # fmt: skip

    def reference(self, x: np.ndarray, w: np.ndarray, low=None, high=None) -> np.ndarray:
        return convolve(x, w, self.strides, low or self.low, high or self.high, self.spread, self.dilation, self.groups)


CONVS = {
    "valid": Conv(),
    "padded": Conv(low=(1, 1), high=(1, 1), channels=16, features=33),
    "strided": Conv(strides=(2, 2), low=(0, 0), high=(1, 1), channels=3, features=32),
    "point-strided": Conv(window=(1, 1), strides=(2, 3), channels=9, features=100),
    "dilated": Conv(dilation=(2, 3), low=(2, 3), high=(2, 3)),
    "transposed": Conv(window=(4, 3), spread=(2, 3), low=(3, 1), high=(2, 2)),
    "cropped": Conv(low=(-1, -2), high=(-1, 0)),
    "far": Conv(low=(4, 9), high=(5, 8)),
    "groups": Conv(groups=2, channels=6, features=10, low=(1, 1), high=(1, 1)),
    "whole-groups": Conv(groups=2, channels=4, features=192, dilation=(1, 2)),
    "long": Conv(window=(1, 19), channels=1, features=3, strides=(1, 4)),
    "filter": Conv(window=(1, 200), channels=1, features=5, strides=(1, 4), low=(0, 60), high=(0, 60)),
    "wide-filter": Conv(window=(1, 50), channels=4, features=35, low=(0, 25), high=(0, 24)),
    "point-strided-deep": Conv(window=(1, 1), strides=(2, 2), channels=210, features=20),
    "long-sums": Conv(window=(1, 3), channels=90, features=37, low=(0, 1), high=(0, 1)),
    "longer-sums": Conv(window=(2, 3), channels=90, features=37, low=(1, 1), high=(0, 1)),
    "one-feature": Conv(channels=33, features=1, low=(1, 1), high=(1, 1)),
    "two-features": Conv(window=(5, 4), channels=8, features=2, strides=(1, 3), dilation=(1, 2), low=(2, 2), high=(2, 1)),
    "one-tap-run": Conv(window=(1, 70), channels=1, features=1, strides=(1, 2), low=(0, 60), high=(0, 9)),
    "column": Conv(window=(5, 1), channels=40, features=130, low=(2, 0), high=(2, 0)),
    "depthwise": Conv(groups=37, channels=37, features=37, low=(1, 1), high=(1, 1)),
    "depthwise-strided": Conv(groups=16, channels=16, features=16, strides=(2, 2), window=(5, 3), low=(2, 0), high=(1, 2)),
    "depthwise-dilated": Conv(groups=100, channels=100, features=100, dilation=(2, 2), low=(2, 4), high=(2, 2)),
    "depthwise-long": Conv(groups=9, channels=9, features=9, window=(1, 15), low=(0, 7), high=(0, 7)),
    "depthwise-multiplier": Conv(groups=3, channels=3, features=6),
    "depthwise-far": Conv(groups=20, channels=20, features=20, strides=(1, 2), low=(4, 9), high=(5, 8)),
    "depthwise-cropped": Conv(groups=18, channels=18, features=18, window=(2, 4), dilation=(1, 3), low=(-1, -2), high=(-1, 0)),
    "depthwise-strided-dilated": Conv(groups=5, channels=5, features=5, strides=(2, 3), dilation=(3, 2), low=(3, 4), high=(3, 5)),
    "depthwise-column": Conv(groups=35, channels=35, features=35, window=(5, 1), low=(2, 0), high=(2, 0)),
    "depthwise-transposed": Conv(groups=4, channels=4, features=4, spread=(2, 2), low=(2, 2), high=(1, 1)),
    "1d": Conv(window=(3,), strides=(2,), low=(1,), high=(1,), spread=(1,), dilation=(1,)),
    "3d": Conv((2, 3, 2), 4, 6, (1, 2, 1), (1, 0, 1), (0, 2, 1), (1, 1, 1), (1, 1, 2)),
}
#: batch and spatial extents (the first one for 1d; the last repeated for 3d)
SIZES = [(1, 9, 11), (2, 4, 3), (1, 1, 1), (0, 5, 5), (1, 0, 4), (1, 6, 0), (1, 2, 150), (3, 17, 7)]


def extents(conv: Conv, size: tuple[int, ...]) -> tuple[int, ...]:
    n, *spatial = size
    return (n, *(spatial + spatial[-1:])[: len(conv.window)])


def check(got: np.ndarray, x: np.ndarray, w: np.ndarray, conv: Conv, dtype: DType, **padding) -> None:
    want = conv.reference(x, w, **padding)
    if dtype.is_int:
        np.testing.assert_array_equal(got, want.astype(dtype.np))
        return
    scale = conv.reference(np.abs(x), np.abs(w), **padding)
    terms = w[..., 0].size + 4
    accumulate = 2.0**-52 if dtype is DType.F64 else 2.0**-23
    bound = terms * accumulate * scale + 2 * epsilon(dtype) * (np.abs(want) + 1e-6)
    assert got.shape == want.shape
    worst = np.max(np.abs(got.astype(np.float64) - want) - bound, initial=-1.0)
    assert worst <= 0, f"off by {worst} beyond the bound"


#: windows that every run tries with weights that are not constant, for the oldest target
_BRIEF = ("padded", "groups", "transposed", "depthwise", "3d")


def _windows():
    """All windows for all targets with both kinds of weights; every run has the newest target with constants."""
    for name in CONVS:
        for kind in ("const", "device"):
            for target in TARGETS:
                fast = (kind, target) == ("const", TARGETS[-1]) or (name in _BRIEF and (kind, target) == ("device", TARGETS[0]))
                yield pytest.param(name, kind, target, id=f"{name}-{kind}-{target.name}", marks=() if fast else pytest.mark.slow)


def _targets():
    """The newest target in every run."""
    for target in TARGETS:
        yield pytest.param(target, id=target.name, marks=() if target is TARGETS[-1] else pytest.mark.slow)


@pytest.mark.parametrize(("name", "kind", "target"), _windows())
def test_windows_and_sizes(name, kind, target):
    """One kernel for every size; each split of the tasks gives the same bits."""
    conv, rng = CONVS[name], np.random.default_rng(3)
    c = Case()
    x = c.arg(F32, ("n", *("h", "w", "d")[: len(conv.window)], conv.channels))
    w = c.arg(F32, conv.kernel, kind)
    f = c.compile(target, "conv", [conv.build(c, x, w)])
    for size in SIZES:
        shape = extents(conv, size)
        arrays = {x: random(rng, F32, (*shape, conv.channels)), w: random(rng, F32, conv.kernel)}
        dims = dict(zip(("n", "h", "w", "d"), shape, strict=False))
        all_arrays = {**arrays, **prepared(f, arrays)}
        (got,) = f(all_arrays, dims)
        check(got, arrays[x], arrays[w], conv, F32)
        (again,) = f(all_arrays, dims, split=1)
        assert got.tobytes() == again.tobytes()


@pytest.mark.parametrize("target", _targets())
@pytest.mark.parametrize("dtype", [DType.F64, DType.F16, DType.BF16, DType.I32, DType.U8], ids=str)
@pytest.mark.parametrize("name", ["padded", "depthwise", "one-feature"])
def test_dtypes(target, dtype, name):
    conv, rng = CONVS[name], np.random.default_rng(4)
    c = Case()
    x, w = c.arg(dtype, ("n", "h", "w", conv.channels)), c.arg(dtype, conv.kernel, "const")
    f = c.compile(target, "conv", [conv.build(c, x, w)])
    for size in SIZES[:3]:
        arrays = {x: random(rng, dtype, (*size, conv.channels)), w: random(rng, dtype, conv.kernel)}
        (got,) = f({**arrays, **prepared(f, arrays)}, dict(zip("nhw", size, strict=True)))
        check(got, arrays[x], arrays[w], conv, dtype)


@pytest.mark.parametrize("target", _targets())
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 12])
def test_symbolic_padding_with_epilogue(target, stride, groups):
    """SAME padding of unknown extents, then bias, residual and a clamp; the sum itself is a result too."""
    conv = Conv(channels=12, features=12, strides=(stride, stride), groups=groups)
    rng = np.random.default_rng(5)
    c = Case()
    b = c.b
    x, w, bias = c.arg(F32, ("n", "h", "w", 12)), c.arg(F32, conv.kernel, "const"), c.arg(F32, (12,))
    spatial = [Dim.of("h"), Dim.of("w")]
    outs = [ceildiv(d, stride) for d in spatial]
    total = [dmax((o - 1) * stride + 3 - d, 0) for o, d in zip(outs, spatial, strict=True)]
    low = [t // 2 for t in total]
    y = conv.build(c, x, w, low, [t - a for t, a in zip(total, low, strict=True)], ("n", *outs, 12))
    res = c.arg(F32, y.dims)
    z = b.add(b.add(y, b.broadcast_in_dim(bias, y.dims, (3,))), res)
    z = b.minimum(b.maximum(z, b.full(0.0, F32, z.dims)), b.full(6.0, F32, z.dims))
    f = c.compile(target, "conv", [y, z])
    for n, h, v in SIZES:
        at = {"n": n, "h": h, "w": v}
        shape = tuple(d.evaluate(at) for d in y.dims)
        arrays = {
            x: random(rng, F32, (n, h, v, 12)), w: random(rng, F32, conv.kernel), bias: random(rng, F32, (12,)),
            res: random(rng, F32, shape),
        }  # fmt: skip
        got, clamped = f({**arrays, **prepared(f, arrays)}, at)
        pads = [[d.evaluate(at) for d in low], [(t - a).evaluate(at) for t, a in zip(total, low, strict=True)]]
        check(got, arrays[x], arrays[w], conv, F32, low=pads[0], high=pads[1])
        np.testing.assert_allclose(clamped, np.clip(got + arrays[bias] + arrays[res], 0, 6), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("target", _targets())
@pytest.mark.parametrize("stride", [1, 2])
def test_long_epilogue_of_a_depthwise_convolution(target, stride):
    """More than what is computed on registers: the sums of a line go to scratch first. Channels that fill no block of vectors."""
    conv = Conv(groups=101, channels=101, features=101, strides=(stride, stride), low=(1, 1), high=(1, 1))
    rng, c = np.random.default_rng(6), Case()
    b = c.b
    x, w, bias = c.arg(F32, ("n", "h", "w", 101)), c.arg(F32, conv.kernel, "const"), c.arg(F32, (101,))
    y = conv.build(c, x, w)
    z = b.add(y, b.broadcast_in_dim(bias, y.dims, (3,)))
    f = c.compile(target, "conv", [y, b.tanh(z)])
    for n, h, v in SIZES:
        arrays = {x: random(rng, F32, (n, h, v, 101)), w: random(rng, F32, conv.kernel), bias: random(rng, F32, (101,))}
        every, at = {**arrays, **prepared(f, arrays)}, {"n": n, "h": h, "w": v}
        got, after = f(every, at)
        check(got, arrays[x], arrays[w], conv, F32)
        np.testing.assert_allclose(after, np.tanh(got + arrays[bias]), rtol=1e-6, atol=1e-6)
        assert [r.tobytes() for r in f(every, at, split=1)] == [got.tobytes(), after.tobytes()]


@pytest.mark.parametrize("groups", [1, 40])
def test_nan_stays_where_a_window_sees_it(groups):
    """A NaN and an infinity of the data: in the results whose windows they lie under, in no others."""
    conv = Conv(channels=40, features=40, groups=groups, low=(1, 1), high=(1, 1))
    rng, c = np.random.default_rng(7), Case()
    x, w = c.arg(F32, ("n", "h", "w", 40)), c.arg(F32, conv.kernel, "const")
    f = c.compile(TARGETS[-1], "conv", [conv.build(c, x, w)])
    data = random(rng, F32, (1, 20, 31, 40))
    data[0, 5, 0], data[0, 10, 17], data[0, 19, 30] = np.nan, np.inf, np.nan
    arrays = {x: data, w: random(rng, F32, conv.kernel)}
    (got,) = f({**arrays, **prepared(f, arrays)}, {"n": 1, "h": 20, "w": 31})
    with np.errstate(invalid="ignore"):
        want = conv.reference(data, arrays[w])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    sees = np.zeros((20, 31), bool)
    for i, j in ((5, 0), (10, 17), (19, 30)):
        sees[max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2] = True
    np.testing.assert_array_equal(~np.isfinite(got).all((0, 3)), sees)
