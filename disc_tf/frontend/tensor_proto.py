"""TensorProto <-> numpy without TensorFlow; constants that are decoded once, when asked; digests.

Element types of the IR go through `lowering.tensor_proto`; this file adds strings, complex and quantized numbers, the way back,
and `Constant`, the frontend's handle of a graph constant.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np

from disc_tf.frontend.errors import GraphError
from disc_tf.ir.types import DType, tf_type_name
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.tensor_proto import tensor_to_numpy

#: constants larger than this stay outside of clusters (and are not folded)
SMALL_BYTES = 1024
_MAX_DENSE = 64 << 20
_STRING = 7
#: DataType number -> (numpy dtype, value field) of types that the IR does not have; quantized types by their integers
_OTHER = {
    8: (np.dtype(np.complex64), "scomplex_val"),
    18: (np.dtype(np.complex128), "dcomplex_val"),
    11: (np.dtype(np.int8), "int_val"),
    12: (np.dtype(np.uint8), "int_val"),
    13: (np.dtype(np.int32), "int_val"),
    15: (np.dtype(np.int16), "int_val"),
    16: (np.dtype(np.uint16), "int_val"),
}


def element_bytes(tf_type: int) -> int | None:
    """Bytes of an element of a DataType number, None for strings, resources and unknown types."""
    known = DType.from_tf(tf_type)
    if known is not None:
        return known.bytes
    return _OTHER[tf_type][0].itemsize if tf_type in _OTHER else None


def shape_of(shape: Any, what: str = "tensor") -> tuple[int, ...]:
    """The shape of a TensorShapeProto that must be fully defined. ``GraphError`` for negative, huge or unknown dims."""
    if shape.unknown_rank:
        raise GraphError(f"{what} has unknown rank")
    dims = tuple(int(d.size) for d in shape.dim)
    if len(dims) > 254:
        raise GraphError(f"{what} has {len(dims)} dimensions")
    if any(d < 0 for d in dims):
        raise GraphError(f"{what} has a negative dimension: {list(dims)}")
    # TensorFlow computes the product of the dims that are not zero, too
    if math.prod(d for d in dims if d) >= 1 << 63:
        raise GraphError(f"{what} of shape {list(dims)} has more than 2**63 elements")
    return dims


def to_numpy(proto: Any) -> np.ndarray:
    """The content of a TensorProto; strings as an object array of bytes. ``GraphError`` if sizes do not fit or the type is
    unknown. A splat is a stride-0 view; large contents are a read-only view of the message's bytes (one copy)."""
    number = int(proto.dtype)
    if DType.from_tf(number) is not None:
        shape_of(proto.tensor_shape, "constant")
        try:
            return tensor_to_numpy(proto)
        except Unsupported as e:
            raise GraphError(e.message) from e
        except (ValueError, OverflowError) as e:
            raise GraphError(f"bad constant: {e}") from e
    shape = shape_of(proto.tensor_shape, "constant")
    count = math.prod(shape)
    if number == _STRING:
        return _spread(np.array([*proto.string_val, None], object)[:-1], shape, count, b"")
    if number not in _OTHER:
        raise GraphError(f"constant of type {tf_type_name(number)} cannot be read")
    dtype, name = _OTHER[number]
    if proto.tensor_content:
        data = proto.tensor_content
        if len(data) != count * dtype.itemsize:
            raise GraphError(f"constant has {len(data)} bytes for shape {list(shape)} of {dtype}")
        return np.frombuffer(data, dtype, count).reshape(shape)
    values = np.array(getattr(proto, name), np.float64 if dtype.kind == "c" else np.int64)
    if dtype.kind == "c":
        if len(values) % 2:
            raise GraphError("complex constant has an odd number of values")
        values = values[0::2] + 1j * values[1::2]
    return _spread(values.astype(dtype), shape, count, 0)


def _spread(flat: np.ndarray, shape: tuple[int, ...], count: int, zero: Any) -> np.ndarray:
    """A short list of values repeats its last one."""
    if len(flat) > count:
        raise GraphError(f"constant has {len(flat)} values for shape {list(shape)}")
    if count > 1 << 40:
        raise GraphError(f"constant of shape {list(shape)} is too large")
    if len(flat) <= 1 < count or not len(flat):
        return np.broadcast_to(np.array(flat[0] if len(flat) else zero, flat.dtype), shape)
    if len(flat) < count:
        flat = np.concatenate([flat, np.broadcast_to(flat[-1:], (count - len(flat),))])
    return flat.reshape(shape)


