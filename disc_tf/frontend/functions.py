"""Library functions: bodies in GraphDef form, and inlining of calls.

A body refers to tensors as ``node:output_arg:index`` or by the name of an argument; `body_inputs` resolves both. `inline_calls`
replaces `PartitionedCall`, `StatefulPartitionedCall` and calls by name by the bodies of their functions where that keeps the meaning:

* a body node becomes ``<call>/<node>``, so that names say where it came from;
* readers of the call read the body's tensors; the call's own name stays (as Identity, IdentityN or NoOp) where it is fetched, where
  a control edge names it, or where the body has side effects, which then come before any reader of the results, as in a call;
* control inputs of the call precede every body node that has no other input in the body.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.graph import parse_tensor, tensor_name
from disc_tf.frontend.opdefs import CALL_OPS, CONTROL_FLOW, READS, op_info
from disc_tf.frontend.tfproto import serialized

#: no more nodes than this are made by inlining (a chain of functions can double 60 times)
MAX_INLINED = 1 << 18
#: on functions and calls that XLA is to compile as a whole
XLA_ATTR = "_XlaMustCompile"
NOINLINE = "_noinline"
_XLA_ATTRS = (XLA_ATTR, "_tpu_replicate", "_replication_info", "_xla_compile_id")
_FRAME_OPS = frozenset({"Enter", "RefEnter"})


@dataclasses.dataclass
class Inlined:
    """The result of `inline_calls`.

    ``graph_def``: the argument itself if nothing was inlined. ``calls``: names of the calls that are gone, with their functions.
    ``kept``: call node -> why it was left (a line).
    """

    graph_def: Any
    calls: dict[str, str]
    kept: dict[str, str]


def flag(attrs: Mapping[str, Any], name: str) -> bool:
    """A boolean attribute that may be absent; strings count when not empty (``_tpu_replicate``)."""
    if name not in attrs:
        return False
    value = attrs[name]
    return bool(value.b or value.s or value.i)


def must_compile(attrs: Mapping[str, Any]) -> bool:
    """Whether a node or function belongs to XLA or to a replicated (TPU) body: never to be touched."""
    return any(flag(attrs, name) for name in _XLA_ATTRS)


def jit_compiled(attrs: Mapping[str, Any]) -> bool:
    """Whether XLA is to compile the call or function as a whole (``tf.function(jit_compile=True)``) and nothing else is asked for."""
    return flag(attrs, XLA_ATTR) and not any(flag(attrs, name) for name in _XLA_ATTRS if name != XLA_ATTR)


class Library:
    """The functions of a GraphDef by name."""

    def __init__(self, graph_def: Any) -> None:
        self.functions = {f.signature.name: f for f in graph_def.library.function}
        self._sizes: dict[str, int] = {}
        self._whole: set[str] = set()
        gradients = graph_def.library.gradient
        self.with_gradient = {g.function_name for g in gradients} | {g.gradient_func for g in gradients}

    def called(self, node: Any) -> tuple[str, Mapping[str, Any]] | None:
        """The function that a node calls directly and the attributes to instantiate it with, else None."""
        key = CALL_OPS.get(node.op)
        if key is not None:
            return (node.attr[key].func.name, node.attr[key].func.attr) if key in node.attr else None
        return (node.op, node.attr) if node.op in self.functions else None

    def expanded(self, name: str) -> int:
        """How many nodes inlining a function makes, calls inside it included (as far as they may be inlined)."""
        stack = [name]
        while stack:
            f = self.functions[stack[-1]]
            inner = [call[0] for n in f.node_def if (call := self.called(n)) is not None and self.why_not(n, frozenset()) is None]
            if stack[-1] not in self._sizes:
                self._sizes[stack[-1]] = len(f.node_def)  # what a recursive call finds: it stays one node
                stack += [g for g in inner if g not in self._sizes]
                continue
            done = stack.pop()
            if done not in self._whole:
                self._whole.add(done)
                self._sizes[done] = len(f.node_def) + sum(self._sizes[g] for g in inner)
        return self._sizes[name]

    def why_not(self, node: Any, chain: frozenset[str]) -> str | None:
        """Why a call must stay a call; None if it may be inlined. ``chain``: functions being inlined around it."""
        call = self.called(node)
        assert call is not None
        f = self.functions.get(call[0])
        if f is None:
            return f"function {call[0]!r} is not in the library"
        if call[0] in chain:
            return f"function {call[0]!r} is recursive"
        if call[0] in self.with_gradient:
            return f"function {call[0]!r} has or is a registered gradient"
        for attrs in (node.attr, f.attr):
            if flag(attrs, NOINLINE):
                return "marked _noinline"
            if must_compile(attrs):
                return "belongs to XLA or to a replicated body"
        return None


@dataclasses.dataclass
class Body:
    """A function body in GraphDef form: ``inputs[i]`` are node i's inputs as ``(node, port)``, or ``(None, k)`` for argument k;
    ``controls[i]`` likewise are node names, or ints for arguments."""

    nodes: list[Any]
    inputs: list[list[tuple[str | None, int]]]
    controls: list[list[str | int]]
    returns: list[tuple[str | None, int]]
    control_returns: list[str]


def read_body(f: Any, library: Mapping[str, Any], mentioned: dict[str, list[str]] | None = None) -> Body:
    """Resolve a FunctionDef's body. ``GraphError`` naming the function for references that do not resolve (or whose
    producer is an op that the table does not know, so that its outputs cannot be counted).

    ``mentioned``: outputs of such ops are numbered in the order in which the body names them, and noted here, by node.
    """
    name = f.signature.name
    arguments: dict[str, int] = {}
    for i, a in enumerate(f.signature.input_arg):
        if a.number_attr or a.type_list_attr:
            raise GraphError(f"function {name!r}: list argument {a.name!r}")
        if a.name in arguments:
            raise GraphError(f"function {name!r} has two arguments {a.name!r}")
        arguments[a.name] = i
    nodes: dict[str, Any] = {}
    for n in f.node_def:
        if n.name in nodes or n.name in arguments or not n.name:
            raise GraphError(f"function {name!r} has two nodes or arguments of the name {n.name!r}")
        nodes[n.name] = n
    offsets: dict[str, dict[str, tuple[int, int]]] = {}

    def resolve(text: str) -> tuple[str | None, int]:
        if text in arguments:
            return None, arguments[text]
        parts = text.split(":")
        if len(parts) not in (2, 3) or parts[0] not in nodes:
            raise GraphError(f"function {name!r}: {text!r} is not in the body")
        if mentioned is not None and is_unknown(nodes[parts[0]].op, library):
            known = mentioned.setdefault(parts[0], [])
            if text not in known:
                known.append(text)
            return parts[0], known.index(text)
        if parts[0] not in offsets:
            offsets[parts[0]] = output_offsets(nodes[parts[0]], library)
        start, count = offsets[parts[0]].get(parts[1], (0, 0))
        at = int(parts[2]) if len(parts) == 3 and parts[2].isdigit() and len(parts[2]) < 8 else 0
        if at >= count:
            raise GraphError(f"function {name!r}: {text!r} is not an output of {nodes[parts[0]].op}")
        return parts[0], start + at

    inputs: list[list[tuple[str | None, int]]] = []
    controls: list[list[str | int]] = []
    for n in nodes.values():
        data = [resolve(t) for t in n.input if not t.startswith("^")]
        after: list[str | int] = []
        for t in n.input:
            if t.startswith("^"):
                if t[1:] not in nodes and t[1:] not in arguments:
                    raise GraphError(f"function {name!r}: control input {t!r} is not in the body")
                after.append(arguments[t[1:]] if t[1:] in arguments else t[1:])
        inputs.append(data)
        controls.append(after)
    returns = []
    for a in f.signature.output_arg:
        if a.name not in f.ret:
            raise GraphError(f"function {name!r}: output {a.name!r} has no value")
        returns.append(resolve(f.ret[a.name]))
    for target in f.control_ret.values():
        if target not in nodes:
            raise GraphError(f"function {name!r}: control output {target!r} is not in the body")
    return Body(list(nodes.values()), inputs, controls, returns, sorted(set(f.control_ret.values())))


def is_unknown(op: str, library: Mapping[str, Any]) -> bool:
    """Whether neither the table of ops nor the library knows the op."""
    return op not in library and op_info(op) is None


def output_offsets(node: Any, library: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Output argument -> (first port, number of ports) of a node or of a call by name. ``GraphError`` for an unknown op."""
    f = library.get(node.op)
    if f is not None:
        return {a.name: (i, 1) for i, a in enumerate(f.signature.output_arg)}
    info = op_info(node.op)
    if info is None:
        raise GraphError(f"op {node.op!r} is not known: its outputs cannot be counted", node.name)
    return info.output_offsets(node.attr)


