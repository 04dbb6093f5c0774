"""The product before a depthwise convolution, computed by its kernel: a band of lines and a block of channels at a time.

A task fills an area of scratch with the lines of the product that a band of the convolution's lines has under its window, channels of the
block only, and the convolution reads them there: they stay in the second-level cache. Lines at the borders of bands are computed by both.
Bands follow from the extents alone, and with them the strips of rows whose order of additions each point has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from disc_tf.codegen.cpu import lanes
from disc_tf.codegen.cpu.epilogue import each_point, sums_of
from disc_tf.codegen.cpu.helpers.gemm import Strips, strips_symbol
from disc_tf.codegen.cpu.points import Points, Row, Seed
from disc_tf.codegen.cpu.tiles import panel_layout
from disc_tf.codegen.llvm import I1, V, const
from disc_tf.fusion.conv import Bands
from disc_tf.fusion.types import Region
from disc_tf.fusion.views import View, merge_axes
from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim

if TYPE_CHECKING:
    from disc_tf.codegen.cpu.conv import _Conv


class Expansion:
    """Emits the product; ``attrs`` are those of its fusion (see `Fusion`)."""

    def __init__(self, conv: _Conv, attrs: Mapping[str, Any]) -> None:
        self.conv = conv
        self.dot: Value = attrs["dot"].result
        whole: Region = attrs["region"]
        ((self.value, _),) = whole.writes
        self.region = dataclasses.replace(whole, writes=[])
        self.groups: tuple[int, ...] = tuple(attrs["axes"])[:3]
        self.lhs: View = attrs["lhs"]
        m = attrs["axes"][1]
        rows = merge_axes(self.lhs.axes[:m], conv.ctx.env)
        self.row_stride = rows[0].stride if rows else Dim.of(0)
        rhs: View = attrs["rhs"]
        self.k: Dim = rhs.axes[0].extent
        self.packed = conv.ctx.prepared(rhs, panel_layout(conv.target, conv.acc))
        self.bands: Bands = attrs["bands"]

    def prepare(self) -> None:
        """Ask for buffers and scratch while at the top level."""
        conv, frame = self.conv, self.conv.frame
        self.a_base = frame.view_start(self.lhs, lanes.mem_elem(self.dot.dtype))
        self.w_base = frame.buffer(self.packed)
        self.points = Points(frame, self.region, self.groups, conv.ctx.env)
        self.k_v, self.lda = frame.dim(self.k), frame.dim(self.row_stride)
        self.height, self.width = frame.dim(conv.outer[0].extent), frame.dim(conv.line.extent)
        self.lines_v = frame.dim(self.bands.lines)
        self.area = frame.scratch_area(self.bands.most * conv.line.extent * (conv.block_columns * conv.ty.bytes))

    def band(self, number: V) -> tuple[V, V, V, V]:
        """Lines [first, stop) of the convolution in a band, and [low, high) of the product under it."""
        conv, b = self.conv, self.conv.b
        axis = conv.outer[0]
        out, padding = conv.frame.dim(axis.out), conv.frame.dim(axis.low)
        first = b.mul(number, self.lines_v)
        stop = b.smin(b.add(first, self.lines_v), out)
        low = b.smax(b.sub(b.mul(first, axis.stride), padding), b.i64(0))
        last = b.sub(b.add(b.mul(b.sub(stop, 1), axis.stride), axis.reach), padding)
        return first, stop, low, b.smax(b.smin(b.add(last, 1), self.height), low)

    def fill(self, image: V, low: V, high: V, column: V, columns: V) -> V:
        """Compute lines [low, high) of the product, and the elementwise ops after it; gives where line 0 would lie."""
        conv, b, tile, ty = self.conv, self.conv.b, self.conv.tile, self.conv.ty
        pitch, panel = b.i64(conv.block_columns), b.mul(self.k_v, tile.nr)
        row0 = b.mul(b.add(b.mul(image, self.height), low), self.width)
        a = b.gep(self.a_base, b.mul(row0, self.lda), ty)
        weights = b.gep(self.w_base, b.mul(column, self.k_v), ty)
        symbol = strips_symbol(conv.acc, self.dot.dtype)

        def strip(_: V, at: V, count: V) -> None:
            left = b.gep(a, b.mul(at, self.lda), ty)
            sums = b.gep(self.area, b.mul(at, pitch), ty)
            sizes = [b.i64(tile.nr), panel, sums, pitch, count, columns, self.k_v]
            conv.frame.call(symbol, [left, self.lda, weights, *sizes, weights, b.i64(0), const(0, I1)])
            self._epilogue(b.add(row0, at), count, sums, column, columns)

        Strips.of(b, b.mul(b.sub(high, low), self.width), tile.mr).each(b, strip)
        return b.gep(self.area, b.sub(0, b.mul(b.mul(low, self.width), pitch)), ty)

    def _epilogue(self, m0: V, rows: V, sums: V, column: V, columns: V) -> None:
        """The elementwise ops after the product over some rows of sums, in place."""
        conv, b = self.conv, self.conv.b

        seed = sums_of(b, sums, conv.block_columns, conv.ty, self.dot.dtype)

        def keep(i: V, row: Row, known: dict[Value, V], d: V, count: int, mask: V | None, seeds: Mapping[Value, Seed]) -> None:
            x = row.value(self.value, known, d, count, mask, seeds)
            place = b.gep(b.gep(sums, b.mul(i, conv.block_columns), conv.ty), b.sub(d, column), conv.ty)
            b.store(b.splat(x, count), place)

        each_point(self.points, [], m0, rows, column, columns, self.dot, seed, conv.tile.lanes, keep)
