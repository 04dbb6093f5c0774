"""A rough count of the operations of an op: what orders and cuts are decided by."""

from __future__ import annotations

from collections.abc import Iterable

from disc_tf.ir.core import Op
from disc_tf.ir.dims import Dim
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.ir.types import TensorType
from disc_tf.passes.rewriter import words

#: what a symbolic extent without a likely value is taken for, and the iterations of a loop
_NOMINAL, _TRIPS = 64, 16
_FREE = words(
    "constant iota disc.dim broadcast_in_dim reshape transpose slice reverse return disc.bind_dim disc.create_token disc.after_all "
    "disc.check"
)


def rough_work(op: Op, env: ShapeEnv) -> float:
    """Operations at likely extents."""
    if op.regions and op.name in ("while", "case"):
        return _TRIPS * sum(rough_work(inner, env) for r in op.regions for inner in r.ops)
    if op.name in _FREE:
        return 0.0
    size = max((_elements(v.tensor.dims, env) for v in op.results if isinstance(v.type, TensorType)), default=0.0)
    if op.name == "dot_general":
        return 2 * size * _elements((op.operands[0].dims[a] for a in op.attrs["lhs_contracting"]), env)
    if op.name == "convolution":
        return 2 * size * _elements(op.operands[1].dims[:-1], env)
    if op.name == "reduce":
        size = max(size, _elements(op.operands[0].dims, env))
    return 4 * size


def _elements(dims: Iterable[Dim], env: ShapeEnv) -> float:
    total = 1.0
    for d in dims:
        likely = env.likely(d)
        if not likely:
            try:
                likely = (d.evaluate(dict.fromkeys(d.symbols(), _NOMINAL)),)
            except (ZeroDivisionError, ValueError):
                likely = (_NOMINAL,)
        total *= max(likely[0], 1)
    return total
