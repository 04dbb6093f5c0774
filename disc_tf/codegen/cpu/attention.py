"""Attention as one kernel: per (batch, head, block of query rows) the scores, the row stage and the product
with V.

K (transposed) and V are packed into panels in the worker's scratch, once for the consecutive tasks of one
head; Q is read where the projection left it if it can be. A strip of a few rows of scores lies in the
first-level cache: the row stage runs over it, and the same strip is the left operand of the second product.
No [S, S] matrix is ever stored. Sizes are run-time values, 0 and 1 included.
"""

from __future__ import annotations

from collections.abc import Callable

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu import lanes
from disc_tf.codegen.cpu.dot_choice import attention_dot
from disc_tf.codegen.cpu.dots import Dot
from disc_tf.codegen.cpu.emit import emitter
from disc_tf.codegen.cpu.epilogue import emit_block, from_accumulator, sums_of
from disc_tf.codegen.cpu.helpers.gemm import Strips, gemm_symbol
from disc_tf.codegen.cpu.helpers.pack import pack_symbol, rows_symbol
from disc_tf.codegen.cpu.helpers.words import word_pack_symbol, word_rows_symbol
from disc_tf.codegen.cpu.points import Points
from disc_tf.codegen.cpu.product_frame import ONE, ProductFrame, Run, extent_of, unravel
from disc_tf.codegen.cpu.row_stage import RowStage
from disc_tf.codegen.cpu.tiles import acc_dtype, acc_ty, tile_for
from disc_tf.codegen.kernel import Kernel, Variant
from disc_tf.codegen.llvm import Ty, V, const, vec
from disc_tf.costs import PRODUCT_CHUNK_US, grain, mac_ps
from disc_tf.fusion.types import Fusion
from disc_tf.fusion.views import View, merge_axes
from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, DimTooComplex, ceildiv, dmin
from disc_tf.ir.types import DType

#: query rows of a task, about: enough to pay for packing K and V, few enough for tasks at batch 1
_ROWS = 144


@emitter("attention")
def emit_attention(fusion: Fusion, ctx: EmitContext) -> list[Variant]:
    """The kernel of a fusion of kind ``attention`` (attrs as `Fusion` documents).

    The row stage may be any chain of elementwise ops and row reductions. The division by a row sum is a
    product with its reciprocal, as TensorFlow's own softmax does.
    """
    return [Variant(None, (_Attention(fusion, ctx).emit(),))]


class _Operand:
    """A view (batch axes, rows, columns) in machine form."""

    def __init__(self, frame: ProductFrame, view: View, dtype: DType, ctx: EmitContext) -> None:
        self.dtype, self.elem = dtype, lanes.mem_elem(dtype)
        *batch, rows, columns = view.axes
        self.base = frame.view_start(view, self.elem)
        self.batch = Run.of(frame, merge_axes(batch, ctx.env))
        self.row_stride, self.column_stride = frame.dim(rows.stride), frame.dim(columns.stride)
        unit = columns.extent == ONE or ctx.env.is_equal(columns.stride, ONE) is True
        self.contiguous = unit

    def at(self, frame: ProductFrame, batch: V) -> V:
        """The address of element (0, 0) of a batch index."""
        return frame.b.gep(self.base, self.batch.offset(frame.b, batch), self.elem)


