"""Tensors inside of functions that the object graph of a SavedModel names, and the nodes that have gradients of their own.

The gradient function of a `tf.custom_gradient` captures tensors of the function that it was traced in (saved_object_graph.proto,
CapturedTensor): `tf.saved_model.load` looks each up by name, so a function keeps those tensors whatever becomes of its body. It keeps the
nodes with such gradients as well: where the model is saved again, `tf.saved_model.save` traces their gradients in this function, and
can in no other. The original of a cluster refers to these nodes by name (`ORIGIN`), and `disc_tf.ops` follows the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from disc_tf.frontend.graph import parse_tensor
from disc_tf.frontend.opdefs import CALL_OPS, READS, op_info

GRADIENT = "_gradient_op_type"


def captured_tensors(meta: Any) -> dict[str, list[str]]:
    """Function -> tensors of its body (``node:port``; arguments too) that objects of the MetaGraph stand for."""
    found: dict[str, list[str]] = {}
    for node in meta.object_graph_def.nodes:
        if node.WhichOneof("kind") == "captured_tensor":
            names = found.setdefault(node.captured_tensor.concrete_function, [])
            if node.captured_tensor.name not in names:
                names.append(node.captured_tensor.name)
    return found


#: attribute of a node of an original function: the node of the calling function that has its gradient
ORIGIN = "_disc_gradient_node"


def own_gradients(graph_def: Any) -> list[str]:
    """The nodes with a gradient that Python registered under a name (calls have one by their function)."""
    return [n.name for n in graph_def.node if GRADIENT in n.attr and n.op not in CALL_OPS]


def refer_to_gradients(functions: Iterable[Any], names: Collection[str]) -> None:
    """In original functions of clusters: the nodes of these names have the gradient of their namesakes in the calling function."""
    for f in functions:
        for node in f.node_def:
            if node.name in names and GRADIENT in node.attr:
                del node.attr[GRADIENT]
                node.attr[ORIGIN].s = node.name.encode()


def gradients_again(function: Any, caller: Iterable[Any]) -> None:
    """Undo `refer_to_gradients` in an original function, given the nodes of the function that launched it."""
    registered = {n.name: n.attr[GRADIENT].s for n in caller if GRADIENT in n.attr}
    for node in function.node_def:
        if ORIGIN in node.attr:
            name = registered.get(node.attr[ORIGIN].s.decode())
            del node.attr[ORIGIN]
            if name is not None:
                node.attr[GRADIENT].s = name


def needed_nodes(nodes: Mapping[str, Any], wanted: Collection[str], present: Collection[str]) -> set[str]:
    """The names of ``wanted`` and all that they need, through data and control edges, as far as it is not ``present``."""
    work, found = list(wanted), set()
    while work:
        name = work.pop()
        if name in present or name in found or name not in nodes:
            continue
        found.add(name)
        work += [text[1:] if text.startswith("^") else parse_tensor(text)[0] for text in nodes[name].input]
    return found


def fetched_for(graph_def: Any, tensors: Collection[str], is_call: Callable[[Any], bool]) -> list[str]:
    """The tensors that have to leave clusters so that all ``tensors`` can be computed beside these: results of calls and of stateful ops,
    which must not run twice. What is computed from them costs nothing: only a gradient reads what `keep_captured` adds."""
    nodes = {n.name: n for n in graph_def.node}

    def once(node: Any) -> bool:
        info = op_info(node.op)
        return is_call(node) or info is None or (info.is_stateful and node.op not in READS)

    work, seen, found = list(tensors), set[str](), list[str]()
    while work:
        tensor = work.pop()
        name = parse_tensor(tensor)[0]
        if tensor in seen or name not in nodes:
            continue
        seen.add(tensor)
        if once(nodes[name]):
            found.append(tensor)
        else:
            work += [text for text in nodes[name].input if not text.startswith("^")]
    return sorted(found)


def keep_captured(original: Any, changed: Any, tensors: Collection[str]) -> None:
    """Add to ``changed``, an optimised GraphDef, the nodes of ``original`` that ``tensors`` and their inputs name and that moved into
    clusters. TensorFlow prunes them where no gradient is asked for."""
    nodes = {n.name: n for n in original.node}
    present = {n.name for n in changed.node}
    needed = needed_nodes(nodes, [parse_tensor(t)[0] for t in tensors], present)
    for node in original.node:
        if node.name in needed:
            changed.node.add().CopyFrom(node)
