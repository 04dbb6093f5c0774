"""The report of an optimised SavedModel: one `Report` for each function (or for the main graph of TensorFlow 1)."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import Any

from disc_tf.frontend.saved_model import title_of
from disc_tf.report import (
    REPORT_VERSION,
    ClusterReport,
    Report,
    ShapeResult,
    compiled_line,
    headline,
    shape_line,
    speed_line,
    verified_text,
)

#: how the main graph is named among the functions
MAIN_GRAPH = "(main graph)"


@dataclasses.dataclass
class FunctionReport:
    """``status``: compiled, unchanged (nothing in it compiles), passes_on (it only calls another function) or left (see ``reason``).
    ``called_by``: signatures, methods and functions."""

    name: str
    status: str
    called_by: list[str]
    reason: str = ""
    report: Report | None = None


@dataclasses.dataclass
class SavedModelReport:
    """Of one MetaGraph, the first that was looked at; those of the file's others are in ``other_graphs``.

    ``skipped``: function -> why it was not looked at. ``source_digest``: sha256 of the original's saved_model file.
    ``verification``: by signature. ``verified``: None if nothing could be compared or it was not asked for. ``routes``: the loaders that
    the proof read the written files with. ``same``: signature -> the one that was verified for it, as both are one computation.
    ``reason``: why the whole MetaGraph was left as it is, "" if it was looked at.
    """

    compiler_version: str = ""
    source_digest: str = ""
    tags: list[str] = dataclasses.field(default_factory=list)
    signatures: list[str] = dataclasses.field(default_factory=list)
    functions: list[FunctionReport] = dataclasses.field(default_factory=list)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    warnings: list[str] = dataclasses.field(default_factory=list)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    times_ms: dict[str, float] = dataclasses.field(default_factory=dict)
    verification: dict[str, list[ShapeResult]] = dataclasses.field(default_factory=dict)
    verified: bool | None = None
    routes: list[str] = dataclasses.field(default_factory=list)
    same: dict[str, str] = dataclasses.field(default_factory=dict)
    reason: str = ""
    other_graphs: list[SavedModelReport] = dataclasses.field(default_factory=list)

    @property
    def graphs(self) -> list[SavedModelReport]:
        """The reports of all MetaGraphs, this one first."""
        return [self, *self.other_graphs]

    @property
    def title(self) -> str:
        """The MetaGraph's tags."""
        return title_of(self.tags)

    @property
    def clusters_of_all(self) -> dict[str, ClusterReport]:
        """`clusters` of all MetaGraphs; with the tags before each name, where there are several."""
        if not self.other_graphs:
            return self.clusters
        return {f"[{g.title}] {name}": c for g in self.graphs for name, c in g.clusters.items()}

    @property
    def verified_all(self) -> bool | None:
        """`verified` for every MetaGraph with compiled clusters: False if one differs, None if one could not be compared."""
        found = [g.verified for g in self.graphs if g.compiled_clusters or g.verified is not None]
        return False if False in found else None if None in found or not found else True

    @property
    def reports(self) -> dict[str, Report]:
        """Function name -> its report, where there is one."""
        return {f.name: f.report for f in self.functions if f.report is not None}

    @property
    def clusters(self) -> dict[str, ClusterReport]:
        """``function:cluster`` -> its entry."""
        return {f"{name}:{c.name}": c for name, r in self.reports.items() for c in r.clusters}

    @property
    def compiled_clusters(self) -> list[ClusterReport]:
        return [c for c in self.clusters.values() if c.status == "compiled"]

    @property
    def compute_nodes(self) -> int:
        return sum(r.compute_nodes for r in self.reports.values())

    @property
    def compiled_nodes(self) -> int:
        return sum(r.compiled_nodes for r in self.reports.values())

    @property
    def coverage(self) -> float:
        """Share of the nodes of the functions looked at that run inside DiscLaunch; see `Report.coverage`."""
        return self.compiled_nodes / self.compute_nodes if self.compute_nodes else 0.0

    @property
    def headline(self) -> str:
        """See `Report.headline`: of this MetaGraph."""
        return headline(self.compiled_nodes, self.compute_nodes, [x for r in self.reports.values() for x in r.left_out])

    @property
    def reasons(self) -> dict[str, int]:
        """Reason code -> number of nodes left out."""
        return dict(sum((Counter(r.reasons) for r in self.reports.values()), Counter()).most_common())

    def to_json(self, *, indent: int | None = 2) -> str:
        return json.dumps({"report_version": REPORT_VERSION, "kind": "saved_model", **self._data()}, indent=indent)

    def _data(self) -> dict[str, Any]:
        others = [g._data() for g in self.other_graphs]
        derived = {"coverage": self.coverage, "headline": self.headline, "reasons": self.reasons}
        return {**derived, **dataclasses.asdict(self), "other_graphs": others}

    def to_text(self) -> str:
        """A summary for a terminal, MetaGraph after MetaGraph. Its first line says so if little was compiled."""
        lines = [*filter(None, [self.headline])]
        for g in self.graphs:
            lines += g._lines("a SavedModel" if g is self else "another graph of it")
        return "\n".join(lines)

    def _lines(self, what: str) -> list[str]:
        said = f"{what} ({self.title}), signatures {', '.join(self.signatures) or '(none)'}"
        if self.reason:
            return [f"{said}: left as it is: {self.reason}"]
        lines = [
            f"disc_tf {self.compiler_version}: {said}",
            compiled_line(self.clusters.values(), self.compiled_nodes, self.compute_nodes, self.coverage),
        ]
        for f in self.functions:
            if f.status == "passes_on":
                continue
            lines.append(f"{f.name} ({', '.join(f.called_by)}): {f.status}{': ' if f.reason else ''}{f.reason}")
            if f.report is not None:
                lines += [f"  {line}" for line in f.report.body()[1:]]
        for name, why in self.skipped.items():
            lines.append(f"{name}: left as it is: {why}")
        lines += [f"warning: {w}" for w in self.warnings]
        for signature, shapes in self.verification.items():
            lines.append(f"signature {signature}:")
            lines += [f"  {shape_line(s)}" for s in shapes]
        lines += [f"signature {name}: the same computation as {first}" for name, first in self.same.items()]
        if self.verified is not None:
            lines.append(verified_text(self.verification, self.routes) if self.verified else "NOT verified: see above")
        return [*lines, *filter(None, [speed_line([r for results in self.verification.values() for r in results])])]
