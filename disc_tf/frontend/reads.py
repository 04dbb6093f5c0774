"""Reads of variables leave loops and branches: a While, If or Case that takes the handle of a variable and only reads it takes its value.

The body of a recurrent layer reads its weights in every iteration. Nothing in such a loop can change a variable (one that does any more
than read stays as it is), so what is read before it is what its iterations would read. The read waits for the writes that
the loop waits for, through any of its inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from disc_tf.frontend.control import FUNCTIONAL
from disc_tf.frontend.earlier_writes import EarlierWrites
from disc_tf.frontend.functions import rename_changed
from disc_tf.frontend.graph import fresh_name, without_nodes
from disc_tf.frontend.opdefs import CALL_OPS
from disc_tf.frontend.tfproto import serialized

RESOURCE = 20
LOOPS = ("While", "StatelessWhile")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
#: nested deeper than this, calls are taken for a circle
_DEPTH = 32
_INDEXED = ("_read_only_resource_inputs",)  # inputs by number


class _Refused(Exception):
    """It does more with a variable than read it."""


@dataclasses.dataclass(frozen=True)
class _Value:
    """What is read: DataType number, and ``_output_shapes`` of the reader (serialized; empty if it has none)."""

    dtype: int
    shapes: bytes


def hoist_reads(graph_def: Any) -> Any:
    """The graph with reads before its loops and branches; the argument itself, unchanged, if there is nothing to do."""
    found = [n for n in graph_def.node if n.op in (*LOOPS, *BRANCHES) and RESOURCE in _types(n)]
    if not found:
        return graph_def
    work = _Hoist(graph_def)
    plans = {n.name: values for n in found if (values := work.plan(n))}
    if not plans:
        return graph_def
    return work.apply(plans)


def _types(node: Any) -> Any:
    return node.attr["T" if node.op in LOOPS else "Tin"].list.type


def functions_of(node: Any) -> list[Any]:
    """The func attributes: of a loop its condition and its body, of a branch in order."""
    attr = node.attr
    if node.op in LOOPS:
        return [attr["cond"].func, attr["body"].func]
    if node.op in CALL_OPS:
        return [attr[CALL_OPS[node.op]].func]
    if node.op in ("If", "StatelessIf"):
        return [attr["then_branch"].func, attr["else_branch"].func]
    return list(attr["branches"].list.func)


def called_by(node: Any) -> list[str]:
    """The functions that a loop (condition, body), a branch or a call runs, by name; of other ops none."""
    return [f.name for f in functions_of(node)] if node.op in FUNCTIONAL else []


def first_argument(node: Any) -> int:
    """The input that is the functions' first argument."""
    return 1 if node.op in BRANCHES else 0


