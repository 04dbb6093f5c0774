"""A convolution between SpaceToBatchND and BatchToSpaceND is a dilated one on the data as they were: TF exports dilations like that.

With block ``s`` position ``i`` of image ``r`` of the batch is position ``i * s + r`` of the data, so that a step of the window is ``s``
elements there, and an element of its padding ``s`` elements. Around one-dimensional convolutions a unit axis is put in and taken out.
"""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.lowering.context import LoweringContext


def dilated_convolution(ctx: LoweringContext, x: Value, block: Sequence[int], wanted: Sequence[Dim]) -> Value | None:
    """What BatchToSpaceND of ``x`` is before it crops, of dims ``wanted``, if ``x`` is such a convolution; else None."""
    result, inner = _without_units(x)
    op = result.op
    if op is None or op.name != "convolution" or any(v != 1 for key in ("window_strides", "lhs_dilation") for v in op.attrs[key]):
        return None
    lhs, filter = op.operands
    split, outer = _without_units(lhs)
    if inner != outer:
        return None
    data = _space_to_batch_source(split, block)
    if data is None or ctx.env.is_equal(data.dims[0], wanted[0]) is not True:
        return None
    # The axis of the convolution that each axis of the blocks is.
    kept = [k for k in range(lhs.rank) if k not in outer]
    steps = [1] * (lhs.rank - 2)
    for size, axis in zip(block, kept[1:], strict=False):
        if axis == lhs.rank - 1:
            return None  # blocks of channels
        steps[axis - 1] = size
    attrs = op.attrs
    low, high = ([Dim.of(d) * s for d, s in zip(attrs[key], steps, strict=True)] for key in ("padding_low", "padding_high"))
    y = ctx.b.convolution(
        ctx.b.reshape(data, _with_units(data.dims, outer)), filter, padding_low=low, padding_high=high,
        rhs_dilation=[d * s for d, s in zip(attrs["rhs_dilation"], steps, strict=True)], groups=attrs["feature_group_count"],
        dims=_with_units(wanted, outer),
    )  # fmt: skip
    return ctx.b.reshape(y, wanted)


def _without_units(v: Value) -> tuple[Value, tuple[int, ...]]:
    """The value behind a reshape that only puts unit axes in or takes them out, and where they are in the longer shape; else ``v``."""
    op = v.op
    if op is None or op.name != "reshape":
        return v, ()
    (u,) = op.operands
    long, short = (v.dims, u.dims) if v.rank > u.rank else (u.dims, v.dims)
    units = _units(long, short)
    return (v, ()) if not units else (u, units)


def _units(long: Sequence[Dim], short: Sequence[Dim]) -> tuple[int, ...]:
    """Axes of ``long`` that are 1 and without which it is ``short``; none if there are no such."""
    out: list[int] = []
    at = 0
    for axis, d in enumerate(long):
        if at < len(short) and short[at] == d:
            at += 1
        elif d == 1:
            out.append(axis)
        else:
            return ()
    return tuple(out) if at == len(short) else ()


def _with_units(dims: Sequence[Dim], units: Sequence[int]) -> tuple[Dim, ...]:
    out = list(dims)
    for axis in units:
        out.insert(axis, Dim.of(1))
    return tuple(out)


def _space_to_batch_source(v: Value, block: Sequence[int]) -> Value | None:
    """The padded data of which ``v`` is SpaceToBatchND with these blocks, by the ops that its rule makes."""
    names = ("reshape", "transpose", "reshape")
    ops = []
    for name in names:
        if v.op is None or v.op.name != name:
            return None
        ops.append(v.op)
        v = v.op.operands[0]
    _, transpose, cut = ops
    count, parts = len(block), cut.result.dims
    spatial = range(count)
    order = (*(2 * k + 2 for k in spatial), 0, *(2 * k + 1 for k in spatial), *range(2 * count + 1, len(parts)))
    if len(parts) != v.rank + count or tuple(transpose.attrs["permutation"]) != order:
        return None
    fits = all(parts[2 * k + 2] == size and v.dims[k + 1] == parts[2 * k + 1] * size for k, size in enumerate(block))
    return v if fits and parts[0] == v.dims[0] else None
