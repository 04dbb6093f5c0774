"""The product of a depthwise convolution's line with its epilogue: lanes are channels, a tile is a few pixels, the window is walked for
each tile.

Nothing is copied. Pixels whose whole window lies inside of the row are taken several at a time, and so are those at its ends: what lies
outside counts as zero there. Where a line has too few pixels for that, they are taken one at a time with the part of the window that lies
inside. Tiles follow each other along the lines, blocks of lanes within a tile, lines within those: so data is read about in the order that
it lies in, and lines of it that several windows share are still in the first-level cache for all but the first of them. A short epilogue is
computed on the sums while they are in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from disc_tf.codegen.cpu import lanes
from disc_tf.codegen.cpu.epilogue import from_accumulator
from disc_tf.codegen.cpu.points import Row, Seed, each_vector
from disc_tf.codegen.cpu.product_frame import unravel
from disc_tf.codegen.cpu.widen import load_widened
from disc_tf.codegen.llvm import PTR, V, const, vec
from disc_tf.costs import op_weight
from disc_tf.ir.core import Value

if TYPE_CHECKING:
    from disc_tf.codegen.cpu.conv import Block, _Conv

#: windows up to this long along the line are unrolled
_UNROLL = 8
#: lane operations of an epilogue up to which it is computed on registers: its code is there once for each pixel of a tile
_SHORT_EPILOGUE = 16
#: takes the sums of a pixel, by the number of its line, that of the tile's first pixel in the block, and its own in the tile
Keep = Callable[[V, V, int, V], None]


def fuses(conv: _Conv) -> bool:
    """Whether `multiply` computes and stores the epilogue too."""
    return sum(map(op_weight, conv.region.ops)) <= _SHORT_EPILOGUE


def multiply(conv: _Conv, lines: tuple[V, V], block: Block, first: V, weights: V) -> None:
    """The block's pixels of some lines: all of the epilogue (`fuses`), or of one line their sums into `conv.block_area`. first: the
    position of the first pixel's window in a row; the table holds the address of pixel 0, first channel of the block, of each row, line
    after line."""
    b, line = conv.b, conv.line
    extent = conv.frame.dim(line.extent)
    zero, stride = b.i64(0), line.stride

    def reaches(position: V, least: V) -> V:
        """The first pixel of the block, from ``least`` on, for which `first + i * stride >= position`."""
        pixel = b.udiv(b.add(b.smax(b.sub(position, first), zero), stride - 1), stride)
        return b.smax(b.smin(pixel, block.pixels), least)

    # Pixels [low, high) have their window inside of the row; those of [some, none) at least reach into it from either side.
    some = reaches(b.i64(-line.reach), zero)
    low = reaches(zero, some)
    high = reaches(b.sub(extent, line.reach), low)
    none = reaches(extent, high)

    def each(i: V, run: Callable[[_Tile], None]) -> None:
        def vector(d: V, count: int, mask: V | None) -> None:
            keep = _fused(conv, lines[0], block, d, count, mask) if fuses(conv) else _stored(conv, d)
            tap0 = _weight_at(conv, weights, d)

            def one(number: V, _: list[V]) -> None:
                rows = b.gep(conv.table, b.mul(b.sub(number, lines[0]), conv.taps), PTR)
                run(_Tile(conv, rows, first, tap0, d, count, mask, lambda i, p, acc: keep(number, i, p, acc)))

            b.loop(*lines, 1, [], one, "line")

        each_vector(b, zero, block.columns, conv.tile.lanes, conv.target.masked_memory, vector)

    def tiles(at: V, stop: V, size: int, whole: bool) -> V:
        """Of ``size`` pixels from ``at`` on, while they end by ``stop``."""

        def one(i: V, _: list[V]) -> list[V]:
            each(i, lambda tile: tile.pixels(i, size, None if whole else extent))
            return [b.add(i, size)]

        (at,) = b.loop(at, b.sub(stop, size - 1), size, [at], one, "tile")
        return at

    sizes = (12, 4) if conv.target.registers >= 32 else (6, 3)
    few = sizes[-1]
    def singles(at: V, stop: V) -> None:
        b.loop(at, stop, 1, [], lambda i, _: each(i, lambda tile: tile.edge(i, extent)), "edge")

    singles(zero, some)
    at = some
    for size in sizes:  # at the beginning: as far as the padding reaches
        reached = b.smin(b.add(low, size - 1), none)
        at = tiles(at, b.select(b.icmp("slt", at, low), reached, at), size, False)
    for size in sizes:
        at = b.if_then(b.icmp("sge", at, low), lambda size=size, at=at: [tiles(at, high, size, True)], [at])[0]
    at = tiles(at, none, few, False)
    # What is left: the last pixels once more with some before them, which gives the same sums again; else one at a time.
    back = b.sub(none, few)
    enough = b.and_(b.icmp("slt", at, none), b.icmp("sge", back, some))

    def again() -> list[V]:
        each(back, lambda tile: tile.pixels(back, few, extent))
        return [none]

    (at,) = b.if_else(enough, again, lambda: [at])
    singles(at, block.pixels)


def _stored(conv: _Conv, d: V) -> Keep:
    """Keep the sums of channels from ``d`` of the block on in `conv.block_area`."""
    b = conv.b

    def keep(_: V, i: V, p: int, acc: V) -> None:
        b.store(acc, b.gep(conv.block_area, b.add(b.mul(b.add(i, p), conv.block_columns), d), conv.ty))

    return keep


def _fused(conv: _Conv, line: V, block: Block, d: V, count: int, mask: V | None) -> Keep:
    """Compute and store the region of channels from ``d`` of the block on; ``line``: any of those that there are."""
    b, points, product = conv.b, conv.points, conv.op.result
    column = b.add(block.column, d)

    def row_of(number: V, i: V, p: int = 0) -> Row:
        m = b.add(b.add(b.add(b.mul(number, conv.width), block.pixel), i), p)
        return points.row([*unravel(b, block.image, points.extents[0]), *unravel(b, m, points.extents[1])])

    shared = {v: row_of(line, b.i64(0)).leaf(v, column, count, mask) for v in points.same_for_rows()}

    def keep(number: V, i: V, p: int, acc: V) -> None:
        row, known = row_of(number, i, p), dict(shared)
        seeds: Mapping[Value, Seed] = {product: lambda _d, _count: from_accumulator(b, product.dtype, acc)}
        row.compute(points.region.ops, known, column, count, mask, seeds)
        row.store(known, column, count, mask, seeds)

    return keep


def _weight_at(conv: _Conv, weights: V, d: V) -> V:
    """The weights of channel `d` of the block at position 0; the next position is a panel's width further."""
    b, nr = conv.b, conv.tile.nr
    at = b.add(b.mul(b.mul(b.udiv(d, nr), nr), conv.frame.dim(conv.k_total)), b.urem(d, nr))
    return b.gep(weights, at, conv.elem)


