"""The row stage of an attention: elementwise ops and row reductions over a strip of scores in scratch.

The ops fall into passes over the row: pass p computes what depends on at most p reductions one after another.
A value that a later pass needs is kept in a row buffer; row-level values (results of reductions and what is
computed from them alone) are scalars.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from disc_tf.codegen.cpu import lane_ops, lanes
from disc_tf.codegen.cpu.points import Points, Row, Seed
from disc_tf.codegen.cpu.row_plan import softmax_sum
from disc_tf.codegen.llvm import I1, I8, I64, FnBuilder, V, const, vec
from disc_tf.ir.builder import identity_value
from disc_tf.ir.core import Op, Value, reduce_kind
from disc_tf.ir.types import DType
from disc_tf.passes.rewriter import splat_of

#: vectors of a row in flight: separate accumulators, combined in a fixed order
_UNROLL = 2


@dataclasses.dataclass(frozen=True)
class _Line:
    """One of the rows that are worked on side by side, with its row-level values."""

    row: Row
    seed: Seed
    store: Callable[[V, V], None]
    number: int
    scalars: dict[Value, V]


class RowStage:
    """Passes over rows of a score region (`Region.inner` is 1), a few rows side by side: the passes of one row are short chains of
    dependent steps. `crossing` are the values that need a row buffer each; the caller sets `buffers` to their addresses for the
    first row (8 bytes an element, room for whole vectors) and `buffer_bytes` to the distance to the next row's."""

    def __init__(self, points: Points, seed: Value, result: Value, width: int) -> None:
        self.points, self.region, self.seed, self.result, self.width = (
            points,
            points.region,
            seed,
            result,
            width,
        )
        self.b: FnBuilder = points.frame.b
        self.phase: dict[Value, int] = {seed: 0}
        self.is_row = {v for v, level in self.region.level.items() if level == "row"}
        for op in self.region.ops:
            self.phase[op.result] = max((self._phase(v) for v in op.operands), default=0) + (
                op.name == "reduce"
            )
        self.passes = 1 + self._phase(result)
        self.crossing = self._crossing()
        self.buffers: list[V] = []
        self.buffer_bytes = const(0, I64)

    def _phase(self, v: Value) -> int:
        return self.phase.get(self.region.resolve(v), 0)

    def _pass_of(self, op: Op) -> int:
        """The pass that evaluates an op: a reduction runs in the pass that makes its operand."""
        return self.phase[op.result] - (op.name == "reduce")

    def _crossing(self) -> list[Value]:
        """Full values other than the seed that a later pass reads."""
        out: dict[Value, None] = {}
        for op in self.region.ops:
            if op.result in self.is_row and op.name != "reduce":
                continue
            for v in op.operands:
                v = self.region.resolve(v)
                made = v in self.phase and v is not self.seed and v not in self.is_row
                if made and self.phase[v] < self._pass_of(op):
                    out[v] = None
        return list(out)

    def emit(
        self,
        indices: Sequence[list[V]],
        count: V,
        seeds: Sequence[Seed],
        stores: Sequence[Callable[[V, V], None]],
    ) -> None:
        """Run all passes over rows of `count` elements, one for each of `indices`. Per row `seed(at, lanes)` loads scores and
        `store(x, at)` takes the result; both may touch up to a vector beyond `count`.
        """
        lines = [
            _Line(self.points.row(index), seed, store, number, {})
            for number, (index, seed, store) in enumerate(zip(indices, seeds, stores, strict=True))
        ]
        for p in range(self.passes):
            reduces = [op for op in self.region.ops if op.name == "reduce" and self._pass_of(op) == p]
            sums = self._pass(p, lines, count, reduces)
            for line, found in zip(lines, sums, strict=True):
                line.scalars.update(zip((op.result for op in reduces), found, strict=True))
                self._row_ops(p + 1, line)

    def _row_ops(self, phase: int, line: _Line) -> None:
        for op in self.region.ops:
            if op.name != "reduce" and op.result in self.is_row and self.phase[op.result] == phase:
                line.row.compute([op], line.scalars, self.b.i64(0), 1, None, {})

    def _pass(self, p: int, lines: Sequence[_Line], count: V, reduces: list[Op]) -> list[list[V]]:
        """Pass p over all the lines; per line the results of its reductions."""
        b, width = self.b, self.width
        if p == 0:
            for line in lines:
                self._row_ops(0, line)
        ops = [
            op
            for op in self.region.ops
            if op.name != "reduce" and op.result not in self.is_row and self.phase[op.result] == p
        ]
        identities = [self._identity(op) for op in reduces]
        inverses = [self._inverses(ops, line.scalars) for line in lines]

        def one(line: _Line, d: V, accs: list[V], mask: V | None) -> list[V]:
            known, row = dict(line.scalars), line.row
            kept = {v: self._kept(v, line.number) for v in self.crossing if self.phase[v] < p}
            seeds = {self.seed: line.seed, **kept}
            for op in ops:
                inverse = inverses[line.number].get(op)
                if inverse is None:
                    row.compute([op], known, d, width, mask, seeds)
                else:
                    x = b.splat(row.value(op.operands[0], known, d, width, mask, seeds), width)
                    known[op.result] = b.fmul(x, b.splat(inverse, width))
            for v in self.crossing:
                if self.phase[v] == p:
                    self._keep(b.splat(known[v], width), self._buffer(v, line.number), d)
            if self._phase(self.result) == p:
                line.store(b.splat(row.value(self.result, known, d, width, mask, seeds), width), d)
            out = []
            for op, acc, identity in zip(reduces, accs, identities, strict=True):
                x = b.splat(row.value(op.operands[0], known, d, width, mask, seeds), width)
                if mask is not None:
                    x = b.select(mask, x, identity)
                out.append(self._combine(op, acc, x))
            return out

        def across(d: V, accs: list[V], mask: V | None) -> list[V]:
            out: list[V] = []
            for i, line in enumerate(lines):
                out += one(line, d, accs[i * len(reduces) : (i + 1) * len(reduces)], mask)
            return out

        n = len(reduces) * len(lines)
        unroll = _UNROLL if n else 1
        start = identities * len(lines)
        big, whole = b.and_(count, -width * unroll), b.and_(count, -width)

        def several(d: V, accs: list[V]) -> list[V]:
            out: list[V] = []
            for u in range(unroll):
                out += across(b.add(d, u * width), accs[u * n : (u + 1) * n], None)
            return out

        accs = b.loop(0, big, width * unroll, start * unroll, several, "vectors")
        while len(accs) > n:
            half = len(accs) // 2
            accs = [
                self._combine(reduces[i % len(reduces)], x, y)
                for i, (x, y) in enumerate(zip(accs[:half], accs[half:], strict=True))
            ]
        if unroll > 1:
            accs = b.loop(big, whole, width, accs, lambda d, a: across(d, a, None), "vector")

        def tail() -> list[V]:
            mask = b.first_lanes(b.sub(count, whole), width)
            return across(whole, accs, mask)

        accs = b.if_then(b.icmp("slt", whole, count), tail, accs)
        found = [self._finish(op, x) for op, x in zip(reduces * len(lines), accs, strict=True)]
        return [found[i * len(reduces) : (i + 1) * len(reduces)] for i in range(len(lines))]

    # -- reductions
    # ---------------------------------------------------------------------------------------------

    def _identity(self, op: Op) -> V:
        dtype = op.result.dtype
        value = identity_value(reduce_kind(op) or "", dtype)
        return const(float(value) if dtype.is_float else int(value), lanes.reg_ty(dtype, self.width))

    def _combine(self, op: Op, x: V, y: V) -> V:
        """One step of a reduction; f16 and bf16 sums stay in f32."""
        kind, dtype = reduce_kind(op), op.result.dtype
        wide = DType.F32 if dtype in lanes.HALVES else dtype
        return lane_ops.binary(self.b, _COMBINE[kind or ""], wide, x, y)

    def _finish(self, op: Op, acc: V) -> V:
        b, dtype = self.b, op.result.dtype
        x = b.hreduce(acc, lambda u, v: self._combine(op, u, v))
        init = splat_of(op.operands[1])
        if init is not None and init != identity_value(reduce_kind(op) or "", dtype):
            x = self._combine(op, const(float(init) if dtype.is_float else int(init), x.ty), x)
        return lanes.round_float(b, dtype, x)

    def _inverses(self, ops: list[Op], scalars: dict[Value, V]) -> dict[Op, V]:
        """Divisions of a softmax -> the reciprocal of the row's sum."""
        totals = {op: softmax_sum(self.region, op) for op in ops}
        return {op: self.b.fdiv(const(1.0, scalars[v].ty), scalars[v]) for op, v in totals.items() if v is not None and v in scalars}

    # -- row buffers
    # --------------------------------------------------------------------------------------------

    def _keep(self, x: V, buffer: V, d: V) -> None:
        b = self.b
        if x.ty.elem is I1:
            x = b.zext(x, I8)
        b.store(x, b.gep(buffer, d, x.ty.elem))

    def _buffer(self, v: Value, line: int) -> V:
        return self.b.gep(self.buffers[self.crossing.index(v)], self.b.mul(self.buffer_bytes, line), I8)

    def _kept(self, v: Value, line: int) -> Seed:
        b, buffer = self.b, self._buffer(v, line)
        elem = lanes.reg_elem(v.dtype)

        def load(d: V, count: int) -> V:
            stored = I8 if elem is I1 else elem
            x = b.load(vec(stored, count), b.gep(buffer, d, stored))
            return b.icmp("ne", x, 0) if elem is I1 else x

        return load


_COMBINE = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum", "and": "and", "or": "or"}
