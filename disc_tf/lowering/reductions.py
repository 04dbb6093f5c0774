"""Reductions: Sum Mean Prod Max Min All Any EuclideanNorm ArgMax ArgMin L2Loss. Axes are compile-time constants."""

from __future__ import annotations

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import Block, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType, TensorType
from disc_tf.lowering.cast import cast_value
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert, highest, keep_dims, lowest, widen
from disc_tf.lowering.registry import ALL, FLOATS, NUMBERS, lowering

_MONOIDS = {"Sum": "add", "Prod": "multiply", "Max": "maximum", "Min": "minimum", "All": "and", "Any": "or"}
_AXES = "axes known at compile time"


def reduction_axes(ctx: LoweringContext, axes: Value, rank: int) -> list[int]:
    """The ``axis`` operand as sorted non-negative axes. TF rejects axes out of range and repeated ones."""
    content = ctx.constant(axes)
    if content is None:
        raise Unsupported("NOT_CONSTANT", "reduction axes are not known at compile time")
    out: list[int] = []
    for axis in content.reshape(-1).tolist():
        if not -rank <= axis < rank:
            raise Unsupported("INVALID", f"Invalid reduction dimension ({axis} for input with {rank} dimension(s))")
        at = axis % rank
        if at in out:
            raise Unsupported("INVALID", f"Axes contains duplicate dimension: {at}")
        out.append(at)
    return sorted(out)


def _shape_result(ctx: LoweringContext, node: NodeView, reduced: Value, x: Value, axes: list[int]) -> Value:
    keep = bool(node.attr("keep_dims", False))
    return keep_dims(ctx, reduced, x, axes) if keep and axes else reduced


@lowering("Sum", "Prod", "Max", "Min", dtypes=NUMBERS, constants=(1,), limits=_AXES)
def reduce_numbers(ctx: LoweringContext, node: NodeView, x: Value, axes: Value) -> Value:
    """Integers wrap; 16-bit floats accumulate in f32; Max and Min propagate NaN and give an infinity (the integer
    type's extreme) for nothing."""
    over = reduction_axes(ctx, axes, x.rank)
    return _shape_result(ctx, node, ctx.reduce(x, over, _MONOIDS[node.op]) if over else x, x, over)


@lowering("All", "Any", constants=(1,), limits=_AXES)
def reduce_bools(ctx: LoweringContext, node: NodeView, x: Value, axes: Value) -> Value:
    """All of nothing is true, Any of nothing is false."""
    over = reduction_axes(ctx, axes, x.rank)
    return _shape_result(ctx, node, ctx.reduce(x, over, _MONOIDS[node.op]) if over else x, x, over)


def count_of(x: Value, axes: list[int]) -> Dim:
    """The number of elements reduced into one."""
    n = Dim.of(1)
    for a in axes:
        n = n * x.dims[a]
    return n


def mean(ctx: LoweringContext, x: Value, axes: list[int]) -> Value:
    """The mean over ``axes`` (removed): floats in their compute type, NaN for nothing; integers are summed in 64 bits and the
    quotient truncates, 0 for nothing."""
    if not axes:
        return x
    count = count_of(x, axes)
    if x.dtype.is_float:
        wide = widen(ctx, x)
        total = ctx.reduce(wide, axes, "add")
        n = ctx.b.convert(ctx.dim(count), wide.dtype) if not count.is_static else ctx.scalar(int(count), wide.dtype)
    else:
        sum_type = DType.I64 if x.dtype.kind == "i" else DType.U64
        total = ctx.reduce(convert(ctx, x, sum_type), axes, "add")
        n = convert(ctx, ctx.dim(count), sum_type)
        n = ctx.b.maximum(n, ctx.scalar(1, sum_type))
    out = ctx.b.divide(total, ctx.broadcast_to(n, total.dims))
    return convert(ctx, out, x.dtype)


@lowering("Mean", dtypes=NUMBERS, constants=(1,), limits=_AXES)
def mean_rule(ctx: LoweringContext, node: NodeView, x: Value, axes: Value) -> Value:
    """See ``mean``."""
    over = reduction_axes(ctx, axes, x.rank)
    return _shape_result(ctx, node, mean(ctx, x, over), x, over)


