"""The helper that multiplies a line of pixels by a convolution's weights, on the register tiles of `helpers/gemm.py`.

`h_conv_<acc>_<stored>(ROWS, taps, runs, k, lda, step, B, b_tap, b_run, panel, C, ldc, PART, m, n)`: C[m, n] = the sum over `taps` rows and
`runs` positions in each of them of A[m, k] B[k, n]. Pitches and steps are in elements.

* ROWS: `taps` addresses, one for each position of the window in all axes but the last; null where that lies in the padding. Pixel i at run
  r of such a row is `k` contiguous accumulator elements at `row + i*lda + r*step`.
* B: panels of NR columns, `panel` apart; those of tap t and run r begin `t*b_tap + r*b_run` elements later.
* C: rows of `ldc` elements; whole vectors are written. It is zero where every row is null. PART: room for a tile's rows of that pitch.

`h_dots_<acc>_<stored>` takes the same arguments for very few features: B has panels of one column, lanes lie along k.

A long single run is summed in blocks. The order of additions is the same for every element.
"""

from __future__ import annotations

from disc_tf.codegen.cpu.helpers import helper
from disc_tf.codegen.cpu.target import CpuTarget
from disc_tf.codegen.cpu.tiles import acc_ty, tile_for
from disc_tf.codegen.cpu.widen import load_widened
from disc_tf.codegen.llvm import I1, I8, I64, PTR, VOID, FnBuilder, V, const, vec
from disc_tf.ir.types import DType

#: length beyond which the sum of a window of one run is cut into blocks, and their size. Such windows are filters along time, whose
#: terms cancel: in one chain of additions they lose digits (a filter bank of 256 taps: 4 times TensorFlow's error; so: half of it).
K_WHOLE = 192
K_BLOCK = 32
_SIZES = ("taps", "runs", "k", "lda", "step", "b_tap", "b_run", "panel", "ldc", "m", "n")


def conv_symbol(acc: DType, stored: DType, few: bool = False) -> str:
    """The symbol of the helper for weights of type `stored`; `few`: the one for very few features."""
    return f"h_{'dots' if few else 'conv'}_{acc}_{stored}"


@helper("h_conv")
def _make_conv(symbol: str, target: CpuTarget) -> tuple[FnBuilder, tuple[str, ...]]:
    _, _, acc_name, stored_name = symbol.split("_")
    b = _builder(symbol, target)
    line = _Line(b, target, acc_name, stored_name)
    line.emit()
    b.ret()
    tile = line.tile
    return b, tuple(line.micro(r, v) for v in range(1, tile.nv + 1) for r in range(1, tile.mr + 1))


def _builder(symbol: str, target: CpuTarget) -> FnBuilder:
    order = ("ROWS", "taps", "runs", "k", "lda", "step", "B", "b_tap", "b_run", "panel", "C", "ldc", "PART", "m", "n")
    return FnBuilder(
        symbol, [(n, I64 if n in _SIZES else PTR) for n in order], linkage="internal", fma=target.fma,
        attrs=target.fn_attrs + " noinline",
    )  # fmt: skip


