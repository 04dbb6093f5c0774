"""Products of narrow types by instructions that add up several products of neighbouring k at once.

Such an instruction takes *words*: 32 bits with the elements of 2 or 4 successive k. Panels are cut as those of f32 are, with a word in the
place of an element, rows of the left operand likewise (`helpers/words.py` makes both); zeros fill the last word of an odd K. So the
micro-kernels of `helpers/gemm.py` need no more than another load and another multiply-add, and pitches, blocks and tiles are those of
4-byte elements.

* bf16: `vdpbf16ps`, pairs, sums in f32 (denormals count as zero, as in all kernels; rounded to nearest even).
* 8 bits: `vpdpbusd`, fours, of unsigned by signed elements, sums modulo 2^32. Of two operands of one kind the left one's upper bits are
  turned over as it is loaded: it is read as x + 128 (signed) or x - 128 (unsigned), and what that adds to a column's sums is taken from
  them at their start. A panel of 8 bits begins with a row of these *starts*.
* 8 and 16 bits elsewhere: `pmaddwd`, pairs of i16, sums modulo 2^32; every target has it.
"""

from __future__ import annotations

import dataclasses

from disc_tf.codegen.cpu.target import BF16_DOT, VNNI
from disc_tf.codegen.cpu.widen import load_widened
from disc_tf.codegen.llvm import BF16, I16, I32, FnBuilder, Ty, V, const, vec
from disc_tf.ir.types import DType

#: what turns over the upper bit of each element of a word of four
_UPPER_BITS = -0x7F7F7F80
_MADD = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}


@dataclasses.dataclass(frozen=True)
class Dot:
    """One way to multiply words. ``name``: in the symbols of helpers; ``group``: elements of a word; ``needs``: the CPU feature, if any;
    ``signed``: of four bytes, whether the left and the right ones are."""

    name: str
    group: int
    needs: str = ""
    signed: tuple[bool, bool] = (True, True)

    def __str__(self) -> str:
        return self.name

    @property
    def bytes(self) -> int:
        """Of what lies in a panel for one column and step."""
        return 4

    @property
    def starts(self) -> int:
        """Rows of a panel before the first step's: what sums begin with."""
        return int(self.group == 4)

    @property
    def turned(self) -> bool:
        """Whether the upper bits of the left operand are turned over, so that one operand is signed and the other is not."""
        return self.group == 4 and self.signed[0] == self.signed[1]

    def steps(self, b: FnBuilder, k: V) -> V:
        """Words that hold ``k`` elements."""
        return b.udiv(b.add(k, self.group - 1), self.group)

    def left(self, b: FnBuilder, p: V, lanes: int) -> V:
        """The word at ``p`` in every lane."""
        x = b.splat(b.load(I32, p, 1), lanes)
        return b.xor(x, const(_UPPER_BITS, x.ty)) if self.turned else x

    def multiply_add(self, b: FnBuilder, x: V, y: V, z: V) -> V:
        """z + the products of the words of ``x`` (left) and ``y``."""
        lanes = z.ty.lanes
        if self is BF16_PAIRS:
            pairs = (b.bitcast(v, vec(BF16, 2 * lanes)) for v in (x, y))
            return called(b, "llvm.x86.avx512bf16.dpbf16ps.512", z.ty, [z, *pairs])
        if self is I16_PAIRS:
            pairs = (b.bitcast(v, vec(I16, 2 * lanes)) for v in (x, y))
            return b.add(called(b, _MADD[lanes], z.ty, list(pairs)), z)
        unsigned, signed = (y, x) if self.signed[0] != self.turned else (x, y)
        return sum_of_fours(b, z, unsigned, signed)


def sum_of_fours(b: FnBuilder, z: V, unsigned: V, signed: V) -> V:
    """z + the sums of the products of four bytes, modulo 2^32."""
    return called(b, "llvm.x86.avx512.vpdpbusd.512", z.ty, [z, unsigned, signed])


def called(b: FnBuilder, intrinsic: str, ty: Ty, args: list[V]) -> V:
    out = b.call(intrinsic, ty, args)
    assert out is not None
    return out


BF16_PAIRS = Dot("bf16x2", 2, BF16_DOT)
I16_PAIRS = Dot("i16x2", 2)
_FOURS = {(x, y): Dot(f"{'i' if x else 'u'}8{'i' if y else 'u'}8", 4, VNNI, (x, y)) for x in (True, False) for y in (True, False)}
_BY_NAME = {d.name: d for d in (BF16_PAIRS, I16_PAIRS, *_FOURS.values())}


def dot_of(features: frozenset[str], lhs: DType, rhs: DType, acc: DType) -> Dot | None:
    """How elements of these types are multiplied by words where the CPU has ``features``; None where they are not."""
    if lhs is rhs is DType.BF16 and acc is DType.F32:
        return BF16_PAIRS if BF16_DOT in features else None
    if acc is not DType.I32 or not all(t.is_int and t.bits <= 16 for t in (lhs, rhs)):
        return None
    if lhs.bits == rhs.bits == 8 and VNNI in features:
        return _FOURS[lhs.is_signed, rhs.is_signed]
    return None if DType.U16 in (lhs, rhs) else I16_PAIRS


def in_words(dtype: DType, dot: Dot) -> DType:
    """The elements that words hold for a matrix of ``dtype``."""
    return dtype if dtype.bits * dot.group == 32 else DType.I16


def stored_as(name: str) -> DType | Dot:
    """What a panel holds, by the name in a helper's symbol."""
    return _BY_NAME[name] if name in _BY_NAME else DType.from_name(name)


def words_layout(dot: Dot, nr: int) -> tuple[str, int, int]:
    """The layout of a packed right operand in words: panels of ``nr`` columns, zero filled."""
    return ("words", nr, dot.group)


# ---- what the micro-kernels do with a step of k, whatever panels hold -----------------------------------------------------


def load_right(b: FnBuilder, stored: DType | Dot, ty: Ty, p: V, lanes: int) -> V:
    """A vector of a panel."""
    return b.load(vec(I32, lanes), p) if isinstance(stored, Dot) else load_widened(b, stored, ty, p, lanes)


def load_left(b: FnBuilder, stored: DType | Dot, ty: Ty, p: V, lanes: int) -> V:
    """A step of a row of the left operand, in every lane."""
    return stored.left(b, p, lanes) if isinstance(stored, Dot) else b.splat(b.load(ty, p), lanes)


def multiply_add(b: FnBuilder, stored: DType | Dot, x: V, y: V, z: V) -> V:
    """z + x * y."""
    if isinstance(stored, Dot):
        return stored.multiply_add(b, x, y, z)
    return b.fma(x, y, z) if x.ty.is_float else b.add(b.mul(x, y), z)
