"""A graph as few boxes: one for each cluster, and one for what stays in TensorFlow between them.

Nodes outside of clusters that touch each other and stand at the same depth are one box, so the boxes have no cycles however large the graph
is: an edge from a box of one kind to another leads to a greater depth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from disc_tf.frontend.analysis import SOURCES
from disc_tf.frontend.cluster import Clustering
from disc_tf.frontend.graph import Node
from disc_tf.report import Box, Drawing

#: names kept of a box that is no cluster (a cluster's are in its own report)
NAMES = 200
#: boxes of TensorFlow's nodes in one layer before they are drawn as one
WIDEST = 6


def condense(clustering: Clustering) -> Drawing:
    """The boxes and their edges, in topological order. Constants are not drawn."""
    order = [n for n in clustering.order if n.op != "Const"]
    owner: Mapping[str, Any] = clustering.owner
    preds = {n.name: _preds(n) for n in order}
    depth = _depths(order, preds, owner)
    box_of = _merge(order, preds, owner, depth)
    boxes: dict[str, Box] = {}
    ops: dict[str, Counter[str]] = {}
    fetched = {name for name, _ in clustering.fetches}
    for node in order:
        key = box_of[node.name]
        box = boxes.get(key)
        if box is None:
            kind = "cluster" if node.name in owner else "input" if node.op in SOURCES else "tensorflow"
            name = owner[node.name].name if kind == "cluster" else ""
            box = boxes[key] = Box(len(boxes), kind, name, depth[node.name], 0, {}, [], False)
            ops[key] = Counter()
        box.nodes += 1
        ops[key][node.op] += 1
        box.output = box.output or node.name in fetched
        if box.kind != "cluster" and len(box.names) < NAMES:
            box.names.append(node.name)
    for key, box in boxes.items():
        box.ops = dict(ops[key].most_common(8))
        if not box.name:
            box.name = box.names[0] if box.nodes == 1 else f"{box.nodes} nodes"
    edges: dict[tuple[int, int], int] = {}
    for node in order:
        for p in preds[node.name]:
            if p in box_of and box_of[p] != box_of[node.name]:
                pair = boxes[box_of[p]].id, boxes[box_of[node.name]].id
                edges[pair] = edges.get(pair, 0) + 1
    return Drawing(list(boxes.values()), [[a, b, n] for (a, b), n in edges.items()])


def _preds(node: Node) -> list[str]:
    return list(dict.fromkeys([*(name for name, _ in node.inputs), *node.controls]))


def _kind(node: Node, owner: Mapping[str, Any]) -> Any:
    if node.name in owner:
        return owner[node.name].name
    return "input" if node.op in SOURCES else "tensorflow"


def _depths(order: Sequence[Node], preds: Mapping[str, Sequence[str]], owner: Mapping[str, Any]) -> dict[str, int]:
    """Changes of kind on the longest way to each node; all nodes of a cluster have that of its deepest one.

    A cluster is deeper once a member is: what reads it follows, so the walk is repeated until nothing changes.
    """
    kinds = {n.name: _kind(n, owner) for n in order}
    depth = dict.fromkeys(kinds, 0)
    of_cluster: dict[str, int] = {}
    for _ in range(len({k for k in kinds.values()}) + 1):
        changed = False
        for node in order:
            name, kind = node.name, kinds[node.name]
            known = [p for p in preds[name] if p in kinds]
            d = max((depth[p] + (kinds[p] != kind) for p in known), default=0)
            if name in owner:
                d = of_cluster[kind] = max(d, of_cluster.get(kind, 0))
            if d > depth[name]:
                depth[name], changed = d, True
        if not changed:
            break
    for name in depth:
        if name in owner:
            depth[name] = of_cluster[kinds[name]]
    return depth


def _merge(
    order: Sequence[Node], preds: Mapping[str, Sequence[str]], owner: Mapping[str, Any], depth: Mapping[str, int]
) -> dict[str, str]:
    """Node -> the key of its box."""
    parent: dict[str, str] = {n.name: n.name for n in order}

    def find(a: str) -> str:
        while parent[a] != a:
            parent[a] = parent[parent[a]]
            a = parent[a]
        return a

    outside = {n.name: n.op in SOURCES for n in order if n.name not in owner}
    for node in order:
        for p in preds[node.name] if node.name in outside else ():
            if p in outside and depth[p] == depth[node.name] and outside[p] == outside[node.name]:
                parent[find(p)] = find(node.name)
    key = {n.name: owner[n.name].name if n.name in owner else f"/{find(n.name)}" for n in order}
    layers: dict[tuple[int, bool], dict[str, None]] = {}
    for name, source in outside.items():
        layers.setdefault((depth[name], source), {})[key[name]] = None
    crowded = {k: f"/layer {layer}" for layer, keys in layers.items() if len(keys) > WIDEST for k in keys}
    return {name: crowded.get(k, k) for name, k in key.items()}
