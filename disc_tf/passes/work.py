"""The work of an op at likely extents: what orders and cuts are decided by (`costs.op_work`)."""

from __future__ import annotations

from collections.abc import Iterable

from disc_tf.costs import FREE, NOMINAL_EXTENT, NOMINAL_TRIPS, op_weight, op_work
from disc_tf.ir.core import Op
from disc_tf.ir.dims import Dim
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.ir.types import TensorType


def rough_work(op: Op, env: ShapeEnv) -> float:
    """Lane operations at likely extents."""
    if op.regions and op.name in ("while", "case"):
        return NOMINAL_TRIPS * sum(rough_work(inner, env) for r in op.regions for inner in r.ops)
    if op.name in FREE:
        return 0.0
    size = max((_elements(v.tensor.dims, env) for v in op.results if isinstance(v.type, TensorType)), default=0.0)
    if op.name == "dot_general":
        return op_work(op.name, size, size * _elements((op.operands[0].dims[a] for a in op.attrs["lhs_contracting"]), env))
    if op.name == "convolution":
        return op_work(op.name, size, size * _elements(op.operands[1].dims[:-1], env))
    if op.name == "reduce":
        size = max(size, _elements(op.operands[0].dims, env))
    return op_work(op.name, size, weighs=op_weight(op))


def _elements(dims: Iterable[Dim], env: ShapeEnv) -> float:
    total = 1.0
    for d in dims:
        likely = env.likely(d)
        if not likely:
            try:
                likely = (d.evaluate(dict.fromkeys(d.symbols(), NOMINAL_EXTENT)),)
            except (ZeroDivisionError, ValueError):
                likely = (NOMINAL_EXTENT,)
        total *= max(likely[0], 1)
    return total
