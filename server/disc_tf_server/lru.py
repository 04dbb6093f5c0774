"""A cache in memory, bounded by bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """Keeps values of together at most ``limit`` bytes; what was used least lately goes first. What is larger alone is not kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: K) -> V | None:
        """The value, which counts as used now."""
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keeps a value of ``size`` bytes."""
        self.pop(key)
        if size > self._limit:
            return
        self._items[key] = (value, size)
        self.bytes += size
        while self.bytes > self._limit:
            _, (_, gone) = self._items.popitem(last=False)
            self.bytes -= gone

    def pop(self, key: K) -> None:
        """Forgets a value."""
        item = self._items.pop(key, None)
        if item is not None:
            self.bytes -= item[1]
