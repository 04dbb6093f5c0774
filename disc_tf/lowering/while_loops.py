"""While becomes a region; its condition and body are lowered in place.

What a loop passes on unchanged is no carried value: the body sees the outer one, so that weights are weights inside. A TensorList whose
elements' shape the first iteration decides gets it before the loop.

A value whose dims the loop changes (a cache that grows, a list that is pushed to) lies in a *store* with room for the most that it can
become: the loop carries the store and the present extents, and its body sees the part that is in use. What that most is follows from
how much an iteration adds and how many iterations there are: a condition ``i < n`` with a counter ``i`` bounds them (`loop_bounds`).
Without such a bound the loop stays in TensorFlow. What is not proved to fit is checked in the loop.

A loop is lowered in rounds: each finds out more of what it needs to know (`_Again`), until one goes through. What a round works with:

===========  ============================================================================================================
``inits``    carried values by number, before the loop: what the body does not only pass on
``start``    the tensors of them (a list's stack); lists whose elements have no known shape yet have none
``changed``  carried value -> axes whose extent an iteration changes; these extents are `_Extent`
``apart``    (carried value, axis) whose extent does not stay equal to others that start with the same
``only_read``  changed values of which the loop only changes how much is in use: they need no store
``trial``    symbols that stand for the changed extents while `_find_most` sees what an iteration makes of them. They, and all that is
             bound inside of the body, are of no meaning outside: nothing that is made of them may be a bound
===========  ============================================================================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, dmax
from disc_tf.ir.types import DType, TensorType
from disc_tf.lowering.bodies import FunctionBody, body_of, build_region, discard, lower_body, require_outer
from disc_tf.lowering.content import bind
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.control_flow import predicate
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.loop_bounds import (
    TRIPS,
    Condition,
    at_most,
    bound_symbols,
    bounds,
    condition_of,
    counted,
    last,
    require_room,
    step_of,
)
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.registry import lowering
from disc_tf.lowering.stores import stored, used_part
from disc_tf.lowering.tensor_lists import TensorList, dense

_MAX_ROUNDS = 12
_LIMITS = (
    "the bodies compile; a value only changes its shape in a loop with a counter up to a limit, by as much in each iteration, or as a "
    "list that is written at a counter. The memory for the last iteration is there from the first: where the loop may end before, one "
    "limit is a constant or the size of a tensor"
)


@lowering("While", "StatelessWhile", limits=_LIMITS)
def while_loop(ctx: LoweringContext, node: NodeView, *args: Value) -> list[Value]:
    """A loop. Its condition and body see the values that it does not change as outer ones."""
    cond, body = body_of(ctx, node.attr("cond")), body_of(ctx, node.attr("body"))
    if len(body.returns) != len(args) or len(cond.returns) != 1:
        raise Unsupported("INVALID", "condition or body have a wrong number of results")
    loop = _Loop(ctx, cond, body, args, {k: args[k] for k in range(len(args)) if body.passes(k) != k})
    for _ in range(_MAX_ROUNDS):
        mark = ctx.mark()
        try:
            return loop.lower()
        except _Again as again:
            ctx.rewind(mark)
            loop.trial = frozenset()
            again.tell(loop)
    raise Unsupported("SHAPE", "the shapes of what a loop carries are not found")


class _Again(Exception):
    """What a round has found out. ``elements``: list -> the dims of its elements; ``changed``: carried value -> axes that change;
    ``apart``: (value, axis) whose extent is not that of others which start with the same; ``only_read``: values of which the loop only
    changes how much is in use; ``unfilled``: lists that may have elements which are not set."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: dict[int, tuple[Dim, ...]] = {}
        self.changed: dict[int, set[int]] = {}
        self.apart: set[tuple[int, int]] = set()
        self.only_read: set[int] = set()
        self.unfilled: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self.elements or self.changed or self.apart or self.only_read or self.unfilled)

    def tell(self, loop: _Loop) -> None:
        for k, dims in self.elements.items():
            v = loop.inits[k]
            assert isinstance(v, TensorList)
            loop.inits[k] = v.with_stack(loop.ctx.b.zeros(v.dtype, (v.length, *dims)))
        for k in self.unfilled:
            v = loop.inits[k]
            assert isinstance(v, TensorList)
            loop.inits[k] = v.changed(filled=False)
        for k, axes in self.changed.items():
            loop.changed.setdefault(k, set()).update(axes)
        loop.apart |= self.apart
        loop.only_read |= self.only_read


@dataclasses.dataclass
class _Extent:
    """An extent that the loop changes: of the ``members`` (carried value, axis), ``init`` before the loop, ``most`` at any time,
    which is ``room`` in the stores."""

    init: Dim
    members: list[tuple[int, int]]
    most: Dim | None = None
    room: Dim | None = None


