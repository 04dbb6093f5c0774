"""The table of lowering rules: TF op type -> rule and what the rule accepts (the report and the docs read it)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from disc_tf.ir.core import Value
from disc_tf.ir.types import DType
from disc_tf.lowering.errors import Unsupported

if TYPE_CHECKING:
    from disc_tf.lowering.context import LoweringContext
    from disc_tf.lowering.node import NodeView

RuleFn = Callable[..., "Value | Sequence[Value]"]

FLOATS = frozenset(d for d in DType if d.is_float)
SIGNED_INTS = frozenset(d for d in DType if d.kind == "i")
UNSIGNED_INTS = frozenset(d for d in DType if d.kind == "u")
INTS = SIGNED_INTS | UNSIGNED_INTS
NUMBERS = FLOATS | INTS
BOOLS = frozenset({DType.BOOL})
ALL = NUMBERS | BOOLS


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule and its limits.

    ``dtypes``: type attribute -> element types taken (an attribute not named is not checked here). ``constants``: operand positions
    (negative from the end) whose content must be known at compile time, numerically or symbolically. ``limits``: one line for
    the docs; what lies outside raises ``Unsupported`` from the rule itself. ``optional_from``: operands from this position on
    may be None (not compiled: strings that an Assert would print).
    """

    op: str
    fn: RuleFn
    dtypes: Mapping[str, frozenset[DType]]
    constants: tuple[int, ...]
    limits: str
    family: str
    optional_from: int | None = None

    def check(self, ctx: LoweringContext, node: NodeView, args: Sequence[Value | None]) -> None:
        """Raise ``Unsupported`` if dtypes or non-constant operands are not accepted."""
        for name, accepted in self.dtypes.items():
            if not node.has(name):
                continue  # a stripped default: the rule names it itself
            found = node.dtype(name)
            if found not in accepted:
                raise Unsupported("DTYPE", f"{node.op} with {name}={found}")
        for position in self.constants:
            at = position if position >= 0 else len(args) + position
            arg = args[at] if at < len(args) else None
            if arg is not None and ctx.constant(arg) is None and ctx.dims_of(arg) is None:
                raise Unsupported("NOT_CONSTANT", f"operand {at} of {node.op} is not known at compile time")


#: TF op type -> rule; filled by importing the modules of this package (``all_rules``)
RULES: dict[str, Rule] = {}


def lowering(
    *ops: str,
    dtypes: Mapping[str, Collection[DType]] | Collection[DType] = (),
    constants: Sequence[int] = (),
    limits: str = "",
    optional_from: int | None = None,
) -> Callable[[RuleFn], RuleFn]:
    """Register ``rule(ctx, node, *args) -> Value | Sequence[Value]`` for TF op types.

    ``dtypes`` as a set is short for ``{"T": set}``.
    """
    if isinstance(dtypes, Mapping):
        table = cast("Mapping[str, Collection[DType]]", dtypes)
    else:
        table = {"T": dtypes} if dtypes else {}
    frozen = {name: frozenset(accepted) for name, accepted in table.items()}

    def register(fn: RuleFn) -> RuleFn:
        family = fn.__module__.rpartition(".")[2]
        for op in ops:
            if op in RULES:
                raise ValueError(f"two lowering rules for {op}: {RULES[op].family} and {family}")
            RULES[op] = Rule(op, fn, frozen, tuple(constants), limits, family, optional_from)
        return fn

    return register


def rule_for(op: str) -> Rule:
    """The rule of a TF op type; ``Unsupported(OP)`` if there is none."""
    from disc_tf.lowering import all_rules

    all_rules()
    found = RULES.get(op)
    if found is None:
        from disc_tf.lowering.left_out import left_out_reason

        reason = left_out_reason(op)
        raise Unsupported("OP", f"{op} stays in TensorFlow: {reason}" if reason else f"{op} has no lowering rule")
    return found


def support_table() -> str:
    """Markdown table of all rules: op, family, element types, operands needed at compile time, limits."""
    from disc_tf.lowering import all_rules

    all_rules()
    rows = ["| TF op | family | types | known at compile time | limits |", "| --- | --- | --- | --- | --- |"]
    for op in sorted(RULES, key=lambda name: (name.startswith("_"), name)):
        rule = RULES[op]
        types = "; ".join(f"{attr}: {_types_text(taken)}" for attr, taken in rule.dtypes.items())
        operands = ", ".join(f"operand {p}" for p in rule.constants)
        rows.append(f"| `{op}` | {rule.family} | {types} | {operands} | {rule.limits} |")
    return "\n".join(rows) + "\n"


def _types_text(taken: frozenset[DType]) -> str:
    names = {ALL: "all", NUMBERS: "numbers", FLOATS: "floats", INTS: "integers", SIGNED_INTS: "signed integers", BOOLS: "bool"}
    return names.get(taken) or " ".join(d.ir_name for d in DType if d in taken)
