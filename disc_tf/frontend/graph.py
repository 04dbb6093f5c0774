"""A GraphDef as a graph: nodes by name, inputs resolved, checked, in topological order, pruned.

Duck-typed over message classes. Reading a graph never changes its message. Everything is iterative: depth of the graph is no limit.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.opdefs import CONTROL_FLOW, base_type, op_info
from disc_tf.frontend.tensor_proto import Constant, shape_of
from disc_tf.ir.types import tf_type_name
from disc_tf.lowering.node import ORDINAL_ATTR, NodeView
from disc_tf.spelling import close_to, did_you_mean

#: a tensor: (node name, output port)
TensorRef = tuple[str, int]
_MAX_PORT = 1 << 20
#: names that are looked through for one that was meant
_MOST_NAMES = 20000
#: attributes of Const nodes whose content is elsewhere: made anew (`bench/models`), or known by digest (`ORDINAL_ATTR`: known to be equal
#: to others by a number, `disc_tf.remote`)
_FILL_ATTR, _DIGEST_ATTR = "_disc_fill", "_disc_digest"
#: reading one of these alone is nobody's purpose
_SOURCES = frozenset({"Const", "Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VariableV2"})


def tensor_name(ref: TensorRef) -> str:
    """``("x", 0) -> "x"``, ``("x", 1) -> "x:1"``: the spelling of NodeDef inputs."""
    return ref[0] if ref[1] == 0 else f"{ref[0]}:{ref[1]}"


def fresh_name(base: str, taken: set[str], mark: str = "_") -> str:
    """``base``, or if that is taken ``base``, ``mark`` and a number from 2 on. The name is taken from then on."""
    name, at = base, 1
    while name in taken:
        at += 1
        name = f"{base}{mark}{at}"
    taken.add(name)
    return name


def without_nodes(graph_def: Any) -> Any:
    """A new graph with all that this one has but its nodes. (Nodes that are copied and then deleted would keep their memory.)"""
    new = type(graph_def)()
    for field, value in graph_def.ListFields():
        if field.message_type is None:
            setattr(new, field.name, value)
        elif field.name != "node":
            getattr(new, field.name).CopyFrom(value)
    return new


def parse_tensor(text: str) -> TensorRef:
    """``"x"`` and ``"x:0"`` -> ``("x", 0)``. ``GraphError`` for control inputs and bad ports."""
    name, colon, port = text.partition(":")
    if not name or name.startswith("^") or (colon and not (port.isascii() and port.isdigit())):
        raise GraphError(f"not the name of a tensor: {text!r}")
    if colon and (len(port) > 7 or int(port) > _MAX_PORT):
        raise GraphError(f"output port out of range: {text!r}")
    return name, int(port) if colon else 0


@dataclasses.dataclass(slots=True, eq=False)
class Node:
    """A node: its message (not copied), resolved inputs and its place in the file.

    ``output_types``: DataType numbers by port, None for an op that the table does not know.
    """

    name: str
    op: str
    proto: Any
    index: int
    inputs: list[TensorRef]
    controls: list[str]
    output_types: list[int] | None

    @property
    def device(self) -> str:
        return self.proto.device

    @property
    def attr(self) -> Any:
        return self.proto.attr

    @property
    def view(self) -> NodeView:
        """What lowering rules read."""
        return NodeView(self.name, self.op, self.inputs, self.proto.attr, self.controls, self.proto.device)

    def constant(self) -> Constant:
        """The handle of a Const node's content (a new one; `Graph.constant` keeps them)."""
        return constant_of(self.proto)


def constant_of(proto: Any) -> Constant:
    """The handle of a Const node's content, of the main graph or of a function's body."""
    attr = proto.attr
    stripped = any(name in attr for name in (_FILL_ATTR, _DIGEST_ATTR, ORDINAL_ATTR))
    digest = attr[_DIGEST_ATTR].s if _DIGEST_ATTR in attr else b""
    if ORDINAL_ATTR in attr:
        digest = hashlib.sha256(f"ordinal {attr[ORDINAL_ATTR].i}".encode()).digest()
    return Constant(proto.name, attr["value"].tensor, not stripped, digest)