class _Line:
    def __init__(self, b: FnBuilder, target: CpuTarget, acc: str, stored: str) -> None:
        self.b, self.ty = b, acc_ty(acc)
        self.tile = tile_for(target, DType.from_name(acc))
        self.stored = DType.from_name(stored)
        self.prefix = f"h_mk_{acc}_{stored}"

    def micro(self, rows: int, vectors: int) -> str:
        return f"{self.prefix}_{rows}x{vectors}"

    def emit(self) -> None:
        b, tile = self.b, self.tile
        table, taps, runs, k, lda, step, weights, b_tap, b_run, panel, c, ldc, part, m, n = b.params
        full = b.udiv(n, tile.nr)
        rest = b.sub(n, b.mul(full, tile.nr))
        rest_vectors = b.udiv(b.add(rest, tile.lanes - 1), tile.lanes)
        count = b.udiv(b.add(m, tile.mr - 1), tile.mr)
        each = b.udiv(m, b.smax(count, b.i64(1)))
        longer = b.sub(m, b.mul(each, count))
        whole = b.mul(full, panel)
        long = b.and_(b.icmp("sgt", k, K_WHOLE), b.icmp("eq", b.mul(taps, runs), 1))
        size = b.select(long, b.i64(K_BLOCK), b.smax(k, b.i64(1)))

        def strip(s: V, at: list[V]) -> list[V]:
            rows = b.add(each, b.zext(b.icmp("slt", s, longer), I64))
            start = b.mul(at[0], lda)
            sc = b.gep(c, b.mul(at[0], ldc), self.ty)

            def product(more: V, a: V, w: V, k: V, sc: V) -> None:
                self._run(rows, tile.nv, a, w, sc, k, lda, ldc, full, panel, more)
                tail = b.gep(w, b.mul(whole, self.stored.bytes), I8)
                tail_c = b.gep(sc, b.mul(full, tile.nr), self.ty)
                one = b.i64(1)
                cases = {
                    v: lambda v=v: self._run(rows, v, a, tail, tail_c, k, lda, ldc, one, panel, more)
                    for v in range(1, tile.nv + 1)
                }
                b.switch(rest_vectors, cases, lambda: None)

            def tap(t: V, begun: list[V]) -> list[V]:
                row = b.load(PTR, b.gep(table, t, PTR))

                def run(r: V, more: list[V]) -> list[V]:
                    a = b.gep(row, b.add(start, b.mul(r, step)), self.ty)
                    w = b.gep(weights, b.mul(b.add(b.mul(t, b_tap), b.mul(r, b_run)), self.stored.bytes), I8)

                    def block(k0: V, begun: list[V]) -> list[V]:
                        at = b.gep(w, b.mul(k0, tile.nr * self.stored.bytes), I8)
                        apart = b.and_(begun[0], long)
                        into = b.select(apart, part, sc)
                        product(b.and_(begun[0], b.not_(long)), b.gep(a, k0, self.ty), at, b.smin(size, b.sub(k, k0)), into)
                        b.if_then(apart, lambda: self._add(rows, part, sc, ldc, n))
                        return [const(1, I1)]

                    return b.loop(0, b.smax(k, b.i64(1)), size, more, block, "kblock")

                there = b.icmp("ne", b.ptrtoint(row), 0)
                return b.if_else(there, lambda: b.loop(0, runs, 1, begun, run, "run"), lambda: begun)

            begun = b.loop(0, taps, 1, [const(0, I1)], tap, "tap")
            b.if_then(b.not_(begun[0]), lambda: self._zero(rows, sc, ldc, n))
            return [b.add(at[0], rows)]

        b.loop(0, count, 1, [b.i64(0)], strip, "strip")

    def _add(self, rows: V, part: V, c: V, ldc: V, n: V) -> None:
        """C += PART."""
        b, lanes = self.b, self.tile.lanes
        ty = vec(self.ty, lanes)
        plus = b.fadd if self.ty.is_float else b.add

        def row(i: V, _: list[V]) -> None:
            x, y = (b.gep(p, b.mul(i, ldc), self.ty) for p in (part, c))

            def lane(j: V, _: list[V]) -> None:
                b.store(plus(b.load(ty, b.gep(y, j, self.ty)), b.load(ty, b.gep(x, j, self.ty))), b.gep(y, j, self.ty))

            b.loop(0, n, lanes, [], lane)

        b.loop(0, rows, 1, [], row)

    def _zero(self, rows: V, c: V, ldc: V, n: V) -> None:
        b, lanes = self.b, self.tile.lanes
        zero = const(0, vec(self.ty, lanes))

        def row(i: V, _: list[V]) -> None:
            line = b.gep(c, b.mul(i, ldc), self.ty)
            b.loop(0, n, lanes, [], lambda j, _: b.store(zero, b.gep(line, j, self.ty)))

        b.loop(0, rows, 1, [], row)

    def _run(self, rows: V, vectors: int, a: V, w: V, c: V, k: V, lda: V, ldc: V, panels: V, panel: V, more: V) -> None:
        b = self.b
        args = [a, w, c, k, lda, b.i64(self.tile.nr), ldc, panels, panel, more, a, w, b.i64(0)]

        def call(r: int):
            return lambda: b.call(self.micro(r, vectors), VOID, args, declare=False) and None

        b.switch(rows, {r: call(r) for r in range(1, self.tile.mr + 1)})


#: pixels that are summed at a time
_DOTS = 4


@helper("h_dots")
def _make_dots(symbol: str, target: CpuTarget) -> tuple[FnBuilder, tuple[str, ...]]:
    _, _, acc_name, stored_name = symbol.split("_")
    b = _builder(symbol, target)
    table, taps, runs, k, lda, step, weights, b_tap, b_run, panel, c, ldc, _, m, n = b.params
    stored, ty = DType.from_name(stored_name), acc_ty(acc_name)
    lanes = target.width(ty.bytes)
    wide = vec(ty, lanes)
    main = b.and_(k, -lanes)

    def fma(x: V, y: V, z: V) -> V:
        return b.fma(x, y, z) if ty.is_float else b.add(b.mul(x, y), z)

    def plus(x: V, y: V) -> V:
        return b.fadd(x, y) if ty.is_float else b.add(x, y)

    def feature(j: V, _: list[V]) -> None:
        column = b.gep(weights, b.mul(b.mul(j, panel), stored.bytes), I8)

        def pixels(i: V, count: int) -> None:
            start = b.mul(i, lda)

            def tap(t: V, sums: list[V]) -> list[V]:
                row = b.load(PTR, b.gep(table, t, PTR))

                def run(r: V, sums: list[V]) -> list[V]:
                    first = b.gep(row, b.add(start, b.mul(r, step)), ty)
                    at = [b.gep(first, b.mul(lda, p), ty) for p in range(count)]
                    w = b.gep(column, b.mul(b.add(b.mul(t, b_tap), b.mul(r, b_run)), stored.bytes), I8)

                    def steps(x: V, sums: list[V], width: int) -> list[V]:
                        y = load_widened(b, stored, ty, b.gep(w, b.mul(x, stored.bytes), I8), width)
                        return [fma(b.load(vec(ty, width), b.gep(a, x, ty)), y, s) for a, s in zip(at, sums, strict=True)]

                    long = b.loop(0, main, lanes, sums[:count], lambda x, s: steps(x, s, lanes), "k")
                    return long + b.loop(main, k, 1, sums[count:], lambda x, s: steps(x, s, 1), "k1")

                there = b.icmp("ne", b.ptrtoint(row), 0)
                return b.if_else(there, lambda: b.loop(0, runs, 1, sums, run, "run"), lambda: sums)

            zeros = [const(0, wide)] * count + [const(0, vec(ty, 1))] * count
            sums = b.loop(0, taps, 1, zeros, tap, "tap")
            for p in range(count):
                total = plus(b.hreduce(sums[p], plus), sums[count + p])
                b.store(total, b.gep(c, b.add(b.mul(b.add(i, p), ldc), j), ty))

        whole = b.and_(m, -_DOTS)
        b.loop(0, whole, _DOTS, [], lambda i, _: pixels(i, _DOTS), "pixel")
        b.loop(whole, m, 1, [], lambda i, _: pixels(i, 1), "pixel")

    b.loop(0, n, 1, [], feature, "feature")
    b.ret()
    return b, ()
