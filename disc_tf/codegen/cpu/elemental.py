"""The value of any inlinable op at an index, over the lanes of a vector.

`Elemental.at(value, index)` gives the element(s) of `value` at `index` (one `Index` per dimension): a scalar when
every lane has the same element, else a vector. Values that lie in memory are loaded; results of the fusion's own ops
are computed from their operands' elements. A value is computed once per index and block (the builder's scoped memory).

Rules are generators: they `yield (operand, index)` and are resumed with the element. The driver keeps its own stack, so
that the depth of an expression costs no Python recursion. Rules that must guard an operand's evaluation (pad,
concatenate) evaluate it inside a branch or under a lane mask: a load never leaves its buffer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence

import numpy as np

from disc_tf.codegen.cpu import index as ix
from disc_tf.codegen.cpu import lane_ops, lanes
from disc_tf.codegen.cpu.frame import KernelFrame
from disc_tf.codegen.cpu.index import Index
from disc_tf.codegen.llvm import I1, I64, V, const, int_ty, vec
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType

Indices = tuple[Index, ...]
Rule = Generator[tuple[Value, Indices], V, V]
RULES: dict[str, Callable[[Elemental, Value, Indices], Rule]] = {}

MAX_TABLE = 1024  # elements of a constant that an emitter writes into the code itself


class CannotInline(ValueError):
    """The op has no elemental rule: it needs a kernel of its own."""


def rule(*names: str) -> Callable:
    """Register the rule of ops: a generator function (elemental, result value, indices) -> element."""
    def add(fn: Callable) -> Callable:
        for name in names:
            if name in RULES:
                raise ValueError(f"two elemental rules for {name}")
            RULES[name] = fn
        return fn

    return add


def can_inline(op: Op) -> bool:
    """Whether the op's elements can be computed inside another kernel."""
    if len(op.results) != 1:
        return False
    if op.name == "constant":
        return True
    return op.name in RULES


