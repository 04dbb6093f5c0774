"""The abstract walk over the whole pruned graph: every node is lowered once into a scratch function.

From it come, for each TF tensor, an IR value with its type, symbolic dims and (for small integer tensors) contents, and for each node
whether it is compiled or the reason why not. Nodes without a rule get stand-in results, so that what follows them has types.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from disc_tf.frontend import opaque
from disc_tf.frontend.asserts import lower_assert
from disc_tf.frontend.bodies import function_bodies
from disc_tf.frontend.errors import LOWERING_CODES, GraphError, Reason
from disc_tf.frontend.functions import must_compile
from disc_tf.frontend.graph import Graph, Node, TensorRef, frames, tensor_name
from disc_tf.frontend.hints import DimHint
from disc_tf.frontend.opaque import Shape, TfShapes
from disc_tf.frontend.opdefs import CALL_OPS, CONTROL_FLOW, DT_RESOURCE, DT_VARIANT
from disc_tf.frontend.tensor_proto import Constant
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType, TensorType, tf_type_name
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.lower import lower_node
from disc_tf.lowering.registry import rule_for
from disc_tf.lowering.tensor_lists import TensorList

#: content of constants up to this size is decoded for the rules; larger ones are known by type and digest only
MAX_CONTENT_BYTES = 64 << 10
#: ops that feed the graph and are never compiled; not worth a line in the report
SOURCES = frozenset({"Const", "Placeholder", "PlaceholderWithDefault", "PlaceholderV2", "VarHandleOp"})
_READS = frozenset({"ReadVariableOp", "VariableV2", "Variable", "VarHandleOp", "AutoReloadVariable"})
_LEGACY = "legacy control flow that was not made functional (a warning says why); a graph frozen with lower_control_flow=False has none"
_IN_FRAME = f"inside a loop or conditional of {_LEGACY}"


@dataclasses.dataclass
class Analysis:
    """The result of `analyse`.

    ``values``: typed tensors (absent: no IR type or rank unknown). ``shapes``: what is known of tensors without a value.
    ``reasons``: node -> why it is not compiled; a live node that is neither here nor in `SOURCES` is compiled.
    ``order``: live nodes in topological order. ``in_frame``: nodes in legacy control flow.
    """

    graph: Graph
    ctx: LoweringContext
    function: Function
    order: list[Node]
    values: dict[TensorRef, Value] = dataclasses.field(default_factory=dict)
    shapes: dict[TensorRef, Shape] = dataclasses.field(default_factory=dict)
    reasons: dict[str, Reason] = dataclasses.field(default_factory=dict)
    lowered: set[str] = dataclasses.field(default_factory=set)
    in_frame: set[str] = dataclasses.field(default_factory=set)

    def type_of(self, ref: TensorRef) -> TensorType | None:
        """Type with canonical symbolic dims, None if the tensor has no IR type."""
        value = self.values.get(ref)
        if value is None:
            return None
        return TensorType(value.dtype, tuple(self.ctx.env.simplify(d) for d in value.dims))

    def contents(self, ref: TensorRef) -> list[Dim] | None:
        """Symbolic content of a small integer tensor (row-major), if known."""
        value = self.values.get(ref)
        dims = self.ctx.dims_of(value) if value is not None and value.rank <= 1 and value.dtype.is_int else None
        return None if dims is None else [self.ctx.env.simplify(d) for d in dims]

    def is_compiled(self, name: str) -> bool:
        """Whether the node could be part of a cluster."""
        return name in self.lowered and name not in self.reasons


def analyse(
    graph: Graph,
    outputs: Iterable[str],
    *,
    feeds: Iterable[TensorRef] = (),
    hints: Mapping[str, Sequence[DimHint]] | None = None,
    use_tf_shapes: bool = True,
    import_tf: bool = False,
) -> Analysis:
    """Walk the nodes that ``outputs`` (node names) need.

    ``feeds``: tensors that the caller will feed although they are not placeholders. ``hints``: by input name. Raises ``GraphError`` for
    outputs or hints that name nothing, and for constants whose content does not fit.
    """
    fn = Function("scratch")
    ctx = LoweringContext(Builder(fn.body), fn.env, "n")
    ctx.functions = function_bodies(graph.graph_def)
    live = graph.reachable(outputs)
    order = [node for node in graph.order if node.name in live]
    walk = _Walk(Analysis(graph, ctx, fn, order), set(feeds), dict(hints or {}), TfShapes(graph, use_tf_shapes, import_tf))
    for name in walk.hints:
        if name.partition(":")[0] not in graph:
            raise GraphError(f"hint for {name!r}: the graph has no such input")
    walk.result.in_frame = frames(graph)
    for node in order:
        walk.visit(node)
    return walk.result


class _Walk:
    def __init__(self, result: Analysis, feeds: set[TensorRef], hints: dict[str, Sequence[DimHint]], tf: TfShapes) -> None:
        self.result = result
        self.feeds = feeds
        self.fed_nodes = {name for name, _ in feeds}
        self.hints = hints
        self.tf = tf
        self.used_names: set[str] = set()
        self.custom: dict[str, list[int]] = {}
        for name, port in result.graph.guessed:
            self.custom.setdefault(name, []).append(port)

    # ---- stand-in values ------------------------------------------------------------------------------------

    def _symbol(self, base: str) -> Dim:
        name = base = re.sub(r"[^A-Za-z0-9_]", "_", base)[-48:].lstrip("0123456789_") or "t"
        at = 1
        while name in self.used_names:
            at += 1
            name = f"{base}_{at}"
        self.used_names.add(name)
        return Dim.of(name)

    def _stand_in(self, ref: TensorRef, tf_type: int, shape: Shape, kind: str = "device") -> None:
        """Give ``ref`` a value of this shape; unknown dims become symbols. Nothing for types that the IR lacks or unknown rank."""
        r = self.result
        hint = self.hints.get(tensor_name(ref))
        if hint is not None:
            given: Shape = tuple(h.size for h in hint)
            if shape is not None and len(shape) != len(given):
                raise GraphError(f"hint gives {len(given)} dims to a tensor of rank {len(shape)}", ref[0])
            # a hinted size is likely, not a fact
            shape = shape if shape is not None else (None,) * len(given)
        r.shapes[ref] = shape
        dtype = DType.from_tf(tf_type)
        if dtype is None or shape is None:
            return
        base = ref[0] if ref[1] == 0 else f"{ref[0]}_{ref[1]}"
        dims = [self._symbol(f"{base}_d{i}") if d is None else Dim.of(d) for i, d in enumerate(shape)]
        for d, h in zip(dims, hint or (), strict=False):
            likely = (h.size,) if h.size is not None else h.likely
            if likely and d.symbol is not None:
                r.ctx.env.set_likely(d, likely)
        r.values[ref] = r.function.add_arg(TensorType(dtype, tuple(dims)), ArgInfo(base, kind, tensor=tensor_name(ref)))

    def _stand_ins(self, node: Node, extra: Sequence[Shape] | None = None) -> None:
        types = node.output_types
        if types is None:  # a custom op: what its readers take, where it says its shapes
            ports = self.custom.get(node.name, ())
            declared = opaque.listed_shapes(node)
            for port in sorted(ports):
                shape = declared[port] if port < len(declared) else None
                self._stand_in((node.name, port), self.result.graph.type_of((node.name, port)), shape)
            return
        shapes = opaque.declared_shapes(node)
        if extra is not None:
            shapes = [opaque.merge(a, b) for a, b in zip(shapes, extra, strict=True)]
        if any(s is None and DType.from_tf(t) is not None for s, t in zip(shapes, types, strict=True)):
            shapes = [opaque.merge(a, b) for a, b in zip(shapes, self.tf.of(node), strict=True)]
        for port, tf_type in enumerate(types):
            self._stand_in((node.name, port), tf_type, shapes[port])

    # ---- nodes ----------------------------------------------------------------------------------------------

    def visit(self, node: Node) -> None:
        r = self.result
        if node.name in self.fed_nodes:
            r.reasons[node.name] = Reason("FED", "its value is fed by the caller")
            self._stand_ins(node)  # the caller may feed any shape that the declared one admits: nothing is inferred
        elif node.op == "Const":
            self._constant(node, r.graph.constant(node.name))
            if node.name in r.in_frame:  # made again in each iteration, by the control edge that put it there
                r.reasons[node.name] = Reason("IN_FRAME", _IN_FRAME)
        elif node.op in SOURCES:
            self._stand_ins(node)
        elif node.name in r.in_frame:
            r.reasons[node.name] = Reason("IN_FRAME", _LEGACY if node.op in CONTROL_FLOW else _IN_FRAME)
            self._stand_ins(node)
        else:
            self._compute(node)

    def _constant(self, node: Node, constant: Constant | None) -> None:
        assert constant is not None
        r = self.result
        ref = (node.name, 0)
        dtype = constant.dtype
        if dtype is None:
            r.shapes[ref] = constant.shape
            return
        content = constant.array() if constant.present and constant.nbytes <= MAX_CONTENT_BYTES else None
        if content is not None and constant.is_small:
            r.values[ref] = r.ctx.b.constant(content)
            r.lowered.add(node.name)
            return
        value = r.function.add_arg(TensorType.of(dtype, constant.shape), ArgInfo(node.name, "const", tensor=node.name))
        r.values[ref] = value
        if content is not None:
            r.ctx.set_constant(value, content)

    def _compute(self, node: Node) -> None:
        r = self.result
        args = [r.values.get(ref) for ref in node.inputs]
        try:
            results = self._lower(node, args)
        except Unsupported as e:
            self._refuse(node, self._reason(node, args, e))
            shapes = [self._shape(ref) for ref in node.inputs]
            if node.output_types is None:
                self._stand_ins(node)
            else:
                self._stand_ins(node, opaque.inferred_shapes(r.graph, node, args, shapes, r.ctx))
            return
        for port, value in enumerate(results):
            r.values[(node.name, port)] = value
        r.lowered.add(node.name)
        if must_compile(node.attr) and node.op not in CALL_OPS:  # the rule of calls knows of XLA
            self._refuse(node, Reason("MUST_COMPILE", "belongs to XLA or to a replicated body"))
        elif not on_cpu(node.device):
            self._refuse(node, Reason("DEVICE", f"pinned to {node.device}"))

    def _refuse(self, node: Node, reason: Reason) -> None:
        self.result.reasons[node.name] = reason

    def _lower(self, node: Node, args: Sequence[Value | None]) -> list[Value]:
        r = self.result
        if node.op == "Assert":
            lower_assert(r.ctx, r.graph, node, args[0] if args else None)
            return []
        if any(a is None for a in args):
            raise Unsupported("RANK", "an operand has no type", node.name, node.op)
        results = lower_node(r.ctx, node.view, [a for a in args if a is not None])
        types = node.output_types or []
        if len(results) != len(types) or not all(_has_type(v, t) for v, t in zip(results, types, strict=False)):
            raise Unsupported("INTERNAL", f"the rule of {node.op} gives {[str(v.type) for v in results]}", node.name, node.op)
        return results

    def _shape(self, ref: TensorRef) -> Shape:
        value = self.result.values.get(ref)
        return tuple(value.dims) if value is not None else self.result.shapes.get(ref)

    def _reason(self, node: Node, args: Sequence[Value | None], e: Unsupported) -> Reason:
        if node.op in _READS:
            return Reason("VARIABLE", "variables are read in TensorFlow")
        if e.code == "OP" or not any(a is None for a in args):
            return Reason(LOWERING_CODES.get(e.code, e.code), e.message)
        try:
            rule_for(node.op)
        except Unsupported as no_rule:
            return Reason("UNSUPPORTED_OP", no_rule.message)
        for ref, value in zip(node.inputs, args, strict=True):
            if value is None and not (node.op == "Assert" and ref != node.inputs[0]):
                number = self.result.graph.type_of(ref)
                if number and DType.from_tf(number) is None:
                    what = "a resource" if number == DT_RESOURCE else f"of type {tf_type_name(number)}"
                    return Reason("DTYPE", f"operand {tensor_name(ref)} is {what}")
                return Reason("RANK_UNKNOWN", f"rank of operand {tensor_name(ref)} is not known")
        return Reason(LOWERING_CODES.get(e.code, e.code), e.message)


def _has_type(v: Value, tf_type: int) -> bool:
    if tf_type == DT_VARIANT:
        return isinstance(v, TensorList)
    return v.dtype is DType.from_tf(tf_type) and not isinstance(v, TensorList)


def on_cpu(device: str) -> bool:
    """Whether a device string admits a CPU (no device, no device type, or CPU)."""
    parts = [p for p in device.lower().split("/") if p]
    kinds = [p for p in parts if p.startswith(("device:", "cpu", "gpu", "tpu"))]
    return all(p.startswith(("device:cpu", "cpu", "device:*")) for p in kinds)
