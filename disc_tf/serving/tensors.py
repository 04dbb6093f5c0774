"""TensorProto <-> numpy, at the speed of a copy where the wire format allows it.

Requests come from anywhere: sizes that do not fit are INVALID_ARGUMENT, and a short value list is repeated (TensorFlow's rule: the last
value fills the rest) only up to ``limit`` bytes.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from disc_tf.serving.errors import ServingError, invalid
from disc_tf.serving.protos import message_class

#: what one tensor of a request may become in memory
MAX_TENSOR_BYTES = 2 << 30

DT_STRING = 7
#: bytes of a string in TensorFlow, besides its text (tstring; short texts lie inside)
_STRING_BYTES = 24
#: DataType number -> (name, numpy type, field of TensorProto)
_TYPES: dict[int, tuple[str, Any, str]] = {
    1: ("float", np.float32, "float_val"),
    2: ("double", np.float64, "double_val"),
    3: ("int32", np.int32, "int_val"),
    4: ("uint8", np.uint8, "int_val"),
    5: ("int16", np.int16, "int_val"),
    6: ("int8", np.int8, "int_val"),
    7: ("string", np.object_, "string_val"),
    8: ("complex64", np.complex64, "scomplex_val"),
    9: ("int64", np.int64, "int64_val"),
    10: ("bool", np.bool_, "bool_val"),
    14: ("bfloat16", ml_dtypes.bfloat16, "half_val"),
    17: ("uint16", np.uint16, "int_val"),
    18: ("complex128", np.complex128, "dcomplex_val"),
    19: ("half", np.float16, "half_val"),
    22: ("uint32", np.uint32, "uint32_val"),
    23: ("uint64", np.uint64, "uint64_val"),
}
_NUMBERS = {np.dtype(kind): number for number, (_, kind, _) in _TYPES.items()}
#: fields whose packed wire format is the array's own bytes: their numbers in TensorProto
_PACKED = {"float_val": 5, "double_val": 6, "scomplex_val": 9, "bool_val": 11, "dcomplex_val": 12}


def type_name(number: int) -> str:
    """The name of a DataType as error messages of TensorFlow write it."""
    return _TYPES[number][0] if number in _TYPES else f"type {number}"


def numpy_type(number: int) -> np.dtype:
    """UNIMPLEMENTED for a type that has no numpy form here (quantized types, resources, variants)."""
    if number not in _TYPES:
        raise ServingError("UNIMPLEMENTED", f"tensors of DataType {number} are not supported")
    return np.dtype(_TYPES[number][1])


def to_numpy(proto: Any, limit: int = MAX_TENSOR_BYTES) -> np.ndarray:
    """The content of a TensorProto; strings as an object array of bytes. The result may be read-only."""
    kind = numpy_type(proto.dtype)
    if proto.tensor_shape.unknown_rank:
        raise invalid("a tensor has unknown rank")
    shape = tuple(d.size for d in proto.tensor_shape.dim)
    if any(d < 0 for d in shape) or len(shape) > 32:
        raise invalid(f"a tensor has the shape {list(shape)}")
    count = math.prod(shape)
    _check_size(shape, count * (_STRING_BYTES if proto.dtype == DT_STRING else kind.itemsize), limit)
    content = proto.tensor_content
    if content:
        if proto.dtype == DT_STRING:
            raise invalid("tensor_content of strings is not supported: use string_val")
        if len(content) != count * kind.itemsize:
            raise invalid(
                f"tensor_content has {len(content)} bytes, shape {list(shape)} of {type_name(proto.dtype)} needs {count * kind.itemsize}"
            )
        return _shaped(np.frombuffer(content, kind), shape)
    flat = _values(proto, kind)
    if len(flat) > count:
        raise invalid(f"a tensor has {len(flat)} values, its shape {list(shape)} needs {count}")
    if len(flat) < count:
        fill = flat[-1] if len(flat) else (b"" if kind.kind == "O" else kind.type(0))
        if kind.kind == "O":  # one object here, but a copy for each element in TensorFlow
            _check_size(shape, count * _STRING_BYTES + sum(map(len, flat)) + (count - len(flat)) * len(fill), limit)
        whole = np.empty(count, kind)
        whole[: len(flat)] = flat
        whole[len(flat) :] = fill
        flat = whole
    return _shaped(flat, shape)


def _check_size(shape: tuple[int, ...], size: int, limit: int) -> None:
    if size > limit:
        raise ServingError("RESOURCE_EXHAUSTED", f"a tensor of shape {list(shape)} is over the limit of {limit} bytes")


def _shaped(flat: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    try:
        return flat.reshape(shape)
    except ValueError as e:  # nothing in it, yet extents that no array can have
        raise invalid(f"a tensor has the shape {list(shape)}: {e}") from e


def _values(proto: Any, kind: np.dtype) -> np.ndarray:
    values = getattr(proto, _TYPES[proto.dtype][2])
    if kind.kind == "O":
        out = np.empty(len(values), np.object_)
        out[:] = list(values)
        return out
    if proto.dtype in (14, 19):  # raw bits, one in each int
        return np.array(values, np.int64).astype(np.uint16).view(kind)
    if kind.kind == "c":
        parts = np.array(values, np.float32 if kind.itemsize == 8 else np.float64)
        if len(parts) % 2:
            raise invalid("a complex tensor has an odd number of values")
        return parts.view(kind)
    if kind.kind in "iu" and kind.itemsize < 4:
        return np.array(values, np.int64).astype(kind)
    return np.array(values, kind)


def to_proto(array: np.ndarray, into: Any | None = None) -> Any:
    """A TensorProto with values in the typed fields, as ModelServer answers: clients read ``float_val`` directly."""
    proto = into if into is not None else message_class("TensorProto")()
    if array.dtype.kind in "SU":
        array = array.astype(np.object_)
    if array.dtype not in _NUMBERS:
        raise ServingError("UNIMPLEMENTED", f"results of type {array.dtype} are not supported")
    number = _NUMBERS[array.dtype]
    field = _TYPES[number][2]
    proto.dtype = number
    for d in array.shape:
        proto.tensor_shape.dim.add().size = d
    flat = array.reshape(-1)
    if field == "string_val":
        proto.string_val.extend(v.encode() if isinstance(v, str) else bytes(v) for v in flat)
    elif field in _PACKED:
        if flat.size:
            # the packed field as it goes over the wire: number and length, then the bytes of the array
            data = np.ascontiguousarray(flat).tobytes()
            proto.MergeFromString(bytes([_PACKED[field] << 3 | 2]) + _varint(len(data)) + data)
    elif field == "half_val":
        proto.half_val.extend(flat.view(np.uint16).tolist())
    else:
        getattr(proto, field).extend(flat.tolist())
    return proto


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
