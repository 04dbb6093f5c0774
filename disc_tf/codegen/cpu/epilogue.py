"""The epilogue of a product: its region evaluated and stored over rows of a block of accumulators."""

from __future__ import annotations

from disc_tf.codegen.cpu import lanes
from disc_tf.codegen.cpu.points import Points, each_vector
from disc_tf.codegen.cpu.product_frame import unravel
from disc_tf.codegen.llvm import I64, FnBuilder, V
from disc_tf.ir.core import Value
from disc_tf.ir.types import DType


def from_accumulator(b: FnBuilder, dtype: DType, x: V) -> V:
    """An accumulator value as a register value of the product's dtype: rounded to f16 or bf16, wrapped to a
    narrow integer."""
    if dtype.is_int:
        return b.trunc(x, lanes.reg_elem(dtype)) if dtype.bits < x.ty.bits else x
    return lanes.round_float(b, dtype, x)


def emit_points(
    points: Points, index: list[V], ns: list[V], n0: V, columns: V, seed_value: Value, seed, width: int
) -> None:
    """Compute and store a region at the columns [n0, n0 + columns) of one row; `seed(at, lanes)` gives the
    product `at` columns after n0.

    Several column axes that do not compose are walked as runs of the last one.
    """
    b = points.frame.b
    masked = points.frame.target.masked_memory
    if not ns:
        row = points.row(index)
        known: dict[Value, V] = {}
        seeds = {seed_value: lambda d, count: seed(b.const(0, I64), 1)}
        row.compute(points.region.ops, known, b.i64(0), 1, None, seeds)
        row.store(known, b.i64(0), 1, None, seeds)
        return
    last = ns[-1]

    def run(q: V) -> None:
        row = points.row([*index, *unravel(b, q, ns[:-1])] if len(ns) > 1 else index)
        start = b.sub(b.mul(q, last), n0)
        low = b.smax(b.sub(0, start), b.i64(0))
        high = b.smin(last, b.sub(columns, start))
        seeds = {seed_value: lambda d, count: seed(b.add(d, start), count)}

        def body(d: V, count: int, mask: V | None) -> None:
            known: dict[Value, V] = {}
            row.compute(points.region.ops, known, d, count, mask, seeds)
            row.store(known, d, count, mask, seeds)

        each_vector(b, low, high, width, masked, body)

    if len(ns) == 1:
        run(b.i64(0))
        return
    safe = b.smax(last, b.i64(1))
    first, stop = b.udiv(n0, safe), b.udiv(b.add(b.add(n0, columns), b.sub(safe, 1)), safe)
    b.loop(first, stop, 1, [], lambda q, _: run(q))
