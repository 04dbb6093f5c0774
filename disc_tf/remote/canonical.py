"""The canonical form of a request: equal for graphs that differ only in names and in the order of their nodes.

Nodes are numbered as a walk from the outputs along the inputs meets them (control inputs by the structure behind them), functions as the
nodes mention them. Debug information and versions are dropped, attributes and options are sorted by their deterministic wire format.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.functions import has_effect
from disc_tf.frontend.graph import parse_tensor
from disc_tf.frontend.tfproto import graph_from_bytes, message_class, serialized
from disc_tf.remote.messages import message_class as own_message

#: canonical names of nodes (n.1), functions (f.1), nodes and arguments of function bodies (f.1.2)
NAME = re.compile(r"(?<![\w.])[nfs]\.\d+(?:\.\d+)?(?![\w])")


@dataclasses.dataclass
class Canonical:
    """``graph``: serialized GraphDef; ``outputs``, ``feeds``, ``options`` with canonical names; ``names``: canonical name -> the
    request's; ``digest``: of all of it but ``names`` (32 bytes)."""

    graph: bytes
    outputs: list[str]
    feeds: list[str]
    options: Any
    names: dict[str, str]
    digest: bytes


def canonical(graph_def: Any, outputs: Sequence[str], feeds: Sequence[str] = (), options: Any = None) -> Canonical:
    """The canonical form. ``graph_def``: a GraphDef or its bytes; ``options``: a CompileOptions message.

    ``GraphError`` for inputs or outputs that name nothing. Time and memory are linear in the graph.
    """
    if isinstance(graph_def, bytes):
        graph_def = graph_from_bytes(graph_def)
    return _Walk(graph_def).run(outputs, feeds, options if options is not None else own_message("CompileOptions")())


def request_digest(graph: bytes, outputs: Sequence[str], feeds: Sequence[str], options: Any) -> bytes:
    """SHA-256 of a request in canonical form."""
    h = hashlib.sha256()
    for part in (graph, *(t.encode() for t in outputs), b"feeds", *(t.encode() for t in feeds), b"options", serialized(options)):
        h.update(len(part).to_bytes(8, "little"))
        h.update(part)
    return h.digest()


def renamed_text(text: str, names: Mapping[str, str]) -> str:
    """``text`` with every canonical name in it replaced."""
    return NAME.sub(lambda m: names.get(m.group(), m.group()), text)