def _is_open(v: Value) -> bool:
    """A list whose elements have no known shape yet."""
    return isinstance(v, TensorList) and v.stack is None and v.element_dims is None


def _needs_flag(v: Value) -> bool:
    """A list of which only run time knows whether an element is set, where that matters."""
    return isinstance(v, TensorList) and not v.filled and v.any_set is not True and not v.is_declared


@dataclasses.dataclass
class _Loop:
    ctx: LoweringContext
    cond: FunctionBody
    body: FunctionBody
    args: Sequence[Value]
    #: carried values by number
    inits: dict[int, Value]
    changed: dict[int, set[int]] = dataclasses.field(default_factory=dict)
    apart: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    only_read: set[int] = dataclasses.field(default_factory=set)
    #: symbols of extents while it is found out how they change
    trial: frozenset[str] = frozenset()

    # ---- a round ------------------------------------------------------------------------------------------------

    def lower(self) -> list[Value]:
        ctx = self.ctx
        self.carried = [k for k, v in self.inits.items() if not _is_open(v)]
        self.start = {k: dense(ctx, v) if isinstance(v, TensorList) else v for k in self.carried for v in (self.inits[k],)}
        self.flags = [k for k in self.carried if _needs_flag(self.inits[k])]
        self.extents = self._extents()
        if self.extents:
            self._find_most()
        return self._build()

    def _extents(self) -> list[_Extent]:
        """One for all that start equal, but for those that are known to part."""
        out: list[_Extent] = []
        for k, axes in self.changed.items():
            for axis in sorted(axes):
                init = self.start[k].dims[axis]
                same = [e for e in out if (k, axis) not in self.apart and e.members[0] not in self.apart and e.init == init]
                if same:
                    same[0].members.append((k, axis))
                else:
                    out.append(_Extent(init, [(k, axis)]))
        return out

    def _flag(self, k: int) -> Value:
        v = self.inits[k]
        assert isinstance(v, TensorList)
        return v.any_set if isinstance(v.any_set, Value) else self.ctx.scalar(v.any_set, DType.BOOL)

    def _inside(self, tensors: dict[int, Value], flags: dict[int, Value]) -> list[Value]:
        """The arguments of the functions in a region, or the loop's results."""
        out = list(self.args)
        for k, v in self.inits.items():
            out[k] = v
            if k in tensors:
                out[k] = v.with_stack(tensors[k], any_set=flags.get(k)) if isinstance(v, TensorList) else tensors[k]
        return out

    def _results(self, inside: Sequence[Value], wanted: dict[int, tuple[Dim | None, ...]]) -> tuple[dict[int, Value], dict[int, Value]]:
        """Lower the body: its carried tensors, with dims as ``wanted`` (None: any), and flags. `_Again` where it tells something new."""
        ctx, again = self.ctx, _Again()
        results = lower_body(ctx, self.body, inside)
        tensors: dict[int, Value] = {}
        flags: dict[int, Value] = {}
        for k, v in self.inits.items():
            new = results[k]
            if isinstance(v, TensorList) != isinstance(new, TensorList):
                raise Unsupported("INVALID", f"carried value {k} is a TensorList on one side only")
            if isinstance(new, TensorList) and isinstance(v, TensorList):
                if v.filled and not new.filled:
                    again.unfilled.add(k)
                if _is_open(v) and new.stack is not None:
                    require_outer(ctx, new.stack.dims[1:], f"an element of list {k}")
                    if any(not self.trial.isdisjoint(d.symbols()) for d in new.stack.dims[1:]):
                        raise Unsupported("SHAPE", f"the elements of list {k} have different shapes")
                    again.elements[k] = new.stack.dims[1:]
                    continue
                if _is_open(v):
                    if ctx.env.is_equal(new.length, v.length) is not True:
                        raise Unsupported("SHAPE", f"the loop changes the length of list {k}, whose elements are not known")
                    continue  # never set in the loop either
                if k in self.flags:
                    known = new.any_set
                    flags[k] = known if isinstance(known, Value) else ctx.scalar(known, DType.BOOL)
                new = dense(ctx, new)
            if k not in wanted:
                continue
            want, dtype = wanted[k], self.start[k].dtype
            if new.dtype is not dtype or new.rank != len(want):
                raise Unsupported("SHAPE", f"the loop {self.body.name!r} changes carried value {k} from {self.start[k].type} to {new.type}")
            for axis, (a, b) in enumerate(zip(new.dims, want, strict=True)):
                if b is not None and ctx.env.is_equal(a, b) is not True:
                    again.changed.setdefault(k, set()).add(axis)
            dims = tuple(a if b is None else b for a, b in zip(new.dims, want, strict=True))
            tensors[k] = new if again or new.dims == dims else ctx.cast_dims(new, dims)
        if again:
            raise again
        return tensors, flags

    def _wanted(self, dims: dict[int, tuple[Dim, ...]]) -> dict[int, tuple[Dim | None, ...]]:
        return {k: tuple(None if axis in self.changed.get(k, ()) else d for axis, d in enumerate(dims[k])) for k in self.carried}

    # ---- how large what changes can become ------------------------------------------------------------------------

    def _find_most(self) -> None:
        """Lower the loop with a symbol for each extent, only to see what an iteration makes of it, and how many iterations there are."""
        ctx = self.ctx
        symbols = [ctx.new_symbol() for _ in self.extents]
        self.trial = frozenset(map(str, symbols))
        dims = {k: list(self.start[k].dims) for k in self.carried}
        for e, s in zip(self.extents, symbols, strict=True):
            for k, axis in e.members:
                dims[k][axis] = s
        known = {k: tuple(d) for k, d in dims.items()}
        types = [TensorType(self.start[k].dtype, known[k]) for k in self.carried]
        types += [TensorType(DType.BOOL, ())] * len(self.flags)
        n = len(self.carried)
        found: list[Dim] = []
        steps: dict[int, int] = {}
        numbers: list[tuple[int, Dim]] = []
        condition = Condition()

        def step(params: Sequence[Value]) -> list[Value]:
            tensors = dict(zip(self.carried, params, strict=False))
            new, flags = self._results(self._inside(tensors, dict(zip(self.flags, params[n:], strict=True))), self._wanted(known))
            again = _Again()
            for e in self.extents:
                first = new[e.members[0][0]].dims[e.members[0][1]]
                again.apart.update(m for m in e.members[1:] if ctx.env.is_equal(new[m[0]].dims[m[1]], first) is not True)
                found.append(first)
            if again:
                raise again
            numbers.extend(counted(ctx.b.block, tensors))
            for k, p in tensors.items():
                steps[k] = step_of(ctx, new[k], p, [s for m, s in numbers if m == k])
            inner = self.trial | bound_symbols(ctx.b.block)
            for i, e in enumerate(self.extents):
                e.most = self._growth(e, symbols[i], found[i], inner, numbers)
            return [*(new[k] for k in self.carried), *(flags[k] for k in self.flags)]

        def test(params: Sequence[Value]) -> list[Value]:
            nonlocal condition
            tensors = dict(zip(self.carried, params, strict=False))
            (result,) = lower_body(ctx, self.cond, self._inside(tensors, dict(zip(self.flags, params[n:], strict=True))))
            pred = predicate(ctx, result, "the condition of a loop")
            condition = condition_of(ctx, pred, tensors, self.trial)
            return [pred]

        mark = ctx.mark()
        discard(build_region(ctx, types, step))
        discard(build_region(ctx, types, test))
        ctx.rewind(mark)
        self.trial = frozenset()
        symbols_of_bounds = {TRIPS, *(last(k) for k in self.carried)}
        wanted = {s for e in self.extents if e.most is not None for s in e.most.symbols() & symbols_of_bounds}
        if wanted:
            known_bounds = bounds(ctx, self.body.name, condition, steps, self.start, wanted)
            for e in self.extents:
                assert e.most is not None
                e.most = e.most.substitute(known_bounds)

    def _growth(self, e: _Extent, s: Dim, new: Dim, inner: Set[str], numbers: list[tuple[int, Dim]]) -> Dim:
        """The most that an extent becomes, over the symbols `TRIPS` (iterations) and ``last(k)`` (one more than carried number k is)."""
        ctx = self.ctx
        if at_most(ctx, new, s):
            return e.init
        growth = ctx.env.simplify(new - s)
        if inner.isdisjoint(growth.symbols()):
            return e.init + (growth if ctx.env.is_nonneg(growth) is True else dmax(growth, 0)) * Dim.of(TRIPS)
        if inner.isdisjoint(ctx.env.simplify(new).symbols()):
            return dmax(e.init, ctx.env.simplify(new))
        high = ctx.env.bounds(growth)[1]
        if high is not None:
            return e.init + Dim.of(TRIPS) * high
        for k, i in numbers:
            if ctx.env.is_equal(new, dmax(s, i + 1)) is True:
                return dmax(e.init, Dim.of(last(k)))
        k, axis = e.members[0]
        raise Unsupported(
            "SHAPE", f"the loop {self.body.name!r} may change a dimension of carried value {k} from {e.init} to {new} (axis {axis})"
        )

    # ---- the loop itself --------------------------------------------------------------------------------------------

    def _build(self) -> list[Value]:
        ctx = self.ctx
        moving = [k for k in self.carried if k not in self.only_read]
        for e in self.extents:
            if any(k in moving for k, _ in e.members):
                assert e.most is not None
                e.room = bind(ctx, e.most)
        stores = {k: self._store(k) for k in self.carried}
        types = [stores[k].tensor for k in moving]
        hints = [stores[k].hint for k in moving]
        types += [TensorType(DType.BOOL, ())] * len(self.flags) + [TensorType(DType.I64, ())] * len(self.extents)
        hints += ["set"] * len(self.flags) + ["extent"] * len(self.extents)
        a, b = len(moving), len(moving) + len(self.flags)

        def parts(params: Sequence[Value], used: set[int]) -> tuple[dict[int, Value], dict[int, Value], list[Dim]]:
            """The stores and the parts of them that are in use, in a region or behind the loop."""
            now = {**stores, **dict(zip(moving, params, strict=False))}
            sizes: list[Dim] = []
            for e, p in zip(self.extents, params[b:], strict=True):
                needed = any(k in used for k, _ in e.members)
                sizes.append(self._bound(p, e) if needed else e.init)
            views = dict(now)
            for k, axes in self.changed.items():
                extent = {axis: d for e, d in zip(self.extents, sizes, strict=True) for m, axis in e.members if m == k and axis in axes}
                if k in used:
                    views[k] = used_part(ctx, now[k], extent)
            return now, views, sizes

        def flags(params: Sequence[Value]) -> dict[int, Value]:
            return dict(zip(self.flags, params[a:b], strict=True))

        def step(params: Sequence[Value]) -> list[Value]:
            now, views, _ = parts(params, set(self.carried))
            known = {k: tuple(v.dims) for k, v in views.items()}
            new, marks = self._results(self._inside(views, flags(params)), self._wanted(known))
            grown = [new[e.members[0][0]].dims[e.members[0][1]] for e in self.extents]
            again = _Again()
            out: list[Value] = []
            for k in self.carried:
                if k not in self.changed:
                    out.append(new[k])
                    continue
                value = stored(ctx, new[k], views[k], now[k])
                if value is now[k]:
                    again.only_read.update({k} - self.only_read)
                elif k in self.only_read:
                    raise Unsupported("SHAPE", f"the loop {self.body.name!r} changes carried value {k} in another way than before")
                if k in moving:
                    out.append(value)
            if again:
                raise again
            for e, d in zip(self.extents, grown, strict=True):
                if e.room is not None:
                    require_room(ctx, d, e.room, self.body.name)
            return [*out, *(marks[k] for k in self.flags), *(ctx.dim(d) for d in grown)]

        def test(params: Sequence[Value]) -> list[Value]:
            _, views, _ = parts(params, _arguments(self.cond))
            (result,) = lower_body(ctx, self.cond, self._inside(views, flags(params)))
            return [predicate(ctx, result, "the condition of a loop")]

        start = [*(stores[k] for k in moving), *(self._flag(k) for k in self.flags), *(ctx.dim(e.init) for e in self.extents)]
        inner = build_region(ctx, types, step, hints)
        try:
            test_block = build_region(ctx, types, test, hints)
        except BaseException:
            discard(inner)
            raise
        results = list(ctx.b.while_(start, test_block, inner))
        _, views, _ = parts(results, set(self.carried))
        out = self._inside(views, flags(results))
        return [out[k] if k in self.inits else self.args[k] for k in range(len(self.args))]

    def _store(self, k: int) -> Value:
        """The initial value with room for the most that it becomes."""
        ctx, v = self.ctx, self.start[k]
        if k not in self.changed or k in self.only_read:
            return v
        room = [Dim.of(0)] * v.rank
        for e in self.extents:
            for m, axis in e.members:
                if m == k:
                    assert e.room is not None
                    room[axis] = e.room - v.dims[axis]
        none = [0] * v.rank
        return ctx.b.pad(v, ctx.scalar(0, v.dtype), none, room, none) if any(d != 0 for d in room) else v

    def _bound(self, scalar: Value, e: _Extent) -> Dim:
        d = self.ctx.fresh_dim(scalar)
        if e.most is not None:
            self.ctx.env.set_range(d, 0, self.ctx.env.bounds(e.most)[1])
            self.ctx.env.set_range(e.most - d, 0)
            if e.room is not None:
                self.ctx.env.set_range(e.room - d, 0)
            self.ctx.env.set_range(d - e.init, None, self.ctx.env.bounds(e.most - e.init)[1])
        return d


def _arguments(body: FunctionBody) -> set[int]:
    """The arguments that a body reads."""
    read = [ref for node in body.nodes for ref in node.inputs]
    return {port for name, port in [*read, *body.returns] if not name}
