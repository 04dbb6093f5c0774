"""Products of narrow types by words: the instructions are in the code, and what they give is right for every size, layout and sign."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from disc_tf.codegen.compile import assembly
from disc_tf.codegen.cpu.dot_choice import wanted_features
from disc_tf.codegen.cpu.target import BF16_DOT, TARGETS, V4, V4_VNNI, V4_VNNI_BF16, VNNI, CpuTarget, extended
from disc_tf.fusion.plan import make_plan
from disc_tf.ir.types import DType
from tests.codegen.cpu.products import DOT_TARGETS, Case, assert_product, host_targets, lacks, prepared, random
from tests.codegen.cpu.test_conv import CONVS as ALL_CONVS
from tests.codegen.cpu.test_conv import SIZES as CONV_SIZES
from tests.codegen.cpu.test_conv import check as check_conv
from tests.codegen.cpu.test_conv import extents

BF16, I8, U8, I16, I32, F32 = DType.BF16, DType.I8, DType.U8, DType.I16, DType.I32, DType.F32
#: left and right operand, result
TYPES = [
    (BF16, BF16, BF16), (BF16, BF16, F32), (I8, I8, I32), (U8, I8, I32), (I8, U8, I32), (U8, U8, I32), (I8, I8, I8), (I16, I16, I32),
]  # fmt: skip
ROWS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64, 145)
#: (N, K)
SIZES = [(48, 64), (1, 1), (5, 3), (96, 0), (0, 8), (130, 37), (50, 66), (49, 130)]


def ids(x: object) -> str:
    return x.isa if isinstance(x, CpuTarget) else str(x)


@pytest.mark.parametrize(
    ("target", "types", "mnemonic"),
    [
        (V4_VNNI_BF16, (BF16, BF16, BF16), "vdpbf16ps"), (V4_VNNI_BF16, (BF16, BF16, F32), "vdpbf16ps"),
        (V4_VNNI, (BF16, BF16, F32), "vfmadd231ps"),
        (V4, (BF16, BF16, F32), "vfmadd231ps"), (V4_VNNI, (I8, I8, I32), "vpdpbusd"), (V4_VNNI_BF16, (U8, U8, DType.U8), "vpdpbusd"),
        (V4_VNNI_BF16, (I16, I16, I32), "vpmaddwd"), (V4, (I8, U8, I32), "vpmaddwd"), (TARGETS["x86-64-v3"], (I8, I8, I32), "vpmaddwd"),
        (TARGETS["x86-64-v2"], (U8, U8, I32), "pmaddwd"), (V4_VNNI, (DType.U16, DType.U16, DType.U32), "vpmulld"),
    ],
    ids=ids,
)  # fmt: skip
def test_the_instructions_are_emitted(target, types, mnemonic) -> None:
    """On every machine: the code is not run."""
    lhs, rhs, result = types
    for kind in ("const", "device"):
        c = Case()
        a, w = c.arg(lhs, (64, 64)), c.arg(rhs, (64, 96), kind)
        f = c.compile(target, "gemm", [c.b.dot_general(a, w, [1], [0], dtype=result)])
        found = assembly(f.text, target)
        assert mnemonic in found
        assert not [x for x in ("vdpbf16ps", "vpdpbusd", "pmaddwd") if x in found and x not in mnemonic]


def values(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Integers of the whole range with its ends in every row."""
    out = random(rng, dtype, shape)
    if dtype.is_int and out.size:
        info = np.iinfo(dtype.np)
        flat = out.reshape(-1)
        flat[:: 5], flat[1:: 7] = info.min, info.max
    return out


def check(got: np.ndarray, x: np.ndarray, z: np.ndarray, result: DType) -> None:
    if result.is_int:
        np.testing.assert_array_equal(got, (x.astype(np.int32) @ z.astype(np.int32)).astype(result.np))
        return
    assert_product(got, x, z, result)


def cases():
    """Types by targets whose instructions they are for (bf16 elsewhere: test_gemm.py). Every run has some for the newest and the oldest
    target; all signs are in tests/codegen/test_extensions.py too."""
    for target in (*host_targets(), *DOT_TARGETS):
        for types in TYPES:
            if types[0] is BF16 and BF16_DOT not in target.dots:
                continue
            newest, oldest = ((BF16, BF16, F32), (I8, I8, I32)), ((I8, U8, I32),)
            fast = (target is DOT_TARGETS[-1] and types in newest) or (target is host_targets()[0] and types in oldest)
            marks = [] if fast else [pytest.mark.slow]
            if target.dots and lacks(target):
                marks.append(pytest.mark.skip(reason=f"this CPU has no {', '.join(lacks(target))}"))
            yield pytest.param(target, *types, id="-".join(map(ids, (target, *types))), marks=marks)


