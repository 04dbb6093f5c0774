"""Quantized tensors: QuantizeV2 and Dequantize, in TF's own arithmetic (f32), so that they give TF's integers.

A quantized type is the integer type of the same bits here; the graph's types (quint8 ...) come back where values leave a cluster.
"""

from __future__ import annotations

import numpy as np

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.registry import lowering
from disc_tf.lowering.shapes import invalid

_TYPES = frozenset({DType.I8, DType.U8, DType.I16, DType.U16, DType.I32})
_FLOAT_MAX = float(np.finfo(np.float32).max)


def _f32(x: float) -> float:
    return float(np.float32(x))


class _Ranges:
    """``min_range`` and ``max_range`` of a node with arithmetic on them: scalars, or a vector along ``axis``."""

    def __init__(self, ctx: LoweringContext, node: NodeView, x: Value, low: Value, high: Value) -> None:
        self.ctx, self.dims = ctx, x.dims
        self.axis = int(node.attr("axis", -1))
        if self.axis < -1 or self.axis >= x.rank:
            raise invalid(f"Axis must be less than input dimension({x.rank}), got {self.axis}")
        if self.axis >= 0 and node.attr("mode", "MIN_COMBINED") == "MIN_FIRST":
            raise invalid(f"MIN_FIRST mode is not implemented for {node.op} with axis != -1.")
        self.shape = (low.dims, high.dims)
        wanted = [x.dims[self.axis]] if self.axis >= 0 else []
        self.low, self.high = (self._fitted(v, wanted) for v in (low, high))

    def _fitted(self, v: Value, wanted: list[Dim]) -> Value:
        if self.axis < 0:  # one element in any shape
            count = v.tensor.num_elements()
            self.ctx.check_dims_eq(count, 1, message="min_range and max_range must have one element")
            return self.ctx.b.reshape(v, [])
        if v.rank != 1:
            raise invalid(f"min_range and max_range must be vectors along the axis, not {v.type}")
        self.ctx.check_dims_eq(v.dims[0], wanted[0], message="min_range and max_range must have as many elements as the axis")
        return self.ctx.cast_dims(v, wanted)

    def spread(self, v: Value) -> Value:
        """A range broadcast to the operand's dims."""
        return self.ctx.b.broadcast_in_dim(v, self.dims, [self.axis] if self.axis >= 0 else [])

    def number(self, value: float) -> Value:
        return self.ctx.splat(value, self.low)

    def ratio(self, bound: int, v: Value) -> Value:
        """``bound / v`` where both have one sign, else the greatest number."""
        b = self.ctx.b
        if bound == 0:
            return self.number(_FLOAT_MAX)
        same = b.compare(v, self.number(0.0), "GT" if bound > 0 else "LT")
        return b.select(same, b.divide(self.number(_f32(bound)), v), self.number(_FLOAT_MAX))


def _limits(dtype: DType) -> tuple[int, int]:
    info = np.iinfo(dtype.np)
    return int(info.min), int(info.max)


def _widened(r: _Ranges, ensured: float) -> tuple[Value, Value]:
    """The range with 0 in it and some width."""
    b = r.ctx.b
    r.ctx.check(b.compare(r.high, r.low, "GE"), message="input_max_range must be larger than input_min_range.")
    zero = r.number(0.0)
    low = b.minimum(zero, r.low)
    widest = b.maximum(r.number(1.0), b.maximum(b.abs(r.low), b.abs(r.high)))
    high = b.maximum(r.high, b.add(low, b.multiply(widest, r.number(_f32(ensured)))))
    return low, b.maximum(zero, high)


