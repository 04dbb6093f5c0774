"""Copies that bring operands of a product into words (`codegen/cpu/dots.py`): 32 bits with the elements of `group` successive k.

Strides are in elements, pitches in words; zeros fill up the last word.

* `h_wordrows_<stored>_<group>(src, stride_m, stride_k, dst, pitch, m, k)`: rows of the left operand.
* `h_wordpack_<stored>_<group>_<nr>(src, stride_k, stride_n, dst, k, n)`: a k x n matrix into ceil(n / nr) panels of nr columns, zero
  filled. A panel of fours begins with a row of what sums begin with.
"""

from __future__ import annotations

from collections.abc import Callable

from disc_tf.codegen.cpu.dots import Dot, sum_of_fours
from disc_tf.codegen.cpu.helpers import helper
from disc_tf.codegen.cpu.helpers.pack import fill_zero, function
from disc_tf.codegen.cpu.target import CpuTarget
from disc_tf.codegen.llvm import I32, VOID, FnBuilder, V, const, int_ty, vec
from disc_tf.ir.types import DType


def word_rows_symbol(stored: DType, dot: Dot) -> str:
    """The symbol of the copy of rows."""
    return f"h_wordrows_{stored}_{dot.group}"


def word_pack_symbol(stored: DType, group: int, nr: int) -> str:
    """The symbol of the panel packer."""
    return f"h_wordpack_{stored}_{group}_{nr}"


def panel_words(b: FnBuilder, k: V, group: int) -> V:
    """Words of a panel for each of its columns."""
    return b.add(b.udiv(b.add(k, group - 1), group), int(group == 4))


