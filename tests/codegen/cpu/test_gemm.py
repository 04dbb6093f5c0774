"""Matrix products against numpy in float64: targets x dtypes x shapes x transposes x epilogues."""

from __future__ import annotations

import math

import numpy as np
import pytest

from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType
from tests.codegen.cpu.products import Case, assert_product, epsilon, host_targets, prepared, random

TARGETS = host_targets()
ALL = [DType.F32, DType.F64, DType.F16, DType.BF16, DType.I32, DType.I64, DType.U8, DType.I16]
SIZES = [
    (0, 5, 3),
    (3, 0, 4),
    (2, 3, 0),
    (1, 1, 1),
    (1, 97, 64),
    (2, 48, 31),
    (7, 13, 17),
    (9, 96, 33),
    (10, 49, 8),
    (23, 31, 129),
    (24, 33, 5),
    (145, 101, 7),
    (300, 16, 11),
]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def ids(x: object) -> str:
    return str(getattr(x, "name", x))


@pytest.mark.parametrize("target", TARGETS, ids=ids)
@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("transposed", ["", "ab"])
def test_all_sizes(rng, target, dtype, transposed):
    """Every dim dynamic: one kernel serves all of M, N, K, zero included; each split of the tasks gives the
    same bits."""
    c = Case()
    a = c.arg(dtype, ("k", "m") if "a" in transposed else ("m", "k"))
    w = c.arg(dtype, ("n", "k") if "b" in transposed else ("k", "n"))
    y = c.b.dot_general(a, w, [0 if "a" in transposed else 1], [1 if "b" in transposed else 0])
    f = c.compile(target, "gemm", [y])
    for m, n, k in SIZES:
        x, z = random(rng, dtype, (m, k)), random(rng, dtype, (k, n))
        arrays = {a: x.T if "a" in transposed else x, w: z.T if "b" in transposed else z}
        (got,) = f(arrays, {"m": m, "n": n, "k": k})
        assert_product(got, x, z, dtype)
        (again,) = f(arrays, {"m": m, "n": n, "k": k}, split=1)
        assert got.tobytes() == again.tobytes()


@pytest.mark.parametrize("target", TARGETS, ids=ids)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.BF16], ids=str)
@pytest.mark.parametrize("k", [1024, 1025, 1600, 3072])
def test_long_sums_are_cut_into_blocks(rng, target, dtype, k):
    c = Case()
    a, w = c.arg(dtype, ("m", k)), c.arg(dtype, (k, 50), "const")
    f = c.compile(target, "gemm", [c.b.dot_general(a, w, [1], [0])])
    for m in (1, 5, 20):
        arrays = {a: random(rng, dtype, (m, k)), w: random(rng, dtype, (k, 50))}
        (got,) = f({**arrays, **prepared(f, arrays)}, {"m": m})
        assert_product(got, arrays[a], arrays[w], dtype)


@pytest.mark.parametrize("target", TARGETS, ids=ids)
@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("n", [1, 48, 130])
def test_constant_weight_is_read_from_panels(rng, target, dtype, n):
    transposed = n != 48
    c = Case()
    a, w = c.arg(dtype, ("m", 40)), c.arg(dtype, (n, 40) if transposed else (40, n), "const")
    f = c.compile(target, "gemm", [c.b.dot_general(a, w, [1], [1 if transposed else 0])])
    assert w not in f.variants[0].kernels[0].buffers
    for m in (0, 1, 11, 150):
        x, z = random(rng, dtype, (m, 40)), random(rng, dtype, (40, n))
        arrays = {a: x, w: np.ascontiguousarray(z.T) if transposed else z}
        (got,) = f({**arrays, **prepared(f, arrays)}, {"m": m}, split=1)
        assert_product(got, x, z, dtype)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


@pytest.mark.parametrize("target", TARGETS, ids=ids)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.F16], ids=str)
@pytest.mark.parametrize("n", [5, 48, 77])
def test_bias_gelu_residual(rng, target, dtype, n):
    """Row and column broadcasts, a full-size operand, a scalar, over [B, S, N] behind a reshape; the sum is
    an output too."""
    c = Case()
    b = c.b
    x, w = c.arg(dtype, ("b", "s", 24)), c.arg(dtype, (24, n), "const")
    bias, res = c.arg(dtype, (n,)), c.arg(dtype, ("b", "s", n))
    rows = Dim.of("b") * Dim.of("s")
    y = b.reshape(b.dot_general(b.reshape(x, (rows, 24)), w, [1], [0]), ("b", "s", n))
    z = b.add(y, b.broadcast_in_dim(bias, y.dims, (2,)))
    half = b.multiply(z, b.full(0.5, dtype, z.dims))
    g = b.multiply(
        half, b.add(b.erf(b.multiply(z, b.full(math.sqrt(0.5), dtype, z.dims))), b.full(1.0, dtype, z.dims))
    )
    f = c.compile(target, "gemm", [z, b.add(g, res)])
    for batch, s in ((0, 3), (1, 1), (2, 7), (3, 50)):
        arrays = {
            v: random(rng, dtype, d)
            for v, d in ((x, (batch, s, 24)), (w, (24, n)), (bias, (n,)), (res, (batch, s, n)))
        }
        sums, out = f({**arrays, **prepared(f, arrays)}, {"b": batch, "s": s}, split=1)
        a64, w64, b64, r64 = (arrays[v].astype(np.float64) for v in (x, w, bias, res))
        assert_product(
            sums - arrays[bias] if dtype is DType.F64 else sums,
            arrays[x],
            arrays[w],
            dtype,
            (lambda t: t) if dtype is DType.F64 else (lambda t, b64=b64: t + b64),
        )
        want = gelu(a64 @ w64 + b64) + r64
        np.testing.assert_allclose(
            out.astype(np.float64),
            want,
            rtol=0,
            atol=epsilon(dtype) * 100 * (1 + np.abs(want).max(initial=0)),
        )


