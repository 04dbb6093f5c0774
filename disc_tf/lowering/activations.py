"""Activation functions as TF's CPU kernels compute them; 16-bit floats in f32, rounded once. All keep NaN."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert, widen
from disc_tf.lowering.registry import FLOATS, NUMBERS, lowering

_SELU_SCALE = 1.0507009873554804934193349852946
_SELU_SCALE_ALPHA = 1.7580993408473768599402175208123


def relu(ctx: LoweringContext, x: Value) -> Value:
    """``max(x, 0)``, NaN stays."""
    return ctx.b.maximum(x, ctx.splat(0, x))


def relu6(ctx: LoweringContext, x: Value) -> Value:
    """``min(max(x, 0), 6)``, NaN stays."""
    return ctx.b.minimum(relu(ctx, x), ctx.splat(6, x))


def leaky_relu(ctx: LoweringContext, x: Value, alpha: float) -> Value:
    """``x`` where positive, else ``alpha * x``."""
    return ctx.b.select(ctx.b.compare(x, ctx.splat(0, x), "GT"), x, ctx.b.multiply(x, ctx.splat(alpha, x)))


def elu(ctx: LoweringContext, x: Value) -> Value:
    """``expm1(x)`` where negative."""
    return ctx.b.select(ctx.b.compare(x, ctx.splat(0, x), "LT"), ctx.b.exponential_minus_one(x), x)


def selu(ctx: LoweringContext, x: Value) -> Value:
    """Scaled ``elu``."""
    wide = widen(ctx, x)
    negative = ctx.b.multiply(ctx.splat(_SELU_SCALE_ALPHA, wide), ctx.b.exponential_minus_one(wide))
    positive = ctx.b.multiply(ctx.splat(_SELU_SCALE, wide), wide)
    out = ctx.b.select(ctx.b.compare(wide, ctx.splat(0, wide), "LT"), negative, positive)
    return convert(ctx, out, x.dtype)


def softplus(ctx: LoweringContext, x: Value) -> Value:
    """``log(1 + exp(x))``; ``x`` above and ``exp(x)`` below the thresholds where the sum would round to them."""
    epsilon = {DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.F32: 2.0**-23, DType.F64: 2.0**-52}[x.dtype]
    threshold = math.log(epsilon) + 2.0
    wide = widen(ctx, x)
    exp = ctx.b.exponential(wide)
    too_large = ctx.b.compare(wide, ctx.splat(-threshold, wide), "GT")
    too_small = ctx.b.compare(wide, ctx.splat(threshold, wide), "LT")
    out = ctx.b.select(too_large, wide, ctx.b.select(too_small, exp, ctx.b.log_plus_one(exp)))
    return convert(ctx, out, x.dtype)


def softsign(ctx: LoweringContext, x: Value) -> Value:
    """``x / (1 + |x|)``; NaN at the infinities, as TF."""
    return ctx.b.divide(x, ctx.b.add(ctx.splat(1, x), ctx.b.abs(x)))


def gelu_exact(ctx: LoweringContext, x: Value) -> Value:
    """``0.5 x (1 + erf(x / sqrt(2)))``."""
    wide = widen(ctx, x)
    erf = ctx.b.erf(ctx.b.multiply(wide, ctx.splat(math.sqrt(0.5), wide)))
    half = ctx.b.multiply(ctx.splat(0.5, wide), wide)
    return convert(ctx, ctx.b.multiply(half, ctx.b.add(ctx.splat(1, wide), erf)), x.dtype)


def gelu_approximate(ctx: LoweringContext, x: Value) -> Value:
    """``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))``."""
    wide = widen(ctx, x)
    cube = ctx.b.multiply(ctx.b.multiply(wide, wide), wide)
    inner = ctx.b.add(wide, ctx.b.multiply(ctx.splat(0.044715, wide), cube))
    tanh = ctx.b.tanh(ctx.b.multiply(ctx.splat(math.sqrt(2.0 / math.pi), wide), inner))
    half = ctx.b.multiply(ctx.splat(0.5, wide), wide)
    return convert(ctx, ctx.b.multiply(half, ctx.b.add(ctx.splat(1, wide), tanh)), x.dtype)


def swish(ctx: LoweringContext, x: Value) -> Value:
    """``x * sigmoid(x)``."""
    wide = widen(ctx, x)
    return convert(ctx, ctx.b.multiply(wide, ctx.b.logistic(wide)), x.dtype)


def mish(ctx: LoweringContext, x: Value) -> Value:
    """``x * tanh(softplus(x))``."""
    wide = widen(ctx, x)
    return convert(ctx, ctx.b.multiply(wide, ctx.b.tanh(softplus(ctx, wide))), x.dtype)


_SIMPLE: dict[str, Callable[[LoweringContext, Value], Value]] = {
    "Elu": elu,
    "Selu": selu,
    "Softplus": softplus,
    "Softsign": softsign,
    "_MklSwish": swish,
    "_MklFusedMish": mish,
}


@lowering(*_SIMPLE, dtypes=FLOATS)
def simple_activation(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """One function of one operand."""
    return _SIMPLE[node.op](ctx, x)


@lowering("Relu", "Relu6", dtypes=NUMBERS)
def relu_rule(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """Any number type."""
    return relu(ctx, x) if node.op == "Relu" else relu6(ctx, x)


@lowering("LeakyRelu", dtypes=FLOATS)
def leaky_relu_rule(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """``alpha`` is 0.2 by default."""
    return leaky_relu(ctx, x, float(node.attr("alpha", 0.2)))


#: names in the ``fused_ops`` attribute of grappler's and oneDNN's fused nodes
_FUSED: dict[str, Callable[[LoweringContext, Value], Value]] = {
    "Relu": relu,
    "Relu6": relu6,
    "Elu": elu,
    "Tanh": lambda ctx, x: ctx.b.tanh(x),
    "Sigmoid": lambda ctx, x: ctx.b.logistic(x),
    "GeluExact": gelu_exact,
    "GeluApproximate": gelu_approximate,
    "_MklSwish": swish,
    "_FusedSwish": swish,
    "_FusedHardSwish": lambda ctx, x: hard_swish(ctx, x),
    "_MklFusedMish": mish,
}


def hard_swish(ctx: LoweringContext, x: Value) -> Value:
    """``x * relu6(x + 3) / 6``."""
    gate = relu6(ctx, ctx.b.add(x, ctx.splat(3, x)))
    return ctx.b.multiply(x, ctx.b.multiply(gate, ctx.splat(np.float64(1.0 / 6.0), x)))


def fused_activation(ctx: LoweringContext, node: NodeView, name: str, x: Value) -> Value:
    """Apply an activation that a fused node names; ``Unsupported(ATTR)`` for an unknown one."""
    if name == "LeakyRelu":
        return leaky_relu(ctx, x, float(node.attr("leakyrelu_alpha", 0.2)))
    function = _FUSED.get(name)
    if function is None:
        raise Unsupported("ATTR", f"fused op {name!r}")
    return function(ctx, x)
