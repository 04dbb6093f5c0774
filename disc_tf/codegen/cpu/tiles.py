"""Register tiles and element types of matrix products, per target: what the micro-kernels and their callers
agree on."""

from __future__ import annotations

import dataclasses

from disc_tf.codegen.cpu.target import CpuTarget
from disc_tf.codegen.llvm import F32, F64, I32, I64, Ty
from disc_tf.ir.types import DType

_ACC_TY: dict[str, Ty] = {"f32": F32, "f64": F64, "i32": I32, "i64": I64}


@dataclasses.dataclass(frozen=True)
class Tile:
    """A register tile of `mr` rows by `nv` vectors of `lanes` elements; panels have `nr` columns."""

    mr: int
    nv: int
    lanes: int

    @property
    def nr(self) -> int:
        return self.nv * self.lanes


# Measured on Sapphire Rapids (f32, K = 768, B in L2, share of the FMA peak): 9x48 97 %, 8x48 96 %, 14x32 94
# %, 6x64 88 %. The wide tile needs fewest broadcasts per FMA and fills 31 of 32 registers. AVX2: 6x16 and
# 4x24 are equal, 6x16 wastes less of a tail.
_TILES: dict[int, tuple[int, int]] = {64: (9, 3), 32: (6, 2), 16: (4, 2)}


def acc_dtype(dtype: DType) -> DType:
    """The type a product of `dtype` elements is summed in: f16 and bf16 in f32, integers modulo 2^32 or 2^64.

    ValueError for bool, which has no product here.
    """
    if dtype.is_float:
        return DType.F64 if dtype is DType.F64 else DType.F32
    if dtype.is_int:
        return DType.I64 if dtype.bits == 64 else DType.I32
    raise ValueError(f"dot_general of {dtype} elements is not supported; convert to i32 first")


def acc_ty(name: str) -> Ty:
    """The LLVM type of an accumulator dtype by its IR name."""
    return _ACC_TY[name]


def tile_for(target: CpuTarget, acc: DType) -> Tile:
    """The register tile of products that accumulate in `acc`."""
    mr, nv = _TILES[target.width_bytes]
    return Tile(mr, nv, target.width(acc.bytes))


def panel_layout(target: CpuTarget, acc: DType) -> tuple[str, int]:
    """The layout of a packed right-hand side: panels of `nr` columns, zero filled."""
    return ("panel", tile_for(target, acc).nr)
