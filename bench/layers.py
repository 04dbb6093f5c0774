"""Convolution layers one by one, beside the kernels of other engines and the FMA peak measured in the same run.

    python -m bench.layers [--nets resnet50 mobilenet_v2] [--threads 1] [--only 3x3] [--json F] [--engines disc_tf openvino]

The layers are those of `bench.peers.nets`, each with its bias, activation and residual sum: a graph with unknown batch and extents for
TensorFlow and for us, an ONNX model of static shapes, channels first, for the others. Engines run in processes of their own, in
interleaved rounds; a figure is the median of the rounds. Times are those of the kernels (`bench.peers.layer_worker` says how); outputs
are compared with ours. For honest figures on a machine with other work: ``chrt -f 1 taskset -c 1`` for one thread, ``chrt -f 1`` for more.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.environments import interpreter
from bench.peers.nets import Net, networks, to_json
from bench.products import Machine
from disc_tf.codegen.cpu.target import target_named
from disc_tf.runtime.cpu import native_target
from disc_tf.testing.tf_process import Child, ProcessFailed, TfError

ENGINES = ("disc_tf", "openvino", "onnxruntime", "tensorflow")
#: seconds of a round, about, and runs of it at most
_ROUND_SECONDS, _MOST_RUNS = 0.03, 60
#: how far results may be from ours, beside their root mean square
_TOLERANCE = 1e-4


class LayerProcess(Child):
    """An engine of `bench.peers.layer_worker`."""

    def __init__(self, engine: str, threads: int, python: str) -> None:
        env = {"OMP_NUM_THREADS": str(threads)}
        super().__init__({"engine": engine}, threads=threads, python=python, env=env, module="bench.peers.layer_worker")

    def run(self, path: Path) -> np.ndarray:
        return self._ask("run", str(path))

    def time(self, path: Path, repeats: int) -> list[float]:
        return self._ask("time", (str(path), repeats, 1))


@dataclasses.dataclass
class Row:
    """A net at some threads: microseconds by engine, the peak beside them in GFLOP/s, engines whose results differ or that failed."""

    net: str
    threads: int
    flops: int
    us: dict[str, float]
    peak: float
    wrong: dict[str, str]

    def rate(self, engine: str) -> float:
        return self.flops / self.us[engine] / 1e3


def graph_of(net: Net) -> Any:
    """The net as a GraphDef: placeholders ``x`` (and ``r``), result ``y``; only channels are known."""
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        shapes = [(None, 1 if net.size[0] == 1 else None, None, s[-1]) for s in net.inputs]
        inputs = [tf.compat.v1.placeholder(tf.float32, s, n) for n, s in zip("xr", shapes, strict=False)]
        values = [inputs[0]]
        for conv, (w, bias) in zip(net.convs, net.weights(), strict=True):
            settings: dict[str, Any] = {"strides": [1, *conv.stride, 1], "padding": "SAME", "dilations": [1, *conv.dilation, 1]}
            if conv.depthwise:
                y = tf.raw_ops.DepthwiseConv2dNative(input=values[-1], filter=tf.constant(w.transpose(0, 1, 3, 2)), **settings)
            else:
                y = tf.raw_ops.Conv2D(input=values[-1], filter=tf.constant(w), **settings)
            y = tf.nn.bias_add(y, tf.constant(bias))
            if conv.add is not None:
                y = tf.raw_ops.AddV2(x=y, y=inputs[1] if conv.add < 0 else values[conv.add])
            values.append(getattr(tf.nn, conv.activation)(y) if conv.activation else y)
        tf.identity(values[-1], "y")
    return graph.as_graph_def()


def prepare(nets: Sequence[Net], work: Path, environments: Path, engines: Sequence[str]) -> list[Path]:
    """All forms of the nets in ``work``; paths without an ending."""
    from disc_tf.standalone import compile_graph_def

    paths = []
    for i, net in enumerate(nets):
        path = work / f"{i:03}"
        path.with_suffix(".json").write_text(to_json(net))
        graph = graph_of(net)
        path.with_suffix(".pb").write_bytes(graph.SerializeToString())
        compile_graph_def(graph, ["y:0"], path.with_suffix(".disc"), profile=True, targets=[native_target()], segments="one")
        paths.append(path)
    if {"openvino", "onnxruntime"} & set(engines):
        command = [interpreter("convert", environments), "-m", "bench.peers.layer_onnx", str(work)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])})
    return paths


def measure(net: Net, path: Path, engines: Mapping[str, LayerProcess], threads: int, rounds: int, machine: Machine) -> Row:
    row = Row(net.name, threads, net.flops, {}, machine.peak(threads), {})
    want: np.ndarray | None = None
    repeats: dict[str, int] = {}
    for name, engine in engines.items():
        try:
            got = engine.run(path)
            want = got if want is None else want
            off = float(np.abs(got - want).max() / np.sqrt(np.mean(np.square(want))))
            if not off <= _TOLERANCE:
                row.wrong[name] = f"off by {off:.1e}"
            once = max(float(np.median(engine.time(path, 3))), 1e-6)
            repeats[name] = int(np.clip(_ROUND_SECONDS / once, 3, _MOST_RUNS))
        except (ProcessFailed, TfError) as e:
            row.wrong[name] = str(e).splitlines()[-1][:100]
    found: dict[str, list[float]] = {name: [] for name in repeats}
    for k in range(rounds):
        for name in sorted(repeats, key=lambda n: (ENGINES.index(n) + k) % len(ENGINES)):
            time.sleep(0.002)  # threads that wait for the next run spin for a while
            found[name].append(float(np.median(engines[name].time(path, repeats[name]))))
        row.peak = max(row.peak, machine.peak(threads))
    row.us = {name: float(np.median(values)) * 1e6 for name, values in found.items()}
    row.peak /= 1e9
    return row


def shown(row: Row, peak: float, engines: Sequence[str]) -> str:
    """A line of the table; ``peak``: the greatest of the run, GFLOP/s."""
    ours = row.us["disc_tf"]
    rate = row.rate("disc_tf")
    cells = [f"{row.net:48}", f"{row.flops / 1e6:8.1f}", f"{ours:9.1f}", f"{rate:6.1f}", f"{rate / peak:5.0%}"]
    for name in engines[1:]:
        cells.append(f"{row.us[name]:9.1f} {row.us[name] / ours:5.2f}" if name in row.us else " " * 15)
    return " ".join(cells + [f"{k}: {v}" for k, v in row.wrong.items()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", default=list(networks()), choices=list(networks()))
    parser.add_argument("--only", default="", help="layers whose name has this")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--environments", type=Path, default=Path("build/bench"), help="where peers' interpreters are kept")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    engines = [e for e in ENGINES if e in args.engines or e == "disc_tf"]
    nets = [n for name in args.nets for n in networks()[name] if args.only in n.name]
    machine, environments = Machine(target_named(native_target())), args.environments.resolve()
    rows = []
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
        paths = prepare(nets, Path(work), environments, engines)
        running = {}
        for name in engines:
            python = interpreter(name, environments) if name in ("openvino", "onnxruntime") else sys.executable
            running[name] = stack.enter_context(LayerProcess(name, args.threads, python))
        print(f"{'layer':48} {'MFLOP':>8} {'disc_tf':>9} {'GF/s':>6} {'peak':>5} " + " ".join(f"{e:>9} times" for e in engines[1:]))
        for net, path in zip(nets, paths, strict=True):
            rows.append(measure(net, path, running, args.threads, args.rounds, machine))
            print(shown(rows[-1], max(r.peak for r in rows), engines), flush=True)
    print(f"FMA peak of {args.threads} threads: {max(r.peak for r in rows):.1f} GFLOP/s")
    if args.json:
        args.json.write_text(json.dumps([dataclasses.asdict(r) for r in rows], indent=1))


if __name__ == "__main__":
    main()