@pytest.mark.parametrize("target", TARGETS, ids=ids)
@pytest.mark.parametrize("d", [8, 26, 64])
def test_output_split_into_heads(rng, target, d):
    """[B, S] x [H, D] stored as [B, H, S, D]: the column axis is walked a head at a time."""
    c = Case()
    b, h = c.b, 3
    x, w = c.arg(DType.F32, ("b", "s", 20)), c.arg(DType.F32, (20, h, d), "const")
    y = b.dot_general(x, w, [2], [0])
    y = b.add(y, b.full(1.0, DType.F32, y.dims))
    f = c.compile(target, "gemm", [b.transpose(y, (0, 2, 1, 3))])
    for batch, s in ((1, 1), (2, 5), (2, 80), (0, 4)):
        arrays = {x: random(rng, DType.F32, (batch, s, 20)), w: random(rng, DType.F32, (20, h, d))}
        (got,) = f({**arrays, **prepared(f, arrays)}, {"b": batch, "s": s}, split=1)
        want = (np.tensordot(arrays[x], arrays[w], 1) + 1).transpose(0, 2, 1, 3)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS, ids=ids)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.BF16, DType.I32], ids=str)
def test_batched_with_heads_in_place(rng, target, dtype):
    """Q K^T of [B, S, H, D] projections: batch (B, H) is strided, the right operand transposed, nothing is
    materialised."""
    c = Case()
    b = c.b
    q, k = c.arg(dtype, ("b", "s", 3, "d")), c.arg(dtype, ("b", "t", 3, "d"))
    qt, kt = b.transpose(q, (0, 2, 1, 3)), b.transpose(k, (0, 2, 1, 3))
    f = c.compile(target, "gemm", [b.dot_general(qt, kt, [3], [3], [0, 1], [0, 1])])
    for batch, s, t, d in (
        (1, 1, 1, 1),
        (2, 7, 13, 26),
        (2, 30, 50, 64),
        (0, 3, 3, 3),
        (1, 5, 0, 4),
        (1, 5, 6, 0),
    ):
        x, z = random(rng, dtype, (batch, s, 3, d)), random(rng, dtype, (batch, t, 3, d))
        (got,) = f({q: x, k: z}, {"b": batch, "s": s, "t": t, "d": d}, split=1)
        assert_product(got, x.transpose(0, 2, 1, 3), z.transpose(0, 2, 3, 1), dtype)


@pytest.mark.parametrize("target", TARGETS, ids=ids)
def test_contraction_of_two_axes_that_do_not_compose(rng, target):
    """sum over (H, D) of [B, H, S, D] with [H, D, N]: rows of A are gathered from H runs."""
    c = Case()
    x, w = c.arg(DType.F32, ("b", "h", "s", 20)), c.arg(DType.F32, ("h", 20, "n"))
    f = c.compile(target, "gemm", [c.b.dot_general(x, w, [1, 3], [0, 1])])
    for batch, h, s, n in ((2, 3, 5, 17), (1, 1, 1, 1), (2, 2, 40, 60)):
        a, z = random(rng, DType.F32, (batch, h, s, 20)), random(rng, DType.F32, (h, 20, n))
        (got,) = f({x: a, w: z}, {"b": batch, "h": h, "s": s, "n": n}, split=1)
        assert_product(
            got.reshape(-1, n), a.transpose(0, 2, 1, 3).reshape(-1, h * 20), z.reshape(h * 20, n), DType.F32
        )


@pytest.mark.parametrize("target", TARGETS, ids=ids)
def test_columns_from_two_axes_that_do_not_compose(rng, target):
    """The right operand's free axes lie apart: packed an element at a time."""
    c = Case()
    x, w = c.arg(DType.F32, ("m", 9)), c.arg(DType.F32, ("p", 9, "q"))
    f = c.compile(target, "gemm", [c.b.dot_general(x, w, [1], [1])])
    for m, p, q in ((4, 3, 21), (30, 5, 40), (1, 1, 1), (3, 0, 2)):
        a, z = random(rng, DType.F32, (m, 9)), random(rng, DType.F32, (p, 9, q))
        (got,) = f({x: a, w: z}, {"m": m, "p": p, "q": q}, split=1)
        assert_product(got.reshape(m, p * q), a, z.transpose(1, 0, 2).reshape(9, p * q), DType.F32)


