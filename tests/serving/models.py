"""SavedModels for the tests, made on the spot (a TF1 one with all kinds of signatures, and a TF2 one), and configurations of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.serving.config import ModelSettings
from disc_tf.serving.protos import message_class, pool


def save_tf1(path: Path, factor: float = 2.0) -> None:
    """`serving_default` (y = factor * x, rows = sums), `classify`, `regress`, `strings`, `counts` (two inputs)."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, None], name="x")
        weight = v1.get_variable("factor", initializer=tf.constant(factor), use_resource=True)
        y = tf.multiply(x, weight, name="y")
        total = tf.reduce_sum(y, 1, name="total")

        text = v1.placeholder(tf.string, [None], name="text")
        upper = tf.strings.upper(text, name="upper")
        a = v1.placeholder(tf.int32, [None], name="a")
        b = v1.placeholder(tf.int64, [None], name="b")
        both = tf.add(tf.cast(a, tf.int64), b, name="both")

        examples = v1.placeholder(tf.string, [None], name="examples")
        features = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([2], tf.float32)})
        scores = tf.multiply(features["x"], weight, name="scores")
        classes = tf.tile(tf.constant([["left", "right"]]), [tf.shape(scores)[0], 1], name="classes")
        value = tf.reduce_sum(scores, 1, name="value")

        def info(**tensors: Any) -> dict[str, Any]:
            return {k: v1.saved_model.utils.build_tensor_info(t) for k, t in tensors.items()}

        def signature(inputs: dict[str, Any], outputs: dict[str, Any], method: str = "predict") -> Any:
            return v1.saved_model.build_signature_def(info(**inputs), info(**outputs), f"tensorflow/serving/{method}")

        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            {
                "serving_default": signature({"x": x}, {"y": y, "total": total}),
                "strings": signature({"text": text}, {"upper": upper, "upper_bytes": upper}),
                "counts": signature({"a": a, "b": b}, {"sum": both}),
                "classify": signature({"inputs": examples}, {"classes": classes, "scores": scores}, "classify"),
                "regress": signature({"inputs": examples}, {"outputs": value}, "regress"),
            },
        )
        builder.save()


def save_tf2(path: Path, factor: float = 3.0) -> None:
    """`serving_default`: y = factor * x, total = sums of rows; from a variable."""
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = tf.Variable(factor)

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float32, name="x")])
        def __call__(self, x: Any) -> dict[str, Any]:
            y = x * self.factor
            return {"y": y, "total": tf.reduce_sum(y, 1)}

    model = Model()
    tf.saved_model.save(model, str(path), signatures={"serving_default": model.__call__})


def example_bytes(*values: float) -> bytes:
    """A serialized tf.Example with the feature `x`."""
    import tensorflow as tf

    feature = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString()


def rows(*values: tuple[float, ...]) -> np.ndarray:
    return np.array(values, np.float32)


def models_config_text(models: Sequence[ModelSettings]) -> str:
    """A `models.config` for ``models``."""
    from google.protobuf import text_format

    message = message_class("serving.ModelServerConfig")()
    for model in models:
        entry = message.model_config_list.config.add(name=model.name, base_path=model.base_path, model_platform="tensorflow")
        policy = entry.model_version_policy
        if model.policy.kind == "all":
            policy.all.SetInParent()
        elif model.policy.kind == "specific":
            policy.specific.versions.extend(model.policy.versions)
        elif model.policy.count != 1:
            policy.latest.num_versions = model.policy.count
        entry.version_labels.update(model.labels)
    return text_format.MessageToString(message, descriptor_pool=pool())
