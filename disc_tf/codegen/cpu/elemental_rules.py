"""The elemental rules: what an element of each inlinable op is, in terms of its operands' elements (see `elemental`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from disc_tf.codegen.cpu import index as ix
from disc_tf.codegen.cpu import lane_ops, lanes
from disc_tf.codegen.cpu.elemental import CannotInline, Elemental, Indices, Rule, rule
from disc_tf.codegen.cpu.index import Index
from disc_tf.codegen.llvm import I1, I64, V, const, int_ty, vec
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType

MAX_TABLE = 1024  # elements of a constant that an emitter writes into the code itself


def _op(v: Value) -> Op:
    """The op that a rule was called for."""
    assert v.op is not None
    return v.op


# -- computation ------------------------------------------------------------------------------------------------


@rule(*lane_ops.ELEMENTWISE)
def _elementwise(e: Elemental, v: Value, idx: Indices) -> Rule:
    args = []
    for operand in _op(v).operands:
        # select's predicate and clamp's bounds may be scalars.
        x = yield operand, (idx if operand.rank == len(idx) else ())
        args.append(x)
    return lane_ops.emit(e.b, _op(v), args)


@rule("bitcast_convert")
def _bitcast(e: Elemental, v: Value, idx: Indices) -> Rule:
    b = e.b
    (x,) = _op(v).operands
    source, target = x.dtype, v.dtype
    if source.bits == target.bits:
        element = yield x, idx
        return lane_ops.emit(b, _op(v), [element])
    wide, narrow = max(source.bits, target.bits), min(source.bits, target.bits)
    ratio = wide // narrow
    if source.bits > target.bits:  # the last index picks a piece, least significant first
        element = yield x, idx[:-1]
        bits = lanes.as_bits(b, source, element)
        piece = ix.value(b, idx[-1], e.width)
        n = max(bits.lanes, piece.lanes)
        shift = b.mul(b.splat(piece, n), narrow)
        bits = b.lshr(b.splat(bits, n), b.trunc(shift, bits.ty.elem) if wide < 64 else shift)
        return lanes.from_bits(b, target, b.trunc(bits, int_ty(narrow)))
    total: V | None = None
    for k in range(ratio):
        element = yield x, (*idx, ix.uniform(const(k, I64)))
        bits = b.shl(b.zext(lanes.as_bits(b, source, element), int_ty(wide)), k * narrow)
        total = bits if total is None else b.or_(total, bits)
    assert total is not None
    return lanes.from_bits(b, target, total)


@rule("constant")
def _constant(e: Elemental, v: Value, idx: Indices) -> Rule:
    b, array = e.b, _op(v).attrs["value"]
    flat = np.asarray(array)
    if flat.size == 0:
        return const(0, lanes.reg_elem(v.dtype))
    first = flat.reshape(-1)[:1]
    stored = np.ascontiguousarray(flat)
    if not any(flat.strides) or flat.size == 1 or stored.tobytes() == first.tobytes() * flat.size:
        x = first[0]
        number = bool(x) if v.dtype.is_bool else float(x) if v.dtype.is_float else int(x)
        return const(number, lanes.reg_elem(v.dtype))
    if flat.size > MAX_TABLE:
        raise CannotInline(f"constant of {flat.size} elements: it needs a buffer")
    elem = lanes.mem_elem(v.dtype)
    if elem.is_float:
        table = [float(x) for x in stored.reshape(-1)]
    else:
        table = [int(x) for x in np.frombuffer(stored.tobytes(), dtype=f"i{elem.bytes}")]
    digest = stored.tobytes().hex() if stored.nbytes <= 16 else hashlib.sha1(stored.tobytes()).hexdigest()
    p = b.table(f"disc_const_{v.dtype}_{digest}", elem, table)
    return e.load_from(p, v.dtype, e.position(v.dims, idx))
    yield  # a generator like the other rules


@rule("iota")
def _iota(e: Elemental, v: Value, idx: Indices) -> Rule:
    i = ix.value(e.b, idx[_op(v).attrs["dimension"]], e.width)
    return lanes.convert(e.b, i, DType.I64, v.dtype)
    yield


@rule("disc.dim")
def _dim(e: Elemental, v: Value, idx: Indices) -> Rule:
    return e.b.trunc(e.dim(_op(v).attrs["dim"]), lanes.reg_elem(v.dtype))
    yield


# -- moving indices ---------------------------------------------------------------------------------------------


@rule("broadcast_in_dim")
def _broadcast(e: Elemental, v: Value, idx: Indices) -> Rule:
    (x,) = _op(v).operands
    out = []
    for d, r in zip(x.dims, _op(v).attrs["broadcast_dimensions"], strict=True):
        out.append(broadcast_index(e, idx[r], d, v.dims[r]))
    element = yield x, tuple(out)
    return element


def broadcast_index(e: Elemental, i: Index, extent: Dim, result: Dim) -> Index:
    """The index into a dimension of `extent` that is spread over `result`: i, or 0 where the extent is 1."""
    if extent == 1 or e.env.is_equal(extent, 1) is True:
        return ix.uniform(ix.ZERO)
    if e.same(extent, result):
        return i
    low, _ = e.env.bounds(extent)
    if low is not None and low >= 2:
        return i
    return ix.gated(e.b, i, e.b.icmp("ne", e.dim(extent), 1))


@rule("transpose")
def _transpose(e: Elemental, v: Value, idx: Indices) -> Rule:
    (x,) = _op(v).operands
    out: list[Index] = [ix.uniform(ix.ZERO)] * x.rank
    for i, p in enumerate(_op(v).attrs["permutation"]):
        out[p] = idx[i]
    element = yield x, tuple(out)
    return element


@rule("reverse")
def _reverse(e: Elemental, v: Value, idx: Indices) -> Rule:
    (x,) = _op(v).operands
    out = list(idx)
    for d in _op(v).attrs["dimensions"]:
        flipped = ix.scale(e.b, idx[d], const(-1, I64))
        out[d] = ix.add(e.b, flipped, e.b.sub(e.dim(x.dims[d]), 1))
    element = yield x, tuple(out)
    return element


@rule("slice")
def _slice(e: Elemental, v: Value, idx: Indices) -> Rule:
    (x,) = _op(v).operands
    attrs = _op(v).attrs
    out = []
    for i, start, stride in zip(idx, attrs["starts"], attrs["strides"], strict=True):
        out.append(ix.add(e.b, ix.scale(e.b, i, e.dim(Dim.of(stride))), e.dim(Dim.of(start))))
    element = yield x, tuple(out)
    return element


@rule("reshape")
def _reshape(e: Elemental, v: Value, idx: Indices) -> Rule:
    (x,) = _op(v).operands
    element = yield x, reshape_index(e, idx, v.dims, x.dims)
    return element


def reshape_index(e: Elemental, idx: Indices, result: Sequence[Dim], operand: Sequence[Dim]) -> Indices:
    """The operand's index of the same row-major position: dims are grouped where their products agree, so that
    division happens only inside groups that really change."""
    out: list[Index] = [ix.uniform(ix.ZERO)] * len(operand)
    rs = [k for k, d in enumerate(result) if d != 1]
    os_ = [k for k, d in enumerate(operand) if d != 1]
    tail: list[tuple[int, int]] = []
    # Equal dims at the front and at the back.
    lo = 0
    while lo < min(len(rs), len(os_)) and e.same(result[rs[lo]], operand[os_[lo]]):
        out[os_[lo]] = idx[rs[lo]]
        lo += 1
    rs, os_ = rs[lo:], os_[lo:]
    while rs and os_ and e.same(result[rs[-1]], operand[os_[-1]]):
        tail.append((rs.pop(), os_.pop()))
    for r, o in tail:
        out[o] = idx[r]
    while rs or os_:
        r_group, o_group = _next_group(e, result, operand, rs, os_)
        linear = ix.uniform(ix.ZERO)
        for k in r_group:
            linear = ix.plus(e.b, ix.scale(e.b, linear, e.dim(result[k])), idx[k])
        for n, k in enumerate(reversed(o_group)):
            if n == len(o_group) - 1:
                out[k] = linear
            else:
                linear, out[k] = ix.divmod_by(e.b, linear, e.dim(operand[k]), e.width)
        rs, os_ = rs[len(r_group):], os_[len(o_group):]
    return tuple(out)


def _next_group(e: Elemental, result: Sequence[Dim], operand: Sequence[Dim], rs: Sequence[int],
                os_: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """The shortest prefixes of both sides with equal products; everything when none is known to be equal."""
    if not rs or not os_:
        return rs, os_
    have = Dim.of(1)
    products = []
    for k in os_:
        have = have * operand[k]
        products.append(have)
    want = Dim.of(1)
    for n, k in enumerate(rs[:-1]):
        want = want * result[k]
        for m, p in enumerate(products[:-1]):
            if e.same(want, p):
                return rs[:n + 1], os_[:m + 1]
    return rs, os_


# -- guarded and computed indices ---------------------------------------------------------------------------------


@rule("pad")
def _pad(e: Elemental, v: Value, idx: Indices) -> Rule:
    b = e.b
    x, fill = _op(v).operands
    attrs = _op(v).attrs
    inside: V = const(1, I1)
    out = []
    for i, d, low, gap in zip(idx, x.dims, attrs["low"], attrs["interior"], strict=True):
        low, gap = Dim.of(low), Dim.of(gap)
        j = ix.add(b, i, e.dim(-low))
        if gap != 0:
            # Positions below 0 are outside anyway; divide something non-negative.
            raw = ix.value(b, j, e.width)
            positive = b.icmp("sge", raw, 0)
            q, r = ix.divmod_by(b, ix.general(b.smax(raw, 0)), e.dim(gap + 1), e.width)
            exact = b.and_(positive, b.icmp("eq", ix.value(b, r, e.width), 0))
            inside = _both(e, inside, exact)
            j = q
        certain = low == 0 and Dim.of(attrs["high"][len(out)]) == 0 and gap == 0
        if not certain:
            inside = _both(e, inside, e.between(j, ix.ZERO, e.dim(d)))
        out.append(j)
    where = tuple(out)
    return e.when(inside, lambda: e.at(x, where), lambda: e.at(fill, ()), v.dtype)
    yield


def _both(e: Elemental, p: V, q: V) -> V:
    width = max(p.lanes, q.lanes)
    return e.b.and_(e.b.splat(p, width), e.b.splat(q, width))


@rule("concatenate")
def _concatenate(e: Elemental, v: Value, idx: Indices) -> Rule:
    b, axis = e.b, _op(v).attrs["dimension"]
    parts, start = [], Dim.of(0)
    for x in _op(v).operands:
        parts.append((x, start))
        start = start + x.dims[axis]
    # A chain from the last part to the first: each is evaluated only where its own range is wanted.
    def part(k: int) -> V:
        x, low = parts[k]
        where = (*idx[:axis], ix.add(b, idx[axis], e.dim(-low)), *idx[axis + 1:])
        return e.at(x, where)

    if idx[axis].uniform:
        return _choose(e, idx[axis].base, parts, part, axis)
    if (k := _known_part(e, idx[axis], parts, axis)) is not None:
        return part(k)
    result: V = const(0, vec(lanes.reg_elem(v.dtype), e.width))
    for k, (x, low) in enumerate(parts):
        rest = result
        inside = e.between(idx[axis], e.dim(low), e.dim(low + x.dims[axis]))
        result = e.when(inside, lambda k=k: part(k), lambda rest=rest: rest, v.dtype)
    return result
    yield


def _known_part(e: Elemental, i: Index, parts: list[tuple[Value, Dim]], axis: int) -> int | None:
    """The part of a concatenation that all lanes of an index lie in, where that is known."""
    known = e.known.get(i.base.name) if i.vector is None and i.step.const == 1 else None
    if known is None:
        return None
    for k, (x, low) in enumerate(parts):
        high = low + x.dims[axis]
        if not (low.is_static and high.is_static):
            return None
        if int(low) <= known[0] and known[1] <= int(high):
            base = ix.add(e.b, i, e.dim(-low)).base
            e.known[base.name] = (known[0] - int(low), known[1] - int(low))
            return k
    return None


def _choose(e: Elemental, i: V, parts: list[tuple[Value, Dim]], part: Callable[[int], V], axis: int) -> V:
    """Branches over the parts of a concatenation for a scalar index: a loop-free if chain."""
    b = e.b
    zero = const(0, vec(lanes.reg_elem(parts[0][0].dtype), e.width))
    result: V = zero
    for k, (x, low) in enumerate(parts):
        inside = b.and_(b.icmp("sge", i, e.dim(low)), b.icmp("slt", i, e.dim(low + x.dims[axis])))
        result = b.if_then(inside, lambda k=k: [b.splat(part(k), e.width)], [result])[0]
    return result


@rule("dynamic_slice")
def _dynamic_slice(e: Elemental, v: Value, idx: Indices) -> Rule:
    x, *starts = _op(v).operands
    out = []
    for i, start, d, size in zip(idx, starts, x.dims, _op(v).attrs["sizes"], strict=True):
        s = yield start, ()
        low = lanes.convert(e.b, s, start.dtype, DType.I64)
        room = e.dim(d - Dim.of(size))
        low = e.b.smax(e.b.smin(low, room), 0)
        out.append(ix.add(e.b, i, low))
    element = yield x, tuple(out)
    return element


@rule("dynamic_update_slice")
def _dynamic_update_slice(e: Elemental, v: Value, idx: Indices) -> Rule:
    b = e.b
    x, update, *starts = _op(v).operands
    inside: V = const(1, I1)
    out = []
    for i, start, d, size in zip(idx, starts, x.dims, update.dims, strict=True):
        s = yield start, ()
        low = lanes.convert(b, s, start.dtype, DType.I64)
        low = b.smax(b.smin(low, e.dim(d - size)), 0)
        j = ix.add(b, i, b.sub(0, low))
        inside = _both(e, inside, e.between(j, ix.ZERO, e.dim(size)))
        out.append(j)
    where = tuple(out)
    return e.when(inside, lambda: e.at(update, where), lambda: e.at(x, idx), v.dtype)


@rule("gather")
def _gather(e: Elemental, v: Value, idx: Indices) -> Rule:
    """StableHLO's gather; starts are clamped, as there (TF's range errors are separate checks)."""
    b = e.b
    x, indices = _op(v).operands
    a = _op(v).attrs
    offset, vector = a["offset_dims"], a["index_vector_dim"]
    hidden = (*a["collapsed_slice_dims"], *a["operand_batching_dims"])
    batch = [i for k, i in enumerate(idx) if k not in offset]
    windows = iter([idx[k] for k in offset])
    out: list[Index] = [ix.uniform(ix.ZERO) if k in hidden else next(windows) for k in range(x.rank)]
    for k, axis in enumerate(a["start_index_map"]):
        where = list(batch)
        if vector < indices.rank:
            where.insert(vector, ix.uniform(const(k, I64)))
        start = yield indices, tuple(where)
        wide = lanes.convert(b, start, indices.dtype, DType.I64)
        room = e.dim(x.dims[axis] - Dim.of(a["slice_sizes"][axis]))
        at = ix.clamp(b, ix.general(wide), room, e.width)
        out[axis] = ix.plus(b, out[axis], at)
    for o, i in zip(a["operand_batching_dims"], a["start_indices_batching_dims"], strict=True):
        out[o] = batch[i - (i > vector)]
    element = yield x, tuple(out)
    return element
