"""Makes the process that compile children come from ready: whatever the compiler loads when it is first used is loaded before the fork."""

from __future__ import annotations

from disc_tf.frontend.tfproto import message_class
from disc_tf.remote.compile import compile_skeleton
from disc_tf.remote.messages import new

_FLOAT = 1


def compile_once() -> None:
    """Compiles a small graph (a matrix product, a softmax)."""
    graph = message_class("GraphDef")()

    def node(name: str, op: str, *inputs: str) -> None:
        made = graph.node.add(name=name, op=op)
        made.input.extend(inputs)
        made.attr["dtype" if op == "Placeholder" else "T"].type = _FLOAT

    for name in ("a", "b"):
        node(name, "Placeholder")
        for _ in range(2):
            graph.node[-1].attr["shape"].shape.dim.add(size=-1)
    node("product", "MatMul", "a", "b")
    node("sum", "AddV2", "product", "product")
    node("out", "Softmax", "sum")
    options = new("CompileOptions", targets=["x86-64-v2"], min_cluster_size=1)
    result = compile_skeleton(graph.SerializeToString(), ["out"], (), options)
    if len(result.clusters) != 1:
        raise RuntimeError(f"the compiler does not work here: {result.report_json[:2000]!r}")
