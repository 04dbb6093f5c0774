"""Shape, Size, Rank, Reshape, ExpandDims, Squeeze, Transpose, BroadcastTo, Fill and the like."""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, DimTooComplex, dmax, product
from disc_tf.ir.types import DType
from disc_tf.lowering.content import (
    RunTimeFacts,
    bind,
    check_size,
    constant_int,
    constant_ints,
    element_dims,
    require_broadcastable,
)
from disc_tf.lowering.context import DimRequest, LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import ALL, INTS, NUMBERS, lowering
from disc_tf.lowering.shapes import (
    ReshapePlan,
    invalid,
    normal_axis,
    permutation_of,
    reshape_dims,
)
from disc_tf.lowering.symbolic import at_least, is_negative_flag

# ---- reading shapes --------------------------------------------------------------------------------------


@lowering("Shape")
def shape(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """The dims of ``x`` as i32 or i64 (attr ``out_type``)."""
    return ctx.from_dims(x.dims, node.dtype("out_type", DType.I32))


@lowering("ShapeN")
def shape_n(ctx: LoweringContext, node: NodeView, *xs: Value) -> list[Value]:
    """The dims of each operand."""
    dtype = node.dtype("out_type", DType.I32)
    return [ctx.from_dims(x.dims, dtype) for x in xs]


@lowering("Size")
def size(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """The number of elements."""
    return ctx.dim(x.tensor.num_elements(), node.dtype("out_type", DType.I32))


@lowering("Rank")
def rank(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """The number of dimensions, a constant."""
    return ctx.dim(x.rank, DType.I32)


# ---- Reshape ---------------------------------------------------------------------------------------------


@lowering("Reshape", dtypes=ALL)
def reshape(ctx: LoweringContext, _node: NodeView, x: Value, shape: Value) -> Value:
    """TF's Reshape with its rule for -1 (`shapes.reshape_dims`); a shape that only run time knows binds fresh dims."""
    sizes = element_dims(ctx, shape, "the shape operand of Reshape")
    plan = _run_time_plan(ctx, x, sizes)
    if plan is None:
        plan = reshape_dims(x.dims, sizes, ctx.env)
        ctx.requests += [DimRequest("positive", d, Dim.of(1), ctx.node_name) for d in plan.positive]
    return reshape_to(ctx, x, [ctx.plain_dim(d) for d in plan.dims], exact=plan.exact)


def _run_time_plan(ctx: LoweringContext, x: Value, sizes: Sequence[Dim]) -> ReshapePlan | None:
    """The plan when sizes of unknown sign (one of which may be the -1 at run time) are among ``sizes``, else None."""
    facts = RunTimeFacts(ctx)
    flags = [is_negative_flag(facts, s) for s in sizes]
    if all(f.is_static for f in flags):
        return None
    for i, (s, flag) in enumerate(zip(sizes, flags, strict=True)):
        if not flag.is_static or (s.is_static and int(s) < -1):
            ctx.check_dim_cond(s, "GE", -1, message=f"Size {i} must be non-negative, or -1")
    flags = [_bounded(ctx, f, 1) for f in flags]
    ctx.check_dim_cond(sum(flags, Dim.of(0)), "LE", 1, message="Only one input size may be -1")
    # From here on a flag is 1 where its size is -1; that size then counts as 1.
    counted = [bind(ctx, s + 2 * f) for s, f in zip(sizes, flags, strict=True)]
    zero = _bounded(ctx, dmax(0, 1 - bind(ctx, product(counted))), 1)
    left, right = (product(bind(ctx, dmax(d, zero)) for d in ds) for ds in (x.dims, counted))
    missing = bind(ctx, left // right)
    return ReshapePlan(tuple(bind(ctx, c + f * (missing - 1)) for c, f in zip(counted, flags, strict=True)))


def _bounded(ctx: LoweringContext, d: Dim, high: int) -> Dim:
    """``d`` bound to a symbol that is known to be in ``[0, high]``."""
    d = bind(ctx, d)
    ctx.env.set_range(d, 0, high)
    return d


def reshape_to(ctx: LoweringContext, x: Value, dims: Sequence[Dim], *, exact: bool = False) -> Value:
    """``x`` with these dims; a check where the element counts cannot be proved equal (``exact``: known by construction)."""
    dims = tuple(dims)
    if dims == x.dims:
        return x
    same = ctx.env.same_elements(x.dims, dims)
    if same is not True:
        try:
            have, want = product(x.dims), product(dims)
        except DimTooComplex:
            have, want = bind(ctx, _bound_product(ctx, x.dims)), bind(ctx, _bound_product(ctx, dims))
        if exact:
            ctx.env.assume_eq(have, want)
        else:
            ctx.check_dims_eq(
                have,
                want,
                message=f"Input to reshape is a tensor with {plain(have)} values, but the requested shape has {plain(want)}",
            )
    return ctx.b.reshape(x, dims)


def _bound_product(ctx: LoweringContext, dims: Sequence[Dim]) -> Dim:
    total = Dim.of(1)
    for d in dims:
        total = bind(ctx, total * bind(ctx, d))
    return total


# ---- axes of extent 1, Transpose -------------------------------------------------------------------------


@lowering("ExpandDims", dtypes=ALL)
def expand_dims(ctx: LoweringContext, _node: NodeView, x: Value, axis: Value) -> Value:
    """A new axis of extent 1."""
    at = constant_int(ctx, axis, "the axis of ExpandDims")
    at = normal_axis(at, x.rank + 1, f"Tried to expand dim index {at} for tensor with {x.rank} dimensions.")
    return ctx.b.reshape(x, (*x.dims[:at], Dim.of(1), *x.dims[at:]))


@lowering("Squeeze", dtypes=ALL, limits="without squeeze_dims every extent must be known to be 1 or not")
def squeeze(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """Drop axes of extent 1: those named, else all."""
    named = node.ints("squeeze_dims") or node.ints("axis")
    if named:
        axes = {
            normal_axis(a, x.rank, f"Tried to squeeze dim index {a} for tensor of rank {x.rank}")
            for a in named
        }
        for a in sorted(axes):
            ctx.check_dims_eq(
                x.dims[a], 1, message=f"Can not squeeze dim[{a}], expected a dimension of 1, got {plain(x.dims[a])}"
            )
    else:
        axes = set()
        for i, d in enumerate(x.dims):
            known = ctx.env.is_equal(d, 1)
            if known is None:
                raise Unsupported(
                    "RANK", f"Squeeze of all axes: whether dimension {i} ({d}) is 1 is not known"
                )
            if known:
                axes.add(i)
    return ctx.b.reshape(x, [d for i, d in enumerate(x.dims) if i not in axes])


@lowering("Transpose", "ConjugateTranspose", dtypes=ALL, limits="the permutation is constant")
def transpose(ctx: LoweringContext, _node: NodeView, x: Value, perm: Value) -> Value:
    """Permute the axes."""
    order = permutation_of(constant_ints(ctx, perm, "the permutation of Transpose"), x.rank)
    return ctx.b.transpose(x, order)


@lowering("InvertPermutation", dtypes=INTS)
def invert_permutation(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """``y[x[i]] = i``; anything but a permutation of ``0..n-1`` is INVALID_ARGUMENT. (Constants are folded.)"""
    if x.rank != 1:
        raise invalid("invert_permutation expects a 1D vector.")
    n = x.dims[0]
    b = ctx.b
    count = b.iota(x.dtype, [n], 0)
    in_range = b.and_(
        b.compare(x, ctx.splat(0, x), "GE"), b.compare(x, ctx.broadcast_to(ctx.dim(n, x.dtype), [n]), "LT")
    )
    ctx.check(in_range, message="invert_permutation: an element is not in [0, n)")
    ordered, inverse = b.sort([x, count], 0, "LT")
    ctx.check(
        b.compare(ordered, count, "EQ"), message="invert_permutation: an element is duplicated in the input."
    )
    return inverse


# ---- making tensors of a shape ---------------------------------------------------------------------------


def shape_operand(ctx: LoweringContext, v: Value, what: str) -> list[Dim]:
    """A shape operand without -1: its elements as dims, checked to be non-negative."""
    sizes = element_dims(ctx, v, what)
    check_size(ctx, sizes, f"{what}: a dimension must be >= 0")
    # A size that may be negative for all that is known is no dim: name its non-negative part.
    return [s if at_least(ctx.env, s, 0) else bind(ctx, dmax(s, 0)) for s in sizes]


@lowering("BroadcastTo", dtypes=ALL)
def broadcast_to(ctx: LoweringContext, _node: NodeView, x: Value, shape: Value) -> Value:
    """Broadcast to exactly ``shape``."""
    dims = shape_operand(ctx, shape, "the shape of BroadcastTo")
    if len(dims) < x.rank:
        raise invalid(f"Rank of input ({x.rank}) must be no greater than rank of output shape ({len(dims)}).")
    require_broadcastable(ctx, x.dims, dims[len(dims) - x.rank :], "Incompatible shapes for broadcast")
    return ctx.broadcast_to(x, dims)


@lowering("BroadcastArgs", dtypes=INTS)
def broadcast_args(ctx: LoweringContext, _node: NodeView, a: Value, b: Value) -> Value:
    """The shape that two shapes broadcast to."""
    left, right = (element_dims(ctx, v, "a shape of BroadcastArgs") for v in (a, b))
    dims = ctx.broadcast_dims(left, right, message="Incompatible shapes for BroadcastArgs")
    return ctx.from_dims(dims, a.dtype)


@lowering("Fill", dtypes=ALL)
def fill(ctx: LoweringContext, _node: NodeView, shape: Value, value: Value) -> Value:
    """A scalar repeated."""
    if value.rank and not (value.rank == 1 and value.dims[0] == 1):
        raise invalid(f"value must be a scalar, not of shape {value.type}")
    dims = shape_operand(ctx, shape, "the dims of Fill")
    return ctx.broadcast_to(ctx.b.reshape(value, []) if value.rank else value, dims)


@lowering("ZerosLike", dtypes=ALL)
def zeros_like(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """Zeros of ``x``'s shape."""
    return ctx.splat(0, x)


@lowering("OnesLike", dtypes=ALL)
def ones_like(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """Ones of ``x``'s shape."""
    return ctx.splat(1, x)


@lowering("Bitcast", dtypes={"T": NUMBERS, "type": NUMBERS})
def bitcast(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """The same bytes as another type; between widths the last axis grows or goes."""
    dtype = node.dtype("type")
    if dtype.bits <= x.dtype.bits:
        return ctx.b.bitcast_convert(x, dtype)
    ratio = dtype.bits // x.dtype.bits
    if not x.rank:
        raise invalid(f"Cannot bitcast a scalar from {x.dtype} to {dtype}")
    ctx.check_dims_eq(
        x.dims[-1],
        ratio,
        message=f"Cannot bitcast from {x.dtype} to {dtype}: the last dimension must be {ratio}",
    )
    return ctx.b.bitcast_convert(ctx.cast_dims(x, (*x.dims[:-1], Dim.of(ratio))), dtype)