class Graph:
    """The nodes of a GraphDef (function bodies: see `functions`). ``GraphError`` names the node for anything malformed."""

    def __init__(self, graph_def: Any) -> None:
        self.graph_def = graph_def
        self.nodes: dict[str, Node] = {}
        self._constants: dict[str, Constant] = {}
        self.signatures: dict[str, Any] = {}
        #: types of outputs of ops that the table does not know, by what their readers take
        self.guessed: dict[TensorRef, int] = {}
        #: nodes that legacy control flow was not made (`load.expand`), so that the graph can be made once more
        self.keep_legacy: list[str] = []
        #: (function, constant) that have left bodies, and the nodes that take them as they were (`body_constants`)
        self.hoisted: list[tuple[str, str]] = []
        self.before_hoisting: dict[str, Any] = {}
        for f in graph_def.library.function:
            if f.signature.name in self.signatures:
                raise GraphError(f"two library functions of the name {f.signature.name!r}")
            self.signatures[f.signature.name] = f.signature
        for index, proto in enumerate(graph_def.node):
            self._add(proto, index)
        for node in self.nodes.values():
            _check_inputs(self, node)
        self.order: list[Node] = topological(self.nodes)
        self.consumers: dict[str, list[Node]] = _consumers(self.order)

    def _add(self, proto: Any, index: int) -> None:
        name = proto.name
        if not name or ":" in name or name.startswith("^") or "\0" in name:
            raise GraphError(f"node {index} has the bad name {name!r}")
        if name in self.nodes:
            raise GraphError("two nodes have this name; rename one of them", name)
        if not proto.op:
            raise GraphError("has no op type", name)
        inputs: list[TensorRef] = []
        controls: list[str] = []
        for text in proto.input:
            if text.startswith("^"):
                controls.append(text[1:])
                continue
            if controls:
                raise GraphError(f"data input {text!r} comes after a control input", name)
            try:
                inputs.append(parse_tensor(text))
            except GraphError as e:
                raise GraphError(f"bad input {text!r}: {e}", name) from e
        try:
            types = self._output_types(proto, inputs)
        except GraphError as e:
            raise GraphError(str(e), name) from e
        self.nodes[name] = Node(name, proto.op, proto, index, inputs, controls, types)

    def _output_types(self, proto: Any, inputs: Sequence[TensorRef]) -> list[int] | None:
        signature = self.signatures.get(proto.op)
        if signature is not None:  # a function called by its name as the op type
            if len(signature.input_arg) != len(inputs):
                raise GraphError(f"{len(inputs)} inputs, function {proto.op} takes {len(signature.input_arg)}")
            return [_signature_type(a, proto.attr) for a in signature.output_arg]
        info = op_info(proto.op)
        if info is None:
            return None
        info.check_attrs(proto.attr)
        expected = len(info.input_types(proto.attr))
        if expected != len(inputs):
            raise GraphError(f"{proto.op} takes {expected} inputs here, the node has {len(inputs)}")
        if proto.op == "Const":
            _check_const(proto)
        return info.output_types(proto.attr)

    # ---- reading --------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Node:
        """The node; ``GraphError`` if there is none."""
        found = self.nodes.get(name)
        if found is None:
            raise GraphError(f"the graph has no node {name!r}")
        return found

    def __contains__(self, name: str) -> bool:
        return name in self.nodes

    def __len__(self) -> int:
        return len(self.nodes)

    def constant(self, name: str) -> Constant | None:
        """The constant that a node is, None for other nodes. One handle per node."""
        found = self._constants.get(name)
        if found is None:
            node = self.nodes.get(name)
            if node is None or node.op != "Const":
                return None
            found = self._constants[name] = node.constant()
        return found

    def type_of(self, ref: TensorRef) -> int:
        """The DataType number of a tensor, 0 if it is not known."""
        types = self.nodes[ref[0]].output_types
        if types is None:
            return self.guessed.get(ref, 0)
        return types[ref[1]] if ref[1] < len(types) else 0

    def check_tensor(self, ref: TensorRef, what: str) -> TensorRef:
        """The tensor itself if the graph has it; ``GraphError`` with the nearest names otherwise."""
        node = self.nodes.get(ref[0])
        if node is None:
            near = did_you_mean(close_to(ref[0], list(self.nodes)[:_MOST_NAMES], 3))
            raise GraphError(f"{what} {tensor_name(ref)!r} is not in the graph{near}{self._named_sinks()}")
        types = node.output_types
        if types is not None and ref[1] >= len(types):
            raise GraphError(f"{what} {tensor_name(ref)!r}: {node.op} has {len(types)} outputs", node.name)
        return ref

    def reachable(self, names: Iterable[str]) -> set[str]:
        """The nodes that these need, through data and control edges, themselves included."""
        work = [self[name].name for name in names]
        seen = set(work)
        while work:
            node = self.nodes[work.pop()]
            for source in (*(n for n, _ in node.inputs), *node.controls):
                if source not in seen:
                    seen.add(source)
                    work.append(source)
        return seen

    def sinks(self) -> tuple[list[str], list[str]]:
        """Default outputs: ``(data sinks, control-only sinks)`` by node name in file order.

        A data sink produces a tensor (or is a stateful op with none, such as an assignment by TF1's table ops) that nobody reads; a
        control-only sink (NoOp, Assert, a group of assignments) has no output at all and nobody waits for it. The unread side of a
        legacy Switch is no output: it is dead whenever the other side runs.
        """
        read = {source for node in self.order for source, _ in node.inputs}
        waited = {source for node in self.order for source in node.controls}
        data: list[str] = []
        control: list[str] = []
        for node in self.nodes.values():
            if node.name in read:
                continue
            if node.output_types is not None and not node.output_types:
                if node.name not in waited:
                    control.append(node.name)
            elif node.op not in _SOURCES and node.name not in waited and not self._is_side(node):
                data.append(node.name)
        return data, control

    def _named_sinks(self) -> str:
        """The first few of the data sinks, for the end of a message."""
        sinks = self.sinks()[0]
        more = f" and {len(sinks) - 5} more" if len(sinks) > 5 else ""
        return f"; the graph's sinks are {', '.join(sinks[:5])}{more}" if sinks else ""

    def _is_side(self, node: Node) -> bool:
        """Whether the node is a Switch or passes a side of one on."""
        while node.op == "Identity" and node.inputs:
            node = self.nodes[node.inputs[0][0]]
        return node.op in ("Switch", "RefSwitch", "_SwitchN")


