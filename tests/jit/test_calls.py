"""What a jitted function answers: TensorFlow's results at every shape, from one compilation a rank signature."""

from __future__ import annotations

import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import disc_tf
from disc_tf.just_in_time import JitWarning, version
from disc_tf.options import OptionError


def jit(fn: Any = None, **options: Any) -> Any:
    """Without a disk cache, compiled before the first answer, unless the test says otherwise."""
    return disc_tf.jit(fn, **{"background": False, "cache_dir": None, **options})


def same(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    tf.nest.assert_same_structure(ours, theirs)
    for a, b in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True):
        if b is None:
            assert a is None
        elif b.dtype.is_floating:
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(a, b)


def answered(fn: Any) -> dict[str, int]:
    total = {"compiled": 0, "tensorflow": 0}
    for s in fn.report():
        for who, n in s.answers.items():
            total[who] += n
    return total


def test_one_trace_and_one_compilation_serve_every_shape():
    traces = []

    @jit
    def f(x, pair, *, k=2.0):
        traces.append(x.shape)
        y = tf.nn.softmax(x * k + pair["b"][0])
        return {"y": y, "m": [tf.reduce_mean(y, -1), None], "t": (tf.shape(y),)}

    for rows, columns in [(3, 4), (1, 1), (0, 4), (5, 0), (17, 65)]:
        x, b = tf.random.normal([rows, columns]), tf.random.normal([columns])
        same(f(x, {"a": 1, "b": (b,)}), f.__wrapped__(x, {"a": 1, "b": (b,)}))
    assert traces[0] == [None, None] and len(traces) == 1 + 5
    assert len(f.report()) == 1 and f.report()[0].state == "compiled"
    assert answered(f) == {"compiled": 5, "tensorflow": 0}
    assert len(f.report()[0].report.compiled_clusters) == 1


def test_spellings_of_a_call_are_one_signature_and_python_values_tell_apart():
    @jit
    def f(x, scale=2.0, training=False):
        return tf.exp(x) * scale + (1.0 if training else 0.0)

    x = tf.constant([[1.0, 2.0]])
    for call in [lambda: f(x), lambda: f(x, 2.0), lambda: f(scale=2.0, x=x), lambda: f(np.ones([3, 1], np.float32))]:
        call()
    assert len(f.report()) == 1
    same(f(x, training=True), tf.exp(x) * 2.0 + 1.0)
    same(f(tf.cast(x, tf.float64)), tf.exp(tf.cast(x, tf.float64)) * 2.0)
    same(f(x[0]), tf.exp(x[0]) * 2.0)
    assert len(f.report()) == 4
    assert f.__name__ == "f"
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        f()


@pytest.mark.parametrize("worker", ["process", "thread"])
def test_tensorflow_answers_until_the_switch(worker):
    @jit(background=True, worker=worker)
    def f(x):
        return tf.tanh(x) + tf.reduce_sum(x, -1, keepdims=True) * 2.0

    x = tf.random.normal([4, 5])
    first = f(x)
    assert f.wait(120)
    same(f(x), first)
    s = f.report()[0]
    assert s.state == "compiled" and s.answers == {"compiled": 1, "tensorflow": 1} and s.seconds > 0


