"""One engine with one model in a process of its own, driven over stdin and stdout. Runs in the engine's interpreter: nothing of disc_tf.

    python bench/peers/worker.py ENGINE MODEL DESCRIPTION.json THREADS

Each line read is a JSON object, each line written another:

    {"feeds": "x.npz", "names": ["ids"]}      -> {"seconds": first call, "outputs": "y.npz"}; the feeds stay
    {"runs": 20}                              -> {"seconds": [...]}
    {"memory": true}                          -> {"peak": bytes above what the process had after its imports}

Errors are answered as {"error": "..."}.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

#: feeds -> outputs, in the order of the description
Run = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]


def tensorflow(model: Path, inputs: list[str], outputs: list[str], threads: int, *, xla: bool = False) -> Run:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    mark_imports()
    graph_def = tf.compat.v1.GraphDef()
    graph_def.ParseFromString(model.read_bytes())
    if xla:
        # as users have it: a tf.function with jit_compile, around the graph without its placeholders
        wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph_def, name=""), [])
        feeds = [wrapped.graph.get_tensor_by_name(f"{n}:0") for n in inputs]
        pruned = wrapped.prune(feeds, [wrapped.graph.get_tensor_by_name(o) for o in outputs])
        signature = [tf.TensorSpec.from_tensor(f) for f in feeds]
        function = tf.function(lambda *values: pruned(*values), input_signature=signature, jit_compile=True)
        return lambda feeds: [o.numpy() for o in function(*(tf.constant(feeds[n]) for n in inputs))]
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    session = tf.compat.v1.Session(graph=graph, config=config)
    call = session.make_callable(outputs, [f"{n}:0" for n in inputs])
    return lambda feeds: call(*(feeds[n] for n in inputs))


def xla(model: Path, inputs: list[str], outputs: list[str], threads: int) -> Run:
    return tensorflow(model, inputs, outputs, threads, xla=True)


def onnxruntime(model: Path, inputs: list[str], outputs: list[str], threads: int) -> Run:
    import onnxruntime as ort

    mark_imports()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(outputs, {f"{n}:0": feeds[n] for n in inputs})


def openvino(model: Path, inputs: list[str], outputs: list[str], threads: int) -> Run:
    import openvino as ov

    mark_imports()
    core = ov.Core()
    # the accuracy of the others: no bf16 on its own account
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(core.read_model(str(model)), "CPU", settings).create_infer_request()

    def run(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        found = request.infer({f"{n}:0": feeds[n] for n in inputs})
        return [np.array(found[o]) for o in outputs]

    return run


def disc_tf_op(model: Path, inputs: list[str], outputs: list[str], threads: int) -> Run:
    """The optimised graph inside TensorFlow."""
    import disc_tf.ops  # noqa: F401

    return tensorflow(model, inputs, outputs, threads)


def disc_tf_alone(model: Path, inputs: list[str], outputs: list[str], threads: int) -> Run:
    """A stand-alone file, without TensorFlow."""
    from disc_tf.runtime import Executable

    mark_imports()
    executable = Executable.from_file(model)
    names = [a.name.removesuffix(":0") for i, a in enumerate(executable.args) if i not in executable.bound]
    order = [[r.name.removesuffix(":0") for r in executable.results].index(o.removesuffix(":0")) for o in outputs]

    def run(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        found = executable.run([feeds[n] for n in names])
        return [found[i] for i in order]

    return run


ENGINES: dict[str, Callable[[Path, list[str], list[str], int], Run]] = {
    "tensorflow": tensorflow,
    "xla": xla,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "disc_tf": disc_tf_op,
    "disc_tf alone": disc_tf_alone,
}

_imported = 0


def mark_imports() -> None:
    """Memory is counted from here: what an engine's code takes is not the model's."""
    global _imported
    _imported = _status("VmRSS")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def answer(run: Run, feeds: dict[str, np.ndarray], command: dict[str, Any], scratch: str, outputs: list[str]) -> dict[str, Any]:
    if "feeds" in command:
        feeds.clear()
        with np.load(command["feeds"]) as found:
            feeds.update({n: found[f"x{i}"] for i, n in enumerate(command["names"])})
        start = time.perf_counter()
        values = run(feeds)
        seconds = time.perf_counter() - start
        path = Path(scratch) / "outputs.npz"
        np.savez(path, allow_pickle=False, **{f"x{i}": np.asarray(v) for i, v in enumerate(values)})
        return {"seconds": seconds, "outputs": str(path)}
    if "runs" in command:
        found = []
        for _ in range(command["runs"]):
            start = time.perf_counter()
            run(feeds)
            found.append(time.perf_counter() - start)
        return {"seconds": found}
    peak = max(_status("VmHWM"), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    return {"peak": peak - _imported}


def main() -> None:
    engine, model, description, threads = sys.argv[1:5]
    # what libraries print must not come between the answers
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    info = json.loads(Path(description).read_text())
    inputs, outputs = [i["name"] for i in info["inputs"]], list(info["outputs"])
    feeds: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as scratch:
        try:
            run: Run | None = ENGINES[engine](Path(model), inputs, outputs, int(threads))
            reply: dict[str, Any] = {"ready": True}
        except Exception as e:
            run, reply = None, {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps(reply), file=replies, flush=True)
        for line in sys.stdin if run is not None else ():
            assert run is not None
            try:
                reply = answer(run, feeds, json.loads(line), scratch, outputs)
            except Exception as e:
                reply = {"error": f"{type(e).__name__}: {e}"}
            print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