def has_effect(op: str, library: Mapping[str, Any]) -> bool:
    """Whether running the op may be seen otherwise than through its outputs (unknown ops may)."""
    f = library.get(op)
    if f is not None:
        return bool(f.signature.is_stateful)
    info = op_info(op)
    return info is None or (info.is_stateful and op not in READS)


def bodies(graph_def: Any) -> Iterator[Any]:
    """The nodes of the main graph, then those of each function."""
    yield graph_def.node
    for f in graph_def.library.function:
        yield f.node_def


def every_node(graph_def: Any) -> Iterator[Any]:
    """The nodes of all `bodies`."""
    return itertools.chain.from_iterable(bodies(graph_def))


def called_functions(nodes: Sequence[Any], functions: Mapping[str, Any], gradients: Sequence[Any] = ()) -> list[str]:
    """Library functions that the nodes reach through op types and func attributes, in order of discovery."""
    by_name: dict[str, list[str]] = {}
    for g in gradients:
        by_name.setdefault(g.function_name, []).append(g.gradient_func)
    found: dict[str, None] = {}
    work = list(nodes)
    while work:
        node = work.pop()
        for name in (n for each in mentioned_functions(node) for n in (each, *by_name.get(each, ()))):
            if name in functions and name not in found:
                found[name] = None
                work.extend(functions[name].node_def)
    return list(found)


