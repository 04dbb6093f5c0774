"""Strided views: how a value that is only a reshaped, transposed, sliced or broadcast form of another lies in memory.

A `View` maps indices to an element position of ``source``'s row-major buffer: ``offset + sum(index[i] * axes[i].stride)``.
All quantities are in elements and symbolic. A view step that is not affine gives None: the caller then materialises.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Protocol

from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim, DimLike, dmax, dmin, exact_div, product


class ShapeEnv(Protocol):
    """What views ask of a shape environment (`disc_tf.ir.shape_env.ShapeEnv` answers, or a cache of its answers)."""

    def is_equal(self, a: DimLike, b: DimLike) -> bool | None: ...

    def bounds(self, dim: DimLike) -> tuple[int | None, int | None]: ...


ZERO = Dim.of(0)
ONE = Dim.of(1)

#: ops that move no data and whose result is (mostly) an affine view of their operand
VIEW_OPS = frozenset({"reshape", "transpose", "broadcast_in_dim", "slice", "reverse"})


@dataclasses.dataclass(frozen=True)
class Axis:
    """An index range ``[0, extent)`` and the distance in elements between neighbours (0: the value does not depend on it)."""

    extent: Dim
    stride: Dim


@dataclasses.dataclass(frozen=True)
class View:
    """See the module's docstring. ``source`` is None for an iota, whose value is the "position" itself."""

    source: Value | None
    offset: Dim
    axes: tuple[Axis, ...]

    @property
    def dims(self) -> tuple[Dim, ...]:
        return tuple(a.extent for a in self.axes)

    @property
    def strides(self) -> tuple[Dim, ...]:
        return tuple(a.stride for a in self.axes)

    def __str__(self) -> str:
        name = "iota" if self.source is None else f"%{self.source.hint or self.source.uid}"
        return f"{name}+{self.offset}[{', '.join(f'{a.extent}:{a.stride}' for a in self.axes)}]"

    def select(self, order: Sequence[int]) -> View:
        """The view with axes ``order`` (a permutation or a subset; left-out axes are at index 0)."""
        return dataclasses.replace(self, axes=tuple(self.axes[i] for i in order))

    def slice(self, starts: Sequence[Dim], strides: Sequence[Dim], dims: Sequence[Dim]) -> View:
        """Elements ``starts[i] + j * strides[i]`` along each axis; ``dims`` are the resulting extents."""
        offset, axes = self.offset, []
        for a, start, step, extent in zip(self.axes, starts, strides, dims, strict=True):
            offset = offset + Dim.of(start) * a.stride
            axes.append(Axis(extent, a.stride * Dim.of(step)))
        return dataclasses.replace(self, offset=offset, axes=tuple(axes))

    def reverse(self, dimensions: Sequence[int]) -> View:
        offset, axes = self.offset, list(self.axes)
        for d in dimensions:
            a = axes[d]
            offset = offset + (a.extent - 1) * a.stride
            axes[d] = Axis(a.extent, -a.stride)
        return dataclasses.replace(self, offset=offset, axes=tuple(axes))

    def broadcast(self, dims: Sequence[Dim], mapping: Sequence[int], env: ShapeEnv) -> View:
        """StableHLO's broadcast_in_dim; where ``extent == 1`` is not known the stride is ``natural * min(1, max(extent - 1, 0))``."""
        axes = [Axis(d, ZERO) for d in dims]
        for a, i in zip(self.axes, mapping, strict=True):
            axes[i] = Axis(dims[i], broadcast_stride(a, dims[i], env))
        return dataclasses.replace(self, axes=tuple(axes))

    def reshape(self, dims: Sequence[Dim], env: ShapeEnv) -> View | None:
        """The view under another shape of the same element count (the caller's promise), or None where that is not affine."""
        if self.is_contiguous(env):
            return dataclasses.replace(self, axes=row_major(None, dims).axes)
        axes = _reshape_axes(list(self.axes), list(dims), env)
        return None if axes is None else dataclasses.replace(self, axes=tuple(axes))

    def is_contiguous(self, env: ShapeEnv) -> bool:
        """Whether the elements lie row-major without gaps (from ``offset`` on)."""
        expected = ONE
        for a in reversed(self.axes):
            if env.is_equal(a.extent, ONE) is True:
                continue
            if env.is_equal(a.stride, expected) is not True:
                return False
            expected = expected * a.extent
        return True


def row_major(source: Value | None, dims: Sequence[Dim]) -> View:
    """The view of a whole row-major buffer."""
    axes, stride = [], ONE
    for d in reversed(dims):
        axes.append(Axis(d, stride))
        stride = stride * d
    return View(source, ZERO, tuple(reversed(axes)))


def of_value(v: Value) -> View:
    return row_major(v, v.dims)


