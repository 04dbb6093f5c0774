"""DynamicPartition, DynamicStitch, ListDiff: rows chosen by data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.data_dependent import bind_count, nonzero
from disc_tf.lowering.gather_ops import gather
from disc_tf.lowering.join_split import concat
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import ALL, NUMBERS, lowering
from disc_tf.lowering.rows import length_of_indices, scatter_rows, take
from disc_tf.lowering.shapes import invalid

# ---- DynamicPartition ------------------------------------------------------------------------------------


def _leading(ctx: LoweringContext, data: Value, leading: Sequence[Dim], message: str) -> tuple[Dim, ...]:
    """The dims of ``data`` behind ``leading``, with which they must start."""
    if data.rank < len(leading):
        raise invalid(message)
    for have, want in zip(data.dims, leading, strict=False):
        ctx.check_dims_eq(have, want, message=message)
    return data.dims[len(leading) :]


@lowering("DynamicPartition", dtypes=ALL)
def dynamic_partition(ctx: LoweringContext, node: NodeView, data: Value, partitions: Value) -> list[Value]:
    """Rows of ``data`` by the number that ``partitions`` gives each, in their order."""
    parts = int(node.attr("num_partitions"))
    rest = _leading(ctx, data, partitions.dims, "data.shape must start with partitions.shape")
    n = product(partitions.dims)
    rows, ids = ctx.b.reshape(data, [n, *rest]), ctx.b.reshape(partitions, [n])
    in_range = ctx.b.and_(
        ctx.b.compare(ids, ctx.splat(0, ids), "GE"), ctx.b.compare(ids, ctx.splat(parts, ids), "LT")
    )
    ctx.check(in_range, message=f"partitions: a value is not in [0, {plain(parts)})")
    order, counts = ctx.b.partition(ids, parts)
    out: list[Value] = []
    start = Dim.of(0)
    for k in range(parts):
        count = ctx.b.reshape(ctx.b.slice(counts, [k], [k + 1]), [])
        size = bind_count(ctx, count, n)
        out.append(take(ctx, rows, ctx.b.slice(order, [start], [start + size])))
        start = start + size
    return out


# ---- DynamicStitch -----------------------------------------------------------------------------------------


@lowering(
    "DynamicStitch", "ParallelDynamicStitch", dtypes=ALL,
    limits="rows that no index names are zero, where TensorFlow leaves them undefined",
)  # fmt: skip
def dynamic_stitch(ctx: LoweringContext, node: NodeView, *args: Value) -> Value:
    """Rows of the data operands placed at indices; of several for one place the last stays. As many rows as the greatest index asks for."""
    count = len(args) // 2
    rows: list[Value] = []
    row_dims: tuple[Dim, ...] | None = None
    for indices, data in zip(args[:count], args[count:], strict=True):
        rest = _leading(ctx, data, indices.dims, f"data of {node.op} must start with the shape of its indices")
        message = f"data of {node.op} must agree in the shape after that of their indices"
        row_dims = rest if row_dims is None else row_dims
        if len(rest) != len(row_dims):
            raise invalid(message)
        for have, want in zip(rest, row_dims, strict=True):
            ctx.check_dims_eq(have, want, message=message)
        rows.append(ctx.b.reshape(data, [product(indices.dims), *row_dims]))
    joined = concat(ctx, rows, 0)
    known = [ctx.constant(v) for v in args[:count]]
    flat = [k.reshape(-1) for k in known if k is not None]
    if len(flat) == count:
        return _stitch_at(ctx, node, joined, np.concatenate(flat))
    at = concat(ctx, [ctx.b.reshape(v, [product(v.dims)]) for v in args[:count]], 0)
    ctx.check(ctx.b.compare(at, ctx.splat(0, at), "GE"), message=f"indices of {node.op}: a value is out of range")
    length = length_of_indices(ctx, at, f"indices of {node.op}: a value is out of range")
    return _scatter_rows(ctx, joined, at, length)


def _scatter_rows(ctx: LoweringContext, rows: Value, at: Value, length: Dim) -> Value:
    return scatter_rows(ctx, ctx.full(0, rows.dtype, [length, *rows.dims[1:]]), at, rows)


def _stitch_at(ctx: LoweringContext, node: NodeView, joined: Value, places: np.ndarray) -> Value:
    """DynamicStitch by indices that are known."""
    source = {int(place): n for n, place in enumerate(places)}  # the last one wins
    if any(place < 0 for place in source):
        raise invalid(f"indices of {node.op} must not be negative")
    length = max(source, default=-1) + 1
    if len(source) != length:
        return _scatter_rows(ctx, joined, ctx.const(places), Dim.of(length))
    order = [source[place] for place in range(length)]
    if order == list(range(places.size)):
        return joined
    return gather(ctx, joined, ctx.const(np.array(order, np.int32)), 0, 0)


# ---- ListDiff ----------------------------------------------------------------------------------------------


@lowering("ListDiff", dtypes=NUMBERS)
def list_diff(ctx: LoweringContext, node: NodeView, x: Value, y: Value) -> list[Value]:
    """The elements of ``x`` that are not in ``y``, with their positions. A NaN is never in ``y``."""
    for name, v in (("x", x), ("y", y)):
        if v.rank != 1:
            raise invalid(f"{name} should be a 1D vector.")
    b = ctx.b
    n, m = x.dims[0], y.dims[0]
    joined = concat(ctx, [y, x], 0)
    narrow = x.dtype in (DType.F16, DType.BF16)
    first, number, _counts, _count = b.unique(b.reshape(joined, [m + n, 1]), DType.I64, distinct_zeros=narrow)
    # An element of x is new if its value does not occur before the end of y.
    where_first = take(ctx, first, b.slice(number, [m], [m + n]))
    is_new = b.compare(where_first, ctx.broadcast_to(ctx.dim(m), [n]), "GE")
    at = nonzero(ctx, is_new)
    positions = b.reshape(at, [at.dims[0]])
    return [take(ctx, x, positions), b.convert(positions, node.dtype("out_idx", DType.I32))]


