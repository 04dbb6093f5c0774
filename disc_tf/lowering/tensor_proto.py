"""TensorProto -> numpy without TensorFlow. Hostile input (sizes that do not fit, unknown types) gives ``Unsupported``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from disc_tf.ir.types import DType, tf_type_name
from disc_tf.lowering.errors import Unsupported

_FIELDS = {
    DType.F32: "float_val",
    DType.F64: "double_val",
    DType.F16: "half_val",
    DType.BF16: "half_val",
    DType.I8: "int_val",
    DType.I16: "int_val",
    DType.I32: "int_val",
    DType.U8: "int_val",
    DType.U16: "int_val",
    DType.I64: "int64_val",
    DType.U32: "uint32_val",
    DType.U64: "uint64_val",
    DType.BOOL: "bool_val",
}
_MAX_ELEMENTS = 1 << 40


def tensor_to_numpy(proto: Any) -> np.ndarray:
    """The content of a TensorProto. A short value list repeats its last value (a splat of one value is a stride-0 view)."""
    dtype = DType.from_tf(int(proto.dtype))
    if dtype is None:
        raise Unsupported("DTYPE", f"constant of type {tf_type_name(int(proto.dtype))}")
    if proto.tensor_shape.unknown_rank:
        raise Unsupported("INVALID", "constant of unknown rank")
    shape = tuple(int(d.size) for d in proto.tensor_shape.dim)
    if any(d < 0 for d in shape) or len(shape) > 64:
        raise Unsupported("INVALID", f"constant has bad shape {list(shape)}")
    count = math.prod(shape)
    if count > _MAX_ELEMENTS:
        raise Unsupported("INVALID", f"constant of shape {list(shape)} is too large")
    data = proto.tensor_content  # read once: each access copies
    if data:
        if len(data) != count * dtype.bytes:
            raise Unsupported("INVALID", f"constant has {len(data)} bytes for shape {list(shape)} of {dtype}")
        return np.frombuffer(data, dtype.np, count).reshape(shape)
    values = getattr(proto, _FIELDS[dtype])
    if dtype in (DType.F16, DType.BF16):  # raw bits, one in each int
        flat = np.array(values, np.int64).astype(np.uint16).view(dtype.np)
    else:
        flat = np.array(values, np.int64 if _FIELDS[dtype] == "int_val" else dtype.np).astype(dtype.np)
    if len(flat) > count:
        raise Unsupported("INVALID", f"constant has {len(flat)} values for shape {list(shape)}")
    if len(flat) <= 1 < count or (len(flat) == 0 and count):
        return np.broadcast_to(flat[0] if len(flat) else dtype.np.type(0), shape)
    if len(flat) < count:
        flat = np.concatenate([flat, np.broadcast_to(flat[-1], (count - len(flat),))])
    return flat.reshape(shape)
