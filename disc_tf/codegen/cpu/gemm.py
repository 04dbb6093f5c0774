"""dot_general with its epilogue as one kernel: 2-D tasks over row and column blocks, panels of the right
operand, spilled block.

Schedule (measured, see `tiles.py` and `helpers/gemm.py`): a task is one block of rows times one block of
columns. Block sizes follow from target, type and shape, never from the number of threads, so that results are the
same however tasks are split. Which columns, how many tasks share a block of rows, in which order tasks come and when a
right operand is packed says the table of the target (`disc_tf.tuning`): none of it changes the order of additions. Rows
do, since a strip of few rows sums in several chains: so blocks of rows and their strips follow from constants here, and
tasks that share a block divide its strips. The block's product goes to scratch (it stays in the inner caches) and the
epilogue runs over it a row at a time; a product that is stored as it is goes straight to its place.

Operands are views: any strides, any number of axes per role. What the micro-kernels cannot read in place (the
contracted axis of the left operand not contiguous, narrow types, a transposed or ragged right operand) is
copied to the worker's scratch, once for the consecutive tasks that share it. A constant right operand is
packed once, by `prepare`.
"""

from __future__ import annotations

import dataclasses
import itertools

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu import lanes
from disc_tf.codegen.cpu.dot_choice import is_prepared, least_rows, product_dot
from disc_tf.codegen.cpu.dots import Dot, in_words, words_layout
from disc_tf.codegen.cpu.emit import emitter
from disc_tf.codegen.cpu.epilogue import LARGE, ask_block, emit_block, sums_of
from disc_tf.codegen.cpu.helpers.gemm import K_WHOLE, Strips, gemm_symbol, k_blocks, strips_symbol
from disc_tf.codegen.cpu.helpers.pack import pack_symbol, rows_symbol
from disc_tf.codegen.cpu.helpers.words import word_pack_symbol, word_rows_symbol
from disc_tf.codegen.cpu.points import Points
from disc_tf.codegen.cpu.product_frame import ONE, ProductFrame, Run, extent_of, grid_order, known, more_rows, unravel
from disc_tf.codegen.cpu.tiles import Tile, acc_dtype, acc_ty, panel_layout, tile_for
from disc_tf.codegen.kernel import Guard, Kernel, Variant
from disc_tf.codegen.llvm import I1, I8, I32, V, const
from disc_tf.costs import PRODUCT_CHUNK_US, grain, mac_ps
from disc_tf.fusion.types import Fusion, PrepareEntry, Region
from disc_tf.fusion.views import Axis, View, merge_axes
from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, DimTooComplex, ceildiv, dmax, dmin
from disc_tf.tuning.table import BLOCK_ROWS, columns_of

#: bytes of columns below which there are two blocks of rows at least
_FEW_COLUMN_BYTES = 2304
#: rows from which on a right operand with parts of vectors in its rows is packed: these are other tiles then, with other chains
_PACK_ROWS = 24


@emitter("gemm")
def emit_gemm(fusion: Fusion, ctx: EmitContext) -> list[Variant]:
    """Kernels of a fusion of kind ``gemm`` (attrs as `Fusion` documents). One kernel serves every M, N, K,
    zero included.

    ValueError for element types without a product (bool).
    """
    dot = product_dot(fusion, ctx.target.dots, ctx.env)
    product = _Gemm(fusion, ctx, dot)
    kernel = product.emit()
    if dot is None or is_prepared(fusion):
        return [Variant(None, (kernel,))]
    few = Guard(((product.m, "lt", Dim.of(least_rows(dot))),))
    return [Variant(few, (_Gemm(fusion, ctx, None).emit(),)), Variant(None, (kernel,))]


@dataclasses.dataclass(frozen=True)
class _Role:
    """An operand's axes by role, merged."""

    view: View
    batch: list[Axis]
    outer: list[Axis]
    inner: list[Axis]


def _unit(axes: list[Axis], ctx: EmitContext) -> bool:
    """Whether the axes are one contiguous run (or nothing)."""
    return not axes or (len(axes) == 1 and ctx.env.is_equal(axes[0].stride, ONE) is True)


