"""What the first answer of a fresh process costs."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from disc_tf.testing.inputs import InputSpec, make_feeds
from disc_tf.testing.tf_process import TfProcess


@dataclasses.dataclass(frozen=True)
class Cold:
    """Milliseconds, medians over fresh processes: ``start`` until the graph is loaded (TensorFlow's import is most of it), ``first`` of the
    first run."""

    start: float
    first: float


def cold_starts(
    original: str | Path,
    optimized: str | Path,
    specs: Sequence[InputSpec],
    outputs: Sequence[str],
    size: Mapping[str, int],
    *,
    processes: int,
    threads: int = 0,
    progress: Callable[[str], None] = lambda _text: None,
) -> dict[str, Cold]:
    """``original`` and ``optimized`` -> their `Cold`, from ``processes`` processes each, in turn. Raises `TfError` if a side raises."""
    names = [f"{s.name}:0" for s in specs]
    feeds = make_feeds(specs, size)
    found: dict[str, list[tuple[float, float]]] = {"original": [], "optimized": []}
    for i in range(processes):
        progress(f"fresh processes ({i + 1} of {processes})")
        for side, path in (("original", original), ("optimized", optimized)):
            options: dict[str, Any] = {"threads": threads, "ops": side == "optimized"}
            start = time.perf_counter()
            with TfProcess(path, names, outputs, **options) as process:
                loaded = (time.perf_counter() - start) * 1e3
                found[side].append((loaded, process.time(feeds, 1, 0)[0] * 1e3))
    return {side: Cold(*map(statistics.median, zip(*rows, strict=True))) for side, rows in found.items()}
