"""What the launches of an optimised graph are given in a run: their inputs, taken from TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.frontend.graph import Graph, parse_tensor
from disc_tf.frontend.rewrite import LAUNCH_OP
from disc_tf.testing.tf_process import TfProcess


def launch_inputs(graph_def: Any) -> dict[str, list[str]]:
    """Launch -> the tensors (``name:port``) that it reads, in the order of its executable's arguments."""
    found = {}
    for node in graph_def.node:
        if node.op == LAUNCH_OP:
            refs = [parse_tensor(t) for t in node.input if not t.startswith("^")]
            found[node.name] = [f"{name}:{port}" for name, port in refs]
    return found


def capture(
    path: str | Path,
    graph_def: Any,
    inputs: Sequence[str],
    feeds: Sequence[np.ndarray],
    clusters: Sequence[str] | None = None,
    *,
    threads: int = 0,
) -> dict[str, list[np.ndarray]]:
    """Launch -> its arguments when the graph runs on ``feeds``.

    ``path``: the file of ``graph_def`` in wire format, ``inputs``: the names of the placeholders fed; ``clusters``: only these. Constants
    come from the graph, the rest from a TensorFlow process. Raises `TfError` if TensorFlow (or a launch before) refuses the feeds.
    """
    wanted = {k: v for k, v in launch_inputs(graph_def).items() if clusters is None or k in clusters}
    constants = _constants(graph_def, {t.rpartition(":")[0] for tensors in wanted.values() for t in tensors})
    fetched = list(dict.fromkeys(t for tensors in wanted.values() for t in tensors if t.rpartition(":")[0] not in constants))
    values: dict[str, np.ndarray] = {}
    if fetched:
        with TfProcess(path, [f"{name}:0" for name in inputs], fetched, ops=True, threads=threads) as process:
            values = dict(zip(fetched, process.run(feeds), strict=True))
    values.update({f"{name}:0": array for name, array in constants.items()})
    return {name: [values[t] for t in tensors] for name, tensors in wanted.items()}


def _constants(graph_def: Any, names: set[str]) -> dict[str, np.ndarray]:
    graph = Graph(graph_def)
    out = {}
    for name in names:
        constant = graph.constant(name)
        if constant is not None:
            out[name] = constant.array()
    return out
