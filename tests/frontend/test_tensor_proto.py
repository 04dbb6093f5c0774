"""TensorProto <-> numpy."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.tensor_proto import Constant, array_digest, fill_tensor, is_splat, to_numpy
from disc_tf.frontend.tfproto import message_class
from disc_tf.ir.types import DType
from disc_tf.runtime.artifact import tensor_digest

NUMPY_TYPES = [d.np for d in DType] + [np.dtype(np.complex64), np.dtype(np.complex128)]


def proto(array: np.ndarray):
    t = message_class("TensorProto")()
    fill_tensor(t, array)
    return t


@pytest.mark.parametrize("dtype", NUMPY_TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 0, 4)], ids=str)
def test_round_trip(dtype, shape):
    array = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    back = to_numpy(proto(array))
    assert back.dtype == dtype and back.shape == shape
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("dtype", NUMPY_TYPES, ids=str)
def test_splat_is_one_value(dtype):
    array = np.broadcast_to(np.array(1).astype(dtype), (1000, 1000))
    t = proto(array)
    assert t.ByteSize() < 64
    back = to_numpy(t)
    assert back.shape == (1000, 1000) and is_splat(back) and back[3, 4] == array[3, 4]


def test_short_list_repeats_last_value():
    t = message_class("TensorProto")(dtype=1)
    t.tensor_shape.dim.add().size = 5
    t.float_val.extend([1, 2])
    np.testing.assert_array_equal(to_numpy(t), np.array([1, 2, 2, 2, 2], np.float32))


def test_no_value_is_zero():
    t = message_class("TensorProto")(dtype=9)
    t.tensor_shape.dim.add().size = 3
    np.testing.assert_array_equal(to_numpy(t), np.zeros(3, np.int64))


def test_half_val_holds_bits():
    t = message_class("TensorProto")(dtype=19)
    t.tensor_shape.dim.add().size = 2
    t.half_val.extend([0x3C00, 0xC000])
    np.testing.assert_array_equal(to_numpy(t), np.array([1, -2], np.float16))


def test_strings():
    array = np.array([b"a", b"\xff\x00"], object)
    back = to_numpy(proto(array))
    assert back.tolist() == [b"a", b"\xff\x00"]


def bad(**fields):
    t = message_class("TensorProto")(dtype=fields.pop("dtype", 1))
    for size in fields.pop("shape"):
        t.tensor_shape.dim.add().size = size
    if fields.pop("unknown_rank", False):
        t.tensor_shape.unknown_rank = True
    for key, value in fields.items():
        if isinstance(value, list):
            getattr(t, key).extend(value)
        else:
            setattr(t, key, value)
    return t


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": [3], "tensor_content": b"12345"},
        {"shape": [-1], "float_val": [1.0]},
        {"shape": [1], "float_val": [1.0, 2.0]},
        {"shape": [1 << 40, 1 << 40], "float_val": [1.0]},
        {"shape": [0, 1 << 62, 1 << 62]},
        {"shape": [1] * 300},
        {"shape": [], "unknown_rank": True},
        {"shape": [2], "dtype": 99},
        {"shape": [2], "dtype": 0},
        {"shape": [3], "dtype": 8, "scomplex_val": [1.0]},
        {"shape": [3], "dtype": 8, "tensor_content": b"1"},
        {"shape": [3], "dtype": 20},
    ],
    ids=str,
)
def test_hostile_content_is_an_error(fields):
    with pytest.raises(GraphError):
        to_numpy(bad(**fields))


def test_huge_splat_costs_nothing():
    c = Constant("c", bad(shape=[1 << 20, 1 << 19], float_val=[1.0]))
    assert c.nbytes == 1 << 41
    assert c.array().shape == (1 << 20, 1 << 19)
    assert len(c.digest()) == 32


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_digest_is_the_artefacts_whatever_the_encoding(dtype):
    splat = np.broadcast_to(np.array(1).astype(dtype.np), (40, 50))
    dense = np.ascontiguousarray(splat)
    expected = tensor_digest(dense, str(dtype))
    assert array_digest(splat, dtype.tf_enum) == array_digest(dense, dtype.tf_enum) == expected


def test_constant_names_its_node_and_keeps_the_content():
    c = Constant("weights", bad(shape=[3], tensor_content=b"12345"))
    with pytest.raises(GraphError, match="weights"):
        c.array()
    good = Constant("w", proto(np.arange(300, dtype=np.float32)))
    assert good.array() is good.array()
    assert not good.is_small and Constant("s", proto(np.arange(256, dtype=np.float32))).is_small


def test_skeleton_constant_has_no_content():
    c = Constant("w", bad(shape=[4]), present=False, digest=b"d" * 32)
    assert c.digest() == b"d" * 32
    with pytest.raises(GraphError, match="skeleton"):
        c.array()
