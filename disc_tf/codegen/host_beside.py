"""Two loops at the same time: each a task of one launch, in a function beside the host program that has a kernel's signature.

A task runs its whole loop on one thread and calls its kernels directly, with the scratch of its worker. It asks nothing of the RAL: what
it needs of the host program (addresses, dims, scalars) is handed over as a kernel's buffers and scalars. Where the kernels are large enough
to be shared out themselves, the loops run one after the other. Kernels cut their work by shapes alone: both ways give the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from disc_tf.codegen.dims import DimEmitter
from disc_tf.codegen.host import BodyEmitter, LaunchArgs, kernels_of
from disc_tf.codegen.host_regions import RegionEmitter, RegionLaunch, WhileCode, places_of, while_code
from disc_tf.codegen.host_scalar import HostScalars
from disc_tf.codegen.kernel import Kernel
from disc_tf.codegen.launch_frame import LaunchFrame
from disc_tf.codegen.llvm import I1, I32, I64, NULL, PTR, VOID, FnBuilder, V
from disc_tf.costs import BESIDE_CHUNKS


def emit_beside(e: BodyEmitter, index: int, first: RegionLaunch, second: RegionLaunch) -> None:
    """The code of steps ``index - 1`` and ``index``, loops that do not need each other."""
    pair = [_entered(e, index - 1, first), _entered(e, index, second)]

    def in_turn() -> None:
        for loop in pair:
            loop.run(e.b)

    if e.pooled_only or not all(map(_runs_alone, pair)):
        in_turn()
        return
    b = e.b
    kernels = [k for k in kernels_of([first, second]) if isinstance(k, Kernel)]
    small = b.const(1, I1)
    scratch = b.i64(0)
    for k in kernels:
        small = b.and_(small, b.icmp("sle", e.dims.i64(k.tasks), b.mul(e.dims.i64(k.grain), BESIDE_CHUNKS)))
        scratch = b.smax(scratch, e.dims.i64(k.scratch))
    side = _side(e, pair, kernels)
    e.beside.append(side.b)

    def together() -> None:
        fn = V(f"@{side.b.name}", PTR)
        e.require_zero(e.call("parallel_for", I32, fn, side.hand_over(e), b.i64(len(pair)), b.i64(1), scratch))

    b.if_else(small, together, in_turn)


def _entered(e: BodyEmitter, index: int, launch: RegionLaunch) -> WhileCode:
    temps, results = places_of(e, index, launch)
    return while_code(e, launch, results, temps)


def _runs_alone(loop: WhileCode) -> bool:
    """Whether nothing in the loop calls the RAL (libraries, memory for dims that are bound in it), and all sizes of launches are known
    before it is entered."""
    for emitter in (loop.cond, loop.body):
        known = emitter.symbols.keys()
        if any(epoch > 0 for epoch in emitter.buffers.memory.epochs) or any(x.regions for x in emitter.launches):
            return False
        for k in kernels_of(emitter.launches):
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
        self.frame = LaunchFrame.of(b, kernels)
        self.frame.report_to(b.load(PTR, b.gep(args, 2, I64)))

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

    def hand_over(self, e: BodyEmitter) -> V:
        """The address of what was taken, in a frame of the host program."""
        b = e.b
        frame = LaunchFrame(b, len(self._pointers), len(self._numbers))
        frame.fill(self._pointers, [b.zext(v, I64) if v.ty.bits < 64 else v for v in self._numbers])
        frame.report_to(e.call("error_cell", PTR))
        return frame.args


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
        self.frame = side.frame
        self.dims_frame = NULL  # of outputs: there are none here
        self.prepared_buffers = dict(ready.prepared_buffers)
        self.pointers = {buffer: take(p) for buffer, p in ready.pointers.items() if buffer.kind == "prepared"}
        self.own_pointers, self.out_pointers = [], []
        self.captured = {i: take(p) for i, p in ready.captured.items()}

    def _launch(self, args: LaunchArgs) -> None:
        b = self.b
        assert isinstance(args.kernel, Kernel) and args.tasks is not None
        self.frame.fill(args.pointers, args.scalars)
        b.call_ptr(V(f"@{args.kernel.symbol}", PTR), VOID, [self.frame.args, b.i64(0), args.tasks, self.side.scratch])
