"""The region of a loop whose ops stand before and after transposes: elementwise ops commute with them, so all run over the space of
the results."""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.fusion.access import Access, is_pointwise
from disc_tf.fusion.region import RegionBuilder
from disc_tf.fusion.types import Region
from disc_tf.fusion.views import View, of_value
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import TensorType

#: the axis of the space that each dim of a value runs along
Frame = tuple[int, ...]


def permuted_region(access: Access, nodes: Sequence[Op], outputs: Sequence[Value], space: Sequence[Dim]) -> Region | None:
    """None where an op is wanted at two places of one point, or something is reached in another way than by transposes."""
    ops = [op for op in nodes if is_pointwise(op)]
    members = {op.result for op in ops}
    own = set(nodes)  # transposes that are stored are among them
    made = {r for op in nodes for r in op.results}
    if any(m.rank != len(space) for m in members):
        return None

    def reached(v: Value, frame: Frame) -> tuple[Value, Frame]:
        """The value that ``v`` is a transposition of, and its frame."""
        while v not in members and v.op is not None and v.op.name == "transpose" and (v.op in own or v.op not in access.material):
            below = [0] * len(frame)
            for axis, dim in zip(frame, v.op.attrs["permutation"], strict=True):
                below[dim] = axis
            v, frame = v.op.operands[0], tuple(below)
        return v, frame

    region = Region(tuple(space))
    frames: dict[Value, Frame] = {}
    for out in outputs:
        if not isinstance(out.type, TensorType) or out.dims != tuple(space):
            return None
        member, frame = reached(out, tuple(range(len(space))))
        if member in members:
            if frames.setdefault(member, frame) != frame:
                return None
        elif member is out or not _read(access, region, made, member, frame):
            return None
        region.level[member] = "full"
        if member is not out:
            region.alias[out] = member
        region.writes.append((out, of_value(out)))
    if not _settle(ops, members, frames, reached):
        return None
    builder = RegionBuilder(access, space)
    for op in ops:
        for v in op.operands:
            if builder.is_scalar(v):
                builder.bind(region, v)
                continue
            member, _ = reached(v, frames[op.result])
            if member in members:
                if v is not member:
                    region.alias[v] = member
            elif not _read(access, region, made, v, frames[op.result]):
                return None
        region.ops.append(op)
        region.level[op.result] = "full"
    return region


def _settle(ops: Sequence[Op], members: set[Value], frames: dict[Value, Frame], reached) -> bool:
    """Give each member its frame, from its users'; whether they agree."""
    for op in reversed(ops):
        if op.result not in frames:
            return False
        for v in op.operands:
            if not isinstance(v.type, TensorType) or v.rank != len(frames[op.result]):
                continue
            member, frame = reached(v, frames[op.result])
            if member in members and frames.setdefault(member, frame) != frame:
                return False
    return True


def _read(access: Access, region: Region, made: set[Value], v: Value, frame: Frame) -> bool:
    """Note where ``v`` lies; False where that is no place in memory, or one that this kernel writes."""
    view = access.view(v)
    if view is None or view.source in made or len(view.axes) != len(frame):
        return False
    axes = dict(zip(frame, view.axes, strict=True))
    placed = View(view.source, view.offset, tuple(axes[k] for k in range(len(frame))))
    table = region.iotas if view.source is None else region.reads
    return table.setdefault(v, placed) == placed
