"""What the product kernels share: a kernel frame with helpers and scratch, axes merged into runs, index
decomposition."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu.frame import KernelFrame
from disc_tf.codegen.cpu.helpers import collect
from disc_tf.codegen.kernel import Kernel
from disc_tf.codegen.llvm import I8, I64, VOID, FnBuilder, Ty, V, const
from disc_tf.fusion.views import Axis, View
from disc_tf.ir.dims import Dim, DimLike, ceildiv, product

ONE = Dim.of(1)
_PLACEHOLDER = "KERNEL_SYMBOL"


class ProductFrame(KernelFrame):
    """A kernel that calls helpers and lays out scratch. Its symbol is made from its text, so that equal
    kernels are one."""

    def __init__(self, ctx: EmitContext) -> None:
        super().__init__(_PLACEHOLDER, ctx.target, ctx.env)
        self.helpers: set[str] = set()
        self.scratch_bytes = Dim.of(0)

    def scratch_area(self, size: DimLike) -> V:
        """The address of the next `size` bytes (rounded up to a cache line) of the worker's scratch."""
        at = self.b.gep(self.scratch, self.dim(self.scratch_bytes), I8)
        self.scratch_bytes = self.scratch_bytes + ceildiv(size, 64) * 64
        return at

    def view_start(self, view: View, elem: Ty) -> V:
        """The address of the element at index 0 of a view, of memory type `elem`."""
        assert view.source is not None, "an iota has no buffer"
        return self.b.gep(self.buffer(view.source), self.dim(view.offset), elem)

    def call(self, symbol: str, args: Sequence[V]) -> None:
        """Call a helper of the library."""
        self.helpers.add(symbol)
        self.b.call(symbol, VOID, args, declare=False)

    def kernel(self, name: str, tasks: Dim, grain: DimLike) -> Kernel:
        """The finished kernel; ends the function. `name` is the readable part of its symbol."""
        kernel = self.finish(tasks, grain, self.scratch_bytes)
        symbol = f"k_{name}_{hashlib.sha256(kernel.llvm.encode()).hexdigest()[:8]}"
        helpers, declarations = collect(self.helpers, self.target)
        return dataclasses.replace(
            kernel,
            symbol=symbol,
            llvm=kernel.llvm.replace(_PLACEHOLDER, symbol),
            helpers=helpers,
            declarations={**declarations, **kernel.declarations},
        )


def extent_of(axes: Sequence[Axis]) -> Dim:
    """The number of index tuples of the axes."""
    return product(a.extent for a in axes)


def unravel(b: FnBuilder, index: V, extents: Sequence[V]) -> list[V]:
    """The index tuple of the row-major position `index` (0 <= index < the product of the extents)."""
    out: list[V] = []
    for e in reversed(extents[1:]):
        out.append(b.urem(index, e))
        index = b.udiv(index, e)
    return [index, *reversed(out)] if extents else []


def grid_order(b: FnBuilder, rows: V, columns: V, by_rows: V) -> Callable[[V], tuple[V, V]]:
    """The (row, column) of a task number of a grid, counted along rows where `by_rows`, else along columns.

    Neighbouring tasks, which one thread does, then share what is larger. Products and convolutions choose alike, so that a thread finds
    in its cache what it wrote itself.
    """
    fast = b.select(by_rows, columns, rows)

    def place(task: V) -> tuple[V, V]:
        major, minor = b.udiv(task, fast), b.urem(task, fast)
        return b.select(by_rows, major, minor), b.select(by_rows, minor, major)

    return place


def more_rows(b: FnBuilder, rows: V, columns: V, percent: int) -> V:
    """Whether there are so many more rows than columns that tasks are counted along rows (`Table.rows_first_percent`)."""
    if percent == 100:
        return b.icmp("sgt", rows, columns)
    return b.icmp("sgt", b.mul(rows, 100), b.mul(columns, percent))


def known(dim: DimLike) -> int | None:
    """An extent as a rule of a table asks for it."""
    dim = Dim.of(dim)
    return int(dim) if dim.is_static else None


def offset_of(b: FnBuilder, start: V, index: Sequence[V], strides: Sequence[V]) -> V:
    """start + sum(index * stride)."""
    for i, s in zip(index, strides, strict=True):
        start = b.add(start, b.mul(i, s))
    return start


@dataclasses.dataclass(frozen=True)
class Run:
    """Axes of an operand in machine form: extents and strides, outermost first (possibly none)."""

    extents: list[V]
    strides: list[V]

    @staticmethod
    def of(frame: KernelFrame, axes: Sequence[Axis]) -> Run:
        return Run([frame.dim(a.extent) for a in axes], [frame.dim(a.stride) for a in axes])

    def offset(self, b: FnBuilder, index: V) -> V:
        """The element offset of the row-major position `index`."""
        if len(self.extents) == 1:
            return b.mul(index, self.strides[0])
        return offset_of(b, b.i64(0), unravel(b, index, self.extents), self.strides)

    @property
    def single(self) -> bool:
        """Whether one stride (or none) walks it."""
        return len(self.extents) <= 1

    @property
    def stride(self) -> V:
        """The stride of a run that is `single` (1 where there is no axis: any would do)."""
        return self.strides[0] if self.strides else const(1, I64)
