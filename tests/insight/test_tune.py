"""The search for a table: what wins, what does not, what is measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from disc_tf.fusion.plan import make_plan
from disc_tf.insight import tune as search
from disc_tf.insight.tune_cases import MOST_CASES, USUAL, USUAL_ROWS, Case, Convolution, Product, arguments, cases_of, program
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function
from disc_tf.ir.types import DType, TensorType
from disc_tf.runtime.cpu import native_target
from disc_tf.runtime.executable import Executable
from disc_tf.tuning import Table, parse, shipped
from disc_tf.tuning.table import columns_of

ISA = "x86-64-v2"
SHIPPED = shipped(ISA)
CASES: tuple[Case, ...] = (Product(64, 128, (1, 64)), Product(768, 768, (16, 400)), Product(64, 128, (4, 20), weights=False))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., search.Tuned]:
    """`tune` with microseconds made up from the case, the rows and the table: nothing is compiled or run."""

    def run(us: Callable[[Case, int, Table], float], cases: Sequence[Case] = CASES, seconds: float = 1e6) -> search.Tuned:
        monkeypatch.setattr(search._Bench, "_executable", lambda self, case, table, mark: (case, table))
        monkeypatch.setattr(search._Bench, "_arguments", lambda self, case, rows: rows)
        monkeypatch.setattr(search, "_run_us", lambda pair, rows: us(pair[0], rows, pair[1]))
        monkeypatch.setattr(search, "set_target", lambda isa: None)
        return search.tune(SHIPPED, cases, seconds)

    return run


def columns(case: Case, table: Table) -> int:
    return columns_of(table.gemm.columns, case.n, case.k, 4)


def test_a_choice_that_wins_everywhere_is_taken(fake) -> None:
    best = {64: 16, 768: 192}
    made = fake(lambda case, rows, table: 900.0 if case.weights and columns(case, table) == best[case.n] else 1000.0)
    assert {c.after for c in made.changes} == {"16", "192"}
    assert all(c.gain == pytest.approx(1000 / 900) == c.worst and c.noise == 0 and len(c.rounds) == search.ROUNDS for c in made.changes)
    assert [columns(c, made.table) for c in CASES[:2]] == [16, 192]
    assert parse(made.table.text(), "made") == made.table
    assert not made.left and made.tried > 5
    assert made.table.gemm.pack_rows == SHIPPED.gemm.pack_rows and made.table.conv == SHIPPED.conv


@pytest.mark.parametrize("gain", [0.0, 0.02, 0.029])
def test_less_than_the_margin_changes_nothing(fake, gain: float) -> None:
    made = fake(lambda case, rows, table: 1000.0 * (1 - gain if table != SHIPPED else 1))
    assert made.table == SHIPPED and not made.changes


def test_a_shape_that_loses_is_not_paid_with_by_others(fake) -> None:
    def us(case: Case, rows: int, table: Table) -> float:
        if table == SHIPPED:
            return 1000.0
        return 1060.0 if rows in (1, 16, 4) else 500.0

    made = fake(us)
    without = {c.name for c in search.choices(SHIPPED, CASES) if all(set(rows) <= {64, 400, 20} for _, rows in c.shapes)}
    assert {c.choice for c in made.changes} <= without
    assert made.table.gemm.columns == SHIPPED.gemm.columns


@pytest.mark.parametrize(("noise", "changed"), [(0.01, True), (0.04, True), (0.08, False)])
def test_gains_below_twice_the_noise_change_nothing(fake, monkeypatch: pytest.MonkeyPatch, noise: float, changed: bool) -> None:
    """A tenth is gained, and the same code differs from itself by so much, now and then."""
    calls = itertools.count()

    def ratio(_bench: object, pair: Sequence[tuple[Case, Table]], _rows: int) -> float:
        same = pair[0][1] == pair[1][1]
        return 1 - noise * (next(calls) % 3) / 2 if same else 1.0 if pair[1][1] == SHIPPED else 1.1

    monkeypatch.setattr(search._Bench, "_ratio", ratio)
    assert bool(fake(lambda *_: 1.0, (CASES[2], Product(64, 128, (1,)))).changes) is changed


def test_rounds_that_do_not_all_win_change_nothing(fake) -> None:
    calls = itertools.count()
    made = fake(lambda case, rows, table: 5000.0 if table == SHIPPED else (4000.0 if next(calls) // 40 % 2 else 5100.0))
    assert not made.changes


def test_what_there_is_no_time_for_stays(fake) -> None:
    made = fake(lambda case, rows, table: 1.0 if table != SHIPPED else 2.0, seconds=0.0)
    assert made.table == SHIPPED and made.tried == 0
    assert made.left == [c.name for c in search.choices(SHIPPED, CASES) if c.shapes]


def test_numbers_and_rows_are_tuned_too(fake) -> None:
    def us(case: Case, rows: int, table: Table) -> float:
        parts = next(p for most, p in table.gemm.parts(case.k) if most is None or rows <= most)
        numbers = (table.gemm.pack_rows == 12 and not case.weights, table.gemm.prefetch_steps == 8, table.rows_first_percent == 50)
        return 10_000.0 * 0.8 ** sum((*numbers, parts == 2 and rows > 288))

    made = fake(us).table
    assert (made.gemm.pack_rows, made.gemm.prefetch_steps, made.rows_first_percent) == (12, 8, 50)
    assert made.gemm.parts(768) == [(288, 1), (None, 2)]
    assert {parts for k in (512, 128) for _, parts in made.gemm.parts(k)} == {1}, "no case of so few K has as many rows"
    assert made.gemm.parts(None) == [(288, 1), (None, 2)]


@pytest.mark.parametrize(("first", "value", "bounds"), [("n_max", "columns", search._N_MAX), ("m_max", "parts", search._M_MAX)])
def test_rules_say_what_the_classes_have(first: str, value: str, bounds: tuple[int | None, ...]) -> None:
    rng = np.random.default_rng(6)
    keys = [(a, k) for a in bounds for k in search._K_MAX]
    for _ in range(300):
        cells = {key: int(rng.integers(1, 4)) * (8 if value == "columns" else 1) for key in keys}
        rules: Any = search._rules(cells, first, value, bounds)
        assert search._cells(rules, first, value, bounds) == cells
        table = search._set(SHIPPED, "gemm.columns" if value == "columns" else "gemm.row_parts", rules)
        assert parse(table.text(), "rules") == table
        for (a, k), want in cells.items():
            if value == "columns":
                assert columns_of(rules, a or 10**6, k or 10**6, 4) == want
            else:
                assert next(p for most, p in table.gemm.parts(k or 10**6) if most is None or (a or 10**6) <= most) == want
    assert len(search._rules(dict.fromkeys(keys, 8), first, value, bounds)) == 1


@pytest.mark.parametrize(
    "case",
    [
        Product(7, 5), Product(16, 3, weights=False), Convolution((1, 9, 6), (3, 2), 3, 5, (2, 1)), Convolution((1, 20), (5,), 2, 7),
    ],
)  # fmt: skip
def test_programs_compute_what_they_are_called(case: Case) -> None:
    target = native_target()
    with Executable.from_bytes(program(case, target, shipped(target))) as executable:
        for rows in (0, 1, 3):
            x, w = arguments(case, rows)
            (got,) = executable.run([x, w])
            if isinstance(case, Product):
                np.testing.assert_allclose(got, x @ w, rtol=1e-5, atol=1e-5)
            else:
                strides = case.strides or (1,) * len(case.window)
                assert got.shape == (rows, *(-(-n // s) for n, s in zip(case.image[1:], strides, strict=True)), case.features)


def test_usual_cases_are_about_every_choice_but_few() -> None:
    named = {c.name: len(c.shapes) for c in search.choices(SHIPPED, USUAL)}
    assert sum(n > 0 for n in named.values()) >= 18
    assert all(named[n] for n in ("gemm.pack_rows", "conv.lines", "rows_first_percent", "gemm.columns, all others"))


def test_cases_come_from_graphs() -> None:
    fn = Function("main")
    b = Builder(fn.body, fn.env)

    def arg(dims: Sequence[Any], kind: str = "device"):
        return fn.add_arg(TensorType.of(DType.F32, dims), ArgInfo(f"x{len(fn.args)}", kind))

    y = b.dot_general(arg(("m", 40)), arg((40, 24), "const"), [1], [0])
    z = b.dot_general(arg((8, 40)), arg((40, 24), "const"), [1], [0])
    points = b.dot_general(arg(("n", 7, 7, 40)), arg((40, 24), "const"), [3], [0])
    many = b.dot_general(arg(("n", 50, 50, 40)), arg((40, 24), "const"), [3], [0])
    batch = b.dot_general(arg(("h", "m", 40)), arg(("h", 40, 32)), [2], [1], [0], [0])
    image = b.convolution(arg(("n", "y", 16, 3)), arg((3, 3, 3, 8), "const"), strides=(2, 1))
    depthwise = b.convolution(arg(("n", 8, 8, 4)), arg((3, 3, 1, 4), "const"), groups=4)
    b.return_([y, z, points, many, batch, image, depthwise])
    found = cases_of([make_plan(fn)])
    assert set(found) == {
        Product(24, 40), Product(24, 40, (8,)), Product(24, 40, (49, 196)), Product(24, 40, (2500, 4096)),
        Product(32, 40, USUAL_ROWS, weights=False),
        Convolution((1, 28, 16), (3, 3), 3, 8, (2, 1), (1, 1)),
    }  # fmt: skip
    assert len(found) <= MOST_CASES
    assert cases_of([]) == []


@pytest.mark.slow
def test_a_bad_table_gets_better_on_this_machine() -> None:
    """Nothing prefetched, one task in place of many, 16 of them in place of one: some of it is found whatever else runs here."""
    target = native_target()
    good = shipped(target)
    most = max(4, 1536 // columns_of(good.gemm.columns, 100, 100, 4) // 2)
    wide = columns_of(good.gemm.columns, 100, 100, 4) * most
    bad = search._set(search._set(good, "gemm.columns", (type(good.gemm.columns[0])(wide),)), "gemm.prefetch_steps", 0)
    cases = [Product(768, 768, (1, 64, 200)), Product(2304, 768, (1, 64, 200))]
    assert any(search.tune(bad, cases, 120).changes for _ in range(3))
