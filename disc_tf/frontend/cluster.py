"""Marking and partitioning: which nodes become which cluster, and why the others do not.

The rules are design 3.2's: compiled nodes are contracted without cycles (`partition`), control edges count as what they really order
(`control`), independent parts are not joined where a slow host op would hold one back, and a cluster must be worth its launch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from disc_tf.frontend.analysis import SOURCES, Analysis
from disc_tf.frontend.control import nearest_hard
from disc_tf.frontend.errors import Reason
from disc_tf.frontend.graph import Graph, Node, TensorRef, fresh_name, resolve_outputs
from disc_tf.frontend.opdefs import CALL_OPS, CONTROL_FLOW, is_slow, op_info
from disc_tf.frontend.partition import Item, partition
from disc_tf.ir.types import TensorType
from disc_tf.lowering.tensor_lists import TensorList

#: contractions and convolutions: work that is worth starting early, and worth a launch alone
HEAVY_PREFIXES = (
    "MatMul", "BatchMatMul", "Conv", "DepthwiseConv", "Einsum", "_FusedMatMul", "_FusedBatchMatMul", "_FusedConv", "_MklFused",
)  # fmt: skip
#: ops that are no work of their own
TRIVIAL = frozenset({"Const", "Identity", "IdentityN", "StopGradient", "Snapshot", "PreventGradient", "NoOp", "EnsureShape"})
_SLOW_UNKNOWN = frozenset({"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase", *CALL_OPS})


@dataclasses.dataclass
class Cluster:
    """Nodes that become one launch.

    ``nodes``: in topological order, without small constants. ``constants``: names of Const nodes that are copied inside (the graph's own
    node stays if others read it). ``inputs``: tensors from outside in order of first use; ``outputs``: tensors that others read or that
    are fetched. ``controls``: nodes outside (or in other clusters) that must run before. ``through``: operands of the nodes that are read
    through Identity nodes outside -> the input that they are.
    """

    name: str
    nodes: list[Node]
    constants: list[str] = dataclasses.field(default_factory=list)
    inputs: list[TensorRef] = dataclasses.field(default_factory=list)
    outputs: list[TensorRef] = dataclasses.field(default_factory=list)
    controls: list[str] = dataclasses.field(default_factory=list)
    through: dict[TensorRef, TensorRef] = dataclasses.field(default_factory=dict)

    @property
    def node_names(self) -> list[str]:
        return [node.name for node in self.nodes]


@dataclasses.dataclass
class Clustering:
    """The clusters and the reason of every live node that is in none of them (`SOURCES` apart).

    ``order``: nodes that still run, in topological order; nodes that only edges without meaning kept alive are not among them.
    ``hard``: what a control edge from each node stands for (see `control`). ``compiled``: every node that could be in a cluster.
    """

    graph: Graph
    order: list[Node]
    compiled: set[str]
    clusters: list[Cluster]
    reasons: dict[str, Reason]
    hard: dict[str, frozenset[str]]
    fetches: list[TensorRef]
    targets: list[str]
    #: None for a clustering that was read from a rewritten graph
    analysis: Analysis | None = None

    @property
    def owner(self) -> dict[str, Cluster]:
        """Node -> its cluster."""
        return {node.name: c for c in self.clusters for node in c.nodes}

    def without(self, name: str, reason: Reason) -> Clustering:
        """The clustering with one cluster left in TensorFlow (it failed to compile, or was put back)."""
        gone = [c for c in self.clusters if c.name == name]
        kept = [c for c in self.clusters if c.name != name]
        reasons = {**self.reasons, **{node.name: reason for c in gone for node in c.nodes}}
        found = dataclasses.replace(self, clusters=[dataclasses.replace(c) for c in kept], reasons=reasons)
        _boundaries(found)
        return found


def matches(patterns: Iterable[str], node: Node) -> bool:
    """Whether a glob pattern matches the node's op type or its name."""
    return any(fnmatchcase(node.op, p) or fnmatchcase(node.name, p) for p in patterns)


def is_heavy(op: str) -> bool:
    return op.startswith(HEAVY_PREFIXES)