def mentioned_functions(node: Any) -> list[str]:
    """The op type of a node and the functions that its attributes name (whether they exist is not asked)."""
    names = [node.op]
    for key in node.attr:
        value = node.attr[key]
        kind = value.WhichOneof("value")
        if kind == "func":
            names.append(value.func.name)
        elif kind == "list":
            names.extend(fn.name for fn in value.list.func)
    return names


def rename_changed(f: Any, prefix: str) -> str:
    """Name a function that was changed by its content; the shapes that its arguments had are forgotten. The new name."""
    if "_input_shapes" in f.attr:
        del f.attr["_input_shapes"]
    f.signature.name = ""
    f.signature.name = f"{prefix}{hashlib.sha256(serialized(f)).hexdigest()[:12]}"
    return f.signature.name


def inline_calls(graph_def: Any, keep: Iterable[str] = (), limit: int = MAX_INLINED) -> Inlined:
    """Inline all calls of the main graph (not of function bodies) as far as legal; nested calls too, iteratively.

    ``keep``: node names that must survive (fetches). Returns a new message unless there is nothing to inline.
    ``GraphError`` for a function body that is malformed.
    """
    library = Library(graph_def)
    kept: dict[str, str] = {}
    if not any(library.called(n) is not None for n in graph_def.node):
        return Inlined(graph_def, {}, kept)
    state = _Inliner(graph_def, library, kept, limit)
    for node in graph_def.node:
        state.add(node, frozenset())
    if not state.calls:
        return Inlined(graph_def, {}, kept)
    return Inlined(state.finish(set(keep)), state.calls, kept)


