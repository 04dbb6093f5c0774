"""What partial execution gains: a model of two towers whose second input is late, and one with an early exit.

    python -m bench.partial [--rows 256] [--rounds 15]

Each model is compiled as one segment and as several. Times are from the start of the run (the first input is there) to the result, in the
background runner; the late input arrives after as long as the first tower takes. Medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from disc_tf.frontend.tensor_proto import fill_tensor
from disc_tf.frontend.tfproto import message_class
from disc_tf.runtime import Runner, load
from disc_tf.standalone import compile_graph_def

WIDTH, LAYERS = 768, 6


class Graph:
    """A GraphDef of dense layers."""

    def __init__(self) -> None:
        self.proto = message_class("GraphDef")()
        self.rng = np.random.default_rng(0)

    def node(self, op: str, *inputs: str, name: str = "") -> str:
        name = name or f"n{len(self.proto.node)}"
        node = self.proto.node.add(name=name, op=op)
        node.input.extend(inputs)
        node.attr["T" if op not in ("Placeholder", "Const") else "dtype"].type = 1
        if op == "Placeholder":
            for size in (-1, WIDTH):
                node.attr["shape"].shape.dim.add().size = size
        return name

    def layers(self, x: str, count: int) -> str:
        for _ in range(count):
            w = self.node("Const")
            array = self.rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / np.float32(np.sqrt(WIDTH))
            fill_tensor(self.proto.node[-1].attr["value"].tensor, array)
            x = self.node("Relu", self.node("MatMul", x, w))
        return x


def towers() -> Graph:
    """Two towers of equal work and a short part where they meet."""
    g = Graph()
    ends = [g.layers(g.node("Placeholder", name=name), LAYERS) for name in ("query", "item")]
    g.node("Tanh", g.layers(g.node("AddV2", *ends), 1), name="score")
    return g


def early_exit() -> Graph:
    """A result after a sixth of the work."""
    g = Graph()
    first = g.layers(g.node("Placeholder", name="x"), 2)
    g.node("Tanh", g.layers(first, 1), name="exit")
    g.node("Tanh", g.layers(first, 2 * LAYERS), name="final")
    return g


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def median_ms(values: list[float]) -> float:
    return statistics.median(values) * 1e3


def measure_towers(models: dict[str, Runner], rows: int, rounds: int) -> None:
    x = {n: np.random.default_rng(1).standard_normal((rows, WIDTH)).astype(np.float32) for n in ("query", "item")}
    whole = {kind: [seconds(lambda m=m: m.run(x)) for _ in range(5)] for kind, m in models.items()}
    delay = min(whole["one"]) * LAYERS / (2 * LAYERS + 1)

    def late(model: Runner) -> float:
        item: Future[np.ndarray] = Future()
        timer = threading.Timer(delay, item.set_result, [x["item"]])
        start = time.perf_counter()
        job = model.run_async({"query": x["query"], "item": item})
        timer.start()
        job.result()
        return time.perf_counter() - start

    found: dict[str, list[float]] = {kind: [] for kind in models}
    plain: dict[str, list[float]] = {kind: [] for kind in models}
    for _ in range(rounds):
        for kind, model in models.items():
            found[kind].append(late(model))
            plain[kind].append(seconds(lambda m=model: m.run(x)))
    print(f"two towers, {rows} rows, second input {delay * 1e3:.1f} ms late")
    for kind in models:
        print(f"  {kind:5s} score after {median_ms(found[kind]):7.2f} ms;  with both inputs there {median_ms(plain[kind]):7.2f} ms")


def measure_exit(model: Runner, rows: int, rounds: int) -> None:
    x = {"x": np.random.default_rng(1).standard_normal((rows, WIDTH)).astype(np.float32)}
    early, final = [], []
    for _ in range(rounds):
        came: dict[str, float] = {}
        start = time.perf_counter()
        model.run_async(x, on_output=lambda n, _a, came=came: came.setdefault(n, time.perf_counter())).result()
        early.append(came["exit"] - start)
        final.append(came["final"] - start)
    print(f"early exit, {rows} rows\n  exit after {median_ms(early):7.2f} ms, final after {median_ms(final):7.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temp:

        def build(graph: Graph, outputs: list[str], segments: str) -> Runner:
            path = Path(temp) / f"{outputs[0]}_{segments}.disc"
            compile_graph_def(graph.proto, outputs, path, targets="native", use_tf_shapes=False, segments=segments)
            return load(path)

        measure_towers({kind: build(towers(), ["score"], kind) for kind in ("one", "auto")}, args.rows, args.rounds)
        measure_exit(build(early_exit(), ["exit", "final"], "auto"), args.rows, args.rounds)


if __name__ == "__main__":
    main()
