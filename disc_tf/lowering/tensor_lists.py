"""TensorLists as dense stacks: a list of n tensors of one shape is one tensor ``[n, *element dims]``.

A list is followed inside of one cluster; its handle never leaves it. The elements' shape comes from the tensor that the list is made of,
from a fully known ``element_shape``, or from the first element that is set. Elements that were never set are zeros, as TensorFlow stacks
them; where their shape comes from a set element alone, run time checks that there is one. Lists that grow and shrink: `list_ops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from disc_tf.ir.core import Block, Value
from disc_tf.ir.dims import Dim, dmax
from disc_tf.ir.types import DType, TensorType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import ALL, RuleFn, lowering

#: ops that may take a handle
LIST_OPS = frozenset(
    "TensorListStack TensorListGetItem TensorListSetItem TensorListLength TensorListPushBack TensorListPopBack TensorListConcatV2 "
    "TensorListConcat TensorListGather TensorListResize TensorListElementShape TensorListConcatLists "
    "TensorListScatterIntoExistingList Identity IdentityN While "
    "StatelessWhile If StatelessIf Case StatelessCase".split()
)
#: ops with a rule for tensors that have another for lists
LIST_RULES: dict[str, RuleFn] = {}
_TYPES = {"element_dtype": ALL}
_LIMITS = "the list is used in its cluster only; all elements have one shape"


#: the owner of handles: they are no values of the IR
_NOWHERE = Block()


class TensorList(Value):
    """A list handle. ``stack``: its elements, None while nothing was set (then they are zeros, once their shape is known). ``declared``:
    the dims of an element as far as the graph declares them (None: unknown), or None for an unknown rank. ``filled``: every element is
    set. ``any_set``: whether one is, maybe known at run time only (a bool scalar). ``limit``: the greatest length, None for no limit."""

    __slots__ = ("any_set", "declared", "filled", "length", "limit", "stack")

    def __init__(
        self,
        element: DType,
        length: Dim,
        declared: tuple[Dim | None, ...] | None,
        stack: Value | None,
        like: Value,
        *,
        filled: bool = False,
        any_set: bool | Value = False,
        limit: Dim | None = None,
    ) -> None:
        dims = stack.dims if stack is not None else (length, *(d if d is not None else Dim.of(0) for d in declared or ()))
        super().__init__(TensorType(element, dims), _NOWHERE, 0, like.hint)
        self.length = length
        self.declared = declared
        self.stack = stack
        self.filled = filled
        self.any_set = any_set
        self.limit = limit

    @property
    def is_declared(self) -> bool:
        """Whether the graph declares the elements' whole shape."""
        return self.declared is not None and all(d is not None for d in self.declared)

    @property
    def element_dims(self) -> tuple[Dim, ...] | None:
        """The dims of every element, None while they are not known."""
        if self.stack is not None:
            return self.stack.dims[1:]
        if self.declared is None or any(d is None for d in self.declared):
            return None
        return tuple(d for d in self.declared if d is not None)

    def changed(self, **fields: Any) -> TensorList:
        """The list but for some fields."""
        new = {k: fields.get(k, getattr(self, k)) for k in self.__slots__}
        return TensorList(self.dtype, new.pop("length"), new.pop("declared"), new.pop("stack"), fields.get("stack", self), **new)

    def with_stack(self, stack: Value, *, filled: bool | None = None, any_set: bool | Value | None = None) -> TensorList:
        """The list with other elements; its length is their number."""
        marks = {k: v for k, v in (("filled", filled), ("any_set", any_set)) if v is not None}
        return self.changed(stack=stack, length=stack.dims[0], **marks)

    def declaring(self, declared: tuple[Dim | None, ...] | None) -> TensorList:
        """The list with another declared shape of its elements."""
        return self.changed(declared=declared)


def require_shape(ctx: LoweringContext, v: TensorList, declared: Sequence[Dim | None] | None, message: str) -> None:
    """Check that the shape of elements that were never set is known: declared as a whole, or that of an element that is set."""
    if v.filled or v.any_set is True or (declared is not None and all(d is not None for d in declared)):
        return
    if v.any_set is False:
        raise Unsupported("INVALID", message)
    ctx.check(v.any_set, message=message)


def dense(ctx: LoweringContext, v: TensorList) -> Value:
    """The list's elements. ``Unsupported(SHAPE)`` while their shape is not known."""
    if v.stack is not None:
        return v.stack
    dims = v.element_dims
    if dims is None:
        raise Unsupported("SHAPE", "the shape of the elements of a TensorList is not known")
    return ctx.b.zeros(v.dtype, (v.length, *dims))


