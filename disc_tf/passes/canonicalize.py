"""Canonicalization: the exact identities of elementwise, shape and index ops, to a fixpoint."""

from __future__ import annotations

import dataclasses

from disc_tf.ir.core import Module
from disc_tf.ir.pass_manager import Pass
from disc_tf.passes.elementwise_rules import ELEMENTWISE_RULES
from disc_tf.passes.index_rules import INDEX_RULES
from disc_tf.passes.rewriter import Rule, rewrite
from disc_tf.passes.segment_rules import SEGMENT_RULES
from disc_tf.passes.shape_rules import SHAPE_RULES


def merged(*tables: dict[str, list[Rule]]) -> dict[str, list[Rule]]:
    """The union of rule tables, rules of earlier tables first."""
    out: dict[str, list[Rule]] = {}
    for t in tables:
        for name, rules in t.items():
            out.setdefault(name, []).extend(rules)
    return out


CANONICAL_RULES = merged(SHAPE_RULES, INDEX_RULES, SEGMENT_RULES, ELEMENTWISE_RULES)


@dataclasses.dataclass(frozen=True)
class Canonicalize(Pass):
    """Apply `ELEMENTWISE_RULES`, `SHAPE_RULES`, `INDEX_RULES` and `SEGMENT_RULES` until nothing changes (at most ``max_sweeps`` times)."""

    max_sweeps: int = 12
    name = "canonicalize"

    def run(self, module: Module, ctx: object) -> None:
        for fn in module.functions.values():
            rewrite(fn, CANONICAL_RULES, self.max_sweeps)
