"""Linear algebra against TensorFlow: batches, every size from 0, both types, singular matrices."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing import tf_case
from disc_tf.testing.tf_case import Tolerance, check_op

TYPES = [DType.F32, DType.F64]
#: batch..., n: small and odd sizes, blocks' sizes, no matrices, empty matrices
SIZES = [(5,), (1,), (0,), (41,)]
BATCHES = [(3, 4), (2, 0), (0, 3), (2, 17)]
TOL = Tolerance(256.0, relative_floor=8.0)


def matrices(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> np.ndarray:
    """Well conditioned, with rows in an order that needs pivoting."""
    n = shape[-1]
    rng = np.random.default_rng(seed)
    a = rng.uniform(-1.0, 1.0, (*shape, n)) + 4.0 * np.eye(n)
    return a[..., rng.permutation(n), :].astype(dtype.np)


def definite(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    a = matrices(shape, DType.F64)
    return (np.einsum("...ij,...kj->...ik", a, a) + np.eye(shape[-1])).astype(dtype.np)


def sides(a: np.ndarray, k: int) -> np.ndarray:
    return np.random.default_rng(9).uniform(-2.0, 2.0, (*a.shape[:-1], k)).astype(a.dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shapes", [SIZES, BATCHES], ids=["one", "batch"])
def test_cholesky(shapes: list[tuple[int, ...]], dtype: DType) -> None:
    for shape in shapes:
        check_op("Cholesky", input=definite(shape, dtype), tol=TOL)


def test_cholesky_reads_the_lower_triangle() -> None:
    check_op("Cholesky", input=np.eye(3, dtype=np.float32) + np.triu(np.full((3, 3), 7.0, np.float32), 1), modes=["dynamic"], tol=TOL)


def test_cholesky_of_what_has_none() -> None:
    """The lower triangle is NaN, in TensorFlow too (what it leaves above is not defined); the neighbours are not touched."""
    eye = np.eye(3, dtype=np.float32)
    last = np.diag([1.0, 4.0, -1.0]).astype(np.float32)
    a = np.stack([eye, last, 4 * eye, -eye])
    graph = tf_case.one_op_graph("Cholesky", {"input": a}, [])
    theirs, ours = tf_case.tf_answer("Cholesky", {"input": a}), tf_case.our_answer(tf_case.lower_graph(graph, "dynamic"), graph.arrays)
    assert isinstance(theirs, list) and isinstance(ours, list)
    np.testing.assert_array_equal(np.tril(theirs[0]), np.tril(ours[0]))
    np.testing.assert_array_equal(ours[0][2], 2 * eye)
    assert np.isnan(np.tril(ours[0][1])[np.tril_indices(3)]).all()


@pytest.mark.parametrize("dtype", [*TYPES, DType.F16], ids=str)
@pytest.mark.parametrize("adjoint", [False, True])
def test_inverse(adjoint: bool, dtype: DType) -> None:
    for shape in (*SIZES[:3], *BATCHES):
        if dtype == DType.F16 and shape[-1] > 5:
            continue
        check_op("MatrixInverse", input=matrices(shape, dtype), adjoint=adjoint, modes=["dynamic"], tol=TOL)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("adjoint", [False, True])
def test_solve(adjoint: bool, dtype: DType) -> None:
    for shape in (*SIZES, *BATCHES):
        a = matrices(shape, dtype)
        for k in (1, 3, 0):
            check_op("MatrixSolve", matrix=a, rhs=sides(a, k), adjoint=adjoint, modes=["dynamic"], tol=TOL)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("adjoint", [False, True])
def test_triangular_solve(adjoint: bool, lower: bool, dtype: DType) -> None:
    attrs = {"adjoint": adjoint, "lower": lower}
    for shape in (*SIZES, *BATCHES):
        a = matrices(shape, dtype) + 8 * np.eye(shape[-1], dtype=dtype.np)  # the other triangle is not read
        for k in (1, 3, 0):
            check_op("MatrixTriangularSolve", matrix=a, rhs=sides(a, k), **attrs, modes=["dynamic"], tol=TOL)


def test_triangular_solve_broadcasts() -> None:
    a = matrices((2, 1, 4), DType.F32) + 8 * np.eye(4, dtype=np.float32)
    for b in (sides(a[:1, 0], 3), np.ones((3, 4, 2), np.float32), np.ones((5, 4, 2), np.float32)[None]):
        check_op("MatrixTriangularSolve", matrix=a, rhs=b, tol=TOL)
    check_op("MatrixTriangularSolve", matrix=np.tile(a, (1, 2, 1, 1)), rhs=np.ones((3, 4, 2), np.float32), tol=TOL)  # an error


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_lu(dtype: DType) -> None:
    tf = tf_case.tensorflow()
    for shape in (*SIZES, *BATCHES):
        check_op("Lu", input=matrices(shape, dtype), output_idx_type=tf.int32, modes=["dynamic"], tol=TOL)
    check_op("Lu", input=matrices((2, 6), dtype), output_idx_type=tf.int64, tol=TOL)
    check_op("Lu", input=np.ones((2, 2), dtype.np), output_idx_type=tf.int32, modes=["dynamic"])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_determinants(dtype: DType) -> None:
    for shape in (*SIZES, *BATCHES):
        a = matrices(shape, dtype)
        check_op("MatrixDeterminant", input=a, modes=["dynamic"], tol=TOL)
        check_op("LogMatrixDeterminant", input=a, modes=["dynamic"], tol=TOL)
    huge = np.stack([np.eye(2), -np.eye(2), 1e30 * np.eye(2), np.ones((2, 2)), [[0, 1], [1, 0]], np.zeros((2, 2))]).astype(dtype.np)
    check_op("MatrixDeterminant", input=huge, modes=["dynamic"], tol=TOL)
    check_op("LogMatrixDeterminant", input=huge, modes=["dynamic"], tol=TOL)


@pytest.mark.parametrize(
    ("op", "given"),
    [
        ("MatrixInverse", {"input": (2, 3)}), ("MatrixInverse", {"input": (3,)}), ("MatrixInverse", {"input": (2, 2)}),
        ("MatrixSolve", {"matrix": (2, 2), "rhs": (2, 3)}), ("MatrixSolve", {"matrix": (2, 2), "rhs": (2, 0)}),
        ("MatrixSolve", {"matrix": (1, 2, 2), "rhs": (2, 3)}), ("MatrixSolve", {"matrix": (2, 2), "rhs": (3, 1)}),
        ("MatrixSolve", {"matrix": (3, 2, 2), "rhs": (4, 2, 1)}), ("MatrixDeterminant", {"input": (2, 3)}), ("Cholesky", {"input": (2, 3)}),
        ("MatrixTriangularSolve", {"matrix": (2, 3), "rhs": (2, 1)}), ("MatrixTriangularSolve", {"matrix": (2, 2), "rhs": (3, 1)}),
    ],
    ids=str,
)  # fmt: skip
def test_errors(op: str, given: dict[str, tuple[int, ...]]) -> None:
    """Matrices of ones: singular, or not square."""
    check_op(op, **{name: np.ones(shape, np.float32) for name, shape in given.items()}, modes=["dynamic", "static"])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_tridiagonal_product(dtype: DType) -> None:
    rng = np.random.default_rng(1)
    for shape in ((5, 3), (1, 1), (0, 2), (2, 3, 7, 2), (2, 0, 3, 1)):
        x = rng.uniform(-1, 1, shape).astype(dtype.np)
        diagonals = [rng.uniform(-1, 1, (*shape[:-2], 1, shape[-2])).astype(dtype.np) for _ in range(3)]
        given = dict(zip(("superdiag", "maindiag", "subdiag"), diagonals, strict=True))
        check_op("TridiagonalMatMul", **given, rhs=x, modes=["dynamic"], tol=Tolerance(8.0, floor=1.0))


@pytest.mark.parametrize("dtype", [d for d in DType if not d.is_bool], ids=str)
def test_cross(dtype: DType) -> None:
    for shape in ((3,), (0, 3), (5, 3), (2, 7, 3)):
        x, y = (tf_case.array(shape, dtype, seed) for seed in (1, 2))
        check_op("Cross", a=x, b=y, modes=["dynamic"], tol=Tolerance(4.0, floor=32.0))


def test_cross_errors() -> None:
    for a, b in (((2, 2), (2, 2)), ((2, 3), (1, 3)), ((), ()), ((3,), (1, 3))):
        check_op("Cross", a=np.ones(a, np.float32), b=np.ones(b, np.float32), modes=["dynamic", "static"])
