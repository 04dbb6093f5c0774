"""The product of a depthwise convolution's line: lanes are channels, a tile is a few pixels, the window is walked for each tile.

Nothing is copied. Pixels whose whole window lies inside of the row are taken several at a time; those at its ends one at a time
with the part of the window that lies inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from disc_tf.codegen.cpu import lanes
from disc_tf.codegen.cpu.points import each_vector
from disc_tf.codegen.cpu.widen import load_widened
from disc_tf.codegen.llvm import PTR, V, const, vec

if TYPE_CHECKING:
    from disc_tf.codegen.cpu.conv import Block, _Conv

#: windows up to this long along the line are unrolled
_UNROLL = 8


def multiply(conv: _Conv, block: Block, first: V, weights: V) -> None:
    """The block's sums into `conv.block_area`. first: the position of the first pixel's window in the row; the table holds the address of
    pixel 0, first channel of the block, of each row."""
    b, line = conv.b, conv.line
    extent = conv.frame.dim(line.extent)
    # Pixels [low, high) of the block have their window inside: 0 <= first + i * stride, first + i * stride + reach < extent.
    zero, stride = b.i64(0), line.stride
    low = b.smin(b.udiv(b.add(b.smax(b.sub(0, first), zero), stride - 1), stride), block.pixels)
    room = b.sub(b.sub(extent, line.reach), first)  # i * stride < room
    high = b.smax(b.smin(b.udiv(b.add(b.smax(room, zero), stride - 1), stride), block.pixels), low)

    def vector(d: V, count: int, mask: V | None) -> None:
        tile = _Tile(conv, first, _weight_at(conv, weights, d), d, count, mask)
        b.loop(0, low, 1, [], lambda i, _: tile.edge(i, extent), "edge")
        at = low
        few = tile.sizes[-1]
        for size in tile.sizes:
            stop = b.sub(high, size - 1)
            (at,) = b.loop(at, stop, size, [at], lambda i, _, n=size: [tile.inside(i, n)], "inside")
        # What is left: the last pixels once more with some before them, which gives the same sums again; else one at a time.
        back = b.sub(high, few)
        enough = b.and_(b.icmp("slt", at, high), b.icmp("sge", back, low))
        (at,) = b.if_else(enough, lambda: [tile.inside(back, few)], lambda: [at])
        b.loop(at, high, 1, [], lambda i, _: tile.inside(i, 1) and None, "inside")
        b.loop(high, block.pixels, 1, [], lambda i, _: tile.edge(i, extent), "edge")

    each_vector(b, zero, block.columns, conv.tile.lanes, conv.target.masked_memory, vector)


def _weight_at(conv: _Conv, weights: V, d: V) -> V:
    """The weights of channel `d` of the block at position 0; the next position is a panel's width further."""
    b, nr = conv.b, conv.tile.nr
    at = b.add(b.mul(b.mul(b.udiv(d, nr), nr), conv.frame.dim(conv.k_total)), b.urem(d, nr))
    return b.gep(weights, at, conv.elem)


class _Tile:
    def __init__(self, conv: _Conv, first: V, weights: V, d: V, count: int, mask: V | None) -> None:
        self.conv, self.b, self.first, self.weights, self.d = conv, conv.b, first, weights, d
        self.count, self.mask = count, mask
        self.sizes = (12, 4) if conv.target.registers >= 32 else (6, 3)
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

    def _fma(self, x: V, w: V, acc: V) -> V:
        return self.b.fma(x, w, acc) if acc.ty.is_float else self.b.add(self.b.mul(x, w), acc)

    def _store(self, i: V, acc: V) -> None:
        conv, b = self.conv, self.b
        b.store(acc, b.gep(conv.block_area, b.add(b.mul(i, conv.block_columns), self.d), conv.ty))

    def _over_rows(self, inits: list[V], row_sums) -> list[V]:
        """`row_sums(row, number of the first position, sums)` for each row of the table that is there."""
        conv, b = self.conv, self.b

        def tap(t: V, acc: list[V]) -> list[V]:
            row = b.load(PTR, b.gep(conv.table, t, PTR))
            there = b.icmp("ne", b.ptrtoint(row), 0)
            return b.if_else(there, lambda: row_sums(row, b.mul(t, conv.line.window), acc), lambda: acc)

        return b.loop(0, conv.taps, 1, inits, tap, "tap")

    def _zero(self) -> V:
        return const(0, vec(self.conv.ty, self.count))

    def inside(self, i: V, pixels: int) -> V:
        """`pixels` pixels from `i` of the block; gives the next one."""
        b, line = self.b, self.conv.line
        start = b.add(self.first, b.mul(i, line.stride))

        def unrolled(row: V, position: V, sums: list[V]) -> list[V]:
            """Each element of the row is loaded once, for all the pixels and positions that it belongs to."""
            weights = [self._weight(b.add(position, k)) for k in range(line.window)]
            uses: dict[int, list[tuple[int, int]]] = {}
            for p in range(pixels):
                for k in range(line.window):
                    uses.setdefault(p * line.stride + k * line.dilation, []).append((p, k))
            sums = list(sums)
            for at in sorted(uses):
                x = self._data(self._pixel(row, b.add(start, at)))
                for p, k in uses[at]:
                    sums[p] = self._fma(x, weights[k], sums[p])
            return sums

        def row_sums(row: V, position: V, acc: list[V]) -> list[V]:
            if line.window <= _UNROLL:
                return unrolled(row, position, acc)

            def one(k: V, sums: list[V]) -> list[V]:
                w = self._weight(b.add(position, k))
                x = b.add(start, b.mul(k, line.dilation))
                return [
                    self._fma(self._data(self._pixel(row, b.add(x, p * line.stride))), w, s) for p, s in enumerate(sums)
                ]

            return b.loop(0, line.window, 1, acc, one, "window")

        for p, acc in enumerate(self._over_rows([self._zero()] * pixels, row_sums)):
            self._store(b.add(i, p), acc)
        return b.add(i, pixels)

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
        self._store(i, acc)

