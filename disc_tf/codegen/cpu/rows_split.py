"""Few long rows: every row is cut into a fixed number of pieces, so that threads share it.

Each pass over the rows becomes two kernels: one walks the pieces and leaves a partial total per piece and reduction;
one combines the partial totals of each row in a fixed tree. Reduction results and kept values live in temporaries;
row-level values are computed again from the results by whoever needs them.
"""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu.monoids import Combiner
from disc_tf.codegen.cpu.rows import RowsEmitter, combine_tree
from disc_tf.codegen.kernel import Kernel, Temp
from disc_tf.codegen.llvm import I8, I64, V
from disc_tf.fusion.types import Fusion, Region
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim, ceildiv

PIECES = 16  # a power of two: partial totals combine in a tree
_SLOT = 8  # bytes of a partial total or a result


class _Temps:
    """Temporaries shared by the kernels of one variant."""

    def __init__(self, e: RowsEmitter) -> None:
        reduces = [op for p in e.plan.passes for op in p.reduces]
        self.slot: dict[Value, int] = {op.result: k for k, op in enumerate(reduces)}
        count = max(len(reduces), 1)
        self.count = count
        self.results = Temp("row_results", e.rows * (count * _SLOT))
        self.partials = Temp("row_partials", e.rows * (PIECES * count * _SLOT))
        # Strips are written in whole vectors: rows of them are padded, or a tail would spill into another thread's row.
        self.pitch = ceildiv(e.row_length, 64) * 64
        self.strips = {v: Temp(f"strip_{k}", e.rows * self.pitch * 8) for k, v in enumerate(e.plan.kept)}


def emit_split(fusion: Fusion, region: Region, ctx: EmitContext) -> tuple[Kernel, ...]:
    """The kernels of the variant, in order."""
    temps: _Temps | None = None
    kernels: list[Kernel] = []
    level = 0
    while True:
        walker = _SplitRows(fusion, region, ctx, f"_part{level}")
        temps = temps or _Temps(walker)
        passes = walker.plan.passes
        if level < len(passes):
            kernels.append(walker.walk(level, temps))
        last = level + 1 >= len(passes)
        if last or passes[level].reduces:
            kernels.append(_SplitRows(fusion, region, ctx, f"_join{level}").join(level, temps, last))
        if last:
            return tuple(kernels)
        level += 1


class _SplitRows(RowsEmitter):
    """Emits one of the kernels."""

    def _known_before(self, level: int, r: V, first, temps: _Temps) -> dict[Value, V]:
        """Row-level values that pass `level` may use: stored reduction results, and row ops computed from them."""
        known: dict[Value, V] = {}
        for s, ops in enumerate(self.plan.row_ops[:level + 1]):
            if s:
                for op in self.plan.passes[s - 1].reduces:
                    known[op.result] = self._load_slot(temps.results, r, temps, op)
            self._row_ops(first, ops, known)
        return known

    def _slot_at(self, temp: Temp, row: V, temps: _Temps, op: Op) -> V:
        b = self.b
        index = b.add(b.mul(row, temps.count), temps.slot[op.result])
        return b.gep(self.frame.buffer(temp), index, I64)

    def _load_slot(self, temp: Temp, row: V, temps: _Temps, op: Op) -> V:
        """A total as the register type of its reduction."""
        b = self.b
        x = b.load(self._strip_ty(op.result.dtype), self._slot_at(temp, row, temps, op))
        return b.icmp("ne", x, 0) if op.result.dtype.is_bool else x

    def _store_slot(self, temp: Temp, row: V, temps: _Temps, op: Op, x: V) -> None:
        b = self.b
        b.store(b.zext(x, I8) if op.result.dtype.is_bool else x, self._slot_at(temp, row, temps, op))

    def walk(self, level: int, temps: _Temps) -> Kernel:
        """Pass `level` over every piece of every row: tasks are rows x pieces."""
        b, frame = self.b, self.frame
        piece = frame.dim(ceildiv(ceildiv(self.row_length, PIECES), 64) * 64)
        length = frame.dim(self.row_length)
        reduces = self.plan.passes[level].reduces

        def task(t: V, _: list[V]) -> None:
            r, p = b.udiv(t, PIECES), b.urem(t, PIECES)
            outer, first = self._start_row(r)
            known = self._known_before(level, r, first, temps)
            for v, temp in temps.strips.items():
                elem = self._strip_ty(v.dtype)
                self.strips[v] = b.gep(frame.buffer(temp), b.mul(r, frame.dim(temps.pitch)), elem)
            lo = b.smin(b.mul(p, piece), length)
            self.part = (lo, b.smin(b.add(lo, piece), length))
            for op, total in zip(reduces, self._pass(level, outer, known), strict=True):
                self._store_slot(temps.partials, t, temps, op, total)

        b.loop(frame.begin, frame.end, 1, [], task, "piece")
        return frame.finish(self.rows * PIECES)

    def join(self, level: int, temps: _Temps, last: bool) -> Kernel:
        """Combine the partial totals of pass `level`; after the last pass also store the row-level outputs."""
        b, frame = self.b, self.frame
        reduces: Sequence[Op] = self.plan.passes[level].reduces if level < len(self.plan.passes) else ()

        def row(r: V, _: list[V]) -> None:
            _, first = self._start_row(r)
            totals = []
            for op in reduces:
                at = b.mul(r, PIECES)
                parts = [self._load_slot(temps.partials, b.add(at, p), temps, op) for p in range(PIECES)]
                totals.append(combine_tree(b, Combiner(op), parts))
            results = self._finish_reduces(level, totals) if reduces else {}
            for op in reduces:
                self._store_slot(temps.results, r, temps, op, results[op.result])
            if last:
                known = self._known_before(level, r, first, temps)
                known.update(results)
                for ops in self.plan.row_ops[level + 1:]:
                    self._row_ops(first, ops, known)
                self._store_row(first, known)

        b.loop(frame.begin, frame.end, 1, [], row, "row")
        return frame.finish(self.rows, Dim.of(FEW))


FEW = 8  # rows to a chunk: combining is quick
