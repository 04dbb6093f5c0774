"""A table of schedules: types, JSON, validation.

    {"isa": "x86-64-v4", "rows_first_percent": 100,
     "gemm": {"row_parts": [{"m_max": 64, "parts": 2}, {"parts": 1}], "columns": [{"n_max": 575, "columns": 48}, {"columns": 96}],
              "pack_rows": 24, "prefetch_steps": 16},
     "conv": {"lines": 4, "columns": [{"columns": 96}]}}

A list of rules is read from the top, and the first that fits is taken; the last has no bounds. N and K are counted in elements of 4 bytes
(those of 8 bytes count twice, and a block then has half as many columns). A bound on an extent that is not known when the code is made fits
only if it is on M, which the kernel looks at when it runs.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

#: rows and columns of the register tile of f32 (`codegen/cpu/tiles.py`; a test holds that they agree), by instruction set
TILES: Mapping[str, tuple[int, int]] = {"x86-64-v2": (4, 8), "x86-64-v3": (6, 16), "x86-64-v4": (9, 48)}
#: rows of the blocks that strips are counted in (`codegen/cpu/gemm.py`): so many strips can be shared out at most
BLOCK_ROWS = 144
#: columns of a block at most: a task's sums stay in the second-level cache
MOST_COLUMNS = 1536


class TableError(ValueError):
    """What is no table, or does not fit its instruction set. The message names where, what and the way out."""


@dataclasses.dataclass(frozen=True)
class PartRule:
    """Tasks that share a block of rows, for M up to ``m_max`` and K up to ``k_max`` (None: any)."""

    parts: int
    m_max: int | None = None
    k_max: int | None = None


@dataclasses.dataclass(frozen=True)
class ColumnRule:
    """Columns of a block, a multiple of the tile's, for N up to ``n_max`` and K up to ``k_max`` (None: any, known or not)."""

    columns: int
    n_max: int | None = None
    k_max: int | None = None


@dataclasses.dataclass(frozen=True)
class GemmTable:
    """Of products. ``pack_rows``: rows from which on a right operand that lies as it can be read is packed all the same;
    ``prefetch_steps``: how many steps of k ahead it is prefetched into the first-level cache."""

    row_parts: tuple[PartRule, ...]
    columns: tuple[ColumnRule, ...]
    pack_rows: int
    prefetch_steps: int

    def parts(self, k: int | None) -> list[tuple[int | None, int]]:
        """(largest M, parts) by rising M, the last one without a bound; ``k`` in elements of 4 bytes, None if it is not known."""
        out: list[tuple[int | None, int]] = []
        for rule in self.row_parts:
            if rule.k_max is not None and (k is None or k > rule.k_max):
                continue
            if out and rule.m_max is not None and out[-1][0] is not None and rule.m_max <= out[-1][0]:
                continue  # a rule above has all of these
            out.append((rule.m_max, rule.parts))
            if rule.m_max is None:
                break
        return out


@dataclasses.dataclass(frozen=True)
class ConvTable:
    """Of convolutions. ``lines``: of a task; ``columns``: features of a block, by features (N) and by elements under the window (K)."""

    lines: int
    columns: tuple[ColumnRule, ...]


