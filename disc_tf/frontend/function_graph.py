"""A library function as a graph that can be optimised, and back.

    body = function_graph(f, library)
    ... optimise body.graph_def for body.outputs and body.targets ...
    library[name] = function_of(body, optimised, functions)

Arguments become placeholders of their names. What runs although nothing reads it (side effects, checks) is a target. The function keeps its
name, signature and attributes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.functions import (
    NOINLINE,
    Library,
    bodies,
    called_functions,
    flag,
    has_effect,
    is_unknown,
    output_offsets,
    read_body,
)
from disc_tf.frontend.graph import TensorRef, parse_tensor, tensor_name
from disc_tf.frontend.opaque import VARIABLE_SHAPE
from disc_tf.frontend.opdefs import DT_RESOURCE
from disc_tf.frontend.tfproto import message_class

#: of a variable whose handle is an argument: dims, -1 for unknown, or None for unknown rank
Dims = tuple[int, ...] | None


@dataclasses.dataclass
class FunctionGraph:
    """``function``: as it was. ``outputs``: its results as tensors of ``graph_def``; ``targets``: names of nodes that must run.

    ``mentioned``: outputs of ops that nobody knows, as the body spells them, by node (see `functions.read_body`). ``kept``: further tensors
    that stay in the body under their names. ``held``: calls that must not be inlined and that nothing in the function itself marks so.
    """

    function: Any
    graph_def: Any
    outputs: list[str]
    targets: list[str]
    mentioned: dict[str, list[str]]
    kept: list[str] = dataclasses.field(default_factory=list)
    held: set[str] = dataclasses.field(default_factory=set)

    @property
    def name(self) -> str:
        return self.function.signature.name

    @property
    def fetches(self) -> list[str]:
        """``outputs``, ``kept`` and ``targets`` as `optimize_graph_def` takes them."""
        return [*dict.fromkeys([*self.outputs, *self.kept]), *(f"^{t}" for t in self.targets)]


def function_graph(
    f: Any,
    functions: Mapping[str, Any],
    gradients: Sequence[Any] = (),
    variables: Mapping[int, Dims] | None = None,
    whole: Collection[str] = (),
) -> FunctionGraph:
    """The body as a GraphDef whose library holds the functions that it calls.

    gradients: the library's GradientDefs. variables: dims of the variables whose handles are arguments, by position. whole: functions that
    are to stay functions: calls of them are marked ``_noinline``, here only. ``GraphError`` for bodies that make no sense, and for those
    that are completed by attributes of each call.
    """
    mentioned: dict[str, list[str]] = {}
    body = read_body(f, functions, mentioned)
    name = f.signature.name
    graph = message_class("GraphDef")()
    arguments = [a.name for a in f.signature.input_arg]
    for i, argument in enumerate(f.signature.input_arg):
        if not argument.type:
            raise GraphError(f"function {name!r}: the type of argument {argument.name!r} is given by each call")
        node = graph.node.add(name=argument.name, op="Placeholder")
        node.attr["dtype"].type = argument.type
        shape = node.attr["shape"].shape
        shape.unknown_rank = True
        if i in f.arg_attr and "_output_shapes" in f.arg_attr[i].attr:
            listed = f.arg_attr[i].attr["_output_shapes"].list.shape
            if listed and argument.type != DT_RESOURCE:
                shape.Clear()
                shape.MergeFromString(listed[0].SerializeToString())
        dims = (variables or {}).get(i)
        if dims is not None:
            known = node.attr[VARIABLE_SHAPE].shape
            known.SetInParent()  # a scalar has no dim to add
            for d in dims:
                known.dim.add().size = d

    def spell(ref: tuple[str | None, int]) -> str:
        return arguments[ref[1]] if ref[0] is None else tensor_name((ref[0], ref[1]))

    for n, inputs, controls in zip(body.nodes, body.inputs, body.controls, strict=True):
        if any(n.attr[key].WhichOneof("value") == "placeholder" for key in n.attr):
            raise GraphError(f"function {name!r}: attributes of node {n.name!r} are given by each call")
        node = graph.node.add()
        node.MergeFromString(n.SerializeToString())
        del node.input[:]
        node.input.extend(spell(ref) for ref in inputs)
        node.input.extend(f"^{arguments[c] if isinstance(c, int) else c}" for c in controls)
    _add_library(graph, functions, gradients)
    held = _hold(graph, whole)
    effects = [n.name for n in body.nodes if has_effect(n.op, functions) or n.op == "Assert"]
    targets = list(dict.fromkeys([*body.control_returns, *effects]))
    return FunctionGraph(f, graph, [spell(ref) for ref in body.returns], targets, mentioned, held=held)


def _hold(graph: Any, whole: Collection[str]) -> set[str]:
    """Mark the calls of these functions in the graph and in its library; the names of the graph's own that were not marked before."""
    if not whole:
        return set()
    library = Library(graph)
    held = set()
    for i, nodes in enumerate(bodies(graph)):
        for node in nodes:
            call = library.called(node)
            if call is not None and call[0] in whole and not flag(node.attr, NOINLINE):
                node.attr[NOINLINE].b = True
                if i == 0:
                    held.add(node.name)
    return held


