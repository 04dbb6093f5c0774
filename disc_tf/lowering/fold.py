"""Integer tensors computed from shapes: a node whose operands all have known content gets its result without code.

`try_fold` runs before a node's rule. The contents are numpy arrays of `Dim` (integers) or of bools; data movement is numpy on
them, arithmetic is `symbolic`. A fold that cannot tell the result returns None and the rule emits code instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, ceildiv
from disc_tf.ir.types import DType
from disc_tf.lowering import symbolic
from disc_tf.lowering.content import content_of, dense_value
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.shapes import Masks, normal_axis, permutation_of, reshape_dims, strided_slice
from disc_tf.lowering.symbolic import MAX_CONTENT, Facts

Content = np.ndarray
Fold = Callable[..., "Content | Sequence[Content] | None"]

_FOLDS: dict[str, Fold] = {}


def _fold(*ops: str) -> Callable[[Fold], Fold]:
    def register(fn: Fold) -> Fold:
        for op in ops:
            _FOLDS[op] = fn
        return fn

    return register


def try_fold(ctx: LoweringContext, node: NodeView, args: Sequence[Value]) -> list[Value] | None:
    """The results of `node` if its operands' contents give them, else None."""
    fold = _FOLDS.get(node.op)
    if fold is None or not args:
        return None
    contents: list[Content] = []
    for arg in args:
        content = content_of(ctx, arg)
        if content is None:
            return None
        contents.append(content)
    try:
        found = fold(node, ctx.env, *contents)
    except (IndexError, TypeError, ValueError, ZeroDivisionError, Unsupported):
        return None  # not decided, or ill-formed for TF: the rule says what
    if found is None:
        return None
    results = [found] if isinstance(found, np.ndarray) else list(found)
    if any(r.size > MAX_CONTENT for r in results):
        return None
    dtype = _result_dtype(node, args)
    return (
        None
        if dtype is None
        else [dense_value(ctx, r, dtype if r.dtype == object else DType.BOOL) for r in results]
    )


def _result_dtype(node: NodeView, args: Sequence[Value]) -> DType | None:
    """The integer type of the result; None if it is not an integer."""
    if node.op == "Cast":
        dtype = node.dtype("DstT")
    elif node.op in ("Select", "SelectV2"):
        dtype = args[1].dtype
    elif node.op in ("Concat", "Split", "Fill"):
        dtype = args[1].dtype  # the axis or shape comes first
    else:
        dtype = args[0].dtype
    return dtype if dtype.is_int or (dtype.is_bool and node.op != "Cast") else None


def _ints(content: Content) -> list[int]:
    """The content as plain ints; `ValueError` if an element is symbolic."""
    items = content.reshape(-1).tolist()
    if not all(isinstance(d, (Dim, int)) and Dim.of(d).is_static for d in items):
        raise ValueError("not constant")
    return [int(d) for d in items]


def _int(content: Content) -> int:
    (value,) = _ints(content)
    return value


# ---- arithmetic ------------------------------------------------------------------------------------------


def _binary(node: NodeView, facts: Facts, a: Content, b: Content) -> Content | None:
    return symbolic.binary(node.op, a, b, facts) if a.dtype == b.dtype == object else None


def _unary(node: NodeView, facts: Facts, a: Content) -> Content | None:
    return symbolic.unary(node.op, a, facts) if a.dtype == object else None


def _compare(node: NodeView, facts: Facts, a: Content, b: Content) -> Content | None:
    return symbolic.compare(node.op, a, b, facts) if a.dtype == b.dtype == object else None


def _reduce(node: NodeView, facts: Facts, a: Content, axes: Content) -> Content | None:
    if a.dtype != object:
        return None
    known = [normal_axis(i, a.ndim) for i in _ints(axes)]
    return symbolic.reduce(node.op, a, known, bool(node.attr("keep_dims", False)), facts)


_FOLDS.update(dict.fromkeys(symbolic.BINARY_OPS, _binary))
_FOLDS.update(dict.fromkeys(symbolic.UNARY_OPS, _unary))
_FOLDS.update(dict.fromkeys(symbolic.COMPARE_OPS, _compare))
_FOLDS.update(dict.fromkeys(symbolic.REDUCE_OPS, _reduce))


@_fold("All", "Any")
def _all_any(node: NodeView, _facts: Facts, a: Content, axes: Content) -> Content | None:
    if a.dtype != np.bool_:
        return None
    known = tuple({normal_axis(i, a.ndim) for i in _ints(axes)})
    fn = np.all if node.op == "All" else np.any
    return np.asarray(fn(a, axis=known, keepdims=bool(node.attr("keep_dims", False))))


@_fold("LogicalAnd", "LogicalOr", "LogicalNot")
def _logical(node: NodeView, _facts: Facts, *args: Content) -> Content:
    fn = {"LogicalAnd": np.logical_and, "LogicalOr": np.logical_or, "LogicalNot": np.logical_not}[node.op]
    return np.asarray(fn(*args))


