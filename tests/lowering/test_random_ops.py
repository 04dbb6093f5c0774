"""Stateless random numbers against TensorFlow: uniform ones bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import Tolerance, check_op, tensorflow

FLOATS = [DType.F32, DType.F64, *(pytest.param(d, marks=pytest.mark.slow) for d in (DType.F16, DType.BF16))]
SEEDS = [np.array([1, 2], np.int32), np.array([-7, 1 << 40], np.int64)]
SHAPES = [(0,), (1,), (7,), (1031,)]
#: carries into the upper half of the counter within the first blocks
COUNTER = np.array([2**64 - 3, 2**64 - 1, 99], np.uint64)
KEY = np.array([0x1234567890ABCDEF], np.uint64)
_V2 = {"key": KEY, "counter": COUNTER, "alg": np.array(1, np.int32)}
_KINDS = {"StatelessRandomUniform": 0.0, "StatelessRandomNormal": 8.0, "StatelessTruncatedNormal": 8.0}


def _shape(*dims: int) -> np.ndarray:
    return np.array(dims, np.int32)


def _check(op: str, dtype: DType, ulps: float, **given: Any) -> None:
    tf_type = tensorflow().as_dtype(dtype.tf_enum)
    narrow = dtype in (DType.F16, DType.BF16)
    tol = Tolerance(min(ulps, 1.0) if narrow else ulps, floor=1.0)
    given.setdefault("const", ["alg"] if "alg" in given else [])
    check_op(op, **given, dtype=tf_type, known_dims=["shape"], modes=["dynamic"], tol=tol)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", _KINDS)
def test_floats(op: str, dtype: DType) -> None:
    for shape in SHAPES:
        for seed in SEEDS:
            _check(op, dtype, _KINDS[op], shape=_shape(*shape), seed=seed)


@pytest.mark.parametrize("dtype", [FLOATS[0], pytest.param(FLOATS[1], marks=pytest.mark.slow), *FLOATS[2:]], ids=str)
@pytest.mark.parametrize("op", _KINDS)
def test_floats_of_a_key(op: str, dtype: DType) -> None:
    for shape in SHAPES[2:]:
        _check(f"{op}V2", dtype, _KINDS[op], shape=_shape(*shape), **_V2)


@pytest.mark.parametrize("op", [*list(_KINDS)[:2], pytest.param("StatelessTruncatedNormal", marks=pytest.mark.slow)])
def test_constant_shapes(op: str) -> None:
    for shape in ((), (3, 1, 5), (2, 0)):
        _check(op, DType.F32, _KINDS[op], shape=_shape(*shape), seed=SEEDS[0], const=["shape"])


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64, DType.U32, DType.U64], ids=str)
def test_full_ints(dtype: DType) -> None:
    for shape in SHAPES:
        _check("StatelessRandomUniformFullInt", dtype, 0.0, shape=_shape(*shape), seed=SEEDS[1])
    _check("StatelessRandomUniformFullIntV2", dtype, 0.0, shape=_shape(4, 5), **_V2)


@pytest.mark.parametrize("dtype", [DType.I32, pytest.param(DType.I64, marks=pytest.mark.slow)], ids=str)
def test_ints(dtype: DType) -> None:
    info = np.iinfo(dtype.np)
    for low, high in ((0, 10), (-5, 1_000_000_007), (info.min, info.max), (info.max - 1, info.max), (3, 3), (3, 2)):
        bounds = {"minval": np.array(low, dtype.np), "maxval": np.array(high, dtype.np)}
        for shape in ((101,), (0,)):
            check_op("StatelessRandomUniformInt", shape=_shape(*shape), seed=SEEDS[0], **bounds, known_dims=["shape"], modes=["dynamic"])
    check_op(
        "StatelessRandomUniformIntV2", shape=_shape(6, 7), **_V2, minval=np.array(-9, dtype.np), maxval=np.array(9, dtype.np),
        known_dims=["shape"], const=["alg"], modes=["dynamic"],
    )  # fmt: skip


@pytest.mark.parametrize("op", ["StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounterAlg"])
def test_key_and_counter(op: str) -> None:
    for seed in (*SEEDS, np.array([0, 0], np.int64)):
        check_op(op, seed=seed)


def test_algorithm() -> None:
    check_op("StatelessRandomGetAlg")
    for alg in (1, 2, 3):
        given = {**_V2, "alg": np.array(alg, np.int32)}
        if alg == 2:
            with pytest.raises(AssertionError, match="Philox only"):
                check_op("StatelessRandomUniformV2", shape=_shape(4), **given, const=["alg", "shape"], modes=["dynamic"])
        else:
            check_op("StatelessRandomUniformV2", shape=_shape(4), **given, const=["alg", "shape"], modes=["dynamic"])


@pytest.mark.parametrize(
    "bad",
    [
        {"shape": _shape(-5), "seed": SEEDS[0]}, {"shape": _shape(5), "seed": np.array([1, 2, 3])},
        {"shape": _shape(5), "seed": np.array([1])},
    ],
    ids=["shape", "long seed", "short seed"],
)  # fmt: skip
def test_errors(bad: dict[str, np.ndarray]) -> None:
    check_op("StatelessRandomUniform", **bad, known_dims=["shape"])


def test_bad_key() -> None:
    bad = {**_V2, "key": np.array([1, 2], np.uint64)}
    check_op("StatelessRandomUniformV2", shape=_shape(5), **bad, const=["alg"], known_dims=["shape"])
