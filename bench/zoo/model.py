"""What the table needs to know of a model. Nothing here imports TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Sizes = Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of a model: Keras's name of it, the dims (names are dynamic) and how to make values (as in ``bench/models/*.json``)."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]
    gen: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"kind": "normal"})


@dataclasses.dataclass(frozen=True)
class Model:
    """build: makes the Keras model (in the process that freezes it), or None for a graph file.

    points: sizes that are timed and checked; odd: checked only. ranges: extents that random checks draw from, by dim name (inclusive).
    """

    name: str
    family: str
    config: str
    build: Callable[[], Any] | None
    inputs: tuple[Input, ...] = ()
    points: tuple[Sizes, ...] = ()
    odd: tuple[Sizes, ...] = ()
    ranges: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)


def sizes(names: str, *rows: Sequence[int]) -> tuple[Sizes, ...]:
    """``sizes("B S", (1, 7), ...)``: one mapping a row."""
    keys = names.split()
    return tuple(dict(zip(keys, row, strict=True)) for row in rows)


def catalogue() -> dict[str, Model]:
    """All models by name, in the order of the table."""
    from bench.zoo import files, text, vision

    models = [*vision.models(), *text.models(), *files.models()]
    return {m.name: m for m in models}
