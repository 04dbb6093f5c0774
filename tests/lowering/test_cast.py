"""Cast among all types against TensorFlow, including Truncate and what x86 conversions give out of range."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import array, check_op, specials, tensorflow

ALL = [str(d) for d in DType]
FLOATS = ["f32", "f64", "f16", "bf16"]
_WIDE = ["i32", "i64", "u32", "u64"]


def _tf(dtype: str):
    return tensorflow().as_dtype(DType.from_name(dtype).tf_enum)


@pytest.mark.parametrize("dst", ALL)
def test_in_range(dst: str) -> None:
    for src in ALL:
        low, high = (0.0, 100.0) if dst.startswith("u") else (-100.0, 100.0)
        check_op("Cast", x=array((3, 5), src, 1, low, high), DstT=_tf(dst), modes=["dynamic"])
        check_op("Cast", x=array((0, 2), src, 1, low, high), DstT=_tf(dst), modes=["static"])


@pytest.mark.parametrize("dst", [d for d in ALL if d not in FLOATS])
def test_integers_wrap(dst: str) -> None:
    for src in (d for d in ALL if d not in FLOATS):
        check_op("Cast", x=specials(DType.from_name(src)), DstT=_tf(dst), modes=["dynamic"])


@pytest.mark.parametrize("src", FLOATS)
@pytest.mark.parametrize("dst", _WIDE)
def test_floats_out_of_range(src: str, dst: str) -> None:
    """NaN, infinities and values beyond the type; narrower integers are not compared (TF is not consistent there)."""
    values = [np.nan, np.inf, -np.inf, 1e20, -1e20, 4e9, 3e9, -3e9, 2.0**31, -(2.0**31), 2.0**63, 1.5e19, 9.3e18, -1.5, 0.9, -0.9]
    with np.errstate(all="ignore"):
        x = np.array(values, np.float64).astype(DType.from_name(src).np)
    check_op("Cast", x=x, DstT=_tf(dst))


@pytest.mark.parametrize("src", FLOATS)
@pytest.mark.parametrize("dst", [*FLOATS, "bool"])
@pytest.mark.parametrize("truncate", [False, True])
def test_float_to_float(src: str, dst: str, truncate: bool) -> None:
    with np.errstate(all="ignore"):
        values = [1 / 3, -1.9999999, 65519.9, 65520.0, 1e30, 1e300, 3.4028236e38, 1 + 2.0**-24, 1 + 2.0**-8 + 2.0**-30]
        x = np.concatenate([np.array(values).astype(DType.from_name(src).np), specials(DType.from_name(src))])
    if truncate and dst == "f16":
        x = x[~((np.abs(x.astype(np.float64)) > 0) & (np.abs(x.astype(np.float64)) < 1e-4))]
    check_op("Cast", x=x, DstT=_tf(dst), Truncate=truncate)


@pytest.mark.parametrize("dst", FLOATS)
def test_integers_to_floats(dst: str) -> None:
    for src in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"):
        x = np.concatenate([specials(DType.from_name(src)), array((50,), src, 3, -(2.0**62), 2.0**62)])
        check_op("Cast", x=x, DstT=_tf(dst), modes=["dynamic"])
