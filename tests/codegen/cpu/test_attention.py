"""Attention kernels against numpy in float64: targets x dtypes x lengths x masks x score stages."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.codegen.cpu.target import V4_VNNI_BF16
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import Value
from disc_tf.ir.types import DType
from tests.codegen.cpu.products import Case, host_targets, lacks, random

TARGETS = host_targets()
TOLERANCE = {DType.F32: 2e-5, DType.F64: 1e-12, DType.BF16: 5e-2, DType.F16: 8e-3}
LENGTHS = [(0, 0), (1, 1), (7, 7), (64, 64), (129, 129), (700, 700), (3, 1100), (150, 20), (5, 0)]
MASKS = {
    "none": None,
    "keys": ("b", 1, 1, "t"),
    "pairs": ("b", 1, "s", "t"),
    "full": ("b", "h", "s", "t"),
    "shared": (1, 1, "s", "t"),
}


def ids(x: object) -> str:
    return str(getattr(x, "name", x))


def softmax(b: Builder, x: Value) -> Value:
    rows = range(x.rank - 1)
    shifted = b.subtract(x, b.broadcast_in_dim(b.reduce(x, [x.rank - 1], "max"), x.dims, rows))
    e = b.exponential(shifted)
    return b.divide(e, b.broadcast_in_dim(b.reduce(e, [x.rank - 1], "add"), x.dims, rows))


def projections(c: Case, dtype: DType) -> tuple[list[Value], list[Value]]:
    """q, k, v as projections leave them, [B, S, H, D], and their transposes [B, H, S, D]."""
    args = [c.arg(dtype, ("b", n, "h", "d")) for n in ("s", "t", "t")]
    return args, [c.b.transpose(x, (0, 2, 1, 3)) for x in args]


def scores(c: Case, q: Value, k: Value) -> Value:
    return c.b.dot_general(q, k, [3], [3], [0, 1], [0, 1])


def output(c: Case, p: Value, v: Value) -> Value:
    return c.b.transpose(c.b.dot_general(p, v, [3], [2], [0, 1], [0, 1]), (0, 2, 1, 3))


def reference(q, k, v, mask=None, scale=1.0) -> np.ndarray:
    q, k, v = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    s = np.einsum("bhsd,bhtd->bhst", q, k) * scale
    if mask is not None:
        s = s + mask.astype(np.float64)
    with np.errstate(all="ignore"):
        e = np.exp(s - s.max(-1, keepdims=True, initial=-np.inf))
        return np.einsum("bhst,bhtd->bhsd", e / e.sum(-1, keepdims=True), v).transpose(0, 2, 1, 3)


def _types():
    """All types for all targets, and bf16 for the instructions that it has of its own."""
    for dtype in TOLERANCE:
        for target in TARGETS:
            yield pytest.param(target, dtype, id=f"{dtype}-{target.isa}")
    skip = pytest.mark.skipif(bool(lacks(V4_VNNI_BF16)), reason=f"this CPU has no {', '.join(lacks(V4_VNNI_BF16))}")
    yield pytest.param(V4_VNNI_BF16, DType.BF16, id=f"bf16-{V4_VNNI_BF16.isa}", marks=skip)


@pytest.mark.parametrize(("target", "dtype"), _types())
@pytest.mark.parametrize("mask", list(MASKS))
def test_masked_softmax(target, dtype, mask):
    rng = np.random.default_rng(3)
    c = Case()
    (q, k, v), (qt, kt, vt) = projections(c, dtype)
    s = scores(c, qt, kt)
    s = c.b.multiply(s, c.b.full(0.25, dtype, s.dims))
    m = None
    if MASKS[mask] is not None:
        m = c.arg(dtype, MASKS[mask])
        s = c.b.add(s, c.b.broadcast_in_dim(m, s.dims, range(4)))
    f = c.compile(target, "attention", [output(c, softmax(c.b, s), vt)])
    assert ("dpbf16ps" in f.text) == bool(target.dots)
    for i, (n, t) in enumerate(LENGTHS):
        if n * t > 20000 and (dtype is not DType.F32 or mask not in ("none", "keys")):
            continue
        sizes = {
            "b": 2 if n < 100 else 1,
            "h": 3 if n < 100 else 1,
            "s": n,
            "t": t,
            "d": (26, 1, 64, 16, 8)[i % 5],
        }
        arrays = {x: random(rng, dtype, [d.evaluate(sizes) for d in x.dims]) for x in (q, k, v)}
        bias = None
        if m is not None:
            # -1e9 leaves a row usable, -inf takes a key out; two dtypes have no -1e9.
            low = -np.inf if i % 2 or dtype is DType.F16 else -1e9
            shape = [d.evaluate(sizes) for d in m.dims]
            bias = np.where(rng.random(shape) < 0.3, low, 0).astype(dtype.np)
            bias[..., :1] = 0
            arrays[m] = bias
        (got,) = f(arrays, sizes)
        want = reference(arrays[q], arrays[k], arrays[v], bias, 0.25)
        np.testing.assert_allclose(
            got.astype(np.float64), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], err_msg=str(sizes)
        )
        if n < 200:
            (again,) = f(arrays, sizes, split=1)
            assert got.tobytes() == again.tobytes()


@pytest.mark.skipif(bool(lacks(V4_VNNI_BF16)), reason=f"this CPU has no {', '.join(lacks(V4_VNNI_BF16))}")
@pytest.mark.parametrize("size", [64, 26, 7])
def test_queries_of_bf16_in_place_and_copied(size):
    """A known head size: rows are whole words or not."""
    rng = np.random.default_rng(4)
    c = Case()
    args = [c.arg(DType.BF16, ("b", n, 3, size)) for n in ("s", "t", "t")]
    qt, kt, vt = (c.b.transpose(x, (0, 2, 1, 3)) for x in args)
    s = scores(c, qt, kt)
    s = c.b.multiply(s, c.b.full(0.125, DType.BF16, s.dims))
    f = c.compile(V4_VNNI_BF16, "attention", [output(c, softmax(c.b, s), vt)])
    for rows, keys in ((1, 1), (9, 13), (40, 51)):
        sizes = {"b": 2, "s": rows, "t": keys}
        arrays = {x: random(rng, DType.BF16, [d.evaluate(sizes) for d in x.dims]) for x in args}
        (got,) = f(arrays, sizes)
        tolerance = TOLERANCE[DType.BF16]
        want = reference(*(arrays[x] for x in args), scale=0.125)
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("target", TARGETS, ids=ids)
def test_rows_without_any_key_are_nan_as_in_tensorflow(target):
    """softmax of a row of -inf is NaN; NaN and +inf in one row stay in that row."""
    rng = np.random.default_rng(5)
    c = Case()
    (q, k, v), (qt, kt, vt) = projections(c, DType.F32)
    s = scores(c, qt, kt)
    m = c.arg(DType.F32, (1, 1, "s", "t"))
    f = c.compile(
        target,
        "attention",
        [output(c, softmax(c.b, c.b.add(s, c.b.broadcast_in_dim(m, s.dims, range(4)))), vt)],
    )
    sizes = {"b": 1, "h": 1, "s": 4, "t": 21, "d": 5}
    arrays = {x: random(rng, DType.F32, [d.evaluate(sizes) for d in x.dims]) for x in (q, k, v)}
    mask = np.zeros((1, 1, 4, 21), np.float32)
    mask[0, 0, 1] = -np.inf
    mask[0, 0, 2, 3] = np.nan
    mask[0, 0, 3, 20] = np.inf
    arrays[m] = mask
    (got,) = f(arrays, sizes)
    assert np.isfinite(got[0, 0]).all()
    assert np.isnan(got[0, 1:]).all()


@pytest.mark.parametrize("target", TARGETS, ids=ids)
def test_select_and_other_stage(target):
    """A score stage that is no plain softmax: bool mask, select, iota, tanh cap, square instead of exp, late
    use of an early value."""
    rng = np.random.default_rng(9)
    c = Case()
    b = c.b
    (q, k, v), (qt, kt, vt) = projections(c, DType.F32)
    s = scores(c, qt, kt)
    capped = b.tanh(s)
    pred = c.arg(DType.BOOL, (1, 1, "s", "t"))
    place = b.multiply(capped, b.iota(DType.F32, s.dims, 3))
    kept = b.select(b.broadcast_in_dim(pred, s.dims, range(4)), place, b.full(-2.0, DType.F32, s.dims))
    low = b.broadcast_in_dim(b.reduce(kept, [3], "min"), s.dims, range(3))
    square = b.multiply(b.subtract(kept, low), b.subtract(kept, low))
    total = b.reduce(square, [3], "add")
    total = b.add(total, b.full(1.0, DType.F32, total.dims))
    p = b.multiply(b.divide(square, b.broadcast_in_dim(total, s.dims, range(3))), capped)
    f = c.compile(target, "attention", [output(c, p, vt)])
    for n, t, d in ((1, 1, 3), (6, 9, 8), (33, 70, 20)):
        sizes = {"b": 2, "h": 2, "s": n, "t": t, "d": d}
        arrays = {x: random(rng, DType.F32, [e.evaluate(sizes) for e in x.dims]) for x in (q, k, v)}
        arrays[pred] = rng.random((1, 1, n, t)) < 0.6
        (got,) = f(arrays, sizes, split=1)
        x, y, z = (arrays[a].astype(np.float64).transpose(0, 2, 1, 3) for a in (q, k, v))
        cap = np.tanh(np.einsum("bhsd,bhtd->bhst", x, y))
        keep = np.where(arrays[pred], cap * np.arange(t), -2.0)
        sq = (keep - keep.min(-1, keepdims=True)) ** 2
        want = np.einsum("bhst,bhtd->bhsd", sq / (sq.sum(-1, keepdims=True) + 1) * cap, z).transpose(
            0, 2, 1, 3
        )
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS, ids=ids)
def test_merged_projection_is_read_through_slices(target):
    """q, k, v as slices of one [B, S, 3*H*D] product with static H and D: offsets and strides, no copies of
    the slices."""
    rng = np.random.default_rng(11)
    h, d = 2, 24
    c = Case()
    b = c.b
    x = c.arg(DType.F32, ("b", "s", 3 * h * d))
    parts = []
    for i in range(3):
        part = b.slice(x, (0, 0, i * h * d), ("b", "s", (i + 1) * h * d), (1, 1, 1))
        parts.append(b.transpose(b.reshape(part, ("b", "s", h, d)), (0, 2, 1, 3)))
    out = output(c, softmax(b, scores(c, parts[0], parts[1])), parts[2])
    f = c.compile(target, "attention", [b.reshape(out, ("b", "s", h * d))])
    for batch, s in ((0, 2), (1, 1), (3, 50)):
        data = random(rng, DType.F32, (batch, s, 3 * h * d))
        (got,) = f({x: data}, {"b": batch, "s": s}, split=1)
        q, k, v = (data[..., i * h * d : (i + 1) * h * d].reshape(batch, s, h, d) for i in range(3))
        np.testing.assert_allclose(got, reference(q, k, v).reshape(batch, s, h * d), rtol=3e-5, atol=3e-5)
