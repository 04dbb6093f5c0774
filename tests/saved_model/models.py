"""Small SavedModels of every kind, made on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


class Scorer(tf.Module):
    """Two layers; a method with a branch, a call with and without dropout, one for training."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(3)
        self.w = tf.Variable(rng.normal(size=(16, 32)).astype("f"), name="w")
        self.b = tf.Variable(np.zeros(32, "f"), name="b")
        self.w2 = tf.Variable(rng.normal(size=(32, 4)).astype("f"), name="w2")

    @tf.function(input_signature=[tf.TensorSpec((None, 16), tf.float32, name="x"), tf.TensorSpec((), tf.bool, name="flag")])
    def serve(self, x, flag):
        h = tf.nn.relu(x @ self.w + self.b)
        h = tf.cond(flag, lambda: tf.tanh(h) * 2.0, lambda: h)
        return {"y": h @ self.w2, "h": h}

    @tf.function
    def __call__(self, x, training=False):
        h = tf.nn.relu(x @ self.w + self.b)
        if training:
            h = tf.nn.dropout(h, 0.5)
        return tf.nn.softmax(h @ self.w2)

    @tf.function(input_signature=[tf.TensorSpec((None, 16), tf.float32)])
    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.relu(x @ self.w + self.b) @ self.w2)
        self.w.assign_sub(0.1 * tape.gradient(loss, self.w))
        return loss


def module(path: Path) -> None:
    """tf.saved_model.save of a tf.Module."""
    m = Scorer()
    m.__call__.get_concrete_function(tf.TensorSpec((None, 16), tf.float32))
    m.__call__.get_concrete_function(tf.TensorSpec((None, 16), tf.float32), training=True)
    tf.saved_model.save(m, str(path), signatures={"serving_default": m.serve})


def keras3(path: Path) -> None:
    """`export` of a Keras 3 model: embedding, attention, dense."""
    import keras

    keras.utils.set_random_seed(5)
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = keras.layers.Embedding(50, 16)(ids)
    x = keras.layers.MultiHeadAttention(2, 8)(x, x)
    x = keras.layers.LayerNormalization()(x)
    x = keras.layers.Dense(24, activation="gelu")(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    keras.Model(ids, keras.layers.Dense(5, activation="softmax")(x)).export(str(path), verbose=False)


def keras2(path: Path) -> None:
    """`save` of a Keras 2 model, trained for a step."""
    import tf_keras

    layers = tf_keras.layers
    m = tf_keras.Sequential([layers.Input((8,)), layers.Dense(16, "relu"), layers.BatchNormalization(), layers.Dense(3)])
    m.compile("adam", "mse")
    m.fit(np.ones((4, 8), "f"), np.ones((4, 3), "f"), verbose=0)
    m.save(str(path))


class Words(tf.Module):
    """A vocabulary file, a table, an embedding."""

    def __init__(self, vocabulary: str) -> None:
        super().__init__()
        self.file = tf.saved_model.Asset(vocabulary)
        line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        self.table = tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer(self.file, tf.string, line, tf.int64, number), 3)
        self.embedding = tf.Variable(np.random.default_rng(0).normal(size=(4, 8)).astype("f"))
        self.w = tf.Variable(np.random.default_rng(1).normal(size=(8, 2)).astype("f"))

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.string, name="words")])
    def serve(self, words):
        e = tf.gather(self.embedding, self.table.lookup(words))
        return {"scores": tf.nn.softmax(tf.tanh(tf.reduce_mean(e, 1)) @ self.w), "upper": tf.strings.upper(words)}


def words(path: Path) -> None:
    """A model with an asset, a table and strings beside what is compiled."""
    vocabulary = path.parent / "vocabulary.txt"
    vocabulary.write_text("red\ngreen\nblue\n")
    m = Words(str(vocabulary))
    tf.saved_model.save(m, str(path), signatures={"serving_default": m.serve})


def tf1(path: Path) -> None:
    """`simple_save` with a resource variable and a reference variable."""
    with v1.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(7)
        x = v1.placeholder(tf.float32, (None, 8), name="x")
        w = v1.get_variable("w", (8, 16), use_resource=True)
        w2 = v1.get_variable("w2", (16, 4), use_resource=False)
        y = tf.nn.softmax(tf.matmul(tf.nn.relu(tf.matmul(x, w)), w2), name="y")
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(path), {"x": x}, {"y": y, "best": tf.argmax(y, -1)})


