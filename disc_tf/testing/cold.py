"""What the first answer of a fresh process costs."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from disc_tf.testing.differential import Side
from disc_tf.testing.inputs import InputSpec, make_feeds
from disc_tf.testing.tf_process import TfProcess


@dataclasses.dataclass(frozen=True)
class Cold:
    """Milliseconds, medians over fresh processes: ``start`` until the graph is loaded (TensorFlow's import is most of it), ``first`` of the
    first run."""

    start: float
    first: float


#: (path, whether our op library is loaded, threads) -> a side in a fresh process
Starter = Callable[[str | Path, bool, int], AbstractContextManager[Side]]


def graph_starter(specs: Sequence[InputSpec], outputs: Sequence[str]) -> Starter:
    """Starts GraphDefs."""
    names = [f"{s.name}:0" for s in specs]
    return lambda path, ops, threads: TfProcess(path, names, outputs, ops=ops, threads=threads)


def cold_starts(
    original: str | Path,
    optimized: str | Path,
    specs: Sequence[InputSpec],
    size: Mapping[str, int],
    start: Starter,
    *,
    processes: int,
    threads: int = 0,
    progress: Callable[[str], None] = lambda _text: None,
) -> dict[str, Cold]:
    """``original`` and ``optimized`` -> their `Cold`, from ``processes`` processes each, in turn. Raises `TfError` if a side raises."""
    feeds = make_feeds(specs, size)
    found: dict[str, list[tuple[float, float]]] = {"original": [], "optimized": []}
    for i in range(processes):
        progress(f"fresh processes ({i + 1} of {processes})")
        for side, path in (("original", original), ("optimized", optimized)):
            before = time.perf_counter()
            with start(path, side == "optimized", threads) as process:
                loaded = (time.perf_counter() - before) * 1e3
                found[side].append((loaded, process.time(feeds, 1, 0)[0] * 1e3))
    return {side: Cold(*map(statistics.median, zip(*rows, strict=True))) for side, rows in found.items()}