class _Inliner:
    """Collects the nodes of the new graph. A call is replaced by its body on the spot; a work list takes nested calls."""

    def __init__(self, graph_def: Any, library: Library, kept: dict[str, str], limit: int) -> None:
        self.old = graph_def
        self.library = library
        self.kept = kept
        self.limit = limit
        self.calls: dict[str, str] = {}
        self.out: list[Any] = []  # nodes, and _Stub for a call that is gone
        #: call -> the tensors that stand for its outputs
        self.replaced: dict[str, list[str]] = {}
        self.bodies: dict[str, Body | str] = {}
        self.effects: dict[str, list[str]] = {}
        self.made = 0
        self.names = {n.name for n in graph_def.node}
        self.legacy = any(n.op in CONTROL_FLOW for n in graph_def.node)

    def body(self, name: str) -> Body | str:
        """The body or why it cannot be inlined."""
        if name not in self.bodies:
            try:
                self.bodies[name] = read_body(self.library.functions[name], self.library.functions)
            except GraphError as e:
                if "is not known" not in str(e) and "list argument" not in str(e):
                    raise
                self.bodies[name] = str(e)
        return self.bodies[name]

    def add(self, top: Any, top_chain: frozenset[str]) -> None:
        work: list[tuple[Any, frozenset[str]]] = [(top, top_chain)]
        while work:
            node, chain = work.pop()
            call = self.library.called(node)
            if call is None:
                self.out.append(node)
                continue
            why = self.library.why_not(node, chain)
            body = self.body(call[0]) if why is None else ""
            if isinstance(body, str):
                why = why or body
            elif self.library.expanded(call[0]) + self.made > self.limit:
                why = f"inlining it would make more than {self.limit} nodes"
            elif len([i for i in node.input if not i.startswith("^")]) != len(
                self.library.functions[call[0]].signature.input_arg
            ):
                raise GraphError(f"does not give function {call[0]!r} the inputs that it takes", node.name)
            elif any(f"{node.name}/{n.name}" in self.names for n in body.nodes):
                why = "a name of its body is taken in the graph"
            if why is not None or isinstance(body, str):
                self.kept[node.name] = why or ""
                self.out.append(node)
                continue
            self.calls[node.name] = call[0]
            inner = chain | {call[0]}
            work.extend((n, inner) for n in reversed(self._instantiate(node, body, call[1])))

    def _instantiate(self, call: Any, body: Body, attrs: Mapping[str, Any]) -> list[Any]:
        data = [i for i in call.input if not i.startswith("^")]
        before = [i for i in call.input if i.startswith("^")]
        prefix = f"{call.name}/"
        local = {n.name for n in body.nodes}

        def place(ref: tuple[str | None, int]) -> str:
            name, port = ref
            return data[port] if name is None else tensor_name((prefix + name, port))

        made = []
        # where no frame or switch needs the edge, words of error messages wait for nothing: a cluster would be cut there
        free = set() if self.legacy else _messages(body)
        for n, inputs, controls in zip(body.nodes, body.inputs, body.controls, strict=True):
            new = type(n)()
            new.CopyFrom(n)
            new.name = prefix + n.name
            del new.input[:]
            new.input.extend(place(ref) for ref in inputs)
            after = []
            for c in controls:
                if isinstance(c, int):
                    after.append("^" + parse_tensor(data[c])[0])
                else:
                    after.append(f"^{prefix}{c}")
            if all(name is None for name, _ in inputs) and not any(isinstance(c, str) for c in controls) and n.name not in free:
                after.extend(before)
            new.input.extend(dict.fromkeys(after))
            if not new.device:
                new.device = call.device
            _fix_attrs(new, attrs, prefix, local)
            made.append(new)
        self.made += len(made)
        self.names.update(n.name for n in made)
        functions = self.library.functions
        effects = [prefix + n.name for n in body.nodes if has_effect(n.op, functions) or n.op == "Assert"]
        effects.extend(prefix + name for name in body.control_returns if prefix + name not in effects)
        self.effects[call.name] = effects
        self.replaced[call.name] = [place(ref) for ref in body.returns]
        self.out.append(_Stub(call, before))
        return made

    def finish(self, keep: set[str]) -> Any:
        waited = {i[1:] for n in self.out if not isinstance(n, _Stub) for i in n.input if i.startswith("^")}
        waited |= {i[1:] for n in self.out if isinstance(n, _Stub) for i in n.before}
        # results of a body with side effects are read through a node that comes after the effects
        through = {name for name, effects in self.effects.items() if effects}
        stays = {name for name in self.replaced if name in keep or name in waited or name in through}
        if any(not self.replaced[name] for name in self.replaced):
            stays |= {name for name in self.replaced if not self.replaced[name]}

        def final(text: str) -> str:
            while not text.startswith("^"):
                name, port = parse_tensor(text)
                if name not in self.replaced or name in through:
                    break
                targets = self.replaced[name]
                if port >= len(targets):
                    raise GraphError(f"output {port} of a function with {len(targets)} results is read", name)
                text = targets[port]
            return text

        new = type(self.old)()
        new.versions.CopyFrom(self.old.versions)
        new.library.CopyFrom(self.old.library)
        functions = self.library.functions
        for item in self.out:
            if isinstance(item, _Stub):
                if item.call.name in stays:
                    self._stub(new.node.add(), item, functions[self.calls[item.call.name]], final)
                continue
            node = new.node.add()
            node.CopyFrom(item)
            inputs = [final(i) for i in node.input]
            if inputs != list(node.input):
                del node.input[:]
                node.input.extend(inputs)
        return new

    def _stub(self, node: Any, stub: _Stub, f: Any, final: Any) -> None:
        """The node of the call's own name: Identity or IdentityN of the results, NoOp if there are none."""
        call = stub.call
        targets = self.replaced[call.name]
        node.name = call.name
        node.device = call.device
        node.op = "NoOp" if not targets else "Identity" if len(targets) == 1 else "IdentityN"
        node.input.extend(final(t) for t in targets)
        attrs = self.library.called(call)
        assert attrs is not None
        types = [a.type or attrs[1][a.type_attr].type for a in f.signature.output_arg]
        if len(types) == 1:
            node.attr["T"].type = types[0]
        elif types:
            node.attr["T"].list.type.extend(types)
        if "_output_shapes" in call.attr:
            node.attr["_output_shapes"].CopyFrom(call.attr["_output_shapes"])
        after = [f"^{name}" for name in self.effects[call.name]]
        if not targets or not after:
            after.extend(stub.before)
        node.input.extend(dict.fromkeys(after))


