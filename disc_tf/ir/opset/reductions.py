"""Ops that combine many elements: reduce, reduce_window, sort, dot_general, disc.scan, disc.topk.

The references run region bodies on whole arrays at once: a region is made of elementwise ops, whose references take any shape.
f16 and bf16 sums, products and dot products accumulate in f32 and round once, as the compiled kernels do.
"""

from __future__ import annotations

import functools
import itertools
import string
from collections.abc import Callable, Sequence

import numpy as np

from disc_tf.ir.core import Block, Op, reduce_kind
from disc_tf.ir.dims import Dim, dmax
from disc_tf.ir.opset import scalar_math
from disc_tf.ir.opset.base import Attr, EvalContext, InferInput, OpDef, register
from disc_tf.ir.opset.shaping import pad
from disc_tf.ir.types import DType, TensorType, Type

_SORT_MATRIX = 512  # rows up to this long are sorted by counting over all pairs at once


# ---- regions ------------------------------------------------------------------------------------------------


def check_scalar_region(
    i: InferInput, block: Block, params: Sequence[DType], results: Sequence[DType]
) -> None:
    """Require that a region takes and returns scalars of these dtypes."""
    want: list[Type] = [TensorType(d, ()) for d in params]
    have = [p.type for p in block.params]
    if have != want:
        raise i.fail(
            f"region parameters are ({', '.join(map(str, have))}), should be ({', '.join(map(str, want))})"
        )
    if not block.ops or block.ops[-1].name != "return":
        raise i.fail("region has no return")
    want = [TensorType(d, ()) for d in results]
    have = [v.type for v in block.results]
    if have != want:
        raise i.fail(
            f"region returns ({', '.join(map(str, have))}), should return ({', '.join(map(str, want))})"
        )


def _inputs_and_inits(i: InferInput) -> tuple[list[TensorType], tuple[Dim, ...]]:
    types = i.tensors()
    if not types or len(types) % 2:
        raise i.fail("takes as many initial values as inputs, at least one")
    count = len(types) // 2
    for k in range(count):
        if types[count + k] != TensorType(types[k].dtype, ()):
            raise i.fail(f"initial value {k} is {types[count + k]}, should be a scalar of {types[k].dtype}")
    return types[:count], i.merge(*(t.dims for t in types[:count]))


# ---- reduce ---------------------------------------------------------------------------------------------------


def _infer_reduce(i: InferInput) -> list[Type]:
    inputs, dims = _inputs_and_inits(i)
    axes = i.axes(i.attrs["dimensions"], len(dims), "dimensions", ordered=True)
    dtypes = [t.dtype for t in inputs]
    check_scalar_region(i, i.regions[0], dtypes * 2, dtypes)
    kept = tuple(d for k, d in enumerate(dims) if k not in axes)
    return [TensorType(d, kept) for d in dtypes]


def combine(kind: str, axis_first: np.ndarray, init: np.ndarray) -> np.ndarray:
    """Reduce over axis 0 with the monoid `kind`, starting from `init`; the dtype is kept."""
    dtype = axis_first.dtype
    with np.errstate(all="ignore"):
        if kind in ("add", "mul"):
            # A wide accumulator: the reference is the correctly rounded answer, for f16/bf16 the answer of an f32 sum.
            ufunc = np.add if kind == "add" else np.multiply
            floating = scalar_math.is_float(dtype)
            wide = np.dtype(np.float64) if floating else dtype
            total = ufunc.reduce(axis_first.astype(wide), axis=0, dtype=wide)
            return (
                scalar_math.round_to(ufunc(total, init.astype(wide)), dtype)
                if floating
                else ufunc(total, init)
            )
        fn = {"max": "maximum", "min": "minimum", "and": "and", "or": "or"}[kind]
        result = np.broadcast_to(init, axis_first.shape[1:])
        binary = scalar_math.BINARY[fn]
        count = axis_first.shape[0]
        while count > 1:  # halving: log2 vectorised steps
            half = count // 2
            low = binary(axis_first[:half], axis_first[half : 2 * half])
            axis_first = np.concatenate([low, axis_first[2 * half : count]]) if count % 2 else low
            count = axis_first.shape[0]
        return binary(result.astype(dtype), axis_first[0]) if count else result.astype(dtype)


