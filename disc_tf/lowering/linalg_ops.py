"""Linear algebra: Cholesky, LU and triangular solves of batches of matrices.

Eigenvalues, singular values, QR and functions of matrices stay in TensorFlow (`left_out.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Status
from disc_tf.lowering.matrix_ops import Band, _one_diagonal
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert, widen
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import NUMBERS, lowering
from disc_tf.lowering.shapes import invalid

_TYPES = frozenset({DType.F32, DType.F64})
_WITH_HALF = _TYPES | {DType.F16}


def _square(ctx: LoweringContext, a: Value) -> Value:
    """``a`` with its last two dims checked to be equal."""
    if a.rank < 2:
        raise invalid(f"Input tensor 0 must have rank >= 2, got {a.type}")
    ctx.check_dims_eq(a.dims[-2], a.dims[-1], message=f"Input matrices must be square, got {plain(a.dims[-2])} != {plain(a.dims[-1])}")
    return ctx.cast_dims(a, (*a.dims[:-1], a.dims[-2]))


def _batch(ctx: LoweringContext, a: Value) -> Value:
    """``[..., rows, columns]`` as ``[batch, rows, columns]``."""
    return ctx.b.reshape(a, [product(a.dims[:-2]), *a.dims[-2:]])


def _diagonal(ctx: LoweringContext, a: Value) -> Value:
    n = a.dims[-1]
    return _one_diagonal(ctx, a, Band(0, 0, n, n, n, "LEFT_LEFT"), 0)


def _require_regular(ctx: LoweringContext, factors: Value, message: str, unless_empty: Sequence[Dim] = ()) -> None:
    """No zero on the diagonal of ``[batch, n, n]``; a NaN there counts as one, as in TF. Not asked of a result of no elements."""
    diagonal = ctx.b.abs(_diagonal(ctx, factors))
    good = ctx.reduce(ctx.b.compare(diagonal, ctx.splat(0, diagonal), "GT"), range(diagonal.rank), "and")
    if unless_empty:
        good = ctx.b.or_(good, ctx.b.compare(ctx.dim(product(list(unless_empty))), ctx.scalar(0, DType.I64), "EQ"))
    ctx.check(good, message=message)


@lowering("Cholesky", dtypes=_TYPES)
def cholesky(ctx: LoweringContext, _node: NodeView, a: Value) -> Value:
    """Reads the lower triangle; a matrix without a factor gives NaN."""
    a = _square(ctx, a)
    return ctx.b.reshape(ctx.b.cholesky(_batch(ctx, a)), a.dims)


@lowering("MatrixInverse", dtypes=_WITH_HALF)
def matrix_inverse(ctx: LoweringContext, node: NodeView, a: Value) -> Value:
    """By LU with partial pivoting; f16 is computed in f32."""
    a = _square(ctx, a)
    flat = widen(ctx, _batch(ctx, a))
    factors, order, _ = ctx.b.lu(flat)
    _require_regular(ctx, factors, "Input is not invertible.")
    row, column = (ctx.b.iota(DType.I64, flat.dims, k) for k in (1, 2))
    one = ctx.b.convert(ctx.b.compare(row, column, "EQ"), flat.dtype)
    inverse = ctx.b.lu_solve(factors, order, one, bool(node.attr("adjoint", False)))
    return convert(ctx, ctx.b.reshape(inverse, a.dims), a.dtype)


def _right_sides(ctx: LoweringContext, a: Value, b: Value) -> tuple[Value, Value]:
    """The operands of a system, checked; the batches are not yet compared."""
    if b.rank < 2:
        raise invalid(f"Input tensor 1 must have rank >= 2, got {b.type}")
    a = _square(ctx, a)
    ctx.check_dims_eq(a.dims[-1], b.dims[-2], message=f"Input matrix and rhs are incompatible: {plain(a.type)} and {plain(b.type)}")
    return a, ctx.cast_dims(b, (*b.dims[:-2], a.dims[-1], b.dims[-1]))


@lowering("MatrixSolve", dtypes=_TYPES)
def matrix_solve(ctx: LoweringContext, node: NodeView, a: Value, b: Value) -> Value:
    """By LU with partial pivoting; equal batches."""
    if a.rank != b.rank:
        raise invalid(f"All input tensors must have the same rank, got {a.type} and {b.type}")
    a, b = _right_sides(ctx, a, b)
    for x, y in zip(a.dims[:-2], b.dims[:-2], strict=True):
        ctx.check_dims_eq(x, y, message=f"All input tensors must have the same outer dimensions, got {plain(a.type)} and {plain(b.type)}")
    b = ctx.cast_dims(b, (*a.dims[:-2], *b.dims[-2:]))
    factors, order, _ = ctx.b.lu(_batch(ctx, a))
    _require_regular(ctx, factors, "Input matrix is not invertible.", unless_empty=b.dims)
    x = ctx.b.lu_solve(factors, order, _batch(ctx, b), bool(node.attr("adjoint", False)))
    return ctx.b.reshape(x, b.dims)


@lowering("MatrixTriangularSolve", dtypes=_TYPES)
def matrix_triangular_solve(ctx: LoweringContext, node: NodeView, a: Value, b: Value) -> Value:
    """By substitution; batches broadcast. A zero on the diagonal gives infinities, as in TF."""
    a, b = _right_sides(ctx, a, b)
    outer = ctx.broadcast_dims(a.dims[:-2], b.dims[:-2], message=f"Incompatible batches: {plain(a.type)} and {plain(b.type)}")
    dims = (*outer, *b.dims[-2:])
    left = _batch(ctx, ctx.broadcast_to(a, (*outer, *a.dims[-2:])))
    right = _batch(ctx, ctx.broadcast_to(b, dims))
    x = ctx.b.triangular_solve(left, right, bool(node.attr("lower", True)), bool(node.attr("adjoint", False)))
    return ctx.b.reshape(x, dims)


@lowering("Lu", dtypes={"T": _TYPES, "output_idx_type": {DType.I32, DType.I64}})
def lu(ctx: LoweringContext, node: NodeView, a: Value) -> list[Value]:
    """Both factors in one matrix, and where each row of their product lies in the operand."""
    a = _square(ctx, a)
    factors, order, _ = ctx.b.lu(_batch(ctx, a))
    _require_regular(ctx, factors, "Input is not invertible.")
    order = convert(ctx, order, node.dtype("output_idx_type", DType.I32))
    return [ctx.b.reshape(factors, a.dims), ctx.b.reshape(order, a.dims[:-1])]


def _determinant(ctx: LoweringContext, a: Value) -> tuple[Value, Value]:
    """The sign and the logarithm of the magnitude, in f64, ``[batch]``: as TF computes them for all types."""
    b = ctx.b
    factors, _, odd = b.lu(convert(ctx, _batch(ctx, a), DType.F64))
    diagonal = _diagonal(ctx, factors)
    magnitude = ctx.reduce(b.log(b.abs(diagonal)), [1], "add")
    sign = ctx.reduce(b.sign(diagonal), [1], "multiply")
    return b.select(odd, b.negate(sign), sign), magnitude


@lowering("MatrixDeterminant", dtypes=_TYPES)
def matrix_determinant(ctx: LoweringContext, _node: NodeView, a: Value) -> Value:
    """Sign times the exponential of the sum of logarithms, in f64."""
    a = _square(ctx, a)
    sign, magnitude = _determinant(ctx, a)
    value = ctx.b.multiply(sign, ctx.b.exponential(magnitude))
    return convert(ctx, ctx.b.reshape(value, a.dims[:-2]), a.dtype)


@lowering("LogMatrixDeterminant", dtypes=_TYPES)
def log_matrix_determinant(ctx: LoweringContext, _node: NodeView, a: Value) -> list[Value]:
    """Sign and logarithm of the magnitude."""
    a = _square(ctx, a)
    return [convert(ctx, ctx.b.reshape(v, a.dims[:-2]), a.dtype) for v in _determinant(ctx, a)]


@lowering("TridiagonalMatMul", dtypes=_TYPES)
def tridiagonal_matmul(ctx: LoweringContext, _node: NodeView, upper: Value, main: Value, lower: Value, x: Value) -> Value:
    """``y[i] = lower[i] x[i-1] + main[i] x[i] + upper[i] x[i+1]``: diagonals ``[..., 1, n]``, right side ``[..., n, k]``."""
    if x.rank < 2 or any(v.rank != x.rank for v in (upper, main, lower)):
        raise invalid("All input tensors must have the same rank of 2 or more")
    n = x.dims[-2]
    for v in (upper, main, lower):
        wanted = (*x.dims[:-2], Dim.of(1), n)
        for have, want in zip(v.dims, wanted, strict=True):
            ctx.check_dims_eq(have, want, message=f"A diagonal of shape {plain(v.type)} does not fit the right side {plain(x.type)}")
    zero = [Dim.of(0)] * x.rank
    last = x.rank - 2
    padded = ctx.b.pad(x, 0, _at(zero, last, 1), _at(zero, last, 1))
    before = ctx.cast_dims(ctx.b.slice(padded, zero, x.dims), x.dims)
    behind = ctx.cast_dims(ctx.b.slice(padded, _at(zero, last, 2), _at(list(x.dims), last, n + 2)), x.dims)

    def scaled(diagonal: Value, rows: Value) -> Value:
        column = ctx.b.reshape(diagonal, (*x.dims[:-1], Dim.of(1)))
        return ctx.b.multiply(ctx.broadcast_to(column, x.dims), rows)

    total = ctx.b.add(scaled(main, x), scaled(upper, behind))
    return ctx.b.add(total, scaled(lower, before))


def _at(values: Sequence[Dim], position: int, value: Dim | int) -> list[Dim]:
    return [Dim.of(value) if i == position else v for i, v in enumerate(values)]


@lowering("Cross", dtypes=NUMBERS)
def cross(ctx: LoweringContext, _node: NodeView, x: Value, y: Value) -> Value:
    """The cross product of vectors of 3 along the last axis; integers wrap."""
    if not x.rank:
        raise invalid(f"Input must be at least 1D, got {x.type}")
    ctx.require_same_shape(x, y, f"Both inputs must be of same shape: {plain(x.type)} vs. {plain(y.type)}")
    ctx.check_dims_eq(x.dims[-1], 3, Status.FAILED_PRECONDITION, "Cross-products are only defined for 3-element vectors.")
    dims = (*x.dims[:-1], Dim.of(3))
    x, y = ctx.cast_dims(x, dims), ctx.cast_dims(y, dims)

    def turned(v: Value, by: int) -> Value:
        """``v`` with its elements moved ``by`` places to the front."""
        zero = [Dim.of(0)] * v.rank
        parts = [ctx.b.slice(v, _at(zero, v.rank - 1, by), dims), ctx.b.slice(v, zero, _at(dims, v.rank - 1, by))]
        return ctx.cast_dims(ctx.b.concatenate(parts, v.rank - 1), dims)

    products = [ctx.b.multiply(turned(x, i), turned(y, 3 - i)) for i in (1, 2)]
    return ctx.b.subtract(*products)
