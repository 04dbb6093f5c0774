"""Matrix-product helpers with run-time sizes and pitches, shared by every kernel that multiplies.

`h_gemm_<acc>_<stored>(A, lda, B, ldb, panel, C, ldc, m, n, k, ahead)`: C[m, n] = A[m, k] B[k, n], all pitches
in elements.

* A: `acc` elements, k contiguous. C: `acc` elements; whole vectors are written, so a row of C holds n rounded
  up to a vector.
* B: `stored` elements (widened on load) in panels of NR columns: row k of panel p starts at `B + p*panel +
  k*ldb`. Packed: ldb = NR, panel = k*NR. Unpacked row-major with pitch N: ldb = N, panel = NR, and n a
  multiple of the vector. A panel's missing columns are read up to a whole vector (packing fills them with
  zeros).
* ahead: where the B of the caller's next product lies (its own B if unknown); it is prefetched meanwhile, evenly over the strips.
* Where `<stored>` is a name of words (`dots.py`), A and B hold words, k counts them, and B is packed; a row of starts may lie before its
  first one.
* k = 0 gives zeros; m = 0 or n = 0 does nothing. The order of additions depends on (m, n, k) only.

`h_strips_<acc>_<stored>(..., ahead, pace, more)` is its part for one block of k: C = (more ? C : 0) + A B; `pace` bytes of
`ahead` are prefetched in each step of k.

`h_mk_<acc>_<stored>_<mr>x<nv>` are the register tiles under it: one strip of mr rows times a run of panels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from disc_tf.codegen.cpu.dots import Dot, load_left, load_right, multiply_add, stored_as
from disc_tf.codegen.cpu.helpers import helper
from disc_tf.codegen.cpu.target import CpuTarget
from disc_tf.codegen.cpu.tiles import Tile, acc_ty, tile_for
from disc_tf.codegen.llvm import I1, I8, I64, PTR, VOID, FnBuilder, Ty, V, const, vec
from disc_tf.ir.types import DType

#: k beyond which the sum is cut into blocks, so that a strip of A and a panel of B stay in the inner caches
K_WHOLE = 1024
#: size of those blocks
K_BLOCK = 512
#: rows that share one base pointer (x86 addresses reach base + pitch and base + 2*pitch)
_GROUP = 3
#: independent sums needed to hide the latency of an FMA at two per cycle
_CHAINS = 8


def gemm_symbol(acc: DType, stored: DType | Dot) -> str:
    """The symbol of the product helper for B elements of type `stored`, or for words."""
    return f"h_gemm_{acc}_{stored}"


def strips_symbol(acc: DType, stored: DType | Dot) -> str:
    """The symbol of the helper for one block of k."""
    return f"h_strips_{acc}_{stored}"


def _attrs(target: CpuTarget) -> str:
    return target.fn_attrs + " noinline"


def _k_split(mr: int, nv: int) -> int:
    """How many interleaved sums over k a tile of few rows keeps, so that enough chains are in flight."""
    split = 1
    while mr * nv * split < _CHAINS and split < 4:
        split *= 2
    return split


@helper("h_mk")
def _make_micro(symbol: str, target: CpuTarget) -> tuple[FnBuilder, tuple[str, ...]]:
    """(A, B, C, k, lda, ldb, ldc, panels, panel, more): C = (more ? C : 0) + A B for `panels` consecutive
    panels."""
    _, _, acc_name, stored_name, shape = symbol.split("_")
    mr, nv = map(int, shape.split("x"))
    stored = stored_as(stored_name)
    acc = DType.from_name(acc_name)
    ty, lanes = acc_ty(acc_name), target.width(acc.bytes)
    names = ("k", "lda", "ldb", "ldc", "panels", "panel")
    b = FnBuilder(
        symbol,
        [
            ("A", PTR),
            ("B", PTR),
            ("C", PTR),
            *((n, I64) for n in names),
            ("more", I1),
            ("ahead_a", PTR),
            ("ahead_b", PTR),
            ("pace", I64),
        ],
        linkage="internal",
        fma=target.fma,
        attrs=_attrs(target),
    )
    a0, b0, c0, k, lda, ldb, ldc, panels, panel, more, ahead_a, ahead_b, pace = b.params
    micro = Micro(
        b,
        stored,
        mr,
        nv,
        lanes,
        ty,
        b.mul(lda, ty.bytes),
        b.mul(ldb, stored.bytes),
        ldc,
        pace,
        target.tuning.gemm.prefetch_steps,
    )

    def one_panel(_: V, at: list[V]) -> list[V]:
        micro.panel(a0, at[0], at[1], k, more, at[2], at[3])
        step = b.mul(panel, stored.bytes)
        return [b.gep(at[0], step, I8), b.gep(at[1], nv * lanes, ty), a0, b.gep(at[3], step, I8)]

    b.loop(0, panels, 1, [b0, c0, ahead_a, ahead_b], one_panel, "panel")
    b.ret()
    return b, ()


class Micro:
    """Emits the product of one strip with one panel, accumulators in registers."""

    def __init__(
        self,
        b: FnBuilder,
        stored: DType | Dot,
        mr: int,
        nv: int,
        lanes: int,
        ty: Ty,
        a_pitch: V,
        b_pitch: V,
        ldc: V,
        pace: V,
        steps_ahead: int,
    ) -> None:
        self.b, self.stored, self.mr, self.nv, self.lanes, self.ty = b, stored, mr, nv, lanes, ty
        self.vt = vec(ty, lanes)
        self.a_pitch, self.b_pitch, self.ldc = a_pitch, b_pitch, ldc
        self.pace = pace
        self.a_twice = b.shl(a_pitch, 1)
        # into the first-level cache: 16 steps are worth 4-8 % at every M from 2 up
        self.b_ahead = b.mul(b_pitch, steps_ahead)
        self.groups = -(-mr // _GROUP)
        self.split = _k_split(mr, nv)
        # One step of k per trip where the tile fills the registers: LLVM gathers the loads of several steps
        # and spills.
        self.unroll = max(self.split, 1 if mr * nv > 8 else 2)

    def panel(self, a: V, bp: V, c: V, k: V, more: V, ahead_a: V, ahead_b: V) -> None:
        b, tile = self.b, self.mr * self.nv
        rows = self._rows(a)
        zero = const(0, self.vt)
        first = b.if_else(more, lambda: [b.load(self.vt, p) for p in self._c_places(c)], lambda: self._starts(bp))
        sums = first + [zero] * (tile * (self.split - 1))
        main = b.and_(k, -self.unroll)

        def steps(_: V, x: list[V]) -> list[V]:
            for p in x[:2]:
                b.prefetch(p, locality=2)
            ahead = [b.gep(x[0], 64, I8), b.gep(x[1], b.mul(self.pace, self.unroll), I8)]
            return ahead + self._steps(x[2:], self.unroll)

        carried = b.loop(0, main, self.unroll, [ahead_a, ahead_b, *rows, bp, *sums], steps, "k")[2:]
        carried = b.loop(main, k, 1, carried, lambda _, x: self._steps(x, 1), "k1")
        self._keep(carried[self.groups + 1 :], c)

    def window(self, table: V, start: V, taps: V, runs: V, step: V, bp: V, b_tap: V, b_run: V, c: V, k: V) -> None:
        """C = the sum over the rows of a table (null ones left out) and the runs in each of A B; offsets in bytes. The sums stay in
        registers from the first run to the last."""
        b = self.b
        count = self.mr * self.nv * self.split

        def run(r: V, sums: list[V], row: V, w: V) -> list[V]:
            rows = self._rows(b.gep(row, b.mul(r, step), I8))
            main = b.and_(k, -self.unroll)
            carried = [*rows, b.gep(w, b.mul(r, b_run), I8), *sums]
            carried = b.loop(0, main, self.unroll, carried, lambda _, x: self._steps(x, self.unroll), "k")
            carried = b.loop(main, k, 1, carried, lambda _, x: self._steps(x, 1), "k1")
            return carried[self.groups + 1 :]

        def tap(t: V, sums: list[V]) -> list[V]:
            row, w = b.load(PTR, b.gep(table, t, PTR)), b.gep(bp, b.mul(t, b_tap), I8)
            there = b.icmp("ne", b.ptrtoint(row), 0)
            first = b.gep(row, start, I8)
            return b.if_else(there, lambda: b.loop(0, runs, 1, sums, lambda r, x: run(r, x, first, w), "run"), lambda: sums)

        self._keep(b.loop(0, taps, 1, [const(0, self.vt)] * count, tap, "tap"), c)

    def _starts(self, bp: V) -> list[V]:
        """What sums begin with: zero, or what the row before the panel's first step says."""
        b, zero = self.b, const(0, self.vt)
        if not (isinstance(self.stored, Dot) and self.stored.turned):
            return [zero] * (self.mr * self.nv)
        row = b.gep(bp, b.sub(0, self.b_pitch), I8)
        return [b.load(self.vt, b.gep(row, j * self.lanes, self.ty)) for j in range(self.nv)] * self.mr

    def _rows(self, a: V) -> list[V]:
        """The first row of each group."""
        b, rows = self.b, [a]
        for _ in range(1, self.groups):
            rows.append(b.gep(rows[-1], b.mul(self.a_pitch, _GROUP), I8))
        return rows

    def _keep(self, sums: list[V], c: V) -> None:
        """Add up the interleaved sums and store them."""
        b, tile = self.b, self.mr * self.nv
        while len(sums) > tile:
            half = len(sums) // 2
            plus = b.fadd if self.ty.is_float else b.add
            sums = [plus(x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]
        for value, place in zip(sums, self._c_places(c), strict=True):
            b.store(value, place)

    def _c_places(self, c: V) -> list[V]:
        b = self.b
        places = []
        for i in range(self.mr):
            row = b.gep(c, b.mul(self.ldc, i), self.ty)
            places += [b.gep(row, j * self.lanes, self.ty) for j in range(self.nv)]
        return places

    def _steps(self, carried: list[V], count: int) -> list[V]:
        b, g, tile = self.b, self.groups, self.mr * self.nv
        rows, bp, sums = carried[:g], carried[g], carried[g + 1 :]
        for u in range(count):
            base = (u % self.split) * tile
            columns = [
                load_right(b, self.stored, self.ty, b.gep(bp, j * self.lanes * self.stored.bytes, I8), self.lanes)
                for j in range(self.nv)
            ]
            for j in range(0, self.nv * self.lanes * self.stored.bytes, 64):
                b.prefetch(b.gep(b.gep(bp, self.b_ahead, I8), j, I8))
            for i in range(self.mr):
                row = rows[i // _GROUP]
                if i % _GROUP:
                    row = b.gep(row, self.a_pitch if i % _GROUP == 1 else self.a_twice, I8)
                x = load_left(b, self.stored, self.ty, b.gep(row, u * self.ty.bytes, I8), self.lanes)
                for j in range(self.nv):
                    at = base + i * self.nv + j
                    sums[at] = multiply_add(b, self.stored, x, columns[j], sums[at])
            bp = b.gep(bp, self.b_pitch, I8)
        return [b.gep(r, count * self.ty.bytes, I8) for r in rows] + [bp] + sums


def k_blocks(b: FnBuilder, k: V) -> tuple[V, V]:
    """(count, size) of the blocks that a sum over k is cut into: one up to `K_WHOLE`, else equal ones of at most `K_BLOCK`
    (the last one has what is left). k = 0 is one empty block, which writes the zeros."""

    def cut() -> list[V]:
        count = b.udiv(b.add(k, K_BLOCK - 1), K_BLOCK)
        return [count, b.and_(b.add(b.udiv(b.add(k, b.sub(count, 1)), count), 7), -8)]

    count, size = b.if_else(b.icmp("sle", k, K_WHOLE), lambda: [b.i64(1), k], cut)
    return count, size


@dataclasses.dataclass(frozen=True)
class Strips:
    """Rows cut into balanced strips of at most a tile's: `longer` of the `count` strips have one row more than `rows`."""

    count: V
    rows: V
    longer: V

    @staticmethod
    def of(b: FnBuilder, m: V, mr: int) -> Strips:
        m = b.smax(m, b.i64(0))
        count = b.udiv(b.add(m, mr - 1), mr)
        rows = b.udiv(m, b.smax(count, b.i64(1)))
        return Strips(count, rows, b.sub(m, b.mul(rows, count)))

    def each(self, b: FnBuilder, body: Callable[[V, V, V], None]) -> None:
        """body(number, first row, rows) for every strip."""

        def strip(s: V, at: list[V]) -> list[V]:
            rows = b.add(self.rows, b.zext(b.icmp("slt", s, self.longer), I64))
            body(s, at[0], rows)
            return [b.add(at[0], rows)]

        b.loop(0, self.count, 1, [b.i64(0)], strip, "strip")

    def pace(self, b: FnBuilder, row_bytes: int) -> V:
        """Bytes of the next block of B to prefetch in a step of k, so that its rows of `row_bytes` are there after all strips."""
        return b.udiv(b.i64(row_bytes), b.smax(self.count, b.i64(1)))


_COMMON = (
    ("A", PTR),
    ("lda", I64),
    ("B", PTR),
    ("ldb", I64),
    ("panel", I64),
    ("C", PTR),
    ("ldc", I64),
    ("m", I64),
    ("n", I64),
    ("k", I64),
    ("ahead", PTR),
)


def _product_function(
    symbol: str, target: CpuTarget, more: Sequence[tuple[str, Ty]] = ()
) -> tuple[FnBuilder, DType, DType | Dot, Tile]:
    _, _, acc_name, stored_name = symbol.split("_")
    acc, stored = DType.from_name(acc_name), stored_as(stored_name)
    b = FnBuilder(symbol, [*_COMMON, *more], linkage="internal", fma=target.fma, attrs=_attrs(target))
    return b, acc, stored, tile_for(target, acc)


@helper("h_gemm")
def _make_gemm(symbol: str, target: CpuTarget) -> tuple[FnBuilder, tuple[str, ...]]:
    """The blocks of k, each over all the rows."""
    b, acc, stored, tile = _product_function(symbol, target)
    a, lda, bp, ldb, panel, c, ldc, m, n, k, ahead = b.params
    ty = acc_ty(str(acc))
    blocks, block = k_blocks(b, k)
    pace = Strips.of(b, m, tile.mr).pace(b, tile.nr * stored.bytes)

    def one(kb: V, _: list[V]) -> None:
        k0 = b.mul(kb, block)
        kc = b.smin(block, b.sub(k, k0))
        here = b.gep(bp, b.mul(b.mul(k0, ldb), stored.bytes), I8)
        after = b.gep(here, b.mul(b.mul(kc, ldb), stored.bytes), I8)
        after = b.select(b.icmp("sge", b.add(k0, kc), k), ahead, after)
        args = [b.gep(a, k0, ty), lda, here, ldb, panel, c, ldc, m, n, kc, after, pace, b.icmp("sgt", kb, 0)]
        b.call(strips_symbol(acc, stored), VOID, args, declare=False)

    b.loop(0, blocks, 1, [], one, "kblock")
    b.ret()
    return b, (strips_symbol(acc, stored),)


@helper("h_strips")
def _make_strips(symbol: str, target: CpuTarget) -> tuple[FnBuilder, tuple[str, ...]]:
    """One block of k: balanced strips of rows, panels of columns."""
    b, acc, stored, tile = _product_function(symbol, target, (("pace", I64), ("more", I1)))
    macro = _Macro(b, tile, acc_ty(str(acc)), stored, f"h_mk_{acc}_{stored}")
    macro.emit()
    b.ret()
    return b, tuple(macro.micro(r, v) for v in range(1, tile.nv + 1) for r in range(1, tile.mr + 1))


class _Macro:
    def __init__(self, b: FnBuilder, tile: Tile, ty: Ty, stored: DType | Dot, prefix: str) -> None:
        self.b, self.tile, self.ty, self.stored, self.prefix = b, tile, ty, stored, prefix

    def micro(self, rows: int, vectors: int) -> str:
        return f"{self.prefix}_{rows}x{vectors}"

    def emit(self) -> None:
        b, tile = self.b, self.tile
        a, lda, bp, ldb, panel, c, ldc, m, n, k, ahead, pace, more = b.params
        full = b.udiv(n, tile.nr)
        rest = b.sub(n, b.mul(full, tile.nr))
        rest_vectors = b.udiv(b.add(rest, tile.lanes - 1), tile.lanes)
        tail_b = b.gep(bp, b.mul(b.mul(full, panel), self.stored.bytes), I8)
        tail_c = b.mul(full, tile.nr)
        share = b.mul(pace, k)

        def strip(s: V, first: V, count: V) -> None:
            sa = b.gep(a, b.mul(first, lda), self.ty)
            sc = b.gep(c, b.mul(first, ldc), self.ty)
            # Each tile asks for a share of the same panel of the next block of B, and the first one for the next rows of A.
            near = b.gep(sa, b.mul(count, lda), self.ty)
            far = b.gep(ahead, b.mul(s, share), I8)
            self._run(count, tile.nv, sa, bp, sc, k, lda, ldb, ldc, full, panel, more, near, far, pace)
            tail = (k, lda, ldb, ldc, panel, more, sa, sa, b.i64(0))
            sc = b.gep(sc, tail_c, self.ty)
            cases = {v: self._tail_case(v, count, sa, tail_b, sc, *tail) for v in range(1, tile.nv + 1)}
            b.switch(rest_vectors, cases, lambda: None)

        Strips.of(b, m, tile.mr).each(b, strip)

    def _tail_case(self, vectors: int, count: V, a: V, bp: V, c: V, *rest: V):
        kc, lda, ldb, ldc, panel, more, near, far, pace = rest
        return lambda: self._run(
            count, vectors, a, bp, c, kc, lda, ldb, ldc, self.b.i64(1), panel, more, near, far, pace
        )

    def _run(
        self,
        count: V,
        vectors: int,
        a: V,
        bp: V,
        c: V,
        kc: V,
        lda: V,
        ldb: V,
        ldc: V,
        panels: V,
        panel: V,
        more: V,
        near: V,
        far: V,
        pace: V,
    ) -> None:
        b = self.b

        def call(rows: int):
            return lambda: (
                b.call(
                    self.micro(rows, vectors),
                    VOID,
                    [a, bp, c, kc, lda, ldb, ldc, panels, panel, more, near, far, pace],
                )
                and None
            )

        b.switch(count, {r: call(r) for r in range(1, self.tile.mr + 1)})
