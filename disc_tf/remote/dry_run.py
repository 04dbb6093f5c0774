"""What a request would carry, printed instead of sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from disc_tf.frontend.cluster import restored_clustering
from disc_tf.frontend.graph import tensor_name
from disc_tf.frontend.load import Loaded
from disc_tf.optimizer import CompiledGraph, Elsewhere, Request
from disc_tf.remote.merge import Prepared, prepare
from disc_tf.report import Report


def printer(say: Callable[[str], None], *, full: bool = False) -> Elsewhere:
    """Something that takes graphs to compile and prints each request; nothing is compiled."""

    def show(loaded: Loaded, request: Request) -> CompiledGraph:
        ready = prepare(loaded, request, with_contents=full)
        for line in describe(ready, full=full):
            say(line)
        outputs = [tensor_name(ref) for ref in loaded.fetches] + [f"^{t}" for t in loaded.targets]
        return CompiledGraph(restored_clustering(loaded.graph, [], set(), outputs), [], Report())

    return show


def describe(ready: Prepared, *, full: bool = False) -> list[str]:
    """Every value of a request, and what is sent of the rest, as lines."""
    skeleton = ready.skeleton
    ops = Counter(n.op for n in skeleton.graph_def.node) + Counter(n.op for f in skeleton.graph_def.library.function for n in f.node_def)
    lines = [
        f"request: {len(ready.request.graph)} bytes before compression, {len(skeleton.graph_def.node)} nodes, "
        f"{len(skeleton.graph_def.library.function)} functions",
        "nodes by op: " + ", ".join(f"{op} {n}" for op, n in sorted(ops.items())),
        f"constants without content: {skeleton.opaque} different ones",
        f"constants with content ({len(skeleton.sent)}; their names are not sent):",
        *(f"  {name}: {text}" for name, text in skeleton.sent),
        *(f"  message {stand_in} stands for {text!r}" for text, stand_in in skeleton.texts.items()),
    ]
    if full:
        lines.append("all other constants travel too (a full upload)")
    options = str(ready.request.options).strip().splitlines()
    return [*lines, "options: " + ", ".join(o.strip() for o in options)]
