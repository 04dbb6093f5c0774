"""Groups of compiled nodes that can be contracted to one node each without making a cycle, in near-linear time.

Every node gets a *level*: along an edge it never falls, and it rises where a path leaves compiled code (after a node that is not
compiled) or where two groups are to be kept apart. Nodes of one level can then be contracted in any grouping: a path that leaves
a group comes back to compiled code only at a higher level. Two refinements: a group whose readers are all later moves to the level
of the first of them (a few shape computations at the inputs join the cluster that needs them), and groups are kept apart where
joining them would delay one by a slow host op that only the other waits for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence


@dataclasses.dataclass
class Item:
    """A node as the partitioner sees it. ``preds``: indices of the nodes before it (data and effective control edges), all smaller.

    ``compiled``; ``source`` (free: a constant or input, there from the start); ``slow`` (a host op that takes long); ``heavy`` (work worth
    starting early: a contraction or convolution); ``place``: nodes of different places are never joined; ``pinned``: fetched.
    """

    preds: list[int]
    compiled: bool = False
    source: bool = False
    slow: bool = False
    heavy: bool = False
    place: str = ""
    pinned: bool = False


class UnionFind:
    """Disjoint sets of ints; the smallest member represents its set."""

    def __init__(self, n: int) -> None:
        self.parent = list(range(n))

    def find(self, i: int) -> int:
        parent = self.parent
        root = i
        while parent[root] != root:
            root = parent[root]
        while parent[i] != root:
            parent[i], i = root, parent[i]
        return root

    def union(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[max(a, b)] = min(a, b)


def partition(items: Sequence[Item]) -> list[list[int]]:
    """Groups of compiled items (each sorted, groups by first member) that can be contracted together without a cycle."""
    late, early = _lateness(items)
    split = _splits(items, late, early)
    level = _levels(items, split)
    groups = _components(items, level)
    level = _sink(items, level, groups, late, split)
    groups = _divide(items, _components(items, level), late)
    return _join(items, level, groups, late, early)


def _lateness(items: Sequence[Item]) -> tuple[list[int], list[int]]:
    """Bit sets of the slow ops before (late) and after (early) each item."""
    n = len(items)
    late, early = [0] * n, [0] * n
    slow = [i for i, item in enumerate(items) if item.slow and not item.compiled]
    if not slow:
        return late, early
    bit = {i: 1 << k for k, i in enumerate(slow)}
    for i, item in enumerate(items):
        mask = bit.get(i, 0)
        for p in item.preds:
            mask |= late[p]
        late[i] = mask
    for i in range(n - 1, -1, -1):
        mask = early[i] | bit.get(i, 0)
        for p in items[i].preds:
            early[p] |= mask
    return late, early


def _splits(items: Sequence[Item], late: list[int], early: list[int]) -> set[tuple[int, int]]:
    """Edges between compiled items along which a cluster must end."""
    found: set[tuple[int, int]] = set()
    edges = [(p, i) for i, item in enumerate(items) if item.compiled for p in item.preds if items[p].compiled]
    for p, i in edges:
        if items[p].place != items[i].place:
            found.add((p, i))
    if not any(late):
        return found
    same = UnionFind(len(items))
    for p, i in edges:
        if late[p] == late[i] and early[p] == early[i] and (p, i) not in found:
            same.union(p, i)
    heavy = {same.find(i) for i, item in enumerate(items) if item.compiled and item.heavy}
    for p, i in edges:
        # work before p could go on while i still waits; or what p gives to a slow op would wait for the work after i
        if (late[p] != late[i] and same.find(p) in heavy) or (early[p] != early[i] and same.find(i) in heavy):
            found.add((p, i))
    return found


def _levels(items: Sequence[Item], split: set[tuple[int, int]]) -> list[int]:
    level = [0] * len(items)
    for i, item in enumerate(items):
        if item.source:
            continue
        at = 1 if item.compiled else 0
        for p in item.preds:
            from_p = level[p]
            if item.compiled and not items[p].source and (not items[p].compiled or (p, i) in split):
                from_p += 1
            at = max(at, from_p)
        level[i] = at
    return level


def _components(items: Sequence[Item], level: list[int]) -> UnionFind:
    """Compiled items that are connected within one level."""
    groups = UnionFind(len(items))
    for i, item in enumerate(items):
        if item.compiled:
            for p in item.preds:
                if items[p].compiled and level[p] == level[i]:
                    groups.union(p, i)
    return groups


def _divide(items: Sequence[Item], groups: UnionFind, late: list[int]) -> UnionFind:
    """Groups in which heavy work would wait for slow ops that only other heavy work waits for, parted by what they wait for.

    That never shrinks along an edge, so parts of equal waits make no cycle.
    """
    waits: dict[int, set[int]] = {}
    for i, item in enumerate(items):
        if item.compiled and item.heavy:
            waits.setdefault(groups.find(i), set()).add(late[i])
    if all(len(masks) < 2 for masks in waits.values()):
        return groups
    parted = UnionFind(len(items))
    for i, item in enumerate(items):
        for p in item.preds if item.compiled else ():
            together = items[p].compiled and groups.find(p) == groups.find(i)
            if together and (late[p] == late[i] or len(waits.get(groups.find(i), ())) < 2):
                parted.union(p, i)
    return parted


def _members(items: Sequence[Item], groups: UnionFind) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for i, item in enumerate(items):
        if item.compiled:
            found.setdefault(groups.find(i), []).append(i)
    return found


def _sink(
    items: Sequence[Item], level: list[int], groups: UnionFind, late: list[int], split: set[tuple[int, int]]
) -> list[int]:
    """Move whole groups to a later level where that joins them with their readers and delays no heavy work."""
    users: list[list[int]] = [[] for _ in items]
    for i, item in enumerate(items):
        for p in item.preds:
            users[p].append(i)
    new = list(level)
    members = _members(items, groups)
    for root in sorted(members, key=lambda r: (-level[r], r)):
        group = members[root]
        inside = set(group)
        readers = [(i, u) for i in group for u in users[i] if u not in inside]
        if not readers:
            continue
        at = min(new[edge[1]] - (edge in split) for edge in readers)
        targets = [u for i, u in readers if items[u].compiled and new[u] == at and (i, u) not in split]
        if at <= level[root] or not targets:
            continue
        own = _mask(late, group)
        slow_target = any(late[u] & ~own for u in targets)
        if any(items[i].heavy or items[i].pinned for i in group) and slow_target:
            continue
        for i in group:
            new[i] = at
    return new


def _mask(masks: list[int], group: Iterable[int]) -> int:
    out = 0
    for i in group:
        out |= masks[i]
    return out


def _join(
    items: Sequence[Item], level: list[int], groups: UnionFind, late: list[int], early: list[int]
) -> list[list[int]]:
    """Independent groups of one level become one, unless slow ops make one of them start later or be needed earlier."""
    by_key: dict[tuple[int, int, int, str], list[int]] = {}
    for root, group in _members(items, groups).items():
        key = (level[root], _mask(late, group), _mask(early, group), items[root].place)
        by_key.setdefault(key, []).extend(group)
    return sorted((sorted(group) for group in by_key.values()), key=lambda g: g[0])
