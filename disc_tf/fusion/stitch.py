"""Stitch fusion: reductions of the minor dims with everything elementwise around them over the same rows, in one kernel."""

from __future__ import annotations

from disc_tf.fusion.access import Access, is_monoid_reduce
from disc_tf.fusion.groups import Group, Grouping
from disc_tf.fusion.region import RegionBuilder, trailing
from disc_tf.fusion.views import VIEW_OPS
from disc_tf.ir.core import Op


def is_row_reduce(op: Op, access: Access) -> bool:
    """A monoid reduce of trailing dims (unit dims aside), at least one of them not 1."""
    if not is_monoid_reduce(op) or not op.attrs["dimensions"]:
        return False
    return trailing(op.operands[0].dims, op.attrs["dimensions"], access)


def rows_group(grouping: Grouping, reduce: Op) -> Group:
    """Grow rows around a reduce: elementwise producers and consumers, other reductions of the same rows, embedding lookups."""
    access = grouping.access
    x = reduce.operands[0]
    reduced = set(reduce.attrs["dimensions"])
    # The space has the reduced dims last; unit dims between them belong to the outer part.
    outer = [d for i, d in enumerate(x.dims) if i not in reduced]
    inner = [d for i, d in enumerate(x.dims) if i in reduced]
    region = RegionBuilder(access, (*outer, *inner), len(inner))
    group = grouping.start("rows", reduce, region, outer=tuple(outer), inner=tuple(inner))
    region.add(reduce, "row")
    grouping.grow_both(group, [reduce])
    _absorb_moves(grouping, group)
    return group


def _absorb_moves(grouping: Grouping, group: Group) -> None:
    """Materialised view ops of members are stored by the same kernel where that is a plain store."""
    for op in sorted(group.ops, key=grouping.index.__getitem__):
        for c in grouping.consumers(op):
            if c.name in VIEW_OPS and grouping.is_free(c):
                grouping.absorb(group, c)
