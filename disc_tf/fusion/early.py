"""Results that take little of the work come first: somebody may wait for them (see `runtime.Job`, `disc-tf serve`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from disc_tf.fusion.cluster_graph import ClusterGraph

#: a result is early if it takes less than this share of all work
_EARLY = 0.75


def ranks(
    graph: ClusterGraph, results: Iterable[int], work: Callable[[int], float], effects: Sequence[int] = ()
) -> dict[int, int]:
    """Cluster -> its place in the queue, for the clusters that early results need; all others come after these.

    ``results``: the clusters that make the function's results. ``work``: of a cluster. ``effects``: those that may fail the run, in the
    order of the program, which they keep: one that is early brings those before it with it. Empty if no result is early.
    """
    made = list(dict.fromkeys(results))
    if len(made) < 2:
        return {}
    order = graph.clusters()
    place = {c: i for i, c in enumerate(order)}
    before = {later: earlier for earlier, later in pairwise(effects)}
    needs: list[int] = []  # bit i of the mask: cluster i of the order is needed
    for i, c in enumerate(order):
        mask = 1 << i
        for p in (*graph.predecessors(c), *([before[c]] if c in before else ())):
            if place[p] < i:
                mask |= needs[place[p]]
        needs.append(mask)
    effort = [work(c) for c in order]
    of = {c: sum(effort[i] for i in _members(needs[place[c]])) for c in made}
    limit = _EARLY * sum(effort)
    found: dict[int, int] = {}
    placed = 0
    for rank, c in enumerate(sorted((c for c in made if of[c] < limit), key=lambda c: (of[c], place[c]))):
        found.update((order[i], rank) for i in _members(needs[place[c]] & ~placed))
        placed |= needs[place[c]]
    return found


def _members(mask: int) -> Iterator[int]:
    """The bits that are set, ascending. By its digits: shifting out each bit would copy a long mask as often as it has bits."""
    return (i for i, digit in enumerate(reversed(format(mask, "b"))) if digit == "1")