@_fold("AddN")
def _add_n(_node: NodeView, facts: Facts, *args: Content) -> Content | None:
    total: Content | None = args[0]
    for a in args[1:]:
        if total is None or total.shape != a.shape or a.dtype != object:
            return None
        total = symbolic.binary("AddV2", total, a, facts)
    return total


@_fold("Cast")
def _cast(node: NodeView, _facts: Facts, a: Content) -> Content | None:
    # Narrower results could wrap: only the widths of shapes are followed.
    if a.dtype == object and node.dtype("DstT") in (DType.I32, DType.I64):
        return a
    return None


@_fold("Select", "SelectV2")
def _select(node: NodeView, _facts: Facts, pred: Content, a: Content, b: Content) -> Content | None:
    if pred.dtype != np.bool_ or a.dtype != b.dtype:
        return None
    if node.op == "Select" and pred.ndim not in (0, a.ndim):
        return None  # a vector predicate picks rows
    return symbolic.select(pred, a, b)


@_fold("Cumsum", "Cumprod")
def _cumulative(node: NodeView, facts: Facts, a: Content, axis: Content) -> Content | None:
    if a.dtype != object:
        return None
    at = normal_axis(_int(axis), a.ndim)
    exclusive, reverse = bool(node.attr("exclusive", False)), bool(node.attr("reverse", False))
    return symbolic.cumulative(node.op, a, at, exclusive, reverse, facts)


# ---- data movement ---------------------------------------------------------------------------------------


@_fold("Reshape")
def _reshape(_node: NodeView, facts: Facts, a: Content, shape: Content) -> Content | None:
    if shape.ndim != 1:
        return None
    dims = reshape_dims([Dim.of(n) for n in a.shape], [Dim.of(i) for i in _ints(shape)], facts).dims
    return a.reshape([int(d) for d in dims])


@_fold("ExpandDims")
def _expand_dims(_node: NodeView, _facts: Facts, a: Content, axis: Content) -> Content:
    return np.expand_dims(a, normal_axis(_int(axis), a.ndim + 1))


@_fold("Squeeze")
def _squeeze(node: NodeView, _facts: Facts, a: Content) -> Content:
    axes = node.ints("squeeze_dims")
    return np.squeeze(a, tuple(axes) if axes else None)


@_fold("Transpose")
def _transpose(_node: NodeView, _facts: Facts, a: Content, perm: Content) -> Content:
    return np.transpose(a, permutation_of(_ints(perm), a.ndim))


@_fold("Pack")
def _pack(node: NodeView, _facts: Facts, *args: Content) -> Content:
    return np.stack(args, node.attr("axis", 0))


@_fold("Unpack")
def _unpack(node: NodeView, _facts: Facts, a: Content) -> list[Content] | None:
    axis = normal_axis(node.attr("axis", 0), a.ndim)
    if a.shape[axis] != node.attr("num"):
        return None
    return [_own(x) for x in np.moveaxis(a, axis, 0)]


def _own(x: object) -> Content:
    """An element or a view of a content as an array (numpy gives the bare `Dim` for rank 0)."""
    if isinstance(x, np.ndarray):
        return x
    out = np.empty((), object if isinstance(x, Dim) else np.bool_)
    out[()] = x
    return out


@_fold("ConcatV2")
def _concat_v2(_node: NodeView, _facts: Facts, *args: Content) -> Content:
    return np.concatenate(args[:-1], _int(args[-1]))


@_fold("Concat")
def _concat(_node: NodeView, _facts: Facts, axis: Content, *args: Content) -> Content:
    return np.concatenate(args, _int(axis))


@_fold("Split")
def _split(node: NodeView, _facts: Facts, axis: Content, a: Content) -> list[Content]:
    return np.split(a, node.attr("num_split"), _int(axis))


@_fold("SplitV")
def _split_v(
    _node: NodeView, _facts: Facts, a: Content, sizes: Content, axis: Content
) -> list[Content] | None:
    known, at = _ints(sizes), normal_axis(_int(axis), a.ndim)
    if known.count(-1) == 1:
        known[known.index(-1)] = a.shape[at] - (sum(known) + 1)
    if any(n < 0 for n in known) or sum(known) != a.shape[at]:
        return None
    return np.split(a, np.cumsum(known)[:-1].tolist(), at)


@_fold("Slice")
def _slice(_node: NodeView, _facts: Facts, a: Content, begin: Content, size: Content) -> Content | None:
    at: list[slice] = []
    for b, s, n in zip(_ints(begin), _ints(size), a.shape, strict=True):
        s = n - b if s == -1 else s
        if b < 0 or s < 0 or b + s > n:
            return None
        at.append(slice(b, b + s))
    return _own(a[tuple(at)])


