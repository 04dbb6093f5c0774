"""Loops whose carried values change their shapes, lists that grow and shrink, gradients of loops: against TensorFlow, interpreted and
compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disc_tf.compiler import compile_module
from disc_tf.frontend.analysis import analyse
from disc_tf.frontend.cluster import make_clusters
from disc_tf.frontend.load import load
from disc_tf.testing.graph_case import case, check_graph, spec
from disc_tf.testing.native_case import load as load_executable
from disc_tf.testing.native_case import run_executable
from disc_tf.testing.tf_case import Failure, Tolerance, tensorflow

TARGET = ["x86-64-v4"]
TOL = Tolerance(ulps=128, relative_floor=1)


def x(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def n(value: int) -> np.ndarray:
    return np.array(value, np.int32)


def dims(*sizes: int | None) -> Any:
    return tensorflow().TensorShape(sizes)


def empty(shape: Any = -1, limit: int = -1) -> Any:
    tf = tensorflow()
    shape = tf.constant(shape, tf.int32)
    return tf.raw_ops.EmptyTensorList(element_shape=shape, max_num_elements=limit, element_dtype=tf.float32)


def push(handle: Any, item: Any) -> Any:
    return tensorflow().raw_ops.TensorListPushBack(input_handle=handle, tensor=item)


def pop(handle: Any, shape: Any = -1) -> Any:
    tf = tensorflow()
    return tf.raw_ops.TensorListPopBack(input_handle=handle, element_shape=tf.constant(shape, tf.int32), element_dtype=tf.float32)


def stack(handle: Any, shape: Any = -1) -> Any:
    tf = tensorflow()
    return tf.raw_ops.TensorListStack(input_handle=handle, element_shape=tf.constant(shape, tf.int32), element_dtype=tf.float32)


# ---- values that grow and shrink ----------------------------------------------------------------------------------------


def grow_rows(v, k):
    tf = tensorflow()
    more = lambda i, a: (i + 1, tf.concat([a, a[-1:] * 0.5 + tf.reduce_sum(a) * 0.01], 0))  # noqa: E731
    return tf.while_loop(lambda i, _: i < k, more, (0, v), shape_invariants=(dims(), dims(None, 3)))[1]


def decode(v, k):
    """Attention over caches that grow along axis 1: their extents stay one."""
    tf = tensorflow()

    def body(i, h, keys, values):
        keys = tf.concat([keys, h[:, None, :]], 1)
        values = tf.concat([values, tf.tanh(h)[:, None, :]], 1)
        p = tf.nn.softmax(tf.einsum("bh,bth->bt", h * 0.5, keys))
        return i + 1, tf.einsum("bt,bth->bh", p, values) + h, keys, values

    start = tf.zeros([tf.shape(v)[0], 0, 4])
    shapes = (dims(), dims(None, 4), dims(None, None, 4), dims(None, None, 4))
    return tf.while_loop(lambda i, *_: i < k, body, (0, v, start, start), shape_invariants=shapes)[1:]


def decode_until(v, k, limit):
    """Ends by a counter or by what it computes."""
    tf = tensorflow()

    def body(i, h, out):
        return i + 1, h * 1.5, tf.concat([out, tf.argmax(h, output_type=tf.int32)[None]], 0)

    go_on = lambda i, h, _: tf.logical_and(i < k, tf.reduce_max(h) < limit)  # noqa: E731
    start = (0, v, tf.zeros([1], tf.int32))
    return tf.while_loop(go_on, body, start, shape_invariants=(dims(), dims(None), dims(None)), maximum_iterations=20)


def at_most(v, limit):
    tf = tensorflow()
    return tf.while_loop(
        lambda h, _: tf.reduce_max(h) < limit, lambda h, out: (h * 1.5, tf.concat([h[:1], out], 0)), (v, v[:0]),
        shape_invariants=(dims(None), dims(None)), maximum_iterations=7,
    )  # fmt: skip


def shrink(v, k):
    tf = tensorflow()
    return tf.while_loop(lambda i, _: i < k, lambda i, a: (i + 1, a[1:] * 2.0), (0, v), shape_invariants=(dims(), dims(None)))[1]


def first_iteration_decides(v, k):
    tf = tensorflow()
    step = lambda i, a: (i + 1, tf.reduce_sum(a) * 0.1 + v)  # noqa: E731
    return tf.while_loop(lambda i, _: i < k, step, (0, v[:1]), shape_invariants=(dims(), dims(None)))[1]


def by_three(v, k):
    """A step of three, a limit that is reached."""
    tf = tensorflow()
    more = lambda i, a: (i + 3, tf.concat([a, v * tf.cast(i, tf.float32)], 0))  # noqa: E731
    return tf.while_loop(lambda i, _: i <= k, more, (1, v), shape_invariants=(dims(), dims(None)))[1]


def nested_growth(v, k):
    tf = tensorflow()
    shapes = (dims(), dims(None))

    def outer(i, acc):
        more = lambda j, a: (j + 1, tf.concat([a, v[:1] * tf.cast(j, tf.float32)], 0))  # noqa: E731
        return i + 1, tf.while_loop(lambda j, _: j < 2, more, (0, acc), shape_invariants=shapes)[1]

    return tf.while_loop(lambda i, _: i < k, outer, (0, v), shape_invariants=shapes)[1]


def beams(v, k):
    tf = tensorflow()

    def body(i, sequences, scores):
        top = tf.math.top_k(scores, k=2)
        sequences = tf.concat([tf.gather(sequences, top.indices), tf.fill([2, 1], i)], 1)
        return i + 1, sequences, tf.sin(top.values * 2)

    start = (0, tf.zeros([2, 1], tf.int32), v[:2])
    return tf.while_loop(lambda i, *_: i < k, body, start, shape_invariants=(dims(), dims(2, None), dims(2)))[1:]


# ---- lists --------------------------------------------------------------------------------------------------------------


def push_and_pop(v, k):
    tf = tensorflow()
    _, h, out = tf.while_loop(lambda i, *_: i < k, lambda i, h, a: (i + 1, push(h, a), tf.sin(a) * 2), (0, empty(), v))

    def back(i, h, g):
        h, item = pop(h)
        return i + 1, h, g * tf.cos(tf.ensure_shape(item, [None])) * 2

    return tf.while_loop(lambda i, *_: i < k, back, (0, h, out * 0 + 1))[2]


def pop_too_many(v, k, m):
    tf = tensorflow()
    _, h = tf.while_loop(lambda i, *_: i < k, lambda i, h: (i + 1, push(h, v * tf.cast(i, tf.float32))), (0, empty()))

    def back(i, h, g):
        h, item = pop(h)
        return i + 1, h, g + tf.ensure_shape(item, [None])

    return tf.while_loop(lambda i, *_: i < m, back, (0, h, v))[2]


def limited(v, k):
    tf = tensorflow()
    return stack(tf.while_loop(lambda i, *_: i < k, lambda i, h: (i + 1, push(h, v)), (0, empty(limit=3)))[1])


def dynamic_array(v, k):
    tf = tensorflow()
    array = tf.TensorArray(tf.float32, 0, dynamic_size=True)
    return tf.while_loop(lambda i, *_: i < k, lambda i, t: (i + 1, t.write(i, v * tf.cast(i, tf.float32))), (0, array))[1].stack()


def dynamic_array_with_gaps(v, k):
    tf = tensorflow()
    array = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[3])
    return tf.while_loop(lambda i, *_: i < k, lambda i, t: (i + 2, t.write(i, v + tf.cast(i, tf.float32))), (0, array))[1].stack()


def array_concat(v, k):
    tf = tensorflow()
    array = tf.TensorArray(tf.float32, k)
    return tf.while_loop(lambda i, *_: i < k, lambda i, t: (i + 1, t.write(i, v * tf.cast(i, tf.float32))), (0, array))[1].concat()


def array_gather(v, index):
    tf = tensorflow()
    return tf.TensorArray(tf.float32, tf.shape(v)[0]).unstack(v).gather(index)


def array_scatter(v, index):
    tf = tensorflow()
    return tf.TensorArray(tf.float32, 4, infer_shape=False).scatter(index, v).stack()


def list_of_either_branch(v, p, k):
    tf = tensorflow()
    array = tf.TensorArray(tf.float32, k)

    def body(i, t):
        dear = lambda: t.write(i, tf.matmul(v[None], v[:, None])[0] + v)  # noqa: E731
        return i + 1, tf.cond(tf.logical_and(p, i % 2 == 0), lambda: t.write(i, tf.exp(v)), dear)

    return tf.while_loop(lambda i, *_: i < k, body, (0, array))[1].stack()


def list_of_one_branch(v, p, k):
    """Where the other branch is taken always, nothing is ever set: TensorFlow then knows no shape."""
    tf = tensorflow()
    array = tf.TensorArray(tf.float32, k)
    body = lambda i, t: (i + 1, tf.cond(p, lambda: t.write(i, tf.exp(v)), lambda: t))  # noqa: E731
    return tf.while_loop(lambda i, *_: i < k, body, (0, array))[1].stack()


def list_ops(v):
    """One of each of the ops on whole lists."""
    tf = tensorflow()
    raw = tf.raw_ops
    rows = raw.TensorListFromTensor(tensor=v, element_shape=tf.constant([-1]))
    longer = raw.TensorListConcatLists(input_a=rows, input_b=push(empty([-1]), v[0]), element_dtype=tf.float32)
    cut = raw.TensorListResize(input_handle=longer, size=2)
    wider = raw.TensorListResize(input_handle=longer, size=raw.TensorListLength(input_handle=longer) + 2)
    split = raw.TensorListSplit(tensor=v[:, 0][:4], element_shape=tf.constant([2]), lengths=tf.constant([2, 2], tf.int64))
    shape = raw.TensorListElementShape(input_handle=rows, shape_type=tf.int32)
    total = tf.raw_ops.AddN(inputs=[rows, tf.raw_ops.ZerosLike(x=rows), rows])
    return stack(longer), stack(cut), stack(wider), stack(split), shape, stack(total)


def scattered(v, index):
    tf = tensorflow()
    scatter = lambda count: tf.raw_ops.TensorListScatterV2(  # noqa: E731
        tensor=v, indices=index, element_shape=tf.constant([2]), num_elements=count
    )
    return stack(scatter(-1)), stack(scatter(5))


# ---- gradients ----------------------------------------------------------------------------------------------------------


def gradient_of_scan(v):
    tf = tensorflow()
    return tf.gradients(tf.scan(lambda a, row: a * 0.5 + row * row, v, initializer=tf.zeros([5])), v)[0]


def gradient_of_while(v, k):
    tf = tensorflow()
    out = tf.while_loop(lambda i, _: i < k, lambda i, a: (i + 1, tf.sin(a) * a), (0, v))[1]
    return tf.gradients(out, v)[0]


def gradient_of_map(v):
    tf = tensorflow()
    return tf.gradients(tf.map_fn(lambda row: tf.reduce_sum(row * row) * row, v), v)[0]


CASES = [
    (grow_rows, [("float32", None, 3), ("int32",)], [[x(m, 3), n(k)] for m, k in ((2, 0), (2, 1), (1, 5), (4, 17))]),
    (decode, [("float32", None, 4), ("int32",)], [[x(m, 4), n(k)] for m, k in ((2, 0), (2, 1), (1, 5), (3, 17), (0, 3))]),
    (decode_until, [("float32", None), ("int32",), ("float32",)],
     [[np.abs(x(5)), n(k), np.float32(m)] for k, m in ((0, 9), (4, 1e9), (100, 20.0), (3, -1))]),
    (at_most, [("float32", None), ("float32",)], [[np.abs(x(5)), np.float32(m)] for m in (1e9, 20.0, -1)]),
    (shrink, [("float32", None), ("int32",)], [[x(m), n(k)] for m, k in ((5, 0), (5, 2), (5, 5), (5, 7), (0, 1))]),
    (first_iteration_decides, [("float32", None), ("int32",)], [[x(m), n(k)] for m, k in ((5, 0), (5, 1), (5, 3), (1, 2))]),
    (by_three, [("float32", None), ("int32",)], [[x(m), n(k)] for m, k in ((2, 0), (2, 1), (2, 4), (3, 12), (0, 5))]),
    (nested_growth, [("float32", None), ("int32",)], [[x(m), n(k)] for m, k in ((3, 0), (3, 2), (1, 5))]),
    (beams, [("float32", None), ("int32",)], [[x(m), n(k)] for m, k in ((3, 0), (3, 2), (2, 5))]),
    (push_and_pop, [("float32", None), ("int32",)], [[x(m), n(k)] for m, k in ((5, 0), (5, 1), (5, 9), (0, 2))]),
    (pop_too_many, [("float32", None), ("int32",), ("int32",)],
     [[x(5), n(k), n(m)] for k, m in ((2, 2), (1, 0), (2, 3), (0, 1))]),
    (limited, [("float32", None), ("int32",)], [[x(2), n(k)] for k in (1, 3, 4, 0)]),
    (dynamic_array, [("float32", None), ("int32",)], [[x(m), n(k)] for m, k in ((5, 1), (5, 9), (0, 2), (5, 0))]),
    (dynamic_array_with_gaps, [("float32", 3), ("int32",)], [[x(3), n(k)] for k in (1, 9, 0)]),
    (array_concat, [("float32", None, 2), ("int32",)], [[x(m, 2), n(k)] for m, k in ((5, 1), (5, 9), (0, 2), (5, 0))]),
    (array_gather, [("float32", None, 2), ("int32", None)], [[x(4, 2), np.array(k, np.int32)] for k in ([1], [3, 0, 3], [4], [-1], [])]),
    (array_scatter, [("float32", None, 2), ("int32", None)], [[x(len(k), 2), np.array(k, np.int32)] for k in ([1], [3, 0, 3], [])]),
    (list_of_either_branch, [("float32", None), ("bool",), ("int32",)],
     [[x(m), np.array(p), n(k)] for m in (3, 1) for p in (True, False) for k in (1, 4)]),
    (list_of_one_branch, [("float32", None), ("bool",), ("int32",)],
     [[x(m), np.array(p), n(k)] for m in (3, 1) for p in (True, False) for k in (1, 4)]),
    (list_ops, [("float32", None, None)], [[x(m, k)] for m, k in ((4, 3), (9, 1))]),
    (scattered, [("float32", None, 2), ("int32", None)],
     [[x(len(k), 2), np.array(k, np.int32)] for k in ([1], [3, 0, 3], [], [-1], [0, 5])]),
    (gradient_of_scan, [("float32", None, 5)], [[x(m, 5)] for m in (1, 2, 13)]),
    (gradient_of_while, [("float32", None), ("int32",)], [[x(m), n(k)] for m, k in ((5, 0), (5, 1), (5, 4))]),
    (gradient_of_map, [("float32", None, None)], [[x(m, k)] for m, k in ((1, 1), (4, 3))]),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "specs", "inputs"), CASES, ids=[c[0].__name__ for c in CASES])
def test_as_tensorflow(fn, specs, inputs):
    check_graph(case(fn, *(spec(*s) for s in specs)), inputs, TARGET, TOL)


# ---- bounds: what is too small a store is memory that is not ours -------------------------------------------------------


def _written(v, k, first, at):
    """A list of ``k`` elements, the first of them at ``first``, the next where ``at`` says."""
    tf = tensorflow()
    array = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[None], clear_after_read=False)
    body = lambda i, j, t: (i + 1, at(i, j), t.write(j, v + tf.cast(j, tf.float32)))  # noqa: E731
    return tf.while_loop(lambda i, *_: i < k, body, (0, first, array))[2].stack()


def written_by_threes(v, k):
    return _written(v, k, 0, lambda _, j: j + 3)


def written_from_five(v, k):
    return _written(v, k, 5, lambda _, j: j + 1)


def written_from_the_limit(v, k):
    return _written(v, k, k, lambda _, j: j + 2)


def written_at_the_counter(v, k):
    """The counter's own limit, where another ends the loop first or last."""
    tf = tensorflow()
    array = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[None])
    go_on = lambda i, j, _: tf.logical_and(j < 11, i < k)  # noqa: E731
    return tf.while_loop(go_on, lambda i, j, t: (i + 2, j + 3, t.write(j, v)), (0, 1, array))[2].stack()


