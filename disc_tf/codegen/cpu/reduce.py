"""Kernels of kind `reduce`: reductions that are not over rows, and reductions with several results (argmax, argmin,
any region); also rows fusions whose accesses are not affine.

If the minor dim is kept, lanes are neighbouring results (a column reduction: no horizontal step). If it is reduced,
lanes are neighbouring elements and combine in a fixed tree at the end. One result, or one block of columns, is a
task: its order of combination depends on extents only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu import collapse
from disc_tf.codegen.cpu import index as ix
from disc_tf.codegen.cpu.elemental import Elemental, Indices
from disc_tf.codegen.cpu.emit import emitter
from disc_tf.codegen.cpu.frame import KernelFrame
from disc_tf.codegen.cpu.index import Index
from disc_tf.codegen.cpu.loops import Space, fusion_ps, lanes_for, place, unravel, walk
from disc_tf.codegen.cpu.monoids import Combiner, known_splat
from disc_tf.codegen.kernel import Variant
from disc_tf.codegen.llvm import V
from disc_tf.costs import grain
from disc_tf.fusion.types import Fusion
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim, ceildiv, dmax, product

COLUMN_VECTORS = 4  # vectors of columns that are reduced together


@emitter("reduce")
def emit_reduce(fusion: Fusion, ctx: EmitContext) -> list[Variant]:
    """One kernel for one `reduce` op with its producers."""
    reduce = fusion.attrs.get("reduce") or next(op for op in fusion.ops if op.name == "reduce")
    return [Variant(None, (ReduceEmitter(fusion, reduce, ctx).emit(),))]


class ReduceEmitter:
    """Emits the kernel of one reduce op."""

    def __init__(self, fusion: Fusion, op: Op, ctx: EmitContext) -> None:
        self.op, self.ctx = op, ctx
        self.frame = KernelFrame(f"k_{fusion.name.replace('.', '_')}", ctx.target, ctx.env, (*fusion.inputs, *fusion.outputs))
        self.b = self.frame.b
        self.combiner = Combiner(op)
        self.xs = op.operands[:self.combiner.count]
        self.stored = [r for r in op.results if r in fusion.outputs]
        producers = [o for o in fusion.ops if o is not op]
        values = [v for o in fusion.ops for v in (*o.operands, *o.results)]
        self.e = Elemental(self.frame, lanes_for(ctx, values), producers)
        self.dims = self.xs[0].dims
        self._ps = fusion_ps(fusion, ctx, self.dims)
        self.reduced = set(op.attrs["dimensions"])
        switches = [k for k in range(1, len(self.dims)) if (k in self.reduced) != (_previous(self.dims, k) in self.reduced)]
        groups = collapse.groups(self.dims, producers, self.xs, ctx.env, keep=switches)
        self.space = Space(self.dims, groups)
        self.kept = [g for g, group in enumerate(groups) if group[0] not in self.reduced]
        self.inner = [g for g, group in enumerate(groups) if group[0] in self.reduced]

    def emit(self):
        columns = bool(self.kept) and self.kept[-1] == len(self.space.groups) - 1
        return self._columns() if columns else self._across()

    # -- shared -----------------------------------------------------------------------------------------------------

    def _inits(self) -> list[V]:
        """Initial values as scalars: constants, or loads."""
        return [self.e.at(v, ()) for v in self.op.operands[self.combiner.count:]]

    def _starts(self) -> list[V]:
        return [self.b.splat(v, self.e.width) for v in self.combiner.starts(self._inits())]

    def _finish(self, acc: Sequence[V]) -> list[V]:
        numbers = [known_splat(v) for v in self.op.operands[self.combiner.count:]]
        return self.combiner.finish(self.b, acc, self._inits(), numbers)

    def _indices(self, kept: dict[int, Index], inner: dict[int, Index]) -> Indices:
        return self.space.indices([(kept | inner)[g] for g in range(len(self.space.groups))])

    def _element(self, idx: Indices) -> list[V]:
        return [self.e.at(x, idx) for x in self.xs]

    def _nest(self, axes: Sequence[int], chosen: dict[int, Index], carried: list[V],
              body: Callable[[dict[int, Index], list[V]], list[V]]) -> list[V]:
        """Loops over groups `axes`, innermost `body(indices by group, carried)`."""
        if not axes:
            return body(chosen, carried)
        n = self.frame.dim(self.space.extents[axes[0]])
        return self.b.loop(0, n, 1, carried, lambda i, vals: self._nest(
            axes[1:], {**chosen, axes[0]: ix.uniform(i)}, vals, body), "axis")

    def _store(self, kept: dict[int, Index], results: Sequence[V]) -> None:
        """Store the results of one position; kept groups are whole dims of the result, in order."""
        at = ix.uniform(ix.ZERO)
        for g in self.kept:
            at = ix.plus(self.b, ix.scale(self.b, at, self.frame.dim(self.space.extents[g])), kept[g])
        for r, x in zip(self.op.results, results, strict=True):
            if r in self.stored:
                self.e.store(r.dtype, self.frame.buffer(r), at, x)

    def _work(self) -> Dim:
        return dmax(product(self.space.extents[g] for g in self.inner), 1)

    # -- the minor dim is kept ----------------------------------------------------------------------------------------

    def _columns(self):
        b, e, frame = self.b, self.e, self.frame
        block = e.width * COLUMN_VECTORS
        last = self.kept[-1]
        n = frame.dim(self.space.extents[last])
        outer = [self.space.extents[g] for g in self.kept[:-1]]
        blocks = ceildiv(self.space.extents[last], block)

        def task(t: V, _: list[V]) -> None:
            count = b.smax(frame.dim(blocks), 1)
            chosen = dict(zip(self.kept[:-1], unravel(frame, b.udiv(t, count), outer), strict=True))
            lo = b.mul(b.urem(t, count), block)
            hi = b.smin(b.add(lo, block), n)
            full = b.icmp("eq", b.sub(hi, lo), block)
            b.if_else(full, lambda: self._together(chosen, last, lo), lambda: self._one_by_one(chosen, last, lo, hi))

        b.loop(frame.begin, frame.end, 1, [], task, "task")
        return frame.finish(product(outer) * blocks, grain(self._work() * block, self._ps))

    def _together(self, chosen: dict[int, Index], last: int, lo: V) -> None:
        b, w, c = self.b, self.e.width, self.combiner
        starts = self._starts()

        def body(inner: dict[int, Index], acc: list[V]) -> list[V]:
            out: list[V] = []
            for u in range(COLUMN_VECTORS):
                kept = {**chosen, last: _lanes(b.add(lo, u * w), w)}
                xs = [b.splat(x, w) for x in self._element(self._indices(kept, inner))]
                out += c(b, acc[u * c.count:(u + 1) * c.count], xs)
            return out

        acc = self._nest(self.inner, {}, starts * COLUMN_VECTORS, body)
        for u in range(COLUMN_VECTORS):
            kept = {**chosen, last: _lanes(b.add(lo, u * w), w)}
            self._store(kept, self._finish(acc[u * c.count:(u + 1) * c.count]))

    def _one_by_one(self, chosen: dict[int, Index], last: int, lo: V, hi: V) -> None:
        b, w = self.b, self.e.width
        starts = self._starts()

        def step(i: Index, carried: list[V]) -> list[V]:
            kept = {**chosen, last: i}

            def body(inner: dict[int, Index], acc: list[V]) -> list[V]:
                return self.combiner(b, acc, [b.splat(x, w) for x in self._element(self._indices(kept, inner))])

            self._store(kept, self._finish(self._nest(self.inner, {}, starts, body)))
            return carried

        walk(self.e, lo, hi, 1, [], step)

    # -- the minor dim is reduced ---------------------------------------------------------------------------------------

    def _across(self):
        b, e, frame, c = self.b, self.e, self.frame, self.combiner
        outer = [self.space.extents[g] for g in self.kept]
        if not self.inner:
            e.width = 1

        def task(t: V, _: list[V]) -> None:
            kept = dict(zip(self.kept, unravel(frame, t, outer), strict=True))
            starts = self._starts()

            def run(lead: dict[int, Index], acc: list[V]) -> list[V]:
                if not self.inner:
                    return c(b, acc, self._element(self._indices(kept, {})))
                n = frame.dim(self.space.extents[self.inner[-1]])

                def step(i: Index, vals: list[V]) -> list[V]:
                    xs = [b.splat(x, e.width) for x in self._element(self._indices(kept, {**lead, self.inner[-1]: i}))]
                    if e.mask is not None:
                        xs = [b.select(e.mask, x, s) for x, s in zip(xs, starts, strict=True)]
                    return c(b, vals, xs)

                return walk(e, b.i64(0), n, 1, acc, step)

            acc = self._nest(self.inner[:-1], {}, starts, run)
            results = self._finish(c.lanes_together(b, acc))
            width, e.width = e.width, 1
            self._store(kept, results)
            e.width = width

        b.loop(frame.begin, frame.end, 1, [], task, "task")
        return frame.finish(product(outer), grain(self._work(), self._ps))


def _previous(dims: Sequence[Dim], k: int) -> int:
    """The nearest real dim before k (k - 1 when there is none)."""
    j = k - 1
    while j > 0 and dims[j] == 1:
        j -= 1
    return j


def _lanes(base: V, width: int) -> Index:
    return ix.ramp(base) if width > 1 else ix.uniform(base)


# -- rows without resolved accesses -----------------------------------------------------------------------------------


def emit_stages(fusion: Fusion, ctx: EmitContext) -> list[Variant]:
    """A rows fusion by way of `Elemental`: one walk per reduction, one for the outputs; everything else is recomputed.

    Outputs must have the space's or the rows' element count (reshapes of them included).
    """
    outer_dims, inner_dims = tuple(fusion.attrs["outer"]), tuple(fusion.attrs["inner"])
    dims = outer_dims + inner_dims
    frame = KernelFrame(f"k_{fusion.name.replace('.', '_')}", ctx.target, ctx.env, (*fusion.inputs, *fusion.outputs))
    b = frame.b
    values = [v for o in fusion.ops for v in (*o.operands, *o.results)]
    found: dict[Value, V] = {}
    ops = [op for op in fusion.ops if op.name != "reduce"]
    reduces = [op for op in fusion.ops if op.name == "reduce"]
    e = Elemental(frame, lanes_for(ctx, values), ops, lambda v, _: found.get(v))
    groups = [[k] for k in collapse.real(dims)]
    space = Space(dims, groups)
    split = sum(1 for g in groups if g[0] < len(outer_dims))

    def row(t: V, _: list[V]) -> None:
        found.clear()
        lead = unravel(frame, t, space.extents[:split])

        def visit(carried: list[V], step: Callable[[Indices, list[V]], list[V]]) -> list[V]:
            return _visit_inner(e, space, lead, split, carried, step)

        for op in reduces:
            found.update(zip(op.results, _reduce_row(e, op, dims, visit), strict=True))
        row_level, full = _split_outputs(fusion, ctx, dims, outer_dims)
        if full:
            def store(idx: Indices, carried: list[V]) -> list[V]:
                for v in full:
                    e.store(v.dtype, frame.buffer(v), e.position(dims, idx), e.at(v, place(e, idx, dims, v)))
                return carried

            visit([], store)
        start = space.indices([*lead, *[ix.uniform(ix.ZERO)] * (len(groups) - split)])[:len(outer_dims)]
        width, e.width = e.width, 1
        for v in row_level:
            e.store(v.dtype, frame.buffer(v), e.position(outer_dims, start), e.at(v, place(e, start, outer_dims, v)))
        e.width = width

    b.loop(frame.begin, frame.end, 1, [], row, "row")
    return [Variant(None, (frame.finish(product(outer_dims), grain(product(inner_dims), fusion_ps(fusion, ctx, dims))),))]


def _visit_inner(e: Elemental, space: Space, lead: list[Index], split: int, carried: list[V],
                 step: Callable[[Indices, list[V]], list[V]]) -> list[V]:
    """Loops over the inner groups of a row, the last in vectors."""
    b, frame = e.b, e.frame
    extents = space.extents[split:]

    def nest(axis: int, chosen: list[Index], values: list[V]) -> list[V]:
        if not extents:
            return step(space.indices(chosen), values)
        n = frame.dim(extents[axis])
        if axis == len(extents) - 1:
            return walk(e, b.i64(0), n, 1, values, lambda i, vals: step(space.indices([*chosen, i]), vals))
        return b.loop(0, n, 1, values, lambda i, vals: nest(axis + 1, [*chosen, ix.uniform(i)], vals), "axis")

    return nest(0, list(lead), carried)


def _reduce_row(e: Elemental, op: Op, dims: Sequence[Dim],
                visit: Callable[[list[V], Callable[[Indices, list[V]], list[V]]], list[V]]) -> list[V]:
    b, c = e.b, Combiner(op)
    inits = [e.at(v, ()) for v in op.operands[c.count:]]
    starts = [b.splat(v, e.width) for v in c.starts(inits)]

    def step(idx: Indices, acc: list[V]) -> list[V]:
        xs = [b.splat(e.at(x, place(e, idx, dims, x)), e.width) for x in op.operands[:c.count]]
        if e.mask is not None:
            xs = [b.select(e.mask, x, s) for x, s in zip(xs, starts, strict=True)]
        return c(b, acc, xs)

    acc = c.lanes_together(b, visit(starts, step))
    return c.finish(b, acc, inits, [known_splat(v) for v in op.operands[c.count:]])


def _split_outputs(fusion: Fusion, ctx: EmitContext, dims: Sequence[Dim],
                   outer: Sequence[Dim]) -> tuple[list[Value], list[Value]]:
    """(row-level outputs, full outputs). ValueError for one that is neither."""
    rows: list[Value] = []
    full: list[Value] = []
    for v in fusion.outputs:
        if ctx.env.same_elements(v.dims, dims) is True:
            full.append(v)
        elif ctx.env.same_elements(v.dims, outer) is True:
            rows.append(v)
        else:
            raise ValueError(f"output {v!r} of {fusion.name} has neither the rows' nor the space's element count")
    return rows, full


