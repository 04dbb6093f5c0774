"""A product and the depthwise convolution that alone reads it as one kernel, against numpy in float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from disc_tf.fusion.conv import Bands
from disc_tf.fusion.plan import make_plan
from disc_tf.ir.dims import Dim, ceildiv, dmax
from disc_tf.ir.opset.convolution import convolve
from disc_tf.ir.types import DType
from tests.codegen.cpu.products import Case, host_targets, prepared, random

TARGETS = host_targets()
F32, F64 = DType.F32, DType.F64


@dataclasses.dataclass(frozen=True)
class Block:
    """A product of ``depth`` by ``channels`` and a depthwise window after it; ``same``: padding that keeps the extents."""

    depth: int = 16
    channels: int = 96
    window: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    low: tuple[int, int] = (1, 1)
    high: tuple[int, int] = (1, 1)
    same: bool = False


BLOCKS = {
    "plain": Block(),
    "strided": Block(strides=(2, 2), low=(0, 0)),
    "same": Block(channels=48, strides=(2, 2), same=True),
    "ragged": Block(depth=7, channels=61),
    "few": Block(depth=1, channels=3),
    "two-blocks-and-one": Block(channels=97, window=(1, 1), low=(0, 0), high=(0, 0)),
    "wide-window": Block(channels=20, window=(5, 7), low=(2, 3), high=(2, 3)),
    "long-window": Block(channels=5, window=(2, 11), low=(1, 10), high=(0, 10)),
    "dilated": Block(dilation=(3, 2), low=(3, 2), high=(3, 2)),
    "valid": Block(low=(0, 0), high=(0, 0), strides=(3, 1)),
    "cropped": Block(low=(-1, -2), high=(0, -1)),
    "far": Block(low=(6, 9), high=(4, 8)),
}
#: batch, height, width; lines that fill several bands, and some that need more room than a band has
SIZES = [(1, 7, 7), (2, 37, 5), (1, 1, 1), (0, 5, 5), (1, 0, 4), (2, 6, 0), (1, 20, 90), (3, 3, 1), (1, 4, 4500)]


def _padding(block: Block) -> tuple[list[Dim], list[Dim]]:
    if not block.same:
        return [Dim.of(p) for p in block.low], [Dim.of(p) for p in block.high]
    low, high = [], []
    for d, s, k in zip((Dim.of("h"), Dim.of("w")), block.strides, block.window, strict=True):
        total = dmax((ceildiv(d, s) - 1) * s + k - d, 0)
        low.append(total // 2)
        high.append(total - total // 2)
    return low, high


class _Built:
    """The function of a block; ``results``: what it gives beside the convolution."""

    def __init__(self, block: Block, dtype: DType = F32, spread: tuple[int, int] = (1, 1)) -> None:
        self.block, self.case = block, Case()
        c, b, n = self.case, self.case.b, block.channels
        self.x = c.arg(dtype, ("n", "h", "w", block.depth))
        self.w, self.bias = c.arg(dtype, (block.depth, n), "const"), c.arg(dtype, (n,))
        self.taps = c.arg(dtype, (*block.window, 1, n), "const")
        low, high = _padding(block)
        y = b.dot_general(self.x, self.w, lhs_contracting=(3,), rhs_contracting=(0,))
        y = b.add(y, b.broadcast_in_dim(self.bias, y.dims, (3,)))
        self.middle = b.minimum(b.maximum(y, b.full(0.0, dtype, y.dims)), b.full(6.0, dtype, y.dims))
        outs = None
        if block.same:
            outs = ("n", *(ceildiv(Dim.of(d), s) for d, s in zip("hw", block.strides, strict=True)), n)
        self.out = b.convolution(
            self.middle, self.taps, strides=block.strides, padding_low=low, padding_high=high, lhs_dilation=spread,
            rhs_dilation=block.dilation, groups=n, dims=outs,
        )  # fmt: skip
        self.low, self.high = low, high

    def arrays(self, rng, dtype: DType, size: tuple[int, int, int]):
        block = self.block
        return {
            self.x: random(rng, dtype, (*size, block.depth)), self.w: random(rng, dtype, (block.depth, block.channels)),
            self.bias: random(rng, dtype, (block.channels,)), self.taps: random(rng, dtype, (*block.window, 1, block.channels)),
        }  # fmt: skip

    def reference(self, arrays, at) -> tuple[np.ndarray, np.ndarray]:
        """The result in float64, and how far a sum in another order may be from it, in units of the last place of 1."""
        block = self.block
        x, w, bias, taps = (arrays[v].astype(np.float64) for v in (self.x, self.w, self.bias, self.taps))
        low, high = ([p.evaluate(at) for p in side] for side in (self.low, self.high))
        middle = np.clip(x @ w + bias, 0, 6)
        off = (block.depth + 4) * (np.abs(x) @ np.abs(w) + np.abs(bias))
        args = (block.strides, low, high, (1, 1), block.dilation, block.channels)
        scale = convolve(off, np.abs(taps), *args) + (taps[..., 0].size + 4) * convolve(np.abs(middle), np.abs(taps), *args)
        return convolve(middle, taps, *args), scale


def _cases():
    for name in BLOCKS:
        for target in TARGETS:
            fast = target is TARGETS[-1] or (name in ("plain", "same") and target is TARGETS[0])
            yield pytest.param(name, target, id=f"{name}-{target.name}", marks=() if fast else pytest.mark.slow)


@pytest.mark.parametrize(("name", "target"), _cases())
def test_blocks_and_sizes(name, target):
    """One kernel for every size, whose tasks may be split anyhow."""
    built, rng = _Built(BLOCKS[name]), np.random.default_rng(11)
    f = built.case.compile(target, "conv", [built.out])
    for size in SIZES:
        at = dict(zip("nhw", size, strict=True))
        if any(d.evaluate(at) < 0 for d in built.out.dims):
            continue
        arrays = built.arrays(rng, F32, size)
        every = {**arrays, **prepared(f, arrays)}
        (got,) = f(every, at)
        want, scale = built.reference(arrays, at)
        assert got.shape == want.shape
        assert np.max(np.abs(got - want) - 2.0**-23 * scale, initial=-1.0) <= 0
        (again,) = f(every, at, split=1)
        assert got.tobytes() == again.tobytes()


def test_doubles():
    built, rng = _Built(BLOCKS["ragged"], F64), np.random.default_rng(12)
    f = built.case.compile(TARGETS[-1], "conv", [built.out])
    for size in SIZES[:3]:
        at = dict(zip("nhw", size, strict=True))
        arrays = built.arrays(rng, F64, size)
        every = {**arrays, **prepared(f, arrays)}
        (got,) = f(every, at)
        want, scale = built.reference(arrays, at)
        assert np.max(np.abs(got - want) - 2.0**-52 * scale, initial=-1.0) <= 0


def _apart(change) -> list[str]:
    """The kinds of the kernels of a block after ``change(built)``, which gives the results."""
    built = _Built(BLOCKS["plain"])
    built.case.b.return_(list(change(built)))
    return [f.kind for f in make_plan(built.case.fn).kernels()]


@pytest.mark.parametrize(
    "change",
    [
        lambda built: (built.out, built.middle),
        lambda built: (built.out, built.case.b.abs(built.middle)),
        lambda built: (built.case.b.add(built.out, built.middle),),
        lambda built: (built.out, built.case.b.reduce(built.middle, (0, 1, 2), "add")),
    ],
    ids=["result", "other-reader", "residual", "reduced"],
)
def test_what_somebody_else_reads_is_stored(change):
    kinds = _apart(change)
    assert kinds[0] == "gemm"
    assert "conv" in kinds


@pytest.mark.parametrize(
    ("block", "dtype", "spread"),
    [
        (Block(depth=1500, channels=8), F32, (1, 1)),
        (Block(channels=8), DType.F16, (1, 1)),
        (Block(channels=8), F32, (2, 1)),
    ],
    ids=["deep", "f16", "spread"],
)
def test_other_blocks_stay_two_kernels(block, dtype, spread):
    built = _Built(block, dtype, spread)
    built.case.b.return_([built.out])
    assert [f.kind for f in make_plan(built.case.fn).kernels()] == ["gemm", "conv"]


@pytest.mark.parametrize("name", ["plain", "strided", "wide-window", "long-window"])
def test_lines_of_bands(name):
    """Bands cover the result; however wide a line is, no more than twice the data's lines are computed, and scratch has as many at most."""
    out = _Built(BLOCKS[name]).out
    assert out.op is not None
    bands = Bands.of(out.op)
    high, stride = BLOCKS[name].window[0], BLOCKS[name].strides[0]
    for h in (high, 64, 1000):
        for w in (1, 300, 1500, 4000, 10**6):
            at = {"n": 1, "h": h, "w": w}
            count, lines, most = (d.evaluate(at) for d in (bands.count, bands.lines, bands.most))
            assert count * lines >= out.dims[1].evaluate(at)
            assert count * (lines * stride + high - stride) <= 2 * (h + 2 * high) + 16 * stride
            assert most <= h
