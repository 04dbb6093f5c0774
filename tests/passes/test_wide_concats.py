"""Very wide concatenations: small kernels, the same values."""

from __future__ import annotations

import time

import numpy as np

from disc_tf.compiler import compile_module
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module
from disc_tf.ir.types import DType, TensorType
from disc_tf.passes.wide_concats import WIDEST
from disc_tf.runtime.executable import Executable


def test_three_hundred_parts() -> None:
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    xs = [fn.add_arg(TensorType.of(DType.F32, ("m", 1 + i % 5)), ArgInfo(f"x{i}")) for i in range(300)]
    b.return_([b.concatenate([b.tanh(x) for x in xs], 1)])
    fn.result_names = ["y"]
    module = Module()
    module.add(fn)
    start = time.process_time()
    compiled = compile_module(module, ["x86-64-v2"], host_results=[False])
    assert time.process_time() - start < 60  # minutes, were it one kernel
    assert len(compiled.kernels) >= 300 // WIDEST
    rng = np.random.default_rng(0)
    with Executable.from_bytes(compiled.executable) as run:
        for m in (0, 1, 3):
            values = [rng.standard_normal((m, 1 + i % 5)).astype(np.float32) for i in range(300)]
            assert np.allclose(run.run(values)[0], np.tanh(np.concatenate(values, 1)), rtol=1e-5, atol=1e-6)
