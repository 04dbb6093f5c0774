"""Convolutions that are matrix products: a window of one position, stride 1, no padding, one group."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from disc_tf.ir.core import Module, Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.pass_manager import Pass
from disc_tf.passes.rewriter import Rewriter, rewrite, table


@dataclasses.dataclass(frozen=True)
class ConvToDot(Pass):
    """A convolution by single points becomes a ``dot_general`` over the channels."""

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


CONV_RULES = table((["convolution"], pointwise))
