"""Plans -> machine code: the kernels and the host program of one executable, for every target.

One LLVM module a target. Equal kernels (same text) are compiled once, whatever layer or body they come from. `prepare` is made of the same
pieces: each prepared entry is a small function with a plan of its own.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import gc
import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence

from disc_tf.budget import Budget, OutOfTime
from disc_tf.buffers.bufferize import bufferize
from disc_tf.buffers.types import Buffers, Step
from disc_tf.codegen.compile import compile_image
from disc_tf.codegen.context import EmitContext, PrepareTable
from disc_tf.codegen.cpu.emit import emit_fusion
from disc_tf.codegen.cpu.pack import emit_pack
from disc_tf.codegen.cpu.target import CpuTarget
from disc_tf.codegen.describe import MemoryUse, memory_use, operations, picked, traffic, weights
from disc_tf.codegen.host import (
    BodyEmitter,
    CheckTable,
    Kept,
    Launch,
    add_data,
    constant_symbol,
    library_symbol,
)
from disc_tf.codegen.host_regions import RegionCode, region_launch
from disc_tf.codegen.images import MAX_ARTIFACT_BYTES, targets_of, within_bounds
from disc_tf.codegen.kernel import Kernel, LibraryCall, Temp, Variant
from disc_tf.codegen.kernel_cache import KernelCache
from disc_tf.codegen.llvm import ModuleText
from disc_tf.codegen.phases import PhaseFailed, ProgramError, phase
from disc_tf.codegen.prepare import PrepareCall, prepare_function, prepare_key
from disc_tf.codegen.segment import emit_dispatcher, emit_query, emit_segment
from disc_tf.fusion.apart import NOTHING, Apart
from disc_tf.fusion.outline import RegionFunction
from disc_tf.fusion.plan import make_plan
from disc_tf.fusion.types import Fusion, Plan
from disc_tf.fusion.views import of_value
from disc_tf.ir.core import Function, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import TensorType
from disc_tf.passes.placement import EFFECTS, can_host
from disc_tf.passes.split import Part
from disc_tf.runtime.artifact import (
    ArgSpec,
    Artifact,
    CheckSpec,
    PreparedSpec,
    ResultSpec,
    SegmentSpec,
    StepSpec,
    TargetCode,
)
from disc_tf.runtime.cpu import features_of
from disc_tf.tuning import Table


@dataclasses.dataclass
class ProgramPart:
    """One segment. uniform, general: plans of the two bodies of its function (general None: there is only one). predicate: dims that must
    be equal for the uniform body. part: how it stands to the others; None for the only one of its program."""

    uniform: Plan
    general: Plan | None = None
    predicate: Sequence[tuple[Dim, Dim]] = ()
    part: Part | None = None

    @property
    def signature(self) -> Function:
        """The function whose parameters say what is known of the arguments without any assumption."""
        return (self.general or self.uniform).function

    def outputs(self) -> list[Value]:
        """The tensors that it sends."""
        tensors = [v for v in self.signature.results if isinstance(v.type, TensorType)]
        return tensors if self.part is None else tensors[: len(self.part.outputs)]


@dataclasses.dataclass
class ProgramInput:
    """What the program builder takes.

    parts: the segments in order. prepare: the function whose i-th result is the i-th ``prepared`` parameter of every part. host_results:
    which results are wanted in host memory. apart: ops that are not fused in ``prepare`` either.
    """

    parts: Sequence[ProgramPart]
    prepare: Function | None = None
    host_results: Sequence[bool] = ()
    name: str = ""
    compiler_version: str = ""
    apart: Apart = NOTHING


@dataclasses.dataclass
class KernelInfo:
    """One launch: symbol, kind of fusion, nodes; for products the floating-point operations (of multiply-adds only).

    ``variants``: the symbols of every variant, ``symbol`` has those of the last. ``traffic``: bytes to move at least, a sum of these;
    ``weights``: those terms that are constants; ``picked``: those that other data pick; ``operations``: lane operations, a sum; ``parts``:
    tasks and grain of every kernel of every variant; ``results``: dtype and dims of what it makes.
    """

    symbol: str
    kind: str
    nodes: list[str]
    flops: Dim | None = None
    variants: tuple[tuple[str, ...], ...] = ()
    traffic: tuple[Dim, ...] = ()
    results: tuple[TensorType, ...] = ()
    weights: tuple[Dim, ...] = ()
    picked: tuple[Dim, ...] = ()
    operations: tuple[Dim, ...] = ()
    parts: tuple[tuple[tuple[Dim, Dim], ...], ...] = ()


@dataclasses.dataclass
class Compiled:
    """The artefact and what reports want to know. ``kernels``, ``memory``: launches and arena of the uniform body of the first target."""

    artifact: Artifact
    kernels: list[KernelInfo]
    arena: str
    times_ms: dict[str, float]
    listings: dict[str, str]
    memory: MemoryUse = dataclasses.field(default_factory=MemoryUse)


class _TargetProgram:
    """The module of one target."""

    def __init__(
        self, source: ProgramInput, target: CpuTarget, profile: bool, verify_cache: bool, budget: Budget
    ) -> None:
        self.source = source
        self.budget = budget
        self.profile = profile
        self.target = target
        self.module = ModuleText()
        self.checks = CheckTable()
        self.table = PrepareTable()
        self.calls: list[PrepareCall] = []  # one per entry of the table
        self._prepare_code: dict[tuple, tuple[str, list[tuple[list[str], list[int]]]]] = {}
        self.kernel_nodes: dict[str, dict[str, None]] = {}
        self.cache = KernelCache(verify_cache)
        self.launches: list[KernelInfo] = []
        self.arena = ""
        self.memory = MemoryUse()
        self._canonical: dict[str, str] = {}
        self._weights: set[Value] = set()  # parameters of bodies and regions that are constants

    # -- kernels ----------------------------------------------------------------------------------------------

    def _add_kernel(self, kernel: Kernel) -> Kernel:
        """Add the definition under a name made of its content, so that equal kernels are one."""
        parts = [kernel.llvm.replace(f"@{kernel.symbol}(", "@KERNEL("), *kernel.helpers.values(), *kernel.globals.values()]
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]
        if digest not in self._canonical:
            symbol = f"{kernel.symbol}_{digest}" if not kernel.symbol.endswith(digest) else kernel.symbol
            self._canonical[digest] = symbol
            text = kernel.llvm.replace(f"define void @{kernel.symbol}(", f"define internal void @{kernel.symbol}(")
            self.module.add_text(symbol, text.replace(f"@{kernel.symbol}(", f"@{symbol}("), kernel.declarations)
            for name, text in kernel.helpers.items():
                self.module.add_text(name, text)
            for name, line in kernel.globals.items():
                self.module.add_global(name, line)
        return dataclasses.replace(kernel, symbol=self._canonical[digest])

    def _variants(self, fusion: Fusion, ctx: EmitContext) -> list[Variant]:
        """The kernels of a fusion, their code in the module."""
        with phase("kernel emission", fusion.ops):
            variants = self.cache.variants(fusion, ctx, self._emit_into_module)
        for variant in variants:
            for k in variant.kernels:
                if isinstance(k, Kernel):
                    self.kernel_nodes.setdefault(k.symbol, {}).update(dict.fromkeys(fusion.nodes))
        return variants

    def _emit_into_module(self, fusion: Fusion, ctx: EmitContext) -> list[Variant]:
        variants = []
        for variant in self._emit(fusion, ctx):
            kernels = []
            for k in variant.kernels:
                if isinstance(k, LibraryCall):
                    symbol = library_symbol(k.name)
                    add_data(self.module, symbol, k.name.encode() + b"\0")
                    kernels.append(k)
                else:
                    kernels.append(self._add_kernel(k))
            variants.append(Variant(variant.guard, tuple(kernels)))
        return variants

    def _emit(self, fusion: Fusion, ctx: EmitContext) -> list[Variant]:
        op = fusion.ops[-1]
        if op.name == "disc.pack":
            return [Variant(None, (emit_pack(op.attrs["view"], op.result, op.attrs["layout"], ctx),))]
        return emit_fusion(fusion, self.target, ctx)

    # -- bodies -----------------------------------------------------------------------------------------------

    def body(
        self, name: str, fn: Function, fusions: Sequence[Fusion], args: Sequence[int], params: Mapping[Value, int],
        *, prepare: bool = False, part: Part | None = None,
    ) -> tuple[Buffers, list[Launch]]:
        """Emit one body; returns its buffers and launches. ``args[i]`` is the RAL input of parameter i, -1 for one that is none."""
        # A function of `prepare` runs once: nothing in it is prepared in turn.
        launches, buffers = self._code(fn, fusions, args, {} if prepare else params, part)
        with phase("host program"):
            emitter = BodyEmitter(
                name, fn, launches, buffers, args, self.checks, prepare=prepare, pooled_only=self.profile,
                results=None if part is None else [*part.outputs, *(Kept(n) for n in part.kept_out)],
            )  # fmt: skip
            self.module.add(emitter.emit())
            for side in emitter.beside:
                self.module.add(side)
        return buffers, launches

    def _code(
        self, fn: Function, fusions: Sequence[Fusion], args: Sequence[int], params: Mapping[Value, int], part: Part | None = None
    ) -> tuple[list[Launch], Buffers]:
        """The kernels of a body or region and the places of its values. ``params``: parameters -> those of main that they are; ``part``: of
        a body, the segment whose it is."""
        ctx = EmitContext(self.target, fn.env, params, self.table)
        self._weights.update(p for p, a in zip(fn.params, fn.args, strict=True) if a.kind in ("const", "variable", "prepared"))
        launches: list[Launch] = []
        for fusion in split_host(fusions):
            self.budget.check(f"code for {self.target.name}")
            if "regions" in fusion.attrs:
                regions = [self._region(r, plan, args, params) for r, plan in fusion.attrs["regions"]]
                launches.append(region_launch(fusion, regions))
                continue
            variants = [] if fusion.kind in ("view", "constant", "host", "update") else self._variants(fusion, ctx)
            temps = dict.fromkeys(b for v in variants for k in v.kernels for b in k.buffers if isinstance(b, Temp))
            launches.append(Launch(Step(fusion, list(temps)), variants))
        prepared = {}
        kept: dict[Value, int] = {}
        if part is not None and part.kept_in:
            kept = dict(zip(fn.params[-len(part.kept_in) :], part.kept_in, strict=True))
        for v in [*RegionCode.reads_of(launches), *fn.results]:
            if v.op is None and v in params and v not in kept and args[params[v]] < 0 and v not in prepared:
                prepared[v] = ctx.prepared(of_value(v), ("plain",)).index
        with phase("buffers"):
            buffers = bufferize(fn, [x.step for x in launches], symbol_epochs(launches), prepared, kept)
        for buffer in buffers.constants:
            assert buffer.content is not None
            add_data(self.module, constant_symbol(buffer), buffer.content.tobytes() or b"\0")  # an address, if empty
        return launches, buffers

    def _region(self, region: RegionFunction, plan: Plan, args: Sequence[int], outer: Mapping[Value, int]) -> RegionCode:
        fn = region.function
        captured = zip(fn.params[region.own :], region.captures, strict=True)
        params = {p: outer[v] for p, v in captured if v in outer and fn.args[p.index].kind != "device"}
        return RegionCode(region, *self._code(fn, plan.fusions, args, params))

    def build(self) -> str:
        """The whole module's text."""
        source = self.source
        arenas = []
        for k, piece in enumerate(source.parts):
            buffers, launches = self._part(k, piece)
            arenas.append(buffers.memory.total)
            self.memory = memory_use(launches, buffers) if k == 0 else self.memory
            self._note(launches)
        self.arena = " | ".join(arenas)
        self.module.add(emit_dispatcher("segment", [(f"segment_{k}", ()) for k in range(len(source.parts))]))
        args = argument_indices(source.parts[0].uniform.function, every=True)
        for k in range(len(self.table.entries)):
            self.calls.append(self._prepare(k, args))
        if self.calls:
            self.module.add(emit_dispatcher("prepare", [(c.symbol, (k, *c.args)) for k, c in enumerate(self.calls)]))
        self.module.add(emit_query(len(self.calls), len(source.parts)))
        return self.module.text()

    def _part(self, k: int, piece: ProgramPart) -> tuple[Buffers, list[Launch]]:
        """The bodies and the entry of segment ``k``; buffers and launches of the uniform body."""
        suffix = f"_{k}" if k else ""
        main = piece.uniform.function
        uniform, general = f"body_uniform{suffix}", None
        found = self.body(uniform, main, piece.uniform.fusions, argument_indices(main), positions(main), part=piece.part)
        if piece.general is not None:
            general = f"body_general{suffix}"
            fn = piece.general.function
            self.body(general, fn, piece.general.fusions, argument_indices(fn), positions(fn), part=piece.part)
        signature = piece.signature
        args = argument_indices(signature)
        if k:  # constants of known shape were looked at by the first
            for i, (info, p) in enumerate(zip(signature.args, signature.params, strict=True)):
                if info.kind in ("const", "variable") and p.tensor.is_static:
                    args[i] = -1
        entry = emit_segment(self.module, f"segment_{k}", signature, args, piece.predicate, uniform, general, self.checks)
        self.module.add(entry)
        return found

    def _note(self, launches: Sequence[Launch]) -> None:
        """What reports tell of launches."""
        for x in with_regions(launches):
            if x.variants:
                variants = tuple(tuple(k.symbol if isinstance(k, Kernel) else k.name for k in v.kernels) for v in x.variants)
                fusion = x.step.fusion
                names = ", ".join(variants[-1])
                made = tuple(v.type for v in fusion.outputs if isinstance(v.type, TensorType))
                info = KernelInfo(names, fusion.kind, list(fusion.nodes), product_flops(fusion), variants, traffic(fusion), made)
                info.weights, info.picked = weights(fusion, self._weights), picked(fusion)
                info.operations = operations(fusion, self.target.width(4))
                info.parts = tuple(tuple((k.tasks, k.grain) for k in v.kernels if isinstance(k, Kernel)) for v in x.variants)
                self.launches.append(info)

    # -- prepare ----------------------------------------------------------------------------------------------

    def _prepare(self, k: int, arg_index: Sequence[int]) -> PrepareCall:
        """The code of entry ``k``; entries that differ in their arguments alone share it."""
        main = self.source.parts[0].uniform.function
        fn, args = prepare_function(main, self.source.prepare, arg_index, self.table.entries[k], self.table.params[k])
        key = prepare_key(fn, self.target)
        number = {op: i for i, op in enumerate(fn.body.ops)}
        if key is None or key not in self._prepare_code:
            name = f"prepare_{k}"
            with phase("fusion planning"):
                plan = make_plan(fn, apart=self.source.apart)
            _, launches = self.body(name, fn, plan.fusions, range(len(args)), positions(fn), prepare=True)
            made = [
                ([kernel.symbol for v in x.variants for kernel in v.kernels if isinstance(kernel, Kernel)],
                 [number[op] for op in x.step.fusion.ops])
                for x in launches
            ]  # fmt: skip
            if key is None:
                return PrepareCall(name, args)
            self._prepare_code[key] = name, made
        name, made = self._prepare_code[key]
        for symbols, ops in made:
            nodes = dict.fromkeys(n for i in ops for n in fn.body.ops[i].loc)
            for symbol in symbols:
                self.kernel_nodes[symbol].update(nodes)
        return PrepareCall(name, args)

    def prepared_specs(self) -> list[PreparedSpec]:
        """What this target's `prepare` makes. The hash covers all that decides an entry's bytes: the text of its function names kernels and
        constants by their content."""
        out = []
        for entry, call in zip(self.table.entries, self.calls, strict=True):
            args = tuple(dict.fromkeys(call.args))
            layout = "_".join(map(str, entry.layout))
            described = f"{layout} {[(str(a.extent), str(a.stride)) for a in entry.view.axes]} {entry.view.offset}"
            described += f" {[args.index(a) for a in call.args]} {self.module.definition(call.symbol).replace(call.symbol, 'prepare')}"
            code = hashlib.sha256(f"{self.target.isa} {described}".encode()).digest()
            out.append(PreparedSpec(args, layout, code))
        return out


