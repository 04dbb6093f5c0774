"""Objects told apart by what they are, not by what they are equal to, and not kept alive."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class Identity:
    """An object as a key: equal to itself only, not kept alive."""

    __slots__ = ("id", "ref")

    def __init__(self, value: Any) -> None:
        self.ref = weakref.ref(value)
        self.id = id(value)

    def __hash__(self) -> int:
        return hash(self.id)

    def __eq__(self, other: object) -> bool:
        mine = self.ref()
        return isinstance(other, Identity) and mine is not None and mine is other.ref()

    def __repr__(self) -> str:
        return f"<{type(self.ref()).__name__}>"

    def get(self) -> Any:
        value = self.ref()
        if value is None:
            raise ReferenceError("an argument of this rank signature is gone")
        return value


class ByIdentity(Generic[V]):
    """A value for each object, forgotten with the object. TypeError for objects that cannot be referred to weakly.

    Without a lock: what a thread does here is one operation on a dict.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Any], V]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def get(self, owner: Any) -> V | None:
        found = self._found.get(id(owner))
        return found[1] if found is not None and found[0]() is owner else None

    def put(self, owner: Any, value: V) -> V:
        key, found = id(owner), self._found
        # called before the object's place, and so its id, is another's
        found[key] = weakref.ref(owner, lambda _: found.pop(key, None)), value
        return value
