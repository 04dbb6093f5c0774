"""LSTMBlockCell, BlockLSTM(V2), GRUBlockCell: TF's fused recurrent cells, as products and elementwise ops; BlockLSTM as a loop.

The product with ``[x, h]`` is taken apart into one with ``x`` and one with ``h``, so that a loop's input product is that of all its steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType, TensorType
from disc_tf.lowering.bodies import build_region
from disc_tf.lowering.content import scalar_dim
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import lowering
from disc_tf.lowering.shapes import invalid

_HALF_AND_FLOAT = frozenset({DType.F16, DType.F32})


class _Weights(NamedTuple):
    """``wx [inputs, 4 cells]``, ``wh [cells, 4 cells]``, ``bias [4 cells]``; ``peepholes``: wci, wcf, wco ``[cells]`` or none."""

    wx: Value
    wh: Value
    bias: Value
    peepholes: tuple[Value, ...]
    #: the order of input gate, cell input, forget gate in the products' columns
    order: str
    forget_bias: float
    clip: float


def _require(ctx: LoweringContext, v: Value, rank: int, what: str) -> None:
    if v.rank != rank:
        raise invalid(f"{what} must be {rank}D, not of shape {v.type}")


def _equal(ctx: LoweringContext, a: Dim, b: Dim, what: str) -> None:
    ctx.check_dims_eq(a, b, message=f"{what}: {plain(a)} vs. {plain(b)}")


def _dot(ctx: LoweringContext, x: Value, w: Value) -> Value:
    return ctx.b.dot_general(x, w, lhs_contracting=(x.rank - 1,), rhs_contracting=(0,))


def _columns(ctx: LoweringContext, x: Value, k: int, cells: Dim) -> Value:
    """Columns ``k * cells`` up to the next ``cells`` of a matrix."""
    rows = x.dims[0]
    return ctx.b.slice(x, [0, cells * k], [rows, cells * (k + 1)], [1, 1])


def _rows(ctx: LoweringContext, w: Value, start: Dim, stop: Dim) -> Value:
    return ctx.b.slice(w, [start, 0], [stop, w.dims[1]], [1, 1])


def _per_cell(ctx: LoweringContext, v: Value, like: Value) -> Value:
    """A vector along the last dimension of ``like``."""
    return ctx.b.broadcast_in_dim(v, like.dims, [like.rank - 1])


def _clipped(ctx: LoweringContext, v: Value, clip: float) -> Value:
    return ctx.b.clamp(ctx.scalar(-clip, v.dtype), v, ctx.scalar(clip, v.dtype)) if clip > 0 else v


def _step(ctx: LoweringContext, w: _Weights, z: Value, cs: Value) -> list[Value]:
    """``i, cs, f, o, ci, co, h`` of the products ``z`` of one step and the state before it."""
    b, cells = ctx.b, cs.dims[1]
    i, ci, f = (_columns(ctx, z, w.order.index(gate), cells) for gate in ("i", "c", "f"))
    o = _columns(ctx, z, 3, cells)
    if w.forget_bias:
        f = b.add(f, ctx.splat(w.forget_bias, f))
    if w.peepholes:
        i = b.add(i, b.multiply(cs, _per_cell(ctx, w.peepholes[0], cs)))
        f = b.add(f, b.multiply(cs, _per_cell(ctx, w.peepholes[1], cs)))
    i, f, ci = b.logistic(i), b.logistic(f), b.tanh(ci)
    new = _clipped(ctx, b.add(b.multiply(ci, i), b.multiply(f, cs)), w.clip)
    if w.peepholes:
        o = b.add(o, b.multiply(new, _per_cell(ctx, w.peepholes[2], new)))
    o, co = b.logistic(o), b.tanh(new)
    return [i, new, f, o, ci, co, b.multiply(co, o)]


def _weights(ctx: LoweringContext, node: NodeView, args: Sequence[Value], *, order: str, forget: float, clip: float) -> _Weights:
    """Check and take apart ``w, wci, wcf, wco, b``; ``args`` begin with x, cs and h."""
    x, cs, h, w, wci, wcf, wco, bias = args
    inputs, cells = x.dims[-1], cs.dims[1]
    batch = x.dims[-2]
    for v, name in ((cs, "cs_prev"), (h, "h_prev")):
        _require(ctx, v, 2, name)
        _equal(ctx, v.dims[0], batch, f"{name}.dims(0) != batch_size")
        _equal(ctx, v.dims[1], cells, f"{name}.dims(1) != cell_size")
    _require(ctx, w, 2, "w")
    _require(ctx, bias, 1, "b")
    _equal(ctx, w.dims[0], inputs + cells, "w.dim_size(0) != input_size + cell_size")
    _equal(ctx, w.dims[1], cells * 4, "w.dim_size(1) != cell_size * 4")
    _equal(ctx, bias.dims[0], cells * 4, "b.dim_size(0) != cell_size * 4")
    peephole = bool(node.attr("use_peephole", False))
    for v, name in ((wci, "wci"), (wcf, "wcf"), (wco, "wco")):
        if peephole or node.op != "LSTMBlockCell":
            _require(ctx, v, 1, name)
            _equal(ctx, v.dims[0], cells, f"{name}.dim_size(0) != cell_size")
    w = ctx.cast_dims(w, (inputs + cells, cells * 4))
    peepholes = tuple(ctx.cast_dims(v, (cells,)) for v in (wci, wcf, wco)) if peephole else ()
    wx, wh = _rows(ctx, w, Dim.of(0), inputs), _rows(ctx, w, inputs, inputs + cells)
    return _Weights(wx, wh, ctx.cast_dims(bias, (cells * 4,)), peepholes, order, forget, clip)


@lowering("LSTMBlockCell", dtypes=_HALF_AND_FLOAT)
def lstm_block_cell(ctx: LoweringContext, node: NodeView, x: Value, cs: Value, h: Value, *rest: Value) -> list[Value]:
    """One step: input gate, cell state, forget gate, output gate, cell input, cell output, output; each ``[batch, cells]``."""
    for v, name in ((x, "x"), (cs, "cs_prev"), (h, "h_prev")):
        _require(ctx, v, 2, name)
    ctx.check_dim_cond(cs.dims[0] * cs.dims[1], "GE", 1, message="cs_prev_tensor is empty")
    clip = float(node.attr("cell_clip", 3.0))
    w = _weights(ctx, node, (x, cs, h, *rest), order="icf", forget=float(node.attr("forget_bias", 1.0)), clip=clip)
    batch, cells = x.dims[0], cs.dims[1]
    cs, h = ctx.cast_dims(cs, (batch, cells)), ctx.cast_dims(h, (batch, cells))
    return _step(ctx, w, _products(ctx, w, _dot(ctx, x, w.wx), h), cs)


def _products(ctx: LoweringContext, w: _Weights, of_x: Value, h: Value) -> Value:
    z = ctx.b.add(of_x, _dot(ctx, h, w.wh))
    return ctx.b.add(z, _per_cell(ctx, w.bias, z))


@lowering("BlockLSTM", "BlockLSTMV2", dtypes=_HALF_AND_FLOAT)
def block_lstm(ctx: LoweringContext, node: NodeView, most: Value, x: Value, cs: Value, h: Value, *rest: Value) -> list[Value]:
    """All steps: what LSTMBlockCell gives, ``[time, batch, cells]`` each, zeros from step ``seq_len_max`` on."""
    _require(ctx, x, 3, "x")
    for v, name in ((cs, "cs_prev"), (h, "h_prev")):
        _require(ctx, v, 2, name)
    if most.rank:
        raise invalid("seq_len_max must be rank 0")
    first = node.op == "BlockLSTM"
    clip = float(node.attr("cell_clip", 3.0 if first else 0.0))
    forget = float(node.attr("forget_bias", 1.0)) if first else 0.0
    w = _weights(ctx, node, (x, cs, h, *rest), order="icf" if first else "ifc", forget=forget, clip=clip)
    b, (steps, batch, inputs), cells = ctx.b, x.dims, cs.dims[1]
    n = scalar_dim(ctx, most, "seq_len_max")  # TF aborts the process for one out of range
    ctx.check_dim_cond(n, "GE", 0, message="seq_len_max must not be negative")
    ctx.check_dim_cond(n, "LE", steps, message="seq_len_max is more than the number of steps")
    state = TensorType(x.dtype, (batch, cells))
    stack = TensorType(x.dtype, (steps, batch, cells))
    i64 = TensorType(DType.I64, ())
    types = [i64, state, state, *([stack] * 7)]
    zero, last = ctx.scalar(0, DType.I64), ctx.dim(n)

    def test(params: Sequence[Value]) -> list[Value]:
        inside = ctx.b.compare(params[0], ctx.dim(steps), "LT")
        return [ctx.b.and_(inside, ctx.b.compare(params[0], last, "LT"))]

    def step(params: Sequence[Value]) -> list[Value]:
        i, cs, h, *stacks = params
        now = ctx.b  # the region's
        row = now.reshape(now.dynamic_slice(x, [i, zero, zero], (1, batch, inputs)), (batch, inputs))
        made = _step(ctx, w, _products(ctx, w, _dot(ctx, row, w.wx), h), cs)
        written = [
            now.dynamic_update_slice(s, now.reshape(v, (1, batch, cells)), [i, zero, zero]) for s, v in zip(stacks, made, strict=True)
        ]
        return [now.add(i, ctx.scalar(1, DType.I64)), made[1], made[6], *written]

    body = build_region(ctx, types, step)
    cond = build_region(ctx, types, test)
    start = [zero, ctx.cast_dims(cs, state.dims), ctx.cast_dims(h, state.dims), *([b.zeros(x.dtype, stack.dims)] * 7)]
    return list(b.while_(start, cond, body))[3:]


@lowering("GRUBlockCell", dtypes=frozenset({DType.F32}))
def gru_block_cell(
    ctx: LoweringContext, _node: NodeView, x: Value, h: Value, w_ru: Value, w_c: Value, b_ru: Value, b_c: Value
) -> list[Value]:
    """One step: reset gate, update gate, cell input, output; each ``[batch, cells]``."""
    for v, name, rank in ((x, "x", 2), (h, "h_prev", 2), (w_ru, "w_ru", 2), (w_c, "w_c", 2), (b_ru, "b_ru", 1), (b_c, "b_c", 1)):
        _require(ctx, v, rank, name)
    b, (batch, inputs), cells = ctx.b, x.dims, h.dims[1]
    _equal(ctx, h.dims[0], batch, "h_prev.dims(0) != batch_size")
    _equal(ctx, w_ru.dims[0], inputs + cells, "w_ru.dim_size(0) != input_size + cell_size")
    _equal(ctx, w_ru.dims[1], cells * 2, "w_ru.dim_size(1) != cell_size * 2")
    _equal(ctx, w_c.dims[0], inputs + cells, "w_c.dim_size(0) != input_size + cell_size")
    _equal(ctx, w_c.dims[1], cells, "w_c.dim_size(1) != cell_size")
    _equal(ctx, b_ru.dims[0], cells * 2, "b_ru.dim_size(0) != cell_size * 2")
    _equal(ctx, b_c.dims[0], cells, "b_c.dim_size(0) != cell_size")
    h = ctx.cast_dims(h, (batch, cells))
    w_ru, w_c = ctx.cast_dims(w_ru, (inputs + cells, cells * 2)), ctx.cast_dims(w_c, (inputs + cells, cells))
    b_ru, b_c = ctx.cast_dims(b_ru, (cells * 2,)), ctx.cast_dims(b_c, (cells,))

    def both(w: Value, bias: Value, state: Value) -> Value:
        z = b.add(_dot(ctx, x, _rows(ctx, w, Dim.of(0), inputs)), _dot(ctx, state, _rows(ctx, w, inputs, inputs + cells)))
        return b.add(z, _per_cell(ctx, bias, z))

    gates = b.logistic(both(w_ru, b_ru, h))
    r, u = _columns(ctx, gates, 0, cells), _columns(ctx, gates, 1, cells)
    c = b.tanh(both(w_c, b_c, b.multiply(h, r)))
    one = ctx.splat(1, u)
    return [r, u, c, b.add(b.multiply(u, h), b.multiply(b.subtract(one, u), c))]
