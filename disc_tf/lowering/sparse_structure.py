"""Ops that cut, join and combine SparseTensors: SparseSlice, SparseSplit, SparseConcat, SparseDenseCwise*, SparseSoftmax."""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, dmin
from disc_tf.ir.types import DType
from disc_tf.lowering.content import bind, constant_int, require_broadcastable
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.data_dependent import nonzero
from disc_tf.lowering.errors import Status, Unsupported
from disc_tf.lowering.gather_ops import check_in_range
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import ALL, NUMBERS, lowering
from disc_tf.lowering.rows import check_countable, column, row_major_order, take
from disc_tf.lowering.shapes import invalid
from disc_tf.lowering.sparse_ops import OVERFLOW, entries, extents, flat_positions, matrix, with_rank

_ORDER = "coordinates lie in the dense shape"


# ---- cutting ---------------------------------------------------------------------------------------------------------


def _cut(ctx: LoweringContext, indices: Value, values: Value, starts: Value, sizes: Value) -> list[Value]:
    """The entries inside of ``[starts, starts + sizes)``, in their order, counted from ``starts`` (both i64[rank])."""
    moved = ctx.b.subtract(indices, ctx.broadcast_to(starts, indices.dims))
    inside = ctx.b.and_(
        ctx.b.compare(moved, ctx.splat(0, moved), "GE"), ctx.b.compare(moved, ctx.broadcast_to(sizes, moved.dims), "LT")
    )
    found = nonzero(ctx, ctx.reduce(inside, [1], "and"))
    which = ctx.b.reshape(found, found.dims[:1])
    return [take(ctx, moved, which), take(ctx, values, which)]


@lowering("SparseSlice", dtypes=ALL, limits="the length of shape is known")
def sparse_slice(
    ctx: LoweringContext, _node: NodeView, indices: Value, values: Value, shape: Value, start: Value, size: Value
) -> list[Value]:
    """The entries of a box, counted from its corner; the box ends where the shape does."""
    matrix(indices, "Input indices")
    values = entries(ctx, indices, values, "Expected a number of values that matches the first dimension of indices")
    if shape.rank != 1:
        raise invalid(f"Input shape should be a vector but received shape {shape.type}")
    if not shape.dims[0].is_static:
        raise Unsupported("RANK", f"the shape has {shape.dims[0]} elements: the rank is not known")
    rank = int(shape.dims[0])
    for name, v in (("start", start), ("size", size)):
        if v.rank != 1:
            raise invalid(f"Input {name} should be a vector but received shape {v.type}")
        ctx.check_dims_eq(v.dims[0], rank, message=f"Expected {name} to be a vector of length {rank}")
    start, size = (ctx.cast_dims(v, [rank]) for v in (start, size))
    indices = with_rank(ctx, indices, rank, "Expected the second dimension of indices to be the length of shape")
    check_countable(ctx, extents(ctx, shape, "Input shape"), OVERFLOW)
    zero = ctx.splat(0, size)
    ctx.check(ctx.b.compare(size, zero, "GE"), message="Expected a non-negative size")
    left = ctx.b.maximum(ctx.b.minimum(size, ctx.b.subtract(shape, start)), zero)
    return [*_cut(ctx, indices, values, start, size), left]