class _Hoist:
    def __init__(self, graph_def: Any) -> None:
        self.graph_def = graph_def
        self.functions = {f.signature.name: f for f in graph_def.library.function}
        self.gradients = {g.function_name for g in graph_def.library.gradient}
        self.made: dict[tuple[str, tuple[tuple[int, _Value], ...], bool], str] = {}
        self.new: dict[str, Any] = {}
        #: _Value without a reader: None
        self.known: dict[tuple[str, int, bool], _Value | _Refused | None] = {}

    def plan(self, node: Any) -> dict[int, _Value]:
        """Argument -> what is read through it; empty if the node stays as it is."""
        values: dict[int, _Value] = {}
        try:
            for i, dtype in enumerate(_types(node)):
                if dtype == RESOURCE:
                    value = self._through(node, i, 0)
                    if value is None:
                        raise _Refused("nothing reads it")
                    values[i] = value
        except _Refused:
            return {}
        return values

    def _through(self, node: Any, i: int, depth: int) -> _Value | None:
        """What the functions of a node read through their argument ``i``."""
        found: set[_Value] = set()
        for k, function in enumerate(functions_of(node)):
            value = self._reads(function.name, i, node.op in LOOPS and k == 1, depth + 1)
            if value is not None:
                found.add(value)
        return _one(found)

    def _reads(self, name: str, i: int, loops: bool, depth: int) -> _Value | None:
        """What a function reads through argument ``i``; None if nothing. ``loops``: it gives the argument back as result ``i``."""
        key = name, i, loops
        if key not in self.known:
            try:
                self.known[key] = self._look(name, i, loops, depth)
            except _Refused as e:
                self.known[key] = e
        found = self.known[key]
        if isinstance(found, _Refused):
            raise found
        return found

    def _look(self, name: str, i: int, loops: bool, depth: int) -> _Value | None:
        f = self.functions.get(name)
        if f is None or name in self.gradients or depth > _DEPTH or i >= len(f.signature.input_arg):
            raise _Refused("its function is not to be changed")
        if any(n.op == "VarHandleOp" for n in f.node_def):
            raise _Refused("a variable may have two handles")
        found: set[_Value] = set()
        aliases = _aliases(f, i)
        for node in f.node_def:
            for p, text in enumerate(node.input):
                if text not in aliases or node.op == "Identity":
                    continue
                if node.op == "ReadVariableOp":
                    shapes = serialized(node.attr["_output_shapes"]) if "_output_shapes" in node.attr else b""
                    found.add(_Value(node.attr["dtype"].type, shapes))
                elif node.op in FUNCTIONAL and p >= first_argument(node):
                    value = self._through(node, p - first_argument(node), depth)
                    if value is not None:
                        found.add(value)
                else:
                    raise _Refused(f"{node.op} takes it")
        for k, out in enumerate(f.signature.output_arg):
            given = f.ret[out.name] in aliases
            if given != (loops and k == i):
                raise _Refused("it is given back in another place")
        return _one(found)

    # ---- making it so -------------------------------------------------------------------------------------------

    def apply(self, plans: Mapping[str, dict[int, _Value]]) -> Any:
        out = without_nodes(self.graph_def)
        taken = {n.name for n in self.graph_def.node}
        handles: dict[str, str] = {}  # result of a loop -> the handle that it was
        earlier = EarlierWrites(self.graph_def)
        for given in self.graph_def.node:
            node = given
            values = plans.get(node.name)
            if values:
                node = type(given)()
                node.CopyFrom(given)
                controls = [t for t in node.input if t.startswith("^")]
                for i, value in values.items():
                    handle = node.input[i + first_argument(node)]
                    read = out.node.add()
                    read.name, read.op, read.device = fresh_name(f"{node.name}/read_{i}", taken), "ReadVariableOp", node.device
                    read.input.extend(dict.fromkeys([handle, *controls, *earlier.before(node.name, handle)]))
                    read.attr["dtype"].type = value.dtype
                    _set_shapes(read, value)
                    node.input[i + first_argument(node)] = read.name
                    if node.op in LOOPS:
                        handles[node.name if i == 0 else f"{node.name}:{i}"] = handle
                self._change(node, values)
            out.node.add().CopyFrom(node)
        for node in out.node:
            for k, text in enumerate(node.input):
                seen = 0
                while text in handles and seen < len(handles):
                    text, seen = handles[text], seen + 1
                node.input[k] = text
        for name in sorted(self.new):
            out.library.function.add().CopyFrom(self.new[name])
        return out

    def _change(self, node: Any, values: Mapping[int, _Value]) -> None:
        """The node's functions and types; its inputs are the caller's business."""
        for key in _INDEXED:
            if key in node.attr:
                del node.attr[key]
        attr = node.attr
        for i, value in values.items():
            _types(node)[i] = value.dtype
            if node.op in LOOPS:
                for key in ("output_shapes", "_output_shapes"):
                    if key in attr and len(attr[key].list.shape) == len(_types(node)):
                        _set_shape(attr[key].list.shape[i], value)
        for k, function in enumerate(functions_of(node)):
            function.name = self._function(function.name, values, node.op in LOOPS and k == 1)

    def _function(self, name: str, values: Mapping[int, _Value], loops: bool) -> str:
        key = name, tuple(sorted(values.items(), key=lambda v: v[0])), loops
        if key in self.made:
            return self.made[key]
        f = type(self.functions[name])()
        f.CopyFrom(self.functions[name])
        readers: dict[str, str] = {}
        of: dict[str, _Value] = {}
        for i, value in values.items():
            of |= dict.fromkeys(_aliases(f, i), value)
        for i, value in values.items():
            arg = f.signature.input_arg[i]
            arg.type = value.dtype
            del arg.handle_data[:]
            if i in f.arg_attr:
                del f.arg_attr[i]
            if loops:
                result = f.signature.output_arg[i]
                result.type = value.dtype
                del result.handle_data[:]
        for node in f.node_def:
            taken = {p: of[t] for p, t in enumerate(node.input) if t in of}
            if not taken:
                continue
            if node.op == "ReadVariableOp":
                readers[f"{node.name}:value:0"] = f"{node.name}:output:0"
                node.op = "Identity"
                del node.attr["dtype"]
                node.attr["T"].type = taken[0].dtype
            elif node.op == "Identity":
                node.attr["T"].type = taken[0].dtype
                _set_shapes(node, taken[0])
            else:
                self._change(node, {p - first_argument(node): v for p, v in taken.items()})
        for node in f.node_def:
            for k, text in enumerate(node.input):
                if text in readers:
                    node.input[k] = readers[text]
        for out in f.signature.output_arg:
            if f.ret[out.name] in readers:
                f.ret[out.name] = readers[f.ret[out.name]]
        new = self.made[key] = rename_changed(f, f"{name}_read_")
        self.new[new] = f
        return new


def _one(found: set[_Value]) -> _Value | None:
    """What several readers read of one variable."""
    if len({v.dtype for v in found}) > 1:
        raise _Refused("it is read as several types")
    return min(found, key=lambda v: v.shapes, default=None)


def _aliases(f: Any, i: int) -> set[str]:
    """The names of argument ``i`` inside a body: its own, of Identity nodes, of what loops pass on."""
    aliases = {f.signature.input_arg[i].name}
    more = True
    while more:
        more = False
        for node in f.node_def:
            for p, text in enumerate(node.input):
                if text in aliases and node.op in ("Identity", *LOOPS):
                    name = f"{node.name}:output:{p}"
                    more = more or name not in aliases
                    aliases.add(name)
    return aliases


def _set_shapes(node: Any, value: _Value) -> None:
    if value.shapes:
        node.attr["_output_shapes"].ParseFromString(value.shapes)
    elif "_output_shapes" in node.attr:
        del node.attr["_output_shapes"]


def _set_shape(shape: Any, value: _Value) -> None:
    """The TensorShapeProto of a value; unknown rank if it is not known."""
    shape.Clear()
    shape.unknown_rank = True
    if value.shapes:
        from disc_tf.frontend.tfproto import message_class

        listed = message_class("AttrValue").FromString(value.shapes).list.shape
        if len(listed) == 1:
            shape.ParseFromString(listed[0].SerializeToString())
