"""Constants, identities, and ops that only check."""

from __future__ import annotations

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Status, Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.registry import FLOATS, lowering


@lowering("Const", "HostConst", "_HostConst", limits="large constants become arguments of the cluster before lowering")
def const(ctx: LoweringContext, node: NodeView) -> Value:
    """A constant; strings and other uncompiled types are ``Unsupported(DTYPE)``."""
    if node.has("dtype"):
        node.dtype("dtype")
    return ctx.b.constant(node.tensor("value"))


@lowering("Identity", "StopGradient", "Snapshot", "PreventGradient", "DeepCopy", "_EagerConst", "OptimizationBarrier")
def identity(_ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """The operand itself: no gradient is taken through compiled code."""
    return x


@lowering("IdentityN")
def identity_n(_ctx: LoweringContext, _node: NodeView, *xs: Value) -> list[Value]:
    """The operands themselves."""
    return list(xs)


@lowering("NoOp")
def no_op(_ctx: LoweringContext, _node: NodeView) -> list[Value]:
    """Nothing."""
    return []


@lowering("EnsureShape")
def ensure_shape(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """Checks the known extents of ``shape``; the result has them in its type."""
    shape = node.attr("shape")
    if shape is None:
        return x
    message = f"Shape of tensor {node.inputs[0][0] if node.inputs else node.name} is not compatible with expected shape {list(shape)}"
    if len(shape) != x.rank:
        raise Unsupported("INVALID", message)
    dims = list(x.dims)
    for i, extent in enumerate(shape):
        if extent is not None and extent >= 0:
            ctx.check_dims_eq(dims[i], extent, message=message)
            dims[i] = Dim.of(extent)
    return ctx.cast_dims(x, dims)


@lowering("Assert", optional_from=1)
def assert_(ctx: LoweringContext, node: NodeView, condition: Value, *_data: Value | None) -> list[Value]:
    """INVALID_ARGUMENT unless the condition holds. The printed data are not evaluated; the message names the node."""
    if condition.rank:
        raise Unsupported("INVALID", f"In[0] should be a scalar: {condition.type}")
    ctx.check(condition, Status.INVALID_ARGUMENT, f"assertion failed: {node.name}")
    return []


@lowering("CheckNumerics", "CheckNumericsV2", dtypes=FLOATS)
def check_numerics(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """INVALID_ARGUMENT if any element is NaN or infinite."""
    message = f"{node.attr('message', '')} : Tensor had NaN or Inf values"
    ctx.check(ctx.b.is_finite(x), Status.INVALID_ARGUMENT, message)
    return x
