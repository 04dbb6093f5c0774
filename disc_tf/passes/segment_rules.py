"""Embedding lookups: a reduction by segments of gathered rows reads the table itself, duplicates were not worth finding, and checks of
indices that an op made are what the op promises.

TensorFlow looks a batch of ids up as `gather(gather(table, unique(ids)), positions)`, times weights, reduced by segments. With all of it
in one kernel no row is ever copied, so the distinct ids need not be known; what only served them dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from disc_tf.ir.core import Op, Value, clone_block, reduce_kind
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType, TensorType
from disc_tf.ir.views import Seen, bound_dims, embedding_gather, seen_through, without_reshapes
from disc_tf.passes.rewriter import Rewriter, is_elementwise, splat_of, table

_STEPS = 16  # the size of a predicate that is made again


# ---- what ops promise of the integers they make -------------------------------------------------------------------


def _promised(seen: Seen) -> list[Dim]:
    op = seen.source.op
    if op is None:
        return []
    number = op.results.index(seen.source)
    if op.name == "disc.nonzero" and number == 0:
        dims = op.operands[0].dims
        return [dims[seen.column]] if seen.column is not None and seen.column < len(dims) else []
    if op.name == "disc.unique" and number < 2:
        return [op.operands[0].dims[0], *(bound_dims(op.results[3]) if number == 1 else [])]
    if op.name == "disc.fill_rows" and number == 0 and seen.column == 0:
        return [op.attrs["rows"]]
    return []


def upper_bounds(v: Value) -> list[Dim]:
    """Extents that the elements of ``v``, none of them negative, are all below; empty if nothing is known."""
    return _promised(seen_through(v)) if v.dtype.is_int else []


def _dim_everywhere(v: Value) -> Dim | None:
    """The dim that ``v`` holds in every element."""
    number = splat_of(v)
    if number is not None:
        return Dim.of(int(number)) if v.dtype.is_int else None
    op = seen_through(v).source.op
    return op.attrs["dim"] if op is not None and op.name == "disc.dim" else None


def compare_bounded(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """``v < D`` where the elements of ``v`` are positions below an extent that is at most ``D``; ``v >= 0``."""
    a, b = op.operands
    if not a.dtype.is_int or op.attrs["direction"] not in ("LT", "GE"):
        return None
    bounds = upper_bounds(a)
    against = _dim_everywhere(b) if bounds else None
    if against is None:
        return None
    if op.attrs["direction"] == "GE":
        return [rw.splat(True, op.result.tensor)] if against.is_static and int(against) <= 0 else None
    below = any(rw.env.is_nonneg(against - d) is True for d in bounds)
    return [rw.splat(True, op.result.tensor)] if below else None


# ---- distinct values ---------------------------------------------------------------------------------------------------


class Distinct(NamedTuple):
    """``values`` are the distinct elements of ``source``, a vector; ``unique`` is the op that found them."""

    unique: Op
    source: Value


def distinct_of(v: Value) -> Distinct | None:
    """What ``v`` (a vector of integers) holds the distinct elements of: `gather(x, first[:count])` of a `disc.unique` of x.

    Of floats `unique` keeps one of two that are equal and yet differ, as +0 and -0 do: what is asked of them may differ, too.
    """
    op = v.op
    if op is None or op.name != "gather" or v.rank != 1 or v.dtype.is_float or not embedding_gather(op):
        return None
    source, first = op.operands
    seen = seen_through(first)
    unique = seen.source.op
    if unique is None or unique.name != "disc.unique" or seen.source is not unique.results[0] or not seen.whole:
        return None
    rows = unique.operands[0]
    same = source.rank == 1 and rows.dims[1] == 1 and without_reshapes(rows) is without_reshapes(source)
    return Distinct(unique, source) if same else None


def reduce_of_distinct(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """``all(p(unique(x)))`` is ``all(p(x))``; likewise for ``or``, ``max`` and ``min``."""
    if len(op.operands) != 2 or op.operands[0].rank != 1 or reduce_kind(op) not in ("and", "or", "max", "min"):
        return None
    found = _distinct_inside(op.operands[0])
    if found is None:
        return None
    again = _make_again(op.operands[0], found, rw, {})
    region = clone_block(op.regions[0], {})
    return rw.create("reduce", [again, op.operands[1]], [r.type for r in op.results], op.attrs, [region]).results


def _distinct_inside(v: Value) -> Distinct | None:
    """The one vector of distinct values that an elementwise expression is made of, apart from scalars."""
    found: Distinct | None = None
    todo, seen = [v], set()
    while todo:
        x = todo.pop()
        if x in seen:
            continue
        seen.add(x)
        if len(seen) > _STEPS:
            return None
        inside = distinct_of(x)
        if inside is not None:
            if found is not None and (found.unique is not inside.unique or found.source is not inside.source):
                return None
            found = inside
        elif x.op is None or x.rank != 1:
            return None
        elif x.op.name == "broadcast_in_dim" and x.op.operands[0].rank == 0:
            continue
        elif is_elementwise(x.op) and all(y.rank == 1 for y in x.op.operands):
            todo += x.op.operands
        else:
            return None
    return found


def _make_again(v: Value, found: Distinct, rw: Rewriter, done: dict[Value, Value]) -> Value:
    """The expression over the source instead of its distinct values."""
    made = done.get(v)
    if made is None:
        op = v.op
        assert op is not None
        if distinct_of(v) is not None:
            made = found.source
        elif op.name == "broadcast_in_dim":
            made = rw.broadcast(op.operands[0], found.source.dims, ())
        else:
            made = rw.value(
                op.name, [_make_again(x, found, rw, done) for x in op.operands], TensorType(v.dtype, found.source.dims), op.attrs
            )
        done[v] = made
    return made


# ---- gathers inside of reductions by segment --------------------------------------------------------------------------------


def _row_gather(v: Value) -> tuple[Value, Value] | None:
    """``(table, index)`` of a gather of whole rows by a vector, which nothing else reads."""
    op = v.op
    if op is None or op.name != "gather" or len(v.uses) != 1 or not embedding_gather(op):
        return None
    rows, index = op.operands
    if v.rank != rows.rank or index.dtype not in (DType.I32, DType.I64):
        return None
    return rows, index


def _row_weights(v: Value) -> Value | None:
    """The vector of which ``v`` holds element n everywhere in row n."""
    op = v.op
    if op is None or op.name != "broadcast_in_dim" or not op.operands[0].rank:
        return None
    x, mapping = op.operands[0], op.attrs["broadcast_dimensions"]
    if mapping[0] != 0 or x.dims[0] != v.dims[0] or any(d != 1 for d in x.dims[1:]):
        return None
    return x


def segment_of_gather(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """``segment(gather(table, i))`` is the segment of the table by i; of gathered rows times weights, with the weights."""
    data, ids, *rest = op.operands
    weights: Value | None = rest[1] if len(rest) > 1 else None
    found = _row_gather(data)
    if found is None and weights is None and not rest and op.attrs["kind"] == "add" and not op.attrs["wide"]:
        product = data.op
        if product is None or product.name != "multiply" or len(data.uses) != 1:
            return None
        for rows, factor in (product.operands, product.operands[::-1]):
            found, weights = _row_gather(rows), _row_weights(factor)
            if found is not None and weights is not None:
                break
        else:
            return None
        weights = rw.reshape(weights, ids.dims)
    if found is None:
        return None
    rows, index = found
    if index.rank != 1:
        index = rw.reshape(index, [index.dims[0]])
    if rest:
        distinct = distinct_of(index)
        if distinct is not None and without_reshapes(rest[0]) is distinct.unique.results[1]:
            index = distinct.source
        else:
            attrs = {
                "offset_dims": (), "collapsed_slice_dims": (0,), "operand_batching_dims": (), "start_indices_batching_dims": (),
                "start_index_map": (0,), "index_vector_dim": 1, "slice_sizes": (Dim.of(1),),
            }  # fmt: skip
            index = rw.value("gather", [index, rest[0]], TensorType(index.dtype, rest[0].dims), attrs)
    operands = [rows, ids, index, *([] if weights is None else [weights])]
    return [rw.value("disc.segment", operands, op.result.type, op.attrs)]


# ---- rows of sparse tensors -------------------------------------------------------------------------------------------------


def filled_rows_only(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """Where nothing but the row numbers of a filled sparse tensor is read, the other coordinates are not carried along."""
    indices, *rest = op.operands
    n, rank = indices.dims
    if not rank.is_static or int(rank) < 2:
        return None
    for user, _ in op.results[0].uses:
        if user.name != "slice" or user.attrs["starts"][1] != 0 or user.attrs["limits"][1] != 1:
            return None
    attrs = {"starts": (Dim.of(0), Dim.of(0)), "limits": (n, Dim.of(1)), "strides": (Dim.of(1), Dim.of(1))}
    rows = rw.value("slice", [indices], TensorType(indices.dtype, (n, Dim.of(1))), attrs)
    most = op.results[0].dims[0]
    types = [TensorType(indices.dtype, (most, Dim.of(1))), *(r.type for r in op.results[1:])]
    filled = rw.create("disc.fill_rows", [rows, *rest], types, op.attrs).results
    others = rw.splat(0, TensorType(indices.dtype, (most, rank - 1)))
    whole = rw.value("concatenate", [filled[0], others], op.results[0].type, {"dimension": 1})
    return [whole, *filled[1:]]


def columns_of_gather(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """Columns of gathered rows, of which nothing else is read, are gathered from the columns of the table."""
    gather = op.operands[0].op
    if gather is None or gather.name != "gather" or op.result.rank != 2 or not embedding_gather(gather):
        return None
    starts, limits, strides = op.attrs["starts"], op.attrs["limits"], op.attrs["strides"]
    n = op.operands[0].dims[0]
    whole = starts[0] == 0 and rw.equal(limits[0], n) and all(s == 1 for s in strides)
    if not whole or not all(u.name == "slice" for u, _ in gather.result.uses) or gather.operands[1].rank != 1:
        return None
    rows, index = gather.operands
    if rows.rank != 2 or rw.equal(op.result.dims[1], rows.dims[1]):
        return None
    attrs = {"starts": starts, "limits": (rows.dims[0], limits[1]), "strides": strides}
    columns = rw.value("slice", [rows], TensorType(rows.dtype, (rows.dims[0], op.result.dims[1])), attrs)
    sizes = {**gather.attrs, "slice_sizes": (Dim.of(1), op.result.dims[1])}
    return [rw.value("gather", [columns, index], op.result.type, sizes)]


SEGMENT_RULES = table(
    (["slice"], columns_of_gather),
    (["disc.fill_rows"], filled_rows_only),
    (["compare"], compare_bounded),
    (["reduce"], reduce_of_distinct),
    (["disc.segment"], segment_of_gather),
)
