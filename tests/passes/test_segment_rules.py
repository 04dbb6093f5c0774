"""Reductions by segment of gathered rows, and what is known of indices that ops made: what becomes of them, and that nothing changes."""

import numpy as np
import pytest

from disc_tf.ir.builder import new_function
from disc_tf.ir.core import walk
from disc_tf.ir.dims import Dim
from disc_tf.ir.interp import evaluate
from disc_tf.ir.types import DType, TensorType
from disc_tf.ir.verifier import verify
from disc_tf.passes.canonicalize import CANONICAL_RULES
from disc_tf.passes.dce import DCE
from disc_tf.passes.rewriter import rewrite
from disc_tf.testing.native_case import module_of

F32, I32, I64 = DType.F32, DType.I32, DType.I64
RNG = np.random.default_rng(1)
TABLE = RNG.normal(size=(11, 3)).astype(np.float32)
X = np.array([4, 4, 9, 0, 4, 9, 10], np.int64)
IDS = np.array([0, 0, 1, 1, 1, 3, 3], np.int32)
WEIGHTS = RNG.normal(size=7).astype(np.float32)


def take(b, x, index):
    """Rows of a table."""
    return b.gather(
        x, index, [1, *x.dims[1:]], offset_dims=tuple(range(1, x.rank)), collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=1
    )  # fmt: skip


def distinct(b, env, x):
    """``(distinct elements, number of each element, their count as a dim)``."""
    first, index, _, count = b.unique(b.reshape(x, [x.dims[0], 1]), I32)
    n = b.bind_dim(count, "u")
    env.set_range("u", 0, None)
    return take(b, x, b.slice(first, [0], [n])), index, n


def rewritten(build):
    """The ops of a function of (table, x, ids, weights) after the rules; its results are compared with those before them."""
    arrays = [TABLE, X, IDS, WEIGHTS]
    params = {
        "table": TensorType.of(F32, ["v", 3]), "x": TensorType.of(I64, ["n"]), "ids": TensorType.of(I32, ["n"]),
        "weights": TensorType.of(F32, ["n"]),
    }  # fmt: skip

    def made():
        fn, b = new_function("main", params)
        b.return_(build(b, fn.env, *fn.params))
        verify(fn)
        return fn

    before, fn = evaluate(made(), arrays), made()
    for _ in range(2):  # as in the pipeline: what a rule leaves unused keeps the next one from what it read
        rewrite(fn, CANONICAL_RULES)
        DCE().run(module_of(fn), None)
    verify(fn)
    for want, have in zip(before, evaluate(fn, arrays), strict=True):
        np.testing.assert_array_equal(want, have)
    return [op for op in walk(fn.body)]


def names(ops):
    return [op.name for op in ops]


def test_rows_are_read_from_the_table():
    (segment,) = [o for o in rewritten(lambda b, _e, t, x, i, _w: [b.segment(take(b, t, x), i, 4, "max")]) if o.name == "disc.segment"]
    assert len(segment.operands) == 3
    assert segment.operands[0].hint == "table" and segment.operands[2].hint == "x"


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("column", [False, True])
def test_weights_go_along(order, column):
    def build(b, _env, table, x, ids, weights):
        rows = take(b, table, x)
        if column:
            spread = b.broadcast_in_dim(b.reshape(weights, [*weights.dims, 1]), rows.dims, [0, 1])
        else:
            spread = b.broadcast_in_dim(weights, rows.dims, [0])
        return [b.segment(b.multiply(*(rows, spread)[:: 1 - 2 * order]), ids, 4, "add")]

    ops = rewritten(build)
    assert "gather" not in names(ops) and "multiply" not in names(ops)
    assert [len(o.operands) for o in ops if o.name == "disc.segment"] == [4]


def test_distinct_ids_are_not_sought():
    def build(b, env, table, x, ids, weights):
        values, index, _ = distinct(b, env, x)
        rows = take(b, take(b, table, values), index)
        weighted = b.multiply(rows, b.broadcast_in_dim(weights, rows.dims, [0]))
        inside = b.compare(values, b.broadcast_in_dim(b.dim(table.dims[0]), values.dims, []), "LT")
        return [b.segment(weighted, ids, 4, "add"), b.reduce(inside, [0], "and")]

    ops = rewritten(build)
    assert not {"disc.unique", "gather", "multiply"} & set(names(ops))


