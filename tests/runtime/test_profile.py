"""Profiles: which launches of which kernels a run made, and that compiling for one changes no result."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.compiler import compile_module
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module
from disc_tf.ir.types import DType, TensorType
from disc_tf.runtime.executable import Executable
from disc_tf.runtime.recording import profile

N, K = 40, 24


def _module(rows: str = "m") -> Module:
    """tanh(x w), then the sum of each row: a product with a weight that is packed, and a row kernel."""
    fn = Function("main")
    x = fn.add_arg(TensorType.of(DType.F32, (rows, K)), ArgInfo("x", "device"))
    w = fn.add_arg(TensorType.of(DType.F32, (K, N)), ArgInfo("w", "const"))
    b = Builder(fn.body, fn.env)
    y = b.tanh(b.dot_general(x, w, [1], [0]))
    b.return_([y, b.reduce(y, [1], "add")])
    module = Module()
    module.add(fn)
    return module


@pytest.fixture(scope="module")
def both():
    compiled = [compile_module(_module(), ["x86-64-v2"], profile=on) for on in (True, False)]
    return compiled[0], *(Executable.from_bytes(c.executable) for c in compiled)


def _arguments(m: int) -> list[np.ndarray]:
    rng = np.random.default_rng(m)
    return [rng.standard_normal((m, K)).astype(np.float32), rng.standard_normal((K, N)).astype(np.float32)]


@pytest.mark.parametrize("m", [0, 1, 7, 64])
def test_every_launch_is_recorded_by_name(both, m):
    compiled, executable, plain = both
    arguments = _arguments(m)
    expected = plain.run(arguments)
    executable.run(arguments)  # packs the weight
    with profile() as launches:
        got = executable.run(arguments)
    for x, y in zip(got, expected, strict=True):
        np.testing.assert_array_equal(x, y)
    known = [k.symbol for k in compiled.kernels]
    assert [x.kernel for x in launches] == (known if m else [])
    assert all(x.ns > 0 and x.tasks > 0 for x in launches)


def test_nothing_is_recorded_outside(both):
    _, executable, _ = both
    arguments = _arguments(3)
    with profile() as launches:
        pass
    executable.run(arguments)
    with profile() as again:
        pass
    assert launches == again == []


def test_products_know_their_flops(both):
    compiled, *_ = both
    work = [k.flops for k in compiled.kernels if k.flops is not None]
    assert [int(f.evaluate({s: 5 for s in f.symbols()})) for f in work] == [2 * 5 * N * K]
