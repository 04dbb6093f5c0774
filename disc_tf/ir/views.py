"""What a value shows of another one: its rows, some of them, or one of its columns, through ops that move and change nothing.

The one walk for rules that rely on what an op promises of its results (row numbers are sorted, positions lie inside of a tensor): what is
between the op and its reader is data of the graph's author, who cuts, reshapes and casts as he likes.
"""

from __future__ import annotations

from typing import NamedTuple

from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType

_STEPS = 24
#: which result is the count of the ops whose other results are padded (docs/architecture.md, data-dependent sizes)
_COUNT = {"disc.nonzero": 1, "disc.unique": 3, "disc.fill_rows": 4, "disc.nms": 2}


class Seen(NamedTuple):
    """Every element of a value is one of ``source``: of its column ``column`` if that is a number, of any column if it is None."""

    source: Value
    column: int | None
    whole: bool  #: every row of the source (up to its count, if it is padded) is there once, and in its place


def bound_dims(count: Value) -> list[Dim]:
    """The symbols that a count is bound to."""
    return [Dim.of(op.attrs["symbol"]) for op, _ in count.uses if op.name == "disc.bind_dim"]


def embedding_gather(op: Op) -> bool:
    """A gather of whole rows: ``table[index]`` with a rank-0 index vector over dim 0 and the row's dims at the end."""
    table, index = op.operands
    a = op.attrs
    try:
        batch = op.result.rank - (table.rank - 1)
        scalar_index = a["index_vector_dim"] == index.rank or (
            a["index_vector_dim"] == index.rank - 1 and index.dims[-1] == 1
        )
        return (
            scalar_index
            and tuple(a["start_index_map"]) == (0,)
            and tuple(a["collapsed_slice_dims"]) == (0,)
            and not a.get("operand_batching_dims")
            and tuple(a["offset_dims"]) == tuple(range(batch, op.result.rank))
            and all(s == d for s, d in zip(a["slice_sizes"][1:], table.dims[1:], strict=True))
        )
    except KeyError:
        return False


def without_reshapes(v: Value) -> Value:
    """The value of which ``v`` has the elements, in the same order."""
    while v.op is not None and v.op.name == "reshape":
        v = v.op.operands[0]
    return v


def seen_through(v: Value) -> Seen:
    """What ``v`` shows, through slices, reshapes, broadcasts, gathers of rows and conversions of integers to the widths of shapes.

    The walk ends at the first op that is none of these, or through which a column could not be followed.
    """
    seen = Seen(v, None, True)
    for _ in range(_STEPS):
        step = _STEPS_THROUGH.get(seen.source.op.name) if seen.source.op is not None else None
        further = step(seen, seen.source.op) if step is not None and seen.source.op is not None else None
        if further is None:
            break
        seen = further
    source = seen.source
    return seen._replace(column=0) if seen.column is None and source.rank == 2 and source.dims[1] == 1 else seen


def _through_convert(seen: Seen, op: Op) -> Seen | None:
    # A narrower result could wrap; that there are less than 2^31 of what an i32 counts is TensorFlow's assumption, too.
    widths = (DType.I32, DType.I64)
    return seen._replace(source=op.operands[0]) if op.operands[0].dtype.is_int and op.result.dtype in widths else None


def _through_slice(seen: Seen, op: Op) -> Seen | None:
    x = op.operands[0]
    starts, limits, strides = (tuple(map(Dim.of, op.attrs[k])) for k in ("starts", "limits", "strides"))
    full = [s == 0 and n == 1 and e == d for s, e, n, d in zip(starts, limits, strides, x.dims, strict=True)]
    whole = seen.whole and all(full[1:]) and (full[0] or _is_prefix(x, starts[0], limits[0], strides[0]))
    if x.rank != 2 or full[1]:
        return Seen(x, seen.column, whole)
    if not starts[1].is_static:
        return None
    if seen.column is None and op.result.dims[1] != 1:
        return Seen(x, None, False)
    rows = full[0] or _is_prefix(x, starts[0], limits[0], strides[0])
    return Seen(x, int(starts[1]) + int(strides[1]) * (seen.column or 0), seen.whole and rows)


def _is_prefix(x: Value, start: Dim, limit: Dim, stride: Dim) -> bool:
    """Whether a slice along the first axis takes all rows that count of a padded result."""
    if start != 0 or stride != 1 or x.op is None or x.op.name not in _COUNT:
        return False
    return limit in bound_dims(x.op.results[_COUNT[x.op.name]])


def _through_reshape(seen: Seen, op: Op) -> Seen | None:
    x, y = op.operands[0], op.result
    if x.dims == y.dims:
        return seen._replace(source=x)
    rows = x.rank > 0 and y.rank > 0 and x.dims[0] == y.dims[0]
    if seen.column is not None:  # of a matrix: its only column can be a vector
        return Seen(x, None, seen.whole) if rows and x.rank == 1 and seen.column == 0 else None
    kept = rows and [d for d in x.dims[1:] if d != 1] == [d for d in y.dims[1:] if d != 1]
    return Seen(x, None, seen.whole and kept)


def _through_broadcast(seen: Seen, op: Op) -> Seen | None:
    x, mapping = op.operands[0], tuple(op.attrs["broadcast_dimensions"])
    if seen.column is None:
        return Seen(x, None, False)
    return Seen(x, None, False) if mapping == (0,) else None


def _through_gather(seen: Seen, op: Op) -> Seen | None:
    if not embedding_gather(op) or (seen.column is not None and op.operands[0].rank != 2):
        return None
    return Seen(op.operands[0], seen.column, False)


_STEPS_THROUGH = {
    "convert": _through_convert, "slice": _through_slice, "reshape": _through_reshape, "broadcast_in_dim": _through_broadcast,
    "gather": _through_gather,
}  # fmt: skip

__all__ = ["Seen", "bound_dims", "embedding_gather", "seen_through", "without_reshapes"]
