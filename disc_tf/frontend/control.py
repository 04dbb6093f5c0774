"""Control edges among live nodes: what each of them really orders.

A node is *hard* if running it can be seen without reading its outputs: it has a side effect, it is an Assert, or it may fail and only
control edges keep it alive. A read of a variable that the graph also changes is hard as well: what it gives depends on when it runs.
An edge from any other node orders nothing by itself; it stands for the nearest hard nodes before it.

A node that reads an `If`, `While` or call with effects is hard too: TensorFlow inlines these, and an edge from the call itself then only
waits for the control outputs of the body, an edge from a reader of its results for what computes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from disc_tf.frontend.functions import has_effect
from disc_tf.frontend.graph import Graph, Node, TensorRef
from disc_tf.frontend.handles import source_of
from disc_tf.frontend.opdefs import CALL_OPS, CANNOT_FAIL, CONTROL_FLOW, READS

#: a set of nearest hard nodes may not grow beyond this; the node itself then stands for them
_MAX_SET = 32
#: ops with bodies
FUNCTIONAL = frozenset({"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile", *CALL_OPS})


def data_live(graph: Graph, outputs: Iterable[str], targets: Iterable[str] = ()) -> set[str]:
    """Nodes that run because of data edges from the outputs (a target runs, and so does what it reads)."""
    work = [*outputs, *targets]
    seen = set(work)
    while work:
        for source, _ in graph[work.pop()].inputs:
            if source not in seen:
                seen.add(source)
                work.append(source)
    return seen


def is_hard(node: Node, live: set[str], functions: Mapping[str, object]) -> bool:
    """See the module's docstring. ``live``: the result of `data_live`."""
    if node.op == "Assert" or node.op in CONTROL_FLOW or has_effect(node.op, functions):
        return True
    return node.op not in CANNOT_FAIL and node.name not in live


def _changed(node: Node, graph: Graph, functions: Mapping[str, object]) -> Iterable[str]:
    """The variables that a node may change."""
    if node.op in READS or not has_effect(node.op, functions):
        return []
    return [_variable(graph, ref) for ref in node.inputs]


def _variable(graph: Graph, ref: TensorRef) -> str:
    return source_of(*ref, lambda name: graph[name].proto, lambda name: graph[name].inputs)


def nearest_hard(graph: Graph, order: Sequence[Node], outputs: Iterable[str], targets: Iterable[str]) -> dict[str, frozenset[str]]:
    """For each live node the hard nodes that a control edge from it stands for (itself if it is hard)."""
    live = data_live(graph, outputs, targets)
    functions = {f.signature.name: f for f in graph.graph_def.library.function}
    empty: frozenset[str] = frozenset()
    found: dict[str, frozenset[str]] = {}
    bodies = {n.name for n in order if (n.op in FUNCTIONAL or n.op in functions) and is_hard(n, live, functions)}
    changed = {ref for node in order for ref in _changed(node, graph, functions)}
    for node in order:
        early = node.op == "ReadVariableOp" and _variable(graph, node.inputs[0]) in changed
        if early or is_hard(node, live, functions) or any(n in bodies for n, _ in node.inputs):
            found[node.name] = frozenset((node.name,))
            continue
        parts = {found.get(n, empty) for n, _ in node.inputs}
        parts.update(found.get(n, empty) for n in node.controls)
        parts.discard(empty)
        if not parts:
            found[node.name] = empty
        elif len(parts) == 1:
            found[node.name] = next(iter(parts))
        else:
            union = frozenset().union(*parts)
            found[node.name] = union if len(union) <= _MAX_SET else frozenset((node.name,))
    return found
