"""Types of tensors that are not compiled: from ``_output_shapes``, attributes, a small table, or TensorFlow itself.

A shape here is a tuple of dims (an int, a symbolic `Dim`, or None for unknown), or None for unknown rank.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from disc_tf.frontend.graph import Graph, Node
from disc_tf.frontend.tensor_proto import SMALL_BYTES
from disc_tf.ir.dims import Dim

if TYPE_CHECKING:  # who only reads a SavedModel does without the IR's ops
    from disc_tf.ir.core import Value
    from disc_tf.lowering.context import LoweringContext

Shape = tuple[Dim | int | None, ...] | None

#: attribute of a placeholder for a variable's handle
VARIABLE_SHAPE = "_disc_variable_shape"

#: op -> the operand whose shape all its outputs have
_LIKE_OPERAND = {
    **dict.fromkeys(
        ("StringLower", "StringUpper", "StringStrip", "StringLength", "StringToNumber", "StringToHashBucket", "StringToHashBucketFast",
         "StringToHashBucketStrong", "StaticRegexReplace", "RegexReplace", "AsString", "DecodeBase64", "EncodeBase64", "Bucketize",
         "StaticRegexFullMatch", "RegexFullMatch", "Identity", "Snapshot", "StopGradient", "CheckNumerics", "Print", "Real",
         "Imag", "Conj", "Angle", "FFT", "IFFT", "FFT2D", "Substr", "Exit", "NextIteration", "Enter", "RefIdentity"), 0
    ),
    **dict.fromkeys(("LookupTableFind", "LookupTableFindV2"), 1),
}  # fmt: skip
#: op -> the operand that holds the shape of the result
_SHAPE_OPERAND = dict.fromkeys(
    ("RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt", "StatelessRandomUniform",
     "StatelessRandomNormal", "StatelessTruncatedNormal", "StatelessRandomUniformV2", "StatelessRandomNormalV2",
     "StatelessRandomUniformInt", "StatelessRandomUniformIntV2", "Empty"), 0
)  # fmt: skip


def shape_attr(proto: Any) -> Shape:
    """A TensorShapeProto as a shape. Negative dims are unknown."""
    if proto.unknown_rank or len(proto.dim) > 254:
        return None
    return tuple(int(d.size) if d.size >= 0 else None for d in proto.dim)


def merge(a: Shape, b: Shape) -> Shape:
    """What two sources say together: the more precise of each dim; different ranks give the first."""
    if a is None or b is None:
        return a if b is None else b
    if len(a) != len(b):
        return a
    return tuple(y if x is None or (isinstance(y, int) and not isinstance(x, int)) else x for x, y in zip(a, b, strict=True))


def listed_shapes(node: Node) -> list[Shape]:
    """The node's ``_output_shapes`` as they stand."""
    return [shape_attr(s) for s in node.attr["_output_shapes"].list.shape] if "_output_shapes" in node.attr else []


def declared_shapes(node: Node) -> list[Shape]:
    """What the node's own attributes say of each output (`_output_shapes`, and `shape`/`output_shapes` of certain ops)."""
    n = len(node.output_types or [])
    out: list[Shape] = [None] * n
    attr = node.attr
    for name in ("_output_shapes", "output_shapes"):
        if name in attr and len(attr[name].list.shape) == n:
            out = [merge(a, shape_attr(s)) for a, s in zip(out, attr[name].list.shape, strict=True)]
    if n == 1 and node.op in ("Placeholder", "PlaceholderWithDefault", "PlaceholderV2", "EnsureShape") and "shape" in attr:
        out[0] = merge(out[0], shape_attr(attr["shape"].shape))
    return out


def inferred_shapes(
    graph: Graph, node: Node, args: Sequence[Value | None], shapes: Sequence[Shape], ctx: LoweringContext
) -> list[Shape]:
    """Shapes of an op without a rule, from its operands. ``shapes``: what is known of every operand, also of those without a value."""
    n = len(node.output_types or [])
    if node.op in _LIKE_OPERAND and _LIKE_OPERAND[node.op] < len(shapes):
        return [shapes[_LIKE_OPERAND[node.op]]] * n
    if node.op in _SHAPE_OPERAND and args and args[0] is not None and args[0].rank == 1:
        dims = ctx.dims_of(args[0])
        if dims is not None:
            return [tuple(dims)] * n
        if args[0].dims[0].is_static:
            return [(None,) * int(args[0].dims[0])] * n
    if node.op == "ReadVariableOp":
        source = graph.nodes[node.inputs[0][0]]
        while source.op in ("Identity", "Enter") and source.inputs:
            source = graph.nodes[source.inputs[0][0]]
        for op, key in (("VarHandleOp", "shape"), ("Placeholder", VARIABLE_SHAPE)):
            if source.op == op and key in source.attr:
                return [shape_attr(source.attr[key].shape)]
    return [None] * n


class TfShapes:
    """TensorFlow's own shape inference over the whole graph, run at most once, when first asked.

    Large constants become placeholders of their shape first, so that weights are not copied. ``allow_import``: whether TensorFlow may be
    imported for it; otherwise it is used only if it is loaded already.
    """

    def __init__(self, graph: Graph, enabled: bool = True, allow_import: bool = False) -> None:
        self._graph = graph
        self._enabled = enabled and (allow_import or "tensorflow" in sys.modules)
        self._shapes: dict[str, list[Shape]] | None = None

    def of(self, node: Node) -> list[Shape]:
        """Shapes of the node's outputs; all unknown if TensorFlow is not to be used or does not take the graph."""
        n = len(node.output_types or [])
        if not self._enabled:
            return [None] * n
        if self._shapes is None:
            try:
                self._shapes = self._infer()
            except Exception:  # a failure inside TensorFlow only means that it cannot help
                self._shapes = {}
        found = self._shapes.get(node.name, [])
        return found if len(found) == n else [None] * n

    def _infer(self) -> dict[str, list[Shape]]:
        import tensorflow as tf  # loaded already, or allowed by the caller

        light = tf.compat.v1.GraphDef()
        light.versions.MergeFromString(self._graph.graph_def.versions.SerializeToString())
        light.library.MergeFromString(self._graph.graph_def.library.SerializeToString())
        for node in self._graph.order:
            constant = self._graph.constant(node.name)
            new = light.node.add()
            if constant is not None and constant.nbytes > SMALL_BYTES:
                new.name, new.op = node.name, "Placeholder"
                new.attr["dtype"].type = constant.tf_type
                for size in constant.shape:
                    new.attr["shape"].shape.dim.add().size = size
                new.input.extend(i for i in node.proto.input)
            else:
                new.MergeFromString(node.proto.SerializeToString())
        with tf.Graph().as_default() as g:
            tf.import_graph_def(light, name="")
        out: dict[str, list[Shape]] = {}
        for op in g.get_operations():
            out[op.name] = [None if t.shape.rank is None else tuple(t.shape.as_list()) for t in op.outputs]
        return out
