"""Calls that inlining leaves: functions that XLA compiles as a whole (``jit_compile=True``), as Keras makes for grouped convolutions."""

from __future__ import annotations

from disc_tf.ir.core import Value, may_fail
from disc_tf.lowering.bodies import body_of, lower_body
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.registry import lowering


@lowering(
    "PartitionedCall",
    "StatefulPartitionedCall",
    limits="functions compile in place; of those that XLA must compile as a whole, the ones in which nothing is checked at run time",
)
def call(ctx: LoweringContext, node: NodeView, *args: Value) -> list[Value]:
    """The body in the call's place. Where TensorFlow reports an error, XLA clamps or wraps: a body that has checks is left to it."""
    if not node.attr("_XlaMustCompile", False):
        raise Unsupported("OP", "the function must not be inlined, or expands too far")
    mark = ctx.mark()
    results = lower_body(ctx, body_of(ctx, node.attr("f"), jitted=True), args)
    made = ctx.b.block.ops[mark.ops :]
    if any(map(may_fail, made)) or len(ctx.requests) != mark.requests:
        raise Unsupported("ATTR", "the function is compiled by XLA, which does not report what TensorFlow checks in it")
    return results