def with_regions(launches: Sequence[Launch]) -> Iterator[Launch]:
    """All launches, those of regions after the loop or branch that they are in."""
    for x in launches:
        yield x
        for region in x.regions:
            yield from with_regions(region.launches)


def positions(fn: Function) -> dict[Value, int]:
    return {p: i for i, p in enumerate(fn.params)}


def argument_indices(fn: Function, every: bool = False) -> list[int]:
    """RAL input of each parameter of main: its position among those that are given; -1 for what the program makes, tokens, and (unless
    ``every``) what this segment does not wait for."""
    out, n = [], 0
    for i, (info, p) in enumerate(zip(fn.args, fn.params, strict=True)):
        if info.kind in ("prepared", "kept") or not isinstance(p.type, TensorType):
            out.append(-1)
        else:
            out.append(n if every or i not in fn.absent else -1)
            n += 1
    return out


def product_flops(fusion: Fusion) -> Dim | None:
    """Two a multiply-add of the products in a fusion; None if it has none."""
    total = None
    for op in fusion.ops:
        if op.name == "dot_general":
            summed = [op.operands[0].dims[axis] for axis in op.attrs["lhs_contracting"]]
        elif op.name == "convolution":
            summed = list(op.operands[1].dims[:-1])
        else:
            continue
        work = op.result.tensor.num_elements() * 2
        for d in summed:
            work = work * d
        total = work if total is None else total + work
    return total