def resolve_outputs(graph: Graph, outputs: Sequence[str] | None) -> tuple[list[TensorRef], list[str]]:
    """The tensors asked for and the nodes asked for without a tensor (``^name`` or an op without outputs).

    None takes every output port of each data sink. ``GraphError`` for names that the graph does not have.
    """
    if outputs is None:
        data, _ = graph.sinks()
        refs = [(name, port) for name in data for port in range(len(graph[name].output_types or [0]))]
        return refs, []
    refs, targets = [], []
    for text in outputs:
        if text.startswith("^"):
            targets.append(graph[text[1:]].name)
            continue
        ref = parse_tensor(text)
        node = graph.nodes.get(ref[0])
        if node is not None and node.output_types == [] and ":" not in text:
            targets.append(ref[0])
        else:
            refs.append(graph.check_tensor(ref, "output"))
    return list(dict.fromkeys(refs)), list(dict.fromkeys(targets))


def _signature_type(arg: Any, attrs: Mapping[str, Any]) -> int:
    if arg.type:
        return arg.type
    return attrs[arg.type_attr].type if arg.type_attr and arg.type_attr in attrs else 0


def _check_const(proto: Any) -> None:
    tensor = proto.attr["value"].tensor
    declared = proto.attr["dtype"].type
    if declared and tensor.dtype != declared:
        raise GraphError(f"attribute 'dtype' is {declared}, the tensor has type {tensor.dtype}")
    shape_of(tensor.tensor_shape, "constant")