@pytest.mark.parametrize(("target", "lhs", "rhs", "result"), cases())
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
def test_operands_of_run_time(target, lhs, rhs, result, transposed) -> None:
    """Every dim dynamic; each split of the tasks gives the same bits."""
    rng = np.random.default_rng(7)
    c = Case()
    a = c.arg(lhs, ("k", "m") if "a" in transposed else ("m", "k"))
    w = c.arg(rhs, ("n", "k") if "b" in transposed else ("k", "n"))
    contracted = [0 if "a" in transposed else 1], [1 if "b" in transposed else 0]
    f = c.compile(target, "gemm", [c.b.dot_general(a, w, *contracted, dtype=result)])
    for n, k in SIZES:
        for m in (0, 1, 3, 4, 11, 12, 64, 145):
            x, z = values(rng, lhs, (m, k)), values(rng, rhs, (k, n))
            arrays = {a: x.T if "a" in transposed else x, w: z.T if "b" in transposed else z}
            dims = {"m": m, "n": n, "k": k}
            (got,) = f(arrays, dims)
            check(got, x, z, result)
            (again,) = f(arrays, dims, split=1)
            assert got.tobytes() == again.tobytes()


@pytest.mark.parametrize(("target", "lhs", "rhs", "result"), cases())
@pytest.mark.parametrize("transposed", [False, True])
def test_constant_weights(target, lhs, rhs, result, transposed) -> None:
    """Panels made in numpy, static N and K, every M."""
    rng = np.random.default_rng(8)
    for n, k in SIZES:
        c = Case()
        a, w = c.arg(lhs, ("m", k)), c.arg(rhs, (n, k) if transposed else (k, n), "const")
        f = c.compile(target, "gemm", [c.b.dot_general(a, w, [1], [int(transposed)], dtype=result)])
        assert len(f.variants) == 1 and w not in f.variants[0].kernels[0].buffers
        for m in ROWS:
            x, z = values(rng, lhs, (m, k)), values(rng, rhs, (k, n))
            arrays = {a: x, w: np.ascontiguousarray(z.T) if transposed else z}
            (got,) = f({**arrays, **prepared(f, arrays)}, {"m": m}, split=1)
            check(got, x, z, result)


@pytest.mark.parametrize(("target", "lhs", "rhs", "result"), cases())
@pytest.mark.parametrize("k", [1026, 4100, 9001])
def test_long_sums_are_cut_into_blocks(target, lhs, rhs, result, k) -> None:
    rng = np.random.default_rng(9)
    c = Case()
    a, w = c.arg(lhs, ("m", k)), c.arg(rhs, (k, 50), "const")
    f = c.compile(target, "gemm", [c.b.dot_general(a, w, [1], [0], dtype=result)])
    for m in (1, 5, 20):
        arrays = {a: values(rng, lhs, (m, k)), w: values(rng, rhs, (k, 50))}
        (got,) = f({**arrays, **prepared(f, arrays)}, {"m": m})
        check(got, arrays[a], arrays[w], result)


@pytest.mark.parametrize(("target", "lhs", "rhs", "result"), cases())
def test_batches_and_strides(target, lhs, rhs, result) -> None:
    """Heads of [B, S, H, D] in place, with a bias behind the product; odd D, so that pitches are no whole words."""
    rng = np.random.default_rng(10)
    c = Case()
    b = c.b
    q, k, bias = c.arg(lhs, ("b", "s", 3, "d")), c.arg(rhs, ("b", "t", 3, "d")), c.arg(result, ("t",))
    y = b.dot_general(b.transpose(q, (0, 2, 1, 3)), b.transpose(k, (0, 2, 1, 3)), [3], [3], [0, 1], [0, 1], dtype=result)
    f = c.compile(target, "gemm", [b.add(y, b.broadcast_in_dim(bias, y.dims, (3,)))])
    for batch, s, t, d in ((1, 1, 1, 1), (2, 30, 13, 26), (2, 31, 50, 9), (0, 3, 3, 3), (1, 25, 0, 4), (1, 25, 6, 0)):
        x, z = values(rng, lhs, (batch, s, 3, d)), values(rng, rhs, (batch, t, 3, d))
        plus = np.zeros(t, result.np) if result.is_float else values(rng, result, (t,))
        (got,) = f({q: x, k: z, bias: plus}, {"b": batch, "s": s, "t": t, "d": d}, split=1)
        x, z = x.transpose(0, 2, 1, 3), z.transpose(0, 2, 3, 1)
        check((got - plus).astype(result.np), x, z, result)


@pytest.mark.parametrize(("target", "lhs", "rhs", "result"), cases())
def test_contracted_axes_that_do_not_compose(target, lhs, rhs, result) -> None:
    """Rows of the left operand are gathered from runs that are no whole words."""
    rng = np.random.default_rng(11)
    c = Case()
    x, w = c.arg(lhs, ("b", "h", "s", 5)), c.arg(rhs, ("h", 5, "n"))
    f = c.compile(target, "gemm", [c.b.dot_general(x, w, [1, 3], [0, 1], dtype=result)])
    for batch, h, s, n in ((2, 3, 25, 17), (1, 1, 1, 1), (2, 2, 40, 60)):
        a, z = values(rng, lhs, (batch, h, s, 5)), values(rng, rhs, (h, 5, n))
        (got,) = f({x: a, w: z}, {"b": batch, "h": h, "s": s, "n": n}, split=1)
        check(got.reshape(-1, n), a.transpose(0, 2, 1, 3).reshape(-1, h * 5), z.reshape(h * 5, n), result)


