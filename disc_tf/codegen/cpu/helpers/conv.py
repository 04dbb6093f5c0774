"""The helpers that multiply a line of pixels by a convolution's weights, on register tiles as those of `helpers/gemm.py`.

`h_window_<acc>_<stored>(ROWS, taps, runs, k, lda, step, B, b_tap, b_run, panel, C, ldc, PART, m, n)`: C[m, n] = the sum over `taps` rows
and `runs` positions in each of them of A[m, k] B[k, n]. Pitches and steps are in elements.

* ROWS: `taps` addresses, one for each position of the window in all axes but the last; null where that lies in the padding. Pixel i at run
  r of such a row is `k` contiguous accumulator elements at `row + i*lda + r*step`.
* B: panels of NR columns, `panel` apart; those of tap t and run r begin `t*b_tap + r*b_run` elements later.
* C: rows of `ldc` elements; whole vectors are written. It is zero where every row is null. PART: room for a tile's rows of that pitch.

A strip's sums stay in registers over the whole window (`h_mc_...`). The order of additions is the same for every element.

`h_run_<acc>_<stored>` takes the same arguments for filters, windows of one tap and one run over few channels; a long one is summed in
blocks. `h_dots_<acc>_<stored>` takes them for very few features: B has panels of one column, lanes lie along k.
"""

from __future__ import annotations

from collections.abc import Callable

from disc_tf.codegen.cpu.dots import Dot, stored_as
from disc_tf.codegen.cpu.helpers import helper
from disc_tf.codegen.cpu.helpers.gemm import Micro, Strips
from disc_tf.codegen.cpu.target import CpuTarget
from disc_tf.codegen.cpu.tiles import Tile, acc_ty, tile_for
from disc_tf.codegen.cpu.widen import load_widened
from disc_tf.codegen.llvm import I1, I8, I64, PTR, VOID, FnBuilder, Ty, V, const, vec
from disc_tf.ir.types import DType

#: length beyond which the sum of a filter is cut into blocks, and their size. Its terms cancel: in one chain of additions they lose digits
#: (a filter bank of 256 taps: 4 times TensorFlow's error; so: half of it).
K_WHOLE = 192
K_BLOCK = 32
_SIZES = ("taps", "runs", "k", "lda", "step", "b_tap", "b_run", "panel", "ldc", "m", "n")


def conv_symbol(acc: DType, stored: DType | Dot, *, few: bool, single: bool) -> str:
    """The symbol of the helper for weights of type `stored`. few: the one for very few features; single: for filters."""
    return f"h_{'dots' if few else 'run' if single else 'window'}_{acc}_{stored}"


@helper("h_run")
def _make_run(symbol: str, target: CpuTarget) -> tuple[FnBuilder, tuple[str, ...]]:
    return _make_line(symbol, target, "mk")


@helper("h_window")
def _make_windows(symbol: str, target: CpuTarget) -> tuple[FnBuilder, tuple[str, ...]]:
    return _make_line(symbol, target, "mc")


def _make_line(symbol: str, target: CpuTarget, micro: str) -> tuple[FnBuilder, tuple[str, ...]]:
    _, _, acc, stored = symbol.split("_")
    b = _builder(symbol, target)
    tile = tile_for(target, DType.from_name(acc))
    line = _Line(b, tile, acc_ty(acc), stored_as(stored), f"h_{micro}_{acc}_{stored}")
    line.emit(line.run if micro == "mk" else line.window)
    b.ret()
    return b, tuple(f"{line.micro}_{r}x{v}" for v in range(1, tile.nv + 1) for r in range(1, tile.mr + 1))


def _builder(symbol: str, target: CpuTarget) -> FnBuilder:
    order = ("ROWS", "taps", "runs", "k", "lda", "step", "B", "b_tap", "b_run", "panel", "C", "ldc", "PART", "m", "n")
    return FnBuilder(
        symbol, [(n, I64 if n in _SIZES else PTR) for n in order], linkage="internal", fma=target.fma,
        attrs=target.fn_attrs + " noinline",
    )  # fmt: skip


