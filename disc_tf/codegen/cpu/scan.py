"""`disc.scan`: running sums, products and extremes along a dimension.

A line is walked in index order with one accumulator, rounded at every step, as TensorFlow's Cumsum does. Lanes are neighbouring
lines; a task is a line, or a block of neighbouring ones.
"""

from __future__ import annotations

import math

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu import index as ix
from disc_tf.codegen.cpu import lane_ops, lanes
from disc_tf.codegen.cpu.elemental import Elemental
from disc_tf.codegen.cpu.frame import KernelFrame
from disc_tf.codegen.cpu.index import Index
from disc_tf.codegen.cpu.loops import lanes_for, walk
from disc_tf.codegen.cpu.monoids import identity
from disc_tf.codegen.kernel import Kernel
from disc_tf.codegen.llvm import FnBuilder, V, const
from disc_tf.costs import grain, plain_ps
from disc_tf.fusion.types import Fusion
from disc_tf.ir.core import Op
from disc_tf.ir.dims import ceildiv, product
from disc_tf.ir.types import DType

LINES = 64  # neighbouring lines of a task
_OP = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


def _add_exponentials(b: FnBuilder, dtype: DType, acc: V, x: V) -> V:
    """log(exp(acc) + exp(x)); a NaN in ``x`` counts as ``acc``, as in TensorFlow's kernel."""
    low = b.select(lane_ops.compare(b, "LT", dtype, x, acc), x, acc)
    high = b.select(lane_ops.compare(b, "LT", dtype, acc, x), x, acc)
    ratio = lane_ops.unary(b, "exponential", dtype, lane_ops.binary(b, "subtract", dtype, low, high))
    total = lane_ops.binary(b, "add", dtype, lane_ops.unary(b, "log_plus_one", dtype, ratio), high)
    nothing = b.splat(const(-math.inf, lanes.reg_elem(dtype)), lane_ops.widest([high]))
    return b.select(lane_ops.compare(b, "EQ", dtype, high, nothing), high, total)


def emit_scan(fusion: Fusion, op: Op, ctx: EmitContext) -> list[Kernel]:
    """One kernel; any dtype but bool."""
    (x,), out = op.operands, op.result
    axis, kind = op.attrs["dimension"], op.attrs["kind"]
    reverse, exclusive = bool(op.attrs.get("reverse", False)), bool(op.attrs.get("exclusive", False))
    outer, length, inner = product(x.dims[:axis]), x.dims[axis], product(x.dims[axis + 1 :])
    frame = KernelFrame(f"k_{fusion.name.replace('.', '_')}", ctx.target, ctx.env, (x, out))
    b = frame.b
    e = Elemental(frame, 1 if inner == 1 else lanes_for(ctx, [x]), ())
    blocks = ceildiv(inner, LINES)
    # A sum starts from +0 (the monoid's identity is -0), so that a first -0 comes out as TF's 0.
    exponentials = kind == "logaddexp"
    first = 0.0 if kind == "add" and x.dtype.is_float else -math.inf if exponentials else identity(kind, x.dtype)
    start = const(first, lanes.reg_elem(x.dtype))

    def task(t: V, _: list[V]) -> None:
        count, lines, n = b.smax(frame.dim(blocks), 1), frame.dim(inner), frame.dim(length)
        base = b.mul(b.mul(b.udiv(t, count), n), lines)
        lo = b.mul(b.urem(t, count), LINES)
        hi = b.smin(b.add(lo, LINES), lines)

        def step(line: Index, carried: list[V]) -> list[V]:
            def along(i: V, acc: list[V]) -> list[V]:
                at = b.sub(b.sub(n, 1), i) if reverse else i
                place = ix.add(b, line, b.add(base, b.mul(at, lines)))
                element = b.splat(e.load_from(frame.buffer(x), x.dtype, place), e.width)
                if exponentials:
                    after = _add_exponentials(b, x.dtype, acc[0], element)
                else:
                    after = lane_ops.binary(b, _OP[kind], x.dtype, acc[0], element)
                e.store(out.dtype, frame.buffer(out), place, acc[0] if exclusive else after)
                return [after]

            b.loop(0, n, 1, [b.splat(start, e.width)], along, "along")
            return carried

        walk(e, lo, hi, 1, [], step)

    b.loop(frame.begin, frame.end, 1, [], task, "task")
    return [frame.finish(outer * blocks, grain(length * LINES, plain_ps(ctx.target.name)))]
