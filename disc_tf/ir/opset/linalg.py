"""Dense linear algebra on batches of matrices `[batch, rows, columns]` of f32 or f64: disc.cholesky, disc.lu, disc.lu_solve,
disc.triangular_solve. Nothing fails: a matrix without a Cholesky factor gives NaN in the lower triangle, a zero pivot infinities or NaN."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Op
from disc_tf.ir.opset.base import Attr, EvalContext, InferInput, OpDef, register
from disc_tf.ir.types import DType, TensorType, Type


def _matrices(i: InferInput, k: int, square: bool) -> TensorType:
    t = i.tensor(k)
    if t.rank != 3 or t.dtype not in (DType.F32, DType.F64):
        raise i.fail(f"operand {k} must be f32 or f64 of rank 3")
    if square and i.differ(t.dims[1], t.dims[2]):
        raise i.fail(f"the matrices of operand {k} must be square")
    return t


def _system(i: InferInput, k: int) -> TensorType:
    """Operand 0 is square, operand ``k`` its right sides."""
    a, b = _matrices(i, 0, True), _matrices(i, k, False)
    i.same_dtype((a, b))
    i.merge((a.dims[0], a.dims[1]), (b.dims[0], b.dims[1]))
    return b


# ---- Cholesky -------------------------------------------------------------------------------------------------------


def _infer_cholesky(i: InferInput) -> list[Type]:
    a = _matrices(i, 0, True)
    return [a]


def _cholesky_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    a = inputs[0].astype(np.float64)
    out = np.zeros_like(a)
    with np.errstate(all="ignore"):
        for m, low in enumerate(out):
            for j in range(a.shape[1]):
                pivot = a[m, j, j] - low[j, :j] @ low[j, :j]
                if pivot <= 0:  # a NaN goes on, as in Eigen
                    low[:] = np.tril(np.full_like(low, np.nan))
                    break
                low[j, j] = np.sqrt(pivot)
                low[j + 1 :, j] = (a[m, j + 1 :, j] - low[j + 1 :, :j] @ low[j, :j]) / low[j, j]
    return [out.astype(inputs[0].dtype)]


# ---- LU -------------------------------------------------------------------------------------------------------------


def _infer_lu(i: InferInput) -> list[Type]:
    a = _matrices(i, 0, True)
    return [a, TensorType(DType.I32, a.dims[:2]), TensorType(DType.BOOL, a.dims[:1])]


def _lu_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    lu = inputs[0].astype(np.float64)
    batch, n = lu.shape[:2]
    order = np.broadcast_to(np.arange(n, dtype=np.int32), (batch, n)).copy()
    odd = np.zeros(batch, bool)
    with np.errstate(all="ignore"):
        for m, a in enumerate(lu):
            for k in range(n):
                magnitude = np.abs(a[k:, k])
                p = k + int(np.argmax(np.where(np.isnan(magnitude), -1.0, magnitude)))
                if a[p, k] == 0:
                    continue
                if p != k:
                    a[[k, p]], order[m, [k, p]], odd[m] = a[[p, k]], order[m, [p, k]], not odd[m]
                a[k + 1 :, k] /= a[k, k]
                a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return [lu.astype(inputs[0].dtype), order, odd]


def _infer_lu_solve(i: InferInput) -> list[Type]:
    order = i.tensor(1)
    if order.dtype != DType.I32 or order.rank != 2:
        raise i.fail("operand 1 must be the row order i32[batch, n]")
    return [_system(i, 2)]


def _lu_solve_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    lu, order, b = inputs[0].astype(np.float64), inputs[1], inputs[2].astype(np.float64)
    eye = np.eye(lu.shape[1])
    low, rows = np.tril(lu, -1) + eye, order[..., None].astype(np.int64)
    if op.attrs["transpose"]:
        z = _solve(low, _solve(lu, b, False, True), True, True)
        x = np.empty_like(z)
        np.put_along_axis(x, np.broadcast_to(rows, x.shape), z, axis=1)
    else:
        taken = np.take_along_axis(b, np.broadcast_to(rows, b.shape), axis=1)
        x = _solve(lu, _solve(low, taken, True, False), False, False)
    return [x.astype(inputs[2].dtype)]


def _solve(a: np.ndarray, b: np.ndarray, lower: bool, transpose: bool) -> np.ndarray:
    """Substitution with the lower or upper triangle of ``a``, transposed or not."""
    x, n = b.copy(), a.shape[1]
    if transpose:
        a, lower = a.transpose(0, 2, 1), not lower
    with np.errstate(all="ignore"):
        for i in range(n) if lower else range(n - 1, -1, -1):
            x[:, i] /= a[:, i, i, None]
            rest = slice(i + 1, n) if lower else slice(0, i)
            x[:, rest] -= a[:, rest, i, None] * x[:, i, None]
    return x


# ---- triangles ------------------------------------------------------------------------------------------------------


def _infer_triangular(i: InferInput) -> list[Type]:
    return [_system(i, 1)]


def _triangular_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    a, b = (v.astype(np.float64) for v in inputs)
    return [_solve(a, b, op.attrs["lower"], op.attrs["transpose"]).astype(inputs[1].dtype)]


register(OpDef("disc.cholesky", 1, _infer_cholesky, _cholesky_reference))
register(OpDef("disc.lu", 1, _infer_lu, _lu_reference))
register(OpDef("disc.lu_solve", 3, _infer_lu_solve, _lu_solve_reference, {"transpose": Attr("bool", default=False)}))
register(
    OpDef(
        "disc.triangular_solve", 2, _infer_triangular, _triangular_reference,
        {"lower": Attr("bool"), "transpose": Attr("bool", default=False)},
    )
)  # fmt: skip
