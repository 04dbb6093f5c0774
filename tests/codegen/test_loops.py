"""Loop kernels against the interpreter: ops x dtypes x shapes x targets."""

import numpy as np
import pytest

from disc_tf.ir.builder import new_function
from disc_tf.ir.dims import Dim, bcast
from disc_tf.ir.interp import evaluate
from disc_tf.ir.types import DType, TensorType
from disc_tf.testing.kernel_runner import CompiledFusion, fusion_of

from .kernel_cases import TARGETS, check, compare, random_array

F32, F64, I32, I64 = DType.F32, DType.F64, DType.I32, DType.I64
SIZES = [0, 1, 3, 16, 37, 129]
ALL = list(DType)
FLOATS = [d for d in DType if d.is_float]
INTS = [d for d in DType if d.is_int]


def unary_cases():
    floats = [
        "abs", "negate", "sign", "exponential", "exponential_minus_one", "log", "log_plus_one", "sqrt", "rsqrt", "cbrt", "sine",
        "cosine", "tan", "tanh", "logistic", "floor", "ceil", "round_nearest_even", "round_nearest_afz", "is_finite", "erf", "erfc",
        "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "lgamma", "digamma",
    ]
    for name in floats:
        for d in FLOATS:
            yield name, d
    for name in ("abs", "negate", "sign", "not", "popcnt", "count_leading_zeros"):
        for d in INTS:
            if d.is_signed or name not in ("negate", "sign", "abs"):
                yield name, d
    yield "not", DType.BOOL


def domain(name, x):
    if x.dtype.kind in "iub":
        return x
    wide = x.astype(np.float64)
    if name in ("log", "sqrt", "rsqrt", "lgamma", "digamma"):
        wide = np.abs(wide) + 0.25
    if name == "acosh":
        wide = np.abs(wide) + 1
    if name in ("asin", "acos", "atanh"):
        wide = wide / 4
    if name == "log_plus_one":
        wide = np.abs(wide)
    return wide.astype(x.dtype)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_unary(dtype):
    """All unary ops of a dtype in one kernel: one output each."""
    names = [name for name, d in unary_cases() if d is dtype]
    rng = np.random.default_rng(0)
    fn, b = new_function("f", {name: (dtype, ["n"]) for name in names})
    b.return_([b.create1(name, [p]) for name, p in zip(names, fn.params, strict=True)])
    arrays = [domain(name, random_array(rng, dtype, 37)) for name in names]
    check(fn, "loop", {"n": 37}, arrays, scale=8)


BINARY = {
    "add": "fiub", "subtract": "fiu", "multiply": "fiub", "divide": "fiu", "remainder": "fiu", "power": "fiu",
    "maximum": "fiub", "minimum": "fiub", "atan2": "f", "and": "iub", "or": "iub", "xor": "iub", "shift_left": "iu",
    "shift_right_arithmetic": "iu", "shift_right_logical": "iu",
}


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_binary(dtype):
    names = [name for name, kinds in BINARY.items() if dtype.kind in kinds]
    params = {f"{side}{name}": (dtype, ["n"]) for name in names for side in "xy"}
    fn, b = new_function("f", params)
    b.return_([b.create1(name, fn.params[2 * k:2 * k + 2]) for k, name in enumerate(names)])
    rng = np.random.default_rng(0)
    arrays = []
    for name in names:
        x, y = random_array(rng, dtype, 145), random_array(rng, dtype, 145)
        if dtype.is_int:
            info = np.iinfo(dtype.np)
            x[:6] = [info.min, info.min, info.max, 5, 0, 1]
            y[:6] = np.array([info.max if dtype.kind == "u" else -1, 0, 0, 0, 0, info.max], dtype.np)
        if name == "power" and dtype.is_float:
            x = np.abs(x)
        arrays += [x, y]
    check(fn, "loop", {"n": 145}, arrays, scale=4)


