"""`sort` and `disc.topk`.

Orders by `<` or `>` on the first operand and top-k are calls of the runtime's library. Any other comparator becomes a kernel: a
bottom-up merge sort of positions, one line a task, with the comparator's code in the merge.
"""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu import index as ix
from disc_tf.codegen.cpu.elemental import Elemental
from disc_tf.codegen.cpu.frame import Buffer, KernelFrame
from disc_tf.codegen.cpu.monoids import run_region
from disc_tf.codegen.kernel import Kernel, LibraryCall, Temp
from disc_tf.codegen.llvm import I64, V, const
from disc_tf.costs import grain, plain_ps
from disc_tf.fusion.types import Fusion
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim, product
from disc_tf.runtime.artifact import DTYPES


def targets_of(fusion: Fusion, op: Op) -> list[Buffer]:
    """Where each result goes: a result that nobody uses still needs memory."""
    return [
        r if r in fusion.outputs else Temp(f"unused{i}", product(r.dims) * r.dtype.bytes) for i, r in enumerate(op.results)
    ]


def dtype_code(v: Value) -> Dim:
    """The runtime's number of the dtype."""
    return Dim.of(DTYPES[v.dtype.ir_name][0])


def emit_topk(fusion: Fusion, op: Op, ctx: EmitContext) -> list[LibraryCall]:
    """Library function ``topk``."""
    (x,) = op.operands
    scalars = (dtype_code(x), product(x.dims[:-1]), x.dims[-1], Dim.of(op.attrs["k"]))
    return [LibraryCall("topk", (x, *targets_of(fusion, op)), tuple(map(ctx.env.simplify, scalars)))]


def direction(op: Op) -> str | None:
    """``LT`` or ``GT`` if that is how the comparator compares the first operand's elements, else None."""
    block = op.regions[0]
    if len(block.ops) != 2 or block.ops[0].name != "compare" or block.results != (block.ops[0].result,):
        return None
    compare = block.ops[0]
    if compare.attrs["direction"] not in ("LT", "GT"):
        return None
    left, right = block.params[:2]
    if tuple(compare.operands) == (left, right):
        return compare.attrs["direction"]
    if tuple(compare.operands) == (right, left):
        return {"LT": "GT", "GT": "LT"}[compare.attrs["direction"]]
    return None


def emit_sort(fusion: Fusion, op: Op, ctx: EmitContext) -> Sequence[Kernel | LibraryCall]:
    """Library function ``sort``, or a kernel with the comparator in it. Always stable."""
    targets = targets_of(fusion, op)
    order = direction(op)
    if order is None:
        return [_emit_merge_sort(fusion, op, targets, ctx)]
    first, *payloads = op.operands
    axis = op.attrs["dimension"]
    buffers: list[Buffer] = []
    for x, target in zip(op.operands, targets, strict=True):
        buffers += [x, target]
    scalars = (
        dtype_code(first), product(first.dims[:axis]), first.dims[axis], product(first.dims[axis + 1 :]), Dim.of(int(order == "GT")),
        Dim.of(len(payloads)), *(Dim.of(p.dtype.bytes) for p in payloads),
    )  # fmt: skip
    return [LibraryCall("sort", tuple(buffers), tuple(map(ctx.env.simplify, scalars)))]


def _emit_merge_sort(fusion: Fusion, op: Op, targets: Sequence[Buffer], ctx: EmitContext) -> Kernel:
    dims, axis = op.operands[0].dims, op.attrs["dimension"]
    outer, length, inner = product(dims[:axis]), dims[axis], product(dims[axis + 1 :])
    frame = KernelFrame(f"k_{fusion.name.replace('.', '_')}", ctx.target, ctx.env, (*op.operands, *targets))
    b = frame.b
    e = Elemental(frame, 1, ())

    def line(t: V, _: list[V]) -> None:
        n, lines = frame.dim(length), b.smax(frame.dim(inner), 1)
        base = b.add(b.mul(b.mul(b.udiv(t, lines), n), lines), b.urem(t, lines))

        def place(i: V) -> ix.Index:
            return ix.uniform(b.add(base, b.mul(i, lines)))

        def position(p: V, i: V) -> V:
            return b.load(I64, b.gep(p, i, I64))

        def before(left: V, right: V) -> V:
            known: dict[Value, V] = {}
            for k, x in enumerate(op.operands):
                for side, i in enumerate((left, right)):
                    known[op.regions[0].params[2 * k + side]] = e.load_from(frame.buffer(x), x.dtype, place(i))
            return run_region(b, op.regions[0], known)[0]

        def merge(source: V, target: V, width: V) -> None:
            def pair(lo: V, _: list[V]) -> None:
                mid, hi = b.smin(b.add(lo, width), n), b.smin(b.add(lo, b.add(width, width)), n)

                def take(k: V, sides: list[V]) -> list[V]:
                    i, j = sides
                    # Reads stay inside the line where a side is used up; their comparison is not looked at then.
                    a, c = position(source, b.smin(i, b.sub(mid, 1))), position(source, b.smin(j, b.sub(hi, 1)))
                    right = b.and_(b.icmp("slt", j, hi), b.or_(b.icmp("sge", i, mid), before(c, a)))
                    b.store(b.select(right, c, a), b.gep(target, k, I64))
                    step = b.zext(right, I64)
                    return [b.add(i, b.sub(1, step)), b.add(j, step)]

                b.loop(lo, hi, 1, [lo, mid], take, "take")

            b.loop(0, n, b.add(width, width), [], pair, "pair")

        first = frame.scratch
        b.loop(0, n, 1, [], lambda i, _: b.store(i, b.gep(first, i, I64)), "fill")

        def round(carried: list[V]) -> list[V]:
            source, target, width = carried
            merge(source, target, width)
            return [target, source, b.add(width, width)]

        inits = [first, b.gep(first, n, I64), const(1, I64)]
        done = b.while_loop(inits, lambda c: b.icmp("slt", c[2], n), round)[0]
        for x, target in zip(op.operands, targets, strict=True):

            def put(i: V, _: list[V], x: Value = x, target: Buffer = target) -> None:
                e.store(x.dtype, frame.buffer(target), place(i), e.load_from(frame.buffer(x), x.dtype, place(position(done, i))))

            b.loop(0, n, 1, [], put, "put")

    b.loop(frame.begin, frame.end, 1, [], line, "line")
    return frame.finish(outer * inner, grain(length * 16, plain_ps(ctx.target.name)), length * 16)