def extent_in_the_condition(v, k):
    """The extent that the loop changes is no limit of it."""
    tf = tensorflow()
    go_on = lambda i, a: tf.logical_and(i < tf.shape(a)[0] + k, i < 10)  # noqa: E731
    return tf.while_loop(go_on, lambda i, a: (i + 1, tf.concat([a, v[:1]], 0)), (0, v), shape_invariants=(dims(), dims(None)))[1]


def count_in_the_condition(v, k):
    """Nor is a number that the condition finds anew."""
    tf = tensorflow()
    go_on = lambda i, a: tf.logical_and(i < tf.shape(tf.where(a > 0))[0] + k, i < 5)  # noqa: E731
    return tf.while_loop(go_on, lambda i, a: (i + 1, tf.concat([a, v[:1]], 0)), (0, v), shape_invariants=(dims(), dims(None)))[1]


def ends_early(v, k):
    """``k`` may be anything: the size of a tensor bounds the loop, too."""
    tf = tensorflow()
    rows = tf.shape(v)[0]
    array = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[None])
    go_on = lambda i, _: tf.logical_and(tf.logical_and(i < k, i < rows), tf.cast(i, tf.float32) < v[0])  # noqa: E731
    return tf.while_loop(go_on, lambda i, t: (i + 1, t.write(i, v)), (0, array))[1].concat()


