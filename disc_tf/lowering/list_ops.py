"""TensorLists that grow, shrink, are gathered from or joined: all of them dense stacks (`tensor_lists`).

A list that a loop makes longer or shorter is a carried value whose first dimension changes (`while_loops`).
"""

from __future__ import annotations

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType
from disc_tf.lowering.content import scalar_dim
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Status, Unsupported
from disc_tf.lowering.gather_ops import check_in_range, gather
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.registry import ALL, lowering
from disc_tf.lowering.rows import length_of_indices, scatter_rows
from disc_tf.lowering.tensor_lists import (
    LIST_RULES,
    TensorList,
    as_list,
    declared_shape,
    dense,
    merge_shapes,
    require_shape,
    with_room_for,
)

_TYPES = {"element_dtype": ALL}
_LIMITS = "the list is used in its cluster only; all elements have one shape"
_CONCAT = "Tried to concat a list whose elements have a shape incompatible with element_shape"


def _of_type(node: NodeView, handle: Value) -> TensorList:
    v = as_list(handle)
    if v.dtype is not node.dtype("element_dtype"):
        raise Unsupported("INVALID", "the list has elements of another type")
    return v


@lowering("EmptyTensorList", dtypes=_TYPES, limits=_LIMITS)
def empty_list(ctx: LoweringContext, node: NodeView, shape: Value, limit: Value) -> Value:
    """A list without elements, which may get ``limit`` of them (-1: any number)."""
    most = scalar_dim(ctx, limit, "max_num_elements")
    bound = None if most == -1 else most
    return TensorList(
        node.dtype("element_dtype"), Dim.of(0), declared_shape(ctx, shape), None, shape, filled=True, limit=bound
    )


@lowering("TensorListPushBack", dtypes=_TYPES, limits=_LIMITS)
def push_back(ctx: LoweringContext, node: NodeView, handle: Value, item: Value) -> Value:
    """The list with one more element."""
    v = _of_type(node, handle)
    full = "Tried to push item into a full list"
    if v.limit is not None and ctx.env.is_nonneg(v.limit) is True:
        ctx.check_dim_cond(v.length, "LT", v.limit, message=full)
    elif v.limit is not None:  # run time knows whether there is a limit
        most = ctx.dim(v.limit)
        room = ctx.b.compare(ctx.dim(v.length), most, "LT")
        ctx.check(ctx.b.or_(room, ctx.b.compare(most, ctx.dim(-1), "EQ")), message=full)
    v, item = with_room_for(ctx, v, item, "Tried to append a tensor with incompatible shape to a list")
    x = dense(ctx, v)
    row = ctx.b.reshape(item, (1, *item.dims))
    return v.with_stack(row if v.length == 0 else ctx.b.concatenate([x, row], 0), any_set=True)


@lowering("TensorListPopBack", dtypes=_TYPES, limits=f"{_LIMITS}, and is set or declared")
def pop_back(ctx: LoweringContext, node: NodeView, handle: Value, shape: Value) -> list[Value]:
    """The list without its last element, and that element."""
    v = _of_type(node, handle)
    message = "Trying to read an uninitialized tensor but element_shape is not fully defined"
    declared = merge_shapes(ctx, v.declared, declared_shape(ctx, shape), message)
    ctx.check_dim_cond(v.length, "GE", 1, message="Trying to pop from an empty list.")
    if not v.filled and (declared is None or any(d is None for d in declared)):
        raise Unsupported("SHAPE", "an element that is popped may not be set, and its shape is not declared")
    x = dense(ctx, v.declaring(declared))
    merge_shapes(ctx, declared, x.dims[1:], message)
    last = [ctx.dim(x.dims[0] - 1)] + [ctx.scalar(0, DType.I64)] * (x.rank - 1)
    item = ctx.b.reshape(ctx.b.dynamic_slice(x, last, (1, *x.dims[1:])), x.dims[1:])
    return [v.with_stack(_first(ctx, x, x.dims[0] - 1)), item]


def _first(ctx: LoweringContext, x: Value, n: Dim) -> Value:
    """The first ``n`` elements of a stack."""
    return ctx.b.slice(x, [0] * x.rank, [n, *x.dims[1:]], [1] * x.rank)


