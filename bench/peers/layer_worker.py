"""The engines of `bench.layers`: each times the nets of a directory, one after the other, in a process and an interpreter of its own.

What is timed is the work of the convolutions, not what an engine's call takes beside it: kernels by the clock of the engine where it has
one (ours, ONNX Runtime, OpenVINO; a change of layout at the edges of the net is left out), a call on tensors of its own for TensorFlow.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.nets import Net, from_json
from disc_tf.testing.tf_worker import Runner, main

#: nodes that bring data into an engine's own layout, and back
_EDGES = ("Reorder", "ReorderInput", "ReorderOutput", "Transpose", "Parameter", "Input", "Result", "Output")


class Layers(Runner):
    """``argument`` is a net's path without its ending. Subclasses load it and time runs."""

    path = ""

    def __init__(self, config: dict[str, Any]) -> None:
        self.threads: int = config["threads"]

    def open(self, path: str) -> None:
        if path != self.path:
            self.net: Net = from_json(Path(path + ".json").read_text())
            self.load(path, self.net.feeds())
            self.path = path

    def load(self, path: str, feeds: list[np.ndarray]) -> None:
        raise NotImplementedError

    def seconds(self, repeats: int) -> list[float]:
        raise NotImplementedError

    def output(self) -> np.ndarray:
        """Of one run, channels last."""
        raise NotImplementedError

    def run(self, argument: Any) -> tuple[str, Any]:
        self.open(argument)
        return "ok", self.output()

    def time(self, argument: Any, repeats: int, warmup: int) -> tuple[str, Any]:
        self.open(argument)
        for _ in range(warmup):
            self.output()
        return "ok", self.seconds(repeats)


def channels_first(feeds: list[np.ndarray]) -> list[np.ndarray]:
    return [np.ascontiguousarray(x.transpose(0, 3, 1, 2)) for x in feeds]


class Ours(Layers):
    """The stand-alone file."""

    def load(self, path: str, feeds: list[np.ndarray]) -> None:
        from disc_tf.runtime import Executable

        self.executable = Executable.from_file(path + ".disc")
        inputs = dict(zip("xr", feeds, strict=False))
        self.args = [inputs[a.name] for i, a in enumerate(self.executable.args) if i not in self.executable.bound]
        self.kept = self.executable.run(self.args)  # the same ones for all runs, as the others do it

    def output(self) -> np.ndarray:
        return self.executable.run(self.args, self.kept)[0]

    def seconds(self, repeats: int) -> list[float]:
        from disc_tf.runtime.recording import record

        found = []
        for _ in range(repeats):
            with record() as recording:
                self.output()
            found.append(sum(e.end_ns - e.begin_ns for e in recording.events if e.kind in ("kernel", "library")) / 1e9)
        return found


class OnnxRuntime(Layers):
    def load(self, path: str, feeds: list[np.ndarray]) -> None:
        import onnxruntime as ort

        self.ort, self.model, self.feeds = ort, path + ".onnx", dict(zip("xr", channels_first(feeds), strict=False))
        self.session = self.made(ort.SessionOptions())

    def made(self, options: Any) -> Any:
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 3
        return self.ort.InferenceSession(self.model, options, providers=["CPUExecutionProvider"])

    def output(self) -> np.ndarray:
        return self.session.run(None, self.feeds)[0].transpose(0, 2, 3, 1)

    def seconds(self, repeats: int) -> list[float]:
        """A session that keeps times writes them when it ends."""
        with tempfile.TemporaryDirectory() as work:
            options = self.ort.SessionOptions()
            options.enable_profiling, options.profile_file_prefix = True, os.path.join(work, "p")
            session = self.made(options)
            for _ in range(repeats + 1):
                session.run(None, self.feeds)
            events = json.loads(Path(session.end_profiling()).read_text())
        found: dict[str, list[float]] = {}
        for e in events:
            if e["name"].endswith("_kernel_time") and e["args"]["op_name"] not in _EDGES:
                found.setdefault(e["name"], []).append(e["dur"] / 1e6)
        return [sum(run) for run in zip(*found.values(), strict=True)][1:]


class OpenVino(Layers):
    """In f32, as the others."""

    def load(self, path: str, feeds: list[np.ndarray]) -> None:
        import openvino as ov

        self.core, self.feeds = ov.Core(), dict(zip("xr", channels_first(feeds), strict=False))
        self.model = self.core.read_model(path + ".onnx")
        self.request = self.made({})

    def made(self, more: dict[str, Any]) -> Any:
        settings = {"INFERENCE_NUM_THREADS": self.threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", **more}
        return self.core.compile_model(self.model, "CPU", settings).create_infer_request()

    def output(self) -> np.ndarray:
        found = self.request.infer(self.feeds, share_inputs=True)
        return np.array(next(iter(found.values()))).transpose(0, 2, 3, 1)

    def seconds(self, repeats: int) -> list[float]:
        """Its clocks give the mean of all runs so far, in whole microseconds: of many runs, the first of which are taken off."""
        request = self.made({"PERF_COUNT": True})

        def total(runs: int, before: int) -> float:
            for _ in range(runs):
                request.infer(self.feeds, share_inputs=True, share_outputs=True)
            nodes = [i for i in request.get_profiling_info() if i.node_type not in _EDGES]
            return sum(i.real_time.total_seconds() for i in nodes) * (before + runs)

        first = total(3, 0)
        return [(total(repeats, 3) - first) / repeats]


class TensorFlow(Layers):
    """A function over the graph; its tensors are not copied."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(self.threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self.tf: Any = tf

    def load(self, path: str, feeds: list[np.ndarray]) -> None:
        tf = self.tf
        graph_def = tf.compat.v1.GraphDef()
        graph_def.ParseFromString(Path(path + ".pb").read_bytes())
        wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph_def, name=""), [])
        inputs = [wrapped.graph.get_tensor_by_name(f"{n}:0") for n, _ in zip("xr", feeds, strict=False)]
        pruned, self.feeds = wrapped.prune(inputs, wrapped.graph.get_tensor_by_name("y:0")), [tf.constant(x) for x in feeds]
        self.function = tf.function(lambda *x: pruned(*x)).get_concrete_function(*map(tf.TensorSpec.from_tensor, inputs))

    def output(self) -> np.ndarray:
        return self.function(*self.feeds).numpy()

    def seconds(self, repeats: int) -> list[float]:
        found = []
        for _ in range(repeats):
            start = time.perf_counter()
            self.function(*self.feeds)
            found.append(time.perf_counter() - start)
        return found


ENGINES: dict[str, type[Layers]] = {"disc_tf": Ours, "openvino": OpenVino, "onnxruntime": OnnxRuntime, "tensorflow": TensorFlow}


if __name__ == "__main__":
    main(lambda config: ENGINES[config["engine"]](config))