def is_splat(array: np.ndarray) -> bool:
    """Whether all elements are one by layout (stride 0), as `to_numpy` gives it."""
    return array.size > 1 and all(s == 0 or d == 1 for s, d in zip(array.strides, array.shape, strict=True))


def fill_tensor(proto: Any, array: np.ndarray) -> None:
    """Write ``array`` into an empty TensorProto: raw content, one value for a splat, strings as they are.

    ``GraphError`` for an element type that TensorFlow does not have.
    """
    for d in array.shape:
        proto.tensor_shape.dim.add().size = d
    if array.dtype == object:
        proto.dtype = _STRING
        proto.string_val.extend(bytes(v) if not isinstance(v, str) else v.encode() for v in array.reshape(-1))
        return
    try:
        proto.dtype = DType.from_np(array.dtype).tf_enum
    except KeyError:
        if array.dtype not in (np.complex64, np.complex128):
            raise GraphError(f"numpy type {array.dtype} has no TensorFlow type") from None
        proto.dtype = 8 if array.dtype == np.complex64 else 18
    if is_splat(array):
        _splat_value(proto, array)
    else:
        proto.tensor_content = np.ascontiguousarray(array).tobytes()


def _splat_value(proto: Any, array: np.ndarray) -> None:
    first = array[(0,) * array.ndim]
    known = DType.from_tf(proto.dtype)
    if known is None:
        getattr(proto, _OTHER[proto.dtype][1]).extend([first.real, first.imag])
    elif known in (DType.F16, DType.BF16):
        proto.half_val.append(int(np.asarray(first).view(np.uint16)))
    elif known.is_float:
        (proto.float_val if known is DType.F32 else proto.double_val).append(float(first))
    elif known.is_bool:
        proto.bool_val.append(bool(first))
    elif known in (DType.U32, DType.U64, DType.I64):
        {DType.U32: proto.uint32_val, DType.U64: proto.uint64_val, DType.I64: proto.int64_val}[known].append(int(first))
    else:
        proto.int_val.append(int(first))


class Constant:
    """A constant of the graph: type and shape at once, content and digest when first asked, then kept.

    ``present`` is False for a constant whose content was stripped (a skeleton): then `array` raises and `digest` is the
    one that the skeleton names, or empty.
    """

    __slots__ = ("_array", "_digest", "_proto", "node", "present", "shape", "tf_type")

    def __init__(self, node: str, proto: Any, present: bool = True, digest: bytes = b"") -> None:
        self.node = node
        self._proto = proto
        self.tf_type = int(proto.dtype)
        try:
            self.shape = shape_of(proto.tensor_shape, "constant")
        except GraphError as e:
            raise GraphError(str(e), node) from e
        self.present = present
        self._array: np.ndarray | None = None
        self._digest = digest

    @property
    def dtype(self) -> DType | None:
        """The IR's type, None for strings and others that it does not have."""
        return DType.from_tf(self.tf_type)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense content (strings: of the message)."""
        size = element_bytes(self.tf_type)
        return math.prod(self.shape) * size if size is not None else self._proto.ByteSize()

    @property
    def is_small(self) -> bool:
        """Whether the constant goes into a cluster by value."""
        return self.nbytes <= SMALL_BYTES

    def array(self) -> np.ndarray:
        """The content (read-only; a splat has stride 0). ``GraphError`` naming the node if sizes do not fit."""
        if not self.present:
            raise GraphError("the content of this constant is not in the graph (a skeleton)", self.node)
        if self._array is None:
            try:
                self._array = to_numpy(self._proto)
            except GraphError as e:
                raise GraphError(str(e), self.node) from e
        return self._array

    def digest(self) -> bytes:
        """sha256 of type, shape and content (see `array_digest`)."""
        if not self._digest and self.present:
            self._digest = array_digest(self.array(), self.tf_type)
        return self._digest

    def release(self) -> None:
        """Forget the decoded content; it is decoded again when asked."""
        self._array = None


def array_digest(array: np.ndarray, tf_type: int) -> bytes:
    """The digest of a constant: `runtime.artifact.tensor_digest` of its dense content, whatever the encoding.

    A splat beyond 64 MiB hashes its one value instead: a few bytes of a hostile graph may stand for terabytes.
    """
    known = DType.from_tf(tf_type)
    h = hashlib.sha256(f"{known or tf_type}{list(array.shape)}".encode())
    if array.dtype == object:
        for item in array.reshape(-1):
            h.update(len(item).to_bytes(8, "little"))
            h.update(item)
        return h.digest()
    if is_splat(array) and array.nbytes > _MAX_DENSE:
        h.update(b"splat")
        array = array[(0,) * array.ndim]
    h.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return h.digest()
