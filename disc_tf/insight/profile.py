"""Where the time of a cluster goes: each kernel timed on real arguments, and held against what the machine can do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.frontend.rewrite import LAUNCH_OP
from disc_tf.frontend.tfproto import serialized
from disc_tf.insight.capture import capture
from disc_tf.insight.roofline import Machine, measure
from disc_tf.ir.dims import Dim
from disc_tf.options import Options
from disc_tf.report import ClusterProfile, ClusterReport, KernelTime, MemoryReport, Report
from disc_tf.testing.inputs import InputSpec, make_feeds
from disc_tf.testing.tf_process import ProcessFailed, TfError

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
    from disc_tf.optimizer import optimize_graph_def
    from disc_tf.runtime.cpu import native_target
    from disc_tf.runtime.executable import num_threads, set_num_threads

    wanted = [c.name for c in report.compiled_clusters]
    if not wanted:
        return
    progress("timing kernels")
    options = Options.from_overrides({**report.options, "targets": [native_target()], "dump_dir": "", "strict": False})
    result = optimize_graph_def(original, report.outputs, options, profile=True)
    timed = {c.name: c for c in result.report.compiled_clusters if c.name in wanted}
    path = directory / "profiled.pb"
    path.write_bytes(serialized(result.graph_def))
    feeds = make_feeds(specs, sizes)
    try:
        arguments = capture(path, result.graph_def, [s.name for s in specs], feeds, list(timed), threads=threads)
    except (TfError, ProcessFailed) as e:
        report.warnings.append(f"kernels were not timed: {str(e).splitlines()[0]}")
        return
    set_num_threads(threads)
    try:
        machine = measure(num_threads())
        report.machine = machine.to_dict()
        for node in result.graph_def.node:
            if node.op == LAUNCH_OP and node.name in timed:
                report.profile.append(profile_cluster(timed[node.name], node.attr["executable"].s, arguments[node.name], machine))
    finally:
        set_num_threads(0)


def profile_cluster(cluster: ClusterReport, executable: bytes, arguments: Sequence[np.ndarray], machine: Machine) -> ClusterProfile:
    """Time the kernels of one cluster. ``executable``: compiled with ``profile=True``; ``cluster``: its report, from that compilation."""
    from disc_tf.runtime.executable import DiscError, Executable
    from disc_tf.runtime.recording import LaunchTime, profile

    shapes = {}
    runs: list[tuple[float, list[LaunchTime]]] = []
    with Executable.from_bytes(executable) as loaded:
        shapes = {a.name: list(v.shape) for a, v in zip(loaded.args, arguments, strict=True) if a.kind != "const"}
        try:
            loaded.run(arguments)
            stop = time.perf_counter() + SECONDS
            while not runs or (time.perf_counter() < stop and len(runs) < 200):
                with profile() as launches:
                    start = time.perf_counter_ns()
                    loaded.run(arguments)
                    spent = time.perf_counter_ns() - start
                runs.append((spent, launches))
        except DiscError as e:
            return ClusterProfile(cluster.name, shapes, machine.threads, 0.0, 0.0, [], message=str(e))
        nodes = {symbol: list(names) for symbol, names in loaded.artifact.kernels.items()}
    symbols = argument_dims(arguments)
    kernels = kernel_times(cluster, [launches for _, launches in runs], nodes, symbols, machine)
    run_us = statistics.median(spent for spent, _ in runs) / 1e3
    live, arena = arena_over_time(cluster.memory, symbols)
    other = max(run_us - sum(k.us for k in kernels), 0.0)
    return ClusterProfile(cluster.name, shapes, machine.threads, run_us, other, kernels, live, arena)


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
    steps: dict[tuple[str, ...], list[Any]] = {}
    for info in cluster.kernels:
        for variant in map(tuple, info.variants):
            steps.setdefault(variant, []).append(info)
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
    out = []
    for variant, us in spent.items():
        infos = steps.get(variant, [])
        count = calls.get(variant, 1)
        kind = infos[0].kind if infos else "general body" if variant[0] in nodes else "library"
        names = list(dict.fromkeys(n for i in infos for n in i.nodes)) or nodes.get(variant[0], [])
        entry = KernelTime(", ".join(variant), kind, names, count, statistics.median(us))
        work = [(evaluate([i.flops] if i.flops else [], symbols), evaluate(i.traffic, symbols)) for i in infos]
        if work and all(f is not None and t is not None for f, t in work):
            entry.flops = sum(f or 0.0 for f, _ in work) / len(work) * count
            entry.bytes = sum(t or 0.0 for _, t in work) / len(work) * count
            least, entry.bound = machine.least_us(entry.flops / count, entry.bytes / count)
            entry.roofline = least * count / entry.us if entry.us else None
        out.append(entry)
    return sorted(out, key=lambda k: -k.us)


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


__all__ = ["largest", "profile_cluster", "profile_report"]
