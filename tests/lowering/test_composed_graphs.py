"""What data-dependent ops promise, after the graph's author has cut, reshaped, cast and indexed their results: against TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disc_tf.ir.core import walk
from disc_tf.testing.graph_case import case, check_graph, spec
from disc_tf.testing.tf_case import Tolerance, tensorflow

TARGET = ["x86-64-v3"]
SUMS = Tolerance(ulps=16, relative_floor=1)
SPARSE = (spec("int64", None, 2), spec("float32", None), spec("int64", 2))


def i64(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# ---- row numbers of filled rows --------------------------------------------------------------------------------------

CUTS = {
    "first": lambda tf, ids: (ids[:2], slice(0, 2)),
    "later": lambda tf, ids: (ids[1:], slice(1, None)),
    "every second": lambda tf, ids: (ids[::2], slice(None, None, 2)),
    "cast through a byte": lambda tf, ids: (tf.cast(tf.cast(ids, tf.uint8), tf.int32), slice(None)),
    "all": lambda tf, ids: (tf.cast(ids[:], tf.int32), slice(None)),
}


@pytest.mark.parametrize("cut", CUTS)
def test_segments_of_some_filled_rows(cut: str) -> None:
    def fn(indices: Any, values: Any, shape: Any) -> Any:
        tf = tensorflow()
        o = tf.raw_ops.SparseFillEmptyRows(indices=indices, values=values, dense_shape=shape, default_value=tf.constant(0.0))
        ids, kept = CUTS[cut](tf, o.output_indices[:, 0])
        out = o.output_values[kept]
        return tf.math.segment_sum(out, ids), tf.sparse.segment_mean(out[:, None], tf.zeros_like(ids), ids)

    arrays = [[i64([0, 0], [3, 1]), f32(1, 2), i64(5, 3)], [i64([0, 0], [0, 1], [2, 1]), f32(1, 2, 4), i64(3, 3)]]
    if cut == "cast through a byte":
        arrays.append([i64([0, 0], [255, 1]), f32(1, 2), i64(258, 3)])
    check_graph(case(fn, *SPARSE), arrays, TARGET, SUMS)


@pytest.mark.parametrize(("other", "counts"), [(False, 1), (True, 2)])
def test_ids_and_their_weights_are_filled_alike(other: bool, counts: int) -> None:
    """Rows filled twice, with coordinates that were computed in the same way, have one count."""

    def fn(indices: Any, values: Any, shape: Any) -> Any:
        tf = tensorflow()
        filled = []
        first = tf.where(values > 0)[:, 0]
        for k in (0, 1):
            kept = tf.where(values > 1)[:, 0] if other and k else first
            filled.append(
                tf.raw_ops.SparseFillEmptyRows(
                    indices=tf.gather(indices, kept), values=tf.gather(values, kept) * (k + 1.0), dense_shape=shape,
                    default_value=tf.constant(0.0),
                )
            )  # fmt: skip
        return tuple(f.output_values for f in filled)

    c = case(fn, *SPARSE)
    filled = [op for op in walk(c.imported.module.functions["main"].body) if op.name == "disc.fill_rows"]
    bound = {op.operands[0] for op in walk(c.imported.module.functions["main"].body) if op.name == "disc.bind_dim"}
    assert sum(op.results[4] in bound for op in filled) == counts
    check_graph(c, [[i64([0, 0], [3, 1], [3, 2]), f32(1, -2, 3), i64(5, 3)]], TARGET)


# ---- coordinates -----------------------------------------------------------------------------------------------------

COORDINATES = {
    "a column of pairs of a matrix of quadruples": (lambda tf, w: tf.reshape(w, [-1, 2])[:, 1], (1, 2, 1, 9)),
    "a late column of a flat matrix": (lambda tf, w: tf.reshape(w, [1, -1])[:, 5], (1, 1, 2, 2)),
    "a column": (lambda tf, w: w[:, 1], (1, 2, 1, 9)),
    "a row as a column": (lambda tf, w: tf.transpose(w)[:, 0], (1, 1, 1, 9)),
}


@pytest.mark.parametrize("name", COORDINATES)
def test_coordinates_keep_their_checks(name: str) -> None:
    pick, shape = COORDINATES[name]

    def fn(mask: Any, table: Any) -> Any:
        tf = tensorflow()
        return tf.gather(table, pick(tf, tf.where(mask)))

    c = case(fn, spec("bool", None, 2 if shape[1] == 2 else None, None, None), spec("float32", 2))
    check_graph(c, [[np.ones(shape, bool), f32(1, 2)], [np.ones((1, shape[1], 1, 2), bool), f32(1, 2)]], TARGET)


# ---- distinct values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["all", "first"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_questions_about_distinct_values(dtype: str, kept: str) -> None:
    def fn(x: Any) -> Any:
        tf = tensorflow()
        y = tf.unique(x)[0]
        y = y if kept == "all" else y[:1]
        if dtype == "int32":
            return tf.reduce_min(y), tf.reduce_max(y * 3), tf.reduce_all(y > 0), tf.reduce_any(y > 2)
        low = 1.0 / y
        return tf.reduce_min(low), tf.reduce_max(low), tf.reduce_all(low > 0), tf.reduce_any(low < 0)

    arrays = [[np.array(v, dtype)] for v in ([0.0, -0.0], [-0.0, 0.0], [1, 5, 1, 9], [3], [])]
    check_graph(case(fn, spec(dtype, None)), arrays, TARGET)