@pytest.mark.parametrize("bound", [0.0, -0.0, 6.0, -1.5, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_maximum_and_minimum_with_a_constant(target, bound):
    """The bits of ``x > c ? x : c`` (``<``), a NaN of either side wins: one instruction must not mean another zero or lose a NaN."""
    fn, b = new_function("f", {"x": (F32, ["n"])})
    (x,) = fn.params
    c = b.full(bound, F32, x.dims)
    b.return_([b.maximum(x, c), b.minimum(x, c)])
    data = np.tile(np.array([np.nan, -0.0, 0.0, 6.0, 5.9, 6.1, -1.5, -1.6, np.inf, -np.inf, 1e-3], np.float32), 3)
    got = CompiledFusion(fusion_of(fn, "loop", space=(Dim.of("n"),)), fn, target)({x: data}, {"n": data.size})
    at = np.float32(bound)
    for result, wins in zip(got, (data > at, data < at), strict=True):
        want = np.where(np.isnan(data) | wins, data, at)
        np.testing.assert_array_equal(np.isnan(result), np.isnan(want))
        there = ~np.isnan(want)
        np.testing.assert_array_equal(result[there].view(np.uint32), want[there].view(np.uint32))


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_compare_select_clamp(dtype):
    fn, b = new_function("f", {"x": (dtype, ["n"]), "y": (dtype, ["n"])})
    x, y = fn.params
    results = [b.compare(x, y, d) for d in ("EQ", "NE", "LT", "LE", "GT", "GE")]
    results.append(b.select(results[2], x, y))
    if not dtype.is_bool:
        results.append(b.clamp(b.constant(np.array(1).astype(dtype.np)), x, y))
    b.return_(results)
    rng = np.random.default_rng(0)
    arrays = [random_array(rng, dtype, 37), random_array(rng, dtype, 37)]
    if dtype.is_float:
        arrays[0][3] = np.nan
    check(fn, "loop", {"n": 37}, arrays)


@pytest.mark.parametrize("source", ALL, ids=str)
@pytest.mark.filterwarnings("ignore:overflow")
def test_convert(source):
    fn, b = new_function("f", {"x": (source, ["n"])})
    b.return_([b.create1("convert", list(fn.params), TensorType.of(target, ["n"])) for target in ALL if target is not source])
    x = random_array(np.random.default_rng(0), source, 37)
    if source.is_float:
        values = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -1.5, 60000.0, -60000.0, 70000.0]
        if source.bits >= 32:
            values += [1e10, -1e10, 3e19, 1.2e19, 2.0**31, -(2.0**31), 2.0**63, 65519.0, 65520.0, 1e-7, 6e-8, 1.00048828125]
        with np.errstate(all="ignore"):
            x[:len(values)] = np.array(values).astype(source.np)
    elif source.is_int:
        info = np.iinfo(source.np)
        x[:2] = [info.min, info.max]
    check(fn, "loop", {"n": 37}, [x])


@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 1), (1, 37), (5, 37), (7, 64)])
@pytest.mark.parametrize("dtype", [F32, F64, DType.BF16, I32], ids=str)
def test_bias_and_residual(shape, dtype):
    fn, b = new_function("f", {"x": (dtype, ["n", "m"]), "bias": (dtype, ["m"]), "r": (dtype, ["n", "m"])})
    x, bias, r = fn.params
    y = b.add(x, b.broadcast_in_dim(bias, x.dims, [1]))
    b.return_([y, b.multiply(y, r)])
    rng = np.random.default_rng(0)
    n, m = shape
    arrays = [random_array(rng, dtype, s) for s in ((n, m), (m,), (n, m))]
    check(fn, "loop", {"n": n, "m": m}, arrays)


