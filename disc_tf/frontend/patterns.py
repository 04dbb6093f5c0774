"""Constants that say nothing of a model, and are sent as what they are: all 0, all 1, counting up, a triangle of ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.tensor_proto import Constant, fill_tensor
from disc_tf.ir.types import DType

#: attribute of a Const node: the name of a pattern
PATTERN_ATTR = "_disc_pattern"
#: larger constants are not looked at, and not made from a pattern: the compiler does not read them either
MAX_BYTES = 64 << 10


def pattern_of(array: np.ndarray) -> str:
    """The pattern of an array of numbers or bools; empty if it has none, or is a single value other than 0 and 1."""
    if not array.size or array.nbytes > MAX_BYTES or all(array.dtype != d.np for d in DType):
        return ""
    for name in ("zeros", "ones", "iota", "lower", "upper"):
        made = _make(name, array.shape, array.dtype)
        if made is not None and _equal(made, array):
            return name
    return ""


def known_pattern(constant: Constant) -> str:
    """The pattern of a constant; empty if it has none, is too large, or has no content here."""
    if constant.dtype is None or not constant.present or constant.nbytes > MAX_BYTES:
        return ""
    return pattern_of(constant.array())


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Bitwise: -0.0 is not 0.0."""
    return bool(np.array_equal(np.ascontiguousarray(a).view(np.uint8), np.ascontiguousarray(b).view(np.uint8)))


def _make(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
    """The array of a pattern; None where the pattern does not fit the shape. iota: along the last axis, from 0."""
    if name == "zeros":
        return np.zeros(shape, dtype)
    if name == "ones":
        return np.ones(shape, dtype)
    if name == "iota" and shape and shape[-1] > 1 and dtype.kind != "b":
        return np.broadcast_to(np.arange(shape[-1]).astype(dtype), shape)
    if name in ("lower", "upper") and len(shape) >= 2 and shape[-1] > 1:
        triangle = np.tri(shape[-2], shape[-1]).astype(dtype)
        return np.broadcast_to(triangle if name == "lower" else 1 - triangle if dtype.kind != "b" else ~triangle, shape)
    return None


def fill(node: Any) -> None:
    """Give a Const node the content of its pattern. ``GraphError`` for what `pattern_of` would not have made."""
    name = node.attr[PATTERN_ATTR].s.decode("ascii", "replace")
    tensor = node.attr["value"].tensor
    dtype = DType.from_tf(tensor.dtype)
    shape = tuple(int(d.size) for d in tensor.tensor_shape.dim)
    if dtype is None or tensor.tensor_shape.unknown_rank or any(d <= 0 for d in shape):
        raise GraphError(f"pattern {name!r} of this type or shape", node.name)
    if math.prod(shape) * dtype.bytes > MAX_BYTES:
        raise GraphError(f"pattern {name!r} of more than {MAX_BYTES} bytes", node.name)
    made = _make(name, shape, dtype.np)
    if made is None:
        raise GraphError(f"unknown pattern {name!r}", node.name)
    tensor.Clear()
    fill_tensor(tensor, np.array(made, order="C"))  # a scalar stays one
    del node.attr[PATTERN_ATTR]