class _Tile:
    """Lanes of the block's channels from ``d`` on; ``table``: of the line's rows."""

    def __init__(
        self, conv: _Conv, table: V, first: V, weights: V, d: V, count: int, mask: V | None, keep: Callable[[V, int, V], None]
    ) -> None:
        self.conv, self.b, self.table, self.first, self.weights, self.d = conv, conv.b, table, first, weights, d
        self.count, self.mask, self.keep = count, mask, keep
        self.step = conv.frame.dim(conv.line.step)

    def _weight(self, position: V) -> V:
        """Lanes of the weights at a position of the window; panels are filled up with zeros, so no mask is needed."""
        conv, b = self.conv, self.b
        p = b.gep(self.weights, b.mul(position, conv.tile.nr), conv.elem)
        return load_widened(b, conv.stored, conv.ty, p, self.count)

    def _data(self, p: V) -> V:
        conv, b = self.conv, self.b
        if self.mask is None:
            return load_widened(b, conv.stored, conv.ty, p, self.count)
        bits = b.masked_load(vec(conv.elem, self.count), p, self.mask)
        x = lanes.from_memory(b, conv.stored, bits)
        if conv.stored.is_int:
            return b.sext(x, conv.ty) if conv.stored.is_signed else b.zext(x, conv.ty)
        return b.fpext(x, conv.ty)

    def _pixel(self, row: V, x: V) -> V:
        return self.b.gep(row, self.b.add(self.b.mul(x, self.step), self.d), self.conv.elem)

    def _within(self, first: V, x: V, at: int, extent: V | None) -> V:
        """The data ``at`` pixels after position ``x``, whose address is ``first``; zero outside of [0, extent), unless that is None: then
        nothing lies outside."""
        b = self.b

        def there() -> list[V]:
            return [self._data(b.gep(first, b.mul(self.step, at), self.conv.elem))]

        if extent is None:
            return there()[0]
        return b.if_else(b.icmp("ult", b.add(x, at), extent), there, lambda: [self._zero()])[0]

    def _fma(self, x: V, w: V, acc: V) -> V:
        return self.b.fma(x, w, acc) if acc.ty.is_float else self.b.add(self.b.mul(x, w), acc)

    def _over_rows(self, inits: list[V], row_sums) -> list[V]:
        """`row_sums(row, number of the first position, sums)` for each row of the table that is there."""
        conv, b = self.conv, self.b

        def tap(t: V, acc: list[V]) -> list[V]:
            row = b.load(PTR, b.gep(self.table, t, PTR))
            there = b.icmp("ne", b.ptrtoint(row), 0)
            return b.if_else(there, lambda: row_sums(row, b.mul(t, conv.line.window), acc), lambda: acc)

        return b.loop(0, conv.taps, 1, inits, tap, "tap")

    def _zero(self) -> V:
        return const(0, vec(self.conv.ty, self.count))

    def pixels(self, i: V, pixels: int, extent: V | None) -> None:
        """`pixels` pixels from `i` of the block, each of which reaches into the row; ``extent`` as `_within` takes it."""
        b, line = self.b, self.conv.line
        start = b.add(self.first, b.mul(i, line.stride))

        def unrolled(row: V, position: V, sums: list[V]) -> list[V]:
            """Each element of the row is loaded once, for all the pixels and positions that it belongs to."""
            weights = [self._weight(b.add(position, k)) for k in range(line.window)]
            uses: dict[int, list[tuple[int, int]]] = {}
            for p in range(pixels):
                for k in range(line.window):
                    uses.setdefault(p * line.stride + k * line.dilation, []).append((p, k))
            sums, first = list(sums), self._pixel(row, start)
            last = max(uses) - line.reach
            for at in sorted(uses):
                x = self._within(first, start, at, None if line.reach <= at <= last else extent)
                for p, k in uses[at]:
                    sums[p] = self._fma(x, weights[k], sums[p])
            return sums

        def row_sums(row: V, position: V, acc: list[V]) -> list[V]:
            if line.window <= _UNROLL:
                return unrolled(row, position, acc)

            def one(k: V, sums: list[V]) -> list[V]:
                w = self._weight(b.add(position, k))
                x = b.add(start, b.mul(k, line.dilation))
                first = self._pixel(row, x)
                return [self._fma(self._within(first, x, p * line.stride, extent), w, s) for p, s in enumerate(sums)]

            return b.loop(0, line.window, 1, acc, one, "window")

        for p, acc in enumerate(self._over_rows([self._zero()] * pixels, row_sums)):
            self.keep(i, p, acc)

    def edge(self, i: V, extent: V) -> None:
        """One pixel with the part of its window that lies inside of the row."""
        b, line = self.b, self.conv.line
        start = b.add(self.first, b.mul(i, line.stride))
        zero, window, dilation = b.i64(0), b.i64(line.window), line.dilation
        low = b.smin(b.udiv(b.add(b.smax(b.sub(0, start), zero), dilation - 1), dilation), window)
        room = b.smax(b.sub(extent, start), zero)
        high = b.smin(b.udiv(b.add(room, dilation - 1), dilation), window)

        def row_sums(row: V, position: V, acc: list[V]) -> list[V]:
            def one(k: V, sums: list[V]) -> list[V]:
                w = self._weight(b.add(position, k))
                return [self._fma(self._data(self._pixel(row, b.add(start, b.mul(k, dilation)))), w, sums[0])]

            return b.loop(low, high, 1, acc, one, "window")

        (acc,) = self._over_rows([self._zero()], row_sums)
        self.keep(i, 0, acc)