class Elemental:
    """Evaluates elements in one kernel.

    frame: where code goes. width: lanes of a vector. ops: the ops that are computed here; everything else is in memory.
    mask: i1 lanes that exist (None: all); set it with `masked`. given: hook for values that the emitter itself provides
    (reduction results, stored intermediates), asked first; returns None for others.
    """

    def __init__(self, frame: KernelFrame, width: int, ops: Sequence[Op],
                 given: Callable[[Value, Indices], V | None] | None = None) -> None:
        self.frame = frame
        self.b = frame.b
        self.env = frame.env
        self.width = width
        self.inside = frozenset(r for op in ops for r in op.results)
        self.given = given
        self.mask: V | None = None
        self.maybe_empty = False  # whether the mask may be false in every lane

    # -- evaluation ---------------------------------------------------------------------------------------------

    def at(self, value: Value, index: Indices) -> V:
        """The element(s) of `value` at `index`; see the module's docstring."""
        stack: list[tuple[tuple, Rule]] = []
        want: tuple[Value, Indices] | None = (value, index)
        result: V | None = None
        while True:
            if want is not None:
                v, idx = want
                idx = self._normal(v, idx)
                key = self._key(v, idx)
                result = self.b.recall(key)
                if result is None:
                    result = self._leaf(v, idx)
                    if result is None:
                        stack.append((key, self._rule(v, idx)))
                    else:
                        self.b.remember(key, result)
                want = None
            if not stack:
                assert result is not None
                return result
            key, generator = stack[-1]
            try:
                want = generator.send(result)  # type: ignore[arg-type]  # None only before the first request
                result = None
            except StopIteration as done:
                stack.pop()
                result = self.b.remember(key, done.value)

    def vector_at(self, value: Value, index: Indices) -> V:
        """`at`, splat to the full width."""
        return self.b.splat(self.at(value, index), self.width)

    def _key(self, v: Value, idx: Indices) -> tuple:
        mask = self.mask.name if self.mask is not None else ""
        return (v.uid, mask, *(i.key for i in idx))

    def _normal(self, v: Value, idx: Indices) -> Indices:
        """Index 0 in dimensions of extent 1, whatever the caller's arithmetic made of it."""
        if any(d == 1 for d in v.dims):
            return tuple(ix.uniform(ix.ZERO) if d == 1 else i for i, d in zip(idx, v.dims, strict=True))
        return idx

    def _leaf(self, v: Value, idx: Indices) -> V | None:
        if self.given is not None:
            provided = self.given(v, idx)
            if provided is not None:
                return provided
        if v not in self.inside:
            return self.load(v, idx)
        return None

    def _rule(self, v: Value, idx: Indices) -> Rule:
        op = v.op
        assert op is not None
        found = RULES.get(op.name)
        if found is None or len(op.results) != 1:
            raise CannotInline(f"{op.name} has no elemental rule (nodes: {', '.join(op.loc) or 'none'})")
        return _Started(found(self, v, idx))  # type: ignore[return-value]

    def with_mask(self, mask: V | None, body: Callable[[], V]) -> V:
        """Evaluate under a narrower mask whose lanes may all be off."""
        old = self.mask, self.maybe_empty
        if mask is not None:
            self.mask = mask if old[0] is None else self.b.and_(old[0], mask)
            self.maybe_empty = True
        try:
            return body()
        finally:
            self.mask, self.maybe_empty = old

    # -- memory -------------------------------------------------------------------------------------------------

    def position(self, dims: Sequence[Dim], idx: Indices) -> Index:
        """Row-major element position of `idx` in an array of extents `dims`."""
        b = self.b
        total = ix.uniform(ix.ZERO)
        for d, i in zip(dims, idx, strict=True):
            total = ix.plus(b, ix.scale(b, total, self.frame.dim(d)), i)
        return total

    def load(self, v: Value, idx: Indices) -> V:
        """Load from the value's buffer."""
        return self.load_from(self.frame.buffer(v), v.dtype, self.position(v.dims, idx))

    def load_from(self, p: V, dtype: DType, at: Index) -> V:
        """Elements at position `at` of a buffer that nothing in this kernel writes."""
        return lanes.from_memory(self.b, dtype, self._load_bits(p, dtype, at))

    def _load_bits(self, p: V, dtype: DType, at: Index) -> V:
        b, elem = self.b, lanes.mem_elem(dtype)
        if self.width == 1:
            return self._load_scalar(p, elem, at)
        if at.vector is not None:
            return self._gather(p, elem, at.vector)
        if at.step.const == 0:
            return self._load_scalar(p, elem, at)
        if at.step.const == 1:
            return self._load_contiguous(p, elem, at.base)
        if at.unit:
            def contiguous() -> list[V]:
                return [self._load_contiguous(p, elem, at.base)]

            def same() -> list[V]:
                return [b.splat(self._load_scalar(p, elem, at), self.width)]

            return b.if_else(b.icmp("eq", at.step, 1), contiguous, same)[0]
        return self._gather(p, elem, ix.as_vector(b, at, self.width))

    def _load_contiguous(self, p: V, elem, base: V) -> V:
        b, ty = self.b, vec(elem, self.width)
        address = b.gep(p, base, elem)
        if self.mask is None:
            return b.load(ty, address, invariant=True)
        return b.masked_load(ty, address, self.mask, invariant=True)

    def _load_scalar(self, p: V, elem, at: Index) -> V:
        b = self.b
        base = at.base if at.vector is None else b.extract(at.vector, 0)
        address = b.gep(p, base, elem)
        if not self.maybe_empty:
            return b.load(elem, address, invariant=True)
        # No lane may want it: then it may not be there.
        assert self.mask is not None
        return b.if_then(b.any_lane(self.mask), lambda: [b.load(elem, address, invariant=True)], [const(0, elem)])[0]

    def _gather(self, p: V, elem, index: V) -> V:
        return self.b.gather(elem, p, index, self.mask, invariant=True)

    def store(self, dtype: DType, p: V, at: Index, x: V) -> None:
        """Store element(s) at position `at` (contiguous, or scattered where it is not), under the mask."""
        b, elem = self.b, lanes.mem_elem(dtype)
        bits = b.splat(lanes.to_memory(b, dtype, x), self.width)
        if self.width == 1:
            def put() -> None:
                b.store(bits, b.gep(p, ix.value(b, at, 1), elem))

            if self.mask is None:
                put()
            else:
                b.if_then(self.mask, put)
        elif at.vector is None and at.step.const == 1:
            address = b.gep(p, at.base, elem)
            if self.mask is None:
                b.store(bits, address)
            else:
                b.masked_store(bits, address, self.mask)
        else:
            b.scatter(bits, p, ix.as_vector(b, at, self.width), self.mask)

    # -- helpers for rules --------------------------------------------------------------------------------------

    def dim(self, d: Dim) -> V:
        return self.frame.dim(d)

    def same(self, a: Dim, c: Dim) -> bool:
        return a == c or self.env.is_equal(a, c) is True

    def select(self, p: V, x: V, y: V) -> V:
        b = self.b
        width = max(p.lanes, x.lanes, y.lanes)
        return b.select(p, b.splat(x, width), b.splat(y, width))

    def when(self, inside: V, body: Callable[[], V], otherwise: Callable[[], V], dtype: DType) -> V:
        """`body()` in the lanes of `inside`, `otherwise()` elsewhere; body only touches memory where inside holds.

        A scalar condition becomes a branch; a vector one masks the loads, and skips them when no lane is inside.
        """
        b = self.b
        if inside.const is not None:
            return body() if inside.const else otherwise()
        if inside.lanes == 1:
            def full(fn: Callable[[], V]) -> Callable[[], list[V]]:
                return lambda: [b.splat(fn(), self.width)]

            return b.if_else(inside, full(body), full(otherwise))[0]
        rest = b.splat(otherwise(), self.width)

        def some() -> list[V]:
            x = self.with_mask(inside, body)
            return [self.select(inside, x, rest)]

        return b.if_then(b.any_lane(inside), some, [rest])[0]

    def between(self, i: Index, low: V, high: V) -> V:
        """low <= i < high, as a scalar or vector of i1."""
        b = self.b
        v = ix.value(b, i, self.width)
        n = v.lanes
        return b.and_(b.icmp("sge", v, b.splat(low, n)), b.icmp("slt", v, b.splat(high, n)))


class _Started:
    """Lets the driver call `send(anything)` first, as generators only accept None then."""

    def __init__(self, generator: Rule) -> None:
        self._generator = generator
        self._fresh = True

    def send(self, x: V | None) -> tuple[Value, Indices]:
        if self._fresh:
            self._fresh = False
            return next(self._generator)
        assert x is not None
        return self._generator.send(x)


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
        return lanes.from_bits(b, target, b.trunc(bits, lanes.mem_elem(target)))
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
    result: V = const(0, vec(lanes.reg_elem(v.dtype), e.width))
    for k, (x, low) in enumerate(parts):
        rest = result
        inside = e.between(idx[axis], e.dim(low), e.dim(low + x.dims[axis]))
        result = e.when(inside, lambda k=k: part(k), lambda rest=rest: rest, v.dtype)
    return result
    yield


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
