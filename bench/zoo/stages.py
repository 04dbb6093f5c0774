"""`python -m bench.zoo.stages STAGE NAME DIRECTORY`: what is done with a frozen model, one process a stage.

    optimise    graph.pb -> optimized.pb, optimise.json (the report, seconds)
    check       the answers at every point, odd shape and 20 random ones against the reference -> check.json
    time        TensorFlow and the optimised graph at every point, interleaved rounds on the same threads -> time.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.zoo.model import Model, Sizes, catalogue
from disc_tf.ir.types import DType
from disc_tf.report import ShapeResult, shape_line
from disc_tf.testing.compare import RELATIVE, compare
from disc_tf.testing.differential import BenchRow, bench_graphs, verify_graphs
from disc_tf.testing.inputs import InputSpec, dim_names, make_feeds, specs_from_json
from disc_tf.testing.tf_process import TfProcess

RANDOM_SHAPES = 20
#: see `bounds`
CONDITION = 16.0


def write(path: Path, data: Any) -> None:
    """A result appears as a whole or not at all."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(data, indent=1))
    temporary.rename(path)


def random_sizes(model: Model, specs: Sequence[InputSpec], count: int, seed: int) -> list[dict[str, int]]:
    """``count`` assignments of extents within ``model.ranges``, small ones as likely as large ones."""
    names = sorted(dim_names(specs))
    rng = np.random.default_rng(seed)

    def draw(name: str) -> int:
        low, high = model.ranges.get(name, (1, 64))
        return round(np.exp(rng.uniform(np.log(low), np.log(high))))

    return [{name: draw(name) for name in names} for _ in range(count)]


def optimise(directory: Path, targets: Sequence[str]) -> None:
    report = directory / "report.json"
    command = [sys.executable, "-m", "disc_tf.cli", "optimize", directory / "graph.pb", "-o", directory / "optimized.pb"]
    command += ["--no-verify", "-q", "--report", report, *(f"--target={t}" for t in targets)]
    start = time.perf_counter()
    subprocess.run([str(c) for c in command], check=True)
    seconds = time.perf_counter() - start
    write(directory / "optimise.json", {"seconds": seconds, "report": json.loads(report.read_text())})
    report.unlink()


def sensitivity(reference: TfProcess, feeds: Sequence[np.ndarray], seed: int) -> float:
    """How much the reference's own results move (as `compare` measures) when every float input moves by one unit in its last place."""
    rng = np.random.default_rng(seed)
    moved = [
        np.nextafter(x, np.where(rng.integers(0, 2, x.shape), np.inf, -np.inf).astype(x.dtype)) if x.dtype.kind == "f" else x
        for x in feeds
    ]
    pairs = zip(reference.run(feeds), reference.run(moved), strict=True)
    return max(compare(a, b, tolerance=np.inf).max_rel for a, b in pairs)


def bounds(
    graph: Path, specs: Sequence[InputSpec], outputs: Sequence[str], shapes: Sequence[Sizes], rows: Sequence[ShapeResult], threads: int
) -> list[float]:
    """The bound on the relative error at each shape; rows that only a wider one lets pass become ok.

    It is the one of `compare`, but where the model itself is worse conditioned than that: there it is `CONDITION` times what one unit in
    the last place of the inputs does to the reference. (Deep stacks with random weights can be chaotic; trained ones are not.)
    """
    usual = RELATIVE[DType.F32]
    doubtful = [i for i, r in enumerate(rows) if not r.ok and 0 < max(r.max_rel.values(), default=0.0) < np.inf]
    found = [usual] * len(rows)
    if not doubtful:
        return found
    with TfProcess(graph, [f"{s.name}:0" for s in specs], outputs, reference=True, threads=threads) as reference:
        for i in doubtful:
            found[i] = max(usual, CONDITION * sensitivity(reference, make_feeds(specs, shapes[i], seed=i), seed=i))
            if max(rows[i].max_rel.values()) <= found[i]:
                rows[i].ok, rows[i].message = True, ""
    return found


def check(model: Model, directory: Path, threads: int, limit: int | None, count: int) -> None:
    specs, outputs, points = specs_from_json(directory / "graph.json")
    shapes = [*points[:limit], *map(dict, model.odd), *random_sizes(model, specs, count, seed=11)]

    def show(row: ShapeResult) -> None:
        print(shape_line(row), flush=True)

    rows = verify_graphs(
        directory / "graph.pb", directory / "optimized.pb", specs, outputs, shapes, threads=threads, progress=show
    )
    allowed = bounds(directory / "graph.pb", specs, outputs, shapes, rows, threads)
    found = [{**vars(r), "bound": bound} for r, bound in zip(rows, allowed, strict=True)]
    write(directory / "check.json", {"ok": all(r.ok for r in rows), "shapes": found})
    for row in found:
        if not row["ok"]:
            print("FAILED", row["shapes"], row["message"])


def measure(directory: Path, threads: int, limit: int | None, rounds: int) -> None:
    """Where we lose, both sides are timed again, longer; of the two attempts the one that other work disturbed less (by the sum) counts."""
    specs, outputs, points = specs_from_json(directory / "graph.json")

    def show(row: BenchRow) -> None:
        print(f"{dict(row.dims)}: {row.original.median:.2f} -> {row.optimized.median:.2f} ms ({row.ratio:.2f}x)", flush=True)

    def bench(sizes: Sequence[dict[str, int]], rounds: int) -> list[BenchRow]:
        graphs = directory / "graph.pb", directory / "optimized.pb"
        return bench_graphs(*graphs, specs, outputs, sizes, threads=threads, rounds=rounds, progress=show)

    rows = bench(points[:limit], rounds)
    losses = [i for i, row in enumerate(rows) if row.ratio < 1]
    if losses:
        for i, again in zip(losses, bench([points[i] for i in losses], 2 * rounds), strict=True):
            rows[i] = min(rows[i], again, key=lambda row: row.original.median + row.optimized.median)
    write(directory / "time.json", [r.to_dict() for r in rows])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("optimise", "check", "time"))
    parser.add_argument("name")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--points", type=int, default=None, metavar="N", help="at most N of the points")
    parser.add_argument("--random", type=int, default=RANDOM_SHAPES, metavar="N", help="random shapes of a check")
    parser.add_argument("--target", action="append", default=[])
    args = parser.parse_args(argv)
    model = catalogue()[args.name]
    if args.stage == "optimise":
        optimise(args.directory, args.target)
    elif args.stage == "check":
        check(model, args.directory, args.threads, args.points, args.random)
    else:
        measure(args.directory, args.threads, args.points, args.rounds)


if __name__ == "__main__":
    main()
