"""Row kernels as the planner makes them, against the interpreter."""

import numpy as np
import pytest

from disc_tf.fusion.plan import make_plan
from disc_tf.ir.builder import new_function
from disc_tf.ir.interp import evaluate
from disc_tf.ir.types import DType
from disc_tf.testing.kernel_runner import CompiledFusion

from .kernel_cases import TARGETS, compare, random_array

F32, F64, I32 = DType.F32, DType.F64, DType.I32
LENGTHS = [1, 2, 7, 16, 37, 200]


def one_fusion(fn, kind="rows"):
    plan = make_plan(fn)
    kernels = plan.kernels()
    assert len(kernels) == 1, plan.describe()
    (fusion,) = kernels
    assert fusion.kind == kind
    return fusion


def run(fn, cases, targets=TARGETS, scale=1.0, kind="rows"):
    """cases: (symbols, arrays)."""
    fusion = one_fusion(fn, kind)
    run_fusion(fusion, fn, cases, targets, scale)
    return fusion


def run_fusion(fusion, fn, cases, targets=TARGETS, scale=1.0):
    for target in targets:
        c = CompiledFusion(fusion, fn, target)
        for symbols, arrays in cases:
            compare(c, fn, symbols, arrays, evaluate(fn, arrays), target, scale)


def over(b, x, v):
    """A row value spread over the last dim."""
    return b.broadcast_in_dim(v, x.dims, list(range(x.rank - 1)))


def softmax(b, x):
    m = b.reduce(x, [x.rank - 1], "max")
    e = b.exponential(b.subtract(x, over(b, x, m)))
    return b.divide(e, over(b, x, b.reduce(e, [x.rank - 1], "add")))


def layernorm(b, x, g, beta, n):
    r = x.rank - 1
    inv = b.broadcast_in_dim(b.divide(b.constant(np.array(1, x.dtype.np)), b.convert(b.dim(n), x.dtype)), x.dims[:-1], [])
    mean = b.multiply(b.reduce(x, [r], "add"), inv)
    c = b.subtract(x, over(b, x, mean))
    var = b.multiply(b.reduce(b.multiply(c, c), [r], "add"), inv)
    eps = b.broadcast_in_dim(b.constant(np.array(1e-3, x.dtype.np)), var.dims, [])
    s = b.rsqrt(b.add(var, eps))
    y = b.multiply(c, over(b, x, s))
    return b.add(b.multiply(y, b.broadcast_in_dim(g, x.dims, [r])), b.broadcast_in_dim(beta, x.dims, [r]))


@pytest.mark.parametrize("dtype", [F32, F64, DType.F16, DType.BF16], ids=str)
def test_softmax(dtype):
    fn, b = new_function("f", {"x": (dtype, ["p", "q", "n"])})
    b.return_([softmax(b, fn.params[0])])
    rng = np.random.default_rng(0)
    run(fn, [({"p": 2, "q": 3, "n": n}, [random_array(rng, dtype, (2, 3, n))]) for n in LENGTHS], scale=8)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("residual", [False, True])
def test_layernorm(dtype, residual):
    fn, b = new_function("f", {"x": (dtype, ["p", "n"]), "r": (dtype, ["p", "n"]), "g": (dtype, ["n"]), "b": (dtype, ["n"])})
    x, r, g, beta = fn.params
    s = b.add(x, r)
    y = layernorm(b, s, g, beta, s.dims[-1])
    b.return_([s, y] if residual else [y])
    rng = np.random.default_rng(0)
    cases = []
    for n in (2, 7, 16, 37, 300):
        cases.append(({"p": 3, "n": n}, [random_array(rng, dtype, k) for k in ((3, n), (3, n), (n,), (n,))]))
    run(fn, cases, scale=32)


def test_static_length_and_empty_rows():
    fn, b = new_function("f", {"x": (F32, ["p", 37])})
    b.return_([softmax(b, fn.params[0])])
    rng = np.random.default_rng(0)
    run(fn, [({"p": p}, [random_array(rng, F32, (p, 37))]) for p in (0, 1, 9)], scale=8)
    fn, b = new_function("f", {"x": (F32, ["p", "n"])})
    b.return_([b.reduce(fn.params[0], [1], "max")])
    fusion = one_fusion(fn)
    for target in TARGETS:
        c = CompiledFusion(fusion, fn, target)
        for shape in ((3, 0), (0, 5), (0, 0)):
            x = np.zeros(shape, np.float32)
            compare(c, fn, dict(zip("pn", shape, strict=True)), [x], evaluate(fn, [x]), target)


