"""Stitch fusion: reductions of the minor dims with everything elementwise around them over the same rows, in one kernel."""

from __future__ import annotations

from disc_tf.fusion.access import Access, is_monoid_reduce, is_pointwise
from disc_tf.fusion.groups import Group, Grouping
from disc_tf.fusion.region import RegionBuilder, trailing
from disc_tf.fusion.views import VIEW_OPS
from disc_tf.ir.core import Op

#: a value with more readers than this is not searched for siblings
_MAX_READERS = 64


def is_row_reduce(op: Op, access: Access) -> bool:
    """A monoid reduce of trailing dims (unit dims aside), at least one of them not 1."""
    if not is_monoid_reduce(op) or not op.attrs["dimensions"]:
        return False
    return trailing(op.operands[0].dims, op.attrs["dimensions"], access)


#: extent of a row from which on it is worth a transposed copy
_LONG_ROW = 16


def settle_rows(access: Access) -> None:
    """Rows that lie across what they are read from (the softmax of another axis than the last) are transposed before, by a loop in tiles:
    each pass over them would gather one element from each line of the caches. Products are left to the patterns around them."""
    for op in access.fn.body.ops:
        if not is_row_reduce(op, access):
            continue
        x = op.operands[0]
        view = access.view(x) if x.op is not None and x.op.name == "transpose" else None
        if view is None or view.source is None or (view.source.op is not None and view.source.op.name == "dot_general"):
            continue
        *others, last = view.axes
        short = last.extent.is_static and int(last.extent) < _LONG_ROW
        along = last.stride == 0 or access.env.is_equal(last.stride, 1) is True
        if not (short or along) and any(access.env.is_equal(axis.stride, 1) is True for axis in others):
            access.materialise(x)


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
    _absorb_siblings(grouping, group)
    _absorb_moves(grouping, group)
    return group


def _absorb_siblings(grouping: Grouping, group: Group) -> None:
    """Other reductions of what the group reads (mean and maximum of one tensor) share the pass over the rows.

    A sibling is a row reduce of a common source, or of one elementwise step from it.
    """
    access = grouping.access
    roots = {access.root(v) for op in group.ops for v in op.operands}
    for root in sorted(roots, key=lambda r: r.uid):
        if root.op is not None and (access.is_inlined(root.op) or root.op in group.ops):
            continue
        readers = grouping.readers(root)
        if len(readers) > _MAX_READERS:
            continue
        for op in readers:
            if is_row_reduce(op, access):
                if grouping.absorb(group, op):
                    grouping.grow_both(group, [op])
            elif is_pointwise(op) and grouping.is_free(op):
                users = grouping.consumers(op)
                if users and all(is_row_reduce(u, access) for u in users) and grouping.absorb(group, op):
                    grouping.grow_both(group, [op])


def _absorb_moves(grouping: Grouping, group: Group) -> None:
    """Materialised view ops of members are stored by the same kernel where that is a plain store."""
    for op in sorted(group.ops, key=grouping.index.__getitem__):
        for c in grouping.consumers(op):
            if c.name in VIEW_OPS and grouping.is_free(c):
                grouping.absorb(group, c)
