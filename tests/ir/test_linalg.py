"""disc.cholesky, disc.lu, disc.lu_solve, disc.triangular_solve: inference, references against numpy, text."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.ir.builder import Builder, new_function
from disc_tf.ir.core import Function, Module, Value
from disc_tf.ir.interp import evaluate
from disc_tf.ir.opset import IRError
from disc_tf.ir.parser import parse_module
from disc_tf.ir.printer import print_module
from disc_tf.ir.stablehlo import to_stablehlo
from disc_tf.ir.types import DType
from disc_tf.ir.verifier import verify

RNG = np.random.default_rng(0)


def system(dtype: DType = DType.F64) -> tuple[Function, Builder, Value, Value]:
    """A function of ``a[batch, n, n]`` and ``b[batch, n, k]``."""
    fn, b = new_function("main", {"a": (dtype, ["m", "n", "n"]), "b": (dtype, ["m", "n", "k"])})
    return fn, b, fn.params[0], fn.params[1]


def matrices(batch: int, n: int) -> np.ndarray:
    return RNG.uniform(-1, 1, (batch, n, n)) + 3 * np.eye(n)[RNG.permutation(n)]


@pytest.mark.parametrize(("batch", "n"), [(3, 5), (1, 1), (2, 0), (0, 4)])
def test_lu(batch: int, n: int) -> None:
    fn, b, a, right = system()
    factors, order, odd = b.lu(a)
    b.return_([factors, order, odd, b.lu_solve(factors, order, right), b.lu_solve(factors, order, right, transpose=True)])
    verify(fn)
    x, y = matrices(batch, n), RNG.uniform(-1, 1, (batch, n, 2))
    lu, rows, parity, solved, transposed = evaluate(fn, [x, y])
    low, up = np.tril(lu, -1) + np.eye(n), np.triu(lu)
    np.testing.assert_allclose(low @ up, np.take_along_axis(x, rows[..., None].astype(np.int64), 1), atol=1e-12)
    determinant = np.where(parity, -1, 1) * np.prod(np.diagonal(lu, axis1=1, axis2=2), axis=1)
    np.testing.assert_allclose(determinant, np.linalg.det(x), rtol=1e-9)
    np.testing.assert_allclose(x @ solved, y, atol=1e-12)
    np.testing.assert_allclose(x.transpose(0, 2, 1) @ transposed, y, atol=1e-12)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
def test_triangular_solve(lower: bool, transpose: bool) -> None:
    fn, b, a, right = system()
    b.return_([b.triangular_solve(a, right, lower, transpose)])
    x, y = matrices(3, 4) + 5 * np.eye(4), RNG.uniform(-1, 1, (3, 4, 2))
    triangle = np.tril(x) if lower else np.triu(x)
    (solved,) = evaluate(fn, [x, y])
    np.testing.assert_allclose((triangle.transpose(0, 2, 1) if transpose else triangle) @ solved, y, atol=1e-12)


def test_cholesky() -> None:
    fn, b, a, _ = system()
    b.return_([b.cholesky(a)])
    x = matrices(2, 4)
    good = x @ x.transpose(0, 2, 1) + np.eye(4)
    bad = -np.eye(4)
    (factor,) = evaluate(fn, [np.stack([*good, bad]), np.zeros((3, 4, 1))])
    np.testing.assert_allclose(factor[:2], np.linalg.cholesky(good), atol=1e-12)
    assert np.isnan(factor[2][np.tril_indices(4)]).all()
    assert not np.triu(factor[2], 1).any()


def test_text_and_export() -> None:
    fn, b, a, right = system(DType.F32)
    factors, order, odd = b.lu(a)
    b.return_([b.cholesky(a), b.lu_solve(factors, order, right, True), b.triangular_solve(a, right, lower=True), odd])
    module = Module()
    module.add(fn)
    text = print_module(module)
    assert print_module(parse_module(text)) == text
    exported = to_stablehlo(module)
    assert "disc.lu_solve" in exported and "disc.cholesky" in exported


def test_what_is_refused() -> None:
    fn, b = new_function("main", {"a": (DType.F32, [2, 3, 4]), "c": (DType.I32, [2, 3, 3]), "d": (DType.F32, [2, 3, 3])})
    a, integers, square = fn.params
    for make in (
        lambda: b.lu(a), lambda: b.cholesky(integers), lambda: b.triangular_solve(square, b.reshape(a, [2, 4, 3]), lower=True),
        lambda: b.lu_solve(square, square, square), lambda: b.cholesky(b.reshape(square, [6, 3])),
    ):  # fmt: skip
        with pytest.raises(IRError):
            make()
