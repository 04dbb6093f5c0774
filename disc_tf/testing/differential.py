"""The differential check of an optimised graph against its original: same answers, and not slower."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from disc_tf.frontend.errors import telling_line
from disc_tf.report import ShapeResult
from disc_tf.testing.compare import compare
from disc_tf.testing.inputs import InputSpec, broadcast_feeds, make_feeds
from disc_tf.testing.originals import Answers, Originals, Recorded
from disc_tf.testing.random_outputs import compare_draws, draws_random
from disc_tf.testing.tf_process import Hosts, ProcessFailed, TfError, TfProcess
from disc_tf.testing.timing import ROUNDS, in_turn, interval, race, round_ratios, warm_up


def verify_graphs(
    original: str | Path,
    optimized: str | Path,
    specs: Sequence[InputSpec],
    outputs: Sequence[str],
    sizes: Sequence[Mapping[str, int]],
    *,
    tolerance: float | None = None,
    timing: bool = False,
    threads: int = 0,
    rounds: int = ROUNDS,
    broadcast: bool = False,
    deadline: float = math.inf,
    progress: Callable[[ShapeResult], None] | None = None,
    hosts: Hosts | None = None,
) -> list[ShapeResult]:
    """One attempt of a `GraphCheck`."""
    cases = generated(specs, sizes, broadcast=broadcast)
    with GraphCheck(original, specs, outputs, cases, tolerance=tolerance, threads=threads, rounds=rounds, hosts=hosts) as check:
        return check.attempt(optimized, timing=timing, deadline=deadline, progress=progress)


class GraphCheck(Originals):
    """A graph file against which candidates are held one after the other, at the same ``cases``.

    Outputs are compared with the reference, times with TensorFlow as users run it. Where the reference raises, the candidate must raise the
    same code. A candidate that does not load, or that takes its process down, has failed at this and all further cases.
    """

    def __init__(
        self,
        original: str | Path,
        specs: Sequence[InputSpec],
        outputs: Sequence[str],
        cases: Sequence[Case],
        *,
        tolerance: float | None = None,
        threads: int = 0,
        rounds: int = ROUNDS,
        hosts: Hosts | None = None,
    ) -> None:
        super().__init__(hosts)
        self.original, self.outputs, self.cases = original, list(outputs), list(cases)
        self.names = [s.name for s in specs]
        self.tolerance, self.threads, self.rounds = tolerance, threads, rounds
        self._reference: Recorded | None = None

    def attempt(
        self,
        candidate: str | Path,
        *,
        timing: bool = False,
        deadline: float = math.inf,
        progress: Callable[[ShapeResult], None] | None = None,
    ) -> list[ShapeResult]:
        """Results of a candidate. Timing runs in interleaved rounds; a shape at which the original raises as users run it is not timed, and
        its message says so. deadline: see `Check`. Raises `ProcessFailed` or `TfError` if the original does not load."""
        feeds = [f"{name}:0" for name in self.names]
        start = functools.partial(TfProcess, inputs=feeds, outputs=self.outputs, threads=self.threads, hosts=self.hosts)
        makers = {
            "reference": functools.partial(start, self.original, reference=True),
            "checked": functools.partial(start, candidate, ops=True, env=QUIET),
        }
        if timing:
            makers |= {"user": functools.partial(start, self.original), "timed": functools.partial(start, candidate, ops=True)}
        with contextlib.ExitStack() as stack:
            found = self.started(makers, stack)
            for role in ("reference", "user"):
                if isinstance(error := found.get(role), Exception):
                    raise error
            reference, checked = found["reference"], found["checked"]
            random = draws_random(reference.info.get("ops", ()))
            if self._reference is None or self._reference.side is not reference:
                self._reference = Recorded(reference)
            failure = f"the optimised graph does not load: {checked}" if isinstance(checked, Exception) else ""
            candidate_side = None if isinstance(checked, Exception) else checked
            users = [found["user"], found["timed"]] if timing and not isinstance(found["timed"], Exception) else []
            check = Check(
                self.names, self.outputs, reference if random else self._reference, candidate_side, users,
                self.tolerance, self.rounds, failure, deadline, random,
            )  # fmt: skip
            results = check.all(self.cases, progress)
            if random:  # what is drawn next depends on what was drawn before
                self.forget()
            return results


#: how the message starts that says that outputs are random
RANDOM = "random in TensorFlow itself, compared by distribution"
#: oneDNN off on both sides: what stays in TensorFlow must not count as a difference. Grappler is on, as for users.
QUIET = {"TF_ENABLE_ONEDNN_OPTS": "0"}


class Side(Answers, Protocol):
    """A graph, or a signature, in a process: `TfProcess`, `SignatureSide`."""

    info: dict[str, Any]

    def time(self, feeds: Sequence[np.ndarray], repeats: int = 5, warmup: int = 1) -> list[float]: ...
    def memory(self) -> dict[str, int]: ...


@dataclasses.dataclass(frozen=True)
class Case:
    """What both sides are given. source: see `ShapeResult`. private: a user's record: no message may quote it."""

    feeds: Sequence[np.ndarray]
    timed: bool = True
    source: str = "generated"
    private: bool = False


