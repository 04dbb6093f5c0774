"""A child process that runs one GraphDef or SavedModel in TensorFlow and answers over a pipe.

Started by `disc_tf.testing.tf_process`; speaks length-prefixed pickles on stdin/stdout (both ends are ours). It is a
process of its own so that the reference is not touched by our op library, its environment (oneDNN, threads) can differ, and peak
memory is that of one model.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import resource
import struct
import time
from collections.abc import Callable
from typing import IO, Any

import numpy as np


def read_message(stream: IO[bytes]) -> Any:
    """The next message; None at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    (size,) = struct.unpack("<Q", head)
    data = stream.read(size)
    return pickle.loads(data) if len(data) == size else None


class _Pickler(pickle.Pickler):
    """Number arrays in a form that every numpy reads: its own refers to modules that numpy 1 and 2 name differently."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray | np.generic) and obj.dtype.kind in "biufc":
            return np.ndarray, (obj.shape, obj.dtype.str, bytearray(obj.tobytes()))
        return NotImplemented


def write_message(stream: IO[bytes], message: Any) -> None:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(message)
    data = buffer.getvalue()
    stream.write(struct.pack("<Q", len(data)))
    stream.write(data)
    stream.flush()


class Runner:
    """Running and timing what subclasses make callable. ``import_rss``: resident bytes before the model was loaded; ``errors``: those that
    are a status of TensorFlow."""

    weights = 0
    import_rss = 0
    #: what else the answer to ``load`` says
    described: dict[str, Any] = {}  # noqa: RUF012  never changed in place
    errors: tuple[Any, ...] = ()

    def prepare(self, argument: Any) -> Callable[[], Any]:
        """What one run is."""
        raise NotImplementedError

    def results(self, found: Any) -> Any:
        return found

    def run(self, argument: Any) -> tuple[str, Any]:
        try:
            return "ok", self.results(self.prepare(argument)())
        except self.errors as e:
            return "error", self.status(e)

    def time(self, argument: Any, repeats: int, warmup: int) -> tuple[str, Any]:
        out = []
        try:
            call = self.prepare(argument)
            for _ in range(warmup):
                call()
            for _ in range(repeats):
                start = time.perf_counter()
                call()
                out.append(time.perf_counter() - start)
        except self.errors as e:
            return "error", self.status(e)
        return "ok", out

    def status(self, error: Any) -> tuple[int, str]:
        return error.error_code, error.message[:2000]


class TfRunner(Runner):
    """TensorFlow in this process."""

    def __init__(self, config: dict[str, Any]) -> None:
        import tensorflow as tf

        self.tf: Any = tf
        self.errors = (tf.errors.OpError,)
        if config["ops"]:
            import disc_tf

            disc_tf.load_op_library()
        self.import_rss = current_rss()

    def session_config(self, config: dict[str, Any]) -> Any:
        session_config = self.tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=config["threads"], inter_op_parallelism_threads=config["threads"]
        )
        if config["reference"]:
            session_config.graph_options.rewrite_options.disable_meta_optimizer = True
            session_config.graph_options.optimizer_options.opt_level = -1
        return session_config


class GraphRunner(TfRunner):
    """A session on one graph."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        tf = self.tf
        graph_def = tf.compat.v1.GraphDef()
        with open(config["path"], "rb") as f:
            data = f.read()
        if config["path"].endswith((".pbtxt", ".txt")):
            from google.protobuf import text_format

            text_format.Parse(data.decode(), graph_def)
        else:
            graph_def.ParseFromString(data)
        del data
        bodies = [graph_def.node, *(f.node_def for f in graph_def.library.function)]
        self.described = {"ops": sorted({n.op for body in bodies for n in body})}
        self.weights = sum(len(n.attr["value"].tensor.tensor_content) for n in graph_def.node if n.op == "Const")
        graph = tf.Graph()
        with graph.as_default():
            tf.import_graph_def(graph_def, name="")
        del graph_def
        self.session = tf.compat.v1.Session(graph=graph, config=self.session_config(config))
        self.outputs = config["outputs"]
        self.call = self.session.make_callable(self.outputs, feed_list=config["inputs"])

    def prepare(self, argument: Any) -> Callable[[], Any]:
        return functools.partial(self.call, *argument)


class SignatureRunner(TfRunner):
    """The signatures of a SavedModel as functions (TensorFlow 2's loader). Feeds become tensors before a run is timed."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        tf = self.tf
        if config["reference"]:
            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        if config["threads"]:
            tf.config.threading.set_intra_op_parallelism_threads(config["threads"])
            tf.config.threading.set_inter_op_parallelism_threads(config["threads"])
        self.model = tf.saved_model.load(config["saved_model"], tags=config["tags"])
        self.described = {"signatures": sorted(self.model.signatures)}

    def prepare(self, argument: Any) -> Callable[[], Any]:
        signature, feeds = argument
        if signature not in self.model.signatures:
            return self.prepare_method(signature, list(feeds.values()))
        function = self.model.signatures[signature]
        _, wanted = function.structured_input_signature
        tensors = {name: self.tf.constant(value, dtype=wanted[name].dtype) for name, value in feeds.items()}
        return functools.partial(function, **tensors)

    def prepare_method(self, signature: str, feeds: list[Any]) -> Callable[[], Any]:
        """``method#index``: a concrete function of a method of the root object; what it gives is called ``output_0``, ``output_1`` ..."""
        nest = self.tf.nest
        method, _, index = signature.partition("#")
        function = getattr(self.model, method)
        function = getattr(function, "concrete_functions", [function])[int(index)]
        values = iter(feeds)

        def value(spec: Any) -> Any:
            if isinstance(spec, self.tf.TensorSpec):
                return self.tf.constant(next(values), dtype=spec.dtype)
            if isinstance(spec, self.tf.RaggedTensorSpec):
                return self.ragged(spec, self.tf.constant(next(values), dtype=spec.dtype))
            if isinstance(spec, self.tf.SparseTensorSpec):
                return self.tf.sparse.from_dense(self.tf.constant(next(values), dtype=spec.dtype))
            return spec

        args, kwargs = nest.map_structure(value, function.structured_input_signature)

        def call() -> dict[str, Any]:
            found = nest.flatten(function(*args, **kwargs), expand_composites=True)
            return {f"output_{i}": tensor for i, tensor in enumerate(found)}

        return call

    def ragged(self, spec: Any, dense: Any) -> Any:
        """Rows of different lengths, the first one whole. Of deeper ones only the outermost dimension is ragged in truth."""
        if spec.ragged_rank != 1:
            return self.tf.RaggedTensor.from_tensor(dense, ragged_rank=spec.ragged_rank, row_splits_dtype=spec.row_splits_dtype)
        width = int(dense.shape[1])
        lengths = [(3 * i + width) % (width + 1) for i in range(int(dense.shape[0]))]
        splits = spec.row_splits_dtype
        return self.tf.RaggedTensor.from_tensor(dense, self.tf.constant(lengths, splits), ragged_rank=1, row_splits_dtype=splits)

    def results(self, found: Any) -> Any:
        return {name: value.numpy() for name, value in found.items()}


