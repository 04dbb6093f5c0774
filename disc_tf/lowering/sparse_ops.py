"""SparseTensors as they come in graphs: indices i64[n, rank], values [n], dense shape i64[rank].

SparseReshape, SparseFillEmptyRows and its gradient, SparseTensorDenseMatMul, SparseTensorDenseAdd, SparseReorder,
SparseReduceSum and SparseReduceMax.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, exact_div, product
from disc_tf.ir.types import DType
from disc_tf.lowering.content import bind, constant_ints, element
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.data_dependent import bind_count, bound_dim, prefix
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.gather_ops import check_in_range
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import ALL, NUMBERS, lowering
from disc_tf.lowering.rows import check_countable, check_product, column, row_major_order, take
from disc_tf.lowering.shapes import invalid
from disc_tf.lowering.tracing import traced

_IDS = {DType.I32, DType.I64}
OVERFLOW = "Encountered overflow when multiplying the extents of a shape"
_NO_SIZE = "reshape cannot infer the missing input size for an empty tensor unless all specified input sizes are non-zero"
_PRODUCTS = {DType.F16, DType.BF16, DType.F32, DType.F64, DType.I32}


# ---- dense shapes ----------------------------------------------------------------------------------------------------


def extents(ctx: LoweringContext, shape: Value, what: str) -> list[Dim]:
    """The elements of a dense shape as dims, none negative; those that only run time knows are checked and bound."""
    if shape.rank != 1:
        raise invalid(f"{what} must be a vector, saw: {shape.type}")
    known = traced(ctx, shape)
    if known is None:
        if not shape.dims[0].is_static:
            raise Unsupported("RANK", f"{what} has {shape.dims[0]} elements: the rank is not known")
        ctx.check(ctx.b.compare(shape, ctx.splat(0, shape), "GE"), message="Expected shape dimensions to be non-negative")
        known = []
        for i in range(int(shape.dims[0])):
            e = element(ctx, shape, i)
            known.append((ctx.dims_of(e) or [ctx.fresh_dim(ctx.b.maximum(e, ctx.scalar(0, e.dtype)))])[0])
        ctx.set_dims(shape, known)
    for d in known:
        ctx.check_dim_cond(d, "GE", 0, message=f"Expected shape dimensions to be non-negative, got {plain(d)}")
    return known


def matrix(indices: Value, what: str = "indices") -> None:
    """Require indices of rank 2."""
    if indices.rank != 2:
        raise invalid(f"{what} must be a matrix, saw: {indices.type}")


def flat_positions(ctx: LoweringContext, indices: Value, dims: Sequence[Dim], axes: Sequence[int] | None = None) -> Value:
    """The row-major position of every entry in a tensor of ``dims``, or of those of them in ``axes``: that has less than 2^63 elements
    (`check_countable`). Only extents are multiplied with: beside an extent of 0 their products may be beyond all integers."""
    total: Value | None = None
    for k in range(len(dims)) if axes is None else axes:
        part = column(ctx, indices, k)
        part = part if part.dtype is DType.I64 else ctx.b.convert(part, DType.I64)
        if total is not None:
            part = ctx.b.add(ctx.b.multiply(total, ctx.broadcast_to(ctx.dim(dims[k]), part.dims)), part)
        total = part
    return ctx.full(0, DType.I64, indices.dims[:1]) if total is None else total


def with_rank(ctx: LoweringContext, indices: Value, rank: int, message: str) -> Value:
    """``indices`` with the rank that the dense shape has as its second extent."""
    ctx.check_dims_eq(indices.dims[1], rank, message=message)
    return ctx.cast_dims(indices, [indices.dims[0], rank])


def entries(ctx: LoweringContext, indices: Value, values: Value, message: str) -> Value:
    """``values`` of as many elements as there are entries."""
    if values.rank != 1:
        raise invalid(f"values must be a vector, saw: {values.type}")
    ctx.check_dims_eq(values.dims[0], indices.dims[0], message=message)
    return ctx.cast_dims(values, indices.dims[:1])


# ---- SparseReshape ---------------------------------------------------------------------------------------------------


@lowering("SparseReshape", limits="the lengths of both shapes are known")
def sparse_reshape(ctx: LoweringContext, _node: NodeView, indices: Value, shape: Value, new_shape: Value) -> list[Value]:
    """The coordinates in another shape of as many elements; one extent may be -1."""
    matrix(indices, "Input indices")
    if new_shape.rank != 1:
        raise invalid(f"Target shape should be a vector but received shape {new_shape.type}")
    dims = extents(ctx, shape, "Input shape")
    check_countable(ctx, dims, OVERFLOW)
    indices = with_rank(ctx, indices, len(dims), "Input tensor rank must match input shape length.")
    target = _new_dims(ctx, dims, new_shape)
    out_shape = ctx.from_dims(target, DType.I64)
    if len(dims) == len(target) and all(ctx.env.is_equal(a, b) is True for a, b in zip(dims, target, strict=True)):
        return [indices, out_shape]
    n = indices.dims[0]
    _check_room(ctx, n, dims, target)
    if not target:
        return [ctx.full(0, DType.I64, [n, Dim.of(0)]), out_shape]
    rest = flat_positions(ctx, indices, dims)
    columns = []
    for d in reversed(target[1:]):
        by = ctx.broadcast_to(ctx.b.maximum(ctx.dim(d), ctx.scalar(1, DType.I64)), rest.dims)
        above = ctx.b.divide(rest, by)
        columns.append(ctx.b.subtract(rest, ctx.b.multiply(above, by)))
        rest = above
    columns = [rest, *reversed(columns)]
    columns = [ctx.b.reshape(c, [n, 1]) for c in columns]
    return [columns[0] if len(columns) == 1 else ctx.b.concatenate(columns, 1), out_shape]


def _check_room(ctx: LoweringContext, n: Dim, dims: Sequence[Dim], target: Sequence[Dim]) -> None:
    """Require that a shape with entries is not empty, unless it stays as it is."""
    b, elements = ctx.b, product(dims)
    if n == 0 or (elements.is_static and int(elements) > 0):
        return
    fits = b.or_(b.compare(ctx.dim(n), ctx.dim(0), "EQ"), b.compare(ctx.dim(elements), ctx.dim(0), "GT"))
    if len(dims) == len(target):
        same = [b.compare(ctx.dim(x), ctx.dim(y), "EQ") for x, y in zip(dims, target, strict=True)]
        fits = b.or_(fits, functools.reduce(b.and_, same))
    ctx.check(fits, message=f"Input tensor has {plain(n)} non zero elements but input shape or output shape is empty")


def _new_dims(ctx: LoweringContext, dims: Sequence[Dim], new_shape: Value) -> list[Dim]:
    """The target's extents; checks that they have as many elements as ``dims``."""
    if not new_shape.dims[0].is_static:
        raise Unsupported("RANK", f"the new shape has {new_shape.dims[0]} elements: the rank is not known")
    count = int(new_shape.dims[0])
    elements: list[Dim | None] = []
    for i in range(count):
        found = traced(ctx, element(ctx, new_shape, i))
        elements.append(found[0] if found else None)
    if any(e is None or (not e.is_static and ctx.env.is_nonneg(e) is not True) for e in elements):
        return _run_time_dims(ctx, dims, new_shape, count)
    sizes = [e for e in elements if e is not None]
    wild = [i for i, s in enumerate(sizes) if s == -1]
    for i, s in enumerate(sizes):
        if s.is_static and int(s) < -1:
            raise invalid(f"size {i} must be non-negative, not {s}")
    if len(wild) > 1:
        raise invalid(f"only one output dimension may be -1, not both {wild[0]} and {wild[1]}")
    check_countable(ctx, [s for s in sizes if s != -1], OVERFLOW)
    have = product(dims)
    message = f"Input to reshape is a tensor with {plain(have)} dense values, but the requested shape has another number"
    if wild:
        rest = product(s for i, s in enumerate(sizes) if i != wild[0])
        ctx.check_dim_cond(rest, "GT", 0, message=_NO_SIZE)
        missing = None if rest == 0 else exact_div(have, rest)
        # Where the check above may fail the quotient must still be defined: a divisor of at least 1.
        sizes[wild[0]] = missing if missing is not None else _quotient(ctx, have, rest)
    ctx.check_dims_eq(product(sizes), have, message=message)
    return [bind(ctx, s) for s in sizes]


