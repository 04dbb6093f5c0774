"""A graph without what is nobody else's business: what a request to the optimization service carries.

From a graph as it is compiled (calls inlined) only what the outputs need is taken. Of it travel:

* nodes whose op has a lowering rule: op type, edges, and attributes that the rule may read (numbers, types, shapes; strings only where they
  are words of TensorFlow's own, such as ``SAME``, or an einsum's equation);
* all other nodes: op type (custom ops without even that), element types, ranks and edges;
* constants: type and shape; the content only where `demand` says that the compiler reads it, or as a `patterns` name. All others carry an
  ordinal, equal for equal contents;
* function bodies of loops, branches and calls, likewise.

All names are replaced (`canonical`); the map stays here. Devices keep their kind, jobs and tasks become numbers.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

from disc_tf.frontend.analysis import SOURCES
from disc_tf.frontend.demand import Place, may_travel, needed_constants
from disc_tf.frontend.functions import NOINLINE, XLA_ATTR, called_functions
from disc_tf.frontend.graph import Graph, TensorRef, constant_of, tensor_name
from disc_tf.frontend.opaque import VARIABLE_SHAPE, TfShapes
from disc_tf.frontend.opdefs import CONTROL_FLOW, op_info
from disc_tf.frontend.patterns import PATTERN_ATTR, known_pattern
from disc_tf.frontend.tensor_proto import Constant, fill_tensor
from disc_tf.lowering.node import ORDINAL_ATTR
from disc_tf.lowering.registry import RULES

#: op type of a custom op
UNKNOWN_OP = "DiscUnknown"
#: attributes beginning with "_" that travel
_FLAGS = frozenset({XLA_ATTR, NOINLINE, "_tpu_replicate", "_replication_info", "_xla_compile_id"})
_SHAPES = ("_output_shapes", VARIABLE_SHAPE)
#: words that string attributes may hold, besides those that an op's own definition lists
_WORDS = frozenset(
    "NHWC NCHW NDHWC NCDHW NEAREST BILINEAR CONSTANT REFLECT WRAP ERROR IGNORE DEFAULT BiasAdd Relu Relu6 Elu Selu LeakyRelu Tanh Sigmoid "
    "GeluApproximate GeluExact FusedBatchNorm Add Identity Mish Swish Mul ROW_SPLITS FIRST_DIM_SIZE VALUE_ROWIDS".split()
)
_EQUATION = re.compile(r"[A-Za-z.,> -]{0,256}\Z")
#: a content that no reader takes for the constant's own, whatever its type and shape
_NOT_THERE = b"\0" * 3


@dataclasses.dataclass
class Skeleton:
    """``graph_def`` under the graph's own names (`canonical` renames); ``texts``: message -> what stands for it; ``opaque``: the number
    of constants without content; ``sent``: constants whose content is there, with what they are (for a dry run)."""

    graph_def: Any
    outputs: list[str]
    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    opaque: int = 0
    sent: list[tuple[str, str]] = dataclasses.field(default_factory=list)


def make_skeleton(
    graph: Graph, fetches: Sequence[TensorRef], targets: Sequence[str], *, use_tf_shapes: bool = False, with_contents: bool = False
) -> Skeleton:
    """The skeleton of what ``fetches`` and ``targets`` need.

    use_tf_shapes: ask TensorFlow for the ranks of what has no rule, if it is loaded. with_contents: constants keep their content (a full
    upload), strings apart. ``GraphError`` for constants whose content does not fit.
    """
    return _Make(graph, use_tf_shapes, with_contents).run(fetches, targets)


class _Make:
    def __init__(self, graph: Graph, use_tf_shapes: bool, with_contents: bool) -> None:
        self.graph = graph
        self.with_contents = with_contents
        self.tf = TfShapes(graph, use_tf_shapes)
        self.needed = needed_constants(graph)
        self.functions = {f.signature.name: f for f in graph.graph_def.library.function}
        self.ordinals: dict[bytes, int] = {}
        self.places: dict[str, str] = {}
        self.unknown: dict[str, str] = {}
        self.out = Skeleton(type(graph.graph_def)(), [])

    def run(self, fetches: Sequence[TensorRef], targets: Sequence[str]) -> Skeleton:
        graph, out = self.graph, self.out
        out.outputs = [tensor_name(ref) if ref[1] else f"{ref[0]}:0" for ref in fetches] + [f"^{t}" for t in targets]
        live = graph.reachable([*(name for name, _ in fetches), *targets])
        kept = []
        for node in graph.order:
            if node.name not in live:
                continue
            new = out.graph_def.node.add()
            new.name = node.name
            new.input.extend(node.proto.input)
            new.device = self._device(node.device)
            constant = graph.constant(node.name)
            if constant is not None:
                self._constant(new, node.proto, ("", node.name), constant)
                continue
            self._node(new, node.proto)
            if new.op in RULES:
                kept.append(new)
            elif not new.attr["_output_shapes"].list.shape and (shapes := self.tf.of(node)):
                _set_shapes(new, shapes)
        names = called_functions(kept, self.functions)
        for name in names:
            self._function(self.functions[name])
        gone = set(names)
        for g in graph.graph_def.library.gradient:
            if g.function_name in gone or g.gradient_func in gone:
                out.graph_def.library.gradient.add().CopyFrom(g)
                for name in (g.function_name, g.gradient_func):
                    if name in self.functions and name not in gone:  # that it has a gradient is what counts
                        gone.add(name)
                        self._signature(self.functions[name])
        out.opaque = len(self.ordinals)
        return out

    # ---- nodes --------------------------------------------------------------------------------------------------

    def _node(self, new: Any, old: Any) -> None:
        info = op_info(old.op)
        if old.op in self.functions or info is None:
            self._opaque(new, old)
            return
        new.op = old.op
        ruled = old.op in RULES or old.op in SOURCES or old.op in CONTROL_FLOW
        for name, kind in info.attr_kinds.items():
            if name in old.attr:
                value = old.attr[name]
                if ruled or _counts(info, name):
                    self._attribute(new, name, value, info)
                elif kind == "type" or (kind == "list" and len(value.list.type)):
                    new.attr[name].CopyFrom(value)
            if name not in new.attr and name not in info.attr_defaults:
                _placeholder(new.attr[name], kind)
        self._common(new, old)

    def _opaque(self, new: Any, old: Any) -> None:
        """A custom op, or a call that stays one: nothing but edges and what it says of its outputs."""
        new.op = self.unknown.setdefault(old.op, f"{UNKNOWN_OP}{len(self.unknown)}")
        self._common(new, old)

    def _common(self, new: Any, old: Any) -> None:
        for name in _SHAPES:
            if name in old.attr:
                new.attr[name].CopyFrom(old.attr[name])
        for name in _FLAGS:
            if name in old.attr:
                value = old.attr[name]
                new.attr[name].b = bool(value.b or value.s or value.i)

    def _attribute(self, new: Any, name: str, value: Any, info: Any) -> None:
        kind = value.WhichOneof("value")
        if kind in ("type", "i", "f", "b", "shape"):
            new.attr[name].CopyFrom(value)
        elif kind == "s":
            if (text := self._text(name, value.s, info)) is not None:
                new.attr[name].s = text
        elif kind == "func":
            new.attr[name].func.name = value.func.name
        elif kind == "list":
            words = [self._text(name, s, info) for s in value.list.s]
            new.attr[name].list.SetInParent()
            target = new.attr[name].list
            for field in ("i", "f", "b", "type"):
                getattr(target, field).extend(getattr(value.list, field))
            for shape in value.list.shape:
                target.shape.add().CopyFrom(shape)
            for f in value.list.func:
                target.func.add().name = f.name
            target.s.extend(w or b"" for w in words)

    def _text(self, name: str, value: bytes, info: Any) -> bytes | None:
        """What travels of a string attribute; None: its default."""
        text = value.decode("utf-8", "replace")
        if name == "message":
            return self.out.texts.setdefault(text, f"s.{len(self.out.texts)}").encode()
        if text in _WORDS or text in info.words.get(name, ()) or (name == "equation" and _EQUATION.match(text)):
            return value
        default = info.attr_defaults.get(name)
        return value if default is not None and default.s == value else None

    def _device(self, device: str) -> str:
        """The kind of device; job, replica and task as a number."""
        parts = [p for p in device.lower().split("/") if p]
        place = "/".join(p for p in parts if p.startswith(("job:", "replica:", "task:")))
        kinds = [m.group(1) for p in parts if (m := re.match(r"(?:device:)?(cpu|gpu|tpu|\*)", p))]
        other = [p for p in parts if not p.startswith(("job:", "replica:", "task:")) and not re.match(r"(?:device:)?(cpu|gpu|tpu|\*)", p)]
        named = f"/job:p{self.places.setdefault(place, str(len(self.places)))}" if place else ""
        if kinds:
            return f"{named}/device:{kinds[-1].upper()}:0" if kinds[-1] != "*" else f"{named}/device:*:0"
        return f"{named}/device:OTHER:0" if other else named

    # ---- constants ----------------------------------------------------------------------------------------------

    def _constant(self, new: Any, old: Any, place: Place, constant: Constant) -> None:
        new.op = "Const"
        new.attr["dtype"].type = constant.tf_type
        tensor = new.attr["value"].tensor
        if place in self.needed and may_travel(constant) and constant.present:
            fill_tensor(tensor, constant.array())
            self.out.sent.append((_where(place), f"{constant.dtype}{list(constant.shape)} {_shown(constant)}"))
            return
        if self.with_contents and constant.dtype is not None and constant.present:
            tensor.CopyFrom(old.attr["value"].tensor)
            return
        tensor.dtype = constant.tf_type
        tensor.tensor_shape.SetInParent()
        for d in constant.shape:
            tensor.tensor_shape.dim.add().size = d
        if 0 in constant.shape and constant.dtype is not None and constant.present:
            return  # type and shape are all that there is
        if pattern := known_pattern(constant):
            new.attr[PATTERN_ATTR].s = pattern.encode()
            self.out.sent.append((_where(place), f"{constant.dtype}{list(constant.shape)} {pattern}"))
            return
        key = constant.digest() or repr(place).encode()  # content that is not known is like no other
        new.attr[ORDINAL_ATTR].i = self.ordinals.setdefault(key, len(self.ordinals))
        tensor.tensor_content = _NOT_THERE
        constant.release()

    # ---- functions ----------------------------------------------------------------------------------------------

    def _signature(self, f: Any) -> Any:
        new = self.out.graph_def.library.function.add()
        new.signature.name = f.signature.name
        new.signature.is_stateful = f.signature.is_stateful
        for to, args in ((new.signature.input_arg, f.signature.input_arg), (new.signature.output_arg, f.signature.output_arg)):
            for a in args:
                arg = to.add()
                arg.name, arg.type = a.name, a.type
                arg.type_attr, arg.number_attr, arg.type_list_attr = a.type_attr, a.number_attr, a.type_list_attr
        for name in _FLAGS:
            if name in f.attr:
                value = f.attr[name]
                new.attr[name].b = bool(value.b or value.s or value.i)
        return new

    def _function(self, f: Any) -> None:
        new = self._signature(f)
        new.signature.control_output.extend(f.signature.control_output)
        for key, value in f.ret.items():
            new.ret[key] = value
        for key, value in f.control_ret.items():
            new.control_ret[key] = value
        for node in f.node_def:
            copy = new.node_def.add()
            copy.name = node.name
            copy.input.extend(node.input)
            copy.device = self._device(node.device)
            if node.op == "Const" and "value" in node.attr:
                self._constant(copy, node, (f.signature.name, node.name), constant_of(node))
            else:
                self._node(copy, node)


def _counts(info: Any, name: str) -> bool:
    """Whether an attribute is the length of an argument."""
    return any(a.number_attr == name for a in (*info.inputs, *info.outputs))


def _placeholder(value: Any, kind: str) -> None:
    """Any value of an attribute that has no default and does not travel."""
    if kind == "s":
        value.s = b""
    elif kind == "i":
        value.i = 0
    elif kind == "f":
        value.f = 0.0
    elif kind == "b":
        value.b = False
    elif kind == "shape":
        value.shape.unknown_rank = True
    elif kind == "type":
        value.type = 0
    else:
        getattr(value, kind).SetInParent()


def _set_shapes(node: Any, shapes: Iterable[Any]) -> None:
    listed = node.attr["_output_shapes"].list
    for dims in shapes:
        shape = listed.shape.add()
        if dims is None:
            shape.unknown_rank = True
            continue
        for d in dims:
            shape.dim.add().size = d if isinstance(d, int) else -1


def _where(place: Place) -> str:
    return f"{place[1]} of {place[0]}" if place[0] else place[1]


def _shown(constant: Constant) -> str:
    values = constant.array().reshape(-1)
    return "[" + ", ".join(str(v) for v in values[:8].tolist()) + (", ..." if values.size > 8 else "") + "]"