def make_clusters(
    analysis: Analysis,
    fetches: Sequence[TensorRef],
    targets: Sequence[str] = (),
    *,
    min_cluster_size: int = 4,
    allow: Sequence[str] = (),
    deny: Sequence[str] = (),
    fuel: int = -1,
    runs: Sequence[Sequence[str]] = (),
) -> Clustering:
    """Partition the analysed graph. ``fetches`` and ``targets`` are the outputs that were analysed.

    ``runs``: nodes that are fetched together, each on its own (the signatures of a model): no cluster holds nodes of different ones,
    since it would want the inputs of all.

    ``allow`` (if not empty, only these) and ``deny``: glob patterns on op types and node names. ``fuel``: at most this many clusters,
    in topological order, -1 for all.
    """
    graph = analysis.graph
    hard = nearest_hard(graph, analysis.order, [n for n, _ in fetches], targets)
    reasons = dict(analysis.reasons)
    compiled = _mark(analysis, hard, reasons, allow, deny)
    while True:
        live = _closure(graph, [*(n for n, _ in fetches), *targets], compiled, hard)
        order = [node for node in analysis.order if node.name in live]
        items = _items(analysis, order, compiled, hard, {n for n, _ in fetches})
        groups = partition(_kept_apart(items, order, [graph.reachable(run) for run in runs]))
        cut = _cut_lists(analysis, order, groups, {n for n, _ in fetches})
        if not cut:
            break
        compiled -= cut
        reasons.update((name, Reason("DTYPE", "a TensorList does not leave its cluster")) for name in cut)
    clusters: list[Cluster] = []
    taken = set(graph.nodes) | set(graph.signatures)
    for group in groups:
        nodes = _peel(graph, [order[i] for i in group], hard, live, {n for n, _ in fetches}, reasons)
        small = _too_small(analysis, nodes, min_cluster_size)
        if small or 0 <= fuel <= len(clusters):
            reason = Reason("CLUSTER_TOO_SMALL", small) if small else Reason("FUEL", f"fuel of {fuel} clusters used up")
            reasons.update((node.name, reason) for node in nodes)
            continue
        clusters.append(Cluster(fresh_name(f"disc_cluster_{len(clusters)}", taken, "_v"), nodes))
    result = Clustering(graph, order, compiled, clusters, reasons, hard, list(fetches), list(targets), analysis)
    _boundaries(result)
    return result


def whole_graph(analysis: Analysis, fetches: Sequence[TensorRef], targets: Sequence[str] = ()) -> Clustering:
    """The clustering in which one cluster has every node that ``fetches`` and ``targets`` need, whatever it is worth.

    ``reasons`` says of each needed node that is not compiled why: then the cluster is not the whole graph. There is no cluster if only
    inputs and constants are needed.
    """
    graph = analysis.graph
    hard = nearest_hard(graph, analysis.order, [n for n, _ in fetches], targets)
    reasons = dict(analysis.reasons)
    compiled = _mark(analysis, hard, reasons, (), ())
    live = _closure(graph, [*(n for n, _ in fetches), *targets], compiled, hard)
    order = [node for node in analysis.order if node.name in live]
    inside = [i for i, node in enumerate(order) if node.name in compiled]
    nodes = [order[i] for i in inside]
    for name in _cut_lists(analysis, order, [inside], {n for n, _ in fetches}):
        reasons[name] = Reason("DTYPE", "a TensorList is an output")
    left = {n.name: reasons.get(n.name) for n in order if n.name not in compiled and n.op not in SOURCES}
    kept = {name: why or Reason("INTERNAL", "not compiled") for name, why in left.items()}
    clusters = [Cluster(fresh_name("disc_model", set(graph.nodes) | set(graph.signatures), "_v"), nodes)] if nodes else []
    result = Clustering(graph, order, compiled, clusters, kept, hard, list(fetches), list(targets), analysis)
    _boundaries(result)
    return result


#: nodes that only pass their first operand on
PASS_THROUGH = frozenset({"Identity", "StopGradient", "Snapshot", "PreventGradient"})


def _cut_lists(analysis: Analysis, order: Sequence[Node], groups: Sequence[Sequence[int]], fetched: set[str]) -> set[str]:
    """Compiled nodes that give a TensorList to, or take one from, a node outside of their group."""
    group = {order[i].name: k for k, members in enumerate(groups) for i in members}
    cut = {name for name in fetched if name in group and _gives_list(analysis, analysis.graph[name])}
    for node in order:
        for name, port in node.inputs:
            if isinstance(analysis.values.get((name, port)), TensorList) and group.get(name) != group.get(node.name):
                cut |= {n for n in (name, node.name) if n in group}
    return cut


def _gives_list(analysis: Analysis, node: Node) -> bool:
    return any(isinstance(analysis.values.get((node.name, port)), TensorList) for port in range(len(node.output_types or ())))


