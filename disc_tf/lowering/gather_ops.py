"""Gather, GatherNd, OneHot, the scatters. An index out of range is INVALID_ARGUMENT, as on TF's CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType
from disc_tf.lowering.content import constant_int, scalar_dim
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import ALL, INTS, NUMBERS, lowering
from disc_tf.lowering.shape_ops import shape_operand
from disc_tf.lowering.shapes import invalid, normal_axis
from disc_tf.lowering.symbolic import is_positive, maximum

# ---- index checks ----------------------------------------------------------------------------------------


def check_in_range(ctx: LoweringContext, indices: Value, extent: Dim, message: str, window: Sequence[Dim] = ()) -> None:
    """Require ``0 <= indices < extent`` everywhere, unless one of the ``window``'s extents is 0: TF's Gather reads nothing then, and does
    not look at its indices."""
    unsure = [d for d in window if (low := ctx.env.bounds(d)[0]) is None or low < 1]
    if any(d == 0 for d in unsure):
        return

    def require(fits: Value) -> None:
        if unsure:
            if fits.rank:
                fits = ctx.reduce(fits, range(fits.rank), "and")
            fits = ctx.b.or_(fits, ctx.b.compare(ctx.dim(product(unsure)), ctx.dim(0), "EQ"))
        ctx.check(fits, message=message)

    b = ctx.b
    known = ctx.constant(indices)
    if known is not None:
        if known.size == 0:
            return
        low, high = int(known.min()), int(known.max())
        if low < 0 or (extent.is_static and high >= int(extent)):
            if not unsure:
                raise invalid(message)
            ctx.check(b.compare(ctx.dim(product(unsure)), ctx.dim(0), "EQ"), message=message)
        elif ctx.env.is_nonneg(extent - 1 - high) is True:
            pass
        elif unsure:
            require(b.compare(ctx.dim(extent), ctx.dim(high), "GT"))
        else:
            ctx.check_dim_cond(extent, "GT", high, message=message)
        return
    counted = _counts_to(indices)
    if counted is not None:  # positions 0 .. n-1, as in embeddings: their extent tells, no index need be read
        if ctx.env.is_nonneg(extent - counted) is not True:
            fits = b.compare(ctx.dim(counted), ctx.dim(extent), "LE")
            if counted != product(indices.dims):
                fits = b.or_(fits, b.compare(ctx.dim(product(indices.dims)), ctx.dim(0), "EQ"))
            require(fits)
        return
    # The comparison is made in a type that holds the extent: i8 indices of an axis of 300 are all in range above.
    wide = indices if indices.dtype in (DType.I32, DType.I64) else b.convert(indices, DType.I64)
    dtype = wide.dtype
    if dtype is DType.I32 and extent.is_static and int(extent) > 2**31 - 1:
        wide = b.convert(indices, dtype := DType.I64)
    in_range = b.compare(wide, ctx.broadcast_to(ctx.dim(extent, dtype), wide.dims), "LT")
    if indices.dtype.is_signed:
        in_range = b.and_(b.compare(wide, ctx.splat(0, wide), "GE"), in_range)
    require(in_range)


def _counts_to(v: Value) -> Dim | None:
    """``n`` if the elements of ``v`` are 0 .. n-1 in some arrangement (an iota, reshaped or broadcast), else None."""
    while v.op is not None and v.op.name in ("reshape", "broadcast_in_dim"):
        v = v.op.operands[0]
    if v.op is None or v.op.name != "iota":
        return None
    return v.dims[v.op.attrs["dimension"]]


# ---- Gather ----------------------------------------------------------------------------------------------


def gather(ctx: LoweringContext, x: Value, indices: Value, axis: int, batch: int) -> Value:
    """``x[b..., indices[b..., i...]]`` along ``axis``; the first ``batch`` axes of both go together."""
    for i in range(batch):
        message = f"params.shape[{i}]: {plain(x.dims[i])} should be equal to indices.shape[{i}]: {plain(indices.dims[i])}"
        ctx.check_dims_eq(x.dims[i], indices.dims[i], message=message)
    indices = ctx.cast_dims(indices, (*x.dims[:batch], *indices.dims[batch:]))
    extent = x.dims[axis]
    window = [d for i, d in enumerate(x.dims) if i != axis]
    check_in_range(ctx, indices, extent, f"indices: a value is not in [0, {plain(extent)})", window)
    sizes = list(x.dims)
    for i in (*range(batch), axis):
        sizes[i] = Dim.of(1)
    if extent == 0:  # nothing can be read: the indices must be empty (checked) or the window is, and so is the result
        dims = (*x.dims[:axis], *indices.dims[batch:], *x.dims[axis + 1 :])
        return ctx.full(0, x.dtype, dims)
    middle = indices.rank - batch
    offset = (*range(batch, axis), *range(axis + middle, x.rank - 1 + middle))
    return ctx.b.gather(
        x,
        indices,
        sizes,
        offset_dims=offset,
        collapsed_slice_dims=(axis,),
        operand_batching_dims=tuple(range(batch)),
        start_indices_batching_dims=tuple(range(batch)),
        start_index_map=(axis,),
        index_vector_dim=indices.rank,
    )


@lowering("GatherV2", dtypes={"Tparams": ALL, "Tindices": INTS}, limits="the axis is constant")
def gather_v2(ctx: LoweringContext, node: NodeView, x: Value, indices: Value, axis: Value) -> Value:
    """Rows of ``x`` along ``axis``, with leading batch axes."""
    if not x.rank:
        raise invalid("params must be at least 1 dimensional")
    at = constant_int(ctx, axis, "the axis of GatherV2")
    at = normal_axis(at, x.rank, f"Expected axis in the range [{-x.rank}, {x.rank}), but got {at}")
    return gather(ctx, x, indices, at, _batch_dims(node, x, indices, at))


def _batch_dims(node: NodeView, x: Value, indices: Value, axis: int) -> int:
    batch = int(node.attr("batch_dims", 0))
    if not -indices.rank <= batch <= indices.rank:
        raise invalid(f"Expected batch_dims in the range [{-indices.rank}, {indices.rank}], but got {batch}")
    batch += indices.rank if batch < 0 else 0
    if batch >= x.rank:
        raise invalid(f"batch_dims ({batch}) must be less than rank(params) ({x.rank})")
    if axis < batch:
        raise invalid(f"batch_dims ({batch}) must be less than or equal to axis ({axis})")
    return batch


@lowering("Gather", dtypes={"Tparams": ALL, "Tindices": INTS})
def gather_v1(ctx: LoweringContext, _node: NodeView, x: Value, indices: Value) -> Value:
    """Rows of ``x`` along its first axis."""
    if not x.rank:
        raise invalid("params must be at least 1 dimensional")
    return gather(ctx, x, indices, 0, 0)


@lowering(
    "ResourceGather", dtypes={"dtype": ALL, "Tindices": INTS}, limits="the resource is given by its value"
)
def resource_gather(ctx: LoweringContext, node: NodeView, x: Value, indices: Value) -> Value:
    """Rows of a variable's value along the axis after the batch axes."""
    if not x.rank:
        raise invalid("params must be at least 1 dimensional")
    batch = _batch_dims(node, x, indices, x.rank)
    return gather(ctx, x, indices, batch, batch)


