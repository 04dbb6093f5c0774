"""The pipeline, all phases in order: one cluster's HLO module in, its executable out.

    1 TF to HLO             frontend.importer (done before: `compile_module` takes the module)
    2 HLO optimisation      passes.pipeline: simplify, merge dots, outline "prepare", split into uniform and general bodies
    3 bufferize             buffers.bufferize                 \
    4 LHLO optimisation     fusion.plan, buffers.memory_plan   | per body; 3 to 8 are driven by
    5 RAL                   codegen.host                       | codegen.program, since what a kernel
    6 codegen               codegen.cpu.emit                   | needs of buffers depends on the target
    7 device                codegen.compile (LLVM -> image)    |
    8 host                  codegen.host                      /
"""

from __future__ import annotations

import dataclasses
import itertools
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from disc_tf.budget import Budget, OutOfTime
from disc_tf.codegen.describe import MemoryUse
from disc_tf.codegen.phases import PhaseFailed, ProgramError, phase
from disc_tf.codegen.program import Compiled, KernelInfo, ProgramInput, ProgramPart, compile_program, step_spec
from disc_tf.fusion.apart import NOTHING, Apart
from disc_tf.fusion.plan import make_plan
from disc_tf.fusion.types import Plan
from disc_tf.ir.core import Module, Op
from disc_tf.ir.dims import DimTooComplex
from disc_tf.ir.pass_manager import PassContext
from disc_tf.ir.printer import print_module
from disc_tf.passes.pipeline import optimize, optimize_segments
from disc_tf.passes.specialize import SpecializedModule
from disc_tf.passes.split import Part
from disc_tf.report import ClusterReport, Defect, KernelReport, MemoryReport
from disc_tf.runtime.artifact import StepSpec, pack
from disc_tf.tuning import Table
from disc_tf.version import __version__


@dataclasses.dataclass
class CompiledCluster:
    """The artefact of a cluster and what reports tell about it. times_ms: phase -> milliseconds."""

    executable: bytes
    kernels: list[KernelInfo]
    bodies: int
    prepared: int
    arena: str
    times_ms: dict[str, float]
    memory: MemoryUse = dataclasses.field(default_factory=MemoryUse)

    def describe(self, entry: ClusterReport) -> None:
        """Fill a report's entry with what was made."""
        entry.kernels = [kernel_report(step_spec(k)) for k in self.kernels]
        memory = self.memory
        buffers = [(str(b.bytes), b.first, b.last, b.slot) for b in memory.buffers]
        entry.memory = MemoryReport(list(memory.steps), buffers, [*map(str, memory.slots)])
        entry.bodies, entry.prepared = self.bodies, self.prepared
        entry.artifact_bytes, entry.arena = len(self.executable), self.arena
        entry.times_ms |= self.times_ms


def kernel_report(step: StepSpec) -> KernelReport:
    """A step of an artefact as reports have it."""
    parts = [[[*pair] for pair in zip(form[::2], form[1::2], strict=True)] for form in step.parts]
    symbol = ", ".join(step.variants[-1]) if step.variants else ""
    return KernelReport(
        symbol, step.kind, [*step.nodes], step.flops, [*step.traffic], [*map(list, step.variants)], [*map(list, step.results)],
        [*step.weights], [*step.picked], [*step.operations], parts,
    )  # fmt: skip


def compile_module(
    module: Module,
    targets: Sequence[str],
    *,
    name: str = "",
    host_results: Sequence[bool] = (),
    verify_passes: bool = False,
    dump_dir: str | Path = "",
    profile: bool = False,
    budget: Budget | None = None,
    progress: Callable[[str], None] = lambda _text: None,
    segments: str = "one",
    tuning: Sequence[Table] = (),
    defects: list[Defect] | None = None,
) -> CompiledCluster:
    """Phases 2 to 8. ``module`` is consumed. Raises with the reason if the cluster cannot be compiled.

    defects: takes what internal errors there were; a fusion that one is about is then compiled apart. Without it they are raised.

    profile: make code that `runtime.recording` sees every launch of. budget: raises
    `OutOfTime` once it is used up. progress: told of each phase as it begins. tuning: tables of schedules in the place of the shipped ones
    of their instruction sets; they change no result.
    """
    budget = budget or Budget()
    times: dict[str, float] = {}
    dumps = Path(dump_dir) / name if dump_dir else None

    def timed(phase: str, start: float) -> float:
        now = time.perf_counter()
        times[phase] = (now - start) * 1e3
        return now

    start = time.perf_counter()
    if dumps is not None:
        dumps.mkdir(parents=True, exist_ok=True)
        _dump_hlo(dumps, "1_hlo", module)
    progress("HLO passes")
    context = PassContext(budget=budget)
    found: list[tuple[Part | None, SpecializedModule]]
    try:
        if segments == "one":
            found = [(None, optimize(module, context, verify_each=verify_passes, dump_dir=dumps, dump_prefix="2_"))]
        else:
            found = [*optimize_segments(module, context, verify_each=verify_passes, dump_dir=dumps, dump_prefix="2_")]
    except Exception as e:  # the module is half rewritten: there is nothing to go back to
        if defects is not None and not isinstance(e, LIMITS):
            defects.append(defect_of("HLO passes", e))
        raise
    start = timed("hlo passes", start)

    def code(apart: Apart) -> Compiled:
        nonlocal start
        progress("fusion")
        parts = _plans(found, apart, budget, dumps)
        start = timed("fusion", start)
        prepare = found[0][1].uniform.functions.get("prepare")
        source = ProgramInput(parts, prepare, tuple(host_results), name, __version__, apart)
        progress(f"code for {', '.join(targets)}")
        return compile_program(
            source, targets, listings=dumps is not None, verify_cache=verify_passes, profile=profile, budget=budget, tuning=tuning
        )

    compiled = _recovering(code, defects)
    times.update(compiled.times_ms)
    start = time.perf_counter()
    executable = pack(compiled.artifact)
    timed("pack", start)
    if dumps is not None:
        for target, text in compiled.listings.items():
            (dumps / f"7_{target}.ll").write_text(text)
        (dumps / "8_executable.bin").write_bytes(executable)
    return CompiledCluster(
        executable,
        compiled.kernels,
        max(1 if special.general is None else 2 for _, special in found),
        len(compiled.artifact.prepared),
        compiled.arena,
        times,
        compiled.memory,
    )


