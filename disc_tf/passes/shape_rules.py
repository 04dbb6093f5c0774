"""Identities of ops that only move elements: reshape, transpose, broadcast, slice, concatenate, pad, reverse, reduce of unit dims."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Op, Value, reduce_kind
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import TensorType
from disc_tf.passes.rewriter import Rewriter, constant_of, splat_of, table

_MONOID_OP = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum", "and": "and", "or": "or"}


def without_ones(dims: Sequence[Dim], rw: Rewriter) -> list[int]:
    """Positions of the dims that are not known to be 1."""
    return [i for i, d in enumerate(dims) if not rw.is_one(d)]


def unit_reshape(op: Op, rw: Rewriter) -> dict[int, int] | None:
    """For a reshape that only inserts and removes unit dims: result position of each operand dim that is not 1; else None."""
    if op.name != "reshape":
        return None
    a, b = op.operands[0].dims, op.result.dims
    left, right = without_ones(a, rw), without_ones(b, rw)
    if len(left) != len(right) or not all(rw.equal(a[i], b[j]) for i, j in zip(left, right, strict=True)):
        return None
    return dict(zip(left, right, strict=True))


def reshape(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    (x,) = op.operands
    dims = op.result.dims
    if x.dims == dims or rw.same_dims(x.dims, dims):
        return [x]
    inner = x.op
    if inner is None:
        return None
    if inner.name == "reshape":
        return [rw.value("reshape", [inner.operands[0]], op.result.type)]
    if inner.name == "broadcast_in_dim":
        c = splat_of(x)
        if c is not None:
            return [rw.splat(c, op.result.tensor)]
        # A broadcast followed by unit dims only is a broadcast.
        moved = unit_reshape(op, rw)
        mapping = inner.attrs["broadcast_dimensions"]
        if moved is not None and all(i in moved for i in mapping):
            return [rw.broadcast(inner.operands[0], dims, [moved[i] for i in mapping])]
    if inner.name == "constant":
        value = inner.attrs["value"]
        if all(d.is_static for d in dims) and value.size <= 1 << 16:
            return [rw.constant(np.ascontiguousarray(value).reshape([int(d) for d in dims]))]
    return None


def transpose(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    (x,) = op.operands
    order = tuple(op.attrs["permutation"])
    if order == tuple(range(len(order))):
        return [x]
    c = splat_of(x)
    if c is not None:
        return [rw.splat(c, op.result.tensor)]
    inner = x.op
    if inner is not None and inner.name == "transpose":
        first = inner.attrs["permutation"]
        attrs = {"permutation": tuple(first[i] for i in order)}
        return [rw.value("transpose", [inner.operands[0]], op.result.type, attrs)]
    if inner is not None and inner.name == "broadcast_in_dim":
        where = {p: i for i, p in enumerate(order)}
        mapping = [where[d] for d in inner.attrs["broadcast_dimensions"]]
        if mapping == sorted(mapping):
            return [rw.broadcast(inner.operands[0], op.result.dims, mapping)]
    real = set(without_ones(x.dims, rw))
    if [i for i in order if i in real] == sorted(real):
        return [rw.reshape(x, op.result.dims)]
    return None


def broadcast(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    (x,) = op.operands
    dims, mapping = op.result.dims, tuple(op.attrs["broadcast_dimensions"])
    if mapping == tuple(range(len(dims))) and rw.same_dims(x.dims, dims):
        return [x]
    inner = x.op
    if inner is not None and inner.name == "broadcast_in_dim":
        through = [mapping[i] for i in inner.attrs["broadcast_dimensions"]]
        return [rw.broadcast(inner.operands[0], dims, through)]
    if inner is not None and inner.name == "constant" and x.rank:
        c = splat_of(x)
        if c is not None:
            return [rw.splat(c, op.result.tensor)]
    if inner is not None and inner.name == "reshape":
        moved = unit_reshape(inner, rw)
        if moved is not None:
            source = inner.operands[0]
            kept = [i for i in range(source.rank) if i in moved]
            small = source if len(kept) == source.rank else rw.reshape(source, [source.dims[i] for i in kept])
            if small.rank < x.rank:
                return [rw.broadcast(small, dims, [mapping[moved[i]] for i in kept])]
    # Nothing but unit dims is added, and the order is kept: a reshape.
    if x.rank and mapping == tuple(sorted(mapping)):
        new = [i for i in range(len(dims)) if i not in mapping]
        kept_equal = all(rw.equal(x.dims[i], dims[m]) for i, m in enumerate(mapping))
        if kept_equal and all(rw.is_one(dims[i]) for i in new):
            return [rw.reshape(x, dims)]
    # Unit dims of the operand carry nothing.
    if x.rank:
        kept = [i for i in range(x.rank) if not rw.is_one(x.dims[i])]
        if len(kept) < x.rank:
            small = rw.reshape(x, [x.dims[i] for i in kept])
            return [rw.broadcast(small, dims, [mapping[i] for i in kept])]
    return None


def slice_(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    (x,) = op.operands
    starts, strides = op.attrs["starts"], op.attrs["strides"]
    if rw.same_dims(x.dims, op.result.dims) and all(rw.is_one(s) for s in strides) and all(rw.equal(s, Dim.of(0)) for s in starts):
        return [x]
    c = splat_of(x)
    if c is not None:
        return [rw.splat(c, op.result.tensor)]
    inner = x.op
    if inner is None:
        return None
    if inner.name == "slice":
        s0, t0 = inner.attrs["starts"], inner.attrs["strides"]
        begin = tuple(a + Dim.of(b) * Dim.of(t) for a, b, t in zip(s0, starts, t0, strict=True))
        step = tuple(Dim.of(a) * Dim.of(b) for a, b in zip(t0, strides, strict=True))
        limits = tuple(
            b + (d - 1) * t + 1 if not rw.is_one(t) else b + d
            for b, d, t in zip(begin, op.result.dims, step, strict=True)
        )
        if all(rw.is_one(t) for t in step) or (op.result.tensor.is_static and all(int(d) > 0 for d in op.result.dims)):
            attrs = {"starts": begin, "limits": limits, "strides": step}
            return [rw.value("slice", [inner.operands[0]], op.result.type, attrs)]
    if inner.name == "concatenate":
        return _slice_of_concat(op, inner, rw)
    return None


def _slice_of_concat(op: Op, concat: Op, rw: Rewriter) -> Sequence[Value] | None:
    """A slice that lies within one operand of a concatenation."""
    axis = concat.attrs["dimension"]
    start, limit = op.attrs["starts"][axis], op.attrs["limits"][axis]
    base = Dim.of(0)
    for part in concat.operands:
        end = base + part.dims[axis]
        inside = rw.env.is_nonneg(start - base) is True and rw.env.is_nonneg(end - limit) is True
        if inside:
            def shift(values: tuple[Dim, ...], by: Dim = base) -> tuple[Dim, ...]:
                return tuple(v - by if i == axis else v for i, v in enumerate(values))

            attrs = {"starts": shift(op.attrs["starts"]), "limits": shift(op.attrs["limits"]), "strides": op.attrs["strides"]}
            return [rw.value("slice", [part], op.result.type, attrs)]
        base = end
    return None


def concatenate(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    axis = op.attrs["dimension"]
    if len(op.operands) == 1:
        return [op.operands[0]] if rw.same_dims(op.operands[0].dims, op.result.dims) else None
    kept = [v for v in op.operands if not rw.equal(v.dims[axis], Dim.of(0))]
    flat: list[Value] = []
    for v in kept:
        inner = v.op
        if inner is not None and inner.name == "concatenate" and inner.attrs["dimension"] == axis and len(v.uses) == 1:
            flat.extend(inner.operands)
        else:
            flat.append(v)
    if kept and (len(kept) < len(op.operands) or len(flat) != len(kept)):
        return [rw.value("concatenate", flat, op.result.type, {"dimension": axis})]
    return None


def pad(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    zero = Dim.of(0)
    if all(rw.equal(d, zero) for key in ("low", "high", "interior") for d in op.attrs[key]):
        return [op.operands[0]] if rw.same_dims(op.operands[0].dims, op.result.dims) else None
    return None


def reverse(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    (x,) = op.operands
    kept = tuple(d for d in op.attrs["dimensions"] if not rw.is_one(x.dims[d]))
    if not kept:
        return [x]
    if kept != tuple(op.attrs["dimensions"]):
        return [rw.value("reverse", [x], op.result.type, {"dimensions": kept})]
    return None


def reduce(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """Reducing nothing, or dims of size 1, is the combination of the operand with the initial value."""
    if len(op.operands) != 2:
        return None
    kind = reduce_kind(op)
    x, init = op.operands
    c = splat_of(init)
    if kind not in _MONOID_OP or c is None:
        return None
    if kind in ("and", "or", "max", "min"):  # idempotent: a splat of the initial value, however many
        s = splat_of(x)
        if s is not None and s.tobytes() == c.tobytes():
            return [rw.splat(c, op.result.tensor)]
    if not all(rw.is_one(x.dims[d]) for d in op.attrs["dimensions"]):
        return None
    flat = rw.reshape(x, op.result.dims)
    return [rw.value(_MONOID_OP[kind], [flat, rw.splat(c, op.result.tensor)], op.result.type)]


def dynamic_slice(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """Constant starts make it a slice (starts are clamped as StableHLO does)."""
    x, *starts = op.operands
    known = [constant_of(s) for s in starts]
    if not x.tensor.is_static or not op.result.tensor.is_static or any(k is None for k in known):
        return None
    begin = []
    for k, have, size in zip(known, x.dims, op.result.dims, strict=True):
        begin.append(Dim.of(max(0, min(int(k), int(have) - int(size)))))  # type: ignore[arg-type]
    attrs = {
        "starts": tuple(begin),
        "limits": tuple(b + d for b, d in zip(begin, op.result.dims, strict=True)),
        "strides": tuple(Dim.of(1) for _ in begin),
    }
    return [rw.value("slice", [x], TensorType(x.dtype, op.result.dims), attrs)]


SHAPE_RULES = table(
    (["reshape"], reshape),
    (["transpose"], transpose),
    (["broadcast_in_dim"], broadcast),
    (["slice"], slice_),
    (["concatenate"], concatenate),
    (["pad"], pad),
    (["reverse"], reverse),
    (["reduce"], reduce),
    (["dynamic_slice"], dynamic_slice),
)
