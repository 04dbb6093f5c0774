"""`disc_tf.jit` against `tf.function` and `tf.function(jit_compile=True)` on Keras models: ``python -m bench.jit [MODEL ...]``.

For each shape the first call (which traces or compiles, where the function does that) and the best of 30 calls after it, in ms, results
fetched. Prints a Markdown table.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

SHAPES = ((1, 7), (4, 16), (8, 33), (2, 64))
CALLS = 30


def mlp(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [layers.Input((64,)), layers.Dense(256, activation="gelu"), layers.LayerNormalization(), layers.Dense(256, activation="silu"),
         layers.Dense(10, activation="softmax")]
    )  # fmt: skip


def lstm(keras: Any) -> Any:
    layers = keras.layers
    x = layers.Input((None, 32))
    y = layers.Bidirectional(layers.LSTM(48, return_sequences=True))(x)
    return keras.Model(x, layers.Dense(5)(layers.GRU(32)(y)))


def transformer(keras: Any) -> Any:
    layers = keras.layers
    ids = layers.Input((None,), dtype="int32")
    x = layers.Embedding(500, 128)(ids)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 32)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(128)(layers.Dense(512, activation="gelu")(x)))
    return keras.Model(ids, layers.Dense(500)(x))


MODELS: dict[str, Callable[[Any], Any]] = {"mlp": mlp, "lstm": lstm, "transformer": transformer}


def inputs(tf: Any, name: str, rows: int, length: int) -> Any:
    if name == "transformer":
        return tf.random.uniform([rows, length], 0, 500, tf.int32)
    return tf.random.normal([rows * length, 64] if name == "mlp" else [rows, length, 32])


def measure(fn: Callable[[Any], Any], x: Any) -> tuple[float, float]:
    """First call and best of the calls after it, ms."""
    times = []
    for _ in range(CALLS + 1):
        start = time.perf_counter()
        fn(x).numpy()
        times.append((time.perf_counter() - start) * 1e3)
    return times[0], min(times[1:])


def main() -> int:
    import keras
    import numpy as np
    import tensorflow as tf

    import disc_tf

    print("| model | batch, length | tf.function | XLA | disc_tf.jit | max error |\n| --- | --- | --- | --- | --- | --- |")
    for name in sys.argv[1:] or MODELS:
        keras.utils.set_random_seed(1)
        model = MODELS[name](keras)
        ours = disc_tf.jit(model, cache_dir=None, background=False)
        start = time.perf_counter()
        ours.compile(inputs(tf, name, 2, 5))
        compiled = time.perf_counter() - start
        peers = [tf.function(model, reduce_retracing=True), tf.function(model, jit_compile=True), ours]
        for rows, length in SHAPES:
            x = inputs(tf, name, rows, length)
            cells = ["{:.0f}, {:.2f}".format(*measure(fn, x)) for fn in peers]
            error = float(np.abs(np.asarray(ours(x)) - np.asarray(model(x))).max())
            print(f"| {name} | {rows}, {length} | {' | '.join(cells)} | {error:.0e} |", flush=True)
        print(f"| {name} | compilation | | | {compiled:.1f} s | |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