@lowering("TensorListResize", limits="the list is used in its cluster only; elements that get lost are set or declared")
def resize(ctx: LoweringContext, _node: NodeView, handle: Value, size: Value) -> Value:
    """The list cut or made longer by elements that are not set."""
    v = as_list(handle)
    n = scalar_dim(ctx, size, "the size of a list")
    ctx.check_dim_cond(n, "GE", 0, message="TensorListSlice expects size to be non-negative")
    if ctx.env.is_equal(n, v.length) is True:
        return v
    longer, shorter = (ctx.env.is_nonneg(d) is True for d in (n - v.length, v.length - n))
    if not longer and not v.filled and not v.is_declared:
        raise Unsupported("SHAPE", "a list loses elements, and those that are left may not be set")
    if v.stack is None:
        return v.changed(length=n, filled=v.filled and shorter, any_set=False)
    x = dense(ctx, v)
    if shorter:
        return v.with_stack(_first(ctx, x, n))
    none = [0] * x.rank
    x = ctx.b.pad(x, ctx.scalar(0, x.dtype), none, [n - v.length, *none[1:]], none)
    return v.with_stack(x, filled=False)


@lowering("TensorListConcatLists", dtypes=_TYPES, limits=_LIMITS)
def concat_lists(ctx: LoweringContext, node: NodeView, a: Value, b: Value) -> Value:
    """The elements of two lists."""
    v, w = _of_type(node, a), _of_type(node, b)
    if v.element_dims is None and w.element_dims is None:
        raise Unsupported("SHAPE", "the shape of the elements of two lists that are joined is not known")
    dims = v.element_dims if v.element_dims is not None else w.element_dims
    assert dims is not None
    parts = []
    for x in (v, w):
        part = dense(ctx, x) if x.element_dims is not None else ctx.b.zeros(x.dtype, (x.length, *dims))
        if len(part.dims) - 1 != len(dims):
            raise Unsupported("SHAPE", "the elements of two lists that are joined have different ranks")
        for p, q in zip(part.dims[1:], dims, strict=True):
            if ctx.env.is_equal(p, q) is not True:
                raise Unsupported("SHAPE", f"the elements of two lists that are joined have different shapes: {p} and {q}")
        parts.append(ctx.cast_dims(part, (part.dims[0], *dims)))
    declared = None
    if v.declared is not None and w.declared is not None and len(v.declared) == len(w.declared):
        declared = tuple(p if p == q else None for p, q in zip(v.declared, w.declared, strict=True))
    any_set = v.any_set if v.any_set is True or w.any_set is False else w.any_set if v.any_set is False or w.any_set is True else None
    if any_set is None:
        assert isinstance(v.any_set, Value) and isinstance(w.any_set, Value)
        any_set = ctx.b.or_(v.any_set, w.any_set)
    stack = ctx.b.concatenate(parts, 0)
    return TensorList(v.dtype, stack.dims[0], declared, stack, a, filled=v.filled and w.filled, any_set=any_set, limit=v.limit)


@lowering("TensorListElementShape", limits="the list is used in its cluster only")
def element_shape(ctx: LoweringContext, node: NodeView, handle: Value) -> Value:
    """The declared shape of an element: -1 where it is not known, the scalar -1 for an unknown rank."""
    declared = as_list(handle).declared
    dtype = node.dtype("shape_type")
    if declared is None:
        return ctx.const(-1, dtype)
    return ctx.from_dims([Dim.of(-1) if d is None else d for d in declared], dtype)


def _is_all(ctx: LoweringContext, indices: Value, n: Dim) -> bool:
    """Whether the indices are 0 .. n-1."""
    return indices.rank == 1 and indices.op is not None and indices.op.name == "iota" and ctx.env.is_equal(indices.dims[0], n) is True


@lowering("TensorListGather", dtypes=_TYPES, limits=f"{_LIMITS}, and is set or declared")
def list_gather(ctx: LoweringContext, node: NodeView, handle: Value, indices: Value, shape: Value) -> Value:
    """The elements of the given numbers, stacked."""
    v = _of_type(node, handle)
    if indices.rank != 1:
        raise Unsupported("INVALID", "Expected indices to be a vector")
    message = "Tried to gather elements whose shape is incompatible with element_shape"
    declared = merge_shapes(ctx, v.declared, declared_shape(ctx, shape), message)
    whole = _is_all(ctx, indices, v.length)
    if declared is None or any(d is None for d in declared):
        if not v.filled and not whole:
            raise Unsupported("SHAPE", "an element that is gathered may not be set, and its shape is not declared")
        message_of_none = "Tried to gather 0-elements from a list with non-fully-defined shape"
        code = Status.UNIMPLEMENTED if node.attr("_disc_array", False) else Status.INVALID_ARGUMENT
        ctx.check_dim_cond(indices.dims[0], "GE", 1, code, message_of_none)
    x = dense(ctx, v.declaring(declared))
    merge_shapes(ctx, declared, x.dims[1:], message)
    if whole:  # what is not set is refused if nothing is; TF refuses it before, where nothing was lost
        require_shape(ctx, v, declared, "Tried to gather uninitialized tensors from a list with non-fully-defined element_shape")
        return x
    check_in_range(ctx, indices, x.dims[0], "Trying to gather an element outside of the list")
    return gather(ctx, x, indices, 0, 0)


