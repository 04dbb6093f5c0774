"""Replay files of an optimisation: of the clusters that were found to be wrong, else of all of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.frontend.tfproto import serialized
from disc_tf.insight.capture import capture
from disc_tf.insight.replay_file import SUFFIX, Replay, make_replay, write_replay
from disc_tf.insight.rerun import differs
from disc_tf.report import Report
from disc_tf.scratch import scratch
from disc_tf.testing.inputs import InputSpec, make_feeds
from disc_tf.testing.tf_process import ProcessFailed, TfError


def capture_faults(
    graph_def: Any,
    report: Report,
    specs: Sequence[InputSpec],
    sizes: Sequence[Mapping[str, int]],
    directory: Path,
    *,
    threads: int = 0,
    write: Callable[[str, bytes], None],
    progress: Callable[[str], None] = lambda _text: None,
) -> list[str]:
    """Write a replay file for each cluster of ``graph_def`` (as it was before anything was put back) that was put back because it differs;
    if there is none, for each cluster. The arguments are made from generated feeds. Returns the paths.

    What cannot be captured becomes a warning in ``report``.
    """
    wrong = [c.name for c in report.clusters if c.status == "put_back" and c.reason.startswith("differs")]
    wanted = wrong or [c.name for c in report.clusters if c.status in ("compiled", "put_back")]
    made: dict[str, Replay] = {}
    with scratch() as name:  # nothing but replay files is written to the user's directory
        work = Path(name)
        path = work / "candidate.pb"
        path.write_bytes(serialized(graph_def))
        for i, size in enumerate(sizes):
            open_ = [c for c in wanted if c not in made]
            if not open_:
                break
            last = i == len(sizes) - 1
            try:
                found = capture(path, graph_def, [s.name for s in specs], make_feeds(specs, size, seed=i), open_, threads=threads)
            except (TfError, ProcessFailed) as e:
                if last:
                    report.warnings.append(f"not captured: {', '.join(open_)}: {str(e).splitlines()[0]}")
                continue
            for cluster, arguments in found.items():
                replay = _replay(graph_def, cluster, arguments, size)
                progress(f"{cluster}: captured at {_spelled(size)}")
                if cluster not in wrong or last or differs(replay, work, threads=threads):
                    made[cluster] = replay
    written = []
    for file, replay in zip(_file_names(made), made.values(), strict=True):
        target = directory / file
        write(str(target), write_replay(replay))
        written.append(str(target))
    return written


def _file_names(clusters: Iterable[str]) -> list[str]:
    """A file for each cluster; names that are spelled alike in a file system's alphabet get numbers."""
    taken: dict[str, None] = {}
    for cluster in clusters:
        clean = re.sub(r"[^A-Za-z0-9_.-]", "_", cluster)
        names = (f"{clean}{n}{SUFFIX}" for n in itertools.chain([""], (f"-{i}" for i in itertools.count(2))))
        taken[next(n for n in names if n not in taken)] = None
    return list(taken)


def _replay(graph_def: Any, name: str, arguments: Sequence[np.ndarray], size: Mapping[str, int]) -> Replay:
    return make_replay(graph_def, name, arguments, note=f"captured at {_spelled(size)}")


def _spelled(size: Mapping[str, int]) -> str:
    return ", ".join(f"{k}={v}" for k, v in size.items()) or "the graph's static shapes"
