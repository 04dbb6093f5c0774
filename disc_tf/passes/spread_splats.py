"""Large constants of one repeated value become a broadcast of that value where they must lie in memory.

The content of an array constant goes into the executable; a splat of any size is one scalar and a kernel that stores it.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import Function, Module, Op, Value
from disc_tf.ir.pass_manager import Pass
from disc_tf.passes.rewriter import ELEMENTWISE, base_name, splat_of, words

#: contents up to this many bytes may as well be stored
MAX_STORED = 1024
#: ops that take a splat constant as an immediate
_INLINE = ELEMENTWISE | words("broadcast_in_dim reshape transpose slice")


@dataclasses.dataclass(frozen=True)
class SpreadSplats(Pass):
    """Give every user that reads memory (results, products, library calls ...) a ``broadcast_in_dim`` instead of a large splat constant."""

    name = "spread-splats"

    def run(self, module: Module, ctx: object) -> None:
        for fn in module.functions.values():
            for op in list(fn.body.ops):
                if op.name == "constant" and op.result.rank:
                    _spread(fn, op)


def _spread(fn: Function, op: Op) -> None:
    content = op.attrs["value"]
    if content.size * content.itemsize <= MAX_STORED:
        return
    users = [user for user in op.result.users() if base_name(user.name) not in _INLINE]
    scalar = splat_of(op.result) if users else None
    if scalar is None:
        return
    b = Builder(fn.body, fn.env, op.loc, before=op)
    spread: Value = b.broadcast_in_dim(b.constant(np.asarray(scalar)), op.result.dims, ())
    for user in users:
        user.set_operands(tuple(spread if v is op.result else v for v in user.operands))
