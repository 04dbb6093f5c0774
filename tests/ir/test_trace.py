"""JAX functions as rules: traced once for all extents, imported as ops."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
import scipy.special

from disc_tf.ir.builder import new_function
from disc_tf.ir.interp import evaluate
from disc_tf.ir.stablehlo import inline_stablehlo
from disc_tf.ir.stablehlo.trace import trace
from disc_tf.ir.types import DType
from disc_tf.ir.verifier import verify


@pytest.mark.parametrize("dims", [["n", "m"], [3, "m"], [2, 5]], ids=str)
def test_one_trace_serves_all_extents(dims: list[int | str]) -> None:
    fn, b = new_function("main", {"x": (DType.F64, dims)})
    before = trace.cache_info().misses
    results = inline_stablehlo(b, fn.env, trace("bessel.k0", (DType.F64,), 2), fn.params, (f"s{k}" for k in itertools.count()))
    trace("bessel.k0", (DType.F64,), 2)
    assert trace.cache_info().misses <= before + 1
    b.return_(results)
    verify(fn)
    assert list(map(str, results[0].dims)) == list(map(str, dims))
    for shape in ((2, 5), (3, 0), (3, 1), (0, 4)):
        if all(not isinstance(d, int) or d == n for d, n in zip(dims, shape, strict=True)):
            x = np.random.default_rng(0).uniform(0.1, 9.0, shape)
            (got,) = evaluate(fn, [x])
            np.testing.assert_allclose(got, scipy.special.k0(x), rtol=1e-13)


def test_dtypes_are_kept_whatever_jax_is_set_to() -> None:
    assert "tensor<?xf64>" in trace("integrals.dawsn", (DType.F64,), 1)
    assert "f64" not in trace("integrals.dawsn", (DType.F32,), 1)


def test_scalars_and_functions_of_jax_itself() -> None:
    assert "tensor<f32>" in trace("lax.tanh", (DType.F32,), 0)


@pytest.mark.parametrize("name", ["bessel.nothing", "nothing.j0", "lax.nothing"])
def test_unknown_functions(name: str) -> None:
    with pytest.raises(ValueError, match="there is no function"):
        trace(name, (DType.F32,), 1)


def test_rules_are_registered_without_jax() -> None:
    code = "import sys, disc_tf.lowering as l; l.all_rules(); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
