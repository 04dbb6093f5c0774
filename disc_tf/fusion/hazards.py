"""Which ops read memory that only a check vouches for: they may not run before it.

A kernel that runs before a check fails is harmless as a rule: nothing of it is sent. Gathers and dynamic slices clamp their starts, so
whatever the indices are they stay inside their operand, if a window fits into it at all. Where that is not proved (a table that may have
no rows: then its data may be a null pointer), the checks that come before the op in the program come before it in the plan.
"""

from __future__ import annotations

from typing import Protocol

from disc_tf.ir.core import Op
from disc_tf.ir.dims import Dim, DimLike


class Bounds(Protocol):
    """What is asked of a shape environment."""

    def bounds(self, dim: DimLike) -> tuple[int | None, int | None]: ...


def may_read_outside(op: Op, env: Bounds) -> bool:
    """Whether a clamped window of the operand may still not lie inside it."""
    if op.name == "gather":
        sizes = op.attrs["slice_sizes"]
    elif op.name == "dynamic_slice":
        sizes = op.attrs["sizes"]
    else:
        return False
    return any(not _fits(Dim.of(size), d, env) for size, d in zip(sizes, op.operands[0].dims, strict=True))


def _fits(size: Dim, extent: Dim, env: Bounds) -> bool:
    if size == extent:
        return True
    low, _ = env.bounds(extent - size)
    return low is not None and low >= 0
