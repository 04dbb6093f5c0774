"""Tables of schedules: what is in them, what is refused, which rule is taken."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from disc_tf.tuning import ColumnRule, GemmTable, PartRule, TableError, parse, shipped
from disc_tf.tuning.table import TILES, columns_of

ISA = "x86-64-v3"


def changed(path: str, value: Any) -> str:
    """The shipped table with one thing set (None: taken away)."""
    data = shipped(ISA).to_dict()
    at: Any = data
    *outer, last = path.split(".")
    for key in outer:
        at = at[int(key) if key.isdigit() else key]
    if value is None:
        del at[last]
    else:
        at[int(last) if last.isdigit() else last] = value
    return json.dumps(data)


@pytest.mark.parametrize("isa", sorted(TILES))
def test_every_instruction_set_has_a_table(isa: str) -> None:
    table = shipped(isa)
    assert table.isa == isa
    assert parse(table.text(), "again") == table
    assert shipped(isa) is table, "read once"


def test_digests_tell_tables_apart_and_not_their_spelling() -> None:
    table = shipped(ISA)
    spaced = json.dumps(table.to_dict(), indent=4)
    assert parse(spaced, "spaced").digest == table.digest
    assert dataclasses.replace(table, rows_first_percent=99).digest != table.digest
    assert len({shipped(isa).digest for isa in TILES}) == len(TILES)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("isa", "x86-64-v9", "isa: 'x86-64-v9' is not one of x86-64-v2, x86-64-v3, x86-64-v4"),
        ("isa", ["x"], "isa: ['x'] is not one of"),
        ("rows_first_pct", 1, "unknown key 'rows_first_pct'; did you mean 'rows_first_percent'?"),
        ("zzz", 1, "unknown key 'zzz'; known: isa, rows_first_percent, gemm, conv"),
        ("gemm", [], "gemm: an object with row_parts, columns, pack_rows, prefetch_steps is wanted, not []"),
        ("gemm.pack_rows", None, "gemm: pack_rows is missing"),
        ("gemm.pack_rows", True, "gemm.pack_rows: a whole number is wanted, not true"),
        ("gemm.pack_rows", 2.0, "gemm.pack_rows: a whole number is wanted, not 2.0"),
        ("gemm.pack_rows", "2", 'gemm.pack_rows: a whole number is wanted, not "2"'),
        ("gemm.pack_rows", -1, "gemm.pack_rows: -1 is not between 0 and 1048576"),
        ("gemm.prefetch_steps", 257, "gemm.prefetch_steps: 257 is not between 0 and 256"),
        ("gemm.row_parts", [], "gemm.row_parts: a list of rules is wanted, not []"),
        ("gemm.row_parts", {"parts": 1}, "gemm.row_parts: a list of rules is wanted"),
        ("gemm.row_parts.0", 3, "gemm.row_parts[0]: an object with parts is wanted, not 3"),
        ("gemm.row_parts.0.parts", 0, "gemm.row_parts[0].parts: 0 is not between 1 and 24"),
        ("gemm.row_parts.0.n_max", 5, "gemm.row_parts[0]: unknown key 'n_max'; did you mean 'm_max'?"),
        ("gemm.row_parts.0.m_max", 5, "gemm.row_parts[0]: the last rule must fit everything: leave out m_max, or add a rule"),
        ("gemm.columns.0.n_max", "all", 'gemm.columns[0].n_max: a whole number is wanted, not "all"'),
        ("gemm.columns.0.n_max", None, "gemm.columns[0]: a rule without bounds fits everything: those below it are never read"),
        ("gemm.columns.1.columns", 100, "gemm.columns[1].columns: 100 is not a multiple of 16, the columns of x86-64-v3's register tile"),
        ("gemm.columns.1.columns", 1552, "gemm.columns[1].columns: 1552 is not between 1 and 1536"),
        ("conv.columns.0.columns", 8, "conv.columns[0].columns: 8 is not a multiple of 16"),
        ("conv.lines", 0, "conv.lines: 0 is not between 1 and 1024"),
    ],
)
def test_bad_tables_say_where_and_what(path: str, value: Any, message: str) -> None:
    with pytest.raises(TableError) as e:
        parse(changed(path, value), "t.json")
    assert str(e.value).startswith("t.json: ")
    assert message in str(e.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"), ("{", "not JSON"), ("[1]", "an object with isa"), ("null", "an object with isa"),
        ('{"isa": "x86-64-v2", "isa": "x86-64-v3"}', "'isa' is there twice"), ("[" * 100_000, "not"),
        ('{"isa": ' + "9" * 5000 + "}", "not JSON: .* digits"),
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused(text: str, message: str) -> None:
    with pytest.raises(TableError, match=message):
        parse(text, "t.json")


def test_the_first_rule_that_fits_is_taken() -> None:
    rules = (ColumnRule(16, n_max=100), ColumnRule(32, n_max=500, k_max=64), ColumnRule(48, k_max=10), ColumnRule(96))
    found = {
        (100, 9, 4): 16, (101, 64, 4): 32, (101, 65, 4): 96, (501, 10, 4): 48, (501, 11, 4): 96, (None, 10, 4): 48, (None, None, 4): 96,
        (100, None, 4): 16, (50, 9, 8): 8, (51, 32, 8): 16, (51, 33, 8): 48, (0, 0, 4): 16,
    }  # fmt: skip
    for (n, k, size), columns in found.items():
        assert columns_of(rules, n, k, size) == columns, (n, k, size)


def test_parts_by_rows_for_a_depth() -> None:
    gemm = GemmTable((PartRule(4, 20, 64), PartRule(3, 10), PartRule(2, 50), PartRule(1, k_max=8), PartRule(6)), (ColumnRule(96),), 24, 16)
    assert gemm.parts(64) == [(20, 4), (50, 2), (None, 6)]
    assert gemm.parts(65) == [(10, 3), (50, 2), (None, 6)]
    assert gemm.parts(8) == [(20, 4), (50, 2), (None, 1)]
    assert gemm.parts(None) == [(10, 3), (50, 2), (None, 6)]


def test_tables_lie_in_the_package() -> None:
    """Where the wheel takes the whole package from."""
    here = Path(__file__).parents[2] / "disc_tf" / "tuning"
    assert {f.stem for f in here.glob("*.json")} == set(TILES)
