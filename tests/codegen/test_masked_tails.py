"""Vector tails write their own elements only: results between guard bytes, at static and symbolic sizes."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.compiler import compile_module
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module, Value
from disc_tf.ir.types import DType, TensorType
from disc_tf.runtime.executable import host_isa
from disc_tf.testing.native_case import TARGETS, load

MARGIN = 256


def loop(b: Builder, x: Value, dtype: DType) -> Value:
    return b.convert(x, dtype)


def rows(b: Builder, x: Value, dtype: DType) -> Value:
    total = b.broadcast_in_dim(b.reduce(x, (1,), "add"), x.dims, (0,))
    return b.convert(b.subtract(x, total), dtype)


def product(b: Builder, x: Value, dtype: DType) -> Value:
    w = b.constant(np.eye(int(x.dims[1]), dtype=np.float32))
    return b.convert(b.dot_general(x, w, (1,), (0,)), dtype)


def compiled(make, n: int, symbolic: bool, dtype: DType, target: str) -> bytes:
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    x = fn.add_arg(TensorType.of(DType.F32, ("m", "n") if symbolic else ("m", n)), ArgInfo("x"))
    b.return_([make(b, x, dtype)])
    fn.result_names = ["y"]
    module = Module()
    module.add(fn)
    return compile_module(module, [target], host_results=[False]).executable


@pytest.mark.parametrize("target", [t for t in TARGETS if t <= host_isa()])
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.I8, DType.I16, DType.F32], ids=str)
@pytest.mark.parametrize(
    ("make", "n", "symbolic"), [(loop, 17, False), (rows, 17, False), (rows, 17, True), (product, 17, False), (product, 33, False)]
)
def test_nothing_around_is_written(make, n, symbolic, dtype, target):
    x = np.arange(n, dtype=np.float32).reshape(1, n) % 5
    size = n * dtype.bytes
    raw = np.full(size + 2 * MARGIN, 0xA5, np.uint8)
    out = raw[MARGIN : MARGIN + size].view(dtype.np).reshape(1, n)
    with load(compiled(make, n, symbolic, dtype, target), target) as executable:
        executable.run([x], [out])
    want = x - x.sum(1, keepdims=True) if make is rows else x
    assert np.array_equal(out.astype(np.float32), want)
    assert (raw[:MARGIN] == 0xA5).all()
    assert (raw[MARGIN + size :] == 0xA5).all()
