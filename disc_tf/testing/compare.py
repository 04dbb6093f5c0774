"""Comparing results with the reference: one rule per dtype, two-sided (docs/numerics.md)."""

from __future__ import annotations

import dataclasses

import numpy as np

from disc_tf.ir.types import DType

#: relative tolerance for a whole graph of that dtype; the absolute part is this times the root mean square of the reference
RELATIVE = {DType.F64: 1e-11, DType.F32: 1e-4, DType.F16: 2e-2, DType.BF16: 8e-2}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """ok, the worst absolute and relative error, and what is wrong if not ok."""

    ok: bool
    max_abs: float = 0.0
    max_rel: float = 0.0
    message: str = ""


def compare(reference: np.ndarray, actual: np.ndarray, *, tolerance: float | None = None) -> Comparison:
    """Compare one output.

    Shapes and dtypes must be equal. Integers and bools exactly. Floats: ``|a - r| <= tol * (|r| + rms(r))`` per element, where the rms is
    over the finite elements of the reference; NaN equals NaN, infinities must match.
    """
    reference, actual = np.asarray(reference), np.asarray(actual)
    if reference.dtype != actual.dtype:
        return Comparison(False, message=f"dtype {actual.dtype} instead of {reference.dtype}")
    if reference.shape != actual.shape:
        return Comparison(False, message=f"shape {list(actual.shape)} instead of {list(reference.shape)}")
    try:
        dtype = DType.from_np(reference.dtype)
    except KeyError:
        same = bool(np.array_equal(reference, actual))
        return Comparison(same, message="" if same else "values differ")
    if not dtype.is_float:
        wrong = int(np.count_nonzero(reference != actual))
        return Comparison(wrong == 0, float(wrong), 0.0, f"{wrong} of {reference.size} values differ" if wrong else "")
    r, a = reference.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(r)
    if not np.array_equal(np.isnan(r), np.isnan(a)):
        return Comparison(False, np.inf, np.inf, _where("NaN only on one side", np.isnan(r) != np.isnan(a)))
    infinite = np.isinf(r) | np.isinf(a)
    if not np.array_equal(r[infinite], a[infinite]):
        return Comparison(False, np.inf, np.inf, _where("infinities differ", infinite & (r != a)))
    if not finite.any():
        return Comparison(True)
    error = np.abs(np.where(finite, a - r, 0.0))
    rms = float(np.sqrt(np.mean(np.square(r[finite]))))
    tol = RELATIVE[dtype] if tolerance is None else tolerance
    scale = np.where(finite, np.abs(r), 0.0) + rms
    bad = error > tol * scale
    worst = float(error.max())
    relative = float((error / np.maximum(scale, np.finfo(np.float64).tiny)).max())
    return Comparison(not bad.any(), worst, relative, _where(f"error above {tol:g}", bad) if bad.any() else "")


def _where(what: str, bad: np.ndarray) -> str:
    index = np.unravel_index(int(np.argmax(bad)), bad.shape) if bad.shape else ()
    return f"{what} at {[int(i) for i in index]} ({int(np.count_nonzero(bad))} of {bad.size} elements)"