def tf1_two(path: Path) -> None:
    """A TensorFlow 1 builder with two signatures of two inputs, a shared variable, a fed tensor that is no placeholder, a table."""
    with v1.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(7)
        a = v1.placeholder(tf.float32, (None, 8), name="a")
        b = v1.placeholder(tf.float32, (None, 8), name="b")
        scaled = tf.multiply(a, 2.0, name="scaled")
        w = v1.get_variable("w", (8, 8), use_resource=True)
        first = tf.nn.softmax(tf.nn.relu(tf.matmul(scaled, w)) + 1.0, name="first")
        second = tf.tanh(tf.nn.relu(tf.matmul(b, w)) - 1.0, name="second")
        bump = w.assign_add(tf.ones_like(w), name="bump")
        session.run(v1.global_variables_initializer())
        build = v1.saved_model.builder.SavedModelBuilder(str(path))
        info, define = v1.saved_model.build_tensor_info, v1.saved_model.build_signature_def
        signatures = {
            "serving_default": define({"a": info(a)}, {"first": info(first)}, "tensorflow/serving/predict"),
            "scaled": define({"s": info(scaled)}, {"first": info(first)}, "tensorflow/serving/predict"),
            "other": define({"b": info(b)}, {"second": info(second)}, "tensorflow/serving/predict"),
            "bump": define({"b": info(b)}, {"w": info(bump)}, "tensorflow/serving/predict"),
        }
        build.add_meta_graph_and_variables(session, ["serve"], signatures, strip_default_attrs=True)
        build.save()


def tf1_graphs(path: Path) -> None:
    """A TensorFlow 1 builder with MetaGraphs that share variables: for training first, to be served, to be served with one more output,
    and for evaluation."""
    define = v1.saved_model.build_signature_def

    def build(session: v1.Session, builder: v1.saved_model.Builder, first: bool, tags: list[str]) -> None:
        x = v1.placeholder(tf.float32, (None, 8), name="x")
        w, b = v1.get_variable("w", (8, 16), use_resource=True), v1.get_variable("b", (16,), use_resource=True)
        y = tf.nn.softmax(tf.nn.relu(tf.matmul(x, w) + b) * 2.0, name="y")
        info = v1.saved_model.build_tensor_info
        signatures = {"serving_default": define({"x": info(x)}, {"y": info(y)}, "tensorflow/serving/predict")}
        if tags == ["serve", "gpu"]:
            best = tf.reduce_max(tf.exp(tf.tanh(y) * 2.0) - 1.0, -1, name="best")
            signatures["best"] = define({"x": info(x)}, {"best": info(best)}, "tensorflow/serving/predict")
        if tags in (["train"], ["eval"]):
            loss = tf.reduce_mean(tf.square(tf.tanh(y) - 0.5), name="loss")
            signatures = {tags[0]: define({"x": info(x)}, {"loss": info(loss)}, f"tensorflow/supervised/{tags[0]}ing")}
        if tags == ["train"]:
            v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="step")
        session.run(v1.global_variables_initializer())
        if first:
            builder.add_meta_graph_and_variables(session, tags, signatures, strip_default_attrs=True)
        else:
            builder.add_meta_graph(tags, signatures, strip_default_attrs=True)

    builder = v1.saved_model.builder.SavedModelBuilder(str(path))
    for i, tags in enumerate((["train"], ["serve"], ["serve", "gpu"], ["eval"])):
        with v1.Graph().as_default(), v1.Session() as session:
            v1.set_random_seed(7)
            build(session, builder, i == 0, tags)
    builder.save()


def estimator(path: Path) -> None:
    """As tf.estimator exports a classifier: serialized Examples in, scores and class names out, `main_op` with tables."""
    with v1.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(7)
        examples = v1.placeholder(tf.string, (None,), name="input_example_tensor")
        spec = {"age": tf.io.FixedLenFeature((3,), tf.float32), "colour": tf.io.FixedLenFeature((), tf.string, "red")}
        features = tf.io.parse_example(examples, spec)
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["red", "green"], tf.constant([0, 1], tf.int64)), 2)
        embedding = v1.get_variable("embedding", (3, 5), use_resource=True)
        x = tf.concat([features["age"], tf.gather(embedding, table.lookup(features["colour"]))], 1)
        w = v1.get_variable("w", (8, 4), use_resource=True)
        scores = tf.nn.softmax(tf.nn.relu(tf.matmul(x, w)) * 2.0, name="scores")
        classes = tf.tile(tf.expand_dims(tf.constant(["a", "b", "c", "d"]), 0), [tf.shape(scores)[0], 1])
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        build = v1.saved_model.builder.SavedModelBuilder(str(path))
        signatures = {
            "serving_default": v1.saved_model.classification_signature_def(examples, classes, scores),
            "predict": v1.saved_model.predict_signature_def({"examples": examples}, {"scores": scores}),
        }
        build.add_meta_graph_and_variables(session, ["serve"], signatures, main_op=v1.tables_initializer())
        build.save()


