"""A convolution with the elementwise ops after it as one fusion of kind ``conv``."""

from __future__ import annotations

from disc_tf.fusion.access import Access
from disc_tf.fusion.groups import Group, Grouping
from disc_tf.fusion.region import RegionBuilder
from disc_tf.ir.core import Op, Value


def settle_convolutions(access: Access) -> None:
    """Operands of convolutions become affine views of something that lies in memory; the channels of the data must be contiguous (data
    that is channels-first is transposed before, by a kernel of its own)."""
    for op in access.fn.body.ops:
        if op.name != "convolution":
            continue
        for v in op.operands:
            access.settle(v)
            root = access.root(v).op
            if root is not None and access.is_inlined(root):  # made of constants, dims or positions: it has no buffer yet
                access.materialise(v)
        if not _contiguous_channels(access, op.operands[0]):
            access.materialise(op.operands[0])


def _contiguous_channels(access: Access, x: Value) -> bool:
    view = access.view(x)
    assert view is not None  # settled
    last = view.axes[-1]
    return access.env.is_equal(last.stride, 1) is True or access.env.is_equal(last.extent, 1) is True


def conv_group(grouping: Grouping, op: Op) -> Group:
    """The convolution with the elementwise ops that need nothing else over its points."""
    access = grouping.access
    lhs, rhs = (access.view(v) for v in op.operands)
    assert lhs is not None and rhs is not None  # settled
    region = RegionBuilder(access, op.result.dims, 0, [op.result])
    group = grouping.start("conv", op, region, conv=op, lhs=lhs, rhs=rhs)
    group.attrs["pack"] = "rhs" if access.is_weight(rhs.source) else None
    grouping.grow_forward(group, [op])
    return group