@lowering("SparseSplit", dtypes=ALL, limits="split_dim is constant; the length of shape is known")
def sparse_split(
    ctx: LoweringContext, node: NodeView, split_dim: Value, indices: Value, values: Value, shape: Value
) -> list[Value]:
    """Pieces along an axis, the first ones longer by one where the extent does not divide."""
    matrix(indices, "Input indices")
    dims = extents(ctx, shape, "Input shape")
    check_countable(ctx, dims, OVERFLOW)
    axis = constant_int(ctx, split_dim, "split_dim of SparseSplit")
    if not -len(dims) <= axis < len(dims):
        raise invalid(f"Input split_dim should be between [{-len(dims)}, {len(dims)}), got {axis}")
    axis %= len(dims)
    count = int(node.attr("num_split", 1))
    ctx.check_dim_cond(dims[axis], "GE", count, message=f"Input num_split should be between 1 and {plain(dims[axis])}, got {plain(count)}")
    values = entries(ctx, indices, values, "Number of values must match first dimension of indices")
    indices = with_rank(ctx, indices, len(dims), "Input rank should match shape rank")
    for k, d in enumerate(dims):
        check_in_range(ctx, column(ctx, indices, k), d, "Sparse index tuple is out of bounds")
    each, longer = dims[axis] // count, dims[axis] % count
    pieces = []
    for p in range(count):
        lengths = [bind(ctx, each + _one_if(longer, p)) if k == axis else d for k, d in enumerate(dims)]
        corner = [each * p + _smaller(longer, p) if k == axis else Dim.of(0) for k in range(len(dims))]
        sizes = ctx.from_dims(lengths, DType.I64)
        pieces.append([*_cut(ctx, indices, values, ctx.from_dims(corner, DType.I64), sizes), sizes])
    return [piece[k] for k in range(3) for piece in pieces]


def _smaller(longer: Dim, p: int) -> Dim:
    return dmin(longer, p)


def _one_if(longer: Dim, p: int) -> Dim:
    """1 for the first ``longer`` pieces, else 0."""
    return _smaller(longer, p + 1) - _smaller(longer, p)


# ---- joining ---------------------------------------------------------------------------------------------------------


@lowering("SparseConcat", dtypes=ALL, limits=f"the lengths of the shapes are known; {_ORDER}")
def sparse_concat(ctx: LoweringContext, node: NodeView, *args: Value) -> list[Value]:
    """The entries of all operands behind each other along an axis, in row-major order."""
    count = len(args) // 3
    all_indices, all_values, all_shapes = (args[k * count : (k + 1) * count] for k in range(3))
    shapes = [extents(ctx, s, "Input shapes") for s in all_shapes]
    rank = len(shapes[0])
    if any(len(s) != rank for s in shapes):
        raise invalid("Ranks of all input tensors must match")
    axis = int(node.attr("concat_dim", 0))
    if not -rank <= axis < rank:
        raise invalid(f"Concat dimension must be in range [{-rank}, {rank}), got {axis}")
    axis %= rank
    for s in shapes:
        check_countable(ctx, s, OVERFLOW, Status.INTERNAL)
    for s in shapes[1:]:
        for k in range(rank):
            if k != axis:
                ctx.check_dims_eq(s[k], shapes[0][k], message=f"Input shapes must match: expected {plain(shapes[0][k])} for dimension {k}")
    offset, moved, values = Dim.of(0), [], []
    for indices, v, s in zip(all_indices, all_values, shapes, strict=True):
        matrix(indices, "Input indices")
        v = entries(ctx, indices, v, "Input values must have as many elements as there are indices")
        indices = with_rank(ctx, indices, rank, "Ranks of all input tensors must match")
        steps = ctx.from_dims([offset if k == axis else 0 for k in range(rank)], DType.I64)
        moved.append(indices if offset == 0 else ctx.b.add(indices, ctx.broadcast_to(steps, indices.dims)))
        values.append(v)
        offset = offset + s[axis]
    out = [bind(ctx, offset) if k == axis else d for k, d in enumerate(shapes[0])]
    indices, joined = ctx.b.concatenate(moved, 0), ctx.b.concatenate(values, 0)
    order = row_major_order(ctx, indices)
    return [take(ctx, indices, order), take(ctx, joined, order), ctx.from_dims(out, DType.I64)]


# ---- with dense tensors ----------------------------------------------------------------------------------------------

_CWISE = {"SparseDenseCwiseMul": "multiply", "SparseDenseCwiseAdd": "add", "SparseDenseCwiseDiv": "divide"}