@pytest.mark.parametrize("a,c", [((3, 1, 5), (1, 4, 5)), ((1, 1, 1), (3, 4, 5)), ((3, 4, 1), (3, 1, 5)), ((3, 4, 5), (3, 4, 5))])
def test_run_time_broadcast(a, c):
    """Extents that are only equal or 1 at run time: strides 0 or natural."""
    fn, b = new_function("f", {"x": (F32, ["a0", "a1", "a2"]), "y": (F32, ["c0", "c1", "c2"])})
    x, y = fn.params
    dims = [bcast(p, q) for p, q in zip(x.dims, y.dims, strict=True)]
    b.return_([b.add(b.broadcast_in_dim(x, dims, [0, 1, 2]), b.broadcast_in_dim(y, dims, [0, 1, 2]))])
    rng = np.random.default_rng(0)
    symbols = {f"a{i}": n for i, n in enumerate(a)} | {f"c{i}": n for i, n in enumerate(c)}
    check(fn, "loop", symbols, [random_array(rng, F32, a), random_array(rng, F32, c)])


def _shapes(dtype):
    """name -> function (fn builder) with dims p, q, r."""
    def transpose(b, x):
        return b.transpose(x, [2, 0, 1])

    def reshape(b, x):
        p, q, r = x.dims
        return b.reshape(x, [p * q, r])

    def reshape_split(b, x):
        p, q, r = x.dims
        return b.reshape(b.transpose(x, [1, 0, 2]), [q * p * r])

    def slice_(b, x):
        p, q, r = x.dims
        return b.slice(x, [0, 1, 2], [p, q, r], [1, 2, 3])

    def reverse(b, x):
        return b.reverse(x, [0, 2])

    def pad(b, x):
        zero = b.constant(np.array(7).astype(dtype.np))
        return b.pad(x, zero, [1, 0, 2], [0, 2, 3])

    def pad_interior(b, x):
        zero = b.constant(np.array(3).astype(dtype.np))
        return b.pad(x, zero, [0, 0, -1], [0, -1, 2], [0, 0, 1])

    def concat_last(b, x):
        return b.concatenate([x, b.negate(x), x], 2)

    def concat_first(b, x):
        return b.concatenate([x, x], 0)

    def concat_middle(b, x):
        return b.concatenate([x, b.negate(x)], 1)

    def iota(b, x):
        i = [b.convert(b.iota(I32, x.dims, k), dtype) for k in range(3)]
        return b.add(b.add(i[0], i[1]), b.add(x, i[2]))

    def add_transposed(b, x):
        t = b.transpose(x, [1, 0, 2])
        return b.add(b.transpose(b.negate(t), [1, 0, 2]), x)

    def table(b, x):
        t = b.constant(np.arange(1, 6).astype(dtype.np))
        return b.add(b.slice(x, [0, 0, 0], [x.dims[0], x.dims[1], 5], [1, 1, 1]), b.broadcast_in_dim(t, [x.dims[0], x.dims[1], 5], [2]))

    return {k: v for k, v in locals().items() if callable(v)}


@pytest.mark.parametrize("name", _shapes(F32))
@pytest.mark.parametrize("dtype", [F32, F64, DType.F16, DType.I8], ids=str)
def test_index_ops(name, dtype):
    fn, b = new_function("f", {"x": (dtype, ["p", "q", "r"])})
    b.return_([_shapes(dtype)[name](b, fn.params[0])])
    for target in TARGETS[-2:]:
        c = CompiledFusion(fusion_of(fn, "loop"), fn, target)
        for shape in ((2, 3, 5), (1, 1, 7), (3, 5, 37), (4, 2, 64)):
            x = random_array(np.random.default_rng(0), dtype, shape)
            compare(c, fn, dict(zip("pqr", shape, strict=True)), [x], evaluate(fn, [x]), target)


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("name", ["transpose", "reshape", "reverse", "pad", "concat_last", "concat_first", "iota"])
def test_empty(name, shape):
    fn, b = new_function("f", {"x": (F32, ["p", "q", "r"])})
    b.return_([_shapes(F32)[name](b, fn.params[0])])
    check(fn, "loop", dict(zip("pqr", shape, strict=True)), [np.zeros(shape, np.float32)], targets=TARGETS[1:2])


