"""Dims in the messages of run-time checks: numbers, and ``?`` for what is known only at run time (symbols are the compiler's own names)."""

from __future__ import annotations

from typing import Any

from disc_tf.ir.dims import Dim
from disc_tf.ir.types import TensorType


def plain(value: Any) -> str:
    """A dim, the shape of a type, or a sequence of dims as TensorFlow writes them; anything else as it is."""
    if isinstance(value, TensorType):
        return plain(value.dims)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(plain, value))}]"
    return "?" if isinstance(value, Dim) and not value.is_static else str(value)
