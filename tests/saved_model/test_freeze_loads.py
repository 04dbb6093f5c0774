"""What `freeze` writes is loaded by TensorFlow's two loaders: recurrent layers, Keras models in modules, gradients of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import disc_tf.ops  # noqa: F401  registers the op
from disc_tf.saved_model import optimize_saved_model

v1 = tf.compat.v1


def _keras(layer: Callable[[Any], Any]) -> Any:
    import keras

    keras.utils.set_random_seed(3)
    x = keras.Input((None, 4), name="x")
    return keras.Model(x, keras.layers.Dense(3)(layer(keras.layers)(x)))


def _exported(layer: Callable[[Any], Any]) -> Callable[[Path], None]:
    return lambda path: _keras(layer).export(str(path), verbose=False)


def _in_a_module(path: Path) -> None:
    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = _keras(lambda layers: layers.GRU(5))

        @tf.function(input_signature=[tf.TensorSpec((None, None, 4), tf.float32, name="x")])
        def serve(self, x):
            return {"y": tf.nn.silu(self.model(x))}

    module = Module()
    tf.saved_model.save(module, str(path), signatures=module.serve)


MODELS: dict[str, Any] = {
    "LSTM": _exported(lambda layers: layers.LSTM(5, return_sequences=True)),
    "GRU": _exported(lambda layers: layers.GRU(5)),
    "Bidirectional": _exported(lambda layers: layers.Bidirectional(layers.LSTM(5, return_sequences=True))),
    "in a module": _in_a_module,
}
FAST = ("Bidirectional", "in a module")


def in_a_session(path: Path, x: np.ndarray) -> dict[str, np.ndarray]:
    with tf.Graph().as_default(), v1.Session() as session:
        signature = v1.saved_model.load(session, ["serve"], str(path)).signature_def["serving_default"]
        (given,) = signature.inputs.values()
        return session.run({key: info.name for key, info in signature.outputs.items()}, {given.name: x})


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in MODELS])
def test_both_loaders_take_it(name, tmp_path):
    MODELS[name](tmp_path / "in")
    result = optimize_saved_model(tmp_path / "in", tmp_path / "out", freeze=True, targets=("native",), verify=False)
    assert result.report.coverage > 0.99, result.report.to_text()
    assert not (tmp_path / "out" / "variables").exists()
    a, b = (tf.saved_model.load(str(tmp_path / which)) for which in ("in", "out"))
    (argument,) = a.signatures["serving_default"].structured_input_signature[1]
    for shape in ((1, 1, 4), (3, 7, 4), (0, 2, 4)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        expected = a.signatures["serving_default"](**{argument: tf.constant(x)})
        found = b.signatures["serving_default"](**{argument: tf.constant(x)})
        again = in_a_session(tmp_path / "out", x)
        assert expected.keys() == found.keys() == again.keys()
        for key, value in expected.items():
            for other in (found[key], again[key]):
                np.testing.assert_allclose(np.asarray(other), np.asarray(value), rtol=1e-5, atol=1e-6)
