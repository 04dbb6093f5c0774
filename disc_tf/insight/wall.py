"""Where the wall time of runs went: every moment has one owner, so that the rows are all of it."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence

from disc_tf.frontend.rewrite import LAUNCH_OP
from disc_tf.insight.chrome_trace import TfSlice
from disc_tf.runtime.recording import Event

#: rows that are not a cluster or a TensorFlow op
ENTERING = f"TensorFlow around the clusters ({LAUNCH_OP}: inputs, outputs)"
OUTSIDE = "TensorFlow outside of its nodes (session, scheduling, copies, recording)"
CALLER = "the caller (Python: names, arrays)"


@dataclasses.dataclass(frozen=True)
class Span:
    """Something that went on; of several at a time the one with the smallest ``rank`` owns the moment."""

    label: str
    kind: str
    rank: int
    begin_ns: int
    end_ns: int


@dataclasses.dataclass(frozen=True)
class WallRow:
    """``kind``: cluster, launch, tensorflow, outside or caller. ``us``: of a run, the mean."""

    name: str
    kind: str
    us: float


def wall_rows(windows: Sequence[tuple[int, int]], events: Iterable[Event], nodes: Iterable[TfSlice], *, tensorflow: bool) -> list[WallRow]:
    """Where the time of ``windows`` (begin and end of each run, as its caller saw it) went, longest first. A moment is a cluster's if one
    runs (shared equally if several do), else that of TensorFlow's node that runs, else of neither: a row of its own."""
    spans = [Span(e.executable, "cluster", 0, e.begin_ns, e.end_ns) for e in events if e.kind == "run"]
    for n in nodes:
        launch = n.op == LAUNCH_OP
        label, kind = (ENTERING, "launch") if launch else (f"TensorFlow: {n.op or 'other nodes'}", "tensorflow")
        spans.append(Span(label, kind, 1 if launch else 2, n.begin_ns, n.end_ns))
    spans.sort(key=lambda s: s.begin_ns)
    rest = (OUTSIDE, "outside") if tensorflow else (CALLER, "caller")
    spent: dict[tuple[str, str], float] = defaultdict(float)
    for begin, end in windows:
        for owner, ns in _owners(begin, end, [s for s in spans if s.begin_ns < end and s.end_ns > begin], rest):
            spent[owner] += ns
    rows = [WallRow(label, kind, ns / 1e3 / len(windows)) for (label, kind), ns in spent.items()]
    return sorted(rows, key=lambda r: -r.us)


def _owners(begin: int, end: int, spans: Sequence[Span], rest: tuple[str, str]) -> Iterable[tuple[tuple[str, str], float]]:
    """(label and kind, nanoseconds) of the parts of one window, in which nothing begins or ends."""
    changes: list[tuple[int, int, Span]] = []
    for s in spans:
        changes += [(max(s.begin_ns, begin), 1, s), (min(s.end_ns, end), -1, s)]
    active: dict[int, dict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
    at = begin
    for when, step, span in sorted(changes, key=lambda c: c[0]):
        if when > at:
            yield from _split(when - at, active, rest)
            at = when
        active[span.rank][span.label, span.kind] += step
    if end > at:
        yield from _split(end - at, active, rest)


def _split(ns: int, active: dict[int, dict[tuple[str, str], int]], rest: tuple[str, str]) -> Iterable[tuple[tuple[str, str], float]]:
    for rank in sorted(active):
        if owners := [owner for owner, count in active[rank].items() if count > 0]:
            return [(owner, ns / len(owners)) for owner in owners]
    return [(rest, float(ns))]


__all__ = ["CALLER", "ENTERING", "OUTSIDE", "WallRow", "wall_rows"]