class _Walk:
    def __init__(self, graph_def: Any) -> None:
        self.graph_def = graph_def
        self.nodes: dict[str, Any] = {}
        for n in graph_def.node:
            if n.name in self.nodes:
                raise GraphError("two nodes have this name; rename one of them", n.name)
            self.nodes[n.name] = n
        self.functions = {f.signature.name: f for f in graph_def.library.function}
        self.of: dict[str, str] = {}  # name of a node -> canonical
        self.of_function: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.hashes: dict[str, bytes] = {}
        self.function_hashes: dict[str, bytes] = {}
        self.out = message_class("GraphDef")()

    def run(self, outputs: Sequence[str], feeds: Sequence[str], options: Any) -> Canonical:
        roots = [_name_of(t) for t in (*outputs, *feeds)]
        for name in roots:
            if name not in self.nodes:
                raise GraphError(f"output {name!r} is not in the graph")
        order = _post_order(roots, lambda name: self._sources(name))
        for i, name in enumerate(order):
            self.of[name] = f"n.{i}"
            self.names[f"n.{i}"] = name
        for name in order:
            self._node(self.out.node.add(), self.nodes[name], lambda text: _renamed(text, self.of))
        self._library()
        new = own_message("CompileOptions")()
        new.CopyFrom(options)
        del new.denied[:]
        new.denied.extend(sorted(self.of[n] for n in set(options.denied) if n in self.of))
        del new.hints[:]
        new.hints.extend(sorted(self._hint(h) for h in options.hints))
        for run in new.runs:
            fetched = sorted({_renamed(_full(t), self.of) for t in run.outputs if _name_of(t) in self.of})
            del run.outputs[:]
            run.outputs.extend(fetched)
        del new.targets[:]
        new.targets.extend(sorted(set(options.targets)))
        graph = serialized(self.out)
        fetched = [_renamed(t if t.startswith("^") else _full(t), self.of) for t in outputs]
        fed = sorted(_renamed(_full(t), self.of) for t in feeds)
        return Canonical(graph, fetched, fed, new, self.names, request_digest(graph, fetched, fed, new))

    def _hint(self, text: str) -> str:
        name, colon, rest = text.partition(": ") if ": " in text else text.partition(":")
        ref, port = (name, "") if name in self.of else (name.rpartition(":")[0], name.rpartition(":")[2])
        if ref not in self.of:
            raise GraphError(f"hint for {name!r}: the graph has no such input")
        return f"{self.of[ref]}{':' + port if port else ''}{colon}{rest}"

    # ---- order --------------------------------------------------------------------------------------------------

    def _sources(self, name: str) -> list[str]:
        node = self.nodes[name]
        data = [_name_of(t) for t in node.input if not t.startswith("^")]
        control = [t[1:] for t in node.input if t.startswith("^")]
        for source in (*data, *control):
            if source not in self.nodes:
                raise GraphError(f"input {source!r} is not in the graph", name)
        if len(control) > 1:
            control.sort(key=self._hash)
        return data + control

    def _hash(self, name: str) -> bytes:
        """What stands behind a node, whatever it is called. A circle (a loop of legacy control flow) counts as nothing."""
        done = self.hashes
        open_: set[str] = set()
        work = [name]
        while work:
            at = work[-1]
            if at in done:
                work.pop()
                continue
            node = self.nodes[at]
            sources = [_name_of(t) for t in node.input]
            missing = [s for s in sources if s not in done and s in self.nodes and s not in open_]
            if missing and at not in open_:
                open_.add(at)
                work.extend(missing)
                continue
            h = hashlib.sha256(node.op.encode())
            h.update(self._attributes(node))
            data = [(t.partition(":")[2], s) for t, s in zip(node.input, sources, strict=True) if not t.startswith("^")]
            for port, source in data:
                h.update(port.encode() + b"<" + done.get(source, b"circle"))
            for d in sorted(done.get(s, b"circle") for t, s in zip(node.input, sources, strict=True) if t.startswith("^")):
                h.update(b"^" + d)
            done[at] = h.digest()
            work.pop()
        return done[name]

    def _attributes(self, node: Any) -> bytes:
        """The attributes, functions by their size alone (their order is found by the walk)."""
        copy = message_class("NodeDef")()
        copy.MergeFromString(node.SerializeToString()) if not isinstance(node, message_class("NodeDef")) else copy.CopyFrom(node)
        copy.ClearField("name")
        copy.ClearField("input")
        copy.ClearField("experimental_debug_info")
        for key in copy.attr:
            for f in _funcs(copy.attr[key]):
                f.name = str(len(self.functions[f.name].node_def)) if f.name in self.functions else ""
        return serialized(copy)

    # ---- writing ------------------------------------------------------------------------------------------------

    def _node(self, new: Any, old: Any, rename: Callable[[str], str]) -> None:
        new.name, new.op, new.device = rename(old.name), old.op, old.device
        data = [t for t in old.input if not t.startswith("^")]
        control = sorted({rename(t) for t in old.input if t.startswith("^")})
        new.input.extend([rename(t) for t in data] + control)
        for key in old.attr:
            new.attr[key].MergeFromString(old.attr[key].SerializeToString())
        for key in sorted(new.attr):
            for f in _funcs(new.attr[key]):
                f.name = self._function_name(f.name)
        if old.op in self.functions:
            new.op = self._function_name(old.op)

    def _function_name(self, name: str) -> str:
        if name not in self.functions:
            return name if not name else "f.none"
        if name not in self.of_function:
            self.of_function[name] = f"f.{len(self.of_function)}"
            self.names[self.of_function[name]] = name
        return self.of_function[name]

    def _library(self) -> None:
        written = 0
        while True:
            names = list(self.of_function)[written:]
            if not names:
                # functions with gradients are kept as they are (`Library.why_not`): their gradients' names count, too
                more = [g for g in self.graph_def.library.gradient if g.function_name in self.of_function]
                fresh = [g.gradient_func for g in more if g.gradient_func in self.functions and g.gradient_func not in self.of_function]
                if not fresh:
                    break
                for name in fresh:
                    self._function_name(name)
                continue
            for name in names:
                self._function(self.functions[name])
            written += len(names)
        for g in self.graph_def.library.gradient:
            if g.function_name in self.of_function and g.gradient_func in self.of_function:
                self.out.library.gradient.add(
                    function_name=self.of_function[g.function_name], gradient_func=self.of_function[g.gradient_func]
                )

    def _function(self, f: Any) -> None:
        own = self.of_function[f.signature.name]
        nodes = {n.name: n for n in f.node_def}
        arguments = {a.name: f"{own}.{i}" for i, a in enumerate(f.signature.input_arg)}
        if len(nodes) != len(f.node_def) or nodes.keys() & arguments.keys():
            raise GraphError(f"function {f.signature.name!r} has two nodes or arguments of one name")

        def sources(name: str) -> list[str]:
            found = [t.lstrip("^").partition(":")[0] for t in nodes[name].input]
            for source in found:
                if source not in nodes and source not in arguments:
                    raise GraphError(f"function {f.signature.name!r}: {source!r} is not in the body", name)
            return [s for s in found if s in nodes]

        returns = [f.ret[a.name] for a in f.signature.output_arg if a.name in f.ret]
        roots = [t.partition(":")[0] for t in returns] + sorted(set(f.control_ret.values()))
        roots += [n.name for n in f.node_def if has_effect(n.op, self.functions)]
        order = _post_order([r for r in dict.fromkeys(roots) if r in nodes], sources)
        of = {**arguments, **{name: f"{own}.{i + len(arguments)}" for i, name in enumerate(order)}}
        self.names |= {new: old for old, new in of.items()}
        out = self.out.library.function.add()
        out.signature.name, out.signature.is_stateful = own, f.signature.is_stateful
        for i, a in enumerate(f.signature.input_arg):
            arg = out.signature.input_arg.add()
            arg.MergeFromString(a.SerializeToString())
            arg.name = f"{own}.{i}"
            arg.ClearField("description")
        for i, a in enumerate(f.signature.output_arg):
            arg = out.signature.output_arg.add()
            arg.MergeFromString(a.SerializeToString())
            arg.name = f"r.{i}"
            arg.ClearField("description")
            if a.name in f.ret:
                out.ret[f"r.{i}"] = _renamed(f.ret[a.name], of)
        for i, target in enumerate(sorted({of[t] for t in f.control_ret.values() if t in of})):
            out.control_ret[f"c.{i}"] = target
            out.signature.control_output.append(f"c.{i}")
        for key in f.attr:
            out.attr[key].MergeFromString(f.attr[key].SerializeToString())
        for name in order:
            self._node(out.node_def.add(), nodes[name], lambda text: _renamed(text, of))


def _funcs(value: Any) -> list[Any]:
    kind = value.WhichOneof("value")
    return [value.func] if kind == "func" else list(value.list.func) if kind == "list" else []


def _name_of(text: str) -> str:
    return text.lstrip("^").partition(":")[0]


def _full(text: str) -> str:
    name, port = parse_tensor(text)
    return f"{name}:{port}"


def _renamed(text: str, of: Mapping[str, str]) -> str:
    mark = "^" if text.startswith("^") else ""
    name, colon, rest = text[len(mark) :].partition(":")
    return f"{mark}{of.get(name, name)}{colon}{rest}"


def _post_order(roots: Iterable[str], sources: Callable[[str], list[str]]) -> list[str]:
    """Everything that the roots need, sources first, each once; iterative, circles are cut where they close."""
    done: dict[str, None] = {}
    open_: set[str] = set()
    work = [(root, False) for root in reversed(list(dict.fromkeys(roots)))]
    while work:
        name, ready = work.pop()
        if ready:
            done[name] = None
            continue
        if name in done or name in open_:
            continue
        open_.add(name)
        work.append((name, True))
        work.extend((s, False) for s in reversed(sources(name)) if s not in open_)
    return list(done)