@helper("h_mc")
def _make_window(symbol: str, target: CpuTarget) -> tuple[FnBuilder, tuple[str, ...]]:
    """(ROWS, start, taps, runs, k, lda, step, B, b_tap, b_run, panel, C, ldc, panels): one strip of rows times a run of panels. ``start``:
    of the strip in each row of the table; strides in elements."""
    _, _, acc_name, stored_name, shape = symbol.split("_")
    mr, nv = map(int, shape.split("x"))
    ty, stored = acc_ty(acc_name), stored_as(stored_name)
    order = ("ROWS", "start", "taps", "runs", "k", "lda", "step", "B", "b_tap", "b_run", "panel", "C", "ldc", "panels")
    b = FnBuilder(
        symbol, [(n, PTR if n in ("ROWS", "B", "C") else I64) for n in order], linkage="internal", fma=target.fma,
        attrs=target.fn_attrs + " noinline",
    )  # fmt: skip
    table, start, taps, runs, k, lda, step, weights, b_tap, b_run, panel, c, ldc, panels = b.params
    tile = tile_for(target, DType.from_name(acc_name))
    lda, start, step = (b.mul(x, ty.bytes) for x in (lda, start, step))
    b_tap, b_run, panel = (b.mul(x, stored.bytes) for x in (b_tap, b_run, panel))
    ahead = target.tuning.gemm.prefetch_steps
    micro = Micro(b, stored, mr, nv, tile.lanes, ty, lda, b.i64(tile.nr * stored.bytes), ldc, b.i64(0), ahead)

    def one_panel(_: V, at: list[V]) -> list[V]:
        micro.window(table, start, taps, runs, step, at[0], b_tap, b_run, at[1], k)
        return [b.gep(at[0], panel, I8), b.gep(at[1], nv * tile.lanes, ty)]

    b.loop(0, panels, 1, [weights, c], one_panel, "panel")
    b.ret()
    return b, ()


class _Line:
    """Strips of pixels, each by ``run`` or ``window``."""

    def __init__(self, b: FnBuilder, tile: Tile, ty: Ty, stored: DType | Dot, micro: str) -> None:
        self.b, self.tile, self.ty, self.stored, self.micro = b, tile, ty, stored, micro
        n, panel = b.params[14], b.params[9]
        self.full = b.udiv(n, tile.nr)
        rest = b.sub(n, b.mul(self.full, tile.nr))
        self.rest_vectors = b.udiv(b.add(rest, tile.lanes - 1), tile.lanes)
        self.whole = b.mul(self.full, panel)

    def emit(self, strip: Callable[[V, V, V], None]) -> None:
        """`strip(first row times lda, rows, where its sums go)` for all of them."""
        b = self.b
        lda, c, ldc, m = (b.params[i] for i in (4, 10, 11, 13))

        def one(_: V, first: V, rows: V) -> None:
            strip(b.mul(first, lda), rows, b.gep(c, b.mul(first, ldc), self.ty))

        Strips.of(b, m, self.tile.mr).each(b, one)

    def window(self, start: V, rows: V, to: V) -> None:
        """All taps and runs by one call for each run of panels."""
        table, taps, runs, k, lda, step, weights, b_tap, b_run, panel, _, ldc, _, _, _ = self.b.params

        def product(vectors: int, w: V, to: V, count: V) -> None:
            self._call(rows, vectors, [table, start, taps, runs, k, lda, step, w, b_tap, b_run, panel, to, ldc, count])

        self._panels(weights, to, product)

    def run(self, start: V, rows: V, to: V) -> None:
        """The one run; sums of blocks of it, added up, where it is long."""
        b, tile = self.b, self.tile
        table, _, _, k, lda, _, weights, _, _, panel, _, ldc, part, _, n = b.params
        row = b.load(PTR, table)
        a = b.gep(row, start, self.ty)
        size = b.select(b.icmp("sgt", k, K_WHOLE), b.i64(K_BLOCK), b.smax(k, b.i64(1)))

        def block(k0: V, begun: list[V]) -> list[V]:
            left = b.gep(a, k0, self.ty)

            def product(vectors: int, w: V, to: V, count: V) -> None:
                here = b.smin(size, b.sub(k, k0))
                self._call(rows, vectors, [left, w, to, here, lda, b.i64(tile.nr), ldc, count, panel, const(0, I1), left, w, b.i64(0)])

            self._panels(b.gep(weights, b.mul(k0, tile.nr * self.stored.bytes), I8), b.select(begun[0], part, to), product)
            b.if_then(begun[0], lambda: self._add(rows, part, to, ldc, n))
            return [const(1, I1)]

        def product_of_row() -> list[V]:
            b.loop(0, b.smax(k, b.i64(1)), size, [const(0, I1)], block, "kblock")
            return []

        def nothing() -> list[V]:
            self._zero(rows, to, ldc, n)
            return []

        b.if_else(b.icmp("ne", b.ptrtoint(row), 0), product_of_row, nothing)

    def _panels(self, w: V, to: V, product: Callable[[int, V, V, V], None]) -> None:
        """`product(vectors, weights, result, panels)` for the whole panels, then for what is left of the columns."""
        b, tile = self.b, self.tile
        product(tile.nv, w, to, self.full)
        tail, tail_to = b.gep(w, b.mul(self.whole, self.stored.bytes), I8), b.gep(to, b.mul(self.full, tile.nr), self.ty)
        cases = {v: lambda v=v: product(v, tail, tail_to, b.i64(1)) for v in range(1, tile.nv + 1)}
        b.switch(self.rest_vectors, cases, lambda: None)

    def _call(self, rows: V, vectors: int, args: list[V]) -> None:
        b = self.b

        def call(r: int) -> Callable[[], None]:
            return lambda: b.call(f"{self.micro}_{r}x{vectors}", VOID, args, declare=False) and None

        b.switch(rows, {r: call(r) for r in range(1, self.tile.mr + 1)})

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
