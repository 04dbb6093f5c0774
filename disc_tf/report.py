"""The report of an optimisation: what was compiled, what was not and why, how long it took.

Plain dataclasses; `Report.to_json` is the machine form (versioned), `Report.to_text` the human one.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

REPORT_VERSION = 1
#: what a report says of a proof that was not wanted, or that nothing here can run
NOT_VERIFIED = "not verified: switched off (--no-verify)"
NOT_TIMED = "not timed: switched off (--no-timing)"
FOREIGN = "not verified: no target of the artefact runs on this machine"


@dataclasses.dataclass
class LeftOut:
    """A node that stays in TensorFlow. ``code`` is a stable word, ``reason`` a sentence."""

    node: str
    op: str
    code: str
    reason: str


@dataclasses.dataclass
class KernelReport:
    """A kernel of a cluster: its symbol, fusion kind and the original nodes that it computes.

    ``flops``: of its products, ``traffic``: bytes that it has to move at least (a sum); both in the argument dims. ``variants``: the
    symbols of all its forms, of which the host program picks one by shape; ``parts``: tasks, and how many of them make a chunk of parallel
    work, of each kernel of each form. ``weights``: the terms of ``traffic`` that are constants, ``picked``: that other data pick;
    ``operations``: lane operations beside the products (`disc_tf.costs`), a sum. ``results``: dtype and dims of what it makes.
    """

    symbol: str
    kind: str
    nodes: list[str]
    flops: str = ""
    traffic: list[str] = dataclasses.field(default_factory=list)
    variants: list[list[str]] = dataclasses.field(default_factory=list)
    results: list[list[str]] = dataclasses.field(default_factory=list)
    weights: list[str] = dataclasses.field(default_factory=list)
    picked: list[str] = dataclasses.field(default_factory=list)
    operations: list[str] = dataclasses.field(default_factory=list)
    parts: list[list[list[str]]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class MemoryReport:
    """The arena over the program order of a body. ``steps``: their names; ``buffers``: bytes (in the argument dims), first step, last step
    (inclusive), slot; ``slots``: bytes of each."""

    steps: list[str]
    buffers: list[tuple[str, int, int, int]]
    slots: list[str]


@dataclasses.dataclass
class Box:
    """A box of a `Drawing`. ``kind``: cluster, tensorflow or input; ``layer``: its depth; ``ops``: its commonest op types, with counts;
    ``names``: some of the nodes (a cluster's are in its own report); ``output``: holds something fetched."""

    id: int
    kind: str
    name: str
    layer: int
    nodes: int
    ops: dict[str, int]
    names: list[str]
    output: bool


@dataclasses.dataclass
class Drawing:
    """The graph as boxes; ``edges``: from, to (ids), number of edges between nodes."""

    boxes: list[Box]
    edges: list[list[int]]


@dataclasses.dataclass
class KernelTime:
    """Launches of one kernel in a profiled run. ``us``: of all its launches together. ``flops``, ``bytes``: of all launches, None if not
    known. ``roofline``: the least time that the machine would need for them over the time taken. ``predicted_us``: of all launches, by the
    cost model (`disc_tf.costs`), and ``bound`` what takes most of that: compute, memory or launch. ``note``:
    why ``roofline`` is above 1."""

    symbol: str
    kind: str
    nodes: list[str]
    calls: int
    us: float
    flops: float | None = None
    bytes: float | None = None
    roofline: float | None = None
    bound: str = ""
    predicted_us: float | None = None
    note: str = ""


@dataclasses.dataclass
class ClusterProfile:
    """A cluster timed kernel by kernel at one set of argument shapes, medians over some runs; ``other_us``: beyond its kernels. ``live``:
    bytes of the arena in use at each step, ``arena``: bytes of the whole arena (None if sizes hang on data)."""

    cluster: str
    shapes: dict[str, list[int]]
    threads: int
    run_us: float
    other_us: float
    kernels: list[KernelTime]
    live: list[int] | None = None
    arena: int | None = None
    message: str = ""


@dataclasses.dataclass
class Defect:
    """An internal error of the compiler: its phase, the exception (``error``: type and message), the line that raised it (``where``), and
    the nodes of the fusion that it is about, if that is known. ``outcome``: what became of them: apart (compiled, each op a kernel of its
    own), or tensorflow."""

    phase: str
    error: str
    where: str
    nodes: list[str]
    outcome: str = "apart"

    @property
    def text(self) -> str:
        """One line for a warning."""
        names = ", ".join(self.nodes[:5]) + (", ..." if len(self.nodes) > 5 else "") if self.nodes else "the whole cluster"
        became = "compiled without fusion" if self.outcome == "apart" else "left in TensorFlow"
        return f"a defect of the compiler in {self.phase}: {self.error} ({self.where}); {became}: {names}"


@dataclasses.dataclass
class ClusterReport:
    """One cluster. ``status``: compiled, failed, put_back or (dry run) planned; ``reason`` says why it is not compiled.

    ``nodes``: all; ``compute_nodes``: those that `Report.coverage` counts. ``flops``: of its products, in the argument dims.
    ``flops_share``: see `Report.flops_share`. ``kernels``: launches of the uniform body. ``arena``: bytes, in the argument dims.
    ``symbols``: what these dims are (symbol -> tensor and axis). ``memory``: the arena step by step.
    ``defects``: internal errors on the way.
    """

    name: str
    nodes: int
    status: str = "compiled"
    reason: str = ""
    compute_nodes: int = 0
    flops: str = ""
    flops_share: float | None = None
    kernels: list[KernelReport] = dataclasses.field(default_factory=list)
    bodies: int = 1
    prepared: int = 0
    artifact_bytes: int = 0
    arena: str = ""
    symbols: dict[str, str] = dataclasses.field(default_factory=dict)
    memory: MemoryReport | None = None
    times_ms: dict[str, float] = dataclasses.field(default_factory=dict)
    node_names: list[str] = dataclasses.field(default_factory=list)
    defects: list[Defect] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class ShapeResult:
    """Verification and timing at one set of input shapes. Times in milliseconds, errors absolute and relative.

    ``ratios``: how many times faster the optimised graph was in each round; ``interval`` bounds their median with 95 % confidence.
    ``source``: generated values, or a record of the model's warm-up file. ``elements``: of each output that was compared.
    """

    shapes: dict[str, list[int]]
    ok: bool
    message: str = ""
    max_abs: dict[str, float] = dataclasses.field(default_factory=dict)
    max_rel: dict[str, float] = dataclasses.field(default_factory=dict)
    original_ms: float | None = None
    optimized_ms: float | None = None
    ratios: list[float] = dataclasses.field(default_factory=list)
    interval: tuple[float, float] | None = None
    source: str = "generated"
    elements: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def compared(self) -> bool:
        """Whether anything was compared: an output without elements is not."""
        return any(self.elements.values()) if self.elements else bool(self.max_abs)

    @property
    def ratio(self) -> float | None:
        """How many times faster the optimised graph is; None where it was not timed."""
        return self.original_ms / self.optimized_ms if self.original_ms and self.optimized_ms else None

    @property
    def slower(self) -> bool:
        """Whether the optimised graph is slower here: the interval lies below one as a whole."""
        return self.interval is not None and self.interval[1] < 1.0


@dataclasses.dataclass
class Report:
    """See the module's docstring.

    ``pruned_nodes``: dropped because no output needs them. ``compute_nodes``: nodes left but for constants, inputs and NoOps;
    ``compiled_nodes``: those of them inside DiscLaunch. ``flops_share``: part of the floating-point operations that are compiled, with
    unknown dims at their likely or a nominal size (`frontend.flops`); None if there are none or the shapes of a product are not known.
    ``drawing``: the graph as boxes. ``profile``: times of kernels, and ``machine`` what it can do at most (`insight.roofline`), where a
    profile was made. ``tuning``: target -> digest of the table that schedules are chosen from. ``routes``: the loaders that the proof read
    the written files with.
    """

    compiler_version: str = ""
    targets: list[str] = dataclasses.field(default_factory=list)
    outputs: list[str] = dataclasses.field(default_factory=list)
    outputs_found: bool = False
    total_nodes: int = 0
    pruned_nodes: int = 0
    compute_nodes: int = 0
    compiled_nodes: int = 0
    flops_share: float | None = None
    clusters: list[ClusterReport] = dataclasses.field(default_factory=list)
    left_out: list[LeftOut] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    times_ms: dict[str, float] = dataclasses.field(default_factory=dict)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    verification: list[ShapeResult] = dataclasses.field(default_factory=list)
    verified: bool | None = None
    drawing: Drawing | None = None
    profile: list[ClusterProfile] = dataclasses.field(default_factory=list)
    machine: dict[str, Any] = dataclasses.field(default_factory=dict)
    tuning: dict[str, str] = dataclasses.field(default_factory=dict)
    routes: list[str] = dataclasses.field(default_factory=list)

    @property
    def compiled_clusters(self) -> list[ClusterReport]:
        return [c for c in self.clusters if c.status == "compiled"]

    @property
    def coverage(self) -> float:
        """Share of the nodes left after pruning (constants and placeholders not counted) that run inside DiscLaunch."""
        return self.compiled_nodes / self.compute_nodes if self.compute_nodes else 0.0

    def count(self, running: Sequence[ClusterReport]) -> None:
        """Set what is compiled from the clusters that run."""
        self.compiled_nodes = sum(c.compute_nodes for c in running)
        shares = [c.flops_share for c in self.clusters]
        known = all(s is not None for s in shares)
        self.flops_share = sum(c.flops_share or 0.0 for c in running) if known else None

    @property
    def reasons(self) -> dict[str, int]:
        """Reason code -> number of nodes left out."""
        return dict(Counter(x.code for x in self.left_out).most_common())

    @property
    def left_out_groups(self) -> list[tuple[tuple[str, str], list[LeftOut]]]:
        """(Reason code, reason) -> the nodes left out for it, most of them first."""
        groups: dict[tuple[str, str], list[LeftOut]] = defaultdict(list)
        for x in self.left_out:
            groups[x.code, x.reason].append(x)
        return sorted(groups.items(), key=lambda item: -len(item[1]))

    @property
    def kernels(self) -> list[KernelReport]:
        return [k for c in self.compiled_clusters for k in c.kernels]

    def to_json(self, *, indent: int | None = 2) -> str:
        data = {"report_version": REPORT_VERSION, "coverage": self.coverage, "headline": self.headline, "reasons": self.reasons}
        return json.dumps({**data, **dataclasses.asdict(self)}, indent=indent)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Report:
        """What `to_json` wrote. Keys that this version does not know are left out; TypeError or KeyError for what is no report."""

        return _load(Report, data)

    @property
    def headline(self) -> str:
        """How little was compiled, and the main reason; "" where half of the ops or more are."""
        return headline(self.compiled_nodes, self.compute_nodes, self.left_out)

    def to_text(self, *, left_out_limit: int = 12) -> str:
        """A summary for a terminal. Its first line says so if little was compiled."""
        return "\n".join([*filter(None, [self.headline]), *self.body(left_out_limit=left_out_limit)])

    def body(self, *, left_out_limit: int = 12) -> list[str]:
        """The lines of `to_text` behind its headline."""
        lines = [
            f"disc_tf {self.compiler_version}, targets {', '.join(self.targets)}",
            compiled_line(self.clusters, self.compiled_nodes, self.compute_nodes, self.coverage)
            + (f", {100 * self.flops_share:.1f} % of FLOPs" if self.flops_share is not None else ""),
        ]
        if self.options.get("tuning"):
            lines.append(f"tables of schedules: {', '.join(f'{isa} {digest}' for isa, digest in self.tuning.items())}")
        if self.outputs_found:
            lines.append(f"outputs (found: the graph's sinks): {', '.join(self.outputs)}")
        for c in self.clusters:
            head = f"  {c.name}: {counted(c.nodes, 'node')}"
            if c.status != "compiled":
                lines.append(f"{head}: {c.status.replace('_', ' ')}{': ' if c.reason else ''}{c.reason}")
                continue
            kinds = Counter(k.kind for k in c.kernels)
            spelled = ", ".join(f"{n} {k}" for k, n in kinds.most_common())
            lines.append(f"{head}, {counted(len(c.kernels), 'kernel')} ({spelled}), {c.artifact_bytes / 1024:.0f} KiB of code")
            if c.arena:
                lines.append(f"    arena: {c.arena} bytes{symbols_text(c)}")
        if self.left_out:
            only_io = " (none of the ops counted above)" if self.compiled_nodes == self.compute_nodes else ""
            lines.append(f"left in TensorFlow: {counted(len(self.left_out), 'node')}{only_io}")
            ordered = self.left_out_groups
            for (code, reason), nodes in ordered[:left_out_limit]:
                names = ", ".join(n.node for n in nodes[:3]) + (", ..." if len(nodes) > 3 else "")
                lines.append(f"  {code} ({len(nodes)}): {reason} [{names}]")
            if len(ordered) > left_out_limit:
                lines.append(f"  ... and {len(ordered) - left_out_limit} more reasons (see the JSON report)")
        lines += [f"warning: {w}" for w in self.warnings]
        if self.times_ms:
            spelled = ", ".join(f"{k} {v:.0f} ms" for k, v in self.times_ms.items())
            lines.append(f"time: {spelled}")
        for s in self.verification:
            lines.append("  " + shape_line(s))
        if self.verified is not None:
            lines.append(verified_text({"": self.verification}, self.routes) if self.verified else "NOT verified: see above")
        return [*lines, *filter(None, [speed_line(self.verification)])]


#: reasons of nodes that are no ops to be compiled
_NOT_COUNTED = frozenset({"VARIABLE", "FED"})


def headline(compiled: int, ops: int, left_out: Sequence[LeftOut]) -> str:
    """``0 of 1,049 ops are compiled: <the reason of most others>``; "" where half of the ops or more are compiled, and for no ops."""
    if not ops or 2 * compiled >= ops:
        return ""
    reasons = Counter((x.code, x.reason) for x in left_out if x.code not in _NOT_COUNTED)
    why = ""
    if reasons:
        (code, reason), count = reasons.most_common(1)[0]
        example = next(x.node for x in left_out if (x.code, x.reason) == (code, reason))
        why = f": {reason} ({code}, {counted(count, 'node')}, e.g. {example})"
    return f"{compiled:,} of {ops:,} ops are compiled{why}"


def speed_line(results: Sequence[ShapeResult]) -> str:
    """The speed over all timed shapes: ``speed: 2.31x TensorFlow's over 6 shapes (least 1.80x at x[1, 8], most ...)``; "" for none."""
    timed = [(r.original_ms / r.optimized_ms, r) for r in results if r.original_ms and r.optimized_ms]
    if not timed:
        return ""
    mean = math.exp(sum(math.log(ratio) for ratio, _ in timed) / len(timed))
    ends = []
    for word, (ratio, r) in (("least", min(timed, key=lambda t: t[0])), ("most", max(timed, key=lambda t: t[0]))):
        ends.append(f"{word} {ratio:.2f}x at {', '.join(f'{name}{shape}' for name, shape in r.shapes.items())}")
    return f"speed: {mean:.2f}x TensorFlow's over {counted(len(timed), 'shape')}" + (f" ({'; '.join(ends)})" if len(timed) > 1 else "")


def verified_text(found: Mapping[str, Sequence[ShapeResult]], routes: Sequence[str]) -> str:
    """What was compared, by signature, and of files loaded how."""
    outputs = {(s, name) for s, results in found.items() for r in results for name, n in r.elements.items() if n}
    compared = [r for results in found.values() for r in results if r.compared]
    elements = sum(n for r in compared for n in r.elements.values())
    shapes = len({(s, repr(r.shapes)) for s, results in found.items() for r in results if r.compared})
    what = f": {counted(len(outputs), 'output')}, {counted(elements, 'element')} at {counted(shapes, 'shape')}" if outputs else ""
    return f"verified against TensorFlow{what}" + (f"; loaded by {', '.join(routes)}" if routes else "")


def counted(number: int, what: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}{'es' if what.endswith('ch') else 's'}"


def compiled_line(clusters: Collection[ClusterReport], compiled_nodes: int, compute_nodes: int, coverage: float) -> str:
    """How many clusters and ops are compiled (of a dry run: would be)."""
    planned = sum(c.status == "planned" for c in clusters)
    done = planned or sum(c.status == "compiled" for c in clusters)
    ops = f"{compiled_nodes} of {compute_nodes} ops ({100 * coverage:.1f} %)"
    return f"{done} of {len(clusters)} clusters{' would be' if planned else ''} compiled; {ops}"


def symbols_text(c: ClusterReport) -> str:
    """What the symbols of a cluster's arena formula stand for, as the end of a line."""
    named = [f"{s} = {c.symbols[s]}" for s in sorted(set(re.findall(r"[A-Za-z_]\w*", c.arena))) if s in c.symbols]
    return f", where {'; '.join(named)}" if named else ""


def _load(kind: Any, value: Any) -> Any:
    """Plain data as what an annotation says; dataclasses inside lists and dicts too."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        names = [f.name for f in dataclasses.fields(kind) if f.name in value]
        return typing.cast(Any, kind)(**{n: _load(hints[n], value[n]) for n in names})
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _load(next(a for a in args if a is not type(None)), value)
    if origin is list:
        return [_load(args[0], v) for v in value]
    if origin is tuple:
        return tuple(_load(a, v) for a, v in zip(args, value, strict=True))
    if origin is dict:
        return {k: _load(args[1], v) for k, v in value.items()}
    return value


def shape_line(s: ShapeResult) -> str:
    """One line about a shape: shapes, worst error, times."""
    shapes = ", ".join(f"{k}{v}" for k, v in s.shapes.items())
    worst = max(s.max_abs.values(), default=0.0)
    text = f"{'ok  ' if s.ok else 'FAIL'} {shapes}: max abs error {worst:.2e}"
    if s.original_ms is not None and s.optimized_ms:
        text += f", {s.original_ms:.2f} -> {s.optimized_ms:.2f} ms ({s.original_ms / s.optimized_ms:.2f}x{_interval(s)})"
    if s.source != "generated":
        text += f", {s.source}"
    return text + (f" ({s.message})" if s.message else "")


def _interval(s: ShapeResult) -> str:
    if s.interval is None:
        return ""
    low, high = s.interval
    return f", 95 % in {low:.2f} to {high:.2f}{': slower' if s.slower else ''}"
