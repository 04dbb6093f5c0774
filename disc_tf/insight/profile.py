"""Where the time of a cluster goes: each kernel timed on real arguments, and held against what the machine can do."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from disc_tf.costs import Demand, Machine, predict, rank_correlation
from disc_tf.frontend.rewrite import LAUNCH_OP
from disc_tf.frontend.tfproto import serialized
from disc_tf.insight.capture import capture
from disc_tf.insight.roofline import measure
from disc_tf.ir.dims import Dim
from disc_tf.options import Options
from disc_tf.report import ClusterProfile, ClusterReport, KernelReport, KernelTime, MemoryReport, Report
from disc_tf.testing.inputs import InputSpec, make_feeds, share_dims
from disc_tf.testing.tf_process import ProcessFailed, TfError

if TYPE_CHECKING:
    from disc_tf.optimizer import OptimizeResult
    from disc_tf.runtime.artifact import ArgSpec
    from disc_tf.runtime.executable import Executable
    from disc_tf.runtime.recording import LaunchTime

#: why a kernel may be faster than the limits that `insight.roofline` measured
ABOVE_COMPUTE = (
    "faster than the multiply-adds measured, which are of f32: bf16 and int8 products have higher peaks, "
    "and a core's clock may have been higher than it was then"
)
ABOVE_MEMORY = (
    "faster than memory that holds as many bytes as it moves: some were still in a nearer cache, where the kernel before it or an earlier "
    "run left them, or were not touched at all"
)
#: seconds that the runs of one cluster take in all
SECONDS = 0.5


def profile_report(
    report: Report,
    original: Any,
    specs: Sequence[InputSpec],
    sizes: Mapping[str, int],
    directory: Path,
    *,
    threads: int = 0,
    progress: Callable[[str], None] = lambda _text: None,
) -> None:
    """Fill ``report.profile`` and ``report.machine``: the clusters that run, compiled once more for this machine and timed at ``sizes``.

    ``original``: the graph that was optimised. What cannot be profiled becomes a warning, never an error.
    """
    wanted = [c.name for c in report.compiled_clusters]
    if not wanted:
        return
    progress("timing kernels")
    options = Options.from_overrides({**report.options, "strict": False})
    result = compile_for_profile(original, report.outputs, options)
    try:
        report.profile, report.machine = profile_graph(result, specs, [sizes], directory, wanted, threads=threads)
    except (TfError, ProcessFailed) as e:
        report.warnings.append(f"kernels were not timed: {str(e).splitlines()[0]}")


def compile_for_profile(
    original: Any, outputs: Sequence[str] | None, options: Options, progress: Callable[[str], None] = lambda _text: None
) -> OptimizeResult:
    """The graph optimised for this machine alone, with code that can be timed kernel by kernel."""
    from disc_tf.optimizer import optimize_graph_def
    from disc_tf.runtime.cpu import native_target

    native = Options.from_overrides({**options.to_dict(), "targets": [native_target()], "dump_dir": ""})
    return optimize_graph_def(original, outputs, native, profile=True, progress=progress)


def profile_graph(
    result: OptimizeResult,
    specs: Sequence[InputSpec],
    shapes: Sequence[Mapping[str, int]],
    directory: Path,
    clusters: Sequence[str] | None = None,
    *,
    threads: int = 0,
) -> tuple[list[ClusterProfile], dict[str, Any]]:
    """(a profile of each cluster at each of ``shapes``, `Machine.to_dict`). ``result``: of `compile_for_profile`; ``clusters``: only these.
    Raises `TfError` if TensorFlow refuses the inputs, `ProcessFailed` if it cannot run them."""
    from disc_tf.runtime.executable import num_threads, set_num_threads

    timed = {c.name: c for c in result.report.compiled_clusters if clusters is None or c.name in clusters}
    path = directory / "profiled.pb"
    path.write_bytes(serialized(result.graph_def))
    profiles = []
    set_num_threads(threads)
    try:
        machine = measure(num_threads())
        for sizes in shapes:
            feeds = make_feeds(specs, sizes)
            arguments = capture(path, result.graph_def, [s.name for s in specs], feeds, list(timed), threads=threads)
            for node in result.graph_def.node:
                if node.op == LAUNCH_OP and node.name in timed:
                    profiles.append(profile_cluster(timed[node.name], node.attr["executable"].s, arguments[node.name], machine))
    finally:
        set_num_threads(0)
    return profiles, machine.to_dict()


def profile_cluster(cluster: ClusterReport, executable: bytes, arguments: Sequence[np.ndarray], machine: Machine) -> ClusterProfile:
    """Time the kernels of one cluster. ``executable``: compiled with ``profile=True``; ``cluster``: its report, from that compilation."""
    from disc_tf.runtime.executable import DiscError, Executable

    shapes = {}
    with Executable.from_bytes(executable) as loaded:
        shapes = {a.name: list(v.shape) for a, v in zip(loaded.args, arguments, strict=True) if a.kind != "const"}
        try:
            runs = timed_runs(loaded, arguments)
        except DiscError as e:
            return ClusterProfile(cluster.name, shapes, machine.threads, 0.0, 0.0, [], message=str(e))
        nodes = {symbol: list(names) for symbol, names in loaded.artifact.kernels.items()}
    symbols = argument_dims(arguments)
    kernels = kernel_times(cluster, [launches for _, launches in runs], nodes, symbols, machine)
    run_us = statistics.median(spent for spent, _ in runs) / 1e3
    live, arena = arena_over_time(cluster.memory, symbols)
    other = max(run_us - sum(k.us for k in kernels), 0.0)
    return ClusterProfile(cluster.name, shapes, machine.threads, run_us, other, kernels, live, arena)


def standalone_specs(path: str | Path) -> list[InputSpec]:
    """The inputs of a stand-alone file, see `argument_specs`. `ArtifactError` for a damaged file."""
    from disc_tf.runtime.artifact_file import read_file

    artifact = read_file(path)
    return argument_specs(artifact.args, {c.arg for c in artifact.constants})


def argument_specs(args: Sequence[ArgSpec], bound: Container[int]) -> list[InputSpec]:
    """The arguments but the ``bound`` ones; dims of any extent are called ``<input>/<axis>``, one name for those that are likely equal."""
    from disc_tf.runtime.arrays import numpy_dtype

    found = []
    for i, a in enumerate(args):
        if i not in bound:
            dims = tuple(d if d >= 0 else f"{a.name}/{axis}" for axis, d in enumerate(a.dims))
            found.append(InputSpec(a.name, numpy_dtype(a.dtype), dims))
    return share_dims(found)


def profile_file(
    path: str | Path, specs: Sequence[InputSpec], sizes: Mapping[str, int], *, threads: int = 0
) -> tuple[ClusterProfile, dict[str, Any]]:
    """Time what a stand-alone file launches by way of the runtime; kernels that its code calls itself are in ``other_us``, and nothing is
    known of what its kernels have to do, unless it was compiled with ``profile=True``. Raises `DiscError` if it cannot be loaded or run."""
    from disc_tf.compiler import kernel_report
    from disc_tf.runtime.executable import Executable, num_threads, set_num_threads

    set_num_threads(threads)
    try:
        machine = measure(num_threads())
        with Executable.from_file(path) as loaded:
            feeds = make_feeds(specs, sizes)
            runs = timed_runs(loaded, feeds)
            artifact, isa = loaded.artifact, loaded.isa
    finally:
        set_num_threads(0)
    nodes = {symbol: list(names) for symbol, names in artifact.kernels.items()}
    shapes = {s.name: list(s.shape(sizes)) for s in specs}
    symbols = shape_dims([shapes.get(a.name, a.dims) for a in artifact.args])
    cluster = ClusterReport(Path(path).name, 0, kernels=[*map(kernel_report, artifact.steps.get(isa, ()))])
    kernels = kernel_times(cluster, [launches for _, launches in runs], nodes, symbols, machine)
    for k in kernels:
        if not cluster.kernels:
            k.kind = k.symbol.split("_")[1] if k.symbol.startswith("k_") else "library"
    run_us = statistics.median(spent for spent, _ in runs) / 1e3
    other = max(run_us - sum(k.us for k in kernels), 0.0)
    return ClusterProfile(Path(path).name, shapes, machine.threads, run_us, other, kernels), machine.to_dict()


def timed_runs(loaded: Executable, arguments: Sequence[np.ndarray]) -> list[tuple[float, list[LaunchTime]]]:
    """(nanoseconds, launches) of each run, after a first one. `DiscError` if it fails."""
    from disc_tf.runtime.recording import profile

    runs: list[tuple[float, list[LaunchTime]]] = []
    loaded.run(arguments)
    stop = time.perf_counter() + SECONDS
    while not runs or (time.perf_counter() < stop and len(runs) < 200):
        with profile() as launches:
            start = time.perf_counter_ns()
            loaded.run(arguments)
            spent = time.perf_counter_ns() - start
        runs.append((spent, launches))
    return runs


@dataclasses.dataclass(frozen=True)
class Totals:
    """The kernels of a profile together. ``predicted_us``: None if one has no prediction; ``roofline``: of those that have one, weighted
    by time; ``correlation``: of the order of predictions with that of times (`costs.rank_correlation`), of kernels that have both."""

    calls: int
    us: float
    predicted_us: float | None
    flops: float
    bytes: float
    roofline: float | None
    correlation: float | None


def totals(p: ClusterProfile) -> Totals:
    """See `Totals`."""
    both = [(k.predicted_us, k.us) for k in p.kernels if k.predicted_us is not None]
    known = [k for k in p.kernels if k.roofline is not None]
    time_known = sum(k.us for k in known)
    return Totals(
        sum(k.calls for k in p.kernels), sum(k.us for k in p.kernels),
        sum(predicted for predicted, _ in both) if both and len(both) == len(p.kernels) else None,
        sum(k.flops or 0.0 for k in p.kernels), sum(k.bytes or 0.0 for k in p.kernels),
        sum((k.roofline or 0.0) * k.us for k in known) / time_known if time_known else None,
        rank_correlation([predicted for predicted, _ in both], [us for _, us in both]),
    )  # fmt: skip


def argument_dims(arguments: Sequence[np.ndarray]) -> dict[str, int]:
    """The values of the symbols ``a<i>d<k>``: axis k of argument i."""
    return shape_dims([np.shape(a) for a in arguments])


def shape_dims(shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """`argument_dims` of arguments of these shapes."""
    return {f"a{i}d{k}": n for i, shape in enumerate(shapes) for k, n in enumerate(shape)}


def kernel_times(
    cluster: ClusterReport,
    runs: Sequence[Sequence[Any]],
    nodes: Mapping[str, list[str]],
    symbols: Mapping[str, int],
    machine: Machine,
) -> list[KernelTime]:
    """One entry for all launches of the same code, longest first. Kernels that work in turn on one step are one entry, since the step's
    operations and bytes are known for all of them together."""
    step_of: dict[str, tuple[str, ...]] = {}
    steps: dict[tuple[str, ...], list[tuple[KernelReport, int]]] = {}  # those that have this form, and the number of the form
    for info in cluster.kernels:
        for number, variant in enumerate(map(tuple, info.variants)):
            steps.setdefault(variant, []).append((info, number))
            for symbol in variant:
                step_of.setdefault(symbol, variant)
    spent: dict[tuple[str, ...], list[float]] = {}
    calls: dict[tuple[str, ...], int] = {}
    for number, launches in enumerate(runs):
        for x in launches:
            variant = step_of.get(x.kernel, (x.kernel,))
            spent.setdefault(variant, [0.0] * len(runs))[number] += x.ns / 1e3
            if number == 0 and x.kernel == variant[0]:
                calls[variant] = calls.get(variant, 0) + 1
    constants = sum(evaluate(info.weights, symbols) or 0.0 for info in cluster.kernels)
    out = []
    for variant, us in spent.items():
        infos = steps.get(variant, [])
        count = calls.get(variant, 1)
        kind = infos[0][0].kind if infos else "general body" if variant[0] in nodes else "library"
        names = list(dict.fromkeys(n for i, _ in infos for n in i.nodes)) or nodes.get(variant[0], [])
        entry = KernelTime(", ".join(variant), kind, names, count, statistics.median(us))
        work = [demand(i, form, symbols) for i, form in infos]
        known = [w for w in work if w is not None]
        if known and len(known) == len(work):
            # A loop's kernel finds its weights where its last iteration left them.
            _weigh(entry, known, machine, constants if count <= len(infos) else 0.0)
        out.append(entry)
    return sorted(out, key=lambda k: -k.us)


def demand(info: KernelReport, form: int, symbols: Mapping[str, int]) -> Demand | None:
    """What a launch of this form asks for; None if its sizes hang on data."""
    flops, moved = evaluate([info.flops] if info.flops else [], symbols), evaluate(info.traffic, symbols)
    if flops is None or moved is None:
        return None
    chunks = 1.0
    parts = info.parts[form] if form < len(info.parts) else []
    for tasks, grain in parts:
        number, each = evaluate([tasks], symbols), evaluate([grain], symbols)
        chunks = max(chunks, -(-number // max(each, 1.0))) if number is not None and each is not None else chunks
    operations, constants, picked = (evaluate(terms, symbols) or 0.0 for terms in (info.operations, info.weights, info.picked))
    return Demand(info.kind, flops, operations, moved, constants, picked, chunks, max(len(parts), 1))


def _weigh(entry: KernelTime, work: Sequence[Demand], machine: Machine, constants: float) -> None:
    """Fill in what all launches of a kernel ask for together, and how long that takes at least, and by the model."""
    each = entry.calls / len(work)
    entry.flops, entry.bytes = sum(w.flops for w in work) * each, sum(w.traffic for w in work) * each
    least, entry.bound = machine.least_us(entry.flops / entry.calls, entry.bytes / entry.calls)
    entry.roofline = least * entry.calls / entry.us if entry.us else None
    if entry.roofline is not None and entry.roofline > 1:
        entry.note = ABOVE_COMPUTE if entry.bound == "compute" else ABOVE_MEMORY
    if entry.kind != "library":  # nothing is known of what it computes
        found = [predict(w, machine, constants) for w in work]
        entry.predicted_us = sum(p.us for p in found) * each
        entry.bound = max(found, key=lambda p: p.us).bound


def evaluate(terms: Sequence[str], symbols: Mapping[str, int]) -> float | None:
    """The sum of expressions in the symbols; None if one has a symbol that is not known."""
    total = 0.0
    for text in terms:
        value = _value(text, symbols)
        if value is None:
            return None
        total += value
    return total


def _value(text: str, symbols: Mapping[str, int]) -> int | None:
    try:
        dim = Dim.of(text)
        return dim.evaluate(dict(symbols)) if dim.symbols() <= symbols.keys() else None
    except (ValueError, ZeroDivisionError):
        return None


def arena_over_time(memory: MemoryReport | None, symbols: Mapping[str, int]) -> tuple[list[int] | None, int | None]:
    """(bytes in use at each step, bytes of the whole arena); None where a size hangs on data."""
    if memory is None:
        return None, None
    live = [0] * len(memory.steps)
    for text, first, last, _ in memory.buffers:
        size = _value(text, symbols)
        if size is None:
            return None, None
        for at in range(first, min(last + 1, len(live))):
            live[at] += size
    sizes = [_value(text, symbols) for text in memory.slots]
    return live, sum(s or 0 for s in sizes) if None not in sizes else None


def largest(sizes: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    """The shapes with the most elements: where kernels show what they can do."""
    return max(sizes, key=lambda s: (statistics.geometric_mean([max(v, 1) for v in s.values()]) if s else 0.0))
