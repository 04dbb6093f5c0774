"""Kernels of kind `loop`: elementwise and index ops over one iteration space, with one or several outputs.

The space is collapsed to as few dims as its accesses allow; the last one is walked in vectors with a masked tail.
A task is a block of fixed length of one innermost run, so results do not depend on how tasks are split.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu import collapse, lanes
from disc_tf.codegen.cpu import index as ix
from disc_tf.codegen.cpu.elemental import Elemental, Indices
from disc_tf.codegen.cpu.elemental_rules import reshape_index
from disc_tf.codegen.cpu.emit import emitter
from disc_tf.codegen.cpu.frame import KernelFrame
from disc_tf.codegen.cpu.index import Index
from disc_tf.codegen.cpu.transposed import emit_crossing, find_crossing
from disc_tf.codegen.kernel import Variant
from disc_tf.codegen.llvm import I64, V, const
from disc_tf.costs import grain, point_ps
from disc_tf.fusion.types import Fusion
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim, DimTooComplex, ceildiv, dmin, product
from disc_tf.ir.types import DType, TensorType

BLOCK = 8192  # elements of a task
#: parts of a line that have code of their own, at most
MOST_PARTS = 48

#: ops whose cost hides loop overhead: no unrolling for these
_HEAVY = {
    "exponential", "exponential_minus_one", "log", "log_plus_one", "tanh", "logistic", "erf", "erfc", "sine", "cosine",
    "tan", "power", "remainder", "atan2", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "cbrt",
    "lgamma", "digamma", "gather", "concatenate", "pad", "dynamic_update_slice",
}


def lanes_for(ctx: EmitContext, values: Sequence[Value]) -> int:
    """Lanes of a vector: of the 8-byte types if nothing narrower is computed, else of the 4-byte types."""
    sizes = {lanes.reg_elem(v.dtype).bytes for v in values if isinstance(v.type, TensorType) and v.rank
             and v.dtype is not DType.BOOL}
    return ctx.target.width(8 if sizes == {8} else 4)


def fusion_ps(fusion: Fusion, ctx: EmitContext, space: Sequence[Dim], ops: Sequence[Op] | None = None) -> float:
    """Picoseconds for a point of ``space`` (`costs.point_ps`). ops: those computed at each point; without, all of the fusion (beside a
    concatenation those that have an element for each point: of the parts, a point is in one)."""
    every = _Points(space)
    if ops is None:
        parts = any(op.name == "concatenate" for op in fusion.ops)
        ops = [op for op in fusion.ops if not parts or every.has(_walked(op))]
    moved = sum(v.dtype.bytes for v in (*fusion.inputs, *fusion.outputs) if every.has(v))
    return point_ps(ctx.target.name, ops, moved)


def _walked(op: Op) -> Value:
    """The value whose elements an op is carried out for: a reduction's is what it reads."""
    return op.operands[0] if op.name == "reduce" else op.results[0]


class _Points:
    """Which values have an element for each point of a space."""

    def __init__(self, space: Sequence[Dim]) -> None:
        self._dims, self._total = tuple(space), product(space)

    def has(self, v: Value) -> bool:
        if not isinstance(v.type, TensorType):
            return False
        try:
            return v.dims == self._dims or product(v.dims) == self._total
        except DimTooComplex:
            return False


def unroll_for(ops: Sequence[Op]) -> int:
    """How many vectors one step of the main loop takes."""
    work = [op for op in ops if op.name not in ("constant", "broadcast_in_dim", "reshape")]
    if any(op.name in _HEAVY for op in work) or len(work) > 12:
        return 1
    return 4 if len(work) <= 4 else 2


