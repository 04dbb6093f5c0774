"""Kernels of kind `loop` that read a value across their space: consecutive points of the last axis lie far apart in memory, those of
another axis side by side.

A task is a tile of these two axes. It brings the tile of each such value into the worker's scratch, transposed in registers
(`helpers/pack.py`), so that every cache line of it is read once and whole; the ops then run over the tile as over a product's block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu import lanes
from disc_tf.codegen.cpu.epilogue import BlockSeed, emit_block
from disc_tf.codegen.cpu.helpers.pack import transpose_symbol
from disc_tf.codegen.cpu.points import Points
from disc_tf.codegen.cpu.product_frame import ONE, ProductFrame, offset_of, unravel
from disc_tf.codegen.kernel import Guard, Kernel, Variant
from disc_tf.codegen.llvm import FnBuilder, V, vec
from disc_tf.costs import grain
from disc_tf.fusion.types import Fusion, Region
from disc_tf.fusion.views import View
from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, ceildiv, dmin, product
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.ir.types import DType

#: extents of a tile: along the axis that the values lie along, and along the last axis of the space
_ACROSS, _ALONG = 32, 128
#: extent of the axis across from which on tiles pay
_LEAST = 8


@dataclasses.dataclass(frozen=True)
class Crossing:
    """How a region is walked: its axes in the order (others, across, along), and the values that are brought in transposed.

    Neighbouring axes of each of the last two groups walk as one in every view. Stride of ``values``: 1 on the last axis across.
    """

    region: Region
    groups: tuple[int, int, int]
    values: tuple[Value, ...]

    @property
    def across(self) -> Dim:
        return product(self.region.space[self.groups[0] : self.groups[0] + self.groups[1]])

    @property
    def along(self) -> Dim:
        return product(self.region.space[self.groups[0] + self.groups[1] :])


def find_crossing(region: Region, env: ShapeEnv) -> Crossing | None:
    """How to walk a region that reads something across its space; None where it does not, or not so that tiles help."""
    if region.gathers or region.inner:
        return None
    region = _reordered(region, [k for k, d in enumerate(region.space) if env.is_equal(d, ONE) is not True])
    rank = len(region.space)
    if rank < 2:
        return None
    views = [*region.reads.values(), *region.iotas.values(), *(view for _, view in region.writes)]

    def begins(last: int) -> int:
        """The first axis of the run up to ``last`` that walks as one in every view."""
        while last > 0 and all(env.is_equal(v.axes[last - 1].stride, v.axes[last].stride * region.space[last]) is True for v in views):
            last -= 1
        return last

    along = begins(rank - 1)
    crossing: dict[int, list[Value]] = {}
    for value, view in region.reads.items():
        stride = view.axes[-1].stride
        if stride == 0 or env.is_equal(stride, ONE) is True:
            continue
        for axis in range(along):
            if env.is_equal(view.axes[axis].stride, ONE) is True:
                crossing.setdefault(axis, []).append(value)
                break
    if not crossing:
        return None
    axis = max(crossing, key=lambda k: (len(crossing[k]), k))
    across = range(begins(axis), axis + 1)
    others = [k for k in range(along) if k not in across]
    order = [*others, *across, *range(along, rank)]
    found = Crossing(_reordered(region, order), (len(others), len(across), rank - along), tuple(crossing[axis]))
    return None if found.across.is_static and int(found.across) < _LEAST else found


def _reordered(region: Region, order: Sequence[int]) -> Region:
    def seen(view: View) -> View:
        return View(view.source, view.offset, tuple(view.axes[k] for k in order))

    return dataclasses.replace(
        region,
        space=tuple(region.space[k] for k in order),
        reads={v: seen(view) for v, view in region.reads.items()},
        iotas={v: seen(view) for v, view in region.iotas.items()},
        writes=[(v, seen(view)) for v, view in region.writes],
    )


def emit_crossing(fusion: Fusion, ctx: EmitContext, crossing: Crossing, width: int, ps: float) -> Variant:
    """The kernel in tiles, guarded where the axis across may be too short for them. width: lanes; ps: picoseconds a point."""
    kernel = _emit(fusion, ctx, crossing, width, ps)
    guard = None if crossing.across.is_static else Guard(((crossing.across, "ge", Dim.of(_LEAST)),))
    return Variant(guard, (kernel,))


def _emit(fusion: Fusion, ctx: EmitContext, crossing: Crossing, width: int, ps: float) -> Kernel:
    frame, region = ProductFrame(ctx), crossing.region
    b = frame.b
    points = Points(frame, region, crossing.groups, ctx.env)
    across, along = frame.dim(crossing.across), frame.dim(crossing.along)
    areas = {v: frame.scratch_area(_ACROSS * _ALONG * v.dtype.bytes) for v in crossing.values}
    rows, columns = (b.udiv(b.add(n, size - 1), size) for n, size in ((across, _ACROSS), (along, _ALONG)))
    each = b.mul(rows, columns)

    def task(t: V, _: list[V]) -> None:
        lead = unravel(b, b.udiv(t, each), points.extents[0])
        rest = b.urem(t, each)
        i0, j0 = b.mul(b.udiv(rest, columns), _ACROSS), b.mul(b.urem(rest, columns), _ALONG)
        ni, nj = b.smin(b.i64(_ACROSS), b.sub(across, i0)), b.smin(b.i64(_ALONG), b.sub(along, j0))
        seeds: dict[Value, BlockSeed] = {}
        for v, area in areas.items():
            access, elem = points.accesses[region.reads[v]], lanes.mem_elem(v.dtype)
            assert access.base is not None
            start = offset_of(b, access.offset, [*lead, i0, j0], access.strides)
            frame.call(
                transpose_symbol(v.dtype.bytes * 8),
                [b.gep(access.base, start, elem), access.strides[-1], area, b.i64(_ALONG), nj, ni],
            )
            seeds[v] = _staged(b, area, v.dtype)
        (first, seed), *more = seeds.items()
        emit_block(points, lead, i0, ni, j0, nj, first, seed, width, dict(more))

    b.loop(frame.begin, frame.end, 1, [], task, "task")
    others = product(region.space[: crossing.groups[0]])
    tasks = others * ceildiv(crossing.across, _ACROSS) * ceildiv(crossing.along, _ALONG)
    return frame.kernel(fusion.name, tasks, grain(dmin(crossing.across, _ACROSS) * dmin(crossing.along, _ALONG), ps))


def _staged(b: FnBuilder, area: V, dtype: DType) -> BlockSeed:
    elem = lanes.mem_elem(dtype)

    def seed(i: V, at: V, count: int) -> V:
        p = b.gep(area, b.add(b.mul(i, _ALONG), at), elem)
        return lanes.from_memory(b, dtype, b.load(vec(elem, count) if count > 1 else elem, p))

    return seed
