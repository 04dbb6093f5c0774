"""What follows ops of data-dependent size, and what they stand in: whole functions against TensorFlow, interpreted and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disc_tf.lowering.errors import Unsupported
from disc_tf.testing import tf_case
from disc_tf.testing.graph_case import case, check_graph, spec
from disc_tf.testing.native_case import native_answer
from disc_tf.testing.tf_case import Tolerance, tensorflow

TARGET = ["x86-64-v3"]
SUMS = Tolerance(ulps=64, relative_floor=1)


def x(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def masks(*shape: int) -> list[np.ndarray]:
    return [x(*shape, seed=1) > 0, np.zeros(shape, bool), np.ones(shape, bool)]


def test_boolean_mask_and_a_product() -> None:
    w = x(5, 7, seed=2)

    def fn(rows: Any, mask: Any) -> Any:
        tf = tensorflow()
        kept = tf.boolean_mask(rows, mask)
        y = tf.nn.softmax(tf.matmul(kept, w) + 1.0)
        return y, tf.reduce_sum(y, axis=0), tf.shape(kept)[0], tf.concat([y, y], 0)

    c = case(fn, spec("float32", None, 5), spec("bool", None))
    inputs = [[x(n, 5), m] for n in (13, 1, 0) for m in masks(n)]
    check_graph(c, [*inputs, [x(3, 5), masks(4)[0]]], TARGET, SUMS)


def test_boolean_mask_over_two_axes() -> None:
    def fn(rows: Any, mask: Any) -> Any:
        tf = tensorflow()
        kept = tf.boolean_mask(rows, mask)
        mean = tf.reduce_mean(kept, axis=0, keepdims=True)
        return kept - mean, tf.matmul(kept, kept, transpose_b=True)

    c = case(fn, spec("float32", None, None, 4), spec("bool", None, None))
    check_graph(c, [[x(*s, 4), m] for s in ((3, 5), (1, 1), (0, 3), (2, 0)) for m in masks(*s)], TARGET, SUMS)


def test_where_into_scatter_and_gather() -> None:
    def fn(rows: Any) -> Any:
        tf = tensorflow()
        at = tf.where(rows > 0.5)
        found = tf.gather_nd(rows, at)
        back = tf.scatter_nd(at, found * 2.0, tf.shape(rows, out_type=tf.int64))
        return found, back, tf.shape(at), tf.cast(at[:, 1], tf.float32) * found

    c = case(fn, spec("float32", None, None))
    check_graph(c, [[x(4, 7)], [x(1, 1)], [x(0, 3)], [np.zeros((3, 3), np.float32)]], TARGET, SUMS)


def test_unique_ids_are_looked_up_once() -> None:
    table = x(11, 6, seed=3)

    def fn(ids: Any) -> Any:
        tf = tensorflow()
        values, index = tf.unique(tf.reshape(ids, [-1]))
        rows = tf.tanh(tf.gather(tf.constant(table), values))
        return tf.reshape(tf.gather(rows, index), tf.concat([tf.shape(ids), [6]], 0)), tf.size(values)

    c = case(fn, spec("int32", None, None))
    ids = np.random.default_rng(4).integers(0, 11, (5, 9)).astype(np.int32)
    bad = ids.copy()
    bad[2, 3] = 11
    check_graph(c, [[ids], [ids[:1]], [ids[:, :1]], [ids[:0]], [bad]], TARGET, Tolerance(ulps=16))


def test_what_depends_on_constants_only() -> None:
    """It is prepared once; its sizes are still bound where they are used."""
    weights = x(61, 50, seed=8)
    ids = np.random.default_rng(9).integers(0, 300, 2000).astype(np.int32)
    mask = x(17, seed=3) > 0

    def fn(v: Any) -> Any:
        tf = tensorflow()
        at = tf.where(tf.constant(weights) > 1.5)
        values, index = tf.unique(tf.constant(ids))
        few = tf.where(tf.constant(mask))
        return tf.gather_nd(v, at) * 2.0, values, index, tf.shape(at), few + tf.cast(tf.size(v), tf.int64)

    c = case(fn, spec("float32", 61, 50))
    check_graph(c, [[x(61, 50)]], TARGET)


def test_two_counts_meet() -> None:
    """Dims of different counts are added and compared; a mismatch is an error."""

    def fn(a: Any, b: Any) -> Any:
        tf = tensorflow()
        p, q = tf.boolean_mask(a, a > 0), tf.boolean_mask(b, b > 0)
        return p * 2.0 + q, tf.concat([p, q], 0)

    c = case(fn, spec("float32", None), spec("float32", None))
    one = np.array([1, -1, 2, -3], np.float32)
    inputs = [[one, one[::-1].copy()], [one, np.float32([1, 2, 3])], [one, np.float32([-1, 5])], [one[:0], one[:0]]]
    check_graph(c, inputs, TARGET)


def test_where_in_a_loop() -> None:
    """The count is another one in each iteration; what the loop carries keeps its shape."""

    def fn(rows: Any) -> Any:
        tf = tensorflow()

        def step(i: Any, total: Any, y: Any) -> Any:
            kept = tf.boolean_mask(y, y[:, 0] > tf.cast(i, tf.float32) * 0.4)
            return i + 1, total + tf.reduce_sum(kept, axis=0), y - 0.1

        zero = tf.zeros(tf.shape(rows)[1:])
        return tf.while_loop(lambda i, *_: i < 4, step, (0, zero, rows))[1:]

    c = case(fn, spec("float32", None, 3))
    check_graph(c, [[x(n, 3)] for n in (9, 1, 0)], TARGET, SUMS)


def test_unique_in_a_branch() -> None:
    def fn(ids: Any) -> Any:
        tf = tensorflow()
        return tf.cond(tf.size(ids) > 3, lambda: tf.size(tf.unique(ids)[0]) * 2, lambda: tf.reduce_sum(ids))

    c = case(fn, spec("int32", None))
    check_graph(c, [[np.array(v, np.int32)] for v in ([3, 3, 1, 3, 7], [5, 5], [], [1, 1, 1, 1])], TARGET)


def test_shapes_by_run_time_values() -> None:
    """Reshape, Tile, Slice, Fill and Range by fed values, 0 and wrong ones included."""

    def reshaped(v: Any, shape: Any) -> Any:
        return tensorflow().reshape(v, shape) * 2.0

    i32 = lambda *v: np.array(v, np.int32)  # noqa: E731
    c = case(reshaped, spec("float32", None), spec("int32", 2))
    shapes = [i32(2, 3), i32(-1, 2), i32(6, -1), i32(1, 6), i32(2, 2), i32(-1, -1), i32(4, -1), i32(-2, 3), i32(0, -1)]
    check_graph(c, [*([x(6), s] for s in shapes), [x(0), i32(0, -1)], [x(0), i32(0, 5)], [x(0), i32(-1, 0)]], TARGET)

    def tiled(v: Any, times: Any) -> Any:
        tf = tensorflow()
        return tf.tile(v, times) + 1.0, tf.reduce_sum(tf.tile(v, times))

    c = case(tiled, spec("float32", None, None), spec("int32", 2))
    check_graph(c, [[x(2, 3), t] for t in (i32(1, 1), i32(2, 3), i32(0, 2), i32(3, 0), i32(-1, 1))], TARGET, SUMS)

    def sliced(v: Any, begin: Any, size: Any) -> Any:
        return tensorflow().slice(v, begin, size) * 3.0

    c = case(sliced, spec("float32", None, None), spec("int32", 2), spec("int32", 2))
    sizes = [
        (i32(0, 0), i32(2, 3)), (i32(1, 1), i32(1, 2)), (i32(0, 1), i32(-1, -1)), (i32(2, 0), i32(0, 3)), (i32(2, 0), i32(1, 1)),
        (i32(-1, 0), i32(1, 1)), (i32(0, 0), i32(3, 1)), (i32(0, 0), i32(-2, 1)), (i32(2, 3), i32(-1, -1)), (i32(3, 0), i32(0, 0)),
    ]  # fmt: skip
    check_graph(c, [[x(2, 3), *pair] for pair in sizes], TARGET)

    def filled(dims: Any, start: Any, limit: Any, delta: Any) -> Any:
        tf = tensorflow()
        return tf.fill(dims, 1.5) * 2.0, tf.range(start, limit, delta) * 2

    scalar = [spec("int32")] * 3
    c = case(filled, spec("int32", 2), *scalar)
    given = [(2, 3, 0, 5, 2), (0, 4, 0, 0, 1), (3, 0, 5, 0, -2), (1, 1, 0, 5, 0), (1, 1, 0, 5, -1), (-1, 1, 0, 1, 1), (2, 2, 7, 3, 1)]
    check_graph(c, [[i32(*g[:2]), *(np.int32(v) for v in g[2:])] for g in given], TARGET)


def test_sequence_mask() -> None:
    def fn(lengths: Any, values: Any) -> Any:
        tf = tensorflow()
        mask = tf.sequence_mask(lengths, tf.shape(values)[1], tf.float32)
        longest = tf.sequence_mask(lengths)
        return mask * values, tf.reduce_sum(tf.cast(longest, tf.int32), 1), tf.boolean_mask(values, mask > 0)

    c = case(fn, spec("int32", None), spec("float32", None, None))
    lengths = [np.array(v, np.int32) for v in ([3, 0, 5], [5], [0, 0], [9, -2])]
    check_graph(c, [[n, x(len(n), 5)] for n in lengths], TARGET)


def test_detection_head() -> None:
    """Scores and boxes to the boxes that stay, one class after another."""

    def fn(boxes: Any, logits: Any) -> Any:
        tf = tensorflow()
        scores = tf.sigmoid(logits)
        found = []
        for label in range(2):
            kept = tf.image.non_max_suppression(boxes, scores[:, label], 5, 0.4, 0.5)
            chosen = tf.gather(boxes, kept)
            found.append(tf.concat([chosen, tf.fill([tf.shape(kept)[0], 1], float(label))], 1))
        return tf.concat(found, 0)

    c = case(fn, spec("float32", None, 4), spec("float32", None, 2))
    rng = np.random.default_rng(6)
    inputs = []
    for n in (40, 1, 0):
        low = rng.uniform(0, 4, (n, 2))
        inputs.append([np.concatenate([low, low + rng.uniform(0, 2, (n, 2))], 1).astype(np.float32), x(n, 2)])
    check_graph(c, inputs, TARGET)


def test_rows_go_to_experts_and_come_back() -> None:
    """DynamicPartition, a product for each part, DynamicStitch."""
    weights = [x(4, 4, seed=k) for k in range(3)]

    def fn(rows: Any, experts: Any) -> Any:
        tf = tensorflow()
        places = tf.dynamic_partition(tf.range(tf.shape(rows)[0]), experts, 3)
        parts = tf.dynamic_partition(rows, experts, 3)
        done = [tf.nn.relu(tf.matmul(p, w)) for p, w in zip(parts, weights, strict=True)]
        return tf.dynamic_stitch(places, done)

    c = case(fn, spec("float32", None, 4), spec("int32", None))
    inputs = [[x(n, 4), np.random.default_rng(n).integers(0, 3, n).astype(np.int32)] for n in (17, 1, 0)]
    check_graph(c, [*inputs, [x(3, 4), np.array([1, 1, 1], np.int32)], [x(2, 4), np.array([0, 3], np.int32)]], TARGET, SUMS)


def test_ragged_to_padded_and_back() -> None:
    def fn(values: Any, lengths: Any) -> Any:
        tf = tensorflow()
        ragged = tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)
        padded = ragged.to_tensor(default_value=-1.0)
        mask = tf.sequence_mask(lengths, tf.shape(padded)[1])
        return padded * 2.0, tf.boolean_mask(padded, mask) - values, tf.math.bincount(lengths, minlength=4, maxlength=9)

    c = case(fn, spec("float32", None), spec("int32", None))
    check_graph(c, [[x(sum(n)), np.array(n, np.int32)] for n in ([2, 0, 3], [4], [0, 0], [])], TARGET)


def test_results_of_many_threads_are_the_same() -> None:
    """Two runs at a time, whatever the split of the work: the same bits."""
    from disc_tf.compiler import compile_module
    from disc_tf.testing.native_case import load as load_executable
    from disc_tf.testing.native_case import run_executable

    def fn(v: Any) -> Any:
        tf = tensorflow()
        at = tf.where(v > 0.0)
        values, index = tf.unique(tf.cast(v[:, 0] * 4.0, tf.int32))
        return at, tf.gather_nd(v, at), values, index

    c = case(fn, spec("float32", None, 37))
    executable = load_executable(compile_module(c.imported.module, TARGET).executable, TARGET[0])
    feeds = c.feeds([x(9001, 37)])
    runs = [run_executable(executable, feeds, max_threads=t) for t in (1, 2, 2)]
    executable.close()
    for run in runs[1:]:
        for a, b in zip(runs[0], run, strict=True):
            np.testing.assert_array_equal(a, b)


I32, I64, F32 = np.int32, np.int64, np.float32
SPLITS, DEFAULT = np.array([0, 1, 3]), np.zeros((), F32)
RAGGED = {"shape": np.array([-1, -1]), "values": np.zeros(3, F32), "default_value": DEFAULT}
TWICE = {"row_partition_tensors": [SPLITS, np.array([0, 0, 1, 3])], "row_partition_types": ["ROW_SPLITS"] * 2}
NESTED = {"params_nested_splits": [SPLITS, SPLITS], "params_dense_values": np.zeros(3, F32), "OUTPUT_RAGGED_RANK": 2}
SPARSE = {"sparse_indices": np.zeros(1, I32), "output_shape": np.ones(1, I32), "sparse_values": np.zeros(1, F32)}
LIMITS: list[tuple[str, dict[str, Any], str]] = [
    ("Where", {"condition": np.zeros(3, np.float16)}, "DTYPE"),
    ("UniqueV2", {"x": np.zeros(3, F32), "axis": np.array([0])}, "NOT_CONSTANT"),
    ("RaggedRange", {"starts": np.zeros(2, F32), "limits": np.ones(2, F32), "deltas": np.ones(2, F32)}, "DTYPE"),
    ("RaggedGather", {**NESTED, "indices": np.zeros(1, I64)}, "2 ragged dimensions"),
    ("RaggedTensorToTensor", {**RAGGED, "row_partition_tensors": [SPLITS], "row_partition_types": ["ROW_SPLITS"]}, "NOT_CONSTANT"),
    ("RaggedTensorToTensor", {**RAGGED, **TWICE, "shape": np.array([-1, -1, -1])}, "row partitions ROW_SPLITS, ROW_SPLITS"),
    ("SparseToDense", {**SPARSE, "default_value": DEFAULT}, "RANK"),
]


@pytest.mark.parametrize(("op", "arguments", "reason"), LIMITS, ids=lambda v: v if isinstance(v, str) else "")
def test_limits_have_their_reason(op: str, arguments: dict[str, Any], reason: str) -> None:
    graph = tf_case.one_op_graph(op, arguments, [])
    with pytest.raises(Unsupported) as e:
        tf_case.lower_graph(graph, "dynamic")
    assert reason in str(e.value)


def test_sizes_that_no_memory_has() -> None:
    """An index or a range that asks for more rows than there can be is RESOURCE_EXHAUSTED, and nothing else happens."""
    huge = np.array([2**31 - 1], I32)
    given = {"indices": [huge], "data": [np.zeros((1, 2**12), F32)]}
    graph = tf_case.one_op_graph("DynamicStitch", given, [])
    failed = native_answer(tf_case.lower_graph(graph, "dynamic"), graph.arrays, TARGET[0])
    assert isinstance(failed, tf_case.Failure)
    assert failed.code == 8
    limits = np.array([2**62, 2**62, 2**62], I64)
    graph = tf_case.one_op_graph("RaggedRange", {"starts": np.zeros(3, I64), "limits": limits, "deltas": np.ones(3, I64)}, [])
    failed = native_answer(tf_case.lower_graph(graph, "dynamic"), graph.arrays, TARGET[0])
    assert isinstance(failed, tf_case.Failure)
    assert failed.code == 3
    graph = tf_case.one_op_graph("RaggedRange", {"starts": np.zeros(1, I64), "limits": limits[:1], "deltas": np.ones(1, I64)}, [])
    failed = native_answer(tf_case.lower_graph(graph, "dynamic"), graph.arrays, TARGET[0])
    assert isinstance(failed, tf_case.Failure)
    assert failed.code == 8
