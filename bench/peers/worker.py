"""The engines that are not TensorFlow with a graph: each with one model in a process, and an interpreter, of its own.

Started by `bench.engines` and answering as `disc_tf.testing.tf_worker` does. Runs where only the engine and numpy are installed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from disc_tf.testing.tf_worker import Runner, TfRunner, current_rss, main


class Xla(TfRunner):
    """As users have it: a tf.function with jit_compile, around the graph without its placeholders."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        tf = self.tf
        tf.config.threading.set_intra_op_parallelism_threads(config["threads"])
        tf.config.threading.set_inter_op_parallelism_threads(config["threads"])
        graph_def = tf.compat.v1.GraphDef()
        with open(config["model"], "rb") as f:
            graph_def.ParseFromString(f.read())
        wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph_def, name=""), [])
        inputs, outputs = ([wrapped.graph.get_tensor_by_name(n) for n in config[k]] for k in ("inputs", "outputs"))
        pruned = wrapped.prune(inputs, outputs)
        signature = [tf.TensorSpec.from_tensor(x) for x in inputs]
        self.function = tf.function(lambda *values: pruned(*values), input_signature=signature, jit_compile=True)

    def prepare(self, argument: Any) -> Callable[[], Any]:
        return lambda: [x.numpy() for x in self.function(*map(self.tf.constant, argument))]


class OnnxRuntime(Runner):
    def __init__(self, config: dict[str, Any]) -> None:
        import onnxruntime as ort

        self.import_rss = current_rss()
        options = ort.SessionOptions()
        options.intra_op_num_threads = config["threads"]
        options.log_severity_level = 3
        self.session = ort.InferenceSession(config["model"], options, providers=["CPUExecutionProvider"])
        self.inputs, self.outputs = config["inputs"], config["outputs"]

    def prepare(self, argument: Any) -> Callable[[], Any]:
        return functools.partial(self.session.run, self.outputs, dict(zip(self.inputs, argument, strict=True)))


class OpenVino(Runner):
    """In f32: the accuracy of the others, no bf16 on its own account."""

    def __init__(self, config: dict[str, Any]) -> None:
        import openvino as ov

        self.import_rss = current_rss()
        core = ov.Core()
        settings = {"INFERENCE_NUM_THREADS": config["threads"], "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        self.request = core.compile_model(core.read_model(config["model"]), "CPU", settings).create_infer_request()
        self.inputs, self.outputs = config["inputs"], config["outputs"]

    def prepare(self, argument: Any) -> Callable[[], Any]:
        feeds = dict(zip(self.inputs, argument, strict=True))

        def run() -> list[np.ndarray]:
            found = self.request.infer(feeds)
            return [np.array(found[o]) for o in self.outputs]

        return run


class Iree(Runner):
    """A module of one function, on as many workers as there are threads."""

    def __init__(self, config: dict[str, Any]) -> None:
        import iree.runtime as rt

        self.import_rss = current_rss()
        rt.flags.parse_flags(f"--task_topology_group_count={config['threads']}")
        settings = rt.Config("local-task")
        module = rt.VmModule.mmap(settings.vm_instance, config["model"])
        context = rt.SystemContext(config=settings)
        context.add_vm_module(module)
        (name,) = [n for n in module.function_names if not n.startswith("__") and not n.endswith("$async")]
        self.function = getattr(context.modules, module.name)[name]
        self.outputs = config["outputs"]

    def prepare(self, argument: Any) -> Callable[[], Any]:
        def run() -> list[np.ndarray]:
            found = self.function(*argument)
            return [np.array(x) for x in ([found] if len(self.outputs) == 1 else found)]

        return run


class Alone(Runner):
    """Our stand-alone file, without TensorFlow."""

    def __init__(self, config: dict[str, Any]) -> None:
        from disc_tf.runtime import Executable

        self.import_rss = current_rss()
        self.executable = Executable.from_file(config["model"])
        inputs, results = _bare(config["inputs"]), _bare(r.name for r in self.executable.results)
        names = _bare(a.name for i, a in enumerate(self.executable.args) if i not in self.executable.bound)
        self.arguments = [inputs.index(n) for n in names]
        self.outputs = [results.index(o) for o in _bare(config["outputs"])]

    def prepare(self, argument: Any) -> Callable[[], Any]:
        given = [argument[i] for i in self.arguments]

        def run() -> list[np.ndarray]:
            found = self.executable.run(given)
            return [found[i] for i in self.outputs]

        return run


def _bare(names: Any) -> list[str]:
    """Names of tensors without the port, which a stand-alone file leaves out."""
    return [n.removesuffix(":0") for n in names]


ENGINES: dict[str, Callable[[dict[str, Any]], Runner]] = {
    "xla": Xla,
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "iree": Iree,
    "disc_tf alone": Alone,
}


if __name__ == "__main__":
    main(lambda config: ENGINES[config["engine"]](config))
