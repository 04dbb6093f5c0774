"""The published benchmark: each model at every point of its trace in every engine, side by side on the same threads.

    python -m bench.run --models build/models --json build/bench.json --markdown docs/performance.md

Each engine runs in a process, and where it needs to an interpreter, of its own, all in interleaved rounds; TensorFlow runs as users run it
(grappler on, oneDNN as it comes). Ours is measured as users have it inside TensorFlow, and stand-alone. Per shape: the first call, median,
99th percentile, how far the outputs are from TensorFlow's, the share of the roofline, and what a Session's call takes by itself; per model:
compile time, peak memory above the bare process. Losses are shown like wins, points where a peer is ahead once more by themselves, and
engines that do not take a model with what they say.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.engines import CALL, ENGINES, FAILURES, Compiled, Engine, compile_model, reason, start_engines
from bench.page import markdown, ratios, replace_measured
from bench.roof import least_seconds
from disc_tf.costs import Machine
from disc_tf.insight.roofline import measure
from disc_tf.testing.inputs import make_feeds, specs_from_json
from disc_tf.testing.timing import in_turn

DEFAULT_MODELS = ("micro_chain", "ctr_din", "rnn_tagger", "mobilenet_v2", "tiny_bert", "conformer", "basic_pitch", "bert_base")
#: seconds that an engine runs in a round, about
_ROUND_SECONDS = 0.05
_MOST_RUNS = 100


@dataclasses.dataclass
class Timing:
    """One engine at one point: milliseconds of the first call, median and 99th percentile of warm ones; largest absolute difference from
    TensorFlow's outputs. ``failed``: what the engine said instead."""

    first: float = 0.0
    median: float = 0.0
    p99: float = 0.0
    difference: float = 0.0
    failed: str = ""


def difference(got: list[np.ndarray], want: list[np.ndarray]) -> float:
    """The largest absolute difference; infinite where the shapes differ."""
    most = 0.0
    for g, w in zip(got, want, strict=True):
        if g.shape != w.shape:
            return float("inf")
        if w.size:
            most = max(most, float(np.abs(g.astype(np.float64) - w.astype(np.float64)).max()))
    return most


def measure_point(engines: Mapping[str, Engine], feeds: Sequence[np.ndarray], rounds: int) -> dict[str, Timing]:
    """All engines with the same feeds, in turn, the first one of a round changing."""
    found: dict[str, Timing] = {}
    want: list[np.ndarray] | None = None
    repeats: dict[str, int] = {}
    for name, engine in engines.items():
        try:
            (first,) = engine.time(feeds, 1, 0)
            outputs = engine.run(feeds)
            want = outputs if want is None else want
            repeats[name] = int(np.clip(_ROUND_SECONDS / max(min(engine.time(feeds, 3, 0)), 1e-6), 2, _MOST_RUNS))
            engine.time(feeds, repeats[name], 0)
        except FAILURES as e:
            repeats.pop(name, None)
            found[name] = Timing(failed=reason(e))
            continue
        found[name] = Timing(first=first * 1e3, difference=0.0 if name == CALL else difference(outputs, want))
    every = in_turn([functools.partial(engines[n].time, feeds) for n in repeats], rounds, list(repeats.values()))
    for name, seconds in zip(repeats, every, strict=True):
        values = list(itertools.chain.from_iterable(seconds))
        found[name].median = float(np.median(values)) * 1e3
        found[name].p99 = float(np.quantile(values, 0.99)) * 1e3
    return found


