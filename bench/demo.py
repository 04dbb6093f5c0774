"""The demo of `make demo`: optimize a real BERT, run it at several shapes, print the check against TensorFlow and the speed-up.

    python bench/demo.py DIRECTORY_OF_MODELS
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from disc_tf.testing.differential import bench_graphs, verify_graphs
from disc_tf.testing.inputs import specs_from_json
from disc_tf.testing.timing import busy

SHAPES = [{"B": 1, "S": 7}, {"B": 1, "S": 64}, {"B": 2, "S": 37}, {"B": 4, "S": 61}, {"B": 1, "S": 128}, {"B": 3, "S": 101}]


def main(models: str) -> int:
    graph = Path(models) / "tiny_bert.pb"
    specs, outputs, _ = specs_from_json(graph.with_suffix(".json"))
    with tempfile.TemporaryDirectory() as work:
        optimized = Path(work) / "optimized.pb"
        print(f"$ disc-tf optimize {graph} -o {optimized} --no-verify", flush=True)
        command = [sys.executable, "-m", "disc_tf.cli", "optimize", str(graph), "-o", str(optimized), "--no-verify"]
        subprocess.run(command, check=True)
        print(f"\nchecking against TensorFlow at {len(SHAPES)} shapes (one artefact, no compile at run time)", flush=True)
        note = busy()
        checked = verify_graphs(graph, optimized, specs, outputs, SHAPES)
        rows = bench_graphs(graph, optimized, specs, outputs, SHAPES, rounds=5)
    print(f"\n{'batch':>6s} {'length':>7s} {'TensorFlow':>12s} {'disc_tf':>10s} {'speed-up':>9s} {'max error':>10s}  answers")
    for c, r in zip(checked, rows, strict=True):
        error = max(c.max_abs.values(), default=float("nan"))
        print(
            f"{r.dims['B']:6d} {r.dims['S']:7d} {r.original.median:9.2f} ms {r.optimized.median:7.2f} ms {r.ratio:8.2f}x {error:10.1e}"
            f"  {'same' if c.ok else 'DIFFERENT: ' + c.message}"
        )
    print(f"\ngeometric mean {statistics.geometric_mean([r.ratio for r in rows]):.2f}x")
    if note:
        print(f"note: {note}: make demo")
    return 0 if all(c.ok for c in checked) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
