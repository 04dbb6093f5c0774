"""A GraphDef is read, its outputs are resolved, its calls inlined: what every user of the frontend does first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from disc_tf.frontend.functions import inline_calls
from disc_tf.frontend.graph import Graph, TensorRef, resolve_outputs


@dataclasses.dataclass
class Loaded:
    """``graph``: checked, calls inlined. ``fetches``, ``targets``: the outputs, by the names that the caller's graph has;
    ``control_sinks``: nodes that nothing but their own effect needs (default outputs leave them out). ``kept_calls``: calls that were not
    inlined, with the reason."""

    graph: Graph
    fetches: list[TensorRef]
    targets: list[str]
    control_sinks: list[str]
    kept_calls: dict[str, str]


def load(graph_def: Any, outputs: Sequence[str] | None = None, *, keep_control: bool = False) -> Loaded:
    """Check the graph as it is given, take its outputs (None: the data sinks, with ``keep_control`` also the control-only ones), inline.

    ``GraphError`` for a malformed graph and for outputs that it does not have. The argument is not changed.
    """
    given = Graph(graph_def)
    fetches, targets = resolve_outputs(given, outputs)
    control: list[str] = []
    if outputs is None:
        control = given.sinks()[1]
        if keep_control:
            targets = [*targets, *control]
    inlined = inline_calls(graph_def, [*(name for name, _ in fetches), *targets])
    graph = given if inlined.graph_def is graph_def else Graph(inlined.graph_def)
    return Loaded(graph, fetches, targets, control, inlined.kept)
