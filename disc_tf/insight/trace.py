"""Runs of a model with all that the runtime does recorded: a graph in TensorFlow, in this process, or a stand-alone file without it."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from disc_tf.frontend.rewrite import LAUNCH_OP
from disc_tf.frontend.tfproto import serialized
from disc_tf.insight.chrome_trace import Program, TfSlice
from disc_tf.runtime.artifact import unpack
from disc_tf.runtime.recording import Recording, record

if TYPE_CHECKING:
    from disc_tf.runtime.runner import Runner

#: how TensorFlow labels a node that it ran: "name = Op(inputs)"
_LABEL = re.compile(r"\S+ = (\w+)\(")


@dataclasses.dataclass
class Traced:
    """What `chrome_trace` makes a file of. windows: begin and end of each run as its caller saw it, in nanoseconds of CLOCK_MONOTONIC."""

    recording: Recording
    programs: dict[str, Program]
    tensorflow: list[TfSlice]
    windows: list[tuple[int, int]]

    @property
    def run_ms(self) -> list[float]:
        return [(end - begin) / 1e6 for begin, end in self.windows]

    @property
    def in_tensorflow(self) -> bool:
        return bool(self.tensorflow)


def trace_graph(
    graph_def: Any, feeds: Mapping[str, np.ndarray], outputs: Sequence[str], *, runs: int, threads: int = 0
) -> Traced:
    """``runs`` runs of an optimised graph (compiled with ``profile=True``, or small kernels are not seen) in a session.

    feeds: tensor -> value. threads: of TensorFlow and ours, 0 for all. Raises TensorFlow's errors.
    """
    import tensorflow as tf

    import disc_tf.ops
    from disc_tf.runtime.executable import set_num_threads

    disc_tf.ops.load_op_library()
    programs = {}
    for node in graph_def.node:
        if node.op == LAUNCH_OP:
            artifact = unpack(node.attr["executable"].s)
            programs[artifact.name] = Program.of(artifact)
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(tf.compat.v1.GraphDef.FromString(serialized(graph_def)), name="")
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.SOFTWARE_TRACE)
    slices: list[TfSlice] = []
    windows: list[tuple[int, int]] = []
    set_num_threads(threads)
    try:
        with tf.compat.v1.Session(graph=graph, config=config) as session, record() as recording:
            for _ in range(runs):
                told = tf.compat.v1.RunMetadata()
                ahead = time.time_ns() - time.monotonic_ns()
                start = time.monotonic_ns()
                session.run(list(outputs), dict(feeds), options=options, run_metadata=told)
                windows.append((start, time.monotonic_ns()))
                slices += _slices(told, ahead)
    finally:
        set_num_threads(0)
    return Traced(recording, programs, slices, windows)


def _slices(told: Any, ahead_ns: int) -> list[TfSlice]:
    """The nodes of one run. ahead_ns: how far TensorFlow's clock is ahead of CLOCK_MONOTONIC."""
    out = []
    for device in told.step_stats.dev_stats:
        for n in device.node_stats:
            label = _LABEL.match(n.timeline_label)
            begin = (n.all_start_nanos or n.all_start_micros * 1000) - ahead_ns
            length = n.all_end_rel_nanos or n.all_end_rel_micros * 1000
            out.append(TfSlice(n.node_name, label[1] if label else "", begin, begin + length))
    return out


def trace_runner(runner: Runner, inputs: Mapping[str, np.ndarray], *, runs: int, threads: int = 0) -> Traced:
    """``runs`` runs of a stand-alone model. Raises what `Runner.run` does."""
    from disc_tf.runtime.executable import set_num_threads

    artifact = runner.executable.artifact
    windows: list[tuple[int, int]] = []
    set_num_threads(threads)
    try:
        with record() as recording:
            for _ in range(runs):
                start = time.monotonic_ns()
                runner.run(inputs)
                windows.append((start, time.monotonic_ns()))
    finally:
        set_num_threads(0)
    return Traced(recording, {artifact.name: Program.of(artifact)}, [], windows)


__all__ = ["Traced", "trace_graph", "trace_runner"]