def _peel(
    graph: Graph,
    nodes: list[Node],
    hard: Mapping[str, frozenset[str]],
    live: set[str],
    fetched: set[str],
    reasons: dict[str, Reason],
) -> list[Node]:
    """Drop nodes that would only pass an input of the cluster on to readers outside."""
    inside = {node.name for node in nodes}
    kept: list[Node] = []
    for node in nodes:
        passes = node.op in PASS_THROUGH and node.inputs[0][0] not in inside and not any(hard.get(c) for c in node.controls)
        if passes and (
            node.name in fetched
            or any(u.name in live and u.name not in inside for u in graph.consumers.get(node.name, ()) if _reads(u, node))
        ):
            inside.discard(node.name)
            reasons[node.name] = Reason("CLUSTER_TOO_SMALL", "only passes a tensor on")
            continue
        kept.append(node)
    return kept


def _reads(user: Node, node: Node) -> bool:
    return any(name == node.name for name, _ in user.inputs)


def passed_through(clustering: Clustering, ref: TensorRef, owner: Mapping[str, Cluster]) -> TensorRef:
    """The tensor that ``ref`` is, seen through Identity nodes outside of clusters."""
    graph = clustering.graph
    while True:
        node = graph[ref[0]]
        if node.op not in PASS_THROUGH or node.name in owner or any(clustering.hard.get(c) for c in node.controls):
            return ref
        analysis = clustering.analysis
        source = node.inputs[0]
        if analysis is None or node.name in analysis.in_frame or source not in analysis.values:
            return ref
        ref = source


def _is_free(analysis: Analysis, node: Node, hard: Mapping[str, frozenset[str]]) -> bool:
    """A small constant that waits for nothing: copied into each cluster that reads it."""
    return node.op == "Const" and node.name in analysis.lowered and not any(hard.get(c) for c in node.controls)


def _mark(
    analysis: Analysis, hard: dict[str, frozenset[str]], reasons: dict[str, Reason], allow: Sequence[str], deny: Sequence[str]
) -> set[str]:
    compiled: set[str] = set()
    graph = analysis.graph
    for node in analysis.order:
        if not analysis.is_compiled(node.name) or _is_free(analysis, node, hard):
            continue
        if (allow and not matches(allow, node)) or matches(deny, node):
            if node.op not in SOURCES:
                reasons[node.name] = Reason("DENIED", "on the deny list" if matches(deny, node) else "not on the allow list")
            continue
        if node.op == "Assert" and (why := _assert_outside(analysis, graph, node, compiled, hard)):
            reasons[node.name] = Reason("CONTROL_EDGE", why)
            continue
        compiled.add(node.name)
    return compiled


def _assert_outside(
    analysis: Analysis, graph: Graph, node: Node, compiled: set[str], hard: Mapping[str, frozenset[str]]
) -> str:
    """Why an Assert stays in TensorFlow, empty if it becomes a check: its condition must be compiled, its data available."""
    condition = graph[node.inputs[0][0]]
    if condition.name not in compiled and not _is_free(analysis, condition, hard):
        return f"its condition {condition.name} is not compiled"
    for name, port in node.inputs[1:]:
        constant = graph.constant(name)
        if constant is not None:
            if constant.dtype is None and not constant.is_small:
                return f"its message {name} is too large"
        elif (name, port) not in analysis.values:
            return f"its operand {name} is not a number or a constant"
    return ""


def effective_preds(node: Node, compiled: set[str], hard: dict[str, frozenset[str]]) -> list[str]:
    """The nodes before this one, once compiled nodes have moved into clusters: data edges, and what control edges stand for."""
    preds = [name for name, _ in node.inputs]
    for name in node.controls:
        if node.name in compiled or name in compiled:
            preds.extend(sorted(hard.get(name, ())))
        else:
            preds.append(name)
    return list(dict.fromkeys(preds))


def _closure(graph: Graph, roots: Iterable[str], compiled: set[str], hard: dict[str, frozenset[str]]) -> set[str]:
    """Nodes that the roots need through what counts of their edges."""
    work = list(dict.fromkeys(roots))
    seen = set(work)
    while work:
        for name in effective_preds(graph[work.pop()], compiled, hard):
            if name not in seen:
                seen.add(name)
                work.append(name)
    return seen


def _items(
    analysis: Analysis, order: Sequence[Node], compiled: set[str], hard: dict[str, frozenset[str]], fetched: set[str]
) -> list[Item]:
    index = {node.name: i for i, node in enumerate(order)}
    items: list[Item] = []
    for at, node in enumerate(order):
        inside = node.name in compiled
        # a back edge of a legacy loop points forward here and says nothing about order
        preds = [i for i in map(index.__getitem__, effective_preds(node, compiled, hard)) if i < at]
        slow = not inside and node.op not in SOURCES and _slow(node)
        source = not inside and not preds and (node.op in SOURCES) and not slow
        items.append(
            Item(preds, inside, source, slow, inside and is_heavy(node.op), _place(node.device), node.name in fetched)
        )
    return items


