"""The content of integer vectors found late: of values that were made before the content of what they are made from was known.

A graph slices and multiplies a sparse tensor's dense shape before the op that says what the shape is. Once that op has bound its elements,
`traced` finds them again in what was computed from them.
"""

from __future__ import annotations

from collections.abc import Callable

from disc_tf.ir.core import Op, Value, reduce_kind
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext

_DEPTH = 16

Content = list[Dim]


def traced(ctx: LoweringContext, v: Value, depth: int = _DEPTH) -> Content | None:
    """The elements of an integer tensor of rank 0 or 1 as dims, None if something that run time alone knows is among them."""
    known = ctx.dims_of(v)
    if known is not None:
        return known
    if depth == 0 or v.op is None or v.rank > 1 or not v.dtype.is_int or not v.tensor.is_static:
        return None
    rule = _RULES.get(v.op.name)
    return None if rule is None else rule(ctx, v.op, depth - 1)


def _same(ctx: LoweringContext, op: Op, depth: int) -> Content | None:
    return traced(ctx, op.operands[0], depth)


def _convert(ctx: LoweringContext, op: Op, depth: int) -> Content | None:
    # Narrower results could wrap: only the widths of shapes are followed, as `fold` does.
    return traced(ctx, op.operands[0], depth) if op.result.dtype in (DType.I32, DType.I64) else None


def _slice(ctx: LoweringContext, op: Op, depth: int) -> Content | None:
    found = traced(ctx, op.operands[0], depth)
    edges = [op.attrs[k][0] for k in ("starts", "limits")]
    if found is None or not all(Dim.of(e).is_static for e in edges):
        return None
    return found[int(edges[0]) : int(edges[1]) : int(op.attrs["strides"][0])]


def _reduce(ctx: LoweringContext, op: Op, depth: int) -> Content | None:
    if len(op.operands) != 2 or reduce_kind(op) != "mul":
        return None
    parts = [traced(ctx, x, depth) for x in op.operands]
    if parts[0] is None or parts[1] is None or op.result.rank:
        return None
    return [product([*parts[0], *parts[1]])]


def _concatenate(ctx: LoweringContext, op: Op, depth: int) -> Content | None:
    out: Content = []
    for x in op.operands:
        found = traced(ctx, x, depth)
        if found is None:
            return None
        out += found
    return out


def _gather(ctx: LoweringContext, op: Op, depth: int) -> Content | None:
    x, indices = op.operands
    at = ctx.constant(indices)
    if x.rank != 1 or at is None or op.attrs["collapsed_slice_dims"] != (0,):
        return None
    found = traced(ctx, x, depth)
    return None if not found else [found[min(max(int(i), 0), len(found) - 1)] for i in at.reshape(-1)]


def _multiply(ctx: LoweringContext, op: Op, depth: int) -> Content | None:
    a, b = (traced(ctx, x, depth) for x in op.operands)
    return None if a is None or b is None else [x * y for x, y in zip(a, b, strict=True)]


_RULES: dict[str, Callable[[LoweringContext, Op, int], Content | None]] = {
    "reshape": _same,
    "broadcast_in_dim": lambda ctx, op, depth: _same(ctx, op, depth) if op.result.dims == op.operands[0].dims else None,
    "convert": _convert,
    "slice": _slice,
    "reduce": _reduce,
    "concatenate": _concatenate,
    "gather": _gather,
    "multiply": _multiply,
}

__all__ = ["traced"]