@_fold("StridedSlice")
def _strided_slice(
    node: NodeView, facts: Facts, a: Content, begin: Content, end: Content, strides: Content
) -> Content | None:
    masks = masks_of(node)
    # an index that takes one element is used whatever the mask says
    used_begin = [d if not ((masks.begin & ~masks.shrink_axis) >> i & 1) else Dim.of(0) for i, d in enumerate(begin.tolist())]
    used_end = [
        d if not ((masks.end | masks.shrink_axis) >> i & 1) else Dim.of(0) for i, d in enumerate(end.tolist())
    ]
    dims = [Dim.of(n) for n in a.shape]
    plan = strided_slice(dims, used_begin, used_end, _ints(strides), masks, facts)
    for check in plan.checks:
        if not (check.index.is_static and 0 <= int(check.index) < int(check.extent)):
            return None
    out = a
    for axis, piece in enumerate(plan.axes):
        lead = (slice(None),) * axis
        if piece.reverse:
            out = out[(*lead, slice(None, None, -1))]
        start, length = int(piece.start), int(piece.length)  # the bounds may be symbolic: TypeError
        out = out[(*lead, slice(start, start + length, piece.stride))]
    return out.reshape([int(d) for d in plan.dims])


def masks_of(node: NodeView) -> Masks:
    """The masks of a StridedSlice node."""
    return Masks(
        int(node.attr("begin_mask", 0)),
        int(node.attr("end_mask", 0)),
        int(node.attr("ellipsis_mask", 0)),
        int(node.attr("new_axis_mask", 0)),
        int(node.attr("shrink_axis_mask", 0)),
    )


@_fold("Gather", "GatherV2")
def _gather(node: NodeView, _facts: Facts, a: Content, indices: Content, *axis: Content) -> Content | None:
    if node.attr("batch_dims", 0) or a.ndim == 0:
        return None
    at = normal_axis(_int(axis[0]) if axis else 0, a.ndim)
    picks = _ints(indices)
    if any(not 0 <= i < a.shape[at] for i in picks):
        return None
    return _own(np.take(a, np.array(picks, np.int64).reshape(indices.shape), at))


@_fold("ReverseV2")
def _reverse(_node: NodeView, _facts: Facts, a: Content, axes: Content) -> Content:
    return np.flip(a, tuple(normal_axis(i, a.ndim) for i in _ints(axes)))


@_fold("Tile")
def _tile(_node: NodeView, _facts: Facts, a: Content, multiples: Content) -> Content | None:
    known = _ints(multiples)
    if len(known) != a.ndim or any(n < 0 for n in known) or a.size * int(np.prod(known)) > MAX_CONTENT:
        return None
    return np.tile(a, known)


@_fold("Pad", "PadV2")
def _pad(_node: NodeView, _facts: Facts, a: Content, paddings: Content, *value: Content) -> Content | None:
    if a.dtype != object or paddings.shape != (a.ndim, 2):
        return None
    widths = _ints(paddings)
    if any(w < 0 for w in widths) or max(widths, default=0) > MAX_CONTENT:
        return None
    fill = value[0].reshape(-1)[0] if value else Dim.of(0)
    pairs = list(zip(widths[::2], widths[1::2], strict=True))
    out = np.empty([n + lo + hi for n, (lo, hi) in zip(a.shape, pairs, strict=True)], object)
    out[...] = fill
    out[tuple(slice(lo, lo + n) for n, (lo, _) in zip(a.shape, pairs, strict=True))] = a
    return out


@_fold("BroadcastTo")
def _broadcast_to(_node: NodeView, _facts: Facts, a: Content, shape: Content) -> Content | None:
    known = _ints(shape)
    return np.broadcast_to(a, known) if 0 <= int(np.prod(known)) <= MAX_CONTENT else None


@_fold("Fill")
def _fill(_node: NodeView, _facts: Facts, shape: Content, value: Content) -> Content | None:
    known = _ints(shape)
    if any(n < 0 for n in known) or int(np.prod(known)) > MAX_CONTENT or value.dtype != object:
        return None
    return np.broadcast_to(value.reshape(()), known)


@_fold("Range")
def _range(_node: NodeView, _facts: Facts, start: Content, limit: Content, delta: Content) -> Content | None:
    # start and delta may be symbolic when the length is not
    first, step = Dim.of(start.item()), Dim.of(delta.item())
    if not step.is_static or int(step) == 0:
        return None
    size = ceildiv(Dim.of(limit.item()) - first, step)
    if not size.is_static or not 0 <= int(size) <= MAX_CONTENT:
        return None
    return symbolic.as_content([first + step * i for i in range(int(size))], (int(size),))


@_fold("InvertPermutation")
def _invert_permutation(_node: NodeView, _facts: Facts, a: Content) -> Content | None:
    known = _ints(a)
    if sorted(known) != list(range(len(known))):
        return None
    return symbolic.as_content(np.argsort(known).tolist(), a.shape)


@_fold("BroadcastArgs")
def _broadcast_args(_node: NodeView, facts: Facts, a: Content, b: Content) -> Content | None:
    out: list[Dim] = []
    left, right = a.tolist(), b.tolist()
    rank = max(len(left), len(right))
    left, right = [Dim.of(1)] * (rank - len(left)) + left, [Dim.of(1)] * (rank - len(right)) + right
    for x, y in zip(left, right, strict=True):
        if x == 1 or facts.is_equal(x, y) is True:
            out.append(y)
        elif y == 1:
            out.append(x)
        else:
            return None
    return symbolic.as_content(out, (rank,))
