"""gather and scatter, with StableHLO's dimension numbers as flat attributes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Block, Op, reduce_kind
from disc_tf.ir.dims import Dim
from disc_tf.ir.opset.base import Attr, EvalContext, InferInput, OpDef, register
from disc_tf.ir.opset.reductions import check_scalar_region
from disc_tf.ir.types import TensorType, Type


def _batch_dims(i: InferInput, indices: TensorType, vector: int) -> list[Dim]:
    if not 0 <= vector <= indices.rank:
        raise i.fail(f"index_vector_dim {vector} is out of range for {indices}")
    if not indices.dtype.is_int:
        raise i.fail("indices must be integers")
    return [d for k, d in enumerate(indices.dims) if k != vector]


def _check_index_map(
    i: InferInput,
    operand: TensorType,
    indices: TensorType,
    index_map: Sequence[int],
    ob: Sequence[int],
    ib: Sequence[int],
) -> None:
    vector = i.attrs["index_vector_dim"]
    width = indices.dims[vector] if vector < indices.rank else Dim.of(1)
    if i.differ(width, Dim.of(len(index_map))):
        raise i.fail(f"index vectors of length {width} for {len(index_map)} indexed dimensions")
    i.axes((*index_map, *ob), operand.rank, "indexed and batching dimensions")
    i.axes(ib, indices.rank, "batching dimensions of the indices")
    if vector in ib or len(ib) != len(ob):
        raise i.fail("batching dimensions of operand and indices do not match")
    i.merge([operand.dims[k] for k in ob], [indices.dims[k] for k in ib])


def _infer_gather(i: InferInput) -> list[Type]:
    x, indices = i.tensors()
    a = i.attrs
    offset, collapsed, sizes = a["offset_dims"], a["collapsed_slice_dims"], a["slice_sizes"]
    ob, ib = a["operand_batching_dims"], a["start_indices_batching_dims"]
    batch = _batch_dims(i, indices, a["index_vector_dim"])
    _check_index_map(i, x, indices, a["start_index_map"], ob, ib)
    i.axes((*collapsed, *ob), x.rank, "collapsed and batching dimensions")
    if len(sizes) != x.rank:
        raise i.fail(f"slice_sizes must have {x.rank} entries")
    for k, (size, extent) in enumerate(zip(sizes, x.dims, strict=True)):
        if k in (*collapsed, *ob):
            if size != 1 and size != 0:
                raise i.fail(f"slice size {size} of collapsed dimension {k} must be 1")
        elif (extent - size).is_static and int(extent - size) < 0:
            raise i.fail(f"slice size {size} exceeds extent {extent} of dimension {k}")
    window = [s for k, s in enumerate(sizes) if k not in collapsed and k not in ob]
    rank = len(batch) + len(window)
    if len(offset) != len(window):
        raise i.fail(f"offset_dims {offset} must name {len(window)} result dimensions")
    i.axes(offset, rank, "offset_dims", ordered=True)
    batches, windows = iter(batch), iter(window)
    return [TensorType(x.dtype, tuple(next(windows) if k in offset else next(batches) for k in range(rank)))]


def _index_columns(indices: np.ndarray, vector: int) -> np.ndarray:
    """The index vectors, as an int64 array of shape `batch + [vector length]`."""
    if vector == indices.ndim:
        return indices[..., None].astype(np.int64)
    return np.moveaxis(indices, vector, -1).astype(np.int64)


def _starts(
    rank: int,
    columns: np.ndarray,
    index_map: Sequence[int],
    ob: Sequence[int],
    ib: Sequence[int],
    vector: int,
) -> list[np.ndarray]:
    """For each operand dimension the start of the window, over the batch shape."""
    batch = columns.shape[:-1]
    starts = [np.zeros(batch, np.int64) for _ in range(rank)]
    for k, axis in enumerate(index_map):
        starts[axis] = columns[..., k]
    for o, b in zip(ob, ib, strict=True):
        axis = b - (b > vector)  # position among the batch dims
        shape = [-1 if k == axis else 1 for k in range(len(batch))]
        starts[o] = np.broadcast_to(np.arange(batch[axis]).reshape(shape), batch)
    return starts


def _gather_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    x, indices = inputs
    a = op.attrs
    vector = a["index_vector_dim"]
    sizes = [ctx.dim(s) for s in a["slice_sizes"]]
    shape = tuple(ctx.dim(d) for d in op.result.dims)
    if 0 in shape:
        return [np.empty(shape, x.dtype)]
    hidden = (*a["collapsed_slice_dims"], *a["operand_batching_dims"])
    starts = _starts(
        x.ndim, _index_columns(indices, vector), a["start_index_map"], a["operand_batching_dims"],
        a["start_indices_batching_dims"], vector,
    )  # fmt: skip
    windows = [k for k in range(x.ndim) if k not in hidden]
    batch_rank = len(shape) - len(windows)
    index = []
    for k in range(x.ndim):
        low = np.clip(starts[k], 0, max(x.shape[k] - sizes[k], 0))
        low = low.reshape([*low.shape, *([1] * len(windows))])
        if k in windows:
            at = batch_rank + windows.index(k)
            low = low + np.arange(sizes[k]).reshape([-1 if j == at else 1 for j in range(len(shape))])
        index.append(low)
    taken = x[tuple(index)] if index else np.broadcast_to(x, shape)
    # taken is batch dims then window dims; offset_dims says where the window dims go
    batch_positions = [k for k in range(len(shape)) if k not in a["offset_dims"]]
    order = np.argsort([*batch_positions, *a["offset_dims"]])
    return [
        np.broadcast_to(taken, [shape[k] for k in (*batch_positions, *a["offset_dims"])]).transpose(order)
    ]


def _infer_scatter(i: InferInput) -> list[Type]:
    types = i.tensors()
    if len(types) < 3 or len(types) % 2 == 0:
        raise i.fail("takes n operands, the indices and n updates")
    count = len(types) // 2
    operands, indices, updates = types[:count], types[count], types[count + 1 :]
    a = i.attrs
    dims = i.merge(*(t.dims for t in operands))
    update_dims = i.merge(*(t.dims for t in updates))
    for t, u in zip(operands, updates, strict=True):
        i.same_dtype((t, u))
    batch = _batch_dims(i, indices, a["index_vector_dim"])
    ob = a["input_batching_dims"]
    _check_index_map(
        i, operands[0], indices, a["scatter_dims_to_operand_dims"], ob, a["scatter_indices_batching_dims"]
    )
    hidden = i.axes((*a["inserted_window_dims"], *ob), len(dims), "inserted and batching dimensions")
    window = i.axes(a["update_window_dims"], len(update_dims), "update_window_dims", ordered=True)
    if len(window) + len(hidden) != len(dims):
        raise i.fail(f"update windows of rank {len(window)} do not fit operands of rank {len(dims)}")
    i.merge([d for k, d in enumerate(update_dims) if k not in window], batch)
    dtypes = [t.dtype for t in operands]
    check_scalar_region(i, i.regions[0], dtypes * 2, dtypes)
    return [TensorType(d, dims) for d in dtypes]


def scatter_kind(op: Op) -> str | None:
    """`assign` if the region returns the updates, the monoid of `reduce_kind`, or None."""
    block: Block = op.regions[0]
    count = len(block.params) // 2
    if len(block.ops) == 1 and list(block.results) == block.params[count:]:
        return "assign"
    return reduce_kind(op)


def _scatter_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    count = len(inputs) // 2
    operands, indices, updates = inputs[:count], inputs[count], inputs[count + 1 :]
    outputs = [np.array(x) for x in operands]
    if updates[0].size == 0:
        return outputs
    flat, valid = _scatter_positions(op, operands[0].shape, indices, updates[0].shape)
    kind = scatter_kind(op)
    flat = flat[valid]
    values = [np.broadcast_to(u, updates[0].shape).reshape(-1)[valid] for u in updates]
    targets = [out.reshape(-1) for out in outputs]
    if kind == "assign":
        for target, value in zip(targets, values, strict=True):
            last = {int(p): n for n, p in enumerate(flat)}  # the last update of an element wins
            target[list(last.keys())] = value[list(last.values())]
        return outputs
    for n, position in enumerate(flat):
        combined = ctx.run(op.regions[0], [*(t[position] for t in targets), *(v[n] for v in values)])
        for target, value in zip(targets, combined, strict=True):
            target[position] = value
    return outputs


def _scatter_positions(
    op: Op, shape: Sequence[int], indices: np.ndarray, update_shape: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Flat operand positions of all updates in row-major order of the updates, and whether each is in bounds."""
    a = op.attrs
    vector, ob = a["index_vector_dim"], a["input_batching_dims"]
    window = a["update_window_dims"]
    starts = _starts(
        len(shape), _index_columns(indices, vector), a["scatter_dims_to_operand_dims"], ob,
        a["scatter_indices_batching_dims"], vector,
    )  # fmt: skip
    hidden = (*a["inserted_window_dims"], *ob)
    windowed = [k for k in range(len(shape)) if k not in hidden]
    scatter_axes = [k for k in range(len(update_shape)) if k not in window]
    flat = np.zeros(update_shape, np.int64)
    valid = np.ones(update_shape, bool)
    for k, extent in enumerate(shape):
        spread = [1] * len(update_shape)
        for axis, size in zip(scatter_axes, starts[k].shape, strict=True):
            spread[axis] = size
        position = starts[k].reshape(spread)
        if k in windowed:
            axis = window[windowed.index(k)]
            offsets = np.arange(update_shape[axis])
            position = position + offsets.reshape([-1 if j == axis else 1 for j in range(len(update_shape))])
        valid &= (position >= 0) & (position < extent)
        flat = flat * extent + position
    return flat.reshape(-1), valid.reshape(-1)


register(
    OpDef(
        "gather", 2, _infer_gather, _gather_reference,
        {
            "offset_dims": Attr("ints"), "collapsed_slice_dims": Attr("ints"),
            "operand_batching_dims": Attr("ints", default=()), "start_indices_batching_dims": Attr("ints", default=()),
            "start_index_map": Attr("ints"), "index_vector_dim": Attr("int"), "slice_sizes": Attr("dims"),
        },
        stablehlo="stablehlo.gather",
    )
)  # fmt: skip
register(
    OpDef(
        "scatter", None, _infer_scatter, _scatter_reference,
        {
            "update_window_dims": Attr("ints"), "inserted_window_dims": Attr("ints"),
            "input_batching_dims": Attr("ints", default=()), "scatter_indices_batching_dims": Attr("ints", default=()),
            "scatter_dims_to_operand_dims": Attr("ints"), "index_vector_dim": Attr("int"),
            "unique_indices": Attr("bool", default=False),
        },
        regions=1, stablehlo="stablehlo.scatter",
    )
)  # fmt: skip
