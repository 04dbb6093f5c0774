"""What runs at the server's side: a skeleton is compiled. Imports no TensorFlow and reads nothing but its arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.functions import every_node
from disc_tf.frontend.graph import Graph
from disc_tf.frontend.patterns import PATTERN_ATTR, fill
from disc_tf.frontend.tfproto import graph_from_bytes
from disc_tf.optimizer import Request, compile_graph
from disc_tf.options import OptionError, Options
from disc_tf.remote.messages import new
from disc_tf.remote.result import add_launch
from disc_tf.version import __version__

Progress = Callable[[str, float, str], None]
_STEP = re.compile(r"\((\d+) of (\d+)\)")


def compile_skeleton(
    graph: bytes,
    outputs: Sequence[str],
    feeds: Sequence[str] = (),
    options: Any = None,
    *,
    dry_run: bool = False,
    progress: Progress = lambda _phase, _fraction, _text: None,
) -> Any:
    """A CompileResult for a serialized GraphDef whose constants may be without content.

    ``options``: a CompileOptions message. dry_run: only ``report_json`` is filled in. ``progress(phase, fraction, text)``; the fraction
    is negative where it is not known. Raises ``GraphError`` and ``OptionError`` for what the client did wrong; anything else is a defect.
    """
    graph_def = graph_from_bytes(graph)
    if not outputs:
        raise GraphError("no outputs are given: name what is fetched")
    for node in every_node(graph_def):
        if node.op == "Const" and PATTERN_ATTR in node.attr:
            fill(node)
    settings = options_of(options)
    done = [0.0]

    def say(text: str) -> None:
        if step := _STEP.search(text):
            done[0] = (int(step[1]) - 1) / max(int(step[2]), 1)
        _, colon, phase = text.rpartition(": ")
        progress(phase if colon else text, done[0] if step or done[0] else -1.0, text)

    say("analysing")
    runs = tuple(tuple(run.outputs) for run in options.runs) if options is not None else ()
    request = Request(graph_def, list(outputs), settings, tuple(feeds), dry_run=dry_run, progress=say, runs=runs)
    compiled = compile_graph(Graph(graph_def), request)
    result = new("CompileResult", compiler_version=__version__, report_json=compiled.report.to_json(indent=None).encode())
    if dry_run:
        return result
    for launch in compiled.launches:
        add_launch(result, launch)
    inside = {n for launch in compiled.launches for n in launch.cluster.node_names}
    result.compiled.extend(sorted(compiled.clustering.compiled - inside))
    return result


def options_of(message: Any) -> Options:
    """The compiler's options of a CompileOptions message. `OptionError` for values that it does not take."""
    values: dict[str, Any] = {"use_tf_shapes": False}
    if message is None:
        return Options.from_overrides(values)
    if message.targets:
        if "native" in message.targets:
            raise OptionError("target 'native' means the client's machine: name the instruction set")
        values["targets"] = list(message.targets)
    if message.min_cluster_size:
        values["min_cluster_size"] = message.min_cluster_size
    if message.HasField("fuel"):
        values["fuel"] = message.fuel
    values["deny"] = list(message.denied)
    values["hints"] = list(message.hints)
    if message.time_budget:
        values["time_budget"] = max(1, round(message.time_budget))
    return Options.from_overrides(values)
