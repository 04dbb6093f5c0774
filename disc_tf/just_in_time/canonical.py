"""A graph without what differs between two processes that trace the same program: names of functions and of custom gradients.

Functions are named after their content, so that two graphs that mean the same are the same bytes, whatever was traced before them, and
so that functions of several compiled graphs live together in one process.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

from disc_tf.frontend.functions import bodies, every_node
from disc_tf.frontend.tfproto import serialized
from disc_tf.just_in_time.program import GRADIENT, renamed

FUNCTION_PREFIX = "disc_fn_"
_GRADIENT_PREFIX = "disc_gradient_"
#: attributes of functions that name other functions of the process or say how a function was made
_DROPPED = ("forward_function_name", "backward_function_name", "_construction_context", "_original_func_name")
#: attribute of placeholders and arguments: a number of the process for what is captured
_NUMBERED = "_user_specified_name"


@dataclasses.dataclass(frozen=True)
class Canonical:
    """``digest``: of the content; node order and function names do not matter. ``gradients``: name in the graph -> registered name here."""

    graph_def: Any
    digest: str
    gradients: dict[str, str]


def canonical(graph_def: Any) -> Canonical:
    """``graph_def`` is changed in place."""
    _rename_functions(graph_def)
    gradients = _rename_gradients(graph_def)
    whole = hashlib.sha256()
    for node in sorted(graph_def.node, key=lambda n: n.name):
        _update(whole, serialized(node))
    for f in sorted(graph_def.library.function, key=lambda f: f.signature.name):
        _update(whole, f.signature.name.encode())
    for g in sorted(graph_def.library.gradient, key=lambda g: g.function_name):
        _update(whole, serialized(g))
    _update(whole, str(graph_def.versions.producer).encode())
    return Canonical(graph_def, whole.hexdigest(), gradients)


def restore_gradients(graph_def: Any, gradients: dict[str, str]) -> None:
    """Put this process's names back, in place."""
    for node in every_node(graph_def):
        if GRADIENT in node.attr:
            name = node.attr[GRADIENT].s.decode()
            node.attr[GRADIENT].s = (gradients.get(name) or name).encode()


def _update(digest: Any, data: bytes) -> None:
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)


def _references(node: Any, known: Any) -> Iterator[Any]:
    """NameAttrList messages of a node that name functions of the library."""
    for key in sorted(node.attr):
        value = node.attr[key]
        kind = value.WhichOneof("value")
        if kind == "func" and value.func.name in known:
            yield value.func
        elif kind == "list":
            yield from (f for f in value.list.func if f.name in known)


def _rename_functions(graph_def: Any) -> None:
    functions = {f.signature.name: f for f in graph_def.library.function}
    holders = [*every_node(graph_def), *(a for f in functions.values() for a in f.arg_attr.values())]
    for holder in holders:
        if _NUMBERED in holder.attr:
            del holder.attr[_NUMBERED]
    as_ops = {n.op for n in every_node(graph_def)}
    for f in functions.values():
        for key in _DROPPED:
            if key in f.attr:
                del f.attr[key]
        _rename_arguments(f, results=f.signature.name not in as_ops)
    gradient_of = {g.function_name: g.gradient_func for g in graph_def.library.gradient}
    children: dict[str, list[str]] = {}
    for name, f in functions.items():
        found = [r.name for node in f.node_def for r in _references(node, functions)]
        found += [node.op for node in f.node_def if node.op in functions]
        if gradient_of.get(name) in functions:
            found.append(gradient_of[name])
        children[name] = list(dict.fromkeys(found))
    names: dict[str, str] = {}
    for name in _bottom_up(children):
        names[name] = FUNCTION_PREFIX + _function_digest(functions[name], names)
    for node in every_node(graph_def):
        for reference in _references(node, names):
            reference.name = names[reference.name]
        if node.op in names:
            node.op = names[node.op]
    for g in graph_def.library.gradient:
        g.function_name = names.get(g.function_name, g.function_name)
        g.gradient_func = names.get(g.gradient_func, g.gradient_func)
    kept: set[str] = set()
    copies = []
    for f in graph_def.library.function:
        f.signature.name = names[f.signature.name]
        if f.signature.name not in kept:  # equal functions are one
            kept.add(f.signature.name)
            copy = type(f)()
            copy.CopyFrom(f)
            copies.append(copy)
    del graph_def.library.function[:]
    graph_def.library.function.extend(sorted(copies, key=lambda f: f.signature.name))


def _rename_arguments(function: Any, results: bool) -> None:
    """By position: names of a loop's arguments have numbers of the process in them. ``results``: too (callers do not name them)."""
    taken = {n.name for n in function.node_def}
    names: dict[str, str] = {}
    for i, arg in enumerate(function.signature.input_arg):
        new = f"arg{i}"
        while new in taken:
            new += "_"
        names[arg.name] = new
        arg.name = new
    for node in function.node_def:
        for i, text in enumerate(node.input):
            new = renamed(text, names)
            if new != text:
                node.input[i] = new
    returned = []
    for i, arg in enumerate(function.signature.output_arg):
        text = renamed(function.ret[arg.name], names)
        if results:
            arg.name = f"out{i}"
        returned.append((arg.name, text))
    function.ret.clear()
    for name, text in returned:
        function.ret[name] = text


def _bottom_up(children: dict[str, list[str]]) -> list[str]:
    """Called functions first. In a circle any order, the same for equal graphs."""
    seen: set[str] = set()
    order: list[str] = []
    for root in children:
        stack = [(root, False)]
        while stack:
            name, finished = stack.pop()
            if finished:
                order.append(name)
            elif name not in seen:
                seen.add(name)
                stack.append((name, True))
                stack.extend((c, False) for c in children[name] if c not in seen)
    return order


def _function_digest(function: Any, names: dict[str, str]) -> str:
    """Of the content; functions that are not named yet (a circle) count as no name."""
    copy = type(function)()
    copy.CopyFrom(function)
    copy.signature.name = ""
    nodes = sorted(copy.node_def, key=lambda n: n.name)
    digest = hashlib.sha256()
    for node in nodes:
        for key in sorted(node.attr):
            value = node.attr[key]
            for func in [value.func] if value.WhichOneof("value") == "func" else value.list.func:
                func.name = names.get(func.name, func.name if not func.name.startswith("__") else "")
        if node.op in names:
            node.op = names[node.op]
        if GRADIENT in node.attr:
            node.attr[GRADIENT].s = b""
        _update(digest, serialized(node))
    del copy.node_def[:]
    _update(digest, serialized(copy))
    return digest.hexdigest()[:32]


def _rename_gradients(graph_def: Any) -> dict[str, str]:
    """Numbered in an order that is the same for equal graphs. Returns new name -> old name."""
    numbered: dict[str, str] = {}
    for nodes in bodies(graph_def):
        for node in sorted(nodes, key=lambda n: n.name):
            if GRADIENT in node.attr:
                old = node.attr[GRADIENT].s.decode()
                new = numbered.setdefault(old, f"{_GRADIENT_PREFIX}{len(numbered)}")
                node.attr[GRADIENT].s = new.encode()
    return {new: old for old, new in numbered.items()}