def _check_inputs(graph: Graph, node: Node) -> None:
    expected: list[int] | None = None
    info = op_info(node.op)
    if info is not None and node.op not in graph.signatures:
        expected = info.input_types(node.proto.attr)
    for i, (name, port) in enumerate(node.inputs):
        source = graph.nodes.get(name)
        if source is None:
            raise GraphError(f"input {tensor_name((name, port))!r} is not in the graph", node.name)
        types = source.output_types
        if types is None:
            if expected is not None and expected[i]:
                graph.guessed.setdefault((name, port), base_type(expected[i]))
            continue
        if port >= len(types):
            raise GraphError(f"input {name}:{port}: {source.op} has only {len(types)} outputs", node.name)
        if expected is not None and types[port] and expected[i]:
            found, wanted = types[port], expected[i]
            if base_type(found) != base_type(wanted) or (wanted > 100 and found < 100):
                found_name, wanted_name = tf_type_name(found), tf_type_name(wanted)
                raise GraphError(f"input {i} ({tensor_name((name, port))}) has type {found_name}, {node.op} takes {wanted_name}", node.name)
    for name in node.controls:
        if name not in graph.nodes:
            raise GraphError(f"control input {name!r} is not in the graph", node.name)


def _is_back_edge(source: Node, target: Node) -> bool:
    """Legacy loops close through NextIteration -> Merge only."""
    return source.op in ("NextIteration", "RefNextIteration") and target.op in ("Merge", "RefMerge")


def topological(nodes: Mapping[str, Node]) -> list[Node]:
    """Every node after what it needs, stable: file order where there is a choice. ``GraphError`` for a cycle other than a legacy loop."""
    waiting: dict[str, int] = {}
    users: dict[str, list[Node]] = {name: [] for name in nodes}
    for node in nodes.values():
        count = 0
        for name in (*(n for n, _ in node.inputs), *node.controls):
            if not _is_back_edge(nodes[name], node):
                users[name].append(node)
                count += 1
        waiting[node.name] = count
    # depth first from the sources in file order keeps what belongs together close; a stack, no recursion
    order: list[Node] = []
    ready = [node for node in reversed(list(nodes.values())) if waiting[node.name] == 0]
    while ready:
        node = ready.pop()
        order.append(node)
        for user in users[node.name]:
            waiting[user.name] -= 1
            if waiting[user.name] == 0:
                ready.append(user)
    if len(order) < len(nodes):
        raise GraphError(f"the graph has a cycle: {' -> '.join(_cycle(nodes, waiting))}")
    return order


def _cycle(nodes: Mapping[str, Node], waiting: Mapping[str, int]) -> list[str]:
    """The names along one cycle, shortened."""
    at = next(name for name, count in waiting.items() if count > 0)
    seen: dict[str, int] = {}
    path: list[str] = []
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        node = nodes[at]
        sources = (*(n for n, _ in node.inputs), *node.controls)
        at = next(n for n in sources if waiting[n] > 0 and not _is_back_edge(nodes[n], node))
    path = [*path[seen[at] :], at]
    return path if len(path) <= 8 else [*path[:4], "...", *path[-3:]]


def _consumers(order: Iterable[Node]) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in order:
        for name in dict.fromkeys([*(n for n, _ in node.inputs), *node.controls]):
            found.setdefault(name, []).append(node)
    return found


def frames(graph: Graph) -> set[str]:
    """Nodes inside legacy control flow: between Enter and Exit, or after a Switch until its Merge; the control ops themselves too."""
    depth: dict[str, int] = {}
    inside: set[str] = set()
    for node in graph.order:
        if node.op in ("Enter", "RefEnter") or node.op in ("Switch", "RefSwitch", "_SwitchN"):
            level = max((depth.get(n, 0) for n in _sources(node)), default=0) + 1
        else:
            level = max((depth.get(n, 0) for n in _sources(node)), default=0)
            if node.op in ("Merge", "RefMerge") and not any(_is_back_edge(graph[n], node) for n, _ in node.inputs):
                level = max(level - 1, 0)
            elif node.op in ("Exit", "RefExit"):
                level = max(level - 2, 0)  # the Enter and the Switch of the loop
        depth[node.name] = level
        if level > 0 or node.op in CONTROL_FLOW:
            inside.add(node.name)
    return inside


def _sources(node: Node) -> Iterator[str]:
    for name, _ in node.inputs:
        yield name
    yield from node.controls