def example(rng: np.random.Generator) -> bytes:
    """A serialized Example for `estimator`."""
    age = tf.train.Feature(float_list=tf.train.FloatList(value=rng.normal(size=3)))
    colour = tf.train.Feature(bytes_list=tf.train.BytesList(value=[rng.choice([b"red", b"green", b"unknown"])]))
    return tf.train.Example(features=tf.train.Features(feature={"age": age, "colour": colour})).SerializeToString()


class Reusable(tf.Module):
    """As models of TensorFlow Hub are published: called with and without training, its variables and losses in lists, no signature."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(9)
        self.table = tf.Variable(rng.normal(size=(30, 8)).astype("f"), name="table")
        self.kernel = tf.Variable(rng.normal(size=(8, 4)).astype("f"), name="kernel")
        self.seen = tf.Variable(0.0, trainable=False, name="seen")
        # plain attributes: the interface asks for lists, a module's own are tuples
        self.variables_list = [self.table, self.kernel, self.seen]
        self.regularization_losses = [self.penalty]

    @tf.function(input_signature=[])
    def penalty(self):
        return 0.01 * tf.reduce_sum(tf.square(self.kernel))

    @tf.function
    def __call__(self, ids, training=False):
        x = tf.nn.relu(tf.reduce_mean(tf.gather(self.table, ids), 1) + 0.5)
        if training:
            self.seen.assign_add(1.0)
            x = tf.nn.dropout(x, 0.25)
        return {"default": tf.nn.softmax(x @ self.kernel), "encoded": x}


def hub(path: Path) -> None:
    """A reusable SavedModel in the form of TensorFlow Hub (TF2)."""
    m = Reusable()
    for training in (False, True):
        m.__call__.get_concrete_function(tf.TensorSpec((None, None), tf.int32, name="ids"), training=training)
    tf.saved_model.save(m, str(path))


def hub1(path: Path) -> None:
    """A module in the form of TensorFlow Hub (TF1): one MetaGraph without tags, one for training, each with its signatures."""
    builder = v1.saved_model.builder.SavedModelBuilder(str(path))
    for first, tags in ((True, []), (False, ["train"])):
        with v1.Graph().as_default(), v1.Session() as session:
            v1.set_random_seed(7)
            x = v1.placeholder(tf.float32, (None, 8), name="x")
            w = v1.get_variable("w", (8, 16), use_resource=True)
            y = tf.nn.softmax(tf.nn.relu(tf.matmul(x, w)) * 2.0, name="y")
            if tags:
                y = tf.nn.dropout(y, 0.5, name="dropped")
            info = v1.saved_model.build_tensor_info
            signature = v1.saved_model.build_signature_def({"default": info(x)}, {"default": info(y)}, "")
            session.run(v1.global_variables_initializer())
            if first:
                builder.add_meta_graph_and_variables(session, tags, {"default": signature})
            else:
                builder.add_meta_graph(tags, {"default": signature})
    builder.save()


MODELS: dict[str, Callable[[Path], None]] = {
    "module": module, "keras3": keras3, "keras2": keras2, "words": words, "tf1": tf1, "tf1_two": tf1_two, "estimator": estimator,
    "hub": hub, "hub1": hub1,
}  # fmt: skip


def feeds(function, size: int) -> dict[str, tf.Tensor]:
    """Inputs of a loaded signature: its unknown dims are ``size``, then 3."""
    rng = np.random.default_rng(size)
    out = {}
    for name, spec in function.structured_input_signature[1].items():
        unknown = iter([size, *[3] * 8])
        dims = [next(unknown) if d is None else d for d in spec.shape]
        if name in ("examples", "inputs"):
            value = np.array([example(rng) for _ in range(size)], object)
        elif spec.dtype == tf.string:
            value = rng.choice(["red", "blue", "unknown"], dims)
        elif spec.dtype.is_integer:
            value = rng.integers(0, 9, dims)
        else:
            value = rng.normal(size=dims)
        out[name] = tf.constant(value > 0 if spec.dtype.is_bool else value, spec.dtype)
    return out
