"""The published benchmark: each model at every point of its trace, TensorFlow and disc_tf side by side on the same threads.

    python -m bench.run --models build/models --json build/bench.json --markdown docs/performance.md

Both sides run in processes of their own, in interleaved rounds; TensorFlow runs as users run it (grappler on, oneDNN as it comes). Per
shape: the first run, median, 99th percentile; per model: compile time, peak memory above the bare process. Losses are shown like wins.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from disc_tf.testing.differential import BenchRow, bench_graphs
from disc_tf.testing.inputs import specs_from_json

DEFAULT_MODELS = ("tiny_bert", "bert_base")


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def optimize(graph: Path, output: Path, report: Path) -> float:
    """Seconds of the command, without verification."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "disc_tf.cli", "optimize", graph, "-o", output, "--no-verify", "-q", "--report", report]
    subprocess.run([str(c) for c in command], check=True)
    return time.perf_counter() - start


def measure(models: Path, name: str, threads: int, rounds: int, work: Path) -> dict[str, Any]:
    specs, outputs, trace = specs_from_json(models / f"{name}.json")
    flops = [p["flops"] for p in json.loads((models / f"{name}.json").read_text())["points"]]
    optimized, report = work / f"{name}.pb", work / f"{name}.report.json"
    seconds = optimize(models / f"{name}.pb", optimized, report)

    def show(row: BenchRow) -> None:
        print(f"{name} {dict(row.dims)}: {row.original.median:.2f} -> {row.optimized.median:.2f} ms ({row.ratio:.2f}x)", flush=True)

    rows = bench_graphs(models / f"{name}.pb", optimized, specs, outputs, trace, threads=threads, rounds=rounds, progress=show)
    ratios = [r.ratio for r in rows]
    return {
        "model": name,
        "compile_seconds": seconds,
        "report": json.loads(report.read_text()),
        "geometric_mean": statistics.geometric_mean(ratios),
        "minimum": min(ratios),
        "points": [{**r.to_dict(), "gflops": f / r.optimized.median / 1e6} for r, f in zip(rows, flops, strict=True)],
    }


#: what lies between these two lines of the page is measured; the rest is written by hand
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def replace_measured(page: str, text: str) -> str:
    """The page with its measured part replaced; ``ValueError`` if it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no part between {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{text}{END}{after}"


def markdown(results: list[dict[str, Any]], threads: int, command: str) -> str:
    import tensorflow as tf

    lines = [
        f"Measured on {cpu_model()}, {threads} threads, TensorFlow {tf.__version__}, by",
        "",
        f"    {command}",
        "",
        "Times are medians in milliseconds of whole `Session` calls; TensorFlow and disc_tf run in interleaved rounds on the same threads.",
        "",
        "*compile* is the compiler for x86-64-v2, v3 and v4; *command* all of `disc-tf optimize`, reading and writing included.",
        "",
        "| model | geometric mean | least | compile | command | kernels | peak memory TF | peak memory disc_tf |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in results:
        clusters = [c for c in r["report"]["clusters"] if c["status"] == "compiled"]
        kernels = sum(len(c["kernels"]) for c in clusters)
        last = r["points"][-1]
        compile = r["report"]["times_ms"]["compile"] / 1e3
        lines.append(
            f"| {r['model']} | {r['geometric_mean']:.2f}x | {r['minimum']:.2f}x | {compile:.1f} s | "
            f"{r['compile_seconds']:.1f} s | {kernels} | "
            f"{last['original']['peak_mb']:.0f} MB | {last['optimized']['peak_mb']:.0f} MB |"
        )
    for r in results:
        lines += ["", f"## {r['model']}", ""]
        lines += ["| dims | TF cold | TF | disc_tf cold | disc_tf | p99 TF | p99 disc_tf | speed-up | GFLOP/s |"]
        lines += ["| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
        for p in r["points"]:
            dims = ", ".join(f"{k}={v}" for k, v in p["dims"].items())
            a, b = p["original"], p["optimized"]
            lines.append(
                f"| {dims} | {a['cold']:.1f} | {a['median']:.2f} | {b['cold']:.1f} | {b['median']:.2f} | {a['p99']:.2f} | "
                f"{b['p99']:.2f} | {p['ratio']:.2f}x | {p['gflops']:.0f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="directory of materialised models")
    parser.add_argument("--names", nargs="+", default=list(DEFAULT_MODELS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        results = [measure(args.models, n, args.threads, args.rounds, Path(work)) for n in args.names]
    for r in results:
        print(f"{r['model']}: geometric mean {r['geometric_mean']:.2f}x, least {r['minimum']:.2f}x")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=2))
    if args.markdown:
        text = markdown(results, args.threads, "make bench")
        page = args.markdown.read_text() if args.markdown.exists() else f"# Performance\n\n{BEGIN}\n{END}\n"
        args.markdown.write_text(replace_measured(page, text))


if __name__ == "__main__":
    main()