@pytest.mark.parametrize(
    "fn",
    [
        written_by_threes,
        written_from_five,
        written_from_the_limit,
        written_at_the_counter,
        extent_in_the_condition,
        count_in_the_condition,
    ],
    ids=lambda f: f.__name__,
)
def test_bounds(fn):
    row = np.array([1.5, -2.0, 3.0], np.float32)
    check_graph(case(fn, spec("float32", None), spec("int32")), [[row, n(k)] for k in (4, 1, 0, 40, -3)], TARGET, TOL)


def test_bounds_of_early_ends():
    rows = np.array([2.5, -2.0, 3.0, 1.0], np.float32)
    inputs = [[rows, n(k)] for k in (4, 1, 2**31 - 1)]
    check_graph(case(ends_early, spec("float32", None), spec("int32")), inputs, TARGET, TOL)


def wraps_around(v):
    """A counter that passes the greatest integer: the loop goes on, for longer than its condition seems to say."""
    tf = tensorflow()
    more = lambda i, k, a: (i + 2**30, k + 1, tf.concat([a, v], 0))  # noqa: E731
    go_on = lambda i, k, _: tf.logical_and(i <= 2**31 - 3 + tf.size(v), tf.cast(k, tf.float32) < v[0])  # noqa: E731
    return tf.while_loop(go_on, more, (0, 0, v), shape_invariants=(dims(), dims(), dims(None)))[2]