def merge_axes(axes: Sequence[Axis], env: ShapeEnv) -> list[Axis]:
    """The fewest axes with the same row-major walk: axes of extent 1 dropped, neighbours that compose joined."""
    out: list[Axis] = []
    for a in axes:
        if env.is_equal(a.extent, ONE) is True:
            continue
        if out and env.is_equal(out[-1].stride, a.stride * a.extent) is True:
            out[-1] = Axis(out[-1].extent * a.extent, a.stride)
        else:
            out.append(a)
    return out


def broadcast_stride(a: Axis, extent: Dim, env: ShapeEnv) -> Dim:
    """The stride of an operand axis against a result extent that is equal to it or that it broadcasts to (extent 1)."""
    if a.stride == ZERO or env.is_equal(a.extent, ONE) is True:
        return ZERO
    if env.is_equal(a.extent, extent) is True:
        return a.stride
    low, _ = env.bounds(a.extent)
    if low is not None and low >= 2:
        return a.stride
    return a.stride * dmin(ONE, dmax(a.extent - 1, ZERO))


def iota(dims: Sequence[Dim], dimension: int) -> View:
    """The "view" whose position is the index along ``dimension``."""
    return View(None, ZERO, tuple(Axis(d, ONE if i == dimension else ZERO) for i, d in enumerate(dims)))


def apply_op(op: Op, view: View, env: ShapeEnv) -> View | None:
    """The view of the result of a view op, from the view of its operand; None if it is not affine."""
    dims = op.result.dims
    if op.name == "reshape":
        return view.reshape(dims, env)
    if op.name == "transpose":
        return view.select(op.attrs["permutation"])
    if op.name == "broadcast_in_dim":
        return view.broadcast(dims, op.attrs["broadcast_dimensions"], env)
    if op.name == "slice":
        return view.slice(op.attrs["starts"], op.attrs["strides"], dims)
    if op.name == "reverse":
        return view.reverse(op.attrs["dimensions"])
    return None


def invert_op(op: Op, view: View, env: ShapeEnv) -> View | None:
    """The place of the operand's elements in the buffer that ``view`` (over the result's axes) describes; None if not one to one.

    Used for writing: a kernel that computes the operand stores it where the result lies.
    """
    dims = op.operands[0].dims
    if op.name == "reshape":
        return view.reshape(dims, env)
    if op.name == "transpose":
        order = op.attrs["permutation"]
        axes: list[Axis | None] = [None] * len(order)
        for i, p in enumerate(order):
            axes[p] = view.axes[i]
        return dataclasses.replace(view, axes=tuple(a for a in axes if a is not None))
    if op.name == "reverse":
        return view.reverse(op.attrs["dimensions"])
    if op.name == "broadcast_in_dim":  # only where nothing is repeated
        mapping = op.attrs["broadcast_dimensions"]
        rest = [d for i, d in enumerate(op.result.dims) if i not in mapping]
        same = all(env.is_equal(d, op.result.dims[i]) is True for d, i in zip(dims, mapping, strict=True))
        if same and all(env.is_equal(d, ONE) is True for d in rest):
            return view.select(mapping)
    return None


def _reshape_axes(source: list[Axis], dims: list[Dim], env: ShapeEnv) -> list[Axis] | None:
    """Group source axes and result dims of equal products, then merge and split each group."""
    # Unit axes carry no information; they go in with stride 0 wherever the result has them.
    source = [a for a in source if env.is_equal(a.extent, ONE) is not True]
    out: list[Axis] = []
    i = j = 0
    while j < len(dims):
        if env.is_equal(dims[j], ONE) is True:
            out.append(Axis(dims[j], ZERO))
            j += 1
            continue
        if i >= len(source):
            return None
        group, parts = [source[i]], [dims[j]]
        i, j = i + 1, j + 1
        have, want = group[0].extent, parts[0]
        while env.is_equal(have, want) is not True:
            # Extend the side whose product divides the other's; when neither is known to, extend both ends evenly.
            if j < len(dims) and (i >= len(source) or _is_factor(want, have)):
                parts.append(dims[j])
                want = want * dims[j]
                j += 1
            elif i < len(source):
                group.append(source[i])
                have = have * source[i].extent
                i += 1
            else:
                return None
        pieces = _regroup(group, parts, env)
        if pieces is None:
            return None
        out.extend(pieces)
    if i < len(source):
        return None
    return out


def _is_factor(a: Dim, b: Dim) -> bool:
    return a != 0 and exact_div(b, a) is not None


def _regroup(group: list[Axis], parts: list[Dim], env: ShapeEnv) -> list[Axis] | None:
    if len(group) == 1 and len(parts) == 1:
        return [Axis(parts[0], group[0].stride)]
    for outer, inner in itertools.pairwise(group):  # the group must lie like one axis
        if env.is_equal(outer.stride, inner.stride * inner.extent) is not True:
            return None
    stride = group[-1].stride
    return [Axis(d, stride * product(parts[n + 1 :])) for n, d in enumerate(parts)]
