"""Convolution with its epilogue as one kernel: lines of pixels times panels of the weights, without an unfolded copy of the data.

A *line* is the pixels along the last axis (the last one that is not trivial). For each line the kernel makes a table of the input
rows under the window, one for each position of the window in the other axes: an address in the data itself where the block of
pixels needs nothing beyond the row's ends, else in a copy with the padding's zeros (this also widens narrow types, and spreads a
dilated input); null where the row lies in the padding. Along the last axis, neighbouring positions of the window are one run of
`window * channels` elements wherever pixels lie side by side. `helpers/conv.py` multiplies; the epilogue runs over the block.

Depthwise convolutions (`depthwise.py`) use the same tables and epilogue, and the same tasks, unless a product before them belongs to the
kernel (`expand.py`).

A task is a few lines x a block of pixels x a block of features: results are the same however tasks are split. How many lines and features
says the table of the target (`disc_tf.tuning`); blocks of pixels fix the order of sums, and follow from a constant here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu import depthwise, lanes
from disc_tf.codegen.cpu.dot_choice import FEW_FEATURES, conv_dot
from disc_tf.codegen.cpu.dots import words_layout
from disc_tf.codegen.cpu.emit import emitter
from disc_tf.codegen.cpu.epilogue import emit_block, sums_of
from disc_tf.codegen.cpu.expand import Expansion
from disc_tf.codegen.cpu.helpers.conv import conv_symbol
from disc_tf.codegen.cpu.helpers.pack import pack_symbol, rows_symbol
from disc_tf.codegen.cpu.helpers.words import word_rows_symbol
from disc_tf.codegen.cpu.points import Points
from disc_tf.codegen.cpu.product_frame import ONE, ProductFrame, grid_order, known, more_rows, unravel
from disc_tf.codegen.cpu.tiles import Tile, acc_dtype, acc_ty, panel_layout, tile_for
from disc_tf.codegen.kernel import Kernel, Variant
from disc_tf.codegen.llvm import I1, PTR, V, const, vec
from disc_tf.costs import PRODUCT_CHUNK_US, grain, mac_ps
from disc_tf.fusion.conv import PIXEL_BYTES, is_depthwise
from disc_tf.fusion.types import Fusion, PrepareEntry, Region
from disc_tf.fusion.views import Axis, View, merge_axes
from disc_tf.ir.dims import Dim, DimLike, DimTooComplex, ceildiv, dmax, dmin, product
from disc_tf.tuning.table import columns_of

#: pixels of a block of a line, about; a multiple of the tile's rows
_PIXELS = 72
#: blocks that the lines of all images are cut into at least, so that threads share them evenly, unless a line is little work
_LINE_BLOCKS = 16
#: channels up to which a window along one line is a filter, whose terms cancel (`helpers/conv.py: K_WHOLE`)
_FILTER_CHANNELS = 4


@emitter("conv")
def emit_conv(fusion: Fusion, ctx: EmitContext) -> list[Variant]:
    """The kernel of a fusion of kind ``conv``; it serves every size, zero included.

    ValueError for bool, and for groups whose number of features is not static.
    """
    return [Variant(None, (_Conv(fusion, ctx).emit(),))]


@dataclasses.dataclass(frozen=True)
class SpatialAxis:
    """One spatial axis: window extent, stride, dilations (static), lower padding, extents of data and result, stride of the data."""

    window: int
    stride: int
    spread: int
    dilation: int
    low: Dim
    extent: Dim
    out: Dim
    step: Dim

    @property
    def reach(self) -> int:
        """Distance between the first and the last position of the window."""
        return (self.window - 1) * self.dilation

    @property
    def trivial(self) -> bool:
        """One pixel under a window of one."""
        return self.window == 1 and self.out == 1 and self.extent == 1 and self.low == 0


@dataclasses.dataclass(frozen=True)
class Block:
    """What a task works on. Extents are in elements, `column` counts features over all groups."""

    image: V
    group: V
    pixel: V
    pixels: V
    column: V
    columns: V


#: emits a task, given its number and which block of features the task before had; gives its own
Task = Callable[[V, list[V]], list[V]]


class _Conv:
    """Emits one fusion."""

    def __init__(self, fusion: Fusion, ctx: EmitContext) -> None:
        self.fusion, self.ctx, self.target = fusion, ctx, ctx.target
        op = fusion.attrs["conv"]
        self.op, self.region = op, fusion.attrs["region"]
        self.region: Region
        self.lhs: View = fusion.attrs["lhs"]
        self.rhs: View = fusion.attrs["rhs"]
        x, w, a = op.operands[0], op.operands[1], op.attrs
        self.stored = x.dtype
        self.acc = acc_dtype(op.result.dtype)
        self.tile: Tile = tile_for(self.target, self.acc)
        self.ty = acc_ty(str(self.acc))
        axes = [
            SpatialAxis(
                int(w.dims[k]), a["window_strides"][k], a["lhs_dilation"][k], a["rhs_dilation"][k], Dim.of(a["padding_low"][k]),
                x.dims[k + 1], op.result.dims[k + 1], self.lhs.axes[k + 1].stride,
            )
            for k in range(x.rank - 2)
        ]  # fmt: skip
        last = max((k for k, axis in enumerate(axes) if not axis.trivial), default=0)
        if "before" in fusion.attrs:  # its bands are of the first axis, whatever the second is
            last = 1
        self.outer, self.line = axes[:last], axes[last]
        self.groups: int = a["feature_group_count"]
        self.images, self.channels, features = x.dims[0], w.dims[-2], w.dims[-1]
        if self.groups > 1 and not features.is_static:
            raise ValueError(f"convolution in {self.groups} groups with {features} features (nodes {', '.join(fusion.nodes[:3])})")
        #: one channel and one feature each: all groups are one block of columns
        self.depthwise = is_depthwise(op)
        self.features = features if self.groups == 1 or self.depthwise else features // self.groups
        self.blocks = 1 if self.depthwise else self.groups
        #: so few features that lanes along them would be idle: lanes lie along the window's runs instead
        self.few = self.groups == 1 and features.is_static and int(features) <= FEW_FEATURES
        self.nr = 1 if self.few else self.tile.nr
        self.taps = 1
        for axis in self.outer:
            self.taps *= axis.window
        self.k_total = self.channels * (self.taps * self.line.window)
        env = ctx.env
        self.contiguous = env.is_equal(self.line.step, self.channels) is True
        self.words = conv_dot(fusion, self.target.dots, env) if self.rhs.source in ctx.params else None
        same = self.stored.bits == self.ty.bits or self.words is not None
        #: whether pixels can be read where they lie
        self.in_place = same and self.line.spread == 1 and (self.contiguous or self.line.window == 1)
        self.k_axes = merge_axes(self.rhs.axes[:-1], env)
        self.packed = self._prepared()
        self.whole_k = self.packed is not None or len(self.k_axes) <= 1
        #: whether positions of the window along the line are one run
        self.merged = self.line.dilation == 1 and self.whole_k
        few = self.channels.is_static and int(self.channels) <= _FILTER_CHANNELS
        #: whether it is one run, of few channels: a filter
        self.filter = self.taps == 1 and self.merged and few and self.line.window > 1
        self.frame = ProductFrame(ctx)
        self.b = self.frame.b
        self.before: Expansion | None = None
        if "before" in fusion.attrs:  # the data lies in scratch then
            self.before = Expansion(self, fusion.attrs["before"])
            self.line = dataclasses.replace(self.line, step=Dim.of(self.block_columns))
            self.outer = [dataclasses.replace(self.outer[0], step=self.line.extent * self.block_columns)]

    def _prepared(self) -> PrepareEntry | None:
        """Prepared panels of constant weights: a matrix, whose groups begin at whole panels."""
        view = self.rhs
        if self.fusion.attrs.get("pack") != "rhs" or view.source not in self.ctx.params or len(self.k_axes) > 1:
            return None
        if self.blocks > 1 and int(self.features) % self.nr:
            return None
        axes = (self.k_axes[0] if self.k_axes else Axis(ONE, ONE), view.axes[-1])
        layout = ("panel", 1) if self.few else panel_layout(self.target, self.acc)
        layout = layout if self.words is None else words_layout(self.words, self.nr)
        return self.ctx.prepared(View(view.source, view.offset, axes), layout)

    @property
    def unit(self) -> int:
        """Elements that a step of the sum takes."""
        return 1 if self.words is None else self.words.group

    @property
    def block_columns(self) -> int:
        """Features of a task."""
        if self.before is not None:
            return max(PIXEL_BYTES // self.ty.bytes // self.tile.nr, 1) * self.tile.nr
        depth = known(self.channels * (self.taps * self.line.window))
        return columns_of(self.target.tuning.conv.columns, known(self.features), depth, self.ty.bytes)

    @property
    def block_pixels(self) -> int:
        """Pixels of a task's block, at most."""
        return _PIXELS // self.tile.mr * self.tile.mr

    # -- code ------------------------------------------------------------------------------------------

    def emit(self) -> Kernel:
        frame = self.frame
        self.lines = product(axis.out for axis in self.outer)
        self.task_lines = self._task_lines()
        self.outs = [frame.dim(axis.out) for axis in self.outer]
        self.width, self.features_v = frame.dim(self.line.out), frame.dim(self.features)
        self.channels_v = frame.dim(self.channels)
        self._prepare()
        self.points = Points(frame, self.region, (1, len(self.op.attrs["window_strides"]), 1), self.ctx.env)
        self.pixel_blocks = _blocks(self, self.width, self.block_pixels)
        self.column_blocks = _blocks(self, self.features_v, self.block_columns)
        b = self.b
        self.pixels_each = b.udiv(b.add(self.width, b.sub(self.pixel_blocks, 1)), b.smax(self.pixel_blocks, b.i64(1)))
        task, places = self._bands() if self.before is not None else self._grid()
        b.loop(frame.begin, frame.end, 1, [b.i64(-1)], task, "task")
        tasks = places * self.images * (ceildiv(self.features, self.block_columns) * self.blocks)
        return frame.kernel(self.fusion.name, tasks, self._grain())

    def _grid(self) -> tuple[Task, Dim]:
        """Tasks of a few lines x a block of pixels x a block of features; how many there are for an image and a block of features."""
        frame, b = self.frame, self.b
        lines, images = frame.dim(self.lines), frame.dim(self.images)
        task_lines = frame.dim(self.task_lines)
        line_blocks = b.udiv(b.add(lines, b.sub(task_lines, 1)), task_lines)
        parts = b.mul(self.column_blocks, self.blocks)
        places = b.mul(b.mul(self.pixel_blocks, line_blocks), images)
        by_lines = const(0, I1)
        if self.packed is not None:
            by_lines = more_rows(
                b, b.mul(b.mul(self.width, lines), images), b.mul(self.features_v, self.blocks), self.target.tuning.rows_first_percent
            )
        order = grid_order(b, places, parts, by_lines)

        def task(t: V, held: list[V]) -> list[V]:
            place, part = order(t)
            pixel, rest = b.urem(place, self.pixel_blocks), b.udiv(place, self.pixel_blocks)
            lead, image = b.urem(rest, line_blocks), b.udiv(rest, line_blocks)
            block = self._block(image, part, pixel)
            weights = self._weights(block, b.icmp("ne", part, held[0]))
            first = b.mul(lead, task_lines)
            stop = b.smin(b.add(first, task_lines), lines)
            self._some_lines(first, stop, block, weights)
            return [part]

        return task, ceildiv(self.lines, self.task_lines) * ceildiv(self.line.out, self.block_pixels)

    def _bands(self) -> tuple[Task, Dim]:
        """Tasks of a band of lines x a block of features, after the product that they are computed from."""
        frame, b, before = self.frame, self.b, self.before
        assert before is not None
        bands, parts, task_lines = frame.dim(before.bands.count), self.column_blocks, self.target.tuning.conv.lines

        def task(t: V, held: list[V]) -> list[V]:
            part, place = b.urem(t, parts), b.udiv(t, parts)
            band, image = b.urem(place, bands), b.udiv(place, bands)
            first, stop, low, high = before.band(band)
            whole = self._block(image, part, b.i64(0))
            weights = self._weights(whole, b.icmp("ne", part, held[0]))
            self.x_base = before.fill(image, low, high, whole.column, whole.columns)

            def lines(number: V, _: list[V]) -> None:
                end = b.smin(b.add(number, task_lines), stop)
                b.loop(0, self.pixel_blocks, 1, [], lambda i, _: self._some_lines(number, end, self._block(image, part, i), weights))

            b.loop(first, stop, task_lines, [], lines, "lines")
            return [part]

        return task, before.bands.count

    def _block(self, image: V, part: V, pixel: V) -> Block:
        """The block of pixels number `pixel` of a line with the block of features number `part`, counted over all groups."""
        b = self.b
        group, column = b.udiv(part, self.column_blocks), b.urem(part, self.column_blocks)
        p0, c0 = b.mul(pixel, self.pixels_each), b.mul(column, self.block_columns)
        return Block(
            image, group, p0, b.smax(b.smin(self.pixels_each, b.sub(self.width, p0)), b.i64(0)),
            b.add(b.mul(group, self.features_v), c0), b.smin(b.i64(self.block_columns), b.sub(self.features_v, c0)),
        )  # fmt: skip

    def _task_lines(self) -> Dim:
        """Lines of a task: no more than the table has, nor than leave enough tasks, but as many as are worth one."""
        most = self.target.tuning.conv.lines
        if self.depthwise:
            return Dim.of(most)
        try:
            points = dmin(self.line.out, self.block_pixels) * dmin(self.features, self.block_columns)
            work = points * self.k_total * round(mac_ps(self.target.name, self.ty.bytes))
            least = ceildiv(round(PRODUCT_CHUNK_US * 1e6) * self.unit, dmax(work, 1))
            return dmax(dmin(dmax(self.lines * self.images // _LINE_BLOCKS, least), most), 1)
        except DimTooComplex:
            return Dim.of(most)

    def _grain(self) -> Dim:
        try:
            columns = dmin(self.features, self.block_columns)
            if self.before is not None:
                points = self.before.bands.lines * self.outer[0].stride * self.line.extent
                work = points * (self.before.k + self.taps * self.line.window) * columns
            else:
                work = dmin(self.line.out, self.block_pixels) * self.task_lines * self.k_total * columns
            return grain(work, mac_ps(self.target.name, self.ty.bytes) / self.unit, PRODUCT_CHUNK_US)
        except DimTooComplex:
            return ONE

    def _prepare(self) -> None:
        """Ask for buffers and scratch while at the top level."""
        frame, line = self.frame, self.line
        self.elem = lanes.mem_elem(self.stored)
        #: elements of a copy of pixels
        self.copied = self.ty if self.words is None else self.elem
        if self.before is None:
            self.x_base = frame.view_start(self.lhs, self.elem)
            self.x_image = frame.dim(self.lhs.axes[0].stride)
        else:
            self.before.prepare()
            self.x_image = self.b.i64(0)
        self.table = frame.scratch_area(self.taps * 8 * (self.target.tuning.conv.lines if self.depthwise else 1))
        if self.packed is not None:
            self.w_base = frame.buffer(self.packed)
        else:
            self.w_base = frame.view_start(self.rhs, self.elem)
            self.w_copy = frame.scratch_area(self.k_total * (self.block_columns * self.elem.bytes))
        self.block_area = frame.scratch_area((self.block_pixels * self.block_columns + 2 * self.tile.lanes) * self.ty.bytes)
        if not self.depthwise:
            part = self.tile.mr * self.block_columns + 2 * self.tile.lanes
            self.part_area = frame.scratch_area(part * self.ty.bytes)
            self.copy_pixels = (self.block_pixels - 1) * line.stride + line.reach + 1
            pitch = self.channels * self.copy_pixels
            self.copy_pitch = frame.dim(pitch)
            self.copy_area = frame.scratch_area(pitch * (self.taps * self.ty.bytes))

    # -- weights ---------------------------------------------------------------------------------------

    def _weights(self, block: Block, fresh: V) -> V:
        """The address of the block's panels; packed into scratch where they are not prepared."""
        b = self.b
        if self.packed is not None:
            return b.gep(self.w_base, b.mul(block.column, self.frame.dim(self.k_total)), self.elem)

        def pack() -> None:
            symbol = pack_symbol(self.elem.bits, self.nr)
            n_stride = self.frame.dim(self.rhs.axes[-1].stride)
            at = b.gep(self.w_base, b.mul(block.column, n_stride), self.elem)
            if self.whole_k:
                k_stride = self.frame.dim(self.k_axes[0].stride) if self.k_axes else b.i64(1)
                self.frame.call(symbol, [at, k_stride, n_stride, self.w_copy, self.frame.dim(self.k_total), block.columns])
                return
            *window, channel = self.rhs.axes[:-1]
            spatial = [self.frame.dim(axis.extent) for axis in window]
            steps = [self.frame.dim(axis.stride) for axis in window]
            k_stride = self.frame.dim(channel.stride)

            def position(p: V, _: list[V]) -> None:
                src = at
                for i, s in zip(unravel(b, p, spatial), steps, strict=True):
                    src = b.gep(src, b.mul(i, s), self.elem)
                dst = b.gep(self.w_copy, b.mul(p, b.mul(self.channels_v, self.block_columns)), self.elem)
                self.frame.call(symbol, [src, k_stride, n_stride, dst, self.channels_v, block.columns])

            b.loop(0, self.taps * self.line.window, 1, [], position)

        b.if_then(fresh, lambda: pack() and None)
        return self.w_copy

    # -- lines -----------------------------------------------------------------------------------------

    def _some_lines(self, low: V, high: V, block: Block, weights: V) -> None:
        """A block of pixels of the lines [low, high), no more of them than a task has."""
        if self.depthwise and depthwise.fuses(self):
            self._depthwise((low, high), block, weights)
            return

        def one(number: V, _: list[V]) -> None:
            if self.depthwise:
                self._depthwise((number, self.b.add(number, 1)), block, weights)
            else:
                self._multiply(number, block, weights)
            self._epilogue(number, block)

        self.b.loop(low, high, 1, [], one, "line")

    def _depthwise(self, lines: tuple[V, V], block: Block, weights: V) -> None:
        b = self.b
        channel = block.column if self.before is None else b.i64(0)

        def rows(number: V, _: list[V]) -> None:
            table = b.gep(self.table, b.mul(b.sub(number, lines[0]), self.taps), PTR)
            self._rows(number, block, channel, table, lambda row, _: row)

        b.loop(*lines, 1, [], rows, "rows")
        depthwise.multiply(self, lines, block, self._first(block), weights)

    def _first(self, block: Block) -> V:
        """The position of the window of the block's first pixel in a row."""
        return self.b.sub(self.b.mul(block.pixel, self.line.stride), self.frame.dim(self.line.low))

    def _multiply(self, number: V, block: Block, weights: V) -> None:
        """The sums of a line's pixels into the block's area."""
        b, line, nr = self.b, self.line, self.nr
        first = self._first(block)
        last = b.add(first, b.add(b.mul(b.sub(block.pixels, 1), line.stride), line.reach))
        inside = b.and_(b.icmp("sge", first, 0), b.icmp("slt", last, self.frame.dim(line.extent)))
        if not self.in_place:
            inside = const(0, inside.ty)

        def place(row: V, tap: V) -> V:
            def direct() -> list[V]:
                return [b.gep(row, b.mul(first, self.frame.dim(line.step)), self.elem)]

            def copy() -> list[V]:
                dst = b.gep(self.copy_area, b.mul(tap, self.copy_pitch), self.copied)
                self._copy_row(row, dst, first, b.add(b.sub(last, first), 1))
                return [dst]

            return b.if_else(inside, direct, copy)[0]

        self._rows(number, block, b.mul(block.group, self.channels_v), self.table, place)
        pitch = channels = b.udiv(self.channels_v, self.unit)
        if self.in_place and not self.contiguous:
            pitch = b.select(inside, b.udiv(self.frame.dim(line.step), self.unit), channels)
        if self.merged:
            runs, k, step = b.i64(1), b.mul(channels, line.window), b.i64(0)
        else:
            runs, k, step = b.i64(line.window), channels, b.mul(pitch, line.dilation)
        if self.whole_k:
            b_run, panel = b.mul(channels, nr), b.mul(b.udiv(self.frame.dim(self.k_total), self.unit), nr)
        else:
            b_run, panel = b.mul(channels, self.block_columns), b.mul(channels, nr)
        self.frame.call(
            conv_symbol(self.acc, self.words or self.stored, few=self.few, single=self.filter),
            [
                self.table, b.i64(self.taps), runs, k, b.mul(pitch, line.stride), step, weights, b.mul(b_run, line.window), b_run,
                panel, self.block_area, b.i64(self.block_columns), self.part_area, block.pixels, block.columns,
            ],
        )  # fmt: skip

    def _rows(self, number: V, block: Block, channel: V, table: V, place) -> None:
        """Fill a table: `place(row, tap)` for the input row (address of its pixel 0) under each position of the window in the outer
        axes, null in the padding."""
        b, frame = self.b, self.frame
        image = b.gep(self.x_base, b.add(b.mul(block.image, self.x_image), channel), self.elem)
        index = unravel(b, number, self.outs)
        windows = [b.i64(axis.window) for axis in self.outer]

        def tap(t: V, _: list[V]) -> None:
            ok, row = const(1, b.icmp("eq", t, 0).ty), image
            for axis, i, at in zip(self.outer, index, unravel(b, t, windows), strict=True):
                y = b.add(b.sub(b.mul(i, axis.stride), frame.dim(axis.low)), b.mul(at, axis.dilation))
                if axis.spread > 1:
                    safe = b.smax(y, b.i64(0))
                    ok = b.and_(ok, b.and_(b.icmp("sge", y, 0), b.icmp("eq", b.urem(safe, axis.spread), 0)))
                    y = b.udiv(safe, axis.spread)
                ok = b.and_(ok, b.icmp("ult", y, frame.dim(axis.extent)))
                row = b.gep(row, b.mul(y, frame.dim(axis.step)), self.elem)
            found = b.if_else(ok, lambda: [place(row, t)], lambda: [const(0, PTR)])[0]
            b.store(found, b.gep(table, t, PTR))

        b.loop(0, self.taps, 1, [], tap, "tap")

    def _copy_row(self, row: V, dst: V, first: V, pixels: V) -> None:
        """Pixels [first, first + pixels) of the spread row with zeros around, as accumulator elements, channels side by side."""
        b, line = self.b, self.line
        extent, channels = self.frame.dim(line.extent), self.channels_v
        stop = b.add(first, pixels)
        if line.spread == 1:
            low = b.smin(b.smax(first, b.i64(0)), stop)
            high = b.smax(b.smin(stop, extent), low)
            self._zeros(dst, b.mul(b.sub(low, first), channels))
            self._zeros(
                b.gep(dst, b.mul(b.sub(high, first), channels), self.copied), b.mul(b.sub(stop, high), channels)
            )
            at, count, pitch = b.sub(low, first), b.sub(high, low), channels
        else:
            spread = line.spread
            self._zeros(dst, b.mul(pixels, channels))
            low = b.udiv(b.add(b.smax(first, b.i64(0)), spread - 1), spread)
            high = b.smin(b.udiv(b.add(b.smax(stop, b.i64(0)), spread - 1), spread), extent)
            at, count, pitch = b.sub(b.mul(low, spread), first), b.sub(high, low), b.mul(channels, spread)
        src = b.gep(row, b.mul(low, self.frame.dim(line.step)), self.elem)
        out = b.gep(dst, b.mul(at, channels), self.copied)
        one, zero = b.i64(1), b.i64(0)
        symbol = rows_symbol(self.stored, self.acc) if self.words is None else word_rows_symbol(self.stored, self.words)
        if self.contiguous and line.spread == 1:
            args = [src, zero, one, out, zero, one, b.mul(count, channels)]
        else:
            args = [src, self.frame.dim(line.step), one, out, b.udiv(pitch, self.unit), b.smax(count, zero), channels]
        self.frame.call(symbol, args)

    def _zeros(self, p: V, count: V) -> None:
        b, width = self.b, self.tile.lanes
        main = b.and_(count, -width)
        wide, single = const(0, vec(self.copied, width)), const(0, self.copied)
        b.loop(0, main, width, [], lambda i, _: b.store(wide, b.gep(p, i, self.copied)))
        b.loop(main, count, 1, [], lambda i, _: b.store(single, b.gep(p, i, self.copied)))

    # -- epilogue --------------------------------------------------------------------------------------

    def _epilogue(self, number: V, block: Block) -> None:
        b = self.b
        lead = unravel(b, block.image, self.points.extents[0])
        sums = sums_of(b, self.block_area, self.block_columns, self.ty, self.op.result.dtype)
        start = b.add(b.mul(number, self.width), block.pixel)
        emit_block(self.points, lead, start, block.pixels, block.column, block.columns, self.op.result, sums, self.tile.lanes)


def _blocks(conv: _Conv, extent: V, size: DimLike) -> V:
    """Blocks of `size` that cover an extent."""
    b = conv.b
    return b.udiv(b.add(extent, int(Dim.of(size)) - 1), int(Dim.of(size)))
