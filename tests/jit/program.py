"""A program of its own for the tests of the cache: ``python program.py CACHE_DIR`` prints what its jitted functions report."""

from __future__ import annotations

import json
import sys
from typing import Any

import tensorflow as tf

import disc_tf


def functions(cache_dir: str) -> tuple[list[Any], list[Any]]:
    """Jitted functions with variables, a loop, a gradient of their own and a large constant; arguments of each."""
    weights = tf.Variable(tf.reshape(tf.range(12.0), [3, 4]) / 10.0)
    table = tf.reshape(tf.range(4000.0), [1000, 4]).numpy()

    @tf.custom_gradient
    def twice(x):
        y = tf.exp(x)
        return y * 2.0, lambda dy: dy * y * 3.0

    @tf.function
    def inner(x):
        return tf.nn.relu(x @ weights) + 1.0

    def network(x, ids):
        y = inner(x) + tf.gather(table, ids)
        for _ in tf.range(3):
            y = tf.tanh(y) * 2.0
        return inner(y[:, :3]) * 0.5

    def steep(x):
        return twice(x) + 1.0

    made = [disc_tf.jit(f, cache_dir=cache_dir, background=False) for f in (network, steep)]
    return made, [(tf.ones([2, 3]), tf.constant([1, 999])), (tf.constant([0.0, 1.0]),)]


def run(cache_dir: str) -> list[dict[str, Any]]:
    out = []
    for f, args in zip(*functions(cache_dir), strict=True):
        y = f(*args)
        with tf.GradientTape() as tape:
            tape.watch(args[0])
            z = f(*args)
        gradient = tape.gradient(z, args[0])
        report = f.report()
        out.append({"y": y.numpy().tolist(), "gradient": gradient.numpy().tolist(), "cached": report.from_cache, "state": report[0].state})
    return out


if __name__ == "__main__":
    tf.function(lambda x: tf.nn.relu(x) + 1.0)(tf.ones([3]))  # names in this process are not those of another
    print(json.dumps(run(sys.argv[1])))
