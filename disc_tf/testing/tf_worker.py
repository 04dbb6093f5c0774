"""A child process that runs one GraphDef in TensorFlow and answers over a pipe.

Started by `disc_tf.testing.tf_process.TfProcess`; speaks length-prefixed pickles on stdin/stdout (both ends are ours). It is a
process of its own so that the reference is not touched by our op library, its environment (oneDNN, threads) can differ, and peak
memory is that of one model.
"""

from __future__ import annotations

import io
import os
import pickle
import resource
import struct
import sys
import time
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
    """A session on one graph."""

    def __init__(self, config: dict[str, Any]) -> None:
        import tensorflow as tf

        self.tf = tf
        if config["ops"]:
            import disc_tf

            disc_tf.load_op_library()
        self.import_rss = current_rss()
        graph_def = tf.compat.v1.GraphDef()
        with open(config["path"], "rb") as f:
            graph_def.ParseFromString(f.read())
        self.weights = sum(len(n.attr["value"].tensor.tensor_content) for n in graph_def.node if n.op == "Const")
        session_config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=config["threads"], inter_op_parallelism_threads=config["threads"]
        )
        if config["reference"]:
            session_config.graph_options.rewrite_options.disable_meta_optimizer = True
            session_config.graph_options.optimizer_options.opt_level = -1
        graph = tf.Graph()
        with graph.as_default():
            tf.import_graph_def(graph_def, name="")
        del graph_def
        self.session = tf.compat.v1.Session(graph=graph, config=session_config)
        self.outputs = config["outputs"]
        self.call = self.session.make_callable(self.outputs, feed_list=config["inputs"])

    def run(self, feeds: list[Any]) -> tuple[str, Any]:
        try:
            return "ok", self.call(*feeds)
        except self.tf.errors.OpError as e:
            return "error", (e.error_code, e.message[:2000])

    def time(self, feeds: list[Any], repeats: int, warmup: int) -> tuple[str, Any]:
        out = []
        try:
            for _ in range(warmup):
                self.call(*feeds)
            for _ in range(repeats):
                start = time.perf_counter()
                self.call(*feeds)
                out.append(time.perf_counter() - start)
        except self.tf.errors.OpError as e:
            return "error", (e.error_code, e.message[:2000])
        return "ok", out


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


def serve(stdin: IO[bytes], stdout: IO[bytes]) -> None:
    runner: Runner | None = None
    while (message := read_message(stdin)) is not None:
        command, argument = message
        try:
            if command == "load":
                runner = Runner(argument)
                reply: tuple[str, Any] = ("ok", {"rss": current_rss(), "import_rss": runner.import_rss, "weights": runner.weights})
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


def main() -> None:
    # TensorFlow prints on stdout now and then: keep the pipe for ourselves.
    stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, stdout)


if __name__ == "__main__":
    main()
