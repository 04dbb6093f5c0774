"""Ops that make or move elements without computing: constant, iota, broadcast, reshape, slices, pad, ..."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Op
from disc_tf.ir.dims import Dim, DimTooComplex, ceildiv, dmax, product
from disc_tf.ir.opset.base import Attr, EvalContext, InferInput, OpDef, register
from disc_tf.ir.types import DType, TensorType, Type


def shape_of(op: Op, ctx: EvalContext, result: int = 0) -> tuple[int, ...]:
    """The run-time shape of a result."""
    return tuple(ctx.dim(d) for d in op.results[result].dims)


# ---- constant, iota -----------------------------------------------------------------------------------------


def _infer_constant(i: InferInput) -> list[Type]:
    value = i.attrs["value"]
    return [TensorType.of(DType.from_np(value.dtype), value.shape)]


def _constant_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    return [op.attrs["value"]]


def _infer_iota(i: InferInput) -> list[Type]:
    chosen = i.chosen()
    i.axis(i.attrs["dimension"], chosen.rank)
    if chosen.dtype == DType.BOOL:
        raise i.fail("iota of bool")
    return [chosen]


def _iota_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    shape, axis = shape_of(op, ctx), op.attrs["dimension"]
    count = np.arange(shape[axis]).astype(op.result.dtype.np)
    return [np.broadcast_to(count.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)]


# ---- broadcast_in_dim, reshape, transpose, reverse ------------------------------------------------------------


def _infer_broadcast(i: InferInput) -> list[Type]:
    x, chosen = i.tensor(0), i.chosen()
    mapping = i.attrs["broadcast_dimensions"]
    if len(mapping) != x.rank:
        raise i.fail(f"broadcast_dimensions {mapping} must have one entry for each dimension of {x}")
    i.axes(mapping, chosen.rank, "broadcast_dimensions")
    for d, r in zip(x.dims, mapping, strict=True):
        if d != 1 and i.differ(d, chosen.dims[r]) and i.differ(d, Dim.of(1)):
            raise i.fail(f"dimension of extent {d} cannot be broadcast to {chosen.dims[r]}")
    return [chosen.with_dtype(x.dtype)]


def _broadcast_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    x, shape = inputs[0], shape_of(op, ctx)
    spread = [1] * len(shape)
    for extent, r in zip(x.shape, op.attrs["broadcast_dimensions"], strict=True):
        spread[r] = extent
    order = np.argsort(op.attrs["broadcast_dimensions"]) if x.ndim else []
    return [np.broadcast_to(x.transpose(order).reshape(spread), shape)]


def _infer_reshape(i: InferInput) -> list[Type]:
    x, chosen = i.tensor(0), i.chosen()
    different = False
    if i.env is not None:
        different = i.env.same_elements(x.dims, chosen.dims) is False
    else:
        try:
            difference = product(x.dims) - product(chosen.dims)
            different = difference.is_static and int(difference) != 0
        except DimTooComplex:
            pass
    if different:
        raise i.fail(f"cannot be reshaped to {chosen}: the element counts differ")
    return [chosen.with_dtype(x.dtype)]


def _reshape_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    return [inputs[0].reshape(shape_of(op, ctx))]


def _infer_transpose(i: InferInput) -> list[Type]:
    x, order = i.tensor(0), i.attrs["permutation"]
    if sorted(order) != list(range(x.rank)):
        raise i.fail(f"permutation {order} is not one of {x.rank} dimensions")
    return [TensorType(x.dtype, tuple(x.dims[p] for p in order))]


def _transpose_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    return [inputs[0].transpose(op.attrs["permutation"])]


def _infer_reverse(i: InferInput) -> list[Type]:
    x = i.tensor(0)
    i.axes(i.attrs["dimensions"], x.rank, "dimensions")
    return [x]


def _reverse_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    return [np.flip(inputs[0], op.attrs["dimensions"])]


# ---- concatenate, slices, pad -------------------------------------------------------------------------------


def _infer_concatenate(i: InferInput) -> list[Type]:
    types = i.tensors()
    if not types:
        raise i.fail("needs at least one operand")
    dtype, axis = i.same_dtype(types), i.axis(i.attrs["dimension"], types[0].rank)
    if any(t.rank != types[0].rank for t in types):
        raise i.fail("operands must have the same rank")
    outer = i.merge(*((*t.dims[:axis], *t.dims[axis + 1 :]) for t in types))
    total = sum((t.dims[axis] for t in types), Dim.of(0))
    return [TensorType(dtype, (*outer[:axis], total, *outer[axis:]))]


def _concatenate_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    return [np.concatenate(inputs, axis=op.attrs["dimension"])]


def _infer_slice(i: InferInput) -> list[Type]:
    x = i.tensor(0)
    starts, limits, strides = (i.attrs[k] for k in ("starts", "limits", "strides"))
    if not len(starts) == len(limits) == len(strides) == x.rank:
        raise i.fail(f"starts, limits and strides must have {x.rank} entries")
    dims = []
    for d, start, limit, stride in zip(x.dims, starts, limits, strides, strict=True):
        if not stride.is_static or int(stride) < 1:
            raise i.fail(f"stride {stride} must be a positive constant")
        for low, high in ((Dim.of(0), start), (start, limit), (limit, d)):
            known = (
                i.env.is_nonneg(high - low)
                if i.env
                else ((high - low).is_static and int(high - low) >= 0) or None
            )
            if known is False or ((high - low).is_static and int(high - low) < 0):
                raise i.fail(f"slice [{start}:{limit}] is outside dimension of extent {d}")
        dims.append(ceildiv(limit - start, stride))
    return [TensorType(x.dtype, tuple(dims))]


def _slice_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    x = inputs[0]
    index = []
    for axis, (start, limit, stride) in enumerate(
        zip(op.attrs["starts"], op.attrs["limits"], op.attrs["strides"], strict=True)
    ):
        low, high = ctx.dim(start), ctx.dim(limit)
        if not 0 <= low <= high <= x.shape[axis]:
            raise ValueError(f"slice: [{low}:{high}] is outside dimension {axis} of extent {x.shape[axis]}")
        index.append(slice(low, high, int(stride)))
    return [x[tuple(index)]]


def _infer_dynamic_slice(i: InferInput) -> list[Type]:
    x, sizes = i.tensor(0), i.attrs["sizes"]
    if len(i.types) != 1 + x.rank or len(sizes) != x.rank:
        raise i.fail(f"needs {x.rank} starts and {x.rank} sizes")
    _check_starts(i, 1, x.rank)
    for d, size in zip(x.dims, sizes, strict=True):
        if (d - size).is_static and int(d - size) < 0:
            raise i.fail(f"size {size} exceeds extent {d}")
    return [TensorType(x.dtype, tuple(sizes))]


def _check_starts(i: InferInput, first: int, count: int) -> None:
    for k in range(first, first + count):
        i.scalar(k)
    i.same_dtype([i.tensor(k) for k in range(first, first + count)] or [i.tensor(0)])


def _clamped(x: np.ndarray, sizes: Sequence[int], starts: Sequence[np.ndarray]) -> tuple[slice, ...]:
    index = []
    for extent, size, start in zip(x.shape, sizes, starts, strict=True):
        low = min(max(int(start), 0), max(extent - size, 0))
        index.append(slice(low, low + size))
    return tuple(index)


def _dynamic_slice_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    x, *starts = inputs
    return [x[_clamped(x, [ctx.dim(d) for d in op.attrs["sizes"]], starts)]]


def _infer_dynamic_update_slice(i: InferInput) -> list[Type]:
    x, update = i.tensor(0), i.tensor(1)
    i.same_dtype((x, update))
    if update.rank != x.rank or len(i.types) != 2 + x.rank:
        raise i.fail(f"needs an update of rank {x.rank} and {x.rank} starts")
    _check_starts(i, 2, x.rank)
    return [x]


def _dynamic_update_slice_reference(
    op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext
) -> list[np.ndarray]:
    x, update, *starts = inputs
    out = x.copy()
    out[_clamped(x, update.shape, starts)] = update
    return [out]


def _infer_pad(i: InferInput) -> list[Type]:
    x, value = i.tensor(0), i.tensor(1)
    i.same_dtype((x, value))
    low, high, interior = (i.attrs[k] for k in ("low", "high", "interior"))
    if value.rank or not len(low) == len(high) == len(interior) == x.rank:
        raise i.fail(f"needs a scalar and {x.rank} entries each of low, high and interior")
    dims = []
    for d, before, after, between in zip(x.dims, low, high, interior, strict=True):
        if between.is_static and int(between) < 0:
            raise i.fail(f"interior padding {between} is negative")
        gaps = Dim.of(0) if between == 0 else dmax(d - 1, 0) * between
        extent = d + before + after + gaps
        if extent.is_static and int(extent) < 0:
            raise i.fail(f"padded extent {extent} is negative")
        dims.append(extent)
    return [TensorType(x.dtype, tuple(dims))]


def _pad_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    low, high, interior = ([ctx.dim(d) for d in op.attrs[k]] for k in ("low", "high", "interior"))
    return [pad(inputs[0], inputs[1], low, high, interior)]


def pad(
    x: np.ndarray, value: np.ndarray, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
) -> np.ndarray:
    """StableHLO pad: interior gaps first, then edges; negative edges crop."""
    spread = [max(n - 1, 0) * g + n for n, g in zip(x.shape, interior, strict=True)]
    full = np.full(spread, value, dtype=x.dtype)
    full[tuple(slice(None, None, g + 1) for g in interior)] = x
    edges = [(max(a, 0), max(b, 0)) for a, b in zip(low, high, strict=True)]
    full = np.pad(full, edges, constant_values=value) if math.prod(full.shape) else _grown(full, edges, value)
    crop = [slice(max(-a, 0), n - max(-b, 0)) for n, a, b in zip(full.shape, low, high, strict=True)]
    return full[tuple(crop)]


def _grown(x: np.ndarray, edges: Sequence[tuple[int, int]], value: np.ndarray) -> np.ndarray:
    return np.full([n + a + b for n, (a, b) in zip(x.shape, edges, strict=True)], value, dtype=x.dtype)


def _define(name: str, arity: int | None, infer, reference, typed: bool = False, **attrs: Attr) -> None:
    register(OpDef(name, arity, infer, reference, attrs, typed=typed, stablehlo=f"stablehlo.{name}"))


_define("constant", 0, _infer_constant, _constant_reference, value=Attr("array"))
_define("iota", 0, _infer_iota, _iota_reference, typed=True, dimension=Attr("int"))
_define(
    "broadcast_in_dim",
    1,
    _infer_broadcast,
    _broadcast_reference,
    typed=True,
    broadcast_dimensions=Attr("ints"),
)
_define("reshape", 1, _infer_reshape, _reshape_reference, typed=True)
_define("transpose", 1, _infer_transpose, _transpose_reference, permutation=Attr("ints"))
_define("reverse", 1, _infer_reverse, _reverse_reference, dimensions=Attr("ints"))
_define("concatenate", None, _infer_concatenate, _concatenate_reference, dimension=Attr("int"))
_define(
    "slice", 1, _infer_slice, _slice_reference, starts=Attr("dims"), limits=Attr("dims"), strides=Attr("dims")
)
_define("dynamic_slice", None, _infer_dynamic_slice, _dynamic_slice_reference, sizes=Attr("dims"))
_define("dynamic_update_slice", None, _infer_dynamic_update_slice, _dynamic_update_slice_reference)
_define("pad", 2, _infer_pad, _pad_reference, low=Attr("dims"), high=Attr("dims"), interior=Attr("dims"))
