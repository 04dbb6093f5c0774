"""Which kind of thing a path or a graph is, where the wrong kind would fail late or in words of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from disc_tf.commands.common import BAD_INPUT, USAGE, CommandError
from disc_tf.frontend.external import EXTERNAL_OP
from disc_tf.frontend.rewrite import OPTIMIZED, launch_nodes
from disc_tf.runtime.artifact import PREFIX


def is_optimized(message: Any) -> bool:
    """Whether a GraphDef or SavedModel message holds nodes that need the op library."""
    graphs = [m.graph_def for m in message.meta_graphs] if hasattr(message, "meta_graphs") else [message]
    return any(launch_nodes(message)) or any(node.op == EXTERNAL_OP for graph in graphs for node in graph.node)


def refuse_as_original(path: str, message: Any) -> None:
    """`CommandError` (usage) for what is optimised in the place of the original: a process without the op library would have to load it."""
    if is_optimized(message):
        raise CommandError(f"{path} is optimised already: the original comes first", USAGE)


def refuse_as_input(path: str, graph: Any) -> None:
    """`CommandError` for a graph with compiled code in it: what is restored of the result would not be an original."""
    if any(launch_nodes(graph)):
        raise CommandError(f"{path} {OPTIMIZED}", BAD_INPUT)


def is_standalone(path: str) -> bool:
    """Whether the file begins like a stand-alone one."""
    try:
        with Path(path).open("rb") as f:
            return f.read(len(PREFIX)) == PREFIX
    except OSError:
        return False