def measure_model(
    models: Path, name: str, threads: int, rounds: int, engines: tuple[str, ...], environments: Path, machine: Machine, work: Path
) -> dict[str, Any]:
    description = models / f"{name}.json"
    specs, _, trace = specs_from_json(description)
    flops = [p["flops"] for p in json.loads(description.read_text())["points"]]
    compiled = compile_model(models / f"{name}.pb", work)
    points: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        started, failed = start_engines(models / f"{name}.pb", description, compiled, threads, work, environments, engines, stack)
        for k, size in enumerate(trace):
            feeds = make_feeds(specs, size, seed=k)
            timings = measure_point(started, feeds, rounds)
            for engine in [e for e, t in timings.items() if t.failed]:
                # what failed once may have left the engine in any state
                failed.setdefault(engine, f"at {dict(size)}: {timings[engine].failed}")
                started.pop(engine).close()
            least = least_seconds(compiled, dict(zip((s.name for s in specs), feeds, strict=True)), flops[k], machine)
            known = {"dims": dict(size), "flops": flops[k], "least_ms": least * 1e3}
            points.append({**known, **{e: dataclasses.asdict(t) for e, t in timings.items()}})
            print(name, dict(size), *(f"{e} {t.median:.3f}" for e, t in timings.items() if not t.failed), flush=True)
        peaks = {e: p.memory()["peak"] - p.info["import_rss"] for e, p in started.items() if e != CALL}
    return {
        "model": name,
        "points": points,
        "failed": failed,
        "peak_bytes": peaks,
        "compile_seconds": compiled.seconds,
        "kernels": _kernels(compiled),
        "compile_ms": compiled.report["times_ms"]["compile"],
    }


def machine_at_best(threads: int, rounds: int = 4) -> Machine:
    """The best of some measurements: what else a machine does can only make it look slower."""
    found = []
    for _ in range(rounds):
        measure.cache_clear()
        found.append(measure(threads))
    sizes = [size for size, _ in found[0].bandwidth]
    rates = [max(m.bandwidth[i][1] for m in found) for i in range(len(sizes))]
    return dataclasses.replace(found[0], gflops=max(m.gflops for m in found), bandwidth=tuple(zip(sizes, rates, strict=True)))


def _kernels(compiled: Compiled) -> int:
    return sum(len(c["kernels"]) for c in compiled.report["clusters"] if c["status"] == "compiled")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="directory of materialised models")
    kept_there = "where peers' interpreters and converted models are kept"
    parser.add_argument("--environments", type=Path, default=Path("build/bench"), help=kept_there)
    parser.add_argument("--names", nargs="+", default=list(DEFAULT_MODELS), help=f"models (default: {' '.join(DEFAULT_MODELS)})")
    parser.add_argument(
        "--engines", nargs="+", default=list(ENGINES), choices=ENGINES, metavar="E", help=f"of: {', '.join(ENGINES)} (default: all)"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of every engine (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds at each shape (default: 5)")
    parser.add_argument("--json", type=Path, help="what was measured; models that are not named keep what the file has of them")
    parser.add_argument("--markdown", type=Path, help="an existing page, whose measured part is rewritten (default: none)")
    args = parser.parse_args()
    page = replace_measured(args.markdown.read_text(), "") if args.markdown else ""
    machine = machine_at_best(args.threads)
    kept = json.loads(args.json.read_text())["models"] if args.json and args.json.exists() else []
    results = {r["model"]: r for r in kept}
    wanted = (*args.engines, CALL) if "tensorflow" in args.engines else tuple(args.engines)
    for name in args.names:
        with tempfile.TemporaryDirectory() as work:
            results[name] = measure_model(
                args.models, name, args.threads, args.rounds, wanted, args.environments.resolve(), machine, Path(work)
            )
        found = results[name]
        print(name, *(f"{e} {statistics.geometric_mean(r):.2f}x" for e in args.engines if (r := ratios(found, e))), flush=True)
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps({"machine": machine.to_dict(), "models": list(results.values())}, indent=1))
    if args.markdown:
        ordered = [results[n] for n in DEFAULT_MODELS if n in results] + [r for n, r in results.items() if n not in DEFAULT_MODELS]
        text = markdown(ordered, machine, "make bench", args.environments.resolve())
        args.markdown.write_text(replace_measured(page, text))


if __name__ == "__main__":
    main()
