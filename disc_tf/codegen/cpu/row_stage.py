"""The row stage of an attention: elementwise ops and row reductions over a strip of scores in scratch.

The ops fall into passes over the row: pass p computes what depends on at most p reductions one after another.
A value that a later pass needs is kept in a row buffer; row-level values (results of reductions and what is
computed from them alone) are scalars.
"""

from __future__ import annotations

from collections.abc import Callable

from disc_tf.codegen.cpu import lane_ops, lanes
from disc_tf.codegen.cpu.points import Points, Row, Seed
from disc_tf.codegen.llvm import I1, I8, FnBuilder, V, const, vec
from disc_tf.ir.builder import identity_value
from disc_tf.ir.core import Op, Value, reduce_kind
from disc_tf.ir.types import DType
from disc_tf.passes.rewriter import splat_of

#: vectors in flight: separate accumulators, combined in a fixed order
_UNROLL = 4


class RowStage:
    """Passes over one row of a score region (`Region.inner` is 1). `crossing` are the values that need a row
    buffer each; the caller sets `buffers` to their addresses (8 bytes an element, room for whole vectors)."""

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

    def emit(self, index: list[V], count: V, seed: Seed, store: Callable[[V, V], None]) -> None:
        """Run all passes over one row of `count` elements. `seed(at, lanes)` loads scores; `store(x, at)`
        takes the result.

        Both may touch up to a vector beyond `count`.
        """
        row = self.points.row(index)
        scalars: dict[Value, V] = {}
        for p in range(self.passes):
            reduces = [op for op in self.region.ops if op.name == "reduce" and self._pass_of(op) == p]
            sums = self._pass(p, row, count, seed, store, reduces, scalars)
            for op, x in zip(reduces, sums, strict=True):
                scalars[op.result] = x
            self._row_ops(p + 1, row, scalars)

    def _row_ops(self, phase: int, row: Row, scalars: dict[Value, V]) -> None:
        for op in self.region.ops:
            if op.name != "reduce" and op.result in self.is_row and self.phase[op.result] == phase:
                row.compute([op], scalars, self.b.i64(0), 1, None, {})

    def _pass(
        self,
        p: int,
        row: Row,
        count: V,
        seed: Seed,
        store: Callable[[V, V], None],
        reduces: list[Op],
        scalars: dict[Value, V],
    ) -> list[V]:
        b, width = self.b, self.width
        if p == 0:
            self._row_ops(0, row, scalars)
        ops = [
            op
            for op in self.region.ops
            if op.name != "reduce" and op.result not in self.is_row and self.phase[op.result] == p
        ]
        identities = [self._identity(op) for op in reduces]
        inverses = self._inverses(ops, scalars)

        def one(d: V, accs: list[V], mask: V | None) -> list[V]:
            known = dict(scalars)
            seeds = {self.seed: seed, **{v: self._kept(v) for v in self.crossing if self.phase[v] < p}}
            for op in ops:
                inverse = inverses.get(op)
                if inverse is None:
                    row.compute([op], known, d, width, mask, seeds)
                else:
                    x = b.splat(row.value(op.operands[0], known, d, width, mask, seeds), width)
                    known[op.result] = b.fmul(x, b.splat(inverse, width))
            for v, buffer in zip(self.crossing, self.buffers, strict=True):
                if self.phase[v] == p:
                    self._keep(b.splat(known[v], width), buffer, d)
            if self._phase(self.result) == p:
                store(b.splat(row.value(self.result, known, d, width, mask, seeds), width), d)
            out = []
            for op, acc, identity in zip(reduces, accs, identities, strict=True):
                x = b.splat(row.value(op.operands[0], known, d, width, mask, seeds), width)
                if mask is not None:
                    x = b.select(mask, x, identity)
                out.append(self._combine(op, acc, x))
            return out

        n = len(reduces)
        unroll = _UNROLL if n else 2
        big, whole = b.and_(count, -width * unroll), b.and_(count, -width)

        def several(d: V, accs: list[V]) -> list[V]:
            out: list[V] = []
            for u in range(unroll):
                out += one(b.add(d, u * width), accs[u * n : (u + 1) * n], None)
            return out

        accs = b.loop(0, big, width * unroll, identities * unroll, several, "vectors")
        while len(accs) > n:
            half = len(accs) // 2
            accs = [
                self._combine(reduces[i % n], x, y)
                for i, (x, y) in enumerate(zip(accs[:half], accs[half:], strict=True))
            ]
        accs = b.loop(big, whole, width, accs, lambda d, a: one(d, a, None), "vector")

        def tail() -> list[V]:
            mask = b.icmp("slt", b.iota(width), b.splat(b.sub(count, whole), width))
            return one(whole, accs, mask)

        accs = b.if_then(b.icmp("slt", whole, count), tail, accs)
        return [self._finish(op, x) for op, x in zip(reduces, accs, strict=True)]

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
        """Divisions of a full value by a row sum in f32 or f64 -> the reciprocal of the sum."""
        out: dict[Op, V] = {}
        for op in ops:
            if op.name != "divide" or op.result.dtype not in (DType.F32, DType.F64):
                continue
            below = self.region.resolve(op.operands[1])
            is_sum = below.op is not None and below.op.name == "reduce" and reduce_kind(below.op) == "add"
            if is_sum and below in scalars:
                out[op] = self.b.fdiv(const(1.0, scalars[below].ty), scalars[below])
        return out

    # -- row buffers
    # --------------------------------------------------------------------------------------------

    def _keep(self, x: V, buffer: V, d: V) -> None:
        b = self.b
        if x.ty.elem is I1:
            x = b.zext(x, I8)
        b.store(x, b.gep(buffer, d, x.ty.elem))

    def _kept(self, v: Value) -> Seed:
        b, buffer = self.b, self.buffers[self.crossing.index(v)]
        elem = lanes.reg_elem(v.dtype)

        def load(d: V, count: int) -> V:
            stored = I8 if elem is I1 else elem
            x = b.load(vec(stored, count), b.gep(buffer, d, stored))
            return b.icmp("ne", x, 0) if elem is I1 else x

        return load


_COMBINE = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum", "and": "and", "or": "or"}
