"""Phase 8: the host program as LLVM text: segments, bodies, `prepare` and the query function.

A *body* runs the steps of one function (the uniform or the general version of a cluster, or one prepared entry): it evaluates
dims, asks for the arena, launches kernels, tests checks, sends outputs. On the path there is no allocation, no lock and no look-up beyond
the calls of the RAL table.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from disc_tf.buffers.bufferize import byte_size
from disc_tf.buffers.types import Buffer, Buffers, OutputPlan, Place, Step, TempLike
from disc_tf.codegen.dims import DimEmitter
from disc_tf.codegen.host_scalar import HostScalars
from disc_tf.codegen.kernel import Guard, Kernel, LibraryCall, Temp, Variant
from disc_tf.codegen.launch_frame import LaunchFrame
from disc_tf.codegen.llvm import (
    F64,
    I1,
    I8,
    I32,
    I64,
    NULL,
    PTR,
    VOID,
    FnBuilder,
    ModuleText,
    Ty,
    V,
    int_ty,
    vec,
)
from disc_tf.fusion.types import PrepareEntry
from disc_tf.ir.core import Function, Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import TensorType

if TYPE_CHECKING:
    from disc_tf.codegen.host_regions import RegionCode

#: byte offsets of the functions in `disc_api` (runtime/ral/include/disc_ral_abi.h)
API = {
    name: 8 + 8 * i
    for i, name in enumerate(
        ["recv_input", "alloc_output", "alias_output", "send_output", "arena", "parallel_for", "dispatch", "fail", "prepared",
         "prepare_alloc", "error_cell"]
    )
}
INVALID_ARGUMENT = 3
RESOURCE_EXHAUSTED = 8
INTERNAL = 13
#: sizes from here on are refused: far above any memory, far below the wrap of i64
_MAX_BYTES = float(1 << 61)
_ICMP = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}


@dataclasses.dataclass(frozen=True)
class Check:
    """A row of the artefact's check table."""

    code: int
    message: str
    node: str


class CheckTable:
    """Check ids in program order; equal rows share an id."""

    def __init__(self) -> None:
        self.rows: list[Check] = []
        self._ids: dict[Check, int] = {}

    def id_of(self, check: Check) -> int:
        if check not in self._ids:
            self._ids[check] = len(self.rows)
            self.rows.append(check)
        return self._ids[check]

    def id_of_op(self, op: Op) -> int:
        return self.id_of(Check(int(op.attrs["code"]), str(op.attrs["message"]), str(op.attrs.get("node", ""))))


class RunEmitter:
    """What every function of the host program shares: the RAL table, failing, dims of arguments."""

    def __init__(self, name: str, params: Sequence[tuple[str, Ty]], attrs: str = "") -> None:
        self.b = FnBuilder(name, params, I32, linkage="internal", attrs=attrs)
        self.ctx, self.api = self.b.params[:2]
        self.symbols: dict[str, V] = {}
        self.inputs: dict[int, tuple[V, V]] = {}
        self.dims = DimEmitter(self.b, self.symbols)

    def call(self, name: str, ret: Ty, *args: V) -> V:
        b = self.b
        fn = b.load(PTR, b.gep(self.api, API[name], I8), invariant=True)
        out = b.call_ptr(fn, ret, [self.ctx, *args])
        return out if out is not None else self.ctx

    def fail(self, code: int, check_id: int) -> None:
        """Record the failure and leave the function."""
        self.fail_with(code, self.b.const(check_id, I32))

    def fail_with(self, code: int, check_id: V) -> None:
        self.call("fail", VOID, self.b.const(code, I32), check_id)
        self.b.ret(self.b.const(code or INTERNAL, I32))

    def require(self, ok: V, code: int, check_id: int) -> None:
        """Go on only if ``ok``; else fail with the row of the check table (-1: no row)."""
        if ok.const is not None and ok.const:
            return
        self.b.if_then(self.b.not_(ok), lambda: self.fail(code, check_id))

    def require_ptr(self, p: V) -> V:
        """Leave the function if ``p`` is null (the RAL has recorded why)."""
        b = self.b
        b.if_then(b.icmp("eq", p, NULL), lambda: b.ret(b.const(INTERNAL, I32)))
        return p

    def require_zero(self, status: V) -> None:
        b = self.b
        b.if_then(b.icmp("ne", status, 0), lambda: b.ret(status))

    def input_number(self, index: int) -> V:
        return self.b.const(index, I32)

    def input(self, index: int) -> tuple[V, V]:
        """(data, dims) pointers of input ``index``."""
        if index not in self.inputs:
            b = self.b
            ref = self.require_ptr(self.call("recv_input", PTR, self.input_number(index)))
            self.inputs[index] = (b.load(PTR, ref), b.load(PTR, b.gep(ref, 16, I8)))
        return self.inputs[index]

    def bind_argument(self, value: Value, dims: V) -> None:
        """Bind the symbols that the argument's dims are (each a plain symbol; compound dims are checked elsewhere)."""
        for axis, d in enumerate(value.dims):
            if d.symbol and d.symbol not in self.symbols:
                self.symbols[d.symbol] = self.b.load(I64, self.b.gep(dims, axis, I64), invariant=True)

    def i64_array(self, array: V, values: Sequence[V]) -> V:
        for i, v in enumerate(values):
            self.b.store(v, self.b.gep(array, i, I64), 8)
        return array


