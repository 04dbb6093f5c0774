"""Random loops that write to a list at one of several counters, while the condition bounds some of them: as TensorFlow, or refused.

A store that is too small shows as wrong rows, one that is too large as memory that TensorFlow does not need.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disc_tf.testing.graph_case import case, check_graph, spec
from disc_tf.testing.tf_case import tensorflow

TARGET = ["x86-64-v3"]


def random_loop(rng: np.random.Generator) -> Any:
    """A function of rows and a number. At least one counter of the condition rises."""
    tf = tensorflow()
    counters = int(rng.integers(1, 4))
    starts = [rng.choice([0, 0, 1, 5, "k"]) for _ in range(counters)]
    steps = [int(rng.choice([1, 1, 2, 3])), *(int(rng.choice([1, 2, 4, 0, -1])) for _ in range(counters - 1))]
    limits = [(i, rng.choice(["k", "rows", "7"]), bool(rng.integers(2))) for i in range(counters) if i == 0 or rng.integers(2)]
    early = bool(rng.integers(3) == 0)
    at, pushes = int(rng.integers(counters)), bool(rng.integers(4) == 0)
    steps[at] = abs(steps[at])  # TensorFlow crashes at negative numbers of elements

    def fn(v: Any, k: Any) -> Any:
        def number(text: str) -> Any:
            return {"k": k, "rows": tf.shape(v)[0]}[text] if text in ("k", "rows") else tf.constant(int(text))

        def go_on(*state: Any) -> Any:
            terms = [state[i] <= number(n) if inclusive else state[i] < number(n) for i, n, inclusive in limits]
            terms += [tf.cast(state[0], tf.float32) < v[0]] if early else []
            rest = terms[0]
            for t in terms[1:]:
                rest = tf.logical_and(rest, t)
            return rest

        def body(*state: Any) -> Any:
            *now, array = state
            row = v * (tf.cast(now[at], tf.float32) + 2.0)
            array = array.write(array.size(), row) if pushes else array.write(now[at], row)
            return (*(c + steps[i] for i, c in enumerate(now)), array)

        array = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[None], clear_after_read=False)
        return tf.while_loop(go_on, body, (*map(number, starts), array))[-1].stack()

    return fn


def run(seed: int) -> bool:
    """Whether the loop is compiled."""
    fn = random_loop(np.random.default_rng(seed))
    try:
        c = case(fn, spec("float32", None), spec("int32"))
    except AssertionError as refused:
        assert "[SHAPE]" in str(refused), refused
        return False
    rows = np.array([3.0, -1.0, 0.5, 2.0], np.float32)
    check_graph(c, [[rows[:n], np.array(k, np.int32)] for n, k in ((4, 3), (1, 9), (2, 0), (3, 1))], TARGET)
    return True


@pytest.mark.parametrize("seed", range(10))
def test_random_loops(seed):
    run(seed)


@pytest.mark.slow
def test_more_random_loops():
    assert sum(run(seed) for seed in range(10, 60)) > 20
