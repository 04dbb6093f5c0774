"""The epilogue of a product: its region evaluated and stored over a block of accumulators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from disc_tf.codegen.cpu import lanes
from disc_tf.codegen.cpu.points import Points, Row, Seed, each_vector
from disc_tf.codegen.cpu.product_frame import unravel
from disc_tf.codegen.llvm import FnBuilder, Ty, V, vec
from disc_tf.costs import op_weight
from disc_tf.ir.core import Value
from disc_tf.ir.types import DType


def from_accumulator(b: FnBuilder, dtype: DType, x: V) -> V:
    """An accumulator value as a register value of the product's dtype: rounded to f16 or bf16, wrapped to a
    narrow integer."""
    if dtype.is_int:
        return b.trunc(x, lanes.reg_elem(dtype)) if dtype.bits < x.ty.bits else x
    return lanes.round_float(b, dtype, x)


#: bytes of a line of the caches
LINE_BYTES = 64
#: elements that epilogues read and write beyond which it is worth asking for their lines before (`ask_block`): they lie in no near cache
LARGE = 1 << 19
#: rows that are computed in one go, for loops of few operations, and lane operations of these
_ROWS, _FEW_OPERATIONS = 4, 16
#: gives the product at (row, column) of a block, some lanes of it
BlockSeed = Callable[[V, V, int], V]
#: takes what was computed at a row, from a column on; the values known there, lanes, mask
Take = Callable[[V, Row, dict[Value, V], V, int, V | None, Mapping[Value, Seed]], None]


def sums_of(b: FnBuilder, base: V, pitch: V | int, ty: Ty, dtype: DType) -> BlockSeed:
    """The product of ``dtype`` as its sums lie from ``base`` on: rows of ``pitch`` accumulators of type ``ty``."""

    def seed(i: V, at: V, count: int) -> V:
        return from_accumulator(b, dtype, b.load(vec(ty, count), b.gep(b.gep(base, b.mul(i, pitch), ty), at, ty)))

    return seed


def emit_block(
    points: Points, lead: Sequence[V], m0: V, rows: V, n0: V, columns: V, product: Value, seed: BlockSeed, width: int,
    more: Mapping[Value, BlockSeed] = MappingProxyType({}),
) -> None:
    """Compute and store a region at rows [m0, m0 + rows) and columns [n0, n0 + columns); ``seed`` counts from there. more: other values
    that are there as the product is."""

    def store(_i: V, row: Row, known: dict[Value, V], d: V, count: int, mask: V | None, seeds: Mapping[Value, Seed]) -> None:
        row.store(known, d, count, mask, seeds)

    each_point(points, lead, m0, rows, n0, columns, product, seed, width, store, more)


def ask_block(points: Points, lead: Sequence[V], m0: V, rows: V, n0: V, columns: V) -> None:
    """Ask for what `emit_block` will read and write, so that it is there when the product is done: else its stores, of which there are as
    many at once, wait for their lines, and those of the next product behind them."""
    b = points.frame.b
    _, ms, ns = points.extents
    wanted = points.along_rows() if len(ns) == 1 else []
    if not wanted:
        return

    def ask(i: V, _: list[V]) -> None:
        row = points.row([*lead, *unravel(b, b.add(m0, i), ms)])
        for value, view in wanted:
            step = max(LINE_BYTES // lanes.mem_elem(value.dtype).bytes, 1)
            b.loop(0, columns, step, [], lambda d, _, at=(value, view): row.prefetch(*at, b.add(n0, d)))

    b.loop(0, rows, 1, [], ask, "ask")


def each_point(
    points: Points, lead: Sequence[V], m0: V, rows: V, n0: V, columns: V, product: Value, seed: BlockSeed, width: int, take: Take,
    more: Mapping[Value, BlockSeed] = MappingProxyType({}),
) -> None:
    """Compute a region over a block: runs of the last axis where columns are several axes that do not compose, vectors of it, rows.

    Rows are innermost: masks of a block's last columns, and what is the same for all rows (a bias), are made once.
    """
    b = points.frame.b
    _, ms, ns = points.extents
    given = {product: seed, **more}
    unroll = _ROWS if sum(map(op_weight, points.region.ops)) <= _FEW_OPERATIONS else 1

    def each_row(run: Sequence[V], start: V, d: V, count: int, mask: V | None) -> None:
        def at(i: V) -> Row:
            return points.row([*lead, *unravel(b, b.add(m0, i), ms), *run])

        shared = {v: at(b.i64(0)).leaf(v, d, count, mask) for v in points.same_for_rows()}

        def one(i: V) -> None:
            row, known = at(i), dict(shared)
            seeds = {v: lambda d, count, of=of: of(i, b.add(d, start), count) for v, of in given.items()}
            row.compute(points.region.ops, known, d, count, mask, seeds)
            take(i, row, known, d, count, mask, seeds)

        def some(i: V, _: list[V]) -> None:
            for k in range(unroll):
                one(b.add(i, k))

        main = b.and_(rows, -unroll)
        b.loop(0, main, unroll, [], some, "rows")
        if unroll > 1:
            b.loop(main, rows, 1, [], lambda i, _: one(i), "row")

    if not ns:
        each_row([], b.i64(0), b.i64(0), 1, None)
        return
    last = ns[-1]

    def run(q: V) -> None:
        start = b.sub(b.mul(q, last), n0)
        low = b.smax(b.sub(0, start), b.i64(0))
        high = b.smin(last, b.sub(columns, start))
        outer = unravel(b, q, ns[:-1]) if len(ns) > 1 else []
        masked = points.frame.target.masked_memory
        each_vector(b, low, high, width, masked, lambda d, count, mask: each_row(outer, start, d, count, mask))

    if len(ns) == 1:
        run(b.i64(0))
        return
    safe = b.smax(last, b.i64(1))
    first, stop = b.udiv(n0, safe), b.udiv(b.add(b.add(n0, columns), b.sub(safe, 1)), safe)
    b.loop(first, stop, 1, [], lambda q, _: run(q))