# ---- GatherNd and the scatters: index vectors in the last axis -------------------------------------------


def _index_width(indices: Value, rank: int, op: str) -> int:
    if not indices.rank:
        raise invalid("indices must be at least a vector")
    width = indices.dims[-1]
    if not width.is_static:
        raise Unsupported(
            "RANK", f"{op}: the last dimension of indices ({width}) gives the rank of the result"
        )
    if int(width) > rank:
        raise invalid(f"index innermost dimension length must be <= params rank; saw: {width} vs. {rank}")
    return int(width)


def _check_index_vectors(ctx: LoweringContext, indices: Value, dims: Sequence[Dim], message: str) -> None:
    """Require every index vector to lie in ``dims`` (one check for each component)."""
    last = indices.rank - 1
    for k, extent in enumerate(dims):
        known = ctx.constant(indices)
        if known is not None:
            component = ctx.const(np.ascontiguousarray(known[..., k]))
        else:
            starts = [0] * last + [k]
            component = ctx.b.slice(indices, starts, [*indices.dims[:last], k + 1])
            component = ctx.b.reshape(component, indices.dims[:last])
        check_in_range(ctx, component, extent, message)


def _check_not_empty(ctx: LoweringContext, outer: Sequence[Dim], window: Sequence[Dim], message: str) -> None:
    """TF rejects index vectors (of which there are ``outer``) into a tensor whose slices (``window``) are empty."""
    if all(is_positive(ctx.env, d) for d in window) or any(d == 0 for d in outer):
        return
    some, none = (
        ctx.b.compare(ctx.dim(product(ds)), ctx.dim(0), how) for ds, how in ((window, "GT"), (outer, "EQ"))
    )
    ctx.check(ctx.b.or_(some, none), message=message)


@lowering("GatherNd", dtypes={"Tparams": ALL, "Tindices": INTS}, limits="bad_indices_policy is the default")
def gather_nd(ctx: LoweringContext, node: NodeView, x: Value, indices: Value) -> Value:
    """Slices of ``x`` at index vectors."""
    if node.attr("bad_indices_policy", "") not in ("", "DEFAULT", "ERROR"):
        raise Unsupported("ATTR", f"GatherNd with bad_indices_policy {node.attr('bad_indices_policy')}")
    if not x.rank:
        raise invalid("params must be at least a vector")
    width = _index_width(indices, x.rank, "GatherNd")
    outer = indices.dims[:-1]
    result = (*outer, *x.dims[width:])
    _check_not_empty(ctx, outer, x.dims[width:], "Requested more than 0 entries, but params is empty.")
    if width == 0:
        return ctx.broadcast_to(x, result)
    _check_index_vectors(ctx, indices, x.dims[:width], "indices: a vector does not index into param shape")
    if any(d == 0 for d in x.dims[:width]):
        return ctx.full(0, x.dtype, result)
    return ctx.b.gather(
        x,
        indices,
        [*[1] * width, *x.dims[width:]],
        offset_dims=tuple(range(len(outer), len(result))),
        collapsed_slice_dims=tuple(range(width)),
        start_index_map=tuple(range(width)),
        index_vector_dim=indices.rank - 1,
    )