class _Gemm:
    """Emits one fusion."""

    def __init__(self, fusion: Fusion, ctx: EmitContext, words: Dot | None) -> None:
        self.fusion, self.ctx, self.target, self.words = fusion, ctx, ctx.target, words
        dot = fusion.attrs["dot"]
        self.dot: Value = dot.result
        self.region: Region = fusion.attrs["region"]
        self.groups: tuple[int, int, int, int] = tuple(fusion.attrs["axes"])
        nb, nm, _, nk = self.groups
        lhs, rhs = fusion.attrs["lhs"], fusion.attrs["rhs"]
        self.acc = acc_dtype(self.dot.dtype)
        self.lhs_dtype, self.rhs_dtype = dot.operands[0].dtype, dot.operands[1].dtype
        self.tile: Tile = tile_for(self.target, self.acc)
        self.ty = acc_ty(str(self.acc))
        env = ctx.env
        self.batch, self.m = extent_of(lhs.axes[:nb]), extent_of(lhs.axes[nb : nb + nm])
        self.k, self.n = extent_of(lhs.axes[nb + nm :]), extent_of(rhs.axes[nb + nk :])
        #: steps of the sum, and rows of a panel before the first
        self.steps, self.starts = (self.k, 0) if words is None else (ceildiv(self.k, words.group), words.starts)
        self.lhs, self.rhs = (
            _Role(view, *(merge_axes(part, env) for part in (view.axes[:nb], view.axes[nb : nb + n], view.axes[nb + n :])))
            for view, n in ((lhs, nm), (rhs, nk))
        )
        same = self.lhs_dtype.bits == self.ty.bits and self.lhs_dtype.is_float == self.acc.is_float
        same = same if words is None else self._whole_words()
        self.copy_lhs = not (same and len(self.lhs.outer) <= 1 and _unit(self.lhs.inner, ctx))
        self.packed = self._prepared()
        self.frame = ProductFrame(ctx)
        self.b = self.frame.b

    # -- what is decided before any code
    # ----------------------------------------------------------------------

    def _whole_words(self) -> bool:
        """Whether rows of the left operand are words as they lie."""
        group = self.words.group if self.words is not None else 1
        pitches = [axis.stride for axis in self.lhs.outer]
        return self.lhs_dtype.bits * group == 32 and all(self.ctx.env.divides(group, d) is True for d in (self.k, *pitches))

    def _prepared(self) -> PrepareEntry | None:
        """The prepared panels of a constant right operand, where its axes are a matrix."""
        view = self.rhs.view
        if self.fusion.attrs.get("pack") != "rhs" or view.source not in self.ctx.params:
            return None
        if self.rhs.batch or len(self.rhs.inner) > 1 or len(self.rhs.outer) > 1:
            return None
        axes = tuple(axes[0] if axes else Axis(ONE, ONE) for axes in (self.rhs.outer, self.rhs.inner))
        layout = panel_layout(self.target, self.acc) if self.words is None else words_layout(self.words, self.tile.nr)
        return self.ctx.prepared(View(view.source, view.offset, axes), layout)

    @property
    def block_columns(self) -> int:
        """Columns of a task: whole panels."""
        return columns_of(self.target.tuning.gemm.columns, known(self.n), known(self.k), self.ty.bytes)

    @property
    def _few_columns(self) -> bool:
        return self.n.is_static and int(self.n) * self.ty.bytes < _FEW_COLUMN_BYTES

    @property
    def block_rows(self) -> int:
        return BLOCK_ROWS // self.tile.mr * self.tile.mr

    def _row_parts(self) -> Dim:
        """Tasks that share a block of rows, by M."""
        k = known(self.k * (self.ty.bytes // 4))
        rules = self.target.tuning.gemm.parts(k)
        out = Dim.of(rules[-1][1])
        try:
            for (most, parts), (_, after) in itertools.pairwise(rules):
                assert most is not None
                out = out + dmax(dmin(most + 1 - self.m, 1), 0) * (parts - after)
        except DimTooComplex:
            return Dim.of(rules[-1][1])
        return out

    def _row_blocks(self) -> Dim:
        """Blocks of rows; two at least of few columns, so that an odd number of panels leaves no thread without work."""
        blocks = ceildiv(self.m, self.block_rows)
        if self.packed is None or not self._few_columns:
            return blocks
        return dmax(blocks, dmin(ceildiv(self.m, 2 * self.tile.mr), 2))

    def _direct(self) -> View | None:
        """Where the product may be written without a detour: stored as it is, rows of whole vectors."""
        region = self.region
        if region.ops or len(region.writes) != 1 or not self._whole_vectors():
            return None
        out, view = region.writes[0]
        nb, nm, _, _ = self.groups
        rows, columns = (
            merge_axes(view.axes[nb : nb + nm], self.ctx.env),
            merge_axes(view.axes[nb + nm :], self.ctx.env),
        )
        stored_whole = out.dtype.bits == self.ty.bits and region.resolve(out) is self.dot
        return view if stored_whole and len(rows) <= 1 and columns and _unit(columns, self.ctx) else None

    def _whole_vectors(self) -> bool:
        if self.n.is_static:
            return int(self.n) % self.tile.lanes == 0
        return self.ctx.env.divides(self.tile.lanes, self.n) is True

    # -- code ------------------------------------------------------------------------------------------

    def emit(self) -> Kernel:
        frame, b = self.frame, self.b
        m, n = frame.dim(self.m), frame.dim(self.n)
        self.m_v, self.n_v, self.k_v = m, n, frame.dim(self.k)
        self.steps_v = self.k_v if self.words is None else self.words.steps(b, self.k_v)
        #: what panels hold; its type there
        self.stored = self.rhs_dtype if self.words is None else self.words
        self.elem = lanes.mem_elem(self.rhs_dtype) if self.words is None else I32
        self.parts = self._row_parts()
        base = frame.dim(self._row_blocks())
        rb = base if self.parts == 1 else b.mul(base, frame.dim(self.parts))
        cb = b.udiv(b.add(n, self.block_columns - 1), self.block_columns)
        rows_each = b.udiv(b.add(m, b.sub(base, 1)), b.smax(base, 1))  # balanced row blocks
        self._prepare_operands()
        direct = self._direct()
        points = None if direct is not None else Points(frame, self.region, self.groups[:3], self.ctx.env)
        out = self._direct_place(direct) if direct is not None else None
        self.ldc = b.i64(self.block_columns)
        strip = self.packed is not None and self.steps.is_static and int(self.steps) <= K_WHOLE
        block_rows = self.tile.mr if strip else self.block_rows
        whole = block_rows * self.block_columns + 2 * self.tile.lanes
        block = frame.scratch_area(whole * self.ty.bytes if direct is None else 0)
        self.by_rows = const(1, I1) if self.copy_lhs else more_rows(b, m, n, self.target.tuning.rows_first_percent)
        order, each = grid_order(b, rb, cb, self.by_rows), b.mul(rb, cb)

        def task(t: V, held: list[V]) -> list[V]:
            if self.packed is not None:
                batch, rest = b.udiv(t, each), b.urem(t, each)
                rblock, cblock = order(rest)
            else:
                rblock, rest = b.urem(t, rb), b.udiv(t, rb)
                cblock, batch = b.urem(rest, cb), b.udiv(rest, cb)
            m0, rows, whole_rows = self._rows(rblock, rows_each)
            n0 = b.mul(cblock, self.block_columns)
            columns = b.smin(b.i64(self.block_columns), b.sub(n, n0))
            a_id = b.add(b.mul(batch, rb), rblock)
            b_id = b.add(b.mul(batch, cb), cblock)
            a, lda = self._left(batch, m0, rows, b.icmp("ne", a_id, held[0]))
            if out is None:
                c, ldc = block, self.ldc
            else:
                c, ldc = out(batch, m0, n0)
            if self.packed is not None:
                self._strip_by_strip(points, batch, m0, n0, rows, columns, a, lda, c, ldc)
                return [a_id, held[1]]
            held_b = self._multiply(batch, n0, rows, whole_rows, columns, a, lda, c, ldc, b_id, held[1])
            if points is not None:
                self._epilogue(points, batch, m0, n0, rows, columns, block)
            return [a_id, held_b]

        b.loop(frame.begin, frame.end, 1, [b.i64(-1), b.i64(-1)], task, "task")
        tasks = self.batch * self._row_blocks() * self.parts * ceildiv(self.n, self.block_columns)
        return frame.kernel(self.fusion.name, tasks, self._grain())

    def _rows(self, number: V, rows_each: V) -> tuple[V, V, V]:
        """(first row, rows, rows of the block that it is of) of a block, or of a share of its strips."""
        b, m = self.b, self.m_v
        if self.parts == 1:
            m0 = b.mul(number, rows_each)
            rows = b.smin(rows_each, b.sub(m, m0))
            return m0, rows, rows
        # A run of balanced strips, longer ones first, is itself cut into the same strips: of all rows that these have too few to be full
        # there are fewer than a tile's, so as many strips are needed.
        parts = self.frame.dim(self.parts)
        block, part = b.udiv(number, parts), b.urem(number, parts)
        start = b.mul(block, rows_each)
        whole = b.smax(b.smin(rows_each, b.sub(m, start)), b.i64(0))
        strips = Strips.of(b, whole, self.tile.mr)
        first, stop = (
            b.add(b.mul(s, strips.rows), b.smin(s, strips.longer))
            for s in (b.udiv(b.mul(p, strips.count), parts) for p in (part, b.add(part, 1)))
        )
        return b.add(start, first), b.sub(stop, first), whole

    def _worth_packing(self, rows: V, whole_rows: V) -> V:
        """Whether a right operand that can be read where it lies is packed. Rows of whole vectors give the same sums either way."""
        b, limit = self.b, self.target.tuning.gemm.pack_rows
        fixed = b.icmp("sge", whole_rows, _PACK_ROWS)
        whole = self._whole_vectors()
        if (self.n.is_static and not whole) or (limit == _PACK_ROWS and self.parts == 1):
            return fixed
        tuned = b.icmp("sge", rows, limit)
        return tuned if whole else b.select(b.icmp("eq", b.and_(self.n_v, self.tile.lanes - 1), 0), tuned, fixed)

    def _grain(self) -> Dim:
        """Of multiply-adds, and the reading of B (all the work there is for one row), which counts as eight rows."""
        try:
            rows = dmin(self.m, self.block_rows)
            work = ((rows if self.parts == 1 else ceildiv(rows, self.parts)) + 8) * self.k * dmin(self.n, self.block_columns)
            ps = mac_ps(self.target.name, self.ty.bytes) / (1 if self.words is None else self.words.group)
            return grain(work, ps, PRODUCT_CHUNK_US)
        except DimTooComplex:
            return ONE

    def _prepare_operands(self) -> None:
        """Ask for buffers, strides and scratch while at the top level."""
        frame, lhs, rhs = self.frame, self.lhs, self.rhs
        self.a_base = frame.view_start(lhs.view, lanes.mem_elem(self.lhs_dtype))
        self.a_batch, self.a_rows, self.a_inner = (
            Run.of(frame, axes) for axes in (lhs.batch, lhs.outer, lhs.inner)
        )
        if self.copy_lhs:
            # an odd number of cache lines: rows do not alias in the first-level cache
            pitch = ceildiv(self.steps, 16) * 16 + 16
            self.a_pitch = frame.dim(pitch)
            self.a_copy = frame.scratch_area(pitch * (self.block_rows * self.ty.bytes))
        if self.packed is not None:
            self.b_base = frame.buffer(self.packed)
            return
        self.b_base = frame.view_start(rhs.view, lanes.mem_elem(self.rhs_dtype))
        self.b_batch, self.b_inner, self.b_columns = (
            Run.of(frame, axes) for axes in (rhs.batch, rhs.outer, rhs.inner)
        )
        self.b_copy = frame.scratch_area((self.steps + self.starts) * (self.block_columns * self.stored.bytes))

    def _direct_place(self, view: View):
        frame, b = self.frame, self.b
        nb, nm, _, _ = self.groups
        base = frame.view_start(view, self.ty)
        batch, rows = (
            Run.of(frame, merge_axes(axes, self.ctx.env))
            for axes in (view.axes[:nb], view.axes[nb : nb + nm])
        )

        def place(batch_index: V, m0: V, n0: V) -> tuple[V, V]:
            at = b.add(b.add(batch.offset(b, batch_index), rows.offset(b, m0)), n0)
            return b.gep(base, at, self.ty), rows.stride

        return place

    def _left(self, batch: V, m0: V, rows: V, fresh: V) -> tuple[V, V]:
        """The address and pitch of the task's rows of A; copied (once for consecutive tasks of the same rows)
        where needed."""
        b = self.b
        base = b.gep(self.a_base, self.a_batch.offset(b, batch), lanes.mem_elem(self.lhs_dtype))
        elem = lanes.mem_elem(self.lhs_dtype)
        if not self.copy_lhs:
            start, pitch = b.gep(base, b.mul(m0, self.a_rows.stride), elem), self.a_rows.stride
            return start, pitch if self.words is None else b.udiv(pitch, self.words.group)
        symbol = rows_symbol(self.lhs_dtype, self.acc) if self.words is None else word_rows_symbol(self.lhs_dtype, self.words)
        whole = self.a_rows.single and self.a_inner.single

        def copy() -> None:
            if whole:
                start = b.gep(base, b.mul(m0, self.a_rows.stride), elem)
                args = [start, self.a_rows.stride, self.a_inner.stride, self.a_copy, self.a_pitch, rows, self.k_v]
                self.frame.call(symbol, args)
                return

            def row(i: V, _: list[V]) -> None:
                start = b.gep(base, self.a_rows.offset(b, b.add(m0, i)), elem)
                self._copy_runs(
                    start, self.a_inner, b.gep(self.a_copy, b.mul(i, self.a_pitch), self.ty), symbol
                )

            b.loop(0, rows, 1, [], row)

        b.if_then(fresh, lambda: copy() and None)
        return self.a_copy, self.a_pitch

    def _copy_runs(self, start: V, inner: Run, dst: V, symbol: str) -> None:
        """One row of A whose contracted axes do not compose: a run of the innermost axis at a time."""
        b = self.b
        if inner.single:
            self.frame.call(symbol, [start, b.i64(0), inner.stride, dst, b.i64(0), b.i64(1), self.k_v])
            return
        *outer, last = inner.extents
        count = b.i64(1)
        for e in outer:
            count = b.mul(count, e)
        prefix = Run(outer, inner.strides[:-1])
        to = self.ty if self.words is None else lanes.mem_elem(in_words(self.lhs_dtype, self.words))

        def run(r: V, _: list[V]) -> None:
            src = b.gep(start, prefix.offset(b, r), lanes.mem_elem(self.lhs_dtype))
            zero = b.i64(0)
            self.frame.call(symbol, [src, zero, inner.strides[-1], b.gep(dst, b.mul(r, last), to), zero, b.i64(1), last])

        b.loop(0, count, 1, [], run)

    def _strip_by_strip(
        self, points: Points | None, batch: V, m0: V, n0: V, rows: V, columns: V, a: V, lda: V, c: V, ldc: V
    ) -> None:
        """The product of the task with prepared panels, and the epilogue of every strip of rows as soon as its sums are
        complete: they are still in the first-level cache, and the stores drain while the next strip is multiplied."""
        b, nr, k, elem = self.b, self.tile.nr, self.steps_v, self.elem
        symbol, column = strips_symbol(self.acc, self.stored), b.add(k, self.starts)
        panel, width = b.mul(column, nr), b.i64(nr)
        base = b.gep(self.b_base, self.starts * nr, elem)
        here = b.gep(base, b.mul(n0, column), elem)
        after = b.add(n0, self.block_columns)
        again = b.select(self.by_rows, b.i64(0), n0)  # the next block of rows begins anew, or has the same columns
        ahead = b.gep(base, b.mul(b.select(b.icmp("slt", after, self.n_v), after, again), column), elem)
        blocks, block = k_blocks(b, k)
        strips = Strips.of(b, rows, self.tile.mr)
        pace = strips.pace(b, nr * elem.bytes)

        def earlier(kb: V, _: list[V]) -> None:
            k0 = b.mul(kb, block)
            at, following = (b.gep(here, b.mul(x, nr), elem) for x in (k0, b.add(k0, block)))
            args = [b.gep(a, k0, self.ty), lda, at, width, panel, c, ldc, rows, columns, block, following, pace]
            self.frame.call(symbol, [*args, b.icmp("sgt", kb, 0)])

        b.loop(0, b.sub(blocks, 1), 1, [], earlier, "kblock")
        k0 = b.mul(b.sub(blocks, 1), block)
        kc = b.sub(k, k0)
        last = b.gep(here, b.mul(k0, nr), elem)
        share = b.mul(pace, kc)
        more = b.icmp("sgt", blocks, 1)
        # Sums that no other block of k adds to need no place of their own: all strips use the same, which stays in the cache.
        step = b.select(more, ldc, b.i64(0)) if points is not None else ldc
        moved = b.mul(b.mul(self.m_v, self.n_v), len(points.along_rows()) if points is not None else 0)
        large = b.icmp("sgt", moved, LARGE)

        def strip(s: V, first: V, count: V) -> None:
            sums = b.gep(c, b.mul(first, step), self.ty)
            left = b.gep(a, b.add(b.mul(first, lda), k0), self.ty)
            far = b.gep(ahead, b.mul(s, share), I8)
            if points is not None:
                asked = b.select(large, count, b.i64(0))
                ask_block(points, unravel(b, batch, points.extents[0]), b.add(m0, first), asked, n0, columns)
            self.frame.call(
                symbol, [left, lda, last, width, panel, sums, ldc, count, columns, kc, far, pace, more]
            )
            if points is not None:
                self._epilogue(points, batch, b.add(m0, first), n0, count, columns, sums)

        strips.each(b, strip)

    def _multiply(
        self, batch: V, n0: V, rows: V, whole_rows: V, columns: V, a: V, lda: V, c: V, ldc: V, b_id: V, held: V
    ) -> V:
        """The product of the task; returns which block of B lies packed in scratch afterwards (-1: none). ``whole_rows``: of the block
        that its rows are of."""
        b, nr = self.b, self.tile.nr
        symbol = gemm_symbol(self.acc, self.stored)
        elem = lanes.mem_elem(self.rhs_dtype)
        k = self.steps_v
        panel = b.mul(b.add(k, self.starts), nr)
        packed = b.gep(self.b_copy, self.starts * nr, self.elem)
        base = b.gep(self.b_base, self.b_batch.offset(b, batch), elem)

        def pack_then_multiply() -> list[V]:
            b.if_then(b.icmp("ne", b_id, held), lambda: self._pack(base, n0, columns) and None)
            self.frame.call(symbol, [a, lda, packed, b.i64(nr), panel, c, ldc, rows, columns, k, packed])
            return [b_id]

        def in_place() -> list[V]:
            start = b.gep(base, n0, elem)
            ldb = self.b_inner.stride
            whole = b.and_(columns, -self.tile.lanes)
            self.frame.call(symbol, [a, lda, start, ldb, b.i64(nr), c, ldc, rows, whole, k, start])

            def tail() -> None:
                left = b.sub(columns, whole)
                self.frame.call(
                    pack_symbol(elem.bits, nr),
                    [b.gep(start, whole, elem), ldb, b.i64(1), self.b_copy, k, left],
                )
                place = b.gep(c, whole, self.ty)
                self.frame.call(symbol, [a, lda, self.b_copy, b.i64(nr), panel, place, ldc, rows, left, k, self.b_copy])

            b.if_then(b.icmp("slt", whole, columns), lambda: tail() and None)
            return [b.i64(-1)]

        contiguous = self.b_inner.single and _unit(self.rhs.inner, self.ctx)
        if not contiguous or self.words is not None:
            return pack_then_multiply()[0]
        return b.if_else(self._worth_packing(rows, whole_rows), pack_then_multiply, in_place)[0]

    def _pack(self, base: V, n0: V, columns: V) -> None:
        """Pack the task's columns of B into panels in scratch."""
        b, nr = self.b, self.tile.nr
        elem = lanes.mem_elem(self.rhs_dtype)
        if self.b_inner.single and self.b_columns.single:
            start = b.gep(base, b.mul(n0, self.b_columns.stride), elem)
            words = self.words
            self.frame.call(
                pack_symbol(elem.bits, nr) if words is None else word_pack_symbol(self.rhs_dtype, words.group, nr),
                [start, self.b_inner.stride, self.b_columns.stride, self.b_copy, self.k_v, columns],
            )
            return
        # Ragged: an element at a time; the zero fill of the last panel comes from rounding the columns up.
        last = b.sub(columns, 1)
        padded = b.mul(b.udiv(b.add(columns, nr - 1), nr), nr)

        def column(j: V, _: list[V]) -> None:
            src = b.gep(base, self.b_columns.offset(b, b.add(n0, b.smin(j, last))), elem)
            dst = b.gep(self.b_copy, b.add(b.mul(b.mul(b.udiv(j, nr), nr), self.k_v), b.urem(j, nr)), elem)
            b.loop(
                0,
                self.k_v,
                1,
                [],
                lambda i, _: b.store(
                    b.load(elem, b.gep(src, self.b_inner.offset(b, i), elem)), b.gep(dst, b.mul(i, nr), elem)
                ),
            )

        b.loop(0, padded, 1, [], column)

    def _epilogue(self, points: Points, batch: V, m0: V, n0: V, rows: V, columns: V, block: V) -> None:
        lead = unravel(self.b, batch, points.extents[0])
        sums = sums_of(self.b, block, self.ldc, self.ty, self.dot.dtype)
        emit_block(points, lead, m0, rows, n0, columns, self.dot, sums, self.tile.lanes)