def test_second_line_of_defence():
    """Where the reasoning about bounds fails the run ends with an error, before anything outside of the store is read or written."""
    c = case(wraps_around, spec("float32", None))
    executable = load_executable(compile_module(c.imported.module, TARGET).executable, TARGET[-1])
    try:
        fine = run_executable(executable, c.feeds([np.array([1.0, 2.0], np.float32)]))
        assert not isinstance(fine, Failure)
        found = run_executable(executable, c.feeds([np.array([9.0, 2.0], np.float32)]))
        assert isinstance(found, Failure) and found.code == 8 and "longer in the loop" in found.message
    finally:
        executable.close()


# ---- reasons ------------------------------------------------------------------------------------------------------------


def no_bound(v):
    tf = tensorflow()
    more = lambda a: (tf.concat([a, a[-1:] * 0.5], 0),)  # noqa: E731
    return tf.while_loop(lambda a: tf.reduce_min(a) > 0.1, more, (v,), shape_invariants=(dims(None),))[0]


def doubles(v):
    tf = tensorflow()
    return tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, tf.concat([a, a], 0)), (0, v), shape_invariants=(dims(), dims(None)))[1]


def beyond_the_counter(v):
    tf = tensorflow()
    array = tf.TensorArray(tf.float32, 1, dynamic_size=True)
    return tf.while_loop(lambda i, *_: i < 4, lambda i, t: (i + 1, t.write(i * 2, v)), (0, array))[1].stack()


