"""A GraphDef is read, its outputs are resolved, its calls inlined, legacy control flow made functional: what every user of the frontend
does first."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from disc_tf.frontend.body_constants import hoist_constants
from disc_tf.frontend.functions import inline_calls
from disc_tf.frontend.graph import Graph, TensorRef, resolve_outputs
from disc_tf.frontend.legacy import Functional, functionalize
from disc_tf.frontend.reads import hoist_reads
from disc_tf.frontend.resource_gather import read_first


@dataclasses.dataclass
class Loaded:
    """``graph``: checked, calls inlined. ``fetches``, ``targets``: the outputs, by the names that the caller's graph has;
    ``control_sinks``: nodes that nothing but their own effect needs (default outputs leave them out). ``kept_calls``: calls that were not
    inlined, with the reason. ``functional``: While and If nodes that legacy control flow has become; ``legacy``: what of it stays, and
    why."""

    graph: Graph
    fetches: list[TensorRef]
    targets: list[str]
    control_sinks: list[str]
    kept_calls: dict[str, str]
    functional: list[str] = dataclasses.field(default_factory=list)
    legacy: dict[str, str] = dataclasses.field(default_factory=dict)


def load(
    graph_def: Any,
    outputs: Sequence[str] | None = None,
    *,
    keep_control: bool = False,
    keep_legacy: Collection[str] = (),
    verify: bool = False,
    read_tables: bool = False,
) -> Loaded:
    """Check the graph as it is given, take its outputs (None: the data sinks, with ``keep_control`` also the control-only ones), inline
    calls, make legacy control flow functional (but the nodes of ``keep_legacy``).
    ``verify``: let defects in making it functional through. ``read_tables``: see `resource_gather`.

    ``GraphError`` for a malformed graph and for outputs that it does not have. The argument is not changed.
    """
    given = Graph(graph_def)
    fetches, targets = resolve_outputs(given, outputs)
    control: list[str] = []
    if outputs is None:
        control = given.sinks()[1]
        if keep_control:
            targets = [*targets, *control]
    roots = [*(name for name, _ in fetches), *targets]
    graph, kept, functional = expand(given, roots, keep_legacy, verify, read_tables)
    graph = constants_out(graph)
    return Loaded(graph, fetches, targets, control, kept, functional.made, functional.refused)


def expand(
    given: Graph, roots: Sequence[str], keep_legacy: Collection[str] | None, verify: bool = False, read_tables: bool = False
) -> tuple[Graph, dict[str, str], Functional]:
    """The graph that is compiled: calls inlined, variables read before loops, control flow functional (None: legacy control flow
    stays); calls that were kept."""
    inlined = inline_calls(given.graph_def, roots)
    graph_def = hoist_reads(read_first(inlined.graph_def) if read_tables else inlined.graph_def)
    graph = given if graph_def is given.graph_def else Graph(graph_def)
    if keep_legacy is None:
        return graph, inlined.kept, Functional(graph.graph_def)
    functional = functionalize(graph, roots, keep_legacy, verify=verify)
    if functional.graph_def is not graph.graph_def:
        graph = Graph(hoist_reads(functional.graph_def))
    graph.keep_legacy = sorted(keep_legacy)
    return graph, inlined.kept, functional


def constants_out(graph: Graph, places: Collection[tuple[str, str]] | None = None) -> Graph:
    """The graph with constants of bodies taken out of them (see `body_constants`); itself if there are none."""
    hoisted = hoist_constants(graph, places)
    if hoisted.graph_def is graph.graph_def:
        return graph
    new = Graph(hoisted.graph_def)
    new.keep_legacy, new.hoisted, new.before_hoisting = graph.keep_legacy, hoisted.places, hoisted.before
    return new
