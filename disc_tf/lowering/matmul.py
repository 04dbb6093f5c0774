"""MatMul, BatchMatMul (V1-V3), BiasAdd, and grappler's and oneDNN's fused forms of them, undone."""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.ir.core import Value
from disc_tf.ir.types import DType
from disc_tf.lowering.activations import fused_activation
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import NUMBERS, lowering


def matmul(ctx: LoweringContext, a: Value, b: Value, transpose_a: bool, transpose_b: bool) -> Value:
    """``[M,K] x [K,N] -> [M,N]``; transposed operands are contracted where they stand."""
    if a.rank != 2 or b.rank != 2:
        raise Unsupported("INVALID", f"In[0] and In[1] must be matrices: ranks {a.rank} and {b.rank}")
    ka, kb = (0 if transpose_a else 1), (1 if transpose_b else 0)
    ctx.check_dims_eq(a.dims[ka], b.dims[kb], message=f"Matrix size-incompatible: In[0]: {plain(a.type)}, In[1]: {plain(b.type)}")
    return ctx.b.dot_general(a, b, (ka,), (kb,))


@lowering("MatMul", "_MklMatMul", dtypes=NUMBERS)
def matmul_rule(ctx: LoweringContext, node: NodeView, a: Value, b: Value) -> Value:
    """16-bit floats accumulate in f32; an empty sum is 0."""
    return matmul(ctx, a, b, bool(node.attr("transpose_a", False)), bool(node.attr("transpose_b", False)))


# ---- batched -----------------------------------------------------------------------------------------------------------


def batch_matmul(
    ctx: LoweringContext, x: Value, y: Value, adj_x: bool, adj_y: bool, out: DType | None = None
) -> Value:
    """``[...,M,K] x [...,K,N] -> [...,M,N]`` with broadcast batch dims.

    An operand without batch (all of them 1, known) is not repeated: the other's batch dims are then free dims of the product.
    """
    if x.rank < 2 or y.rank < 2:
        raise Unsupported("INVALID", f"In[0] and In[1] ndims must be >= 2: {x.rank} and {y.rank}")
    out = out or x.dtype
    kx = x.dims[-2 if adj_x else -1]
    ky = y.dims[-1 if adj_y else -2]
    ctx.check_dims_eq(kx, ky, message=f"Matrix size-incompatible: In[0]: {plain(x.type)}, In[1]: {plain(y.type)}")
    batch_x, batch_y = x.dims[:-2], y.dims[:-2]
    message = f"In[0] and In[1] must have compatible batch dimensions: {plain(x.type)} vs. {plain(y.type)}"
    batch = ctx.broadcast_dims(batch_x, batch_y, message=message)
    m, n = x.dims[-1 if adj_x else -2], y.dims[-2 if adj_y else -1]

    if batch and all(d == 1 for d in batch_y):
        flat_y = ctx.b.reshape(y, y.dims[-2:])
        flat = ctx.b.dot_general(x, flat_y, (x.rank - (2 if adj_x else 1),), (1 if adj_y else 0,), dtype=out)
        # free dims of x in order: batch and M
        return flat if len(batch) == len(batch_x) else ctx.b.reshape(flat, (*batch, m, n))
    if batch and all(d == 1 for d in batch_x):
        flat_x = ctx.b.reshape(x, x.dims[-2:])
        flat = ctx.b.dot_general(flat_x, y, (0 if adj_x else 1,), (y.rank - (1 if adj_y else 2),), dtype=out)
        # [M, batch..., N] -> [batch..., M, N]
        count = len(batch_y)
        moved = ctx.b.transpose(flat, (*range(1, count + 1), 0, count + 1))
        return moved if len(batch) == count else ctx.b.reshape(moved, (*batch, m, n))
    x = ctx.broadcast_to(x, (*batch, *x.dims[-2:]))
    y = ctx.broadcast_to(y, (*batch, *y.dims[-2:]))
    lead = tuple(range(len(batch)))
    rank = len(batch) + 2
    contract_x, contract_y = rank - (2 if adj_x else 1), rank - (1 if adj_y else 2)
    return ctx.b.dot_general(x, y, (contract_x,), (contract_y,), lead, lead, dtype=out)


@lowering("BatchMatMul", "BatchMatMulV2", "_MklBatchMatMul", "_MklBatchMatMulV2", dtypes=NUMBERS)
def batch_matmul_rule(ctx: LoweringContext, node: NodeView, x: Value, y: Value) -> Value:
    """V1 wants equal batch dims, V2 broadcasts them. Conjugation is the identity on reals."""
    if not node.op.endswith("V2"):
        if x.rank != y.rank:
            raise Unsupported("INVALID", f"In[0] and In[1] has different ndims: {x.type} vs. {y.type}")
        for i, (a, b) in enumerate(zip(x.dims[:-2], y.dims[:-2], strict=True)):
            ctx.check_dims_eq(a, b, message=f"In[0].dim({i}) and In[1].dim({i}) must be the same")
        y = ctx.cast_dims(y, (*x.dims[:-2], *y.dims[-2:])) if y.rank > 2 else y
    return batch_matmul(ctx, x, y, bool(node.attr("adj_x", False)), bool(node.attr("adj_y", False)))