def as_list(v: Value) -> TensorList:
    if not isinstance(v, TensorList):
        raise Unsupported("INVALID", "the operand is not a TensorList")
    return v


def declared_shape(ctx: LoweringContext, shape: Value) -> tuple[Dim | None, ...] | None:
    """The content of an ``element_shape`` operand."""
    if shape.rank == 0:
        content = ctx.constant(shape)
        if content is None or int(content) != -1:
            raise Unsupported("INVALID", "a scalar element_shape must be -1")
        return None
    dims = ctx.dims_of(shape)
    if dims is None:
        if not shape.dims[0].is_static:
            return None
        return (None,) * int(shape.dims[0])
    return tuple(None if d.is_static and int(d) < 0 else d for d in dims)


def merge_shapes(
    ctx: LoweringContext, a: tuple[Dim | None, ...] | None, b: Sequence[Dim | None] | None, message: str
) -> tuple[Dim | None, ...] | None:
    """Both shapes together; what both know must be equal (checked)."""
    if a is None or b is None:
        return a if b is None else tuple(b)
    if len(a) != len(b):
        raise Unsupported("INVALID", message)
    out: list[Dim | None] = []
    for x, y in zip(a, b, strict=True):
        if x is not None and y is not None:
            ctx.check_dims_eq(x, y, message=message)
        out.append(y if x is None else x)
    return tuple(out)


@lowering("TensorListReserve", dtypes=_TYPES, limits=_LIMITS)
def reserve(ctx: LoweringContext, node: NodeView, shape: Value, n: Value) -> Value:
    """A list of ``n`` elements, none of them set."""
    if n.rank:
        raise Unsupported("INVALID", "num_elements must be a scalar")
    zero = ctx.scalar(0, n.dtype)
    known = ctx.dims_of(n)
    message = "The num_elements to reserve must be a non negative number"
    if known is None:
        ctx.check(ctx.b.compare(n, zero, "GE"), message=message)
    else:
        ctx.check_dim_cond(known[0], "GE", 0, message=message)
    length = ctx.fresh_dim(n)
    return TensorList(node.dtype("element_dtype"), length, declared_shape(ctx, shape), None, n, filled=length == 0)


@lowering("TensorListFromTensor", dtypes=_TYPES, limits=_LIMITS)
def from_tensor(ctx: LoweringContext, node: NodeView, x: Value, shape: Value) -> Value:
    """The slices of ``x`` along dimension 0."""
    if not x.rank:
        raise Unsupported("INVALID", "Tensor must be at least a vector, but saw shape: []")
    declared = declared_shape(ctx, shape)
    merge_shapes(ctx, declared, x.dims[1:], "Specified a list with shape that is incompatible with the tensor's")
    return TensorList(x.dtype, x.dims[0], declared, x, x, filled=True, any_set=True)


@lowering("TensorListStack", dtypes=_TYPES, limits=_LIMITS)
def stack(ctx: LoweringContext, node: NodeView, handle: Value, shape: Value) -> Value:
    """All elements as one tensor."""
    v = as_list(handle)
    if v.dtype is not node.dtype("element_dtype"):
        raise Unsupported("INVALID", "the list has elements of another type")
    asked = declared_shape(ctx, shape)
    declared = merge_shapes(ctx, v.declared, asked, "Tried to stack a list whose elements have a shape incompatible with element_shape")
    count = int(node.attr("num_elements", -1))
    if count >= 0:
        ctx.check_dims_eq(v.length, count, message=f"Operation expected a list with {plain(count)} elements")
    if declared is None or any(d is None for d in declared):
        ctx.check_dim_cond(v.length, "GE", 1, message="Tried to stack elements of an empty list with non-fully-defined element_shape")
    if v.stack is None:
        return dense(ctx, v.declaring(declared))
    require_shape(
        ctx, v, declared, "Tried to stack list which only contains uninitialized tensors and has a non-fully-defined element_shape"
    )
    merge_shapes(ctx, declared, v.stack.dims[1:], "Tried to stack a list whose elements have a shape incompatible with element_shape")
    return v.stack


def _checked_index(ctx: LoweringContext, v: TensorList, index: Value, what: str) -> list[Value]:
    """The starts of element ``index``, which is checked."""
    if index.rank:
        raise Unsupported("INVALID", f"the index of {what} must be a scalar")
    n = ctx.dim(v.length, index.dtype)
    inside = ctx.b.and_(ctx.b.compare(index, ctx.scalar(0, index.dtype), "GE"), ctx.b.compare(index, n, "LT"))
    ctx.check(inside, message=f"Trying to {what} an element outside of the list")
    return [index]


