"""Graph in, graph and report out: `optimize_graph_def`.

    r = disc_tf.optimize_graph_def(graph_def, outputs=["logits:0"], targets=("x86-64-v3",))
    r.graph_def, r.report

A pure function of graph and options: nothing of the graph is run, and the graph that was given is not changed. What cannot be compiled
stays as it is, with the reason in the report; a graph in which nothing can be compiled comes back as the same object.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from disc_tf.budget import Budget, OutOfTime
from disc_tf.extras import COMPILING, require
from disc_tf.frontend.analysis import SOURCES, analyse
from disc_tf.frontend.cluster import Cluster, Clustering, make_clusters
from disc_tf.frontend.condense import condense
from disc_tf.frontend.errors import GraphError, Reason
from disc_tf.frontend.flops import node_flops, share
from disc_tf.frontend.graph import Graph, parse_tensor, resolve_outputs, tensor_name
from disc_tf.frontend.hints import parse_hints
from disc_tf.frontend.importer import Imported, ImportFailed, import_cluster
from disc_tf.frontend.legacy_graph import NOT_WANTED
from disc_tf.frontend.load import Loaded, load
from disc_tf.frontend.rewrite import Launch, launch_nodes, rewrite
from disc_tf.ir.dims import Dim, DimTooComplex
from disc_tf.ir.printer import print_module
from disc_tf.options import Options, make_dump_dir
from disc_tf.report import ClusterReport, LeftOut, Report, counted
from disc_tf.version import __version__

if TYPE_CHECKING:
    from disc_tf.compiler import CompiledCluster

Progress = Callable[[str], None]
#: compiles the clusters of a loaded graph: see `compile_graph`
Elsewhere = Callable[["Loaded", "Request"], "CompiledGraph"]


#: what the user is asked to do about a `Defect`
HOW_TO_REPORT = "please report it, with the file that `disc-tf reproduce` makes of this graph"


class StrictError(RuntimeError):
    """With ``strict``: something that should compile did not. The message names the cluster and the reason."""


@dataclasses.dataclass
class OptimizeResult:
    """``graph_def``: of the class that was given. ``report``: what was done (`disc_tf.report.Report`).

    ``without(names)``: the same with the named clusters in TensorFlow (nothing is compiled again).
    """

    graph_def: Any
    report: Report
    without: Callable[[Collection[str]], Any] = dataclasses.field(default=lambda _names: None, repr=False)


#: content of a cluster -> what was made of it
Compiled = MutableMapping[bytes, "CompiledCluster"]


def optimize_graph_def(
    graph_def: Any,
    outputs: Sequence[str] | None = None,
    options: Options | Mapping[str, Any] | None = None,
    *,
    feeds: Sequence[str] = (),
    dry_run: bool = False,
    profile: bool = False,
    progress: Progress = lambda _text: None,
    elsewhere: Elsewhere | None = None,
    **overrides: Any,
) -> OptimizeResult:
    """Compile the clusters of a GraphDef.

    outputs: tensors (``name:port``), ops or ``^control`` names that will be fetched; None takes the data sinks and says so in the report.
    feeds: tensors that will be fed although they are no placeholders. options: an `Options` or a mapping; ``overrides`` are single options
    by name. dry_run: analyse and cluster only. profile: make code that `runtime.recording` sees every launch of. elsewhere:
    compiles in place of this process (`disc_tf.remote.Client.compile_graph`).
    Raises `GraphError` for a graph that TensorFlow would not take either, `OptionError` for options, `StrictError` with ``strict``.
    """
    if not hasattr(graph_def, "node"):
        kind = type(graph_def).__name__
        raise GraphError(f"a GraphDef is wanted, not {kind}: read a file with GraphDef.FromString, or give it to `disc-tf`")
    if isinstance(outputs, str):
        outputs = [outputs]
    if outputs is not None and not outputs:
        raise GraphError("no outputs are given: name what is fetched, or give None for the graph's sinks")
    settings = Options.from_overrides(options, **overrides)
    request = Request(graph_def, outputs, settings, tuple(feeds), dry_run=dry_run, profile=profile, progress=progress, elsewhere=elsewhere)
    return optimize(request)


@dataclasses.dataclass(frozen=True)
class Request:
    """What is asked of one graph; see `optimize_graph_def`.

    ``with_recipe``: the graph carries what `restore` needs. ``compiled``: shared by the caller among graphs, so that clusters of the same
    content are compiled once (within one graph no two have the same name). ``elsewhere``: compiles a loaded graph in place of this process.
    """

    graph_def: Any
    outputs: Sequence[str] | None
    settings: Options
    feeds: tuple[str, ...] = ()
    dry_run: bool = False
    profile: bool = False
    progress: Progress = lambda _text: None
    with_recipe: bool = True
    compiled: Compiled | None = None
    runs: tuple[tuple[str, ...], ...] = ()
    read_tables: bool = False
    elsewhere: Elsewhere | None = None


def optimize(request: Request) -> OptimizeResult:
    """`optimize_graph_def` for callers inside: SavedModels, functions."""
    if not request.dry_run:
        if request.elsewhere is None:
            require("compiling", "compiler", COMPILING)
        make_dump_dir(request.settings)
    keep_legacy: dict[str, str] = {}
    while True:
        unwanted, result = _optimize(request, keep_legacy)
        if unwanted.keys() <= keep_legacy.keys():
            return result
        # legacy control flow that was made functional and then not compiled stays as it was
        keep_legacy |= unwanted


def _optimize(request: Request, keep_legacy: Mapping[str, str]) -> tuple[dict[str, str], OptimizeResult]:
    """One round; also the nodes that legacy control flow was made and that run in TensorFlow, with the reason."""
    settings = request.settings
    report = Report(
        __version__, list(settings.targets), options=settings.to_dict(), tuning=settings.tuned,
        total_nodes=len(request.graph_def.node),
    )  # fmt: skip
    clock = _Clock(report)
    loaded = _load(request, keep_legacy)
    if request.elsewhere is not None:
        unwanted, compiled = _compile_elsewhere(loaded, request, keep_legacy, request.elsewhere)
    else:
        unwanted, compiled = _compile_here(loaded, request, keep_legacy, report, clock)
    if unwanted or request.dry_run or not compiled.launches:
        return unwanted, OptimizeResult(request.graph_def, compiled.report)

    def without(names: Collection[str]) -> Any:
        kept = [x for x in compiled.launches if x.cluster.name not in names]
        return rewrite(request.graph_def, compiled.clustering, kept, with_recipe=request.with_recipe)

    start = time.perf_counter()
    result = without(())
    compiled.report.times_ms["rewrite"] = (time.perf_counter() - start) * 1e3
    return {}, OptimizeResult(result, compiled.report, without)


def _compile_elsewhere(
    loaded: Loaded, request: Request, keep_legacy: Mapping[str, str], compile_: Elsewhere
) -> tuple[dict[str, str], CompiledGraph]:
    """`_compile_here` by somebody else."""
    compiled = compile_(loaded, request)
    report = compiled.report
    report.outputs_found = request.outputs is None
    report.total_nodes = len(request.graph_def.node)
    if request.settings.strict and (failed := [c for c in report.clusters if c.status == "failed"]):
        raise StrictError(f"{failed[0].name}: {failed[0].reason}")
    inside = {n.name for x in compiled.launches for n in x.cluster.nodes}
    inside |= {n for c in report.clusters if c.status == "planned" for n in c.node_names}
    unwanted = {n: "not compiled" for n in loaded.functional if n not in inside}
    return (unwanted if unwanted.keys() - keep_legacy.keys() else {}), compiled


def _compile_here(
    loaded: Loaded, request: Request, keep_legacy: Mapping[str, str], report: Report, clock: _Clock
) -> tuple[dict[str, str], CompiledGraph]:
    """The compiled graph; also the nodes that legacy control flow was made and that run in TensorFlow, with the reason."""
    clustering = _cluster(loaded, request, report, clock)
    for name, why in list(keep_legacy.items())[:5]:
        report.warnings.append(f"legacy control flow {name.rpartition('/')[0]} stays as it is: {why}")
    unwanted, launches = _compile_all(loaded, clustering, request, report, clock)
    return unwanted, CompiledGraph(clustering, launches, report)


def _compile_all(
    loaded: Loaded, clustering: Clustering, request: Request, report: Report, clock: _Clock
) -> tuple[dict[str, str], list[Launch]]:
    """Compile the clusters, and count; also the nodes that legacy control flow was made and that run in TensorFlow, with the reason."""
    settings, dry_run, progress = request.settings, request.dry_run, request.progress
    owner = clustering.owner
    unwanted = {n: str(clustering.reasons.get(n, "no output needs it")) for n in loaded.functional if n not in owner}
    if unwanted:
        return unwanted, []
    launches: list[Launch] = []
    for i, cluster in enumerate(list(clustering.clusters)):
        what = "would be compiled:" if dry_run else "compiling"
        progress(f"{cluster.name} ({i + 1} of {len(clustering.clusters)}): {what} {counted(len(cluster.nodes), 'node')}")
        entry, launch = _compile(clustering, cluster, request)
        report.clusters.append(entry)
        report.warnings += [f"{cluster.name}: {d.text}; {HOW_TO_REPORT}" for d in entry.defects]
        if launch is not None:
            launches.append(launch)
        elif entry.status == "failed":
            report.left_out += [LeftOut(n.name, n.op, "COMPILE", entry.reason) for n in cluster.nodes]
            if settings.strict:
                raise StrictError(f"{cluster.name}: {entry.reason}")
            unwanted |= {n: entry.reason for n in loaded.functional if owner[n] is cluster}
    if unwanted and launches:
        return unwanted, []
    clock.lap("compile")
    if dry_run:
        launched = [c.name for c in report.clusters if c.status == "planned"]
    else:
        launched = [x.cluster.name for x in launches]
    _coverage(report, clustering, set(launched))
    return {}, launches


@dataclasses.dataclass
class CompiledGraph:
    """What the compiler made of a graph that is not rewritten yet."""

    clustering: Clustering
    launches: list[Launch]
    report: Report


def compile_graph(graph: Graph, request: Request) -> CompiledGraph:
    """Compile the clusters of a graph that is taken as it is: its calls stay calls. Errors as `optimize_graph_def`."""
    settings = request.settings
    report = Report(__version__, list(settings.targets), options=settings.to_dict(), tuning=settings.tuned, total_nodes=len(graph.nodes))
    clock = _Clock(report)
    fetches, targets = resolve_outputs(graph, request.outputs)
    loaded = Loaded(graph, fetches, targets, [], {})
    return _compile_here(loaded, request, {}, report, clock)[1]


def clusters_of(
    graph_def: Any, outputs: Sequence[str] | None = None, options: Options | Mapping[str, Any] | None = None
) -> tuple[Loaded, Clustering]:
    """The graph as it is compiled (calls inlined) and its clusters: what `optimize_graph_def` does before it compiles. Same errors."""
    request = Request(graph_def, outputs, Options.from_overrides(options))
    keep: dict[str, str] = {}
    while True:
        report = Report()
        loaded = _load(request, keep)
        clustering = _cluster(loaded, request, report, _Clock(report))
        unwanted = {n: str(clustering.reasons.get(n, "no output needs it")) for n in loaded.functional if n not in clustering.owner}
        if unwanted.keys() <= keep.keys():
            return loaded, clustering
        keep |= unwanted


def _load(request: Request, keep_legacy: Mapping[str, str]) -> Loaded:
    settings = request.settings
    return load(
        request.graph_def,
        request.outputs,
        keep_control=settings.keep_control,
        keep_legacy=keep_legacy,
        verify=settings.verify_passes,
        read_tables=request.read_tables,
    )


class _Clock:
    def __init__(self, report: Report) -> None:
        self.report = report
        self.start = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.report.times_ms[phase] = (now - self.start) * 1e3
        self.start = now


def _cluster(loaded: Loaded, request: Request, report: Report, clock: _Clock) -> Clustering:
    """Analyse, partition."""
    graph, fetches, targets = loaded.graph, loaded.fetches, loaded.targets
    outputs, settings, progress = request.outputs, request.settings, request.progress
    report.outputs_found = outputs is None
    report.outputs = [tensor_name(ref) if ref[1] else f"{ref[0]}:0" for ref in fetches]
    if outputs is None:
        control = loaded.control_sinks
        if control and not settings.keep_control:
            shown = ", ".join(control[:5]) + (", ..." if len(control) > 5 else "")
            report.warnings.append(f"nodes that only control edges need are dropped ({shown}); --keep-control keeps them")
        progress(f"outputs are the graph's sinks: {', '.join(report.outputs)}")
    for name, why in [(k, v) for k, v in loaded.legacy.items() if v != NOT_WANTED][:5]:
        report.warnings.append(f"legacy control flow {name} stays as it is: {why}")
    clock.lap("read")
    hints = parse_hints(settings.hints)
    names = [*(ref[0] for ref in fetches), *targets]
    progress("analysing")
    feeds = [graph.check_tensor(parse_tensor(t), "feed") for t in request.feeds]
    fed = [ref for ref in feeds if graph[ref[0]].op not in SOURCES]
    analysis = analyse(graph, names, feeds=fed, hints=hints, use_tf_shapes=settings.use_tf_shapes, import_tf=settings.use_tf_shapes)
    clock.lap("analyse")
    clustering = make_clusters(
        analysis,
        fetches,
        targets,
        min_cluster_size=settings.min_cluster_size,
        allow=settings.allow,
        deny=settings.deny,
        fuel=settings.fuel,
        runs=[[parse_tensor(t)[0] for t in run] for run in request.runs],
    )
    clock.lap("cluster")
    report.pruned_nodes = len(graph.nodes) - len(clustering.order)
    report.drawing = condense(clustering)
    for name, reason in clustering.reasons.items():
        node = graph.nodes.get(name)
        if node is not None and node.op not in SOURCES:
            report.left_out.append(LeftOut(name, node.op, reason.code, reason.message))
    return clustering


def _compile(clustering: Clustering, cluster: Cluster, request: Request) -> tuple[ClusterReport, Launch | None]:
    """One cluster. Any failure leaves it in TensorFlow with the reason."""
    settings, progress = request.settings, request.progress
    entry = ClusterReport(cluster.name, len(cluster.nodes), node_names=cluster.node_names)
    if request.dry_run:
        entry.status = "planned"
        return entry, None
    from disc_tf.compiler import LIMITS, compile_module

    budget = Budget(settings.time_budget)
    try:
        start = time.perf_counter()
        imported = import_cluster(clustering, cluster)
        entry.times_ms["lower"] = (time.perf_counter() - start) * 1e3
        entry.flops = str(_flops(imported))
        entry.symbols = _symbols(imported)
        launch = Launch.of(imported, b"")  # before the passes change the module
        shared = request.compiled
        content = _content(imported) if shared is not None else b""
        compiled = shared.get(content) if shared is not None else None
        if compiled is None:
            compiled = compile_module(
                imported.module,
                settings.targets,
                name=cluster.name,
                host_results=imported.host_results,
                verify_passes=settings.verify_passes,
                dump_dir=settings.dump_dir,
                profile=request.profile,
                budget=budget,
                progress=lambda text: progress(f"{cluster.name}: {text}"),
                tuning=settings.tables,
                defects=entry.defects,
            )
            if shared is not None:
                shared[content] = compiled
    except OutOfTime as e:
        return _failed(entry, str(e)), None
    except ImportFailed as e:
        return _failed(entry, f"{e.node}: {e.reason}"), None
    except Exception as e:  # a defect of the compiler must not cost the user the graph
        if not isinstance(e, (*LIMITS, GraphError)):
            _lost(entry, e)
        return _failed(entry, f"{type(e).__name__}: {e}"), None
    compiled.describe(entry)
    launch.executable = compiled.executable
    return entry, launch


def _content(imported: Imported) -> bytes:
    """A digest of all that the compiler sees of a cluster: names of nodes too, which errors quote."""
    fn = imported.main
    likely = [fn.env.likely(d) for p in fn.body.params for d in p.dims]
    digest = hashlib.sha256(print_module(imported.module).encode())
    digest.update(repr((imported.cluster.name, imported.host_results, likely, fn.wanted_positive)).encode())
    return digest.digest()


def _lost(entry: ClusterReport, error: Exception) -> None:
    """Note that an internal error leaves the cluster in TensorFlow, which may be the last of several."""
    from disc_tf.compiler import defect_of

    last = defect_of("compilation", error)
    if entry.defects and entry.defects[-1].error == last.error:
        last = entry.defects.pop()
    entry.defects.append(dataclasses.replace(last, nodes=entry.node_names, outcome="tensorflow"))


def _failed(entry: ClusterReport, reason: str) -> ClusterReport:
    entry.status, entry.reason = "failed", reason
    return entry


def _symbols(imported: Imported) -> dict[str, str]:
    """Symbol of a parameter's dim -> the tensor and axis that has it."""
    out: dict[str, str] = {}
    for ref, p in zip(imported.args, imported.main.params, strict=False):
        for axis, d in enumerate(p.dims):
            if d.symbol is not None:
                out.setdefault(d.symbol, f"axis {axis} of {tensor_name(ref)}")
    return out


