"""A convolution with the elementwise ops after it as one fusion of kind ``conv``."""

from __future__ import annotations

import dataclasses

from disc_tf.fusion.access import Access
from disc_tf.fusion.groups import Group, Grouping
from disc_tf.fusion.region import RegionBuilder
from disc_tf.fusion.views import ZERO, merge_axes, row_major
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim, DimTooComplex, ceildiv, dmax, dmin

#: channels of a point up to which computing some of them twice, at the borders of bands, costs less than storing what is between
_MOST_CHANNELS = 1024
#: bytes of a pixel in a block of channels, and of the lines of a band at most: they stay in the second-level cache
PIXEL_BYTES = 192
_BAND_BYTES = 768 << 10
#: lines of the convolution in a band, at most, so that there are tasks for several threads
_BAND_LINES = 16


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


def is_depthwise(op: Op) -> bool:
    """One channel and one feature in each of many groups, and data that is not spread."""
    w, groups = op.operands[1], op.attrs["feature_group_count"]
    return groups > 1 and w.dims[-2] == 1 and w.dims[-1] == groups and all(d == 1 for d in op.attrs["lhs_dilation"])


@dataclasses.dataclass(frozen=True)
class Bands:
    """How the lines of a depthwise convolution's result are cut: ``count`` bands of ``lines`` lines at most, each with at most ``most``
    lines of the data under its window."""

    count: Dim
    lines: Dim
    most: Dim

    @staticmethod
    def of(op: Op) -> Bands:
        """For a convolution in two dimensions. DimTooComplex."""
        x, w, a = op.operands[0], op.operands[1], op.attrs
        stride, reach = a["window_strides"][0], (int(w.dims[0]) - 1) * a["rhs_dilation"][0]
        room = Dim.of(_BAND_BYTES) // (dmax(x.dims[2], 1) * PIXEL_BYTES)
        # Lines too wide for the cache: no more than twice as many lines are computed as there are.
        fitting = dmin((dmax(room, 2 * reach + 1) - (reach + 1)) // stride + 1, _BAND_LINES)
        count = ceildiv(op.result.dims[1], fitting)
        lines = ceildiv(op.result.dims[1], dmax(count, 1))
        return Bands(count, lines, dmin(dmax((lines - 1) * stride + reach + 1, 0), x.dims[1]))


@dataclasses.dataclass(frozen=True, eq=False)
class Before:
    """A product that the kernel of a convolution computes first, band by band: its group, the ops of it, and the value that only the
    convolution reads."""

    group: Group
    ops: frozenset[Op]
    value: Value
    bands: Bands


def join_expansions(grouping: Grouping) -> None:
    """A product over channels that only a depthwise convolution in two dimensions reads is computed by the kernel of the convolution, a
    band of lines and a block of channels at a time: what lies between them (of all the data of such a network the largest, Sandler et
    al. 2018) never goes to memory."""
    for conv in [g for g in grouping.groups if g.kind == "conv"]:
        before = _expansion(grouping, conv)
        if before is not None and grouping.join(conv, before.group):
            conv.attrs["before"] = before


def _expansion(grouping: Grouping, conv: Group) -> Before | None:
    op, access = conv.attrs["conv"], grouping.access
    x = conv.attrs["lhs"].source
    if x is None or x.op is None:
        return None
    group = grouping.group_of.get(x.op)
    if group is None or group.kind != "gemm" or op.result.rank != 4 or not is_depthwise(op):
        return None
    if any(grouping.needed(o, group.ops | conv.ops) for o in group.ops):
        return None
    if [r for o in group.ops for r in grouping.needed(o, group.ops)] != [x]:
        return None  # more than this one value leaves the product
    # Only as the data: an epilogue that reads it too wants other points than those at hand.
    if any(access.root(v) is x for o in conv.ops for v in o.operands if o is not op):
        return None
    if not _pointwise_product(grouping, group, conv, x):
        return None
    try:
        return Before(group, frozenset(group.ops), x, Bands.of(op))
    except DimTooComplex:
        return None


def _pointwise_product(grouping: Grouping, group: Group, conv: Group, x: Value) -> bool:
    """Whether line ``y`` of ``x`` is made of the rows of the product's left operand from ``y * width`` on, and these lie side by side."""
    env, dot = grouping.access.env, group.attrs["dot"]
    (batch, m, n, k), data = group.attrs["axes"], conv.attrs["lhs"]
    if batch or n != 1 or k != 1 or group.attrs["pack"] != "rhs" or conv.attrs["pack"] != "rhs" or group.region is None:
        return False
    if not (dot.result.dtype.is_float and dot.result.dtype.bits >= 32 and dot.operands[0].dtype == dot.result.dtype == x.dtype):
        return False
    depth = group.attrs["rhs"].axes[0].extent
    if not depth.is_static or int(depth) > _MOST_CHANNELS:
        return False
    try:
        rows = merge_axes(group.attrs["lhs"].axes[:m], env)
        written = group.region.write_view(x)
    except DimTooComplex:
        return False
    inner = group.attrs["lhs"].axes[-1]
    if len(rows) > 1 or env.is_equal(inner.stride, 1) is not True or written is None:
        return False
    place, space = written[1], row_major(x, group.region.space)
    aligned = all(a == b or env.is_equal(a, b) is True for a, b in zip(place.strides, space.strides, strict=True))
    whole = all(env.is_equal(a, b) is True for a, b in zip(data.strides, row_major(x, x.dims).strides, strict=True))
    return (
        aligned and whole and place.offset == ZERO and data.offset == ZERO and data.dims == x.dims
        and env.is_equal(x.dims[-1], dot.result.dims[-1]) is True
    )  # fmt: skip
