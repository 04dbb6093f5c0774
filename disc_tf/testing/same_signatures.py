"""Signatures of a SavedModel that are one computation under several keys, as Keras's ``serve`` and ``serving_default``."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from disc_tf.frontend.function_graph import single_call
from disc_tf.frontend.functions import Library
from disc_tf.frontend.graph import parse_tensor
from disc_tf.frontend.saved_model import reached_nodes, signature_tensors

#: nodes around the call of a function: a signature with more is compared by its tensors only
_MOST_NODES = 300


def same_signatures(meta: Any, names: Collection[str]) -> dict[str, str]:
    """Signature -> an earlier one of ``names`` that computes the same from inputs of the same names."""
    library = Library(meta.graph_def)
    nodes = {n.name: n for n in meta.graph_def.node}
    first: dict[Any, str] = {}
    found: dict[str, str] = {}
    for name in names:
        earlier = {first.setdefault(key, name) for key in _keys(meta, name, nodes, library)} - {name}
        if earlier:
            found[name] = min(earlier, key=list(names).index)
    return found


def _keys(meta: Any, name: str, nodes: Mapping[str, Any], library: Library) -> list[Any]:
    """What two signatures that are the same have in common; one of these suffices."""
    signature = meta.signature_def[name]
    if any(info.WhichOneof("encoding") != "name" for side in (signature.inputs, signature.outputs) for info in side.values()):
        return []
    ends = tuple(tuple((k, i.dtype, _shape(i)) for k, i in sorted(side.items())) for side in (signature.inputs, signature.outputs))
    inputs, outputs = (signature_tensors(signature, part) for part in ("inputs", "outputs"))
    keys: list[Any] = [(ends, tuple(sorted(inputs.items())), tuple(sorted(outputs.items())))]
    if len(reached_nodes(meta, outputs.values())) <= _MOST_NODES:
        body = _Body(nodes, library, {parse_tensor(t): f"input {k}" for k, t in inputs.items()})
        keys.append((ends, tuple((k, body.tensor(t)) for k, t in sorted(outputs.items()))))
    return keys


def _shape(info: Any) -> Any:
    return info.tensor_shape.SerializeToString(deterministic=True)


class _Body:
    """Digests of tensors by how they are computed, whatever the nodes are called. ``known``: of tensors that are given."""

    def __init__(self, nodes: Mapping[str, Any], library: Library, known: Mapping[tuple[str, int], str]) -> None:
        self.nodes, self.library = nodes, library
        self.known: dict[tuple[str, int], str] = dict(known)
        self.done: dict[str, str] = {}

    def tensor(self, text: str) -> str:
        name, port = parse_tensor(text)
        if (name, port) in self.known:
            return self.known[name, port]
        return f"{self.node(name)}:{port}"

    def node(self, name: str) -> str:
        if name not in self.done:
            self.done[name] = self._digest(self.nodes[name])
        return self.done[name]

    def _digest(self, node: Any) -> str:
        if node.op == "Identity" and not any(i.startswith("^") for i in node.input):
            return self.tensor(node.input[0])
        found = [node.op, *(f"^{self.node(i[1:])}" if i.startswith("^") else self.tensor(i) for i in node.input)]
        if not node.input and node.op != "Const":  # a variable, a table
            found.append(node.name)
        for key in sorted(k for k in node.attr if not k.startswith("_")):
            found += [key, self._attribute(node.attr[key])]
        return hashlib.sha256("\n".join(found).encode()).hexdigest()

    def _attribute(self, value: Any) -> str:
        if value.WhichOneof("value") == "func":
            return self._function(value.func.name)
        return value.SerializeToString(deterministic=True).hex()

    def _function(self, name: str) -> str:
        """A function that only passes on is known by what it calls and with which arguments; others by their names."""
        f = self.library.functions.get(name)
        if f is None or single_call(f, self.library) is None:
            return name
        arguments = {(a.name, 0): f"argument {i}" for i, a in enumerate(f.signature.input_arg)}
        body = _FunctionBody({n.name: n for n in f.node_def}, self.library, arguments)
        results = [f"{r.name} {body.tensor(f.ret[r.name])}" for r in f.signature.output_arg]
        controls = sorted(body.node(n) for n in f.control_ret.values())
        return hashlib.sha256("\n".join([*results, *controls]).encode()).hexdigest()


class _FunctionBody(_Body):
    """Tensors of functions are called ``node:output:index``."""

    def tensor(self, text: str) -> str:
        name, _, place = text.partition(":")
        return self.known.get((name, 0)) or f"{self.node(name)}:{place}"


__all__ = ["same_signatures"]