def fold(
    block: Block, kind: str | None, rows: Sequence[np.ndarray], inits: Sequence[np.ndarray], ctx: EvalContext
) -> list[np.ndarray]:
    """Reduce over axis 0, with the region in index order or with the monoid it was recognised as."""
    if kind in ("add", "mul", "max", "min", "and", "or"):
        return [combine(kind, rows[0], inits[0])]
    shape = rows[0].shape[1:]
    acc = [np.broadcast_to(v, shape) for v in inits]
    for k in range(rows[0].shape[0]):
        acc = ctx.run(block, [*acc, *(r[k] for r in rows)])
    return [np.broadcast_to(a, shape) for a in acc]


def _reduce_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    count = len(inputs) // 2
    axes = op.attrs["dimensions"]
    rows = []
    for x in inputs[:count]:
        kept = [a for a in range(x.ndim) if a not in axes]
        moved = x.transpose([*axes, *kept])
        length = int(np.prod(moved.shape[: len(axes)], dtype=np.int64))
        rows.append(moved.reshape(length, *moved.shape[len(axes) :]))
    kind = None if "arg" in op.attrs else reduce_kind(op)
    return fold(op.regions[0], kind, rows, inputs[count:], ctx)


# ---- reduce_window ----------------------------------------------------------------------------------------------