def _flops(imported: Imported) -> Any:
    """Multiply-adds of all contractions times two, as an expression in the argument dims."""
    total = Dim.of(0)
    for op in imported.main.body.ops:
        if op.name not in ("dot_general", "convolution"):
            continue
        k = Dim.of(2)
        if op.name == "dot_general":
            summed = [op.operands[0].dims[axis] for axis in op.attrs["lhs_contracting"]]
        else:
            summed = list(op.operands[1].dims[:-1])
        for d in summed:
            k = k * d
        try:
            total = total + k * op.result.tensor.num_elements()
        except DimTooComplex:
            return "too long to print"
    return total


#: nodes that are no computation of their own
_NOT_COMPUTE = frozenset({"Const", "Placeholder", "PlaceholderWithDefault", "NoOp", "ReadVariableOp", "VariableV2", "Variable"})


def _coverage(report: Report, clustering: Clustering, launched: set[str]) -> None:
    """Nodes and operations in all, and those of each cluster; the report adds up the clusters that run."""
    assert clustering.analysis is not None
    found = node_flops(clustering.analysis)
    flops = {n.name: found[n.name] for n in clustering.order}
    counted = {n.name for n in clustering.order if n.op not in _NOT_COMPUTE and n.op not in SOURCES}
    report.compute_nodes = len(counted)
    entries = {c.name: c for c in report.clusters}
    for cluster in clustering.clusters:
        entry = entries[cluster.name]
        entry.compute_nodes = sum(name in counted for name in cluster.node_names)
        entry.flops_share = share(flops, cluster.node_names)
    report.count([c for c in report.clusters if c.name in launched])
    if not clustering.clusters:
        report.flops_share = share(flops, ())


