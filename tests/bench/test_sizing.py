"""The queueing model against exact results, a simulated queue, and a front end whose children sleep."""

from __future__ import annotations

import asyncio
import math
import random
import statistics

import pytest

from bench.sizing import enough, erlang_c, forecast, ideal, main, p95, queue_alone, summary


def erlang_c_by_its_definition(k: int, load: float) -> float:
    last = load**k / math.factorial(k) * k / (k - load)
    return last / (sum(load**n / math.factorial(n) for n in range(k)) + last)


@pytest.mark.parametrize(("k", "load"), [(1, 0.3), (1, 0.99), (2, 1.0), (4, 3.4), (12, 7.5), (60, 55.0)])
def test_erlang(k: int, load: float) -> None:
    assert erlang_c(k, load) == pytest.approx(erlang_c_by_its_definition(k, load), rel=1e-9)


def test_exact_for_one_child() -> None:
    """M/M/1, M/D/1 (Pollaczek and Khinchine)."""
    f = forecast(1, 0.8, 1.0, 1.0)
    assert (f.waits, f.mean, f.utilisation) == pytest.approx((0.8, 4.0, 0.8)) and f.p95 == pytest.approx(5 * math.log(0.8 / 0.05))
    assert forecast(1, 0.8, 1.0, 0.0).mean == pytest.approx(2.0)
    assert forecast(3, 1e-6, 1.0, 1.0).p95 == 0
    with pytest.raises(ValueError, match="2 children do 2 compiles a second and 2 are asked"):
        forecast(2, 2.0, 1.0, 1.0)


def test_enough_is_the_fewest() -> None:
    found = enough(2.0, 3.0, 1.5, 2.0)
    assert found.p95 <= 2.0 and found.utilisation <= 0.85
    before = found.children - 1
    assert before <= 6 or forecast(before, 2.0, 3.0, 1.5).p95 > 2.0 or 6.0 / before > 0.85
    assert enough(0.001, 1.0, 1.0, 0.0).children == 1


def test_an_ideal_queue() -> None:
    assert ideal(1, [0, 1, 2, 10], [3, 3, 3, 3]) == [0, 2, 4, 0]
    assert ideal(2, [0, 1, 2, 3], [3, 3, 3, 3]) == [0, 0, 1, 1]
    assert p95(list(range(1, 101))) == 95 and p95([7]) == 7


@pytest.mark.parametrize(("k", "utilisation", "scv"), [(1, 0.7, 0.3), (4, 0.7, 2.0), (8, 0.85, 1.0)])
def test_the_model_against_a_simulation(k: int, utilisation: float, scv: float) -> None:
    rng, sigma = random.Random(3), math.sqrt(math.log(1 + scv))
    arrivals, at = [], 0.0
    for _ in range(100_000):
        at += rng.expovariate(utilisation * k)
        arrivals.append(at)
    waits = ideal(k, arrivals, [rng.lognormvariate(-(sigma**2) / 2, sigma) for _ in arrivals])
    said = forecast(k, utilisation * k, 1.0, scv)
    assert statistics.fmean(waits) == pytest.approx(said.mean, rel=0.25)
    assert p95(waits) == pytest.approx(said.p95, rel=0.25)


def test_a_run_of_a_front_end() -> None:
    found = asyncio.run(queue_alone(2, 0.6, 40, 0.03, 0.5, random.Random(1)))
    assert found.requests == 40 and found.children == 2 and found.mean_service >= 0.02
    assert found.measured_mean >= found.ideal_mean - 0.005


def test_summary_takes_the_time_between_the_states() -> None:
    found = summary("x", 1, 0.1, [(10.0, 14.0, 18.0), (0.0, 0.0, 5.0), (3.0, 5.0, 14.0)])
    assert (found.measured_mean, found.ideal_mean, found.mean_service) == pytest.approx((2.0, 2.0, 6.0)) and found.measured_p95 == 4.0


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rate", "2", "--hits", "0.8", "--mean", "3.4", "--scv", "1.5", "--wait", "5", "--child-memory", "1.5"]) == 0
    out = capsys.readouterr().out
    assert "| 1 | cannot keep up |" in out and "| 3 (enough) | 45% |" in out and "6.5 GiB" in out
    for wrong in (["--rate", "0"], ["--hits", "1"], ["--mean", "-1"]):
        with pytest.raises(SystemExit) as e:
            main(wrong)
        assert e.value.code == 2
    assert "--hits" in capsys.readouterr().err
