"""Assert becomes a check: the condition is compiled, the data operands only give the message."""

from __future__ import annotations

from disc_tf.frontend.graph import Graph, Node
from disc_tf.ir.core import Value
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Status, Unsupported

_MAX_MESSAGE = 2000


def assert_message(graph: Graph, node: Node) -> str:
    """TensorFlow's text as far as it is known before the run: string constants as they are, other operands by name."""
    parts = []
    for name, port in node.inputs[1:]:
        constant = graph.constant(name)
        if constant is not None and constant.present and constant.nbytes <= 4096:
            items = constant.array().reshape(-1)[:3].tolist()
            parts.append("[" + " ".join(i.decode("utf-8", "replace") if isinstance(i, bytes) else str(i) for i in items) + "]")
        else:
            parts.append(f"[{name}:{port}]")
    return f"assertion failed: {' '.join(parts)}"[:_MAX_MESSAGE]


def lower_assert(ctx: LoweringContext, graph: Graph, node: Node, condition: Value | None) -> None:
    """Emit the check of an Assert node. ``Unsupported`` if its condition is not a bool tensor of known rank."""
    if condition is None:
        raise Unsupported("RANK", "the condition has no type", node.name, node.op)
    if not condition.dtype.is_bool:
        raise Unsupported("DTYPE", f"the condition is {condition.dtype}", node.name, node.op)
    if condition.rank:
        raise Unsupported("INVALID", f"the condition has rank {condition.rank}", node.name, node.op)
    content = ctx.constant(condition)
    if content is not None and not bool(content):
        raise Unsupported("INVALID", "the condition is always false", node.name, node.op)
    with ctx.at(node.name):
        ctx.check(condition, Status.INVALID_ARGUMENT, assert_message(graph, node))
