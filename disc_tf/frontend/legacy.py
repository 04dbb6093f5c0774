"""TF1 control flow made functional: frames of Enter, Merge, Switch, NextIteration, Exit become While nodes, Switch and Merge become If,
TensorArrays become TensorLists. As functions they are lowered like all others; TensorFlow runs them as well.

Only well formed frames and conditionals change; everything else stays as it is (`Functional.refused` says why). Exit and Merge nodes keep
their names, as Identity nodes, so that fetches and readers find them. What is made here and then not compiled is not wanted:
the optimizer loads the graph again without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

from disc_tf.frontend.graph import Graph, TensorRef
from disc_tf.frontend.legacy_arrays import arrays_to_lists, while_name
from disc_tf.frontend.legacy_cond import conds_to_ifs
from disc_tf.frontend.legacy_graph import NOT_WANTED, Flow, FlowNode, Refused, finish, frames
from disc_tf.frontend.opdefs import CONTROL_FLOW

#: loops and arrays times nodes
_MAX_WORK = 20_000_000
_LOOP_OPS = frozenset({"Enter", "Exit", "NextIteration", "LoopCond", "RefEnter", "RefExit", "RefNextIteration"})


@dataclasses.dataclass
class Functional:
    """``graph_def``: the argument itself if nothing changed. ``made``: names of the While and If nodes of the main graph.
    ``refused``: a frame, array, or Merge of a conditional -> why it stays."""

    graph_def: Any
    made: list[str] = dataclasses.field(default_factory=list)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)


def functionalize(graph: Graph, roots: Collection[str], keep: Collection[str] = (), *, verify: bool = False) -> Functional:
    """Make legacy control flow functional. ``roots``: nodes that are fetched or run. ``keep``: names of nodes that an earlier call made and
    that are not wanted: they are not made. ``verify``: let a defect of this code through, which else is a reason to leave the graph."""
    nothing = Functional(graph.graph_def)
    if not any(n.op in ("Merge", "RefMerge") for n in graph.nodes.values()):
        return nothing
    loops = sum(n.op in ("LoopCond", "TensorArrayV3") for n in graph.nodes.values())
    if loops * len(graph) > _MAX_WORK:
        return Functional(graph.graph_def, refused={"graph": f"{loops} loops and arrays among {len(graph)} nodes are too many to follow"})
    keep = set(keep)
    while True:
        result = Functional(graph.graph_def)
        flow = Flow.of(graph)
        flow.prune(roots)
        try:
            of_lists = arrays_to_lists(flow, keep, result.refused)
            _loops(flow, keep, result)
            result.made += conds_to_ifs(flow, keep, result.refused, roots)
        except Exception as e:
            if verify:
                raise
            # a defect here, or a graph that nobody thought of, must not cost the user the graph
            return Functional(graph.graph_def, refused={"graph": f"{type(e).__name__}: {e}"})
        result.made = [name for name in result.made if name in flow.nodes]  # the others went into functions
        # arrays of loops that stay are no lists
        again = {while_name(frame) for frame in of_lists if frame in result.refused} - keep
        if not again:
            break
        keep |= again
    if not result.made:
        return dataclasses.replace(nothing, refused=result.refused)
    result.graph_def = finish(flow, graph.graph_def)
    return result


# ---- loops --------------------------------------------------------------------------------------------------------------


def _loops(flow: Flow, keep: set[str], result: Functional) -> None:
    paths = frames(flow)
    members: dict[tuple[str, ...], list[str]] = {}
    for name, path in paths.items():
        if path:
            members.setdefault(path, []).append(name)
    for path in sorted(members, key=len, reverse=True):
        frame = path[-1]
        name = while_name(frame)
        try:
            if name in keep:
                raise Refused(NOT_WANTED)
            if any(p[: len(path)] == path and len(p) > len(path) for p in members if members[p]):
                raise Refused("a loop inside of it stays as it is")
            made = _Loop(flow, path, members[path], paths, result).make(name)
        except Refused as e:
            result.refused[frame] = str(e)
            continue
        members[path] = []
        if len(path) > 1:
            members.setdefault(path[:-1], []).extend(made)
        else:
            result.made.append(made[0])


@dataclasses.dataclass
class _Variable:
    """A loop variable. ``switch``: None where nobody needs its value but the condition."""

    enter: FlowNode
    merge: FlowNode
    next: FlowNode
    switch: FlowNode | None
    exits: list[FlowNode]


class _Loop:
    """One frame."""

    def __init__(
        self, flow: Flow, path: tuple[str, ...], members: list[str], paths: dict[str, tuple[str, ...]], result: Functional
    ) -> None:
        self.flow, self.path, self.paths, self.result = flow, path, paths, result
        self.members = set(members)
        self.users = flow.users()
        nodes = [flow.nodes[n] for n in members]
        if any(n.op.startswith("Ref") for n in nodes if n.op in CONTROL_FLOW):
            raise Refused("it holds references")
        conditions = [n for n in nodes if n.op == "LoopCond"]
        if len(conditions) != 1:
            raise Refused(f"it has {len(conditions)} conditions")
        self.condition = conditions[0]
        self.invariants: list[FlowNode] = []
        self.variables: list[_Variable] = []
        for n in nodes:
            if n.op != "Enter":
                continue
            if n.attr["is_constant"].b:
                self.invariants.append(n)
            elif self.users.get(n.name):
                self.variables.append(self._variable(n))
        self.structure = {self.condition.name, *(n.name for n in self.invariants)}
        for v in self.variables:
            self.structure.update(n.name for n in (v.enter, v.merge, v.next))
            if v.switch is not None:
                self.structure.add(v.switch.name)

    def _variable(self, enter: FlowNode) -> _Variable:
        users = self.users[enter.name]
        if len(users) != 1 or users[0].op != "Merge" or len(users[0].inputs) != 2:
            raise Refused(f"{enter.name} does not lead to a Merge alone")
        merge = users[0]
        other = [s for s, _ in merge.inputs if s != enter.name]
        if len(other) != 1 or self.flow.nodes[other[0]].op != "NextIteration":
            raise Refused(f"{merge.name} has no NextIteration")
        switches = [u for u in self.users.get(merge.name, ()) if u.op == "Switch" and u.inputs[1][0] == self.condition.name]
        if len(switches) > 1 or any((merge.name, 1) in u.inputs for u in self.users.get(merge.name, ())):
            raise Refused(f"{merge.name} is used in an unusual way")
        switch = switches[0] if switches else None
        exits = []
        if switch is not None:
            if switch.inputs[0] != (merge.name, 0):
                raise Refused(f"{switch.name} is used in an unusual way")
            for u in self.users.get(switch.name, ()):
                if (switch.name, 0) in u.inputs:
                    if u.op != "Exit":
                        raise Refused(f"{u.name} reads the value that leaves the loop")
                    exits.append(u)
        return _Variable(enter, merge, self.flow.nodes[other[0]], switch, exits)

    def _closure(self, refs: Iterable[TensorRef], stops: dict[TensorRef, int], controls: Iterable[str] = ()) -> set[str]:
        """The nodes that some tensors need, as far as the stops."""
        seen: set[str] = set()
        work = [r[0] for r in refs if r not in stops] + [c for c in controls if c not in self.structure]
        while work:
            name = work.pop()
            if name in seen:
                continue
            node = self.flow.nodes[name]
            if name in self.structure or node.op in _LOOP_OPS:
                raise Refused(f"{name} ({node.op}) is read in an unusual way")
            if self.paths.get(name) != self.path:
                raise Refused(f"{name} does not belong to the frame {self.path[-1]!r}")
            seen.add(name)
            work += [r[0] for r in node.inputs if r not in stops]
            work += [c for c in node.controls if c not in self.structure]
        return seen

    def make(self, name: str) -> list[str]:
        """The While node in the place of the frame; the names of the nodes that now stand outside of it."""
        flow = self.flow
        heads = [*(v.enter for v in self.variables), *self.invariants]
        stops: dict[TensorRef, int] = {(n.name, 0): i for i, n in enumerate(heads)}
        stops.update({(v.merge.name, 0): i for i, v in enumerate(self.variables)})
        body_stops = {**stops, **{(v.switch.name, 1): i for i, v in enumerate(self.variables) if v.switch is not None}}
        results = [v.next.inputs[0] for v in self.variables]
        cond_nodes = self._closure([self.condition.inputs[0]], stops, self.condition.controls)
        body_nodes = self._closure(results, body_stops, [c for v in self.variables for c in v.next.controls])
        used = {r for names in (cond_nodes, body_nodes) for n in names for r in flow.nodes[n].inputs}
        used |= {*results, self.condition.inputs[0]}
        heads = [*heads[: len(self.variables)], *(n for n in self.invariants if (n.name, 0) in used)]
        number = {n.name: i for i, n in enumerate(heads)}
        for table in (stops, body_stops):
            for ref in [r for r in table if flow.nodes[r[0]].op == "Enter"]:
                if ref[0] in number:
                    table[ref] = number[ref[0]]
                else:
                    del table[ref]
        types = [flow.type_of((n.name, 0)) for n in heads]
        cond = self._function(f"{name}_cond", cond_nodes, stops, types, [self.condition.inputs[0]])
        passed = [(n.name, 0) for n in heads[len(self.variables) :]]
        body = self._function(f"{name}_body", body_nodes, body_stops, types, [*results, *passed])
        op = "While" if flow.is_stateful(cond) or flow.is_stateful(body) else "StatelessWhile"
        controls = dict.fromkeys(c for n in [*(v.enter for v in self.variables), *self.invariants] for c in n.controls)
        inputs = [n.inputs[0] for n in heads]
        name = flow.fresh(name)
        proto = flow.add(name, op, inputs, [c for c in controls if c not in {r[0] for r in inputs}], types, self.condition.proto.device)
        proto.attr["cond"].func.name, proto.attr["body"].func.name = cond, body
        proto.attr["T"].list.SetInParent()
        proto.attr["T"].list.type.extend(types)
        proto.attr["output_shapes"].list.SetInParent()
        if op == "While":
            proto.attr["parallel_iterations"].i = 10
        outside = [name]
        self.paths[name] = self.path[:-1]
        for i, v in enumerate(self.variables):
            for e in v.exits:
                controls_of_exit = [c for c in e.controls if self.paths.get(c) != self.path]
                flow.identity(e, [(name, i)])
                e.controls = controls_of_exit
        for gone in self.members:
            flow.nodes.pop(gone, None)
        return outside

    def _function(self, base: str, names: set[str], stops: dict[TensorRef, int], types: list[int], results: list[TensorRef]) -> str:
        part, arguments = self.flow.part(names, stops, types)
        refs = [(arguments[stops[r]], 0) if r in stops else r for r in results]
        conds_to_ifs(part, set(), self.result.refused, [r[0] for r in refs])
        return part.function(base, arguments, refs)


__all__ = ["Functional", "functionalize"]
