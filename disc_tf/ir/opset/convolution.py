"""`convolution(x, w)`: StableHLO's convolution in one layout, channels last.

x: ``[batch, spatial..., channels]``, w: ``[spatial..., channels / groups, features]``, result ``[batch, spatial..., features]``.
StableHLO's other dimension numbers are transposes beside it (the importer writes them). Feature ``f`` belongs to group ``f //
(features / groups)`` and reads that group's channels. Padding may be symbolic. f16 and bf16 are summed in f32 and rounded once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Op
from disc_tf.ir.dims import Dim
from disc_tf.ir.opset import scalar_math
from disc_tf.ir.opset.base import Attr, EvalContext, InferInput, OpDef, register
from disc_tf.ir.opset.reductions import window_extent
from disc_tf.ir.opset.shaping import pad
from disc_tf.ir.types import DType, TensorType, Type

_POSITIVE = ("window_strides", "lhs_dilation", "rhs_dilation")


def _infer(i: InferInput) -> list[Type]:
    x, w = i.tensors()
    dtype = i.same_dtype((x, w))
    if dtype == DType.BOOL:
        raise i.fail("convolution of bool")
    spatial = x.rank - 2
    if spatial < 1 or w.rank != x.rank:
        raise i.fail("takes [batch, spatial..., channels] and [spatial..., channels, features] of one rank, 3 or more")
    for name in (*_POSITIVE, "padding_low", "padding_high"):
        if len(i.attrs[name]) != spatial:
            raise i.fail(f"{name} must have {spatial} entries")
    for name in _POSITIVE:
        if any(v < 1 for v in i.attrs[name]):
            raise i.fail(f"{name} must be positive")
    groups = i.attrs["feature_group_count"]
    if groups < 1:
        raise i.fail("feature_group_count must be positive")
    if i.differ(x.dims[-1], w.dims[-2] * groups):
        raise i.fail(f"{x.dims[-1]} channels are not {groups} groups of {w.dims[-2]}")
    if w.dims[-1].is_static and int(w.dims[-1]) % groups:
        raise i.fail(f"{w.dims[-1]} features are not {groups} equal groups")
    if not all(d.is_static for d in w.dims[:spatial]):
        raise i.fail("the window's extents must be static")
    a = i.attrs
    out = []
    for k in range(spatial):
        if int(w.dims[k]) == 0:
            raise i.fail("the window is empty")
        out.append(
            window_extent(
                x.dims[k + 1], int(w.dims[k]), a["window_strides"][k], a["lhs_dilation"][k], a["rhs_dilation"][k],
                a["padding_low"][k], a["padding_high"][k],
            )
        )  # fmt: skip
    result = TensorType(dtype, (x.dims[0], *out, w.dims[-1]))
    if i.result is not None and len(i.result) == 1 and isinstance(i.result[0], TensorType) and i.result[0].rank == x.rank:
        # The creator may know plainer dims for the same extents.
        chosen = i.result[0]
        for have, want in zip(chosen.dims, result.dims, strict=True):
            if i.differ(have, want):
                raise i.fail(f"the result has dims {chosen.dims}, should have {result.dims}")
        result = result.with_dims(chosen.dims)
    return [result]


def convolve(
    x: np.ndarray, w: np.ndarray, strides: Sequence[int], low: Sequence[int], high: Sequence[int],
    lhs_dilation: Sequence[int], rhs_dilation: Sequence[int], groups: int,
) -> np.ndarray:  # fmt: skip
    """The convolution in f64 (floats) or wrapping integers, not yet rounded to the operands' dtype."""
    floating = scalar_math.is_float(x.dtype)
    wide = np.dtype(np.float64) if floating else x.dtype
    spatial = x.ndim - 2
    gaps = [0, *(d - 1 for d in lhs_dilation), 0]
    x = pad(x.astype(wide), np.zeros((), wide), [0, *low, 0], [0, *high, 0], gaps)
    w = w.astype(wide)
    reach = [(w.shape[k] - 1) * rhs_dilation[k] + 1 for k in range(spatial)]
    extents = [max((x.shape[k + 1] - reach[k]) // strides[k] + 1, 0) for k in range(spatial)]
    features = w.shape[-1]
    out = np.zeros((x.shape[0], *extents, groups, features // groups), wide)
    if not out.size or not x.shape[-1]:
        return out.reshape(x.shape[0], *extents, features)
    grouped = x.reshape(*x.shape[:-1], groups, -1)
    kernel = w.reshape(*w.shape[:-1], groups, -1)
    with np.errstate(all="ignore"):
        for at in itertools.product(*(range(n) for n in w.shape[:spatial])):
            index = tuple(
                slice(a * d, a * d + (n - 1) * s + 1, s) for a, d, n, s in zip(at, rhs_dilation, extents, strides, strict=True)
            )
            # [n, spatial, g, c] x [c, g, f]
            out += np.einsum("...gc,cgf->...gf", grouped[(slice(None), *index)], kernel[at], optimize=floating)
    return out.reshape(x.shape[0], *extents, features)


def _reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    a = op.attrs
    low, high = ([ctx.dim(Dim.of(d)) for d in a[k]] for k in ("padding_low", "padding_high"))
    x, w = inputs
    out = convolve(x, w, a["window_strides"], low, high, a["lhs_dilation"], a["rhs_dilation"], a["feature_group_count"])
    return [scalar_math.round_to(out, x.dtype) if scalar_math.is_float(x.dtype) else out.astype(x.dtype)]


register(
    OpDef(
        "convolution", 2, _infer, _reference,
        {
            "window_strides": Attr("ints"), "padding_low": Attr("dims"), "padding_high": Attr("dims"),
            "lhs_dilation": Attr("ints"), "rhs_dilation": Attr("ints"), "feature_group_count": Attr("int"),
        },
        typed=True, stablehlo="stablehlo.convolution",
    )
)  # fmt: skip

__all__ = ["convolve"]
