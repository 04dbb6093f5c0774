"""`seen_through`: which rows and which column of another value a value shows."""

import numpy as np
import pytest

from disc_tf.ir.builder import new_function
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType, TensorType
from disc_tf.ir.views import seen_through, without_reshapes

I32, I64 = DType.I32, DType.I64


def take(b, x, index):
    return b.gather(
        x, index, [1, *x.dims[1:]], offset_dims=tuple(range(1, x.rank)), collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=1
    )  # fmt: skip


def rows(b, x, start, limit, stride=1):
    return b.slice(x, [start, *[0] * (x.rank - 1)], [limit, *x.dims[1:]], [stride, *[1] * (x.rank - 1)])


def column(b, x, k):
    return b.slice(x, [0, k], [x.dims[0], k + 1])


def flat(b, x):
    return b.reshape(x, [x.dims[0]])


#: what is made of the matrix i64[n, 3] `m` with the index `i`: the column, and whether every row is there in its place
MATRIX = {
    "itself": (lambda b, m, i: m, None, True),
    "a column": (lambda b, m, i: flat(b, column(b, m, 1)), 1, True),
    "a narrower column": (lambda b, m, i: b.convert(flat(b, column(b, m, 2)), I32), 2, True),
    "a column of columns": (lambda b, m, i: column(b, b.slice(m, [0, 1], [m.dims[0], 3]), 1), 2, True),
    "every second column": (lambda b, m, i: column(b, b.slice(m, [0, 0], [m.dims[0], 3], [1, 2]), 1), 2, True),
    "columns": (lambda b, m, i: b.slice(m, [0, 1], [m.dims[0], 3]), None, False),
    "first rows": (lambda b, m, i: flat(b, column(b, rows(b, m, 0, 2), 1)), 1, False),
    "first of a column": (lambda b, m, i: rows(b, flat(b, column(b, m, 1)), 0, 2), 1, False),
    "every second row": (lambda b, m, i: column(b, rows(b, m, 0, m.dims[0], 2), 0), 0, False),
    "all rows, sliced": (lambda b, m, i: column(b, rows(b, m, 0, m.dims[0]), 0), 0, True),
    "picked rows": (lambda b, m, i: flat(b, column(b, take(b, m, i), 1)), 1, False),
    "picked of a column": (lambda b, m, i: take(b, flat(b, column(b, m, 1)), i), 1, False),
    "a column as a row": (lambda b, m, i: b.reshape(column(b, m, 1), [1, m.dims[0]]), 1, False),
    "a column spread": (lambda b, m, i: column(b, b.broadcast_in_dim(flat(b, column(b, m, 1)), [*m.dims[:1], 5], [0]), 4), 1, False),
    "a flat matrix": (lambda b, m, i: b.reshape(m, [m.dims[0] * 3]), None, False),
}
#: the walk ends before the matrix: what the column holds is not one of its columns
STOPS = {
    "a column of a reshaped matrix": lambda b, m, i: column(b, b.reshape(m, [3, m.dims[0]]), 1),
    "a column of a transposed matrix": lambda b, m, i: column(b, b.transpose(m, [1, 0]), 1),
    "a column of a broadcast row": lambda b, m, i: column(b, b.broadcast_in_dim(flat(b, column(b, m, 0)), [4, m.dims[0]], [1]), 1),
    "narrow integers": lambda b, m, i: b.convert(b.convert(m, DType.I8), I64),
    "arithmetic": lambda b, m, i: b.add(m, m),
}


def function():
    fn, b = new_function("main", {"m": TensorType.of(I64, ["n", 3]), "i": TensorType.of(I64, ["k"])})
    return b, *fn.params


@pytest.mark.parametrize("name", MATRIX)
def test_of_a_matrix(name):
    b, m, i = function()
    made, at, whole = MATRIX[name]
    seen = seen_through(made(b, m, i))
    assert (seen.source, seen.column, seen.whole) == (m, at, whole)


@pytest.mark.parametrize("name", STOPS)
def test_ends_where_columns_mix(name):
    b, m, i = function()
    seen = seen_through(STOPS[name](b, m, i))
    assert seen.source is not m


def test_a_count_ends_padded_rows():
    """All rows of what is padded are those up to its count, and no others."""
    b, m, _ = function()
    filled = b.fill_rows(m, b.reshape(column(b, m, 0), [m.dims[0]]), b.constant(np.int64(0)), 5)
    n = b.bind_dim(filled[4], "f")
    for limit, whole in ((n, True), (m.dims[0], False), (Dim.of(2), False)):
        seen = seen_through(flat(b, column(b, rows(b, filled[0], 0, limit), 0)))
        assert (seen.source, seen.column, seen.whole) == (filled[0], 0, whole)
    assert not seen_through(rows(b, flat(b, column(b, rows(b, filled[0], 0, n), 0)), 0, 2)).whole
    assert not seen_through(rows(b, filled[0], 1, n)).whole


def test_reshapes_keep_the_elements():
    b, m, _ = function()
    assert without_reshapes(b.reshape(b.reshape(m, [3, m.dims[0]]), [3 * m.dims[0]])) is m