def describe_optimized(message: Any) -> dict[str, Any]:
    """What an optimised GraphDef or SavedModel message holds, from its attributes and artefact headers alone: no code is loaded."""
    from disc_tf.runtime.artifact import ArtifactError, unpack

    clusters = []
    for name, node in launch_nodes(message):
        data = node.attr["executable"].s
        entry: dict[str, Any] = {"node": name, "bytes": len(data)}
        try:
            a = unpack(data)
        except ArtifactError as e:
            entry |= {"error": str(e), "nodes": 0, "arguments": 0, "results": 0, "targets": [], "compiler_version": "?"}
        else:
            entry |= {
                "nodes": len(node.attr["nodes"].s.splitlines()),
                "arguments": len(a.args),
                "results": len(a.results),
                "targets": [t.isa for t in a.targets],
                "compiler_version": a.compiler_version,
                "kernels": {k: list(v) for k, v in a.kernels.items()},
            }
        clusters.append(entry)
    graphs = [m.graph_def for m in message.meta_graphs] if hasattr(message, "meta_graphs") else [message]
    return {"clusters": clusters, "nodes": sum(len(g.node) for g in graphs)}


__all__ = ["GraphError", "OptimizeResult", "Options", "Reason", "StrictError", "clusters_of", "describe_optimized", "optimize_graph_def"]
