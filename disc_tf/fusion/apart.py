"""Ops that are not fused: each becomes a kernel of its own, in the plainest form that it has.

The compiler plans again with these where a phase failed on a fusion, so that a defect costs that fusion and not its cluster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from disc_tf.ir.core import Op

#: an op as every copy of it has it, in the bodies and regions that it is part of: its name and its nodes
Key = tuple[str, tuple[str, ...]]


def key_of(op: Op) -> Key:
    return op.name, tuple(op.loc)


@dataclasses.dataclass(frozen=True)
class Apart:
    """Which ops these are."""

    keys: frozenset[Key] = frozenset()
    everything: bool = False

    def has(self, op: Op) -> bool:
        return self.everything or (bool(self.keys) and key_of(op) in self.keys)

    def wider(self, ops: Iterable[Op]) -> Apart:
        """With these ops too; with everything if they are in it already, or there are none."""
        keys = frozenset(map(key_of, ops))
        return Apart(self.keys | keys) if keys - self.keys and not self.everything else Apart(everything=True)


NOTHING = Apart()
