"""Large splat constants in memory are made by a kernel, not stored in the executable."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.compiler import compile_module
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module
from disc_tf.ir.types import DType, TensorType
from disc_tf.runtime.executable import Executable


def compiled(build) -> bytes:
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    x = fn.add_arg(TensorType.of(DType.F32, ("n", 512)), ArgInfo("x"))
    results = build(b, x)
    fn.result_names = [f"r{i}" for i in range(len(results))]
    b.return_(results)
    module = Module()
    module.add(fn)
    return compile_module(module, ["x86-64-v2"], host_results=[False] * len(results), verify_passes=True).executable


@pytest.mark.parametrize("shape", [(512, 300), (1 << 20, 1 << 20)])
def test_result(shape):
    ones = np.broadcast_to(np.float32(1), shape)
    data = compiled(lambda b, x: [b.add(x, x), b.constant(ones)])
    assert len(data) < 50_000
    if shape[0] < 1000:
        with Executable.from_bytes(data) as run:
            assert np.array_equal(run.run([np.zeros((2, 512), np.float32)])[1], ones)


def test_product():
    ones = np.broadcast_to(np.float32(1), (512, 300))
    data = compiled(lambda b, x: [b.dot_general(x, b.constant(ones), (1,), (0,))])
    assert len(data) < 60_000
    x = np.arange(1024, dtype=np.float32).reshape(2, 512)
    with Executable.from_bytes(data) as run:
        assert np.allclose(run.run([x])[0], x @ ones)


def test_product_of_one_number():
    data = compiled(lambda b, x: [b.dot_general(b.reshape(x, (x.dims[0] * 512, 1)), b.constant(np.float32([[2]])), (1,), (0,))])
    x = np.arange(1024, dtype=np.float32).reshape(2, 512)
    with Executable.from_bytes(data) as run:
        assert np.array_equal(run.run([x])[0], x.reshape(-1, 1) * 2)
