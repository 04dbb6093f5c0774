"""The arena plan: tenants of a slot never live together, slots are large enough at every shape, equal layers share memory."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from disc_tf.buffers.memory_plan import buffer_epoch, plan_memory
from disc_tf.buffers.types import Buffer, MemoryPlan
from disc_tf.ir.dims import Dim, dmax, parse_dim, sym
from disc_tf.ir.shape_env import ShapeEnv

B, S, N = sym("a0d0"), sym("a0d1"), sym("n0")
SIZES = [Dim.of(64), B * 4, S * 4, B * S * 4, B * S * 3072, B * S * 768 * 4, B * S * S * 48, N * 8, dmax(S, 2) * 4, Dim.of(0)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(SIZES), st.integers(0, 20), st.integers(0, 6)), min_size=1, max_size=24),
    st.dictionaries(st.sampled_from(["a0d0", "a0d1", "n0"]), st.integers(0, 40), min_size=3),
)
def test_tenants_never_overlap_and_fit(items: list[tuple[Dim, int, int]], values: dict[str, int]) -> None:
    buffers = [Buffer("arena", i, size) for i, (size, _, _) in enumerate(items)]
    live = {b: (start, start + length) for b, (_, start, length) in zip(buffers, items, strict=True)}
    plan = plan_memory(buffers, live, ShapeEnv(), {"n0": 1})
    for i, x in enumerate(buffers):
        slot = plan.slot_of[x]
        assert plan.slots[slot].evaluate(values) >= x.bytes.evaluate(values)
        assert plan.epochs[slot] == buffer_epoch(x.bytes, {"n0": 1})
        for y in buffers[i + 1 :]:
            together = live[x][0] <= live[y][1] and live[y][0] <= live[x][1]
            assert not (together and plan.slot_of[y] == slot)


def test_a_chain_of_layers_needs_two_slots() -> None:
    """Layer k reads k - 1 and writes k: two slots whatever the depth."""
    buffers = [Buffer("arena", i, B * S * 3072) for i in range(100)]
    live = {b: (i, i + 1) for i, b in enumerate(buffers)}
    plan = plan_memory(buffers, live, ShapeEnv(), {})
    assert plan.total == str(B * S * 6144)


def test_the_sum_of_many_sizes_is_text_however_long() -> None:
    slots = [(B + i) * (S // (i + 2)) * 4 for i in range(60)]
    text = MemoryPlan(slots, [0] * 60, {}).total
    total = sum(parse_dim(part).evaluate({"a0d0": 3, "a0d1": 50}) for part in text.split(" + "))
    assert total == sum(s.evaluate({"a0d0": 3, "a0d1": 50}) for s in slots)


def test_a_smaller_buffer_reuses_a_larger_slot() -> None:
    big, small = Buffer("arena", 0, B * S * 3072), Buffer("arena", 1, B * S * 768)
    plan = plan_memory([big, small], {big: (0, 1), small: (2, 3)}, ShapeEnv(), {})
    assert plan.slots == [B * S * 3072]
    plan = plan_memory([big, small], {small: (0, 1), big: (2, 3)}, ShapeEnv(), {})
    assert plan.slots == [B * S * 3072]  # the slot grows


def test_what_cannot_be_compared_is_kept_apart() -> None:
    x, y = Buffer("arena", 0, B * 4), Buffer("arena", 1, S * 4)
    plan = plan_memory([x, y], {x: (0, 1), y: (2, 3)}, ShapeEnv(), {})
    assert plan.slots == [B * 4, S * 4]
