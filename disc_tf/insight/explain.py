"""What happens with one node of a graph, and why."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disc_tf.frontend.analysis import SOURCES, Analysis
from disc_tf.frontend.cluster import Cluster, Clustering
from disc_tf.frontend.errors import REASON_ADVICE, REASON_TEXT, GraphError
from disc_tf.frontend.graph import tensor_name
from disc_tf.frontend.importer import ImportFailed, import_cluster
from disc_tf.frontend.load import Loaded
from disc_tf.frontend.rewrite import LAUNCH_OP
from disc_tf.optimizer import clusters_of
from disc_tf.options import Options
from disc_tf.spelling import close_to, did_you_mean

if TYPE_CHECKING:
    from disc_tf.fusion.types import Plan
    from disc_tf.passes.specialize import SpecializedModule

#: what a cluster's name is explained as, where no launch stands for it yet
_CLUSTER = "cluster"
#: kinds of fusions that launch nothing
_QUIET = {
    "view": "it only looks at memory in another way: no code",
    "constant": "it is a constant after optimisation: no code",
    "host": "sizes and scalars: computed by the host program, no kernel",
}
#: how symbols of kernels end: by hashes, one of them the target's
_HASHES = re.compile(r"(_[0-9a-f]{8,})+$")
#: nodes of the same kernel that are listed
_LISTED = 24


@dataclasses.dataclass
class InKernel:
    """A kernel that computes (part of) the node: its kind (in compiled code its name, once for all targets), position among the cluster's
    kernels, and the other nodes in it. Of a cluster: one of its kernels, and the nodes in it."""

    kind: str
    number: int
    of: int
    with_nodes: list[str]


@dataclasses.dataclass
class Explanation:
    """``status``: compiled, in_tensorflow, constant, input, inlined or not_needed. ``inputs``, ``outputs``: tensor -> type with named dims;
    ``dims``: what these names are. ``reason`` and ``advice`` where it is not compiled. ``notes``: sentences."""

    node: str
    op: str
    status: str
    device: str = ""
    inputs: dict[str, str] = dataclasses.field(default_factory=dict)
    outputs: dict[str, str] = dataclasses.field(default_factory=dict)
    dims: dict[str, str] = dataclasses.field(default_factory=dict)
    cluster: str = ""
    kernels: list[InKernel] = dataclasses.field(default_factory=list)
    code: str = ""
    reason: str = ""
    advice: str = ""
    notes: list[str] = dataclasses.field(default_factory=list)

    def to_text(self) -> str:
        lines = [f"{self.node} ({self.op}): {self.status.replace('_', ' ')}{f' in {self.cluster}' if self.cluster else ''}"]
        lines += [f"  reads {t}: {type_}" for t, type_ in self.inputs.items()]
        lines += [f"  gives {t}: {type_}" for t, type_ in self.outputs.items()]
        if self.dims:
            lines.append("  where " + ", ".join(f"{d} is {what}" for d, what in self.dims.items()))
        for k in self.kernels:
            shown = ", ".join(k.with_nodes[:_LISTED])
            more = f" and {len(k.with_nodes) - _LISTED} more" if len(k.with_nodes) > _LISTED else ""
            what = (shown or "nothing of the graph") if self.op in (_CLUSTER, LAUNCH_OP) else f"it, with {shown}" if shown else "it, alone"
            lines.append(f"  kernel {k.number} of {k.of} ({k.kind}) computes {what}{more}")
        if self.reason:
            lines.append(f"  why: {self.reason} [{self.code}: {REASON_TEXT.get(self.code, '')}]")
        if self.advice:
            lines.append(f"  way out: {self.advice}")
        return "\n".join([*lines, *(f"  {n}" for n in self.notes)])


def explain(graph_def: Any, name: str, outputs: list[str] | None = None, options: Options | None = None) -> Explanation:
    """Explain ``name``, a node of the graph (or of a function that is inlined, by its name after that). ``GraphError`` if there is none."""
    if any(n.op == LAUNCH_OP for n in graph_def.node):
        return _explain_optimized(graph_def, name)
    loaded, clustering = clusters_of(graph_def, outputs, options)
    graph = loaded.graph
    name = name.partition(":")[0].lstrip("^")
    given = {n.name: n for n in graph_def.node}
    if name not in graph.nodes:
        cluster = next((c for c in clustering.clusters if c.name == name), None)
        if cluster is not None:
            return _whole_cluster(clustering, cluster)
        if name not in given:
            raise GraphError(_unknown(name, [*given, *graph.nodes, *(c.name for c in clustering.clusters)]))
        return _gone(given[name], loaded)
    node = graph[name]
    out = Explanation(name, node.op, "in_tensorflow", node.device)
    analysis = clustering.analysis
    assert analysis is not None
    _types(out, analysis, name)
    live = {n.name for n in clustering.order}
    owner = clustering.owner.get(name)
    if owner is not None:
        _in_cluster(out, clustering, owner)
    elif name not in live and node.op != "Const":
        out.status = "not_needed"
        out.notes.append("no output needs it, so it is dropped" if name not in {n.name for n in analysis.order} else
                         "only edges without meaning led to it: once its users are compiled nothing needs it")  # fmt: skip
    elif node.op == "Const":
        _constant(out, clustering, name)
    elif node.op in SOURCES:
        out.status = "input"
        users = sorted({clustering.owner[u.name].name for u in graph.consumers.get(name, ()) if u.name in clustering.owner})
        out.notes.append(f"read by {', '.join(users)}" if users else "no cluster reads it")
    else:
        reason = clustering.reasons.get(name)
        if reason is not None:
            out.code, out.reason, out.advice = reason.code, reason.message, REASON_ADVICE.get(reason.code, "")
    return out


def explain_model(directory: str | Path, name: str, options: Options | None = None) -> dict[str, Explanation]:
    """Explain ``name`` in a SavedModel: function (or main graph) looked at -> `Explanation`, for each that has it; with the tags before
    the name, where several MetaGraphs are looked at. ``GraphError`` if none
    has, `SavedModelError` for a directory that cannot be read."""
    from disc_tf.frontend.saved_model import choose_meta_graphs, read_saved_model
    from disc_tf.saved_model_rewrite import rewrite_meta_graph

    choices = [c for c in choose_meta_graphs(read_saved_model(directory)) if not c.reason]
    bodies = {}
    for c in choices:
        where = f"[{c.title}] " if len(choices) > 1 else ""
        rewritten = rewrite_meta_graph(c.meta, options or Options(), dry_run=True)
        bodies |= {f"{where}{function}": body for function, body in rewritten.bodies.items()}
    found, close = {}, ""
    for function, (graph_def, fetches) in bodies.items():
        try:
            found[function] = explain(graph_def, name, fetches, options)
        except GraphError as e:
            close = close or str(e).partition("; ")[2]
    if not found:
        looked = ", ".join(list(bodies)[:4]) or "none"
        raise GraphError(f"no function that is looked at has a node {name!r} ({looked})" + (f"; {close}" if close else ""))
    return found


def _unknown(name: str, names: list[str]) -> str:
    ending = [n for n in names if n.endswith(f"/{name}")][:3]
    return f"the graph has no node {name!r}{did_you_mean([*ending, *close_to(name, names, 3)])}"


def _gone(proto: Any, loaded: Loaded) -> Explanation:
    """A node of the graph as given that is not there once calls are inlined and control flow is functional."""
    out = Explanation(proto.name, proto.op, "inlined", proto.device)
    inside = [n for n in loaded.graph.nodes if n.startswith(f"{proto.name}/")]
    if inside:
        out.notes.append(f"its body is part of the graph now: {len(inside)} nodes, {', '.join(inside[:3])}, ...: explain one of these")
    else:
        out.notes.append("it became part of other nodes when calls were inlined and legacy control flow was made functional")
    return out


def _types(out: Explanation, analysis: Analysis, name: str) -> None:
    node = analysis.graph[name]
    symbols: set[str] = set()

    def text(ref: tuple[str, int]) -> str:
        type_ = analysis.type_of(ref)
        if type_ is None:
            return "not a number, or its rank is not known"
        for d in type_.dims:
            symbols.update(d.symbols())
        return str(type_)

    out.inputs = {tensor_name(ref): text(ref) for ref in node.inputs}
    out.outputs = {tensor_name((name, port)): text((name, port)) for port in range(len(node.output_types or ()))}
    found: dict[str, str] = {}
    for ref, value in analysis.values.items():
        for axis, d in enumerate(value.dims):
            if d.symbol in symbols and d.symbol not in found:
                found[d.symbol] = f"axis {axis} of {tensor_name(ref)}"
        if len(found) == len(symbols):
            break
    out.dims = {s: found.get(s, "known at run time only") for s in sorted(symbols)}


def _whole_cluster(clustering: Clustering, cluster: Cluster) -> Explanation:
    """A cluster by its name: all of its kernels."""
    out = Explanation(cluster.name, _CLUSTER, "compiled", notes=[f"a cluster of {len(cluster.nodes)} original nodes"])
    planned = _planned(out, clustering, cluster)
    if planned is not None:
        kernels = planned[1].kernels()
        out.kernels = [InKernel(f.kind, i + 1, len(kernels), list(f.nodes)) for i, f in enumerate(kernels)]
    return out


def _planned(out: Explanation, clustering: Clustering, cluster: Cluster) -> tuple[SpecializedModule, Plan] | None:
    """The optimised module and its fusion plan; None, with the reason in ``out``, for what stays in TensorFlow. Nothing is emitted."""
    from disc_tf.fusion.plan import make_plan
    from disc_tf.ir.pass_manager import PassContext
    from disc_tf.passes.pipeline import optimize

    try:
        imported = import_cluster(clustering, cluster)
    except ImportFailed as e:
        out.status, out.code, out.reason = "in_tensorflow", e.reason.code, f"{e.node}: {e.reason.message}"
        out.advice = f"its whole cluster stays in TensorFlow; --deny '{e.node}' compiles the rest"
        return None
    special = optimize(imported.module, PassContext())
    return special, make_plan(special.uniform.main)


def _in_cluster(out: Explanation, clustering: Clustering, cluster: Cluster) -> None:
    """What the fusion plan makes of a node."""
    out.status, out.cluster = "compiled", cluster.name
    planned = _planned(out, clustering, cluster)
    if planned is None:
        return
    special, plan = planned
    kernels = plan.kernels()
    for f in plan:
        if out.node not in f.nodes:
            continue
        if f.kind in _QUIET:
            out.notes.append(_QUIET[f.kind])
        else:
            out.kernels.append(InKernel(f.kind, kernels.index(f) + 1, len(kernels), [n for n in f.nodes if n != out.node]))
    if out.kernels:
        out.notes = []
    prepare = special.uniform.functions.get("prepare")
    if prepare is not None and any(out.node in op.loc for op in prepare.body.ops):
        out.notes.append("it depends on constants only: done once, when the executable is loaded")
    elif not out.kernels and not out.notes:
        out.notes.append("it has no code of its own: it was folded into other nodes, or equals one of them")
    out.notes = list(dict.fromkeys(out.notes))


def _constant(out: Explanation, clustering: Clustering, name: str) -> None:
    out.status = "constant"
    inside = [c.name for c in clustering.clusters if name in c.constants]
    reads = [c.name for c in clustering.clusters if any(ref[0] == name for ref in c.inputs)]
    if inside:
        out.notes.append(f"small: its value is part of the code of {', '.join(inside)}")
    if reads:
        out.notes.append(f"an argument of {', '.join(reads)}: stored in the graph once, packed for products when it is first used")
    if not inside and not reads:
        out.notes.append("no cluster reads it")


def _explain_optimized(graph_def: Any, name: str) -> Explanation:
    """From the attributes and headers of launches; no code is loaded."""
    names: list[str] = []
    for node in graph_def.node:
        if node.name == name and node.op != LAUNCH_OP:
            return Explanation(name, node.op, "in_tensorflow", node.device, notes=["disc-tf inspect of the original says why"])
        if node.op != LAUNCH_OP:
            names.append(node.name)
            continue
        members = node.attr["nodes"].s.decode("utf-8", "replace").splitlines()
        names += [node.name, *members]
        if name == node.name or name in members:
            return _in_launch(graph_def, node, name, members)
    raise GraphError(_unknown(name, names))


def _in_launch(graph_def: Any, node: Any, name: str, members: list[str]) -> Explanation:
    """A launch, or one of the nodes that were compiled into it."""
    from disc_tf.runtime.artifact import ArtifactError, unpack

    whole = name == node.name
    if whole:
        out = Explanation(name, LAUNCH_OP, "compiled", node.device, notes=[f"a cluster of {len(members)} original nodes"])
    else:
        op = next((n.op for f in graph_def.library.function if f.signature.name == node.attr["original"].func.name
                   for n in f.node_def if n.name == name), "?")  # fmt: skip
        out = Explanation(name, op, "compiled", node.device, cluster=node.name)
    try:
        kernels = families(unpack(node.attr["executable"].s).kernels)
    except ArtifactError as e:
        out.notes.append(f"its code cannot be read: {e}")
        return out
    for i, (kind, nodes) in enumerate(kernels):
        if whole or name in nodes:
            out.kernels.append(InKernel(kind, i + 1, len(kernels), [n for n in nodes if whole or n != name]))
    return out


def families(kernels: Mapping[str, Sequence[str]]) -> list[tuple[str, tuple[str, ...]]]:
    """(name without what tells targets and shapes apart, nodes) of an artefact's kernels, each once."""
    return list(dict.fromkeys((_HASHES.sub("", symbol), tuple(nodes)) for symbol, nodes in kernels.items()))
