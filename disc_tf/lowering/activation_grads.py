"""Gradients of elementwise ops, and BiasAddGrad. Rounded as TF's kernels round: after every operation of the type itself."""

from __future__ import annotations

from collections.abc import Callable

from disc_tf.ir.core import Value
from disc_tf.lowering.activations import _SELU_SCALE, _SELU_SCALE_ALPHA
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert, widen
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import FLOATS, NUMBERS, lowering
from disc_tf.lowering.shapes import invalid

Rule = Callable[[LoweringContext, Value, Value], Value]


def _where(ctx: LoweringContext, x: Value, direction: str, bound: float, yes: Value, no: Value) -> Value:
    return ctx.b.select(ctx.b.compare(x, ctx.splat(bound, x), direction), yes, no)


# ---- of features or outputs --------------------------------------------------------------------------------------------


def _gated(ctx: LoweringContext, g: Value, gate: Value) -> Value:
    """``g`` times 0 or 1: an infinite gradient that is cut off is NaN."""
    return ctx.b.multiply(g, ctx.b.convert(gate, g.dtype))


def _relu(ctx: LoweringContext, g: Value, x: Value) -> Value:
    return _gated(ctx, g, ctx.b.compare(x, ctx.splat(0, x), "GT"))


def _relu6(ctx: LoweringContext, g: Value, x: Value) -> Value:
    b = ctx.b
    return _gated(ctx, g, b.and_(b.compare(x, ctx.splat(0, x), "GT"), b.compare(x, ctx.splat(6, x), "LT")))


def _softplus(ctx: LoweringContext, g: Value, x: Value) -> Value:
    exp = ctx.b.exponential(ctx.b.negate(x))
    return ctx.b.divide(g, ctx.b.add(exp, ctx.splat(1, x)))


def _softsign(ctx: LoweringContext, g: Value, x: Value) -> Value:
    root = ctx.b.add(ctx.splat(1, x), ctx.b.abs(x))
    return ctx.b.divide(g, ctx.b.multiply(root, root))


def _elu(ctx: LoweringContext, g: Value, y: Value) -> Value:
    return _where(ctx, y, "LT", 0, ctx.b.multiply(ctx.b.add(y, ctx.splat(1, y)), g), g)


def _selu(ctx: LoweringContext, g: Value, y: Value) -> Value:
    negative = ctx.b.multiply(g, ctx.b.add(y, ctx.splat(_SELU_SCALE_ALPHA, y)))
    return _where(ctx, y, "LT", 0, negative, ctx.b.multiply(g, ctx.splat(_SELU_SCALE, g)))


def _same_shape(ctx: LoweringContext, node: NodeView, g: Value, x: Value) -> Value:
    ctx.require_same_shape(g, x, f"Inputs to operation {node.name} of type {node.op} must have the same size and shape.")
    return ctx.cast_dims(x, g.dims)


_FLOAT_GRADS: dict[str, Rule] = {
    "SoftplusGrad": _softplus,
    "SoftsignGrad": _softsign,
    "EluGrad": _elu,
    "SeluGrad": _selu,
}


@lowering(*_FLOAT_GRADS, dtypes=FLOATS)
def float_grad(ctx: LoweringContext, node: NodeView, g: Value, x: Value) -> Value:
    """Gradient times the derivative at the features (Softplus, Softsign) or of the outputs (Elu, Selu)."""
    return _FLOAT_GRADS[node.op](ctx, g, _same_shape(ctx, node, g, x))


@lowering("ReluGrad", "Relu6Grad", dtypes=NUMBERS)
def relu_grad(ctx: LoweringContext, node: NodeView, g: Value, x: Value) -> Value:
    """The gradient where the features are positive (and less than 6), 0 elsewhere."""
    return (_relu if node.op == "ReluGrad" else _relu6)(ctx, g, _same_shape(ctx, node, g, x))


