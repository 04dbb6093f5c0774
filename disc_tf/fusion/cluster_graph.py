"""A DAG of clusters that are merged two at a time and stay acyclic (Pearce-Kelly order maintenance).

The order of every pair of unrelated clusters may change; the order of related ones never does. A merge looks only at clusters
between the two in the current order, so a program of many thousand ops with local fusion costs near-linear time.
"""

from __future__ import annotations

from collections.abc import Iterable


class ClusterGraph:
    """Nodes are ``0 .. n-1`` in a topological order to begin with; ``edges`` go from lower to higher numbers."""

    def __init__(self, n: int, edges: Iterable[tuple[int, int]], budget: int = 4096) -> None:
        self._parent = list(range(n))
        self._succ: list[set[int]] = [set() for _ in range(n)]
        self._pred: list[set[int]] = [set() for _ in range(n)]
        self._order = list(range(n))  # position; positions are distinct among live clusters
        self._members: list[list[int]] = [[i] for i in range(n)]
        self._budget = budget
        for a, b in edges:
            if a >= b:
                raise ValueError(f"edge {a} -> {b} goes back")
            self._succ[a].add(b)
            self._pred[b].add(a)

    def find(self, x: int) -> int:
        """The cluster (a representative node) that holds node ``x``."""
        parent = self._parent
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    def members(self, x: int) -> list[int]:
        """The nodes of ``x``'s cluster, ascending."""
        return sorted(self._members[self.find(x)])

    def successors(self, x: int) -> set[int]:
        return self._resolve(self._succ, self.find(x))

    def predecessors(self, x: int) -> set[int]:
        return self._resolve(self._pred, self.find(x))

    def clusters(self) -> list[int]:
        """Representatives of all clusters in a topological order."""
        roots = [i for i in range(len(self._parent)) if self._parent[i] == i]
        return sorted(roots, key=self._order.__getitem__)

    def position(self, x: int) -> int:
        return self._order[self.find(x)]

    def _resolve(self, table: list[set[int]], c: int) -> set[int]:
        found = {self.find(x) for x in table[c]}
        found.discard(c)
        table[c] = found
        return found

    def try_merge(self, a: int, b: int, unbounded: bool = False) -> bool:
        """Make one cluster of ``a``'s and ``b``'s; False (and no change) if that would close a cycle or cost too much."""
        budget = len(self._parent) if unbounded else self._budget
        a, b = self.find(a), self.find(b)
        if a == b:
            return True
        if self._order[a] > self._order[b]:
            a, b = b, a
        low, high = self._order[a], self._order[b]
        forward = self._reach(a, self._succ, lambda o: o < high, forbidden=b, budget=budget)
        if forward is None:
            return False
        backward = self._reach(b, self._pred, lambda o: o > low, forbidden=a, budget=budget)
        if backward is None:
            return False
        by_order = self._order.__getitem__
        slots = sorted([low, high, *map(by_order, forward), *map(by_order, backward)])
        sequence = [*sorted(backward, key=by_order), a, *sorted(forward, key=by_order)]
        for c, slot in zip(sequence, slots, strict=False):  # one slot stays free
            self._order[c] = slot
        self._union(a, b)
        return True

    def _reach(self, start: int, table: list[set[int]], inside, forbidden: int, budget: int) -> list[int] | None:
        """Clusters reached from ``start`` within the window; None if a path of two or more edges ends at ``forbidden``."""
        seen: set[int] = set()
        stack = [c for c in self._resolve(table, start) if c != forbidden and inside(self._order[c])]
        seen.update(stack)
        while stack:
            if len(seen) > budget:
                return None
            c = stack.pop()
            for n in self._resolve(table, c):
                if n == forbidden:
                    return None
                if n not in seen and inside(self._order[n]):
                    seen.add(n)
                    stack.append(n)
        return list(seen)

    def _union(self, a: int, b: int) -> None:
        order = self._order[a]
        if len(self._members[a]) < len(self._members[b]):
            a, b = b, a
        self._parent[b] = a
        self._order[a] = order
        self._members[a].extend(self._members[b])
        self._members[b] = []
        for table in (self._succ, self._pred):
            if len(table[a]) < len(table[b]):
                table[a], table[b] = table[b], table[a]
            table[a] |= table[b]
            table[b] = set()
            table[a].discard(a)
            table[a].discard(b)
