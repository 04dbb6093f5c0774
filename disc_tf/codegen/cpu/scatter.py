"""`scatter`: the operands copied, then the updates combined into them in row-major order of their indices.

So several updates of one element meet in a fixed order, as in TensorFlow's CPU kernels. Tasks never share an element: a task is a
block of the minor dimension, if that is part of the update windows, for all updates; otherwise one task does everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu import index as ix
from disc_tf.codegen.cpu import lanes
from disc_tf.codegen.cpu.elemental import Elemental
from disc_tf.codegen.cpu.frame import Buffer, KernelFrame
from disc_tf.codegen.cpu.index import Index
from disc_tf.codegen.cpu.loops import BLOCK, lanes_for, walk
from disc_tf.codegen.cpu.monoids import run_region
from disc_tf.codegen.kernel import Kernel, Temp
from disc_tf.codegen.llvm import I1, V, const, vec
from disc_tf.costs import grain, plain_ps
from disc_tf.fusion.types import Fusion
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import ceildiv, product
from disc_tf.ir.types import DType

COLUMNS = 256  # elements of the minor dimension in a task


def emit_scatter(fusion: Fusion, op: Op, ctx: EmitContext) -> list[Kernel]:
    """A copy for each operand, then one kernel for all updates. Any dimension numbers, any region of elementwise ops."""
    count = len(op.operands) // 2
    targets: list[Buffer] = [
        r if r in fusion.outputs else Temp(f"scatter{i}", product(r.dims) * r.dtype.bytes) for i, r in enumerate(op.results)
    ]
    name = f"k_{fusion.name.replace('.', '_')}"
    copies = [emit_copy(f"{name}_copy", x, t, ctx) for x, t in zip(op.operands[:count], targets, strict=True)]
    return [*copies, _Scatter(name, op, targets, ctx).emit()]


def emit_copy(symbol: str, x: Value, target: Buffer, ctx: EmitContext) -> Kernel:
    """All elements of ``x`` to ``target``."""
    frame = KernelFrame(symbol, ctx.target, ctx.env, (x, target))
    b = frame.b
    e = Elemental(frame, lanes_for(ctx, [x]), ())
    total = product(x.dims)

    def task(t: V, _: list[V]) -> None:
        lo = b.mul(t, BLOCK)
        hi = b.smin(b.add(lo, BLOCK), frame.dim(total))

        def step(i: Index, carried: list[V]) -> list[V]:
            e.store(x.dtype, frame.buffer(target), i, e.load_from(frame.buffer(x), x.dtype, i))
            return carried

        walk(e, lo, hi, 4, [], step)

    b.loop(frame.begin, frame.end, 1, [], task, "task")
    return frame.finish(ceildiv(total, BLOCK), grain(BLOCK, plain_ps(ctx.target.name)))




class _Scatter:
    """Emits the kernel of the updates."""

    def __init__(self, name: str, op: Op, targets: Sequence[Buffer], ctx: EmitContext) -> None:
        count = len(op.operands) // 2
        self.op, self.targets, a = op, targets, op.attrs
        self.xs, self.indices, self.updates = op.operands[:count], op.operands[count], op.operands[count + 1 :]
        self.dims, self.update_dims = self.xs[0].dims, self.updates[0].dims
        self.window = list(a["update_window_dims"])
        self.batch = [k for k in range(len(self.update_dims)) if k not in self.window]
        hidden = (*a["inserted_window_dims"], *a["input_batching_dims"])
        #: window dim of the updates -> dim of the operands
        self.covers = dict(zip(self.window, [k for k in range(len(self.dims)) if k not in hidden], strict=True))
        last = len(self.update_dims) - 1
        self.minor = last if self.covers.get(last) == len(self.dims) - 1 and self.dims else None
        self.frame = KernelFrame(name, ctx.target, ctx.env, (*self.updates, self.indices, *targets))
        self.b = self.frame.b
        width = 1 if self.minor is None else lanes_for(ctx, [*self.xs])
        self.e = Elemental(self.frame, width, ())

    def emit(self) -> Kernel:
        b, frame = self.b, self.frame
        axes = [*self.batch, *(k for k in self.window if k != self.minor)]

        def task(t: V, _: list[V]) -> None:
            if self.minor is None:
                self._nest(axes, {}, lambda at: self._one(at))
                return
            lo = b.mul(t, COLUMNS)
            hi = b.smin(b.add(lo, COLUMNS), frame.dim(self.update_dims[self.minor]))
            self._nest(axes, {}, lambda at: self._run(at, lo, hi))

        b.loop(frame.begin, frame.end, 1, [], task, "task")
        if self.minor is None:
            return frame.finish(1)
        work = product(self.update_dims[k] for k in axes) * COLUMNS
        return frame.finish(ceildiv(self.update_dims[self.minor], COLUMNS), grain(work, plain_ps(frame.target.name)))

    def _nest(self, axes: Sequence[int], at: dict[int, Index], body: Callable[[dict[int, Index]], None]) -> None:
        """Loops over dims of the updates, outermost first."""
        if not axes:
            body(at)
            return
        n = self.frame.dim(self.update_dims[axes[0]])

        def step(i: V, _: list[V]) -> None:
            self._nest(axes[1:], {**at, axes[0]: ix.uniform(i)}, body)

        self.b.loop(0, n, 1, [], step, "axis")

    def _starts(self, at: dict[int, Index]) -> dict[int, V]:
        """Start of the window in each operand dim that the indices or batching choose."""
        b, a = self.b, self.op.attrs
        vector = a["index_vector_dim"]
        batch = [at[k] for k in self.batch]
        starts: dict[int, V] = {}
        for k, axis in enumerate(a["scatter_dims_to_operand_dims"]):
            where = list(batch)
            if vector < self.indices.rank:
                where.insert(vector, ix.uniform(b.i64(k)))
            width, self.e.width = self.e.width, 1
            start = self.e.load(self.indices, tuple(where))
            self.e.width = width
            starts[axis] = lanes.convert(b, start, self.indices.dtype, DType.I64)
        for o, i in zip(a["input_batching_dims"], a["scatter_indices_batching_dims"], strict=True):
            starts[o] = batch[i - (i > vector)].base
        return starts

    def _where(self, at: dict[int, Index], skip: int | None) -> tuple[list[Index], V, V]:
        """(index in the operands, whether it is inside but for dim ``skip``, start of dim ``skip``)."""
        b, frame = self.b, self.frame
        starts = self._starts(at)
        offsets = {axis: at[k] for k, axis in self.covers.items() if k in at}
        index: list[Index] = []
        inside = const(1, I1)
        for axis, extent in enumerate(self.dims):
            start = starts.get(axis, b.i64(0))
            position = ix.add(b, offsets[axis], start) if axis in offsets else ix.uniform(start)
            index.append(position)
            if axis != skip and (axis in starts or axis in offsets):
                inside = b.and_(inside, self.e.between(position, ix.ZERO, frame.dim(extent)))
        return index, inside, starts.get(skip, b.i64(0)) if skip is not None else b.i64(0)

    def _one(self, at: dict[int, Index]) -> None:
        """One element."""
        index, inside, _ = self._where(at, None)
        self.b.if_then(inside, lambda: self._combine(at, tuple(index)))

    def _run(self, at: dict[int, Index], lo: V, hi: V) -> None:
        """Elements [lo, hi) of the minor dim of the updates."""
        b, e, minor = self.b, self.e, self.minor
        assert minor is not None
        axis = self.covers[minor]
        index, inside, start = self._where(at, axis)
        whole = start.const == 0 and e.same(self.update_dims[minor], self.dims[axis])

        def columns() -> None:
            def step(i: Index, carried: list[V]) -> list[V]:
                place = ix.add(b, i, start)
                where = (*index[:axis], place, *index[axis + 1 :])
                if whole:
                    self._combine({**at, minor: i}, where)
                else:
                    fits = e.between(place, ix.ZERO, self.frame.dim(self.dims[axis]))
                    fits = b.splat(fits, e.width)
                    old = e.mask, e.maybe_empty
                    e.mask, e.maybe_empty = (fits if e.mask is None else b.and_(e.mask, fits)), True
                    self._combine({**at, minor: i}, where)
                    e.mask, e.maybe_empty = old
                return carried

            walk(e, lo, hi, 1, [], step)

        b.if_then(inside, columns)

    def _combine(self, at: dict[int, Index], where: tuple[Index, ...]) -> None:
        b, e, frame = self.b, self.e, self.frame
        region = self.op.regions[0]
        count = len(self.xs)
        place = e.position(self.dims, where)
        source = tuple(at[k] for k in range(len(self.update_dims)))
        known: dict[Value, V] = {}
        for p, x, target in zip(region.params[:count], self.xs, self.targets, strict=True):
            if p.uses:
                known[p] = self._load(frame.buffer(target), x.dtype, place)
        for p, u in zip(region.params[count:], self.updates, strict=True):
            known[p] = b.splat(e.load(u, source), e.width)
        for target, x, v in zip(self.targets, self.xs, run_region(b, region, known), strict=True):
            e.store(x.dtype, frame.buffer(target), place, b.splat(v, e.width))

    def _load(self, p: V, dtype: DType, at: Index) -> V:
        """Like `Elemental.load_from`, of memory that this kernel writes."""
        b, e, elem = self.b, self.e, lanes.mem_elem(dtype)
        if e.width == 1:
            address = b.gep(p, ix.value(b, at, 1), elem)
            bits = b.load(elem, address) if e.mask is None else b.if_then(
                e.mask, lambda: [b.load(elem, address)], [const(0, elem)])[0]  # fmt: skip
        else:
            ty, address = vec(elem, e.width), b.gep(p, at.base, elem)
            bits = b.load(ty, address) if e.mask is None else b.masked_load(ty, address, e.mask)
        return lanes.from_memory(b, dtype, bits)


__all__ = ["emit_copy", "emit_scatter"]
