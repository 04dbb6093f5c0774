"""Where the time of a run goes: every kernel launch of a model timed by name, per point of its trace.

    python -m bench.kernels --models build/models bert_base --points B=1,S=7 B=8,S=48 --threads 1

One line per kernel (all layers together): launches, tasks, milliseconds, share, GFLOP/s for products. `other` is what the run took beyond
its kernels: the host program and the launches. Times are the least of some runs. With one thread they are processor time, which a busy
machine disturbs little; with more they are wall-clock time: let the machine be quiet.
"""

from __future__ import annotations

import argparse
import collections
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.compiler import CompiledCluster, compile_module
from disc_tf.frontend.analysis import analyse
from disc_tf.frontend.cluster import make_clusters
from disc_tf.frontend.importer import import_cluster
from disc_tf.frontend.load import load
from disc_tf.frontend.tfproto import graph_from_bytes
from disc_tf.ir.types import TensorType
from disc_tf.runtime.cpu import native_target
from disc_tf.runtime.executable import Executable, set_num_threads
from disc_tf.runtime.recording import LaunchTime, profile
from disc_tf.testing.inputs import make_feeds, specs_from_json

Point = dict[str, int]


class Model:
    """The one cluster of a model, compiled to be timed, and its arguments at any point."""

    def __init__(self, models: Path, name: str, target: str) -> None:
        self.specs, outputs, _ = specs_from_json(models / f"{name}.json")
        self.points: list[Point] = [p["dims"] for p in json.loads((models / f"{name}.json").read_text())["points"]]
        graph = graph_from_bytes((models / f"{name}.pb").read_bytes())
        loaded = load(graph, outputs)
        found = make_clusters(analyse(loaded.graph, [f[0] for f in loaded.fetches]), loaded.fetches, loaded.targets)
        if len(found.clusters) != 1:
            raise SystemExit(f"{name} has {len(found.clusters)} clusters: this tool times models that are one cluster")
        imported = import_cluster(found, found.clusters[0])
        self.args = list(imported.args)
        main = imported.module.main
        self.dims = [(p.dims if isinstance(p.type, TensorType) else ()) for p in main.params]
        self.constants = {a: loaded.graph.constant(a[0]).array() for a in self.args if loaded.graph[a[0]].op == "Const"}
        self.compiled: CompiledCluster = compile_module(
            imported.module, [target], name=name, host_results=imported.host_results, profile=True
        )
        self.executable = Executable.from_bytes(self.compiled.executable)

    def arguments(self, point: Point) -> list[np.ndarray]:
        feeds = {s.name: f for s, f in zip(self.specs, make_feeds(self.specs, point), strict=True)}
        return [self.constants[a] if a in self.constants else feeds[a[0]] for a in self.args]

    def symbols(self, arguments: list[np.ndarray]) -> dict[str, int]:
        """The run-time values of the dims that arguments have."""
        pairs = zip(self.dims, arguments, strict=False)
        return {d.symbol: n for dims, a in pairs for d, n in zip(dims, a.shape, strict=True) if d.symbol}


def least(model: Model, arguments: list[np.ndarray], runs: int, threads: int) -> tuple[list[LaunchTime], int, int]:
    """The launches of a run, each with its least time over some runs, the least time of a whole run, and the least that
    a run took beyond its launches (ns)."""
    best: list[LaunchTime] = []
    whole = other = 1 << 62
    clock = time.thread_time_ns if threads == 1 else time.perf_counter_ns
    model.executable.run(arguments)
    for _ in range(runs):
        with profile() as launches:
            start = clock()
            model.executable.run(arguments)
            spent = clock() - start
        whole = min(whole, spent)
        other = min(other, spent - sum(x.ns for x in launches))
        best = [min(x, y, key=lambda t: t.ns) for x, y in zip(best, launches, strict=True)] if best else launches
    return best, whole, other


def table(model: Model, arguments: list[np.ndarray], runs: int, threads: int) -> Iterator[str]:
    launches, whole, other = least(model, arguments, runs, threads)
    flops: dict[str, float] = collections.defaultdict(float)
    symbols = model.symbols(arguments)
    kinds = {}
    for info in model.compiled.kernels:
        kinds[info.symbol] = info.kind
        if info.flops is not None and info.flops.symbols() <= symbols.keys():
            flops[info.symbol] += info.flops.evaluate(symbols)
    rows: dict[str, list[int]] = {}
    for x in launches:
        row = rows.setdefault(x.kernel, [0, x.tasks, 0])
        row[0] += 1
        row[2] += x.ns
    yield f"{'kernel':74} {'kind':9} {'n':>3} {'tasks':>6} {'ms':>8} {'share':>6} {'us each':>8} {'GFLOP/s':>8}"
    for name, (count, tasks, ns) in sorted(rows.items(), key=lambda r: -r[1][2]):
        rate = f"{flops[name] / ns:8.0f}" if flops.get(name) else ""
        yield (
            f"{name[:74]:74} {kinds.get(name, ''):9} {count:3} {tasks:6} {ns / 1e6:8.3f} {ns / whole:6.1%} "
            f"{ns / 1e3 / count:8.1f} {rate}"
        )
    total = sum(flops.values())
    yield f"{'other':98} {other / 1e6:8.3f} {other / whole:6.1%}"
    yield f"{'run':98} {whole / 1e6:8.3f} {'':15} {total / whole:8.0f}"


def parse_point(text: str) -> Point:
    return {k: int(v) for k, _, v in (part.partition("=") for part in text.split(","))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--models", type=Path, required=True, help="directory of materialised models")
    parser.add_argument("--points", type=parse_point, nargs="+", help="as B=1,S=7; default: the model's trace")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--target", default=native_target())
    parser.add_argument("--runs", type=int, default=5)
    args: Any = parser.parse_args()
    set_num_threads(args.threads)
    model = Model(args.models, args.name, args.target)
    for point in args.points or model.points:
        print(f"\n{args.name} {point}, {args.threads} threads, {args.target}")
        for line in table(model, model.arguments(point), args.runs, args.threads):
            print(line, flush=True)


if __name__ == "__main__":
    main()
