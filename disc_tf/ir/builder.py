"""`Builder`: typed helpers that append ops to a block, inferring and checking result types as they go.

Everything that a helper emits is checked by the op's `OpDef`; mistakes raise `IRError` at the call.  Helpers whose result would be
their operand (`reshape` to the same dims, `convert` to the same dtype, ...) return the operand.
A Python number may stand for one operand of a binary op or comparison: it is broadcast in the other's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast, overload

import numpy as np

from disc_tf.ir.core import ArgInfo, Block, Function, Op, Value
from disc_tf.ir.dims import Dim, DimLike, sym
from disc_tf.ir.opset import IRError, op_def
from disc_tf.ir.opset.reductions import scan_identity
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.ir.types import TOKEN, DType, TensorType, Type

Number = int | float | bool | np.generic
Operand = Value | Number

#: monoid -> combining op
MONOIDS = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum", "and": "and", "or": "or"}


def _dims(values: Iterable[DimLike]) -> tuple[Dim, ...]:
    return tuple(Dim.of(v) for v in values)


def identity_value(kind: str, dtype: DType) -> np.ndarray:
    """The identity of a monoid (`MONOIDS`) in a dtype, as a rank-0 array."""
    if dtype.is_bool:
        return np.array(kind in ("mul", "and", "min"))
    if kind in ("and", "or"):
        return np.array(0 if kind == "or" else -1).astype(dtype.np)
    return scan_identity(kind, dtype.np)


def _unary(name: str) -> Callable[[Builder, Value], Value]:
    def method(self: Builder, x: Value) -> Value:
        return self.create1(name, [x])

    method.__doc__ = f"Elementwise `{name}`."
    return method


def _binary(name: str) -> Callable[[Builder, Operand, Operand], Value]:
    def method(self: Builder, a: Operand, b: Operand) -> Value:
        return self.create1(name, self.pair(a, b))

    method.__doc__ = f"Elementwise `{name}` of equal shapes."
    return method


class Builder:
    """Appends to `block`, or inserts before the op `before`. `loc` is given to every op made; `env` sharpens the checks."""

    def __init__(
        self, block: Block, env: ShapeEnv | None = None, loc: tuple[str, ...] = (), before: Op | None = None
    ) -> None:
        self.block = block
        self.env = env
        self.loc = loc
        self.before = before

    # ---- making ops -----------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        operands: Sequence[Value] = (),
        attrs: Mapping[str, Any] | None = None,
        regions: Sequence[Block] = (),
        result: Sequence[Type] | None = None,
    ) -> Op:
        """Any op of the set. `result` is needed where the creator chooses the result type. Raises IRError."""
        definition = op_def(name)
        checked = definition.attributes(attrs or {})
        types = definition.infer_types([v.type for v in operands], checked, regions, result, self.env)
        op = Op(name, operands, types, checked, regions, self.loc)
        return self.block.append(op) if self.before is None else self.block.insert_before(self.before, op)

    def create1(
        self, name: str, operands: Sequence[Value] = (), result: Type | None = None, **attrs: Any
    ) -> Value:
        """An op with one result and no region; gives the result."""
        return self.create(name, operands, attrs, (), None if result is None else [result]).result

    def pair(self, a: Operand, b: Operand) -> list[Value]:
        """Two operands of one dtype, a number being broadcast in the other's type."""
        if isinstance(a, Value):
            return [a, b if isinstance(b, Value) else self.full(b, a.dtype, a.dims)]
        if not isinstance(b, Value):
            raise IRError("at least one operand must be a Value")
        return [self.full(a, b.dtype, b.dims), b]

    def region(
        self, types: Sequence[Type], body: Callable[..., Value | Sequence[Value]], *hints: str
    ) -> Block:
        """A block with parameters of `types`, filled by `body(builder, *params)`, which gives the returned values."""
        block = Block(types, hints)
        inner = Builder(block, self.env.child() if self.env else None, self.loc)
        result = body(inner, *block.params)
        inner.return_([result] if isinstance(result, Value) else result)
        return block

    def monoid(self, kind: str, dtype: DType) -> Block:
        """The region `(a, b) -> a op b`; `kind` is one of MONOIDS or its op's name."""
        name = MONOIDS.get(kind, kind)
        if name not in MONOIDS.values():
            raise IRError(f"unknown monoid {kind!r} (one of: {', '.join(MONOIDS)})")
        scalar = TensorType(dtype, ())
        return self.region([scalar, scalar], lambda b, x, y: b.create1(name, [x, y]), "acc", "x")

    # ---- constants -------------------------------------------------------------------------------------------

    def constant(self, value: np.ndarray | Number | Sequence, dtype: DType | None = None) -> Value:
        """A constant from an array or a number. A Python float needs `dtype`; the array must not be changed afterwards."""
        if dtype is None and not isinstance(value, np.ndarray | np.generic | bool | int):
            raise IRError("constant: the dtype of a Python value must be given")
        array = np.asarray(value)
        if dtype is not None and array.dtype != dtype.np:
            with np.errstate(all="ignore"):
                array = array.astype(dtype.np)
        array = array.view()
        array.flags.writeable = False
        return self.create1("constant", value=array)

    def full(self, value: Number | np.ndarray, dtype: DType, dims: Iterable[DimLike] = ()) -> Value:
        """One number in a shape."""
        return self.broadcast_in_dim(self.constant(value, dtype), dims, ())

    def zeros(self, dtype: DType, dims: Iterable[DimLike] = ()) -> Value:
        """Zero (or False) in a shape."""
        return self.full(0, dtype, dims)

    def iota(self, dtype: DType, dims: Iterable[DimLike], dimension: int) -> Value:
        """0, 1, 2, ... along `dimension`."""
        return self.create1("iota", result=TensorType.of(dtype, dims), dimension=dimension)

    # ---- elementwise ------------------------------------------------------------------------------------------

    abs = _unary("abs")
    negate = _unary("negate")
    sign = _unary("sign")
    exponential = _unary("exponential")
    exponential_minus_one = _unary("exponential_minus_one")
    log = _unary("log")
    log_plus_one = _unary("log_plus_one")
    sqrt = _unary("sqrt")
    rsqrt = _unary("rsqrt")
    cbrt = _unary("cbrt")
    sine = _unary("sine")
    cosine = _unary("cosine")
    tan = _unary("tan")
    tanh = _unary("tanh")
    logistic = _unary("logistic")
    floor = _unary("floor")
    ceil = _unary("ceil")
    round_nearest_even = _unary("round_nearest_even")
    round_nearest_afz = _unary("round_nearest_afz")
    is_finite = _unary("is_finite")
    not_ = _unary("not")
    popcnt = _unary("popcnt")
    count_leading_zeros = _unary("count_leading_zeros")
    erf = _unary("erf")
    erfc = _unary("erfc")
    asin = _unary("asin")
    acos = _unary("acos")
    atan = _unary("atan")
    sinh = _unary("sinh")
    cosh = _unary("cosh")
    asinh = _unary("asinh")
    acosh = _unary("acosh")
    atanh = _unary("atanh")
    lgamma = _unary("lgamma")
    digamma = _unary("digamma")

    add = _binary("add")
    subtract = _binary("subtract")
    multiply = _binary("multiply")
    divide = _binary("divide")
    remainder = _binary("remainder")
    power = _binary("power")
    maximum = _binary("maximum")
    minimum = _binary("minimum")
    atan2 = _binary("atan2")
    and_ = _binary("and")
    or_ = _binary("or")
    xor = _binary("xor")
    shift_left = _binary("shift_left")
    shift_right_arithmetic = _binary("shift_right_arithmetic")
    shift_right_logical = _binary("shift_right_logical")

    def compare(self, a: Operand, b: Operand, direction: str) -> Value:
        """EQ NE LT LE GT GE; gives bool. NaN compares as in IEEE 754."""
        return self.create1("compare", self.pair(a, b), direction=direction)

    def select(self, pred: Value, on_true: Operand, on_false: Operand) -> Value:
        """Elementwise choice; `pred` may be a scalar."""
        return self.create1("select", [pred, *self.pair(on_true, on_false)])

    def clamp(self, low: Operand, x: Value, high: Operand) -> Value:
        """`min(max(x, low), high)`; bounds are scalars or of x's shape."""
        bounds = [v if isinstance(v, Value) else self.constant(v, x.dtype) for v in (low, high)]
        return self.create1("clamp", [bounds[0], x, bounds[1]])

    def convert(self, x: Value, dtype: DType) -> Value:
        """By value (see `scalar_math.convert` for float to int)."""
        return x if x.dtype == dtype else self.create1("convert", [x], x.tensor.with_dtype(dtype))

    def bitcast_convert(self, x: Value, dtype: DType) -> Value:
        """By bits; a change of width adds or takes a minor dimension."""
        if dtype.bits == x.dtype.bits:
            return x if dtype == x.dtype else self.create1("bitcast_convert", [x], x.tensor.with_dtype(dtype))
        if dtype.bits < x.dtype.bits:
            return self.create1(
                "bitcast_convert", [x], TensorType.of(dtype, (*x.dims, x.dtype.bits // dtype.bits))
            )
        return self.create1("bitcast_convert", [x], TensorType(dtype, x.dims[:-1]))

    # ---- shape ------------------------------------------------------------------------------------------------

    def broadcast_in_dim(self, x: Value, dims: Iterable[DimLike], mapping: Iterable[int]) -> Value:
        """`x` in shape `dims`: operand dimension i becomes `mapping[i]`; at run time its extent is 1 or the result's."""
        wanted, order = _dims(dims), tuple(mapping)
        if wanted == x.dims and order == tuple(range(x.rank)):
            return x
        return self.create1("broadcast_in_dim", [x], TensorType(x.dtype, wanted), broadcast_dimensions=order)

    def reshape(self, x: Value, dims: Iterable[DimLike]) -> Value:
        """The same elements, row-major, in shape `dims`."""
        wanted = _dims(dims)
        return x if wanted == x.dims else self.create1("reshape", [x], TensorType(x.dtype, wanted))

    def transpose(self, x: Value, permutation: Iterable[int]) -> Value:
        """Result dimension i is operand dimension `permutation[i]`."""
        order = tuple(permutation)
        return x if order == tuple(range(x.rank)) else self.create1("transpose", [x], permutation=order)

    def reverse(self, x: Value, dimensions: Iterable[int]) -> Value:
        """Flip dimensions."""
        axes = tuple(dimensions)
        return self.create1("reverse", [x], dimensions=axes) if axes else x

    def concatenate(self, xs: Sequence[Value], dimension: int) -> Value:
        """Join along `dimension`."""
        return xs[0] if len(xs) == 1 else self.create1("concatenate", xs, dimension=dimension)

    def slice(
        self,
        x: Value,
        starts: Iterable[DimLike],
        limits: Iterable[DimLike],
        strides: Iterable[DimLike] | None = None,
    ) -> Value:
        """`x[start:limit:stride]` in every dimension; `0 <= start <= limit <= extent` must hold at run time."""
        steps = (1,) * x.rank if strides is None else strides
        return self.create1("slice", [x], starts=_dims(starts), limits=_dims(limits), strides=_dims(steps))

    def dynamic_slice(self, x: Value, starts: Sequence[Value], sizes: Iterable[DimLike]) -> Value:
        """A window of `sizes` at scalar starts, which are clamped into range."""
        return self.create1("dynamic_slice", [x, *starts], sizes=_dims(sizes))

    def dynamic_update_slice(self, x: Value, update: Value, starts: Sequence[Value]) -> Value:
        """`x` with the window at scalar starts (clamped) replaced."""
        return self.create1("dynamic_update_slice", [x, update, *starts])

    def pad(
        self,
        x: Value,
        value: Operand,
        low: Iterable[DimLike],
        high: Iterable[DimLike],
        interior: Iterable[DimLike] | None = None,
    ) -> Value:
        """Pad with a scalar; negative edges crop."""
        scalar = value if isinstance(value, Value) else self.constant(value, x.dtype)
        gaps = (0,) * x.rank if interior is None else interior
        return self.create1("pad", [x, scalar], low=_dims(low), high=_dims(high), interior=_dims(gaps))

    def gather(self, x: Value, indices: Value, slice_sizes: Iterable[DimLike], **numbers: Any) -> Value:
        """StableHLO gather; `numbers` are its dimension numbers. Start indices are clamped."""
        return self.create1("gather", [x, indices], slice_sizes=_dims(slice_sizes), **numbers)

    def scatter(
        self,
        xs: Sequence[Value],
        indices: Value,
        updates: Sequence[Value],
        region: Block | str,
        **numbers: Any,
    ) -> list[Value]:
        """StableHLO scatter; `region` may be a monoid or "assign". Updates out of bounds are skipped."""
        if isinstance(region, str):
            dtype = xs[0].dtype
            scalar = TensorType(dtype, ())
            if region == "assign":
                region = self.region([scalar, scalar], lambda _b, _old, new: new, "old", "new")
            else:
                region = self.monoid(region, dtype)
        return self.create("scatter", [*xs, indices, *updates], numbers, [region]).results

    # ---- combining ----------------------------------------------------------------------------------------------

    @overload
    def reduce(self, x: Value, dims: Iterable[int], kind: str, init: Value | None = None, /) -> Value: ...

    @overload
    def reduce(
        self,
        xs: Sequence[Value],
        inits: Sequence[Value],
        dims: Iterable[int],
        region: Block | str,
        /,
        arg: str = "",
    ) -> list[Value]: ...

    def reduce(self, first: Any, second: Any, third: Any, fourth: Any = None, /, arg: str = "") -> Any:
        """`reduce(x, dims, kind[, init]) -> Value` with a monoid (its identity by default), or
        `reduce(xs, inits, dims, region) -> [Value]`; `arg` marks an argmax/argmin region."""
        if isinstance(first, Value):
            init = fourth if fourth is not None else self.constant(identity_value(_kind(third), first.dtype))
            return self.reduce([first], [init], second, third)[0]
        region = self.monoid(fourth, first[0].dtype) if isinstance(fourth, str) else fourth
        attrs: dict[str, Any] = {"dimensions": tuple(sorted(third))}
        if arg:
            attrs["arg"] = arg
        return self.create("reduce", [*first, *second], attrs, [region]).results

    def reduce_window(
        self, xs: Sequence[Value], inits: Sequence[Value], region: Block | str, window_dimensions: Sequence[int],
        window_strides: Sequence[int] | None = None, padding_low: Iterable[DimLike] | None = None,
        padding_high: Iterable[DimLike] | None = None, base_dilations: Sequence[int] | None = None,
        window_dilations: Sequence[int] | None = None, dims: Sequence[DimLike] | None = None,
    ) -> list[Value]:  # fmt: skip
        """StableHLO reduce_window; strides and dilations default to 1, padding to 0. `dims`: the results' extents where the creator knows
        plainer expressions for them."""
        ones = (1,) * xs[0].rank
        attrs = {
            "window_dimensions": tuple(window_dimensions),
            "window_strides": tuple(window_strides or ones),
            "base_dilations": tuple(base_dilations or ones),
            "window_dilations": tuple(window_dilations or ones),
            "padding_low": _dims(padding_low if padding_low is not None else (0,) * len(ones)),
            "padding_high": _dims(padding_high if padding_high is not None else (0,) * len(ones)),
        }
        block = self.monoid(region, xs[0].dtype) if isinstance(region, str) else region
        result = None if dims is None else [TensorType.of(x.dtype, dims) for x in xs]
        return self.create("reduce_window", [*xs, *inits], attrs, [block], result).results

    def sort(
        self, xs: Sequence[Value], dimension: int, region: Block | str, stable: bool = True
    ) -> list[Value]:
        """Sort all of `xs` by a comparator region, or by a direction (LT, GT) on the first of them."""
        if isinstance(region, str):
            direction = region
            types = [TensorType(x.dtype, ()) for x in xs for _ in range(2)]
            region = self.region(types, lambda b, *p: b.compare(p[0], p[1], direction))
        return self.create("sort", xs, {"dimension": dimension, "stable": stable}, [region]).results

    def dot_general(
        self, a: Value, b: Value, lhs_contracting: Iterable[int], rhs_contracting: Iterable[int],
        lhs_batching: Iterable[int] = (), rhs_batching: Iterable[int] = (), dtype: DType | None = None,
    ) -> Value:  # fmt: skip
        """Result dims: batching, then the rest of `a`, then the rest of `b`. `dtype` may be a wider accumulator; with i32
        the operands may be i8 and u8, mixed too."""
        attrs = {
            "lhs_batching": tuple(lhs_batching),
            "rhs_batching": tuple(rhs_batching),
            "lhs_contracting": tuple(lhs_contracting),
            "rhs_contracting": tuple(rhs_contracting),
        }
        result = None if dtype is None else [TensorType(dtype, ())]
        return self.create("dot_general", [a, b], attrs, (), result).result

    def convolution(
        self, x: Value, w: Value, *, strides: Sequence[int] | None = None, padding_low: Iterable[DimLike] | None = None,
        padding_high: Iterable[DimLike] | None = None, lhs_dilation: Sequence[int] | None = None,
        rhs_dilation: Sequence[int] | None = None, groups: int = 1, dims: Sequence[DimLike] | None = None,
    ) -> Value:  # fmt: skip
        """``x[batch, spatial..., channels]`` by ``w[spatial..., channels / groups, features]``; strides and dilations default to 1, padding
        to 0. `dims`: the result's extents where the creator knows plainer expressions for them."""
        ones = (1,) * (x.rank - 2)
        zeros = (0,) * len(ones)
        attrs = {
            "window_strides": tuple(strides or ones),
            "padding_low": _dims(padding_low if padding_low is not None else zeros),
            "padding_high": _dims(padding_high if padding_high is not None else zeros),
            "lhs_dilation": tuple(lhs_dilation or ones),
            "rhs_dilation": tuple(rhs_dilation or ones),
            "feature_group_count": groups,
        }
        result = None if dims is None else [TensorType.of(x.dtype, dims)]
        return self.create("convolution", [x, w], attrs, (), result).result

    def scan(
        self, x: Value, dimension: int, kind: str, reverse: bool = False, exclusive: bool = False
    ) -> Value:
        """Running `add mul max min`, or `logaddexp` (floats: log of the sum of exponentials), along a dimension."""
        return self.create1(
            "disc.scan", [x], dimension=dimension, kind=kind, reverse=reverse, exclusive=exclusive
        )

    def topk(self, x: Value, k: DimLike) -> tuple[Value, Value]:
        """The `k` greatest of the last dimension, descending, and their i32 indices; ties by lower index."""
        values, indices = self.create("disc.topk", [x], {"k": Dim.of(k)}).results
        return values, indices

    def segment(
        self, data: Value, ids: Value, segments: DimLike, kind: str, indices: Value | None = None, weights: Value | None = None,
        *, sorted: bool = True, scale: str = "none", empty: str = "zero", wide: bool = False,
    ) -> Value:  # fmt: skip
        """Rows `data[n]` (`data[indices[n]] * weights[n]`) combined by `add mul max min` into row `ids[n]` of the result, in order of n.

        Ids outside of [0, segments) are dropped, indices clamped. sorted: ids never fall. scale: sums divided by the number of
        their rows (mean) or its root (sqrtn). wide: f16 and bf16 are summed in f32.
        """
        operands = [data, ids, *(() if indices is None else (indices,)), *(() if weights is None else (weights,))]
        return self.create1(
            "disc.segment", operands, segments=Dim.of(segments), kind=kind, sorted=sorted, scale=scale, empty=empty, wide=wide
        )

    def fill_rows(self, indices: Value, values: Value, default: Value, rows: DimLike) -> list[Value]:
        """The entries of a sparse tensor (i64 `indices` [n, rank], `values` [n]) grouped by row, with an entry of `default` in each of the
        rows that has none: indices and values padded to n + rows, which rows were empty, where each entry went, and the count."""
        return self.create("disc.fill_rows", [indices, values, default], {"rows": Dim.of(rows)}).results

    # ---- linear algebra on [batch, n, n] and [batch, n, sides], f32 and f64 -------------------------------------

    def cholesky(self, a: Value) -> Value:
        """The lower factor of the lower triangle of each matrix; NaN there if it has none."""
        return self.create1("disc.cholesky", [a])

    def lu(self, a: Value) -> tuple[Value, Value, Value]:
        """L (unit diagonal, not stored) and U in one matrix, the order of the rows (i32), and whether it is odd. Partial pivoting."""
        factors, order, odd = self.create("disc.lu", [a]).results
        return factors, order, odd

    def lu_solve(self, factors: Value, order: Value, b: Value, transpose: bool = False) -> Value:
        """Solves with what `lu` gave, or with the transposed matrix."""
        return self.create1("disc.lu_solve", [factors, order, b], transpose=transpose)

    def triangular_solve(self, a: Value, b: Value, lower: bool, transpose: bool = False) -> Value:
        """Solves with the lower or upper triangle of `a`, or with its transpose."""
        return self.create1("disc.triangular_solve", [a, b], lower=lower, transpose=transpose)

    # ---- results whose size depends on data: padded to a bound, with a count ------------------------------------

    def nonzero(self, mask: Value) -> tuple[Value, Value]:
        """Index vectors of the true elements, row-major, and their number: `i64[elements, rank], i64[]`."""
        indices, count = self.create("disc.nonzero", [mask]).results
        return indices, count

    def nms(
        self, data: Value, scores: Value, threshold: Value, least: Value, sigma: Value, limit: DimLike, room: DimLike,
        *, overlaps: bool = False,
    ) -> tuple[Value, Value, Value]:  # fmt: skip
        """Non-maximum suppression among boxes `[n, 4]` (or by their overlaps `[n, n]`): at most `limit` indices (i32) and scores, zeros
        behind them up to `room`, and their number (i64). `sigma` above 0 lowers scores instead of suppressing."""
        attrs = {"limit": Dim.of(limit), "room": Dim.of(room), "overlaps": overlaps}
        indices, taken, count = self.create("disc.nms", [data, scores, threshold, least, sigma], attrs).results
        return indices, taken, count

    def combined_nms(
        self, boxes: Value, scores: Value, threshold: Value, least: Value, per_class: DimLike, room: DimLike, clip: bool
    ) -> list[Value]:
        """Non-maximum suppression of boxes `[batch, n, 1 or classes, 4]` for each class of `scores [batch, n, classes]` (f32), the best
        `room` of each image: boxes `[batch, room, 4]`, scores and classes `[batch, room]`, and how many are valid (i32 `[batch]`)."""
        attrs = {"per_class": Dim.of(per_class), "room": Dim.of(room), "clip": clip}
        return self.create("disc.combined_nms", [boxes, scores, threshold, least], attrs).results

    def partition(self, ids: Value, parts: int) -> tuple[Value, Value]:
        """The positions of `ids` (i32, [n]) that are 0 in their order, then those that are 1 ... (i64 [n]), and how many of each there are
        (i64 [parts]). Ids out of range are in no part."""
        order, counts = self.create("disc.partition", [ids], {"parts": parts}).results
        return order, counts

    def search(self, lines: Value, values: Value, side: str, index_type: DType = DType.I32) -> Value:
        """Where `values [b, m]` belong in the ascending `lines [b, n]`: before (side lower) or behind (upper) their equals."""
        return self.create1("disc.search", [lines, values], side=side, index_type=index_type.ir_name)

    def unique(
        self, rows: Value, index_type: DType = DType.I64, distinct_zeros: bool = False
    ) -> tuple[Value, Value, Value, Value]:
        """Distinct rows of `[n, width]` in order of first occurrence: where each is first (i64), the number of each row, how often each
        occurs, and how many there are (i64). NaN equals nothing; `distinct_zeros` tells +0 and -0 apart in rows of one element."""
        attrs = {"index_type": index_type.ir_name, "distinct_zeros": distinct_zeros}
        first, index, counts, count = self.create("disc.unique", [rows], attrs).results
        return first, index, counts, count

    # ---- control, dims, checks --------------------------------------------------------------------------------

    def while_(
        self, inits: Sequence[Value], cond: Block, body: Block, types: Sequence[Type] | None = None
    ) -> list[Value]:
        """Loop; `types` are the result types where they differ from those of `inits`."""
        return self.create("while", inits, None, [cond, body], types).results

    def case(
        self, index: Value, branches: Sequence[Block], types: Sequence[Type] | None = None
    ) -> list[Value]:
        """Branch `index` (i32; the last one if out of range). Branches have no parameters and see outer values."""
        return self.create("case", [index], None, branches, types).results

    def return_(self, values: Sequence[Value]) -> Op:
        """Ends a block."""
        return self.create("return", values)

    def dim(self, d: DimLike, dtype: DType = DType.I64) -> Value:
        """The value of a dim as a scalar (i64 or i32); a constant if static."""
        d = Dim.of(d)
        if d.is_static:
            return self.constant(np.array(int(d), np.int64), dtype)
        return self.create1("disc.dim", result=TensorType(dtype, ()), dim=d)

    def bind_dim(self, scalar: Value, symbol: str) -> Dim:
        """Give a fresh symbol the value of an integer scalar; returns the symbol as a dim."""
        self.create("disc.bind_dim", [scalar], {"symbol": symbol})
        return sym(symbol)

    def create_token(self) -> Value:
        """A fresh ordering token."""
        return self.create1("disc.create_token")

    def after_all(self, tokens: Sequence[Value]) -> Value:
        """A token after all of `tokens`."""
        return tokens[0] if len(tokens) == 1 else self.create1("disc.after_all", tokens)

    def check(
        self, pred: Value, token: Value | None = None, code: int = 3, message: str = "", node: str = ""
    ) -> Value:
        """Fail at run time with TensorFlow status `code` unless `pred` (all of it) is true; returns the next token.

        Without `token` the check starts a new chain.
        """
        if pred.rank:
            pred = self.reduce(pred, range(pred.rank), "and")
        start = token if token is not None else self.create_token()
        return self.create1("disc.check", [pred, start], code=code, message=message, node=node)


def _kind(name: str) -> str:
    for kind, op in MONOIDS.items():
        if name in (kind, op):
            return kind
    raise IRError(f"unknown monoid {name!r} (one of: {', '.join(MONOIDS)})")


def new_function(
    name: str, params: Mapping[str, TensorType | tuple[DType, Sequence[DimLike]]]
) -> tuple[Function, Builder]:
    """A function with these parameters (name -> type) and a builder at its end."""
    fn = Function(name)
    for arg, type in params.items():
        tensor = type if isinstance(type, TensorType) else TensorType.of(*cast(Any, type))
        fn.add_arg(tensor, ArgInfo(arg))
    return fn, Builder(fn.body, fn.env)


__all__ = ["MONOIDS", "TOKEN", "Builder", "identity_value", "new_function"]
