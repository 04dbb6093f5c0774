"""MatrixBandPart, MatrixDiag, MatrixDiagPart, MatrixSetDiag (V1 to V3), Diag, DiagPart."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType
from disc_tf.lowering.content import constant_int, constant_ints, scalar_dim
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.join_split import drop_axis, slice_along
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import ALL, lowering
from disc_tf.lowering.shapes import invalid
from disc_tf.lowering.symbolic import maximum, minimum

_ALIGNMENTS = ("LEFT_RIGHT", "RIGHT_LEFT", "LEFT_LEFT", "RIGHT_RIGHT")


def _column_minus_row(ctx: LoweringContext, dims: Sequence[Dim]) -> Value:
    """``j - i`` for the last two axes of ``dims``, i64."""
    rank = len(dims)
    rows, columns = (ctx.b.iota(DType.I64, dims, axis) for axis in (rank - 2, rank - 1))
    return ctx.b.subtract(columns, rows)


@lowering("MatrixBandPart", dtypes={"T": ALL})
def matrix_band_part(ctx: LoweringContext, _node: NodeView, x: Value, lower: Value, upper: Value) -> Value:
    """``x`` with all but ``lower`` sub- and ``upper`` super-diagonals zeroed; a negative number keeps them all."""
    if x.rank < 2:
        raise invalid(f"input must be at least 2-dim, received shape: {x.type}")
    b = ctx.b
    distance = _column_minus_row(ctx, x.dims)
    keep: Value | None = None
    for name, v, extent, away in (
        ("num_lower", lower, x.dims[-2], b.negate(distance)),
        ("num_upper", upper, x.dims[-1], distance),
    ):
        if v.rank:
            raise invalid(f"{name} must be scalar, got shape {v.type}")
        known = ctx.constant(v)
        if known is not None and int(known) < 0:
            continue
        d = scalar_dim(ctx, v, f"{name} of MatrixBandPart")
        ctx.check_dim_cond(
            d, "LE", extent, message=f"{name} must be negative or less or equal to {plain(extent)} got: {plain(d)}"
        )
        limit = b.convert(v, DType.I64)
        inside = b.compare(away, ctx.broadcast_to(limit, x.dims), "LE")
        if known is None:
            inside = b.or_(inside, ctx.broadcast_to(b.compare(limit, 0, "LT"), x.dims))
        keep = inside if keep is None else b.and_(keep, inside)
    return x if keep is None else b.select(keep, x, ctx.splat(0, x))


# ---- diagonals -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Band:
    """Diagonals ``low .. high`` (0 the main one, positive above) of a ``rows x columns`` matrix, as TF packs them: the highest
    first, each row of the pack ``longest`` long."""

    low: int
    high: int
    rows: Dim
    columns: Dim
    longest: Dim
    align: str

    @property
    def count(self) -> int:
        return self.high - self.low + 1

    def length(self, ctx: LoweringContext, d: int) -> Dim:
        """Elements of diagonal ``d``."""
        return minimum(ctx.env, self.rows + min(d, 0), self.columns - max(d, 0))

    def offset(self, ctx: LoweringContext, d: int) -> Dim:
        """Where diagonal ``d`` starts in its row of the pack."""
        left = self.align.startswith("LEFT") if d >= 0 else self.align.endswith("LEFT")
        return Dim.of(0) if left else self.longest - self.length(ctx, d)


def _diagonals(ctx: LoweringContext, k: Value | None, op: str) -> tuple[int, int]:
    if k is None:
        return 0, 0
    values = constant_ints(ctx, k, f"k of {op}")
    if len(values) not in (1, 2):
        raise invalid(
            f"diag_index must be a scalar or a vector with one or two elements, received {len(values)}"
        )
    low, high = values[0], values[-1]
    if low > high:
        raise invalid(f"lower_diag_index must not be larger than upper_diag_index: {low} > {high}")
    if high - low > 64:
        raise Unsupported("ATTR", f"{op} of {high - low + 1} diagonals")
    return low, high


def _alignment(node: NodeView) -> str:
    """Packs of V2 are aligned left, of V3 as the attribute says."""
    align = node.attr("align", "RIGHT_LEFT") if node.op.endswith("V3") else "LEFT_LEFT"
    if align not in _ALIGNMENTS:
        raise Unsupported("ATTR", f"{node.op} with align {align!r}")
    return align


def _check_band(ctx: LoweringContext, low: int, high: int, rows: Dim, columns: Dim) -> None:
    """Require both ends of the band to lie in the matrix (the main diagonal always does)."""
    for name, d in (("lower_diag_index", low), ("upper_diag_index", high)):
        message = f"{name} is out of bound: {plain(d)}. It must be between {plain(-rows)} and {plain(columns)}"
        if d < 0:
            ctx.check_dim_cond(rows, "GT", -d, message=message)
        elif d > 0:
            ctx.check_dim_cond(columns, "GT", d, message=message)


def _longest(ctx: LoweringContext, low: int, high: int, rows: Dim, columns: Dim) -> Dim:
    return minimum(ctx.env, rows + min(high, 0), columns - max(low, 0))


def _pack_row(ctx: LoweringContext, pack: Value, band: Band, d: int) -> Value:
    """Diagonal ``d`` of a pack ``[..., count, longest]`` (``[..., longest]`` for one diagonal): ``[..., length]``."""
    if band.count == 1:
        return pack
    row = slice_along(ctx, pack, pack.rank - 2, Dim.of(band.high - d), Dim.of(1))
    row = drop_axis(ctx, row, row.rank - 2)
    return slice_along(ctx, row, row.rank - 1, band.offset(ctx, d), band.length(ctx, d))


def _set_diagonals(ctx: LoweringContext, base: Value, pack: Value, band: Band) -> Value:
    """``base`` with its diagonals replaced by those of ``pack``."""
    b, dims = ctx.b, base.dims
    distance = _column_minus_row(ctx, dims)
    zero = ctx.scalar(0, base.dtype)
    batch = len(dims) - 2
    for d in range(band.low, band.high + 1):
        row = _pack_row(ctx, pack, band, d)
        # Element t of the diagonal sits in column t + max(d, 0): lay the diagonal along the columns.
        before = Dim.of(max(d, 0))
        after = band.columns - before - band.length(ctx, d)
        low, high = [Dim.of(0)] * batch + [before], [Dim.of(0)] * batch + [after]
        along = ctx.cast_dims(b.pad(row, zero, low, high), (*row.dims[:-1], band.columns))
        spread = b.broadcast_in_dim(along, dims, [*range(batch), batch + 1])
        base = b.select(b.compare(distance, ctx.full(d, DType.I64, dims), "EQ"), spread, base)
    return base


@lowering("MatrixDiag", "BatchMatrixDiag", dtypes={"T": ALL})
def matrix_diag_v1(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """``[..., n] -> [..., n, n]`` with ``x`` on the main diagonal."""
    if not x.rank:
        raise invalid("input must be at least 1-dim, received shape: []")
    n = x.dims[-1]
    band = Band(0, 0, n, n, n, "LEFT_LEFT")
    return _set_diagonals(ctx, ctx.full(0, x.dtype, (*x.dims, n)), x, band)


@lowering("MatrixDiagV2", "MatrixDiagV3", dtypes={"T": ALL}, limits="k, num_rows and num_cols are constant")
def matrix_diag(
    ctx: LoweringContext, node: NodeView, x: Value, k: Value, num_rows: Value, num_cols: Value, padding: Value
) -> Value:
    """A matrix of given diagonals; sizes of -1 are the smallest that hold them."""
    if not x.rank:
        raise invalid("diagonal must be at least 1-dim, received shape: []")
    low, high = _diagonals(ctx, k, node.op)
    batch = x.dims[:-1]
    if low != high:
        if x.rank < 2:
            raise invalid("diagonal must be at least 2-dim for several diagonals")
        ctx.check_dims_eq(
            x.dims[-2],
            high - low + 1,
            message="The number of diagonals provided in the input does not match the band",
        )
        batch = x.dims[:-2]
    longest = x.dims[-1]
    rows, columns = _matrix_size(ctx, low, high, longest, num_rows, num_cols, node.op)
    band = Band(low, high, rows, columns, longest, _alignment(node))
    if padding.rank:
        raise invalid("padding_value must be a scalar")
    return _set_diagonals(ctx, ctx.broadcast_to(padding, (*batch, rows, columns)), x, band)


def _matrix_size(
    ctx: LoweringContext, low: int, high: int, longest: Dim, num_rows: Value, num_cols: Value, op: str
) -> tuple[Dim, Dim]:
    wanted_rows, wanted_columns = (constant_int(ctx, v, f"the size of {op}") for v in (num_rows, num_cols))
    min_rows, min_columns = longest - min(high, 0), longest + max(low, 0)
    if wanted_rows == -1 and wanted_columns == -1:
        rows = columns = maximum(ctx.env, min_rows, min_columns)
    else:
        rows = min_rows if wanted_rows == -1 else Dim.of(wanted_rows)
        columns = min_columns if wanted_columns == -1 else Dim.of(wanted_columns)
    for name, have, least in (("rows", rows, min_rows), ("columns", columns, min_columns)):
        ctx.check_dim_cond(
            have, "GE", least, message=f"The number of {name} is too small: {plain(have)}, needs {plain(least)}"
        )
    fits = ctx.env.is_equal(rows, min_rows) or ctx.env.is_equal(columns, min_columns)
    if fits is False:
        raise invalid(
            "The number of rows or columns is not consistent with the specified d_lower, d_upper, and diagonal."
        )
    if fits is None:
        same = [
            ctx.b.compare(ctx.dim(a), ctx.dim(m), "EQ") for a, m in ((rows, min_rows), (columns, min_columns))
        ]
        ctx.check(
            ctx.b.or_(*same), message="The number of rows or columns is not consistent with the diagonals"
        )
    return rows, columns


@lowering("MatrixSetDiag", "BatchMatrixSetDiag", dtypes={"T": ALL})
def matrix_set_diag_v1(ctx: LoweringContext, node: NodeView, x: Value, diagonal: Value) -> Value:
    """``x`` with its main diagonal replaced."""
    return _matrix_set_diag(ctx, node, x, diagonal, 0, 0)


@lowering("MatrixSetDiagV2", "MatrixSetDiagV3", dtypes={"T": ALL}, limits="k is constant")
def matrix_set_diag(ctx: LoweringContext, node: NodeView, x: Value, diagonal: Value, k: Value) -> Value:
    """``x`` with the diagonals ``k`` replaced."""
    low, high = _diagonals(ctx, k, node.op)
    return _matrix_set_diag(ctx, node, x, diagonal, low, high)


def _matrix_set_diag(
    ctx: LoweringContext, node: NodeView, x: Value, diagonal: Value, low: int, high: int
) -> Value:
    if x.rank < 2:
        raise invalid(f"input must be at least 2-dim, received shape: {x.type}")
    rows, columns = x.dims[-2:]
    _check_band(ctx, low, high, rows, columns)
    longest = _longest(ctx, low, high, rows, columns)
    wanted = [*x.dims[:-2], *([Dim.of(high - low + 1)] if low != high else []), longest]
    if diagonal.rank != len(wanted):
        raise invalid(f"diagonal of shape {diagonal.type} does not fit the input {x.type}")
    for have, want in zip(diagonal.dims, wanted, strict=True):
        ctx.check_dims_eq(
            have,
            want,
            message=f"Expected diagonal to have shape {plain(wanted)}, not {plain(diagonal.type)}",
        )
    band = Band(low, high, rows, columns, longest, _alignment(node))
    return _set_diagonals(ctx, x, ctx.cast_dims(diagonal, wanted), band)


@lowering("MatrixDiagPart", "BatchMatrixDiagPart", dtypes={"T": ALL})
def matrix_diag_part_v1(ctx: LoweringContext, node: NodeView, x: Value) -> Value:
    """The main diagonal."""
    return _matrix_diag_part(ctx, node, x, 0, 0, None)


@lowering("MatrixDiagPartV2", "MatrixDiagPartV3", dtypes={"T": ALL}, limits="k is constant")
def matrix_diag_part(ctx: LoweringContext, node: NodeView, x: Value, k: Value, padding: Value) -> Value:
    """The diagonals ``k``, packed."""
    low, high = _diagonals(ctx, k, node.op)
    return _matrix_diag_part(ctx, node, x, low, high, padding)


def _matrix_diag_part(
    ctx: LoweringContext, node: NodeView, x: Value, low: int, high: int, padding: Value | None
) -> Value:
    if x.rank < 2:
        raise invalid(f"input must be at least 2-dim, received shape: {x.type}")
    rows, columns = x.dims[-2:]
    _check_band(ctx, low, high, rows, columns)
    band = Band(low, high, rows, columns, _longest(ctx, low, high, rows, columns), _alignment(node))
    if band.count == 1:
        return _one_diagonal(ctx, x, band, low)
    assert padding is not None
    packed = []
    for d in range(high, low - 1, -1):
        row = _one_diagonal(ctx, x, band, d)
        before = band.offset(ctx, d)
        after = band.longest - before - band.length(ctx, d)
        batch = [Dim.of(0)] * (row.rank - 1)
        row = ctx.cast_dims(
            ctx.b.pad(row, padding, [*batch, before], [*batch, after]), (*row.dims[:-1], band.longest)
        )
        packed.append(ctx.b.reshape(row, (*row.dims[:-1], Dim.of(1), row.dims[-1])))
    return ctx.b.concatenate(packed, packed[0].rank - 2)


def _one_diagonal(ctx: LoweringContext, x: Value, band: Band, d: int) -> Value:
    """Diagonal ``d`` of the last two axes: ``[..., length]``."""
    b, batch = ctx.b, x.rank - 2
    length = band.length(ctx, d)
    if length == 0:
        return ctx.full(0, x.dtype, (*x.dims[:-2], length))
    step = b.iota(DType.I64, [length, 1], 0)
    vectors = b.concatenate([b.add(step, max(-d, 0)), b.add(step, max(d, 0))], 1)
    return b.gather(
        x,
        vectors,
        [*x.dims[:batch], 1, 1],
        offset_dims=tuple(range(batch)),
        collapsed_slice_dims=(batch, batch + 1),
        start_index_map=(batch, batch + 1),
        index_vector_dim=1,
    )


# ---- Diag, DiagPart --------------------------------------------------------------------------------------


@lowering("Diag", dtypes=ALL)
def diag(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """``dims -> dims + dims``, zero off the diagonal."""
    if not x.rank:
        raise invalid("Input must be at least rank 1, got 0")
    n = product(x.dims)
    flat = ctx.b.reshape(x, [n])
    square = _set_diagonals(ctx, ctx.full(0, x.dtype, [n, n]), flat, Band(0, 0, n, n, n, "LEFT_LEFT"))
    return ctx.b.reshape(square, (*x.dims, *x.dims))


@lowering("DiagPart", dtypes=ALL)
def diag_part(ctx: LoweringContext, _node: NodeView, x: Value) -> Value:
    """``dims + dims -> dims``."""
    half, odd = divmod(x.rank, 2)
    if odd or not half:
        raise invalid(f"The rank of the tensor should be even and positive, got shape {x.type}")
    first = x.dims[:half]
    for i in range(half):
        ctx.check_dims_eq(
            x.dims[i],
            x.dims[half + i],
            message=f"Invalid shape {plain(x.type)}: dimensions {i} and {half + i} do not match.",
        )
    n = product(first)
    square = ctx.b.reshape(ctx.cast_dims(x, (*first, *first)), [n, n])
    return ctx.b.reshape(_one_diagonal(ctx, square, Band(0, 0, n, n, n, "LEFT_LEFT"), 0), first)
