"""Constants leave the bodies of loops, branches and calls: the node takes their values as arguments, as it takes weights that lie outside.

A constant of the main graph can be an argument of a cluster, whose content the compiler need not know (`disc_tf.remote`) and which is
prepared when the model is loaded; one inside of a body would have to be written into the code. What says what the graph does stays where
it is: shapes, axes and the like, and patterns (`demand`); so do strings. Equal constants become one argument. A loop passes them on.

In its place in the body stands an Identity of the argument, by the constant's name. Nodes that are not compiled in the end are written as
they were (`Hoisted.before`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from disc_tf.frontend.demand import Place, needed_constants, travels
from disc_tf.frontend.functions import CALL_OPS, jit_compiled, rename_changed
from disc_tf.frontend.graph import Graph, constant_of, fresh_name, without_nodes
from disc_tf.frontend.reads import BRANCHES, LOOPS, called_by, first_argument, functions_of

#: nested deeper than this, calls are not followed
_DEPTH = 32
#: content (or place) of a constant
_Key = bytes


@dataclasses.dataclass
class Hoisted:
    """``graph_def``: the argument itself if nothing changed. ``before``: nodes of the main graph that take constants now, as they were
    (their inputs are the first of the present ones); ``places``: the constants that left, of functions of the given graph."""

    graph_def: Any
    before: dict[str, Any] = dataclasses.field(default_factory=dict)
    places: list[Place] = dataclasses.field(default_factory=list)


def hoist_constants(graph: Graph, places: Collection[Place] | None = None) -> Hoisted:
    """The graph whose loops and branches take the constants of their bodies. ``places``: exactly these constants (what an earlier call
    found), not those that the rule says. The graph that was given is not changed."""
    nodes = [n.proto for n in graph.order if _may_change(n.proto)]
    return _Hoist(graph, nodes, places).run() if nodes else Hoisted(graph.graph_def)


def _may_change(node: Any) -> bool:
    """Whether a node of the main graph is a loop, a branch or a call that may be compiled as it stands."""
    return node.op in (*LOOPS, *BRANCHES) or (node.op in CALL_OPS and jit_compiled(node.attr))


class _Hoist:
    def __init__(self, graph: Graph, nodes: Sequence[Any], places: Collection[Place] | None) -> None:
        self.graph = graph
        self.nodes = nodes
        library = graph.graph_def.library
        self.functions = {f.signature.name: f for f in library.function}
        #: functions that are not to be changed
        self.left = {n for g in library.gradient for n in (g.function_name, g.gradient_func)}
        self.places = None if places is None else set(places)
        self.needed: set[Place] | None = None
        self.keys: dict[Place, _Key] = {}
        self.open: set[str] = set()
        #: function -> the constants that it and what it calls hold
        self.found: dict[str, dict[_Key, Place]] = {}
        self.nodes_of: dict[Place, Any] = {}
        self.made: dict[tuple[str, tuple[_Key, ...], bool], str] = {}
        self.new: dict[str, Any] = {}

    def run(self) -> Hoisted:
        plans = {n.name: found for n in self.nodes if (found := self._of_node(n, 0))}
        if not plans:
            return Hoisted(self.graph.graph_def)
        before: dict[str, Any] = {}
        out = without_nodes(self.graph.graph_def)
        taken = self.graph.nodes.keys() | self.functions.keys()
        made: dict[tuple[_Key, str], str] = {}
        for given in self.graph.graph_def.node:
            node = given
            found = plans.get(node.name)
            if found:
                before[node.name] = given
                node = type(given)()
                node.CopyFrom(given)
                for key, place in found.items():
                    if (key, node.device) not in made:
                        made[key, node.device] = fresh_name(f"{node.name}/{place[1]}", taken)
                        self._constant(out.node.add(), place, made[key, node.device], node.device)
                self._extend(node, found, [made[key, node.device] for key in found])
            out.node.add().CopyFrom(node)
        for name in sorted(self.new):
            out.library.function.add().CopyFrom(self.new[name])
        return Hoisted(out, before, sorted(self.nodes_of))

    def _constant(self, new: Any, place: Place, name: str, device: str) -> None:
        new.CopyFrom(self.nodes_of[place])
        new.name, new.device = name, device
        del new.input[:]
        if "_class" in new.attr:
            del new.attr["_class"]

    # ---- what there is ------------------------------------------------------------------------------------------

    def _of_node(self, node: Any, depth: int) -> dict[_Key, Place]:
        """The constants that a node's functions hold; none if one of them must stay as it is."""
        names = self._names(node)
        found: dict[_Key, Place] = {}
        for name in names:
            for key, place in self._of_function(name, depth + 1).items():
                found.setdefault(key, place)
        return {} if any(name in self.left for name in names) else found

    def _names(self, node: Any) -> list[str]:
        return called_by(node) or ([node.op] if node.op in self.functions else [])

    def _of_function(self, name: str, depth: int) -> dict[_Key, Place]:
        f = self.functions.get(name)
        if f is None or name in self.open or depth > _DEPTH or any(a.number_attr or a.type_list_attr for a in f.signature.input_arg):
            self.left.add(name)
        if f is None or name in self.left:
            return {}
        if name not in self.found:
            self.open.add(name)
            found: dict[_Key, Place] = {}
            printed = _only_printed(f)
            for node in f.node_def:
                if node.op == "Const" and self._leaves((name, node.name), node, f"{node.name}:output:0" in printed):
                    found.setdefault(self.keys[name, node.name], (name, node.name))
                for key, place in self._of_node(node, depth).items():
                    found.setdefault(key, place)
            self.open.discard(name)
            self.found[name] = found
        return self.found[name]

    def _leaves(self, place: Place, node: Any, printed: bool) -> bool:
        """Whether a constant becomes an argument (``printed``: nothing but messages reads it)."""
        if node.attr["value"].WhichOneof("value") != "tensor":
            return False
        constant = constant_of(node)
        if self.places is not None:
            if place not in self.places:
                return False
        elif constant.dtype is None or travels(constant, place in self._needed()) or printed:
            return False
        self.keys[place] = constant.digest() or repr(place).encode()  # content that is not known is like no other
        self.nodes_of[place] = node
        constant.release()
        return True

    def _needed(self) -> set[Place]:
        if self.needed is None:
            self.needed = needed_constants(self.graph)
        return self.needed

    # ---- making it so -------------------------------------------------------------------------------------------

    def _extend(self, node: Any, found: dict[_Key, Place], refs: Sequence[str]) -> None:
        """Give a node, which is a copy, the further arguments ``refs`` for the constants that were found in its functions."""
        controls = [t for t in node.input if t.startswith("^")]
        data = [t for t in node.input if not t.startswith("^")]
        del node.input[:]
        node.input.extend([*data, *refs, *controls])
        tensors = [self.nodes_of[place].attr["value"].tensor for place in found.values()]
        if node.op in self.functions:
            node.op = self._function(node.op, found, False)
            return
        types = node.attr["T" if node.op in LOOPS else "Tin"].list.type
        before = len(data) - first_argument(node)
        types.extend(t.dtype for t in tensors)
        for key in ("output_shapes", "_output_shapes") if node.op in LOOPS else ():
            if key in node.attr and len(node.attr[key].list.shape) == before:
                for t in tensors:
                    node.attr[key].list.shape.add().CopyFrom(t.tensor_shape)
        for k, function in enumerate(functions_of(node)):
            function.name = self._function(function.name, found, node.op in LOOPS and k == 1)

    def _function(self, name: str, taken_out: Mapping[_Key, Place], loops: bool) -> str:
        """A function that takes these constants, too (``loops``: and gives them back); its name."""
        made = name, tuple(taken_out), loops
        if made in self.made:
            return self.made[made]
        f = type(self.functions[name])()
        f.CopyFrom(self.functions[name])
        signature = f.signature
        taken = {a.name for a in (*signature.input_arg, *signature.output_arg)} | {n.name for n in f.node_def}
        argument = {key: fresh_name(f"constant_{i}", taken) for i, key in enumerate(taken_out)}
        for key, place in taken_out.items():
            dtype = self.nodes_of[place].attr["value"].tensor.dtype
            signature.input_arg.add(name=argument[key], type=dtype)
            if loops:
                result = fresh_name(f"{argument[key]}_again", taken)  # TensorFlow wants other names for results
                signature.output_arg.add(name=result, type=dtype)
                f.ret[result] = argument[key]
        for node in f.node_def:
            if (name, node.name) in self.keys:
                _identity(node, argument[self.keys[name, node.name]])
            elif found := self._of_node(node, 0):
                self._extend(node, found, [argument[key] for key in found])
        new = self.made[made] = rename_changed(f, f"disc_body_{name}_")
        self.new[new] = f
        return new


def _identity(node: Any, argument: str) -> None:
    """A constant of a body becomes an Identity of an argument; its output and the control edges from and to it stay."""
    tensor = node.attr["value"].tensor
    dtype = tensor.dtype
    controls = list(node.input)
    del node.input[:]
    node.input.extend([argument, *controls])
    node.op = "Identity"
    for key in list(node.attr):
        if key not in ("_class", "_output_shapes"):
            del node.attr[key]
    node.attr["T"].type = dtype


def _only_printed(f: Any) -> set[str]:
    """The tensors of a body that nothing but messages of Assert nodes reads."""
    printed: set[str] = set()
    read = set(f.ret.values())
    for node in f.node_def:
        for k, text in enumerate(node.input):
            (printed if node.op == "Assert" and k else read).add(text)
    return printed - read
