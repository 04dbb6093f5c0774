"""Two loops at the same time: each a task of one launch, in a function beside the host program that has a kernel's signature.

A task runs its whole loop on one thread and calls its kernels directly, with the scratch of its worker. It asks nothing of the RAL: what
it needs of the host program (addresses, dims, scalars) is handed over as a kernel's buffers and scalars. Where the kernels are large enough
shared out themselves, the loops run one after the other. Kernels cut their work by shapes alone: both ways give the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from disc_tf.codegen.dims import DimEmitter
from disc_tf.codegen.host import BodyEmitter, LaunchArgs
from disc_tf.codegen.host_regions import RegionCode, RegionEmitter, RegionLaunch, WhileCode, places_of, while_code
from disc_tf.codegen.host_scalar import HostScalars
from disc_tf.codegen.kernel import Kernel
from disc_tf.codegen.llvm import I1, I32, I64, NULL, PTR, VOID, FnBuilder, V
from disc_tf.ir.dims import Dim

#: parts that a kernel of the loops may be cut into at most: with more of them, threads share the kernels, not the loops
_MOST_CHUNKS = 8


def emit_beside(e: BodyEmitter, index: int, first: RegionLaunch, second: RegionLaunch) -> None:
    """The code of steps ``index - 1`` and ``index``, loops that do not need each other."""
    pair = [_entered(e, index - 1, first), _entered(e, index, second)]

    def in_turn() -> None:
        for loop in pair:
            loop.run(e.b)

    kernels = list(_kernels([*first.regions, *second.regions]))
    if e.pooled_only or not all(map(_runs_alone, pair)):
        in_turn()
        return
    b = e.b
    small = b.const(1, I1)
    scratch = b.i64(0)
    for k in kernels:
        small = b.and_(small, b.icmp("sle", e.dims.i64(k.tasks), b.mul(e.dims.i64(k.grain), _MOST_CHUNKS)))
        scratch = b.smax(scratch, e.dims.i64(k.scratch))
    side = _side(e, pair, kernels)
    e.beside.append(side.b)

    def together() -> None:
        side.hand_over(e)
        fn = V(f"@{side.b.name}", PTR)
        e.require_zero(e.call("parallel_for", I32, fn, side.frame, b.i64(len(pair)), b.i64(1), scratch))

    b.if_else(small, together, in_turn)


def _entered(e: BodyEmitter, index: int, launch: RegionLaunch) -> WhileCode:
    temps, results = places_of(e, index, launch)
    return while_code(e, launch, results, temps)


def _kernels(regions: Sequence[RegionCode]) -> Iterator[Kernel]:
    for region in regions:
        for launch in region.launches:
            for variant in launch.variants:
                yield from (k for k in variant.kernels if isinstance(k, Kernel))


def _runs_alone(loop: WhileCode) -> bool:
    """Whether nothing in the loop calls the RAL (libraries, memory for dims that are bound in it), and all sizes of launches are known
    before it is entered."""
    for emitter in (loop.cond, loop.body):
        known = emitter.symbols.keys()
        if any(epoch > 0 for epoch in emitter.buffers.memory.epochs) or any(x.regions for x in emitter.launches):
            return False
        for launch in emitter.launches:
            for k in (k for v in launch.variants for k in v.kernels):
                if not isinstance(k, Kernel) or not all(d.symbols() <= known for d in (k.tasks, k.grain, k.scratch)):
                    return False
    return True


class _Side:
    """The function beside the host program, and what it takes along."""

    def __init__(self, e: BodyEmitter, kernels: Sequence[Kernel]) -> None:
        self.b = FnBuilder(
            f"{e.b.name}_beside{len(e.beside)}", [("args", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)], VOID, linkage="internal"
        )
        b = self.b
        args, _, _, self.scratch = b.params
        self._bufs, self._scalars = b.load(PTR, args), b.load(PTR, b.gep(args, 1, I64))
        self._taken: dict[str, V] = {}
        self._pointers: list[V] = []
        self._numbers: list[V] = []
        self.bufs = b.alloca(PTR, max([1, *(len(k.buffers) for k in kernels)]), 16)
        self.scalars = b.alloca(I64, max([1, *(len(k.scalars) for k in kernels)]), 16)
        self.args = b.alloca(I64, 3, 16)
        b.store(self.bufs, self.args, 8)
        b.store(self.scalars, b.gep(self.args, 1, I64), 8)
        b.store(b.load(PTR, b.gep(args, 2, I64)), b.gep(self.args, 2, I64), 8)

    def take(self, v: V) -> V:
        """A value of the host program here. Only before the function branches."""
        if v.const is not None or not v.name.startswith("%"):
            return v
        if v.name not in self._taken:
            b = self.b
            if v.ty is PTR:
                self._pointers.append(v)
                got = b.load(PTR, b.gep(self._bufs, len(self._pointers) - 1, I64))
            else:
                self._numbers.append(v)
                got = b.load(I64, b.gep(self._scalars, len(self._numbers) - 1, I64))
                got = b.trunc(got, v.ty) if v.ty.bits < 64 else got
            self._taken[v.name] = got
        return self._taken[v.name]

    def allocate(self, e: BodyEmitter) -> None:
        """Room in the host program's frame for what is taken."""
        b = e.b
        self._room = b.alloca(PTR, max(len(self._pointers), 1), 16), b.alloca(I64, max(len(self._numbers), 1), 16)
        self.frame = b.alloca(I64, 3, 16)

    def hand_over(self, e: BodyEmitter) -> None:
        b = e.b
        pointers, numbers = self._room
        for i, p in enumerate(self._pointers):
            b.store(p, b.gep(pointers, i, I64), 8)
        e.i64_array(numbers, [b.zext(v, I64) if v.ty.bits < 64 else v for v in self._numbers])
        b.store(pointers, self.frame, 8)
        b.store(numbers, b.gep(self.frame, 1, I64), 8)
        b.store(e.call("error_cell", PTR), b.gep(self.frame, 2, I64), 8)