def _add_library(graph: Any, functions: Mapping[str, Any], gradients: Sequence[Any]) -> None:
    called = set(called_functions(list(graph.node), functions, gradients))
    for name in sorted(called):
        graph.library.function.add().MergeFromString(functions[name].SerializeToString())
    for g in gradients:
        if g.function_name in called or g.gradient_func in called:
            graph.library.gradient.add().MergeFromString(g.SerializeToString())


def function_of(body: FunctionGraph, graph_def: Any, functions: Mapping[str, Any]) -> Any:
    """The function with the nodes of ``graph_def`` (an optimised ``body.graph_def``) as its body; of the class of ``body.function``.

    ``functions``: the library that the nodes call into. ``GraphError`` if an output is gone.
    """
    f = body.function
    new = type(f)()
    new.CopyFrom(f)
    del new.node_def[:]
    arguments = {a.name for a in f.signature.input_arg}
    nodes = {n.name: n for n in graph_def.node}
    ports: dict[str, list[str]] = {}

    def spell(ref: TensorRef) -> str:
        name, port = ref
        if name in arguments:
            return name
        if name not in nodes:
            raise GraphError(f"function {body.name!r}: {name!r} is gone from its body", name)
        if name not in ports:
            ports[name] = _output_names(nodes[name], functions, body.mentioned)
        return ports[name][port]

    for node in graph_def.node:
        if node.name in arguments:
            continue
        out = new.node_def.add()
        out.MergeFromString(node.SerializeToString())
        if node.name in body.held:
            del out.attr[NOINLINE]
        inputs = [t if t.startswith("^") else spell(parse_tensor(t)) for t in node.input]
        del out.input[:]
        out.input.extend(inputs)
    for result, tensor in zip(f.signature.output_arg, body.outputs, strict=True):
        new.ret[result.name] = spell(parse_tensor(tensor))
    for target in f.control_ret.values():
        if target not in nodes:
            raise GraphError(f"function {body.name!r}: {target!r} is gone from its body", target)
    return new


def _output_names(node: Any, functions: Mapping[str, Any], mentioned: Mapping[str, list[str]]) -> list[str]:
    """How a function body spells each output of a node."""
    if is_unknown(node.op, functions):
        return mentioned.get(node.name, [])
    spelled: list[str] = []
    for arg, (_, count) in sorted(output_offsets(node, functions).items(), key=lambda item: item[1][0]):
        spelled.extend(f"{node.name}:{arg}:{i}" for i in range(count))
    return spelled


def single_call(f: Any, library: Library) -> tuple[Any, str] | None:
    """The node and the callee of a function that does nothing but call another one (identities and constants around it), else None."""
    found = None
    for node in f.node_def:
        call = library.called(node)
        if call is not None and call[0] in library.functions:
            if found is not None:
                return None
            found = (node, call[0])
        elif node.op not in ("Identity", "IdentityN", "NoOp", "Const"):
            return None
    return found