class _Attention:
    def __init__(self, fusion: Fusion, ctx: EmitContext) -> None:
        self.fusion, self.ctx = fusion, ctx
        attrs = fusion.attrs
        self.qk: Value = attrs["qk"].result
        self.pv: Value = attrs["pv"].result
        self.probs: Value = attrs["probs"]
        self.views: dict[str, View] = {n: attrs[n] for n in "qkv"}
        self.score_acc, self.out_acc = acc_dtype(self.qk.dtype), acc_dtype(self.pv.dtype)
        self.score_ty, self.out_ty = acc_ty(str(self.score_acc)), acc_ty(str(self.out_acc))
        self.score_tile, self.out_tile = (
            tile_for(ctx.target, self.score_acc),
            tile_for(ctx.target, self.out_acc),
        )
        self.words = attention_dot(fusion, ctx.target.dots, ctx.env)
        self.mr = min(self.score_tile.mr, self.out_tile.mr)
        self.batch = extent_of(self.views["q"].axes[:-2])
        self.m, self.d = self.views["q"].axes[-2].extent, self.views["q"].axes[-1].extent
        self.n, self.dv = self.views["v"].axes[-2].extent, self.views["v"].axes[-1].extent
        self.frame = ProductFrame(ctx)
        self.b = self.frame.b

    def emit(self) -> Kernel:
        frame, b, ctx = self.frame, self.b, self.ctx
        groups = (len(self.views["q"].axes) - 2, 1, 1)
        rows_each = _ROWS // self.mr * self.mr
        m, n, d, dv = (frame.dim(x) for x in (self.m, self.n, self.d, self.dv))
        blocks = b.udiv(b.add(m, rows_each - 1), rows_each)
        block_rows = b.udiv(b.add(m, b.sub(blocks, 1)), b.smax(blocks, 1))
        qk_op, pv_op = self.fusion.attrs["qk"], self.fusion.attrs["pv"]
        sources = {"q": qk_op.operands[0], "k": qk_op.operands[1], "v": pv_op.operands[1]}
        q, k, v = (_Operand(frame, self.views[x], sources[x].dtype, ctx) for x in "qkv")
        score_points = Points(frame, self.fusion.attrs["score"], groups, ctx.env)
        out_points = Points(frame, self.fusion.attrs["region"], groups, ctx.env)

        nr, out_nr, words = self.score_tile.nr, self.out_tile.nr, self.words
        #: of sums over D and over the keys
        d_steps, n_steps = (x if words is None else ceildiv(x, words.group) for x in (self.d, self.n))
        columns = ceildiv(self.n, nr) * nr
        # A pitch of an odd number of vectors: rows of the strip do not alias in the first-level cache.
        pitch_dim = columns + self.score_tile.lanes
        pitch = frame.dim(pitch_dim)
        k_panels = frame.scratch_area(columns * d_steps * (words or k.dtype).bytes)
        v_panels = frame.scratch_area(ceildiv(self.dv, out_nr) * out_nr * n_steps * (words or v.dtype).bytes)
        strip = frame.scratch_area(pitch_dim * (self.mr * self.score_ty.bytes) + 64)
        in_place = self.score_ty is self.out_ty and words is None
        probs = strip if in_place else frame.scratch_area(pitch_dim * (self.mr * self.out_ty.bytes) + 64)
        out_columns = ceildiv(self.dv, out_nr) * out_nr
        out_pitch = frame.dim(out_columns)
        tile = frame.scratch_area(
            out_columns * (self.mr * self.out_ty.bytes) + 2 * self.out_tile.lanes * self.out_ty.bytes
        )
        stage = RowStage(score_points, self.qk, self.probs, self.score_tile.lanes)
        together = next(r for r in (3, 2, 1) if self.mr % r == 0)
        buffer_bytes = ceildiv(pitch_dim * 8 + 64, 64) * 64
        stage.buffers = [frame.scratch_area(buffer_bytes * together) for _ in stage.crossing]
        if stage.crossing:
            stage.buffer_bytes = frame.dim(buffer_bytes)
        copy_q = not (q.contiguous and (q.dtype.bits == self.score_ty.bits if words is None else self._whole_words(words)))
        if copy_q:
            q_pitch = frame.dim(ceildiv(d_steps, 16) * 16 + 16)
            q_rows = frame.scratch_area((ceildiv(d_steps, 16) * 16 + 16) * (self.mr * self.score_ty.bytes))
        qk_symbol, pv_symbol = gemm_symbol(self.score_acc, words or k.dtype), gemm_symbol(self.out_acc, words or v.dtype)
        copy_symbol = rows_symbol(q.dtype, self.score_acc) if words is None else word_rows_symbol(q.dtype, words)
        steps_d, steps_n = frame.dim(d_steps), frame.dim(n_steps)
        probs_elem = self.out_ty if words is None else lanes.mem_elem(self.probs.dtype)
        probs_pitch = pitch if words is None else b.udiv(pitch, words.group)

        def pack(x: _Operand, width: int) -> str:
            return pack_symbol(x.elem.bits, width) if words is None else word_pack_symbol(x.dtype, words.group, width)

        def load_panels(batch: V) -> None:
            frame.call(pack(k, nr), [k.at(frame, batch), k.column_stride, k.row_stride, k_panels, d, n])
            frame.call(pack(v, out_nr), [v.at(frame, batch), v.row_stride, v.column_stride, v_panels, n, dv])

        def one_strip(batch: V, lead: list[V], out_lead: list[V], first: V, count: V) -> None:
            rows = b.gep(q.at(frame, batch), b.mul(first, q.row_stride), q.elem)
            if copy_q:
                frame.call(copy_symbol, [rows, q.row_stride, q.column_stride, q_rows, q_pitch, count, d])
                left, lda = q_rows, q_pitch
            else:
                left, lda = rows, q.row_stride if words is None else b.udiv(q.row_stride, words.group)
            panel = b.mul(steps_d, nr)
            frame.call(qk_symbol, [left, lda, k_panels, b.i64(nr), panel, strip, pitch, count, n, steps_d, k_panels])

            def rows_together(i: V, _: list[V]) -> None:
                # The strip has room for whole groups: rows beyond `count` hold anything, and nobody reads what becomes of them.
                starts = [b.mul(b.add(i, r), pitch) for r in range(together)]
                numbers = [b.smin(b.add(first, b.add(i, r)), b.sub(m, 1)) for r in range(together)]
                stage.emit(
                    [[*lead, *([x] if score_points.extents[1] else [])] for x in numbers],
                    n,
                    [self._seed(b.gep(strip, x, self.score_ty), self.qk.dtype, self.score_ty) for x in starts],
                    [self._probs_writer(b.gep(probs, x, probs_elem)) for x in starts],
                )
                for x in starts if words is not None else ():  # the last word of an odd number of keys
                    b.store(const(0, probs_elem), b.gep(probs, b.add(x, n), probs_elem))

            b.loop(0, count, together, [], rows_together, "rows")
            panel = b.mul(steps_n, out_nr)
            frame.call(
                pv_symbol, [probs, probs_pitch, v_panels, b.i64(out_nr), panel, tile, out_pitch, count, dv, steps_n, v_panels]
            )

            sums = sums_of(b, tile, out_pitch, self.out_ty, self.pv.dtype)
            emit_block(out_points, out_lead, first, count, b.i64(0), dv, self.pv, sums, self.out_tile.lanes)

        def task(t: V, held: list[V]) -> list[V]:
            batch, block = b.udiv(t, blocks), b.urem(t, blocks)
            b.if_then(b.icmp("ne", batch, held[0]), lambda: load_panels(batch) and None)
            lead, out_lead = (unravel(b, batch, p.extents[0]) for p in (score_points, out_points))
            m0 = b.mul(block, block_rows)
            rows = b.smin(block_rows, b.sub(m, m0))
            strips = Strips.of(b, rows, self.mr)
            strips.each(b, lambda _, first, count: one_strip(batch, lead, out_lead, b.add(m0, first), count))
            return [batch]

        b.loop(frame.begin, frame.end, 1, [b.i64(-1)], task, "task")
        return frame.kernel(self.fusion.name, self.batch * ceildiv(self.m, rows_each), self._grain(rows_each))

    def _whole_words(self, words: Dot) -> bool:
        """Whether rows of the queries are words as they lie."""
        rows, columns = self.views["q"].axes[-2:]
        return all(self.ctx.env.divides(words.group, x) is True for x in (rows.stride, columns.extent))

    def _grain(self, rows: int) -> Dim:
        """Tasks that make up a chunk, of multiply-adds; packing counts as four rows."""
        try:
            work = (dmin(self.m, rows) + 4) * self.n * (self.d + self.dv)
            ps = mac_ps(self.ctx.target.name, self.score_ty.bytes) / (1 if self.words is None else self.words.group)
            return grain(work, ps, PRODUCT_CHUNK_US)
        except DimTooComplex:
            return ONE

    def _seed(self, line: V, dtype: DType, ty: Ty):
        b = self.b

        def load(at: V, count: int) -> V:
            return from_accumulator(b, dtype, b.load(vec(ty, count), b.gep(line, at, ty)))

        return load

    def _probs_writer(self, line: V) -> Callable[[V, V], None]:
        b = self.b
        dtype = self.probs.dtype

        def store(x: V, at: V) -> None:
            if self.words is not None:
                b.store(lanes.to_memory(b, dtype, x), b.gep(line, at, lanes.mem_elem(dtype)))
                return
            if dtype.is_int and dtype.bits < self.out_ty.bits:
                x = b.sext(x, self.out_ty) if dtype.is_signed else b.zext(x, self.out_ty)
            b.store(x, b.gep(line, at, self.out_ty))

        return store
