"""What bufferization decides: which memory holds each value.

A ``Buffer`` is one piece of memory; a ``Place`` is a value's position in it. Byte sizes and offsets are symbolic
(`Dim`), evaluated once per run by the host program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from disc_tf.fusion.types import Fusion
from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, DimTooComplex


@dataclasses.dataclass(eq=False)
class Buffer:
    """One piece of memory.

    kind: ``arg`` (index: parameter of the function), ``prepared`` (index: prepared entry), ``kept`` (index: number of a value that
    an earlier segment made), ``output`` (index: result),
    ``arena`` (a slot of the run's arena) or ``constant`` (bytes inside the code image; ``content`` has them).
    """

    kind: str
    index: int
    bytes: Dim
    content: np.ndarray | None = None

    def __repr__(self) -> str:
        return f"<{self.kind}{self.index} {self.bytes}B>"


@dataclasses.dataclass(frozen=True)
class Place:
    """A value starts ``offset`` bytes into ``buffer``."""

    buffer: Buffer
    offset: Dim = dataclasses.field(default_factory=lambda: Dim.of(0))


@dataclasses.dataclass(frozen=True)
class OutputPlan:
    """How result ``index`` leaves: ``direct`` (kernels write into it), ``alias`` (it is parameter ``arg``, never copied) or
    ``copy`` (bytes are copied from ``source``: constants, prepared values, repeated results, inner views)."""

    index: int
    how: str
    value: Value
    arg: int = -1
    source: Place | None = None


class TempLike(Protocol):
    """Memory that lives only between the kernels of one step."""

    @property
    def bytes(self) -> Dim: ...


@dataclasses.dataclass
class Step:
    """One fusion in program order with the temporaries that its kernels share."""

    fusion: Fusion
    temps: Sequence[TempLike] = ()


@dataclasses.dataclass
class MemoryPlan:
    """The arena: ``slots[k]`` bytes for slot k, allocated in epoch ``epochs[k]`` (an epoch ends where a data-dependent dim is bound).
    ``slot_of`` maps an arena buffer to its slot, ``live`` to its first and last step. ``total`` is the arena formula as text, without the
    rounding to 64 bytes a slot."""

    slots: list[Dim]
    epochs: list[int]
    slot_of: dict[Buffer, int]
    live: dict[Buffer, tuple[int, int]] = dataclasses.field(default_factory=dict)

    @property
    def total(self) -> str:
        """A sum; of several sums where one would be too long an expression."""
        parts = [Dim.of(0)]
        for s in self.slots:
            try:
                parts[-1] = parts[-1] + s
            except DimTooComplex:
                parts.append(s)
        return " + ".join(map(str, parts))


@dataclasses.dataclass
class Buffers:
    """The result of bufferization for one function body."""

    places: dict[Value, Place]
    temps: dict[int, list[Buffer]]  # step index -> arena buffers of its temps
    outputs: list[OutputPlan]
    constants: list[Buffer]
    memory: MemoryPlan
