"""numpy arrays as the runtime takes them, in as few steps as Python allows: small models are called more often than they compute."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence

import numpy as np

_NUMPY = {
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "i8": np.int8, "i16": np.int16, "i32": np.int32,
    "i64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "bool": np.bool_,
}  # fmt: skip
#: by an artefact's dtype name; bf16 is not numpy's
DTYPES = {name: np.dtype(kind) for name, kind in _NUMPY.items()}


def _address() -> Callable[[np.ndarray], int]:
    """``array.ctypes.data`` at a seventh of its time: the pointer follows the object's header, as every extension module that was compiled
    against numpy's C ABI has it. Where that does not give the same, numpy is asked."""
    if sys.implementation.name != "cpython":
        return lambda array: array.ctypes.data
    offset, read = object.__basicsize__, ctypes.c_void_p.from_address

    def quick(array: np.ndarray) -> int:
        return read(id(array) + offset).value or 0

    tried = [np.zeros(3), np.zeros((2, 2), np.int8)[1:], np.zeros((), np.bool_), np.zeros((0, 3))]
    try:
        same = all(quick(a) == a.ctypes.data for a in tried)
    except ValueError:
        same = False
    return quick if same else lambda array: array.ctypes.data


#: where an array's elements begin
address = _address()


def fitting(dtype: str, name: str, value: object) -> np.ndarray:
    """The argument ``name`` as a contiguous array; TypeError where it is not of ``dtype``."""
    array = value if type(value) is np.ndarray else np.asarray(value)
    wanted = DTYPES.get(dtype)
    if array.dtype is not wanted:
        fits = array.dtype == wanted if wanted is not None else array.dtype.name in ("bfloat16", "uint16") and array.dtype.isnative
        if not fits:
            raise TypeError(f"argument {name}: {dtype} is needed, {array.dtype} was given")
    return array if array.flags.c_contiguous else np.asarray(array, order="C")


def numpy_dtype(dtype: str) -> np.dtype:
    """numpy's dtype for an artefact's dtype name: of bf16 ml_dtypes' one if the program imported that, else uint16."""
    if dtype != "bf16":
        return DTYPES[dtype]
    ml_dtypes = sys.modules.get("ml_dtypes")
    return np.dtype(ml_dtypes.bfloat16 if ml_dtypes is not None else np.uint16)


class Memrefs:
    """Descriptions of arrays (``disc_memref``: address, rank, where the extents are) one behind the other at ``address``, then the extents;
    None leaves a place empty. To be kept while they are read."""

    def __init__(self, arrays: Sequence[np.ndarray | None]) -> None:
        ranks = [0 if a is None else a.ndim for a in arrays]
        count = 3 * len(arrays) + sum(ranks)
        self._words = (ctypes.c_int64 * max(1, count))()
        self.address = ctypes.addressof(self._words)
        at, words = self.address + 24 * len(arrays), []
        for array, rank in zip(arrays, ranks, strict=True):
            words += (0, 0, 0) if array is None else (address(array), rank, at)
            at += 8 * rank
        for array in arrays:
            if array is not None:
                words += array.shape
        struct.pack_into(f"{count}q", self._words, 0, *words)
