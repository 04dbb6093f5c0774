"""A small graph that shows a defect of the compiler: for reports of internal errors, without weights or values of the model.

`reproducers` compiles a graph, cuts out the nodes that each defect is about, and drops what is not needed for the same error in the same
phase. Inputs of the cut are placeholders; constants of more than a few elements become placeholders too.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from disc_tf.frontend.cluster import Clustering
from disc_tf.frontend.graph import TensorRef, tensor_name
from disc_tf.frontend.tensor_proto import fill_tensor
from disc_tf.optimizer import clusters_of, optimize_graph_def
from disc_tf.options import Options
from disc_tf.report import Defect

#: elements of a constant that a reproducer holds: axes, shapes and paddings
_MOST_ELEMENTS = 64
#: seconds for dropping nodes, for each defect
SECONDS = 30.0


@dataclasses.dataclass
class Reproducer:
    """``graph`` shows ``defect`` when its ``outputs`` are compiled; ``exact``: it was seen to."""

    cluster: str
    defect: Defect
    graph: Any
    outputs: list[str]
    exact: bool


def reproducers(graph_def: Any, outputs: Sequence[str] | None, options: Options) -> list[Reproducer]:
    """One for each defect that is met, defects of one line once. Errors as `optimize_graph_def`."""
    report = optimize_graph_def(graph_def, outputs, options).report
    found = {(d.phase, d.where): (c.name, d) for c in report.clusters for d in c.defects}
    if not found:
        return []
    _, clustering = clusters_of(graph_def, outputs, options)
    nodes = {c.name: c.node_names for c in clustering.clusters}
    return [_smallest(graph_def, clustering, name, defect, nodes[name], options) for name, defect in found.values()]


def _smallest(
    graph_def: Any, clustering: Clustering, cluster: str, defect: Defect, nodes: Sequence[str], options: Options
) -> Reproducer:
    """The nodes of the defect alone, else of its cluster, less what is not needed."""
    settings = dataclasses.replace(options, min_cluster_size=1, dump_dir="")

    def made(names: Collection[str], exact: bool) -> Reproducer:
        return Reproducer(cluster, defect, *cut(graph_def, clustering, names), exact)

    for start in (defect.nodes, nodes):
        names = [n for n in nodes if n in set(start)]
        if names and _shows(made(names, True), settings):
            return made(_reduced(names, lambda some: _shows(made(some, True), settings)), True)
    return made(nodes, False)


def _shows(candidate: Reproducer, options: Options) -> bool:
    """Whether the defect is met in it."""
    wanted = candidate.defect
    try:
        report = optimize_graph_def(candidate.graph, candidate.outputs, options).report
    except Exception:  # what was cut is not a graph
        return False
    return any((d.phase, d.where) == (wanted.phase, wanted.where) for c in report.clusters for d in c.defects)


def _reduced(names: list[str], shows: Any) -> list[str]:
    """The names without halves, quarters ... and single ones that are not needed."""
    end = time.monotonic() + SECONDS
    for part in _parts(len(names)):
        at = 0
        while at < len(names) and time.monotonic() < end:
            fewer = names[:at] + names[at + part :]
            if fewer and shows(fewer):
                names = fewer
            else:
                at += part
    return names


def _parts(count: int) -> Iterator[int]:
    while count > 1:
        count //= 2
        yield count


def cut(graph_def: Any, clustering: Clustering, names: Collection[str]) -> tuple[Any, list[str]]:
    """The nodes as a graph of their own, and its outputs: what others read of them."""
    graph, inside = clustering.graph, set(names)
    out = type(graph_def)()
    out.versions.CopyFrom(graph_def.versions)
    out.library.CopyFrom(graph_def.library)
    made: set[str] = set()
    fetched = {ref for ref in clustering.fetches if ref[0] in inside}
    used: set[str] = set()
    for node in clustering.order:
        if node.name in inside:
            used |= {name for name, _ in node.inputs}
            for ref in node.inputs:
                if ref[0] not in inside and (name := _input_name(ref)) not in made:
                    made.add(name)
                    _add_input(out, clustering, ref, name)
        else:
            fetched |= {ref for ref in node.inputs if ref[0] in inside}
    for node in clustering.order:
        if node.name not in inside:
            continue
        new = out.node.add()
        new.CopyFrom(node.proto)
        del new.input[:]
        new.device = ""
        new.input.extend(tensor_name(r) if r[0] in inside else _input_name(r) for r in node.inputs)
        new.input.extend(f"^{c}" for c in node.controls if c in inside)
    outputs = sorted({tensor_name(r) for r in fetched} | {n for n in inside if n not in used and graph[n].op != "Const"})
    return out, outputs


def _input_name(ref: TensorRef) -> str:
    return ref[0] if ref[1] == 0 else f"{ref[0]}__{ref[1]}"


def _add_input(out: Any, clustering: Clustering, ref: TensorRef, name: str) -> None:
    """A placeholder for a tensor, or a small constant itself."""
    constant = clustering.graph.constant(ref[0])
    types = clustering.graph[ref[0]].output_types
    number = types[ref[1]] if types is not None and ref[1] < len(types) else 0
    if constant is not None:
        array = constant.array()
        if array.size <= _MOST_ELEMENTS:
            new = out.node.add(name=name, op="Const")
            new.attr["dtype"].type = number
            fill_tensor(new.attr["value"].tensor, array)
            new.attr["value"].tensor.dtype = number
            return
    new = out.node.add(name=name, op="Placeholder")
    new.attr["dtype"].type = number
    known = clustering.analysis.type_of(ref) if clustering.analysis is not None else None
    if known is None:
        new.attr["shape"].shape.unknown_rank = True
        return
    new.attr["shape"].shape.SetInParent()
    for d in known.dims:
        new.attr["shape"].shape.dim.add().size = int(d) if d.is_static else -1
