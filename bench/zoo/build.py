"""`python -m bench.zoo.build NAME DIRECTORY`: the model as ``graph.pb`` (frozen, dynamic shapes) and ``graph.json``.

A process of its own, and maybe an interpreter of its own: it needs TensorFlow, and KerasHub for some models, but nothing of disc_tf.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.zoo.files import DIRECTORY
from bench.zoo.model import Model, catalogue


def randomise(model: Any, seed: int = 1) -> None:
    """Weights of a trained model's kind: nothing is exactly one or zero, and deep stacks are not chaotic (twice the variance is)."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        value = np.asarray(variable)
        if value.dtype.kind != "f":
            continue
        noise = rng.standard_normal(value.shape).astype(np.float32)
        if "moving_variance" in variable.path:
            new = 1 + 0.25 * np.tanh(noise)
        elif value.ndim <= 1 or not np.ptp(value):
            new = value + 0.1 * noise
        elif value.ndim >= 4:
            depthwise = "depthwise" in variable.path
            fan_in = np.prod(value.shape[:2]) if depthwise else np.prod(value.shape[:-1])
            new = noise / np.sqrt(fan_in)
        else:
            continue  # dense kernels and tables: Keras's initial values
        variable.assign(new.astype(np.float32))


def freeze(model: Any, spec: Model) -> tuple[Any, list[str], list[str]]:
    """(GraphDef, names of the inputs in the order of ``spec.inputs``, output tensors)."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    many = len(spec.inputs) > 1

    def call(*args: Any) -> Any:
        fed = {i.name: a for i, a in zip(spec.inputs, args, strict=True)}
        return model(fed if many or isinstance(model.input, dict) else args[0], training=False)

    signature = [
        tf.TensorSpec([None if isinstance(d, str) else d for d in i.dims], i.dtype, name=i.name) for i in spec.inputs
    ]
    concrete = tf.function(call, input_signature=signature).get_concrete_function()
    frozen = convert_variables_to_constants_v2(concrete, lower_control_flow=False)
    return frozen.graph.as_graph_def(), [t.op.name for t in frozen.inputs], [t.name for t in frozen.outputs]


def build(spec: Model, directory: Path) -> None:
    """Write graph.pb and graph.json."""
    directory.mkdir(parents=True, exist_ok=True)
    if spec.build is None:
        subprocess.run([sys.executable, DIRECTORY / "materialize.py", directory, spec.name], check=True)
        for suffix in (".json", ".pb"):
            (directory / (spec.name + suffix)).rename(directory / f"graph{suffix}")
        return
    import keras

    keras.utils.set_random_seed(7)
    model = spec.build()
    randomise(model)
    graph, names, outputs = freeze(model, spec)
    meta = {
        "inputs": [
            {"name": n, "dtype": i.dtype, "shape": list(i.dims), "gen": dict(i.gen)}
            for n, i in zip(names, spec.inputs, strict=True)
        ],
        "outputs": outputs,
        "points": [{"dims": dict(p)} for p in spec.points],
        "nodes": len(graph.node),
        "parameters": int(sum(np.prod(v.shape) for v in model.weights)),
    }
    temporary = directory / "graph.pb.new"
    temporary.write_bytes(graph.SerializeToString(deterministic=True))
    (directory / "graph.json").write_text(json.dumps(meta, indent=1))
    temporary.rename(directory / "graph.pb")


def main(name: str, directory: str) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    build(catalogue()[name], Path(directory))


if __name__ == "__main__":
    main(*sys.argv[1:])
