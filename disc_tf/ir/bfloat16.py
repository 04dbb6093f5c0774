"""numpy's bfloat16, a type of the package ml_dtypes."""

from __future__ import annotations

import numpy as np


def bfloat16_or_none() -> np.dtype | None:
    """The dtype; None without ml_dtypes: the command's flags and stand-alone files do without it, and no array is of it then."""
    try:
        import ml_dtypes
    except ModuleNotFoundError:
        return None
    return np.dtype(ml_dtypes.bfloat16)
