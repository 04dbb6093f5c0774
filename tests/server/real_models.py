"""Small real models for the tests of the service, in TensorFlow: each kind in many structures, with several weights, under any names."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from disc_tf.testing.compare import compare
from disc_tf.testing.tf_case import tensorflow

#: the shared dynamic sizes that each structure is tried at: (batch, length)
SIZES = ((3, 5), (1, 1), (0, 4))


@dataclasses.dataclass(frozen=True)
class Model:
    """A graph. feeds: name of each placeholder -> makes an array of a size; outputs: tensors."""

    graph: Any
    feeds: dict[str, Callable[[int, int], np.ndarray]]
    outputs: tuple[str, ...]

    def under(self, prefix: str) -> Model:
        """The same model, each name with a prefix: nodes, functions, and what speaks of them."""
        return Model(
            renamed(self.graph, prefix),
            {prefix + name: make for name, make in self.feeds.items()},
            tuple(prefix + name for name in self.outputs),
        )


def renamed(graph: Any, prefix: str) -> Any:
    """A copy of a GraphDef with a prefix before the names of nodes of the main graph and of functions."""
    out = type(graph)()
    out.CopyFrom(graph)
    functions = {f.signature.name for f in out.library.function}

    def mend(node: Any) -> None:
        for value in node.attr.values():
            for f in [value.func, *value.list.func] if value.WhichOneof("value") in ("func", "list") else []:
                if f.name in functions:
                    f.name = prefix + f.name
        if node.op in functions:
            node.op = prefix + node.op

    for function in out.library.function:
        function.signature.name = prefix + function.signature.name
        for node in function.node_def:
            mend(node)
    for node in out.node:
        mend(node)
        node.name = prefix + node.name
        inputs = ["^" + prefix + i[1:] if i.startswith("^") else prefix + i for i in node.input]
        del node.input[:]
        node.input.extend(inputs)
    return out


def _features(width: int, rank: int = 2) -> Callable[[int, int], np.ndarray]:
    def make(batch: int, length: int) -> np.ndarray:
        shape = (batch, width) if rank == 2 else (batch, length, width)
        return np.random.default_rng(7).standard_normal(shape).astype(np.float32)

    return make


def _ids(rows: int) -> Callable[[int, int], np.ndarray]:
    return lambda batch, length: np.random.default_rng(8).integers(0, rows, (batch, length)).astype(np.int32)


def _image(batch: int, length: int) -> np.ndarray:
    return np.random.default_rng(9).standard_normal((batch, 2 * length + 4, 9, 3)).astype(np.float32)


class _Weights:
    """Random weights of a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, *shape: int) -> Any:
        scale = 1 / np.sqrt(max(1, shape[-2] if len(shape) > 1 else 8))
        return tensorflow().constant((scale * self._rng.standard_normal(shape)).astype(np.float32))


def _mlp(v: int, w: _Weights, x: Any) -> Any:
    tf, wide = tensorflow(), 24 + v
    hidden = tf.nn.relu(x @ w(12, wide) + w(wide))
    hidden = tf.nn.gelu(hidden @ w(wide, wide) + w(wide))
    return tf.nn.softmax(hidden @ w(wide, 10) + w(10))


def _attention(v: int, w: _Weights, x: Any) -> Any:
    tf, heads, size = tensorflow(), 2, 4 + v
    batch, length = tf.shape(x)[0], tf.shape(x)[1]

    def split() -> Any:
        flat = tf.reshape(x, [-1, 16]) @ w(16, heads * size) + w(heads * size)
        return tf.transpose(tf.reshape(flat, [batch, length, heads, size]), [0, 2, 1, 3])

    q, k, value = split(), split(), split()
    scores = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * float(size) ** -0.5)
    joined = tf.reshape(tf.transpose(tf.matmul(scores, value), [0, 2, 1, 3]), [-1, heads * size])
    return x + tf.reshape(joined @ w(heads * size, 16), [batch, length, 16])


def _norms(v: int, w: _Weights, x: Any) -> Any:
    tf = tensorflow()
    for _ in range(1 + v):
        mean = tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.math.squared_difference(x, mean), -1, keepdims=True)
        x = tf.tanh((x - mean) * tf.math.rsqrt(variance + 1e-5) * w(16) + w(16)) + x
    return x