def generated(specs: Sequence[InputSpec], sizes: Sequence[Mapping[str, int]], *, broadcast: bool) -> list[Case]:
    """A case for each of ``sizes``; broadcast: and inputs that broadcast against each other, which are not timed."""
    cases = [Case(make_feeds(specs, size, seed=i)) for i, size in enumerate(sizes)]
    if broadcast:
        cases += [Case(feeds, timed=False) for feeds in broadcast_feeds(specs)]
    return cases


@dataclasses.dataclass
class Check:
    """The comparison of two sides, case by case. ``users``: both sides as users run them, to be timed; none for no timing.

    ``random``: random numbers are drawn; an output that the reference itself draws anew each run is then compared by distribution.
    ``failure``: why the candidate is of no use, once it is not; ``lost``: why the reference is not. ``deadline``: `time.monotonic` after
    which nothing is timed any more, and no further case is run once one was compared.
    """

    names: Sequence[str]
    outputs: Sequence[str]
    reference: Answers
    candidate: Answers | None
    users: Sequence[Side] = ()
    tolerance: float | None = None
    rounds: int = ROUNDS
    failure: str = ""
    deadline: float = math.inf
    random: bool = False
    lost: str = ""

    def all(self, cases: Sequence[Case], progress: Callable[[ShapeResult], None] | None = None) -> list[ShapeResult]:
        """The results, in order; fewer than cases only if the time is over."""
        results: list[ShapeResult] = []
        for case in cases:
            if self._late() and any(r.compared or not r.ok for r in results):
                break
            results.append(self.one(case))
            if progress is not None:
                progress(results[-1])
        return results

    def one(self, case: Case) -> ShapeResult:
        shapes = {n: list(f.shape) for n, f in zip(self.names, case.feeds, strict=True)}
        result = ShapeResult(shapes, not self.failure, self.failure or self.lost, source=case.source)
        if self.candidate is None or self.failure or self.lost:
            return result
        try:
            wrong = _check(result, self.reference, self.candidate, case, self.outputs, self.tolerance)
            if wrong and self.random:
                self._by_distribution(result, case, wrong)
        except CandidateFailed as e:
            result.ok, result.message = False, str(e)
            self.failure = result.message
        except ProcessFailed as e:
            result.ok, result.message = True, f"TensorFlow itself cannot run it here: {first_line(e)}"
            result.max_abs, result.max_rel, result.elements = {}, {}, {}
            self.lost = result.message
        quiet = not result.message or result.message.startswith(RANDOM)
        if self.users and case.timed and result.ok and quiet and not self._late():
            _time(result, self.users[0], self.users[1], case, self.rounds)
        return result

    def _by_distribution(self, result: ShapeResult, case: Case, wrong: Sequence[str]) -> None:
        """Outputs that differ between two runs of the reference itself: both sides run equally often (they may count), and their draws
        are compared."""
        assert self.candidate is not None
        candidate = self.candidate

        def ours() -> list[np.ndarray]:
            try:
                return candidate.run(case.feeds)
            except ProcessFailed as e:
                raise CandidateFailed(_ended(e, case.private)) from e

        try:
            found, runs = compare_draws(lambda: self.reference.run(case.feeds), ours, len(self.outputs))
        except TfError as e:
            result.message = f"{result.message}; drawn again, a side {_said(e, case.private)}"
            return
        drawn = dict(zip(self.outputs, found, strict=True))
        if not all(drawn[name].random for name in wrong):
            return
        for name in wrong:
            del result.max_abs[name], result.max_rel[name]
        bad = [f"{name}: {drawn[name].message}, in {runs} runs" for name in wrong if drawn[name].message]
        result.ok = not bad
        result.message = bad[0] if bad else f"{RANDOM} in {runs} runs: {', '.join(wrong)}"

    def _late(self) -> bool:
        return time.monotonic() > self.deadline