@dataclasses.dataclass
class Launch:
    """A step with its code: the variants of the fusion, or none for views and host arithmetic."""

    step: Step
    variants: Sequence[Variant] = ()
    #: of a loop or branch: its regions (`host_regions`)
    regions: Sequence[RegionCode] = ()


@dataclasses.dataclass(frozen=True)
class Kept:
    """A result that is not sent: a later segment reads it. It lies in an arena slot of its own, so it lives until the run ends."""

    number: int


#: arena slot of the first kept value: above those of any body
_KEPT_SLOTS = 1 << 20


class BodyEmitter(RunEmitter):
    """Emits one body. ``arg_index[i]`` is the RAL input of parameter i (-1: it is none). ``results``: for each result of the function the
    program's result that it is, or the kept value (None: they are the program's results in order).

    prepare: the body makes a prepared entry. It is told at run time which one, and which RAL input each of its own inputs is, so that
    entries of equal structure share it: ``i32 name(ctx, api, i32 number, i32 input0, ...)``.
    """

    def __init__(
        self,
        name: str,
        fn: Function,
        launches: Sequence[Launch],
        buffers: Buffers,
        arg_index: Sequence[int],
        checks: CheckTable,
        *,
        prepare: bool = False,
        first_arena_slot: int = 0,
        pooled_only: bool = False,
        results: Sequence[int | Kept] | None = None,
    ) -> None:
        told = [("number", I32), *((f"input{i}", I32) for i in range(len(arg_index)))] if prepare else []
        super().__init__(name, [("ctx", PTR), ("api", PTR), *told])
        self.fn = fn
        self.launches = launches
        self.buffers = buffers
        self.arg_index = arg_index
        self.checks = checks
        self.prepare = prepare
        self.first_arena_slot = first_arena_slot
        self.pooled_only = pooled_only
        self.results = results
        self.pointers: dict[Buffer, V] = {}
        self.slot_offsets: dict[int, tuple[int, V]] = {}
        self.arena_base: dict[int, V] = {}
        self.scalars = HostScalars(self.b, self.dims, self._load_scalar)
        self.prepared_buffers: dict[int, Buffer] = {}
        self.epoch = 0
        #: functions beside this one that it launches (`host_beside`)
        self.beside: list[FnBuilder] = []
        #: the next arena slot that is free for a region
        self.slots = [first_arena_slot + 1 + sum(op.name == "disc.bind_dim" for op in fn.body.ops)]

    def input_number(self, index: int) -> V:
        return self.b.params[3 + index] if self.prepare else super().input_number(index)

    # -- memory -----------------------------------------------------------------------------------------------

    def _open_arena(self, epoch: int) -> None:
        """Allocate the slots of ``epoch``: their sizes can be evaluated now."""
        b, plan = self.b, self.buffers.memory
        slots = [k for k, e in enumerate(plan.epochs) if e == epoch]
        if not slots:
            return
        offset, bound = b.i64(0), b.const(0.0, F64)
        for k in slots:
            self.slot_offsets[k] = (epoch, offset)
            size = b.smax(self.dims.i64(plan.slots[k]), 0)
            offset = b.add(offset, b.and_(b.add(size, 63), -64))
            bound = b.fadd(bound, self.dims.f64(plan.slots[k]))
        fits = b.fcmp("olt", bound, b.const(_MAX_BYTES, F64))
        size = b.select(fits, offset, b.i64(-1))
        base = self.call("arena", PTR, b.const(self.first_arena_slot + epoch, I32), size)
        self.arena_base[epoch] = self.require_ptr(base)

    def pointer(self, place: Place) -> V:
        """The address of a place. Output memory is asked for at first use."""
        b, buffer = self.b, place.buffer
        if buffer not in self.pointers:
            self.pointers[buffer] = self._buffer_pointer(buffer)
        return b.gep(self.pointers[buffer], self.dims.i64(place.offset), I8)

    def _buffer_pointer(self, buffer: Buffer) -> V:
        b = self.b
        if buffer.kind == "arg":
            return self.input(self.arg_index[buffer.index])[0]
        if buffer.kind == "prepared":
            return self.require_ptr(self.call("prepared", PTR, b.const(buffer.index, I32)))
        if buffer.kind == "kept":
            return self._kept(buffer.index, buffer.bytes)
        if buffer.kind == "output":
            return self._alloc_output(buffer.index, self.buffers.outputs[buffer.index].value)
        if buffer.kind == "constant":
            return V(f"@{constant_symbol(buffer)}", PTR)
        slot = self.buffers.memory.slot_of.get(buffer)
        if slot is None:
            raise ValueError(f"{buffer!r} has no slot: it is never used")
        epoch, offset = self.slot_offsets[slot]
        return b.gep(self.arena_base[epoch], offset, I8)

    def _alloc_output(self, index: int, value: Value) -> V:
        b = self.b
        if self.prepare:
            size = self.dims.i64(byte_size(value))
            return self.require_ptr(self.call("prepare_alloc", PTR, b.params[2], size))
        result = self._result(index)
        if isinstance(result, Kept):
            return self._kept(result.number, byte_size(value))
        dims = self._dims_array(value)
        return self.require_ptr(
            self.call("alloc_output", PTR, b.const(result, I32), b.const(value.rank, I32), dims)
        )

    def _result(self, index: int) -> int | Kept:
        """What result ``index`` of the function is."""
        return index if self.results is None else self.results[index]

    def _kept(self, number: int, size: Dim) -> V:
        """The memory of a kept value: that of the segment that makes it and of those that read it, since they ask for the same size."""
        b = self.b
        fits = b.fcmp("olt", self.dims.f64(size), b.const(_MAX_BYTES, F64))
        bytes_ = b.select(fits, b.smax(self.dims.i64(size), 0), b.i64(-1))
        return self.require_ptr(self.call("arena", PTR, b.const(_KEPT_SLOTS + number, I32), bytes_))

    def _dims_array(self, value: Value) -> V:
        return self.i64_array(self.dims_frame, [self.dims.i64(d) for d in value.dims])

    def _load_scalar(self, v: Value) -> V:
        """Read a rank-0 (or one-element) value from memory."""
        ty = I8 if v.dtype.is_bool else int_ty(v.dtype.bits)
        x = self.b.load(ty, self.pointer(self.buffers.places[v]))
        return self.b.icmp("ne", x, 0) if v.dtype.is_bool else x

    # -- steps ------------------------------------------------------------------------------------------------

    def emit(self) -> FnBuilder:
        b = self.b
        for i, value in enumerate(self.fn.params):
            index = self.arg_index[i]
            if index < 0 or not isinstance(value.type, TensorType):
                continue
            if any(d.symbol and d.symbol not in self.symbols for d in value.dims):
                self.bind_argument(value, self.input(index)[1])
        most_rank = max((o.value.rank for o in self.buffers.outputs), default=0)
        self.frame = LaunchFrame.of(b, list(kernels_of(self.launches)))
        self.dims_frame = b.alloca(I64, max(most_rank, 1), 16)
        self.frame.report_to(self.call("error_cell", PTR))
        self._open_arena(0)
        ready = self._ready()
        for index, launch in enumerate(self.launches):
            self._emit_step(index, launch)
            self._emit_outputs([p for p in self.buffers.outputs if ready[p.index] == index])
        self._emit_outputs([p for p in self.buffers.outputs if ready[p.index] == len(self.launches)])
        b.ret(b.const(0, I32))
        return b

    def _ready(self) -> dict[int, int]:
        """Result -> the step after which it can leave: all of it is there, and every check before it in the program has passed. The number
        of steps (the end) where nothing would be gained."""
        end = len(self.launches)
        if self.prepare:
            return {p.index: end for p in self.buffers.outputs}
        last_kernel = max((i for i, x in enumerate(self.launches) if x.variants or x.regions), default=-1)
        position = {op: i for i, op in enumerate(self.fn.body.ops)}
        checks: list[tuple[int, int]] = []  # (position in the program, step)
        written: dict[Buffer, int] = {}
        bound: dict[str, int] = {}
        for i, x in enumerate(self.launches):
            fusion = x.step.fusion
            at = i + 1 if self._waits(i) else i
            for op in fusion.ops:
                if op.name == "disc.check" or (op.regions and x.regions):
                    checks.append((position[op], at))
                elif op.name == "disc.bind_dim":
                    bound[op.attrs["symbol"]] = at
            if fusion.kind not in ("view", "constant"):
                for v in fusion.outputs:
                    if v in self.buffers.places:
                        written[self.buffers.places[v].buffer] = at
        out = {}
        for p in self.buffers.outputs:
            place = p.source or self.buffers.places[p.value]
            made = written.get(place.buffer, end if place.buffer.kind in ("arena", "output") else -1)
            before = position[p.value.op] if p.value.op is not None else -1
            symbols = {s for d in (*p.value.dims, place.offset, place.buffer.bytes) for s in d.symbols()}
            at = max([made, *(bound.get(s, -1) for s in symbols), *(step for where, step in checks if where < before)])
            out[p.index] = at if 0 <= at < last_kernel else end
        return out

    def _emit_step(self, index: int, launch: Launch) -> None:
        fusion = launch.step.fusion
        if fusion.kind in ("view", "constant"):
            return
        if fusion.kind == "host":
            for op in fusion.ops:
                self._emit_host_op(op)
            for v in fusion.outputs:
                if isinstance(v.type, TensorType) and v.uses and self._needed_in_memory(v):
                    self._store_scalar(v)
            return
        if launch.regions:
            self._emit_regions(index, launch)
            return
        if fusion.kind == "update":
            self.emit_update(launch)
            return
        if not launch.variants:
            raise ValueError(f"no code for {fusion.kind} fusion of {fusion.nodes}")
        temps = dict(zip(launch.step.temps, self.buffers.temps.get(index, ()), strict=True))
        plans = []
        for variant in launch.variants:
            # everything that branches share is computed before the branch
            plans.append([self._prepare_launch(k, temps) for k in variant.kernels])
        self._choose(launch.variants, plans)

    def emit_update(self, launch: Launch) -> None:
        raise ValueError("an update in place outside of a loop")

    def _waits(self, index: int) -> bool:
        """Whether the step is a loop that the next one runs beside: both are emitted then."""
        return index + 1 < len(self.launches) and bool(self.launches[index + 1].step.fusion.attrs.get("beside"))

    def _emit_regions(self, index: int, launch: Launch) -> None:
        from disc_tf.codegen.host_beside import emit_beside
        from disc_tf.codegen.host_regions import RegionLaunch, emit_region

        assert isinstance(launch, RegionLaunch)
        if launch.step.fusion.attrs.get("beside"):
            first = self.launches[index - 1]
            assert isinstance(first, RegionLaunch)
            emit_beside(self, index, first, launch)
        elif not self._waits(index):
            emit_region(self, index, launch)

    def _choose(self, variants: Sequence[Variant], plans: list[list[LaunchArgs]]) -> None:
        first, rest = variants[0], variants[1:]

        def run_first() -> None:
            for args in plans[0]:
                self._launch(args)

        if first.guard is None or not rest:
            run_first()
            return
        self.b.if_else(self.guard(first.guard), run_first, lambda: self._choose(rest, plans[1:]))

    def guard(self, guard: Guard) -> V:
        ok = self.b.const(1, I1)
        for x, op, y in guard.terms:
            ok = self.b.and_(ok, self.b.icmp(_ICMP[op], self.dims.i64(x), self.dims.i64(y)))
        return ok

    def _prepare_launch(self, kernel: Kernel | LibraryCall, temps: Mapping[TempLike, Buffer]) -> LaunchArgs:
        pointers = [self.pointer(self._place(x, temps)) for x in kernel.buffers]
        scalars = [self.dims.i64(d) for d in kernel.scalars]
        if isinstance(kernel, LibraryCall):
            return LaunchArgs(kernel, pointers, scalars)
        sizes = [self.dims.i64(d) for d in (kernel.tasks, kernel.grain, kernel.scratch)]
        return LaunchArgs(kernel, pointers, scalars, *sizes)

    def _place(self, x: Value | Temp | PrepareEntry, temps: Mapping[TempLike, Buffer]) -> Place:
        if isinstance(x, Temp):
            return Place(temps[x])
        if isinstance(x, PrepareEntry):
            return Place(self._prepared_buffer(x.index))
        return self.buffers.places[x]

    def _prepared_buffer(self, index: int) -> Buffer:
        if index not in self.prepared_buffers:
            self.prepared_buffers[index] = Buffer("prepared", index, Dim.of(0))
        return self.prepared_buffers[index]

    def _launch(self, args: LaunchArgs) -> None:
        b = self.b
        self.frame.fill(args.pointers, args.scalars)
        if isinstance(args.kernel, LibraryCall):
            name = V(f"@{library_symbol(args.kernel.name)}", PTR)
            self.require_zero(self.call("dispatch", I32, name, self.frame.buffers, self.frame.scalars))
            return
        assert args.tasks is not None and args.grain is not None and args.scratch is not None
        tasks, grain, scratch = args.tasks, args.grain, args.scratch
        fn = V(f"@{args.kernel.symbol}", PTR)

        def pooled() -> None:
            self.require_zero(self.call("parallel_for", I32, fn, self.frame.args, tasks, grain, scratch))

        if scratch.const == 0 and not self.pooled_only:
            small = b.icmp("sle", tasks, grain)

            def direct() -> None:
                b.call_ptr(fn, VOID, [self.frame.args, b.i64(0), tasks, NULL])

            b.if_else(small, direct, pooled)
        else:
            pooled()

    def _emit_host_op(self, op: Op) -> None:
        if op.name in ("disc.create_token", "disc.after_all"):
            return
        if op.name == "disc.check":
            ok = self.scalars.value(op.operands[0])
            self.require(ok, int(op.attrs["code"]), self.checks.id_of_op(op))
        elif op.name == "disc.bind_dim":
            self.symbols[op.attrs["symbol"]] = self.scalars.as_i64(op.operands[0])
            self.epoch += 1
            self._open_arena(self.epoch)
        else:
            self.scalars.compute(op)

    def _needed_in_memory(self, v: Value) -> bool:
        place = self.buffers.places.get(v)
        if place is None:
            return False
        return place.buffer.kind == "output" or place.buffer in self.buffers.memory.slot_of

    def _store_scalar(self, v: Value) -> None:
        x = self.scalars.value(v)
        self.b.store(self.b.zext(x, I8) if v.dtype.is_bool else x, self.pointer(self.buffers.places[v]))

    # -- outputs ----------------------------------------------------------------------------------------------

    def _emit_outputs(self, plans: Sequence[OutputPlan]) -> None:
        """Bring results to where they go, then send them."""
        b = self.b
        for plan in plans:
            result = self._result(plan.index)
            if plan.how == "alias" and not self.prepare and not isinstance(result, Kept):
                index = b.const(result, I32)
                dims = self._dims_array(plan.value)
                rank = b.const(plan.value.rank, I32)
                arg = b.const(self.arg_index[plan.arg], I32)
                self.require_zero(self.call("alias_output", I32, index, arg, rank, dims))
            elif plan.how == "direct":
                place = self.buffers.places[plan.value]
                if place.buffer not in self.pointers:  # zero-sized and never written
                    self.pointer(place)
            else:
                source = plan.source or self.buffers.places[plan.value]
                target = self._alloc_output(plan.index, plan.value)
                emit_copy(b, target, self.pointer(source), self.dims.i64(byte_size(plan.value)))
        for plan in plans if not self.prepare else ():
            if not isinstance(result := self._result(plan.index), Kept):
                self.require_zero(self.call("send_output", I32, b.const(result, I32)))


