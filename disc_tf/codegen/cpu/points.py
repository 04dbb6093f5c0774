"""Values of a fusion's `Region` at consecutive points of its last axis: loads, computation and stores with
resolved views.

    points = Points(frame, region, (batch, m, n), env)   # at the top level: asks for buffers and strides
    row = points.row([b0, m0, ...])                      # the index of every axis but the last
    row.value(v, known, d, lanes, mask, seeds)           # v at points d .. d+lanes-1
    row.store(known, d, lanes, mask, seeds)              # all outputs of the region there
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from disc_tf.codegen.cpu import lane_ops, lanes
from disc_tf.codegen.cpu.frame import KernelFrame
from disc_tf.codegen.cpu.product_frame import offset_of
from disc_tf.codegen.llvm import I1, FnBuilder, V, const, vec
from disc_tf.fusion.types import Region
from disc_tf.fusion.views import View
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.shape_env import ShapeEnv

ONE = Dim.of(1)
#: gives the value of a seed at (d, lanes)
Seed = Callable[[V, int], V]


@dataclasses.dataclass(frozen=True)
class _Access:
    """A view in machine form. strides: one per merged axis; last: the static stride of the last axis, or
    None."""

    base: V | None
    offset: V
    strides: list[V]
    last: int | None


class Points:
    """A region prepared for emission. `groups` says how many axes of the space belong together (batch, m, n);
    within a group neighbouring axes that compose in every view are merged, so that `extents[g]` is usually
    one number."""

    def __init__(self, frame: KernelFrame, region: Region, groups: Sequence[int], env: ShapeEnv) -> None:
        self.frame, self.region = frame, region
        self._merged = _merge_groups(region, groups, env)
        self.extents: list[list[V]] = [
            [frame.dim(_extent(region, axes)) for axes in group] for group in self._merged
        ]
        self.accesses: dict[View, _Access] = {}
        for view in _views(region):
            self.accesses[view] = self._prepare(view)
        self.scalars = {
            op.result: _scalar(frame, op) for op in region.scalars if op.name in ("constant", "disc.dim")
        }
        for op in region.scalars:
            if op.result not in self.scalars:
                self.scalars[op.result] = lane_ops.emit(
                    frame.b, op, [self.scalars[region.resolve(v)] for v in op.operands]
                )

    def _prepare(self, view: View) -> _Access:
        strides = [view.axes[axes[-1]].stride for group in self._merged for axes in group]
        last = strides[-1] if strides else Dim.of(0)
        base = None if view.source is None else self.frame.buffer(view.source)
        return _Access(
            base,
            self.frame.dim(view.offset),
            [self.frame.dim(s) for s in strides],
            int(last) if last.is_static else None,
        )

    def same_for_rows(self) -> list[Value]:
        """What the region reads that does not depend on the middle group of axes (a product's rows), though not the same everywhere."""
        rows = [axis for axes in self._merged[1] for axis in axes]
        reads = [(v, view) for v, view in self.region.reads.items() if any(a.stride != 0 for a in view.axes)]
        return [v for v, view in reads if all(view.axes[axis].stride == 0 for axis in rows)]

    def along_rows(self) -> list[tuple[Value, View]]:
        """What is read or written at every row anew, contiguously."""
        rows = [axis for axes in self._merged[1] for axis in axes]
        found = [*self.region.reads.items(), *self.region.writes]
        return [
            (v, view) for v, view in found if self.accesses[view].last == 1 and any(view.axes[axis].stride != 0 for axis in rows)
        ]  # fmt: skip

    def row(self, index: Sequence[V]) -> Row:
        """The points of one row; `index` has one number for every merged axis but the last."""
        return Row(self, list(index))


def _scalar(frame: KernelFrame, op: Op) -> V:
    """A splat constant or a dim as a scalar."""
    dtype = op.result.dtype
    if op.name == "disc.dim":
        x = frame.dim(op.attrs["dim"])
        return frame.b.trunc(x, lanes.reg_elem(dtype)) if dtype.bits < 64 else x
    value = op.attrs["value"]
    number = value[(0,) * value.ndim] if value.size else 0
    if dtype.is_bool:
        return const(int(bool(number)), I1)
    return const(float(number) if dtype.is_float else int(number), lanes.reg_elem(dtype))


def _extent(region: Region, axes: Sequence[int]) -> Dim:
    out = ONE
    for i in axes:
        out = out * region.space[i]
    return out


def _views(region: Region) -> list[View]:
    return [*region.reads.values(), *region.iotas.values(), *(view for _, view in region.writes)]


def _merge_groups(region: Region, groups: Sequence[int], env: ShapeEnv) -> list[list[list[int]]]:
    """Per group the lists of axes that walk as one in every view."""
    views = _views(region)

    def compose(i: int, j: int) -> bool:
        extent = region.space[j]
        return all(env.is_equal(v.axes[i].stride, v.axes[j].stride * extent) is True for v in views)

    out: list[list[list[int]]] = []
    first = 0
    for count in groups:
        merged: list[list[int]] = []
        for axis in range(first, first + count):
            if env.is_equal(region.space[axis], ONE) is True:
                continue
            if merged and compose(merged[-1][-1], axis):
                merged[-1].append(axis)
            else:
                merged.append([axis])
        out.append(merged)
        first += count
    return out


class Row:
    """The points of one row of a region (every axis but the last fixed)."""

    def __init__(self, points: Points, index: list[V]) -> None:
        self.points, self.index = points, index
        self.b: FnBuilder = points.frame.b
        self.region = points.region

    # -- addresses
    # --------------------------------------------------------------------------------------------

    def _start(self, access: _Access) -> V:
        """The element offset of the row's point 0."""
        return offset_of(self.b, access.offset, self.index, access.strides[: len(self.index)])

    def _has_last(self, access: _Access) -> bool:
        return len(access.strides) > len(self.index)

    def load(self, value: Value, view: View, d: V, count: int, mask: V | None) -> V:
        """`count` points of ``value`` from ``d`` on, as they lie in ``view``, in register form; ``mask``: which of them exist."""
        b, access = self.b, self.points.accesses[view]
        dtype = value.dtype
        elem = lanes.mem_elem(dtype)
        start = self._start(access)
        assert access.base is not None
        if access.last == 0 or not self._has_last(access):
            return lanes.from_memory(b, dtype, b.load(elem, b.gep(access.base, start, elem), invariant=True))
        stride = access.strides[-1]
        p = b.gep(access.base, b.add(start, b.mul(d, stride)), elem)
        ty = vec(elem, count)

        def contiguous() -> list[V]:
            return [b.load(ty, p) if mask is None else b.masked_load(ty, p, mask)]

        def spread() -> list[V]:
            return [b.gather(elem, p, b.mul(b.iota(count), b.splat(stride, count)), mask)]

        if count == 1:
            bits = b.load(elem, p)
        elif access.last is not None:
            (bits,) = contiguous() if access.last == 1 else spread()
        else:
            (bits,) = b.if_else(b.icmp("eq", stride, 1), contiguous, spread)
        return lanes.from_memory(b, dtype, bits)

    def _iota(self, value: Value, view: View, d: V, count: int) -> V:
        b, access = self.b, self.points.accesses[view]
        x = self._start(access)
        if self._has_last(access) and access.last != 0:
            x = b.add(x, b.mul(d, access.strides[-1]))
            if count > 1:
                x = b.add(b.splat(x, count), b.mul(b.iota(count), b.splat(access.strides[-1], count)))
        dtype = value.dtype
        if dtype.is_float:
            return lanes.round_float(b, dtype, b.sitofp(x, lanes.reg_elem(dtype)))
        if dtype.is_bool:
            return b.icmp("ne", x, 0)
        return b.trunc(x, lanes.reg_elem(dtype)) if dtype.bits < 64 else x

    # -- values ------------------------------------------------------------------------------------------

    def leaf(self, v: Value, d: V, count: int, mask: V | None) -> V:
        """A value that is read, not computed: scalar where it is the same at all the points."""
        region = self.region
        if v in region.reads:
            return self.load(v, region.reads[v], d, count, mask)
        if v in region.iotas:
            return self._iota(v, region.iotas[v], d, count)
        if v in self.points.scalars:
            return self.points.scalars[v]
        raise KeyError(f"{v!r} is neither read nor computed in its region")

    def compute(
        self,
        ops: Sequence[Op],
        known: dict[Value, V],
        d: V,
        count: int,
        mask: V | None,
        seeds: Mapping[Value, Seed],
    ) -> None:
        """Evaluate elementwise `ops` at the points; results go into `known` (value -> lanes), which may hold
        some already."""
        for op in ops:
            args = [self.value(v, known, d, count, mask, seeds) for v in op.operands]
            known[op.result] = lane_ops.emit(self.b, op, args)

    def value(
        self, v: Value, known: dict[Value, V], d: V, count: int, mask: V | None, seeds: Mapping[Value, Seed]
    ) -> V:
        """`v` at the points, from `known`, a seed or memory."""
        v = self.region.resolve(v)
        hit = known.get(v)
        if hit is None:
            hit = known[v] = seeds[v](d, count) if v in seeds else self.leaf(v, d, count, mask)
        return hit

    def store(
        self, known: dict[Value, V], d: V, count: int, mask: V | None, seeds: Mapping[Value, Seed]
    ) -> None:
        """Write all outputs of the region at the points."""
        for out, view in self.region.writes:
            x = self.value(out, known, d, count, mask, seeds)
            self.store_value(out, view, self.b.splat(x, count), d, mask)

    def prefetch(self, value: Value, view: View, d: V) -> None:
        """Ask for the line of the caches that has point ``d`` of what lies in ``view``."""
        b, access = self.b, self.points.accesses[view]
        assert access.base is not None
        b.prefetch(b.gep(access.base, b.add(self._start(access), d), lanes.mem_elem(value.dtype)))

    def store_value(self, value: Value, view: View, x: V, d: V, mask: V | None) -> None:
        """The points ``x`` of one value to their place in ``view``."""
        b, access = self.b, self.points.accesses[view]
        bits = lanes.to_memory(b, value.dtype, x)
        elem = bits.ty.elem
        start = self._start(access)
        assert access.base is not None
        if access.last == 0 or not self._has_last(access):  # an axis of extent 1
            b.store(b.extract(bits, 0), b.gep(access.base, start, elem))
            return
        stride = access.strides[-1]
        p = b.gep(access.base, b.add(start, b.mul(d, stride)), elem)
        if bits.lanes == 1:
            b.store(bits, p)
        elif access.last == 1:
            if mask is None:
                b.store(bits, p)
            else:
                b.masked_store(bits, p, mask)
        else:
            b.scatter(bits, p, b.mul(b.iota(bits.lanes), b.splat(stride, bits.lanes)), mask)


def each_vector(
    b: FnBuilder, low: V, high: V, width: int, masked: bool, body: Callable[[V, int, V | None], None]
) -> None:
    """Run body(d, lanes, mask) over [low, high): whole vectors, then one masked vector or single elements."""
    main = b.add(low, b.and_(b.sub(high, low), -width))
    b.loop(low, main, width, [], lambda d, _: body(d, width, None))
    if width == 1:
        return
    if masked:

        def tail() -> None:
            left = b.sub(high, main)
            mask = b.first_lanes(left, width)
            body(main, width, mask)

        b.if_then(b.icmp("slt", main, high), tail)
    else:
        b.loop(main, high, 1, [], lambda d, _: body(d, 1, None))
