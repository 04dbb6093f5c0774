"""Pieces of MLIR text: types, attributes, constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disc_tf.ir.types import DType

#: IR dtype -> MLIR element type
ELEMENT = {d: ("i1" if d.is_bool else f"ui{d.bits}" if d.kind == "u" else d.ir_name) for d in DType}
DTYPE_OF = {text: dtype for dtype, text in ELEMENT.items()}


def tensor(dtype: DType, extents: Sequence[int | None]) -> str:
    """`tensor<2x?xf32>`; None is a dynamic extent."""
    return f"tensor<{''.join('?x' if e is None else f'{e}x' for e in extents)}{ELEMENT[dtype]}>"


def array(values: Sequence[int]) -> str:
    """`array<i64: 1, 2>`."""
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


def integers(values: Sequence[int]) -> str:
    """`[1, 2]`."""
    return f"[{', '.join(map(str, values))}]"


def pairs(low: Sequence[int], high: Sequence[int]) -> str:
    """A dense `tensor<rx2xi64>` of padding pairs."""
    body = ", ".join(f"[{a}, {b}]" for a, b in zip(low, high, strict=True))
    return f"dense<{f'[{body}]' if body else ''}> : tensor<{len(low)}x2xi64>"


def dense(value: np.ndarray) -> str:
    """A `dense<...> : tensor<...>` attribute with exactly this content."""
    dtype = DType.from_np(value.dtype)
    kind = tensor(dtype, value.shape)
    if value.size == 0:
        return f"dense<> : {kind}"
    splat = value.ndim > 0 and all(s == 0 or n == 1 for s, n in zip(value.strides, value.shape, strict=True))
    if value.ndim == 0 or splat or value.size == 1:
        return f"dense<{_literal(value.flat[0], dtype)}> : {kind}"
    if dtype.is_bool:
        return f"dense<{_nested(value)}> : {kind}"
    raw = np.ascontiguousarray(value).tobytes()  # little-endian, as MLIR's hex form
    return f'dense<"0x{raw.hex().upper()}"> : {kind}'


def _literal(x: np.generic, dtype: DType) -> str:
    if dtype.is_bool:
        return "true" if x else "false"
    if dtype.is_float:  # bits: exact for NaN, infinities and -0
        bits = np.asarray(x, dtype.np).tobytes()[::-1].hex().upper()
        return f"0x{bits}"
    return str(int(x))


def _nested(value: np.ndarray) -> str:
    if value.ndim == 0:
        return "true" if value else "false"
    return f"[{', '.join(_nested(v) for v in value)}]"


def quoted(text: str) -> str:
    """A string attribute; other than printable ASCII is escaped as MLIR does (`\\XX`)."""
    out = []
    for byte in text.encode():
        c = chr(byte)
        out.append(c if 32 <= byte < 127 and c not in '"\\' else f"\\{byte:02X}")
    return f'"{"".join(out)}"'
