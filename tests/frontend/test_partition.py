"""The partitioner on bare graphs: no cycles, near-linear, late inputs."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disc_tf.frontend.partition import Item, partition


def contracted_is_acyclic(items: list[Item], groups: list[list[int]]) -> bool:
    owner = {i: f"g{k}" for k, group in enumerate(groups) for i in group}
    edges: dict[object, set[object]] = {}
    for i, item in enumerate(items):
        for p in item.preds:
            a, b = owner.get(p, p), owner.get(i, i)
            if a != b:
                edges.setdefault(a, set()).add(b)
    waiting: dict[object, int] = {}
    nodes = {owner.get(i, i) for i in range(len(items))}
    for targets in edges.values():
        for t in targets:
            waiting[t] = waiting.get(t, 0) + 1
    ready = [n for n in nodes if not waiting.get(n)]
    done = 0
    while ready:
        n = ready.pop()
        done += 1
        for t in edges.get(n, ()):
            waiting[t] -= 1
            if not waiting[t]:
                ready.append(t)
    return done == len(nodes)


@st.composite
def graphs(draw):
    n = draw(st.integers(1, 40))
    items = []
    for i in range(n):
        preds = draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True)) if i else []
        compiled = draw(st.booleans())
        items.append(
            Item(
                preds,
                compiled,
                source=not compiled and not preds and draw(st.booleans()),
                slow=not compiled and draw(st.booleans()),
                heavy=compiled and draw(st.booleans()),
                place=draw(st.sampled_from(["", "", "a"])),
                pinned=draw(st.booleans()),
            )
        )
    return items


@settings(max_examples=400, deadline=None)
@given(graphs())
def test_contraction_makes_no_cycle(items):
    groups = partition(items)
    assert sorted(i for g in groups for i in g) == [i for i, item in enumerate(items) if item.compiled]
    assert contracted_is_acyclic(items, groups)
    assert all(len({items[i].place for i in g}) == 1 for g in groups)
    assert groups == partition(items)


@settings(max_examples=200, deadline=None)
@given(graphs())
def test_late_work_never_holds_back_early_work(items):
    """Work in a group does not wait for a slow op that it did not wait for before."""
    before: list[set[int]] = []
    for i, item in enumerate(items):
        found = {i} if item.slow and not item.compiled else set()
        for p in item.preds:
            found |= before[p]
        before.append(found)
    for group in partition(items):
        waits = set().union(*(before[i] for i in group))
        for i in group:
            if items[i].heavy:
                # it waits already, or everything in the group that waits for more is reached from it only with light work
                assert before[i] == waits or not any(
                    items[j].heavy and before[j] != before[i] and before[j] <= before[i] for j in group
                ), (group, i)


APART = {
    # 1 also feeds a slow op, and what reads it by way of 2 waits for others
    "by way of light work": (
        [
            *(Item([]), Item([], True, heavy=True), Item([0, 1], True), Item([], slow=True), Item([], slow=True), Item([1], slow=True)),
            *(Item([4, 2], True), Item([3, 2], True, heavy=True)),
        ],
        (1, 7),
    ),
    # 3 and 4 read one light node, and 4 waits for one more slow op
    "siblings": (
        [*(Item([], slow=True), Item([], slow=True), Item([], True), Item([0, 2], True, heavy=True), Item([0, 1, 2], True, heavy=True))],
        (3, 4),
    ),
}


@pytest.mark.parametrize("name", APART)
def test_heavy_work_does_not_wait_for_what_only_other_work_waits_for(name):
    items, (first, second) = APART[name]
    groups = partition(items)
    assert contracted_is_acyclic(items, groups)
    assert next(g for g in groups if first in g) != next(g for g in groups if second in g)


def test_everything_compiled_is_one_group():
    items = [Item([], source=True)] + [Item([i], True) for i in range(10)]
    assert partition(items) == [list(range(1, 11))]


def test_a_node_in_the_middle_splits():
    items = [Item([], source=True), Item([0], True), Item([1]), Item([1, 2], True)]
    assert partition(items) == [[1], [3]]


def test_a_side_branch_does_not_split():
    items = [Item([], source=True), Item([0], True), Item([1]), Item([1], True)]
    assert partition(items) == [[1, 3]]


def test_early_light_work_joins_its_late_reader():
    items = [Item([], source=True), Item([0], True), Item([0]), Item([1, 2], True)]
    assert partition(items) == [[1, 3]]


def two_towers(slow: bool) -> list[Item]:
    return [
        Item([], source=True),
        Item([0], True, heavy=True),  # tower A
        Item([0], slow=slow),
        Item([2], True, heavy=True),  # tower B, late
        Item([1, 3], True),  # joins them
    ]


def test_two_towers_with_a_late_input_stay_apart():
    assert partition(two_towers(slow=True)) == [[1], [3, 4]]


def test_two_towers_without_a_late_input_are_one():
    assert partition(two_towers(slow=False)) == [[1, 3, 4]]


def test_an_output_that_a_slow_op_needs_early_is_not_held_back():
    items = [
        Item([], source=True),
        Item([0], True),  # feeds a slow op
        Item([1], slow=True),
        Item([1], True, heavy=True),  # a lot of work that the slow op does not need
    ]
    assert partition(items) == [[1], [3]]


def test_near_linear():
    """100,000 nodes with skip edges, every seventh not compiled: seconds."""
    items = [Item([], source=True)]
    for i in range(1, 100_000):
        items.append(Item(sorted({max(i - 1, 0), max(i - 13, 0)}), i % 7 != 0, heavy=i % 11 == 0, slow=i % 700 == 0))
    start = time.process_time()
    groups = partition(items)
    assert time.process_time() - start < 30
    assert contracted_is_acyclic(items, groups)