class OptimizedRaised(RuntimeError):
    """The optimised graph raised where the original did not. The message names the shape and the error."""


class CandidateFailed(Exception):
    """The process of the optimised graph is of no use any more."""


def _check(
    result: ShapeResult, reference: Answers, candidate: Answers, case: Case, outputs: Sequence[str], tolerance: float | None
) -> list[str]:
    """Fill the result; the outputs that differ."""
    expected, want_code = _run(reference, case.feeds)
    try:
        actual, got_code = _run(candidate, case.feeds)
    except ProcessFailed as e:
        raise CandidateFailed(_ended(e, case.private)) from e
    if (want_code or (0,))[0] != (got_code or (0,))[0]:
        result.ok = False
        said = "succeeded" if got_code is None else f"raised code {got_code[0]}{_quoted(got_code[1], case.private)}"
        wanted = "succeeds" if want_code is None else f"raises code {want_code[0]}{_quoted(want_code[1], case.private)}"
        result.message = f"TensorFlow {wanted}; the optimised graph {said}"
        return []
    if expected is None or actual is None:
        result.message = f"both raise code {want_code[0] if want_code else 0}"
        return []
    wrong = []
    for name, r, a in zip(outputs, expected, actual, strict=True):
        c = compare(r, a, tolerance=tolerance)
        result.max_abs[name], result.max_rel[name] = c.max_abs, c.max_rel
        result.elements[name] = int(np.size(r))
        if not c.ok:
            result.ok = False
            result.message = f"{name}: {c.message}"
            wrong.append(name)
    return wrong


def _ended(error: ProcessFailed, private: bool) -> str:
    return f"the optimised graph: {first_line(error) if private else error}"


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _quoted(message: str, private: bool) -> str:
    return "" if private else f": {telling_line(message)}"


def _run(side: Answers, feeds: Sequence[np.ndarray]) -> tuple[list[np.ndarray] | None, tuple[int, str] | None]:
    try:
        return side.run(feeds), None
    except TfError as e:
        return None, (e.code, str(e) or "?")


def _time(result: ShapeResult, user: Side, candidate: Side, case: Case, rounds: int) -> None:
    """Medians and the ratio of each round.

    The original may raise here where the reference does not (oneDNN refuses shapes of its own): a note. If only the optimised graph
    raises, that is a difference.
    """
    feeds = case.feeds
    try:
        user.time(feeds, 1, 0)
    except TfError as e:
        result.message = not_timed(e, case.private)
        return
    except ProcessFailed as e:
        result.message = f"not timed: TensorFlow itself: {first_line(e)}"
        return
    try:
        found = race(lambda n, warmup: user.time(feeds, n, warmup), lambda n, warmup: candidate.time(feeds, n, warmup), rounds)
    except TfError as e:
        result.ok, result.message = False, f"TensorFlow as users run it succeeds; the optimised graph {_said(e, case.private)}"
        return
    except ProcessFailed as e:
        result.ok, result.message = False, f"TensorFlow as users run it succeeds; {_ended(e, case.private)}"
        return
    result.original_ms, result.optimized_ms = found.original * 1e3, found.optimized * 1e3
    result.ratios, result.interval = list(found.ratios), interval(found.ratios)