def split_host(fusions: Sequence[Fusion]) -> list[Fusion]:
    """Host fusions cut so that what the host cannot compute in registers becomes kernels."""
    out: list[Fusion] = []
    for f in fusions:
        if f.kind == "library" and all(can_host(op) for op in f.ops):
            f = dataclasses.replace(f, kind="host")  # a dim that is a result, say
        if f.kind != "host" or all(op.name in EFFECTS or can_host(op) or op.name == "constant" for op in f.ops):
            out.append(f)
            continue
        names = sorted({op.name for op in f.ops if op.name not in EFFECTS and not can_host(op)})
        raise ProgramError(f"host code with {', '.join(names)} (nodes {', '.join(f.nodes[:3])})")
    return out


def symbol_epochs(launches: Sequence[Launch]) -> dict[str, int]:
    """Run-time symbol -> how many are bound up to and including it."""
    epochs: dict[str, int] = {}
    for launch in launches:
        for op in launch.step.fusion.ops if launch.step.fusion.kind == "host" else ():
            if op.name == "disc.bind_dim":
                epochs[op.attrs["symbol"]] = len(epochs) + 1
    return epochs


def compile_program(
    source: ProgramInput,
    targets: Sequence[str],
    *,
    listings: bool = False,
    profile: bool = False,
    verify_cache: bool = False,
    budget: Budget | None = None,
    tuning: Sequence[Table] = (),
) -> Compiled:
    """Compile for every target, and for those of their extensions that the program profits from (`images.py`). Raises `ProgramError`
    with the reason, `PhaseFailed` with an internal error, `OutOfTime` if the budget is used up (LLVM cannot be
    stopped: what it works on ends in its thread, unused).

    profile: make every launch through the RAL, which then can time it, and say in the artefact what each has to do.
    tuning: tables of schedules in the place of the shipped ones.
    verify_cache: emit also what the kernel cache has, and compare. ``times_ms``: ``emit`` is the time of emission, in which all targets but
    the last are compiled too, ``llvm`` what is left after it.
    """
    budget = budget or Budget()
    times: dict[str, float] = {}
    start = time.perf_counter()
    programs: list[_TargetProgram] = []
    texts: list[str] = []
    pending: list[concurrent.futures.Future[bytes]] = []
    enabled = gc.isenabled()
    gc.disable()  # with TensorFlow loaded a collection while emitting costs up to a second
    # LLVM leaves the interpreter alone: a target is compiled while the next one is emitted.
    pool = concurrent.futures.ThreadPoolExecutor(min(len(targets), os.cpu_count() or 1))
    try:
        for target in targets_of((p for x in source.parts for p in (x.uniform, x.general) if p is not None), targets, tuning):
            program = _TargetProgram(source, target, profile, verify_cache, budget)
            with phase("host program"):
                texts.append(program.build())
            programs.append(program)
            pending.append(pool.submit(compile_image, texts[-1], program.target, ["disc_executable_query"]))
        times["emit"] = (time.perf_counter() - start) * 1e3
        start = time.perf_counter()
        images = [_result(p, budget) for p in pending]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if enabled:
            gc.enable()
    times["llvm"] = (time.perf_counter() - start) * 1e3
    kept = within_bounds([(p.target, p.prepared_specs(), len(image)) for p, image in zip(programs, images, strict=True)])
    programs, texts, images = [programs[i] for i in kept], [texts[i] for i in kept], [images[i] for i in kept]
    with phase("artifact"):
        artifact = _artifact(source, programs, images)
        if profile:
            artifact = dataclasses.replace(artifact, steps={p.target.isa: tuple(map(step_spec, p.launches)) for p in programs})
    size = sum(len(x) for x in images)
    if size > MAX_ARTIFACT_BYTES:
        raise ProgramError(f"the code would take {size} bytes, at most {MAX_ARTIFACT_BYTES} are allowed")
    first = programs[0]
    found = {p.target.isa: text for p, text in zip(programs, texts, strict=True)} if listings else {}
    return Compiled(artifact, first.launches, first.arena, times, found, first.memory)