class ServingRunner(TfRunner):
    """The signatures of a SavedModel in a session (TensorFlow 1's loader)."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        tf = self.tf
        self.session = tf.compat.v1.Session(graph=tf.Graph(), config=self.session_config(config))
        tags = config["tags"] if config["tags"] is not None else ["serve"]
        with self.session.graph.as_default():
            self.signatures = tf.compat.v1.saved_model.load(self.session, tags, config["saved_model"]).signature_def
        self.described = {"signatures": sorted(self.signatures)}
        self.calls: dict[Any, Any] = {}

    def prepare(self, argument: Any) -> Callable[[], Any]:
        signature, feeds = argument
        names = sorted(feeds)
        key = (signature, *names)
        if key not in self.calls:
            found = self.signatures[signature]
            outputs = {name: info.name for name, info in found.outputs.items()}
            self.calls[key] = self.session.make_callable(outputs, feed_list=[found.inputs[name].name for name in names])
        return functools.partial(self.calls[key], *(feeds[name] for name in names))


class ServeRunner(TfRunner):
    """The signatures of a SavedModel as `disc-tf serve` runs them."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        from disc_tf.serving.errors import ServingError
        from disc_tf.serving.servable import Servable
        from disc_tf.serving.warmup import replay

        threads = config["threads"]
        tags = config["tags"] if config["tags"] is not None else ["serve"]
        self.servable = Servable("model", 1, config["saved_model"], threads=(threads, threads), tags=tags)
        replay(self.servable)
        self.errors = (ServingError,)
        self.described = {"signatures": sorted(name for name, s in self.servable.signatures.items() if not s.unusable)}

    def prepare(self, argument: Any) -> Callable[[], Any]:
        from disc_tf.serving.handlers import run_directly

        name, feeds = argument
        signature = self.servable.signatures[name]
        outputs = tuple(signature.outputs)
        return lambda: dict(zip(outputs, run_directly(self.servable, signature, feeds, outputs, None), strict=True))

    def status(self, error: Any) -> tuple[int, str]:
        from disc_tf.serving.errors import CODES

        return CODES[error.code], error.message[:2000]


class FilesRunner(TfRunner):
    """What TensorFlow says of graphs and files."""

    def prepare(self, argument: Any) -> Callable[[], Any]:
        from pathlib import Path

        from disc_tf.saved_model_files import fingerprint, op_list

        what, of = argument
        return functools.partial(op_list, of) if what == "op_list" else functools.partial(fingerprint, Path(of))


#: how a SavedModel is loaded
LOADERS = {"tf2": SignatureRunner, "session": ServingRunner, "serve": ServeRunner}


def make_runner(config: dict[str, Any]) -> Runner:
    if "files" in config:
        return FilesRunner(config)
    return LOADERS[config["loader"]](config) if "saved_model" in config else GraphRunner(config)


def current_rss() -> int:
    """Resident bytes now."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


def peak_rss() -> int:
    """The most resident bytes of this program (getrusage's figure would include what the parent had when it forked)."""
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return current_rss()


def serve(stdin: IO[bytes], stdout: IO[bytes], make: Callable[[dict[str, Any]], Runner] = make_runner) -> None:
    runner: Runner | None = None
    while (message := read_message(stdin)) is not None:
        command, argument = message
        try:
            if command == "load":
                runner = None  # frees what was loaded before
                runner = make(argument)
                sizes = {"rss": current_rss(), "import_rss": runner.import_rss, "weights": runner.weights}
                reply: tuple[str, Any] = ("ok", {**sizes, **runner.described})
            elif command == "memory":
                reply = ("ok", {"rss": current_rss(), "peak": peak_rss()})
            elif runner is None:
                reply = ("exception", "no graph is loaded")
            elif command == "run":
                reply = runner.run(argument)
            elif command == "time":
                reply = runner.time(*argument)
            else:
                reply = ("exception", f"unknown command {command!r}")
        except Exception as e:
            reply = ("exception", f"{type(e).__name__}: {e}"[:4000])
        write_message(stdout, reply)


def main(make: Callable[[dict[str, Any]], Runner] = make_runner) -> None:
    """Answer until the pipe ends; ``make`` gives what runs a model that is to be loaded."""
    # TensorFlow prints on stdout now and then: keep the pipe for ourselves.
    stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(os.fdopen(os.dup(0), "rb"), stdout, make)


if __name__ == "__main__":
    main()