def test_distinct_rows_that_are_needed_stay():
    def build(b, env, table, x, ids, _weights):
        values, index, _ = distinct(b, env, x)
        rows = take(b, table, values)
        return [b.segment(rows, ids, 4, "add", index), b.reduce(rows, [0, 1], "add")]

    ops = rewritten(build)
    assert names(ops).count("disc.unique") == 1
    assert [len(o.operands) for o in ops if o.name == "disc.segment"] == [3]


def test_another_index_than_that_of_the_distinct_ids():
    def build(b, env, table, x, ids, _weights):
        values, _, n = distinct(b, env, x)
        other = b.minimum(b.convert(ids, I64), b.broadcast_in_dim(b.dim(n - 1), ids.dims, []))
        return [b.segment(take(b, table, values), ids, 4, "add", other)]

    ops = rewritten(build)
    assert "disc.unique" in names(ops)
    assert [o.operands[0].hint for o in ops if o.name == "disc.segment"] == ["table"]


@pytest.mark.parametrize(("kind", "kept"), [("and", False), ("or", False), ("add", True)])
def test_reductions_of_distinct_values(kind, kept):
    def build(b, env, _table, x, _ids, _weights):
        values, _, _ = distinct(b, env, x)
        small = b.compare(values, b.broadcast_in_dim(b.constant(np.int64(9)), values.dims, []), "LT")
        return [b.reduce(small if kind != "add" else b.convert(small, I64), [0], kind)]

    assert ("disc.unique" in names(rewritten(build))) == kept


def test_promises_of_ops():
    """Positions of true elements, numbers of distinct ones and rows that were filled need no check against their extents."""

    def build(b, env, _table, x, ids, _weights):
        mask = b.compare(x, b.broadcast_in_dim(b.constant(np.int64(4)), x.dims, []), "GT")
        indices, count = b.nonzero(mask)
        n = b.bind_dim(count, "t")
        env.set_range("t", 0, None)
        places = b.reshape(b.slice(indices, [0, 0], [n, 1]), [n])
        _, index, u = distinct(b, env, x)
        pairs = b.concatenate([b.reshape(b.convert(ids, I64), [x.dims[0], 1])] * 2, 1)
        filled = b.fill_rows(pairs, x, b.constant(np.int64(0)), 5)
        rows = b.reshape(b.slice(filled[0], [0, 0], [x.dims[0], 1]), [x.dims[0]])

        def inside(v, extent):
            bound = b.broadcast_in_dim(b.convert(b.dim(Dim.of(extent)), v.dtype), v.dims, [])
            zero = b.broadcast_in_dim(b.constant(0, v.dtype), v.dims, [])
            return b.reduce(b.and_(b.compare(v, zero, "GE"), b.compare(v, bound, "LT")), [0], "and")

        return [inside(places, x.dims[0]), inside(index, u), inside(rows, 5), inside(places, 3)]

    ops = rewritten(build)
    assert names(ops).count("compare") == 2  # the mask, and what no op promises


def test_only_row_numbers_are_carried():
    """Through the filled rows, and through the gather before them."""

    def build(b, env, _table, x, ids, _weights):
        pairs = b.concatenate([b.reshape(b.convert(ids, I64), [x.dims[0], 1]), b.reshape(x, [x.dims[0], 1])], 1)
        kept = take(b, b.add(pairs, pairs), b.minimum(x, b.broadcast_in_dim(b.constant(np.int64(3)), x.dims, [])))
        filled = b.fill_rows(kept, x, b.constant(np.int64(0)), 5)
        n = b.bind_dim(filled[4], "f")
        env.set_range("f", 0, None)
        return [b.slice(filled[0], [0, 0], [n, 1]), b.slice(filled[1], [0], [n]), filled[2], filled[3]]

    ops = rewritten(build)
    (filled,) = [o for o in ops if o.name == "disc.fill_rows"]
    (gather,) = [o for o in ops if o.name == "gather"]
    assert [str(d) for d in filled.operands[0].dims] == ["n", "1"]
    assert [str(d) for d in gather.operands[0].dims] == ["n", "1"]
    assert names(ops).count("concatenate") == 1  # what the entries are made of: the filled rows are one column


def test_coordinates_that_are_read_stay():
    def build(b, env, _table, x, ids, _weights):
        column = b.reshape(x, [x.dims[0], 1])
        filled = b.fill_rows(b.concatenate([column, column], 1), x, b.constant(np.int64(0)), 5)
        n = b.bind_dim(filled[4], "f")
        env.set_range("f", 0, None)
        return [b.slice(filled[0], [0, 1], [n, 2])]

    ops = rewritten(build)
    assert [str(o.operands[0].dims[1]) for o in ops if o.name == "disc.fill_rows"] == ["2"]
