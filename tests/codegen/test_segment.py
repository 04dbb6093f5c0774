"""The signature checks of a segment, and prepared entries that share code."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function
from disc_tf.ir.types import DType, TensorType
from disc_tf.runtime.artifact import pack, unpack
from disc_tf.runtime.executable import DiscError
from disc_tf.testing.native_case import TARGETS, compile_function, load

F32 = DType.F32


def sum_of(*dims: list) -> Function:
    """Scalars made of all arguments, one a type."""
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    args = [fn.add_arg(TensorType.of(F32, d), ArgInfo(f"arg{i}")) for i, d in enumerate(dims)]
    b.return_([b.reduce(x, list(range(x.rank)), "add") for x in args])
    return fn


GOOD = [(2, 3), (4,), (5, 7), (7, 5), (3, 3)]
#: argument, its wrong shape, the dimension that is named
BAD = [(0, (2, 4), 1), (0, (3, 3), 0), (1, (5,), 0), (3, (6, 5), 0), (3, (7, 4), 1), (4, (2, 3), 0)]


def test_every_dim_of_the_signature_is_checked() -> None:
    """Static shapes go through a table, symbols and mixed shapes do not; the message names argument and dimension."""
    fn = sum_of([2, 3], [4], ["n", "m"], ["m", "n"], [3, "k"])
    artifact = unpack(compile_function(fn).executable)
    loose = tuple(dataclasses.replace(a, dims=(-1,) * len(a.dims)) for a in artifact.args)  # else the runtime finds it first
    with load(pack(dataclasses.replace(artifact, args=loose)), TARGETS[0]) as executable:
        arrays = [np.ones(s, np.float32) for s in GOOD]
        assert [float(x) for x in executable.run(arrays)] == [6, 4, 35, 35, 9]
        for index, shape, axis in BAD:
            wrong = list(arrays)
            wrong[index] = np.ones(shape, np.float32)
            with pytest.raises(DiscError, match=f"arg{index}: dimension {axis} must be") as error:
                executable.run(wrong)
            assert error.value.code == 3


def test_equal_weights_share_the_code_that_packs_them() -> None:
    """Three products with weights of one shape and one of another: right results, two packing functions."""
    rng = np.random.default_rng(0)
    shapes = [(24, 24), (24, 24), (24, 40), (40, 24)]
    weights = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    x = fn.add_arg(TensorType.of(F32, ["n", 24]), ArgInfo("x"))
    for i, w in enumerate(weights):
        info = ArgInfo(f"w{i}", "const", bytes([i]) * 32)
        x = b.tanh(b.dot_general(x, fn.add_arg(TensorType.of(F32, w.shape), info), [1], [0]))
    b.return_([x])
    compiled = compile_function(fn)
    prepared = unpack(compiled.executable).prepared
    assert len(prepared) == 4
    assert [s.args for s in prepared] == [(1,), (2,), (3,), (4,)]
    assert prepared[0].code_hash == prepared[1].code_hash  # the same bytes from the same weights: runs may share them
    assert len({s.code_hash for s in prepared}) == 3
    data = rng.standard_normal((5, 24)).astype(np.float32)
    want = data.astype(np.float64)
    for w in weights:
        want = np.tanh(want @ w)
    with load(compiled.executable, TARGETS[0]) as executable:
        (got,) = executable.run([data, *weights])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
