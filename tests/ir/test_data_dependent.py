"""disc.nonzero, unique, partition, search, nms, combined_nms: types, text, export, and references at values worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from disc_tf.ir.builder import Builder, new_function
from disc_tf.ir.core import Value
from disc_tf.ir.dims import sym
from disc_tf.ir.interp import evaluate
from disc_tf.ir.opset import IRError
from disc_tf.ir.parser import parse_function
from disc_tf.ir.printer import print_function
from disc_tf.ir.stablehlo import to_stablehlo
from disc_tf.ir.types import DType
from disc_tf.ir.verifier import verify

F16, F32, I32, I64, BOOL = DType.F16, DType.F32, DType.I32, DType.I64, DType.BOOL
n, m, k = sym("n"), sym("m"), sym("k")
NAN, INF = np.nan, np.inf


def run(params: Sequence[tuple], build: Callable[..., Sequence[Value]], inputs: Sequence[np.ndarray]) -> list:
    """The results as lists; the function is verified, printed, parsed and exported on the way."""
    fn, b = new_function("main", {f"p{i}": p for i, p in enumerate(params)})
    b.return_(list(build(b, *fn.params)))
    verify(fn)
    text = print_function(fn)
    assert print_function(parse_function(text)) == text
    assert "stablehlo.custom_call" in to_stablehlo(fn)
    assert "stablehlo.custom_call" in to_stablehlo(fn, {"n": 3, "m": 2, "k": 4})
    return [r.tolist() for r in evaluate(fn, inputs) if r is not None]


def test_nonzero() -> None:
    mask = np.array([[0, 1, 0], [1, 0, 1]], bool)
    indices, count = run([(BOOL, [n, m])], lambda b, x: b.nonzero(x), [mask])
    assert count == 3
    assert indices == [[0, 1], [1, 0], [1, 2], [0, 0], [0, 0], [0, 0]]
    assert run([(BOOL, [n])], lambda b, x: b.nonzero(x), [np.zeros(0, bool)]) == [[], 0]


@pytest.mark.parametrize("index", [I32, I64])
def test_unique(index: DType) -> None:
    x = np.array([[5], [3], [5], [-1], [3]], np.int32)
    first, number, counts, count = run([(I32, [n, 1])], lambda b, x: b.unique(x, index), [x])
    assert (count, first[:3], number, counts[:3]) == (3, [0, 1, 3], [0, 1, 0, 2, 1], [2, 2, 1])


@pytest.mark.parametrize(
    ("dtype", "distinct", "rows", "number"),
    [(F32, False, [[NAN], [0.0], [-0.0], [1e-40], [NAN], [INF], [INF]], [0, 1, 1, 1, 2, 3, 3]),
     (F16, True, [[0.0], [-0.0], [6e-8], [-6e-8], [0.0]], [0, 1, 2, 3, 0]), (F16, False, [[0.0], [-0.0], [6e-8]], [0, 0, 1]),
     (F16, True, [[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0]], [0, 0, 1]), (F32, False, [[1, NAN], [1, NAN], [1, 2]], [0, 1, 2])],
)  # fmt: skip
def test_unique_of_floats(dtype: DType, distinct: bool, rows: list, number: list) -> None:
    x = np.array(rows).astype(dtype.np)
    assert run([(dtype, [n, x.shape[1]])], lambda b, x: b.unique(x, I32, distinct), [x])[1] == number


def test_unique_of_rows_of_nothing() -> None:
    assert run([(F32, [n, m])], lambda b, x: b.unique(x), [np.zeros((3, 0), np.float32)]) == [[0, 0, 0], [0, 0, 0], [3, 0, 0], 1]


def test_partition() -> None:
    ids = np.array([2, 0, 7, 2, -1, 1, 0], np.int32)
    order, counts = run([(I32, [n])], lambda b, x: b.partition(x, 3), [ids])
    assert (order, counts) == ([1, 6, 5, 0, 3, 0, 0], [2, 1, 2])


def test_search() -> None:
    lines, values = np.array([[1, 3, 3, 5], [0, 0, 0, 0]], np.float32), np.array([[3, 0, NAN], [0, -1, 9]], np.float32)
    params = [(F32, [n, 4]), (F32, [n, m])]
    assert run(params, lambda b, x, v: [b.search(x, v, "lower")], [lines, values]) == [[[1, 0, 0], [0, 0, 4]]]
    assert run(params, lambda b, x, v: [b.search(x, v, "upper", I64)], [lines, values]) == [[[3, 0, 4], [4, 0, 4]]]


def nms(b: Builder, *operands: Value) -> Sequence[Value]:
    return b.nms(*operands[:5], limit=k, room=4)


def test_nms() -> None:
    boxes = np.array([[0, 0, 1, 1], [1, 1.1, 0, 0.1], [0, 10, 1, 11]], np.float32)
    params = [(F32, [n, 4]), (F32, [n]), *[(F32, [])] * 3, (BOOL, [k])]

    def at(*scalars: float, limit: int = 4) -> list:
        scores = np.array([0.5, 0.75, 0.25], np.float32)
        return run(params, nms, [boxes, scores, *(np.float32(s) for s in scalars), np.zeros(limit, bool)])

    assert at(0.5, -1, 0) == [[1, 2, 0, 0], [0.75, 0.25, 0, 0], 2]
    assert at(0.5, -1, 0, limit=1) == [[1, 0, 0, 0], [0.75, 0, 0, 0], 1]
    assert at(0.9, 0.3, 0) == [[1, 0, 0, 0], [0.75, 0.5, 0, 0], 2]
    indices, scores, count = at(0.5, -1, 0.5)
    assert (indices, count) == ([1, 0, 2, 0], 3)
    overlap = 0.9 / 1.1
    assert scores[:3] == pytest.approx([0.75, 0.5 * np.exp(-overlap * overlap), 0.25], rel=1e-5)


def test_combined_nms() -> None:
    boxes = np.array([[[[0, 0, 1, 1]], [[0, 0.1, 1, 1.1]], [[0, 3, 1, 4]]]], np.float32)
    scores = np.array([[[0.9, 0.1], [0.8, 0.7], [0.3, 0.0]]], np.float32)

    def build(b: Builder, *operands: Value) -> Sequence[Value]:
        return b.combined_nms(*operands, per_class=n, room=4, clip=True)

    params = [(F32, [m, n, 1, 4]), (F32, [m, n, 2]), (F32, []), (F32, [])]
    found, values, labels, valid = run(params, build, [boxes, scores, np.float32(0.5), np.float32(0.2)])
    np.testing.assert_allclose(values, [[0.9, 0.7, 0.3, 0]], rtol=1e-6)
    np.testing.assert_allclose(found, [[[0, 0, 1, 1], [0, 0.1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0]]], rtol=1e-6)
    assert (labels, valid) == ([[0, 1, 0, 0]], [3])


@pytest.mark.parametrize(
    ("params", "build"),
    [([(F32, [n])], lambda b, x: b.nonzero(x)), ([(BOOL, [])], lambda b, x: b.nonzero(x)), ([(F32, [n])], lambda b, x: b.unique(x)),
     ([(I64, [n])], lambda b, x: b.partition(x, 3)), ([(I32, [n])], lambda b, x: b.partition(x, 0)),
     ([(F32, [n, m]), (F16, [n, m])], lambda b, x, v: [b.search(x, v, "lower")]),
     ([(F32, [2, m]), (F32, [3, m])], lambda b, x, v: [b.search(x, v, "upper")]),
     ([(F32, [n, 5]), (F32, [n]), *[(F32, [])] * 3], nms), ([(I32, [n, 4]), (I32, [n]), *[(I32, [])] * 3], nms),
     ([(F32, [n, 4]), (F32, [n]), (F32, [1]), (F32, []), (F32, [])], nms)],
)  # fmt: skip
def test_ill_typed(params: list, build: Callable) -> None:
    fn, b = new_function("main", {f"p{i}": p for i, p in enumerate(params)})
    with pytest.raises(IRError):
        build(b, *fn.params)