def _scatter(ctx: LoweringContext, x: Value, indices: Value, updates: Value, kind: str, op: str) -> Value:
    """``x`` with ``updates`` combined at index vectors, in their order; ``kind`` is a monoid or ``assign``."""
    width = _index_width(indices, x.rank, op)
    outer = indices.dims[:-1]
    wanted = (*outer, *x.dims[width:])
    if updates.rank != len(wanted):
        raise invalid(f"updates must be of shape {[str(d) for d in wanted]}, not {updates.type}")
    for have, want in zip(updates.dims, wanted, strict=True):
        ctx.check_dims_eq(have, want, message=f"updates of {op} do not fit the indices and the tensor")
    updates = ctx.cast_dims(updates, wanted)
    _check_not_empty(ctx, outer, x.dims[width:], "Indices and updates specified for empty output shape")
    _check_index_vectors(ctx, indices, x.dims[:width], "indices: a vector does not index into the shape")
    (out,) = ctx.b.scatter(
        [x],
        indices,
        [updates],
        kind,
        update_window_dims=tuple(range(len(outer), len(wanted))),
        inserted_window_dims=tuple(range(width)),
        scatter_dims_to_operand_dims=tuple(range(width)),
        index_vector_dim=indices.rank - 1,
    )
    return out


@lowering("ScatterNd", dtypes={"T": NUMBERS, "Tindices": INTS})
def scatter_nd(ctx: LoweringContext, _node: NodeView, indices: Value, updates: Value, shape: Value) -> Value:
    """Zeros of ``shape`` with the updates added."""
    dims = shape_operand(ctx, shape, "the shape of ScatterNd")
    return _scatter(ctx, ctx.full(0, updates.dtype, dims), indices, updates, "add", "ScatterNd")


@lowering(
    "TensorScatterUpdate", dtypes={"T": ALL, "Tindices": INTS}, limits="bad_indices_policy is the default"
)
def tensor_scatter_update(
    ctx: LoweringContext, node: NodeView, x: Value, indices: Value, updates: Value
) -> Value:
    """``x`` with slices replaced; of several for one place the last stays."""
    if node.attr("bad_indices_policy", "") not in ("", "DEFAULT", "ERROR"):
        raise Unsupported(
            "ATTR", f"TensorScatterUpdate with bad_indices_policy {node.attr('bad_indices_policy')}"
        )
    return _scatter(ctx, x, indices, updates, "assign", node.op)


_TENSOR_SCATTERS = {"TensorScatterAdd": "add", "TensorScatterMax": "max", "TensorScatterMin": "min"}


@lowering(*_TENSOR_SCATTERS, dtypes={"T": NUMBERS, "Tindices": INTS})
def tensor_scatter_monoid(
    ctx: LoweringContext, node: NodeView, x: Value, indices: Value, updates: Value
) -> Value:
    """``x`` with slices added, or the greater or lesser kept."""
    return _scatter(ctx, x, indices, updates, _TENSOR_SCATTERS[node.op], node.op)


@lowering("TensorScatterSub", dtypes={"T": NUMBERS, "Tindices": INTS})
def tensor_scatter_sub(
    ctx: LoweringContext, node: NodeView, x: Value, indices: Value, updates: Value
) -> Value:
    """``x`` with slices subtracted."""
    return _scatter(ctx, x, indices, ctx.b.negate(updates), "add", node.op)


# ---- OneHot ----------------------------------------------------------------------------------------------


@lowering("OneHot", dtypes={"T": ALL, "TI": INTS})
def one_hot(
    ctx: LoweringContext, node: NodeView, indices: Value, depth: Value, on: Value, off: Value
) -> Value:
    """``on`` where the new axis equals the index, ``off`` elsewhere; indices out of range give ``off`` only."""
    axis = int(node.attr("axis", -1))
    if not -1 <= axis <= indices.rank:
        raise invalid(f"Expected axis to be -1 or between [0, {indices.rank + 1}).  But received: {axis}")
    for name, v in (("on_value", on), ("off_value", off)):
        if v.rank:
            raise invalid(f"{name} must be a scalar, but got: {v.type}")
    at = indices.rank if axis == -1 else axis
    d = scalar_dim(ctx, depth, "depth of OneHot")
    ctx.check_dim_cond(d, "GE", 0, message=f"depth must be non-negative, got: {plain(d)}")
    d = maximum(ctx.env, d, 0)
    dims = (*indices.dims[:at], d, *indices.dims[at:])
    dtype = DType.I32 if indices.dtype is DType.I32 else DType.I64
    wide = ctx.b.convert(indices, dtype)
    spread = ctx.b.broadcast_in_dim(wide, dims, [i for i in range(len(dims)) if i != at])
    hit = ctx.b.compare(spread, ctx.b.iota(dtype, dims, at), "EQ")
    return ctx.b.select(hit, ctx.broadcast_to(on, dims), ctx.broadcast_to(off, dims))
