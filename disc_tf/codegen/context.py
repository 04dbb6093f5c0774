"""What emitters know besides the fusion: the target, the shape environment, and the table of prepared constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from disc_tf.codegen.cpu.target import CpuTarget
from disc_tf.fusion.types import PrepareEntry
from disc_tf.fusion.views import View
from disc_tf.ir.core import Value
from disc_tf.ir.shape_env import ShapeEnv


class PrepareTable:
    """The prepared entries of one executable and target, shared by its bodies. Parameters of different bodies at the same
    position are the same constant."""

    def __init__(self) -> None:
        self.entries: list[PrepareEntry] = []
        self.params: list[int] = []  # entry -> parameter position of its source
        self._index: dict[tuple, int] = {}

    def entry(self, param: int, view: View, layout: tuple) -> PrepareEntry:
        key = (param, view.offset, view.axes, layout)
        if key not in self._index:
            self._index[key] = len(self.entries)
            self.entries.append(PrepareEntry(len(self.entries), view, layout))
            self.params.append(param)
        return self.entries[self._index[key]]


@dataclasses.dataclass
class EmitContext:
    """Given to every emitter. ``params`` maps the parameters of the function being compiled to their positions."""

    target: CpuTarget
    env: ShapeEnv
    params: Mapping[Value, int]
    prepare: PrepareTable = dataclasses.field(default_factory=PrepareTable)

    def prepared(self, view: View, layout: tuple) -> PrepareEntry:
        """Ask for a prepared constant: ``view.source`` is a const, variable or prepared parameter. The entry goes into
        ``Kernel.buffers`` where the kernel wants its address. Equal requests give the same entry."""
        if view.source is None or view.source not in self.params:
            raise ValueError(f"{view} is not a view of a parameter: it cannot be prepared")
        return self.prepare.entry(self.params[view.source], view, layout)
