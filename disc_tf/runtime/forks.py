"""Objects whose locks are made anew in a forked process: of the parent's threads only the one that forked is there."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """Hashable by identity."""

    def reset_locks(self) -> None:
        """In a forked process no lock is held by a thread that is there."""
        ...


_alive: weakref.WeakSet[Forked] = weakref.WeakSet()


def reset_when_forked(one: Forked) -> None:
    """From now on ``one.reset_locks()`` is called in each forked process, as long as there is ``one``."""
    _alive.add(one)


def _in_forked_child() -> None:
    for one in list(_alive):
        one.reset_locks()


os.register_at_fork(after_in_child=_in_forked_child)