def walk(e: Elemental, lo: V, hi: V, unroll: int, carried: list[V],
         step: Callable[[Index, list[V]], list[V]]) -> list[V]:
    """Visit [lo, hi) in vectors: unrolled main loop, single vectors, then one masked vector.

    `step(index, carried)` handles one vector. Unrolled steps run after each other on the same carried values.
    """
    b, w = e.b, e.width
    count = b.sub(hi, lo)

    def round_down(by: int) -> V:
        return b.add(lo, b.and_(count, -by))

    def several(n: int) -> Callable[[V, list[V]], list[V]]:
        def body(i: V, values: list[V]) -> list[V]:
            for u in range(n):
                values = step(ix.ramp(b.add(i, u * w)) if w > 1 else ix.uniform(b.add(i, u)), values)
            return values

        return body

    start = lo
    if unroll > 1:
        whole = round_down(w * unroll)
        carried = b.loop(lo, whole, w * unroll, carried, several(unroll), "main")
        start = whole
    if w == 1:
        return b.loop(start, hi, 1, carried, several(1), "rest")
    end = round_down(w)
    carried = b.loop(start, end, w, carried, several(1), "vector")

    def tail() -> list[V]:
        left = b.sub(hi, end)
        e.mask = b.first_lanes(left, w)
        values = step(ix.ramp(end), carried)
        e.mask = None
        return values

    return b.if_then(b.icmp("slt", end, hi), tail, carried)


class Space:
    """A collapsed iteration space: groups of dims, the extent of each, and how to make indices of the original dims."""

    def __init__(self, dims: Sequence[Dim], groups: Sequence[Sequence[int]]) -> None:
        self.dims = tuple(dims)
        self.groups = [list(g) for g in groups]
        self.extents = [product(dims[k] for k in g) for g in self.groups]

    def indices(self, group_index: Sequence[Index]) -> Indices:
        """Index of every dim: the last dim of a group walks it, the others stay at 0."""
        out = [ix.uniform(ix.ZERO)] * len(self.dims)
        for g, i in zip(self.groups, group_index, strict=True):
            out[g[-1]] = i
        return tuple(out)


def unravel(frame: KernelFrame, linear: V, extents: Sequence[Dim]) -> list[Index]:
    """A scalar linear index as indices of `extents`, row-major."""
    b = frame.b
    out: list[Index] = []
    rest = linear
    for d in reversed(extents[1:]):
        n = b.smax(frame.dim(d), 1)
        out.append(ix.uniform(b.urem(rest, n)))
        rest = b.udiv(rest, n)
    if extents:
        out.append(ix.uniform(rest))
    return out[::-1]


def place(e: Elemental, idx: Indices, space: Sequence[Dim], v: Value) -> Indices:
    """The index of `v`'s own dims for a point of the space."""
    if len(v.dims) == len(space) and all(e.same(a, c) for a, c in zip(v.dims, space, strict=True)):
        return idx
    return reshape_index(e, idx, space, v.dims)


def _tiny(d: Dim, width: int) -> bool:
    return d.is_static and int(d) * 2 <= width


@emitter("loop")
def emit_loop(fusion: Fusion, ctx: EmitContext) -> list[Variant]:
    """One kernel; where it reads something across its space, one in tiles before it (`transposed.py`)."""
    crossing = find_crossing(fusion.attrs["region"], ctx.env) if "region" in fusion.attrs else None
    if crossing is None:
        return [_plain(fusion, ctx)]
    values = [*fusion.outputs, *(v for op in fusion.ops for v in (*op.operands, *op.results))]
    ps = fusion_ps(fusion, ctx, tuple(Dim.of(d) for d in fusion.attrs["space"]))
    tiled = emit_crossing(fusion, ctx, crossing, lanes_for(ctx, values), ps)
    return [tiled] if tiled.guard is None else [tiled, _plain(fusion, ctx)]


def _plain(fusion: Fusion, ctx: EmitContext) -> Variant:
    outputs = fusion.outputs
    dims = tuple(Dim.of(d) for d in fusion.attrs.get("space", outputs[0].dims))
    frame = KernelFrame(f"k_{fusion.name.replace('.', '_')}", ctx.target, ctx.env, (*fusion.inputs, *outputs))
    values = [*outputs, *(v for op in fusion.ops for v in (*op.operands, *op.results))]
    width = lanes_for(ctx, values)
    e = Elemental(frame, width, fusion.ops)
    space = Space(dims, collapse.groups(dims, fusion.ops, outputs, ctx.env))
    total = product(dims)
    if not space.groups:
        _emit_scalar(e, outputs)
        return Variant(None, (frame.finish(tasks=total),))
    inner = space.extents[-1]
    linear = len(space.groups) > 1 and _tiny(inner, width)
    if linear:  # a run shorter than a vector: walk everything, with index arithmetic in every lane
        outer_extents, inner = [], total
    else:
        outer_extents = space.extents[:-1]
    blocks = ceildiv(inner, BLOCK)
    tasks = product(outer_extents) * blocks
    parts = [] if linear else _parts(space, inner, fusion.ops)
    _emit_tasks(e, space, outputs, outer_extents, inner, blocks, linear, unroll_for(fusion.ops), parts)
    ps = fusion_ps(fusion, ctx, dims)
    return Variant(None, (frame.finish(tasks=tasks, grain=grain(dmin(inner, BLOCK), ps)),))