class _Words:
    """Elements of a type in words of `group`."""

    def __init__(self, b: FnBuilder, stored: DType, group: int) -> None:
        self.b, self.stored, self.group = b, stored, group
        self.raw, self.elem = int_ty(stored.bits), int_ty(32 // group)

    @property
    def whole(self) -> bool:
        """Whether elements are as wide in words as they are stored."""
        return self.raw is self.elem

    def element(self, p: V, lanes: int = 1) -> V:
        """Elements from ``p`` on as they are in words."""
        b, x = self.b, self.b.load(vec(self.raw, lanes), p)
        if self.whole:
            return x
        return b.sext(x, self.elem) if self.stored.is_signed else b.zext(x, self.elem)

    def join(self, parts: list[V]) -> V:
        """Words of the elements of successive k."""
        b = self.b
        out = b.zext(parts[0], I32)
        for g, x in enumerate(parts[1:], 1):
            out = b.or_(out, b.shl(b.zext(x, I32), g * self.elem.bits))
        return out

    def columns(self, src: V, stride_k: V, lanes: int) -> V:
        """Words of ``lanes`` neighbouring columns, the first of them at ``src``."""
        b = self.b
        return self.join([self.element(b.gep(src, b.mul(stride_k, g), self.raw), lanes) for g in range(self.group)])

    def copy(self, src: V, stride: V, dst: V, step: int, count: V) -> None:
        """``count`` elements, ``stride`` apart, one at a time to places that are ``step`` elements apart."""
        b = self.b

        def one(i: V, _: list[V]) -> None:
            b.store(self.element(b.gep(src, b.mul(i, stride), self.raw)), b.gep(dst, b.mul(i, step), self.elem))

        b.loop(0, count, 1, [], one)


@helper("h_wordrows")
def _make_rows(symbol: str, target: CpuTarget) -> tuple[FnBuilder, tuple[str, ...]]:
    _, _, stored_name, group_text = symbol.split("_")
    group = int(group_text)
    b = function(symbol, target, "SRC stride_m stride_k DST pitch m k")
    words = _Words(b, DType.from_name(stored_name), group)
    raw, elem = words.raw, words.elem
    lanes = target.width(4)
    src, stride_m, stride_k, dst, pitch, m, k = b.params
    transpose = f"h_transpose_{raw.bits}"
    full = b.udiv(k, group)

    def end(d: V) -> None:
        """Zeros after the last element: a word of them, wherever that ends."""
        for g in range(group):
            b.store(const(0, elem), b.gep(d, b.add(k, g), elem))

    def rows(body: Callable[[V, V], None]) -> None:
        def row(i: V, _: list[V]) -> None:
            d = b.gep(dst, b.mul(i, pitch), I32)
            body(b.gep(src, b.mul(i, stride_m), raw), d)
            end(d)

        b.loop(0, m, 1, [], row)

    def contiguous(s: V, d: V) -> None:
        main = b.and_(full, -lanes)
        count = lanes * group
        b.loop(0, main, lanes, [], lambda j, _: b.store(words.element(b.gep(s, b.mul(j, group), raw), count), b.gep(d, j, I32)))
        done = b.mul(main, group)
        if words.whole:  # what is left is less than a vector: word by word, then element by element
            b.loop(main, full, 1, [], lambda j, _: b.store(b.load(I32, b.gep(s, b.mul(j, group), raw), 1), b.gep(d, j, I32)))
            done = b.mul(full, group)
        words.copy(b.gep(s, done, raw), b.i64(1), b.gep(d, done, elem), 1, b.sub(k, done))

    def one_by_one() -> None:
        rows(lambda s, d: words.copy(s, stride_k, d, 1, k))

    def transposed() -> None:
        b.call(transpose, VOID, [src, stride_k, dst, b.mul(pitch, group), k, m], declare=False)
        rows(lambda _s, _d: None)

    def strided() -> None:
        if words.whole:
            b.if_else(b.icmp("eq", stride_m, 1), transposed, one_by_one)
        else:
            one_by_one()

    b.if_else(b.icmp("eq", stride_k, 1), lambda: rows(contiguous), strided)
    b.ret()
    return b, ((transpose,) if words.whole else ())


@helper("h_wordpack")
def _make_pack(symbol: str, target: CpuTarget) -> tuple[FnBuilder, tuple[str, ...]]:
    _, _, stored_name, group_text, nr_text = symbol.split("_")
    stored, group, nr = DType.from_name(stored_name), int(group_text), int(nr_text)
    starts = int(group == 4)
    b = function(symbol, target, "SRC stride_k stride_n DST k n")
    words = _Words(b, stored, group)
    raw = words.raw
    lanes = target.width(4)
    src, stride_k, stride_n, dst, k, n = b.params
    full = b.udiv(k, group)
    steps = b.udiv(b.add(k, group - 1), group)
    rest = b.sub(k, b.mul(full, group))

    def panel(p: V, _: list[V]) -> None:
        j0 = b.mul(p, nr)
        columns = b.smin(b.sub(n, j0), b.i64(nr))
        first = b.gep(dst, b.mul(j0, b.add(steps, starts)), I32)
        out = b.gep(first, starts * nr, I32)
        at = b.gep(src, b.mul(j0, stride_n), raw)
        last = b.gep(out, b.mul(full, nr), I32)
        whole = b.icmp("eq", columns, nr)
        # Missing columns: the whole panel is zero first (one a matrix at most); missing elements of k: its last row.
        b.if_else(
            whole,
            lambda: b.if_then(b.icmp("ne", rest, 0), lambda: fill_zero(b, last, b.i64(nr), I32, lanes)),
            lambda: fill_zero(b, out, b.mul(steps, nr), I32, lanes),
        )

        def side_by_side() -> None:
            def row(s: V, _: list[V]) -> None:
                here, to = b.gep(at, b.mul(b.mul(s, group), stride_k), raw), b.gep(out, b.mul(s, nr), I32)

                def vector(j: V) -> None:
                    b.store(words.columns(b.gep(here, j, raw), stride_k, lanes), b.gep(to, j, I32))

                def single(j: V, _: list[V]) -> None:
                    b.store(words.columns(b.gep(here, j, raw), stride_k, 1), b.gep(to, j, I32))

                def all_of_them() -> None:
                    for v in range(0, nr, lanes):
                        vector(b.i64(v))

                def part() -> None:
                    main = b.and_(columns, -lanes)
                    b.loop(0, main, lanes, [], lambda j, _: vector(j))
                    b.loop(main, columns, 1, [], single)

                b.if_else(whole, all_of_them, part)

            b.loop(0, full, 1, [], row)

        def below() -> None:
            """Words lie as they are in the source."""

            def word(j: V, s: V) -> V:
                return b.load(I32, b.gep(b.gep(at, b.mul(j, stride_n), raw), b.mul(s, group), raw), 1)

            def place(j: V, s: V) -> V:
                return b.gep(out, b.add(b.mul(s, nr), j), I32)

            def column(j: V, _: list[V]) -> None:
                b.loop(0, full, 1, [], lambda s, _: b.store(word(j, s), place(j, s)))

            def one_by_one() -> None:
                b.loop(0, columns, 1, [], column)

            def transposed() -> None:
                b.call("h_transpose_32", VOID, [at, pitch, out, b.i64(nr), columns, full], declare=False)

            pitch = b.udiv(stride_n, group)
            b.if_else(b.icmp("eq", b.mul(pitch, group), stride_n), transposed, one_by_one)

        def scattered() -> None:
            """Element by element: element g of word s of column j."""

            def column(j: V, _: list[V]) -> None:
                here, to = b.gep(at, b.mul(j, stride_n), raw), b.gep(out, j, I32)

                def step(s: V, _: list[V]) -> None:
                    start = b.gep(here, b.mul(b.mul(s, group), stride_k), raw)
                    words.copy(start, stride_k, b.gep(to, b.mul(s, nr), I32), 1, b.i64(group))

                b.loop(0, full, 1, [], step)

            b.loop(0, columns, 1, [], column)

        def other() -> None:
            if words.whole:
                b.if_else(b.icmp("eq", stride_k, 1), below, scattered)
            else:
                scattered()

        b.if_else(b.icmp("eq", stride_n, 1), side_by_side, other)

        def left_over(j: V, _: list[V]) -> None:
            start = b.gep(at, b.add(b.mul(j, stride_n), b.mul(b.mul(full, group), stride_k)), raw)
            words.copy(start, stride_k, b.gep(last, j, I32), 1, rest)

        b.loop(0, columns, 1, [], left_over)
        if starts:
            _starts(b, stored, first, out, steps, nr, lanes)

    b.loop(0, b.udiv(b.add(n, nr - 1), nr), 1, [], panel)
    b.ret()
    return b, (("h_transpose_32",) if words.whole else ())


def _starts(b: FnBuilder, stored: DType, to: V, rows: V, steps: V, nr: int, lanes: int) -> None:
    """What the sums of columns begin with where the left operand is read with its upper bits turned over: 128 times the columns' sums,
    taken away (signed elements, to which 128 was added) or added (unsigned ones)."""
    ty = vec(I32, lanes)
    ones = const(0x01010101, ty)

    def step(s: V, sums: list[V]) -> list[V]:
        row = b.gep(rows, b.mul(s, nr), I32)
        found = [b.load(ty, b.gep(row, v * lanes, I32)) for v in range(nr // lanes)]
        return [sum_of_fours(b, x, *((ones, y) if stored.is_signed else (y, ones))) for x, y in zip(sums, found, strict=True)]

    sums = b.loop(0, steps, 1, [const(0, ty)] * (nr // lanes), step)
    for v, x in enumerate(sums):
        b.store(b.mul(x, -128 if stored.is_signed else 128), b.gep(to, v * lanes, I32))