def test_threads_with_mixed_shapes_compile_once(monkeypatch):
    compiled, traces, wrong = [], [], []
    real = version.compile_request
    monkeypatch.setattr(version, "compile_request", lambda r, *a: (compiled.append(1), real(r, *a))[1])

    @jit
    def f(x):
        traces.append(1)
        return tf.nn.softmax(x) * 3.0 + 1.0

    start = threading.Barrier(32)

    def run(seed: int) -> None:
        rng = np.random.default_rng(seed)
        start.wait()
        for _ in range(4):
            x = rng.standard_normal((rng.integers(0, 9), rng.integers(1, 9))).astype(np.float32)
            e = np.exp(x - x.max(-1, keepdims=True))
            if not np.allclose(f(x), e / e.sum(-1, keepdims=True) * 3 + 1, atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(32)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(compiled) == 1 and len(traces) == 1
    assert answered(f) == {"compiled": 128, "tensorflow": 0}


def test_a_failure_is_one_warning_and_tensorflows_answer(monkeypatch):
    def fails(request, *_):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(version, "compile_request", fails)
    f = jit(lambda x: tf.exp(x) + 1.0)
    with pytest.warns(JitWarning, match="stays in TensorFlow: no such luck") as caught:
        same(f(tf.ones([2])), tf.exp(tf.ones([2])) + 1.0)
        f(tf.ones([3]))
    assert len(caught) == 1 and caught[0].filename == __file__
    s = f.report()[0]
    assert (s.state, s.reason) == ("failed", "no such luck") and s.answers["tensorflow"] == 2
    with pytest.raises(RuntimeError, match="no such luck"):
        f.lower(tf.ones([2])).compile()


def test_what_cannot_be_compiled_says_why_and_strings_stay_beside_what_is():
    f = jit(lambda s: tf.strings.upper(s))
    with pytest.warns(JitWarning, match=r"0 of \d+ ops can be compiled"):
        assert f(tf.constant(["a"]))[0] == b"A"

    @jit
    def g(names, x):
        return tf.strings.join([names, "!"]), tf.nn.softmax(x) * tf.cast(tf.strings.length(names), tf.float32)[:, None]

    x = tf.random.normal([2, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        words, y = g(tf.constant(["ab", "c"]), x)
    assert list(words.numpy()) == [b"ab!", b"c!"]
    same(y, tf.nn.softmax(x) * tf.constant([[2.0], [1.0]]))
    assert answered(g)["compiled"] == 1


def test_branches_and_loops_that_stay_in_tensorflow_are_found():
    w = tf.Variable(2.0)

    @jit
    def f(x, name):
        y = tf.nn.softmax(x) * 2.0 + 1.0
        if tf.reduce_sum(x) > 0:
            word, z = tf.strings.upper(name), tf.exp(y) * w
        else:
            word, z = tf.strings.join([name, "?"]), y
        for _ in tf.range(2):
            word = tf.strings.join([word, "!"])
        return word, z

    for sign, word in ((1.0, b"A!!"), (-1.0, b"a?!!")):
        x = tf.constant([[0.5, 1.0]]) * sign
        found = []
        for fn in (f, f.__wrapped__):
            with tf.GradientTape() as tape:
                tape.watch(x)
                text, z = fn(x, tf.constant("a"))
            assert text.numpy() == word
            found.append((z, tape.gradient(z, x)))
        same(*found)
    assert answered(f) == {"compiled": 2, "tensorflow": 0}


def test_recurrent_layers_are_compiled_with_their_loops():
    w = tf.Variable(tf.random.stateless_normal([4, 4], [1, 2]))

    @jit
    def recurrent(x):
        steps = tf.transpose(x, [1, 0, 2])
        h = tf.zeros_like(steps[0])
        for i in tf.range(tf.shape(steps)[0]):
            h = tf.tanh(h @ w + steps[i])
        return h

    for rows, length in ((2, 3), (1, 7), (3, 1)):
        x = tf.random.normal([rows, length, 4])
        want = np.zeros([rows, 4], np.float32)
        for i in range(length):
            want = np.tanh(want @ w.numpy() + x[:, i].numpy())
        same(recurrent(x), tf.constant(want), 1e-4)
        w.assign_add(tf.ones_like(w) * 0.1)
    report = recurrent.report()[0].report
    assert len(report.compiled_clusters) == 1 and not [x for x in report.left_out if x.op == "While"]


def test_errors_are_of_tensorflows_class():
    f = jit(lambda table, ids: tf.gather(table, ids) * 2.0 + 1.0)
    table = tf.ones([4, 3])
    same(f(table, tf.constant([1, 3])), tf.ones([2, 3]) * 3.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
        f(table, tf.constant([4]))
    g = jit(lambda a, b: tf.nn.relu(a @ b + 1.0))
    g(tf.ones([2, 3]), tf.ones([3, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        g(tf.ones([2, 3]), tf.ones([4, 2]))
    assert answered(f) == {"compiled": 2, "tensorflow": 0} and answered(g)["compiled"] == 2


def test_functions_with_an_input_signature_keep_it():
    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([], tf.int32)])
    def g(x, n):
        assert x.shape[1] == 3
        return tf.nn.softmax(x) * tf.cast(n, tf.float32) + 1.0

    f = jit(g)
    for rows in (1, 4):
        x = tf.random.normal([rows, 3])
        same(f(x, 2), g(x, 2))
    assert answered(f)["compiled"] == 2
    with pytest.warns(JitWarning, match="do not fit"), pytest.raises(TypeError):
        f(tf.ones([2, 4]), 2)


def test_methods_modules_and_variables_made_on_the_first_call():
    class Scale(tf.Module):
        def __init__(self, by):
            super().__init__()
            self.by, self.v = by, None

        @jit
        def forward(self, x):
            if self.v is None:
                self.v = tf.Variable(tf.ones([x.shape[-1]]) * self.by)
            return tf.exp(x * self.v) + 1.0

        def __call__(self, x):
            return tf.exp(x * self.v) - 1.0

    a, b, x = Scale(2.0), Scale(3.0), tf.random.normal([3, 4])
    for _ in range(2):
        same(a.forward(x), tf.exp(x * 2.0) + 1.0)
        same(b.forward(x), tf.exp(x * 3.0) + 1.0)
    assert answered(a.forward) == {"compiled": 1, "tensorflow": 1}, "the first call made the variable, in TensorFlow"
    a.v.assign(a.v * 0.0)
    same(a.forward(x), tf.ones([3, 4]) * 2.0)
    same(b.forward(x), tf.exp(x * 3.0) + 1.0)
    f = jit(a)
    same(f(x), tf.zeros([3, 4]))
    a.v.assign_add(tf.ones([4]))
    same(f(x), tf.exp(x) - 1.0)
    import gc
    import weakref

    gone = weakref.ref(b)
    del b
    gc.collect()
    assert gone() is None, "a jitted method keeps its object alive"


def test_methods_of_objects_that_are_equal_or_cannot_be_hashed():
    class Scale:
        def __init__(self, by):
            self.by = by

        def __eq__(self, other):
            return isinstance(other, Scale)

        @jit
        def forward(self, x):
            return tf.exp(x) * self.by

    class Hashed(Scale):
        def __hash__(self):
            return 1

    x = tf.ones([2, 3])
    for kind in (Scale, Hashed):
        a, b = kind(2.0), kind(3.0)
        for _ in range(2):
            same(a.forward(x), tf.exp(x) * 2.0)
            same(b.forward(x), tf.exp(x) * 3.0)
        assert answered(a.forward)["compiled"] and len(a.forward.report()) == 1
        import gc

        held = Scale.__dict__["forward"]._bound
        count = len(held)
        del a, b
        gc.collect()
        assert len(held) == count - 2


def test_a_function_that_calls_itself_from_another_thread():
    """On its first call, where no version is there yet."""

    @jit
    def f(x):
        if x.shape.rank == 2:
            return tf.py_function(lambda row: f(row), [x[0]], tf.float32) + 1.0
        return tf.exp(x)

    found = []
    thread = threading.Thread(target=lambda: found.append(f(tf.zeros([2, 3]))), daemon=True)
    thread.start()
    thread.join(60)
    assert found, "it waits for itself"
    same(found[0], tf.fill([3], 2.0))


def test_an_interrupted_compilation_is_begun_anew(monkeypatch):
    """Ctrl-C in the middle: whoever waits for it does it, and a later call too."""
    entered, gate, real, seen = threading.Event(), threading.Event(), version.compile_request, []

    def interrupted(request):
        seen.append(request)
        if len(seen) > 2:
            return real(request)
        entered.set()
        gate.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(version, "compile_request", interrupted)
    f, x, outcomes = jit(lambda x: tf.exp(x) + 1.0), tf.ones([2, 3]), []

    def ask():
        try:
            outcomes.append(f.compile(x).report()[0].state)
        except KeyboardInterrupt:
            outcomes.append("interrupted")

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
    threads[0].start()
    assert entered.wait(60)
    threads[1].start()
    assert not f.wait(0.05)
    gate.set()
    for thread in threads:
        thread.join(60)
    assert outcomes == ["interrupted"] * 2
    assert f.report()[0].state == "traced" and f.wait(60)
    same(f(x), tf.exp(x) + 1.0)
    assert f.report()[0].state == "compiled" and len(seen) == 3


def test_nothing_is_waited_for_where_nothing_was_asked():
    f = jit(lambda x: tf.exp(x) + 1.0, background=True)
    f.lower(tf.ones([2, 3]))
    assert f.wait(60) and f.report()[0].state == "traced"


def test_static_dims_are_kept_where_tracing_needs_them():
    @jit
    def scaled(x):
        return tf.nn.softmax(x * x.shape[-1] ** -0.5) + 1.0

    for shape in ([2, 4], [5, 4], [3, 9]):
        x = tf.random.normal(shape)
        same(scaled(x), tf.nn.softmax(x * shape[-1] ** -0.5) + 1.0)
    assert [s.signature for s in scaled.report()] == ["(float32[?,?]) with the last dims fixed"] * 2

    @jit
    def unrolled(x):
        return tf.exp(sum(x[i] for i in range(x.shape[0])) + 1.0)

    with pytest.warns(JitWarning, match="cannot be traced with unknown dims") as caught:
        for n in (2, 3):
            same(unrolled(tf.ones([n, 2])), tf.exp(tf.ones([2]) * (n + 1.0)))
    assert len(caught) == 1 and not len(unrolled.report())


def test_ragged_and_sparse_arguments_and_results():
    @jit
    def f(r, s):
        return tf.ragged.map_flat_values(lambda v: tf.exp(v) + 1.0, r), tf.sparse.to_dense(s) * 2.0 + 1.0

    for rows in ([[1.0], [2.0, 3.0]], [[], [1.0, 2.0, 3.0], []]):
        r = tf.ragged.constant(rows, dtype=tf.float32, ragged_rank=1)
        s = tf.sparse.from_dense(tf.eye(len(rows)))
        ours, dense = f(r, s)
        same(ours.to_tensor(), tf.ragged.map_flat_values(lambda v: tf.exp(v) + 1.0, r).to_tensor())
        same(dense, tf.eye(len(rows)) * 2.0 + 1.0)
    assert len(f.report()) == 1


def test_effects_happen_once_a_call_and_in_order():
    count, log = tf.Variable(0), tf.Variable([0.0, 0.0])

    @jit
    def f(x):
        before = count.read_value()
        count.assign_add(1)
        y = tf.exp(x) * tf.cast(count, tf.float32) + 1.0
        log.assign(y)
        return y, before

    @jit
    def only_effects(x):
        log.assign_add(tf.exp(x) * 2.0 + 1.0)

    x = tf.constant([0.0, 1.0])
    for n in range(1, 4):
        y, before = f(x)
        same(y, tf.exp(x) * n + 1.0)
        assert int(before) == n - 1 and int(count) == n
        same(log.read_value(), y)
    assert only_effects(x) is None
    same(log.read_value(), y + tf.exp(x) * 2.0 + 1.0)
    assert answered(f)["compiled"] == 3 and answered(only_effects)["compiled"] == 1


def test_objects_and_variables_as_arguments():
    class Config:
        power = 2.0

    @jit
    def f(x, v, c):
        v.assign_add(1.0)
        return tf.exp(x) * v + c.power

    v, w, c = tf.Variable(0.0), tf.Variable(10.0), Config()
    for n in (1.0, 2.0):
        same(f(tf.zeros([2]), v, c), tf.ones([2]) * (n + 2.0))
    same(f(tf.zeros([2]), w, c), tf.ones([2]) * 13.0)
    assert len(f.report()) == 2
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([3, 2]))
    with pytest.warns(JitWarning, match="IndexedSlices has no relaxed type"):
        same(jit(lambda s: tf.exp(s.values) + 1.0)(slices), tf.exp(tf.ones([1, 2])) + 1.0)


def test_too_many_signatures_are_left_to_tensorflow():
    f = jit(lambda x, n: tf.exp(x) * float(n) + 1.0, max_signatures=2)
    with pytest.warns(JitWarning, match="max_signatures") as caught:
        for n in range(4):
            same(f(tf.zeros([2]), n), tf.ones([2]) * (n + 1.0))
    assert len(caught) == 1 and len(f.report()) == 2

    g = jit(lambda x, n: tf.exp(sum(x[i] for i in range(x.shape[0])) + 1.0) * n, max_signatures=3)
    with pytest.warns(JitWarning):
        for n in range(6):
            g(tf.zeros([2, 2]), float(n))
    assert len(g._refused) == 3, "what cannot be traced is not tried for ever"


def test_inside_other_graphs_it_is_tensorflows_function():
    calls = []

    @jit
    def f(x):
        calls.append(tf.executing_eagerly())
        return tf.nn.softmax(x) * 2.0 + 1.0

    x = tf.random.normal([3, 4])
    want = f(x)

    def launches(concrete: Any) -> bool:
        graph = concrete.graph.as_graph_def()
        return "DiscLaunch" in str([n.op for fn in graph.library.function for n in fn.node_def])

    outer = tf.function(lambda x: f(x))
    same(outer(x), want)
    assert not launches(outer.get_concrete_function(x))
    same(tf.vectorized_map(f, tf.expand_dims(x, 1))[:, 0], want)
    same(tf.map_fn(f, tf.expand_dims(x, 1))[:, 0], want)
    same(tf.function(lambda x: f(x), jit_compile=True)(x), want)
    with tf.distribute.get_strategy().scope():
        same(f(x), want)
    tf.config.run_functions_eagerly(True)
    try:
        same(f(x), want)
    finally:
        tf.config.run_functions_eagerly(False)
    assert calls[-1] is True

    g = jit(f, nested=True)
    g.compile(x)
    inside = tf.function(lambda x: g(x))
    same(inside(x), want)
    assert launches(inside.get_concrete_function(x))


def test_lower_compile_and_concrete_functions():
    w = tf.Variable(tf.ones([4, 2]))
    f = jit(lambda x: tf.nn.relu(x @ w) + 1.0)
    lowered = f.lower(tf.TensorSpec([None, None], tf.float32))
    assert "dot_general" in lowered.as_text() and "a" in lowered.as_text()
    assert "stablehlo.dot_general" in lowered.stablehlo() and "?" in lowered.stablehlo()
    assert f.report()[0].state == "traced"
    assert lowered.compile() is f and f.report()[0].state == "compiled"
    same(f(tf.ones([3, 4])), tf.ones([3, 2]) * 5.0)
    assert answered(f) == {"compiled": 1, "tensorflow": 0}
    assert "DiscLaunch" not in str(f.get_concrete_function(tf.ones([3, 4])).graph.as_graph_def())
    assert f.compile(tf.ones([2, 4])) is f and len(f.report()) == 1
    text = f.report().to_text()
    assert "compiled" in text and "1 of 1 clusters" in text
    assert '"state": "compiled"' in f.report().to_json()


def test_a_forked_process_asks_again_for_what_was_being_compiled():
    f = jit(lambda x: tf.exp(x) + 1.0)
    f.lower(tf.ones([2]))
    (only,) = f._versions.values()
    only.state = version.COMPILING  # by a thread that a fork leaves behind
    f.reset_locks()
    assert only.state == version.TRACED and not only.done.is_set()
    f(tf.ones([2]))
    assert f.wait(60) and only.state == version.COMPILED


def test_options_are_checked():
    with pytest.raises(OptionError, match="did you mean 'background'"):
        disc_tf.jit(lambda x: x, backgroud=True)
    with pytest.raises(OptionError, match="true or false"):
        disc_tf.jit(lambda x: x, nested=1)
    with pytest.raises(OptionError, match="process, thread"):
        disc_tf.jit(lambda x: x, worker="gpu")
    with pytest.raises(OptionError, match="cache_dir"):
        disc_tf.jit(lambda x: x, cache_dir=3)
    with pytest.raises(TypeError, match="takes a function"):
        disc_tf.jit(3)  # type: ignore[arg-type]


def test_a_switch_under_load_never_gives_a_wrong_answer():
    f = jit(lambda x: tf.nn.softmax(x) * 2.0 + tf.reduce_max(x), background=True, worker="thread")
    x = tf.random.normal([5, 7])
    want = f(x)
    end = time.monotonic() + 120
    while f.report()[0].state != "compiled" and time.monotonic() < end:
        same(f(x), want)
    same(f(x), want)
    assert answered(f)["compiled"] >= 1