def _side(e: BodyEmitter, pair: Sequence[WhileCode], kernels: Sequence[Kernel]) -> _Side:
    side = _Side(e, kernels)
    loops = [
        dataclasses.replace(
            loop,
            cond=_Moved(loop.cond, side), body=_Moved(loop.body, side), inits=list(map(side.take, loop.inits)),
            results=list(map(side.take, loop.results)), spare={k: side.take(p) for k, p in loop.spare.items()},
        )
        for loop in pair
    ]  # fmt: skip
    side.allocate(e)
    b = side.b
    _, begin, end, _ = b.params
    cases = {i: (lambda loop=loop: loop.run(b)) for i, loop in enumerate(loops[:-1])}
    b.loop(begin, end, 1, [], lambda t, _: b.switch(t, cases, lambda: loops[-1].run(b)) and None)
    b.ret()
    return side


class _Moved(RegionEmitter):
    """A region that is ready to be emitted into the host program, in the function beside it."""

    def __init__(self, ready: RegionEmitter, side: _Side) -> None:
        # Not `RegionEmitter.__init__`, which asks the host program for what `ready` has already.
        take = side.take
        self.side = side
        self.b = side.b
        self.ctx = self.api = NULL
        self.symbols = {s: take(v) for s, v in ready.symbols.items()}
        self.inputs = {}
        self.dims = DimEmitter(self.b, self.symbols)
        self.fn, self.launches, self.buffers, self.region = ready.fn, ready.launches, ready.buffers, ready.region
        self.arg_index, self.checks, self.prepare, self.pooled_only = ready.arg_index, ready.checks, ready.prepare, False
        self.slots, self.first_arena_slot = ready.slots, ready.first_arena_slot
        self.slot_offsets = {k: (epoch, take(offset)) for k, (epoch, offset) in ready.slot_offsets.items()}
        self.arena_base = {epoch: take(p) for epoch, p in ready.arena_base.items()}
        self.scalars = HostScalars(self.b, self.dims, self._load_scalar)
        self.scalars.known = {v: take(x) for v, x in ready.scalars.known.items()}
        self.epoch = 0
        self.bufs_frame, self.scalars_frame, self.args_frame = side.bufs, side.scalars, side.args
        self.dims_frame = side.scalars
        self.prepared_buffers = dict(ready.prepared_buffers)
        self.pointers = {buffer: take(p) for buffer, p in ready.pointers.items() if buffer.kind == "prepared"}
        self.own_pointers, self.out_pointers = [], []
        self.captured = {i: take(p) for i, p in ready.captured.items()}

    def _launch(self, args: LaunchArgs) -> None:
        b = self.b
        assert isinstance(args.kernel, Kernel) and args.tasks is not None
        for i, p in enumerate(args.pointers):
            b.store(p, b.gep(self.bufs_frame, i, I64), 8)
        self.i64_array(self.scalars_frame, args.scalars)
        scratch = NULL if args.kernel.scratch == Dim.of(0) else self.side.scratch
        b.call_ptr(V(f"@{args.kernel.symbol}", PTR), VOID, [self.args_frame, b.i64(0), args.tasks, scratch])