def _quotient(ctx: LoweringContext, a: Dim, b: Dim) -> Dim:
    if a.is_static and b.is_static:
        return Dim.of(int(a) // max(int(b), 1))
    by = ctx.b.maximum(ctx.dim(b), ctx.scalar(1, DType.I64))
    return ctx.fresh_dim(ctx.b.divide(ctx.dim(a), by))


def _run_time_dims(ctx: LoweringContext, dims: Sequence[Dim], new_shape: Value, count: int) -> list[Dim]:
    """Extents of which run time alone knows whether one is -1."""
    b = ctx.b
    wide = new_shape if new_shape.dtype is DType.I64 else b.convert(new_shape, DType.I64)
    parts = [element(ctx, wide, i) for i in range(count)]
    one, none = ctx.scalar(1, DType.I64), ctx.scalar(-1, DType.I64)
    is_wild = [b.compare(p, none, "EQ") for p in parts]
    for i, p in enumerate(parts):
        ctx.check(b.compare(p, none, "GE"), message=f"size {i} must be non-negative")
    wilds = ctx.scalar(0, DType.I64)
    for w in is_wild:
        wilds = b.add(wilds, b.convert(w, DType.I64))
    rest = check_product(ctx, [b.select(w, one, p) for w, p in zip(is_wild, parts, strict=True)], OVERFLOW)
    ctx.check(b.compare(wilds, one, "LE"), message="only one output dimension may be -1")
    some = b.or_(b.compare(wilds, one, "NE"), b.compare(rest, ctx.scalar(0, DType.I64), "GT"))
    ctx.check(some, message=_NO_SIZE)
    have = ctx.dim(product(dims))
    missing = b.divide(have, b.maximum(rest, one))
    total = b.multiply(rest, b.select(b.compare(wilds, one, "EQ"), missing, one))
    message = f"Input to reshape has {plain(product(dims))} dense values, the requested shape another number"
    ctx.check(b.compare(total, have, "EQ"), message=message)
    sizes = [b.maximum(b.select(w, missing, p), ctx.scalar(0, DType.I64)) for w, p in zip(is_wild, parts, strict=True)]
    return [ctx.fresh_dim(s) for s in sizes]


# ---- SparseFillEmptyRows ---------------------------------------------------------------------------------------------


@lowering("SparseFillEmptyRows", dtypes=ALL, limits="no strings; the length of dense_shape is known")
def sparse_fill_empty_rows(
    ctx: LoweringContext, _node: NodeView, indices: Value, values: Value, shape: Value, default: Value
) -> list[Value]:
    """The entries by row, with an entry of the default value at column 0 of every row that has none."""
    if shape.rank != 1:
        raise invalid(f"dense_shape must be a vector, saw: {shape.type}")
    matrix(indices)
    if default.rank:
        raise invalid(f"default_value must be a scalar, saw: {default.type}")
    dims = extents(ctx, shape, "dense_shape")
    if not dims:
        raise invalid("Dense shape cannot be empty.")
    values = entries(ctx, indices, values, "The length of `values` must match the first dimension of `indices`.")
    indices = with_rank(ctx, indices, len(dims), "The length of `dense_shape` must match the second dimension of `indices`.")
    rows = bind(ctx, dims[0])
    check_in_range(ctx, column(ctx, indices, 0), rows, f"indices: a row is not in [0, {plain(rows)})")
    before = _filled_before(ctx, indices, rows)
    out, filled, empty, reverse, count = ctx.b.fill_rows(indices, values, default, rows)
    if before is not None:  # ids and their weights: the same places, so the same number of entries
        out, _, empty, reverse, count = before
    n = bound_dim(count)
    n = bind_count(ctx, count, indices.dims[0] + rows) if n is None else n
    return [prefix(ctx, out, n), prefix(ctx, filled, n), empty, reverse]


def _filled_before(ctx: LoweringContext, indices: Value, rows: Dim) -> list[Value] | None:
    """The results of an earlier op that filled the same entries of other values."""
    for twin in _twins(indices):
        for op, k in twin.uses:
            if k == 0 and op.name == "disc.fill_rows" and op.attrs["rows"] == rows and op.parent is ctx.b.block:
                return op.results
    return None


def _twins(v: Value, depth: int = 6) -> Iterator[Value]:
    """The value, and those that were computed in the same way, found among the users of what it was computed from: a block of a
    recommender has too many ops to be searched for each of its features."""
    yield v
    op = v.op
    if op is None or op.regions or not op.operands or depth == 0:
        return
    at = next((k for k, x in enumerate(op.operands) if x.op is None or x.op.name != "constant"), 0)
    for x in _twins(op.operands[at], depth - 1):
        for user, k in x.uses:
            if k == at and user is not op and user.name == op.name:
                twin = user.results[op.results.index(v)]
                if equivalent(twin, v):
                    yield twin


def equivalent(a: Value, b: Value, depth: int = 6) -> bool:
    """Whether two values were computed in the same way from the same values."""
    if a is b:
        return True
    if a.op is None or b.op is None or depth == 0 or a.type != b.type or a.op.name != b.op.name or a.op.regions or b.op.regions:
        return False
    if a.op.name == "constant":
        return np.array_equal(a.op.attrs["value"], b.op.attrs["value"])
    if a.op.results.index(a) != b.op.results.index(b) or a.op.attrs != b.op.attrs or len(a.op.operands) != len(b.op.operands):
        return False
    return all(equivalent(x, y, depth - 1) for x, y in zip(a.op.operands, b.op.operands, strict=True))


@lowering("SparseFillEmptyRowsGrad", dtypes=NUMBERS)
def sparse_fill_empty_rows_grad(ctx: LoweringContext, _node: NodeView, reverse: Value, grad: Value) -> list[Value]:
    """The gradients of the entries that were there, and the sum of those of the filled ones."""
    for name, v in (("reverse_index_map", reverse), ("grad_values", grad)):
        if v.rank != 1:
            raise invalid(f"{name} must be a vector, saw: {v.type}")
    (m,) = grad.dims
    check_in_range(ctx, reverse, m, f"Elements in reverse index must be in [0, {plain(m)})")
    if m == 0:
        return [ctx.full(0, grad.dtype, reverse.dims), ctx.scalar(0, grad.dtype)]
    ones = ctx.full(1, DType.U8, reverse.dims)
    visited = ctx.b.segment(ones, reverse, m, "max", sorted=False, empty="identity")
    left = ctx.b.select(ctx.b.compare(visited, ctx.splat(0, visited), "EQ"), grad, ctx.splat(0, grad))
    return [take(ctx, grad, reverse), ctx.reduce(left, [0], "add")]


# ---- with dense tensors ----------------------------------------------------------------------------------------------


@lowering("SparseTensorDenseMatMul", dtypes={"T": _PRODUCTS, "Tindices": _IDS})
def sparse_tensor_dense_matmul(
    ctx: LoweringContext, node: NodeView, indices: Value, values: Value, shape: Value, dense: Value
) -> Value:
    """Rows of the dense matrix gathered, weighted and added in the order of the entries, in one kernel."""
    if dense.rank != 2:
        raise invalid("Tensor 'b' is not a matrix")
    if shape.rank != 1 or shape.dims[0] != 2:
        if shape.rank == 1 and not shape.dims[0].is_static:
            raise Unsupported("RANK", f"a_shape has {shape.dims[0]} elements")
        raise invalid("Tensor 'a_shape' must have 2 elements")
    matrix(indices, "Tensor 'a_indices'")
    values = entries(ctx, indices, values, "Number of rows of a_indices does not match number of entries in a_values")
    dims = extents(ctx, shape, "a_shape")
    indices = with_rank(ctx, indices, len(dims), "Number of columns of a_indices does not match number of entries in a_shape")
    row, inner = (1, 0) if node.attr("adjoint_a", False) else (0, 1)
    if node.attr("adjoint_b", False):
        dense = ctx.b.transpose(dense, [1, 0])
    message = f"Cannot multiply A and B because inner dimension does not match: {plain(dims[inner])} vs. {plain(dense.dims[0])}."
    ctx.check_dims_eq(dims[inner], dense.dims[0], message=message)
    rows, columns = column(ctx, indices, row), column(ctx, indices, inner)
    window = (dense.dims[0], dense.dims[1], dims[row])
    check_in_range(ctx, columns, dims[inner], f"k from index out of bounds (>={plain(dims[inner])})", window)
    check_in_range(ctx, rows, dims[row], f"m from index out of bounds (>={plain(dims[row])})", window)
    return ctx.b.segment(dense, rows, bind(ctx, dims[row]), "add", columns, values, sorted=False, empty="identity")


@lowering("SparseTensorDenseAdd", dtypes={"T": NUMBERS, "Tindices": _IDS})
def sparse_tensor_dense_add(
    ctx: LoweringContext, _node: NodeView, indices: Value, values: Value, shape: Value, dense: Value
) -> Value:
    """The dense tensor with the values added at their places."""
    matrix(indices, "Tensor a_indices")
    values = entries(ctx, indices, values, "Dimensions of a_values and a_indices do not match")
    dims = extents(ctx, shape, "a_shape")
    if len(dims) != dense.rank:
        raise invalid(f"Two operands have different ranks; received: {len(dims)} and {dense.rank}")
    indices = with_rank(ctx, indices, len(dims), "Dimensions of a_indices and a_shape do not match")
    for i, (have, want) in enumerate(zip(dims, dense.dims, strict=True)):
        ctx.check_dims_eq(have, want, message=f"Dimension {i} does not equal (no broadcasting is supported)")
    for k, d in enumerate(dense.dims):
        check_in_range(ctx, column(ctx, indices, k), d, "Sparse tensor has an invalid index")
    rank = dense.rank
    (out,) = ctx.b.scatter(
        [dense], indices, [values], "add", update_window_dims=(), inserted_window_dims=tuple(range(rank)),
        scatter_dims_to_operand_dims=tuple(range(rank)), index_vector_dim=1,
    )  # fmt: skip
    return out


# ---- order and reductions --------------------------------------------------------------------------------------------


@lowering("SparseReorder", dtypes=ALL, limits="the length of input_shape is known")
def sparse_reorder(ctx: LoweringContext, _node: NodeView, indices: Value, values: Value, shape: Value) -> list[Value]:
    """The entries in row-major order."""
    matrix(indices, "Input indices")
    dims = extents(ctx, shape, "Input shape")
    values = entries(ctx, indices, values, "Number of elements of values must match first dimension of indices")
    indices = with_rank(ctx, indices, len(dims), "Input rank should match shape rank")
    order = row_major_order(ctx, indices)
    return [take(ctx, indices, order), take(ctx, values, order)]


@lowering("SparseReduceSum", "SparseReduceMax", dtypes=NUMBERS, constants=(3,), limits="the reduction axes are constant")
def sparse_reduce(
    ctx: LoweringContext, node: NodeView, indices: Value, values: Value, shape: Value, axes: Value
) -> Value:
    """The dense result of a reduction over axes; 0 where there are no entries."""
    matrix(indices, "Expected input_indices")
    dims = extents(ctx, shape, "input_shape")
    values = entries(ctx, indices, values, "Expected input_values to have as many elements as there are indices")
    indices = with_rank(ctx, indices, len(dims), "Expected input_indices to have as many columns as input_shape has elements")
    over = {a + len(dims) * (a < 0) for a in constant_ints(ctx, axes, "the axes of a sparse reduction")}
    if any(not 0 <= a < len(dims) for a in over):
        raise invalid(f"Invalid reduction dimensions for input with {len(dims)} dimensions.")
    check_countable(ctx, dims, OVERFLOW)
    kept = [k for k in range(len(dims)) if k not in over]
    for k in range(len(dims)):
        check_in_range(ctx, column(ctx, indices, k), dims[k], "index is out of bounds")
    total = bind(ctx, product(dims[k] for k in kept))
    ids = flat_positions(ctx, indices, dims, kept)
    kind = "add" if node.op == "SparseReduceSum" else "max"
    out = ctx.b.segment(values, ids, total, kind, sorted=False, empty="infinity")
    if kind == "max":
        ones = ctx.full(1, DType.U8, ids.dims)
        there = ctx.b.segment(ones, ids, total, "max", sorted=False, empty="identity")
        out = ctx.b.select(ctx.b.compare(there, ctx.splat(0, there), "NE"), out, ctx.splat(0, out))
    keep = bool(node.attr("keep_dims", False))
    result = [dims[k] if k in kept else Dim.of(1) for k in range(len(dims)) if keep or k in kept]
    return ctx.b.reshape(out, [bind(ctx, d) for d in result])


__all__ = ["OVERFLOW", "entries", "extents", "flat_positions", "matrix", "with_rank"]
