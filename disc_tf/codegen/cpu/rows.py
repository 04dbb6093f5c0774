"""Kernels of kind `rows` (stitch fusion): several reductions and elementwise stages over the same rows, in one kernel.

A task is one row. The row is walked once per *pass*: pass s computes what needs the reductions of earlier passes, and
the reductions that need only those. A value that a later pass wants again is recomputed from memory when that is
cheap, else kept in a strip of scratch (a row's worth, so it stays in L1). Every output is stored in the first pass
that can. Sums combine in a fixed tree (unrolled accumulators pairwise, then lanes), so results depend on nothing but
the row's length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu import lane_ops, lanes
from disc_tf.codegen.cpu.emit import emitter
from disc_tf.codegen.cpu.frame import KernelFrame
from disc_tf.codegen.cpu.loops import fusion_ps, lanes_for
from disc_tf.codegen.cpu.monoids import Combiner, known_splat
from disc_tf.codegen.cpu.points import Points, Row
from disc_tf.codegen.cpu.row_plan import Pass, RowPlan, plan_rows, softmax_sum
from disc_tf.codegen.kernel import Guard, Kernel, Variant
from disc_tf.codegen.llvm import I8, I64, FnBuilder, Ty, V, const, vec
from disc_tf.costs import grain
from disc_tf.fusion.types import Fusion, GatherRead, Region
from disc_tf.fusion.views import View
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim, ceildiv, product
from disc_tf.ir.types import DType

FEW_ROWS = 4  # at most so many rows of ...
LONG_ROW = 65536  # ... at least so many elements are split among threads


@emitter("rows")
def emit_rows(fusion: Fusion, ctx: EmitContext) -> list[Variant]:
    """One kernel over rows. Fusions without resolved accesses go through `reduce.emit_stages`."""
    region = fusion.attrs.get("region")
    if region is None:
        from disc_tf.codegen.cpu.reduce import emit_stages

        return emit_stages(fusion, ctx)
    whole = RowsEmitter(fusion, region, ctx)
    variants = [Variant(None, (whole.emit(),))]
    if worth_splitting(whole):
        from disc_tf.codegen.cpu.rows_split import emit_split

        variants.insert(0, Variant(few_long_rows(whole), emit_split(fusion, region, ctx)))
    return variants


def few_long_rows(e: RowsEmitter) -> Guard:
    """When a row is better shared by several threads than kept on one."""
    return Guard(((e.rows, "le", Dim.of(FEW_ROWS)), (e.row_length, "ge", Dim.of(LONG_ROW))))


def worth_splitting(e: RowsEmitter) -> bool:
    """Whether few long rows are possible, and the row is one run in memory."""
    (low_rows, _), (_, high) = e.ctx.env.bounds(e.rows), e.ctx.env.bounds(e.row_length)
    return (low_rows or 0) <= FEW_ROWS and (high is None or high >= LONG_ROW) and len(e.points.extents[1]) == 1


class RowsEmitter:
    """Emits one rows kernel."""

    def __init__(self, fusion: Fusion, region: Region, ctx: EmitContext, suffix: str = "") -> None:
        self.fusion, self.ctx = fusion, ctx
        symbol = f"k_{fusion.name.replace('.', '_')}{suffix}"
        self.frame = KernelFrame(symbol, ctx.target, ctx.env, (*fusion.inputs, *fusion.outputs))
        self.b = self.frame.b
        # The tables of lookups take part in merging and are prepared like reads.
        self.tables = {v: View(g.table.source, g.table.offset, g.table.axes[1:]) for v, g in region.gathers.items()}
        self.region = dataclasses.replace(region, reads={**region.reads, **self.tables})
        outer = len(region.space) - region.inner
        self.points = Points(self.frame, self.region, (outer, region.inner), ctx.env)
        self.plan: RowPlan = plan_rows(region)
        self.row_length = product(region.space[outer:])
        self.rows = product(region.space[:outer])
        self.width = lanes_for(ctx, [*(op.result for op in region.ops), *region.reads])
        self.strips: dict[Value, V] = {}
        self.scratch = Dim.of(0)
        self.part: tuple[V, V] | None = None  # the piece of the row to walk; None: all of it

    def emit(self) -> Kernel:
        b, frame = self.b, self.frame
        for v in self.plan.kept:
            self.strips[v] = b.gep(frame.scratch, frame.dim(self.scratch), I8)
            size = self.row_length * lanes.reg_elem(v.dtype).bytes + self.width * 8
            self.scratch = self.scratch + ceildiv(size, 64) * 64
        b.loop(frame.begin, frame.end, 1, [], lambda r, _: self._row(r), "row")
        full = [op for op in self.region.ops if op.name == "reduce" or self.region.level.get(op.result) != "row"]
        ps = fusion_ps(self.fusion, self.ctx, self.region.space, full)
        return frame.finish(self.rows, grain(self.row_length, ps), self.scratch)

    # -- one row --------------------------------------------------------------------------------------------------

    def _row(self, r: V) -> None:
        outer, first = self._start_row(r)
        known: dict[Value, V] = {}
        for level, ops in enumerate(self.plan.row_ops):
            self._row_ops(first, ops, known)
            if level < len(self.plan.passes):
                totals = self._pass(level, outer, known)
                known.update(self._finish_reduces(level, totals))
        self._store_row(first, known)

    def _start_row(self, r: V) -> tuple[list[V], Row]:
        """The outer indices of row r, and its first point."""
        outer_extents, inner_extents = self.points.extents
        outer = _unravel(self.b, r, outer_extents)
        return outer, self.points.row([*outer, *[const(0, I64)] * max(len(inner_extents) - 1, 0)])

    def _store_row(self, first: Row, known: dict[Value, V]) -> None:
        """Store the outputs that have one value per row."""
        zero = const(0, I64)
        for v, view in self.region.writes:
            if self.plan.is_row(self.region.resolve(v)):
                first.store_value(v, view, first.value(v, known, zero, 1, None, {}), zero, None)

    def _row_ops(self, first: Row, ops: Sequence[Op], known: dict[Value, V]) -> None:
        zero = const(0, I64)
        for op in ops:
            args = [first.value(v, known, zero, 1, None, {}) for v in op.operands]
            known[op.result] = lane_ops.emit(self.b, op, args)

    def _pass(self, level: int, outer: list[V], row_known: dict[Value, V]) -> list[V]:
        """Walk the row once: compute, store, keep and reduce what belongs to this pass. Returns the reductions' totals,
        without their initial values."""
        extents = self.points.extents[1]
        b, plan = self.b, self.plan.passes[level]
        reduces = [(op, Combiner(op)) for op in plan.reduces]
        unroll = 1 if plan.heavy or not reduces else 4
        starts: list[V] = []
        for op, c in reduces:
            starts += [b.splat(v, self.width) for v in c.starts([self._init(op)])]
        carried = starts * unroll

        def point(i_last: V, lead: list[V], linear: V, count: int, mask: V | None, acc: list[V]) -> list[V]:
            row = self.points.row([*outer, *lead])
            known = dict(row_known)
            self._compute(row, plan, known, i_last, linear, count, mask)
            out = []
            for (op, c), a in zip(reduces, acc, strict=True):
                x = b.splat(row.value(op.operands[0], known, i_last, count, mask, {}), count)
                if mask is not None:
                    x = b.select(mask, x, b.splat(c.starts([self._init(op)])[0], count))
                out += c(b, [a], [x])
            return out

        carried = self._walk(extents, unroll, carried, len(reduces), point)
        totals = []
        for k, (_, c) in enumerate(reduces):
            parts = [carried[u * len(reduces) + k] for u in range(unroll)]
            totals += c.lanes_together(b, [combine_tree(b, c, parts)])
        return totals

    def _finish_reduces(self, level: int, totals: Sequence[V]) -> dict[Value, V]:
        """The values of a pass's reductions from their totals."""
        out = {}
        for op, total in zip(self.plan.passes[level].reduces, totals, strict=True):
            (out[op.result],) = Combiner(op).finish(self.b, [total], [self._init(op)], [known_splat(op.operands[1])])
        return out

    def _init(self, op: Op) -> V:
        number = known_splat(op.operands[1])
        if number is None:
            raise ValueError(f"the initial value of a row reduction must be a constant ({', '.join(op.loc)})")
        return const(number, lanes.reg_elem(op.result.dtype))

    def _walk(self, extents: list[V], unroll: int, carried: list[V], per: int,
              point: Callable[[V, list[V], V, int, V | None, list[V]], list[V]]) -> list[V]:
        """Visit the row: leading inner axes one by one, the last in vectors. `carried` is `unroll` sets of `per` values."""
        b, w = self.b, self.width
        last = extents[-1] if extents else const(1, I64)
        lo, hi = self.part or (const(0, I64), last)
        count = b.sub(hi, lo)

        def run(lead: list[V], linear: V, values: list[V]) -> list[V]:
            whole = b.add(lo, b.and_(count, -w * unroll)) if unroll > 1 else lo

            def many(i: V, vals: list[V]) -> list[V]:
                out: list[V] = []
                for u in range(unroll):
                    at = b.add(i, u * w)
                    out += point(at, lead, b.add(linear, at), w, None, vals[u * per:(u + 1) * per])
                return out

            def one(i: V, vals: list[V]) -> list[V]:
                return [*point(i, lead, b.add(linear, i), w, None, vals[:per]), *vals[per:]]

            if unroll > 1:
                values = b.loop(lo, whole, w * unroll, values, many, "main")
            end = b.add(lo, b.and_(count, -w))
            values = b.loop(whole, end, w, values, one, "vector")

            def tail() -> list[V]:
                mask = b.first_lanes(b.sub(hi, end), w)
                return [*point(end, lead, b.add(linear, end), w, mask, values[:per]), *values[per:]]

            return b.if_then(b.icmp("slt", end, hi), tail, values)

        def nest(axis: int, lead: list[V], linear: V, values: list[V]) -> list[V]:
            if axis >= len(extents) - 1:
                return run(lead, b.mul(linear, last), values)
            n = extents[axis]
            return b.loop(0, n, 1, values, lambda i, vals: nest(axis + 1, [*lead, i], b.add(b.mul(linear, n), i), vals), "axis")

        return nest(0, [], const(0, I64), carried)

    # -- one vector of points -------------------------------------------------------------------------------------

    def _compute(self, row: Row, plan: Pass, known: dict[Value, V], d: V, linear: V, count: int, mask: V | None) -> None:
        b = self.b
        for v in plan.reloads:
            known[v] = self._reload(v, linear, count)
        for op in plan.ops:
            if op.name == "gather":
                known[op.result] = self._gather(row, self.region.gathers[op.result], known, d, count, mask)
            else:
                args = [row.value(v, known, d, count, mask, {}) for v in op.operands]
                if softmax_sum(self.region, op) is not None:  # as TensorFlow's own; the reciprocal is taken once a row
                    known[op.result] = b.fmul(b.splat(args[0], count), b.splat(b.fdiv(const(1.0, args[1].ty), args[1]), count))
                else:
                    known[op.result] = lane_ops.emit(b, op, args)
        for v in plan.keep:
            self._keep(v, b.splat(row.value(v, known, d, count, mask, {}), count), linear)
        for v, view in plan.writes:
            x = row.value(v, known, d, count, mask, {})
            row.store_value(v, view, b.splat(x, count), d, mask)

    def _strip_ty(self, dtype: DType) -> Ty:
        return I8 if dtype.is_bool else lanes.reg_elem(dtype)

    def _keep(self, v: Value, x: V, linear: V) -> None:
        """Whole vectors: strips are padded, and a vector's excess is overwritten by what follows."""
        elem = self._strip_ty(v.dtype)
        self.b.store(self.b.zext(x, I8) if v.dtype.is_bool else x, self.b.gep(self.strips[v], linear, elem))

    def _reload(self, v: Value, linear: V, count: int) -> V:
        elem = self._strip_ty(v.dtype)
        x = self.b.load(vec(elem, count), self.b.gep(self.strips[v], linear, elem))
        return self.b.icmp("ne", x, 0) if v.dtype.is_bool else x

    def _gather(self, row: Row, g: GatherRead, known: dict[Value, V], d: V, count: int, mask: V | None) -> V:
        """One row of a table per row of the space: the index is clamped as StableHLO says."""
        b = self.b
        raw = row.value(g.index, known, d, 1, None, {})
        index = lanes.convert(b, raw, g.index.dtype, DType.I64)
        limit = self.frame.dim(g.limit)
        index = b.smax(b.smin(index, b.sub(limit, 1)), 0)
        start = b.mul(index, self.frame.dim(g.table.axes[0].stride))
        view = self.tables[g.op.result]
        access = self.points.accesses[view]
        assert access.base is not None
        moved = dataclasses.replace(access, base=b.gep(access.base, start, lanes.mem_elem(g.op.result.dtype)))
        self.points.accesses[view] = moved
        try:
            return row.load(g.op.result, view, d, count, mask)
        finally:
            self.points.accesses[view] = access


def combine_tree(b: FnBuilder, c: Combiner, parts: Sequence[V]) -> V:
    """Combine a power of two of values: the first half with the second, and so on."""
    parts = list(parts)
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [c(b, [parts[i]], [parts[i + half]])[0] for i in range(half)]
    return parts[0]


def _unravel(b: FnBuilder, r: V, extents: Sequence[V]) -> list[V]:
    """A linear row number as outer indices."""
    out: list[V] = []
    for n in reversed(extents[1:]):
        safe = b.smax(n, 1)
        out.append(b.urem(r, safe))
        r = b.udiv(r, safe)
    if extents:
        out.append(r)
    return out[::-1]