@lowering("BatchMatMulV3", dtypes={"Ta": NUMBERS, "Tb": NUMBERS, "Tout": NUMBERS})
def batch_matmul_v3(ctx: LoweringContext, node: NodeView, x: Value, y: Value) -> Value:
    """Operands of any number type; the product is in ``Tout`` (8-bit integers to i32 without loss)."""
    out = node.dtype("Tout", x.dtype)
    if x.dtype != y.dtype or x.dtype.kind != out.kind or x.dtype.bits > out.bits:
        x, y = convert(ctx, x, out), convert(ctx, y, out)
    return batch_matmul(ctx, x, y, bool(node.attr("adj_x", False)), bool(node.attr("adj_y", False)), out)


# ---- BiasAdd -----------------------------------------------------------------------------------------------------------


def bias_add(ctx: LoweringContext, x: Value, bias: Value, data_format: str) -> Value:
    """Add ``bias[C]`` along the channel dim: the last, or dim 1 for ``NC...``. No broadcasting of a bias of one element."""
    if x.rank < 2:
        raise Unsupported("INVALID", f"Input tensor must be at least 2D: {x.type}")
    if bias.rank != 1:
        raise Unsupported("INVALID", f"Biases must be 1D: {bias.type}")
    if data_format not in ("NHWC", "NCHW"):
        raise Unsupported("ATTR", f"data_format={data_format!r}")
    axis = 1 if data_format == "NCHW" else x.rank - 1
    ctx.check_dims_eq(
        bias.dims[0], x.dims[axis], message="Must provide as many biases as the channel dimension of the input tensor"
    )
    return ctx.b.add(x, along(ctx, bias, x, axis))


def along(ctx: LoweringContext, vector: Value, like: Value, axis: int) -> Value:
    """``vector[C]`` spread along ``axis`` over the dims of ``like``."""
    return ctx.b.broadcast_in_dim(vector, like.dims, (axis,))


@lowering("BiasAdd", dtypes=NUMBERS)
def bias_add_rule(ctx: LoweringContext, node: NodeView, x: Value, bias: Value) -> Value:
    """``data_format`` NHWC or NCHW, any rank from 2."""
    return bias_add(ctx, x, bias, node.attr("data_format", "NHWC"))


@lowering("BiasAddV1", dtypes=NUMBERS)
def bias_add_v1(ctx: LoweringContext, _node: NodeView, x: Value, bias: Value) -> Value:
    """The old form without a data format."""
    return bias_add(ctx, x, bias, "NHWC")


# ---- fused forms -------------------------------------------------------------------------------------------------------


def epilogue(ctx: LoweringContext, node: NodeView, product: Value, extra: Sequence[Value]) -> Value:
    """Apply a fused node's ``fused_ops`` to its product, taking operands from ``extra`` in order."""
    left = list(extra)

    def take(name: str) -> Value:
        if not left:
            raise Unsupported("INVALID", f"fused op {name!r} lacks its operand")
        return left.pop(0)

    out = product
    for name in node.attr("fused_ops", []):
        if name == "BiasAdd":
            out = bias_add(ctx, out, take(name), "NHWC")
        elif name in ("Add", "Mul"):
            a, b = ctx.broadcast(out, take(name))
            out = ctx.b.add(a, b) if name == "Add" else ctx.b.multiply(a, b)
        else:
            out = fused_activation(ctx, node, name, out)
    if left:
        raise Unsupported("ATTR", f"fused_ops={node.attr('fused_ops', [])} leave {len(left)} operands unused")
    return out


_FUSED_LIMITS = "fused_ops of BiasAdd, Add, Mul and activations"


def _num_args(node: NodeView, args: Sequence[Value]) -> list[Value]:
    """The ``args`` operands; TF lists host operands after them, which none of the ops taken here has."""
    count = int(node.attr("num_args", len(args)))
    if count != len(args):
        raise Unsupported("ATTR", f"{len(args) - count} host operands")
    return list(args)


@lowering("_FusedMatMul", "_MklFusedMatMul", "_MklNativeFusedMatMul", dtypes=NUMBERS, limits=_FUSED_LIMITS)
def fused_matmul(ctx: LoweringContext, node: NodeView, a: Value, b: Value, *args: Value) -> Value:
    """A MatMul and the ops that grappler's remapper fused into it."""
    product = matmul(ctx, a, b, bool(node.attr("transpose_a", False)), bool(node.attr("transpose_b", False)))
    return epilogue(ctx, node, product, _num_args(node, args))


@lowering("_FusedBatchMatMulV2", "_MklFusedBatchMatMulV2", dtypes=NUMBERS, limits=_FUSED_LIMITS)
def fused_batch_matmul(ctx: LoweringContext, node: NodeView, x: Value, y: Value, *args: Value) -> Value:
    """A BatchMatMulV2 with a scale (Mul) and an addend (Add)."""
    product = batch_matmul(ctx, x, y, bool(node.attr("adj_x", False)), bool(node.attr("adj_y", False)))
    return epilogue(ctx, node, product, _num_args(node, args))
