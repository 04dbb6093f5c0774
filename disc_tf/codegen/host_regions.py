"""Loops and branches in the host program: the steps of a region, launched from the same function as those around it.

A carried value has two buffers that change places with each iteration: the body reads one and writes the other; the initial value is read
where it lies. A value that the body updates in place lies in the loop's result from the start. Nothing is allocated in an iteration but
what depends on a dim that is bound in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from disc_tf.buffers.bufferize import byte_size
from disc_tf.buffers.types import Buffer, Buffers, Place, Step, TempLike
from disc_tf.codegen.dims import DimEmitter
from disc_tf.codegen.host import BodyEmitter, Launch, emit_copy
from disc_tf.codegen.host_scalar import HostScalars
from disc_tf.codegen.kernel import Temp
from disc_tf.codegen.llvm import I8, I64, FnBuilder, Ty, V, int_ty
from disc_tf.fusion.outline import RegionFunction
from disc_tf.fusion.types import Fusion, PrepareEntry
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim, product


@dataclasses.dataclass(eq=False)
class RegionCode:
    """A region with its code and the places of its values."""

    region: RegionFunction
    launches: list[Launch]
    buffers: Buffers

    def reads(self) -> dict[Value, None]:
        """The values whose address the region's code may ask for."""
        return dict.fromkeys([*self.reads_of(self.launches), *self.region.function.results])

    @staticmethod
    def reads_of(launches: Sequence[Launch]) -> dict[Value, None]:
        """The values that the code of these steps reads or writes in memory, in order."""
        out: dict[Value, None] = {}
        for launch in launches:
            fusion = launch.step.fusion
            if fusion.kind in ("view", "host", "update"):
                out.update(dict.fromkeys(fusion.inputs))
            if isinstance(launch, RegionLaunch):
                out.update(dict.fromkeys(launch.call.operands))
                for inner in launch.regions:
                    used, own = inner.reads(), inner.region.own
                    params = inner.region.function.params[own:]
                    out.update((c, None) for p, c in zip(params, inner.region.captures, strict=True) if p in used)
            for variant in launch.variants:
                for k in variant.kernels:
                    out.update((b, None) for b in k.buffers if isinstance(b, Value))
        return out

    def prepared(self) -> Iterator[int]:
        """The prepared entries that the region's code reads, inner regions included."""
        for launch in self.launches:
            for variant in launch.variants:
                for k in variant.kernels:
                    yield from (b.index for b in k.buffers if isinstance(b, PrepareEntry))
            for inner in launch.regions:
                yield from inner.prepared()

    def epochs(self) -> int:
        return 1 + sum(op.name == "disc.bind_dim" for x in self.launches if x.step.fusion.kind == "host" for op in x.step.fusion.ops)


@dataclasses.dataclass
class RegionLaunch(Launch):
    """A ``while`` or ``case``. ``spare``: carried value -> its second buffer; ``unread``: result that nobody reads -> its buffer."""

    spare: dict[int, Temp] = dataclasses.field(default_factory=dict)
    unread: dict[int, Temp] = dataclasses.field(default_factory=dict)

    @property
    def call(self) -> Op:
        return self.step.fusion.attrs["call"]


def region_launch(fusion: Fusion, regions: Sequence[RegionCode]) -> RegionLaunch:
    """The step of a ``while`` or ``case`` fusion. ``ValueError`` for a loop that changes the dims of a carried value."""
    op: Op = fusion.attrs["call"]
    made = set(fusion.outputs)
    unread = {k: Temp(f"unread{k}", byte_size(r)) for k, r in enumerate(op.results) if r not in made}
    spare: dict[int, Temp] = {}
    if op.name == "while":
        body = regions[1].region
        for k, (v, p) in enumerate(zip(op.operands, body.function.params, strict=False)):
            same = body.function.env.is_equal
            if any(same(a, b) is not True or same(b, c) is not True for a, b, c in zip(v.dims, p.dims, op.results[k].dims, strict=True)):
                raise ValueError(f"a loop changes the dims of a carried value from {v.type} (nodes {', '.join(fusion.nodes[:3])})")
            if k not in body.in_place:
                spare[k] = Temp(f"spare{k}", byte_size(p))
    return RegionLaunch(Step(fusion, [*spare.values(), *unread.values()]), (), list(regions), spare, unread)


