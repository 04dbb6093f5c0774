"""Measure schedules on this machine: which choices of a table (`disc_tf.tuning`) others beat, and by how much.

For one choice after the other, a few other values are tried on the cases that the choice is about, against the table as it is by then. A
candidate and the table run in turn, so that whatever else the machine does meets both alike; of some runs the least counts, since all else
only adds time. **The rule**: in each of `ROUNDS` rounds the candidate is faster by `MARGIN` (3 %) or more in the geometric mean over all
shapes, and at no shape slower by `LOSS` (5 %) in the median of the rounds; the best such candidate must win again in as many new rounds,
then by twice the noise at least, if that is more: what the table differs from itself in the worst of as many rounds. What is not measured
when the time is up stays as it is.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from math import exp, log
from typing import Any

import numpy as np

from disc_tf.insight.tune_cases import Case, Convolution, Product, arguments, program
from disc_tf.runtime.executable import Executable, num_threads, set_target
from disc_tf.runtime.recording import profile
from disc_tf.tuning import ColumnRule, PartRule, Table
from disc_tf.tuning.table import MOST_COLUMNS, TILES

MARGIN, LOSS = 0.03, 0.05
ROUNDS = 5
#: microseconds of a program at one shape in a round, and its runs at least
_ROUND_US, _LEAST_RUNS = 4000.0, 7
#: programs that are kept; two at least are needed at a time
_MOST_LOADED = 64
#: bounds of the classes that are tuned apart: M of rows, N of columns, K of both
_M_MAX, _N_MAX, _K_MAX = (72, 288, None), (575, 1535, None), (512, None)

Shapes = Sequence[tuple[Case, Sequence[int]]]


class OutOfTime(Exception):
    """The seconds are used up."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """``name`` of what is chosen; ``shown``: the value in a table; ``others``: values to try, as tables made of one; ``shapes``: where."""

    name: str
    shown: Callable[[Table], str]
    others: Callable[[Table], list[Table]]
    shapes: Shapes


@dataclasses.dataclass(frozen=True)
class Change:
    """``gain``: how many times faster, the median of the confirming rounds; ``rounds``: all of these; ``worst``: at the shape that gains
    least; ``noise``: what the table differed from itself. ``shapes``: number of shapes."""

    choice: str
    before: str
    after: str
    gain: float
    rounds: tuple[float, ...]
    worst: float
    noise: float
    shapes: int


@dataclasses.dataclass
class Tuned:
    """``tried``: choices that were measured; ``left``: names of those that there was no time for; choices that no case is about are
    neither. ``threads``: that a kernel could use."""

    table: Table
    shipped: Table
    changes: list[Change]
    tried: int
    left: list[str]
    threads: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "isa": self.table.isa, "threads": self.threads, "tried": self.tried, "left": self.left,
            "shipped": self.shipped.digest, "digest": self.table.digest,
            "changes": [dataclasses.asdict(c) for c in self.changes], "table": self.table.to_dict(),
        }  # fmt: skip


def tune(
    shipped: Table, cases: Sequence[Case], seconds: float, progress: Callable[[str], None] = lambda _text: None, rounds: int = ROUNDS
) -> Tuned:
    """The shipped table of an instruction set that this machine runs, with the choices that win. Uses `set_num_threads`'s threads."""
    bench = _Bench(shipped.isa, time.monotonic() + seconds, rounds)
    found = [c for c in choices(shipped, cases) if c.shapes]
    out = Tuned(shipped, shipped, [], 0, [c.name for c in found], num_threads())
    try:
        set_target(shipped.isa)
        for i, choice in enumerate(found):
            progress(f"{choice.name} ({i + 1} of {len(found)})")
            change = bench.better(out.table, choice)
            out.tried += 1
            out.left.remove(choice.name)
            if change is not None:
                out.table = change[0]
                out.changes.append(change[1])
    except OutOfTime:
        pass
    finally:
        set_target(None)
        bench.close()
    return out


# ---- what is tried ------------------------------------------------------------------------------------------------


def choices(shipped: Table, cases: Sequence[Case]) -> list[Choice]:
    """All of a table, those that matter most first. ``shapes`` is empty where no case is about a choice."""
    weights = [c for c in cases if isinstance(c, Product) and c.weights]
    plain = [c for c in cases if isinstance(c, Product) and not c.weights]
    convs = [c for c in cases if isinstance(c, Convolution)]
    every = [(c, c.rows) for c in weights]
    out = [*_columns("gemm", weights, TILES[shipped.isa][1]), *_parts(weights)]
    out.append(_number("gemm.pack_rows", (4, 12, 24, 48), [(c, c.rows) for c in plain]))
    out.append(_number("rows_first_percent", (0, 50, 200, 1000), [(c, [m for m in c.rows if m > 1]) for c in [*weights, *convs[:1]]]))
    out.append(_number("gemm.prefetch_steps", (4, 8, 32), every))
    out.append(_number("conv.lines", (1, 2, 8), [(c, c.rows) for c in convs if len(c.image) > 2]))
    out += _columns("conv", convs, TILES[shipped.isa][1])
    return [dataclasses.replace(c, shapes=[s for s in c.shapes if s[1]]) for c in out]