@lowering("LeakyReluGrad", dtypes=FLOATS)
def leaky_relu_grad(ctx: LoweringContext, node: NodeView, g: Value, x: Value) -> Value:
    """The gradient where the features are positive, ``alpha`` of it elsewhere."""
    x = _same_shape(ctx, node, g, x)
    alpha = ctx.splat(float(node.attr("alpha", 0.2)), g)
    return _where(ctx, x, "GT", 0, g, ctx.b.multiply(g, alpha))


# ---- of results: (y, dy) -----------------------------------------------------------------------------------------------


def _unless_zero(ctx: LoweringContext, dy: Value, out: Value) -> Value:
    return _where(ctx, dy, "EQ", 0, ctx.splat(0, dy), out)


def _sigmoid(ctx: LoweringContext, y: Value, dy: Value) -> Value:
    return ctx.b.multiply(dy, ctx.b.multiply(y, ctx.b.subtract(ctx.splat(1, y), y)))


def _tanh(ctx: LoweringContext, y: Value, dy: Value) -> Value:
    return ctx.b.multiply(dy, ctx.b.subtract(ctx.splat(1, y), ctx.b.multiply(y, y)))


def _sqrt(ctx: LoweringContext, y: Value, dy: Value) -> Value:
    return _unless_zero(ctx, dy, ctx.b.divide(ctx.b.multiply(ctx.splat(0.5, dy), dy), y))


def _rsqrt(ctx: LoweringContext, y: Value, dy: Value) -> Value:
    half = ctx.b.multiply(ctx.splat(-0.5, dy), ctx.b.multiply(dy, y))
    return _unless_zero(ctx, dy, ctx.b.multiply(half, ctx.b.multiply(y, y)))


def _inverse(ctx: LoweringContext, y: Value, dy: Value) -> Value:
    return _unless_zero(ctx, dy, ctx.b.multiply(dy, ctx.b.negate(ctx.b.multiply(y, y))))


_RESULT_GRADS: dict[str, Rule] = {
    "SigmoidGrad": _sigmoid,
    "TanhGrad": _tanh,
    "SqrtGrad": _sqrt,
    "RsqrtGrad": _rsqrt,
    "InvGrad": _inverse,
    "ReciprocalGrad": _inverse,
}


@lowering(*_RESULT_GRADS, dtypes=FLOATS)
def result_grad(ctx: LoweringContext, node: NodeView, y: Value, dy: Value) -> Value:
    """``dy`` times the derivative, by the result ``y``. Sqrt, Rsqrt and the reciprocal: 0 where ``dy`` is, whatever ``y``."""
    counts = ctx.num_elements(y), ctx.num_elements(dy)
    message = f"The two arguments to a cwise op must have same number of elements, got {plain(counts[0])} and {plain(counts[1])}"
    if y.rank == dy.rank and all(ctx.env.is_equal(a, c) is True for a, c in zip(y.dims, dy.dims, strict=True)):
        dy = ctx.cast_dims(dy, y.dims)
    else:
        ctx.check_dims_eq(*counts, message=message)
        flat = ctx.cast_dims(ctx.b.reshape(dy, (counts[1],)), (counts[0],))
        dy = ctx.b.reshape(flat, y.dims)
    return _RESULT_GRADS[node.op](ctx, y, dy)


# ---- BiasAdd -----------------------------------------------------------------------------------------------------------


@lowering("BiasAddGrad", dtypes=NUMBERS)
def bias_add_grad(ctx: LoweringContext, node: NodeView, g: Value) -> Value:
    """The sum over all dims but the channels' (the last, or the second for NCHW). 16-bit floats are summed in f32."""
    if g.rank < 2:
        raise invalid(f"Input tensor must be at least 2D: {g.type}")
    layout = node.attr("data_format", "NHWC")
    if layout not in ("NHWC", "NCHW"):
        raise Unsupported("ATTR", f"data_format={layout!r}")
    channel = 1 if layout == "NCHW" else g.rank - 1
    total = ctx.reduce(widen(ctx, g) if g.dtype.is_float else g, [k for k in range(g.rank) if k != channel], "add")
    return convert(ctx, total, g.dtype)
