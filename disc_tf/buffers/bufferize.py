"""Phase 3: give every materialised value a place in memory.

Views (``reshape`` and friends) share their operand's buffer. A result is written in place by the kernel that makes it where
that is possible; else it is aliased (it is an argument) or copied (docs: `OutputPlan`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from disc_tf.buffers.liveness import live_ranges
from disc_tf.buffers.memory_plan import plan_memory
from disc_tf.buffers.types import Buffer, Buffers, OutputPlan, Place, Step
from disc_tf.ir.core import Function, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import TensorType


def byte_size(v: Value) -> Dim:
    """Bytes of a value's dense row-major storage."""
    return v.tensor.num_elements() * v.dtype.bytes


def bufferize(
    fn: Function,
    steps: Sequence[Step],
    epoch_of_symbol: Mapping[str, int],
    prepared: Mapping[Value, int] | None = None,
    kept: Mapping[Value, int] | None = None,
) -> Buffers:
    """Assign places to all values that cross a step boundary.

    steps: the plan in order. epoch_of_symbol: for a symbol bound at run time, the number of bindings up to and
    including it; 0 or missing for argument dims. prepared: parameters that stand for prepared entries; kept: those that an earlier
    segment made, by number.
    """
    prepared, kept = prepared or {}, kept or {}
    places: dict[Value, Place] = {}
    constants: list[Buffer] = []
    for i, p in enumerate(fn.params):
        if isinstance(p.type, TensorType):
            if p in prepared:
                places[p] = Place(Buffer("prepared", prepared[p], byte_size(p)))
            elif p in kept:
                places[p] = Place(Buffer("kept", kept[p], byte_size(p)))
            else:
                places[p] = Place(Buffer("arg", i, byte_size(p)))

    arena: list[Buffer] = []

    def new_arena(size: Dim) -> Buffer:
        arena.append(Buffer("arena", len(arena), size))
        return arena[-1]

    def place_of(v: Value) -> Place:
        if v not in places:
            op = v.op
            if op is None or op.name != "constant":
                raise KeyError(f"no step makes {v!r} ({op.name if op else 'parameter'})")
            content = np.ascontiguousarray(op.attrs["value"])
            constants.append(Buffer("constant", len(constants), byte_size(v), content))
            places[v] = Place(constants[-1])
        return places[v]

    temps: dict[int, list[Buffer]] = {}
    for index, step in enumerate(steps):
        fusion = step.fusion
        for v in fusion.inputs:
            if isinstance(v.type, TensorType) and (v.op is None or v.op.name == "constant" or v in places):
                place_of(v)
        if fusion.kind == "constant":
            for v in fusion.outputs:
                place_of(v)
            continue
        if fusion.kind == "view":
            view = fusion.attrs["view"]
            src = place_of(view.source)
            for v in fusion.outputs:
                places[v] = Place(src.buffer, src.offset + view.offset * v.dtype.bytes)
            continue
        if fusion.kind == "update":  # the carried value that it changes
            places.update((v, place_of(fusion.ops[-1].operands[0])) for v in fusion.outputs)
            continue
        for v in fusion.outputs:
            if isinstance(v.type, TensorType) and v not in places:
                if v.op is not None and v.op.name == "constant":
                    place_of(v)
                else:
                    places[v] = Place(new_arena(byte_size(v)))
        if step.temps:
            temps[index] = [new_arena(t.bytes) for t in step.temps]

    outputs = _plan_outputs(fn, place_of)
    live = live_ranges(steps, places, temps, outputs)
    memory = plan_memory(arena, live, fn.env, epoch_of_symbol)
    return Buffers(places, temps, outputs, constants, memory)


def _plan_outputs(fn: Function, place_of) -> list[OutputPlan]:
    """Decide for each result; turns an arena buffer that is wholly one result into that output's buffer."""
    plans: list[OutputPlan] = []
    for index, v in enumerate(r for r in fn.results if isinstance(r.type, TensorType)):
        place = place_of(v)
        buffer = place.buffer
        whole = place.offset == Dim.of(0) and buffer.bytes == byte_size(v)
        if buffer.kind == "arena" and whole:
            buffer.kind, buffer.index = "output", index
            plans.append(OutputPlan(index, "direct", v))
        elif buffer.kind == "arg" and whole:
            plans.append(OutputPlan(index, "alias", v, arg=buffer.index))
        else:
            plans.append(OutputPlan(index, "copy", v, source=place))
    return plans
