"""The measurement behind the cost model runs, and the table is not far off what it finds."""

from __future__ import annotations

from bench.costs import chain, element_ps, handover, rates, weights
from disc_tf.codegen.cpu.target import target_named
from disc_tf.costs import WEIGHTS
from disc_tf.runtime.cpu import native_target

TARGET = target_named(native_target())


def test_weights_are_in_the_order_of_times() -> None:
    """What differs tenfold in the table differs on a busy machine too."""
    assert element_ps(chain(["digamma"], 1), TARGET, 4096, 5) > 2 * element_ps(chain(["exponential"], 1), TARGET, 4096, 5)
    found = rates(TARGET, 4096, 5)
    assert found.byte_ps > 0 and found.lane_ps >= 0


def test_every_elementwise_weight_is_measured() -> None:
    names = [name for name, found, table in weights(TARGET, 256, 1) if found > 0 and table == WEIGHTS[name]]
    assert len(names) == len(WEIGHTS) - 6


def test_hand_overs_are_measured() -> None:
    ((size, one, two),) = handover(TARGET, [1 << 15], 0.05)
    assert size == 1 << 15 and one > 0 and two > 0