def test_masked_softmax_with_broadcast_mask():
    fn, b = new_function("f", {"x": (F32, ["p", "h", "s", "n"]), "m": (F32, ["p", "n"])})
    x, m = fn.params
    spread = b.broadcast_in_dim(m, x.dims, [0, 3])
    b.return_([softmax(b, b.add(x, spread))])
    rng = np.random.default_rng(0)
    cases = []
    for n in (5, 16, 33):
        mask = np.where(rng.random((2, n)) < 0.3, -10000.0, 0.0).astype(np.float32)
        cases.append(({"p": 2, "h": 3, "s": 4, "n": n}, [random_array(rng, F32, (2, 3, 4, n)), mask]))
    run(fn, cases, scale=8)


@pytest.mark.parametrize("dtype", [F32, F64, I32, DType.U8, DType.I64, DType.BOOL], ids=str)
def test_all_monoids(dtype):
    kinds = ["and", "or"] if dtype.is_bool else ["add", "mul", "max", "min"] if dtype.is_float else \
        ["add", "mul", "max", "min", "and", "or"]
    rng = np.random.default_rng(0)
    cases = [({"p": 3, "n": n}, [random_array(rng, dtype, (3, n))]) for n in (1, 5, 37)]
    for kind in kinds:
        fn, b = new_function("f", {"x": (dtype, ["p", "n"])})
        b.return_([b.reduce(fn.params[0], [1], kind)])
        run(fn, cases, scale=32)


def test_nan_propagates_through_max():
    x = np.arange(80, dtype=np.float32).reshape(2, 40)
    x[0, 17] = np.nan
    x[1, 39] = np.nan
    for kind in ("max", "min"):
        fn, b = new_function("f", {"x": (F32, ["p", "n"])})
        b.return_([b.reduce(fn.params[0], [1], kind)])
        run(fn, [({"p": 2, "n": 40}, [x])])


def test_embedding_and_norm():
    fn, b = new_function("f", {"t": (F32, ["v", "n"]), "i": (I32, ["p", "q"]), "g": (F32, ["n"]), "b": (F32, ["n"])})
    t, i, g, beta = fn.params
    e = b.gather(t, i, [1, t.dims[1]], offset_dims=(2,), collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=2)
    b.return_([layernorm(b, e, g, beta, t.dims[1])])
    rng = np.random.default_rng(0)
    cases = []
    for n in (4, 37, 64):
        ids = rng.integers(0, 11, (2, 5)).astype(np.int32)
        arrays = [random_array(rng, F32, (11, n)), ids, *(random_array(rng, F32, n) for _ in range(2))]
        cases.append(({"v": 11, "n": n, "p": 2, "q": 5}, arrays))
    run(fn, cases, scale=32)


def test_two_reduced_dims():
    fn, b = new_function("f", {"x": (F32, ["p", "n", "m"])})
    (x,) = fn.params
    s = b.reduce(x, [1, 2], "add")
    b.return_([b.multiply(x, b.broadcast_in_dim(s, x.dims, [0]))])
    rng = np.random.default_rng(0)
    run(fn, [({"p": 2, "n": n, "m": m}, [random_array(rng, F32, (2, n, m))]) for n, m in ((3, 5), (1, 40), (40, 1), (7, 16))], scale=64)


def test_transposed_output_is_stored_in_place():
    fn, b = new_function("f", {"x": (F32, ["p", "q", "n"])})
    (x,) = fn.params
    b.return_([b.transpose(softmax(b, x), [1, 0, 2])])
    rng = np.random.default_rng(0)
    run(fn, [({"p": 2, "q": 3, "n": n}, [random_array(rng, F32, (2, 3, n))]) for n in (5, 37)], scale=8)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_few_long_rows_are_split(dtype):
    """The guarded variant: same kernels for softmax and for sums with row-level outputs."""
    rng = np.random.default_rng(0)
    for make in ("softmax", "sums"):
        fn, b = new_function("f", {"x": (dtype, ["p", "n"])})
        (x,) = fn.params
        if make == "softmax":
            b.return_([softmax(b, x)])
        else:
            s = b.reduce(b.multiply(x, x), [1], "add")
            b.return_([b.sqrt(s)])
        fusion = one_fusion(fn)
        for target in TARGETS[-2:]:
            c = CompiledFusion(fusion, fn, target)
            assert len(c.variants) == 2 and c.variants[0].guard is not None
            for p, n, variant in ((1, 70001, 0), (3, 65537, 0), (0, 70000, 0), (5, 70000, 1), (4, 100, 1)):
                symbols = {"p": p, "n": n}
                assert c._choose(symbols) == variant
                arrays = [random_array(rng, dtype, (p, n))]
                compare(c, fn, symbols, arrays, evaluate(fn, arrays), target, 2000)


def test_static_short_rows_have_one_variant():
    fn, b = new_function("f", {"x": (F32, ["p", 768])})
    b.return_([softmax(b, fn.params[0])])
    assert len(CompiledFusion(one_fusion(fn), fn, TARGETS[-1]).variants) == 1