def _parts(space: Space, inner: Dim, ops: Sequence[Op]) -> list[tuple[int, int]]:
    """Where the last axis is cut, so that all points between two cuts are of the same part of each concatenation along it; empty where
    there is none, or the cuts are not known."""
    if not inner.is_static or int(inner) > BLOCK or len(space.groups[-1]) != 1:
        return []
    cuts = {0, int(inner)}
    for op in ops:
        if op.name == "concatenate" and op.result.dims == space.dims and op.attrs["dimension"] == len(space.dims) - 1:
            cuts |= _cuts(op, 0, frozenset(ops))
    ends = sorted(cuts)
    return list(itertools.pairwise(ends)) if 2 < len(ends) <= MOST_PARTS + 1 else []


def _cuts(op: Op, at: int, ops: frozenset[Op]) -> set[int]:
    axis, found = op.attrs["dimension"], set()
    for x in op.operands:
        if not x.dims[axis].is_static:
            break
        if x.op is not None and x.op in ops and x.op.name == "concatenate" and x.op.attrs["dimension"] == axis:
            found |= _cuts(x.op, at, ops)
        at += int(x.dims[axis])
        found.add(at)
    return found


def _emit_tasks(e: Elemental, space: Space, outputs: Sequence[Value], outer_extents: Sequence[Dim], inner: Dim, blocks: Dim,
                linear: bool, unroll: int, parts: Sequence[tuple[int, int]]) -> None:
    frame, b = e.frame, e.b
    n = frame.dim(inner)

    def task(t: V, _: list[V]) -> None:
        block_count = b.smax(frame.dim(blocks), 1)
        outer = unravel(frame, b.udiv(t, block_count), outer_extents)
        lo = b.mul(b.urem(t, block_count), BLOCK)
        hi = b.smin(b.add(lo, BLOCK), n)

        def step(i: Index, carried: list[V]) -> list[V]:
            if linear:
                grouped = _split_lanes(e, i, space.extents)
            else:
                grouped = [*outer, i]
            idx = space.indices(grouped)
            for v in outputs:
                where = place(e, idx, space.dims, v)
                x = e.at(v, where)
                # Outputs have as many elements as the space: their position is the linear one.
                at = i if linear else e.position(space.dims, idx)
                e.store(v.dtype, frame.buffer(v), at, x)
            return carried

        if not parts:
            walk(e, lo, hi, unroll, [], step)
        for first, stop in parts:

            def inside(i: Index, carried: list[V], known: tuple[int, int] = (first, stop)) -> list[V]:
                e.known = {i.base.name: known}
                return step(i, carried)

            walk(e, b.i64(first), b.i64(stop), unroll if stop - first >= unroll * e.width else 1, [], inside)

    b.loop(frame.begin, frame.end, 1, [], task, "task")


def _split_lanes(e: Elemental, i: Index, extents: Sequence[Dim]) -> list[Index]:
    out: list[Index] = []
    for d in reversed(extents[1:]):
        i, r = ix.divmod_by(e.b, i, e.dim(d), e.width)
        out.append(r)
    out.append(i)
    return out[::-1]


def _emit_scalar(e: Elemental, outputs: Sequence[Value]) -> None:
    """Every dim is 1: one element."""
    e.width = 1
    frame, b = e.frame, e.b
    zero = ix.uniform(const(0, I64))

    def task(t: V, _: list[V]) -> None:
        for v in outputs:
            x = e.at(v, (zero,) * v.rank)
            e.store(v.dtype, frame.buffer(v), zero, x)

    b.loop(frame.begin, frame.end, 1, [], task, "task")
