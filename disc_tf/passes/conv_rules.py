"""Convolutions: a zero padding before one becomes its own; one by single points becomes a matrix product."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from disc_tf.ir.core import Module, Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.pass_manager import Pass
from disc_tf.passes.rewriter import Rewriter, rewrite, splat_of, table


@dataclasses.dataclass(frozen=True)
class ConvToDot(Pass):
    """Fold paddings with zeros into convolutions; a convolution by single points (window 1, stride 1, no padding, one group) becomes a
    ``dot_general`` over the channels."""

    name = "conv-to-dot"

    def run(self, module: Module, ctx: object) -> None:
        for fn in module.functions.values():
            rewrite(fn, CONV_RULES)


def pointwise(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """``x[n, s..., c] * w[1..., c, f]``: contract the channels."""
    x, w = op.operands
    a = op.attrs
    spatial = x.rank - 2
    if a["feature_group_count"] != 1 or any(d != 1 for d in w.dims[:spatial]):
        return None
    if any(v != 1 for k in ("window_strides", "lhs_dilation") for v in a[k]):
        return None
    if any(Dim.of(d) != 0 for k in ("padding_low", "padding_high") for d in a[k]):
        return None
    matrix = rw.reshape(w, w.dims[spatial:])
    attrs = {"lhs_batching": (), "rhs_batching": (), "lhs_contracting": (x.rank - 1,), "rhs_contracting": (0,)}
    return [rw.value("dot_general", [x, matrix], op.result.type, attrs)]


def fold_pad(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """The zeros that a ``pad`` puts around the spatial axes are those of the convolution's own padding."""
    x, w = op.operands
    p = x.op
    if p is None or p.name != "pad" or any(v != 1 for v in op.attrs["lhs_dilation"]):
        return None
    zero = splat_of(p.operands[1])
    if zero is None or zero != 0 or any(Dim.of(d) != 0 for d in p.attrs["interior"]):
        return None
    low, high = (tuple(map(Dim.of, p.attrs[k])) for k in ("low", "high"))
    if any(d != 0 for side in (low, high) for d in (side[0], side[-1])):
        return None
    if not all(rw.env.is_nonneg(d) is True for side in (low, high) for d in side):
        return None  # it cuts data off
    attrs = dict(op.attrs)
    attrs["padding_low"] = tuple(a + b for a, b in zip(op.attrs["padding_low"], low[1:-1], strict=True))
    attrs["padding_high"] = tuple(a + b for a, b in zip(op.attrs["padding_high"], high[1:-1], strict=True))
    if any(rw.env.is_nonneg(a) is not True for a in op.attrs["padding_low"]):
        return None  # the convolution's own padding cuts some of the zeros off
    return [rw.value("convolution", [p.operands[0], w], op.result.type, attrs)]


CONV_RULES = table((["convolution"], fold_pad), (["convolution"], pointwise))
