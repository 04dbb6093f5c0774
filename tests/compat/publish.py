"""Write what `test_published.py` loads for ever: small artefacts of the compiler as it is now, with their inputs and answers.

    python tests/compat/publish.py NAME

makes ``tests/compat/published/NAME`` (run it from a checkout, once for each format that was released; what exists is never written again):
a GraphDef, a SavedModel and a stand-alone file, the originals, inputs and the answers of each instruction set.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

PUBLISHED = Path(__file__).parent / "published"
TARGETS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
ROWS = (0, 1, 3, 7)
OUTPUTS = ("scores:0", "best:0", "top:0", "steps:0", "hashed:0")
#: what a stand-alone file can hold: no strings
NUMERIC = OUTPUTS[:-1]


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(20261201)
    return {
        "table": rng.standard_normal((11, 16)).astype(np.float32),
        "hidden": rng.standard_normal((16, 24)).astype(np.float32) / 4,
        "out": rng.standard_normal((24, 5)).astype(np.float32) / 5,
    }


def model(ids, values, table, hidden, out):
    """i32[b, s], f32[b, s, 16] -> results: a gather with a check, products, a row reduction, sorting, a loop and an op of TensorFlow's."""
    import tensorflow as tf

    x = tf.gather(table, ids) + values
    mean = tf.reduce_mean(x, -1, keepdims=True)
    x = (x - mean) * tf.math.rsqrt(tf.reduce_mean(tf.square(x - mean), -1, keepdims=True) + 1e-6)
    x = tf.nn.relu(tf.einsum("bsh,hk->bsk", x, hidden))
    logits = tf.einsum("bsk,kn->bsn", x, out)
    scores = tf.nn.softmax(logits, name="scores")
    best = tf.argmax(scores, -1, output_type=tf.int32, name="best")
    top = tf.identity(tf.math.top_k(logits, 2).values, name="top")
    _, total = tf.while_loop(
        lambda i, _a: i < 4, lambda i, a: (i + 1, a * 0.5 + scores[:, :, 0]), [0, tf.zeros_like(scores[:, :, 0])]
    )
    steps = tf.identity(total, name="steps")
    hashed = tf.strings.to_hash_bucket_fast(tf.strings.as_string(best), 1000, name="hashed")
    return {"scores": scores, "best": best, "top": top, "steps": steps, "hashed": hashed}


def feeds(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows)
    return {
        "ids": rng.integers(0, 11, (rows, rows + 2)).astype(np.int32),
        "values": rng.standard_normal((rows, rows + 2, 16)).astype(np.float32),
    }


def make(where: Path) -> None:
    import tensorflow as tf

    import disc_tf
    from disc_tf.frontend.tfproto import graph_from_bytes, serialized

    where.mkdir(parents=True)
    with tf.Graph().as_default() as graph:
        ids = tf.compat.v1.placeholder(tf.int32, [None, None], name="ids")
        values = tf.compat.v1.placeholder(tf.float32, [None, None, 16], name="values")
        constants = {name: tf.constant(value, name=name) for name, value in weights().items()}
        model(ids, values, **constants)
    (where / "graph.original.pb").write_bytes(graph.as_graph_def().SerializeToString(deterministic=True))
    original = graph_from_bytes((where / "graph.original.pb").read_bytes())
    result = disc_tf.optimize_graph_def(original, outputs=list(OUTPUTS), targets=TARGETS)
    (where / "graph.pb").write_bytes(serialized(result.graph_def))
    disc_tf.compile_graph_def(original, list(NUMERIC), where / "program.disc", targets=TARGETS)

    class Module(tf.Module):
        def __init__(self) -> None:
            self.parameters = {name: tf.Variable(value, name=name) for name, value in weights().items()}

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None, 16], tf.float32)])
        def serve(self, ids, values):
            return model(ids, values, **self.parameters)

    module = Module()
    tf.saved_model.save(module, str(where / "model.original"), signatures={"serving_default": module.serve})
    disc_tf.optimize_saved_model(where / "model.original", where / "model", targets=TARGETS, timing=False)
    for rows in ROWS:
        np.savez(where / f"inputs.{rows}.npz", **feeds(rows))
    (where / "made_by.json").write_text(json.dumps({"disc_tf": disc_tf.__version__, "tensorflow": tf.__version__}, indent=2) + "\n")


def answers(where: Path, kind: str) -> dict[str, np.ndarray]:
    """What the artefact says here, with the target that the environment names: ``ROWS/output`` -> array."""
    found: dict[str, np.ndarray] = {}
    for rows in ROWS:
        with np.load(where / f"inputs.{rows}.npz") as stored:
            given = {name: stored[name] for name in stored.files}
        found |= {f"{rows}/{name}": value for name, value in RUN[kind](where, given).items()}
    return found


def _graph(where: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import tensorflow as tf

    import disc_tf.ops  # noqa: F401

    graph_def = tf.compat.v1.GraphDef.FromString((where / "graph.pb").read_bytes())
    with tf.Graph().as_default():
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session() as session:
            found = session.run(list(OUTPUTS), {f"{name}:0": value for name, value in given.items()})
    return {name.removesuffix(":0"): value for name, value in zip(OUTPUTS, found, strict=True)}


def _model(where: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import tensorflow as tf

    import disc_tf.ops  # noqa: F401

    loaded = tf.saved_model.load(str(where / "model"))
    found = loaded.signatures["serving_default"](**{name: tf.constant(value) for name, value in given.items()})
    return {name: value.numpy() for name, value in found.items()}


def _program(where: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    from disc_tf.runtime import load

    with load(where / "program.disc", verify=True) as runner:
        return {name.removesuffix(":0"): value for name, value in runner.run(given).items()}


RUN = {"graph": _graph, "model": _model, "program": _program}


def main() -> int:
    where = PUBLISHED / sys.argv[1]
    if len(sys.argv) == 2:
        make(where)
        for target in TARGETS:
            for kind in RUN:
                environment = {**os.environ, "DISC_TF_TARGET": target}
                subprocess.run([sys.executable, __file__, sys.argv[1], kind, target], env=environment, check=True)
        return 0
    kind, target = sys.argv[2:]
    np.savez_compressed(where / f"answers.{kind}.{target}.npz", **answers(where, kind))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