@lowering("EuclideanNorm", dtypes=NUMBERS, constants=(1,), limits=_AXES)
def euclidean_norm(ctx: LoweringContext, node: NodeView, x: Value, axes: Value) -> Value:
    """Root of the sum of squares; integers sum in their own type (they wrap) and the root truncates."""
    over = reduction_axes(ctx, axes, x.rank)
    wide = widen(ctx, x) if x.dtype.is_float else x
    square = ctx.b.multiply(wide, wide)
    total = ctx.reduce(square, over, "add") if over else square
    root = ctx.b.sqrt(total if x.dtype.is_float else ctx.b.convert(total, DType.F64))
    return _shape_result(ctx, node, cast_value(ctx, root, x.dtype), x, over)


@lowering("L2Loss", dtypes=FLOATS)
def l2_loss(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """Half the sum of squares."""
    wide = widen(ctx, x)
    total = ctx.reduce(ctx.b.multiply(wide, wide), range(x.rank), "add") if x.rank else ctx.b.multiply(wide, wide)
    return convert(ctx, ctx.b.multiply(total, ctx.scalar(0.5, wide.dtype)), x.dtype)


# ---- ArgMax, ArgMin ----------------------------------------------------------------------------------------------------


@lowering(
    "ArgMax", "ArgMin", dtypes={"T": ALL, "output_type": {DType.I16, DType.U16, DType.I32, DType.I64}}, constants=(1,),
    limits="dimension known at compile time",
)  # fmt: skip
def arg_extremum(ctx: LoweringContext, node: NodeView, x: Value, dimension: Value) -> Value:
    """The first index of the extremum. NaN is ignored: TF's CPU reducer starts from (index 0, lowest finite value), so a NaN or an
    infinity of the wrong sign counts as that value."""
    content = ctx.constant(dimension)
    if content is None:
        raise Unsupported("NOT_CONSTANT", "dimension is not known at compile time")
    axis = int(content.reshape(-1)[0]) if content.size == 1 else x.rank
    if not -x.rank <= axis < x.rank:
        raise Unsupported("INVALID", f"Expected dimension in the range [{-x.rank}, {x.rank}), but got {axis}")
    axis %= x.rank
    to = node.dtype("output_type", DType.I64)
    ctx.check_dim_cond(x.dims[axis], "GT", 0, message=f"Reduction axis {axis} is empty")
    largest = node.op == "ArgMax"
    if x.dtype.is_bool:
        x = ctx.b.convert(x, DType.U8)
    start = lowest(x.dtype) if largest else highest(x.dtype)
    if x.dtype.is_float:
        limit = ctx.splat(start, x)
        x = ctx.b.select(ctx.b.compare(x, limit, "GT" if largest else "LT"), x, limit)
    index_type = DType.I64 if to == DType.I64 else DType.I32
    indices = ctx.b.iota(index_type, x.dims, axis)
    inits = [ctx.scalar(start, x.dtype), ctx.scalar(0, index_type)]
    region = _arg_region(ctx, x.dtype, index_type, largest)
    kind = "argmax" if largest else "argmin"
    found = ctx.b.reduce([x, indices], inits, [axis], region, arg=kind)[1]
    return convert(ctx, found, to)


def _arg_region(ctx: LoweringContext, dtype: DType, index_type: DType, largest: bool) -> Block:
    """``(acc, acc_i, x, i) -> the greater (less) value, the smaller index of equal ones``."""

    def body(b: Builder, acc: Value, acc_index: Value, x: Value, index: Value) -> list[Value]:
        better = b.compare(acc, x, "GT" if largest else "LT")
        earlier = b.and_(b.compare(acc, x, "EQ"), b.compare(acc_index, index, "LE"))
        keep = b.or_(better, earlier)
        return [b.select(keep, acc, x), b.select(keep, acc_index, index)]

    types = [TensorType.of(dtype), TensorType.of(index_type)]
    return ctx.b.region(types * 2, body, "acc", "acc_index", "x", "index")