def _messages(body: Body) -> set[str]:
    """Constants that nothing but Assert nodes print."""
    printed: set[str] = set()
    read: set[str | None] = {name for name, _ in body.returns} | {*body.control_returns}
    for n, inputs, controls in zip(body.nodes, body.inputs, body.controls, strict=True):
        names = [name for name, _ in inputs]
        if n.op == "Assert":
            printed.update(name for name in names[1:] if name is not None)
            names = names[:1]
        read.update(names)
        read.update(c for c in controls if isinstance(c, str))
    return {n.name for n in body.nodes if n.op == "Const" and n.name in printed and n.name not in read}


@dataclasses.dataclass
class _Stub:
    call: Any
    before: Sequence[str]


def _fix_attrs(node: Any, attrs: Mapping[str, Any], prefix: str, local: set[str]) -> None:
    """Put the call's attributes in place of placeholders; make frame names and colocation groups those of this instance."""
    for key in list(node.attr):
        value = node.attr[key]
        kind = value.WhichOneof("value")
        if kind == "placeholder":
            if value.placeholder not in attrs:
                raise GraphError(f"attribute {key!r} asks for {value.placeholder!r}, which the call does not give", node.name)
            value.CopyFrom(attrs[value.placeholder])
        elif kind == "func":
            for name in list(value.func.attr):
                inner = value.func.attr[name]
                if inner.WhichOneof("value") == "placeholder" and inner.placeholder in attrs:
                    inner.CopyFrom(attrs[inner.placeholder])
    if node.op in _FRAME_OPS and "frame_name" in node.attr:
        node.attr["frame_name"].s = prefix.encode() + node.attr["frame_name"].s
    if "_class" in node.attr:
        groups = [s.decode("utf-8", "replace") for s in node.attr["_class"].list.s]
        fixed = [f"loc:@{prefix}{g[5:]}" if g.startswith("loc:@") and g[5:] in local else g for g in groups]
        if fixed != groups:
            del node.attr["_class"].list.s[:]
            node.attr["_class"].list.s.extend(g.encode() for g in fixed)
