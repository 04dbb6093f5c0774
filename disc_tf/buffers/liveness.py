"""Live ranges of arena buffers over the step list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disc_tf.buffers.types import Buffer, OutputPlan, Place, Step
from disc_tf.ir.core import Value


def live_ranges(
    steps: Sequence[Step],
    places: Mapping[Value, Place],
    temps: Mapping[int, Sequence[Buffer]],
    outputs: Sequence[OutputPlan],
) -> dict[Buffer, tuple[int, int]]:
    """First and last step (inclusive) at which each arena buffer is needed.

    A view extends the life of the buffer it looks into, since places share the buffer. A buffer that a result is copied from lives to
    the end. Loops beside each other count as one step.
    """
    live: dict[Buffer, tuple[int, int]] = {}

    def touch(buffer: Buffer, at: int) -> None:
        if buffer.kind == "arena":
            first, last = live.get(buffer, (at, at))
            live[buffer] = (min(first, at), max(last, at))

    for at, step in enumerate(steps):
        if step.fusion.kind in ("view", "constant"):
            continue
        for v in (*step.fusion.inputs, *step.fusion.outputs):
            if v in places:
                touch(places[v].buffer, at)
        for buffer in temps.get(at, ()):
            touch(buffer, at)
    for plan in outputs:
        if plan.source is not None:
            touch(plan.source.buffer, len(steps))
    together = {k for k, step in enumerate(steps) if step.fusion.attrs.get("beside")}
    return {b: (first - (first in together), last + (last + 1 in together)) for b, (first, last) in live.items()}