@pytest.mark.parametrize("dtype", [F32, F64, DType.BF16], ids=str)
@pytest.mark.parametrize("index", [I32, I64], ids=str)
@pytest.mark.parametrize("width", [1, 5, 64])
def test_embedding(dtype, index, width):
    fn, b = new_function("f", {"t": (dtype, ["v", "h"]), "i": (index, ["b", "s"])})
    t, i = fn.params
    g = b.gather(t, i, [1, Dim.of("h")], offset_dims=(2,), collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=2)
    b.return_([b.add(g, g)])
    rng = np.random.default_rng(0)
    ids = rng.integers(-2, 13, (3, 7)).astype(index.np)
    check(fn, "loop", {"v": 11, "h": width, "b": 3, "s": 7}, [random_array(rng, dtype, (11, width)), ids])


def test_dynamic_slices():
    fn, b = new_function("f", {"x": (F32, ["n", "m"]), "u": (F32, [2, 3]), "i": (I32, []), "j": (I32, [])})
    x, u, i, j = fn.params
    b.return_([b.dynamic_slice(x, [i, j], [2, 3]), ])
    rng = np.random.default_rng(0)
    x, u = random_array(rng, F32, (5, 9)), random_array(rng, F32, (2, 3))
    for i, j in ((0, 0), (-4, 100), (2, 5)):
        check(fn, "loop", {"n": 5, "m": 9}, [x, u, np.array(i, np.int32), np.array(j, np.int32)])
    fn, b = new_function("f", {"x": (F32, ["n", "m"]), "u": (F32, [2, 3]), "i": (I32, []), "j": (I32, [])})
    b.return_([b.dynamic_update_slice(fn.params[0], fn.params[1], list(fn.params[2:]))])
    for i, j in ((0, 0), (-4, 100), (2, 5)):
        check(fn, "loop", {"n": 5, "m": 9}, [x, u, np.array(i, np.int32), np.array(j, np.int32)])


