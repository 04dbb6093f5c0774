"""Special functions whose rules are JAX functions: traced with unknown extents, imported as IR (docs/architecture.md, section 2).

The functions are in `disc_tf.ir.stablehlo.special`; JAX is imported when a graph holds one of these ops. They are elementwise: without a
loop (all but the incomplete functions and zeta) they fuse like any other op.
"""

from __future__ import annotations

import itertools

from disc_tf.ir.core import Value
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert, widen
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import lowering

_WIDE = (DType.F32, DType.F64)
_WITH_HALF = (DType.F16, *_WIDE)

#: TF op -> function of one operand, f32 and f64
_UNARY = {
    "Dawsn": "integrals.dawsn",
    "Erfinv": "integrals.erfinv",
    "Expint": "integrals.expint",
    "FresnelCos": "integrals.fresnel_cos",
    "FresnelSin": "integrals.fresnel_sin",
    "Ndtri": "integrals.ndtri",
    "Spence": "integrals.spence",
}
#: the same, and f16 by way of f32
_UNARY_HALF = {f"Bessel{name}": f"bessel.{name.lower()}" for name in "I0 I0e I1 I1e J0 J1 K0 K0e K1 K1e Y0 Y1".split()}
#: TF op -> function of two broadcast operands
_BINARY = {
    "NextAfter": "integrals.nextafter",
}  # TF's own f64 kernel goes from an infinity to the greatest f32; ours to the greatest f64
#: the same with a loop over the whole tensor
_BINARY_LOOPS = {
    "Igamma": "gamma.igamma",
    "IgammaGradA": "gamma.igamma_grad_a",
    "Igammac": "gamma.igammac",
    "Polygamma": "gamma.polygamma",
    "RandomGammaGrad": "gamma.random_gamma_grad",
    "Zeta": "gamma.zeta",
}


def call_jax(ctx: LoweringContext, function: str, *args: Value) -> Value:
    """An elementwise JAX function (see `trace`) of operands of equal dims; the result has the dims of the first."""
    from disc_tf.ir.stablehlo.importer import inline_stablehlo
    from disc_tf.ir.stablehlo.trace import trace

    text = trace(function, tuple(v.dtype for v in args), args[0].rank)
    names = (f"jax{k}" for k in itertools.count())  # elementwise: no shape depends on data
    (result,) = inline_stablehlo(ctx.b, ctx.env, text, args, names)
    return ctx.cast_dims(result, args[0].dims)


def apply_jax(ctx: LoweringContext, function: str, *args: Value) -> Value:
    """`call_jax` of operands of one dtype, which is the result's; f16 and bf16 are computed in f32."""
    return convert(ctx, call_jax(ctx, function, *(widen(ctx, v) for v in args)), args[0].dtype)


@lowering(*_UNARY, dtypes=_WIDE)
def jax_unary(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """Cephes' series, as in TF's kernel."""
    return apply_jax(ctx, _UNARY[node.op], x)


@lowering(*_UNARY_HALF, dtypes=_WITH_HALF)
def jax_unary_half(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """Cephes' series, as in TF's kernel."""
    return apply_jax(ctx, _UNARY_HALF[node.op], x)


@lowering(*_BINARY, dtypes=_WIDE)
def jax_binary(ctx: LoweringContext, node: NodeView, x: Value, y: Value) -> Value:
    """Broadcasts as TF does."""
    return apply_jax(ctx, _BINARY[node.op], *ctx.broadcast(x, y))


@lowering(*_BINARY_LOOPS, dtypes=_WIDE, limits="loops until every element has converged")
def jax_binary_loop(ctx: LoweringContext, node: NodeView, x: Value, y: Value) -> Value:
    """Broadcasts as TF does."""
    return apply_jax(ctx, _BINARY_LOOPS[node.op], *ctx.broadcast(x, y))


@lowering("Betainc", dtypes=_WIDE, limits="loops until every element has converged")
def betainc(ctx: LoweringContext, node: NodeView, a: Value, b: Value, x: Value) -> Value:
    """Equal shapes; scalars go with any."""
    wide = [v for v in (a, b, x) if v.rank]
    for v in wide[1:]:
        ctx.require_same_shape(wide[0], v, f"Shapes of a, b and x are inconsistent: {plain(wide[0].type)} vs. {plain(v.type)}")
    dims = wide[0].dims if wide else ()
    return apply_jax(ctx, "gamma.betainc", *(ctx.cast_dims(v, dims) for v in (a, b, x)))