@lowering("TensorListGetItem", dtypes=_TYPES, limits=_LIMITS)
def get_item(ctx: LoweringContext, node: NodeView, handle: Value, index: Value, shape: Value) -> Value:
    """Element ``index``."""
    v = as_list(handle)
    if v.dtype is not node.dtype("element_dtype"):
        raise Unsupported("INVALID", "the list has elements of another type")
    asked = declared_shape(ctx, shape)
    declared = merge_shapes(ctx, v.declared, asked, "Incompatible element_shape in TensorListGetItem")
    if v.element_dims is None:
        v = v.declaring(declared)
    else:
        require_shape(
            ctx, v, declared, "Trying to read an uninitialized tensor but element_shape is not fully defined and no list element is set"
        )
    x = dense(ctx, v)
    merge_shapes(ctx, asked, x.dims[1:], "Incompatible element_shape in TensorListGetItem")
    starts = _checked_index(ctx, v, index, "access")
    starts += [ctx.scalar(0, index.dtype)] * (x.rank - 1)
    return ctx.b.reshape(ctx.b.dynamic_slice(x, starts, (1, *x.dims[1:])), x.dims[1:])


@lowering("TensorListSetItem", dtypes=_TYPES, limits=_LIMITS)
def set_item(ctx: LoweringContext, node: NodeView, handle: Value, index: Value, item: Value) -> Value:
    """The list with element ``index`` replaced."""
    v = as_list(handle)
    if v.dtype is not item.dtype:
        raise Unsupported("INVALID", "the list has elements of another type")
    grows = bool(node.attr("resize_if_index_out_of_bounds", False))
    v, item = with_room_for(ctx, v, item, "Trying to set a tensor of an incompatible shape in a TensorList")
    x = dense(ctx, v)
    row = ctx.b.reshape(item, (1, *item.dims))
    starts = _grown_index(ctx, v, index) if grows else _checked_index(ctx, v, index, "modify")
    starts += [ctx.scalar(0, index.dtype)] * (x.rank - 1)
    filled = v.filled
    if grows:
        known = ctx.dims_of(starts[0])
        at = known[0] if known is not None else ctx.fresh_dim(starts[0])
        filled = filled and ctx.env.is_nonneg(v.length - at) is True  # an element between is never set otherwise
        length = dmax(v.length, at + 1)
        if ctx.env.is_equal(length, v.length) is not True:
            room = [length - v.length] + [Dim.of(0)] * (x.rank - 1)
            none = [0] * x.rank
            x = ctx.b.pad(x, ctx.scalar(0, x.dtype), none, room, none)
    return v.with_stack(ctx.b.dynamic_update_slice(x, row, starts), filled=filled, any_set=True)


def with_room_for(ctx: LoweringContext, v: TensorList, item: Value, message: str) -> tuple[TensorList, Value]:
    """The list and an element that goes into it, both of one shape: the list's if it is known, else the element's."""
    if v.element_dims is None:
        merge_shapes(ctx, v.declared, item.dims, message)
        return v.with_stack(ctx.b.zeros(v.dtype, (v.length, *item.dims))), item
    dims = dense(ctx, v).dims[1:]
    if len(dims) != item.rank:
        raise Unsupported("SHAPE", "the elements of a TensorList have different ranks")
    for a, b in zip(dims, item.dims, strict=True):
        if ctx.env.is_equal(a, b) is not True:
            if not v.is_declared:
                raise Unsupported("SHAPE", f"the elements of a TensorList have different shapes: {a} and {b}")
            ctx.check_dims_eq(a, b, message=message)
    return v, ctx.cast_dims(item, dims)


def _grown_index(ctx: LoweringContext, v: TensorList, index: Value) -> list[Value]:
    """The start of element ``index``, which may lie behind the list's end."""
    if index.rank:
        raise Unsupported("INVALID", "the index of modify must be a scalar")
    ctx.check(ctx.b.compare(index, ctx.scalar(0, index.dtype), "GE"), message="Trying to modify an element outside of the list")
    return [index]


@lowering("TensorListLength", limits=_LIMITS)
def length(ctx: LoweringContext, _node: NodeView, handle: Value) -> Value:
    """The number of elements."""
    return ctx.dim(as_list(handle).length, DType.I32)


__all__ = ["LIST_OPS", "LIST_RULES", "TensorList", "as_list", "declared_shape", "dense", "merge_shapes", "require_shape", "with_room_for"]