def kernels_of(launches: Sequence[Launch]) -> Iterator[Kernel | LibraryCall]:
    for launch in launches:
        yield from (k for v in launch.variants for k in v.kernels)
        for region in launch.regions:
            yield from kernels_of(region.launches)


@dataclasses.dataclass
class LaunchArgs:
    """A kernel's evaluated arguments."""

    kernel: Kernel | LibraryCall
    pointers: list[V]
    scalars: list[V]
    tasks: V | None = None
    grain: V | None = None
    scratch: V | None = None


def emit_copy(b: FnBuilder, target: V, source: V, size: V) -> None:
    """Copy ``size`` bytes (no libc call may appear in an executable)."""
    block = vec(I8, 32)
    whole = b.and_(size, -32)
    b.loop(0, whole, 32, [], lambda i, _: b.store(b.load(block, b.gep(source, i, I8), 1), b.gep(target, i, I8), 1))
    b.loop(whole, size, 1, [], lambda i, _: b.store(b.load(I8, b.gep(source, i, I8), 1), b.gep(target, i, I8), 1))


def constant_symbol(buffer: Buffer) -> str:
    assert buffer.content is not None
    digest = hashlib.sha256(buffer.content.tobytes() + buffer.content.dtype.str.encode()).hexdigest()[:16]
    return f"const_{digest}"


def library_symbol(name: str) -> str:
    return "lib_" + "".join(c if c.isalnum() else "_" for c in name)


def add_data(module: ModuleText, symbol: str, data: bytes) -> None:
    """A private constant."""
    text = "".join(f"\\{x:02X}" for x in data)
    module.add_global(
        symbol, f'@{symbol} = private unnamed_addr constant [{len(data)} x i8] c"{text}", align 64'
    )
