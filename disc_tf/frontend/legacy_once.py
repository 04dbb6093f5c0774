"""Whether no element of a TensorArray is written twice, or read after a read that cleared it: TensorFlow refuses both, a list neither.

Known are operations that run once, at indices that differ, and one operation in a loop at a counter of the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disc_tf.frontend.graph import TensorRef
from disc_tf.frontend.legacy_graph import Flow, FlowNode
from disc_tf.frontend.tensor_proto import to_numpy

#: op -> the position of its indices
_INDEX = {"TensorArrayWriteV3": 1, "TensorArrayScatterV3": 1, "TensorArrayReadV3": 1, "TensorArrayGatherV3": 1}
_VECTORS = frozenset({"TensorArrayScatterV3", "TensorArrayGatherV3"})
#: frames around a node, outermost first
Path = tuple[str, ...]


def touches_once(flow: Flow, array: FlowNode, sites: Sequence[FlowNode], paths: Mapping[str, Path]) -> bool:
    """Whether the ``sites`` (the writes of an array, or its reads) meet no element twice. ``paths``: the frames around each node."""
    if not sites:
        return True
    outside = paths[array.name]
    if len(sites) > 1:
        found = [_numbers(flow, n.inputs[_INDEX[n.op]]) for n in sites]
        if any(paths[n.name] != outside for n in sites) or any(f is None for f in found):
            return False
        numbers = [k for f in found for k in f or ()]
        return len(set(numbers)) == len(numbers)
    (site,) = sites
    index, path = site.inputs[_INDEX[site.op]], paths[site.name]
    if path == outside:
        return site.op not in _VECTORS or _differ(flow, index)
    return path[:-1] == outside and site.op not in _VECTORS and _counts(flow, index)


def _through(flow: Flow, ref: TensorRef) -> TensorRef:
    """What a tensor is, seen through Identity nodes, entrances of loops and Switches of conditionals."""
    while True:
        node = flow.nodes[ref[0]]
        if node.op not in ("Identity", "Enter") and not (node.op == "Switch" and _variable(flow, ref) is None):
            return ref
        ref = node.inputs[0]


def _numbers(flow: Flow, ref: TensorRef) -> list[int] | None:
    """The content of a constant."""
    node = flow.nodes[_through(flow, ref)[0]]
    if node.op != "Const" or node.proto is None:
        return None
    return [int(k) for k in to_numpy(node.attr["value"].tensor).reshape(-1)]


def _differ(flow: Flow, ref: TensorRef) -> bool:
    """Whether indices differ: a range, or constants."""
    if flow.nodes[_through(flow, ref)[0]].op == "Range":
        return True
    numbers = _numbers(flow, ref)
    return numbers is not None and len(set(numbers)) == len(numbers)


def _offset(flow: Flow, ref: TensorRef) -> tuple[TensorRef, int]:
    """A tensor as another one and a number that is added to it."""
    total = 0
    while True:
        ref = _through(flow, ref)
        node = flow.nodes[ref[0]]
        if node.op not in ("Add", "AddV2", "Sub"):
            return ref, total
        left, right = node.inputs
        if node.op != "Sub" and _numbers(flow, right) is None:
            left, right = right, left
        numbers = _numbers(flow, right)
        if numbers is None or len(numbers) != 1:
            return ref, total
        total += -numbers[0] if node.op == "Sub" else numbers[0]
        ref = left


def _variable(flow: Flow, ref: TensorRef) -> FlowNode | None:
    """The Merge of the loop variable that a tensor inside of a loop is."""
    node = flow.nodes[ref[0]]
    if node.op == "Switch":
        node = flow.nodes[node.inputs[0][0]]
    if node.op != "Merge" or not any(flow.nodes[s].op == "NextIteration" for s, _ in node.inputs):
        return None
    return node


def _counts(flow: Flow, index: TensorRef) -> bool:
    """Whether an index differs in all iterations: a loop variable to which each adds the same number, but for a constant."""
    merge = _variable(flow, _offset(flow, index)[0])
    if merge is None:
        return False
    back = [s for s, _ in merge.inputs if flow.nodes[s].op == "NextIteration"]
    if len(back) != 1:
        return False
    before, by = _offset(flow, flow.nodes[back[0]].inputs[0])
    return by != 0 and _variable(flow, before) is merge
