"""What the fusion plan hands to code generation."""

from __future__ import annotations

import dataclasses
from typing import Any

from disc_tf.ir.core import Op, Value


@dataclasses.dataclass(eq=False)
class Fusion:
    """A group of ops that becomes one kernel (or a view, or host code).

    kind: ``loop rows reduce gemm attention library view host`` (docs/architecture.md, section 4).
    ops: in program order. inputs: values made outside, in order of first use. outputs: values used outside the group
    (or returned), in program order. attrs: what the pattern matcher found (for ``gemm``: ``dot``, the dot_general op, and
    ``packed``: index of the prepared entry that holds its weight; for ``attention``: ``qk``, ``pv``, ``rows``).
    """

    kind: str
    ops: list[Op]
    inputs: list[Value]
    outputs: list[Value]
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Original TF node names, in order, without repeats."""
        return tuple(dict.fromkeys(n for op in self.ops for n in op.loc))