def _get(table: Table, path: str) -> Any:
    value: Any = table
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _set(table: Table, path: str, value: Any) -> Table:
    outer, dot, name = path.rpartition(".")
    if not dot:
        return dataclasses.replace(table, **{name: value})
    return dataclasses.replace(table, **{outer: dataclasses.replace(getattr(table, outer), **{name: value})})


def _number(path: str, values: Sequence[int], shapes: Shapes) -> Choice:
    def others(table: Table) -> list[Table]:
        return [_set(table, path, v) for v in values if v != _get(table, path)]

    return Choice(path, lambda table: str(_get(table, path)), others, shapes)


def _columns(part: str, cases: Sequence[Case], nr: int) -> Iterator[Choice]:
    """Columns of a block for each class of N and K: half and twice as many, a tile's, and two in between."""
    path = f"{part}.columns"
    for n_max, k_max in ((n, k) for n in _N_MAX for k in _K_MAX):
        inside = [c for c in cases if _class(c.n, _N_MAX) == n_max and _class(c.k, _K_MAX) == k_max]
        yield _ruled(path, "columns", (n_max, k_max), _N_MAX, [(c, c.rows) for c in inside], lambda now: _near(now, nr))


def _near(now: int, nr: int) -> list[int]:
    tiles = now // nr
    tried = {1, 2, tiles // 2, tiles - 1, tiles + 1, tiles * 2}
    return [t * nr for t in sorted(tried) if 0 < t != tiles and t * nr <= MOST_COLUMNS and t <= max(4 * tiles, 4)]


def _parts(cases: Sequence[Product]) -> Iterator[Choice]:
    """Tasks that share a block of rows for each class of M and K."""
    for m_max, k_max in ((m, k) for m in _M_MAX for k in _K_MAX):
        inside = [(c, [m for m in c.rows if _class(m, _M_MAX) == m_max and m > 1]) for c in cases if _class(c.k, _K_MAX) == k_max]
        yield _ruled("gemm.row_parts", "parts", (m_max, k_max), _M_MAX, inside, lambda now: [p for p in (1, 2, 4) if p != now])


def _class(extent: int, bounds: Sequence[int | None]) -> int | None:
    return next((b for b in bounds if b is not None and extent <= b), None)


def _ruled(
    path: str, value: str, cell: tuple[int | None, int | None], bounds: Sequence[int | None], shapes: Shapes,
    near: Callable[[int], list[int]],
) -> Choice:  # fmt: skip
    first = "m_max" if value == "parts" else "n_max"

    def now(table: Table) -> int:
        return _cells(_get(table, path), first, value, bounds)[cell]

    def others(table: Table) -> list[Table]:
        cells = _cells(_get(table, path), first, value, bounds)
        return [_set(table, path, _rules({**cells, cell: v}, first, value, bounds)) for v in near(cells[cell])]

    names = [f"{name[0].upper()} up to {most}" for name, most in zip((first, "k_max"), cell, strict=True) if most is not None]
    return Choice(f"{path}, {' and '.join(names) or 'all others'}", lambda table: str(now(table)), others, shapes)


Cells = dict[tuple[int | None, int | None], int]


def _cells(rules: Sequence[Any], first: str, value: str, bounds: Sequence[int | None]) -> Cells:
    """The value of each class: of its largest extents."""
    out: Cells = {}
    for a in bounds:
        for k in _K_MAX:
            pairs = ((first, a), ("k_max", k))
            rule = next(
                r for r in rules
                if all(getattr(r, name) is None or (most is not None and most <= getattr(r, name)) for name, most in pairs)
            )  # fmt: skip
            out[a, k] = getattr(rule, value)
    return out


def _rules(cells: Cells, first: str, value: str, bounds: Sequence[int | None]) -> tuple[Any, ...]:
    """As few rules as say so. K is a bound of its own before the rest of its row, and a row that is as the next one needs none."""
    make = PartRule if value == "parts" else ColumnRule
    rows = [(a, tuple(cells[a, k] for k in _K_MAX)) for a in bounds]
    kept = [row for row, after in zip(rows, [*rows[1:], (None, ())], strict=True) if row[1] != after[1]]
    out = []
    for a, values in kept:
        for i, (k, v) in enumerate(zip(_K_MAX, values, strict=True)):
            if i + 1 == len(values) or any(v != x for x in values[i + 1 :]):
                out.append(make(**{value: v, first: a, "k_max": k}))
    return tuple(out)


# ---- measuring ----------------------------------------------------------------------------------------------------


class _Bench:
    """Compiled programs, and the time left."""

    def __init__(self, isa: str, deadline: float, rounds: int) -> None:
        self.isa, self.deadline, self.rounds = isa, deadline, rounds
        self._loaded: dict[tuple[Case, str], Executable] = {}
        self._arrays: dict[tuple[Case, int], list[np.ndarray]] = {}

    def close(self) -> None:
        for executable in self._loaded.values():
            executable.close()
        self._loaded.clear()

    def check(self) -> None:
        if time.monotonic() >= self.deadline:
            raise OutOfTime

    def better(self, table: Table, choice: Choice) -> tuple[Table, Change] | None:
        """The best candidate of a choice, if it holds to the rule."""
        best: tuple[float, Table] | None = None
        for other in choice.others(table):
            gain = self._wins(self.ratios(table, other, choice.shapes, at_least=1 + MARGIN), MARGIN)
            if gain is not None and (best is None or gain > best[0]):
                best = gain, other
        if best is None:
            return None
        other = best[1]
        noise = max(abs(g - 1) for g in _means(self.ratios(table, table, choice.shapes)))
        again = self.ratios(table, other, choice.shapes, at_least=1 + MARGIN)
        gain = self._wins(again, max(MARGIN, 2 * noise))
        if gain is None:
            return None
        means = _means(again)
        worst = min(statistics.median(shape) for shape in zip(*again, strict=True))
        shapes = sum(len(rows) for _, rows in choice.shapes)
        return other, Change(choice.name, choice.shown(table), choice.shown(other), gain, tuple(means), worst, noise, shapes)

    def _wins(self, ratios: Sequence[Sequence[float]], margin: float) -> float | None:
        """The median gain of rounds that all win; None if they do not."""
        means = _means(ratios)
        if len(means) < self.rounds or min(means) < 1 + margin:
            return None
        if any(statistics.median(shape) < 1 - LOSS for shape in zip(*ratios, strict=True)):
            return None
        return statistics.median(means)

    def ratios(self, table: Table, other: Table, shapes: Shapes, at_least: float = 0.0) -> list[list[float]]:
        """For each round, for each shape, the time with ``table`` over that with ``other``. Ends after a round whose mean is below
        ``at_least``."""
        out: list[list[float]] = []
        for _ in range(self.rounds):
            one: list[float] = []
            for case, rows in shapes:
                pair = [self._executable(case, table, ""), self._executable(case, other, "again" if other == table else "")]
                one += [self._ratio(pair, self._arguments(case, m)) for m in rows]
            out.append(one)
            if _means([one])[0] < at_least:
                break
        return out

    def _ratio(self, pair: Sequence[Executable], arrays: list[np.ndarray]) -> float:
        self.check()
        times: list[list[float]] = [[], []]
        spent = 0.0
        while spent < _ROUND_US or len(times[0]) < _LEAST_RUNS:
            order = (0, 1) if len(times[0]) % 2 else (1, 0)
            for i in order:
                times[i].append(_run_us(pair[i], arrays))
                spent += times[i][-1] / 2
        first, second = map(min, times)
        return first / second if second else 1.0

    def _executable(self, case: Case, table: Table, mark: str) -> Executable:
        key = (case, table.digest + mark)
        executable = self._loaded.pop(key, None)
        if executable is None:
            self.check()
            while len(self._loaded) >= _MOST_LOADED:
                self._loaded.pop(next(iter(self._loaded))).close()
            executable = Executable.from_bytes(program(case, self.isa, table))
            executable.run(self._arguments(case, case.rows[0]))  # packs the weights
        self._loaded[key] = executable  # the last used at the end
        return executable

    def _arguments(self, case: Case, rows: int) -> list[np.ndarray]:
        """The data of its own for each number of rows, the weights for all."""
        key = (case, rows)
        if key not in self._arrays:
            made = arguments(case, rows)
            weights = next((a[1] for (c, _), a in self._arrays.items() if c == case), made[1])
            self._arrays[key] = [made[0], weights]
        return self._arrays[key]


def _run_us(executable: Executable, arrays: list[np.ndarray]) -> float:
    """Of the launches of one run."""
    with profile() as launches:
        executable.run(arrays)
    return sum(x.ns for x in launches) / 1e3


def _means(ratios: Sequence[Sequence[float]]) -> list[float]:
    """The geometric mean of each round."""
    return [exp(statistics.fmean(map(log, one))) if one else 1.0 for one in ratios]