def _kept_apart(items: list[Item], order: Sequence[Node], runs: Sequence[set[str]]) -> list[Item]:
    """The items with their places told apart by which of the runs need them."""
    if len(runs) < 2:
        return items
    who = (",".join(str(i) for i, run in enumerate(runs) if node.name in run) for node in order)
    return [dataclasses.replace(item, place=f"{item.place} runs {w}") for item, w in zip(items, who, strict=True)]


def _slow(node: Node) -> bool:
    """Host ops that take long, and ops of unknown length: calls, loops, custom ops, contractions that are not compiled."""
    if node.op in CONTROL_FLOW:
        return False
    return is_slow(node.op) or node.op in _SLOW_UNKNOWN or is_heavy(node.op) or op_info(node.op) is None


def _place(device: str) -> str:
    """Job, replica and task of a device string."""
    return "/".join(p for p in device.lower().split("/") if p.startswith(("job:", "replica:", "task:")))


def _too_small(analysis: Analysis, nodes: Sequence[Node], minimum: int) -> str:
    """Why these nodes are not worth a launch; empty if they are."""
    count = sum(node.op not in TRIVIAL for node in nodes)
    if count < minimum and not (minimum > 1 and any(is_heavy(node.op) for node in nodes) and count >= 2):
        return f"{count} ops, fewer than min_cluster_size={minimum}"
    if minimum > 1 and not any(_is_work(analysis, node) for node in nodes):
        return "only shape arithmetic"
    inside = {node.name for node in nodes}
    sources = (analysis.graph[name] for node in nodes for name, _ in node.inputs if name not in inside)
    if minimum > 1 and all(source.op == "Const" for source in sources):
        return "depends on constants only: TensorFlow folds it once"
    return ""


def _is_work(analysis: Analysis, node: Node) -> bool:
    """Whether the node computes more than a few scalars."""
    if node.op in TRIVIAL:
        return False
    if is_heavy(node.op):
        return True
    for port in range(len(node.output_types or ())):
        value = analysis.values.get((node.name, port))
        if value is None or not isinstance(value.type, TensorType):
            continue
        if not (value.type.is_static and int(value.type.num_elements()) <= 64):
            return True
    return False


def _boundaries(clustering: Clustering) -> None:
    """Fill inputs, outputs, constants and controls of all clusters."""
    graph, analysis = clustering.graph, clustering.analysis
    assert analysis is not None
    owner = clustering.owner
    live = {node.name for node in clustering.order}
    fetched = dict.fromkeys(clustering.fetches)
    whole = {name for name, _ in fetched if len(graph[name].output_types or ()) > 1}
    for cluster in clustering.clusters:
        inputs: dict[TensorRef, None] = {}
        constants: dict[str, None] = {}
        outputs: dict[TensorRef, None] = {}
        cluster.through = {}
        controls: dict[str, None] = {}
        for node in cluster.nodes:
            for ref in node.inputs:
                if owner.get(ref[0]) is cluster:
                    continue
                source = graph[ref[0]]
                if _is_free(analysis, source, clustering.hard) or (node.op == "Assert" and source.op == "Const"):
                    constants[ref[0]] = None
                else:
                    source_ref = passed_through(clustering, ref, owner)
                    inputs[source_ref] = None
                    if source_ref != ref:
                        cluster.through[ref] = source_ref
            for name in node.controls:
                for h in sorted(clustering.hard.get(name, ())):
                    if owner.get(h) is not cluster:
                        controls[h] = None
            read = {
                ref
                for user in graph.consumers.get(node.name, ())
                if user.name in live and owner.get(user.name) is not cluster
                for ref in user.inputs
                if ref[0] == node.name
            }
            for port in range(len(node.output_types or ())):
                ref = (node.name, port)
                if ref in read or ref in fetched or node.name in whole:
                    outputs[ref] = None
        cluster.inputs, cluster.constants = list(inputs), list(constants)
        cluster.outputs, cluster.controls = list(outputs), list(controls)


def restored_clustering(graph: Graph, clusters: list[Cluster], compiled: set[str], outputs: Sequence[str]) -> Clustering:
    """A clustering without an analysis, for rewriting again: ``clusters`` are complete, ``compiled`` as it was then."""
    fetches, targets = resolve_outputs(graph, outputs)
    roots = [*(n for n, _ in fetches), *targets]
    reachable = graph.reachable(roots)
    order = [node for node in graph.order if node.name in reachable]
    hard = nearest_hard(graph, order, [n for n, _ in fetches], targets)
    live = _closure(graph, roots, compiled, hard)
    order = [node for node in order if node.name in live]
    return Clustering(graph, order, compiled, clusters, {}, hard, fetches, targets)
