"""Engines on a machine that has other work: how much slower each becomes beside processes that only compute.

    python -m bench.contention --models build/models --json build/contention.json --markdown docs/performance.md

Each busy process has a session of its own, so that the kernel's autogroup (as a container's cgroup would) gives it a share of its own.
The engines take turns, each long enough to notice the load and to settle; a turn's time is that of all runs in it. What is compiled and
converted is kept, and ``--prepare`` does nothing else, so that a measurement needs the machine for itself only while it measures.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.engines import FAILURES, Compiled, Engine, EngineProcess, compile_model, start_engines, to_onnx
from bench.page import contention_table, replace_part
from bench.peers.environments import interpreter
from disc_tf.runtime.artifact_file import read_file
from disc_tf.testing.inputs import make_feeds, specs_from_json
from disc_tf.testing.timing import in_turn

ENGINES = ("tensorflow", "onnxruntime", "openvino", "disc_tf", "disc_tf alone")
#: ours with a single thread, which a busy machine must not make faster than ours with all
ONE_THREAD = "one thread"
DEFAULT_MODELS = ("tiny_bert", "mobilenet_v2", "resnet50")
_SETTLE_SECONDS = 0.3


@dataclasses.dataclass(frozen=True)
class Load:
    """Processes that only compute, and their nice value."""

    processes: int
    nice: int = 0

    def __str__(self) -> str:
        if not self.processes:
            return "idle"
        return f"{self.processes} busy{f', nice {self.nice}' if self.nice else ''}"


DEFAULT_LOADS = (Load(0), Load(1), Load(2), Load(4), Load(8), Load(1, 19), Load(2, 19))


def load_of(text: str) -> Load:
    """``2`` or ``2:19``, the second one the nice value."""
    processes, _, nice = text.partition(":")
    return Load(int(processes), int(nice or 0))


@contextlib.contextmanager
def busy(load: Load) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The load's processes, ended on the way out. Each ends by itself when this process does."""
    program = f"import os\nos.nice({load.nice})\nparent = os.getppid()\nwhile os.getppid() == parent:\n for _ in range(100000): pass"
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(load.processes):
            started.append(subprocess.Popen([sys.executable, "-S", "-c", program], start_new_session=True))
        if started:
            time.sleep(_SETTLE_SECONDS)
        yield started
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def prepared(models: Path, name: str, kept: Path) -> Compiled:
    """Both forms of ours, compiled once."""
    kept.mkdir(parents=True, exist_ok=True)
    graph, alone, report = (kept / f"{name}{suffix}" for suffix in (".pb", ".disc", ".report.json"))
    if not (graph.exists() and alone.exists() and report.exists()):
        return compile_model(models / f"{name}.pb", kept)
    return Compiled(graph, alone, json.loads(report.read_text()), tuple(read_file(alone).args), {})


def prepare(models: Path, name: str, engines: Sequence[str], environments: Path) -> None:
    """Everything that is made once: ours, the peers' interpreters and their form of the model."""
    prepared(models, name, environments / "contention")
    peers = [e for e in engines if e in ("onnxruntime", "openvino")]
    for peer in peers:
        interpreter(peer, environments)
    if peers:
        with tempfile.TemporaryDirectory() as work:
            to_onnx(models / f"{name}.pb", models / f"{name}.json", Path(work), environments)


def one_thread(compiled: Compiled, description: Path) -> Engine:
    info = json.loads(description.read_text())
    inputs, outputs = [f"{i['name']}:0" for i in info["inputs"]], list(info["outputs"])
    return EngineProcess("disc_tf alone", compiled.alone, inputs, outputs, 1, sys.executable)


def time_points(engines: Mapping[str, Engine], points: Sequence[Sequence[np.ndarray]], rounds: int, seconds: float) -> dict[str, float]:
    """Milliseconds of each engine, summed over the points: means of whole turns, of them the median."""
    found = dict.fromkeys(engines, 0.0)
    for feeds in points:
        repeats = [int(np.clip(seconds / max(min(e.time(feeds, 3, 1)), 1e-6), 2, 20000)) for e in engines.values()]
        turns = in_turn([functools.partial(e.time, feeds) for e in engines.values()], rounds, repeats)
        for name, every in zip(engines, turns, strict=True):
            found[name] += float(np.median([np.mean(turn) for turn in every])) * 1e3
    return found


def measure_model(
    models: Path, name: str, engines: Sequence[str], loads: Sequence[Load], options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Load -> engine -> milliseconds."""
    description, environments = models / f"{name}.json", options.environments.resolve()
    compiled = prepared(models, name, environments / "contention")
    specs, _, trace = specs_from_json(description)
    points = [make_feeds(specs, size, seed=k) for k, size in enumerate(itertools.islice(trace, options.points))]
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
        started, failed = start_engines(
            models / f"{name}.pb", description, compiled, options.threads, Path(work), environments, tuple(engines), stack
        )
        for engine, why in failed.items():
            print(f"{name}: {engine} left out: {why}", file=sys.stderr)
        with contextlib.suppress(*FAILURES):
            started[ONE_THREAD] = stack.enter_context(one_thread(compiled, description))
        for load in loads:
            with busy(load):
                found[str(load)] = time_points(started, points, options.rounds, options.seconds)
            print(name, load, *(f"{e} {ms:.2f}" for e, ms in found[str(load)].items()), flush=True)
    return found


def merged(kept: dict[str, Any], name: str, found: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Loads that were not measured keep what was known of them."""
    return {**kept, name: {**kept.get(name, {}), **found}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="directory of materialized models")
    parser.add_argument("--environments", type=Path, default=Path("build/bench"), help="where peers and what is compiled are kept")
    parser.add_argument("--names", nargs="+", default=list(DEFAULT_MODELS), help=f"models (default: {' '.join(DEFAULT_MODELS)})")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES, metavar="E", help=f"of: {', '.join(ENGINES)}")
    parser.add_argument("--loads", nargs="+", type=load_of, default=list(DEFAULT_LOADS), help="busy processes, or PROCESSES:NICE")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of every engine (default: all)")
    parser.add_argument("--points", type=int, default=2, help="shapes of each model (default: 2)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each engine (default: 3)")
    parser.add_argument("--seconds", type=float, default=0.4, help="length of a turn (default: 0.4)")
    parser.add_argument("--prepare", action="store_true", help="only compile and convert")
    parser.add_argument("--json", type=Path, help="what was measured; loads and models that are not named keep what the file has of them")
    parser.add_argument("--markdown", type=Path, help="an existing page, whose part on contention is rewritten")
    args = parser.parse_args()
    results = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    for name in args.names:
        if args.prepare:
            prepare(args.models, name, args.engines, args.environments.resolve())
            continue
        results = merged(results, name, measure_model(args.models, name, args.engines, args.loads, args))
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(results, indent=1))
    if args.markdown and not args.prepare:
        args.markdown.write_text(replace_part(args.markdown.read_text(), "contention", contention_table(results)))


if __name__ == "__main__":
    main()