@lowering("TensorListConcatV2", "TensorListConcat", dtypes=_TYPES, limits=_LIMITS)
def list_concat(ctx: LoweringContext, node: NodeView, handle: Value, *rest: Value) -> list[Value]:
    """The elements joined along their first dimension, and the length of each."""
    v = _of_type(node, handle)
    if len(rest) == 2:
        asked, lead = declared_shape(ctx, rest[0]), rest[1]
        if not (lead.rank == 1 and lead.dims[0] == 0) and not v.filled and v.any_set is not True:
            raise Unsupported("ATTR", "leading_dims for elements that are not set are not compiled")
    else:  # the element's shape is an attribute
        shape = node.attr("element_shape", None)
        asked = None if shape is None or shape.unknown_rank else tuple(Dim.of(int(d.size)) if d.size >= 0 else None for d in shape.dim)
    declared = merge_shapes(ctx, v.declared, asked, _CONCAT)
    if v.stack is None and v.length == 0 and declared is not None and declared and all(d is not None for d in declared[1:]):
        tail = tuple(d for d in declared[1:] if d is not None)
        return [ctx.b.zeros(v.dtype, (Dim.of(0), *tail)), ctx.from_dims([], DType.I64)]
    x = dense(ctx, v.declaring(declared))
    if x.rank < 2:
        raise Unsupported("INVALID", "Concat requires elements to be at least vectors, found scalars instead.")
    if declared is None or any(d is None for d in declared[1:]):
        ctx.check_dim_cond(
            v.length, "GE", 1, message="All except the first dimension must be fully defined when concating an empty tensor list"
        )
    merge_shapes(ctx, declared, x.dims[1:], _CONCAT)
    if isinstance(v.any_set, Value):  # an empty list has no element that could be unset
        v = v.with_stack(x, any_set=ctx.b.or_(v.any_set, ctx.b.compare(ctx.dim(v.length), ctx.dim(0), "EQ")))
    require_shape(ctx, v, declared, "List contains uninitialized tensors but leading_dims has no elements")
    n, each, *tail = x.dims
    lengths = ctx.broadcast_to(ctx.dim(each, DType.I64), [n])
    return [ctx.b.reshape(x, (n * each, *tail)), lengths]


@lowering("TensorListScatterV2", "TensorListScatter", dtypes=_TYPES, limits="the list is used in its cluster only")
def list_scatter(ctx: LoweringContext, node: NodeView, x: Value, indices: Value, shape: Value, *rest: Value) -> Value:
    """A list with the slices of ``x`` at the given numbers; the last of several for one number."""
    _check_scatter(x, indices)
    declared = declared_shape(ctx, shape)
    merge_shapes(ctx, declared, x.dims[1:], "Specified a list with shape that is incompatible with the tensor's")
    b = ctx.b
    wide = indices if indices.dtype is DType.I64 else b.convert(indices, DType.I64)
    ctx.check(b.compare(wide, ctx.splat(0, wide), "GE"), message="Indices in TensorListScatter must all be non-negative.")
    ctx.check_dims_eq(x.dims[0], indices.dims[0], message="Invalid number of rows in input tensor")
    n = scalar_dim(ctx, rest[0], "num_elements") if rest else Dim.of(-1)
    if not n.is_static:
        raise Unsupported("NOT_CONSTANT", "num_elements is not known at compile time")
    if int(n) < 0:
        n = length_of_indices(ctx, indices, "Indices in TensorListScatter are too large.")
    rows = ctx.cast_dims(x, (indices.dims[0], *x.dims[1:]))
    message = "TensorListScatter: Trying to scatter outside of the list"
    stack = _scatter(ctx, b.zeros(x.dtype, (n, *x.dims[1:])), indices, rows, message)
    # an index is at hand only if the tensor has rows: then an element is set
    some = b.compare(ctx.dim(x.dims[0]), ctx.dim(0), "GT")
    return TensorList(x.dtype, n, declared, stack, x, any_set=some)


