"""Copies that bring operands of a product into the form the micro-kernels read. Pitches and strides are in
elements.

* `h_transpose_<bits>(src, src_pitch, dst, dst_pitch, runs, length)`: dst[j*dst_pitch + r] = src[r*src_pitch +
  j].
* `h_pack_<bits>_<nr>(src, stride_k, stride_n, dst, k, n)`: a k x n matrix into ceil(n / nr) panels of k x nr,
  zero filled.
* `h_rows_<stored>_<acc>(src, stride_m, stride_k, dst, pitch, m, k)`: an m x k matrix, widened to the
  accumulator type, k contiguous.
"""

from __future__ import annotations

from disc_tf.codegen.cpu.helpers import helper
from disc_tf.codegen.cpu.target import CpuTarget
from disc_tf.codegen.cpu.tiles import acc_ty
from disc_tf.codegen.cpu.widen import load_widened
from disc_tf.codegen.llvm import I64, PTR, VOID, FnBuilder, Ty, V, const, int_ty, vec
from disc_tf.ir.types import DType


def transpose_symbol(bits: int) -> str:
    """The symbol of the transposing copy of elements of `bits` bits."""
    return f"h_transpose_{bits}"


def pack_symbol(bits: int, nr: int) -> str:
    """The symbol of the panel packer for elements of `bits` bits."""
    return f"h_pack_{bits}_{nr}"


def rows_symbol(stored: DType, acc: DType) -> str:
    """The symbol of the left-operand copy."""
    return f"h_rows_{stored}_{acc}"


def function(symbol: str, target: CpuTarget, params: str) -> FnBuilder:
    """A helper; `params` by name, names in capitals are pointers."""
    typed = [(n, PTR if n.isupper() else I64) for n in params.split()]
    return FnBuilder(symbol, typed, linkage="internal", fma=target.fma, attrs=target.fn_attrs + " noinline")


