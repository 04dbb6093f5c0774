"""What the compiler does for a trace: graph bytes in, optimised graph bytes and report out. Pure: runs here or in another process."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from disc_tf.report import Report


@dataclasses.dataclass
class Request:
    """``graph``: a GraphDef's bytes; ``options``: `disc_tf.Options.to_dict`; ``any_size``: clusters below the smallest size are better
    than none at all."""

    graph: bytes
    fetches: list[str]
    options: Mapping[str, Any]
    any_size: bool = True


@dataclasses.dataclass
class Result:
    """``graph``: the optimised GraphDef's bytes, empty if no cluster was compiled."""

    graph: bytes
    report: Report

    def head(self) -> bytes:
        return self.report.to_json(indent=None).encode()

    @staticmethod
    def of(head: bytes, graph: bytes) -> Result:
        """Raises ValueError, KeyError or TypeError for what is no report."""
        return Result(graph, Report.from_dict(json.loads(head)))


def compile_request(request: Request, progress: Callable[[str], None] = lambda _text: None) -> Result:
    """Raises what `optimize_graph_def` raises."""
    from disc_tf.frontend.tfproto import graph_from_bytes
    from disc_tf.optimizer import optimize_graph_def
    from disc_tf.options import Options

    graph_def = graph_from_bytes(request.graph)
    options = Options.from_overrides(dict(request.options))
    done = optimize_graph_def(graph_def, request.fetches, options, progress=progress)
    if not done.report.clusters and request.any_size and options.min_cluster_size > 1:
        options = Options.from_overrides(options, min_cluster_size=1)
        done = optimize_graph_def(graph_def, request.fetches, options, progress=progress)
    if not done.report.compiled_clusters:
        return Result(b"", done.report)
    return Result(done.graph_def.SerializeToString(), done.report)


def failures(report: Report) -> str:
    """The first clusters that failed, with their reasons; empty if none did."""
    failed = [f"{c.name}: {c.reason}" for c in report.clusters if c.status == "failed"]
    return "; ".join(failed[:3])


def why_nothing(report: Report) -> str:
    """The reason to give when no cluster was compiled."""
    if failed := failures(report):
        return failed
    if not report.left_out:
        return f"none of its {report.total_nodes} nodes computes anything"
    groups: dict[str, list[str]] = {}
    for x in report.left_out:
        groups.setdefault(x.reason, []).append(x.node)
    top: Sequence[tuple[str, list[str]]] = sorted(groups.items(), key=lambda g: -len(g[1]))[:3]
    reasons = "; ".join(f"{reason} ({', '.join(nodes[:3])})" for reason, nodes in top)
    return f"0 of {report.compute_nodes} ops can be compiled: {reasons}"
