"""Switch and Merge made If.

Every node has the conditions under which it is alive: the pairs (predicate, branch) of the Switches that it comes from, less those that
a Merge has brought together. The Merges of one predicate under the same conditions that do not depend on each other are one If.

A sweep over the nodes takes out all conditionals of the deepest nesting, so its cost is that of the graph times the depth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from disc_tf.frontend.graph import TensorRef
from disc_tf.frontend.legacy_graph import ARGUMENT, NOT_WANTED, Flow, FlowNode, Refused

#: (predicate, branch)
_Condition = tuple[TensorRef, int]
_INT32 = 3
#: sweeps times nodes
_MAX_WORK = 20_000_000


def conds_to_ifs(flow: Flow, keep: set[str], refused: dict[str, str], roots: Collection[str]) -> list[str]:
    """Replace the conditionals of a flow, inner ones first; the names of the If nodes. ``roots``: the nodes that must be there."""
    made: list[str] = []
    given_up: set[str] = set()
    needed = frozenset(roots)
    work = 0
    while True:
        groups = _innermost(flow, given_up, refused)
        if not groups:
            return made
        work += len(flow.nodes)
        if work > _MAX_WORK:
            refused[groups[0].merges[0].name] = "conditionals are nested too deep in too many nodes to follow"
            return made
        users = flow.users()
        before = len(made)
        for group in groups:
            base = f"{group.merges[0].name}/functional_if"
            try:
                if base in keep:
                    raise Refused(NOT_WANTED)
                made.append(_make_if(flow, group, base, needed, users))
            except Refused as e:
                if len(made) > before and str(e) != NOT_WANTED:
                    continue  # it may be for what another one has left behind: once more when that is gone
                given_up.update(m.name for m in group.merges)
                refused[group.merges[0].name] = str(e)
        flow.prune(roots)


@dataclasses.dataclass
class _Group:
    """Merges that become one If. ``branches``: of each the tensors of the else and the then branch; ``then_at``: which of its inputs the
    latter is. ``alive``: the conditions of every node; ``switches``: the predicate of every Switch, as they were before the sweep."""

    predicate: TensorRef
    outside: frozenset[_Condition]
    merges: list[FlowNode]
    branches: list[tuple[TensorRef, TensorRef]]
    then_at: list[int]
    alive: dict[str, frozenset[_Condition]]
    switches: dict[str, TensorRef]

    def switches_here(self, node: FlowNode) -> bool:
        """Whether a node is a Switch of this conditional."""
        return node.op == "Switch" and self.switches[node.name] == self.predicate


def _root(flow: Flow, ref: TensorRef) -> TensorRef:
    """The tensor that a predicate is, seen through Identity nodes."""
    while True:
        node = flow.nodes[ref[0]]
        if node.op != "Identity":
            return ref
        ref = node.inputs[0]


def _innermost(flow: Flow, given_up: set[str], refused: dict[str, str]) -> list[_Group]:
    """The innermost conditionals: they can be replaced next, in any order."""
    if not any(n.op == "Merge" and n.name not in given_up for n in flow.nodes.values()):
        return []
    alive: dict[str, frozenset[_Condition]] = {}
    depends: dict[str, int] = {}
    switches: dict[str, TensorRef] = {}
    found: list[tuple[FlowNode, TensorRef, frozenset[_Condition], tuple[TensorRef, TensorRef, int]]] = []

    def of(ref: TensorRef) -> frozenset[_Condition]:
        node = flow.nodes[ref[0]]
        state = alive.get(ref[0], frozenset())  # a back edge of a loop that stays
        if node.op == "Switch":
            state = state | {(switches[node.name] if node.name in switches else _root(flow, node.inputs[1]), ref[1])}
        return state

    for node in flow.order():
        if node.op == "Switch":
            switches[node.name] = _root(flow, node.inputs[1])
        states = [of(r) for r in node.inputs] + [alive[c] for c in node.controls]
        depends[node.name] = max((depends[s] for s in [*(r[0] for r in node.inputs), *node.controls] if s in depends), default=0)
        if node.op != "Merge":
            state = frozenset[_Condition]().union(*states)
            if node.op == "Exit":  # behind a loop that stays its own conditions are of no meaning
                state = frozenset(c for c in state if flow.nodes[c[0][0]].op != "LoopCond")
            alive[node.name] = state
            continue
        if any(flow.nodes[s].op == "NextIteration" for s, _ in node.inputs):
            given_up.add(node.name)
            alive[node.name] = frozenset[_Condition]().union(*states)
            continue
        common = frozenset.intersection(*states[: len(node.inputs)]) if node.inputs else frozenset()
        own = [s - common for s in states[: len(node.inputs)]]
        alive[node.name] = common.union(*states[len(node.inputs) :])
        pair = [next(iter(s)) if len(s) == 1 else None for s in own]
        fits = len(pair) == 2 and None not in pair
        if fits:
            (p, j), (q, k) = (c for c in pair if c is not None)
            fits = p == q and {j, k} == {0, 1}
        if not fits:
            if node.name not in given_up:
                given_up.add(node.name)
                refused[node.name] = "its inputs are not the two branches of one Switch"
            continue
        depends[node.name] += 1
        if node.name in given_up:
            continue
        at = [c[1] for c in pair if c is not None]
        then, other = node.inputs[at.index(1)], node.inputs[at.index(0)]
        found.append((node, pair[0][0], alive[node.name], (other, then, at.index(1))))  # type: ignore[index]
    # the innermost; of one predicate those behind equally many others, none of which then depends on another of them
    deepest = max((len(state) for _, _, state, _ in found), default=0)
    groups: dict[tuple[TensorRef, frozenset[_Condition], int], _Group] = {}
    for merge, predicate, state, (other, then, then_at) in found:
        if len(state) < deepest:
            continue
        key = predicate, state, depends[merge.name]
        group = groups.setdefault(key, _Group(predicate, state, [], [], [], alive, switches))
        group.merges.append(merge)
        group.branches.append((other, then))
        group.then_at.append(then_at)
    return list(groups.values())


def _make_if(flow: Flow, group: _Group, base: str, roots: frozenset[str], users: dict[str, list[FlowNode]]) -> str:
    name = flow.fresh(base)
    captured: dict[TensorRef, int] = {}
    branches: list[set[str]] = []
    outer_controls: dict[str, None] = {}
    for k in (0, 1):
        branches.append(_branch(flow, group, k, captured, outer_controls))
    inside = branches[0] | branches[1]
    if branches[0] & branches[1]:
        raise Refused("its branches share nodes")
    merges = {m.name for m in group.merges}
    for source in inside:
        for node in users.get(source, ()):
            if node.name not in inside and node.name not in merges and flow.nodes.get(node.name) is node:
                raise Refused(f"{node.name} reads {source} inside of a branch")
    if roots & inside:
        raise Refused("a result lies inside of a branch")
    types = [flow.type_of(r) for r in captured]
    functions = []
    for k, what in ((1, "then"), (0, "else")):
        functions.append(_branch_function(flow, group, k, branches[k], captured, types, f"{name}_{what}", users))
    indices = [i for i, m in enumerate(group.merges) if _reads_index(m, users)]
    out_types = [flow.type_of((m.name, 0)) for m in group.merges] + [_INT32] * len(indices)
    stateful = any(flow.is_stateful(f) for f in functions)
    op = "If" if stateful else "StatelessIf"
    inputs = [group.predicate, *captured]
    proto = flow.add(name, op, inputs, [c for c in outer_controls if c not in {r[0] for r in inputs}], out_types)
    proto.attr["Tcond"].type = flow.type_of(group.predicate)
    for key, values in (("Tin", types), ("Tout", out_types)):
        proto.attr[key].list.SetInParent()
        proto.attr[key].list.type.extend(values)
    proto.attr["then_branch"].func.name, proto.attr["else_branch"].func.name = functions
    proto.attr["output_shapes"].list.SetInParent()
    group.alive[name] = group.outside
    for i, m in enumerate(group.merges):
        refs = [(name, i)] + ([(name, len(group.merges) + indices.index(i))] if i in indices else [])
        controls = [c for c in m.controls if c not in inside]
        flow.identity(m, refs)
        m.controls = controls
    return name


def _reads_index(merge: FlowNode, users: dict[str, list[FlowNode]]) -> bool:
    return any((merge.name, 1) in n.inputs for n in users.get(merge.name, ()))


def _branch(flow: Flow, group: _Group, k: int, captured: dict[TensorRef, int], controls: dict[str, None]) -> set[str]:
    """The nodes of a branch. What it takes from outside goes to ``captured`` and ``controls``."""
    here = group.outside | {(group.predicate, k)}
    seen: set[str] = set()
    work: list[str] = []

    def need(ref: TensorRef) -> None:
        node = flow.nodes[ref[0]]
        if group.switches_here(node):
            if ref[1] != k:
                raise Refused(f"{node.name} is read for both branches")
            captured.setdefault(node.inputs[0], len(captured))
            return
        if group.alive[ref[0]] == here:
            work.append(ref[0])
        elif group.alive[ref[0]] <= group.outside:
            captured.setdefault(ref, len(captured))
        else:
            raise Refused(f"{ref[0]} is alive under other conditions than its branch")

    for merge, pair in zip(group.merges, group.branches, strict=True):
        need(pair[k])
        for c in merge.controls:
            if group.alive[c] == here:
                work.append(c)
    while work:
        name = work.pop()
        if name in seen:
            continue
        node = flow.nodes[name]
        if node.op in ("Switch", "Merge", ARGUMENT):
            raise Refused(f"{name} ({node.op}) inside of a branch stays as it is")
        seen.add(name)
        for ref in node.inputs:
            need(ref)
        for c in node.controls:
            if group.alive[c] == here:
                if flow.nodes[c].op != "Switch":
                    work.append(c)
            elif group.alive[c] <= group.outside:
                if flow.nodes[c].op not in ("Switch", ARGUMENT):
                    controls[c] = None
            else:
                raise Refused(f"{c} is alive under other conditions than its branch")
    return seen


def _branch_function(
    flow: Flow, group: _Group, k: int, names: set[str], captured: dict[TensorRef, int], types: list[int], base: str,
    users: dict[str, list[FlowNode]],
) -> str:  # fmt: skip
    stops = dict(captured)
    for node in {u.name: u for ref in captured for u in users.get(ref[0], ())}.values():
        if group.switches_here(node) and node.inputs[0] in captured:
            stops[(node.name, k)] = captured[node.inputs[0]]
    part, arguments = flow.part(names, stops, types)
    refs: list[TensorRef] = []
    for pair in group.branches:
        refs.append((arguments[stops[pair[k]]], 0) if pair[k] in stops else pair[k])
    for i, m in enumerate(group.merges):
        if _reads_index(m, users):
            then_at = group.then_at[i]
            refs.append((_constant(part, then_at if k == 1 else 1 - then_at), 0))
    return part.function(base, arguments, refs)


def _constant(flow: Flow, value: int) -> str:
    name = flow.fresh("value_index")
    proto = flow.add(name, "Const", [], [], [_INT32])
    proto.attr["dtype"].type = _INT32
    tensor = proto.attr["value"].tensor
    tensor.dtype = _INT32
    tensor.tensor_shape.SetInParent()
    tensor.int_val.append(value)
    return name
