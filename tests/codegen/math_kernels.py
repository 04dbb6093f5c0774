"""The vector functions of `lane_ops`, compiled for arrays of each float type and run under the mode of the runtime (denormals flushed)."""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Callable

import numpy as np

from disc_tf.codegen.compile import compile_image
from disc_tf.codegen.cpu import lane_ops, lanes
from disc_tf.codegen.cpu.target import V2, CpuTarget
from disc_tf.codegen.llvm import I64, PTR, FnBuilder, ModuleText
from disc_tf.ir.types import DType

#: flush-to-zero and denormals-are-zero, all exceptions masked, round to nearest; and the mode of a process that begins
FLUSHED, PLAIN = 0x9FC0, 0x1F80
_BLOCK = 64  # lanes of the widest vector of the narrowest type, or more


def load_image(image: bytes) -> ctypes.CDLL:
    """A shared library from its bytes; the name is new each time, since the loader takes equal names for one library."""
    with tempfile.NamedTemporaryFile(suffix=".so") as f:
        f.write(image)
        f.flush()
        return ctypes.CDLL(f.name)


@functools.cache
def set_mode() -> Callable[[int], None]:
    """A function that sets the SSE control register of the calling thread."""
    text = (
        "declare void @llvm.x86.sse.ldmxcsr(ptr)\n"
        "define void @set_mxcsr(i32 %v) nounwind {\n  %p = alloca i32\n  store i32 %v, ptr %p\n"
        "  call void @llvm.x86.sse.ldmxcsr(ptr %p)\n  ret void\n}\n"
    )
    return load_image(compile_image(text, V2, ["set_mxcsr"])).set_mxcsr


def _unit(target: CpuTarget, name: str, dtype: DType) -> FnBuilder:
    """o[i] = name(x[i], y[i]) over n elements, a multiple of the width."""
    width = target.width(lanes.reg_elem(dtype).bytes)
    b = FnBuilder(f"{name}_{dtype}", [("x", PTR), ("y", PTR), ("o", PTR), ("n", I64)], fma=target.fma, attrs=target.fn_attrs)
    x, y, o, n = b.params
    elem = lanes.mem_elem(dtype)

    def load(p, i):
        return lanes.from_memory(b, dtype, b.load(lanes.mem_ty(dtype, width), b.gep(p, i, elem)))

    def body(i, _):
        if name in lane_ops.FLOAT_BINARY:
            result = lane_ops.binary(b, name, dtype, load(x, i), load(y, i))
        else:
            result = lane_ops.unary(b, name, dtype, load(x, i))
        b.store(lanes.to_memory(b, dtype, result), b.gep(o, i, elem))

    b.loop(0, n, width, [], body)
    b.ret()
    return b


@functools.cache
def _library(target: CpuTarget, dtype: DType) -> ctypes.CDLL:
    """All functions of one type."""
    module = ModuleText()
    units = [_unit(target, name, dtype) for name in (*lane_ops.FLOAT_UNARY, *lane_ops.FLOAT_BINARY)]
    for u in units:
        module.add(u)
    return load_image(compile_image(module.text(), target, [u.name for u in units]))


def run(target: CpuTarget, name: str, dtype: DType, x: np.ndarray, y: np.ndarray | None = None, mode: int = FLUSHED) -> np.ndarray:
    """`name` of every element, as the code of ``target`` gives it."""
    x = np.ascontiguousarray(x, dtype.np)
    pad = np.ones(-len(x) % _BLOCK, dtype.np)
    xs = np.concatenate([x, pad])
    ys = xs if y is None else np.concatenate([np.ascontiguousarray(y, dtype.np), pad])
    out = np.empty_like(xs)
    fn = getattr(_library(target, dtype), f"{name}_{dtype}")
    control = set_mode()
    control(mode)
    try:
        fn(*(ctypes.c_void_p(a.ctypes.data) for a in (xs, ys, out)), ctypes.c_int64(len(xs)))
    finally:
        control(PLAIN)
    return out[: len(x)]
