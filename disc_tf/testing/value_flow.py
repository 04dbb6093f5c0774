"""Where the values of an input go: followed through casts, reshapes, slices, lists, loops and calls to the ops that read them.

What reads them tells what they may be (`value_ranges`): rows of a table, keys of a vocabulary, serialized examples. A walk over names,
not an interpretation: it looks at constants and declared shapes only, and stops where an op makes other values of them.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.functions import Library, read_body
from disc_tf.frontend.graph import parse_tensor
from disc_tf.frontend.opdefs import MAX_ARGS
from disc_tf.frontend.tensor_proto import to_numpy

#: a tensor of a scope: (node name, port), or (None, k) for argument k
Ref = tuple[str | None, int]
#: bounds of a walk
_MAX_STEPS, _MAX_DEPTH, _MAX_CHANGES = 50_000, 32, 6


@dataclasses.dataclass(frozen=True)
class Change:
    """What was done to the values on the way: ``offset`` added, then cut at ``cap`` from above or somewhere from below; strings split or
    decoded."""

    offset: int = 0
    cap: int | None = None
    floored: bool = False
    split: bool = False
    base64: bool = False


class Text:
    """The nodes of the main graph or of a function, and who reads what."""

    def __init__(self, nodes: Sequence[Any], inputs: Sequence[Sequence[Ref]], returns: Sequence[Ref]) -> None:
        self.nodes = {n.name: n for n in nodes}
        self.inputs = {n.name: list(refs) for n, refs in zip(nodes, inputs, strict=True)}
        self.returns = list(returns)
        self.readers: dict[Ref, list[tuple[str, int]]] = {}
        for name, refs in self.inputs.items():
            for i, ref in enumerate(refs):
                self.readers.setdefault(ref, []).append((name, i))


@dataclasses.dataclass(frozen=True)
class Scope:
    """A text where it is called: by node ``call`` of ``parent``, whose input ``first + k`` is argument k."""

    text: Text
    parent: Scope | None = None
    call: str = ""
    first: int = 0
    loop: bool = False
    depth: int = 0


@dataclasses.dataclass(frozen=True)
class Use:
    """Input ``index`` of ``node`` holds the values, after ``change``."""

    scope: Scope
    node: Any
    index: int
    change: Change

    def input(self, index: int) -> Ref:
        return self.scope.text.inputs[self.node.name][index]

    def count(self) -> int:
        return len(self.scope.text.inputs[self.node.name])


#: op -> whether input i of n is passed on
_SAME: dict[str, Callable[[int, int], bool]] = {}
#: ops that pass values on to all of their outputs -> the attribute with their number
_ALL_OUTPUTS = {"Split": "num_split", "SplitV": "num_split", "Unpack": "num", "DynamicPartition": "num_partitions"}
_SPLITS = {"StringSplit": 1, "StringSplitV2": 1}


def _passes(ops: str, which: Callable[[int, int], bool]) -> None:
    for op in ops.split():
        _SAME[op] = which


_passes(
    "Identity Cast Reshape ExpandDims Squeeze StopGradient Snapshot EnsureShape PreventGradient Transpose CheckNumerics Tile BroadcastTo "
    "Slice StridedSlice ReverseV2 Reverse ReverseSequence Roll SplitV Unpack GatherV2 Gather GatherNd Pad PadV2 MirrorPad Unique UniqueV2 "
    "UniqueWithCounts UniqueWithCountsV2 DynamicPartition Switch RefSwitch Enter RefEnter Exit RefExit NextIteration RefNextIteration "
    "TensorListFromTensor TensorListGetItem TensorListStack TensorListGather TensorListConcatV2 TensorListPopBack SpaceToBatchND "
    "BatchToSpaceND StringLower StringUpper StringStrip RegexReplace StaticRegexReplace Maximum PlaceholderWithDefault",
    lambda i, n: i == 0,
)
_passes("Split", lambda i, n: i == 1)
_passes("ConcatV2", lambda i, n: i < n - 1)
_passes("Concat", lambda i, n: i > 0)
_passes("Pack Merge RefMerge IdentityN", lambda i, n: True)
_passes("Select SelectV2", lambda i, n: i > 0)
_passes("SparseToDense TensorArrayReadV3 TensorArrayGatherV3 TensorArrayConcatV3 TensorArrayScatterV3", lambda i, n: i == 2)
_passes("TensorListSetItem", lambda i, n: i in (0, 2))
_passes("TensorListPushBack", lambda i, n: i in (0, 1))
_passes("TensorArrayWriteV3", lambda i, n: i in (2, 3))
_passes("RaggedTensorToTensor SparseFillEmptyRows", lambda i, n: i == 1)
_passes("RaggedTensorToSparse", lambda i, n: i == n - 1)
_OTHER_PORT = {"SparseFillEmptyRows": 1, "RaggedTensorToSparse": 1, "TensorListPopBack": 1}
_BRANCHES = {"If": ("then_branch", "else_branch"), "StatelessIf": ("then_branch", "else_branch")}
_LOOPS = frozenset({"While", "StatelessWhile"})
_DECLARE_SHAPES = frozenset({"VarHandleOp", "VariableV2", "Variable", "Placeholder", "PlaceholderWithDefault", "DiscWeight"})
_BOOL = 10


class Flow:
    """The graph and its library, read as far as walks need it.

    assets: file of a string constant, by node name, where the graph gives another one (SavedModels name their assets apart).
    """

    def __init__(self, graph_def: Any, assets: Mapping[str, Path] | None = None) -> None:
        self.library = Library(graph_def)
        self.assets = dict(assets or {})
        self._texts: dict[str, Text | None] = {}
        inputs = [[parse_tensor(t) for t in n.input if not t.startswith("^")] for n in graph_def.node]
        self.root = Scope(Text(graph_def.node, inputs, []))

    def _text(self, function: str) -> Text | None:
        if function not in self._texts:
            self._texts[function] = None
            if (f := self.library.functions.get(function)) is not None:
                try:
                    body = read_body(f, self.library.functions)
                    self._texts[function] = Text(body.nodes, body.inputs, body.returns)
                except GraphError:
                    pass  # an op that nobody knows: what it reads is not followed
        return self._texts[function]

    # ---- forwards -------------------------------------------------------------------------------------------

    def uses(self, scope: Scope, ref: Ref) -> Iterator[Use]:
        """Every node that reads the values of a tensor and does not pass them on (or not only that)."""
        work = deque([(scope, ref, Change())])
        seen: dict[tuple[int, Ref], set[Change]] = {}
        scopes: dict[tuple[int, str, str], Scope] = {}
        steps = 0
        while work and steps < _MAX_STEPS:
            scope, ref, change = work.popleft()
            changes = seen.setdefault((id(scope), ref), set())
            if change in changes or len(changes) >= _MAX_CHANGES:
                continue
            changes.add(change)
            for port, returned in enumerate(scope.text.returns):
                if returned == ref and scope.parent is not None:
                    work.append((scope.parent, (scope.call, port), change))
                    if scope.loop:
                        work.append((scope, (None, port), change))
            for name, i in scope.text.readers.get(ref, ()):
                steps += 1
                node = scope.text.nodes[name]
                inner = list(self._inner(scope, node, i, scopes))
                for callee, argument in inner:
                    work.append((callee, (None, argument), change))
                if inner:
                    continue
                use = Use(scope, node, i, change)
                yield use
                if (after := self._after(use)) is not None:
                    work.extend((scope, (name, out), after) for out in self._out_ports(use))

    def _inner(self, scope: Scope, node: Any, index: int, scopes: dict[tuple[int, str, str], Scope]) -> Iterator[tuple[Scope, int]]:
        """The bodies that a call, branch or loop hands this input to, with the argument's number."""
        if scope.depth >= _MAX_DEPTH:
            return
        functions: list[tuple[str, int, bool]] = []
        if (call := self.library.called(node)) is not None:
            functions = [(call[0], 0, False)]
        elif node.op in _BRANCHES:
            functions = [(node.attr[key].func.name, 1, False) for key in _BRANCHES[node.op]]
        elif node.op in ("Case", "StatelessCase"):
            functions = [(f.name, 1, False) for f in node.attr["branches"].list.func]
        elif node.op in _LOOPS:
            functions = [(node.attr["body"].func.name, 0, True), (node.attr["cond"].func.name, 0, False)]
        for function, first, loop in functions:
            text = self._text(function)
            if text is None or index < first:
                continue
            key = (id(scope), node.name, function)
            if key not in scopes:
                # a loop's condition returns no value of the loop
                scopes[key] = Scope(text, scope, node.name, first, loop, scope.depth + 1)
            yield scopes[key], index - first

    def _after(self, use: Use) -> Change | None:
        """The change behind the node, None if it makes other values."""
        op, change, node = use.node.op, use.change, use.node
        if op == "Cast" and node.attr["DstT"].type == _BOOL:
            return None
        if op in _SPLITS and use.index == 0:
            return dataclasses.replace(change, split=True)
        if op == "DecodeBase64":
            return dataclasses.replace(change, base64=True)
        if op in ("AddV2", "Add", "Sub") and not (op == "Sub" and use.index):
            other = self.scalar(use.scope, use.input(1 - use.index))
            if other is None or change.cap is not None or change.floored:
                return None
            return dataclasses.replace(change, offset=change.offset + (-other if op == "Sub" else other))
        if op == "Minimum" or (op == "ClipByValue" and use.index == 0):
            other = self.scalar(use.scope, use.input(2 if op == "ClipByValue" else 1 - use.index))
            return None if other is None else dataclasses.replace(change, cap=other, floored=change.floored or op == "ClipByValue")
        if op == "Maximum":
            return None if self.scalar(use.scope, use.input(1 - use.index)) is None else dataclasses.replace(change, floored=True)
        passes = _SAME.get(op)
        return change if passes is not None and passes(use.index, use.count()) else None

    def _out_ports(self, use: Use) -> Sequence[int]:
        op = use.node.op
        if op in _ALL_OUTPUTS:
            return range(min(int(use.node.attr[_ALL_OUTPUTS[op]].i), MAX_ARGS))
        if op in ("Switch", "RefSwitch"):
            return (0, 1)
        if op == "IdentityN":
            return [use.index]
        return [_SPLITS.get(op, _OTHER_PORT.get(op, 0))]

    # ---- backwards ------------------------------------------------------------------------------------------

    def source(self, scope: Scope, ref: Ref) -> tuple[Scope, Any, int] | None:
        """(scope, node, port) that a tensor comes from, looked up through identities, casts, reads of variables and arguments."""
        for _ in range(256):
            name, port = ref
            if name is None:
                if scope.parent is None:
                    return None
                if scope.loop and scope.text.returns[port] != ref:
                    return None  # it changes from one iteration to the next
                scope, ref = scope.parent, scope.parent.text.inputs[scope.call][scope.first + port]
                continue
            node = scope.text.nodes.get(name)
            if node is None:
                return None
            if node.op not in ("Identity", "Cast", "ReadVariableOp", "Enter", "RefEnter", "StopGradient", "Snapshot", "IdentityN"):
                return scope, node, port
            ref = scope.text.inputs[name][port if node.op == "IdentityN" else 0]
        return None

    def assigned(self, scope: Scope, ref: Ref) -> tuple[Scope, Any, int] | None:
        """`source`; for a variable, of the value that the graph assigns to it if it is the only one."""
        found = self.source(scope, ref)
        if found is None or found[1].op != "VarHandleOp":
            return found
        uses = [u for u in self.uses(found[0], (found[1].name, 0)) if u.node.op == "AssignVariableOp" and u.index == 0]
        return self.source(uses[0].scope, uses[0].input(1)) if len(uses) == 1 else None

    def constant(self, scope: Scope, ref: Ref) -> np.ndarray | None:
        """The content of a tensor that is a constant, strings as an object array; None else."""
        found = self.source(scope, ref)
        if found is None or found[1].op != "Const":
            return None
        try:
            return to_numpy(found[1].attr["value"].tensor)
        except GraphError:
            return None

    def scalar(self, scope: Scope, ref: Ref) -> int | None:
        """The integer that a small constant holds in all of its elements."""
        array = self.constant(scope, ref)
        if array is None or array.dtype == object or not 0 < array.size <= 64 or not bool((array == array.flat[0]).all()):
            return None
        value = float(array.flat[0].real)
        return int(value) if value.is_integer() else None

    def shape(self, scope: Scope, ref: Ref) -> list[int] | None:
        """The dims of a tensor or variable as far as the graph declares them, -1 for unknown ones; None if the rank is not known."""
        found = self.source(scope, ref)
        if found is None:
            return None
        _, node, port = found
        declared: Any = None
        if node.op == "Const":
            declared = node.attr["value"].tensor.tensor_shape
        elif node.op in _DECLARE_SHAPES and "shape" in node.attr:
            declared = node.attr["shape"].shape
        elif "_output_shapes" in node.attr and port < len(node.attr["_output_shapes"].list.shape):
            declared = node.attr["_output_shapes"].list.shape[port]
        if declared is None or declared.unknown_rank:
            return None
        return [int(d.size) for d in declared.dim]
