"""The layouts of packed right operands, in numpy: for tests and benchmarks that run a product without its packing code."""

from __future__ import annotations

import numpy as np


def panels_of(matrix: np.ndarray, layout: tuple) -> np.ndarray:
    """``matrix[k, n]`` in the layout of a `PrepareEntry`: ``("panel", width)`` or ``("words", width, group)``."""
    return (pack_panels if layout[0] == "panel" else pack_words)(matrix, *layout[1:])


def pack_panels(matrix: np.ndarray, width: int) -> np.ndarray:
    """ceil(n / width) panels of k x width, zero filled."""
    k, n = matrix.shape
    panels = -(-n // width)
    out = np.zeros((k, panels * width), matrix.dtype)
    out[:, :n] = matrix
    return np.ascontiguousarray(out.reshape(k, panels, width).transpose(1, 0, 2)).reshape(-1)


def pack_words(matrix: np.ndarray, width: int, group: int) -> np.ndarray:
    """Panels whose rows have ``group`` successive k of each column side by side, zero filled. Those of fours begin with 128 times the
    columns' sums (i32), taken from zero for signed elements."""
    k, n = matrix.shape
    steps, panels = -(-k // group), -(-n // width)
    wide = np.zeros((steps * group, panels * width), matrix.dtype)
    wide[:k, :n] = matrix
    words = wide.reshape(steps, group, panels, width).transpose(2, 0, 3, 1)
    if group == 2:
        return np.ascontiguousarray(words if matrix.itemsize == 2 else words.astype(np.int16)).reshape(-1)
    factor = -128 if matrix.dtype == np.int8 else 128
    starts = (wide.astype(np.int32).sum(0) * factor).astype(np.int32).reshape(panels, 1, width)
    rows = np.ascontiguousarray(words).view(np.int32).reshape(panels, steps, width)
    return np.concatenate([starts, rows], 1).reshape(-1).view(matrix.dtype)
