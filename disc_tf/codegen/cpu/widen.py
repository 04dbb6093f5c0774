"""Loading stored elements as accumulator elements: f16 and bf16 to f32, narrow integers to i32."""

from __future__ import annotations

from disc_tf.codegen.cpu import lanes
from disc_tf.codegen.llvm import FnBuilder, Ty, V
from disc_tf.ir.types import DType


def load_widened(b: FnBuilder, stored: DType, ty: Ty, p: V, count: int) -> V:
    """`count` elements of type `stored` at `p` as `ty`, the accumulator type of `stored`."""
    x = lanes.from_memory(b, stored, b.load(lanes.mem_ty(stored, count), p))
    if stored.is_int:
        return b.sext(x, ty) if stored.is_signed else b.zext(x, ty)
    return b.fpext(x, ty)