@dataclasses.dataclass(frozen=True)
class Table:
    """See the module's docstring. ``rows_first_percent``: tasks that follow each other have the same rows where 100 M is more than so
    many N, else the same columns."""

    isa: str
    rows_first_percent: int
    gemm: GemmTable
    conv: ConvTable

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `parse` takes back; bounds that are none are left out."""
        return _plain(dataclasses.asdict(self))

    def text(self) -> str:
        """On one line, always the same for equal tables."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @property
    def digest(self) -> str:
        """What tells it from others: the first 16 digits of the SHA-256 of `text`."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]


def columns_of(rules: Iterable[ColumnRule], n: int | None, k: int | None, element_bytes: int) -> int:
    """Columns of a block by the first rule that fits; extents in elements of ``element_bytes`` (4 or 8), None if they are not known."""
    scale = max(element_bytes // 4, 1)
    for rule in rules:
        bounds = ((rule.n_max, n), (rule.k_max, k))
        if all(most is None or (x is not None and x * scale <= most) for most, x in bounds):
            return rule.columns // scale
    raise AssertionError("the last rule has no bounds")


@functools.cache
def shipped(isa: str) -> Table:
    """The table that comes with the compiler."""
    return parse((Path(__file__).parent / f"{isa}.json").read_text(), f"the table of {isa}")


def parse(text: str, name: str) -> Table:
    """The table that a JSON text is. ``name``: of the file, for errors. `TableError`."""
    try:
        data = json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, name))
    except TableError:
        raise
    except ValueError as e:  # also a number of more digits than Python reads
        raise TableError(f"{name}: not JSON: {e}") from e
    except RecursionError as e:
        raise TableError(f"{name}: not a table: too deeply nested") from e
    return _Reader(name).table(data)


def _once(pairs: list[tuple[str, Any]], name: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise TableError(f"{name}: {key!r} is there twice")
        out[key] = value
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    return [_plain(v) for v in value] if isinstance(value, (tuple, list)) else value


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name

    def wrong(self, where: str, what: str) -> TableError:
        return TableError(f"{self.name}: {where + ': ' if where else ''}{what}")

    def table(self, data: Any) -> Table:
        self.keys("", data, ("isa", "rows_first_percent", "gemm", "conv"))
        isa = data["isa"]
        if not isinstance(isa, str) or isa not in TILES:
            raise self.wrong("isa", f"{isa!r} is not one of {', '.join(TILES)}")
        gemm, conv = data["gemm"], data["conv"]
        self.keys("gemm", gemm, ("row_parts", "columns", "pack_rows", "prefetch_steps"))
        self.keys("conv", conv, ("lines", "columns"))
        most = BLOCK_ROWS // TILES[isa][0]
        return Table(
            isa,
            self.number("rows_first_percent", data["rows_first_percent"], 0, 100_000),
            GemmTable(
                tuple(
                    PartRule(self.number(f"{at}.parts", rule["parts"], 1, most), rule.get("m_max"), rule.get("k_max"))
                    for at, rule in self.rules("gemm.row_parts", gemm["row_parts"], "parts", "m_max")
                ),
                self.columns("gemm.columns", gemm["columns"], isa),
                self.number("gemm.pack_rows", gemm["pack_rows"], 0, 1 << 20),
                self.number("gemm.prefetch_steps", gemm["prefetch_steps"], 0, 256),
            ),
            ConvTable(self.number("conv.lines", conv["lines"], 1, 1024), self.columns("conv.columns", conv["columns"], isa)),
        )

    def keys(self, where: str, value: Any, wanted: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
        if not isinstance(value, dict):
            raise self.wrong(where, f"an object with {', '.join(wanted)} is wanted, not {_shown(value)}")
        for key in value:
            if key not in wanted and key not in optional:
                close = difflib.get_close_matches(key, [*wanted, *optional], 1)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join([*wanted, *optional])}"
                raise self.wrong(where, f"unknown key {key!r}; {hint}")
        if missing := [key for key in wanted if key not in value]:
            raise self.wrong(where, f"{', '.join(missing)} is missing")

    def number(self, where: str, value: Any, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(where, f"a whole number is wanted, not {_shown(value)}")
        if not least <= value <= most:
            raise self.wrong(where, f"{value} is not between {least} and {most}")
        return value

    def rules(self, where: str, value: Any, what: str, bound: str) -> Iterable[tuple[str, dict[str, Any]]]:
        if not isinstance(value, list) or not value:
            raise self.wrong(where, f"a list of rules is wanted, not {_shown(value)}")
        for i, rule in enumerate(value):
            at = f"{where}[{i}]"
            self.keys(at, rule, (what,), (bound, "k_max"))
            bounds = [key for key in (bound, "k_max") if key in rule]
            for key in bounds:
                self.number(f"{at}.{key}", rule[key], 0, 1 << 40)
            if not bounds and i + 1 < len(value):
                raise self.wrong(at, "a rule without bounds fits everything: those below it are never read")
            if bounds and i + 1 == len(value):
                raise self.wrong(at, f"the last rule must fit everything: leave out {' and '.join(bounds)}, or add a rule")
            yield at, rule

    def columns(self, where: str, value: Any, isa: str) -> tuple[ColumnRule, ...]:
        tile, out = TILES[isa][1], []
        for at, rule in self.rules(where, value, "columns", "n_max"):
            columns = self.number(f"{at}.columns", rule["columns"], 1, MOST_COLUMNS)
            if columns % tile:
                raise self.wrong(f"{at}.columns", f"{columns} is not a multiple of {tile}, the columns of {isa}'s register tile")
            out.append(ColumnRule(columns, rule.get("n_max"), rule.get("k_max")))
        return tuple(out)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