def _said(error: TfError, private: bool = False) -> str:
    return f"raises code {error.code}{_quoted(str(error), private)}"


def not_timed(error: TfError, private: bool = False) -> str:
    """The note about a shape at which the original raises as users run it."""
    return f"not timed: TensorFlow itself {_said(error, private)}"


@dataclasses.dataclass(frozen=True)
class Timing:
    """Milliseconds of one side at one shape (cold: first run at that shape) and peak megabytes above the bare process so far."""

    cold: float
    median: float
    p99: float
    peak_mb: float


@dataclasses.dataclass(frozen=True)
class BenchRow:
    """Both sides at one shape. ``ratios``: how many times faster the optimised graph was in each round; ``warmup``: runs of each side until
    its time was stable."""

    dims: Mapping[str, int]
    original: Timing
    optimized: Timing
    ratios: tuple[float, ...] = ()
    warmup: tuple[int, int] = (0, 0)

    @property
    def ratio(self) -> float:
        """How many times faster the optimised graph is."""
        return self.original.median / self.optimized.median

    def to_dict(self) -> dict[str, Any]:
        low, high = interval(self.ratios) or (None, None)
        return {**dataclasses.asdict(self), "ratio": self.ratio, "low": low, "high": high}


def bench_graphs(
    original: str | Path,
    optimized: str | Path,
    specs: Sequence[InputSpec],
    outputs: Sequence[str],
    sizes: Sequence[Mapping[str, int]],
    *,
    threads: int = 0,
    rounds: int = 7,
    progress: Callable[[BenchRow], None] | None = None,
    skipped: Callable[[Mapping[str, int], str], None] | None = None,
) -> list[BenchRow]:
    """Time both graphs in TensorFlow as users run it, in interleaved rounds on the same threads.

    ``skipped`` is told of the shapes at which the original raises, and why: they have no row (without it, `TfError`). `OptimizedRaised` if
    only the optimised graph raises.
    """
    names = [f"{s.name}:0" for s in specs]
    with contextlib.ExitStack() as stack:
        sides = [
            stack.enter_context(TfProcess(original, names, outputs, threads=threads)),
            stack.enter_context(TfProcess(optimized, names, outputs, ops=True, threads=threads)),
        ]
        return bench_sides(sides, specs, sizes, rounds=rounds, progress=progress, skipped=skipped)


def bench_sides(
    sides: Sequence[Side],
    specs: Sequence[InputSpec],
    sizes: Sequence[Mapping[str, int]],
    *,
    rounds: int = 7,
    progress: Callable[[BenchRow], None] | None = None,
    skipped: Callable[[Mapping[str, int], str], None] | None = None,
) -> list[BenchRow]:
    """`bench_graphs` for two sides that are loaded."""
    rows = []
    for i, size in enumerate(sizes):
        feeds = make_feeds(specs, size, seed=i)
        try:
            first_run = sides[0].time(feeds, 1, 0)[0]
        except TfError as e:
            if skipped is None:
                raise
            skipped(size, not_timed(e))
            continue
        try:
            cold = [first_run, sides[1].time(feeds, 1, 0)[0]]
            runs = [functools.partial(side.time, feeds) for side in sides]
            warm = warm_up(runs[0]), warm_up(runs[1])
            once = [max(min(run(2, 0)), 1e-6) for run in runs]
            repeats = int(np.clip(0.05 / max(once), 2, 100))
            found = in_turn(runs, rounds, [repeats] * len(runs))
        except TfError as e:
            raise OptimizedRaised(f"at {dict(size)} TensorFlow succeeds; the optimised graph {_said(e)}") from e
        timings = []
        for side, first, seconds in zip(sides, cold, found, strict=True):
            peak = (side.memory()["peak"] - side.info["import_rss"]) / 1e6
            every = list(itertools.chain.from_iterable(seconds))
            timings.append(
                Timing(first * 1e3, float(np.median(every)) * 1e3, float(np.quantile(every, 0.99)) * 1e3, peak)
            )
        rows.append(BenchRow(dict(size), timings[0], timings[1], round_ratios(*found), warm))
        if progress is not None:
            progress(rows[-1])
    return rows
