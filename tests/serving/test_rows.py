"""Which signatures may be batched: one SavedModel with a signature for each case."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf.serving.rows import rows_independent

Case = tuple[Callable[..., Any], list[tuple[list[int | None], str]], str]
F2: list[tuple[list[int | None], str]] = [([None, 8], "float32")]
F3: list[tuple[list[int | None], str]] = [([None, None, 8], "float32")]


def cases(tf: Any, w: Any, table: Any, kernel: Any) -> dict[str, Case]:
    """name -> (function, inputs, what the reason for refusing it says; "" where rows are independent)."""

    def tensordot(x: Any) -> Any:
        return tf.nn.gelu(tf.tensordot(x, w, [[2], [0]]))

    def attention(x: Any) -> Any:
        q = tf.reshape(x, [tf.shape(x)[0], tf.shape(x)[1], 2, 4])
        q = tf.transpose(q, [0, 2, 1, 3])
        p = tf.nn.softmax(tf.matmul(q, q, transpose_b=True) * 0.5)
        y = tf.transpose(tf.matmul(p, q), [0, 2, 1, 3])
        return tf.reshape(y, [-1, tf.shape(x)[1], 8])

    def norm(x: Any) -> Any:
        mean = tf.reduce_mean(x, -1, keepdims=True)
        return (x - mean) * tf.math.rsqrt(tf.reduce_mean(tf.square(x - mean), -1, keepdims=True) + 1e-5) * w[0]

    def embedding(ids: Any, mask: Any) -> Any:
        x = tf.gather(table, ids) + table[tf.newaxis, : tf.shape(ids)[1]]
        return tf.reduce_sum(x * tf.cast(mask, tf.float32)[:, :, tf.newaxis], 1)

    def image(x: Any) -> Any:
        x = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME"))
        return tf.reduce_mean(tf.nn.max_pool2d(x, 2, 2, "VALID"), [1, 2])

    def deep(n: Any) -> Any:
        return functools.reduce(lambda m, i: tf.maximum(m * i // 3 % 7, m // i), range(2, 9), n)

    ids: list[tuple[list[int | None], str]] = [([None, None], "int32"), ([None, None], "int32")]
    good = {
        "dense": (lambda x: tf.nn.relu(tf.matmul(x, w) + w[0]), F2),
        "tensordot": (tensordot, F3),
        "attention": (attention, F3),
        "norm": (norm, F3),
        "embedding": (embedding, ids),
        "image": (image, [([None, None, None, 3], "float32")]),
        "filled": (lambda x: tf.concat([x, tf.zeros([tf.shape(x)[0], 1])], 1), F2),
        "two": (lambda x, y: tf.where(x > 0.0, x, y), [*F2, *F2]),
        "first_token": (lambda x: x[:, 0], F3),
        "strings": (lambda s: tf.strings.length(tf.strings.upper(s)), [([None], "string")]),
        "top": (lambda x: tf.math.top_k(x, 2).values, F2),
        "einsum": (lambda x: tf.einsum("bsh,hk->bsk", x, w), F3),
        "longer_half": (lambda x: x[:, : tf.shape(x)[1] // 2 + 1] * 2.0, F3),
        "flat": (lambda x: tf.reshape(tf.matmul(tf.reshape(x, [-1, 8]), w), tf.shape(x)), F3),
    }
    bad = {
        "mean_of_batch": (lambda x: x - tf.reduce_mean(x, 0, keepdims=True), F2, "combines rows"),
        "mean_of_all": (lambda x: x - tf.reduce_mean(x), F2, "combines rows"),
        "batch_size": (lambda x: x / tf.cast(tf.shape(x)[0], tf.float32), F2, "computes with the batch size|computes"),
        "gram": (lambda x: tf.matmul(x, x, transpose_b=True), F2, "multiplies rows by rows"),
        "reversed": (lambda x: tf.reverse(x, [0]), F2, "combines rows"),
        "cumulated": (lambda x: tf.cumsum(x, 0), F2, "combines rows"),
        "first_row": (lambda x: x[:1] * tf.ones_like(x), F2, "some of the rows|multiple"),
        "random": (lambda x: x + tf.random.uniform(tf.shape(x)), F2, "state or an effect"),
        "unique": (lambda x: tf.unique(tf.reshape(x, [-1]))[0], F2, "nothing is known|multiple"),
        "transposed": (lambda x: tf.transpose(tf.transpose(x) * 2.0), F2, "moves the rows"),
        "fixed": (lambda x: x * 2.0, [([4, 8], "float32")], "is fixed"),
        "scalar": (lambda x: {"y": x * 2.0, "n": tf.reduce_sum(x)}, F2, "combines rows"),
        "batch_norm": (
            lambda x: tf.compat.v1.nn.fused_batch_norm(x, w[0, :3], w[0, :3])[0],
            [([None, 4, 4, 3], "float32")],
            "averages over the batch",
        ),
        "arange": (lambda x: x * tf.cast(tf.range(tf.shape(x)[0]), tf.float32)[:, tf.newaxis], F2, "nothing is known|batch size"),
        "squeezed": (lambda x: tf.squeeze(x) * 1.0, [([None, 1, 8], "float32")], "names no axes"),
        "merged": (lambda x: tf.reshape(x, [-1, 16]), F2, "multiple|one row"),
        "split": (lambda x: tf.reshape(x, [-1, 4]), F2, "one row for each"),
        # the batch size, or the data, in another extent than the first
        "tiled": (lambda x: tf.reduce_sum(tf.tile(x, [1, tf.shape(x)[0]]), 1), F2, "batch size"),
        "cut": (lambda x: x[:, : tf.shape(x)[0]], F2, "batch size"),
        "cut_sum": (lambda x: tf.reduce_sum(x[:, : tf.minimum(tf.shape(x)[0], 4)], 1), F2, "batch size"),
        "one_column": (lambda x: x[:, tf.shape(x)[0] - 1], F2, "batch size"),
        "moved": (lambda x: tf.slice(x, [0, tf.shape(x)[0]], [-1, 2]), F2, "batch size"),
        "sized": (lambda x: tf.reduce_sum(tf.slice(x, [0, 0], [-1, tf.shape(x)[0] % 4 + 1]), 1), F2, "batch size"),
        "split_there": (lambda x: tf.split(x, [tf.shape(x)[0], 8 - tf.shape(x)[0]], 1)[1][:, :1], F2, "batch size"),
        "square": (lambda x: x[:, 0] + tf.reduce_sum(tf.fill([tf.shape(x)[0], tf.shape(x)[0]], 1.0), 1), F2, "batch size"),
        "ellipsis": (lambda x: tf.reduce_sum(x[..., : tf.shape(x)[0]], -1), F3, "batch size"),
        "deep": (lambda x: tf.reduce_sum(x[:, : deep(tf.shape(x)[0])], 1), F2, "batch size"),
        "as_data_says": (lambda i, x: tf.reduce_sum(x[:, : tf.reduce_max(i)], 1), [([None], "int32"), *F2], "combines rows|some|size"),
        "loop": (lambda x: tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: (y + 1.0,), (x,))[0], F2, "While"),
    }
    return {**{k: (*v, "") for k, v in good.items()}, **bad}


def save(path: Path) -> dict[str, Case]:
    import tensorflow as tf

    module = tf.Module()
    rng = np.random.default_rng(0)
    module.w = tf.Variable(rng.random((8, 8), np.float32))
    module.table = tf.Variable(rng.random((50, 8), np.float32))
    module.kernel = tf.Variable(rng.random((3, 3, 3, 4), np.float32))
    found = cases(tf, module.w, module.table, module.kernel)
    signatures = {}
    for name, (f, inputs, _) in found.items():
        spec = [tf.TensorSpec(shape, dtype, name=f"x{i}") for i, (shape, dtype) in enumerate(inputs)]

        def call(*args: Any, f: Any = f) -> dict[str, Any]:
            result = f(*args)
            return result if isinstance(result, dict) else {"y": result}

        signatures[name] = tf.function(call).get_concrete_function(*spec)
    tf.saved_model.save(module, str(path), signatures=signatures)
    return found


@pytest.mark.slow
def test_rows(tmp_path: Path) -> None:
    found = save(tmp_path / "1")
    wrong = {}
    for name, (_, _, expected) in found.items():
        reason = rows_independent(tmp_path / "1", name).reason
        if (not expected and reason) or (expected and not re.search(expected, reason)):
            wrong[name] = reason or "(taken for independent)"
    assert not wrong


@pytest.mark.parametrize("what", ["nothing", "garbage"])
def test_what_cannot_be_read_is_refused(what: str, tmp_path: Path) -> None:
    if what == "garbage":
        (tmp_path / "saved_model.pb").write_bytes(b"\xff\xff")
    verdict = rows_independent(tmp_path)
    assert not verdict and "cannot be analysed" in verdict.reason


def test_the_graph_that_the_session_loads_is_judged(tmp_path: Path) -> None:
    import tensorflow as tf

    from disc_tf.frontend.saved_model import read_saved_model, write_saved_model

    tf1 = tf.compat.v1
    for name, rows in (("first", True), ("second", False)):
        with tf1.Session(graph=tf.Graph()) as session:
            x = tf1.placeholder(tf.float32, [None, 4], "x")
            tf1.saved_model.simple_save(session, str(tmp_path / name), {"x": x}, {"y": x * 2.0 if rows else x - tf.reduce_mean(x, 0)})
    both = read_saved_model(tmp_path / "first")
    both.meta_graphs[0].meta_info_def.tags.append("gpu")
    both.meta_graphs.extend(read_saved_model(tmp_path / "second").meta_graphs)
    write_saved_model(tmp_path / "first", both)
    assert "combines rows" in rows_independent(tmp_path / "first").reason


def test_a_fault_of_the_analysis_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any) -> None:
        raise KeyError("n0")

    monkeypatch.setattr("disc_tf.serving.rows.Proof.run", broken)
    monkeypatch.setattr("disc_tf.serving.rows.Proof.__init__", lambda self, meta, signature: None)
    monkeypatch.setattr("disc_tf.frontend.saved_model.read_saved_model", lambda directory: None)
    monkeypatch.setattr("disc_tf.frontend.saved_model.choose_meta_graph", lambda message, tags: None)
    assert "cannot be analysed" in rows_independent(tmp_path).reason