@pytest.mark.parametrize("source,target,dims,out", [
    (F32, I32, ["n"], ["n"]), (F64, DType.U8, ["n"], ["n", 8]), (DType.U8, F32, ["n", 4], ["n"]), (DType.BF16, I32, ["n", 2], ["n"]),
    (DType.F16, DType.U16, ["n"], ["n"]),
    *((wide, narrow, ["n"], ["n", wide.bits // narrow.bits])
      for wide in (F64, F32, I64) for narrow in (F32, DType.F16, DType.BF16, DType.I8) if narrow.bits < wide.bits),
    *((narrow, wide, ["n", wide.bits // narrow.bits], ["n"]) for wide in (F64, F32) for narrow in (F32, DType.F16, DType.BF16)
      if narrow.bits < wide.bits),
])
def test_bitcast(source, target, dims, out):
    fn, b = new_function("f", {"x": (source, dims)})
    b.return_([b.create1("bitcast_convert", list(fn.params), TensorType.of(target, out))])
    shape = [37 if d == "n" else d for d in dims]
    check(fn, "loop", {"n": 37}, [random_array(np.random.default_rng(0), source, shape)])


@pytest.mark.parametrize("n", [0, 1, 8191, 8192, 20001])
def test_blocks_and_many_outputs(n):
    fn, b = new_function("f", {"x": (F32, ["n"])})
    (x,) = fn.params
    y = b.tanh(x)
    b.return_([y, b.compare(y, 0.5, "GT"), b.convert(x, F64), b.reshape(y, [Dim.of("n"), 1])])
    check(fn, "loop", {"n": n}, [random_array(np.random.default_rng(0), F32, n)])


def test_deep_chains_need_no_recursion():
    fn, b = new_function("f", {"x": (F32, ["n"])})
    y = fn.params[0]
    for _ in range(3000):
        y = b.add(y, 1.0)
    b.return_([y])
    check(fn, "loop", {"n": 5}, [np.zeros(5, np.float32)], targets=TARGETS[1:2])


def test_scalars():
    fn, b = new_function("f", {"x": (F32, []), "i": (I64, [1])})
    x, i = fn.params
    b.return_([b.exponential(x), b.add(b.reshape(i, []), b.dim(5))])
    check(fn, "loop", {}, [np.array(1.5, np.float32), np.array([4])])


def test_one_kernel_serves_every_shape():
    fn, b = new_function("f", {"x": (F32, ["n", "m"])})
    b.return_([b.exponential(fn.params[0])])
    for target in TARGETS:
        c = CompiledFusion(fusion_of(fn, "loop"), fn, target)
        for n in SIZES:
            for m in SIZES:
                x = random_array(np.random.default_rng(n), F32, (n, m))
                compare(c, fn, {"n": n, "m": m}, [x], evaluate(fn, [x]), target)


#: extents of the parts of a concatenation: single elements, parts of vectors, whole ones and more
PARTS = [(1, 16), (3, 1, 7), (16, 32, 16), (17, 15, 64, 1), (5, 100, 9), (1,) * 20, (48, 48, 48, 48), (0, 9, 4)]


@pytest.mark.parametrize("dtype", [F32, F64, I64, DType.BF16, DType.BOOL], ids=str)
@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_parts_of_known_extents(parts, dtype):
    """Each part of a line has code of its own: what is computed of a part stays inside of it."""
    rng = np.random.default_rng(3)
    fn, b = new_function("f", {f"x{k}": (dtype, ["n", p]) for k, p in enumerate(parts)})
    y = b.concatenate(list(fn.params), 1)
    b.return_([y if dtype.is_bool else b.add(y, y)])
    for n in (0, 1, 3, 40):
        check(fn, "loop", {"n": n}, [random_array(rng, dtype, (n, p)) for p in parts])


def test_parts_inside_of_parts():
    """Concatenations of concatenations and of computed values, two results, one of another shape of the axis before."""
    rng = np.random.default_rng(4)
    fn, b = new_function("f", {"x": (F32, ["n", 16]), "y": (F32, ["n", 16]), "z": (F32, ["n", 9])})
    x, y, z = fn.params
    inner = b.concatenate([b.subtract(x, y), z], 1)
    whole = b.concatenate([b.multiply(x, y), inner, b.negate(z), x], 1)
    b.return_([whole, b.compare(whole, b.full(0.0, F32, whole.dims), direction="GT")])
    for n in (1, 5, 33):
        check(fn, "loop", {"n": n}, [random_array(rng, F32, (n, int(p.dims[1]))) for p in fn.params], scale=4)


def test_parts_that_are_not_known():
    """An extent of run time, a concatenation along another axis, and one whose result is cut: by branches, as ever."""
    rng = np.random.default_rng(5)
    fn, b = new_function("f", {"x": (F32, ["n", "m"]), "y": (F32, ["n", 9])})
    x, y = fn.params
    first = b.concatenate([x, y], 1)
    b.return_([b.slice(first, [0, 1], list(first.dims), [1, 1])])
    for n, m in ((1, 1), (3, 20), (2, 0)):
        check(fn, "loop", {"n": n, "m": m}, [random_array(rng, F32, (n, m)), random_array(rng, F32, (n, 9))])
    fn, b = new_function("f", {"x": (F32, ["n", 40]), "y": (F32, ["m", 40])})
    rows = b.concatenate([b.add(fn.params[0], fn.params[0]), fn.params[1]], 0)
    b.return_([b.slice(rows, [0, 3], [rows.dims[0], Dim.of(39)], [1, 2])])
    check(fn, "loop", {"n": 3, "m": 4}, [random_array(rng, F32, (3, 40)), random_array(rng, F32, (4, 40))])
