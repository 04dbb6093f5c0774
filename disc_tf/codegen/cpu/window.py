"""`reduce_window`: each result element combines the elements of one window, in row-major order of the window.

Lanes are neighbouring results of the minor dimension. Padding and the gaps of a base dilation hold the initial value.
"""

from __future__ import annotations

from collections.abc import Callable

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu import index as ix
from disc_tf.codegen.cpu.elemental import Elemental, Indices
from disc_tf.codegen.cpu.frame import KernelFrame
from disc_tf.codegen.cpu.index import Index
from disc_tf.codegen.cpu.loops import BLOCK, lanes_for, unravel, walk
from disc_tf.codegen.cpu.monoids import Combiner, known_splat
from disc_tf.codegen.kernel import Kernel
from disc_tf.codegen.llvm import I1, V, const
from disc_tf.costs import grain, plain_ps
from disc_tf.fusion.types import Fusion
from disc_tf.ir.core import Op
from disc_tf.ir.dims import Dim, ceildiv, dmin, product


def emit_reduce_window(fusion: Fusion, op: Op, ctx: EmitContext) -> list[Kernel]:
    """One kernel; any region of elementwise ops, any number of operands."""
    return [_Window(fusion, op, ctx).emit()]


class _Window:
    def __init__(self, fusion: Fusion, op: Op, ctx: EmitContext) -> None:
        self.op, self.combiner = op, Combiner(op)
        self.xs = op.operands[: self.combiner.count]
        self.inits = op.operands[self.combiner.count :]
        self.dims = op.results[0].dims
        self.stored = [r for r in op.results if r in fusion.outputs]
        name = f"k_{fusion.name.replace('.', '_')}"
        self.frame = KernelFrame(name, ctx.target, ctx.env, (*op.operands, *self.stored))
        self.b = self.frame.b
        self.e = Elemental(self.frame, lanes_for(ctx, self.xs) if self.dims else 1, ())

    def emit(self) -> Kernel:
        b, frame = self.b, self.frame
        inner = self.dims[-1] if self.dims else Dim.of(1)
        outer, blocks = self.dims[:-1], ceildiv(inner, BLOCK)

        def task(t: V, _: list[V]) -> None:
            count = b.smax(frame.dim(blocks), 1)
            lead = unravel(frame, b.udiv(t, count), outer)
            lo = b.mul(b.urem(t, count), BLOCK)
            hi = b.smin(b.add(lo, BLOCK), frame.dim(inner))

            def step(i: Index, carried: list[V]) -> list[V]:
                self._result((*lead, i) if self.dims else ())
                return carried

            walk(self.e, lo, hi, 1, [], step)

        b.loop(frame.begin, frame.end, 1, [], task, "task")
        work = 1
        for n in self.op.attrs["window_dimensions"]:
            work *= int(n)
        return frame.finish(product(outer) * blocks, grain(dmin(inner, BLOCK) * work, plain_ps(self.frame.target.name)))

    def _result(self, idx: Indices) -> None:
        b, e, c = self.b, self.e, self.combiner
        inits = [e.load(v, ()) for v in self.inits]
        starts = [b.splat(v, e.width) for v in c.starts(inits)]

        def visit(acc: list[V], window: tuple[V, ...]) -> list[V]:
            return c(b, acc, [b.splat(v, e.width) for v in self._elements(idx, window, inits)])

        acc = self._windows(starts, (), visit)
        results = c.finish(b, acc, inits, [known_splat(v) for v in self.inits])
        for r, v in zip(self.op.results, results, strict=True):
            if r in self.stored:
                e.store(r.dtype, self.frame.buffer(r), e.position(self.dims, idx), b.splat(v, e.width))

    def _windows(self, acc: list[V], at: tuple[V, ...], visit: Callable[[list[V], tuple[V, ...]], list[V]]) -> list[V]:
        """Loops over the positions of a window."""
        sizes = self.op.attrs["window_dimensions"]
        if len(at) == len(sizes):
            return visit(acc, at)
        return self.b.loop(
            0, int(sizes[len(at)]), 1, acc, lambda i, vals: self._windows(vals, (*at, i), visit), "window")  # fmt: skip

    def _elements(self, idx: Indices, window: tuple[V, ...], inits: list[V]) -> list[V]:
        """The operands' elements at one position of the window; the initial values outside of the operands."""
        b, e, a = self.b, self.e, self.op.attrs
        inside: V = const(1, I1)
        where: list[Index] = []
        for k, extent in enumerate(self.xs[0].dims):
            i = ix.scale(b, idx[k], b.i64(int(a["window_strides"][k])))
            offset = b.mul(window[k], int(a["window_dilations"][k]))
            low, spread = Dim.of(a["padding_low"][k]), int(a["base_dilations"][k])
            i = ix.add(b, i, b.sub(offset, e.dim(low)))
            if spread > 1:
                raw = ix.value(b, i, e.width)
                i, rest = ix.divmod_by(b, ix.general(b.smax(raw, 0)), b.i64(spread), e.width)
                exact = b.icmp("eq", ix.value(b, rest, e.width), 0)
                inside = _both(e, inside, _both(e, b.icmp("sge", raw, 0), exact))
            inside = _both(e, inside, e.between(i, ix.ZERO, e.dim(extent)))
            where.append(i)
        index = tuple(where)
        return [
            e.when(inside, lambda x=x: e.load(x, index), lambda v=v: v, x.dtype) for x, v in zip(self.xs, inits, strict=True)
        ]


def _both(e: Elemental, p: V, q: V) -> V:
    width = max(p.lanes, q.lanes)
    return e.b.and_(e.b.splat(p, width), e.b.splat(q, width))