def _plans(
    found: Sequence[tuple[Part | None, SpecializedModule]], apart: Apart, budget: Budget, dumps: Path | None
) -> list[ProgramPart]:
    """The fusion plans of all bodies."""
    parts = []
    for k, (part, special) in enumerate(found):
        budget.check("fusion")
        with phase("fusion planning"):
            uniform = make_plan(special.uniform.main, apart=apart)
        budget.check("fusion of the general body")
        with phase("fusion planning"):
            general = make_plan(special.general.main, apart=apart) if special.general is not None else None
        parts.append(ProgramPart(uniform, general, special.predicate, part))
        if dumps is not None:
            _dump_bodies(dumps, f"_segment{k}" if len(found) > 1 else "", special, uniform, general)
    return parts


#: what says that a cluster is too much for the compiler, and is not a defect of it
LIMITS = (ProgramError, OutOfTime, DimTooComplex)

#: fusions of one cluster that are compiled apart; a compiler with more defects than that compiles everything apart
_MOST_APART = 8


def _recovering(code: Callable[[Apart], Compiled], defects: list[Defect] | None) -> Compiled:
    """What ``code`` makes of a plan; after an internal error of one in which the ops that it is about are not fused. Raises the error if
    that fails too, or nobody takes ``defects``."""
    apart = NOTHING
    for tries in itertools.count(1):
        try:
            return code(apart)
        except PhaseFailed as e:
            if defects is None:
                raise e.error from e.error.__cause__
            if not isinstance(e.error, LIMITS):
                defects.append(defect_of(e.phase, e.error, e.ops))
            if apart.everything:
                raise e.error from e.error.__cause__
            apart = apart.wider(e.ops) if tries < _MOST_APART else Apart(everything=True)
    raise AssertionError


def defect_of(phase: str, error: BaseException, ops: Iterable[Op] = ()) -> Defect:
    """An exception as reports have it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = next((f"{_package_path(f.filename)}:{f.lineno}" for f in reversed(frames) if _PACKAGE in f.filename), "")
    nodes = list(dict.fromkeys(n for op in ops for n in op.loc))
    return Defect(phase, f"{type(error).__name__}: {error}", where, nodes)


_PACKAGE = str(Path(__file__).parent)


def _package_path(path: str) -> str:
    return str(Path(path).relative_to(Path(_PACKAGE).parent))


def _dump_bodies(directory: Path, suffix: str, special: SpecializedModule, uniform: Plan, general: Plan | None) -> None:
    _dump_hlo(directory, f"2_hlo_uniform{suffix}", special.uniform)
    (directory / f"4_plan_uniform{suffix}.txt").write_text(uniform.describe())
    if special.general is not None and general is not None:
        _dump_hlo(directory, f"2_hlo_general{suffix}", special.general)
        (directory / f"4_plan_general{suffix}.txt").write_text(general.describe())


def _dump_hlo(directory: Path, stem: str, module: Module) -> None:
    """Our text, and StableHLO that JAX loads (dynamic shapes; large constants included)."""
    from disc_tf.ir.stablehlo.export import to_stablehlo

    (directory / f"{stem}.txt").write_text(print_module(module, 64))
    try:
        text = to_stablehlo(module)
    except Exception as e:  # a dump must not fail the compilation
        text = f"// no StableHLO: {type(e).__name__}: {e}\n"
    (directory / f"{stem}.mlir").write_text(text)


__all__ = ["LIMITS", "CompiledCluster", "compile_module", "defect_of", "kernel_report"]
