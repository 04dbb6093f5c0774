"""LLVM types and typed SSA values as small interned objects.

`Ty` objects are interned: compare them with `is`. A `V` is the text of an SSA value or constant together with its
type; `V.const` holds the Python number of a constant (for a vector: the number that every lane holds), which is
what the builder folds on.
"""

from __future__ import annotations

import math
import struct

Number = int | float | bool


class Ty:
    """An LLVM first-class type. `kind` is one of "i" (integer), "f" (float), "p" (pointer), "void".

    For a vector, `lanes > 1`, `elem` is its element type, and `kind` / `bits` are those of one element.
    """

    __slots__ = ("bits", "elem", "kind", "lanes", "suffix", "text")

    def __init__(self, text: str, kind: str, bits: int, lanes: int, elem: Ty | None, suffix: str) -> None:
        self.text = text
        self.kind = kind
        self.bits = bits
        self.lanes = lanes
        self.elem = elem if elem is not None else self
        self.suffix = suffix  # how the type is spelled in an intrinsic's name: v8f32, i64, p0

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        return self.kind == "i"

    @property
    def bytes(self) -> int:
        """Bytes of one element in memory (i1 counts as one byte)."""
        return max(self.bits // 8, 1)

    def __repr__(self) -> str:
        return self.text


VOID = Ty("void", "void", 0, 1, None, "isVoid")
PTR = Ty("ptr", "p", 64, 1, None, "p0")
F16 = Ty("half", "f", 16, 1, None, "f16")
BF16 = Ty("bfloat", "f", 16, 1, None, "bf16")
F32 = Ty("float", "f", 32, 1, None, "f32")
F64 = Ty("double", "f", 64, 1, None, "f64")

_INTS: dict[int, Ty] = {}
_VECTORS: dict[tuple[Ty, int], Ty] = {}


def int_ty(bits: int) -> Ty:
    """The integer type of `bits` bits."""
    ty = _INTS.get(bits)
    if ty is None:
        ty = _INTS[bits] = Ty(f"i{bits}", "i", bits, 1, None, f"i{bits}")
    return ty


I1, I8, I16, I32, I64 = (int_ty(n) for n in (1, 8, 16, 32, 64))


def vec(elem: Ty, lanes: int) -> Ty:
    """`<lanes x elem>`; with `lanes == 1` the scalar itself, so that code generic over width needs no special case."""
    elem = elem.elem
    if lanes == 1:
        return elem
    ty = _VECTORS.get((elem, lanes))
    if ty is None:
        if lanes < 1:
            raise ValueError(f"a vector needs at least one lane, not {lanes}")
        ty = Ty(f"<{lanes} x {elem.text}>", elem.kind, elem.bits, lanes, elem, f"v{lanes}{elem.suffix}")
        _VECTORS[elem, lanes] = ty
    return ty


def int_like(ty: Ty) -> Ty:
    """The integer type (or vector) of the same bits and lanes as `ty`."""
    return vec(int_ty(ty.bits), ty.lanes)


class V:
    """A typed SSA value: `name` is its LLVM spelling (`%v7`, `@f`, a literal), `const` its number if constant."""

    __slots__ = ("const", "name", "ty")

    def __init__(self, name: str, ty: Ty, const: Number | None = None) -> None:
        self.name = name
        self.ty = ty
        self.const = const

    @property
    def lanes(self) -> int:
        return self.ty.lanes

    def __repr__(self) -> str:
        return f"{self.ty.text} {self.name}"


def wrap_int(value: int, bits: int) -> int:
    """`value` modulo 2**bits as a signed number (i1 stays 0 or 1)."""
    value &= (1 << bits) - 1
    if bits > 1 and value >> (bits - 1):
        value -= 1 << bits
    return value


def _float_text(value: float, ty: Ty) -> str:
    if ty is F64:
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if ty is F32:
        if math.isfinite(value):
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if ty is F16:
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    raise ValueError(f"no constants of type {ty}; compute bf16 in f32")


def scalar_text(value: Number, ty: Ty) -> str:
    """The literal for `value` in the scalar type `ty`; floats are rounded to nearest."""
    if ty.kind == "f":
        return _float_text(float(value), ty)
    if ty.kind == "i":
        if ty.bits == 1:
            return "true" if value else "false"
        return str(wrap_int(int(value), ty.bits))
    if ty.kind == "p" and value == 0:
        return "null"
    raise ValueError(f"no literal of type {ty} for {value!r}")


def const(value: Number, ty: Ty) -> V:
    """A constant of type `ty`; for a vector type the same number in every lane."""
    elem = ty.elem
    if elem.kind == "i":
        value = wrap_int(int(value), elem.bits)
    text = scalar_text(value, elem)
    if ty.lanes == 1:
        return V(text, ty, value)
    if (elem.kind == "i" and value == 0) or (elem.kind == "f" and value == 0 and math.copysign(1, value) > 0):
        return V("zeroinitializer", ty, value)
    return V(f"splat ({elem.text} {text})", ty, value)


def const_vector(values: list[Number] | tuple[Number, ...] | range, elem: Ty) -> V:
    """A constant vector with the given lanes (a scalar constant when there is one)."""
    if len(values) == 1 or all(v == values[0] and not isinstance(v, float) for v in values):
        return const(values[0], vec(elem, len(values)))
    body = ", ".join(f"{elem.text} {scalar_text(v, elem)}" for v in values)
    return V(f"<{body}>", vec(elem, len(values)))


def poison(ty: Ty) -> V:
    """A don't-care value, only ever used where every lane is overwritten (insertelement chains, shuffles)."""
    return V("poison", ty)


NULL = V("null", PTR, 0)
