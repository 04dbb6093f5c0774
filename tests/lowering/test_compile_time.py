"""The table of operands that are read at compile time."""

from __future__ import annotations

import pytest

from disc_tf.frontend.opdefs import op_info
from disc_tf.lowering import all_rules
from disc_tf.lowering.compile_time import ARITHMETIC, OPERANDS, compile_time_operands
from disc_tf.lowering.registry import RULES

all_rules()


@pytest.mark.parametrize("op", sorted(OPERANDS))
def test_positions_are_operands_of_compiled_ops(op: str) -> None:
    assert op in RULES, "an op without a rule reads nothing"
    info = op_info(op)
    assert info is not None
    lists = any(a.number_attr or a.type_list_attr for a in info.inputs)
    for p in OPERANDS[op]:
        assert lists or -len(info.inputs) <= p < len(info.inputs)
        if not lists:
            assert info.inputs[p].type_attr or info.inputs[p].type in (3, 9, 10), "numbers that a rule can read"


def test_what_a_rule_cannot_do_without_is_in() -> None:
    for op, rule in RULES.items():
        assert {p % 9 for p in rule.constants} <= {p % 9 for p in compile_time_operands(op, 9)}


def test_arithmetic_is_of_known_ops() -> None:
    assert not [op for op in ARITHMETIC if op_info(op) is None]


CASES = [("ConcatV2", 4, (3,)), ("StridedSlice", 4, (1, 2, 3)), ("MatMul", 2, ()), ("Nobody", 3, ()), ("Reshape", 1, ())]


@pytest.mark.parametrize(("op", "count", "positions"), CASES)
def test_positions(op: str, count: int, positions: tuple[int, ...]) -> None:
    assert compile_time_operands(op, count) == positions
