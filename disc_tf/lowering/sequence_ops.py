"""ReverseSequence and SparseToDense."""

from __future__ import annotations

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.gather_ops import check_in_range
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import ALL, lowering
from disc_tf.lowering.rows import column, scatter_rows
from disc_tf.lowering.shape_ops import shape_operand
from disc_tf.lowering.shapes import invalid

_IDS = frozenset({DType.I32, DType.I64})


@lowering("ReverseSequence", dtypes={"T": ALL, "Tlen": _IDS})
def reverse_sequence(ctx: LoweringContext, node: NodeView, x: Value, lengths: Value) -> Value:
    """The first ``lengths[b]`` slices along ``seq_dim`` in reverse order, for each b along ``batch_dim``; the rest as it is."""
    b = ctx.b
    batch, seq = int(node.attr("batch_dim", 0)), int(node.attr("seq_dim"))
    if batch == seq:
        raise invalid(f"batch_dim == seq_dim == {seq}")
    if lengths.rank != 1:
        raise invalid(f"seq_lengths must be 1-dim, not {lengths.rank}")
    for name, axis in (("seq_dim", seq), ("batch_dim", batch)):
        if not 0 <= axis < x.rank:
            raise invalid(f"{name} must be < input rank ( {axis} vs. {x.rank})")
    extent = x.dims[seq]
    message = f"Length of seq_lengths != input.dims({batch})"
    ctx.check_dims_eq(lengths.dims[0], x.dims[batch], message=message)
    n = b.convert(ctx.cast_dims(lengths, [x.dims[batch]]), DType.I64)
    fits = b.compare(n, ctx.broadcast_to(ctx.dim(extent), n.dims), "LE")
    fits = b.and_(b.compare(n, ctx.splat(0, n), "GE"), fits)
    ctx.check(fits, message=f"seq_lens: a value is < 0 or > input.dims({seq})")
    if extent == 0 or x.dims[batch] == 0:
        return x
    order = (batch, seq) if batch < seq else (seq, batch)
    dims = [x.dims[k] for k in order]
    at = b.iota(DType.I64, dims, order.index(seq))
    n = b.broadcast_in_dim(n, dims, [order.index(batch)])
    mirrored = b.subtract(b.subtract(n, ctx.splat(1, n)), at)
    source = b.select(b.compare(at, n, "LT"), mirrored, at)
    return b.gather(
        x,
        source,
        [Dim.of(1) if k in order else d for k, d in enumerate(x.dims)],
        offset_dims=tuple(k for k in range(x.rank) if k not in order),
        collapsed_slice_dims=(seq,),
        operand_batching_dims=(batch,),
        start_indices_batching_dims=(order.index(batch),),
        start_index_map=(seq,),
        index_vector_dim=2,
    )


@lowering("SparseToDense", dtypes={"T": ALL, "Tindices": _IDS}, limits="the length of output_shape is known")
def sparse_to_dense(
    ctx: LoweringContext, node: NodeView, indices: Value, shape: Value, values: Value, default: Value
) -> Value:
    """``default`` with values at index vectors, which must ascend without repetitions unless ``validate_indices`` is false."""
    b = ctx.b
    if indices.rank > 2:
        raise invalid(f"sparse_indices should be a scalar, vector, or matrix, got shape {indices.type}")
    if shape.rank != 1:
        raise invalid(f"output_shape must be rank 1, got shape {shape.type}")
    if default.rank:
        raise invalid("default_value should be a scalar.")
    if values.rank > 1:
        raise invalid(f"sparse_values should be a scalar or vector, got shape {values.type}")
    dims = shape_operand(ctx, shape, "output_shape of SparseToDense")
    width = indices.dims[1] if indices.rank == 2 else Dim.of(1)
    message = f"output_shape has incorrect number of elements: {len(dims)} should be: {plain(width)}"
    ctx.check_dims_eq(width, len(dims), message=message)
    n = indices.dims[0] if indices.rank else Dim.of(1)
    vectors = ctx.cast_dims(indices, [n, len(dims)]) if indices.rank == 2 else b.reshape(indices, [n, 1])
    if values.rank:
        message = f"sparse_values has incorrect shape {plain(values.type)}, should be [] or [{plain(n)}]"
        ctx.check_dims_eq(values.dims[0], n, message=message)
    values = ctx.broadcast_to(values, [n])
    flat = ctx.full(0, DType.I64, [n])
    for k, extent in enumerate(dims):
        component = column(ctx, vectors, k)
        check_in_range(ctx, component, extent, f"indices: a vector is out of bounds: need 0 <= index < {plain(extent)}")
        step = ctx.broadcast_to(ctx.dim(product(dims[k + 1 :])), [n])
        flat = b.add(flat, b.multiply(b.convert(component, DType.I64), step))
    if node.attr("validate_indices", True):
        before = b.scan(flat, 0, "max", exclusive=True)
        ascends = b.compare(flat, before, "GT")
        ctx.check(ascends, message="indices: a vector is out of order or repeated")
    total = product(dims)
    out = scatter_rows(ctx, ctx.broadcast_to(default, [total]), flat, values)
    return b.reshape(out, dims)


