"""Where the handle of a variable comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: they give on as output ``p`` what they take as input ``p``
PASS_ON = frozenset({"Identity", "IdentityN", "While", "StatelessWhile"})


def source_of(node: str, port: int, proto: Callable[[str], Any], inputs: Callable[[str], list[tuple[str, int]]]) -> str:
    """What identifies the variable that output ``port`` of ``node`` is the handle of: the node that makes it, or the name that nodes share
    it by. ``proto``: a node's message, None for what is no node; ``inputs``: its data inputs."""
    seen: set[str] = set()
    while (found := proto(node)) is not None and node not in seen and found.op in PASS_ON:
        seen.add(node)
        data = inputs(node)
        if port >= len(data):
            break
        node, port = data[port]
    found = proto(node)
    if found is not None and found.op == "VarHandleOp" and "shared_name" in found.attr and found.attr["shared_name"].s:
        container = found.attr["container"].s if "container" in found.attr else b""
        return f"variable {container!r} {found.attr['shared_name'].s!r}"
    return node
