"""A graph that is being rewritten while legacy control flow is taken out of it: nodes that can be changed, and functions made of parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from disc_tf.frontend.functions import has_effect
from disc_tf.frontend.graph import Graph, TensorRef, tensor_name, topological
from disc_tf.frontend.opdefs import base_type, op_info

#: op of the nodes that stand for the arguments of a function that is being made
ARGUMENT = "_disc_argument"
#: why control flow stays that would not be compiled
NOT_WANTED = "it would not be compiled"


class Refused(Exception):
    """This loop or conditional stays as it is; the message says why."""


@dataclasses.dataclass(eq=False)
class FlowNode:
    """A node. ``proto``: its message, copied before it is changed (None for an argument); its inputs are written when all is done."""

    name: str
    op: str
    proto: Any
    inputs: list[TensorRef]
    controls: list[str]
    output_types: list[int]
    changed: bool = False

    @property
    def attr(self) -> Any:
        return self.proto.attr

    def own(self) -> Any:
        """The message, which may be changed."""
        if not self.changed:
            copy = type(self.proto)()
            copy.CopyFrom(self.proto)
            self.proto, self.changed = copy, True
        return self.proto

    def become(self, op: str, inputs: Sequence[TensorRef], controls: Sequence[str], types: Sequence[int]) -> Any:
        """Make another node of it under its name; returns the message, whose attributes are to be set."""
        new = type(self.proto)()
        new.name, new.op, new.device = self.name, op, self.proto.device
        self.proto, self.op, self.changed = new, op, True
        self.inputs, self.controls, self.output_types = list(inputs), list(controls), list(types)
        return new


class Flow:
    """Nodes by name, in file order, and the library that functions are added to."""

    def __init__(self, nodes: Iterable[FlowNode], library: dict[str, Any], made: dict[str, Any], graph_class: Any) -> None:
        self.nodes = {n.name: n for n in nodes}
        #: places in the order of ``nodes``, for `part`
        self._place = {name: i for i, name in enumerate(self.nodes)}
        self._places = len(self._place)
        self.library = library
        #: functions that were made, by name
        self.made = made
        self.graph_class = graph_class

    @staticmethod
    def of(graph: Graph) -> Flow:
        """A graph's nodes."""
        nodes = []
        for n in graph.nodes.values():
            nodes.append(FlowNode(n.name, n.op, n.proto, list(n.inputs), list(n.controls), list(n.output_types or ())))
        library = {f.signature.name: f for f in graph.graph_def.library.function}
        return Flow(nodes, library, {}, type(graph.graph_def))

    def users(self) -> dict[str, list[FlowNode]]:
        out: dict[str, list[FlowNode]] = {}
        for n in self.nodes.values():
            for name in dict.fromkeys([*(s for s, _ in n.inputs), *n.controls]):
                out.setdefault(name, []).append(n)
        return out

    def order(self) -> list[FlowNode]:
        return topological(self.nodes)  # type: ignore[arg-type]

    def type_of(self, ref: TensorRef) -> int:
        types = self.nodes[ref[0]].output_types
        if ref[1] >= len(types):
            raise Refused(f"the type of {tensor_name(ref)} is not known")
        if types[ref[1]] != base_type(types[ref[1]]):
            raise Refused(f"{tensor_name(ref)} is a reference")
        return types[ref[1]]

    def prune(self, roots: Iterable[str]) -> None:
        """Drop what the roots do not need; placeholders and arguments stay."""
        work = [n for n in roots if n in self.nodes]
        live = set(work)
        while work:
            node = self.nodes[work.pop()]
            for source in [*(s for s, _ in node.inputs), *node.controls]:
                if source not in live:
                    live.add(source)
                    work.append(source)
        self.nodes = {k: n for k, n in self.nodes.items() if k in live or n.op in ("Placeholder", ARGUMENT)}

    def fresh(self, base: str) -> str:
        name, at = base, 1
        while name in self.nodes or name in self.library or name in self.made:
            at += 1
            name = f"{base}_{at}"
        return name

    def add(self, name: str, op: str, inputs: Sequence[TensorRef], controls: Sequence[str], types: Sequence[int], device: str = "") -> Any:
        """A new node; returns its message, whose attributes are to be set."""
        proto = self.graph_class().node.add()
        proto.name, proto.op, proto.device = name, op, device
        self.nodes[name] = FlowNode(name, op, proto, list(inputs), list(controls), list(types), changed=True)
        self._place[name] = self._places
        self._places += 1
        return proto

    def identity(self, node: FlowNode, refs: Sequence[TensorRef]) -> None:
        """Make an Identity (or IdentityN) of some tensors of a node."""
        types = [self.type_of(r) for r in refs]
        proto = node.become("Identity" if len(refs) == 1 else "IdentityN", refs, [], types)
        if len(refs) == 1:
            proto.attr["T"].type = types[0]
        else:
            proto.attr["T"].list.type.extend(types)

    # ---- functions ----------------------------------------------------------------------------------------------------

    def part(self, names: Iterable[str], arguments: Mapping[TensorRef, int], types: Sequence[int]) -> tuple[Flow, list[str]]:
        """A copy of some nodes that reads arguments in the place of certain tensors; also the arguments' names. Control edges to what
        is not in it are left out. Its time is that of the part alone."""
        inside = set(names)
        argument_names = []
        for i in range(len(types)):
            name = f"argument_{i}"
            while name in self.nodes:
                name += "_"
            argument_names.append(name)
        nodes = [FlowNode(a, ARGUMENT, None, [], [], [t]) for a, t in zip(argument_names, types, strict=True)]
        for name in sorted(inside, key=self._place.__getitem__):
            n = self.nodes[name]
            inputs = [(argument_names[arguments[r]], 0) if r in arguments else r for r in n.inputs]
            controls = [c for c in n.controls if c in inside]
            nodes.append(FlowNode(n.name, n.op, n.proto, inputs, controls, n.output_types, n.changed))
        return Flow(nodes, self.library, self.made, self.graph_class), argument_names

    def function(self, base: str, arguments: Sequence[str], results: Sequence[TensorRef]) -> str:
        """Add a function of this flow's nodes to the library; its name."""
        name = self.fresh(base)
        f = self.graph_class().library.function.add()
        f.signature.name = name
        for a in arguments:
            arg = f.signature.input_arg.add()
            arg.name, arg.type = a, self.type_of((a, 0))
        for n in self.nodes.values():
            if n.op == ARGUMENT:
                continue
            new = f.node_def.add()
            new.CopyFrom(n.proto)
            del new.input[:]
            new.input.extend(self._body_name(r) for r in n.inputs)
            new.input.extend(f"^{c}" for c in n.controls)
            if "_class" in new.attr:
                del new.attr["_class"]
        for i, ref in enumerate(results):
            out = f.signature.output_arg.add()
            out.name, out.type = f"result_{i}", self.type_of(ref)
            f.ret[out.name] = self._body_name(ref)
        effects = [n.name for n in self.nodes.values() if n.op != ARGUMENT and (n.op == "Assert" or has_effect(n.op, self.library))]
        for i, effect in enumerate(effects):
            f.control_ret[f"effect_{i}"] = effect
            f.signature.control_output.append(f"effect_{i}")
        f.signature.is_stateful = bool(effects)
        self.made[name] = f
        return name

    def _body_name(self, ref: TensorRef) -> str:
        node = self.nodes[ref[0]]
        if node.op == ARGUMENT:
            return node.name
        f = self.library.get(node.op)
        if f is not None:
            return f"{node.name}:{f.signature.output_arg[ref[1]].name}:0"
        info = op_info(node.op)
        if info is None:
            raise Refused(f"op {node.op!r} is not known")
        for arg, (start, count) in info.output_offsets(node.attr).items():
            if start <= ref[1] < start + count:
                return f"{node.name}:{arg}:{ref[1] - start}"
        raise Refused(f"{node.op} has no output {ref[1]}")

    def is_stateful(self, function: str) -> bool:
        f = self.made.get(function) or self.library[function]
        return bool(f.signature.is_stateful)


def frames(flow: Flow) -> dict[str, tuple[str, ...]]:
    """The frames around each node's outputs, outermost first."""
    path: dict[str, tuple[str, ...]] = {}
    for node in flow.order():
        sources = [*(s for s, _ in node.inputs), *node.controls]
        inherited = max((path[s] for s in sources if s in path), key=len, default=())
        if node.op in ("Enter", "RefEnter"):
            frame = node.attr["frame_name"].s.decode("utf-8", "replace")
            path[node.name] = (*inherited, frame)
        elif node.op in ("Exit", "RefExit"):
            path[node.name] = inherited[:-1]
        else:
            path[node.name] = inherited
    return path


def finish(flow: Flow, graph_def: Any) -> Any:
    """The GraphDef of a flow's nodes."""
    new = type(graph_def)()
    new.versions.CopyFrom(graph_def.versions)
    new.library.CopyFrom(graph_def.library)
    new.library.function.extend(flow.made.values())
    for n in flow.nodes.values():
        node = new.node.add()
        node.CopyFrom(n.proto)
        del node.input[:]
        node.input.extend(tensor_name(r) for r in n.inputs)
        node.input.extend(f"^{c}" for c in n.controls)
    return new