@lowering("TensorListScatterIntoExistingList", dtypes=_TYPES, limits=f"{_LIMITS}; no index is beyond its end, where TF loses elements")
def scatter_into(ctx: LoweringContext, node: NodeView, handle: Value, x: Value, indices: Value) -> Value:
    """The list with the slices of ``x`` at the given numbers; the last of several for one number."""
    v = _of_type(node, handle)
    _check_scatter(x, indices)
    b, message = ctx.b, "Tried to scatter tensors of an incompatible shape into a TensorList"
    ctx.check_dims_eq(x.dims[0], indices.dims[0], message="Invalid number of rows in input tensor")
    if v.element_dims is None:
        merge_shapes(ctx, v.declared, x.dims[1:], message)
        stack = b.zeros(v.dtype, (v.length, *x.dims[1:]))
    else:
        stack = dense(ctx, v)
        if stack.rank != x.rank:
            raise Unsupported("SHAPE", "the elements of a TensorList have different ranks")
        for p, q in zip(stack.dims[1:], x.dims[1:], strict=True):
            if ctx.env.is_equal(p, q) is not True and not v.is_declared:
                raise Unsupported("SHAPE", f"the elements of a TensorList have different shapes: {p} and {q}")
            ctx.check_dims_eq(p, q, message=message)
    rows = ctx.cast_dims(x, (indices.dims[0], *stack.dims[1:]))
    if _is_all(ctx, indices, v.length):
        return v.with_stack(rows, filled=True, any_set=True)
    stack = _scatter(ctx, stack, indices, rows, "TensorListScatter: Trying to scatter outside of the list")
    some = b.compare(ctx.dim(x.dims[0]), ctx.dim(0), "GT")
    if isinstance(v.any_set, Value):
        some = b.or_(some, v.any_set)
    return v.with_stack(stack, any_set=v.any_set is True or some)


def _check_scatter(x: Value, indices: Value) -> None:
    if indices.rank != 1 or not x.rank:
        raise Unsupported("INVALID", "TensorListScatter takes a vector of indices and a tensor of at least one dimension")


def _scatter(ctx: LoweringContext, stack: Value, indices: Value, rows: Value, message: str) -> Value:
    check_in_range(ctx, indices, stack.dims[0], message)
    return scatter_rows(ctx, stack, indices, rows)


# ---- ops of any type that graphs of gradients use on lists ----------------------------------------------------------


def _zeros_like(ctx: LoweringContext, _node: NodeView, handle: Value) -> Value:
    v = as_list(handle)
    if v.stack is None:
        return v
    return v.with_stack(ctx.b.zeros(v.dtype, v.stack.dims), filled=v.filled, any_set=v.any_set)


def _add_n(ctx: LoweringContext, _node: NodeView, *handles: Value) -> Value:
    total = as_list(handles[0])
    for h in handles[1:]:
        v = as_list(h)
        if total.element_dims is None or v.element_dims is None:
            raise Unsupported("SHAPE", "the sum of lists whose elements have no known shape")
        a, b = dense(ctx, total), dense(ctx, v)
        ctx.require_same_shape(a, b, "Trying to add two lists of tensors with incompatible element shapes or lengths")
        known = total.any_set is True or v.any_set is True
        if not known and not total.is_declared and not (total.filled and v.filled):
            raise Unsupported("SHAPE", "the sum of lists of which no element may be set")
        total = total.with_stack(ctx.b.add(a, ctx.cast_dims(b, a.dims)), filled=total.filled or v.filled, any_set=known)
    return total


LIST_RULES.update({"ZerosLike": _zeros_like, "AddN": _add_n})


@lowering("TensorListSplit", dtypes=_TYPES, constants=(2,), limits="all lengths are known and equal")
def list_split(ctx: LoweringContext, node: NodeView, x: Value, shape: Value, lengths: Value) -> Value:
    """A list of pieces of ``x`` along its first dimension."""
    if not x.rank:
        raise Unsupported("INVALID", "Tensor must be at least a vector, but saw shape: []")
    sizes = ctx.dims_of(lengths)
    if sizes is None or not sizes:
        raise Unsupported("SHAPE", "a list of no pieces, or of unknown ones")
    if any(ctx.env.is_equal(d, sizes[0]) is not True for d in sizes):
        raise Unsupported("SHAPE", "the pieces of a list may have different lengths")
    each, n = sizes[0], len(sizes)
    ctx.check_dim_cond(each, "GE", 0, message="Invalid value in lengths")
    ctx.check_dims_eq(x.dims[0], each * n, message="Unused values in tensor, or too few")
    declared = declared_shape(ctx, shape)
    merge_shapes(ctx, declared, (each, *x.dims[1:]), "Specified a list with shape that is incompatible with the tensor's")
    stack = ctx.b.reshape(ctx.cast_dims(x, (each * n, *x.dims[1:])), (n, each, *x.dims[1:]))
    return TensorList(x.dtype, Dim.of(n), declared, stack, x, filled=True, any_set=True)
