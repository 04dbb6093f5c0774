"""The same bits whatever the number of threads: reductions, products, rows, scans, scatters at sizes that are split among threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Value
from disc_tf.ir.types import DType, TensorType
from disc_tf.ir.verifier import verify
from disc_tf.runtime.executable import counters, num_threads, set_num_threads
from disc_tf.testing.native_case import TARGETS, compile_function, load
from disc_tf.testing.tf_case import array, declared_dims

THREADS = (1, 2, 7)
Build = Callable[..., Sequence[Value]]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = num_threads()
    yield
    set_num_threads(before)


def check(arrays: Sequence[np.ndarray], build: Build, target: str = TARGETS[0], split: bool = True, weights: int = 0) -> None:
    """Run with 1, 2 and 7 threads, twice each. split: whether the work must have been given to several threads at all. weights: how many of
    the arrays, the last ones, are constants: of known size, and packed."""
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    values = []
    for i, x in enumerate(arrays):
        known = i >= len(arrays) - weights
        kind = TensorType.of(DType.from_np(x.dtype), declared_dims(x.shape, "static" if known else "dynamic", i))
        values.append(fn.add_arg(kind, ArgInfo(f"a{i}", "const" if known else "device")))
    b.return_(list(build(b, *values)))
    verify(fn)
    launches = counters()["parallel_launches"]
    expected: list[bytes] | None = None
    with load(compile_function(fn, target).executable, target) as executable:
        for threads in THREADS:
            set_num_threads(threads)
            for _ in range(2):
                found = [r.tobytes() for r in executable.run(list(arrays))]
                expected = expected or found
                assert found == expected, f"{threads} threads give other bits"
    assert not split or counters()["parallel_launches"] > launches, "nothing was split: the sizes are too small for this test"


FLOATS = [DType.F32, DType.F64, DType.BF16]
REDUCTIONS = [
    ((700, 1531), (0,)), ((700, 1531), (1,)), ((700, 1531), (0, 1)), ((3, 400_003), (1,)), ((400_003, 3), (0,)), ((61, 70, 127), (0, 2)),
    ((61, 70, 127), (1,)), ((1_000_003,), (0,)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "axes"), REDUCTIONS, ids=str)
def test_reductions(shape: tuple[int, ...], axes: tuple[int, ...], dtype: DType) -> None:
    def build(b: Builder, x: Value) -> list[Value]:
        return [b.reduce(x, axes, "add"), b.reduce(b.multiply(x, x), axes, "max")]

    check([array(shape, dtype)], build, split=shape != (400_003, 3))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(257, 300, 301), (1, 2000, 700), (9000, 64, 5), (3, 5000, 900)], ids=str)
def test_products(shape: tuple[int, int, int], dtype: DType) -> None:
    m, k, n = shape

    def build(b: Builder, x: Value, y: Value, bias: Value) -> list[Value]:
        product = b.dot_general(x, y, [1], [0])
        return [b.tanh(b.add(product, b.broadcast_in_dim(bias, product.dims, [1])))]

    check([array((m, k), dtype), array((k, n), dtype, 1), array((n,), dtype, 2)], build)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "shape", [(257, 300, 301), (1, 2000, 700), (9000, 64, 5), (150, 1500, 312), (37, 312, 104), (13, 64, 3000), (600, 1100, 900)], ids=str
)
def test_products_with_weights(shape: tuple[int, int, int], target: str) -> None:
    """More rows than columns and fewer, few columns and an odd number of panels of them, sums in one block and in several."""
    m, k, n = shape

    def build(b: Builder, x: Value, w: Value, bias: Value) -> list[Value]:
        product = b.dot_general(x, w, [1], [0])
        return [b.tanh(b.add(product, b.broadcast_in_dim(bias, product.dims, [1])))]

    check([array((m, k), DType.F32), array((k, n), DType.F32, 1), array((n,), DType.F32, 2)], build, target, split=m * n > 4000, weights=2)


CONVOLUTIONS = [((2, 57, 61, 19), (3, 3, 19, 40)), ((1, 7, 7, 300), (1, 3, 300, 512)), ((9, 12, 12, 64), (3, 3, 16, 32))]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("data", "filters"), CONVOLUTIONS, ids=str)
def test_convolutions(data: tuple[int, ...], filters: tuple[int, ...], target: str) -> None:
    """Data larger than the weights and smaller, in groups."""

    def build(b: Builder, x: Value, w: Value) -> list[Value]:
        return [b.tanh(b.convolution(x, w, padding_low=(1, 1), padding_high=(1, 1), groups=data[-1] // filters[-2]))]

    check([array(data, DType.F32), array(filters, DType.F32, 1)], build, target, weights=1)


def softmax(b: Builder, x: Value) -> list[Value]:
    rows = list(range(x.rank - 1))
    top = b.broadcast_in_dim(b.reduce(x, [x.rank - 1], "max"), x.dims, rows)
    e = b.exponential(b.subtract(x, top))
    return [b.divide(e, b.broadcast_in_dim(b.reduce(e, [x.rank - 1], "add"), x.dims, rows))]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(900, 1000), (2, 300_001), (50_000, 7)], ids=str)
def test_rows(shape: tuple[int, ...], dtype: DType) -> None:
    check([array(shape, dtype)], softmax)


def test_attention() -> None:
    def build(b: Builder, q: Value, k: Value, v: Value) -> list[Value]:
        score = b.dot_general(q, k, [2], [2], [0], [0])
        (probs,) = softmax(b, score)
        return [b.dot_general(probs, v, [2], [1], [0], [0])]

    check([array((6, 250, 64), DType.F32, i) for i in range(3)], build)


def test_scan_scatter_topk_sort() -> None:
    x, i = array((300, 800), DType.F32), np.random.default_rng(0).integers(0, 300, (1000, 1)).astype(np.int32)
    rows = {"update_window_dims": (1,), "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,), "index_vector_dim": 1}

    def build(b: Builder, x: Value, i: Value, u: Value) -> list[Value]:
        scattered = b.scatter([x], i, [u], "add", **rows)
        return [*scattered, b.scan(x, 0, "add"), b.scan(x, 1, "mul"), *b.sort([x, b.negate(x)], 1, "LT")]

    check([x, i, array((1000, 800), DType.F32, 1)], build)


@pytest.mark.parametrize("target", TARGETS[1:])
def test_other_targets(target: str) -> None:
    check([array((700, 1531), DType.F32)], lambda b, x: [b.reduce(x, [0], "add"), *softmax(b, x)], target)
