"""Element and tensor types of the IR.

``DType`` is a closed table. ``TensorType`` is a dtype and a tuple of symbolic dims; rank is always known.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable

import numpy as np

from disc_tf.ir.bfloat16 import bfloat16_or_none
from disc_tf.ir.dims import Dim, DimLike


class DType(enum.Enum):
    """Element type. Members carry ``(IR name, numpy dtype, TF DataType number, kind, bits)``.

    ``kind`` is one of ``f`` (float), ``i`` (signed), ``u`` (unsigned), ``b`` (bool). A bool takes one byte in memory.
    """

    F16 = ("f16", np.dtype(np.float16), 19, "f", 16)
    BF16 = ("bf16", bfloat16_or_none(), 14, "f", 16)
    F32 = ("f32", np.dtype(np.float32), 1, "f", 32)
    F64 = ("f64", np.dtype(np.float64), 2, "f", 64)
    I8 = ("i8", np.dtype(np.int8), 6, "i", 8)
    I16 = ("i16", np.dtype(np.int16), 5, "i", 16)
    I32 = ("i32", np.dtype(np.int32), 3, "i", 32)
    I64 = ("i64", np.dtype(np.int64), 9, "i", 64)
    U8 = ("u8", np.dtype(np.uint8), 4, "u", 8)
    U16 = ("u16", np.dtype(np.uint16), 17, "u", 16)
    U32 = ("u32", np.dtype(np.uint32), 22, "u", 32)
    U64 = ("u64", np.dtype(np.uint64), 23, "u", 64)
    BOOL = ("bool", np.dtype(np.bool_), 10, "b", 8)

    def __init__(self, ir_name: str, np_dtype: np.dtype | None, tf_enum: int, kind: str, bits: int) -> None:
        self.ir_name = ir_name
        if np_dtype is not None:
            self.np: np.dtype = np_dtype
        self.tf_enum = tf_enum
        self.kind = kind
        self.bits = bits
        self.bytes = bits // 8

    def __getattr__(self, name: str) -> np.dtype:
        # only what `__init__` did not set comes here: the numpy dtype of a bf16 without ml_dtypes
        if name == "np":
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        """Signed or unsigned integer; a bool is not one."""
        return self.kind in "iu"

    @property
    def is_signed(self) -> bool:
        return self.kind in "if"

    @property
    def is_bool(self) -> bool:
        return self.kind == "b"

    def __str__(self) -> str:
        return self.ir_name

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    @staticmethod
    def from_name(name: str) -> DType:
        return _BY_NAME[name]

    @staticmethod
    def from_np(dtype: np.dtype | type) -> DType:
        """The DType of a numpy dtype; ``KeyError`` if the IR has none."""
        return _BY_NP[np.dtype(dtype)]

    @staticmethod
    def from_tf(number: int) -> DType | None:
        """The DType of a TensorFlow ``DataType`` number, or None (strings, resources, complex ...). Quantized types are their integers."""
        return _BY_TF.get(number)


_BY_NAME = {d.ir_name: d for d in DType}
_BY_NP = {d.np: d for d in DType if "np" in vars(d)}
#: DataType numbers of qint8, quint8, qint32, qint16, quint16: the same bits as the integers
_QUANTIZED = {11: DType.I8, 12: DType.U8, 13: DType.I32, 15: DType.I16, 16: DType.U16}
_BY_TF = {d.tf_enum: d for d in DType} | _QUANTIZED
#: names of the DataType numbers that have no DType of their own
_OTHER_TF_NAMES = {
    7: "string", 8: "complex64", 11: "qint8", 12: "quint8", 13: "qint32", 15: "qint16", 16: "quint16", 18: "complex128", 20: "resource",
    21: "variant", 24: "float8_e5m2", 25: "float8_e4m3fn", 29: "int4", 30: "uint4", 31: "int2", 32: "uint2",
}  # fmt: skip


def tf_type_name(number: int) -> str:
    """What people call a TensorFlow ``DataType`` number, for messages: ``string``, ``f32``, ``reference to f32``."""
    if number > 100:
        return f"reference to {tf_type_name(number - 100)}"
    known = _OTHER_TF_NAMES.get(number) or (_BY_TF[number].ir_name if number in _BY_TF else "")
    return known or f"number {number}"


@dataclasses.dataclass(frozen=True, slots=True)
class TensorType:
    """``dtype[dims]``; dims are symbolic, rank is static."""

    dtype: DType
    dims: tuple[Dim, ...]

    @staticmethod
    def of(dtype: DType, dims: Iterable[DimLike] = ()) -> TensorType:
        return TensorType(dtype, tuple(Dim.of(d) for d in dims))

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def is_static(self) -> bool:
        return all(d.is_static for d in self.dims)

    def num_elements(self) -> Dim:
        n = Dim.of(1)
        for d in self.dims:
            n = n * d
        return n

    def with_dims(self, dims: Iterable[DimLike]) -> TensorType:
        return TensorType.of(self.dtype, dims)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.dims)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclasses.dataclass(frozen=True, slots=True)
class TokenType:
    """The type of an ordering token (checks)."""

    def __str__(self) -> str:
        return "token"


TOKEN = TokenType()
Type = TensorType | TokenType