@helper("h_transpose")
def _make_transpose(symbol: str, target: CpuTarget) -> tuple[FnBuilder, tuple[str, ...]]:
    bits = int(symbol.rsplit("_", 1)[1])
    ty = int_ty(bits)
    side = min(target.width(bits // 8), 16)
    b = function(symbol, target, "SRC src_pitch DST dst_pitch runs length")
    src, src_pitch, dst, dst_pitch, runs, length = b.params
    runs_main, length_main = b.and_(runs, -side), b.and_(length, -side)

    def scalar(r_lo: V, r_hi: V, j_lo: V, j_hi: V) -> None:
        def column(j: V, _: list[V]) -> None:
            out = b.gep(dst, b.mul(j, dst_pitch), ty)
            b.loop(
                r_lo,
                r_hi,
                1,
                [],
                lambda r, _: b.store(
                    b.load(ty, b.gep(src, b.add(b.mul(r, src_pitch), j), ty)), b.gep(out, r, ty)
                ),
            )

        b.loop(j_lo, j_hi, 1, [], column)

    def tile(r: V, j: V) -> None:
        start = b.gep(src, b.add(b.mul(r, src_pitch), j), ty)
        rows = [b.load(vec(ty, side), b.gep(start, b.mul(src_pitch, i), ty)) for i in range(side)]
        out = b.gep(dst, b.add(b.mul(j, dst_pitch), r), ty)
        for i, row in enumerate(transpose_square(b, rows)):
            b.store(row, b.gep(out, b.mul(dst_pitch, i), ty))

    b.loop(
        0,
        runs_main,
        side,
        [],
        lambda r, _: b.loop(0, length_main, side, [], lambda j, _: tile(r, j)) and None,
    )
    scalar(b.i64(0), runs_main, length_main, length)
    scalar(runs_main, runs, b.i64(0), length)
    b.ret()
    return b, ()


def transpose_square(b: FnBuilder, rows: list[V]) -> list[V]:
    """The transposed n vectors of n lanes, n a power of two: log2(n) stages that exchange ever smaller
    off-diagonal blocks."""
    n = len(rows)
    half = n // 2
    while half:
        keep = [i if not i & half else n + (i - half) for i in range(n)]
        swap = [i + half if not i & half else n + i for i in range(n)]
        out = list(rows)
        for i in range(n):
            if not i & half:
                x, y = rows[i], rows[i + half]
                out[i], out[i + half] = b.shuffle(x, y, keep), b.shuffle(x, y, swap)
        rows = out
        half //= 2
    return rows


@helper("h_pack")
def _make_pack(symbol: str, target: CpuTarget) -> tuple[FnBuilder, tuple[str, ...]]:
    _, _, bits, nr_text = symbol.split("_")
    ty, nr = int_ty(int(bits)), int(nr_text)
    lanes = target.width(ty.bytes)
    while nr % lanes:  # stays a power of two
        lanes //= 2
    b = function(symbol, target, "SRC stride_k stride_n DST k n")
    src, stride_k, stride_n, dst, k, n = b.params
    transpose = f"h_transpose_{bits}"

    def panel(p: V, _: list[V]) -> None:
        j0 = b.mul(p, nr)
        columns = b.smin(b.sub(n, j0), b.i64(nr))
        out = b.gep(dst, b.mul(j0, k), ty)
        at = b.gep(src, b.mul(j0, stride_n), ty)
        full = b.icmp("eq", columns, nr)
        # Missing columns: zero the whole panel first, it is at most one per matrix.
        b.if_then(b.xor(full, b.const(1, full.ty)), lambda: fill_zero(b, out, b.mul(k, nr), ty, lanes))

        def rows_whole() -> None:
            def row(i: V, _: list[V]) -> None:
                s, d = b.gep(at, b.mul(i, stride_k), ty), b.gep(out, b.mul(i, nr), ty)
                for v in range(nr // lanes):
                    b.store(b.load(vec(ty, lanes), b.gep(s, v * lanes, ty)), b.gep(d, v * lanes, ty))

            b.loop(0, k, 1, [], row)

        def rows_cut() -> None:
            _copy_strided(b, at, stride_k, stride_n, out, b.i64(nr), k, columns, ty)

        def rows_part() -> None:
            whole = b.and_(columns, -lanes)

            def row(i: V, _: list[V]) -> None:
                s, d = b.gep(at, b.mul(i, stride_k), ty), b.gep(out, b.mul(i, nr), ty)
                b.loop(
                    0,
                    whole,
                    lanes,
                    [],
                    lambda j, _: b.store(b.load(vec(ty, lanes), b.gep(s, j, ty)), b.gep(d, j, ty)),
                )
                b.loop(
                    whole, columns, 1, [], lambda j, _: b.store(b.load(ty, b.gep(s, j, ty)), b.gep(d, j, ty))
                )

            b.loop(0, k, 1, [], row)

        def columns_contiguous() -> None:
            b.if_else(full, rows_whole, rows_part)

        def other() -> None:
            b.if_else(
                b.icmp("eq", stride_k, 1),
                lambda: b.call(transpose, VOID, [at, stride_n, out, b.i64(nr), columns, k]) and None,
                rows_cut,
            )

        b.if_else(b.icmp("eq", stride_n, 1), columns_contiguous, other)

    b.loop(0, b.udiv(b.add(n, nr - 1), nr), 1, [], panel)
    b.ret()
    return b, (transpose,)


def fill_zero(b: FnBuilder, p: V, count: V, ty: Ty, lanes: int) -> None:
    """`count` elements, a multiple of `lanes`."""
    b.loop(0, count, lanes, [], lambda i, _: b.store(const(0, vec(ty, lanes)), b.gep(p, i, ty)))


def _copy_strided(
    b: FnBuilder, src: V, stride_i: V, stride_j: V, dst: V, pitch: V, rows: V, columns: V, ty: Ty
) -> None:
    """dst[i*pitch + j] = src[i*stride_i + j*stride_j], element by element."""

    def row(i: V, _: list[V]) -> None:
        s, d = b.gep(src, b.mul(i, stride_i), ty), b.gep(dst, b.mul(i, pitch), ty)
        b.loop(
            0,
            columns,
            1,
            [],
            lambda j, _: b.store(b.load(ty, b.gep(s, b.mul(j, stride_j), ty)), b.gep(d, j, ty)),
        )

    b.loop(0, rows, 1, [], row)


@helper("h_rows")
def _make_rows(symbol: str, target: CpuTarget) -> tuple[FnBuilder, tuple[str, ...]]:
    _, _, stored_name, acc_name = symbol.split("_")
    stored, ty = DType.from_name(stored_name), acc_ty(acc_name)
    raw = int_ty(stored.bits)
    lanes = target.width(ty.bytes)
    same = stored.bits == ty.bits
    transpose = f"h_transpose_{stored.bits}"
    b = function(symbol, target, "SRC stride_m stride_k DST pitch m k")
    src, stride_m, stride_k, dst, pitch, m, k = b.params
    main = b.and_(k, -lanes)

    def row(contiguous: bool):
        def emit(i: V, _: list[V]) -> None:
            s, d = b.gep(src, b.mul(i, stride_m), raw), b.gep(dst, b.mul(i, pitch), ty)
            low = b.i64(0)
            if contiguous:
                b.loop(
                    0,
                    main,
                    lanes,
                    [],
                    lambda j, _: b.store(
                        load_widened(b, stored, ty, b.gep(s, j, raw), lanes), b.gep(d, j, ty)
                    ),
                )
                low = main
            step = b.i64(1) if contiguous else stride_k
            b.loop(
                low,
                k,
                1,
                [],
                lambda j, _: b.store(
                    load_widened(b, stored, ty, b.gep(s, b.mul(j, step), raw), 1), b.gep(d, j, ty)
                ),
            )

        return lambda: b.loop(0, m, 1, [], emit) and None

    def strided() -> None:
        if same:
            b.if_else(
                b.icmp("eq", stride_m, 1),
                lambda: b.call(transpose, VOID, [src, stride_k, dst, pitch, k, m]) and None,
                row(False),
            )
        else:
            row(False)()

    b.if_else(b.icmp("eq", stride_k, 1), row(True), strided)
    b.ret()
    return b, ((transpose,) if same else ())
