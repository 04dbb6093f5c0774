"""The value of any inlinable op at an index, over the lanes of a vector.

`Elemental.at(value, index)` gives the element(s) of `value` at `index` (one `Index` per dimension): a scalar when
every lane has the same element, else a vector. Values that lie in memory are loaded; results of the fusion's own ops
are computed from their operands' elements. A value is computed once per index and block (the builder's scoped memory).

Rules are generators: they `yield (operand, index)` and are resumed with the element. The driver keeps its own stack, so
that the depth of an expression costs no Python recursion. Rules that must guard an operand's evaluation (pad,
concatenate) evaluate it inside a branch or under a lane mask: a load never leaves its buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from disc_tf.codegen.cpu import index as ix
from disc_tf.codegen.cpu import lanes
from disc_tf.codegen.cpu.frame import KernelFrame
from disc_tf.codegen.cpu.index import Index
from disc_tf.codegen.llvm import V, const, vec
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType

Indices = tuple[Index, ...]
Rule = Generator[tuple[Value, Indices], V, V]
RULES: dict[str, Callable[[Elemental, Value, Indices], Rule]] = {}


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
        #: base of an index whose step is 1 -> [first, stop) that holds it in every lane that exists, where that is known
        self.known: dict[str, tuple[int, int]] = {}

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
