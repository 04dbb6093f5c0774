"""Early results first."""

from __future__ import annotations

import pytest

from disc_tf.fusion.cluster_graph import ClusterGraph
from disc_tf.fusion.early import ranks

#: 0 -> 1 -> 2 -> 3 and 1 -> 4: two results of a chain, an early exit
EDGES = [(0, 1), (1, 2), (2, 3), (1, 4)]
CASES: dict[str, tuple[list[int], dict[int, float], dict[int, int]]] = {
    "an early exit": ([3, 4], {}, {0: 0, 1: 0, 4: 0}),
    "one result": ([3], {}, {}),
    "one result twice": ([3, 3], {}, {}),
    "an exit after most of the work": ([3, 4], {1: 100.0}, {}),
    "two exits": ([3, 4, 1], {3: 9.0}, {0: 0, 1: 0, 4: 1}),
    "no work": ([3, 4], dict.fromkeys(range(5), 0.0), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_early_results_need_comes_first(name: str) -> None:
    results, work, expected = CASES[name]
    assert ranks(ClusterGraph(5, EDGES), results, lambda c: work.get(c, 1.0)) == expected