class RegionEmitter(BodyEmitter):
    """Emits a region into the function of ``outer``. Made before the loop or branch is entered, run inside it."""

    def __init__(self, outer: BodyEmitter, code: RegionCode) -> None:
        # Not `BodyEmitter.__init__`, which begins a function of its own.
        self.outer = outer
        self.b, self.ctx, self.api = outer.b, outer.ctx, outer.api
        self.symbols = dict(outer.symbols)
        self.inputs = dict(outer.inputs)
        self.dims = DimEmitter(self.b, self.symbols)
        self.fn = code.region.function
        self.launches = code.launches
        self.buffers = code.buffers
        self.arg_index = outer.arg_index
        self.checks, self.prepare, self.pooled_only = outer.checks, outer.prepare, outer.pooled_only
        self.slots = outer.slots
        self.first_arena_slot = self.slots[0]
        self.slots[0] += code.epochs()
        self.slot_offsets = {}
        self.arena_base = {}
        self.scalars = HostScalars(self.b, self.dims, self._load_scalar)
        self.epoch = 0
        self.frame, self.dims_frame = outer.frame, outer.dims_frame
        self.region = code.region
        for index in code.prepared():
            outer.pointer(Place(outer._prepared_buffer(index)))
        self.prepared_buffers = dict(outer.prepared_buffers)
        self.pointers = dict(outer.pointers)
        self.own_pointers: list[V] = []
        self.out_pointers: list[V] = []
        self.captured = self._captures(code)
        self._open_arena(0)

    def _captures(self, code: RegionCode) -> dict[int, V]:
        """Addresses of the captured values that the region reads, and scalars that the host knows already."""
        read, out = code.reads(), {}
        own = self.region.own
        for i, (p, v) in enumerate(zip(self.fn.params[own:], self.region.captures, strict=True)):
            if v in self.outer.scalars.known:
                self.scalars.known[p] = self.outer.scalars.known[v]
            place = self.buffers.places[p]
            if place.buffer.kind == "prepared":
                index = place.buffer.index
                self.pointers[place.buffer] = self.outer.pointer(Place(self.outer._prepared_buffer(index)))
            elif p in read:
                out[own + i] = self.outer.pointer(self.outer.buffers.places[v])
        return out

    def _buffer_pointer(self, buffer: Buffer) -> V:
        if buffer.kind == "arg":
            return self.own_pointers[buffer.index] if buffer.index < self.region.own else self.captured[buffer.index]
        if buffer.kind == "output":
            return self.out_pointers[buffer.index]
        return super()._buffer_pointer(buffer)

    def run(self, params: Sequence[V], results: Sequence[V]) -> None:
        """The region's steps; its parameters lie at ``params``, its results are stored at ``results``."""
        self.own_pointers, self.out_pointers = list(params), list(results)
        for index, launch in enumerate(self.launches):
            self._emit_step(index, launch)
        for plan in self.buffers.outputs:
            target = self.out_pointers[plan.index]
            if plan.how == "alias":
                source = self._buffer_pointer(Buffer("arg", plan.arg, Dim.of(0)))
                if source.name == target.name:
                    continue  # changed in place
            elif plan.how == "copy":
                source = self.pointer(plan.source or self.buffers.places[plan.value])
            else:
                continue
            copy_value(self, target, source, plan.value)

    def emit_update(self, launch: Launch) -> None:
        """``carried[..., start] = update`` where the carried value lies."""
        b = self.b
        op = launch.step.fusion.ops[-1]
        carried, update, start = op.operands
        axis = op.attrs["axis"]
        room = self.dims.i64(carried.dims[axis] - update.dims[axis])
        at = b.smax(b.smin(self.scalars.as_i64(start), room), 0)
        row = _row_bytes(carried, axis)
        target = b.gep(self.pointer(self.buffers.places[carried]), b.mul(at, self.dims.i64(row)), I8)
        source = self.pointer(self.buffers.places[update])
        outer = product(carried.dims[:axis])

        def copy() -> None:
            if outer == 1:
                copy_value(self, target, source, update)
                return
            step, chunk = self.dims.i64(row * carried.dims[axis]), self.dims.i64(row * update.dims[axis])

            def slice_of(i: V, _: Sequence[V]) -> None:
                emit_copy(b, b.gep(target, b.mul(i, step), I8), b.gep(source, b.mul(i, chunk), I8), chunk)

            b.loop(0, self.dims.i64(outer), 1, [], slice_of)

        # An update that is larger than what it goes into is refused by an earlier check: nothing may be written then.
        b.if_then(b.icmp("sge", room, 0), copy)


