"""Dims that are computed in floating point: ``Range(0., Cast(length))`` has ``ceil(abs(float(length)))`` elements.

As long as the length is a number that the float type holds exactly, that is the length itself. `whole_dim` sees through such chains and
says under which limits; the uniform body assumes them (`specialize`), the general one computes in floats as TensorFlow does.
"""

from __future__ import annotations

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.ir.types import DType
from disc_tf.passes.elementwise_rules import dim_of

#: up to here every integer is a number of the type. In f16 and bf16 the limit would be one that real lengths exceed.
EXACT = {DType.F32: 1 << 24, DType.F64: 1 << 53}
_SAME = frozenset({"ceil", "floor", "round_nearest_even", "round_nearest_afz"})
_MAX_CHAIN = 16


def whole_dim(v: Value, env: ShapeEnv) -> tuple[Dim, int] | None:
    """``(d, c)``: the integer scalar ``v`` is ``d`` if ``d <= c``, though it is computed in a float type. None for anything else."""
    limit: int | None = None
    if not v.dtype.is_int or v.rank:
        return None
    for _ in range(_MAX_CHAIN):
        op = v.op
        if op is None:
            return None
        if v.dtype.is_int:
            d = dim_of(v)
            if d is not None:
                return (d, limit) if limit is not None and env.is_nonneg(d) is True else None
            if op.name != "convert" or v.dtype.bits < 32:
                return None
        elif v.dtype not in EXACT or op.name not in _SAME | {"abs", "convert"}:
            return None
        else:
            limit = min(limit or EXACT[v.dtype], EXACT[v.dtype])
        v = op.operands[0]
    return None
