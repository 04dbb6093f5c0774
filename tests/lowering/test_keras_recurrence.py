"""Recurrent layers as Keras exports them: one cluster each, TensorFlow's answers and errors at several batches and lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from disc_tf.testing.graph_case import case_of, check_graph, spec
from disc_tf.testing.tf_case import Tolerance, tensorflow

keras = pytest.importorskip("keras")
layers = keras.layers

TARGET = ["x86-64-v4"]
TOL = Tolerance(ulps=128, relative_floor=1)
SIZES = ((1, 1), (3, 5), (0, 3), (2, 0), (5, 31))
UNITS = 6

Layer = Callable[[Any], Any]


def states(h: Any) -> Any:
    """An encoder whose state starts a decoder."""
    encoded = layers.LSTM(UNITS, return_state=True)(h)
    return layers.LSTM(UNITS, return_sequences=True)(h, initial_state=encoded[1:])


#: of a float sequence with 5 features
LAYERS: dict[str, Layer] = {
    "lstm": lambda h: layers.LSTM(UNITS)(h),
    "lstm_sequences_and_state": lambda h: layers.LSTM(UNITS, return_sequences=True, return_state=True)(h),
    "lstm_backwards": lambda h: layers.LSTM(UNITS, go_backwards=True, return_sequences=True)(h),
    "lstm_without_cudnn_form": lambda h: layers.LSTM(UNITS, use_cudnn=False)(h),
    "lstm_other_activation": lambda h: layers.LSTM(UNITS, recurrent_activation="hard_sigmoid")(h),
    "gru": lambda h: layers.GRU(UNITS, return_state=True)(h),
    "gru_reset_before": lambda h: layers.GRU(UNITS, reset_after=False, return_sequences=True)(h),
    "simple": lambda h: layers.SimpleRNN(UNITS, return_sequences=True)(h),
    "bidirectional": lambda h: layers.Bidirectional(layers.LSTM(UNITS, return_sequences=True))(h),
    "bidirectional_sum": lambda h: layers.Bidirectional(layers.GRU(UNITS), merge_mode="sum")(h),
    "bidirectional_state": lambda h: layers.Bidirectional(layers.SimpleRNN(UNITS, return_state=True))(h),
    "stacked_cells": lambda h: layers.RNN([layers.LSTMCell(UNITS), layers.GRUCell(4)], return_sequences=True)(h),
    "time_distributed": lambda h: layers.TimeDistributed(layers.Dense(3))(layers.LSTM(UNITS, return_sequences=True)(h)),
    "encoder_and_decoder": states,
}
#: of a masked sequence
MASKED: dict[str, Layer] = {
    "lstm": lambda h: layers.LSTM(UNITS)(h),
    "gru_sequences": lambda h: layers.GRU(UNITS, return_sequences=True)(h),
    "simple": lambda h: layers.SimpleRNN(UNITS)(h),
    "bidirectional": lambda h: layers.Bidirectional(layers.LSTM(UNITS, return_sequences=True))(h),
    "gru_backwards": lambda h: layers.GRU(UNITS, go_backwards=True)(h),
}
FAST = ("lstm", "gru", "gru_sequences")


def table(entries: dict[str, Layer]) -> list[Any]:
    return [pytest.param(build, id=name, marks=() if name in FAST else pytest.mark.slow) for name, build in entries.items()]


def frozen(model: Any, signature: Any) -> Any:
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    concrete = tensorflow().function(lambda v: model(v)).get_concrete_function(signature)
    return convert_variables_to_constants_v2(concrete, lower_control_flow=False)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("build", table(LAYERS))
def test_layer(build):
    keras.utils.set_random_seed(1)
    given = keras.Input((None, 5))
    model = keras.Model(given, build(given))
    check_graph(case_of(frozen(model, spec("float32", None, None, 5))), [[floats(b, t, 5)] for b, t in SIZES], TARGET, TOL)


@pytest.mark.parametrize("build", table(MASKED))
def test_masked_layer(build):
    keras.utils.set_random_seed(1)
    tokens = keras.Input((None,), dtype="int32")
    model = keras.Model(tokens, build(layers.Embedding(20, 5, mask_zero=True)(tokens)))
    rng = np.random.default_rng(0)
    inputs = [[rng.integers(0, 4, size).astype(np.int32)] for size in SIZES]
    check_graph(case_of(frozen(model, spec("int32", None, None))), inputs, TARGET, TOL)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
def test_unrolled_layer(kind):
    keras.utils.set_random_seed(1)
    given = keras.Input((4, 5))
    model = keras.Model(given, getattr(layers, kind)(UNITS, unroll=True, return_sequences=kind == "LSTM")(given))
    check_graph(case_of(frozen(model, spec("float32", None, 4, 5))), [[floats(b, 4, 5)] for b in (1, 3, 0)], TARGET, TOL)


@pytest.mark.slow
def test_time_major():
    """The backend's loop itself, over time-major sequences."""
    from keras.src import backend

    w, u = floats(5, UNITS), floats(UNITS, UNITS)

    def run(v):
        tf = tensorflow()
        step = lambda x, s: ((h := tf.tanh(x @ w + s[0] @ u)), [h])  # noqa: E731
        last, outputs, _ = backend.rnn(step, v, [tf.zeros([tf.shape(v)[1], UNITS])], time_major=True, return_all_outputs=True)
        return last, outputs

    concrete = tensorflow().function(run).get_concrete_function(spec("float32", None, None, 5))
    check_graph(case_of(concrete), [[floats(t, b, 5)] for b, t in ((1, 1), (3, 5), (0, 3), (5, 31))], TARGET, TOL)
