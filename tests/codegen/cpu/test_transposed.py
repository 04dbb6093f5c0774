"""Loops that read something across their space: tiles against the interpreter, at sizes around those of a tile."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from disc_tf.codegen.cpu.transposed import find_crossing
from disc_tf.fusion.plan import make_plan
from disc_tf.ir.interp import evaluate
from disc_tf.ir.types import DType
from tests.codegen.cpu.products import Case, host_targets
from tests.codegen.kernel_cases import compare, random_array

F32, F64, BF16, F16, I8, I64, BOOL = DType.F32, DType.F64, DType.BF16, DType.F16, DType.I8, DType.I64, DType.BOOL
TARGETS = host_targets()
#: around the guard, the vectors and the tile of 32 by 128
EXTENTS = (0, 1, 3, 7, 8, 9, 16, 33, 65, 130, 257)


def _scaled(b, x):
    return b.add(b.multiply(x, b.full(3, x.dtype, x.dims)), b.full(1, x.dtype, x.dims))


def plain(c):
    x = c.arg(F32, ("a", "b"))
    return [c.b.transpose(x, (1, 0))]


def between(c):
    """Ops on both sides of the transpose."""
    x, bias = c.arg(F32, ("a", "b")), c.arg(F32, ("a",))
    y = c.b.transpose(_scaled(c.b, x), (1, 0))
    return [_scaled(c.b, c.b.add(y, c.b.broadcast_in_dim(bias, y.dims, (1,))))]


def two(c):
    """Two values across, one along, a bias of each axis."""
    x, y, z = c.arg(F32, ("a", "b")), c.arg(F32, ("a", "b")), c.arg(F32, ("b", "a"))
    p, q = c.arg(F32, ("a",)), c.arg(F32, ("b",))
    b = c.b
    r = b.add(b.multiply(b.transpose(x, (1, 0)), b.transpose(y, (1, 0))), z)
    return [b.subtract(b.add(r, b.broadcast_in_dim(p, r.dims, (1,))), b.broadcast_in_dim(q, r.dims, (0,)))]


def results(c):
    """Two results of one kernel, one of another type."""
    x = c.arg(F32, ("a", "b"))
    y = _scaled(c.b, c.b.transpose(x, (1, 0)))
    return [y, c.b.compare(y, c.b.full(0.0, F32, y.dims), direction="GT")]


def numbered(c):
    x = c.arg(I64, ("a", "b"))
    y = c.b.transpose(x, (1, 0))
    return [c.b.add(y, c.b.iota(I64, y.dims, 0))]


def channels_first(c):
    x = c.arg(F32, ("n", "a", "b", "c"))
    return [_scaled(c.b, c.b.transpose(x, (0, 3, 1, 2)))]


def channels_last(c):
    x = c.arg(F32, ("n", "c", "a", "b"))
    return [c.b.transpose(_scaled(c.b, x), (0, 2, 3, 1))]


def reversed_axes(c):
    x = c.arg(F32, ("a", "b", "c"))
    return [_scaled(c.b, c.b.transpose(x, (2, 1, 0)))]


def swapped(c):
    x = c.arg(F32, ("n", "a", "b"))
    return [c.b.transpose(_scaled(c.b, x), (0, 2, 1))]


def units(c):
    """Axes of one element among them."""
    x = c.arg(F32, (1, "a", 1, "b", 1))
    return [_scaled(c.b, c.b.transpose(_scaled(c.b, x), (0, 3, 2, 1, 4)))]


SHAPES = [units, plain, between, two, results, numbered, channels_first, channels_last, reversed_axes, swapped]


def _sizes(names):
    rng = np.random.default_rng(len(names))
    pairs = list(itertools.product(EXTENTS, repeat=2)) if names == ["a", "b"] else []
    some = [tuple(int(rng.choice(EXTENTS[: 9 if len(names) < 4 else 8])) for _ in names) for _ in range(24)]
    return [dict(zip(names, size, strict=True)) for size in pairs or some]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda f: f.__name__)
def test_sizes(shape, target):
    case = Case()
    compiled = case.compile(target, "loop", shape(case))
    assert len(compiled.variants) == 2, "no kernel in tiles"
    rng = np.random.default_rng(5)
    names = sorted({s for p in case.fn.params for d in p.dims for s in d.symbols()})
    for at in _sizes(names):
        arrays = [random_array(rng, p.dtype, tuple(d.evaluate(at) for d in p.dims)) for p in case.fn.params]
        compare(compiled, case.fn, at, arrays, evaluate(case.fn, arrays), target, 4)


@pytest.mark.parametrize("dtype", [F64, F16, BF16, I8, I64, BOOL], ids=str)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_types(dtype, target):
    case = Case()
    x = case.arg(dtype, ("a", "b"))
    compiled = case.compile(target, "loop", [case.b.transpose(x, (1, 0))])
    rng = np.random.default_rng(6)
    for a, b in [(8, 8), (9, 130), (33, 257), (200, 65)]:
        array = random_array(rng, dtype, (a, b))
        compare(compiled, case.fn, {"a": a, "b": b}, [array], [array.T], target)


def test_static_extents():
    """What is large enough for certain has no other kernel; what is too small has no tiles."""
    for dims, variants in [((64, 40), 1), ((64, 4), 1), (("a", 40), 1), ((40, "b"), 2), (("a", 4), 1)]:
        case = Case()
        x = case.arg(F32, dims)
        compiled = case.compile(TARGETS[0], "loop", [case.b.transpose(x, (1, 0))])
        assert len(compiled.variants) == variants, dims
        tiled = "h_transpose" in compiled.text
        assert tiled == (dims[1] != 4), dims


def _twice(c):
    x = c.arg(F32, ("a", "a"))
    y = _scaled(c.b, x)
    return [c.b.add(y, c.b.transpose(y, (1, 0)))]


def _along(c):
    x = c.arg(F32, ("n", "a", "b", "c"))
    return [_scaled(c.b, c.b.transpose(x, (0, 2, 1, 3)))]


@pytest.mark.parametrize("shape", [_twice, _along], ids=lambda f: f.__name__[1:])
def test_no_tiles(shape):
    """A value at two places of a point, and rows that stay rows: computed as before."""
    case = Case()
    compiled = case.compile(TARGETS[-1], "loop", shape(case))
    region = compiled.fusion.attrs.get("region")
    assert region is None or find_crossing(region, case.fn.env) is None
    rng = np.random.default_rng(7)
    at = {"n": 2, "a": 33, "b": 9, "c": 17}
    arrays = [random_array(rng, F32, tuple(d.evaluate(at) for d in p.dims)) for p in case.fn.params]
    compare(compiled, case.fn, at, arrays, evaluate(case.fn, arrays), TARGETS[-1], 4)


def test_a_result_that_is_stored_before():
    """A value and its transposition are both results: never read where the kernel itself stores it."""
    case = Case()
    x = case.arg(F32, ("a", "b"))
    y = _scaled(case.b, x)
    z = _scaled(case.b, case.b.transpose(y, (1, 0)))
    case.b.return_([y, z])
    for fusion in make_plan(case.fn).kernels():
        region = fusion.attrs.get("region")
        stored = set(fusion.outputs)
        assert region is None or not any(view.source in stored for view in region.reads.values())
