"""How often a loop runs and how far its counters get: the bounds of what an iteration makes longer.

The bounds come from the condition alone. A wrong one would be memory unsafety, so `require_room` checks in the loop what cannot be proved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np

from disc_tf.ir.core import Block, Value, walk
from disc_tf.ir.dims import Dim, apply_atom, dmax, dmin
from disc_tf.ir.types import DType
from disc_tf.lowering.content import bind
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Status, Unsupported

#: a known bound on iterations that is larger is taken for no bound
_MAX_TRIPS = 1 << 22
#: run-time numbers are cut here, so that no product of them wraps; a loop that needs more ends with an error
_CAP = 1 << 31
_GREATEST = {DType.I32: (1 << 31) - 1, DType.I64: (1 << 63) - 1}
#: the symbol of the number of iterations
TRIPS = "_trips"


def last(k: int) -> str:
    """The symbol of one more than the greatest value that carried number ``k`` has in an iteration."""
    return f"_last_{k}"


@dataclasses.dataclass
class Counter:
    """A term of the condition: carried value ``index`` is below ``limit`` (a dim or an outer value)."""

    index: int
    limit: Dim | Value
    inclusive: bool


@dataclasses.dataclass
class Condition:
    """The terms ``i < n`` of a conjunction. ``others``: whether it has other terms, by which the loop may end before."""

    counters: list[Counter] = dataclasses.field(default_factory=list)
    others: bool = False


def condition_of(ctx: LoweringContext, pred: Value, params: Mapping[int, Value], trial: Set[str]) -> Condition:
    """What a condition, lowered into the present block over ``params`` (carried values by number), says of the number of iterations.

    ``trial``: symbols of extents that the loop changes: what hangs on them is no limit."""
    found = Condition()
    terms, block = [pred], ctx.b.block
    inner = trial | bound_symbols(block)
    while terms:
        v = terms.pop()
        op = v.op
        if op is not None and op.parent is block and op.name == "and":
            terms += op.operands
            continue
        counter = _counter(ctx, v, params, block, inner)
        content = ctx.constant(v)
        if counter is not None:
            found.counters.append(counter)
        elif content is None or not bool(content):
            found.others = True
    return found


def _counter(ctx: LoweringContext, v: Value, params: Mapping[int, Value], block: Block, inner: Set[str]) -> Counter | None:
    op = v.op
    if op is None or op.parent is not block or op.name != "compare" or op.attrs["direction"] not in ("LT", "LE", "GT", "GE"):
        return None
    small, large = op.operands if op.attrs["direction"] in ("LT", "LE") else reversed(op.operands)
    index = next((k for k, p in params.items() if p is small), None)
    if index is None or large.rank or not large.dtype.is_int:
        return None
    inclusive = op.attrs["direction"] in ("LE", "GE")
    known = ctx.dims_of(large)
    if known is not None:
        return Counter(index, known[0], inclusive) if inner.isdisjoint(known[0].symbols()) else None
    inside = large.owner is block or (large.op is not None and large.op.parent is block)
    return None if inside else Counter(index, large, inclusive)


def bounds(
    ctx: LoweringContext, name: str, condition: Condition, steps: Mapping[int, int], start: Mapping[int, Value], wanted: Set[str]
) -> dict[str, Dim]:
    """Dims for the symbols ``wanted`` (`TRIPS`, ``last(k)``) of a loop, at the present place, which is before it.

    ``steps``: carried value -> how much an iteration adds to it, 0 for what is no counter. ``start``: carried values before the loop.
    ``Unsupported(SHAPE)`` where the condition bounds nothing, or where the loop may end long before a limit that run time gives.
    """
    counters = [c for c in condition.counters if steps.get(c.index, 0) > 0]
    found: list[tuple[int, Dim, Dim]] = []
    tame = not condition.others and len(counters) == len(condition.counters)
    for c in counters:
        trips, end = _ends(ctx, c, steps[c.index], start[c.index])
        if trips.is_static and int(trips) > _MAX_TRIPS:
            continue
        greatest = _GREATEST[start[c.index].dtype]
        if isinstance(c.limit, Dim) and c.limit.is_static and int(c.limit) + steps[c.index] - 1 + c.inclusive > greatest:
            continue  # the counter wraps around, and the loop goes on
        found.append((c.index, trips, end))
        # of a known size, or not larger than tensors that there are
        tame |= isinstance(c.limit, Dim) and ctx.run_time.isdisjoint(trips.symbols()) and ctx.dims_of(start[c.index]) is not None
    if not found:
        raise Unsupported(
            "SHAPE", f"the loop {name!r} may change a dimension of a carried value, and its iterations have no known bound"
        )
    if not tame:
        raise Unsupported(
            "SHAPE",
            f"the loop {name!r} may change a dimension of a carried value, and may end long before a limit that run time gives: "
            "give it another limit (maximum_iterations) that is a constant or the size of a tensor",
        )
    trips = found[0][1]
    for _, t, _ in found[1:]:
        trips = dmin(trips, t)
    trips = bind(ctx, trips)
    out = {TRIPS: trips}
    for k in sorted({int(s.removeprefix("_last_")) for s in wanted if s != TRIPS}):
        by = steps.get(k, 0)
        if by <= 0:
            raise Unsupported(
                "SHAPE", f"the loop {name!r} writes to a list at carried number {k}, which is no counter: how long it becomes is not known"
            )
        ends = [end for index, _, end in found if index == k]
        if not ends or len(found) > 1:  # after each iteration the counter is by as much larger
            ends.append(dmax(_start(ctx, start[k]) + trips * by, 0))
        most = ends[0]
        for end in ends[1:]:
            most = dmin(most, end)
        out[last(k)] = bind(ctx, most)
    return out


def _start(ctx: LoweringContext, v: Value) -> Dim:
    """What a counter is before the loop, or 0 where that is less and run time alone knows it."""
    known = ctx.dims_of(v)
    return known[0] if known is not None else _capped(ctx, v if v.dtype is DType.I64 else ctx.b.convert(v, DType.I64))


def _capped(ctx: LoweringContext, v: Value) -> Dim:
    b = ctx.b
    return ctx.fresh_dim(b.minimum(b.maximum(v, ctx.scalar(0, DType.I64)), ctx.scalar(_CAP, DType.I64)))


def _ends(ctx: LoweringContext, c: Counter, by: int, init: Value) -> tuple[Dim, Dim]:
    """Bounds of the number of iterations, and of one more than the counter in them, by one term of the condition."""
    known = ctx.dims_of(init), [c.limit] if isinstance(c.limit, Dim) else ctx.dims_of(c.limit)
    if known[0] is not None and known[1] is not None:
        room, end = known[1][0] - known[0][0], known[1][0]
    else:
        first, limit = (x if isinstance(x, Value) else ctx.dim(x) for x in (init, c.limit))
        first, limit = (x if x.dtype is DType.I64 else ctx.b.convert(x, DType.I64) for x in (first, limit))
        room, end = _capped(ctx, ctx.b.subtract(limit, first)), _capped(ctx, limit)
    room, end = (room + 1, end + 1) if c.inclusive else (room, end)
    trips, end = dmax((room + (by - 1)) // by, 0), dmax(end, 0)
    if not ctx.run_time.isdisjoint(trips.symbols()):
        trips = dmin(trips, _CAP)
    return trips, end


# ---- what a body says ---------------------------------------------------------------------------------------------------


def at_most(ctx: LoweringContext, a: Dim, b: Dim) -> bool:
    """Whether ``a <= b`` by what is known."""
    atoms = a.atoms()
    if len(atoms) == 1 and atoms[0].kind in ("max", "min") and a == apply_atom(atoms[0].kind, *atoms[0].args):
        found = [at_most(ctx, x, b) for x in atoms[0].args]
        return all(found) if atoms[0].kind == "max" else any(found)
    return ctx.env.is_nonneg(b - a) is True


def bound_symbols(block: Block) -> set[str]:
    """Symbols that are bound in a block and in its regions."""
    return {op.attrs["symbol"] for op in walk(block) if op.name == "disc.bind_dim"}


def step_of(ctx: LoweringContext, new: Value, param: Value, symbols: Sequence[Dim]) -> int:
    """How much an iteration adds to a counter, 0 for what is none. ``symbols``: what the counter was bound to in it (`counted`)."""
    op = new.op
    if op is None or new.rank or new.dtype not in (DType.I32, DType.I64):
        return 0
    known = ctx.dims_of(new)  # once it is an index it is followed as a dim
    by = [known[0] - s for s in symbols] if known is not None else []
    if by and by[0].is_static:
        return int(by[0])
    if op.name != "add" or param not in op.operands:
        return 0
    return _constant(op.operands[1 - op.operands.index(param)]) or 0


def _constant(v: Value) -> int | None:
    content = v.op.attrs["value"] if v.op is not None and v.op.name == "constant" else None
    return None if content is None or content.size != 1 else int(np.asarray(content).reshape(-1)[0])


def counted(block: Block, params: Mapping[int, Value]) -> Iterable[tuple[int, Dim]]:
    """Carried numbers that a block binds to a symbol, with the symbol; not seen through conversions that may wrap."""
    for op in block.ops:
        if op.name == "disc.bind_dim":
            v = op.operands[0]
            while v.op is not None and v.op.name == "convert" and v.dtype is DType.I64 and v.op.operands[0].dtype is DType.I32:
                v = v.op.operands[0]
            yield from ((k, Dim.of(op.attrs["symbol"])) for k, p in params.items() if p is v)


# ---- the second line of defence -----------------------------------------------------------------------------------------


def require_room(ctx: LoweringContext, extent: Dim, room: Dim, loop: str) -> None:
    """Check, inside of a loop's body that has just been lowered, that what becomes ``extent`` long fits into a store of ``room``.

    Nothing where that is proved. The check stands right behind what binds the symbols, so before all that reads or writes the store
    as if it were that long; a chain of its own, as it is none of the program's.
    """
    if at_most(ctx, extent, room):
        return
    block = ctx.b.block
    made = len(block.ops)
    needed = extent.symbols() | room.symbols()
    where = 1 + max((i for i, op in enumerate(block.ops) if op.name == "disc.bind_dim" and op.attrs["symbol"] in needed), default=-1)
    token, ctx.token = ctx.token, None
    fits = ctx.b.compare(ctx.dim(extent), ctx.dim(room), "LE")
    ctx.check(fits, Status.RESOURCE_EXHAUSTED, f"a tensor becomes longer in the loop {loop!r} than its condition allows")
    ctx.token = token
    ops = block.ops
    block.ops = [*ops[:where], *ops[made:], *ops[where:made]]
