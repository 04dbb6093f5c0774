"""The original's processes in a check of several candidates: kept from one to the next, and asked each question once."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from disc_tf.testing.tf_process import Child, Hosts, TfError, start_all

#: what belongs to the original
ROLES = ("reference", "user")


class Answers(Protocol):
    """What can be compared."""

    def run(self, feeds: Sequence[np.ndarray]) -> list[np.ndarray]: ...


@dataclasses.dataclass
class Recorded:
    """A side that runs the same feeds (the object) once; what it answered is then given again."""

    side: Answers
    #: by identity, with the feeds, so that no other object gets it
    _known: dict[int, tuple[Any, list[np.ndarray] | TfError]] = dataclasses.field(default_factory=dict)

    def run(self, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Raises `TfError` with TensorFlow's code."""
        if id(feeds) not in self._known:
            try:
                answer: list[np.ndarray] | TfError = self.side.run(feeds)
            except TfError as e:
                answer = e
            self._known[id(feeds)] = feeds, answer
        answer = self._known[id(feeds)][1]
        if isinstance(answer, TfError):
            raise answer
        return answer


class Originals(contextlib.ExitStack):
    """hosts: who forks the processes; own ones if None."""

    def __init__(self, hosts: Hosts | None) -> None:
        super().__init__()
        self.hosts = hosts if hosts is not None else self.enter_context(Hosts())
        self._kept: dict[str, Any] = {}

    def started(
        self, makers: Mapping[str, Callable[[], Child]], stack: contextlib.ExitStack, keep: Collection[str] = ROLES
    ) -> dict[str, Any]:
        """The processes by role, or what they ended with. Those of ``keep`` are there for the next call too, unless they end before;
        the others belong to ``stack``."""
        self._kept = {role: p for role, p in self._kept.items() if not p.dead}
        jobs = {role: (make, self if role in keep else stack) for role, make in makers.items() if role not in self._kept}
        found: dict[str, Any] = dict(zip(jobs, start_all(list(jobs.values())), strict=True))
        self._kept |= {role: p for role, p in found.items() if role in keep and not isinstance(p, Exception)}
        return {role: self._kept.get(role, found.get(role)) for role in makers}

    def forget(self) -> None:
        """Start anew next time: these processes have changed their state."""
        for process in self._kept.values():
            process.close()
        self._kept.clear()