@pytest.mark.skipif(bool(lacks(V4_VNNI_BF16)), reason=f"this CPU has no {', '.join(lacks(V4_VNNI_BF16))}")
def test_special_values_pass_through() -> None:
    target = V4_VNNI_BF16
    c = Case()
    a, w = c.arg(BF16, ("m", 3)), c.arg(BF16, (3, 20), "const")
    f = c.compile(target, "gemm", [c.b.dot_general(a, w, [1], [0], dtype=F32)])
    x = np.array([[np.inf, 1, 0], [np.nan, 0, 0], [1, 2, 3], [3e38, 3e38, 3e38], [-np.inf, np.inf, 0]], BF16.np)
    z = np.ones((3, 20), BF16.np)
    z[0, 5] = -1
    z[2, 7] = np.nan
    arrays = {a: x, w: z}
    (got,) = f({**arrays, **prepared(f, arrays)}, {"m": 5})
    with np.errstate(all="ignore"):
        want = x.astype(np.float64) @ z.astype(np.float64)
        want = np.where(np.abs(want) > np.finfo(np.float32).max, np.sign(want) * np.inf, want)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, rtol=1e-5)


#: channels are pairs; strided and dilated windows, padding, spread data, pixels in place and copied, sums of several blocks
CONVS = {
    name: dataclasses.replace(ALL_CONVS[name], **changed)
    for name, changed in {
        "valid": {"channels": 6}, "padded": {}, "point-strided": {"channels": 10}, "dilated": {"channels": 4}, "3d": {},
        "transposed": {"channels": 6}, "far": {"channels": 2}, "long-sums": {"channels": 250}, "longer-sums": {}, "column": {},
        "1d": {"channels": 8},
    }.items()
}  # fmt: skip


@pytest.mark.skipif(bool(lacks(V4_VNNI_BF16)), reason=f"this CPU has no {', '.join(lacks(V4_VNNI_BF16))}")
@pytest.mark.parametrize("result", [BF16, F32], ids=str)
@pytest.mark.parametrize("name", CONVS)
def test_convolutions(name, result) -> None:
    conv, rng = CONVS[name], np.random.default_rng(3)
    c = Case()
    x = c.arg(BF16, ("n", *("h", "w", "d")[: len(conv.window)], conv.channels))
    w = c.arg(BF16, conv.kernel, "const")
    y = conv.build(c, x, w)
    f = c.compile(V4_VNNI_BF16, "conv", [y if result is BF16 else c.b.convert(y, F32)])
    assert "dpbf16ps" in f.text
    for size in CONV_SIZES:
        shape = extents(conv, size)
        arrays = {x: random(rng, BF16, (*shape, conv.channels)), w: random(rng, BF16, conv.kernel)}
        dims = dict(zip(("n", "h", "w", "d"), shape, strict=False))
        all_arrays = {**arrays, **prepared(f, arrays)}
        (got,) = f(all_arrays, dims)
        check_conv(got, arrays[x], arrays[w], conv, BF16)
        (again,) = f(all_arrays, dims, split=1)
        assert got.tobytes() == again.tobytes()


def test_an_extension_is_there_for_what_a_program_multiplies() -> None:
    def wanted(lhs: DType, rhs: DType, result: DType, rows: int | str = "m", kind: str = "const") -> frozenset[str]:
        c = Case()
        a, w = c.arg(lhs, (rows, 8)), c.arg(rhs, (8, 8), kind)
        c.b.return_([c.b.dot_general(a, w, [1], [0], dtype=result)])
        return wanted_features([make_plan(c.fn)])

    for types in ((F32, F32, F32), (I16, I16, I32), (I32, I32, I32), (DType.F16, DType.F16, DType.F16)):
        assert wanted(*types) == frozenset()
    assert wanted(I8, I8, DType.I64) == frozenset(), "sums of 64 bits"
    assert wanted(BF16, BF16, BF16) == {BF16_DOT} and wanted(I8, U8, I32) == {VNNI}
    assert wanted(BF16, BF16, BF16, 3) == {BF16_DOT} and wanted(BF16, BF16, BF16, 3, "device") == frozenset()
    names = [[t.isa for t in extended(V4, frozenset(x))] for x in ((), (VNNI,), (BF16_DOT,), (VNNI, BF16_DOT))]
    assert names == [[], ["x86-64-v4-vnni"], ["x86-64-v4-vnni-bf16"], ["x86-64-v4-vnni", "x86-64-v4-vnni-bf16"]]
    assert extended(TARGETS["x86-64-v3"], frozenset({VNNI})) == []
