"""Tables change how work is cut, never a bit of what comes out."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from disc_tf.codegen.cpu.target import V4_VNNI_BF16, CpuTarget, target_named
from disc_tf.codegen.cpu.tiles import acc_dtype, tile_for
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType
from disc_tf.tuning import ColumnRule, ConvTable, GemmTable, PartRule, Table
from disc_tf.tuning.table import BLOCK_ROWS, TILES
from tests.codegen.cpu.products import Case, host_targets, lacks, prepared, random
from tests.codegen.cpu.test_conv import CONVS, SIZES, extents

TARGETS = host_targets()
F32 = DType.F32
#: M: nothing, one, primes, around strips, blocks and their multiples
ROWS = (0, 1, 2, 7, 10, 13, 19, 31, 73, 144, 145, 151, 293, 433)


def tables(target: CpuTarget) -> list[Table]:
    """Far from the shipped one in every choice, one at a time and together."""
    at, nr = target.tuning, TILES[target.name][1]
    most = BLOCK_ROWS // TILES[target.name][0]
    wide, narrow = (ColumnRule(3 * nr),), (ColumnRule(2 * nr, 70), ColumnRule(5 * nr, k_max=30), ColumnRule(nr))
    gemm, some = at.gemm, (PartRule(2, 12), PartRule(5, 145, 40), PartRule(3, 300), PartRule(1))
    return [
        dataclasses.replace(at, gemm=dataclasses.replace(gemm, row_parts=(PartRule(most),))),
        dataclasses.replace(at, gemm=dataclasses.replace(gemm, row_parts=some)),
        dataclasses.replace(at, gemm=dataclasses.replace(gemm, columns=wide)),
        dataclasses.replace(at, gemm=dataclasses.replace(gemm, columns=narrow)),
        dataclasses.replace(at, gemm=dataclasses.replace(gemm, pack_rows=0)),
        dataclasses.replace(at, gemm=dataclasses.replace(gemm, pack_rows=1000)),
        Table(at.isa, 0, GemmTable((PartRule(4, 40), PartRule(7)), narrow, 3, 5), ConvTable(1, narrow)),
        Table(at.isa, 1000, GemmTable((PartRule(2),), wide, 100, 0), ConvTable(7, wide)),
    ]  # fmt: skip


def test_tiles_are_those_of_the_kernels() -> None:
    for name, (mr, nr) in TILES.items():
        tile = tile_for(target_named(name), F32)
        assert (mr, nr) == (tile.mr, tile.nr)
        assert BLOCK_ROWS % mr == 0


def test_a_table_is_taken_for_its_own_instruction_set() -> None:
    target = target_named("x86-64-v3")
    other = tables(target)[0]
    assert target_named("x86-64-v3", [tables(target_named("x86-64-v2"))[0], other]).tuning == other
    assert target_named("x86-64-v2", [other]) == target_named("x86-64-v2")


#: (dtype, N, K, kind of the right operand)
PRODUCTS = [
    (F32, 40, 37, "const"), (F32, "n", "k", "device"), (F32, 211, 29, "const"), (F32, 600, 5, "const"), (DType.F64, 60, 41, "const"),
    (DType.BF16, 50, 1100, "const"), (F32, 96, 33, "device"), (F32, 71, 31, "device"), (DType.F64, 48, 9, "device"),
]  # fmt: skip


def _products():
    """All for all targets; every run has the first ones for the newest."""
    for target in TARGETS:
        for i, case in enumerate(PRODUCTS):
            name = "-".join(map(str, (target.name, *case)))
            yield pytest.param(target, *case, id=name, marks=() if target is TARGETS[-1] and i < 2 else pytest.mark.slow)
    skip = pytest.mark.skipif(bool(lacks(V4_VNNI_BF16)), reason=f"this CPU has no {', '.join(lacks(V4_VNNI_BF16))}")
    for case in ((DType.BF16, 50, 2100, "const"), (DType.BF16, "n", "k", "device"), (DType.I8, 50, 37, "const")):
        yield pytest.param(V4_VNNI_BF16, *case, id="-".join(map(str, ("words", *case))), marks=[skip, pytest.mark.slow])


@pytest.mark.parametrize(("target", "dtype", "n", "k", "kind"), _products())
def test_products_are_the_same_bits(target: CpuTarget, dtype: DType, n: int | str, k: int | str, kind: str) -> None:
    """With a bias, so that the epilogue sees the blocks too."""
    compiled = []
    for t in [target, *(dataclasses.replace(target, tuning=x) for x in tables(target))]:
        c = Case()
        a, w, bias = c.arg(dtype, ("m", k)), c.arg(dtype, (k, n), kind), c.arg(dtype, (n,))
        y = c.b.dot_general(a, w, [1], [0])
        y = c.b.add(y, c.b.broadcast_in_dim(bias, [Dim.of("m"), Dim.of(n)], [1]))
        compiled.append((c.compile(t, "gemm", [y]), a, w, bias))
    texts = {f.text for f, *_ in compiled}
    assert len(texts) > 4, "the tables were not looked at"
    rng = np.random.default_rng(1)
    for extent_n, extent_k in [(n, k)] if isinstance(n, int) and isinstance(k, int) else [(0, 3), (1, 1), (13, 0), (64, 17), (97, 31)]:
        for m in ROWS:
            x, z, v = random(rng, dtype, (m, extent_k)), random(rng, dtype, (extent_k, extent_n)), random(rng, dtype, (extent_n,))
            want = None
            for f, a, w, bias in compiled:
                arrays = {a: x, w: z, bias: v}
                dims = {"m": m, "n": extent_n, "k": extent_k}
                for split in (None, 3):
                    (got,) = f({**arrays, **prepared(f, arrays)}, dims, split=split)
                    want = got if want is None else want
                    assert got.tobytes() == want.tobytes(), (m, extent_n, extent_k, compiled.index((f, a, w, bias)), split)


@pytest.mark.parametrize("target", TARGETS[-1:], ids=lambda t: t.name)
def test_batches_and_copied_operands_are_the_same_bits(target: CpuTarget) -> None:
    """Left operands that are copied, right ones that are transposed, in batches."""
    rng = np.random.default_rng(2)
    compiled = []
    for t in [target, *(dataclasses.replace(target, tuning=x) for x in tables(target))]:
        c = Case()
        a, w = c.arg(F32, ("b", "k", "m")), c.arg(F32, ("b", "n", "k"))
        compiled.append((c.compile(t, "gemm", [c.b.dot_general(a, w, [1], [2], [0], [0])]), a, w))
    for batch, m, n, k in [(0, 5, 5, 5), (1, 1, 1, 1), (2, 13, 50, 7), (3, 151, 97, 31), (2, 300, 17, 3)]:
        x, z = random(rng, F32, (batch, k, m)), random(rng, F32, (batch, n, k))
        results = {f({a: x, w: z}, {"b": batch, "m": m, "n": n, "k": k}, split=2)[0].tobytes() for f, a, w in compiled}
        assert len(results) == 1, (batch, m, n, k)


@pytest.mark.parametrize("target", TARGETS[-1:], ids=lambda t: t.name)
@pytest.mark.parametrize("name", ["padded", "whole-groups", "longer-sums", "column", "depthwise-dilated", "one-feature", "1d"])
@pytest.mark.parametrize("kind", ["const", pytest.param("device", marks=pytest.mark.slow)])
def test_convolutions_are_the_same_bits(target: CpuTarget, name: str, kind: str) -> None:
    conv, rng = CONVS[name], np.random.default_rng(3)
    compiled = []
    for t in [target, *(dataclasses.replace(target, tuning=x) for x in tables(target)[-2:])]:
        c = Case()
        x, w = c.arg(F32, ("n", *("h", "w")[: len(conv.window)], conv.channels)), c.arg(F32, conv.kernel, kind)
        compiled.append((c.compile(t, "conv", [conv.build(c, x, w)]), x, w))
    for size in [*SIZES, (1, 23, 31)]:
        shape = extents(conv, size)
        data, weights = random(rng, F32, (*shape, conv.channels)), random(rng, F32, conv.kernel)
        results = set()
        for f, x, w in compiled:
            arrays = {x: data, w: weights}
            results.add(f({**arrays, **prepared(f, arrays)}, dict(zip("nhw", shape, strict=False)), split=2)[0].tobytes())
        assert len(results) == 1, size


def test_shares_of_a_block_are_cut_into_the_same_strips() -> None:
    """What `_rows` says of runs of balanced strips, for every tile and block."""

    def strips(rows: int, mr: int) -> list[int]:
        count = -(-rows // mr)
        return [rows // count + (s < rows % count) for s in range(count)] if count else []

    for mr in (4, 6, 9):
        for rows in range(BLOCK_ROWS + 1):
            whole = strips(rows, mr)
            for first in range(len(whole)):
                for stop in range(first, len(whole) + 1):
                    assert strips(sum(whole[first:stop]), mr) == whole[first:stop]


def test_sums_in_other_types_have_a_tile() -> None:
    for name in TILES:
        wide, narrow = (tile_for(target_named(name), acc_dtype(t)).nr for t in (DType.F64, F32))
        assert narrow == 2 * wide, "tables count elements of 8 bytes twice"
