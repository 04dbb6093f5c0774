"""Early results first."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.compiler import compile_module
from disc_tf.fusion.cluster_graph import ClusterGraph
from disc_tf.fusion.early import ranks
from disc_tf.ir.builder import new_function
from disc_tf.ir.core import Module
from disc_tf.ir.types import DType
from disc_tf.runtime.executable import DiscError
from disc_tf.testing.native_case import TARGETS, load

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


def test_what_may_fail_keeps_its_order() -> None:
    """4 is early and fails after 2 in the program: 2 comes first."""
    graph = ClusterGraph(5, EDGES)
    assert ranks(graph, [3, 4], lambda c: 50.0 if c == 3 else 1.0, [2, 4]) == {0: 0, 1: 0, 2: 0, 4: 0}
    assert ranks(graph, [3, 4], lambda _c: 1.0, [4, 2]) == {0: 0, 1: 0, 4: 0}


def test_checks_fail_in_the_order_of_the_program() -> None:
    """Also where the last one takes less to compute than the results before it."""
    fn, b = new_function("main", {"x": (DType.F32, ["n", "m"])})
    (x,) = fn.params
    token = b.create_token()
    token = b.check(b.compare(b.dim("n", DType.I64), b.constant(0, DType.I64), "GT"), token, code=3, message="first", node="a")
    token = b.check(b.compare(b.dim("m", DType.I64), b.constant(0, DType.I64), "GT"), token, code=11, message="second", node="b")
    early = b.tanh(x)
    late = b.dot_general(early, b.transpose(early, [1, 0]), [1], [0])
    b.return_([early, late, token])
    module = Module()
    module.add(fn)
    with load(compile_module(module, [TARGETS[0]]).executable, TARGETS[0]) as executable:
        for shape, message in (((0, 0), "first"), ((0, 1), "first"), ((1, 0), "second")):
            with pytest.raises(DiscError, match=message):
                executable.run([np.zeros(shape, np.float32)])
        assert executable.run([np.zeros((2, 3), np.float32)])[1].shape == (2, 2)
