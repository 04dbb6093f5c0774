"""The symbolic memory plan: one arena whose slots are shared by buffers that never live together.

Greedy in order of definition. Sizes are symbolic, so a slot is reused where the shape environment *proves* that it is large enough (or
that it is smaller, and then the slot grows); where nothing can be proved the buffer gets a slot of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disc_tf.buffers.types import Buffer, MemoryPlan
from disc_tf.ir.dims import Dim
from disc_tf.ir.shape_env import ShapeEnv


def buffer_epoch(size: Dim, epoch_of_symbol: Mapping[str, int]) -> int:
    """The first epoch in which ``size`` can be evaluated."""
    return max((epoch_of_symbol.get(s, 0) for s in size.symbols()), default=0)


def plan_memory(
    arena: Sequence[Buffer],
    live: Mapping[Buffer, tuple[int, int]],
    env: ShapeEnv,
    epoch_of_symbol: Mapping[str, int],
) -> MemoryPlan:
    """Slots for the buffers of kind ``arena`` that are live at all."""
    slots: list[Dim] = []
    epochs: list[int] = []
    free_at: list[int] = []  # slot -> last step of its latest tenant
    slot_of: dict[Buffer, int] = {}
    order = sorted((b for b in arena if b.kind == "arena" and b in live), key=lambda b: (live[b][0], b.index))
    not_less: dict[tuple[Dim, Dim], bool] = {}

    def at_least(a: Dim, b: Dim) -> bool:
        key = (a, b)
        if key not in not_less:
            not_less[key] = a == b or env.is_nonneg(a - b) is True
        return not_less[key]

    for buffer in order:
        first, last = live[buffer]
        epoch = buffer_epoch(buffer.bytes, epoch_of_symbol)
        free = [k for k in range(len(slots)) if free_at[k] < first and epochs[k] == epoch]
        equal = [k for k in free if slots[k] == buffer.bytes]
        larger = [k for k in free if at_least(slots[k], buffer.bytes)]
        smaller = [k for k in free if at_least(buffer.bytes, slots[k])]
        if equal:
            k = equal[0]
        elif larger:
            k = larger[0]
            for other in larger[1:]:
                if at_least(slots[k], slots[other]):
                    k = other
        elif smaller:
            k = smaller[0]
            for other in smaller[1:]:
                if at_least(slots[other], slots[k]):
                    k = other
            slots[k] = buffer.bytes
        else:
            k = len(slots)
            slots.append(buffer.bytes)
            epochs.append(epoch)
            free_at.append(-1)
        slot_of[buffer] = k
        free_at[k] = last
    return MemoryPlan(slots, epochs, slot_of, {b: live[b] for b in order})
