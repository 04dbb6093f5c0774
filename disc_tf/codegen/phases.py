"""Which phase of the compiler an internal error comes from, and on which fusion."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from disc_tf.budget import OutOfTime
from disc_tf.ir.core import Op


class ProgramError(RuntimeError):
    """The cluster cannot become an executable; the message says why."""


class PhaseFailed(Exception):
    """An internal error; its cause is the exception itself. ``ops``: those of the fusion that it is about, if any is known."""

    def __init__(self, phase: str, ops: Sequence[Op] = ()) -> None:
        super().__init__(phase)
        self.phase = phase
        self.ops = tuple(ops)

    @property
    def error(self) -> BaseException:
        assert self.__cause__ is not None
        return self.__cause__


@contextlib.contextmanager
def phase(name: str, ops: Sequence[Op] = ()) -> Iterator[None]:
    """Inside, any exception that is not a refusal becomes a `PhaseFailed`."""
    try:
        yield
    except (PhaseFailed, ProgramError, OutOfTime):
        raise
    except Exception as e:
        raise PhaseFailed(name, ops) from e
