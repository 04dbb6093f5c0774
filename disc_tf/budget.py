"""A time budget for one cluster: long work asks at its natural joints whether there is time left."""

from __future__ import annotations

import dataclasses
import time


class OutOfTime(RuntimeError):
    """The budget is used up; the message says in which phase."""


@dataclasses.dataclass
class Budget:
    """``seconds`` of wall time from the making of the object; 0: no limit."""

    seconds: float = 0
    start: float = dataclasses.field(default_factory=lambda: time.monotonic())

    def left(self) -> float | None:
        """Seconds left, 0 if used up; None without a limit."""
        if not self.seconds:
            return None
        return max(self.start + self.seconds - time.monotonic(), 0)

    def check(self, phase: str) -> None:
        """Raises `OutOfTime` if nothing is left."""
        if self.left() == 0:
            raise OutOfTime(
                f"compiling took more than the time budget of {self.seconds:g} s (in {phase}): give more with time_budget"
            )
