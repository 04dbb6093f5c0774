"""Placement: which ops the host program computes itself.

Host code is what decides control: checks, ``disc.bind_dim``, and the rank-0 integer and bool arithmetic that feeds them. The answer
is a set of ops, not an attribute: the op set is closed, and a scalar that kernels also use is computed on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable

from disc_tf.ir.core import Function, Op, Value
from disc_tf.ir.types import TensorType
from disc_tf.passes.rewriter import words

#: ops with effects or tokens: always host
EFFECTS = frozenset({"disc.bind_dim", "disc.check", "disc.create_token", "disc.after_all"})

#: rank-0 integer/bool ops that the host program evaluates in registers
SCALAR_OPS = words(
    "add subtract multiply and or xor constant disc.dim compare select not convert maximum minimum negate reshape"
)


def is_host_scalar(v: Value) -> bool:
    return isinstance(v.type, TensorType) and v.rank == 0 and (v.dtype.is_int or v.dtype.is_bool)


def can_host(op: Op) -> bool:
    """Whether the host can compute the op from scalars that it computes or loads."""
    if op.name not in SCALAR_OPS or len(op.results) != 1 or not is_host_scalar(op.result):
        return False
    if op.name == "reshape":
        x = op.operands[0]
        return all(d.is_static and int(d) == 1 for d in x.dims) and not x.dtype.is_float
    return all(is_host_scalar(v) for v in op.operands)


def host_ops(fn: Function, wanted: Iterable[Value] = ()) -> set[Op]:
    """Effects, and the scalar ops that they, branches and ``wanted`` need, as far back as the host can compute; beyond that it loads a
    scalar that a kernel made or that is an argument."""
    out: set[Op] = {op for op in fn.body.ops if op.name in EFFECTS}
    stack = [v for op in out for v in op.operands]
    stack += [op.operands[0] for op in fn.body.ops if op.name == "case"]
    stack += wanted
    while stack:
        op = stack.pop().op
        if op is None or op in out or op.parent is not fn.body or not can_host(op):
            continue
        out.add(op)
        stack.extend(op.operands)
    return out
