"""`disc.segment`: rows gathered, weighted and reduced by segment, in one kernel; `disc.fill_rows`: a call of the runtime's library.

Sorted ids: a task is a block of columns of one segment, whose accumulators stay in registers while its rows are walked. Ids that may come
in any order: a task is a block of columns of the whole result, into which the rows are combined one after the other. Either way an
element's terms come in the order of the rows, however the tasks are split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu import index as ix
from disc_tf.codegen.cpu import lane_ops, lanes
from disc_tf.codegen.cpu.elemental import Elemental
from disc_tf.codegen.cpu.frame import KernelFrame
from disc_tf.codegen.cpu.loops import lanes_for
from disc_tf.codegen.cpu.monoids import identity
from disc_tf.codegen.cpu.sorting import dtype_code, targets_of
from disc_tf.codegen.kernel import Kernel, LibraryCall, Temp
from disc_tf.codegen.llvm import V, const
from disc_tf.costs import SCATTERED, grain, plain_ps
from disc_tf.fusion.types import Fusion
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim, ceildiv, dmax, product
from disc_tf.ir.opset.segments import fill_value
from disc_tf.ir.types import DType

UNROLL = 8  # vectors of a row that are accumulated at once
SHARED_COLUMNS = 32  # columns of a task where ids are in any order
_OP = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


def emit_segment(fusion: Fusion, op: Op, ctx: EmitContext) -> list[Kernel]:
    """One kernel; any dtype but bool, i32 or i64 ids and indices."""
    return [_Segment(f"k_{fusion.name.replace('.', '_')}", op, ctx).emit()]


class _Segment:
    """Emits one kernel."""

    def __init__(self, name: str, op: Op, ctx: EmitContext) -> None:
        self.op, self.out = op, op.result
        self.data, self.ids, *rest = op.operands
        self.indices: Value | None = rest[0] if rest else None
        self.weights: Value | None = rest[1] if len(rest) > 1 else None
        self.kind, self.scale = op.attrs["kind"], op.attrs["scale"]
        self.dtype: DType = op.result.dtype
        self.inner = ctx.env.simplify(product(self.data.dims[1:]))
        self.frame = KernelFrame(name, ctx.target, ctx.env, (*op.operands, op.result))
        self.b = self.frame.b
        self.e = Elemental(self.frame, 1 if self.inner == 1 else lanes_for(ctx, [self.data]), ())
        #: in which sums are made: 16-bit floats are rounded at every step, unless the op is wide
        self.acc = DType.F32 if op.attrs["wide"] and self.dtype in lanes.HALVES else self.dtype

    # ---- pieces ---------------------------------------------------------------------------------------------------

    def _number(self, value: float | int) -> V:
        return self.b.splat(const(value, lanes.reg_elem(self.dtype)), self.e.width)

    def _scalar(self, v: Value, n: V) -> V:
        """Element ``n`` of a vector of integers, as i64."""
        loaded = self.b.load(lanes.mem_elem(v.dtype), self.b.gep(self.frame.buffer(v), n, lanes.mem_elem(v.dtype)), invariant=True)
        return lanes.convert(self.b, loaded, v.dtype, DType.I64)

    def _row(self, n: V) -> V:
        """The row of the data that is the ``n``-th to be added."""
        if self.indices is None:
            return n
        b = self.b
        return b.smax(b.smin(self._scalar(self.indices, n), b.sub(self.frame.dim(self.data.dims[0]), 1)), 0)

    def _terms(self, n: V, columns: Sequence[V]) -> list[V]:
        """The ``n``-th row's elements at ``columns`` (where vectors start), weighted."""
        b, e, dtype = self.b, self.e, self.dtype
        base = b.mul(self._row(n), self.frame.dim(self.inner))
        weight = None
        if self.weights is not None:
            bits = b.load(lanes.mem_elem(dtype), b.gep(self.frame.buffer(self.weights), n, lanes.mem_elem(dtype)), invariant=True)
            weight = b.splat(lanes.from_memory(b, dtype, bits), e.width)
        out = []
        for c in columns:
            x = b.splat(e.load_from(self.frame.buffer(self.data), dtype, self._place(base, c)), e.width)
            out.append(x if weight is None else lane_ops.binary(b, "multiply", dtype, x, weight))
        return out

    def _place(self, base: V, column: V) -> ix.Index:
        at = self.b.add(base, column)
        return ix.ramp(at) if self.e.width > 1 else ix.uniform(at)

    def _combine(self, acc: V, x: V) -> V:
        if self.dtype.is_float and self.kind in ("max", "min"):  # a NaN hides what was before it, and is hidden by what comes after
            return self.b.fmax_x86(acc, x) if self.kind == "max" else self.b.fmin_x86(acc, x)
        return lane_ops.binary(self.b, _OP[self.kind], self.acc, acc, x)

    def _columns(self, lo: V, hi: V, visit: Callable[[list[V]], None], counts: Sequence[int]) -> None:
        """``visit`` the columns [lo, hi) in groups of ``counts`` vectors, then the masked rest. Static widths take one group."""
        b, w = self.b, self.e.width
        if lo.const is not None and hi.const is not None and (width := int(hi.const) - int(lo.const)) <= UNROLL * w:
            whole = width // w
            if whole:
                visit([b.i64(int(lo.const) + u * w) for u in range(whole)])
            start = b.i64(int(lo.const) + whole * w)
        else:
            start = lo
            for count in counts:
                end = b.add(start, b.and_(b.sub(hi, start), -(count * w)))

                def group(c: V, _: list[V], count: int = count) -> None:
                    visit([b.add(c, u * w) for u in range(count)])

                b.loop(start, end, count * w, [], group, "group")
                start = end
        if w == 1:
            return

        def tail() -> None:
            self.e.mask = b.first_lanes(b.sub(hi, start), w)
            visit([start])
            self.e.mask = None

        if start.const is None or hi.const is None or int(start.const) < int(hi.const):
            b.if_then(b.icmp("slt", start, hi), tail)

    # ---- the two kernels --------------------------------------------------------------------------------------------

    def emit(self) -> Kernel:
        return self._sorted() if self.op.attrs["sorted"] else self._any_order()

    def _sorted(self) -> Kernel:
        b, frame = self.b, self.frame
        width = UNROLL * self.e.width
        whole = self.inner.is_static and int(self.inner) <= width
        blocks = Dim.of(1) if whole else ceildiv(self.inner, width)
        count, n = frame.dim(blocks), frame.dim(self.ids.dims[0])
        n = b.select(b.icmp("sgt", frame.dim(self.data.dims[0]), 0), n, 0)  # no data: no row can be read

        def task(t: V, range_: list[V]) -> list[V]:
            s = t if whole else b.udiv(t, b.smax(count, 1))
            block = b.i64(0) if whole else b.urem(t, b.smax(count, 1))
            first = b.icmp("eq", t, frame.begin)
            fresh = b.or_(first, b.icmp("eq", block, 0))

            def find() -> list[V]:
                lo = b.if_else(first, lambda: [self._lower_bound(s, n)], lambda: [range_[1]])[0]
                return [lo, self._run_end(lo, s, n)]

            lo, hi = b.if_then(fresh, find, range_)
            c0 = b.mul(block, width)
            c1 = b.i64(int(self.inner)) if whole else b.smin(b.add(c0, width), frame.dim(self.inner))
            self._columns(c0, c1, lambda columns: self._segment(s, lo, hi, columns), (UNROLL, 2, 1))
            return [lo, hi]

        b.loop(frame.begin, frame.end, 1, [b.i64(0), b.i64(0)], task, "task")
        segments, rows = self.out.dims[0], self.ids.dims[0]
        # Rows are spread evenly, as far as one can tell: work of a task for the grain.
        work = (1 + rows // dmax(segments, 1)) * (dmax(self.inner, 1) if whole else Dim.of(width))
        return frame.finish(segments * blocks, grain(work, SCATTERED * plain_ps(frame.target.name)))

    def _lower_bound(self, s: V, n: V) -> V:
        """The first of the sorted ids that is not below ``s``."""
        b = self.b

        def halve(c: list[V]) -> list[V]:
            lo, hi = c
            mid = b.lshr(b.add(lo, hi), 1)
            below = b.icmp("slt", self._scalar(self.ids, mid), s)
            return [b.select(below, b.add(mid, 1), lo), b.select(below, hi, mid)]

        return b.while_loop([b.i64(0), n], lambda c: b.icmp("slt", c[0], c[1]), halve)[0]

    def _run_end(self, lo: V, s: V, n: V) -> V:
        """The end of the run of ids that equal ``s`` from ``lo`` on."""
        b = self.b

        def equal(c: list[V]) -> V:
            inside = b.icmp("slt", c[0], n)
            return b.if_then(inside, lambda: [b.icmp("eq", self._scalar(self.ids, c[0]), s)], [inside])[0]

        return b.while_loop([lo], equal, lambda c: [b.add(c[0], 1)])[0]

    def _segment(self, s: V, lo: V, hi: V, columns: list[V]) -> None:
        """One segment's columns: its rows [lo, hi) combined, scaled and stored."""
        b, e, dtype = self.b, self.e, self.dtype
        start = 0.0 if self.kind == "add" and dtype.is_float else identity(self.kind, dtype)

        def add(n: V, accs: list[V]) -> list[V]:
            return [self._combine(a, x) for a, x in zip(accs, self._terms(n, columns), strict=True)]

        accs = b.loop(lo, hi, 1, [self._number(start)] * len(columns), add, "rows")
        empty = b.icmp("sge", lo, hi)
        fill = self._number(fill_value(self.kind, self.op.attrs["empty"], dtype))
        base = b.mul(s, self.frame.dim(self.inner))
        for c, acc in zip(columns, accs, strict=True):
            value = e.select(b.splat(empty, e.width), fill, self._scaled(acc, b.sub(hi, lo)))
            e.store(dtype, self.frame.buffer(self.out), self._place(base, c), value)

    def _scaled(self, total: V, count: V) -> V:
        b = self.b
        if self.scale == "none":
            return total
        count = b.smax(count, 1)
        by = lanes.convert(b, count, DType.I64, self.acc)
        if self.scale == "sqrtn":
            by = lanes.convert(b, b.sqrt(lanes.convert(b, count, DType.I64, DType.F64)), DType.F64, self.acc)
        return lane_ops.binary(b, "divide", self.acc, total, b.splat(by, self.e.width))

    def _any_order(self) -> Kernel:
        b, e, frame, dtype = self.b, self.e, self.frame, self.dtype
        blocks = ceildiv(self.inner, SHARED_COLUMNS)
        single = self.inner.is_static and int(self.inner) <= SHARED_COLUMNS
        n, segments, rows = frame.dim(self.ids.dims[0]), frame.dim(self.out.dims[0]), frame.dim(self.data.dims[0])
        n = b.select(b.icmp("sgt", rows, 0), n, 0)
        inner = frame.dim(self.inner)
        p = frame.buffer(self.out)
        fill = self._number(fill_value(self.kind, self.op.attrs["empty"], dtype))

        def task(t: V, _: list[V]) -> None:
            lo = b.i64(0) if single else b.mul(t, SHARED_COLUMNS)
            hi = b.i64(int(self.inner)) if single else b.smin(b.add(lo, SHARED_COLUMNS), inner)

            def clear(s: V, _: list[V]) -> None:
                base = b.mul(s, inner)

                def put(columns: list[V]) -> None:
                    for c in columns:
                        e.store(dtype, p, self._place(base, c), fill)

                self._columns(lo, hi, put, (1,))

            def add(k: V, _: list[V]) -> None:
                s = self._scalar(self.ids, k)
                inside = b.and_(b.icmp("sge", s, 0), b.icmp("slt", s, segments))
                base = b.mul(s, inner)

                def put(columns: list[V]) -> None:
                    for c, x in zip(columns, self._terms(k, columns), strict=True):
                        place = self._place(base, c)
                        e.store(dtype, p, place, self._combine(self._reload(p, place), x))

                b.if_then(inside, lambda: self._columns(lo, hi, put, (1,)))

            b.loop(0, segments, 1, [], clear, "clear")
            b.loop(0, n, 1, [], add, "row")

        b.loop(frame.begin, frame.end, 1, [], task, "task")
        work = (self.ids.dims[0] + self.out.dims[0]) * SHARED_COLUMNS
        return frame.finish(blocks, grain(work, plain_ps(frame.target.name)))

    def _reload(self, p: V, at: ix.Index) -> V:
        """Elements that this kernel may have stored."""
        b, e, elem = self.b, self.e, lanes.mem_elem(self.dtype)
        address = b.gep(p, at.base, elem)
        if e.width == 1:
            bits = b.load(elem, address)
        elif e.mask is None:
            bits = b.load(lanes.mem_ty(self.dtype, e.width), address)
        else:
            bits = b.masked_load(lanes.mem_ty(self.dtype, e.width), address, e.mask)
        return lanes.from_memory(b, self.dtype, bits)


# ---- fill_rows ----------------------------------------------------------------------------------------------------


def emit_fill_rows(fusion: Fusion, op: Op, ctx: EmitContext) -> list[LibraryCall]:
    """Library function ``fill_rows``."""
    indices, values, _ = op.operands
    rows, reverse = Dim.of(op.attrs["rows"]), Dim.of(int(op.results[3] in fusion.outputs))
    scalars = tuple(map(ctx.env.simplify, (dtype_code(values), indices.dims[0], indices.dims[1], rows, reverse)))
    return [LibraryCall("fill_rows", (*op.operands, *targets_of(fusion, op), Temp("fill_rows_starts", rows * 8)), scalars)]


__all__ = ["emit_fill_rows", "emit_segment"]
