"""Arrays as the runtime takes them: addresses, conversions, descriptions."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from disc_tf.runtime.arrays import DTYPES, Memrefs, address, fitting

ARRAYS = {
    "one": np.arange(5.0),
    "matrix": np.ones((2, 3), np.int8),
    "scalar": np.array(7),
    "empty": np.zeros((0, 4), np.float32),
    "view": np.arange(12).reshape(3, 4)[1:],
    "read-only": np.broadcast_to(np.float32(1), (3,)),
    "unaligned": np.frombuffer(b"x" * 17, np.uint8)[1:].view(np.float64),
    "bool": np.array([True, False]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_addresses_are_numpys(name: str) -> None:
    assert address(ARRAYS[name]) == ARRAYS[name].ctypes.data


@pytest.mark.parametrize(
    "value",
    [np.asfortranarray(np.ones((3, 2), np.float32)), np.ones((2, 6), np.float32)[:, ::2], np.ones(3, np.float32)[::-1]],
    ids=["fortran", "strided", "reversed"],
)
def test_what_is_not_contiguous_is_copied(value: np.ndarray) -> None:
    found = fitting("f32", "x", value)
    assert found.flags.c_contiguous and np.array_equal(found, value)


def test_what_fits_is_taken_as_it_is() -> None:
    for name, dtype in DTYPES.items():
        x = np.zeros((2, 2), dtype)
        assert fitting(name, "x", x) is x
    assert fitting("f64", "x", [1.0, 2.0]).tolist() == [1.0, 2.0] and fitting("i64", "x", 3).shape == ()
    assert fitting("bf16", "x", np.zeros(2, np.uint16)).dtype == np.uint16
    assert type(fitting("f64", "x", np.ma.masked_array([1.0, 2.0]))) is np.ndarray


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("f32", np.zeros(2)),
        ("i32", np.zeros(2, ">i4")),
        ("bf16", np.zeros(2, np.float16)),
        ("bf16", np.zeros(2, ">u2")),
        ("u8", "ab"),
    ],
)
def test_another_dtype_is_refused(dtype: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"argument ids: {dtype} is needed, .* was given"):
        fitting(dtype, "ids", value)


def test_descriptions() -> None:
    given = [ARRAYS["matrix"], None, ARRAYS["scalar"], ARRAYS["empty"]]
    described = Memrefs(given)
    words = (ctypes.c_int64 * 12).from_address(described.address)
    for k, array in enumerate(given):
        data, rank, at = words[3 * k : 3 * k + 3]
        if array is None:
            assert (data, rank, at) == (0, 0, 0)
            continue
        assert (data, rank) == (array.ctypes.data, array.ndim)
        assert tuple((ctypes.c_int64 * rank).from_address(at)) == array.shape
    assert Memrefs([]).address