@lowering("QuantizeV2", dtypes={"T": _TYPES}, limits="NaN becomes what TF's conversion gives")
def quantize(ctx: LoweringContext, node: NodeView, x: Value, low: Value, high: Value) -> list[Value]:
    """Floats as integers and the range that these stand for; modes MIN_COMBINED, MIN_FIRST and SCALED, one range or one a slice."""
    b, dtype, mode = ctx.b, node.dtype("T"), node.attr("mode", "MIN_COMBINED")
    even = node.attr("round_mode", "HALF_AWAY_FROM_ZERO") == "HALF_TO_EVEN"
    if even and mode != "SCALED":
        raise invalid(f"Round mode 'HALF_TO_EVEN' only supported for mode 'SCALED', but mode is '{mode}'.")
    r = _Ranges(ctx, node, x, low, high)
    low, high = _widened(r, float(node.attr("ensure_minimum_range", 0.01)))
    least, most = _limits(dtype)
    if mode == "SCALED":
        least += bool(node.attr("narrow_range", False))
        scale = b.minimum(r.ratio(least, low), r.ratio(most, high))
        low, high = (b.divide(r.number(_f32(v)), scale) for v in (least, most))
        clamped = b.maximum(b.minimum(x, r.spread(high)), r.spread(low))
        scaled = b.multiply(clamped, r.spread(scale))
        rounded = b.round_nearest_even(scaled) if even else b.round_nearest_afz(scaled)
    elif mode == "MIN_COMBINED":
        scale = b.divide(r.number(_f32(most - least)), b.subtract(high, low))
        clamped = b.maximum(b.minimum(x, r.spread(high)), r.spread(low))
        scaled = b.multiply(b.subtract(clamped, r.spread(low)), r.spread(scale))
        if dtype.is_signed:
            rounded = b.round_nearest_afz(b.subtract(scaled, ctx.splat(_f32((most - least + 1) // 2), scaled)))
        else:
            rounded = b.add(scaled, ctx.splat(0.5, scaled))
    elif mode == "MIN_FIRST":
        rounded = _min_first(r, x, low, high, least, most)
    else:
        raise invalid(f"Mode string must be 'MIN_COMBINED', 'MIN_FIRST', or 'SCALED', is '{mode}'")
    shapes = r.shape if r.axis < 0 else ([low.dims[0]], [high.dims[0]])
    ends = [b.reshape(v, []) if r.axis < 0 else v for v in (low, high)]
    return [b.convert(rounded, dtype), *(b.reshape(v, s if r.axis >= 0 else []) for v, s in zip(ends, shapes, strict=True))]


def _min_first(r: _Ranges, x: Value, low: Value, high: Value, least: int, most: int) -> Value:
    """Rounded relative to the rounded start of the range."""
    b, steps = r.ctx.b, most - least
    apart = b.compare(low, high, "NE")
    width = r.ctx.b.convert(b.subtract(high, low), DType.F64)
    scale = b.convert(b.divide(r.ctx.splat(float(steps), width), width), DType.F32)
    scale = b.select(apart, scale, r.number(0.0))
    start = b.round_nearest_afz(b.multiply(low, scale))
    offset = b.subtract(start, r.number(_f32(least)))
    placed = b.subtract(b.round_nearest_afz(b.multiply(x, r.spread(scale))), r.spread(offset))
    lowest = r.ctx.splat(max(_f32(least), -2147483648.0), placed)
    return b.minimum(b.maximum(placed, lowest), r.ctx.splat(min(_f32(most), 2147483520.0), placed))


@lowering("Dequantize", dtypes={"T": _TYPES, "dtype": {DType.F32, DType.BF16}})
def dequantize(ctx: LoweringContext, node: NodeView, x: Value, low: Value, high: Value) -> Value:
    """The numbers that integers stand for; modes MIN_COMBINED, MIN_FIRST and SCALED, one range or one a slice."""
    b, dtype, mode = ctx.b, x.dtype, node.attr("mode", "MIN_COMBINED")
    target = node.dtype("dtype", DType.F32)
    if target == DType.BF16 and mode != "MIN_COMBINED":
        raise invalid(f"When output type is bfloat16, Mode string must be 'MIN_COMBINED', is '{mode}'")
    r = _Ranges(ctx, node, x, low, high)
    low, high = r.low, r.high
    least, most = _limits(dtype)
    wide = b.convert(x, DType.F32)
    if mode == "MIN_COMBINED":
        scale = b.divide(b.subtract(high, low), r.number(_f32(_f32(most) - _f32(least))))
        half = _f32((most - least + 1) // 2) if dtype.is_signed else 0.0
        value = b.add(b.multiply(b.add(wide, ctx.splat(half, wide)), r.spread(scale)), r.spread(low))
    elif mode == "SCALED":
        least += bool(node.attr("narrow_range", False))
        scale = b.divide(high, r.number(_f32(most)))
        if least:
            scale = b.maximum(b.divide(low, r.number(_f32(least))), scale)
        if dtype == DType.I32:  # TF's kernel goes through int once more, where what rounds up to 2^31 becomes -2^31
            wide = b.convert(b.convert(wide, DType.I32), DType.F32)
        value = b.multiply(wide, r.spread(scale))
    elif mode == "MIN_FIRST":
        width = b.convert(b.subtract(high, low), DType.F64)
        scale = b.convert(b.divide(width, ctx.splat(float(most - least), width)), DType.F32)
        start = b.multiply(b.round_nearest_afz(b.divide(low, scale)), scale)
        start = b.select(b.compare(low, high, "EQ"), low, start)
        base = b.subtract(start, b.multiply(r.number(_f32(least)), scale))
        value = b.add(r.spread(base), b.multiply(wide, r.spread(scale)))
    else:
        raise invalid(f"Mode string must be 'MIN_COMBINED', 'MIN_FIRST', or 'SCALED', is '{mode}'")
    return b.convert(value, target)