@lowering(*_CWISE, dtypes=NUMBERS, limits="the length of sp_shape is known")
def sparse_dense_cwise(
    ctx: LoweringContext, node: NodeView, indices: Value, values: Value, shape: Value, dense: Value
) -> Value:
    """The values combined with the dense tensor's elements at their places; the dense tensor may broadcast, the sparse one not."""
    matrix(indices, "Input sp_indices")
    values = entries(ctx, indices, values, "Input sp_values must have as many elements as there are indices")
    dims = extents(ctx, shape, "Input sp_shape")
    check_countable(ctx, dims, OVERFLOW)
    indices = with_rank(ctx, indices, len(dims), "Input sp_indices must have as many columns as sp_shape has elements")
    message = f"SparseDenseBinaryOpShared broadcasts dense to sparse only; got incompatible shapes: {plain(dims)} vs. {plain(dense.type)}"
    skip = len(dims) - dense.rank
    if skip < 0:
        raise invalid(message)
    require_broadcastable(ctx, dense.dims, dims[skip:], message)
    for k, s in enumerate(dims):
        check_in_range(ctx, column(ctx, indices, k), s, "Provided indices are out-of-bounds w.r.t. dense side with broadcasted shape")
    if node.op == "SparseDenseCwiseDiv":
        ctx.check(
            ctx.b.compare(dense, ctx.splat(0, dense), "NE"),
            message="SparseDenseCwiseDiv cannot divide by zero, but input dense tensor contains zero",
        )
    if any(d == 0 for d in dense.dims):
        return values
    if dense.rank == 0:
        picked = ctx.broadcast_to(dense, values.dims)
    else:  # a gather clamps: an extent of 1 is read at 0 whatever the coordinate
        own = ctx.b.slice(indices, [0, skip], [indices.dims[0], len(dims)])
        picked = ctx.b.gather(
            dense, own, [1] * dense.rank, offset_dims=(), collapsed_slice_dims=tuple(range(dense.rank)),
            start_index_map=tuple(range(dense.rank)), index_vector_dim=1,
        )  # fmt: skip
    return getattr(ctx.b, _CWISE[node.op])(values, picked)


# ---- SparseSoftmax ---------------------------------------------------------------------------------------------------


@lowering("SparseSoftmax", dtypes={DType.F16, DType.F32, DType.F64}, limits=f"the length of sp_shape is known; {_ORDER}")
def sparse_softmax(ctx: LoweringContext, _node: NodeView, indices: Value, values: Value, shape: Value) -> Value:
    """The softmax of each row's entries, in row-major order of the entries."""
    matrix(indices, "Input sp_indices")
    dims = extents(ctx, shape, "Input sp_shape")
    if len(dims) < 2:
        raise invalid(f"Input should have rank >= 2, but received shape: {dims}")
    check_countable(ctx, dims, OVERFLOW)
    values = entries(ctx, indices, values, "Input sp_values must have as many elements as there are indices")
    indices = with_rank(ctx, indices, len(dims), "Input sp_indices must have as many columns as sp_shape has elements")
    order = row_major_order(ctx, indices)
    x = take(ctx, values, order)
    leading: Sequence[Dim] = dims[:-1]
    n = indices.dims[0]
    heads = ctx.b.slice(indices, [0, 0], [n, len(leading)])
    rows = take(ctx, flat_positions(ctx, heads, leading), order)
    before = ctx.b.pad(rows, ctx.scalar(-1, DType.I64), [1], [-1], [0])
    new = ctx.b.convert(ctx.b.compare(rows, before, "NE"), DType.I64)
    group = ctx.b.subtract(ctx.b.scan(new, 0, "add"), ctx.splat(1, new))
    top = ctx.b.segment(x, group, n, "max")
    powers = ctx.b.exponential(ctx.b.subtract(x, take(ctx, top, group)))
    total = ctx.b.segment(powers, group, n, "add")
    return ctx.b.divide(powers, take(ctx, total, group))