def window_extent(extent: Dim, size: int, stride: int, base: int, dilation: int, low: Dim, high: Dim) -> Dim:
    """The number of windows over one dimension (StableHLO reduce_window and convolution)."""
    spread = extent if base == 1 else dmax((extent - 1) * base + 1, 0)
    padded = spread + low + high
    return dmax((padded - ((size - 1) * dilation + 1)) // stride + 1, 0)


def _window_attrs(i: InferInput, rank: int) -> list[Sequence]:
    names = (
        "window_dimensions",
        "window_strides",
        "base_dilations",
        "window_dilations",
        "padding_low",
        "padding_high",
    )
    values = [i.attrs[name] for name in names]
    for name, value in zip(names, values, strict=True):
        if len(value) != rank:
            raise i.fail(f"{name} must have {rank} entries")
        if not name.startswith("padding") and any(v < 1 for v in value):
            raise i.fail(f"{name} must be positive")
    return values


def _infer_reduce_window(i: InferInput) -> list[Type]:
    inputs, dims = _inputs_and_inits(i)
    columns = zip(dims, *_window_attrs(i, len(dims)), strict=True)
    dtypes = [t.dtype for t in inputs]
    check_scalar_region(i, i.regions[0], dtypes * 2, dtypes)
    out = tuple(window_extent(*column) for column in columns)
    if i.result is not None and len(i.result) == len(dtypes):  # the creator may know plainer dims for the same extents
        chosen = [t.dims for t in i.result if isinstance(t, TensorType) and t.rank == len(out)]
        if len(chosen) == len(dtypes):
            for have, want in zip(chosen[0], out, strict=True):
                if i.differ(have, want):
                    raise i.fail(f"the result has dims {chosen[0]}, should have {out}")
            return [TensorType(d, dims) for d, dims in zip(dtypes, chosen, strict=True)]
    return [TensorType(d, out) for d in dtypes]


def _reduce_window_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    count = len(inputs) // 2
    a = op.attrs
    low, high = ([ctx.dim(d) for d in a[k]] for k in ("padding_low", "padding_high"))
    gaps = [b - 1 for b in a["base_dilations"]]
    windows = list(itertools.product(*(range(w) for w in a["window_dimensions"])))
    rows = []
    for x, init in zip(inputs[:count], inputs[count:], strict=True):
        padded = pad(x, init, low, high, gaps)
        taken = []
        for window in windows:
            index = []
            for axis, offset in enumerate(window):
                reach = (a["window_dimensions"][axis] - 1) * a["window_dilations"][axis] + 1
                n = max((padded.shape[axis] - reach) // a["window_strides"][axis] + 1, 0)
                start = offset * a["window_dilations"][axis]
                index.append(slice(start, start + n * a["window_strides"][axis], a["window_strides"][axis]))
                if n == 0:
                    index[-1] = slice(0, 0)
            taken.append(padded[tuple(index)])
        rows.append(np.stack(taken))
    return fold(op.regions[0], reduce_kind(op), rows, inputs[count:], ctx)


# ---- sort, top k, scan --------------------------------------------------------------------------------------------


def _infer_sort(i: InferInput) -> list[Type]:
    types = i.tensors()
    if not types:
        raise i.fail("needs at least one operand")
    dims = i.merge(*(t.dims for t in types))
    i.axis(i.attrs["dimension"], len(dims))
    check_scalar_region(i, i.regions[0], [t.dtype for t in types for _ in range(2)], [DType.BOOL])
    return [TensorType(t.dtype, dims) for t in types]


def _sort_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    axis, block = op.attrs["dimension"], op.regions[0]
    moved = [np.moveaxis(x, axis, -1) for x in inputs]
    shape = moved[0].shape
    length = shape[-1]
    rows = [m.reshape(-1, length) if m.size else m.reshape(0, length) for m in moved]
    order = np.empty(rows[0].shape, np.int64)
    for r in range(rows[0].shape[0]):
        order[r] = _sorted_order([row[r] for row in rows], block, ctx)
    return [np.moveaxis(np.take_along_axis(row, order, axis=1).reshape(shape), -1, axis) for row in rows]


def _sorted_order(columns: Sequence[np.ndarray], block: Block, ctx: EvalContext) -> np.ndarray:
    """The stable order of one row by the comparator (`true` if the left one comes first)."""
    n = columns[0].shape[0]
    if n <= _SORT_MATRIX:
        pairs = [side for c in columns for side in (c[:, None], c[None, :])]
        before = np.broadcast_to(ctx.run(block, pairs)[0], (n, n))  # before[i, j]: i comes before j
        position = np.arange(n)
        tie = ~before & ~before.T & (position[:, None] < position[None, :])
        rank = (before | tie).sum(axis=0)
        order = np.full(n, -1)
        order[rank[rank < n]] = position[rank < n]
        if (order >= 0).all():  # the comparator is a strict weak order
            return order

    def compare(i: int, j: int) -> int:
        if bool(ctx.run(block, [side for c in columns for side in (c[i], c[j])])[0]):
            return -1
        return 1 if bool(ctx.run(block, [side for c in columns for side in (c[j], c[i])])[0]) else 0

    return np.array(sorted(range(n), key=functools.cmp_to_key(compare)), np.int64)


def _infer_topk(i: InferInput) -> list[Type]:
    x, k = i.tensor(0), i.attrs["k"]
    if not x.rank or x.dtype == DType.BOOL:
        raise i.fail("needs numbers of rank 1 or more")
    known = x.dims[-1] - k
    if known.is_static and int(known) < 0:
        raise i.fail(f"k = {k} exceeds the last dimension {x.dims[-1]}")
    dims = (*x.dims[:-1], k)
    return [TensorType(x.dtype, dims), TensorType(DType.I32, dims)]


def _topk_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    x, k = inputs[0], ctx.dim(op.attrs["k"])
    keys = scalar_math.widen(x)
    # Descending and stable: the stable ascending order of the reversed row, reversed (NaN is greatest).
    order = x.shape[-1] - 1 - np.argsort(keys[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    order = order[..., :k]
    return [np.take_along_axis(x, order, axis=-1), order.astype(np.int32)]


def _infer_scan(i: InferInput) -> list[Type]:
    x = i.tensor(0)
    i.axis(i.attrs["dimension"], x.rank)
    if x.dtype == DType.BOOL or (i.attrs["kind"] == "logaddexp" and not x.dtype.is_float):
        raise i.fail(f"scan of {x.dtype}")
    return [x]


def scan_identity(kind: str, dtype: np.dtype) -> np.ndarray:
    """The identity of a scan kind in a dtype."""
    if kind in ("add", "mul"):
        return np.array(0 if kind == "add" else 1).astype(dtype)
    if scalar_math.is_float(dtype):
        return np.array(np.inf if kind == "min" else -np.inf).astype(dtype)
    info = np.iinfo(dtype)
    return np.array(info.min if kind == "max" else info.max, dtype)


def _add_exponentials(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """log(exp(a) + exp(b)); a NaN in `b` counts as `a`, as in TensorFlow's kernel."""
    low, high = np.where(b < a, b, a), np.where(a < b, b, a)
    return np.where(high == -np.inf, high, np.log1p(np.exp(low - high)) + high)


def _scan_exponentials(x: np.ndarray) -> np.ndarray:
    """Running log(sum(exp(x))) along axis 0."""
    out, acc = np.empty_like(x), np.full(x.shape[1:], -np.inf)
    for k in range(x.shape[0]):
        out[k] = acc = _add_exponentials(acc, x[k])
    return out


def _scan_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    x, kind, axis = inputs[0], op.attrs["kind"], op.attrs["dimension"]
    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}.get(kind)
    moved = np.moveaxis(x, axis, 0)
    if op.attrs.get("reverse", False):
        moved = moved[::-1]
    wide = scalar_math.widen(moved)
    if kind in ("add", "mul", "logaddexp") and scalar_math.is_float(x.dtype):
        wide = wide.astype(np.float64)
    with np.errstate(all="ignore"):
        if ufunc is None:
            done = _scan_exponentials(wide)
        else:
            done = ufunc.accumulate(wide, axis=0, dtype=wide.dtype) if moved.shape[0] else wide
    if op.attrs.get("exclusive", False) and moved.shape[0]:
        first = np.broadcast_to(scan_identity(kind, x.dtype).astype(wide.dtype), (1, *moved.shape[1:]))
        done = np.concatenate([first, done[:-1]])
    done = scalar_math.round_to(done, x.dtype) if scalar_math.is_float(x.dtype) else done
    return [np.moveaxis(done[::-1] if op.attrs.get("reverse", False) else done, 0, axis)]


# ---- dot_general --------------------------------------------------------------------------------------------------


def _infer_dot(i: InferInput) -> list[Type]:
    a, b = i.tensors()
    given = i.result[0].dtype if i.result is not None and isinstance(i.result[0], TensorType) else None
    bytes_ = given is DType.I32 and all(t.dtype in (DType.I8, DType.U8) for t in (a, b))
    dtype = DType.I32 if bytes_ else i.same_dtype((a, b))
    if dtype == DType.BOOL:
        raise i.fail("dot product of bool")
    lb, rb, lc, rc = (i.attrs[k] for k in _DOT_ATTRS)
    if len(lb) != len(rb) or len(lc) != len(rc):
        raise i.fail("both sides need equally many batching and contracting dimensions")
    i.axes(lb + lc, a.rank, "lhs dimensions")
    i.axes(rb + rc, b.rank, "rhs dimensions")
    batch = i.merge([a.dims[k] for k in lb], [b.dims[k] for k in rb])
    i.merge([a.dims[k] for k in lc], [b.dims[k] for k in rc])
    left = [d for k, d in enumerate(a.dims) if k not in lb + lc]
    right = [d for k, d in enumerate(b.dims) if k not in rb + rc]
    result = TensorType(dtype, (*batch, *left, *right))
    if given is not None:
        if given != dtype and (given.kind != dtype.kind or given.bits < dtype.bits):
            raise i.fail(f"cannot accumulate {dtype} in {given}")
        result = result.with_dtype(given)
    return [result]


_DOT_ATTRS = ("lhs_batching", "rhs_batching", "lhs_contracting", "rhs_contracting")


def dot_general(
    a: np.ndarray, b: np.ndarray, dimensions: Sequence[Sequence[int]], dtype: np.dtype
) -> np.ndarray:
    """Contract in f64 (floats) or the wrapping integer type, and round once to `dtype`."""
    lb, rb, lc, rc = dimensions
    floating = scalar_math.is_float(a.dtype)
    names = iter(string.ascii_letters)
    left = [next(names) for _ in range(a.ndim)]
    right = [next(names) for _ in range(b.ndim)]
    for x, y in zip((*lb, *lc), (*rb, *rc), strict=True):
        right[y] = left[x]
    out = [left[k] for k in lb]
    out += [c for k, c in enumerate(left) if k not in (*lb, *lc)] + [
        c for k, c in enumerate(right) if k not in (*rb, *rc)
    ]
    wide = np.dtype(np.float64) if floating else np.dtype(dtype)
    with np.errstate(all="ignore"):
        spec = f"{''.join(left)},{''.join(right)}->{''.join(out)}"
        result = np.einsum(spec, a.astype(wide), b.astype(wide), optimize=floating)
        return (
            scalar_math.round_to(np.asarray(result), dtype) if floating else np.asarray(result).astype(dtype)
        )


def _dot_reference(op: Op, inputs: Sequence[np.ndarray], ctx: EvalContext) -> list[np.ndarray]:
    return [dot_general(inputs[0], inputs[1], [op.attrs[k] for k in _DOT_ATTRS], op.result.dtype.np)]


def _define(
    name: str, arity: int | None, infer: Callable, reference: Callable, attrs: dict[str, Attr], **more
) -> None:
    register(OpDef(name, arity, infer, reference, attrs, **more))


_define(
    "reduce", None, _infer_reduce, _reduce_reference,
    {"dimensions": Attr("ints"), "arg": Attr("str", ("argmax", "argmin"), default=None)},
    regions=1, stablehlo="stablehlo.reduce",
)  # fmt: skip
_define(
    "reduce_window", None, _infer_reduce_window, _reduce_window_reference,
    {
        "window_dimensions": Attr("ints"), "window_strides": Attr("ints"), "base_dilations": Attr("ints"),
        "window_dilations": Attr("ints"), "padding_low": Attr("dims"), "padding_high": Attr("dims"),
    },
    regions=1, typed=True, stablehlo="stablehlo.reduce_window",
)  # fmt: skip
_define(
    "sort", None, _infer_sort, _sort_reference, {"dimension": Attr("int"), "stable": Attr("bool", default=True)},
    regions=1, stablehlo="stablehlo.sort",
)  # fmt: skip
_define(
    "dot_general", 2, _infer_dot, _dot_reference, {k: Attr("ints") for k in _DOT_ATTRS},
    typed=True, stablehlo="stablehlo.dot_general",
)  # fmt: skip
_define("disc.topk", 1, _infer_topk, _topk_reference, {"k": Attr("dim")}, stablehlo="chlo.top_k")
_define(
    "disc.scan", 1, _infer_scan, _scan_reference,
    {
        "dimension": Attr("int"), "kind": Attr("str", ("add", "mul", "max", "min", "logaddexp")),
        "reverse": Attr("bool", default=False), "exclusive": Attr("bool", default=False),
    },
)  # fmt: skip

__all__ = ["check_scalar_region", "combine", "dot_general", "fold", "scan_identity", "window_extent"]
