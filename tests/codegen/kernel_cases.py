"""Helpers shared by the kernel tests: run a function as one fusion and compare with the interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from disc_tf.codegen.cpu.target import V2, V3, V4
from disc_tf.ir.interp import evaluate
from disc_tf.testing.kernel_runner import CompiledFusion, fusion_of


def runnable_targets():
    """The targets whose code this machine can run."""
    flags = Path("/proc/cpuinfo").read_text()
    return [V2, V3, V4] if "avx512dq" in flags and "avx512vl" in flags else [V2, V3] if "avx2" in flags else [V2]


TARGETS = runnable_targets()


def random_array(rng, dtype, shape):
    """Values of every sign; small integers; floats that f16 can hold."""
    if dtype.is_bool:
        return rng.random(shape) < 0.5
    if dtype.is_float:
        return np.asarray(rng.uniform(-3, 3, shape)).astype(dtype.np)
    low = 0 if not dtype.is_signed else -9
    return rng.integers(low, 10, shape).astype(dtype.np)


def tolerance(dtype, scale=1.0):
    if not dtype.is_float:
        return {"rtol": 0, "atol": 0}
    eps = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-22, "f64": 2.0**-50}[dtype.ir_name]
    return {"rtol": eps * 2 * scale, "atol": eps * scale}


def check(fn, kind, symbols, arrays, targets=TARGETS, scale=1.0, **attrs):
    """Compile `fn` for each target, run with `arrays` (in order of parameters), compare with the interpreter, and
    check that splitting the tasks changes no bit."""
    want = evaluate(fn, arrays)
    compiled = [CompiledFusion(fusion_of(fn, kind, **attrs), fn, t) for t in targets]
    for target, c in zip(targets, compiled, strict=True):
        compare(c, fn, symbols, arrays, want, target, scale)
    return compiled


def compare(c, fn, symbols, arrays, want, target, scale=1.0):
    inputs = dict(zip(fn.params, arrays, strict=True))
    got = c(inputs, symbols)
    again = c(inputs, symbols, split=1)
    for r, g, g2, w in zip(fn.results, got, again, want, strict=True):
        assert g.tobytes() == g2.tobytes(), f"{target.name}: results depend on the split"
        t = tolerance(r.dtype, scale)
        if r.dtype.is_float:
            np.testing.assert_allclose(g.astype(np.float64), np.asarray(w).astype(np.float64), **t, err_msg=target.name)
        else:
            np.testing.assert_array_equal(g, w, err_msg=target.name)