def _row_bytes(v: Value, axis: int) -> Dim:
    return product(v.dims[axis + 1 :]) * v.dtype.bytes


def copy_value(e: BodyEmitter, target: V, source: V, v: Value) -> None:
    if v.rank == 0:
        e.b.store(e.b.load(_cell(v), source), target)
    else:
        emit_copy(e.b, target, source, e.dims.i64(byte_size(v)))


def _cell(v: Value) -> Ty:
    return int_ty(8 * v.dtype.bytes)


def places_of(e: BodyEmitter, index: int, launch: RegionLaunch) -> tuple[dict[TempLike, Buffer], list[V]]:
    """The step's temporaries, and the addresses of its results."""
    temps = dict(zip(launch.step.temps, e.buffers.temps.get(index, ()), strict=True))
    unread = {k: Place(temps[t]) for k, t in launch.unread.items()}
    return temps, [e.pointer(unread.get(k) or e.buffers.places[r]) for k, r in enumerate(launch.call.results)]


def emit_region(e: BodyEmitter, index: int, launch: RegionLaunch) -> None:
    """The code of a ``while`` or ``case`` step."""
    temps, results = places_of(e, index, launch)
    if launch.call.name == "case":
        _emit_case(e, launch, results)
    else:
        while_code(e, launch, results, temps).run(e.b)


def _emit_case(e: BodyEmitter, launch: RegionLaunch, results: list[V]) -> None:
    number = e.scalars.value(launch.call.operands[0])
    branches = [RegionEmitter(e, code) for code in launch.regions]
    if len(branches) == 1:
        branches[0].run((), results)
        return
    cases = {i: (lambda r=r: r.run((), results)) for i, r in enumerate(branches[:-1])}
    e.b.switch(number, cases, lambda: branches[-1].run((), results))


@dataclasses.dataclass
class WhileCode:
    """A loop that is about to be entered: its regions, and where the carried values lie at first, in the end and meanwhile."""

    op: Op
    cond: RegionEmitter
    body: RegionEmitter
    inits: list[V]
    results: list[V]
    spare: dict[int, V]

    def run(self, b: FnBuilder) -> None:
        """The loop, in the function of ``b``."""
        cond, body, results, op = self.cond, self.body, self.results, self.op
        for k in body.region.in_place:
            copy_value(body, results[k], self.inits[k], op.operands[k])
        moving = sorted(self.spare)
        answer = b.alloca(I64, 1, 16)

        def places(carried: list[V]) -> list[V]:
            """Where each carried value lies."""
            out = list(results)
            for i, k in enumerate(moving):
                out[k] = carried[3 * i]
            return out

        def test(carried: list[V]) -> V:
            cond.run(places(carried), [answer])
            return cond.scalars.value(cond.fn.results[0])

        def step(carried: list[V]) -> list[V]:
            now, after = places(carried), list(results)
            for i, k in enumerate(moving):
                after[k] = carried[3 * i + 1]
            body.run(now, after)
            return [carried[3 * i + j] for i in range(len(moving)) for j in (1, 2, 1)]

        last = b.while_loop([x for k in moving for x in (self.inits[k], results[k], self.spare[k])], test, step)
        for i, k in enumerate(moving):
            elsewhere = b.icmp("ne", last[3 * i], results[k])

            def bring(k: int = k, source: V = last[3 * i]) -> None:
                copy_value(body, results[k], source, op.results[k])

            b.if_then(elsewhere, bring)


def while_code(e: BodyEmitter, launch: RegionLaunch, results: list[V], temps: Mapping[TempLike, Buffer]) -> WhileCode:
    """Made at the top level: all that the loop takes from around it is there when it is entered."""
    cond, body = (RegionEmitter(e, code) for code in launch.regions)
    inits = [e.pointer(e.buffers.places[v]) for v in launch.call.operands]
    return WhileCode(launch.call, cond, body, inits, results, {k: e.pointer(Place(temps[t])) for k, t in launch.spare.items()})


__all__ = ["RegionCode", "RegionEmitter", "RegionLaunch", "WhileCode", "emit_region", "region_launch", "while_code"]