@pytest.mark.parametrize("target", TARGETS, ids=ids)
def test_batch_broadcast_at_run_time(rng, target):
    """A batch dim that may be 1 against b: stride 0 or natural, decided by the shape."""
    c = Case()
    x, w = c.arg(DType.F32, ("b", "m", 12)), c.arg(DType.F32, ("c", 12, 30))
    wide = c.b.broadcast_in_dim(w, ("b", 12, 30), (0, 1, 2))
    f = c.compile(target, "gemm", [c.b.dot_general(x, wide, [2], [1], [0], [0])])
    for batch, own in ((4, 4), (4, 1), (1, 1), (0, 1)):
        a, z = random(rng, DType.F32, (batch, 33, 12)), random(rng, DType.F32, (own, 12, 30))
        (got,) = f({x: a, w: z}, {"b": batch, "c": own, "m": 33}, split=1)
        assert_product(got, a, np.broadcast_to(z, (batch, 12, 30)), DType.F32)


@pytest.mark.parametrize("target", TARGETS, ids=ids)
@pytest.mark.parametrize(
    ("stored", "result"),
    [
        (DType.I8, DType.I32),
        (DType.U8, DType.U32),
        (DType.BF16, DType.F32),
        (DType.F32, DType.F64),
        (DType.I32, DType.I64),
    ],
    ids=str,
)
def test_wider_result(rng, target, stored, result):
    """`dot_general` with a result type wider than the operands: nothing wraps or rounds on the way."""
    c = Case()
    a, w = c.arg(stored, ("m", 37)), c.arg(stored, (37, 50), "const")
    f = c.compile(target, "gemm", [c.b.dot_general(a, w, [1], [0], dtype=result)])
    for m in (1, 30):
        arrays = {a: random(rng, stored, (m, 37)), w: random(rng, stored, (37, 50))}
        (got,) = f({**arrays, **prepared(f, arrays)}, {"m": m})
        assert_product(got, arrays[a].astype(result.np), arrays[w].astype(result.np), result)


def test_equal_layers_share_one_kernel():
    def kernel() -> str:
        c = Case()
        a, w = c.arg(DType.F32, ("m", 64)), c.arg(DType.F32, (64, 64), "const")
        y = c.b.dot_general(a, w, [1], [0])
        f = c.compile(
            TARGETS[-1],
            "gemm",
            [c.b.add(y, c.b.broadcast_in_dim(c.arg(DType.F32, (64,), "const"), y.dims, (1,)))],
        )
        return f.variants[0].kernels[0].symbol

    assert kernel() == kernel()


@pytest.mark.parametrize("target", TARGETS, ids=ids)
def test_special_values_pass_through(target):
    c = Case()
    a, w = c.arg(DType.F32, ("m", 3)), c.arg(DType.F32, (3, 20))
    f = c.compile(target, "gemm", [c.b.dot_general(a, w, [1], [0])])
    x = np.array([[np.inf, 1, 0], [np.nan, 0, 0], [1, 2, 3]], np.float32)
    z = np.ones((3, 20), np.float32)
    z[0, 5] = -1
    (got,) = f({a: x, w: z}, {"m": 3})
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got, x @ z)


@pytest.mark.parametrize("target", TARGETS, ids=ids)
def test_asking_for_lines_changes_nothing(rng, target, monkeypatch):
    """Bias and residual, from nothing to more than a block of rows and of columns, with each result counted as large and with none."""
    found = []
    for large in (-1, 1 << 60):
        monkeypatch.setattr("disc_tf.codegen.cpu.gemm.LARGE", large)
        c = Case()
        a, w = c.arg(DType.F32, ("m", 33)), c.arg(DType.F32, (33, 107), "const")
        bias, res = c.arg(DType.F32, (107,)), c.arg(DType.F32, ("m", 107))
        y = c.b.dot_general(a, w, [1], [0])
        y = c.b.add(c.b.add(y, c.b.broadcast_in_dim(bias, y.dims, (1,))), res)
        found.append((c.compile(target, "gemm", [c.b.maximum(y, c.b.full(0.0, DType.F32, y.dims))]), (a, w, bias, res)))
    for m in (0, 1, 8, 9, 23, 145, 300):
        arrays = [random(rng, DType.F32, s) for s in ((m, 33), (33, 107), (107,), (m, 107))]
        results = []
        for f, args in found:
            given = dict(zip(args, arrays, strict=True))
            results.append(f({**given, **prepared(f, given)}, {"m": m})[0])
        assert results[0].tobytes() == results[1].tobytes()
        np.testing.assert_allclose(results[0], np.maximum(arrays[0] @ arrays[1] + arrays[2] + arrays[3], 0), rtol=1e-5, atol=1e-4)
