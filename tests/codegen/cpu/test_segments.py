"""`disc.segment` and `disc.fill_rows` compiled by the whole pipeline, against the interpreter, with ids and indices out of range."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import Value
from disc_tf.ir.types import DType
from disc_tf.testing.native_case import TARGETS, native_answer
from disc_tf.testing.tf_case import Tolerance, array

from .test_library import check, function

SHAPES = [(), (1,), (5,), (16,), (3, 100), (300,), (0,)]
NEAR = Tolerance(ulps=4, relative_floor=1.0)


def every_form(b: Builder, data: Value, ids: Value, any_ids: Value, weights: Value, indices: Value) -> list[Value]:
    """All kinds, orders, scales and operands."""
    out = [b.segment(data, ids, 10, kind) for kind in ("add", "mul", "max", "min")]
    out += [b.segment(data, any_ids, 10, kind, sorted=False, empty="identity") for kind in ("add", "mul", "max", "min")]
    out.append(b.segment(data, any_ids, 7, "add", indices, weights, sorted=False))
    if data.dtype.is_float:
        out.append(b.segment(data, ids, 10, "add", indices, weights, scale="mean", wide=True))
        out.append(b.segment(data, ids, 10, "add", indices, scale="sqrtn"))
    else:
        out.append(b.segment(data, ids, 10, "add", scale="mean"))
    return out


def operands(shape: tuple[int, ...], dtype: DType, n: int = 37) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        array((n, *shape), dtype, 1, -2, 2), np.sort(rng.integers(0, 9, n)).astype(np.int32), rng.integers(-2, 12, n),
        array((n,), dtype, 3, -2, 2), rng.integers(-3, n + 5, n).astype(np.int32),
    ]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    check(operands(shape, DType.F32), every_form, tol=NEAR)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [d for d in DType if not d.is_bool], ids=str)
def test_dtypes(dtype: DType, target: str) -> None:
    for shape in SHAPES[:5]:
        check(operands(shape, dtype), every_form, target, modes=["dynamic"], tol=NEAR)


def test_no_rows() -> None:
    """Nothing is read from an empty table, and ids in the wrong order give something, without a fault."""
    data, ids, any_ids, weights, indices = operands((4,), DType.F32)
    check([data[:0], ids[:0], any_ids[:0], weights[:0], indices[:0]], every_form)
    check([data[:0], ids, indices], lambda b, d, s, i: [b.segment(d, s, 10, "add", i)], modes=["dynamic"])
    shuffled = np.random.default_rng(1).permutation(ids)
    found = native_answer(function([data, shuffled], "dynamic", lambda b, d, s: [b.segment(d, s, 10, "add")]), [data, shuffled])
    assert isinstance(found, list) and np.isfinite(found[0]).all()


@pytest.mark.parametrize("rows", [[0, 0, 2, 5], [5, 0, 2, 0], [-1, 3, 9, 0], [9, 9, 9, 9], [-7, -7, 0, 1], []])
def test_fill_rows(rows: list[int]) -> None:
    """Sorted rows, unsorted ones, and rows that there are not."""
    indices = np.stack([np.array(rows, np.int64), np.arange(len(rows))], 1).reshape(-1, 2)
    for dtype in (DType.F32, DType.BF16, DType.I64, DType.BOOL):
        values, default = array((len(rows),), dtype, 2), array((), dtype, 3)

        def build(b: Builder, i: Value, v: Value, d: Value) -> list[Value]:
            out, filled, empty, reverse, count = b.fill_rows(i, v, d, 6)
            n = b.bind_dim(count, "filled")
            return [b.slice(out, [0, 0], [n, 2]), b.slice(filled, [0], [n]), empty, reverse]

        check([indices, values, default], build)