def _result(pending: concurrent.futures.Future[bytes], budget: Budget) -> bytes:
    try:
        return pending.result(budget.left())
    except concurrent.futures.TimeoutError:
        budget.check("LLVM")
        raise OutOfTime("LLVM took longer than the time budget") from None
    except Exception as e:
        raise PhaseFailed("LLVM") from e


def step_spec(k: KernelInfo) -> StepSpec:
    """A launch as traces read it."""
    results = tuple((t.dtype.ir_name, *map(str, t.dims)) for t in k.results)
    flops = str(k.flops) if k.flops is not None else ""
    traffic, constants, picks, computed = (tuple(map(str, terms)) for terms in (k.traffic, k.weights, k.picked, k.operations))
    parts = tuple(tuple(str(d) for pair in variant for d in pair) for variant in k.parts)
    return StepSpec(k.kind, tuple(k.nodes), tuple(map(tuple, k.variants)), flops, traffic, results, constants, picks, computed, parts)


def _artifact(source: ProgramInput, programs: Sequence[_TargetProgram], images: Sequence[bytes]) -> Artifact:
    main = source.parts[0].signature
    args = []
    for info, p in zip(main.args, main.params, strict=True):
        if info.kind in ("prepared", "kept") or not isinstance(p.type, TensorType):
            continue
        kind = "const" if info.kind in ("const", "variable") else info.kind
        dims = tuple(int(d) if d.is_static else -1 for d in p.dims)
        args.append(ArgSpec(info.name, kind, p.dtype.ir_name, dims, info.digest))
    found: dict[int, ResultSpec] = {}
    segments = []
    for piece in source.parts:
        names, numbers = piece.signature.result_names, []
        for j, v in enumerate(piece.outputs()):
            i = piece.part.outputs[j] if piece.part is not None else j
            dims = tuple(int(d) if d.is_static else -1 for d in v.dims)
            host = bool(source.host_results[i]) if i < len(source.host_results) else False
            found[i] = ResultSpec(names[j] if j < len(names) else f"result{i}", v.dtype.ir_name, dims, host)
            numbers.append(i)
        depends = piece.part.depends if piece.part is not None else ()
        reads = [n for n in argument_indices(piece.signature) if n >= 0]
        segments.append(SegmentSpec(tuple(reads), tuple(depends), tuple(numbers)))
    results = [found[i] for i in range(len(found))]
    # Check tables of all targets are the same: they come from the same functions in the same order.
    checks = programs[0].checks.rows
    for p in programs[1:]:
        if p.checks.rows != checks:
            raise ProgramError("targets disagree on the check table")
    prepared = merge_prepared([p.prepared_specs() for p in programs])
    targets = tuple(
        TargetCode(p.target.isa, features_of(p.target.isa), image) for p, image in zip(programs, images, strict=True)
    )
    kernels: dict[str, tuple[str, ...]] = {}
    for p in programs:
        for symbol, nodes in p.kernel_nodes.items():
            kernels[symbol] = tuple(dict.fromkeys((*kernels.get(symbol, ()), *nodes)))
    return Artifact(
        tuple(args),
        tuple(results),
        tuple(segments),
        targets,
        tuple(CheckSpec(c.code, c.message, c.node) for c in checks),
        tuple(prepared),
        kernels,
        source.name,
        source.compiler_version,
    )


def merge_prepared(targets: Sequence[Sequence[PreparedSpec]]) -> list[PreparedSpec]:
    """One table for all targets. An entry is known by the code and layouts of every target: two artefacts that agree in one of them only
    must not take each other's packed constants in another. Raises `ProgramError` if the targets prepare different things."""
    if any([s.args for s in specs] != [s.args for s in targets[0]] for specs in targets[1:]):
        raise ProgramError("targets disagree on the prepared constants")
    out = []
    for same in zip(*targets, strict=True):
        layout = "/".join(dict.fromkeys(s.layout for s in same))
        out.append(PreparedSpec(same[0].args, layout, hashlib.sha256(b"".join(s.code_hash for s in same)).digest()))
    return out


__all__ = ["Compiled", "ProgramError", "ProgramInput", "ProgramPart", "compile_program"]
