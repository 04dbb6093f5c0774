"""A recording as a file for chrome://tracing and ui.perfetto.dev, and its times added up.

The format is the Trace Event Format (JSON): slices with microseconds, a track for each thread. On a track slices lie inside each other:
a run has segments, a segment its launches and what the host program does between them.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from disc_tf.runtime.artifact import Artifact, StepSpec
from disc_tf.runtime.recording import Event, Recording

#: kinds that are time of the host program's own thread, directly inside a segment or what holds them
_INSIDE = ("kernel", "library", "arena", "prepare", "output", "send")
#: how a kind is called where times are added up
LABELS = {
    "host": "host program", "arena": "memory for intermediate results", "prepare": "packed constants", "output": "memory for results",
    "send": "delivering results",
}  # fmt: skip
_PROCESS, _TENSORFLOW = 1, 2


@dataclasses.dataclass(frozen=True)
class TfSlice:
    """A node that TensorFlow ran, with nanoseconds of CLOCK_MONOTONIC."""

    node: str
    op: str
    begin_ns: int
    end_ns: int


#: how the symbols of kernels around products and convolutions begin, and the last parts of those nodes' names
_PRODUCTS = ("k_gemm", "k_conv", "k_attention", "k_depthwise")
_TELLING = ("matmul", "batchmatmul", "batch_matmul", "einsum", "conv", "depthwise")


def label_of(symbol: str, nodes: Sequence[str]) -> str:
    """A kernel by the nodes that it computes: the product or convolution, else the first, and the number of the others."""
    told = (n for n in nodes if n.rpartition("/")[2].lower().startswith(_TELLING)) if symbol.startswith(_PRODUCTS) else iter(())
    first = next(told, nodes[0])
    return f"{first} +{len(nodes) - 1}" if len(nodes) > 1 else first


@dataclasses.dataclass
class Program:
    """What is known of an executable: kernel -> nodes of all its launches, and, of code compiled for traces, the steps of its program, a
    list for each target (a run's kernels are those of one of them)."""

    nodes: Mapping[str, Sequence[str]]
    targets: Sequence[Sequence[StepSpec]] = ()

    @staticmethod
    def of(artifact: Artifact) -> Program:
        return Program(artifact.kernels, [*artifact.steps.values()])

    @property
    def complete(self) -> bool:
        """Whether every launch of its runs is recorded."""
        return bool(self.targets)

    def steps(self, symbols: Sequence[str]) -> list[StepSpec | None]:
        """Which step each launch of a run belongs to, where that is sure. ``symbols``: of the launches in order.

        It is for a kernel that only one step has; for one that several have (equal layers) if the launches are the whole of the
        program, in its order: no loop, and no branch that was not taken.
        """
        for target in self.targets:
            if (whole := _in_order(target, symbols)) is not None:
                return [*whole]
        each = [next(filter(None, (_having(target, s) for target in self.targets)), []) for s in symbols]
        return [found[0] if len(found) == 1 else None for found in each]

    def nodes_of(self, symbol: str, step: StepSpec | None) -> Sequence[str]:
        return step.nodes if step is not None and step.nodes else self.nodes.get(symbol, ())

    def label(self, symbol: str, step: StepSpec | None = None) -> str:
        nodes = self.nodes_of(symbol, step)
        return label_of(symbol, nodes) if nodes else symbol or "part of a library function"

    def work(self, symbol: str, step: StepSpec | None, extents: Mapping[str, int]) -> dict[str, Any]:
        """Kind, operations, bytes and shapes of a launch, as far as they are known: its step's, or what all steps with its kernel share."""
        found = [step] if step is not None else next(filter(None, (_having(target, symbol) for target in self.targets)), [])
        each = [_work(k, extents) for k in found]
        return {key: value for key, value in each[0].items() if all(e.get(key) == value for e in each)} if each else {}


def _having(steps: Sequence[StepSpec], symbol: str) -> list[StepSpec]:
    return [k for k in steps if any(symbol in variant for variant in k.variants)]


def _in_order(steps: Sequence[StepSpec], symbols: Sequence[str]) -> list[StepSpec] | None:
    out: list[StepSpec] = []
    for step in steps:
        at = len(out)
        variant = next((v for v in sorted(step.variants, key=len, reverse=True) if tuple(symbols[at : at + len(v)]) == tuple(v)), None)
        if variant is None:
            return None
        out += [step] * len(variant)
    return out if len(out) == len(symbols) else None


def steps_of(events: Sequence[Event], programs: Mapping[str, Program]) -> dict[int, StepSpec]:
    """Number of a launch or of a thread's part of one (in the order given) -> its step, where that is sure."""
    around = holders(events)
    launches: dict[int, list[int]] = defaultdict(list)
    for i, e in enumerate(events):
        if e.kind in ("kernel", "library") and (i not in around or around[i].kind == "segment"):
            launches[e.run].append(i)
    out: dict[int, StepSpec] = {}
    for numbers in launches.values():
        numbers.sort(key=lambda i: events[i].begin_ns)
        program = programs.get(events[numbers[0]].executable, Program({}))
        for i, step in zip(numbers, program.steps([events[i].name for i in numbers]), strict=True):
            if step is not None:
                out[i] = step
    spread: dict[int, list[int]] = defaultdict(list)
    for i, e in enumerate(events):
        if e.kind == "kernel" and e.second > 1 and i in out:
            spread[e.run].append(i)
    for i, e in enumerate(events):
        if e.kind == "chunk":
            for k in spread.get(e.run, ()):
                if events[k].begin_ns <= e.begin_ns and e.end_ns <= events[k].end_ns:
                    out[i] = out[k]
    return out


def _work(kernel: StepSpec, extents: Mapping[str, int]) -> dict[str, Any]:
    from disc_tf.insight.profile import evaluate

    out: dict[str, Any] = {"kind": kernel.kind}
    if kernel.flops and (flops := evaluate([kernel.flops], extents)) is not None:
        out["flops"] = flops
    if (moved := evaluate(kernel.traffic, extents)) is not None:
        out["bytes"] = moved
    shapes = []
    for dtype, *dims in kernel.results:
        values = [evaluate([d], extents) for d in dims]
        shapes.append(f"{dtype}[{','.join('?' if v is None else str(int(v)) for v in values)}]")
    out["makes"] = shapes
    return out


def extents_of(events: Sequence[Event]) -> dict[int, dict[str, int]]:
    """Run -> the values of the symbols ``a<i>d<k>``: axis k of argument i."""
    out: dict[int, dict[str, int]] = defaultdict(dict)
    for e in events:
        if e.kind == "extent":
            out[e.run][f"a{e.first}d{e.axis}"] = e.second
    return out


def shapes_of(events: Sequence[Event]) -> dict[int, dict[str, list[int]]]:
    """Run -> the shapes of its arguments by name, constants and scalars apart."""
    out: dict[int, dict[str, list[int]]] = defaultdict(dict)
    for e in sorted((e for e in events if e.kind == "extent"), key=lambda e: (e.first, e.axis)):
        out[e.run].setdefault(e.name, []).append(e.second)
    return out


def holders(events: Sequence[Event]) -> dict[int, Event]:
    """Number of an event (in the order given) -> the segment, call or launch of its thread that it lies directly inside of."""
    threads: dict[int, list[int]] = defaultdict(list)
    for i, e in enumerate(events):
        if e.kind in ("segment", *_INSIDE):
            threads[e.thread].append(i)
    out: dict[int, Event] = {}
    for numbers in threads.values():
        around: list[Event] = []
        # of two that begin at once the longer one is the outer, of two that end at once, too, the one that was complete later
        for i in sorted(numbers, key=lambda i: (events[i].begin_ns, -events[i].end_ns, -i)):
            e = events[i]
            while around and (around[-1].end_ns < e.end_ns or around[-1].end_ns <= e.begin_ns):
                around.pop()
            if around:
                out[i] = around[-1]
            around.append(e)
    return out


@dataclasses.dataclass(frozen=True)
class Gap:
    """Time of a host program between two things that it asked for. event: the segment, or the packed constant that was made."""

    event: Event
    begin_ns: int
    end_ns: int


def host_gaps(events: Sequence[Event]) -> list[Gap]:
    """What is left of each segment, and of each packed constant that was made, when everything directly inside it is taken away."""
    inner: dict[int, list[Event]] = {id(e): [] for e in events if e.kind == "segment" or (e.kind == "prepare" and e.second)}
    for i, outer in holders(events).items():
        if id(outer) in inner:
            inner[id(outer)].append(events[i])
    gaps = []
    for outer in events:
        if id(outer) not in inner:
            continue
        at = outer.begin_ns
        for e in sorted(inner[id(outer)], key=lambda e: e.begin_ns):
            if e.begin_ns > at:
                gaps.append(Gap(outer, at, e.begin_ns))
            at = max(at, e.end_ns)
        if outer.end_ns > at:
            gaps.append(Gap(outer, at, outer.end_ns))
    return gaps


def trace_json(
    recording: Recording, programs: Mapping[str, Program], tensorflow: Sequence[TfSlice] = (), about: Mapping[str, Any] | None = None
) -> bytes:
    """The file's content. programs: executable -> `Program`; about: what is said of the whole (``otherData``)."""
    events = recording.events
    zero = min([e.begin_ns for e in events] + [t.begin_ns for t in tensorflow], default=0)
    extents, shapes = extents_of(events), shapes_of(events)
    nothing = Program({})
    steps = steps_of(events, programs)
    out: list[dict[str, Any]] = []

    def add(thread: int, name: str, kind: str, begin: int, end: int, args: Mapping[str, Any], process: int = _PROCESS) -> None:
        out.append(
            {"name": name, "cat": kind, "ph": "X", "ts": (begin - zero) / 1e3, "dur": (end - begin) / 1e3, "pid": process, "tid": thread,
             "args": dict(args)}
        )  # fmt: skip

    for i, e in enumerate(events):
        program = programs.get(e.executable, nothing)
        if e.kind == "extent":
            continue
        name, args = _described(e, program, steps.get(i), extents.get(e.run, {}), shapes.get(e.run, {}))
        add(e.thread, name, e.kind, e.begin_ns, e.end_ns, {"cluster": e.executable, "run": e.run, **args})
    for gap in host_gaps(events):
        add(gap.event.thread, "host program", "host", gap.begin_ns, gap.end_ns, {"cluster": gap.event.executable, "run": gap.event.run})
    tracks = _tracks(tensorflow)
    for track, slices in enumerate(tracks, 1):  # viewers keep thread 0 for an idle CPU
        for t in slices:
            add(track, t.node, "tensorflow", t.begin_ns, t.end_ns, {"op": t.op}, _TENSORFLOW)
    meta = [_named("process_name", _PROCESS, 0, "compiled code")]
    if tensorflow:
        meta.append(_named("process_name", _TENSORFLOW, 0, "TensorFlow's nodes"))
        meta += [_named("thread_name", _TENSORFLOW, t, f"nodes {t}") for t in range(1, len(tracks) + 1)]
    callers = {e.thread for e in events if e.kind == "run"}
    for thread in sorted({e.thread for e in events}):
        called = recording.threads.get(thread, "thread")
        meta.append(_named("thread_name", _PROCESS, thread, f"{called} (runs)" if thread in callers else called))
    data = {"displayTimeUnit": "ns", "otherData": {"dropped_events": recording.dropped, **(about or {})}, "traceEvents": meta + out}
    return json.dumps(data, separators=(",", ":")).encode()


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _described(
    e: Event, program: Program, step: StepSpec | None, extents: Mapping[str, int], shapes: Mapping[str, Sequence[int]]
) -> tuple[str, dict[str, Any]]:
    """What a slice is called, and what is said of it."""
    if e.kind == "run":
        arguments = {name: list(dims) for name, dims in shapes.items()}
        return f"run of {e.executable or 'a model'}", {"arguments": arguments, "waiting_segments": e.first}
    if e.kind == "segment":
        return f"segment {e.first}", {}
    if e.kind == "chunk":
        return program.label(e.name, step), {"kernel": e.name, "tasks": [e.first, e.second]}
    if e.kind == "kernel":
        args: dict[str, Any] = {"kernel": e.name, "nodes": list(program.nodes_of(e.name, step)), "tasks": e.first, "threads": e.second}
        args |= program.work(e.name, step, extents)
        if e.processor_ns:
            args["processor_us"] = e.processor_ns / 1e3
        if "flops" in args and e.end_ns > e.begin_ns:
            args["gflops_per_s"] = round(args["flops"] / (e.end_ns - e.begin_ns), 2)
        if "bytes" in args and e.end_ns > e.begin_ns:
            args["gb_per_s"] = round(args["bytes"] / (e.end_ns - e.begin_ns), 2)
        return program.label(e.name, step), args
    if e.kind == "library":
        nodes = list(step.nodes) if step is not None else []
        return (label_of(e.name, nodes) if nodes else e.name), {"function": e.name, "nodes": nodes}
    if e.kind == "arena":
        return f"memory for slot {e.first}", {"bytes": e.second}
    if e.kind == "prepare":
        return f"{'make or read' if e.second else 'find'} packed constant {e.first}", {}
    return f"{'memory for' if e.kind == 'output' else 'deliver'} {e.name}", {"result": e.first}


def _tracks(slices: Sequence[TfSlice]) -> list[list[TfSlice]]:
    """In rows in which none overlaps another."""
    rows: list[list[TfSlice]] = []
    for t in sorted(slices, key=lambda t: (t.begin_ns, -t.end_ns)):
        row = next((r for r in rows if r[-1].end_ns <= t.begin_ns), None)
        if row is None:
            rows.append([t])
        else:
            row.append(t)
    return rows


@dataclasses.dataclass
class Share:
    """Time of one sort of work in a run: of a kernel by its nodes, or of one of `LABELS`. us: of a run, the median over runs;
    calls: in a run."""

    cluster: str
    name: str
    kernel: str
    calls: float
    us: float


def shares(recording: Recording, programs: Mapping[str, Program], *, skip_runs: int = 0) -> list[Share]:
    """Where the time went, longest first. skip_runs: so many first runs of each cluster are left out (packed constants are made there)."""
    runs: dict[str, list[int]] = defaultdict(list)
    for e in sorted((e for e in recording.events if e.kind == "run"), key=lambda e: e.begin_ns):
        if e.run not in runs[e.executable]:
            runs[e.executable].append(e.run)
    counted = {r: cluster for cluster, found in runs.items() for r in found[skip_runs if len(found) > skip_runs else 0 :]}
    spent: dict[tuple[str, str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    calls: dict[tuple[str, str, str], int] = defaultdict(int)

    def note(run: int, cluster: str, name: str, kernel: str, ns: int) -> None:
        if run in counted:
            spent[cluster, name, kernel][run] += ns / 1e3
            calls[cluster, name, kernel] += 1

    around = holders(recording.events)
    for i, e in enumerate(recording.events):
        # launches and calls inside of library functions and packed constants: their time is those'
        if e.kind not in _INSIDE or (i in around and around[i].kind != "segment"):
            continue
        program = programs.get(e.executable, Program({}))
        name = program.label(e.name) if e.kind == "kernel" else e.name if e.kind == "library" else LABELS[e.kind]
        note(e.run, e.executable, name, e.name if e.kind in ("kernel", "library") else "", e.end_ns - e.begin_ns)
    for gap in host_gaps(recording.events):
        if gap.event.kind == "segment":
            note(gap.event.run, gap.event.executable, LABELS["host"], "", gap.end_ns - gap.begin_ns)
    number = {cluster: sum(c == cluster for c in counted.values()) for cluster in runs}
    out = []
    for key, by_run in spent.items():
        values = [by_run.get(r, 0.0) for r, cluster in counted.items() if cluster == key[0]]
        out.append(Share(*key, calls[key] / number[key[0]], statistics.median(values)))
    return sorted(out, key=lambda s: -s.us)


def runs_us(recording: Recording, skip_runs: int = 0) -> dict[str, list[float]]:
    """Cluster -> microseconds of each of its runs, of the staged ones of all their parts."""
    spent: dict[str, dict[int, float]] = defaultdict(dict)
    for e in sorted((e for e in recording.events if e.kind == "run"), key=lambda e: e.begin_ns):
        spent[e.executable][e.run] = spent[e.executable].get(e.run, 0.0) + (e.end_ns - e.begin_ns) / 1e3
    return {c: list(by_run.values())[skip_runs if len(by_run) > skip_runs else 0 :] for c, by_run in spent.items()}


__all__ = ["LABELS", "Program", "Share", "TfSlice", "extents_of", "holders", "host_gaps", "runs_us", "shapes_of", "shares", "trace_json"]