def _convolutions(v: int, w: _Weights, x: Any) -> Any:
    tf, wide = tensorflow(), 4 + v
    y = tf.nn.relu(tf.nn.conv2d(x, w(3, 3, 3, wide), 1, "SAME") + w(wide))
    y = tf.nn.max_pool2d(y, 2, 2, "VALID")
    y = tf.nn.relu(tf.nn.conv2d(y, w(3, 3, wide, 8), 2, "SAME"))
    return tf.reduce_mean(y, [1, 2]) @ w(8, 5)


def _gru(v: int, w: _Weights, x: Any) -> Any:
    tf, units = tensorflow(), 6 + v
    gates, new, inner = w(16, 2 * units), w(16, units), (w(units, 2 * units), w(units, units))
    steps = tf.transpose(x, [1, 0, 2])
    state = tf.zeros([tf.shape(x)[0], units])

    def step(i: Any, h: Any) -> Any:
        now = tf.gather(steps, i)
        r, z = tf.split(tf.sigmoid(now @ gates + h @ inner[0]), 2, axis=1)
        return i + 1, z * h + (1 - z) * tf.tanh(now @ new + (r * h) @ inner[1])

    return tf.while_loop(lambda i, _h: i < tf.shape(steps)[0], step, [tf.constant(0), state])[1]


def _embedding(v: int, w: _Weights, ids: Any) -> Any:
    tf, size = tensorflow(), 8 + v
    rows = tf.gather(w(50, size), ids)
    weights = tf.nn.softmax(tf.squeeze(rows @ w(size, 1), -1))
    return tf.reduce_sum(rows * weights[..., None], 1) @ w(size, 4)


def _strings(v: int, w: _Weights, x: Any) -> Any:
    """Two parts that compile, and strings between them that do not."""
    tf, wide = tensorflow(), 7 + v
    y = tf.nn.relu(tf.round(x @ w(12, wide)) * 2.0 + 1.0)
    y = tf.strings.to_number(tf.strings.as_string(tf.cast(y, tf.int32)), tf.float32)
    return tf.nn.softmax(tf.reshape(y, [-1, wide]) @ w(wide, 3) + w(3))


#: kind -> (the model, what it is fed: (type, shape, arrays))
KINDS: dict[str, tuple[Callable[[int, _Weights, Any], Any], str, tuple[int | None, ...], Callable[[int, int], np.ndarray]]] = {
    "mlp": (_mlp, "float32", (None, 12), _features(12)),
    "attention": (_attention, "float32", (None, None, 16), _features(16, 3)),
    "norms": (_norms, "float32", (None, None, 16), _features(16, 3)),
    "convolutions": (_convolutions, "float32", (None, None, 9, 3), _image),
    "gru": (_gru, "float32", (None, None, 16), _features(16, 3)),
    "embedding": (_embedding, "int32", (None, None), _ids(50)),
    "strings": (_strings, "float32", (None, 12), _features(12)),
}


@functools.cache
def model(kind: str, variant: int, seed: int = 0) -> Model:
    """Structure ``variant`` of a kind, with the weights of a seed."""
    tf = tensorflow()
    body, dtype, shape, make = KINDS[kind]

    def whole(x: Any) -> Any:
        return tf.identity(body(variant, _Weights(seed * 1000 + variant), x), name="y")

    function = tf.function(whole, autograph=False).get_concrete_function(tf.TensorSpec(shape, dtype, name="x"))
    (fed,), (output,) = [t.name.partition(":")[0] for t in function.inputs], [t.name for t in function.outputs]
    return Model(function.graph.as_graph_def(), {fed: make}, (output,))


def answers(m: Model, graph: Any, sizes: Sequence[tuple[int, int]] = SIZES) -> list[np.ndarray]:
    """What TensorFlow gives for a graph with the model's names, at each size."""
    tf = tensorflow()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        proto = tf.compat.v1.GraphDef.FromString(graph.SerializeToString())
        fetched = tf.import_graph_def(proto, return_elements=list(m.outputs), name="")
        given = [{f"{name}:0": make(*size) for name, make in m.feeds.items()} for size in sizes]
        return [value for feed in given for value in session.run(fetched, feed)]


def differences(m: Model, graph: Any) -> list[str]:
    """In what an optimised graph differs from the model, in words; empty if in nothing."""
    pairs = zip(answers(m, m.graph), answers(m, graph), strict=True)
    return [c.message for reference, actual in pairs if not (c := compare(reference, actual)).ok]