def written_anywhere(v):
    return _written(v, 3, 0, lambda i, _: tensorflow().cast(v, "int32")[i])


def written_downwards(v):
    return _written(v, 3, 2, lambda _, j: j - 1)


def ends_by_itself(v):
    """Nothing but a run-time number bounds it: room for so many iterations may not be there."""
    tf = tensorflow()
    k = tf.cast(v[0], tf.int32)
    go_on = lambda i, a: tf.logical_and(i < k, tf.reduce_sum(a) < 5.0)  # noqa: E731
    return tf.while_loop(go_on, lambda i, a: (i + 1, tf.concat([a, v], 0)), (0, v), shape_invariants=(dims(), dims(None)))[1]


def greatest_limit(v):
    tf = tensorflow()
    go_on = lambda i, k, _: tf.logical_and(i <= 2**31 - 3, tf.cast(k, tf.float32) < v[0])  # noqa: E731
    more = lambda i, k, a: (i + 2**30, k + 1, tf.concat([a, v], 0))  # noqa: E731
    return tf.while_loop(go_on, more, (0, 0, v), shape_invariants=(dims(), dims(), dims(None)))[2]


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (no_bound, "have no known bound"),
        (doubles, "may change a dimension"),
        (beyond_the_counter, "may change a dimension"),
        (written_anywhere, "which is no counter"),
        (written_downwards, "which is no counter"),
        (ends_by_itself, "may end long before a limit that run time gives"),
        (greatest_limit, "have no known bound"),
    ],
)
def test_reasons(fn, reason):
    tf = tensorflow()
    concrete = tf.function(fn).get_concrete_function(spec("float32", None))
    loaded = load(concrete.graph.as_graph_def(), [concrete.outputs[0].name])
    analysis = analyse(loaded.graph, [name for name, _ in loaded.fetches])
    clustering = make_clusters(analysis, loaded.fetches, min_cluster_size=1)
    (loop,) = [node for node in analysis.order if node.op in ("While", "StatelessWhile")]
    assert reason in clustering.reasons[loop.name].message
